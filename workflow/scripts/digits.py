"""Read the handwritten digits, split them, and score answers: what training and evaluation must agree on."""

from pathlib import Path

import numpy as np

IMAGE_SHAPE = (8, 8)
DARKEST = 16  # pixels are integers from 0 to this
CLASSES = 10
FEWEST = 5  # images, for a split of each kind
# Each split's share of the shuffled images, from and to, in tenths.
SPLITS = {"train": (0, 6), "validation": (6, 8), "test": (8, 10)}


class BadData(Exception):
    """The data file does not hold what it must."""


def load(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Read one split of the data.

    Which image is in which split depends on nothing but how many there are, so all runs, whatever their
    seed, are comparable.

    Args:
        path: an .npz file with `images`, uint8 (n, 8, 8), 0 to 16, and `labels`, uint8 (n,), 0 to 9.
        split: `train`, `validation` or `test`.

    Returns:
        The split's images (m, 8, 8) and labels (m,).

    Raises:
        BadData: the file is no such archive.
        OSError: it can't be read.
    """
    images, labels = _read(path)
    # RandomState, because its stream is frozen: a new NumPy must not move images from test to train.
    order = np.random.RandomState(0).permutation(len(labels))
    first, end = (len(labels) * tenths // 10 for tenths in SPLITS[split])
    chosen = order[first:end]
    return images[chosen], labels[chosen]


def score(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Score answers: the share of right ones, and the mean cross-entropy in nats.

    Args:
        logits: unnormalised log-probabilities (n, 10).
        labels: the right classes (n,).

    Returns:
        `accuracy` and `loss`; both NaN if any logit is not finite, because the largest of NaNs is no answer.
    """
    if not np.isfinite(logits).all():
        return {"accuracy": float("nan"), "loss": float("nan")}
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)  # exp() must not overflow
    log_sums = np.log(np.exp(logits).sum(axis=1))
    loss = np.mean(log_sums - logits[np.arange(len(labels)), labels])
    accuracy = np.mean(logits.argmax(axis=1) == labels)
    return {"accuracy": float(accuracy), "loss": float(loss)}


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read and check the two arrays."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            images, labels = file["images"], file["labels"]
    except OSError:
        raise
    except Exception:  # a damaged or foreign file can raise almost anything
        raise BadData(f"'{path}' is no .npz file with the arrays 'images' and 'labels'") from None
    _check(path, "images", images, (*images.shape[:1], *IMAGE_SHAPE), DARKEST)
    _check(path, "labels", labels, images.shape[:1], CLASSES - 1)
    return images, labels


def _check(path: Path, name: str, array: np.ndarray, shape: tuple[int, ...], largest: int) -> None:
    if array.dtype != np.uint8 or array.shape != shape:
        raise BadData(f"'{path}': '{name}' must be uint8 {shape}, but is {array.dtype} {array.shape}")
    if len(array) < FEWEST:
        raise BadData(f"'{path}': '{name}' holds {len(array)}, but three splits need {FEWEST}")
    if array.max() > largest:
        raise BadData(f"'{path}': '{name}' must be from 0 to {largest}, but {array.max()} is among them")
