"""Say what a rule needs to run one step of a run, and which results are stale where Snakemake can't see it."""

import inspect
import os
import shlex
import traceback
from collections.abc import Iterable
from functools import lru_cache

from sweep import naming
from sweep.config import fill, placeholders
from sweep.digest import find
from sweep.errors import SweepError
from sweep.results import METRICS, PROGRAM, RECORD, TEST

HISTORY = "history.csv"
STEPS = ("train", "evaluate", "test")
SPLIT = {"evaluate": "validation", "test": "test"}
SCORES = {"evaluate": METRICS, "test": TEST}


def for_rule(method):
    """Make a method into what a rule may call.

    Snakemake takes a rule whose functions raise for one that can't make the file: if the file is there, it
    would say "Nothing to be done", whatever is stale. So a failure ends the program. And it asks for the
    signature at every call, three times: kept ready, that is a hundred times faster.
    """

    def function(*arguments, **named):
        try:
            return method(*arguments, **named)
        except SweepError as error:
            raise SystemExit(f"Snakesweep can't plan this study:\n  {error}") from None
        except Exception:
            traceback.print_exc()
            raise SystemExit(f"Snakesweep failed in {method.__qualname__}; please report this.") from None

    function.__signature__ = inspect.signature(method)
    return function


class Step:
    """What a rule needs to run one step, `train`, `evaluate` or `test`, of a run.

    Snakemake spends a third of a millisecond on every function of every job, so what is the same for all
    runs is a plain text here, and inputs that hardly any study needs are left out where it doesn't.

    Attributes:
        outputs: name → path, with the wildcard `run`.
        model: path of the model, with the wildcard (not of `train`).
        inputs: the marker, where a stale run needs it; and the choice, for `test`.
        command, fixed, code, data: what a result depends on besides its path, each beginning with its own
            name: Snakemake compares params as a set, without their names.
        log: the log of the last attempt.
        launch: `launch` and what it gets. As it uses `output`, Snakemake does not compare it.
    """

    def __init__(self, plan, name: str, words: tuple[str, ...]):
        self._plan = plan
        self.name = name
        self.words = words
        self._index = STEPS.index(name)
        self._words = [
            str(find(word, plan.roots[1:]) or word) if not os.path.exists(word) else word for word in words
        ]
        used = self._used = placeholders(words)
        model = plan.config.model.rstrip("/")
        if name == "train":
            self._places = {
                "model": [f"{{write:{plan.config.model}}}"],
                "history": [f"{{write:{HISTORY}}}"],
                "state": ["{keep:state}"],
            }
            files = {"model": model} | ({"history": HISTORY} if "history" in used else {})
        else:
            self._places = {
                "model": [f"{{read:{model}}}"],
                "metrics": [f"{{metrics:{SCORES[name]}}}"],
                "split": [SPLIT[name]],
            }
            files = {"metrics": SCORES[name]}
        self._places["data"] = _literal(str(find(path, plan.roots) or path) for path in plan.config.data)
        files["record"] = RECORD[name]
        self.outputs = {key: f"{plan.results}/{{run}}/{file}" for key, file in files.items()}
        self.log = f"{plan.results}/{{run}}/logs/{name}.log"
        if name == "train" and plan.config.model.endswith("/"):
            from snakemake.io import directory

            self.outputs["model"] = directory(self.outputs["model"])
        config = plan.config
        self._limits = [f"--gpus={config.gpus_per_run}", f"--grace={config.grace_time:g}"]
        if config.time_limit is not None:
            self._limits.append(f"--time-limit={config.time_limit:g}")
        if config.warm:
            self._limits.append("--warm")
        if config.gpus_per_run == "auto":
            self._limits.append(f"--peaks={plan.private / 'peaks.jsonl'}")
        self._made_with = {
            "command": shlex.join(words),
            "fixed": shlex.join(naming.to_flags(plan.config.fixed.items())) if "flags" in used else "",
        }

    def ready(self) -> None:
        """Fill in what depends on the plan's digests and, in the main process, on its verdicts."""
        plan = self._plan
        texts = self._made_with | {"code": plan.known["code"][PROGRAM[self.name]], "data": plan.known["data"]}
        self.command, self.fixed, self.code, self.data = (
            # Braces would be wildcards to Snakemake.
            f"{part} {text}".replace("{", "<").replace("}", ">")
            for part, text in texts.items()
        )
        if plan.accepted.any:
            self.code = for_rule(self._code_of)
        if plan.config.files:
            self.data = for_rule(self._data_of)
        self.launch = for_rule(self._launch_of)
        self.inputs = [for_rule(self._marker_of)] if plan.marked or plan.stale or self.name == "test" else []
        if self.name == "test" and plan.main:  # in a job's process it would bring in all runs of the study
            from snakemake.io import ancient

            self.inputs.append(ancient(f"{plan.results}/best.json"))
        self.model = f"{plan.results}/{{run}}/{plan.config.model.rstrip('/')}"
        if plan.copied or self.name == "test":
            self.model = for_rule(self._model_of)

    def made_with(self, run: str) -> dict[str, str]:
        """Return what a result depends on, part by part, as it is now."""
        known = self._plan.known
        now = {"code": known["code"][PROGRAM[self.name]], "data": self._data(run)}
        return {"run": self._plan.pairs(run)} | self._made_with | now

    def _data(self, run: str) -> str:
        """Return the digests of the data and of the files that a run's hyperparameters name."""
        plan = self._plan
        if not plan.config.files:
            return plan.known["data"]
        pairs = {pair.partition("=")[0]: pair for pair in plan.pairs(run).split("/")}
        fixed = plan.config.fixed | {n: v for n, v in plan.omitted.items() if n not in pairs}
        pairs |= {name: naming.to_pair(name, value) for name, value in fixed.items()}
        digests = [plan.file_digest(pairs[name]) for name in plan.config.files if name in pairs]
        return " ".join(filter(None, [plan.known["data"], *digests]))

    def _code_of(self, wildcards) -> str:
        # A run whose code was accepted keeps the digests that it was made with.
        code = self._plan.verdict(wildcards.run)[self._index].code
        return f"code {code or self._plan.known['code'][PROGRAM[self.name]]}"

    def _data_of(self, wildcards) -> str:
        return f"data {self._data(wildcards.run)}"

    def _launch_of(self, wildcards, output) -> str:
        # One quoted text, not a list: Snakemake looks at every item of every job several times.
        plan = self._plan
        if self.name == "test":
            plan.choice.check(wildcards.run)
        values = self._values(wildcards.run) | self._places
        words = [
            "-S",  # it needs no installed package, and what they cost at its start
            str(plan.scripts / "launch" / "__main__.py"),
            self.name,
            f"{plan.results}/{wildcards.run}/{RECORD[self.name]}",
            f"--threads={plan.threads}",
            *self._limits,
            "--made-with",
            *(f"{part} {text}" for part, text in self.made_with(wildcards.run).items()),
            "--",
            *fill(self._words, values),
        ]
        return " ".join(map(_quote, words))

    def _values(self, run: str) -> dict[str, list[str]]:
        """Return what fills the placeholders `{flags}` and `{seed}`."""
        plan = self._plan
        *pairs, seed = plan.pairs(run).split("/")
        values = {"seed": [seed.removeprefix("seed=")]}
        if "flags" in self._used:
            flags = plan.omitted | naming.read_pairs(pairs) | plan.config.fixed
            values["flags"] = _literal(naming.to_flags(flags.items()))
        return values

    def typed(self, run: str) -> str:
        """Return the command of a run's training as a person would type it, with outputs in the working directory."""
        model = self._plan.config.model.rstrip("/")
        places = {"model": [model], "history": [HISTORY], "state": ["state"], "data": self._places["data"]}
        words = fill(self._words, self._values(run) | places)
        return shlex.join(word.replace("{{", "{").replace("}}", "}") for word in words)

    def _marker_of(self, wildcards):
        """Make Snakemake see a stale run that it would take for finished."""
        run, plan = wildcards.run, self._plan
        key = f"{self.name} {run}"
        newer = False
        if plan.main and plan.verdict(run)[self._index].changed:
            from snakemake.io import IOFile

            record = IOFile(f"{plan.results}/{run}/{RECORD[self.name]}")
            known = plan.workflow.persistence.params(record)
            newer = known is None or set(map(repr, self._compared(wildcards))) <= set(known)
        if newer:
            plan.marked.add(key)
        # A run made again because of the marker has it among its inputs for good: to take it away would be
        # a change of inputs to Snakemake.
        return plan.marker(newer) if key in plan.marked else []

    def _compared(self, wildcards) -> list[str]:
        params = (self.command, self.fixed, self.code, self.data)
        return [param(wildcards) if callable(param) else param for param in params]

    def _model_of(self, wildcards):
        """Name the model to evaluate; its age does not matter where the records say that it was evaluated."""
        from snakemake.io import ancient

        plan = self._plan
        path = f"{plan.results}/{wildcards.run}/{plan.config.model.rstrip('/')}"
        unchanged = wildcards.run in plan.copied
        if self.name == "test" and plan.main:
            train, _, tested = plan.verdict(wildcards.run)
            unchanged = train.fresh and tested.fresh
        return ancient(path) if unchanged else path


_quote = lru_cache(shlex.quote)  # most words of a study's commands are the same


def _literal(words: Iterable[str]) -> list[str]:
    """Double the braces in a user's words: `launch` has places of its own to fill."""
    return [word.replace("{", "{{").replace("}", "}}") for word in words]
