"""What modules of the standard library do too, but for the time that they take to import: every run waits for that."""

from __future__ import annotations

import sys


class suppress:  # noqa: N801 - it stands for contextlib's, which takes 6 ms
    """Go on after these exceptions."""

    def __init__(self, *exceptions: type[BaseException]):
        self._exceptions = exceptions

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, trace) -> bool:
        return kind is not None and issubclass(kind, self._exceptions)


def say(*lines: str) -> None:
    """Print to standard error; on a terminal over whatever progress is shown in the line where the cursor is."""
    text = "\n".join(lines)
    print(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


class _Strict:
    """What the scanner of the module json, which takes 14 ms, asks of its decoder."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}.__getitem__


def from_json(text: str):
    """Read JSON as `json.loads` does.

    Raises:
        ValueError: it is none; in json's words.
        RecursionError: it is nested too deep.
    """
    try:
        from _json import make_scanner

        value, end = make_scanner(_Strict)(text, 0)
        if not text[end:].strip(" \t\n\r"):
            return value
    except (ImportError, AttributeError, TypeError, StopIteration, ValueError, SystemError):
        pass  # white space before it, a mistake (an error of its own needs json imported), or another Python than CPython
    import json

    return json.loads(text)


def to_json(value, start: str = "") -> str:
    """Write text, finite numbers, booleans, None, and dictionaries and lists of these, as JSON.

    Args:
        start: what every line is to start with, a line break first; all in one line if there is none.

    Raises:
        ValueError: a number is not finite.
        TypeError: anything else.
    """
    if isinstance(value, str):
        return _quote(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if value - value != 0:
            raise ValueError(f"{value} is no number in JSON")
        return float.__repr__(value)
    deeper = start and f"{start} "
    if isinstance(value, dict):
        begin, end = "{}"
        items = [f"{_quote(key)}: {to_json(inner, deeper)}" for key, inner in value.items()]
    elif isinstance(value, list | tuple):
        begin, end = "[]"
        items = [to_json(inner, deeper) for inner in value]
    else:
        raise TypeError(f"{type(value).__name__} can't be written as JSON")
    if not items:
        return begin + end
    return f"{begin}{deeper}{(',' + (deeper or ' ')).join(items)}{start}{end}"


def _quote(text: str) -> str:
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        from json.encoder import encode_basestring_ascii
    return encode_basestring_ascii(text)


def sha256(size: int):
    """Start a SHA-256 digest of about so many bytes: OpenSSL's is faster, but takes 6 ms to import."""
    if size < 1 << 20:
        with suppress(ImportError):  # a Python built without it
            return __import__("_sha2" if sys.version_info >= (3, 12) else "_sha256").sha256()
    import hashlib

    return hashlib.sha256()
