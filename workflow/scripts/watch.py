"""Show where a study stands, from its files alone: one that runs here or elsewhere, or ran."""

import argparse
import calendar
import math
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from see.progress import duration
from see.study import STEPS, NoStudy, Study, devices_of, read_study

NAMED = 20  # runs that are named, of each kind


def main() -> None:
    """Print it, once or again and again."""
    options = parse()
    try:
        while True:
            text = "\n".join(words(read_study(options.results), time.time()))
            if options.every and sys.stdout.isatty():
                text = f"\x1b[H\x1b[J{text}"
            print(text, flush=True)
            if not options.every:
                return
            time.sleep(options.every)
    except NoStudy as error:
        sys.exit(f"watch.py: {error}")
    except KeyboardInterrupt:
        return


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"), help="(default: results)")
    parser.add_argument(
        "--every", type=float, metavar="S", help="show it again every S seconds, until Ctrl-C"
    )
    return parser.parse_args()


def words(study: Study, now: float) -> list[str]:
    """Word where the study stands at a time, in seconds since 1970."""
    states = Counter(run.state for run in study.runs)
    order = ("finished", "diverged", "running", "failed", "lost", "not run")
    counts = ", ".join(f"{states[state]:,} {state}" for state in order if states[state])
    lines = [f"{study.folder}: {len(study.runs):,} runs: {counts}{to_go(study, now)}"]
    complete = sum(all(run.metrics for run in c.runs) for c in study.combinations)
    begun = sum(any(run.metrics for run in c.runs) for c in study.combinations)
    lines.append(
        f"{len(study.combinations):,} combinations: {complete:,} complete, {begun - complete:,} incomplete, "
        f"{len(study.combinations) - begun:,} without a finished run"
    )
    if study.ranked:
        best, mean = study.ranked[0]
        named = best.path or "the only combination"
        lines.append(
            f"Best of the complete ones: {study.metric} {mean:.4g}, {named} ({len(best.runs)} seeds)"
        )
    for state in ("running", "failed", "lost"):
        runs = [run for run in study.runs if run.state == state]
        lines += [f"{state}:"] * bool(runs)
        for run in runs[:NAMED]:
            attempt = run.attempts[-1]
            if state == "running":
                since = duration(max(0.0, now - begun_at(attempt)))
                device = devices_of(attempt)
                epoch = run.epoch if run.step == "train" else ""
                about = filter(None, [run.step, epoch, device and f"on {device}", attempt["host"], since])
                lines.append(f"  {run.path}  {', '.join(about)}")
            else:
                log = run.folder / attempt.get("log", "logs")
                lines.append(
                    f"  {run.path}  {run.step} {attempt.get('reason')}, {attempt.get('detail')}; log: {log}"
                )
        lines += [f"  and {len(runs) - NAMED:,} more"] if len(runs) > NAMED else []
    return lines


def to_go(study: Study, now: float) -> str:
    """Estimate what is left from how long steps took, if as many run at once as do now; nothing if nobody can know."""
    running = [run for run in study.runs if run.state == "running"]
    seconds: dict[str, list[float]] = defaultdict(list)
    for run in study.runs:
        for attempt in run.attempts:
            if attempt.get("exit") == 0 and attempt.get("wall_s"):
                seconds[attempt["step"]].append(attempt["wall_s"])
    work = 0.0
    for run in study.runs:
        if run.state in ("finished", "diverged", "failed"):
            continue
        trained = run.last("train").get("exit") == 0
        for step in STEPS[1:2] if trained else STEPS[:2]:
            if not seconds[step]:
                return ""
            mean = math.fsum(seconds[step]) / len(seconds[step])
            spent = now - begun_at(run.attempts[-1]) if run.state == "running" and run.step == step else 0.0
            work += max(0.0, mean - spent)
    return f"; about {duration(work / len(running))} to go" if running and work else ""


def begun_at(attempt: dict) -> float:
    """Return when an attempt began, in seconds since 1970."""
    return float(calendar.timegm(time.strptime(attempt["started"], "%Y-%m-%dT%H:%M:%SZ")))


if __name__ == "__main__":
    main()
