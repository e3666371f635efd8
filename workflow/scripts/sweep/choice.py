"""Say what follows from the choice of the best combination: which runs are tested, and which models are kept."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sweep import naming, results
from sweep.config import placeholders
from sweep.errors import SweepError
from sweep.results import RECORD, TEST

FIRST_SEED = 1_000_000  # of the seeds that confirm the choice; the config's own are smaller


class Choice:
    """The choice of a study, as `best.json` has it, and what is to be done with it.

    Attributes:
        tests: whether the study has a test stage: `eval` takes a `{split}`.
        outputs: what `conclude` writes: name → path.
    """

    def __init__(self, plan):
        from snakemake.io import directory

        self._plan = plan
        self.tests = "split" in placeholders(plan.config.eval)
        folder = plan.results
        self.outputs = {"best": directory(f"{folder}/best")}
        if self.tests:
            self.outputs["test"] = f"{folder}/{TEST}"

    def best(self) -> dict:
        """Return the chosen combination; empty if there is none."""
        return results.read_json(self._plan.folder / "best.json").get("best") or {}

    def to_test(self, best: dict) -> list[str]:
        """List the runs that a combination is tested by: its own, or those of fresh seeds if it is to be confirmed."""
        if not best or not self.tests:
            return []
        return self._fresh(best["path"]) if self._plan.config.confirm else best["runs"]

    def _fresh(self, path: str) -> list[str]:
        return [naming.run_path(path, FIRST_SEED + i) for i in range(self._plan.config.confirm)]

    def fresh_runs(self) -> Iterator[str]:
        """Yield the runs that may confirm a combination of the study."""
        for combination in self._plan.combinations:
            yield from self._fresh(combination.path)

    def check_asked(self, run: str) -> None:
        """Refuse a test score that is asked for by its path while nothing is chosen, or that isn't the choice's."""
        where = f"{self._plan.results}/{run}/{TEST}"
        if not self.tests:
            raise SweepError(f"{where}: the command under eval has no {{split}}, so there is no test score")
        if self.current() is None:
            raise SweepError(
                f"{where}: only the chosen combination is scored on test data, and none is chosen while the study is "
                "incomplete; leave the path away, which runs the study and then the test"
            )
        self.check(run)

    def check(self, run: str) -> None:
        """Refuse to score a run on test data that does not belong to the choice."""
        plan, best = self._plan, self.best()
        where = f"{plan.results}/{run}/{TEST}"
        if run not in self.to_test(best):
            chosen = f"the chosen one is {plan.results}/{best['path']}" if best else "none was chosen"
            raise SweepError(
                f"{where}: only the chosen combination is scored on test data, and {chosen}; compare on validation "
                "data, or choose again by other seeds or another metric"
            )

    def current(self) -> dict | None:
        """Return the chosen combination, empty if all failed; None unless it is that of the study as it is asked for."""
        plan = self._plan
        text = results.read_json(plan.folder / "best.json")
        done = all(v.fresh for run in plan.runs if run not in plan.failed for v in plan.verdict(run)[:2])
        return text.get("best") or {} if done and text.get("study") == plan.study else None

    def needs(self, best_json: str) -> list[str]:
        """List what `conclude` reads: the choice, its model and its test scores."""
        plan, best = self._plan, self.best()
        if not best:
            return [best_json]
        model = f"{plan.results}/{best['runs'][0]}/{plan.config.model.rstrip('/')}"
        files = [
            f"{plan.results}/{run}/{name}" for run in self.to_test(best) for name in (TEST, RECORD["test"])
        ]
        return [best_json, model, *files]

    def options(self) -> list[str]:
        """Return what `conclude` is called with."""
        plan, best = self._plan, self.best()
        options = ["--results", plan.results, "--best", f"{plan.results}/best.json"]
        options += ["--model", plan.config.model.rstrip("/"), "--copy", self.outputs["best"]]
        if self.tests:
            options += ["--test", self.outputs["test"], "--ledger", f"{plan.results}/test-ledger.csv"]
            options += ["--confirmed"] * bool(plan.config.confirm)
            options += ["--runs", *self.to_test(best)]
        return options

    def keep_models(self) -> None:
        """Remove the models of all other combinations where that is asked for and the choice is concluded."""
        plan, best = self._plan, self.best()
        if plan.config.keep_models == "all" or not best or not all(map(_there, self.outputs.values())):
            return
        for run in plan.runs:
            if run not in best["runs"] and run not in plan.kept:
                _remove(plan.folder / run / plan.config.model.rstrip("/"))

    def withdraw(self) -> None:
        """Remove the choice and what was concluded from it, but for the ledger."""
        drawn = ("plots", "tensorboard", "study.html")
        for name in ("summary.csv", "effects.csv", "best.json", TEST, "best", *drawn):
            _remove(self._plan.folder / name)


def _there(path: str) -> bool:
    return os.path.lexists(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
