"""Declare that results made with other versions of the code count as made by the code as it is now.

Adds the versions to `accepted.yaml`, one class of equal digests per step; touches no result.
"""

import argparse
import json
import os
import time
from pathlib import Path

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


def read(path: Path) -> list[tuple[str, set[str]]]:
    """Read the classes there are. The file's items are JSON, which is YAML."""
    if not path.exists():
        return []
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    return [(item["step"], set(item["code"])) for item in map(json.loads, (line[2:] for line in lines))]


def merge(classes: list[tuple[str, set[str]]], step: str, codes: set[str]) -> list[tuple[str, set[str]]]:
    """Add a class, joined with those that it overlaps."""
    apart = []
    for other_step, other in classes:
        if other_step == step and other & codes:
            codes = codes | other
        else:
            apart.append((other_step, other))
    return [*apart, (step, codes)]


def write(path: Path, classes: list[tuple[str, set[str]]]) -> None:
    """Write the classes, one line each."""
    today = time.strftime("%Y-%m-%d")
    lines = [f"- {json.dumps({'step': s, 'code': sorted(c), 'changed': today})}\n" for s, c in classes]
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(HEADER + "".join(lines), encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    main()
