"""Test what training and evaluation agree on: the splits of the real data, and scores worked out by hand."""

import math
from pathlib import Path

import digits
import numpy as np
import pytest

DATA = Path(__file__).resolve().parent.parent / "resources" / "digits.npz"


def test_splits_hold_every_image_once():
    whole = np.load(DATA)
    parts = [digits.load(DATA, split) for split in ("train", "validation", "test")]
    assert [len(labels) for _, labels in parts] == [1078, 359, 360]  # 60, 20 and 20 % of 1797
    pairs = sorted((image.tobytes(), label) for part in parts for image, label in zip(*part, strict=True))
    assert pairs == sorted((i.tobytes(), n) for i, n in zip(whole["images"], whole["labels"], strict=True))


def test_every_split_has_its_share_of_every_digit():
    for split, fewest in (
        ("train", 98),
        ("validation", 29),
        ("test", 28),
    ):  # of 108, 36, 36 if all were equal
        _, labels = digits.load(DATA, split)
        assert np.bincount(labels, minlength=10).min() >= fewest


def test_splits_do_not_depend_on_the_labels(tmp_path):
    whole = np.load(DATA)
    np.savez(tmp_path / "other.npz", images=whole["images"], labels=np.zeros(1797, np.uint8))
    images, labels = digits.load(tmp_path / "other.npz", "test")
    assert not labels.any()
    np.testing.assert_array_equal(images, digits.load(DATA, "test")[0])


def test_score_of_known_answers():
    # Softmax of (ln 1, ln 2, ln 5) is (1/8, 2/8, 5/8).
    logits = np.log(np.array([[1, 2, 5], [5, 2, 1]], np.float32))
    score = digits.score(logits, np.array([2, 1], np.uint8))
    assert score == {"accuracy": 0.5, "loss": pytest.approx((math.log(8 / 5) + math.log(8 / 2)) / 2)}
    assert [type(value) for value in score.values()] == [float, float]


def test_score_of_large_logits_does_not_overflow():
    logits = np.array([[30000.0, 0.0], [30000.0, 0.0]], np.float32)
    assert digits.score(logits, np.array([0, 1])) == {"accuracy": 0.5, "loss": 15000.0}


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_score_is_nan_if_a_logit_is_not_finite(odd):
    score = digits.score(np.array([[odd, 0.0], [1.0, 0.0]], np.float32), np.array([0, 0]))
    assert math.isnan(score["accuracy"]) and math.isnan(score["loss"])


IMAGES, LABELS = np.zeros((9, 8, 8), np.uint8), np.zeros(9, np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": IMAGES}, "no .npz file with the arrays"),
        ({"images": IMAGES, "labels": np.array([{}] * 9)}, "no .npz file with the arrays"),  # needs pickle
        (
            {"images": IMAGES[:, :4], "labels": LABELS},
            r"'images' must be uint8 \(9, 8, 8\), but is uint8 \(9, 4",
        ),
        ({"images": IMAGES / 16, "labels": LABELS}, r"'images' must be uint8 .* but is float64"),
        ({"images": IMAGES, "labels": LABELS[:5]}, r"'labels' must be uint8 \(9,\), but is uint8 \(5,\)"),
        ({"images": IMAGES + np.uint8(17), "labels": LABELS}, "'images' must be from 0 to 16, but 17"),
        ({"images": IMAGES, "labels": LABELS + np.uint8(10)}, "'labels' must be from 0 to 9, but 10"),
        ({"images": IMAGES[:4], "labels": LABELS[:4]}, "'images' holds 4, but three splits need 5"),
        ({"images": np.uint8(0), "labels": np.uint8(0)}, "'images' must be uint8"),
    ],
)
def test_other_arrays_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(digits.BadData, match=message):
        digits.load(tmp_path / "wrong.npz", "train")


@pytest.mark.parametrize("content", [b"", b"PK\3\4 no zip", b"text"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "wrong.npz").write_bytes(content)
    with pytest.raises(digits.BadData, match="no .npz file"):
        digits.load(tmp_path / "wrong.npz", "train")
