"""Test the reference evaluation: models whose metrics are known beforehand."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import eval as evaluation
import keras
import numpy as np
import pytest
import train

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "resources" / "digits.npz"
PROGRAM = [sys.executable, str(ROOT / "workflow" / "scripts" / "eval.py")]

# Keras's own, on NumPy 2. Other warnings are errors here.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def constant_model(path: Path, bias: list[float]) -> Path:
    """Save a model that gives every image the same ten logits."""
    model = keras.Sequential([keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.set_weights([np.zeros((64, 10)), np.array(bias)])
    model.save(path)
    return path


def refuse(constant: str) -> None:
    """Refuse what is no JSON: NaN and Infinity, which Python reads all the same."""
    raise AssertionError(constant)


def metrics_of(model: Path, *flags: str) -> dict:
    """Evaluate in this process; return the metrics, which must be strict JSON."""
    path = model.parent / "metrics.json"
    evaluation.main(["--model", str(model), "--data", str(DATA), "--metrics", str(path), *flags])
    return json.loads(path.read_text(), parse_constant=refuse)


# Of the 1797 images 178 show a zero: these in each split (counted apart from this program).
@pytest.mark.parametrize(
    ("split", "zeros", "images"), [("train", 107, 1078), ("validation", 40, 359), ("test", 31, 360)]
)
def test_known_metrics_on_every_split(split, zeros, images, tmp_path):
    # Odds of 1 for a zero against 1/9 for each other digit: probabilities 1/2 and 1/18.
    model = constant_model(tmp_path / "model.keras", [0.0] + [-math.log(9)] * 9)
    loss = (zeros * math.log(2) + (images - zeros) * math.log(18)) / images
    assert metrics_of(model, "--split", split) == {
        "accuracy": zeros / images,
        "loss": pytest.approx(loss, rel=1e-6),
    }


def test_the_command_line(tmp_path):
    """Equal logits: the loss is ln 10, and the first digit is the answer. Validation data unless told."""
    model = constant_model(tmp_path / "model.keras", [0.0] * 10)
    metrics = tmp_path / "new" / "metrics.json"
    done = subprocess.run(
        [*PROGRAM, "--model", str(model), "--data", str(DATA), "--metrics", str(metrics)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"accuracy": 40 / 359, "loss": pytest.approx(math.log(10))}
    assert metrics.read_text() == done.stdout
    assert done.stdout.count("\n") == 1 and done.stdout.endswith("}\n")
    assert [path.name for path in metrics.parent.iterdir()] == ["metrics.json"]


def test_scores_are_those_of_the_epoch_that_training_kept(tmp_path):
    model = tmp_path / "model.keras"
    history = tmp_path / "history.csv"
    flags = [
        "--hidden",
        "16",
        "--batch_norm",
        "--dropout=0.2",
        "--l2=0.01",
        "--learning_rate=0.05",
        "--epochs=6",
    ]
    train.main([*flags, "--data", str(DATA), "--model", str(model), "--history", str(history)])
    with history.open() as file:
        best = min(csv.DictReader(file), key=lambda row: float(row["val_loss"]))
    assert metrics_of(model) == {"accuracy": float(best["val_accuracy"]), "loss": float(best["val_loss"])}


def test_a_diverged_model_gives_nulls(tmp_path):
    model = constant_model(tmp_path / "model.keras", [math.nan] + [0.0] * 9)
    assert metrics_of(model) == {"accuracy": None, "loss": None}


def leave(tmp_path: Path, *flags: str) -> object:
    """Evaluate with flags that can't be; return what Python leaves with."""
    metrics = tmp_path / "metrics.json"
    with pytest.raises(SystemExit) as left:
        evaluation.main(["--data", str(DATA), "--metrics", str(metrics), *flags])
    assert not metrics.exists()
    return left.value.code


def test_an_error_is_one_line(tmp_path):
    (tmp_path / "text.keras").write_text("no model")
    wide = keras.Sequential([keras.Input((28, 28)), keras.layers.Flatten(), keras.layers.Dense(10)])
    wide.save(tmp_path / "wide.keras")
    code = keras.Sequential([keras.Input((8, 8)), keras.layers.Lambda(lambda x: x), keras.layers.Flatten()])
    code.save(tmp_path / "code.keras")
    for name, message in (
        ("missing.keras", "No such file or directory"),
        ("text.keras", "can't be loaded as a Keras model"),
        ("wide.keras", "is a model from (None, 28, 28) to (None, 10), not from images to 10 logits"),
        ("code.keras", "can't be loaded as a Keras model"),  # it brings Python code, which must not run
    ):
        text = leave(tmp_path, "--model", str(tmp_path / name))
        assert text.startswith("eval.py: ") and str(tmp_path / name) in text and message in text
        assert "\n" not in text
    model = constant_model(tmp_path / "model.keras", [0.0] * 10)
    assert leave(tmp_path, "--model", str(model), "--data", "missing.npz").endswith("'missing.npz'")


def test_an_unknown_split_is_a_usage_error(tmp_path, capsys):
    assert leave(tmp_path, "--model", "model.keras", "--split", "valid") == 2
    assert "argument --split: invalid choice: 'valid'" in capsys.readouterr().err
