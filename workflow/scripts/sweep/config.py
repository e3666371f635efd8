"""Read, check and hold `config.yaml`.

Every complaint names the key, the value and the remedy, and comes before anything runs.
"""

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from sweep import naming
from sweep.errors import SweepError
from sweep.naming import Value
from sweep.space import Random, Space
from sweep.yamlfile import read_yaml

SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "config.schema.yaml"
PLACEHOLDERS = {
    "train": ("flags", "seed", "data", "model", "history", "state"),
    "eval": ("flags", "seed", "data", "model", "split", "metrics"),
}
# Names of what else lies in a run's folder.
TAKEN = (
    "record.json",
    "evaluation.json",
    "metrics.json",
    "test-record.json",
    "test.json",
    "history.csv",
    "attempts.jsonl",
    "logs",
    "state",
)
NEEDED = {"train": ("flags", "model"), "eval": ("model", "metrics")}
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}|[{}]")


@dataclass(frozen=True)
class Config:
    """A checked `config.yaml`; see the schema for what each key means."""

    train: tuple[str, ...]
    eval: tuple[str, ...]
    data: tuple[str, ...]
    model: str
    results: str
    fixed: dict[str, Value]
    files: tuple[str, ...]
    space: Space
    seeds: tuple[int, ...]
    metric: str
    mode: str
    gpus_per_run: float | str
    threads: int
    time_limit: float | None = None
    grace_time: float = 30.0
    warm: bool = True
    confirm: int = 0
    keep_models: str = "all"
    failures: str = "retry"
    report: bool = True
    resources: Mapping[str, int | str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_config(path: Path, overrides: Mapping[str, object], check: bool = True) -> Config:
    """Read a config file.

    Args:
        path: the file.
        overrides: top-level scalars that replace the file's (`--config key=value`).
        check: check it against the schema; a cluster job's process, which reads a config that the main
            process has checked, can do without.

    Raises:
        SweepError: with every mistake found, one per line.
    """
    document, warnings = read_yaml(path)
    if not isinstance(document, dict):
        raise SweepError(f"{path}: holds no keys; it needs at least train, eval, seeds and grid")
    for key, value in overrides.items():
        if isinstance(value, dict | list):
            raise SweepError(f"--config {key}=…: only single values can be set there; edit {path}")
        # Snakemake knows True and False only.
        document[key] = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    try:
        if check:
            _check_schema(document)
        return _build(document, warnings)
    except SweepError as error:
        raise SweepError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None


def fill(words: Iterable[str], values: Mapping[str, list[str]]) -> list[str]:
    """Fill a command's placeholders.

    A word that is one placeholder becomes as many words as its value has; inside a longer word the value
    is a single one. `{{` and `}}` stay as they are: `launch` has placeholders of its own to fill.
    """
    filled = []
    for word in words:
        match = _PLACEHOLDER.fullmatch(word)
        if match and match[1]:
            filled += values[match[1]]
        else:
            filled.append(_PLACEHOLDER.sub(lambda m: values[m[1]][0] if m[1] else m[0], word))
    return filled


def placeholders(words: Iterable[str]) -> set[str]:
    """Name the placeholders that a command uses."""
    return {m[1] for word in words for m in _PLACEHOLDER.finditer(word) if m[1]}


def _check_schema(document: dict) -> None:
    import jsonschema  # in the main process only: it costs a cluster job's process a tenth of a second

    schema, _ = read_yaml(SCHEMA)
    base = jsonschema.Draft202012Validator
    # JSON Schema takes 1.0 for an integer; a seed of 1.0 would make another path than 1.
    whole = base.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    )
    validator = jsonschema.validators.extend(base, type_checker=whole)(schema)
    errors = sorted(validator.iter_errors(document), key=lambda e: [str(p) for p in e.absolute_path])
    problems = [problem for error in errors for problem in _explain(error, schema)]
    if problems:
        raise SweepError("\n".join(dict.fromkeys(problems)))


def _explain(error, schema: dict) -> list[str]:
    """Word one schema violation for the user."""
    where = ".".join(map(str, error.absolute_path))
    described = schema["properties"].get(error.absolute_path[0], {}) if error.absolute_path else {}
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        problems = []
        for key in error.instance:
            if key not in known:
                close = get_close_matches(key, known, 1)
                remedy = f"did you mean '{close[0]}'?" if close else f"known keys: {', '.join(known)}"
                problems.append(f"{'.'.join(filter(None, [where, key]))}: no such key; {remedy}")
        return problems
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        key = ".".join(filter(None, [where, missing]))
        about = schema["properties"].get(missing, {}).get("examples")
        return [f"{key}: is missing; add it" + (f", for example {missing}: {about[0]!r}" if about else "")]
    if error.validator == "anyOf" and not error.absolute_path:
        return ["grid: is missing; give at least one of grid, zip and random"]
    value = repr(error.instance)
    value = value if len(value) < 80 else value[:77] + "…"
    described = error.schema if "description" in error.schema else described
    about = re.split(r"(?<=[.;])\s", described.get("description", "see docs/config.md"))[0].rstrip(".;")
    example = described.get("examples") or ([described["default"]] if "default" in described else [])
    remedy = f"for example {example[0]!r}" if example else error.message
    if not about[1:2].isupper():
        about = about[0].lower() + about[1:]
    return [f"{where}: {value} is not taken; {about} ({remedy})"]


def _build(document: dict, warnings: list[str]) -> Config:
    warnings = list(warnings)
    commands = {step: _command(step, document[step]) for step in ("train", "eval")}
    data = document.get("data") or []
    data = (data,) if isinstance(data, str) else tuple(data)
    fixed = _values("fixed", document.get("fixed") or {})
    defaults = _values("defaults", document.get("defaults") or {})
    space = _space(document, defaults, warnings)
    varied = _names(space)
    names = {**dict.fromkeys(varied), **fixed}
    for name in fixed:
        if name in varied:
            raise SweepError(f"fixed.{name}: is varied as well; keep it in one place")
    for step, words in commands.items():
        _check_clashes(step, words, names, space, fixed)
        if "data" in placeholders(words) and not data:
            raise SweepError(f"{step}: uses {{data}}, but there is no data; add the key data")
    for name in defaults:
        declared = {n for axes in [*space.grids, *space.zips] for n in axes} | {*fixed}
        declared |= set(space.random.ranges if space.random else ())
        if name not in declared and (close := get_close_matches(name, declared, 1)):
            warnings.append(f"defaults.{name}: is varied nowhere; did you mean '{close[0]}'?")
    files = tuple(document.get("files") or ())
    for name in files:
        if name not in names:
            raise SweepError(
                f"files: '{name}' is no hyperparameter of this study; there are: {', '.join(sorted(names))}"
            )
    if "seed" not in placeholders(commands["train"]) and _seeds(document["seeds"]) != (0,):
        warnings.append("train: has no {seed}, so the replicates differ only by chance; add --seed {seed}")
    model = (document.get("model") or "model.keras").rstrip("/")
    if model in TAKEN:
        raise SweepError(
            f"model: '{model}' is what the workflow calls a file of its own; choose another name"
        )
    select = document.get("select") or {}
    gpus = document.get("gpus_per_run", 1)
    if isinstance(gpus, float) and gpus > 1 and not gpus.is_integer():
        raise SweepError(f"gpus_per_run: {gpus} is neither a share of one GPU nor whole ones; round it")
    if isinstance(gpus, float) and 0 < gpus < 0.01:
        raise SweepError(f"gpus_per_run: {gpus} of a GPU is too small a share; the least is 0.01")
    limit = document.get("time_limit")
    confirm = document.get("confirm", 0)
    if confirm and "split" not in placeholders(commands["eval"]):
        raise SweepError(
            "confirm: needs a test score, but eval has no {split}; add --split {split}, or remove confirm"
        )
    return Config(
        train=commands["train"],
        eval=commands["eval"],
        data=data,
        model=document.get("model") or "model.keras",
        results=(document.get("results") or "results").rstrip("/") or "/",
        fixed=fixed,
        files=files,
        space=space,
        seeds=_seeds(document["seeds"]),
        metric=select.get("metric", "accuracy"),
        mode=select.get("mode", "max"),
        gpus_per_run=gpus,
        threads=document.get("threads", 1),
        time_limit=None if limit is None else _seconds(limit),
        grace_time=_seconds(document.get("grace_time", "30s")),
        warm=document.get("warm", True),
        confirm=confirm,
        keep_models=document.get("keep_models", "all"),
        failures=document.get("failures", "retry"),
        report=document.get("report", True),
        resources=_resources(document.get("resources") or {}),
        warnings=tuple(warnings),
    )


def _resources(section: Mapping) -> dict[str, int | str]:
    """Read what a cluster's job is to ask for; `runtime` in minutes, as Snakemake counts it."""
    resources = dict(section)
    for name in ("gpu", "gpus", "threads"):
        if name in resources:
            key = "threads" if name == "threads" else "gpus_per_run"
            raise SweepError(f"resources.{name}: is said by {key}; remove it here")
    if "runtime" in resources:
        resources["runtime"] = math.ceil(_seconds(resources["runtime"]) / 60)
    return resources


def _seconds(value: float | str) -> float:
    """Read a duration: `90`, `90s`, `1.5m`, `2h`, `1d`."""
    if not isinstance(value, str):
        return float(value)
    return float(value[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[value[-1]]


def _command(step: str, text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise SweepError(f"{step}: {text!r} can't be split into words ({error}); mend its quotes") from None
    if not words:
        raise SweepError(f"{step}: is empty; give the command that you would type")
    known = PLACEHOLDERS[step]
    for word in words:
        if re.fullmatch(r"[0-9]*(>>?|<)&?[0-9]*|\|\|?|&&?|;", word):
            raise SweepError(
                f"{step}: '{word}' would be handed to the program, as no shell runs the command (what it prints is kept in "
                "its log anyway); put the line into a script, and name that"
            )
        for match in _PLACEHOLDER.finditer(word):
            if match[0] in "{}" or (match[1] and match[1] not in known):
                raise SweepError(
                    f"{step}: '{match[0]}' in '{word}' is no placeholder; there are "
                    f"{', '.join(f'{{{name}}}' for name in known)}; write {{{{ and }}}} for literal braces"
                )
            if match[1] in ("flags", "data") and word != match[0]:
                raise SweepError(f"{step}: {match[0]} must be a word of its own, not part of '{word}'")
    for name in NEEDED[step]:
        if name not in placeholders(words):
            raise SweepError(f"{step}: lacks {{{name}}}; the program must be told it to be part of a study")
    return words


def _leaves(mapping: Mapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in mapping.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _flatten(key: str, mapping: Mapping) -> dict[str, object]:
    """Turn nested mappings into dotted names: the two spellings are the same to the last byte."""
    flat: dict[str, object] = {}
    for name, value in _leaves(mapping):
        if name in flat:
            raise SweepError(f"{key}.{name}: stands here twice, dotted and nested; keep one of the two")
        if problem := naming.check_name(name):
            raise SweepError(f"{key}: {problem}")
        flat[name] = value
    return flat


def _values(key: str, mapping: Mapping) -> dict[str, Value]:
    flat = _flatten(key, mapping)
    for name, value in flat.items():
        if problem := naming.check_value(value):
            raise SweepError(f"{key}.{name}: {problem}")
    return flat


def _axes(key: str, mapping: Mapping, warnings: list[str]) -> dict[str, list[Value]]:
    """Read name → list of values; a single value stands for a list of one."""
    axes = {}
    for name, values in _flatten(key, mapping).items():
        if values is None:
            warnings.append(
                f"{key}.{name}: is null, so the program gets no --{name}; if that is not meant, list its values"
            )
        values = values if isinstance(values, list) else [values]
        if not values:
            raise SweepError(
                f"{key}.{name}: has no value; give at least one (an empty list as a value is [[]])"
            )
        seen: dict[str, Value] = {}
        for value in values:
            if problem := naming.check_value(value):
                raise SweepError(f"{key}.{name}: {problem}")
            first = seen.setdefault(naming.to_text(value), value)
            if type(first) is not type(value):
                warnings.append(
                    f"{key}.{name}: {first!r} and {value!r} are the same on the command line, so they are one run"
                )
        kinds = {type(value) for value in values}
        if bool in kinds and list in kinds:
            raise SweepError(
                f"{key}.{name}: mixes booleans with lists, which no one flag can take; split it in two"
            )
        axes[name] = values
    return axes


def _space(document: dict, defaults: dict[str, Value], warnings: list[str]) -> Space:
    grids = document.get("grid")
    grids = grids if isinstance(grids, list) else [grids or {}]
    several = len(grids) > 1
    grids = [_axes(f"grid[{i}]" if several else "grid", grid, warnings) for i, grid in enumerate(grids)]
    zips = document.get("zip")
    zips = zips if isinstance(zips, list) else [zips] if zips else []
    several = len(zips) > 1
    zips = [_axes(f"zip[{i}]" if several else "zip", table, warnings) for i, table in enumerate(zips)]
    for table in zips:
        lengths = {name: len(values) for name, values in table.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise SweepError(f"zip: lists must be of equal length, but {shown}; add or remove values")
    random = _random(document["random"]) if document.get("random") else None
    sources = [
        *((f"zip {i}", table) for i, table in enumerate(zips)),
        ("random", random.ranges if random else {}),
    ]
    for index, (where, names) in enumerate(sources):
        for other, others in [*(("grid", grid) for grid in grids), *sources[:index]]:
            for name in names:
                if name in others:
                    raise SweepError(
                        f"{where.split()[0]}.{name}: is in {other.split()[0]} as well; keep it in one place"
                    )
    exclude = [_values(f"exclude[{i}]", rule) for i, rule in enumerate(document.get("exclude") or [])]
    return Space(grids, zips, random, exclude, defaults)


def _random(section: dict) -> Random:
    ranges = {}
    for name, spec in _flatten_ranges("random.ranges", section["ranges"]).items():
        key = f"random.ranges.{name}"
        if problem := naming.check_name(name):
            raise SweepError(f"random.ranges: {problem}")
        (kind, arguments), *more = spec.items()
        if more or not isinstance(arguments, list):
            raise SweepError(f"{key}: {spec!r} is no range; write for example {{loguniform: [0.001, 0.1]}}")
        if kind == "choice":
            _axes(key, {"choice": arguments}, [])
        else:
            if len(arguments) != 2 or not all(map(_is_finite, arguments)) or arguments[0] >= arguments[1]:
                raise SweepError(
                    f"{key}.{kind}: {arguments!r} is no range; write [low, high], finite, with low < high"
                )
            if kind == "loguniform" and arguments[0] <= 0:
                raise SweepError(f"{key}.{kind}: {arguments!r} reaches zero; its low end must be above it")
            if kind == "int" and not all(isinstance(a, int) for a in arguments):
                raise SweepError(f"{key}.{kind}: {arguments!r} must be whole numbers; or use uniform")
        ranges[name] = (kind, arguments)
    return Random(
        section["n"], section.get("seed", 0), ranges, stratified=section.get("sampler") == "stratified"
    )


def _is_finite(value: object) -> bool:
    """Say whether a value is a number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


_KINDS = ("uniform", "loguniform", "int", "choice")


def _flatten_ranges(key: str, mapping: Mapping) -> dict[str, dict]:
    flat = {}
    for name, spec in mapping.items():
        if not isinstance(spec, dict) or not spec:
            raise SweepError(f"{key}.{name}: {spec!r} is no range; write for example {{uniform: [0, 1]}}")
        if next(iter(spec)) in _KINDS:
            flat[name] = spec
        elif all(isinstance(value, dict) for value in spec.values()):
            flat.update((f"{name}.{rest}", s) for rest, s in _flatten_ranges(f"{key}.{name}", spec).items())
        else:
            kind = next(iter(spec))
            raise SweepError(f"{key}.{name}.{kind}: is no kind of range; there are {', '.join(_KINDS)}")
    return flat


def _names(space: Space) -> set[str]:
    names = set(space.defaults)
    for axes in [*space.grids, *space.zips]:
        names.update(axes)
    return names | set(space.random.ranges if space.random else ())


def _check_clashes(
    step: str, words: tuple[str, ...], names: Iterable[str], space: Space, fixed: dict
) -> None:
    """Refuse names whose flag the command uses for something else, and lists that would swallow a word."""
    if "flags" not in placeholders(words):
        return
    options = {word.partition("=")[0][2:] for word in words if word.startswith("--") and word != "--"}
    for name in names:
        if name in options:
            raise SweepError(
                f"{name}: its flag --{name} stands in the {step} command as well; rename the hyperparameter, "
                f"or remove --{name} from {step}"
            )
    after = words[words.index("{flags}") + 1 :]
    values = [*fixed.values(), *space.defaults.values()]
    for axes in [*space.grids, *space.zips]:
        values += [value for axis in axes.values() for value in axis]
    for kind, arguments in space.random.ranges.values() if space.random else ():
        values += arguments if kind == "choice" else []
    if any(isinstance(value, list) for value in values) and after and not after[0].startswith("-"):
        raise SweepError(
            f"{step}: '{after[0]}' follows {{flags}}, so a list-valued hyperparameter would swallow it; "
            "put {flags} last, or before an option"
        )


def _seeds(seeds: int | list[int]) -> tuple[int, ...]:
    if isinstance(seeds, int):
        return tuple(range(seeds))
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise SweepError(f"seeds: {seed} stands there twice; list each seed once")
    return tuple(seeds)
