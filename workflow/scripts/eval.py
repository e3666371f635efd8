"""Score a trained model on one split of the data: accuracy, and mean cross-entropy as loss.

Metrics are written as one flat JSON object; a number that is not finite (a diverged model's) is null.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import digits
import keras


class BadModel(Exception):
    """The file holds no model of such images."""


def main(arguments: list[str] | None = None) -> None:
    """Score as the command line says; leave with a message if a file can't be read or written."""
    options = parse(arguments)
    try:
        images, labels = digits.load(options.data, options.split)
        model = load(options.model)
        metrics = digits.score(model.predict_on_batch(images), labels)
        write(options.metrics, metrics)
    except (BadModel, digits.BadData, OSError) as error:
        sys.exit(f"eval.py: {error}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", type=Path, required=True, help="the model to read (.keras)")
    parser.add_argument("--data", type=Path, required=True, help="the images and labels to read (.npz)")
    parser.add_argument(
        "--split",
        choices=digits.SPLITS,
        default="validation",
        help="the part of the data to score on (default: %(default)s)",
    )
    parser.add_argument("--metrics", type=Path, required=True, help="the metrics to write (.json)")
    return parser.parse_args(arguments)


def load(path: Path) -> keras.Model:
    """Load a model from images (batch, 8, 8) to logits (batch, 10), running no code that its file brings.

    Raises:
        BadModel: it is no such model.
        OSError: the file can't be read.
    """
    path.open("rb").close()  # Keras calls a missing file a wrong value
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # a damaged or foreign file can raise almost anything
        reason = str(error).strip().partition("\n")[0]
        raise BadModel(f"'{path}' can't be loaded as a Keras model: {reason}") from None
    shapes = getattr(model, "input_shape", None), getattr(model, "output_shape", None)
    if shapes != ((None, *digits.IMAGE_SHAPE), (None, digits.CLASSES)):
        raise BadModel(f"'{path}' is a model from {shapes[0]} to {shapes[1]}, not from images to 10 logits")
    return model


def write(path: Path, metrics: dict[str, float]) -> None:
    """Write metrics as strict JSON, whole or not at all, and print them."""
    finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    text = json.dumps(finite, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".part.{path.name}")
    beside.write_text(f"{text}\n", encoding="utf-8")
    beside.replace(path)
    print(text, flush=True)


if __name__ == "__main__":
    main()
