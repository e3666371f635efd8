"""Compare the combinations of a complete study: a row each in `summary.csv`, the best in `best.json`.

The best combination is the one with the best mean of the chosen metric over its seeds, on validation data. A
combination with a diverged run is never the best. `effects.csv` has the mean and the best score of each value of each
varied hyperparameter.
"""

import argparse
import csv
import json
import os
import sys
from pathlib import Path

from scores import edges, effects, interval, p_value, spread

LEVEL = 0.05  # of p, below which a difference counts as told apart


def main() -> None:
    """Read every run's metrics and write the two files."""
    options = parse()
    combinations = read_study(options.runs, options.results)
    names = sorted({name for c in combinations for metrics in c["metrics"] for name in metrics or ()})
    if not names:
        sys.exit("Every run failed, so there is nothing to compare.")
    if options.metric not in names:
        sys.exit(
            f"select.metric: '{options.metric}' is in no run's metrics; there are: {', '.join(names)}. "
            "Name one of them under select in config.yaml."
        )
    rank(combinations, options.metric, options.mode)
    compare(combinations, options.metric)
    write_summary(options.summary, combinations, names, options.metric)
    write_effects(options.effects, combinations, options.mode)
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
    parser.add_argument(
        "--effects", type=Path, required=True, help="the table of hyperparameters' values to write (CSV)"
    )
    parser.add_argument("--best", type=Path, required=True, help="the best combination to write (JSON)")
    return parser.parse_args()


def read_study(path: Path, results: Path) -> list[dict]:
    """Read the combinations, with the metrics of each run (None for a run that failed, and where one is not finite).

    Leaves with a message if a run's evaluation is missing, or of another model than the one that is there.
    """
    combinations = []
    for line in path.read_text(encoding="utf-8").splitlines():
        combination = json.loads(line)
        failed = set(combination.get("failed", ()))
        metrics = [None if run in failed else read_metrics(results / run) for run in combination["runs"]]
        combinations.append(combination | {"metrics": metrics})
    return combinations


def read_metrics(run: Path) -> dict:
    """Read what a run scored, if that is of the model that was trained."""
    try:
        trained, evaluated = (load(run / name) for name in ("record.json", "evaluation.json"))
        if any(trained["outputs"].get(name) != made for name, made in evaluated["inputs"].items()):
            sys.exit(f"{run}: was trained again after its evaluation; type the same command again.")
        return load(run / "metrics.json")
    except FileNotFoundError as error:
        sys.exit(f"{run}: {Path(error.filename).name} is missing; type the same command again.")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit(f"{run}: its files can't be read ({error}); remove that folder and type the command again.")


def load(path: Path) -> dict:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def rank(combinations: list[dict], metric: str, mode: str) -> None:
    """Add `mean`, `std`, `diverged` and `failed` (numbers of runs) and `rank` to every combination.

    The rank is None where a run failed, diverged, whichever metric shows it, or has no number as its metric.
    """
    for combination in combinations:
        combination["mean"], combination["std"] = spread(values(combination, metric))
        there = [metrics for metrics in combination["metrics"] if metrics is not None]
        combination["diverged"] = sum(None in metrics.values() for metrics in there)
        combination["failed"] = len(combination["metrics"]) - len(there)
        combination["rank"] = None
    sign = -1 if mode == "max" else 1
    judged = [c for c in combinations if c["mean"] is not None and not c["diverged"] and not c["failed"]]
    for place, combination in enumerate(sorted(judged, key=lambda c: sign * c["mean"]), start=1):
        combination["rank"] = place


def values(combination: dict, metric: str) -> list[object]:
    """Return a metric of a combination's runs, None where there is none."""
    return [(metrics or {}).get(metric) for metrics in combination["metrics"]]


def compare(combinations: list[dict], metric: str) -> None:
    """Add `interval`, `p` and `verdict` to every combination: can its difference to the best be told from chance?"""
    best = min((c for c in combinations if c["rank"]), key=lambda c: c["rank"], default=None)
    for combination in combinations:
        combination["interval"] = interval(values(combination, metric))
        combination["p"] = None
        if combination is best:
            verdict = "best"
        elif combination["failed"]:
            verdict = "failed"
        elif combination["diverged"]:
            verdict = "diverged"
        elif not combination["rank"]:
            verdict = f"no number as {metric}"
        else:
            p = combination["p"] = p_value(by_seed(best, metric), by_seed(combination, metric))
            verdict = "too few seeds to tell" if p is None else "worse" if p < LEVEL else "indistinguishable"
        combination["verdict"] = verdict


def by_seed(combination: dict, metric: str) -> dict[int, float]:
    """Return a metric of a combination's runs: seed → score."""
    seeds = (int(run.rpartition("seed=")[2]) for run in combination["runs"])
    return dict(zip(seeds, values(combination, metric), strict=True))


def write_summary(path: Path, combinations: list[dict], names: list[str], metric: str) -> None:
    """Write one row per combination, best first: rank, hyperparameters, mean and spread of every metric, verdict."""
    own = {"rank", "low", "high", "p", "verdict", "runs", "diverged", "failed", "path"}
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
    columns += [labels[metric], f"{labels[metric]}_std", "low", "high", "p", "verdict"]
    columns += [column for n, label in labels.items() if n != metric for column in (label, f"{label}_std")]
    rows = []
    for combination in sorted(combinations, key=lambda c: (c["rank"] is None, c["rank"] or 0, c["path"])):
        row = {key: combination[key] for key in ("rank", "p", "verdict", "diverged", "failed", "path")}
        row["low"], row["high"] = combination["interval"] or (None, None)
        row["runs"] = len(combination["runs"])
        row |= {hyperparameters[name]: cell(value) for name, value in combination["hyperparameters"].items()}
        for name, label in labels.items():
            row[label], row[f"{label}_std"] = spread(values(combination, name))
        rows.append(row)
    write_table(path, [*columns, "runs", "diverged", "failed", "path"], rows)


def write_effects(path: Path, combinations: list[dict], mode: str) -> None:
    """Write the mean and the best score of the ranked combinations with each value of each varied hyperparameter."""
    ranked = [c for c in combinations if c["rank"]]
    rows = effects([c["hyperparameters"] for c in ranked], [c["mean"] for c in ranked], mode)
    rows = [row | {"value": cell(row["value"])} for row in rows]
    write_table(path, ["hyperparameter", "value", "combinations", "mean", "best"], rows)


def write_table(path: Path, columns: list[str], rows: list[dict]) -> None:
    """Write a CSV file beside and rename."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    beside.replace(path)


def cell(value: object) -> object:
    """Write a hyperparameter's value: booleans as true and false, lists as JSON, nothing for null."""
    return json.dumps(value) if isinstance(value, bool | list) else value


def write_best(path: Path, combinations: list[dict], options: argparse.Namespace) -> None:
    """Write the chosen combination, or null if none has a rank."""
    best = min((c for c in combinations if c["rank"]), key=lambda c: c["rank"], default=None)
    keys = ("hyperparameters", "path", "runs", "mean", "std", "interval", "train")
    ranked = [c["hyperparameters"] for c in combinations if c["rank"]]
    text = {
        "metric": options.metric,
        "mode": options.mode,
        "combinations": len(combinations),
        "best": {key: best.get(key) for key in keys} if best else None,
        "why": why(best, combinations, options),
        "indistinguishable": [c["path"] for c in combinations if c["verdict"] == "indistinguishable"],
        "too_few_seeds_to_tell": [c["path"] for c in combinations if c["verdict"] == "too few seeds to tell"],
        "edges": edges(ranked, best["hyperparameters"]) if best else {},
        "study": options.study,
    }
    if best is None:
        print(text["why"], file=sys.stderr)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(text, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)


def why(best: dict | None, combinations: list[dict], options: argparse.Namespace) -> str:
    """Word the reasons of the choice."""
    if best is None:
        return (
            f"Every combination has a run that failed, diverged or has no number as its {options.metric}, "
            "so none is the best."
        )
    which = "highest" if options.mode == "max" else "lowest"
    unranked = sum(c["rank"] is None for c in combinations)
    left_out = f"; {unranked} could not be ranked" if unranked else ""
    ties = sum(c["mean"] == best["mean"] for c in combinations if c["rank"]) - 1
    tied = f"; {ties} more reached it, and the first in the order of the config is taken" if ties else ""
    seeds = len(best["runs"])
    return (
        f"It has the {which} mean {options.metric} on validation data, {best['mean']:.6g} over {seeds} "
        f"seed{'s' * (seeds != 1)}, of {len(combinations)} combinations{left_out}{tied}."
    )


if __name__ == "__main__":
    main()
