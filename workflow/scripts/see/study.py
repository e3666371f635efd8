"""Read where a study stands, from its files alone: no config, no digests, no Snakemake.

A result is taken as it lies there; whether it is still what the config asks for only `snakemake -n` can tell.
"""

import csv
import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

STEPS = ("train", "evaluate", "test")


class NoStudy(Exception):
    """There is no study in that folder, or it can't be read."""


@dataclass
class Run:
    """One run.

    Attributes:
        folder: where it lies.
        state: finished, diverged, failed, running, lost or not run.
        step: the step that runs, failed or was lost.
        metrics: what it scored on validation data; None is no finite number. Empty if not evaluated.
        attempts: the last line of every attempt at a step, in order; see docs/failures.md.
    """

    path: str
    seed: int
    folder: Path
    state: str
    step: str
    metrics: dict[str, float | None]
    attempts: list[dict]

    def last(self, step: str) -> dict:
        """Return the last attempt at a step; empty if there was none."""
        return next((a for a in reversed(self.attempts) if a.get("step") == step), {})

    @property
    def seconds(self) -> float | None:
        """Return how long its last training and evaluation took."""
        times = [self.last(step).get("wall_s") for step in ("train", "evaluate")]
        return sum(filter(None, times)) if any(times) else None

    @property
    def memory(self) -> float | None:
        """Return the peak memory, in MiB, of its last training and evaluation."""
        peaks = [self.last(step).get("memory_mib") for step in ("train", "evaluate")]
        return max(filter(None, peaks), default=None)

    @property
    def devices(self) -> str:
        """Name the GPUs of its last step."""
        return devices_of(self.attempts[-1]) if self.attempts else ""

    @property
    def epoch(self) -> str:
        """Return how far its training got."""
        return epoch_of(self.folder)


@dataclass
class Combination:
    """One combination and its runs, lowest seed first."""

    path: str
    hyperparameters: dict[str, object]
    train: str
    runs: list[Run] = field(default_factory=list)

    def scores(self, metric: str) -> list[float] | None:
        """Return the metric of all runs; None unless all are in, with a number each."""
        found = [run.metrics.get(metric) for run in self.runs if run.state == "finished"]
        complete = len(found) == len(self.runs) and all(isinstance(s, int | float) for s in found)
        return found if complete else None

    def mean(self, metric: str) -> float | None:
        """Return the mean of the metric over all seeds, if all are in."""
        scores = self.scores(metric)
        return math.fsum(scores) / len(scores) if scores else None


@dataclass
class Study:
    """A study: its combinations, and what it was called with (`about`)."""

    folder: Path
    about: dict
    combinations: list[Combination]

    @property
    def metric(self) -> str:
        """Name the metric that is chosen by."""
        return self.about["metric"]

    @property
    def mode(self) -> str:
        """Say whether more or less is better."""
        return self.about["mode"]

    @cached_property
    def runs(self) -> list[Run]:
        """List all runs."""
        return [run for combination in self.combinations for run in combination.runs]

    @cached_property
    def ranked(self) -> list[tuple[Combination, float]]:
        """List the combinations whose runs are all in, with a number each, best first, and their means."""
        found = [(c, c.mean(self.metric)) for c in self.combinations]
        found = [(c, mean) for c, mean in found if mean is not None]
        return sorted(found, key=lambda pair: pair[1], reverse=self.mode == "max")


def read_study(results: Path) -> Study:
    """Read a study.

    Raises:
        NoStudy: the folder holds none that was ever started.
    """
    private = results / ".sweep"
    try:
        about = json.loads((private / "about.json").read_text(encoding="utf-8"))
        lines = (private / "study.jsonl").read_text(encoding="utf-8").splitlines()
        described = [json.loads(line) for line in lines]
    except FileNotFoundError:
        raise NoStudy(
            f"{results}: no study was started there; name the results folder of one that was"
        ) from None
    except (OSError, ValueError) as error:
        raise NoStudy(f"{results}: what is there can't be read ({error})") from None
    combinations = []
    for item in described:
        combination = Combination(item["path"], item["hyperparameters"], item["train"])
        combination.runs = [read_run(results, run) for run in item["runs"]]
        combinations.append(combination)
    return Study(results, about, combinations)


def read_run(results: Path, path: str) -> Run:
    """Read one run."""
    folder = results / path
    attempts = read_attempts(folder)
    last = attempts[-1] if attempts else {}
    metrics = read_json(folder / "metrics.json")
    if metrics and (folder / "evaluation.json").exists():
        state = "diverged" if None in metrics.values() else "finished"
    else:
        metrics = {}
        state = "not run"
        if last.get("reason") == "lost":
            state = "running" if is_alive(last) else "lost"
        elif last.get("exit"):
            state = "failed"
    seed = int(path.rpartition("seed=")[2])
    return Run(path, seed, folder, state, last.get("step", ""), metrics, attempts)


def read_attempts(folder: Path) -> list[dict]:
    """Read what is known of every attempt: its end, or, if it has none, its beginning."""
    attempts: dict[tuple, dict] = {}
    for line in read_lines(folder / "attempts.jsonl"):
        with suppress(ValueError, TypeError):
            attempt = json.loads(line)
            key = (attempt.get("step"), attempt.get("attempt"), attempt.get("started"))
            attempts.pop(key, None)  # the order is that of the last lines
            attempts[key] = attempt
    return list(attempts.values())


def devices_of(attempt: dict) -> str:
    """Name the GPUs of an attempt."""
    return ", ".join(f"GPU {d.get('place', '?')} {d['uuid'][:12]}" for d in attempt.get("devices") or [])


def epoch_of(run: Path) -> str:
    """Return how far a training got, as its history says: the first column's last value."""
    with suppress(OSError, IndexError, ValueError):
        places = [*run.glob(".train-*/history.csv"), run / "history.csv"]
        with next((place for place in places if place.exists()), places[-1]).open("rb") as file:
            head = file.readline().split(b",")[0].decode().strip()
            file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - 4000))
            return f"{head} {file.read().splitlines()[-1].split(b',')[0].decode()}"
    return ""


def is_alive(attempt: dict) -> bool:
    """Say whether an attempt without an end still runs; on another host nobody can look, and it is believed."""
    if attempt.get("host") != os.uname().nodename or "pid" not in attempt:
        return True
    try:
        with open(f"/proc/{attempt['pid']}/cmdline", "rb") as file:
            return b"launch" in file.read()
    except OSError:
        return False


def read_history(run: Run) -> tuple[list[str], list[list[float]]]:
    """Read the course of a run's training: the columns' names, and the rows (NaN where there is no number)."""
    try:
        with (run.folder / "history.csv").open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
            return head, [list(map(_number, row)) for row in rows if len(row) == len(head)]
    except (OSError, ValueError):
        return [], []


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def read_json(path: Path) -> dict:
    """Read a JSON object; an empty one where there is none to read."""
    with suppress(OSError, ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
    return {}


def read_lines(path: Path) -> list[str]:
    """Read a file's lines; none where there is no such file."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    return []


def read_table(path: Path) -> list[dict[str, str]]:
    """Read a CSV file; no rows where there is none."""
    with suppress(OSError), path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
    return []


def word(value: object) -> str:
    """Write a hyperparameter's value for people."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def label(hyperparameters: dict[str, object], names: Iterator[str] | list[str]) -> str:
    """Name a combination by some of its hyperparameters."""
    return ", ".join(f"{name}={word(hyperparameters[name])}" for name in names if name in hyperparameters)
