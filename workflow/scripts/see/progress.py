"""Show how a study goes while it runs, in place of Snakemake's message about every job.

Snakemake tells its loggers what begins and ends; the rest is read from the runs' folders. On a terminal that is one line
which is drawn again and again; elsewhere plain lines, now and then. Snakemake's own log file keeps all messages.
"""

import logging
import math
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from see.study import STEPS, devices_of, epoch_of, read_attempts, read_json

REFRESH = 1.0  # seconds, on a terminal
PLAIN = 30.0  # seconds between plain lines, at least
CLEAR = "\r\x1b[K"


@dataclass
class Standing:
    """What is known of a study, kept as it goes.

    Attributes:
        results: the results folder.
        runs: the runs of the study, by their paths: the combination's path and the seed are read from these.
        metric, mode: what is chosen by.
        todo: step → how many runs still need it.
        seconds: step → how long each took that was seen to end.
        failed: run → the step that failed.
        running: run → (step, when it began).
        unknown: what to say if the metric is none that the programs report.
    """

    results: Path
    runs: list[str]
    metric: str
    mode: str
    todo: Counter
    finished: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    running: dict[str, tuple[str, float]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    began: float | None = None
    unknown: str = ""

    def __post_init__(self):
        self._seeds = Counter(run.rpartition("seed=")[0] for run in self.runs)
        self._scores: dict[str, list[float]] = defaultdict(list)

    def begin(self, step: str, run: str, now: float) -> None:
        """Take down that a step began."""
        self.began = now if self.began is None else self.began
        self.failed.pop(run, None)
        self.running[run] = step, now

    def end(self, step: str, run: str, now: float) -> None:
        """Take down that a step ended well."""
        _, began = self.running.pop(run, (step, now))
        self.seconds[step].append(now - began)
        self.todo[step] -= 1
        if step == "evaluate":
            self.finish(run)

    def finish(self, run: str) -> None:
        """Take down that a run is finished, and what it scored."""
        if run in self.finished:
            return
        self.finished.add(run)
        metrics = read_json(self.results / run / "metrics.json")
        score = metrics.get(self.metric)
        if metrics and self.metric not in metrics and not self.unknown:
            self.unknown = (
                f"Note: select.metric: '{self.metric}' is not among the metrics of {run} ({', '.join(metrics)}); if no run has it, "
                "nothing can be chosen at the end. Name another under select: that runs nothing again."
            )
        if isinstance(score, int | float):
            self._scores[run.rpartition("seed=")[0]].append(score)

    def fail(self, step: str, run: str) -> None:
        """Take down that a step failed."""
        self.running.pop(run, None)
        self.failed[run] = step

    @property
    def best(self) -> tuple[float, str] | None:
        """Return the best mean of a combination whose seeds are all in, and its path."""
        means = [
            (math.fsum(scores) / len(scores), path.rstrip("/"))
            for path, scores in self._scores.items()
            if len(scores) == self._seeds[path]
        ]
        choose = max if self.mode == "max" else min
        return choose(means, key=lambda pair: pair[0], default=None)

    def left(self, now: float) -> float | None:
        """Estimate the seconds that are left, from how long steps took and how many ran at once; None if unknown."""
        if self.began is None or now <= self.began:
            return None
        current = Counter(step for step, _ in self.running.values())
        work = 0.0
        for step in STEPS[:2]:
            dropped = sum(STEPS.index(s) <= STEPS.index(step) for s in self.failed.values())
            if (waiting := self.todo[step] - dropped) > 0:
                # A step that none has finished yet is taken to be as long as the others.
                known = self.seconds[step] or [s for found in self.seconds.values() for s in found]
                if not known:
                    return None
                mean = math.fsum(known) / len(known)
                spent = sum(min(mean, now - began) for s, began in self.running.values() if s == step)
                work += max(0.0, waiting * mean - spent)
        busy = math.fsum(s for found in self.seconds.values() for s in found)
        busy += sum(now - began for _, began in self.running.values())
        return work / max(busy / (now - self.began), min(1, len(current)) or 1)

    def line(self, now: float) -> str:
        """Word it in one line, what matters most first."""
        total, known = len(self.runs), set(self.runs)
        failed, running = len(self.failed.keys() & known), len(self.running.keys() & known)
        waiting = total - len(self.finished) - failed - running
        parts = [f"{len(self.finished)} of {total} runs finished", f"{running} running"]
        parts += [f"{failed} failed"] * bool(failed)
        parts.append(f"{waiting} left")
        seconds = self.left(now)
        if seconds and len(self.finished) < total:
            parts.append(f"about {duration(seconds)} to go")
        text = ", ".join(parts)
        if self.best:
            mean, path = self.best
            text += f" | best {self.metric} {mean:.4g}" + (f" ({path})" if path else "")
        for run, (step, began) in list(self.running.items()):
            text += f" | {self.one(run, step, now - began)}"
        return text

    def one(self, run: str, step: str, seconds: float) -> str:
        """Word what one run does, where, and since when."""
        folder = self.results / run
        attempts = read_attempts(folder)
        device = devices_of(attempts[-1]) if attempts and attempts[-1].get("step") == step else ""
        epoch = epoch_of(folder) if step == "train" else ""
        return " ".join(filter(None, [step, run, epoch, device and f"on {device}", duration(seconds)]))


def duration(seconds: float) -> str:
    """Write a duration for people: `40 s`, `12 min`, `3.5 h`, `2 d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            value = seconds / length
            return f"{value:.1f} {unit}" if value < 10 and unit != "min" else f"{value:.0f} {unit}"
    return f"{seconds:.0f} s"


class Progress(logging.Handler):
    """Follow Snakemake's events and show the standing on a stream."""

    def __init__(self, standing: Standing, stream, done: Iterable[str], terminal: bool, tell_failures: bool):
        super().__init__()
        self.standing = standing
        self._stream = stream
        self._done = list(done)
        self._terminal = terminal
        self._tell_failures = tell_failures
        self._jobs: dict[int, tuple[str, str]] = {}
        self._drawn = self._noted = False
        self._shown = time.monotonic()
        self._said = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def lets_pass(self, record: logging.LogRecord) -> bool:
        """Say whether Snakemake may show a message: not what is shown here, nor what `launch` told of a failure."""
        event = getattr(record, "event", None)
        name = getattr(event, "value", None)
        if record.levelno >= logging.WARNING:
            if name == "job_error" and record.jobid in self._jobs:
                return False
            if name == "error" and "launch/__main__.py" in record.getMessage():
                return False
            with self.lock:
                self._clear()
            return True
        return False

    def emit(self, record: logging.LogRecord) -> None:
        """Take down what began and ended."""
        name = getattr(getattr(record, "event", None), "value", "")
        now = time.monotonic()
        if name == "job_info":
            run = (getattr(record, "wildcards", None) or {}).get("run")
            if run and record.rule_name in STEPS:
                self._jobs[record.jobid] = record.rule_name, run
                self.standing.begin(record.rule_name, run, now)
        elif name == "job_finished" and record.job_id in self._jobs:
            self.standing.end(*self._jobs[record.job_id], now)
        elif name == "job_error" and getattr(record, "jobid", None) in self._jobs:
            step, run = self._jobs[record.jobid]
            self.standing.fail(step, run)
            if self._tell_failures:
                self._say_failure(step, run)
        else:
            return
        if self.standing.unknown and not self._noted:
            self._clear()
            print(self.standing.unknown, file=self._stream, flush=True)
            self._noted = True
        if self._terminal:
            self._draw()
        elif time.monotonic() - self._shown >= PLAIN:
            self._say()

    def _say_failure(self, step: str, run: str) -> None:
        folder = self.standing.results / run
        last = next((a for a in reversed(read_attempts(folder)) if a.get("step") == step), {})
        self._clear()
        reason, detail, log = last.get("reason", ""), last.get("detail", ""), folder / last.get("log", "logs")
        print(f"{step} failed in {folder}: {reason}, {detail}; log: {log}", file=self._stream, flush=True)

    def _watch(self) -> None:
        with self.lock:
            for run in self._done:
                self.standing.finish(run)
        while not self._stopping.wait(REFRESH):
            with self.lock:
                if self._terminal:
                    self._draw()
                elif time.monotonic() - self._shown >= 2 * PLAIN:
                    self._say()

    def _draw(self) -> None:
        width = (os.get_terminal_size(self._stream.fileno()).columns or 80) - 1
        text = self.standing.line(time.monotonic())
        self._stream.write(CLEAR + (text if len(text) <= width else f"{text[: width - 1]}…"))
        self._stream.flush()
        self._drawn = True

    def _say(self) -> None:
        """Write a plain line, unless nothing was begun yet, or it would be the same again."""
        text = self.standing.line(time.monotonic())
        if self.standing.began and text != self._said:
            print(text, file=self._stream, flush=True)
        self._said, self._shown = text, time.monotonic()

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write(CLEAR)
            self._stream.flush()
            self._drawn = False

    def stop(self) -> None:
        """End it, and leave the last line where lines stay."""
        self._stopping.set()
        self._thread.join()
        with self.lock:
            self._clear()


class Follow:
    """Start and stop showing progress, for the Snakefile.

    Snakemake's own messages are left as they are with `--verbose`, `--printshellcmds`, `--quiet` and where a logger
    plug-in writes to the terminal.
    """

    def __init__(self, workflow, plan):
        self._workflow = workflow
        self._plan = plan
        self._progress: Progress | None = None

    def start(self) -> None:
        """Begin to show progress, if nobody asked for something else."""
        from snakemake.logging import logger

        settings = self._workflow.output_settings
        shown = next((h for h in logger.handlers if h.name == "DefaultStreamHandler"), None)
        if shown is None or settings.verbose or settings.printshellcmds or settings.quiet:
            return
        plan = self._plan
        todo: Counter = Counter()
        done = []
        for run in plan.runs:
            verdicts: Mapping = dict(zip(STEPS, plan.verdict(run), strict=True))
            missing = [step for step in STEPS[:2] if not verdicts[step].fresh]
            todo.update(missing and STEPS[STEPS.index(missing[0]) : 2])
            if not missing:
                done.append(run)
        runs = [run for run in plan.runs if run not in plan.failed]
        standing = Standing(plan.folder, runs, plan.config.metric, plan.config.mode, todo)
        terminal = shown.stream.isatty()
        self._progress = Progress(standing, shown.stream, done, terminal, not self._workflow.local_exec)
        self._shown = shown
        shown.addFilter(self._progress.lets_pass)
        logger.addHandler(self._progress)

    def stop(self) -> None:
        """Stop showing it."""
        if self._progress:
            from snakemake.logging import logger

            self._progress.stop()
            logger.removeHandler(self._progress)
            self._shown.removeFilter(self._progress.lets_pass)
            self._progress = None
