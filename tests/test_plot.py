"""Plots, by what they show: the numbers behind them, computed by hand, and the words at their axes."""

import json
import math
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import plot
import pytest
from madeup import MadeUp
from see.study import read_study
from study import ROOT

GRID = [{"rate": r, "kind": k} for r in (0.001, 0.01, 0.1) for k in ("a", None)]


def score(combination: dict, seed: int) -> float:
    """0.01 is best, `a` is better by 0.1, and seed 1 by 0.02."""
    return (
        0.5
        - 0.1 * abs(round(math.log10(combination["rate"])) + 2)
        + 0.1 * (combination["kind"] == "a")
        + 0.02 * seed
    )


@pytest.fixture
def madeup(tmp_path) -> MadeUp:
    study = MadeUp(tmp_path / "results", GRID)
    study.finish(score)
    return study


@pytest.fixture
def study(madeup):
    return read_study(madeup.results)


def draw(madeup: MadeUp) -> list[dict]:
    """Run the program; return what it says it drew."""
    words = [sys.executable, ROOT / "workflow/scripts/plot.py", "--results", madeup.results]
    words += ["--plots", madeup.results / "plots"]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    index = json.loads((madeup.results / "plots/plots.json").read_text())
    files = {path.name for path in (madeup.results / "plots").iterdir()} - {"plots.json"}
    assert files == {f"{item['name']}.{ending}" for item in index for ending in ("svg", "png")}
    return index


def test_every_plot_is_there_and_the_same_every_time(madeup):
    index = draw(madeup)
    assert [item["name"] for item in index] == [
        "curves", "by-kind", "by-rate", "parallel", "pair-kind+rate", "tried", "cost"
    ]  # fmt: skip
    assert all(item["title"] and item["caption"].endswith(".") for item in index)
    before = {path.name: path.read_bytes() for path in (madeup.results / "plots").iterdir()}
    draw(madeup)
    assert before == {path.name: path.read_bytes() for path in (madeup.results / "plots").iterdir()}


def test_means_of_values(study):
    # Means over seeds are .01 above seed 0's; rate: .4, .5, .4 without kind, and .1 more with it.
    assert plot.value_means(study, "rate") == [
        (0.001, pytest.approx(0.46)),
        (0.01, pytest.approx(0.56)),
        (0.1, pytest.approx(0.46)),
    ]
    assert plot.value_means(study, "kind") == [
        (None, pytest.approx(0.41 + 0.1 / 3)),
        ("a", pytest.approx(0.51 + 0.1 / 3)),
    ]


def test_cells_of_pairs(study):
    table, columns, rows = plot.pair_data(study, "rate", "kind")
    assert (columns, rows) == (["0.001", "0.01", "0.1"], ["unset", "a"])
    assert table == pytest.approx(np.array([[0.41, 0.51, 0.41], [0.51, 0.61, 0.51]]))


def test_cells_that_were_not_tried_are_empty(tmp_path):
    madeup = MadeUp(tmp_path, [{"x": 1, "y": 1}, {"x": 2, "y": 2}])
    madeup.finish(lambda c, seed: 0.5)
    table, _, _ = plot.pair_data(read_study(tmp_path), "x", "y")
    assert np.isnan(table).tolist() == [[False, True], [True, False]]


def test_many_values_share_cells():
    places, texts = plot.cells("x", [i / 100 for i in range(101)])
    assert len(texts) == plot.BINS
    assert (places["0.0"], places["0.5"], places["1.0"]) == (0, 4, 7)
    assert texts[0] == "0–0.125"
    places, texts = plot.cells("x", [10.0 ** (i / 10) for i in range(-40, 1)])
    assert texts[0] == "0.0001–0.000316"


@pytest.mark.parametrize(
    ("numbers", "log"),
    [
        ([0.001, 0.01, 0.1], True),
        ([1, 2, 3, 4], False),
        ([16, 32, 64, 128, 256], True),
        ([0.0, 0.1, 10.0], False),
        ([-1, 10, 100], False),
        ([5], False),
        ([1, 25, 50, 75, 100], False),
        ([1e-4, 1e-1], True),
    ],
)
def test_axes_are_logarithmic_where_the_values_ask_for_it(numbers, log):
    assert plot.asks_for_log(numbers) == log
    assert plot.axis("x", numbers).log == log


def test_places_on_axes():
    axis = plot.axis("rate", [0.001, 0.01, 0.1])
    assert [axis.unit(v) for v in (0.001, 0.01, 0.1)] == pytest.approx([0, 0.5, 1])
    axis = plot.axis("hidden", [None, 8, [16, 16]])
    assert [axis.unit(v) for v in (None, 8, [16, 16])] == [0, 0.5, 1]
    assert list(axis.ticks.values()) == ["unset", "8", "[16, 16]"]


def test_curves_over_seeds_of_different_lengths():
    """A run that stopped early counts as far as it got; what is no number counts nowhere."""
    steps, mean, low, high = plot.over_seeds(
        np.array([1.0, 2.0, 3.0]),
        [np.array([0.2, 0.4, 0.9]), np.array([0.4]), np.array([0.6, math.nan, math.inf])],
    )
    assert steps.tolist() == [1, 2, 3]
    assert mean == pytest.approx([0.4, 0.4, 0.9])
    assert low == pytest.approx([0.2, 0.4, 0.9])
    assert high == pytest.approx([0.6, 0.4, 0.9])


def test_bands_over_combinations():
    curves = [(np.array([1.0]), np.array([value]), None, None) for value in range(11)]
    assert [float(x[0]) for x in plot.over_combinations(curves)] == [1, 1, 5, 9]


def test_curve_data(study):
    data = plot.curve_data(study)
    assert (data.step, data.columns, data.many) == ("epoch", ["val_accuracy", "val_loss"], False)
    names = [name for name, _ in data.series]
    assert names[0] == "kind=a, rate=0.01"
    assert len(names) == 6
    _, mean, low, high = data.series[0][1]["val_accuracy"]
    for values, end in ((low, 0.6), (mean, 0.61), (high, 0.62)):
        assert values[-1] == pytest.approx(end * (1 - math.exp(-10 / 3)), abs=1e-6)


def test_columns_of_curves():
    assert plot.choose_columns(["epoch", "loss", "f1", "val_loss", "val_f1"], "f1") == ["val_f1", "val_loss"]
    assert plot.choose_columns(["step", "loss", "loss2"], "accuracy") == ["loss"]
    assert plot.choose_columns(["step", "reward", "length", "time"], "accuracy") == ["reward", "length"]


def test_words_at_the_axes(study):
    with plt.rc_context(plot.STYLE):
        panel = plot.draw_axis(study, "rate").axes[0]
        assert (panel.get_xlabel(), panel.get_xscale()) == ("rate", "log")
        assert panel.get_ylabel() == "accuracy (mean over seeds)"
        star = panel.collections[-1].get_offsets()
        assert star.tolist() == [[0.01, pytest.approx(0.61)]]
        cost = plot.draw_cost(study).axes[0]
        assert cost.get_xlabel() == "training and evaluation (s)"
        assert cost.get_ylabel() == "peak memory (MiB)"
        points = cost.collections[0].get_offsets()
        # Training takes 5 s and 10 per point of score, evaluation 2 s.
        assert points[:, 0].max() == pytest.approx(7 + 10 * 0.62)
        assert points[:, 1].max() == pytest.approx(300 + 100 * 0.62)
        tried = plot.draw_tried(study).axes[0]
        assert tried.lines[0].get_ydata()[-1] == pytest.approx(0.61)
        assert tried.lines[0].get_ydata()[0] == pytest.approx(np.mean([0.41, 0.51, 0.41, 0.51, 0.61, 0.51]))
    plt.close("all")


def test_best_is_least(tmp_path):
    madeup = MadeUp(tmp_path, GRID, metric="loss", mode="min")
    madeup.finish(score)
    study = read_study(tmp_path)
    assert study.ranked[0][0].path == "kind=a/rate=0.01"
    with plt.rc_context(plot.STYLE):
        line = plot.draw_tried(study).axes[0].lines[0].get_ydata()
    plt.close("all")
    assert line[-1] == pytest.approx(0.39)
    assert line[0] > line[-1]


def test_numbers_of_tries():
    assert plot.tried(4) == [1, 2, 3, 4]
    many = plot.tried(10_000)
    assert (many[0], many[-1]) == (1, 10_000)
    assert len(many) <= 50


def test_little_to_draw(tmp_path):
    """One combination; none that can be ranked; no history."""
    one = MadeUp(tmp_path / "one", [{"x": 1}], seeds=1)
    one.finish(lambda c, seed: 0.5)
    assert [item["name"] for item in draw(one)] == ["curves", "cost"]
    bad = MadeUp(tmp_path / "bad", [{"x": 1}, {"x": 2}], seeds=1)
    bad.finish(lambda c, seed: None)
    assert [item["name"] for item in draw(bad)] == ["curves", "cost"]
    bare = MadeUp(tmp_path / "bare", [{"x": 1}, {"x": [1, 2]}], seeds=1)
    bare.finish(lambda c, seed: 0.5)
    for history in bare.results.rglob("history.csv"):
        history.unlink()
    assert [item["name"] for item in draw(bare)] == ["by-x", "tried", "cost"]


def test_no_study_is_told(tmp_path):
    words = [
        sys.executable,
        ROOT / "workflow/scripts/plot.py",
        "--results",
        tmp_path,
        "--plots",
        tmp_path / "plots",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"plot.py: {tmp_path}: no study was started there" in done.stderr
