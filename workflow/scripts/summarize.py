"""Compare the combinations of a complete study: one row each in `summary.csv`, the best in `best.json`.

The best combination is the one with the best mean of the chosen metric over its seeds, on validation data. A
combination with a diverged run is never the best.
"""

import argparse
import csv
import json
import math
import os
import statistics
import sys
from pathlib import Path


def main() -> None:
    """Read every run's metrics and write the two files."""
    options = parse()
    combinations = read_study(options.runs, options.results)
    names = sorted({name for c in combinations for metrics in c["metrics"] for name in metrics})
    if options.metric not in names:
        sys.exit(
            f"select.metric: '{options.metric}' is in no run's metrics; there are: {', '.join(names)}. "
            "Name one of them under select in config.yaml."
        )
    rank(combinations, options.metric, options.mode)
    write_summary(options.summary, combinations, names, options.metric)
    write_best(options.best, combinations, options)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--runs", type=Path, required=True, help="JSON lines: a combination and its runs each"
    )
    parser.add_argument(
        "--results", type=Path, required=True, help="the folder that the runs' paths start from"
    )
    parser.add_argument("--metric", required=True, help="the metric to choose by")
    parser.add_argument(
        "--mode", choices=["max", "min"], required=True, help="whether more or less is better"
    )
    parser.add_argument("--study", required=True, help="what the files are made for; kept in the best's")
    parser.add_argument("--summary", type=Path, required=True, help="the table to write (CSV)")
    parser.add_argument("--best", type=Path, required=True, help="the best combination to write (JSON)")
    return parser.parse_args()


def read_study(path: Path, results: Path) -> list[dict]:
    """Read the combinations, with the metrics of each run (None where one is not finite).

    Leaves with a message if a run's evaluation is of another model than the one that is there.
    """
    combinations = []
    for line in path.read_text(encoding="utf-8").splitlines():
        combination = json.loads(line)
        metrics = []
        for run in combination["runs"]:
            trained, evaluated = (load(results / run / f) for f in ("record.json", "evaluation.json"))
            if any(trained["outputs"].get(n) != d for n, d in evaluated["inputs"].items()):
                sys.exit(
                    f"{results / run}: was trained again after its evaluation; type the same command again."
                )
            metrics.append(load(results / run / "metrics.json"))
        combinations.append(combination | {"metrics": metrics})
    return combinations


def load(path: Path) -> dict:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def rank(combinations: list[dict], metric: str, mode: str) -> None:
    """Add `mean`, `std`, `diverged` (a number of runs) and `rank` to every combination.

    The rank is None where a run diverged, whichever metric shows it, or has no number as its metric.
    """
    for combination in combinations:
        combination["mean"], combination["std"] = spread(combination, metric)
        combination["diverged"] = sum(None in metrics.values() for metrics in combination["metrics"])
        combination["rank"] = None
    sign = -1 if mode == "max" else 1
    judged = [c for c in combinations if c["mean"] is not None and not c["diverged"]]
    for place, combination in enumerate(sorted(judged, key=lambda c: sign * c["mean"]), start=1):
        combination["rank"] = place


def spread(combination: dict, metric: str) -> tuple[float | None, float | None]:
    """Return a metric's mean over the runs, None unless all have a finite number, and the sample's deviation."""
    values = [metrics.get(metric) for metrics in combination["metrics"]]
    if not all(map(is_finite, values)):
        return None, None
    try:
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
    except OverflowError:  # their sum, or a square, is beyond what a float holds
        return None, None


def is_finite(value: object) -> bool:
    """Say whether a value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def write_summary(path: Path, combinations: list[dict], names: list[str], metric: str) -> None:
    """Write one row per combination, best first: rank, hyperparameters, mean and spread of every metric."""
    own = {"rank", "runs", "diverged", "path"}
    hyperparameters = {
        name: f"hyperparameter.{name}" if name in own else name
        for name in sorted({name for c in combinations for name in c["hyperparameters"]})
    }
    taken = own | set(hyperparameters.values()) | {f"{name}_std" for name in names}
    labels = {
        name: f"metric.{name}" if name in taken or f"{name}_std" in hyperparameters.values() else name
        for name in [metric, *(name for name in names if name != metric)]
    }
    columns = ["rank", *hyperparameters.values()]
    columns += [column for label in labels.values() for column in (label, f"{label}_std")]
    rows = []
    for combination in sorted(combinations, key=lambda c: (c["rank"] is None, c["rank"] or 0, c["path"])):
        row = {key: combination[key] for key in ("rank", "diverged", "path")}
        row["runs"] = len(combination["runs"])
        row |= {hyperparameters[name]: cell(value) for name, value in combination["hyperparameters"].items()}
        for name, label in labels.items():
            row[label], row[f"{label}_std"] = spread(combination, name)
        rows.append(row)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*columns, "runs", "diverged", "path"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    beside.replace(path)


def cell(value: object) -> object:
    """Write a hyperparameter's value: booleans as true and false, lists as JSON, nothing for null."""
    return json.dumps(value) if isinstance(value, bool | list) else value


def write_best(path: Path, combinations: list[dict], options: argparse.Namespace) -> None:
    """Write the chosen combination, or null if none has a rank."""
    best = min((c for c in combinations if c["rank"]), key=lambda c: c["rank"], default=None)
    keys = ("hyperparameters", "path", "runs", "mean", "std")
    text = {
        "metric": options.metric,
        "mode": options.mode,
        "combinations": len(combinations),
        "best": {key: best[key] for key in keys} if best else None,
        "study": options.study,
    }
    if best is None:
        print(
            f"Every combination has a run that diverged or has no number as its {options.metric}, "
            "so none is the best.",
            file=sys.stderr,
        )
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(text, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    main()
