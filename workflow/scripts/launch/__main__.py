"""Run one step of one run: `python workflow/scripts/launch STEP RECORD [options] -- COMMAND…`."""

import argparse
import os
import sys
from pathlib import Path

if not __package__:  # `python some/folder` puts the folder itself on the path, not its parent
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from launch import process
from launch.places import BadOutput, Places
from launch.record import Attempt

TAIL = 15  # lines of a failed program's log that are shown at once


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status to leave with: the program's own, where it has one."""
    options = parse(arguments)
    attempt = Attempt(options.record.parent, options.step)
    places = Places(options.record.parent, options.step, options.made_with)
    words = places.fill(options.command)
    with attempt.log.open("wb") as log:
        ended = process.run(words, environment(options.threads), log)
    reason, diverged = ended.reason, False
    if ended.status == 0:
        try:
            diverged = places.commit(options.record)
            reason = "diverged" if diverged else "finished"
        except (BadOutput, OSError) as error:
            ended.status, reason = 1, str(error)
    places.clear(done=ended.status == 0)
    attempt.write(ended, reason, words)
    if ended.status:
        complain(attempt, reason)
    return ended.status


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="launch", description=__doc__, allow_abbrev=False)
    parser.add_argument("step", help="train or evaluate; names logs and messages")
    parser.add_argument("record", type=Path, help="the record to write, in the run's folder")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads for the program (default: 1)")
    parser.add_argument(
        "--made-with",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="what the result depends on: 'part text' each",
    )
    parser.add_argument(
        "command",
        nargs="+",
        help="the program and its arguments. {write:F} is a place for an output, {metrics:F} one for a flat "
        "JSON object, {read:F} an input in the run's folder, {keep:F} a folder that outlives a failed attempt; "
        "{{ and }} are braces",
    )
    options = parser.parse_args(arguments)
    options.made_with = dict(text.partition(" ")[::2] for text in options.made_with)
    return options


def environment(threads: int) -> dict[str, str]:
    """Return the program's environment: thread pools as declared, whatever the machine has."""
    pools = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB", "TF_NUM_INTRAOP", "TF_NUM_INTEROP")
    names = [name if name.startswith("TF_") else f"{name}_NUM" for name in pools]
    return {"PYTHONUNBUFFERED": "1"} | os.environ | {f"{name}_THREADS": str(threads) for name in names}


def complain(attempt: Attempt, reason: str) -> None:
    """Say what failed, with the end of its log and where the rest is."""
    print(f"{attempt.step} failed in {attempt.folder}: {reason}", file=sys.stderr)
    lines = attempt.tail(TAIL)
    if lines:
        print(f"The end of {attempt.log}:", file=sys.stderr)
    for line in lines:
        print(f"  | {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
