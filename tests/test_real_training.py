"""The reference programs in a real study: what runs again, with TensorFlow and the shipped data."""

import json
import shutil
import zipfile

from study import ROOT, Study

CONFIG = """\
train: python train.py {flags} --seed {seed} --data {data} --model {model} --history {history} --state {state}
eval: python eval.py --model {model} --data {data} --split {split} --metrics {metrics}
data: digits.npz
fixed: {epochs: 1, hidden: [8]}
grid: {learning_rate: [0.01]}
seeds: [0, 1]
"""


def weights(run) -> bytes:
    """Return a model's weights as they are in its file, whose other parts hold a date."""
    with zipfile.ZipFile(run / "model.keras") as archive:
        return archive.read("model.weights.h5")


def test_real_study(tmp_path):
    """Rows of the README's table; the same seed gives the same numbers, to the last bit."""
    study = Study(tmp_path, CONFIG)
    for name in ("train.py", "eval.py", "digits.py"):
        shutil.copy(ROOT / "workflow/scripts" / name, tmp_path / name)
    shutil.copy(ROOT / "resources/digits.npz", tmp_path)
    assert study.snakemake().jobs == (2, 2)
    first = {seed: study.json(f"learning_rate=0.01/seed={seed}/metrics.json") for seed in (0, 1)}
    assert first[0] != first[1]
    assert all(0 < metrics["accuracy"] < 1 for metrics in first.values())
    attempts = (study.results / "learning_rate=0.01/seed=0/attempts.jsonl").read_text().splitlines()
    assert set(json.loads(attempts[1])["versions"]) >= {"python", "tensorflow", "keras", "numpy"}
    assert [json.loads(line)["start"] for line in attempts[1::2]] == [
        "warm",
        "warm",
        "warm",
    ]  # it is the chosen one, so tested, too
    # A cold start gives the same bits.
    cold = "learning_rate=0.01/seed=0/metrics.json"
    study.snakemake("--config", "warm=false", "results=cold", "--", f"cold/{cold}")
    assert json.loads((tmp_path / "cold" / cold).read_text()) == first[0]
    assert weights(tmp_path / "cold/learning_rate=0.01/seed=0") == weights(
        study.results / "learning_rate=0.01/seed=0"
    )
    # Comments change nothing; the evaluation's code evaluates, a local module's code trains.
    study.edit("train.py", "\nimport ", "\n# a comment\nimport ")
    assert study.snakemake().jobs == (0, 0)
    study.edit("eval.py", "\ndef main(", "\nNEW = 1\n\n\ndef main(")
    assert study.snakemake().jobs == (0, 2)
    study.edit("digits.py", "\ndef ", "\nNEW = 1\n\n\ndef ")
    assert study.snakemake().jobs == (2, 2)
    again = {seed: study.json(f"learning_rate=0.01/seed={seed}/metrics.json") for seed in (0, 1)}
    assert again == first
    study.edit("config.yaml", "[0.01]", "[0.01, 0.1]")
    assert study.snakemake().jobs == (2, 2)
    assert len(study.table("summary.csv")) == 2
