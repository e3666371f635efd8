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

# What sizes the thread pools of numerical libraries. Snakemake sets some of them to what it granted.
POOLS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
TAIL = 15  # lines of a failed program's log that are shown at once


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status to leave with: the program's own, where it has one."""
    options = parse(arguments)
    folder = options.record.parent
    try:
        attempt = Attempt(folder, options.step)
        places = Places(folder, options.step, options.made_with)
        words = places.fill(options.command)
    except OSError as error:
        print(f"{options.step} can't be run in {folder}: {error}", file=sys.stderr)
        return 1
    with attempt.log.open("wb") as log:
        ended = process.run(words, environment(options.threads), log)
    reason = ended.reason
    if ended.status == 0:
        try:
            reason = "diverged" if places.commit(options.record) else "finished"
        except (BadOutput, OSError) as error:
            ended.status, reason = 1, str(error)
    places.clear(done=ended.status == 0)
    attempt.write(ended, reason, words)
    if ended.status:
        complain(attempt, reason)
    return ended.status


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="launch",
        usage="launch STEP RECORD [--threads N] [--made-with TEXT ...] -- COMMAND ...",
        description=__doc__,
        epilog="COMMAND is the program and its arguments. {write:F} in it is a place for an output, {metrics:F} "
        "one for a flat JSON object, {read:F} an input in the run's folder, {keep:F} a folder that outlives a "
        "failed attempt; {{ and }} are braces.",
        allow_abbrev=False,
        # Asked for the terminal's width, argparse imports shutil and all its compressors.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100),
    )
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
    arguments = sys.argv[1:] if arguments is None else arguments
    # Split here: argparse would take a `--` of the program's own away.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    options.command = arguments[end + 1 :]
    if not options.command:
        parser.error("there is no command; write it after --")
    options.made_with = dict(text.partition(" ")[::2] for text in options.made_with)
    return options


def environment(threads: int) -> dict[str, str]:
    """Return the program's environment: thread pools as declared, whatever the machine has."""
    return {"PYTHONUNBUFFERED": "1"} | os.environ | dict.fromkeys(POOLS, str(threads))


def complain(attempt: Attempt, reason: str) -> None:
    """Say what failed, with the end of its log and where the rest is."""
    print(f"{attempt.step} failed in {attempt.folder}: {reason}", file=sys.stderr)
    lines = attempt.tail(TAIL)
    if lines:
        print(f"The end of {attempt.log}:", file=sys.stderr)
    for line in lines:
        print(f"  | {line}", file=sys.stderr)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # nothing is left to tidy up; Python's own tidying would take longer than the rest
