"""Give a program places for its outputs, and put them where they belong only when they are whole."""

import json
import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PLACE = re.compile(r"\{\{|\}\}|\{(write|metrics|read|keep):([^{}]+)\}")


class BadOutput(Exception):
    """The program left with status 0 but without the outputs that it was to make."""


class Places:
    """The files of one step in a run's folder: outputs, inputs, and folders that are kept.

    Outputs are written in a temporary folder beside, so that no reader ever sees half of one.
    """

    def __init__(self, folder: Path, step: str, made_with: dict[str, str]):
        self._folder = folder
        self._made_with = made_with
        self._prefix = f".{step}-"
        self._outputs: dict[str, str] = {}
        self._inputs: list[str] = []
        self._kept: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        self._beside = folder / f"{self._prefix}{os.getpid()}"
        self._beside.mkdir()

    def fill(self, words: Sequence[str]) -> list[str]:
        """Fill the places in a command."""
        return [_PLACE.sub(self._place, word) for word in words]

    def commit(self, record: Path) -> bool:
        """Check the outputs, move them into place, and write the record last.

        Returns:
            Whether a metric was not finite: the run diverged.

        Raises:
            BadOutput: an output is missing, empty, or no strict JSON where it must be.
        """
        diverged = False
        for name, kind in self._outputs.items():
            path = self._beside / name
            _check_there(path, name)
            if kind == "metrics":
                diverged |= _make_strict(path, name)
        text = {
            "made_with": self._made_with,
            "inputs": {name: digest(self._folder / name) for name in self._inputs},
            "outputs": {name: digest(self._beside / name) for name in self._outputs},
            "diverged": diverged,
        }
        new_record = self._beside / ".record"  # no output is called so
        new_record.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
        for path in (new_record, *(self._beside / name for name in self._outputs)):
            _sync(path)
        record.unlink(missing_ok=True)  # an old one must not vouch for new outputs
        for name in self._outputs:
            new, target = self._beside / name, self._folder / name
            if new.is_dir() or target.is_dir():
                _remove(target)
            os.replace(new, target)
        os.replace(new_record, record)
        _sync(self._folder, deep=False)
        return diverged

    def clear(self, done: bool) -> None:
        """Remove the temporary folder, and what was kept for another attempt if none is needed."""
        self._remove_leftovers()
        if done:
            for name in self._kept:
                with suppress(OSError):
                    self._owner(name).unlink(missing_ok=True)
                    _remove(self._folder / name)

    def _place(self, match: re.Match) -> str:
        kind, name = match[1], match[2]
        if kind is None:
            return match[0][0]
        if kind == "read":
            self._inputs.append(name)
            return str(self._folder / name)
        if kind == "keep":
            return str(self._keep(name))
        self._outputs[name.rstrip("/")] = kind
        return str(self._beside / name.rstrip("/"))

    def _keep(self, name: str) -> Path:
        """Return a folder as the last attempt left it, unless that was made with something else."""
        self._kept.append(name)
        path = self._folder / name
        owner = self._owner(name)
        ours = "".join(f"{part} {text}\n" for part, text in self._made_with.items())
        try:
            same = owner.read_text(encoding="utf-8") == ours
        except (OSError, ValueError):
            same = False
        if not same:
            owner.unlink(missing_ok=True)  # half removed, it is nobody's
            _remove(path)
        path.mkdir(exist_ok=True)
        if not same:
            owner.write_text(ours, encoding="utf-8")
        return path

    def _owner(self, name: str) -> Path:
        return self._folder / f".{name}.made-with"

    def _remove_leftovers(self) -> None:
        for path in self._folder.glob(f"{self._prefix}*"):
            try:
                path.rmdir()  # it is empty if all that was in it is in place
            except OSError:
                import shutil

                shutil.rmtree(path, ignore_errors=True)


def digest(path: Path) -> str:
    """Digest a file by its bytes (SHA-256), a folder by the names and bytes of its files.

    Snakemake's own time stamp in a folder does not count.
    """
    import hashlib  # only once the program has ended: it would start later

    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    whole = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file() and p.name != ".snakemake_timestamp"):
        whole.update(os.fsencode(f"{file.relative_to(path)}\0{digest(file)}\0"))
    return whole.hexdigest()


def _check_there(path: Path, name: str) -> None:
    if path.is_dir():
        if not any(p.is_file() and p.stat().st_size for p in path.rglob("*")):
            raise BadOutput(f"left with status 0, but the folder {name} is empty")
    elif not path.exists():
        raise BadOutput(f"left with status 0 without writing {name}")
    elif not path.stat().st_size:
        raise BadOutput(f"left with status 0, but {name} is empty")


def _make_strict(path: Path, name: str) -> bool:
    """Rewrite metrics as strict JSON, null for what is not finite; return whether anything was not."""
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadOutput(f"left with status 0, but {name} is no JSON ({error})") from None
    if not isinstance(metrics, dict) or not metrics:
        raise BadOutput(f'{name} must hold one object with a name for each number, like {{"accuracy": 0.9}}')
    for key, value in metrics.items():
        if isinstance(value, dict | list):
            raise BadOutput(
                f"{name} must be flat, but {key!r} holds {type(value).__name__}; write one number a name"
            )
        if isinstance(value, float) and not math.isfinite(value):
            metrics[key] = None
    path.write_text(json.dumps(metrics, allow_nan=False) + "\n", encoding="utf-8")
    return None in metrics.values()


def _remove(path: Path) -> None:
    """Remove a file or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path, deep: bool = True) -> None:
    """Have a file, or a folder with all in it, on the disk before anything says that it is there."""
    for inner in (*path.rglob("*"), path) if deep and path.is_dir() else (path,):
        with suppress(OSError):
            descriptor = os.open(inner, os.O_RDONLY | os.O_NONBLOCK)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
