"""Failure is data: what ended a run is told, what can't pass by repetition is not repeated, the rest goes on."""

import json
import subprocess

import pytest
from study import ROOT, Study

# Does what its hyperparameter says, on its first attempts.
TRAIN = """\
import os, signal, subprocess, sys, time
what, model, state = sys.argv[1].partition("=")[2], sys.argv[3], sys.argv[5]
before = len(os.listdir(state))
open(f"{state}/{before}", "w").close()
print("attempt", before + 1, flush=True)
if what == "raise":
    raise ValueError("the shapes do not fit")
if what == "kill" and before < 2:
    os.kill(os.getpid(), signal.SIGKILL)
if what == "crash" and before < 1:
    os.abort()
if what == "hang":
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    time.sleep(600)
if what == "save":
    def save(*_):
        open(f"{state}/saved", "w").close()
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    time.sleep(0.1 if os.path.exists(f"{state}/saved") else 600)
if what != "nothing":
    open(model, "w").write("model")
"""
EVAL = """import sys; open(sys.argv[2], "w").write('{"accuracy": 1}')\n"""
CONFIG = """\
train: python train.py {flags} --model {model} --state {state}
eval: python eval.py {model} {metrics}
model: model.txt
grid: {what: [WHAT]}
seeds: 1
"""


@pytest.fixture
def study(tmp_path):
    """Make a study of some of the things that a program may do."""

    def study(*what: str, more: str = "") -> Study:
        config = CONFIG.replace("WHAT", ", ".join(what)) + more
        return Study(tmp_path, config, TRAIN, EVAL)

    return study


def attempts(study: Study, what: str, step: str = "train") -> list[dict]:
    path = study.results / f"what={what}/seed=0/attempts.jsonl"
    lines = map(json.loads, path.read_text().splitlines())
    return [line for line in lines if line["step"] == step and line["reason"] != "lost"]


def row(study: Study, what: str) -> dict:
    return next(row for row in study.table() if row["what"] == what)


def test_what_cannot_pass_is_not_repeated(study):
    """The program raised, or wrote nothing: --retries would only cost time."""
    study = study("raise", "nothing", "fine")
    outcome = study.snakemake("--retries", "2", status=1)
    assert [a["reason"] for a in attempts(study, "raise")] == ["failed"]
    assert [a["reason"] for a in attempts(study, "nothing")] == ["bad output"]
    assert "train is not tried again in results/what=raise/seed=0: exit status 1" in outcome.text
    assert row(study, "fine")["status"] == "finished"
    # The next call is another matter: the user may have mended something that we can't see.
    study.snakemake(status=1)
    assert len(attempts(study, "raise")) == 2


def test_what_may_pass_is_repeated(study):
    study = study("kill", "crash")
    study.snakemake("--retries", "2")
    assert [a["reason"] for a in attempts(study, "kill")] == ["killed", "killed", "finished"]
    assert [a["reason"] for a in attempts(study, "crash")] == ["crashed", "finished"]
    log = study.results / "what=kill/seed=0/logs"
    assert [(log / f"train.{n}.log").read_text() for n in (1, 2, 3)] == [f"attempt {n}\n" for n in (1, 2, 3)]


def test_edited_program_is_tried_again_in_the_same_call(study):
    """Its last attempt was made with something else."""
    study = study("raise")
    study.snakemake(status=1)
    study.edit("train.py", 'if what == "raise":', "if what == 'other':")
    assert study.snakemake().jobs == (1, 1)


def test_time_limit(study):
    study = study("hang", "fine", more="time_limit: 1s\n")
    study.snakemake(status=1)
    assert (row(study, "hang")["status"], row(study, "hang")["reason"]) == ("failed", "timed out")
    (attempt,) = attempts(study, "hang")
    assert (attempt["exit"], attempt["detail"]) == (143, "killed by SIGTERM after its time limit")
    assert 1 <= attempt["wall_s"] < 5
    assert row(study, "fine")["status"] == "finished"
    assert subprocess.run(["pgrep", "-f", f"{study.folder}/train.py"], capture_output=True).stdout == b""


def test_time_limit_leaves_the_program_its_grace_time_and_the_next_attempt_goes_on(study):
    study = study("save", more="time_limit: 1s\n")
    study.snakemake("--retries", "1")
    assert [a["reason"] for a in attempts(study, "save")] == ["timed out", "finished"]


def test_end_of_every_failed_log_is_printed_once_with_its_path(study):
    """C20: https://github.com/keras-team/keras-tuner/issues/704."""
    study = study("raise", "kill", "fine")
    outcome = study.snakemake(status=1)
    end = outcome.text[outcome.text.index("Runs: 2 failed, 1 finished. All of them: results/runs.csv") :]
    assert (
        "failed: results/what=raise/seed=0: train failed, exit status 1; "
        "log: results/what=raise/seed=0/logs/train.1.log\n" in end
    )
    assert end.count("    | ValueError: the shapes do not fit\n") == 1
    assert "failed: results/what=kill/seed=0: train killed, killed by SIGKILL; log: " in end
    assert [r["reason"] for r in study.table()] == ["failed", "killed", ""]
    assert not (study.results / "summary.csv").exists()
    assert study.snakemake("-n").jobs == (2, 2)


def test_record_of_an_attempt(study):
    """Every key that docs/failures.md describes."""
    study = study("fine")
    git = ["git", "-c", "user.name=a", "-c", "user.email=b"]
    for words in (["init", "-q"], ["add", "train.py", "eval.py"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], cwd=study.folder, check=True)
    study.snakemake()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=study.folder, capture_output=True, text=True)
    train, evaluate = (attempts(study, "fine", step)[0] for step in ("train", "evaluate"))
    assert train["commit"] == commit.stdout[:12]
    assert set(train["made_with"]) == {"run", "command", "fixed", "code", "data"}
    assert train["call"] == evaluate["call"]
    assert train["cpu_s"] > 0
    assert train["memory_mib"] > 1
    assert train["start"] == "cold: it imports no installed package"
    documented = set((ROOT / "docs/failures.md").read_text().split("`"))
    assert set(train) - documented == set()
    study.edit("train.py", "before + 1", "1 + before")
    study.snakemake()
    assert attempts(study, "fine")[-1]["commit"] == commit.stdout[:12] + "+"
