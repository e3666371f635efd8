"""Plan a study: what the Snakefile asks for, in the order in which it asks."""

import hashlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

from sweep import naming, results, table
from sweep.choice import Choice
from sweep.config import Config, read_config
from sweep.digest import Memo, digest_data, digest_program, find, missing_program
from sweep.errors import SweepError
from sweep.naming import Value
from sweep.results import METRICS, MISSING, PRIVATE, PROGRAM, RECORD, TEST, Accepted, Verdict
from sweep.space import Combination, expand
from sweep.step import SCORES, STEPS, Step, for_rule


class Plan:
    """One config's study, as the Snakefile sees it.

    In the main process it is checked, expanded and compared with what the results folder holds. In a
    cluster job's process it only turns the path of that job into flags, from what the main process wrote.

    Attributes:
        results: the results folder, as text.
        threads: CPU threads of a run.
        gpus_per_run: what a run gets of the GPUs.
        resources: what else a cluster's job asks for.
        warm: the commands that are to start warm.
        scripts: the folder of the programs.
        summarize, conclude, accept: the programs of these rules, and what they get.
        train, evaluate, test: what the rules of these names need.
        choice: what follows from the choice of the best combination.
        conclusions, pages: what a complete study has, and what is drawn of it.
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
        self.resources = dict(self.config.resources)
        if (memory := self.resources.get("mem_mb")) is not None:
            # More on every further attempt: the first may have been killed for memory.
            self.resources["mem_mb"] = lambda wildcards, attempt: memory * 2 ** (attempt - 1)
        commands = {"train": self.config.train, "evaluate": self.config.eval, "test": self.config.eval}
        self.warm = commands if self.config.warm else {}
        self.scripts = home / "workflow" / "scripts"
        self.omitted = results.read_defaults(self.folder)
        self.verdicts: dict[str, tuple[Verdict, ...]] = {}
        self.choice = Choice(self)
        tables = [f"{self.results}/{name}" for name in ("summary.csv", "effects.csv", "best.json")]
        self.conclusions = [
            *tables,
            *map(str, self.choice.outputs.values()),
        ]  # without their flags: inputs have none
        pages = ("plots", "tensorboard", "study.html")
        self.pages = [f"{self.results}/{name}" for name in pages] if self.config.report else []
        self.steps = [Step(self, name, words) for name, words in commands.items()]
        self.train, self.evaluate, self.test = self.steps
        self.summary_marker = for_rule(self._summary_marker)
        self.select = ["--metric", self.config.metric, "--mode", self.config.mode]
        self.summarize = for_rule(self._summarize)
        self.accept = for_rule(self._accept)
        self.conclude = for_rule(self._conclude)
        self.accepted = Accepted(self.folder)
        self.marked = set(results.read_list(self.private / "marked.json"))
        self.copied: set[str] = set()  # evaluated runs whose model looks newer: copying gives any times
        if self.main:
            self._prepare()
        else:
            self.known = json.loads((self.private / "jobs.json").read_text())
        for step in self.steps:
            step.ready()

    def _read_config(self, workflow) -> Config:
        named = [Path(str(path)) for path in workflow.overwrite_configfiles]
        if len(named) > 1:
            raise SweepError("--configfile: names several files; a study has one config")
        path = named[0] if named else find("config.yaml", self.roots)
        if path is None:
            raise SweepError("config.yaml: there is none here; write one, or name another with --configfile")
        near = Path(os.path.relpath(path))  # --configfile is made absolute
        self.config_path = path if near.parts[0] == ".." else near
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
        confirming = [run for run in self.choice.fresh_runs() if run in existing]
        for run in [*(run for run in self.runs if run in existing), *confirming]:
            self.verdicts[run] = self.judge(run)
        self.failed = self._count_failed() if config.failures == "count" else {}
        targets = list(self._targets(sys.argv[1:]))
        self.asked = [run for run, _ in targets if run not in self.runs]
        for run in self.asked:
            self._check_path(run)
            self.verdicts[run] = self.judge(run)
        self.kept = {run for run, _ in targets}  # models that are asked for
        for run, file in targets:
            if file.startswith("test"):
                self.choice.check_asked(run)
        print(
            table.opening(self, existing, [*config.warnings, *notes, *self._notes()]),
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

    def _notes(self) -> Iterator[str]:
        """Say what may not be what the user wants."""
        if note := self._check_case():
            yield note
        everywhere = (
            set.intersection(*(set(c.names) for c in self.combinations)) if self.combinations else set()
        )
        for run in self.asked:
            names = {pair.partition("=")[0] for pair in self.pairs(run).split("/")}
            if missing := sorted(everywhere - names - set(self.omitted)):
                yield f"{self.results}/{run} has no {', '.join(missing)}, which every combination of the study has"
        before = results.read_json(self.private / "about.json").get("config")
        if before and before != str(self.config_path):
            yield (
                f"{self.results}/ was last used by {before}; runs are kept side by side, but there is one choice "
                "(summary.csv, best.json, …) at a time; for one each give a config its own `results:`"
            )

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

    def _count_failed(self) -> dict[str, str]:
        """Find the runs that failed by their own doing, just as they are asked for now: run → reason."""
        failed = {}
        for run, (train, evaluation, _) in self.verdicts.items():
            if run in self.runs and not (train.fresh and evaluation.fresh):
                attempt = results.last_attempt(self.folder / run)
                step = self.evaluate if attempt.get("step") == "evaluate" else self.train
                if attempt.get("reason") in results.OWN and attempt["made_with"] == step.made_with(run):
                    failed[run] = attempt["reason"]
        return failed

    def judge(self, run: str) -> tuple[Verdict, ...]:
        """Compare a run's training and its scores, as they lie there, with what the config asks for."""
        folder = self.folder / run
        train, record = results.judge(folder, "train", self.train.made_with(run), self.accepted)
        if not train.there:
            if (folder / self.config.model).exists():  # else it would be evaluated, whatever made it
                train = Verdict(True, (("record", "missing", "there"),))
            return train, MISSING, MISSING
        if not record:
            return train, MISSING, MISSING
        evaluation = self._judge_scores(run, self.evaluate, record)
        if train.fresh and evaluation.fresh:
            with suppress(OSError):
                model = folder / self.config.model.rstrip("/")
                if model.stat().st_mtime > (folder / METRICS).stat().st_mtime:
                    self.copied.add(run)
        tested = self._judge_scores(run, self.test, record) if (folder / TEST).exists() else MISSING
        return train, evaluation, tested

    def _judge_scores(self, run: str, step: Step, trained: dict) -> Verdict:
        folder = self.folder / run
        verdict, record = results.judge(folder, step.name, step.made_with(run), self.accepted)
        if verdict.there and not (folder / SCORES[step.name]).exists():
            return MISSING
        model = self.config.model.rstrip("/")
        used = (record.get("inputs") or {}).get(model)
        made = (trained.get("outputs") or {}).get(model)
        if verdict.fresh and used != made:
            return Verdict(True, (("model", str(used), str(made)),))
        return verdict

    def verdict(self, run: str) -> tuple[Verdict, ...]:
        """Say what a run's training, evaluation and test have left."""
        return self.verdicts.get(run, (MISSING, MISSING, MISSING))

    def _targets(self, words: list[str]) -> Iterator[tuple[str, str]]:
        """Yield the runs whose files are asked for on the command line, and the file's path in each."""
        for word in words:
            path = os.path.relpath(word) if word.startswith(("/", "./")) else word
            if path.startswith(f"{self.results}/") and "=" in path:
                pairs = path.removeprefix(f"{self.results}/").split("/")
                if (last := max(i for i, p in enumerate(pairs) if "=" in p)) == len(pairs) - 1:
                    if pairs[-1].startswith("seed="):
                        raise SweepError(
                            f"{path}: is a run's folder; ask for a file in it, as in {path}/{METRICS}"
                        )
                else:
                    yield "/".join(pairs[: last + 1]), "/".join(pairs[last + 1 :])

    def _check_path(self, run: str) -> None:
        """Refuse a path that is not the one right way to write its run, and name the right one."""
        *pairs, last = run.split("/")
        seed = last.removeprefix("seed=")
        if not last.startswith("seed=") or not seed.isdecimal():
            path = "/".join(pairs) if last.startswith("seed=") else run
            raise SweepError(
                f"{self.results}/{run}: must end in a seed, as in {self.results}/{path}/seed=0/{METRICS}"
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
            known = {n for c in self.combinations for n in c.names} | set(self.config.fixed)
            for name in sorted(set(values) - known):
                close = get_close_matches(name, known, 1)
                remedy = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(sorted(known))}"
                raise SweepError(
                    f"{self.results}/{run}: '{name}' is no hyperparameter of this study; {remedy}"
                )
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
        results.replace(self.private / "about.json", json.dumps(self._about(), indent=1) + "\n")
        self._write_marked()

    def _about(self) -> dict:
        """Say what the study is and how it was called: for those who look at its files alone."""
        config = self.config
        return {
            "metric": config.metric,
            "mode": config.mode,
            "seeds": list(config.seeds),
            "train": shlex.join(config.train),
            "eval": shlex.join(config.eval),
            "tests": self.choice.tests,
            "confirm": config.confirm,
            "config": str(self.config_path),
            "text": self.config_path.read_text(encoding="utf-8", errors="replace"),
            "call": shlex.join(["snakemake", *sys.argv[1:]]),
        }

    def _write_marked(self) -> None:
        results.replace(self.private / "marked.json", json.dumps(sorted(self.marked)))

    def end(self) -> None:
        """Write `runs.csv` and print where the study stands, well or badly ended.

        An incomplete study has no summary and no best combination: those of before are removed.
        """
        self.accepted = Accepted(self.folder)
        self._doubt_edited()
        self._write_marked()  # tests may have been marked since the start, when the choice was known
        if table.write_runs(self):
            self.choice.keep_models()
        else:
            self.choice.withdraw()
        print(table.show(self), file=sys.stderr)

    def _doubt_edited(self) -> None:
        """Mark what ran while its program was edited: nobody knows which version made it."""
        for step in self.steps:
            before = self.known["code"][PROGRAM[step.name]]
            after = ""
            with suppress(SweepError):
                after = digest_program(step.words, self.roots, Memo(Path()))
            if after == before:
                continue
            now = dict(results.entries(after))
            doubtful = " ".join(
                f"{name}={digest}" + "?" * (now.get(name) != digest)
                for name, digest in results.entries(before)
            )
            count = 0
            for run in {**self.runs, **self.verdicts}:
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
            runs = [naming.run_path(combination.path, seed) for seed in sorted(self.config.seeds)]
            yield (
                json.dumps(
                    {
                        "path": combination.path,
                        "hyperparameters": dict(zip(combination.names, combination.values, strict=True)),
                        "runs": runs,
                        "failed": [run for run in runs if run in self.failed],
                        "train": self.train.typed(runs[0]),
                    }
                )
                + "\n"
            )

    @cached_property
    def study(self) -> str:
        """Digest what the summary depends on: the runs and how to choose among them."""
        text = "\n".join([*self.runs, *self.select, *(f"failed {run}" for run in sorted(self.failed))])
        return f"study {hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @cached_property
    def metrics(self) -> list[str]:
        """List the metrics files of all runs of the study."""
        return [f"{self.results}/{run}/{METRICS}" for run in self.runs if run not in self.failed]

    @cached_property
    def unaccepted(self) -> str:
        """List, as JSON, the versions of code that finished runs were made with and that `accept` would take."""
        counts: Counter = Counter()
        for verdicts in self.verdicts.values():
            for step, verdict in zip(STEPS[:2], verdicts[:2], strict=True):
                counts.update(
                    (step, before, now)
                    for part, before, now in verdict.changed
                    if part == "code" and "?" not in before  # nobody knows what those were made with
                )
        return json.dumps([[*key, count] for key, count in sorted(counts.items())])

    # Programs' places and what a rule's identity must not hold: functions that use `output` are not compared.

    def _summarize(self, wildcards, output) -> list[str]:
        runs = str(self.private / "study.jsonl")
        return [str(self.scripts / "summarize.py"), "--runs", runs, "--results", self.results, *self.select]

    def _conclude(self, wildcards, output) -> list[str]:
        return [str(self.scripts / "conclude.py"), *self.choice.options()]

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
