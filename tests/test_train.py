"""Test the reference training: as a command line in processes of its own, and its parts in this process."""

import csv
import math
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import train

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "resources" / "digits.npz"
PROGRAM = [sys.executable, str(ROOT / "workflow" / "scripts" / "train.py")]

# Keras's own, on NumPy 2. Other warnings are errors here.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
# All that has a state of its own: Adam's moments, moving means, dropout's generators.
STATEFUL = ["--hidden", "16", "--dropout=0.3", "--batch_norm", "--learning_rate=0.01", "--seed", "3"]
SMALL = ["--hidden", "8", "--epochs=3"]


def flags_for(folder: Path, data: Path = DATA) -> list[str]:
    """Name the files of a run in a folder."""
    return ["--data", str(data), "--model", f"{folder}/model.keras", "--history", f"{folder}/history.csv"]


def run(folder: Path, *flags: str, data: Path = DATA) -> tuple[str, list[np.ndarray]]:
    """Train in this process; return the history's text and the model's weights."""
    train.main([*flags, *flags_for(folder, data)])
    return result(folder)


def result(folder: Path) -> tuple[str, list[np.ndarray]]:
    """Return the history's text and the model's weights."""
    model = keras.saving.load_model(folder / "model.keras", compile=False)
    return (folder / "history.csv").read_text(), model.get_weights()


def assert_same(one: tuple, other: tuple) -> None:
    """Check that two results are equal to the bit."""
    assert one[0] == other[0]
    assert len(one[1]) == len(other[1])
    for left, right in zip(one[1], other[1], strict=True):
        np.testing.assert_array_equal(left, right)


def rows(history: str) -> list[dict[str, str]]:
    """Read a history."""
    return list(csv.DictReader(history.splitlines()))


# --- As a command line ---

# Two hidden layers, and some tenths of a second per epoch: time for a kill.
LONG = [*STATEFUL, "--hidden", "16", "16", "--epochs=8", "--batch_size=16"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[str, list[np.ndarray]]:
    """Train once, undisturbed, in a process of its own."""
    folder = tmp_path_factory.mktemp("whole")
    done = subprocess.run([*PROGRAM, *LONG, *flags_for(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == [f"epoch {n}/8" for n in range(1, 9)]
    assert lines[-1].startswith("Kept epoch ")
    return result(folder)


def test_a_repeat_in_another_process_is_equal_to_the_bit(whole, tmp_path):
    assert_same(run(tmp_path, *LONG), whole)


def test_a_killed_run_goes_on_to_the_same_bits(whole, tmp_path):
    command = [*PROGRAM, *LONG, *flags_for(tmp_path), "--state", str(tmp_path / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        for line in process.stdout:
            if line.startswith("epoch 3/"):
                process.kill()  # SIGKILL, wherever it may be by now
                break
    assert process.returncode == -9
    assert not (tmp_path / "model.keras").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("Going on after epoch ") and int(first.split()[4].rstrip(",")) >= 3
    assert_same(result(tmp_path), whole)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "history.csv",
        "model.keras",
        "state.npz",
    ]


def test_a_wrong_flag_is_a_usage_error():
    done = subprocess.run([*PROGRAM, "--dropout=1", *flags_for(Path("x"))], capture_output=True, text=True)
    assert done.returncode == 2
    assert "argument --dropout: must be a number, at least 0 and less than 1, not '1'" in done.stderr
    assert "Traceback" not in done.stderr


# --- Flags ---


def parse(*flags: str):
    """Read flags beside the required ones."""
    return train.parse([*flags, "--data", "d.npz", "--model", "m.keras"])


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ([], "hidden", [64]),
        (["--hidden"], "hidden", []),
        (["--hidden", "--epochs=1"], "hidden", []),
        (["--hidden", "64", "32"], "hidden", [64, 32]),
        (["--hidden=8"], "hidden", [8]),
        ([], "batch_norm", False),
        (["--batch_norm"], "batch_norm", True),
        (["--batch_norm", "--no-batch_norm"], "batch_norm", False),
        (["--learning_rate=1e-05"], "learning_rate", 1e-05),
        (["--seed", "4294967295"], "seed", 2**32 - 1),
    ],
)
def test_flags(flags, name, value):
    assert getattr(parse(*flags), name) == value


@pytest.mark.parametrize(
    "flag",
    [
        "--epochs=0",
        "--epochs=-1",
        "--epochs=2.0",
        "--batch_size=0",
        "--hidden=0",
        "--dropout=1.0",
        "--dropout=-0.1",
        "--dropout=nan",
        "--l2=-1",
        "--l2=inf",
        "--learning_rate=0",
        "--learning_rate=inf",
        "--learning_rate=fast",
        "--momentum=1",
        "--activation=rulu",
        "--optimizer=adams",
        "--seed=-1",
        "--seed=4294967296",
        "--snapshot=-1",
        "--model=model.h5",
    ],
)
def test_nonsense_is_refused_by_name(flag, capsys):
    with pytest.raises(SystemExit) as left:
        parse(flag)
    assert left.value.code == 2
    name, _, value = flag.partition("=")
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {name}: " in message and f"'{value}'" in message


@pytest.mark.parametrize("flags", [["--learn=0.1"], ["--color=red"]])
def test_no_flag_is_guessed(flags, capsys):
    with pytest.raises(SystemExit) as left:
        parse(*flags)
    assert left.value.code == 2
    assert f"unrecognized arguments: {flags[0]}" in capsys.readouterr().err


# --- The network ---


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        (["--hidden"], 64 * 10 + 10),  # a linear model
        (["--hidden", "16", "8"], 64 * 16 + 16 + 16 * 8 + 8 + 8 * 10 + 10),
        # The normalisation has four numbers a unit, and takes the place of the bias.
        (["--hidden", "16", "8", "--batch_norm"], 64 * 16 + 4 * 16 + 16 * 8 + 4 * 8 + 8 * 10 + 10),
    ],
)
def test_number_of_parameters(flags, count):
    assert train.build(parse(*flags)).count_params() == count


def test_optimizer_gets_its_settings():
    for name, momentum in (("sgd", 0.5), ("rmsprop", 0.5), ("adam", None), ("adamw", None)):
        options = parse(f"--optimizer={name}", "--momentum=0.5", "--learning_rate=0.25", "--hidden")
        optimizer = train.make_trainable(train.build(options), options).optimizer
        assert type(optimizer) is train.OPTIMIZERS[name]
        assert float(optimizer.learning_rate) == 0.25
        assert getattr(optimizer, "momentum", None) == momentum


# --- Training ---


def test_one_step_is_one_step_of_gradient_descent(tmp_path):
    """Compare with the gradient of softmax regression, x'(p - y) / n, plus 2 l2 W, in NumPy."""
    flags = [
        "--hidden",
        "--optimizer=sgd",
        "--learning_rate=0.5",
        "--l2=0.1",
        "--epochs=1",
        "--batch_size=1078",
    ]
    keras.utils.set_random_seed(7)
    kernel, bias = (array.astype(np.float64) for array in train.build(parse(*flags)).get_weights())
    images, labels = train.digits.load(DATA, "train")
    x = images.reshape(-1, 64) / 16
    p = np.exp(x @ kernel + bias)
    p /= p.sum(axis=1, keepdims=True)
    error = (p - np.eye(10)[labels]) / len(x)
    _, (new_kernel, new_bias) = run(tmp_path, *flags, "--seed", "7")
    np.testing.assert_allclose(new_kernel, kernel - 0.5 * (x.T @ error + 2 * 0.1 * kernel), atol=1e-6)
    np.testing.assert_allclose(new_bias, bias - 0.5 * error.sum(axis=0), atol=1e-6)


def test_history_and_what_is_learnt(tmp_path, capsys):
    history, _ = run(tmp_path, "--learning_rate=0.01", "--epochs=8")
    assert history.splitlines()[0] == "epoch,loss,accuracy,val_loss,val_accuracy"
    table = rows(history)
    assert [row["epoch"] for row in table] == [str(n) for n in range(1, 9)]
    assert all(repr(float(text)) == text for row in table for name, text in row.items() if name != "epoch")
    # A one-hidden-layer perceptron gets well over 90 % of these digits right; a guess 10 %.
    assert float(table[-1]["val_accuracy"]) > 0.93
    assert float(table[-1]["loss"]) < float(table[0]["loss"]) < math.log(10)
    assert len(capsys.readouterr().out.splitlines()) == 9


class Recorder:
    """Stands for a model: keeps the batches that it is to learn from."""

    layers = ()

    def __init__(self):
        self.batches = []

    def train_on_batch(self, images, labels):
        """Keep a batch."""
        np.testing.assert_array_equal(images, labels)
        self.batches.append(labels.tolist())


def test_order_of_images_is_of_the_seed_and_the_epoch():
    numbers = np.arange(100)
    orders = []
    for seed, epoch in ((1, 1), (1, 2), (2, 1), (2, 2), (1, 1)):
        model = Recorder()
        train.train_epoch(model, numbers, numbers, 30, seed, epoch)
        assert [len(batch) for batch in model.batches] == [30, 30, 30]  # ten images sit out
        assert len(set(sum(model.batches, []))) == 90
        orders.append(model.batches)
    assert orders[0] == orders[4]
    assert all(orders[a] != orders[b] for a in range(4) for b in range(a))


def test_test_images_are_never_used(tmp_path):
    images, labels = (np.load(DATA)[name] for name in ("images", "labels"))
    order = np.random.RandomState(0).permutation(1797)
    for name, changed in (("test", order[1437:]), ("validation", order[1078:1437])):
        other_images, other_labels = images.copy(), labels.copy()
        other_images[changed] = 16 - images[changed]
        other_labels[changed] = 9 - labels[changed]
        np.savez(tmp_path / f"{name}.npz", images=other_images, labels=other_labels)
    flags = [*STATEFUL, "--epochs=2"]
    reference = run(tmp_path, *flags)
    assert_same(run(tmp_path, *flags, data=tmp_path / "test.npz"), reference)
    # What must change then does: validation data are used, to choose the epoch.
    history, _ = run(tmp_path, *flags, data=tmp_path / "validation.npz")
    names = {
        name
        for a, b in zip(*map(rows, (history, reference[0])), strict=True)
        for name in a
        if a[name] != b[name]
    }
    assert names == {"val_loss", "val_accuracy"}


# --- The best epoch ---


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([math.nan, 0.5, 0.4], 3),  # a first NaN must not stay the best
        ([0.5, math.nan, math.inf], 1),
        ([0.5, 0.4, 0.4], 2),
        ([math.nan, math.inf], None),
        ([], None),
    ],
)
def test_best_epoch(losses, best):
    assert train.best_epoch([[0.1, 0.9, loss, 0.9] for loss in losses]) == best


def tell_losses(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    """Have the coming epochs measure these losses on validation data."""
    told = iter(losses)
    monkeypatch.setattr(train, "measure", lambda *_: [0.1, 0.9, next(told), 0.9])


@pytest.mark.parametrize(("losses", "best"), [([math.nan, 0.5, 0.4], 3), ([math.nan, 0.5, math.nan], 2)])
def test_weights_are_the_best_epochs(losses, best, tmp_path, monkeypatch, capsys):
    _, expected = run(tmp_path, *STATEFUL, f"--epochs={best}")
    tell_losses(monkeypatch, losses)
    history, weights = run(tmp_path, *STATEFUL, "--epochs=3")
    assert [row["val_loss"] for row in rows(history)] == [repr(loss) for loss in losses]
    assert f"Kept epoch {best}, " in capsys.readouterr().out
    assert_same(("", weights), ("", expected))


def test_a_diverged_run_is_a_result(tmp_path, capsys):
    history, weights = run(tmp_path, *SMALL, "--optimizer=sgd", "--learning_rate=1e30")
    assert rows(history)[0] == {"epoch": "1"} | dict.fromkeys(train.METRICS, "nan")
    assert len(rows(history)) == 1  # weights that are not finite end the training
    assert not all(np.isfinite(weight).all() for weight in weights)
    assert "Diverged: no epoch has a finite val_loss" in capsys.readouterr().out


# --- The state ---


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.fixture
def killed_after(tmp_path, monkeypatch):
    """Run with a state until an epoch's end, and not further."""
    write = train.write_history

    def kill(epochs: int, *flags: str) -> None:
        def write_and_die(path, history):
            write(path, history)
            if len(history) == epochs:
                raise Killed

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(train, "write_history", write_and_die)
            run(tmp_path, *flags, "--state", str(tmp_path / "state"))

    return kill


@pytest.fixture(scope="module")
def stateful(tmp_path_factory) -> tuple[str, list[np.ndarray]]:
    """Train four epochs, undisturbed and without a state."""
    return run(tmp_path_factory.mktemp("stateful"), *STATEFUL, "--epochs=4")


@pytest.mark.parametrize(("snapshot", "killed", "after"), [(1, 1, 1), (1, 4, 4), (2, 3, 2), (0, 3, None)])
def test_goes_on_from_the_last_snapshot(snapshot, killed, after, stateful, killed_after, tmp_path, capsys):
    flags = [*STATEFUL, "--epochs=4", f"--snapshot={snapshot}"]
    killed_after(killed, *flags)
    (tmp_path / "state" / ".part.state.npz").write_bytes(b"killed while writing")
    capsys.readouterr()
    assert_same(run(tmp_path, *flags, "--state", str(tmp_path / "state")), stateful)
    assert (f"Going on after epoch {after}, " in capsys.readouterr().out) == (after is not None)


def test_goes_on_with_the_best_epoch_of_before(tmp_path, monkeypatch, killed_after):
    _, expected = run(tmp_path, *STATEFUL, "--epochs=2")
    tell_losses(monkeypatch, [0.3, 0.2, math.nan])
    killed_after(3, *STATEFUL, "--epochs=4")
    tell_losses(monkeypatch, [0.4])
    history, weights = run(tmp_path, *STATEFUL, "--epochs=4", "--state", str(tmp_path / "state"))
    assert [row["val_loss"] for row in rows(history)] == ["0.3", "0.2", "nan", "0.4"]
    assert_same(("", weights), ("", expected))


def damaged(content: bytes, how: str) -> bytes:
    """Damage a file's content."""
    middle = len(content) // 2
    return {
        "empty": b"",
        "cut": content[:middle],
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "text": b"no checkpoint",
    }[how]


def test_a_damaged_state_is_left_aside(killed_after, tmp_path, capsys):
    expected = run(tmp_path, *SMALL)
    killed_after(2, *SMALL)
    state = tmp_path / "state" / "state.npz"
    good = state.read_bytes()
    for how in ("empty", "cut", "flipped", "text"):
        state.write_bytes(damaged(good, how))
        capsys.readouterr()
        assert_same(run(tmp_path, *SMALL, "--state", str(state.parent)), expected)
        first = capsys.readouterr().out.splitlines()[0]
        assert first.startswith(f"'{state}' can't be used (") and first.endswith("training from the start.")


def test_the_state_of_another_run_is_left_aside(stateful, killed_after, tmp_path, capsys):
    killed_after(2, *STATEFUL, "--epochs=4", "--seed=8", "--l2=0.1")
    assert_same(run(tmp_path, *STATEFUL, "--epochs=4", "--state", str(tmp_path / "state")), stateful)
    assert "(it is of a run with another l2, seed)" in capsys.readouterr().out


def test_the_state_of_other_data_is_left_aside(killed_after, tmp_path, capsys):
    killed_after(2, *SMALL)
    arrays = dict(np.load(DATA))
    arrays["labels"][-1] ^= 1
    np.savez(tmp_path / "other.npz", **arrays)
    run(tmp_path, *SMALL, "--state", str(tmp_path / "state"), data=tmp_path / "other.npz")
    assert "(it is of a run with another data)" in capsys.readouterr().out


def test_the_state_of_another_network_is_left_aside(killed_after, tmp_path, monkeypatch, capsys):
    killed_after(2, *SMALL)
    monkeypatch.setitem(train.OPTIMIZERS, "adam", keras.optimizers.SGD)  # someone edited the program
    run(tmp_path, *SMALL, "--state", str(tmp_path / "state"))
    assert "(it is of another network)" in capsys.readouterr().out


# --- Errors ---


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data", "missing.npz"], "No such file or directory: 'missing.npz'"),
        (["--data", __file__], "is no .npz file with the arrays 'images' and 'labels'"),
        (["--batch_size=1079"], "--batch_size: 1079 is more than the 1078 images to train on"),
        (["--model", f"{__file__}/model.keras"], f"File exists: '{__file__}'"),
    ],
)
def test_an_error_is_one_line(flags, message, tmp_path):
    with pytest.raises(SystemExit) as left:
        train.main([*SMALL, *flags_for(tmp_path), *flags])
    assert isinstance(left.value.code, str)  # Python prints it to standard error and leaves with 1
    assert left.value.code.startswith("train.py: ") and message in left.value.code
    assert "\n" not in left.value.code
