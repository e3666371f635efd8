"""`scores.py` against values computed by hand or, where named, by SciPy."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "workflow" / "scripts"))
from scores import edges, effects, expected_best, interval, is_finite, p_value, spread

FIVE = [0.81, 0.83, 0.79, 0.84, 0.82]


@pytest.mark.parametrize("value", [True, "0.5", None, math.nan, math.inf, 10**400])
def test_what_is_no_finite_number(value):
    assert not is_finite(value)
    assert spread([0.5, value]) == (None, None)
    assert interval([0.5, value]) is None


def test_few_seeds_have_students_interval():
    """Mean 0.818, standard error 0.00860233, t of 4 degrees 2.77644511 (SciPy's t.ppf)."""
    low, high = interval(FIVE)
    assert (low, high) == pytest.approx((0.7941161161, 0.8418838839), abs=1e-9)
    # Three seeds: a bootstrap could give no more than their range, 0.79 to 0.83.
    assert interval([0.79, 0.81, 0.83]) == pytest.approx((0.7603173, 0.8596827), abs=1e-6)


def test_many_seeds_have_a_bootstrap_interval():
    """The bootstrap's mean of 0 and 1, half each of n = 100, is normal with a deviation of 0.05."""
    low, high = interval([0.0, 1.0] * 50)
    assert (low, high) == pytest.approx((0.402, 0.598), abs=0.015)
    assert interval([0.0, 1.0] * 50) == (low, high)  # the same every time


def test_interval_of_one_seed_and_of_equals():
    assert interval([0.5]) is None
    assert interval([0.5, 0.5]) == (0.5, 0.5)


def paired(*differences: float) -> float | None:
    return p_value(dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0))


def test_five_pairs_can_not_tell():
    """The least p of five is 2 / 2**5 = 0.0625."""
    assert paired(0.01, 0.03, 0.01, 0.03, 0.02) is None


@pytest.mark.parametrize("scale", [1.0, 1e-18, 1e18])
def test_sign_flips_are_exact(scale):
    """Six equal signs: 2 of 64 flips are as extreme. One small against: 4 of them are (SciPy: 0.0625)."""
    assert paired(*(scale * d for d in (0.01, 0.03, 0.01, 0.03, 0.02, 0.02))) == pytest.approx(2 / 64)
    assert paired(*(scale * d for d in (0.03, 0.03, 0.03, 0.03, 0.02, -0.01))) == pytest.approx(4 / 64)


def test_only_shared_seeds_are_paired():
    one = {seed: 1.0 + seed for seed in range(6)}
    assert p_value(one, {seed: float(seed) for seed in range(6)}) == pytest.approx(2 / 64)
    assert p_value(one, {seed: float(seed) for seed in range(1, 7)}) is None


def test_equal_scores_are_chance():
    assert paired(0.0, 0.0, 0.0, 0.0, 0.0, 0.0) == 1.0


@pytest.mark.parametrize(
    ("scores", "mode", "unbiased", "biased"),
    [
        ([0.7, 0.8, 0.75, 0.9], "max", [0.7875, 0.8416666667, 0.875, 0.9], [0.7875, 0.828125, 0.85078125, 0.8650390625]),
        ([0.2, 0.4, 0.6, 0.8, 1], "max", [0.6, 0.8, 0.9, 0.96, 1], [0.6, 0.76, 0.84, 0.88672, 0.9168]),
        ([0.5, 0.5, 0.9], "max", [0.6333333333, 0.7666666667, 0.9], [0.6333333333, 0.7222222222, 0.7814814815]),
        ([0.5, 0.3, 0.4, 0.2], "min", [0.35, 0.2666666667, 0.225, 0.2], [0.35, 0.2875, 0.25625, 0.23828125]),
    ],
)  # fmt: skip
def test_expected_best(scores, mode, unbiased, biased):
    tries = range(1, len(scores) + 1)
    assert expected_best(scores, mode, tries) == pytest.approx(unbiased, abs=1e-9)
    assert expected_best(scores, mode, tries, unbiased=False) == pytest.approx(biased, abs=1e-9)


def test_effects_and_edges():
    """A conditional space: sgd alone has a momentum."""
    combinations = [
        {"lr": 0.1, "optimizer": "adam"},
        {"lr": 0.01, "optimizer": "adam"},
        {"lr": 0.001, "optimizer": "sgd", "momentum": 0.9, "epochs": 5},
    ]
    rows = effects(combinations, [0.5, 0.75, 0.25], "max")
    assert [(r["hyperparameter"], r["value"], r["combinations"], r["mean"], r["best"]) for r in rows] == [
        ("epochs", None, 2, 0.625, 0.75),
        ("epochs", 5, 1, 0.25, 0.25),
        ("lr", 0.001, 1, 0.25, 0.25),
        ("lr", 0.01, 1, 0.75, 0.75),
        ("lr", 0.1, 1, 0.5, 0.5),
        ("momentum", None, 2, 0.625, 0.75),
        ("momentum", 0.9, 1, 0.25, 0.25),
        ("optimizer", "adam", 2, 0.625, 0.75),
        ("optimizer", "sgd", 1, 0.25, 0.25),
    ]
    assert edges(combinations, combinations[1]) == {}
    assert edges(combinations, combinations[0]) == {"lr": "0.1 is the greatest value tried: try higher ones"}
    assert edges(combinations, combinations[2]) == {"lr": "0.001 is the least value tried: try lower ones"}
