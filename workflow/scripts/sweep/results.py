"""Know what a results folder holds: which runs are there, and whether they are what the config asks for.

A run's folder judges itself: `record.json` (written by `train`) and `evaluation.json` (by `evaluate`) hold
what the run was made with, part by part, so nothing here depends on Snakemake's own memory.
"""

import csv
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from sweep import naming
from sweep.errors import SweepError
from sweep.naming import Value

RECORD = {"train": "record.json", "evaluate": "evaluation.json", "test": "test-record.json"}
PROGRAM = {"train": "train", "evaluate": "evaluate", "test": "evaluate"}  # whose code a step's is
METRICS = "metrics.json"
TEST = "test.json"
ATTEMPTS = "attempts.jsonl"
OWN = (
    "failed",
    "bad output",
    "not started",
    "crashed",
    "timed out",
    "killed for memory",
    "out of GPU memory",
)
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

    @property
    def any(self) -> bool:
        """Whether anything was accepted."""
        return bool(self._classes)

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
        before = dict(record["made_with"])
    except FileNotFoundError:
        return MISSING, {}
    except (OSError, ValueError, KeyError, TypeError):
        return Verdict(True, (("record", "unreadable", "readable"),)), {}
    if before == now:
        return Verdict(True, code=now["code"]), record
    code = before.get("code", "")
    equal = accepted.equal(PROGRAM[step], code, now["code"])
    changed = tuple(
        (part, before.get(part, ""), text)
        for part, text in now.items()
        if before.get(part) != text and not (part == "code" and equal)
    )
    return Verdict(True, changed, code if equal else None), record


def describe(part: str, before: str, now: str) -> str:
    """Word one change for the user: which file or flag, not two digests."""
    old, new = (_flags(text) if part == "fixed" else dict(entries(text)) for text in (before, now))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if part == "fixed":
        return ", ".join(f"{n} {old.get(n, 'unset')} → {new.get(n, 'unset')}" for n in names)
    if part == "command":
        return "the command changed"
    if part == "run":
        return f"made for {before or 'another run'}"
    if part in ("model", "record"):
        return "evaluated another model" if part == "model" else f"its record is {before}"
    return f"{', '.join(names) or part} changed"


def entries(text: str) -> list[tuple[str, str]]:
    """Split `name=digest name=digest`; names may have spaces, and a digest in doubt ends in `?`."""
    return re.findall(r"(\S.*?)=([0-9a-f]+\??)(?: |$)", text)


def _flags(text: str) -> dict[str, str]:
    """Read flags back, as they were written for a record: name → value, on or off."""
    flags: dict[str, list[str]] = {}
    items: list[str] = []
    for word in shlex.split(text):
        if not word.startswith("--"):  # a list's next item
            items.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        off = ["off"] if name.startswith("no-") else []
        items = flags[name.removeprefix("no-")] = [value] if equals else off
    return {name: " ".join(items) if items else "on" for name, items in flags.items()}


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
    text += "".join(f"{json.dumps(name)}: {_to_yaml(value)}\n" for name, value in sorted(defaults.items()))
    replace(results / "defaults.yaml", text)


def _to_yaml(value: Value) -> str:
    """Write a value so that it reads back with its type, on every version of YAML.

    That is JSON, but for three things: YAML 1.1 takes a float without a point for a text, knows no surrogate
    pairs, and no plain DEL.
    """
    if isinstance(value, list):
        return f"[{', '.join(map(_to_yaml, value))}]"
    text = json.dumps(value)
    if isinstance(value, float):
        return text if "." in text else text.replace("e", ".0e")
    text = re.sub(
        r"\\ud([89ab][0-9a-f]{2})\\ud([c-f][0-9a-f]{2})",
        lambda m: f"\\U{0x10000 + ((int(m[1], 16) - 0x800) << 10) + int(m[2], 16) - 0xC00:08x}",
        text,
    )
    return text.replace("\x7f", "\\x7f")


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


def read_list(path: Path) -> list[str]:
    """Read a JSON list; an empty one where there is none to read."""
    with suppress(OSError, ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, list):
            return value
    return []


def last_attempt(folder: Path) -> dict:
    """Return the record of a run's last attempt, or an empty one."""
    with suppress(OSError, ValueError, IndexError):
        lines = (folder / ATTEMPTS).read_text(encoding="utf-8").splitlines()
        attempt = json.loads(lines[-1])
        return attempt if isinstance(attempt, dict) else {}
    return {}


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log, reading no more of it than needed."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 200 * count))
        return file.read().decode(errors="replace").splitlines()[-count:]
    return []


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
