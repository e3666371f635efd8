"""Declare that results made with other versions of the code count as made by the code as it is now.

Adds the versions to `accepted.yaml`, one class of equal digests per step; touches no result.
"""

import argparse
import json
import os
import time
from pathlib import Path

import yaml

HEADER = """\
# Versions of program code that give the same results, declared by `snakemake accept`. Each item is a class of
# digests that count as equal; every finished run keeps the digest it was made with. Removing an item makes
# the runs of its older versions stale again.
"""


def main() -> None:
    """Merge the versions into the classes there are, and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("file", type=Path, help="accepted.yaml in the results folder")
    parser.add_argument("versions", type=json.loads, help="JSON: [[step, before, now, number of runs], …]")
    options = parser.parse_args()
    if not options.versions:
        print("Nothing to accept: no finished run was made with other code.")
        return
    classes = read(options.file)
    for step, before, now, count in options.versions:
        classes = merge(classes, step, {before, now})
        print(
            f"Accepted for {count} run{'s' * (count != 1)} ({step}):\n  made with {before}\n  now       {now}"
        )
    write(options.file, classes)
    print(f"Written to {options.file}. Type the study's command again: it runs nothing for them.")


def read(path: Path) -> list[dict]:
    """Read the classes there are: {step, code, changed} each."""
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or []) if path.exists() else []


def merge(classes: list[dict], step: str, codes: set[str]) -> list[dict]:
    """Add a class, joined with those that it overlaps."""
    joined = [c for c in classes if c["step"] == step and codes & set(c["code"])]
    if any(codes <= set(c["code"]) for c in joined):
        return classes
    code = sorted(codes.union(*(c["code"] for c in joined)))
    apart = [c for c in classes if c not in joined]
    return [*apart, {"step": step, "code": code, "changed": time.strftime("%Y-%m-%d")}]


def write(path: Path, classes: list[dict]) -> None:
    """Write the classes, one version a line."""
    text = yaml.safe_dump(classes, sort_keys=False, width=float("inf"))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(HEADER + text, encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    main()
