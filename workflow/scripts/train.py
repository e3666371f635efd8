"""Train a classifier of handwritten digits: a plain multi-layer perceptron in Keras.

Every hyperparameter is a flag. The weights kept are those of the epoch with the lowest loss on validation
data; test data is never used. The same flags, seed, data, software and machine give the same weights to the
bit, and so does a run that was killed and goes on from its state. Any Keras backend will do (KERAS_BACKEND;
TensorFlow by default), though only TensorFlow is told to be deterministic on a GPU.
"""

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import digits
import keras
import numpy as np

OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "rmsprop": keras.optimizers.RMSprop,
    "sgd": keras.optimizers.SGD,
}
WITH_MOMENTUM = ("rmsprop", "sgd")
ACTIVATIONS = ("elu", "gelu", "linear", "relu", "selu", "sigmoid", "silu", "tanh")
METRICS = ("loss", "accuracy", "val_loss", "val_accuracy")  # the columns of a history, after `epoch`
VAL_LOSS = METRICS.index("val_loss")

Weights = list[np.ndarray]
History = list[list[float]]  # one row of METRICS per epoch


def main(arguments: list[str] | None = None) -> None:
    """Train as the command line says; leave with a message if a file can't be read or written."""
    options = parse(arguments)
    try:
        train(options)
    except (digits.BadData, OSError) as error:
        sys.exit(f"train.py: {error}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    files = parser.add_argument_group("files")
    files.add_argument("--data", type=Path, required=True, help="the images and labels to read (.npz)")
    files.add_argument("--model", type=model_file, required=True, help="the model to write (.keras)")
    files.add_argument("--history", type=Path, help="the course of the training to write (.csv)")
    files.add_argument(
        "--state",
        type=Path,
        help="a folder for checkpoints: a run that was killed goes on from the last one there",
    )
    files.add_argument(
        "--snapshot",
        type=at_least(0),
        default=1,
        metavar="N",
        help="epochs from one checkpoint to the next, 0 for none (default: %(default)s)",
    )
    network = parser.add_argument_group("network")
    network.add_argument(
        "--hidden",
        type=at_least(1),
        nargs="*",
        default=[64],
        metavar="UNITS",
        help="width of each hidden layer; none makes a linear model (default: 64)",
    )
    network.add_argument(
        "--activation",
        choices=ACTIVATIONS,
        default="relu",
        help="of the hidden layers (default: %(default)s)",
    )
    network.add_argument(
        "--batch_norm",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="normalise each hidden layer over the batch (default: no)",
    )
    network.add_argument(
        "--dropout",
        type=real("at least 0 and less than 1", lambda x: 0 <= x < 1),
        default=0.0,
        metavar="SHARE",
        help="share of each hidden layer's outputs to drop in training (default: %(default)s)",
    )
    network.add_argument(
        "--l2",
        type=real("at least 0", lambda x: 0 <= x < math.inf),
        default=0.0,
        metavar="FACTOR",
        help="penalty on the squares of the kernels' weights (default: %(default)s)",
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="adam", help="how to descend (default: %(default)s)"
    )
    training.add_argument(
        "--learning_rate",
        type=real("more than 0", lambda x: 0 < x < math.inf),
        default=0.001,
        metavar="RATE",
        help="(default: %(default)s)",
    )
    training.add_argument(
        "--momentum",
        type=real("at least 0 and less than 1", lambda x: 0 <= x < 1),
        default=0.0,
        metavar="SHARE",
        help="used by sgd and rmsprop; adam and adamw ignore it (default: %(default)s)",
    )
    training.add_argument(
        "--batch_size",
        type=at_least(1),
        default=64,
        metavar="IMAGES",
        help="images per step (default: %(default)s)",
    )
    training.add_argument(
        "--epochs", type=at_least(1), default=20, metavar="N", help="(default: %(default)s)"
    )
    training.add_argument(
        "--seed",
        type=at_least(0, 2**32 - 1),
        default=0,
        metavar="N",
        help="of the first weights, the order of the images and the dropout (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def at_least(low: int, high: float = math.inf) -> Callable[[str], int]:
    """Make an argparse type for integers from `low` to `high`."""

    def convert(text: str) -> int:
        number = int(text) if text.removeprefix("-").isdecimal() else None
        if number is None or not low <= number <= high:
            limits = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"must be an integer {limits}, not '{text}'")
        return number

    return convert


def real(limits: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """Make an argparse type for finite numbers that are `allowed`, which `limits` says in words."""

    def convert(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not allowed(number):  # no comparison holds for NaN
            raise argparse.ArgumentTypeError(f"must be a number, {limits}, not '{text}'")
        return number

    return convert


def model_file(text: str) -> Path:
    """Check the name of a model's file: Keras tells the format by it."""
    if not text.endswith(".keras"):
        raise argparse.ArgumentTypeError(f"must end in .keras, not '{text}'")
    return Path(text)


def train(options: argparse.Namespace) -> None:
    """Train one model, and write the model and the history."""
    training = digits.load(options.data, "train")
    validation = digits.load(options.data, "validation")
    if options.batch_size > (count := len(training[0])):
        sys.exit(f"train.py: --batch_size: {options.batch_size} is more than the {count} images to train on")
    for folder in (options.model.parent, options.history and options.history.parent, options.state):
        if folder:
            folder.mkdir(parents=True, exist_ok=True)  # a folder that can't be made fails before the work

    make_deterministic(options.seed)
    model = make_trainable(build(options), options)
    state = State(options.state, identity(options)) if options.state else None
    history, best = state.restore(model) if state else ([], [])
    for epoch in range(len(history) + 1, options.epochs + 1):
        if not all(np.isfinite(variable.numpy()).all() for variable in model.trainable_variables):
            # Not at a loss that is not finite: that can pass, and the best epoch may come after it.
            print("Stopped: a weight is not finite, and no further epoch can mend that.", flush=True)
            break
        train_epoch(model, *training, options.batch_size, options.seed, epoch)
        history.append(measure(model, training, validation))
        if best_epoch(history) == epoch:
            best = weights_of(model)
        if state and options.snapshot and epoch % options.snapshot == 0:
            state.save(model, history, best)
        if options.history:
            write_history(options.history, history)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in zip(METRICS, history[-1], strict=True))
        print(f"epoch {epoch}/{options.epochs}: {shown}", flush=True)

    if options.history:
        write_history(options.history, history)  # once more: a state may hold every epoch already
    if (kept := best_epoch(history)) is None:
        print("Diverged: no epoch has a finite val_loss, so the last weights are kept.", flush=True)
    else:
        print(
            f"Kept epoch {kept}, which has the lowest val_loss: {history[kept - 1][VAL_LOSS]:.4f}", flush=True
        )
    write_model(options, best or weights_of(model))


def make_deterministic(seed: int) -> None:
    """Seed every random generator, and have TensorFlow choose operations that repeat to the bit."""
    keras.utils.set_random_seed(seed)
    if keras.backend.backend() == "tensorflow":
        import tensorflow  # Keras has imported it already; other backends need none

        tensorflow.config.experimental.enable_op_determinism()


def build(options: argparse.Namespace) -> keras.Model:
    """Build the network: images (batch, 8, 8), uint8 as they are in the file, to logits (batch, 10)."""
    model = keras.Sequential(name="perceptron")
    model.add(keras.Input(digits.IMAGE_SHAPE, dtype="uint8"))
    model.add(keras.layers.Flatten(name="flatten"))
    model.add(keras.layers.Rescaling(1 / digits.DARKEST, name="rescaling"))
    penalty = keras.regularizers.L2(options.l2) if options.l2 else None
    for i, units in enumerate(options.hidden, start=1):
        bias = not options.batch_norm  # the normalisation adds its own
        model.add(keras.layers.Dense(units, use_bias=bias, kernel_regularizer=penalty, name=f"dense_{i}"))
        if options.batch_norm:
            model.add(keras.layers.BatchNormalization(name=f"batch_norm_{i}"))
        model.add(keras.layers.Activation(options.activation, name=f"activation_{i}"))
        if options.dropout:
            # With a seed, whichever, it has a generator of its own on every backend, set anew each epoch.
            model.add(keras.layers.Dropout(options.dropout, seed=options.seed, name=f"dropout_{i}"))
    model.add(keras.layers.Dense(digits.CLASSES, kernel_regularizer=penalty, name="logits"))
    return model


def make_trainable(model: keras.Model, options: argparse.Namespace) -> keras.Model:
    """Give a model its loss and its optimizer, whose state is there from the start, to be restored."""
    settings = {"momentum": options.momentum} if options.optimizer in WITH_MOMENTUM else {}
    model.compile(
        optimizer=OPTIMIZERS[options.optimizer](options.learning_rate, **settings),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.optimizer.build(model.trainable_variables)
    return model


def train_epoch(
    model: keras.Model, images: np.ndarray, labels: np.ndarray, batch_size: int, seed: int, epoch: int
) -> None:
    """Take one step per batch of images (n, 8, 8) and labels (n,).

    All chance is drawn from the seed and the epoch, and none is left over from earlier epochs: so a run that
    goes on from a checkpoint, which holds no generator's state, does what one that was never killed does.
    """
    order = np.random.default_rng([seed, epoch, 0]).permutation(len(images))
    for i, layer in enumerate(model.layers, start=1):
        if (generator := getattr(layer, "seed_generator", None)) is not None:
            generator.state.assign(np.random.default_rng([seed, epoch, i]).integers(2**31, size=2))
    # Images that fill no batch sit the epoch out, others in each: a second size would be compiled anew.
    for batch in order[: len(order) // batch_size * batch_size].reshape(-1, batch_size):
        model.train_on_batch(images[batch], labels[batch])


def measure(model: keras.Model, *splits: tuple[np.ndarray, np.ndarray]) -> list[float]:
    """Measure loss and accuracy on each split, without dropout or penalty.

    So measured, the numbers of two splits are comparable, and those of runs with different penalties.
    """
    scores = (digits.score(model.predict_on_batch(images), labels) for images, labels in splits)
    return [score[name] for score in scores for name in ("loss", "accuracy")]


def best_epoch(history: History) -> int | None:
    """Return the epoch (from 1) with the lowest finite val_loss, the first of equals, or None."""
    finite = [epoch for epoch, row in enumerate(history, start=1) if math.isfinite(row[VAL_LOSS])]
    return min(finite, key=lambda epoch: history[epoch - 1][VAL_LOSS], default=None)


def weights_of(model: keras.Model) -> Weights:
    """Copy a model's weights (some backends hand out views that the next step changes)."""
    return [np.array(weight) for weight in model.get_weights()]


def identity(options: argparse.Namespace) -> dict:
    """Return all that a checkpoint depends on: flags but those that name files, data, and Keras."""
    files = ("data", "model", "history", "state", "snapshot")
    flags = {name: value for name, value in vars(options).items() if name not in files}
    data = hashlib.sha256(options.data.read_bytes()).hexdigest()
    return flags | {"data": data, "keras": f"{keras.__version__} {keras.backend.backend()}"}


class State:
    """The checkpoint of a run: `state.npz` in a folder of its own.

    It holds the weights, the optimizer's variables, the best weights so far, the history, and the run it
    belongs to. It is one file, renamed when it is whole, so a kill at any time leaves the last one or the one
    before.
    """

    def __init__(self, folder: Path, run: dict):
        self._path = folder / "state.npz"
        self._run = run

    def save(self, model: keras.Model, history: History, best: Weights) -> None:
        """Write the state after an epoch."""
        arrays = {"run": np.array(json.dumps(self._run)), "history": np.array(history)}
        optimizer = [variable.numpy() for variable in model.optimizer.variables]
        for name, values in (("weights", weights_of(model)), ("optimizer", optimizer), ("best", best)):
            arrays |= {f"{name}_{i}": value for i, value in enumerate(values)}
        with written_whole(self._path) as beside, beside.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    def restore(self, model: keras.Model) -> tuple[History, Weights]:
        """Set a model and its optimizer to the state; return the history so far and the best weights.

        A state that is damaged, or of another run, is left aside with a message; the next one replaces it.
        """
        variables = [*model.weights, *model.optimizer.variables]
        try:
            history, values, best = self._read([tuple(variable.shape) for variable in variables])
        except FileNotFoundError:
            return [], []
        except Exception as error:  # a damaged file can raise almost anything
            print(f"'{self._path}' can't be used ({error}): training from the start.", flush=True)
            return [], []
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        print(f"Going on after epoch {len(history)}, from '{self._path}'.", flush=True)
        return history, best

    def _read(self, shapes: list[tuple[int, ...]]) -> tuple[History, Weights, Weights]:
        """Read the history, the values of the variables of these shapes, and the best weights."""
        with self._path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            run = json.loads(str(file["run"]))
            lists = {
                name: [file[f"{name}_{i}"] for i in range(sum(key.startswith(f"{name}_") for key in file))]
                for name in ("weights", "optimizer", "best")
            }
            history = file["history"].tolist()
        values = lists["weights"] + lists["optimizer"]
        if run != self._run:
            names = sorted(n for n in run.keys() | self._run.keys() if run.get(n) != self._run.get(n))
            raise ValueError(f"it is of a run with another {', '.join(names)}")
        if [value.shape for value in values] != shapes:
            raise ValueError("it is of another network")
        return history, values, lists["best"]


def write_history(path: Path, history: History) -> None:
    """Write one row per epoch; each number as the shortest text that reads back to the same, or nan."""
    lines = [",".join(("epoch", *METRICS))]
    lines += [",".join((str(epoch), *map(repr, row))) for epoch, row in enumerate(history, start=1)]
    with written_whole(path) as beside:
        beside.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_model(options: argparse.Namespace, weights: Sequence[np.ndarray]) -> None:
    """Write a model with these weights: to be used, so without the optimizer of the last epoch."""
    model = build(options)
    model.set_weights(weights)
    with written_whole(options.model) as beside:
        model.save(beside)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to, and rename it at the end: no one ever sees half a file."""
    beside = path.with_name(f".part.{path.name}")  # the same for all attempts: a killed one's is overwritten
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
