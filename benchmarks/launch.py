"""Measure what `launch` adds to a process: wall and CPU time over calling the program directly, cold.

Pairs are interleaved and the first order alternates; what counts is the median of the differences. Writes
benchmarks/results/launch.json.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "import sys; open(sys.argv[1], 'w').write('model')"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of calls (default: 40)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        report = measure(Path(place), options.pairs)
    report["machine"] = {"cores": os.cpu_count(), "python": platform.python_version()}
    out = ROOT / "benchmarks" / "results" / "launch.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    for key in ("wall", "cpu"):
        direct, through = (statistics.median(report[name][key]) for name in ("direct", "launch"))
        differences = [b - a for a, b in zip(report["direct"][key], report["launch"][key], strict=True)]
        print(
            f"{key}: direct {1000 * direct:.1f} ms, through launch {1000 * through:.1f} ms; "
            f"median difference {1000 * statistics.median(differences):.1f} ms of {options.pairs} pairs"
        )
    print(f"Written to {out}")


def measure(place: Path, pairs: int) -> dict:
    """Call a tiny program directly and through launch, in turn."""
    program = [sys.executable, "-c", PROGRAM]
    launch = [
        sys.executable,
        "-S",
        str(ROOT / "workflow/scripts/launch/__main__.py"),
        "train",
        "run/record.json",
        "--gpus=1",
    ]
    calls = {
        "direct": [*program, "model"],
        "launch": [*launch, "--made-with", "run x=1", "code a=1", "--", *program, "{write:model}"],
    }
    # Compiled modules are kept, as they are for a user.
    env = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    report: dict = {name: {"wall": [], "cpu": []} for name in calls}
    for number in range(-2, pairs):  # the first two warm up
        for name in list(calls)[:: -1 if number % 2 else 1]:
            shutil.rmtree(place / "run", ignore_errors=True)  # a run has few attempts, not one per pair
            before, started = cpu(), time.monotonic()
            subprocess.run(calls[name], cwd=place, env=env, check=True)
            if number >= 0:
                report[name]["wall"].append(time.monotonic() - started)
                report[name]["cpu"].append(cpu() - before)
    return report


def cpu() -> float:
    """Return the processor time of all children so far, seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
