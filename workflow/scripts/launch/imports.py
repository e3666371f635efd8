"""Read off a Python program what it imports first of all, and whether importing that beforehand changes nothing."""

import ast
import os
import sys
from collections.abc import Iterator

from launch.process import Bare, Cold


class TooEarly(Cold):
    """Something could matter to what is imported after it."""


class Beginning:
    """What a program does until its last import of an installed package.

    Attributes:
        imports: those imports, as source text, in their order.
        environ: what it puts into the environment before, by constants.
    """

    def __init__(self):
        self.imports: list[str] = []
        self.environ: dict[str, str] = {}


def beginning(program: str) -> Beginning:
    """Analyse a program and the local modules that it imports at module level.

    Local are modules beside the program. The program's own modules are imported by the program itself, so an
    edit is always seen; but what they import comes at its place.

    Raises:
        TooEarly: something before an import of an installed package could matter to it.
        Cold: there is nothing to gain, or nothing to read.
    """
    found = Beginning()
    held: list[str] = []  # why not, if another import of a package comes
    for kind, text in _steps(program, os.path.dirname(os.path.realpath(program)), set()):
        if kind == "other":
            held.append(text)
        elif held:
            raise TooEarly(f"{held[0]} comes before `{text}`")
        elif kind == "import":
            if text not in found.imports:
                found.imports.append(text)
        else:
            name, _, value = text.partition("=")
            found.environ[name] = value
    if not found.imports:
        raise Bare
    return found


def _steps(path: str, folder: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    """Yield what a module does: ("import", statement), ("environ", "NAME=value") or ("other", where)."""
    seen.add(path)
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError) as error:
        raise Cold(f"{os.path.basename(path)} can't be read ({error})") from None
    for statement in tree.body:
        first = (getattr(statement, "decorator_list", None) or [statement])[0]
        where = f"line {first.lineno} of {os.path.basename(path)}"
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield from _import(alias.name, f"import {alias.name}", folder, seen)
        elif isinstance(statement, ast.ImportFrom):
            if statement.level:  # beside a program there is no package to be relative to
                yield "other", where
            else:
                names = ", ".join(alias.name for alias in statement.names)
                text = f"from {statement.module} import {names}"
                yield from _import(statement.module, text, folder, seen, statement.names)
        elif name_and_value := _environ(statement):
            yield "environ", "=".join(name_and_value)
        elif not _is_harmless(statement):
            yield "other", where


def _import(name: str, text: str, folder: str, seen: set[str], names=()) -> Iterator[tuple[str, str]]:
    top = name.partition(".")[0]
    if local := _local(top, folder):
        paths = [local]
        for deeper in (name, *(f"{name}.{alias.name}" for alias in names)):
            path = os.path.join(folder, *deeper.split("."))
            paths += [p for p in (f"{path}.py", os.path.join(path, "__init__.py")) if os.path.isfile(p)]
        for path in dict.fromkeys(paths):
            if path not in seen:
                yield from _steps(path, folder, seen)
    elif top not in sys.stdlib_module_names:
        yield "import", text


def _local(top: str, folder: str) -> str | None:
    for path in (os.path.join(folder, f"{top}.py"), os.path.join(folder, top, "__init__.py")):
        if os.path.isfile(path):
            return path
    return None


def _environ(statement: ast.stmt) -> tuple[str, str] | None:
    """Read `os.environ["NAME"] = "value"` with constants."""
    match statement:
        case ast.Assign(
            targets=[
                ast.Subscript(
                    value=ast.Attribute(value=ast.Name(id="os"), attr="environ"),
                    slice=ast.Constant(value=str(name)),
                )
            ],
            value=ast.Constant(value=str(value)),
        ):
            return name, value
    return None


def _is_harmless(statement: ast.stmt) -> bool:
    """Say whether a statement can matter to an import that follows: definitions and constants can't."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = statement.args
        defaults = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
        return not statement.decorator_list and all(map(_is_constant, defaults))
    if isinstance(statement, ast.ClassDef):
        plain = not statement.decorator_list and not statement.keywords
        return plain and all(map(_is_harmless, statement.body))
    if isinstance(
        statement, ast.If
    ):  # `if __name__ == "__main__":` runs the program itself, if it comes first
        return False
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        value = statement.value
        return all(isinstance(t, ast.Name) for t in targets) and (value is None or _is_constant(value))
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and _is_constant(statement.value)
    )


def _is_constant(node: ast.expr) -> bool:
    """Say whether evaluating an expression does nothing: no call, no attribute, no operator but on constants."""
    allowed = (
        ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Name, ast.Load, ast.UnaryOp, ast.BinOp,
        ast.operator, ast.unaryop, ast.JoinedStr, ast.FormattedValue, ast.Starred,
    )  # fmt: skip
    return all(isinstance(inner, allowed) for inner in ast.walk(node))
