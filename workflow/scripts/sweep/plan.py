"""Plan a study: what the Snakefile asks for, in the order in which it asks."""

import hashlib
import inspect
import json
import os
import shlex
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path

from sweep import naming, results, table
from sweep.config import Config, fill, placeholders, read_config
from sweep.digest import Memo, digest_data, digest_program, find, missing_program
from sweep.errors import SweepError
from sweep.naming import Value
from sweep.results import METRICS, MISSING, PRIVATE, RECORD, Accepted, Verdict
from sweep.space import Combination, expand

SPLIT = "validation"
HISTORY = "history.csv"
STEPS = ("train", "evaluate")


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


class Plan:
    """One config's study, as the Snakefile sees it.

    In the main process it is checked, expanded and compared with what the results folder holds. In a
    cluster job's process it only turns the path of that job into flags, from what the main process wrote.

    Attributes:
        results: the results folder, as text.
        threads: CPU threads of a run.
        gpus_per_run: what a run gets of the GPUs.
        warm: the commands that are to start warm.
        scripts: the folder of the programs.
        summarize, accept: the programs of these rules, and what they get.
        train, evaluate: what the two rules need.
        select: the options of `summarize`.
    """

    RUN = naming.RUN_PATTERN

    def __init__(self, workflow):
        try:
            self._build(workflow)
        except SweepError as error:
            lines = str(error).splitlines()
            raise SystemExit(
                "\n".join(["Snakesweep can't plan this study:", *(f"  {x}" for x in lines)])
            ) from None

    def _build(self, workflow) -> None:
        self.workflow = workflow
        self.main = workflow.is_main_process
        home = Path(str(workflow.current_basedir))
        # Programs, data and config are looked for here first, then beside the Snakefile.
        self.roots = [Path(), home]
        self.config = self._read_config(workflow)
        self.results = self.config.results
        self.folder = Path(self.results)
        self.private = self.folder / PRIVATE
        self.threads = self.config.threads
        self.gpus_per_run = self.config.gpus_per_run
        self.warm = (
            dict(zip(STEPS, (self.config.train, self.config.eval), strict=True)) if self.config.warm else {}
        )
        self.scripts = home / "workflow" / "scripts"
        self.omitted = results.read_defaults(self.folder)
        self.verdicts: dict[str, tuple[Verdict, Verdict]] = {}
        self.train = Step(self, "train", self.config.train)
        self.evaluate = Step(self, "evaluate", self.config.eval)
        self.summary_marker = for_rule(self._summary_marker)
        self.select = ["--metric", self.config.metric, "--mode", self.config.mode]
        self.summarize = for_rule(self._summarize)
        self.accept = for_rule(self._accept)
        self.accepted = Accepted(self.folder)
        self.marked = set(results.read_list(self.private / "marked.json"))
        self.copied: set[str] = set()  # evaluated runs whose model looks newer: copying gives any times
        if self.main:
            self._prepare()
        else:
            self.known = json.loads((self.private / "jobs.json").read_text())
        for step in (self.train, self.evaluate):
            step.ready()

    def _read_config(self, workflow) -> Config:
        named = [Path(str(path)) for path in workflow.overwrite_configfiles]
        if len(named) > 1:
            raise SweepError("--configfile: names several files; a study has one config")
        path = named[0] if named else find("config.yaml", self.roots)
        if path is None:
            raise SweepError("config.yaml: there is none here; write one, or name another with --configfile")
        return read_config(path, workflow.config_settings.config or {}, check=self.main)

    # ---- the main process: expand, digest, compare -------------------------------------------------

    def _prepare(self) -> None:
        config = self.config
        for step, words in (("train", config.train), ("eval", config.eval)):
            if problem := missing_program(words, self.roots):
                raise SweepError(f"{step}: {problem}")
        existing = set(results.existing_runs(self.folder))
        self.new_defaults = self._new_defaults(existing)
        self.omitted |= self.new_defaults
        self.combinations, notes = expand(config.space, self.omitted)
        self.runs = {
            naming.run_path(combination.path, seed): (combination, seed)
            for combination in self.combinations
            for seed in config.seeds
        }
        memo = Memo(self.private / "digests.json")
        self.known = {
            "code": {
                "train": digest_program(config.train, self.roots, memo),
                "evaluate": digest_program(config.eval, self.roots, memo),
            },
            "data": digest_data(config.data, self.roots, memo),
            "files": self._digest_files(memo),
            "folded": {c.path: c.pairs for c in self.combinations if naming.FOLD + "=" in c.path},
        }
        memo.save()
        for run in [run for run in self.runs if run in existing]:
            self.verdicts[run] = self.judge(run)
        asked = [run for run in self._targets(sys.argv[1:]) if run not in self.runs]
        for run in asked:
            self._check_path(run)
            self.verdicts[run] = self.judge(run)
        self.asked = asked
        print(
            table.opening(self, existing, [*config.warnings, *notes, *filter(None, [self._check_case()])]),
            file=sys.stderr,
        )
        self._touch_marker()

    def _new_defaults(self, existing: set[str]) -> dict:
        """Return defaults declared for the first time: from now on a path without them means this value."""
        new = {}
        for name, value in self.config.space.defaults.items():
            # A value that finished runs have in their paths goes on being written there.
            pair = naming.to_pair(name, value)
            written = any(pair in run.split("/") for run in existing)
            if name not in self.omitted and not written:
                new[name] = value
        return new

    def file_digest(self, pair: str) -> str:
        """Return the digest of the files that a hyperparameter's value names, as `name=text` says."""
        if pair not in self.known["files"]:  # an undeclared point's
            name, _, text = pair.partition("=")
            self.known["files"][pair] = self._digest_value(name, naming.from_text(text), Memo(Path()))
        return self.known["files"][pair]

    def _digest_value(self, name: str, value: Value, memo: Memo) -> str:
        if value is None:
            return ""
        paths = value if isinstance(value, list) else [value]
        return f"{name}:{digest_data(map(naming.to_word, paths), self.roots, memo, key=name)}"

    def _digest_files(self, memo: Memo) -> dict[str, str]:
        """Digest the files that hyperparameters name: `name=text` → digest."""
        digests = {}
        for combination in [*self.combinations, Combination((), (), "", "")]:
            values = dict(zip(combination.names, combination.values, strict=True)) | self.config.fixed
            for name in self.config.files:
                if name in values and (pair := naming.to_pair(name, values[name])) not in digests:
                    digests[pair] = self._digest_value(name, values[name], memo)
        return digests

    def _check_case(self) -> str | None:
        """Refuse paths that differ only in case where the file system can't tell them apart, else warn."""
        lower = Counter(combination.path.lower() for combination in self.combinations)
        if len(lower) == len(self.combinations):
            return None
        path = lower.most_common(1)[0][0]
        one, other, *_ = (c.path for c in self.combinations if c.path.lower() == path)
        place = next(p for p in [self.folder.absolute(), *self.folder.absolute().parents] if p.exists())
        with tempfile.NamedTemporaryFile(prefix="case-", dir=place) as probe:
            folds_case = Path(place, Path(probe.name).name.upper()).exists()
        text = f"{one} and {other} differ only in case"
        if folds_case:
            raise SweepError(
                f"grid: {text}, which this file system can't tell apart; rename one of the values"
            )
        return f"{text}; some file systems can't tell them apart"

    def judge(self, run: str) -> tuple[Verdict, Verdict]:
        """Compare a run's training and evaluation, as they lie there, with what the config asks for."""
        folder = self.folder / run
        train, record = results.judge(folder, "train", self.train.made_with(run), self.accepted)
        if not train.there:
            if (folder / self.config.model).exists():  # else it would be evaluated, whatever made it
                train = Verdict(True, (("record", "missing", "there"),))
            return train, MISSING
        if not record:
            return train, MISSING
        evaluation, evaluated = results.judge(folder, "evaluate", self.evaluate.made_with(run), self.accepted)
        if evaluation.there and not (folder / METRICS).exists():
            evaluation = MISSING
        model = self.config.model.rstrip("/")
        used = (evaluated.get("inputs") or {}).get(model)
        made = (record.get("outputs") or {}).get(model)
        if evaluation.fresh and used != made:
            evaluation = Verdict(True, (("model", str(used), str(made)),))
        if evaluation.fresh:
            with suppress(OSError):
                if (folder / model).stat().st_mtime > (folder / METRICS).stat().st_mtime:
                    self.copied.add(run)
        return train, evaluation

    def verdict(self, run: str) -> tuple[Verdict, Verdict]:
        """Say what a run's training and evaluation have left."""
        return self.verdicts.get(run, (MISSING, MISSING))

    def _targets(self, words: list[str]) -> Iterator[str]:
        """Yield the runs whose files are asked for on the command line."""
        for word in words:
            path = os.path.relpath(word) if word.startswith(("/", "./")) else word
            if path.startswith(f"{self.results}/") and "=" in path:
                pairs = path.removeprefix(f"{self.results}/").split("/")
                if (last := max(i for i, p in enumerate(pairs) if "=" in p)) < len(pairs) - 1:
                    yield "/".join(pairs[: last + 1])

    def _check_path(self, run: str) -> None:
        """Refuse a path that is not the one right way to write its run, and name the right one."""
        *pairs, last = run.split("/")
        seed = last.removeprefix("seed=")
        if not last.startswith("seed=") or not seed.isdecimal():
            raise SweepError(
                f"{self.results}/{run}: must end in a seed, as in {self.results}/{run}/seed=0/{METRICS}"
            )
        if int(seed) > naming.MAX_SEED:
            raise SweepError(f"{self.results}/{run}: a seed is at most {naming.MAX_SEED}")
        path = "/".join(pairs)
        if path not in self.known["folded"]:
            if any(pair.startswith(f"{naming.FOLD}=") for pair in pairs):
                raise SweepError(
                    f"{self.results}/{run}: '{naming.FOLD}=' stands for hyperparameters that this study does not "
                    "have; add the combination to the config instead"
                )
            try:
                values = naming.read_pairs(pairs)
            except SweepError as error:
                raise SweepError(f"{self.results}/{run}: {error}") from None
            for name in set(values) & set(self.config.fixed):
                raise SweepError(
                    f"{self.results}/{run}: '{name}' is fixed in this study; leave it out, or vary it instead"
                )
            right = [naming.to_pair(n, v) for n, v in sorted(values.items())]
            left_out = {naming.to_pair(n, v) for n, v in self.omitted.items()}
            path = naming.fold([pair for pair in right if pair not in left_out])
        if (right := naming.run_path(path, int(seed))) != run:
            raise SweepError(
                f"{self.results}/{run}: is not how this run is written; write {self.results}/{right}"
            )

    # ---- what the hooks call ------------------------------------------------------------------------

    def start(self) -> None:
        """Write down what jobs need to know. Called when jobs are about to run, so never in a dry run."""
        if self.new_defaults:
            results.write_defaults(self.folder, self.omitted)
        self._started = time.time()
        results.replace(self.private / "jobs.json", json.dumps(self.known))
        results.replace(self.private / "study.jsonl", "".join(self._study_lines()))
        results.replace(self.private / "marked.json", json.dumps(sorted(self.marked)))

    def end(self) -> None:
        """Write `runs.csv` and print where the study stands, well or badly ended.

        An incomplete study has no summary and no best combination: those of before are removed.
        """
        self.accepted = Accepted(self.folder)
        self._doubt_edited()
        if not table.write_runs(self):
            for name in ("summary.csv", "effects.csv", "best.json"):
                (self.folder / name).unlink(missing_ok=True)
        print(table.show(self), file=sys.stderr)

    def _doubt_edited(self) -> None:
        """Mark what ran while its program was edited: nobody knows which version made it."""
        for step in (self.train, self.evaluate):
            before = self.known["code"][step.name]
            with suppress(SweepError):
                if digest_program(step.words, self.roots, Memo(Path())) == before:
                    continue
            doubtful = " ".join(f"{word}?" for word in before.split())
            count = 0
            for run in [*self.runs, *self.asked]:
                path = self.folder / run / RECORD[step.name]
                with suppress(OSError):
                    record = results.read_json(path) if path.stat().st_mtime >= self._started else {}
                    if record.get("made_with", {}).get("code") == before:
                        record["made_with"]["code"] = doubtful
                        results.replace(path, json.dumps(record, indent=1) + "\n")
                        count += 1
            if count:
                print(
                    f"The program of {step.name} was edited while the study ran: {count} results that it made "
                    "meanwhile count for neither version, and run again.",
                    file=sys.stderr,
                )

    def _study_lines(self) -> Iterator[str]:
        for combination in self.combinations:
            yield (
                json.dumps(
                    {
                        "path": combination.path,
                        "hyperparameters": dict(zip(combination.names, combination.values, strict=True)),
                        "runs": [naming.run_path(combination.path, seed) for seed in self.config.seeds],
                    }
                )
                + "\n"
            )

    @cached_property
    def study(self) -> str:
        """Digest what the summary depends on: the runs and how to choose among them."""
        text = "\n".join([*self.runs, *self.select])
        return f"study {hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @cached_property
    def metrics(self) -> list[str]:
        """List the metrics files of all runs of the study."""
        return [f"{self.results}/{run}/{METRICS}" for run in self.runs]

    @cached_property
    def unaccepted(self) -> str:
        """List, as JSON, the versions of code that finished runs were made with and that `accept` would take."""
        counts: Counter = Counter()
        for verdicts in self.verdicts.values():
            for step, verdict in zip(STEPS, verdicts, strict=True):
                counts.update((step, before, now) for part, before, now in verdict.changed if part == "code")
        return json.dumps([[*key, count] for key, count in sorted(counts.items())])

    # Programs' places and what a rule's identity must not hold: functions that use `output` are not compared.

    def _summarize(self, wildcards, output) -> list[str]:
        runs = str(self.private / "study.jsonl")
        return [str(self.scripts / "summarize.py"), "--runs", runs, "--results", self.results, *self.select]

    def _accept(self, wildcards, output) -> list[str]:
        return [str(self.scripts / "accept.py"), f"{self.results}/accepted.yaml", self.unaccepted]

    def _summary_marker(self, wildcards) -> str:
        """Name the marker that makes `summarize` run again where only its own record knows that it must."""
        return self.marker(self._summary_is_stale)

    @cached_property
    def _summary_is_stale(self) -> bool:
        best = results.read_json(self.folder / "best.json")
        return bool(best) and best.get("study") != self.study

    # ---- staleness that Snakemake can't see -----------------------------------------------------------

    def marker(self, newer: bool) -> str:
        """Name an input that is newer than any result, or, as a rule, one whose age does not matter."""
        from snakemake.io import ancient

        path = f"{self.results}/{PRIVATE}/stale"
        return path if newer else ancient(path)

    def _touch_marker(self) -> None:
        """Make the marker newer than every stale result, with another content than last time."""
        path = self.private / "stale"
        runs = [self.folder / run for runs in self.stale.values() for run in runs]
        stale = [run / name for run in runs for name in (*RECORD.values(), self.config.model)]
        stale += [self.folder / "summary.csv"] * self._summary_is_stale
        with suppress(OSError):
            newest = max((file.stat().st_mtime for file in stale if file.exists()), default=0)
            if not path.exists() or path.stat().st_mtime <= newest:
                results.replace(path, f"{time.time_ns()}\n")

    def pairs(self, run: str) -> str:
        """Return a run's pairs and seed in full, folded or not."""
        path, slash, seed = run.rpartition("/")
        return f"{self.known['folded'].get(path, path)}{slash}{seed}" if naming.FOLD in path else run

    @cached_property
    def stale(self) -> dict[str, list[str]]:
        """Group the runs that are there but not what the config asks for by what changed."""
        groups = defaultdict(list)
        for run, verdicts in self.verdicts.items():
            for step, verdict in zip(STEPS, verdicts, strict=True):
                if verdict.changed:
                    what = "; ".join(results.describe(*change) for change in verdict.changed)
                    groups[f"{step}: {what}"].append(run)
                    break
        return groups


class Step:
    """What a rule needs to run one step, `train` or `evaluate`, of a run.

    Snakemake spends a third of a millisecond on every function of every job, so what is the same for all
    runs is a plain text here, and inputs that hardly any study needs are left out where it doesn't.

    Attributes:
        outputs: name → path, with the wildcard `run`.
        model: path of the model, with the wildcard (`evaluate` only).
        inputs: the marker, where a stale run needs it.
        command, fixed, code, data: what a result depends on besides its path, each beginning with its own
            name: Snakemake compares params as a set, without their names.
        log: the log of the last attempt.
        launch: `launch` and what it gets. As it uses `output`, Snakemake does not compare it.
    """

    def __init__(self, plan: Plan, name: str, words: tuple[str, ...]):
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
                "metrics": [f"{{metrics:{METRICS}}}"],
                "split": [SPLIT],
            }
            files = {"metrics": METRICS}
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
        texts = self._made_with | {"code": plan.known["code"][self.name], "data": plan.known["data"]}
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
        self.inputs = [for_rule(self._marker_of)] if plan.marked or plan.stale else []
        self.model = f"{plan.results}/{{run}}/{plan.config.model.rstrip('/')}"
        if plan.copied:
            self.model = for_rule(self._model_of)

    def made_with(self, run: str) -> dict[str, str]:
        """Return what a result depends on, part by part, as it is now."""
        known = self._plan.known
        now = {"code": known["code"][self.name], "data": self._data(run)}
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
        return f"code {code or self._plan.known['code'][self.name]}"

    def _data_of(self, wildcards) -> str:
        return f"data {self._data(wildcards.run)}"

    def _launch_of(self, wildcards, output) -> str:
        # One quoted text, not a list: Snakemake looks at every item of every job several times.
        plan = self._plan
        *pairs, seed = plan.pairs(wildcards.run).split("/")
        values = {"seed": [seed.removeprefix("seed=")]} | self._places
        if "flags" in self._used:
            flags = plan.omitted | naming.read_pairs(pairs) | plan.config.fixed
            values["flags"] = _literal(naming.to_flags(flags.items()))
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
        return ancient(path) if wildcards.run in plan.copied else path


_quote = lru_cache(shlex.quote)  # most words of a study's commands are the same


def _literal(words: Iterable[str]) -> list[str]:
    """Double the braces in a user's words: `launch` has places of its own to fill."""
    return [word.replace("{", "{{").replace("}", "}}") for word in words]
