"""Draw a study: learning curves, each hyperparameter, pairs of them, parallel coordinates, luck, time and memory.

Every plot is written as SVG and PNG, with `plots.json`, which has their titles and captions. Colours are those of
Okabe and Ito (2008) and viridis, which colour-blind people can tell apart.
"""

import argparse
import json
import math
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations as pairs_of
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection
from scores import expected_best, varied
from see.study import NoStudy, Study, label, read_history, read_json, read_study, word

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
BEST = "#D55E00"
GREY = "#999999"
TOP = 5  # combinations that curves name
MANY = 30  # combinations above which a band says more than lines
AXES = 10  # of the parallel coordinates
PAIRS = 10
BINS = 8  # of a range with too many values for a cell each
CELLS = 12
LABEL = 40  # characters
STYLE = {
    "figure.dpi": 100,
    "savefig.dpi": 144,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "svg.hashsalt": "snakesweep",  # the same study gives the same bytes
}


@dataclass
class Plot:
    """One plot: its file's name without an ending, what stands over and under it, and how to draw it."""

    name: str
    title: str
    caption: str
    draw: Callable[[], plt.Figure]


def main() -> None:
    """Draw everything that the study has data for."""
    options = parse()
    try:
        study = read_study(options.results)
    except NoStudy as error:
        sys.exit(f"plot.py: {error}")
    shutil.rmtree(options.plots, ignore_errors=True)
    options.plots.mkdir(parents=True)
    index = []
    with plt.rc_context(STYLE):
        for plot in plots(study):
            figure = plot.draw()
            figure.suptitle(plot.title)
            for ending in ("svg", "png"):
                metadata = {"Date": None} if ending == "svg" else {"Software": None}
                figure.savefig(options.plots / f"{plot.name}.{ending}", metadata=metadata)
            plt.close(figure)
            index.append({"name": plot.name, "title": plot.title, "caption": plot.caption})
    (options.plots / "plots.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    print(f"{len(index)} plots written to {options.plots}", file=sys.stderr)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--results", type=Path, required=True, help="the results folder of the study")
    parser.add_argument(
        "--plots", type=Path, required=True, help="the folder to write; what is there is removed"
    )
    return parser.parse_args()


def plots(study: Study) -> Iterator[Plot]:
    """Yield the plots that there is data for."""
    metric = study.metric
    names = [name for name, _ in by_effect(study)]
    of = f"{metric} (mean over seeds, validation data)"
    if curves := curve_data(study):
        yield Plot(
            "curves",
            "Learning curves",
            f"The {min(TOP, len(study.ranked))} best combinations by {metric}: mean over seeds, and the range of the seeds. "
            "Grey: all others"
            + (
                ", with their median and the band from the 10th to the 90th percentile."
                if curves.many
                else "."
            ),
            lambda: draw_curves(study, curves),
        )
    for name in names:
        yield Plot(
            f"by-{name}",
            f"{metric} by {name}",
            f"Each point is a combination's {of}; the line joins the means of the values. The best is marked.",
            lambda name=name: draw_axis(study, name),
        )
    if len(names) > 1:
        left_out = len(names) - AXES
        more = f" The {AXES} with the largest effect; {left_out} are left out." if left_out > 0 else ""
        yield Plot(
            "parallel",
            "All combinations",
            f"Each line is a combination, coloured by its {of}. The best is marked.{more}",
            lambda: draw_parallel(study, names[:AXES]),
        )
        for one, other in list(pairs_of(names, 2))[:PAIRS]:
            yield Plot(
                f"pair-{one}+{other}",
                f"{metric} by {one} and {other}",
                f"Each cell is the mean of the {of} of all combinations in it; empty ones were not tried.",
                lambda one=one, other=other: draw_pair(study, one, other),
            )
    if len(study.ranked) > 1:
        yield Plot(
            "tried",
            "What more combinations bring",
            f"The {metric} on validation data that the best of n combinations is expected to have if n of these are tried at random "
            "(unbiased estimate of Tang et al., 2020). Where the curve is flat, more of the same search "
            "brings little. It rises with luck alone, too: the same gain is not to be had on other data.",
            lambda: draw_tried(study),
        )
    if any(run.seconds for run in study.runs):
        yield Plot(
            "cost",
            "Time and memory of each run",
            "Each point is a run: the time on the clock of its last training and evaluation, and the peak memory of its largest "
            "process.",
            lambda: draw_cost(study),
        )


# ---- learning curves ---------------------------------------------------------------------------------


@dataclass
class Curves:
    """Learning curves of a study.

    Attributes:
        step: the name of the first column, what the course is counted in.
        columns: the columns that are shown.
        series: per combination, best first: column → (steps, mean, least, greatest over its seeds).
        bands: column → (steps, 10th percentile, median, 90th percentile) over the combinations' means.
        many: whether there are too many combinations for lines alone.
    """

    step: str
    columns: list[str]
    series: list[tuple[str, dict[str, tuple[np.ndarray, ...]]]]
    bands: dict[str, tuple[np.ndarray, ...]]
    many: bool


def curve_data(study: Study) -> Curves | None:
    """Collect the learning curves; None if no run kept a history."""
    shown: list[str] = []
    series = []
    step = ""
    names = [name for name, _ in by_effect(study)] or sorted(
        {n for c in study.combinations for n in c.hyperparameters}
    )
    order = [c for c, _ in study.ranked]
    order += [c for c in study.combinations if c not in order]
    for combination in order:
        found: dict[str, list[np.ndarray]] = {}
        steps: list[np.ndarray] = []
        for run in combination.runs:
            head, rows = read_history(run)
            if not rows or len(head) < 2:
                continue
            step = step or head[0]
            shown = shown or choose_columns(head, study.metric)
            table = np.array(rows, dtype=float)
            steps.append(table[:, 0])
            for column in shown:
                values = table[:, head.index(column)] if column in head else np.full(len(table), math.nan)
                found.setdefault(column, []).append(values)
        if steps:
            longest = max(steps, key=len)
            curves = {column: over_seeds(longest, values) for column, values in found.items()}
            series.append((label(combination.hyperparameters, names), curves))
    if not series:
        return None
    bands = {column: over_combinations([curves[column] for _, curves in series]) for column in shown}
    return Curves(step, shown, series, bands, len(series) > MANY)


def choose_columns(head: Sequence[str], metric: str) -> list[str]:
    """Choose up to two columns of a history: the metric's and the loss, on validation data where there are such."""
    chosen = []
    for name in (metric, "loss"):
        column = next((c for c in (f"val_{name}", name) if c in head[1:]), None)
        if column and column not in chosen:
            chosen.append(column)
    return chosen or list(head[1:3])


def over_seeds(steps: np.ndarray, values: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return steps, mean, least and greatest over the seeds that got so far."""
    table = _even(values, len(steps))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of steps without any number
        return steps, np.nanmean(table, 0), np.nanmin(table, 0), np.nanmax(table, 0)


def over_combinations(curves: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Return steps, 10th percentile, median and 90th percentile of the combinations' means."""
    longest = max((steps for steps, *_ in curves), key=len)
    table = _even([mean for _, mean, *_ in curves], len(longest))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return longest, *np.nanpercentile(table, [10, 50, 90], axis=0)


def _even(rows: list[np.ndarray], length: int) -> np.ndarray:
    """Stack rows of different lengths, with NaN after their ends."""
    table = np.full((len(rows), length), math.nan)
    for row, values in zip(table, rows, strict=True):
        finite = np.where(np.isfinite(values), values, math.nan)
        row[: len(values)] = finite
    return table


def draw_curves(study: Study, data: Curves) -> plt.Figure:
    """Draw learning curves, a panel per column."""
    top = min(TOP, len(study.ranked), len(data.series))
    height = 4.6 + 0.2 * top
    figure, panels = plt.subplots(
        1,
        len(data.columns),
        figsize=(5 * len(data.columns) + 0.5, height),
        squeeze=False,
        layout="constrained",
    )
    for panel, column in zip(panels[0], data.columns, strict=True):
        lines = [np.column_stack(curves[column][:2]) for _, curves in data.series[top:]]
        panel.add_collection(
            LineCollection(
                lines,
                colors=GREY,
                linewidths=0.6,
                alpha=max(0.08, min(0.6, 30 / max(1, len(lines)))),
                rasterized=True,
            )
        )
        if data.many:
            steps, low, median, high = data.bands[column]
            panel.fill_between(steps, low, high, color=GREY, alpha=0.25, linewidth=0)
            panel.plot(steps, median, color="#555555", linestyle="--", linewidth=1.2, label="median of all")
        for (name, curves), colour in zip(data.series[:top], [BEST, *COLOURS], strict=False):
            steps, mean, low, high = curves[column]
            panel.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
            panel.plot(steps, mean, color=colour, linewidth=1.6, label=_cut(name, 60) or "the combination")
        panel.autoscale_view()
        panel.set_xlabel(data.step)
        panel.set_ylabel(column)
    handles, labels = panels[0][0].get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=1, frameon=False)
    return figure


# ---- hyperparameters ---------------------------------------------------------------------------------


@dataclass
class Axis:
    """How the values of a hyperparameter lie on an axis.

    Attributes:
        name: the hyperparameter.
        places: the value's place, for every value that was tried; keys as `word` writes them.
        log: whether places are to be shown on a logarithmic axis.
        ticks: place → text, where values are no numbers.
    """

    name: str
    places: dict[str, float]
    log: bool
    ticks: dict[float, str]

    def place(self, value: object) -> float:
        """Return where a value lies."""
        return self.places[word(value)]

    def unit(self, value: object) -> float:
        """Return where a value lies between 0 and 1."""
        return self.height(self.place(value))

    def height(self, place: float) -> float:
        """Return a place as a number from 0 to 1."""
        scale = math.log if self.log else float
        low, high = scale(min(self.places.values())), scale(max(self.places.values()))
        return (scale(place) - low) / (high - low) if high > low else 0.5


def axis(name: str, values: Sequence[object]) -> Axis:
    """Lay out the values of a hyperparameter: numbers by size, else one place each."""
    numbers = [v for v in values if _is_number(v)]
    if len(numbers) < len(values) or not numbers:
        places = {word(v): float(i) for i, v in enumerate(values)}
        return Axis(name, places, False, {place: _cut(text, 18) for text, place in places.items()})
    return Axis(name, {word(v): float(v) for v in numbers}, asks_for_log(numbers), {})


def asks_for_log(numbers: Sequence[float]) -> bool:
    """Say whether numbers want a logarithmic axis: positive, over a decade, and spaced more evenly by ratio."""
    ordered = sorted(set(map(float, numbers)))
    if len(ordered) < 2 or ordered[0] <= 0 or ordered[-1] / ordered[0] < 10:
        return False
    gaps = np.diff(ordered)
    ratios = np.diff(np.log(ordered))
    return bool(np.std(ratios) / np.mean(ratios) <= np.std(gaps) / np.mean(gaps))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def by_effect(study: Study) -> list[tuple[str, list]]:
    """Return the varied hyperparameters and their values; first those whose values' means differ most."""
    ranked = study.ranked
    found = varied([c.hyperparameters for c, _ in ranked])
    return sorted(found.items(), key=lambda item: -round(_effect(study, item[0]), 12))  # equal ones by name


def _effect(study: Study, name: str) -> float:
    # By cells, not values: of values that occur once each the means differ by luck alone.
    cell_of, texts = cells(name, varied([c.hyperparameters for c, _ in study.ranked])[name])
    groups: list[list[float]] = [[] for _ in texts]
    for combination, mean in study.ranked:
        groups[cell_of[word(combination.hyperparameters.get(name))]].append(mean)
    means = [math.fsum(group) / len(group) for group in groups if group]
    return max(means) - min(means)


def value_means(study: Study, name: str) -> list[tuple[object, float]]:
    """Return the mean score of the ranked combinations with each value of a hyperparameter."""
    values = varied([c.hyperparameters for c, _ in study.ranked])[name]
    groups: dict[str, list[float]] = {word(v): [] for v in values}
    for combination, mean in study.ranked:
        groups[word(combination.hyperparameters.get(name))].append(mean)
    return [(v, math.fsum(groups[word(v)]) / len(groups[word(v)])) for v in values]


def draw_axis(study: Study, name: str) -> plt.Figure:
    """Draw the scores over one hyperparameter."""
    means = value_means(study, name)
    line = axis(name, [v for v, _ in means])
    figure, panel = plt.subplots(figsize=(6, 4.2), layout="constrained")
    x = [line.place(c.hyperparameters.get(name)) for c, _ in study.ranked]
    y = [mean for _, mean in study.ranked]
    alpha = max(0.25, min(0.8, 60 / len(x)))
    panel.scatter(x, y, s=22, color=COLOURS[0], alpha=alpha, linewidths=0, rasterized=len(x) > 200)
    if len(means) <= CELLS:
        panel.plot(
            [line.place(v) for v, _ in means],
            [m for _, m in means],
            color="#555555",
            marker="_",
            markersize=14,
            label="mean",
        )
    panel.scatter(x[:1], y[:1], s=160, marker="*", color=BEST, edgecolors="black", zorder=3, label="best")
    if line.log:
        panel.set_xscale("log")
    if line.ticks:
        texts = list(line.ticks.values())
        panel.set_xticks(
            list(line.ticks), texts, rotation=30 if max(map(len, texts)) * len(texts) > 50 else 0, ha="center"
        )
        panel.margins(x=0.15)
    panel.set_xlabel(name)
    panel.set_ylabel(f"{study.metric} (mean over seeds)")
    panel.legend(frameon=False, loc="best")
    return figure


def draw_parallel(study: Study, names: Sequence[str]) -> plt.Figure:
    """Draw every combination as a line over the axes of the hyperparameters and the metric."""
    found = varied([c.hyperparameters for c, _ in study.ranked])
    axes = [axis(name, found[name]) for name in names]
    scores = np.array([mean for _, mean in study.ranked])
    low, high = float(scores.min()), float(scores.max())
    scaled = (scores - low) / (high - low) if high > low else np.full(len(scores), 0.5)
    points = np.array(
        [
            [*(a.unit(c.hyperparameters.get(a.name)) for a in axes), s]
            for (c, _), s in zip(study.ranked, scaled, strict=True)
        ]
    )
    figure, panel = plt.subplots(figsize=(max(6, 1.7 * (len(axes) + 1) + 1), 4.8), layout="constrained")
    x = np.arange(len(axes) + 1)
    order = np.argsort(scaled if study.mode == "max" else -scaled)  # the better ones lie above
    lines = LineCollection(
        [np.column_stack((x, row)) for row in points[order]],
        cmap="viridis" if study.mode == "max" else "viridis_r",
        array=scores[order],
        linewidths=1.2 if len(points) < 200 else 0.6,
        alpha=0.85 if len(points) < 200 else 0.5,
        rasterized=True,
    )
    panel.add_collection(lines)
    panel.plot(x, points[0], color=BEST, linewidth=2.5, marker="o", label="best")
    for place, a in enumerate(axes):
        panel.axvline(place, color="#444444", linewidth=0.8)
        for text, height in axis_ticks(a):
            panel.annotate(
                text,
                (place, height),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=8,
                va="center",
                bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.5},
            )
    panel.axvline(len(axes), color="#444444", linewidth=0.8)
    for height, value in ((0, low), (1, high)):
        panel.annotate(
            f"{value:.4g}",
            (len(axes), height),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=8,
            va="center",
        )
    panel.set_xticks(
        x,
        [*(_cut(a.name + (" (log)" if a.log else ""), 20) for a in axes), study.metric],
        rotation=20,
        ha="right",
    )
    panel.set_yticks([])
    panel.grid(False)
    panel.set_xlim(-0.1, len(axes) + 0.35)
    panel.set_ylim(-0.06, 1.06)
    panel.spines["left"].set_visible(False)
    figure.colorbar(lines, ax=panel, label=f"{study.metric} (mean over seeds)")
    panel.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 1.08))
    return figure


def axis_ticks(a: Axis) -> list[tuple[str, float]]:
    """Choose at most eight values of an axis to write beside it, and their heights from 0 to 1."""
    texts = {text: a.height(place) for text, place in a.places.items()}
    shown = sorted(texts.items(), key=lambda item: item[1])
    if len(shown) > 8:
        shown = [shown[round(i * (len(shown) - 1) / 7)] for i in range(8)]
    return [(_cut(text, 14), height) for text, height in shown]


def draw_pair(study: Study, one: str, other: str) -> plt.Figure:
    """Draw the mean score over two hyperparameters as a heat map."""
    table, columns, rows = pair_data(study, one, other)
    figure, panel = plt.subplots(
        figsize=(max(5, 0.75 * len(columns) + 2.8), max(3.4, 0.5 * len(rows) + 1.8)), layout="constrained"
    )
    cmap = "viridis" if study.mode == "max" else "viridis_r"
    image = panel.imshow(np.ma.masked_invalid(table), cmap=cmap, aspect="auto", origin="lower")
    if table.size <= 100:
        for (row, column), value in np.ndenumerate(table):
            if math.isfinite(value):
                red, green, blue, _ = image.cmap(image.norm(value))
                dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
                panel.text(
                    column,
                    row,
                    f"{value:.3g}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if dark else "black",
                )
    panel.set_xticks(
        range(len(columns)), columns, rotation=30 if max(map(len, columns)) > 6 else 0, ha="center"
    )
    panel.set_yticks(range(len(rows)), rows)
    panel.grid(False)
    panel.set_xlabel(one)
    panel.set_ylabel(other)
    figure.colorbar(image, ax=panel, label=f"{study.metric} (mean)")
    return figure


def pair_data(study: Study, one: str, other: str) -> tuple[np.ndarray, list[str], list[str]]:
    """Return the mean score per cell (NaN where nothing was tried), and the texts of columns and rows."""
    found = varied([c.hyperparameters for c, _ in study.ranked])
    column_of, columns = cells(one, found[one])
    row_of, rows = cells(other, found[other])
    sums, counts = np.zeros((2, len(rows), len(columns)))
    for combination, mean in study.ranked:
        place = (
            row_of[word(combination.hyperparameters.get(other))],
            column_of[word(combination.hyperparameters.get(one))],
        )
        sums[place] += mean
        counts[place] += 1
    with np.errstate(invalid="ignore"):
        return sums / counts, columns, rows


def cells(name: str, values: Sequence[object]) -> tuple[dict[str, int], list[str]]:
    """Give every value a cell: its own, or that of its bin where there are many numbers."""
    line = axis(name, values)
    if len(values) <= CELLS or line.ticks:
        return {word(v): i for i, v in enumerate(values)}, [_cut(word(v), 14) for v in values]
    scale, back = (np.log, np.exp) if line.log else (np.asarray, np.asarray)
    places = scale(np.array(list(line.places.values())))
    bounds = np.linspace(places.min(), places.max(), BINS + 1)
    index = np.clip(np.searchsorted(bounds, places, side="right") - 1, 0, BINS - 1)
    texts = [f"{back(a):.3g}–{back(b):.3g}" for a, b in zip(bounds, bounds[1:], strict=False)]
    return dict(zip(line.places, map(int, index), strict=True)), texts


# ---- luck and cost -----------------------------------------------------------------------------------


def draw_tried(study: Study) -> plt.Figure:
    """Draw the expected best validation score over the number of combinations tried."""
    scores = [mean for _, mean in study.ranked]
    tries = tried(len(scores))
    figure, panel = plt.subplots(figsize=(6, 4.2), layout="constrained")
    panel.plot(
        tries,
        expected_best(scores, study.mode, tries),
        color=COLOURS[0],
        marker="o",
        markersize=3,
        label="expected best, validation",
    )
    test = (read_json(study.folder / "test.json").get("best") or {}).get("mean")
    if test is not None:
        panel.axhline(test, color=BEST, linestyle="--", label="the chosen one, test data")
    if len(scores) > 50:
        panel.set_xscale("log")
    panel.set_xlabel("combinations tried")
    panel.set_ylabel(study.metric)
    panel.legend(frameon=False)
    return figure


def tried(count: int) -> list[int]:
    """Choose the numbers of tries to show: all up to 50, else some 50 of them, evenly by ratio."""
    if count <= 50:
        return list(range(1, count + 1))
    return sorted({round(count ** (i / 49)) for i in range(50)})


def draw_cost(study: Study) -> plt.Figure:
    """Draw the time and the memory of every run."""
    runs = [run for run in study.runs if run.seconds]
    seconds = np.array([run.seconds for run in runs])
    unit, name = (3600, "h") if seconds.max() > 7200 else (60, "min") if seconds.max() > 180 else (1, "s")
    figure, panel = plt.subplots(figsize=(6, 4.2), layout="constrained")
    kinds = {"finished": COLOURS[0], "diverged": COLOURS[1], "failed": COLOURS[3]}
    for state in dict.fromkeys(run.state for run in runs):
        chosen = [i for i, run in enumerate(runs) if run.state == state]
        panel.scatter(
            seconds[chosen] / unit,
            [(runs[i].memory or 0) for i in chosen],
            s=20,
            alpha=0.7,
            linewidths=0,
            color=kinds.get(state, GREY),
            label=f"{state} ({len(chosen)})",
            rasterized=len(runs) > 200,
        )
    panel.set_xlabel(f"training and evaluation ({name})")
    panel.set_ylabel("peak memory (MiB)")
    panel.set_ylim(0, 1.1 * max((run.memory or 0 for run in runs), default=0) or 1)
    panel.set_xlim(0, 1.1 * seconds.max() / unit)
    panel.legend(frameon=False)
    return figure


def _cut(text: str, length: int = LABEL) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


if __name__ == "__main__":
    main()
