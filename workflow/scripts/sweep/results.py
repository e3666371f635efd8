"""Know what a results folder holds: which runs are there, and whether they are what the config asks for.

A run's folder judges itself: `record.json` (written by `train`) and `evaluation.json` (by `evaluate`) hold
what the run was made with, part by part, so nothing here depends on Snakemake's own memory.
"""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from sweep import naming
from sweep.errors import SweepError
from sweep.naming import Value

RECORD = {"train": "record.json", "evaluate": "evaluation.json"}
METRICS = "metrics.json"
ATTEMPTS = "attempts.jsonl"
PRIVATE = ".sweep"  # what the workflow keeps for itself in the results folder

MadeWith = dict[str, str]


@dataclass(frozen=True)
class Verdict:
    """What one step of a run has left.

    Attributes:
        there: whether there is a record.
        changed: what differs from what would be used now, as (part, before, now).
        code: the code it was made with, where that counts as equal to the code as it is now.
    """

    there: bool = False
    changed: tuple[tuple[str, str, str], ...] = ()
    code: str | None = None

    @property
    def fresh(self) -> bool:
        """Whether the result is there and what the config asks for."""
        return self.there and not self.changed


MISSING = Verdict()


class Accepted:
    """Classes of program code that count as equal, declared by `snakemake accept`.

    Kept in `accepted.yaml`: a list of {step, code: [digests, …]}.
    """

    def __init__(self, results: Path):
        path = results / "accepted.yaml"
        try:
            classes = yaml.safe_load(path.read_text()) or []
            self._classes = [(item["step"], frozenset(item["code"])) for item in classes]
        except FileNotFoundError:
            self._classes = []
        except (OSError, yaml.YAMLError, TypeError, KeyError) as error:
            raise SweepError(f"{path}: can't be read ({error}); mend it, or remove it") from None

    def equal(self, step: str, one: str, other: str) -> bool:
        """Say whether two versions of a step's code count as equal."""
        return one == other or any(step == s and {one, other} <= codes for s, codes in self._classes)


def judge(folder: Path, step: str, now: MadeWith, accepted: Accepted) -> tuple[Verdict, dict]:
    """Compare a step's record with what would be used now.

    Returns:
        The verdict, and the record (empty if there is none).
    """
    try:
        with open(folder / RECORD[step], encoding="utf-8") as file:
            record = json.load(file)
        before = record["made_with"]
    except FileNotFoundError:
        return MISSING, {}
    except (OSError, ValueError, KeyError, TypeError):
        return Verdict(True, (("record", "unreadable", "readable"),)), {}
    if before == now:
        return Verdict(True, code=now["code"]), record
    code = before.get("code", "")
    equal = accepted.equal(step, code, now["code"])
    changed = tuple(
        (part, before.get(part, ""), text)
        for part, text in now.items()
        if before.get(part) != text and not (part == "code" and equal)
    )
    return Verdict(True, changed, code if equal else None), record


def describe(part: str, before: str, now: str) -> str:
    """Word one change for the user: which file or flag, not two digests."""
    old, new = (dict(_entries(text)) for text in (before, now))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if part == "fixed":
        return ", ".join(f"{n} {old.get(n, 'unset')} → {new.get(n, 'unset')}" for n in names)
    if part == "command":
        return "the command changed"
    if part == "run":
        return f"made for {before or 'another run'}"
    if part in ("model", "record"):
        return "evaluated another model" if part == "model" else "its record can't be read"
    return f"{', '.join(names)} changed"


def _entries(text: str) -> Iterator[tuple[str, str]]:
    for word in text.split():
        name, _, value = word.removeprefix("--").partition("=")
        yield name, value or "set"


def existing_runs(results: Path) -> Iterator[str]:
    """Yield the paths of all runs in a results folder, whether they belong to the study or not."""
    waiting = [""]
    while waiting:
        place = waiting.pop()
        try:
            entries = list(os.scandir(results / place))
        except OSError:
            continue
        for entry in entries:
            if "=" in entry.name and entry.is_dir():
                path = f"{place}{entry.name}"
                if entry.name.startswith("seed="):
                    yield path
                else:
                    waiting.append(f"{path}/")


def read_defaults(results: Path) -> dict[str, Value]:
    """Read what the absence of a hyperparameter in a path means."""
    path = results / "defaults.yaml"
    try:
        defaults = yaml.safe_load(path.read_text()) or {}
    except FileNotFoundError:
        return {}
    except (OSError, yaml.YAMLError) as error:
        raise SweepError(f"{path}: can't be read ({error}); restore it: it says what paths mean") from None
    if not isinstance(defaults, dict) or any(map(naming.check_value, defaults.values())):
        raise SweepError(f"{path}: is no mapping from names to values; restore it: it says what paths mean")
    return defaults


def write_defaults(results: Path, defaults: Mapping[str, Value]) -> None:
    """Write down, once, what the absence of a hyperparameter in a path means."""
    text = (
        "# What a path in this folder means where it does not name a hyperparameter. Written when a default\n"
        "# was first declared; editing it would give finished runs another meaning.\n"
    )
    # JSON is YAML: every value reads back with its type, on every version of YAML.
    text += "".join(f"{json.dumps(name)}: {json.dumps(value)}\n" for name, value in sorted(defaults.items()))
    replace(results / "defaults.yaml", text)


def replace(path: Path, text: str) -> None:
    """Write a file beside and rename, so that nobody ever reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def read_json(path: Path) -> dict:
    """Read a JSON object; an empty one where there is none to read."""
    with suppress(OSError, ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
    return {}


def last_attempt(folder: Path) -> dict:
    """Return the record of a run's last attempt, or an empty one."""
    with suppress(OSError, ValueError, IndexError):
        lines = (folder / ATTEMPTS).read_text(encoding="utf-8").splitlines()
        return json.loads(lines[-1])
    return {}


def write_table(path: Path, rows: Iterable[Mapping[str, object]], columns: list[str]) -> None:
    """Write rows as CSV: booleans as true and false, lists as JSON, nothing for null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    beside.replace(path)


def _cell(value: object) -> object:
    if isinstance(value, bool | list):
        return json.dumps(value)
    return value
