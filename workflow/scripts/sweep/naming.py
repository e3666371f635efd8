"""Name a run: turn hyperparameters into a path and into flags, and read the path back.

One directory level per hyperparameter, `name=text`, sorted by name, then the seed:
`augment=true/hidden=64+64/learning_rate=0.001/seed=0`. The text of a value uses only the characters
`A-Za-z0-9._-`, the escape `~` and the list separator `+`, so it survives every file system, shell and
executor. This module is the only place that writes, splits or sorts these names.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Sequence

from sweep.errors import SweepError

Scalar = None | bool | int | float | str
Value = Scalar | list[Scalar]

RUN_PATTERN = r"(?:[^/=]+=[^/]+/)*seed=(?:0|[1-9]\d*)"
MAX_SEED = 2**32 - 1
# Executors name log folders by the joined wildcard, and file systems stop at 255 bytes a name.
MAX_RUN_BYTES = 200
MAX_PAIRS_BYTES = MAX_RUN_BYTES - len(f"/seed={MAX_SEED}")
FOLD = "more"
RESERVED = {
    "seed": "the seed is the last level of every path",
    FOLD: "it names the folded rest of long paths",
    "help": "--help prints a program's usage and runs nothing",
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_KEYWORDS = {"null": None, "true": True, "false": False}
_NUMBER = re.compile(r"[-+]?(\d+|\d+\.\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+", re.ASCII)  # what argparse takes for no option


def check_name(name: str) -> str | None:
    """Say what is wrong with a hyperparameter's name, or None."""
    if name in RESERVED:
        return f"'{name}' is reserved ({RESERVED[name]}); choose another name"
    if not _NAME.fullmatch(name):
        return (
            f"'{name}' can't be a flag; use letters, digits, '_', '-' and '.', beginning with a letter or '_'"
        )
    if name.startswith("no-"):
        return f"'{name}' reads as a switched-off '{name[3:]}'; choose another name"
    return None


def check_value(value: object) -> str | None:
    """Say why a value can't be a hyperparameter's, or None."""
    if isinstance(value, list):
        for item in value:
            if isinstance(item, list | dict):
                return f"{value!r} is nested; write a single value or a flat list"
            if problem := check_value(item):
                return problem
            word = to_word(item)
            if word.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(word):
                return (
                    f"the list item {word!r} begins with a dash, so argparse takes it for an option; "
                    "pass it as a scalar, or write the number without an exponent"
                )
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value!r} is no finite number; use a finite one, or null for 'not set'"
    if isinstance(value, str):
        if "\0" in value:
            return f"{value!r} holds a NUL character, which no command line can carry; remove it"
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{value!r} is no valid Unicode text; write its characters plainly"
        return None
    if value is None or isinstance(value, bool | int | float):
        return None
    return (
        f"{value!r} ({type(value).__name__}) can't be a value; "
        "write null, a boolean, a number, a text, or a flat list of these"
    )


def to_word(value: Scalar) -> str:
    """Write a scalar as the program is to see it: the shortest text that reads back the same."""
    if isinstance(value, str):
        return value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value).replace("e+", "e")


def to_text(value: Value) -> str:
    """Write a value as it stands in a path."""
    if isinstance(value, list):
        return "+".join(map(to_text, value)) + ("+" if len(value) < 2 else "")
    if not isinstance(value, str):
        return to_word(value)
    if not value:
        return "~"
    # A text that reads as something else, were its quotes gone, has its first character escaped:
    # "true" is not the boolean, and "1e-3" is not another spelling of 0.001.
    if value in _KEYWORDS or _respelled(value) not in (None, value):
        return _escape(value[0]) + _UNSAFE.sub(_escape, value[1:])
    return _UNSAFE.sub(_escape, value)


def from_text(text: str) -> Value:
    """Read a value back from a path. Numbers stay text: they reach the program as the same word.

    Raises:
        SweepError: the text is not the one way to write its value.
    """
    if "+" in text:
        items = text.split("+")
        if len(items) == 2 and not items[1]:
            items.pop()
        if "" in items and items != [""]:
            raise _wrong(text, text)
        value: Value = [_scalar_from_text(item) for item in items] if items != [""] else []
    else:
        value = _scalar_from_text(text)
    if to_text(value) != text:
        raise _wrong(text, value)
    return value


def to_pair(name: str, value: Value) -> str:
    """Write one directory level."""
    return f"{name}={to_text(value)}"


def to_flags(values: Iterable[tuple[str, Value]]) -> list[str]:
    """Write hyperparameters as flags, sorted by name.

    Scalars are `--name=value` (one word, so that a leading dash does no harm), booleans `--name` or
    `--no-name`, lists `--name a b`; null is no flag at all.
    """
    words = []
    for name, value in sorted(values):
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *map(to_word, value)]
        else:
            words.append(f"--{name}={to_word(value)}")
    return words


def fold(pairs: Sequence[str]) -> str:
    """Join sorted pairs into a path; the last ones become a digest where it would grow too long."""
    path = "/".join(pairs)
    if len(path) <= MAX_PAIRS_BYTES:
        return path
    rest_length = len(f"{FOLD}=") + 12
    kept = len(pairs)
    while kept and len(path) + 1 + rest_length > MAX_PAIRS_BYTES:
        kept -= 1
        path = path[: max(0, len(path) - len(pairs[kept]) - 1)]
    rest = hashlib.sha256("/".join(pairs[kept:]).encode()).hexdigest()[:12]
    return "/".join([*pairs[:kept], f"{FOLD}={rest}"])


def run_path(combination_path: str, seed: int) -> str:
    """Add the seed's level to a combination's path."""
    return f"{combination_path}/seed={seed}" if combination_path else f"seed={seed}"


def read_pairs(pairs: Iterable[str]) -> dict[str, Value]:
    """Read hyperparameters back from pairs.

    Raises:
        SweepError: a pair is not written the one right way.
    """
    values = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if problem := check_name(name):
            raise SweepError(problem)
        if name in values:
            raise SweepError(f"'{name}' is there twice")
        try:
            values[name] = from_text(text)
        except SweepError as error:
            raise SweepError(f"{name}: {error}") from None
        if problem := check_value(values[name]):
            raise SweepError(f"{name}: {problem}")
    return values


def _scalar_from_text(text: str) -> Scalar:
    if text in _KEYWORDS:
        return _KEYWORDS[text]
    if text == "~":
        return ""
    try:
        data = re.sub(rb"~(..)", lambda m: bytes([int(m[1], 16)]), text.encode(), flags=re.DOTALL)
        value = data.decode()
    except ValueError:
        raise SweepError(
            f"'{text}' is not how a value is written: '~' must be followed by two hexadecimal digits "
            f"of a UTF-8 byte; write '{to_text(text)}' for the text {text!r}"
        ) from None
    return value


def _wrong(text: str, value: Value) -> SweepError:
    """Word that a value is not written the one right way, and name that way."""
    right = to_text(value)
    if isinstance(value, str) and (number := _respelled(value)):
        return SweepError(
            f"'{text}' is not how a number is written; write '{number}', or '{right}' for the text {value!r}"
        )
    return SweepError(f"'{text}' is not how a value is written; write '{right}'")


def _respelled(text: str) -> str | None:
    """Write the number that a text reads as in its one right way; None if it reads as no number."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        number = int(text)
    except ValueError:
        number = float(text)
        if not math.isfinite(number):
            return None
    return to_word(number)


def _escape(character: str | re.Match) -> str:
    text = character if isinstance(character, str) else character[0]
    return "".join(f"~{byte:02X}" for byte in text.encode())
