"""Digest what a result depends on: the meaning of code, the content of data.

Code is digested by its syntax tree, so comments, formatting, unused docstrings and `touch` change nothing,
and a Python program is followed into the local modules that it imports. Data is digested by its bytes, with
a memo by size, times and inode, so that only what changed is read again.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from sweep.errors import SweepError

_VERSION = 1  # of how files are digested; a memo of another version is no use
_LENGTH = 12  # hexadecimal digits: 48 bits tell apart the versions of one file
_SETTLED_NS = 2 * 10**9
_MANY = 20  # modules listed one by one in a fingerprint
_INTERPRETER = re.compile(r"python[\d.]*")


class Memo:
    """Digests by (size, mtime, ctime, inode), kept in a file between calls.

    ctime cannot be set back, so a changed byte is seen even when the mtime is kept.
    """

    def __init__(self, path: Path):
        self._path = path
        self._old: dict = {}
        self._new: dict = {}
        with suppress(OSError, ValueError, TypeError):
            self._old = dict(json.loads(path.read_text()))

    def digest(self, path: Path, how) -> str:
        """Return `how(path)`, from the memo where the file is as it was."""
        state = path.stat()
        key = f"{how.__name__}.{_VERSION} {os.path.abspath(path)}"
        stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
        known = self._new.get(key) or self._old.get(key)
        if known and known[0] == stamp:
            self._new[key] = known
            return known[1]
        try:
            digest = how(path)
        except OSError as error:  # one that comes while reading does not name the file
            raise OSError(error.errno, error.strerror, str(path)) from None
        # A file written a moment ago may be written again within the same tick of its clock.
        if time.time_ns() - state.st_ctime_ns > _SETTLED_NS:
            self._new[key] = [stamp, digest]
        return digest

    def save(self) -> None:
        """Keep the digests asked for since the memo was read; a folder that can't be written to is no error."""
        if self._new == self._old:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            beside.write_text(json.dumps(self._new))
            beside.replace(self._path)


def find(name: str, roots: Sequence[Path]) -> Path | None:
    """Find a file or folder: in the working directory first, then beside the Snakefile."""
    for root in roots:
        # os.path: a word may be longer than a file's name can be, which is an error to Path.
        if os.path.exists(path := root / name):
            return path
    return None


def digest_program(words: Sequence[str], roots: Sequence[Path], memo: Memo) -> str:
    """Digest the program that a command runs: `train.py=1a2b… model/net.py=3c4d…`.

    Every word of the command that names a file counts; Python files bring the local modules along that they
    import, wherever the import stands. Installed packages do not count.

    Raises:
        SweepError: a file can't be read.
    """
    try:
        return _digest_program(words, roots, memo)
    except OSError as error:
        raise SweepError(
            f"'{error.filename}' can't be read ({error.strerror}); a run depends on what it says"
        ) from None


def _digest_program(words: Sequence[str], roots: Sequence[Path], memo: Memo) -> str:
    digests: dict[str, str] = {}
    seen: set[Path] = set()
    for path, base in _programs(words, roots):
        search = [base, *_python_path(roots)]
        files = _local_modules(path, search, memo) if path.suffix == ".py" else {path}
        for label, file in sorted((_label(file, search), file) for file in files - seen):
            while label in digests:  # another file of the same name
                label += "'"
            digests[label] = memo.digest(file, meaning if path.suffix == ".py" else content)
        seen |= files
    shown = " ".join(f"{label}={digest}" for label, digest in digests.items())
    if len(digests) > _MANY:
        first = next(iter(digests))
        whole = hashlib.sha256(shown.encode()).hexdigest()[:_LENGTH]
        return f"{first}={digests[first]} and {len(digests) - 1} modules={whole}"
    return shown


def digest_data(paths: Iterable[str], roots: Sequence[Path], memo: Memo, key: str = "data") -> str:
    """Digest files and folders by content: `digits.npz=1a2b… images=3c4d…`.

    Raises:
        SweepError: a path does not exist or can't be read.
    """
    parts = []
    for name in paths:
        path = find(name, roots)
        if path is None:
            raise SweepError(f"{key}: '{name}' does not exist; mend the path, or put the file there")
        try:
            digest = _folder(path, memo) if path.is_dir() else memo.digest(path, content)
        except OSError as error:
            raise SweepError(f"{key}: '{error.filename}' can't be read ({error.strerror})") from None
        parts.append(f"{path.name}={digest}")
    return " ".join(parts)


def content(path: Path) -> str:
    """Digest a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_LENGTH]


def meaning(path: Path) -> str:
    """Digest a Python file's syntax tree, or its bytes where it has none."""
    source = path.read_bytes()
    tree = _parse(source)
    if tree is None:
        return content(path)
    # A program may print its docstrings (argparse descriptions); they count only where __doc__ is used.
    keep_docstrings = b"__doc__" in source
    digest = hashlib.sha256()
    for part in _parts(tree, keep_docstrings):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:_LENGTH]


def _parse(source: bytes) -> ast.Module | None:
    """Parse Python source; None where it has no tree. What it warns about is the program's own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


class _Mark(str):
    """A word of the walk itself, unlike a text in the tree."""


def _parts(tree: ast.AST, keep_docstrings: bool) -> Iterator[str]:
    """Walk a syntax tree into text that is equal on every Python version.

    Empty fields are skipped, because new versions add fields (`type_params`, `is_lazy`), and so are those
    that hold no meaning. A list of what is left to do, not recursion: a long sum is a deep tree.
    """
    waiting: list = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _Mark):
            yield node
        elif isinstance(node, ast.AST):
            waiting.append(_Mark(")"))
            for name in sorted(node._fields, reverse=True):
                value = getattr(node, name, None)
                if name == "body" and not keep_docstrings and _has_docstring(node):
                    value = value[1:]
                if name not in ("kind", "type_comment") and (isinstance(node, ast.Constant) or _says(value)):
                    waiting += [value, _Mark(name)]
            yield f"({type(node).__name__}"
        elif isinstance(node, list):
            waiting += [_Mark("]"), *reversed(node)]
            yield "["
        elif isinstance(node, int):
            yield f"{type(node).__name__} {node:x}"  # Python refuses to write a huge one with decimal digits
        else:
            # ascii(): what repr() prints plainly depends on the Unicode tables of the Python version.
            yield f"{type(node).__name__} {ascii(node)}"


def _says(value: object) -> bool:
    """Tell a field's value from an absent one. The boolean False says something (`case False`)."""
    return value is not None and value != [] and not (type(value) is int and value == 0)


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    first = node.body[0] if node.body else None
    return (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )


def _programs(words: Sequence[str], roots: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the files that a command names, each with the folder its imports are looked for in."""
    for before, word in zip(["", *words], words, strict=False):
        if before == "-m" and (module := _run_as_module(word, roots)):
            yield from module
            continue
        path = _named(word, roots)
        if path is None or _INTERPRETER.fullmatch(path.name):
            continue
        path = path.absolute()
        if path.is_file():
            yield path, path.parent
        elif (path / "__main__.py").is_file():
            yield path / "__main__.py", path


def _run_as_module(name: str, roots: Sequence[Path]) -> list[tuple[Path, Path]]:
    """List the files that `python -m name` runs: the packages on its way and the module itself."""
    place = name.replace(".", "/")
    for candidate in (f"{place}/__main__.py", f"{place}.py"):
        if path := find(candidate, roots):
            path, depth = path.absolute(), candidate.count("/")
            packages = [folder / "__init__.py" for folder in path.parents[:depth]]
            return [(file, path.parents[depth]) for file in [*packages, path] if file.is_file()]
    return []


def _named(word: str, roots: Sequence[Path]) -> Path | None:
    """Find the file or folder that a command's word names, also as `--option=file`."""
    return find(word, roots) or find(word.rpartition("=")[2] or word, roots)


def _python_path(roots: Sequence[Path]) -> list[Path]:
    """List the folders of PYTHONPATH that belong to the project."""
    folders = [Path(p).absolute() for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return [folder for folder in folders if any(folder.is_relative_to(root.absolute()) for root in roots)]


def _local_modules(program: Path, search: Sequence[Path], memo: Memo) -> set[Path]:
    """Find a program and the local modules that it imports, directly or not."""
    found: set[Path] = set()
    waiting = [program]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        names = memo.digest(module, imports).split()
        waiting += [path for name in names for path in _resolve(name, module, search)]
    return found


def imports(path: Path) -> str:
    """List the modules that a Python file imports, wherever the import stands, separated by spaces.

    Relative names keep their leading dots; `from a import b` gives `a.b`, since b may be a module.
    """
    tree = _parse(path.read_bytes())
    if tree is None:
        return ""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            dot = "." if node.module else ""
            names.update(base if alias.name == "*" else f"{base}{dot}{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = (
                node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            )
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                names.add(node.args[0].value)
    return " ".join(sorted(names))


def _resolve(name: str, importer: Path, search: Sequence[Path]) -> Iterator[Path]:
    """Yield the local files that importing a name runs: the packages on its way and the module itself."""
    level = len(name) - len(name.lstrip("."))
    if level:
        folders = [importer.parents[level - 1]] if level <= len(importer.parents) else []
    else:
        folders = list(search)
    parts = [part for part in name.split(".") if part]
    for folder in folders:
        found = []
        if level and (folder / "__init__.py").is_file():
            found.append(folder / "__init__.py")
        place = folder
        for part in parts:
            if (place / part / "__init__.py").is_file():
                found.append(place / part / "__init__.py")
            elif (place / f"{part}.py").is_file():
                found.append(place / f"{part}.py")
            elif not (place / part).is_dir():
                break
            place = place / part
        if found:
            yield from found
            return


def _label(file: Path, search: Sequence[Path]) -> str:
    """Name a file in a way that is the same on every machine."""
    for folder in search:
        if file.is_relative_to(folder):
            return file.relative_to(folder).as_posix()
    return file.name


def _folder(folder: Path, memo: Memo) -> str:
    """Digest a folder by the names and contents of all files in it."""
    digest = hashlib.sha256()
    seen = set()  # folders reached through links may form a circle
    for place, folders, files in os.walk(folder, followlinks=True):
        state = os.stat(place)
        if (state.st_dev, state.st_ino) in seen:
            folders.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        folders.sort()
        for name in sorted(files):
            path = Path(place, name)
            if path.is_file():
                # fsencode: a file's name need not be valid text.
                digest.update(os.fsencode(f"{path.relative_to(folder)}\0{memo.digest(path, content)}\0"))
    return digest.hexdigest()[:_LENGTH]


def missing_program(words: Sequence[str], roots: Sequence[Path]) -> str | None:
    """Say which program of a command is missing, or None.

    The first word must be a command; a word with a Python, R, shell or Julia suffix must be a file.
    """
    if not find(words[0], roots) and shutil.which(words[0]) is None:
        return f"there is no program '{words[0]}'; install it, or mend the command"
    for word in words[1:]:
        if word.endswith((".py", ".R", ".sh", ".jl")) and "{" not in word and not _named(word, roots):
            places = " or ".join(str(root) for root in dict.fromkeys(root.absolute() for root in roots))
            return f"there is no file '{word}' in {places}; mend the path"
    return None
