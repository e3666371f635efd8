"""Give a program places for its outputs, and put them where they belong only when they are whole."""

from __future__ import annotations

# Every module that is imported here delays the program's start; what is needed once it has ended comes later.
import os

from launch.light import from_json, sha256, suppress, to_json

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KINDS = ("write", "metrics", "read", "keep")


class BadOutput(Exception):
    """The program left with status 0 but without the outputs that it was to make."""


class Places:
    """The files of one step in a run's folder: outputs, inputs, and folders that are kept.

    Outputs are written in a temporary folder beside, so that no reader ever sees half of one.

    Attributes:
        beside: the temporary folder.
    """

    def __init__(self, folder: str, step: str, made_with: dict[str, str]):
        self._folder = os.fspath(folder)
        self._made_with = made_with
        self._prefix = f".{step}-"
        self._outputs: dict[str, str] = {}
        self._inputs: list[str] = []
        self._kept: list[str] = []
        os.makedirs(folder, exist_ok=True)
        self._remove_leftovers()
        self.beside = self._in_place(f"{self._prefix}{os.getpid()}")
        os.mkdir(self.beside)

    def fill(self, words: Sequence[str]) -> list[str]:
        """Fill the places in a command."""
        return ["".join(self._pieces(word)) for word in words]

    def commit(self, record: str) -> bool:
        """Check the outputs, move them into place, and write the record last.

        Returns:
            Whether a metric was not finite: the run diverged.

        Raises:
            BadOutput: an output is missing, empty, or no strict JSON where it must be.
        """
        diverged = False
        for name, kind in self._outputs.items():
            path = self._new(name)
            _check_there(path, name, kind == "folder")
            if kind == "metrics":
                diverged |= _make_strict(path, name)
        text = {
            "made_with": self._made_with,
            "inputs": {name: digest(self._in_place(name)) for name in self._inputs},
            "outputs": {name: digest(self._new(name)) for name in self._outputs},
            "diverged": diverged,
        }
        new_record = self._new(".record")  # no output is called so
        with open(new_record, "w", encoding="utf-8") as file:
            file.write(to_json(text, "\n") + "\n")
        for path in (new_record, *map(self._new, self._outputs)):
            _sync(path)
        with suppress(FileNotFoundError):
            os.unlink(record)  # an old one must not vouch for new outputs
        for name in self._outputs:
            new, target = self._new(name), self._in_place(name)
            if os.path.isdir(new) or os.path.isdir(target):
                _remove(target)
            os.replace(new, target)
        os.replace(new_record, record)
        _sync(self._folder, deep=False)
        return diverged

    def notes(self) -> dict[str, str]:
        """Take what our module inside the program, and inside its children, left: versions and peaks."""
        notes: dict[str, str] = {}
        for name in sorted(os.listdir(self.beside)):
            if name.endswith(".note"):
                with suppress(OSError, ValueError), open(self._new(name)) as file:
                    new = dict(line.partition("=")[::2] for line in file.read().splitlines())
                    if "peak" in new:
                        new["peak"] = str(max(int(new["peak"]), int(notes.get("peak", 0))))
                    notes |= new
                _remove(self._new(name))
        return notes

    def clear(self, done: bool) -> None:
        """Remove the temporary folder, and what was kept for another attempt if none is needed."""
        self._remove_leftovers()
        if done:
            for name in self._kept:
                with suppress(OSError):
                    _remove(self._owner(name))
                    _remove(self._in_place(name))

    def _in_place(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _new(self, name: str) -> str:
        return os.path.join(self.beside, name)

    def _pieces(self, word: str) -> Iterator[str]:
        """Split a word at its places and doubled braces, and fill them; other braces stay."""
        while word:
            start = min((i for i in map(word.find, "{}") if i >= 0), default=len(word))
            yield word[:start]
            word = word[start:]
            kind, colon, rest = word[1:].partition(":")
            name, end, after = rest.partition("}")
            if word[:2] in ("{{", "}}"):
                yield word[0]
                word = word[2:]
            elif kind in _KINDS and colon and end and name and "{" not in name:
                yield self._place(kind, name)
                word = after
            else:
                yield word[:1]
                word = word[1:]

    def _place(self, kind: str, name: str) -> str:
        if kind == "read":
            self._inputs.append(name)
            return self._in_place(name)
        if kind == "keep":
            return self._keep(name)
        self._outputs[name.rstrip("/")] = "folder" if name.endswith("/") else kind
        return self._new(name.rstrip("/"))

    def _keep(self, name: str) -> str:
        """Return a folder as the last attempt left it, unless that was made with something else."""
        self._kept.append(name)
        path, owner = self._in_place(name), self._owner(name)
        ours = "".join(f"{part} {text}\n" for part, text in self._made_with.items())
        try:
            with open(owner, encoding="utf-8") as file:
                same = file.read() == ours
        except (OSError, ValueError):
            same = False
        if not same:
            _remove(owner)  # half removed, it is nobody's
            _remove(path)
        os.makedirs(path, exist_ok=True)
        if not same:
            with open(owner, "w", encoding="utf-8") as file:
                file.write(ours)
        return path

    def _owner(self, name: str) -> str:
        return self._in_place(f".{name}.made-with")

    def _remove_leftovers(self) -> None:
        for name in os.listdir(self._folder):
            if name.startswith(self._prefix):
                try:
                    os.rmdir(self._in_place(name))  # it is empty if all that was in it is in place
                except OSError:
                    import shutil

                    shutil.rmtree(self._in_place(name), ignore_errors=True)


def digest(path: str) -> str:
    """Digest a file by its bytes (SHA-256), a folder by the names and bytes of its files.

    Snakemake's own time stamp in a folder does not count.
    """
    if not os.path.isdir(path):
        whole = sha256(os.path.getsize(path))
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(1 << 20):
                whole.update(piece)
        return whole.hexdigest()
    whole = sha256(0)
    files = {os.path.relpath(inner, path): inner for inner in _files(path)}
    for name in sorted(files, key=lambda name: name.split(os.sep)):
        if os.path.basename(name) != ".snakemake_timestamp":
            whole.update(os.fsencode(f"{name}\0{digest(files[name])}\0"))
    return whole.hexdigest()


def _files(folder: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if os.path.isfile(path):
                yield path


def _check_there(path: str, name: str, folder: bool) -> None:
    if os.path.exists(path) and os.path.isdir(path) != folder:
        is_there, right = ("a file", name) if folder else ("a folder", f"{name}/")
        raise BadOutput(
            f"left with status 0, but {name} is {is_there}; write its name as `{right}` (model: {right})"
        )
    if os.path.isdir(path):
        if not any(map(os.path.getsize, _files(path))):
            raise BadOutput(f"left with status 0, but the folder {name} is empty")
    elif not os.path.exists(path):
        raise BadOutput(f"left with status 0 without writing {name}")
    elif not os.path.getsize(path):
        raise BadOutput(f"left with status 0, but {name} is empty")


def _make_strict(path: str, name: str) -> bool:
    """Rewrite metrics as strict JSON, null for what is not finite; return whether anything was not."""
    try:
        with open(path, encoding="utf-8") as file:
            metrics = from_json(file.read())
    except (ValueError, RecursionError) as error:
        raise BadOutput(f"left with status 0, but {name} is no JSON ({error})") from None
    if not isinstance(metrics, dict) or not metrics:
        raise BadOutput(f'{name} must hold one object with a name for each number, like {{"accuracy": 0.9}}')
    for key, value in metrics.items():
        if isinstance(value, dict | list):
            raise BadOutput(
                f"{name} must be flat, but {key!r} holds {type(value).__name__}; write one number a name"
            )
        if isinstance(value, float) and value - value != 0:
            metrics[key] = None
    with open(path, "w", encoding="utf-8") as file:
        file.write(to_json(metrics) + "\n")
    return None in metrics.values()


def _remove(path: str) -> None:
    """Remove a file or a whole folder, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _sync(path: str, deep: bool = True) -> None:
    """Have a file, or a folder with all in it, on the disk before anything says that it is there."""
    inner = [path]
    if deep and os.path.isdir(path):
        inner = [
            os.path.join(place, name) for place, *names in os.walk(path) for name in sum(names, [])
        ] + inner
    for each in inner:
        with suppress(OSError):
            descriptor = os.open(each, os.O_RDONLY | os.O_NONBLOCK)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
