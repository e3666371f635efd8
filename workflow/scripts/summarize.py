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
    names = sorted({name for c in combinations for name in c["metrics"]})
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
    """Read the combinations, and for each metric its values over the runs (None where it is not finite).

    Leaves with a message if a run's evaluation is of another model than the one that is there.
    """
    combinations = []
    for line in path.read_text(encoding="utf-8").splitlines():
        combination = json.loads(line)
        metrics: dict[str, list] = {}
        for run in combination["runs"]:
            trained, evaluated = (load(results / run / f) for f in ("record.json", "evaluation.json"))
            if any(trained["outputs"].get(n) != d for n, d in evaluated["inputs"].items()):
                sys.exit(
                    f"{results / run}: was trained again after its evaluation; type the same command again."
                )
            for name, value in load(results / run / "metrics.json").items():
                metrics.setdefault(name, []).append(value)
        combinations.append(combination | {"metrics": metrics})
    return combinations


def load(path: Path) -> dict:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def rank(combinations: list[dict], metric: str, mode: str) -> None:
    """Add `mean`, `std` and `rank` to every combination; None where a run has no finite value."""
    for combination in combinations:
        values = numbers(combination["metrics"].get(metric, []))
        whole = len(values) == len(combination["runs"])
        combination["mean"] = statistics.fmean(values) if whole else None
        combination["std"] = statistics.stdev(values) if whole and len(values) > 1 else None
        combination["rank"] = None
    sign = -1 if mode == "max" else 1
    judged = [c for c in combinations if c["mean"] is not None]
    for place, combination in enumerate(sorted(judged, key=lambda c: sign * c["mean"]), start=1):
        combination["rank"] = place


def numbers(values: list) -> list[float]:
    """Keep the finite numbers."""
    return [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]


def write_summary(path: Path, combinations: list[dict], names: list[str], metric: str) -> None:
    """Write one row per combination, best first: rank, hyperparameters, mean and spread of every metric."""
    hyperparameters = sorted({name for c in combinations for name in c["hyperparameters"]})
    taken = {"rank", "runs", "diverged", "path", *hyperparameters}
    label = {name: f"metric.{name}" if {name, f"{name}_std"} & taken else name for name in names}
    names = [metric, *(name for name in names if name != metric)]
    columns = ["rank", *hyperparameters]
    columns += [column for name in names for column in (label[name], f"{label[name]}_std")]
    rows = []
    for combination in sorted(combinations, key=lambda c: (c["rank"] is None, c["rank"] or 0, c["path"])):
        row = {"rank": combination["rank"], "runs": len(combination["runs"]), "path": combination["path"]}
        row |= {name: cell(value) for name, value in combination["hyperparameters"].items()}
        for name in names:
            values = numbers(combination["metrics"].get(name, []))
            if len(values) == len(combination["runs"]):
                row[label[name]] = statistics.fmean(values)
                row[f"{label[name]}_std"] = statistics.stdev(values) if len(values) > 1 else None
        row["diverged"] = sum(
            any(values[i : i + 1] == [None] for values in combination["metrics"].values())
            for i in range(len(combination["runs"]))
        )
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
    """Write the chosen combination, or null if every one has a diverged run."""
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
        print("Every combination has a diverged run, so none is the best.", file=sys.stderr)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(text, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    main()
