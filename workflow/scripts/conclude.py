"""Conclude a study: copy the chosen combination's model, and put its score on test data into a file and a ledger.

Choosing spends the validation data, and every look at the test data spends some of that: the ledger counts the looks.
"""

import argparse
import csv
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

from scores import interval, spread

COLUMNS = ["when", "path", "fingerprint", "metric", "score", "std", "runs", "confirmed", "combinations"]


def main() -> None:
    """Copy the model and write the files."""
    options = parse()
    choice = load(options.best)
    copy_model(choice["best"], options)
    if options.test:
        write_test(choice, options)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--results", type=Path, required=True, help="the folder that the runs' paths start from"
    )
    parser.add_argument(
        "--best", type=Path, required=True, help="the choice, as summarize.py wrote it (JSON)"
    )
    parser.add_argument("--model", required=True, help="name of a run's model")
    parser.add_argument("--copy", type=Path, required=True, help="the folder to copy the chosen model into")
    parser.add_argument("--test", type=Path, help="the test score to write (JSON)")
    parser.add_argument("--ledger", type=Path, help="the table of test scorings to add to (CSV)")
    parser.add_argument("--confirmed", action="store_true", help="the runs are of fresh seeds")
    parser.add_argument("--runs", nargs="*", default=[], help="the runs that were scored on test data")
    return parser.parse_args()


def load(path: Path) -> dict:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def copy_model(best: dict | None, options: argparse.Namespace) -> None:
    """Copy the model of the lowest seed: to choose among seeds would be a second selection.

    A copy, not a link: whoever goes on from it must not change the run's.
    """
    shutil.rmtree(options.copy, ignore_errors=True)
    options.copy.mkdir(parents=True)
    if best:
        model = options.results / best["runs"][0] / options.model
        (shutil.copytree if model.is_dir() else shutil.copyfile)(model, options.copy / options.model)


def write_test(choice: dict, options: argparse.Namespace) -> None:
    """Write the test score of the chosen combination, or null where none was chosen."""
    best, metric = choice["best"], choice["metric"]
    text = {"metric": metric, "mode": choice["mode"], "combinations": choice["combinations"], "best": None}
    if best:
        records = [load(options.results / run / "test-record.json") for run in options.runs]
        metrics = [load(options.results / run / "test.json") for run in options.runs]
        scores = [scored.get(metric) for scored in metrics]
        mean, std = spread(scores)
        flattery = None if mean is None else best["mean"] - mean
        text["best"] = {
            "path": best["path"],
            "hyperparameters": best["hyperparameters"],
            "runs": options.runs,
            "confirmed": options.confirmed,
            "scores": scores,
            "mean": mean,
            "std": std,
            "interval": interval(scores),
            "validation": best["mean"],
            "gap": flattery if flattery is None or choice["mode"] == "max" else -flattery,
            "metrics": {
                name: dict(zip(("mean", "std"), spread([m.get(name) for m in metrics]), strict=True))
                for name in sorted({name for scored in metrics for name in scored})
            },
            "fingerprint": fingerprint(records),
        }
        text["scorings"] = write_down(text, options.ledger)
        if mean is None:
            print(
                f"Not every tested run has a number as its {metric}, so there is no test score.",
                file=sys.stderr,
            )
    replace(options.test, json.dumps(text, indent=1, allow_nan=False) + "\n")


def fingerprint(records: list[dict]) -> str:
    """Digest what the test scores were made of: programs, data and models."""
    parts = [[record["made_with"], record["inputs"]] for record in records]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def write_down(text: dict, ledger: Path) -> int:
    """Add this scoring to the ledger unless it is there; return how many there are.

    The same models scored by the same program on the same data tell nothing new, so that is no second look.
    """
    best = text["best"]
    rows = []
    if ledger.exists():
        with ledger.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    if any(row["fingerprint"] == best["fingerprint"] for row in rows):
        return len(rows)
    new = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "path": best["path"],
        "fingerprint": best["fingerprint"],
        "metric": text["metric"],
        "score": best["mean"],
        "std": best["std"],
        "runs": len(best["runs"]),
        "confirmed": json.dumps(best["confirmed"]),
        "combinations": text["combinations"],
    }
    with ledger.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not rows:
            writer.writeheader()
        writer.writerow(new)
    return len(rows) + 1


def replace(path: Path, text: str) -> None:
    """Write a file beside and rename."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    main()
