"""A results folder as a study leaves it, made up in no time: for those that read its files alone."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path


def line(step: str, number: int = 1, **more) -> dict:
    """Make the last line of an attempt, as launch writes it."""
    return {
        "step": step,
        "attempt": number,
        "started": "2026-12-01T12:00:00Z",
        "host": os.uname().nodename,
        "log": f"logs/{step}.{number}.log",
        "exit": 0,
        "reason": "finished",
        "detail": "",
        "wall_s": 8.0 if step == "train" else 2.0,
        "cpu_s": 9.0,
        "memory_mib": 300.0,
        "versions": {"python": "3.11.7"},
        "devices": [],
    } | more


class MadeUp:
    """A study of combinations, whose scores and learning curves are a function of the hyperparameters and the seed."""

    def __init__(
        self,
        results: Path,
        combinations: list[dict],
        seeds: int = 2,
        metric: str = "accuracy",
        mode: str = "max",
    ):
        self.results = results
        self.combinations = combinations
        self.seeds = range(seeds)
        about = {
            "metric": metric,
            "mode": mode,
            "seeds": list(self.seeds),
            "train": "python train.py {flags} --seed {seed} --model {model}",
            "eval": "python eval.py --model {model} --split {split} --metrics {metrics}",
            "tests": True,
            "confirm": 0,
            "config": "config.yaml",
            "text": "# the config\n",
            "call": "snakemake --cores 2",
        }
        self.write(".sweep/about.json", json.dumps(about))
        self.write(".sweep/study.jsonl", "".join(json.dumps(self.described(c)) + "\n" for c in combinations))

    def path(self, combination: dict) -> str:
        return "/".join(f"{name}={value}" for name, value in sorted(combination.items()) if value is not None)

    def runs(self, combination: dict) -> list[str]:
        return [f"{self.path(combination)}/seed={seed}" for seed in self.seeds]

    def described(self, combination: dict) -> dict:
        path = self.path(combination)
        return {
            "path": path,
            "hyperparameters": combination,
            "runs": self.runs(combination),
            "train": f"python train.py {path}",
        }

    def write(self, name: str, text: str) -> Path:
        path = self.results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def attempt(self, run: str, *lines: dict) -> None:
        self.write(f"{run}/attempts.jsonl", "".join(json.dumps(each) + "\n" for each in lines))

    def finish(
        self, score: Callable[[dict, int], float], epochs: int = 10, runs: set[str] | None = None
    ) -> None:
        """Finish all runs, or some."""
        for combination in self.combinations:
            for seed, run in zip(self.seeds, self.runs(combination), strict=True):
                if runs is not None and run not in runs:
                    continue
                value = score(combination, seed)
                self.write(
                    f"{run}/metrics.json",
                    json.dumps({"accuracy": value, "loss": None if value is None else 1 - value}),
                )
                self.write(f"{run}/evaluation.json", "{}")
                self.write(f"{run}/record.json", "{}")
                rows = [
                    f"{e},{(value or 0) * (1 - math.exp(-e / 3)):.6f},{1 / e:.6f}"
                    for e in range(1, epochs + 1)
                ]
                self.write(f"{run}/history.csv", "\n".join(["epoch,val_accuracy,val_loss", *rows]) + "\n")
                self.attempt(
                    run,
                    line("train", wall_s=5.0 + 10 * (value or 0), memory_mib=300 + 100 * (value or 0)),
                    line("evaluate"),
                )
