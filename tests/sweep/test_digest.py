"""What a result depends on: the meaning of code, the content of data; and what changes neither."""

import ast
import os
import sys
import textwrap
import warnings

import pytest
from sweep import digest
from sweep.digest import Memo, content, digest_data, digest_program, find, meaning
from sweep.errors import SweepError


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Make a folder with files, as the working directory, and ways to digest what a command runs."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Project(folder)


class Project:
    """A folder with programs in it."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, name: str, text: str | bytes = ""):
        """Write a file and return its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return path

    def code(self, words: str = "python train.py") -> dict[str, str]:
        """Digest what a command runs: label → digest. Nothing is remembered from one call to the next."""
        shown = digest_program(words.split(), [self.folder], Memo(self.folder / "none"))
        return dict(part.split("=") for part in shown.split())

    def changed(self, name: str, text: str, words: str = "python train.py") -> set[str]:
        """Rewrite a file and name the labels whose digest that changes."""
        before = self.code(words)
        self.write(name, text)
        after = self.code(words)
        return {label for label in {**before, **after} if before.get(label) != after.get(label)}


def code_of(tmp_path, text: str | bytes) -> str:
    """Digest the meaning of a source."""
    path = tmp_path / "code.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return meaning(path)


# ---- the meaning of one file --------------------------------------------------------------------------

SOURCE = '''\
"""A module's docstring."""
import os


def train(rate, steps=1_000):
    """Say what it does."""
    for step in range(steps):
        rate = rate * 0.5 + len("a" 'b')
    return {"rate": rate, "path": os.getcwd()}
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import os\n", "# a comment\nimport os  # another\n\n\n"),
        ('"""A module\'s docstring."""\n', ""),
        ("A module's docstring.", "Other words."),
        ('    """Say what it does."""\n', ""),
        ("Say what it does.", "Say it otherwise.\n\n    At length."),
        ("range(steps)", "range(\n        steps,\n    )"),
        ("rate * 0.5 + len", "((rate * .50) + len"),
        ("1_000", "1000"),
        ("1_000", "0x3E8"),
        ("\"a\" 'b'", '"ab"'),
        ("\"a\" 'b'", "u'a\\x62'"),
        ("\n", "\r\n"),
        ("    for", "    for"),
        ("import os", "import os;"),
        ("return {", "return \\\n        {"),
    ],
)
def test_comments_formatting_and_unused_docstrings_mean_nothing(tmp_path, old, new):
    assert old in SOURCE
    changed = SOURCE.replace(old, new)
    if "((rate" in new:
        changed = changed.replace("'b')", "'b'))")
    assert code_of(tmp_path, changed) == code_of(tmp_path, SOURCE)


def test_more_of_what_means_nothing(tmp_path):
    plain = code_of(tmp_path, "x = 1\nif x:\n    y = 'é'\n")
    assert code_of(tmp_path, "x = 1\nif x:\n\ty = 'é'") == plain
    assert code_of(tmp_path, "\ufeffx = 1\nif x: y = '\\xe9'") == plain
    assert code_of(tmp_path, "# coding: latin-1\nx = 1\nif x: y = '\xe9'\n".encode("latin-1")) == plain
    assert code_of(tmp_path, "x = 1 # type: int\nif x: y = u'é'") == plain
    # An `__init__.py` that gets a docstring, and a class and a coroutine that have nothing else.
    assert code_of(tmp_path, "") == code_of(tmp_path, '"""A package."""') == code_of(tmp_path, "# nothing")
    one, other = (f'class A:\n "{words}"\nasync def f():\n "{words}"' for words in ("one", "other"))
    assert code_of(tmp_path, one) == code_of(tmp_path, other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.5", "0.25"),
        ("1_000", "1_000.0"),
        ("1_000", "True"),
        ('"rate":', 'b"rate":'),
        ("rate * 0.5", "0.5 * rate"),
        ("range(steps)", "range(steps, )[0:]"),
        ("steps=1_000", "/, steps=1_000"),
        ("steps=1_000", "*, steps=1_000"),
        ("steps=1_000", "steps=1_000, *more"),
        ("import os", "import os as os_"),
        ("import os", "from . import os"),
        ("def train", "async def train"),
        ("def train", "@staticmethod\ndef train"),
        ("    return", "        return"),
        ("for step", "for rate"),
        ("    for", "    global x\n    for"),
        ('    """Say what it does."""', "    print(train.__doc__)"),
    ],
)
def test_a_real_change_is_seen(tmp_path, old, new):
    assert old in SOURCE
    assert code_of(tmp_path, SOURCE.replace(old, new)) != code_of(tmp_path, SOURCE)


DIFFERENT = [
    *(
        "x = 0",
        "x = False",
        "x = 0.0",
        "x = -0",
        "x = 0j",
        "x = None",
        "x = ...",
        "x = ''",
        "x = b''",
        "x = '0'",
    ),
    *(
        "x = []",
        "x = [0]",
        "x = [None]",
        "x = [False]",
        "x = ()",
        "x = {}",
        "x = {0}",
        "x = {**y}",
        "x = {y: y}",
    ),
    *(
        "x = {None: y}",
        "x: int",
        "(x): int",
        "x: int = 0",
        "del x",
        "x",
        "x == 0",
        "x is 0",
        "x != 0",
        "not x",
    ),
    *("def f(): return", "def f(): return 0", "def f(): return None", "def f(): yield", "def f(): pass"),
    *("def f(a): pass", "def f(a, /): pass", "def f(*, a): pass", "def f(*a): pass", "def f(**a): pass"),
    *(
        "def f(a=0): pass",
        "def f(a: int): pass",
        "def f(*, a=0): pass",
        "def f() -> int: pass",
        "f = lambda: 0",
    ),
    *(
        "y[0:]",
        "y[:0]",
        "y[:]",
        "y[::0]",
        "y[0]",
        "y[0,]",
        "y[*x]",
        "f(x)",
        "f(*x)",
        "f(**x)",
        "f(x=x)",
        "f(y=x)",
    ),
    *(
        "from a import b",
        "from .a import b",
        "from ..a import b",
        "from . import b",
        "import a.b",
        "import a",
    ),
    *("from a import b as c", "from a import *", "import a as b", "import b", "raise x", "raise", "assert x"),
    *("[x for x in y]", "[x for x in y if x]", "(x for x in y)", "{x for x in y}", "{x: x for x in y}"),
    *(
        'f"{x}"',
        'f"{x!r}"',
        'f"{x!s}"',
        'f"{x:0}"',
        'f"{x}0"',
        'f"{x=}"',
        "x = '{x}'",
        'f"{x:}"',
        'f"{x:{y}}"',
    ),
    *("match x:\n case 0: pass", "match x:\n case True: pass", "match x:\n case False: pass"),
    *(
        "match x:\n case None: pass",
        "match x:\n case _: pass",
        "match x:\n case [_]: pass",
        "match x:\n case y: pass",
    ),
    *("match x:\n case [*_]: pass", "match x:\n case {}: pass", "match x:\n case {**y}: pass"),
    *(
        "match x:\n case A(): pass",
        "match x:\n case A(0): pass",
        "match x:\n case A(a=0): pass",
        "with x: pass",
    ),
    *("with x as y: pass", "async def f():\n async with x: pass", "async def f():\n with x: pass"),
    *("async def f(): [i async for i in x]", "async def f(): [i for i in x]", "async def f(): await x"),
    *("try: x\nexcept: pass", "try: x\nexcept A: pass", "try: x\nexcept* A: pass", "try: x\nfinally: pass"),
    *(
        "for x in y: pass",
        "for x in y: pass\nelse: x",
        "while x: pass",
        "if x: pass",
        "if x: pass\nelse: pass",
    ),
    *("x = y", "x += y", "x @= y", "x = y = 0", "x, y = 0", "[x, *y] = 0", "(x := y)", "x if y else 0"),
    *(
        "a.b",
        "a.b = 0",
        "a.c",
        "x < y < 0",
        "x < y and y < 0",
        "x & y",
        "x and y",
        "x or y",
        "~x",
        "+x",
        "-x",
    ),
    *(
        "class A: pass",
        "class A(B): pass",
        "class A(m=B): pass",
        "global x",
        "x = '\\ud800'",
        "x = 'é'",
        "x = 'e\\u0301'",
    ),
]


def test_no_two_of_many_small_programs_mean_the_same(tmp_path):
    assert len(DIFFERENT) == len(set(DIFFERENT))
    found = {}
    for text in DIFFERENT:
        ast.parse(text)  # each is a program
        other = found.setdefault(code_of(tmp_path, text), text)
        assert other == text


def test_docstrings_count_where_a_program_uses_them(tmp_path):
    source = '"""{0}"""\nimport argparse\nargparse.ArgumentParser(description=__doc__)\n'
    assert code_of(tmp_path, source.format("one")) != code_of(tmp_path, source.format("two"))


def test_bytes_count_where_there_is_no_tree(tmp_path):
    assert code_of(tmp_path, "print 'Python 2'") != code_of(tmp_path, "print 'Python 2' # comment")
    assert code_of(tmp_path, "x = '\0'") == content(tmp_path / "code.py")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("+".join(["1"] * 1500), "+".join(["1"] * 1501)),
        (
            "if a: pass\n" + "".join(f"elif a{i}: pass\n" for i in range(800)),
            "if a: pass\n" + "".join(f"elif b{i}: pass\n" for i in range(800)),
        ),
        (f"x = 0x{'f' * 5000}", f"x = 0x{'f' * 4999}e"),
    ],
    ids=["long sum", "long elif chain", "huge number"],
)
def test_large_programs(tmp_path, one, other):
    """Python runs these; a digest that recurses, or writes numbers in decimal digits, ends in a traceback."""
    assert code_of(tmp_path, f"{one}\n# comment") == code_of(tmp_path, one) != code_of(tmp_path, other)


def test_a_programs_own_warnings_are_not_ours(tmp_path):
    """An invalid escape is a DeprecationWarning or a SyntaxWarning, by the version, at every parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = code_of(tmp_path, r"x = '\d'")
    assert one == code_of(tmp_path, r"x = '\\d'")


# Most of the syntax that Python 3.11 to 3.14 share, with what their parsers are known to treat differently:
# f-strings (tokenized anew in 3.12), unprintable and new characters (repr follows Unicode's version), big
# numbers, fields that new versions add (type parameters in 3.12, lazy imports in 3.15).
SYNTAX = r'''
"""A docstring, unused."""
from __future__ import annotations

import os.path as path, sys
from collections import abc as abc, deque
from . import sibling
from ..package.module import *

CONSTANTS = (None, True, False, ..., 0, -0, 10**3, 0xFFFF_FFFF, 0o17, 0b101, 123456789012345678901234567890)
FLOATS = [0.1, 1e-05, 1e16, 5e-324, 1e999, 1_000.5, .5, 3j, 1.5e300j, -0.0]
TEXTS = ["a" 'b', u"u", r"\d", "\x00\x7f\x85\xad", "é\u0301\u200b\ufeff", "\U0001f600", "\U0001fae8", "\ud800", ""]
BYTES = [b"a" b"\xff\x00", rb"\d", b""]
EMPTY = [[], (), {}, set(), {**{}}, [*()], {1, 2}, {"a": 1, **TEXTS, None: 0}]
LONG = """two
lines"""


def words(x, y, z, w=2, p=3):
    return (
        f"{x}", f"{x!r:>{w}.{p}f}", f"{x=}", f"{x = !s}", f"pre{{}}{x:%Y-%m-%d}post" "plain" f"{y}", f"", f"a" "b",
        f"{x:}", f"{x:{'>'}{10}}", f'{x["key"]}', f"{f'{x}{y!a}'}", f"""{
            x
        }""", f"{(lambda q: q)(1)}", f"{x,}", f"{(x := 5)}", f"{x:\x41}\N{EM DASH}", rf"\d{x}\w", f"é{x:é}😀",
        f"{x!r}" f"{y:{z!r}}", f"{x if y else 'z'}", f"{ x }{{{y}}}", f"{x:,}{x!=y}", u"a" f"{x}",
    )


@decorate(1, *CONSTANTS, key=2, **{"more": 3})
@other.decorator
class Model(Base[int], metaclass=Meta, flag=True):
    """Another docstring."""
    name: str
    (size): int = 3
    table: dict[str, list[int | None]] = {}
    __slots__ = "a", "b"

    @property
    def value(self) -> "int": return self._value

    @value.setter
    def value(self, value, /): self._value, self.old = value, self._value

    async def steps(self, a, /, b: int = 1, *args: int, c, d=None, **kwargs: str) -> abc.AsyncIterator[int]:
        """Yield."""
        global COUNT
        async with a as self.x, b:
            async for i in args:
                yield await i
        result = [i async for i in c if await i if not i]
        return


def patterns(subject, *, _=lambda a, /, b=1, *c, d, e=2, **f: (a, b)):
    match subject, 1:
        case 0 | -1 | 1.5 | -2+3j | "text" "more" | b"bytes": pass
        case None | True | False: return 0
        case [] | [_] | [first, *rest] | (1, *_, 2): return None
        case {"key": value, **others} if value > 0: pass
        case {}: pass
        case path.Point(x=0, y=[a, b]) | Model(1, 2, c=3) as whole: pass
        case sys.maxsize: ...
        case _: pass


def control(*args, **kwargs):
    nonlocal_ = 0

    def inner():
        nonlocal nonlocal_
        nonlocal_ += 1; yield from args
        x = yield; y = yield x

    try:
        while (n := len(args)) < 10 <= n != 3: continue
        else: pass
    except (ValueError, TypeError) as error: raise RuntimeError from error
    except Exception: raise
    else: assert n, "message"
    finally: del args[0], kwargs["a"]
    try: pass
    except* OSError as group: print(group)
    with (open("a") as a, open("b") as b): pass
    with open("c"): pass
    for i, (j, *k) in enumerate(args): break
    else: print(*args, sep="", **kwargs)
    if n: pass
    elif not n: pass
    else: pass
    a[1:2, ::3, ..., None] = b[i] = c = -a ** ~b // +c @ d % e << 1 >> 2 & 3 | 4 ^ 5
    a[*args, 1] = (a if b else c) or d and not e is not f and g not in h
    a / b * c - d >= e in f is g
    a @= b; a //= c; a **= d; a >>= e; a.b.c |= f; a: int
    ({x: y for x, y in a if x for z in y}, {x for x in a}, (x for x in a), [[x for x in y] for y in a])
    return *args, *a


if __name__ == "__main__":
    import importlib; importlib.import_module("const")
    words(1, 2, *[3], **{"w": 4})(5).attribute[6](seven := 8, nine=[*range(10)])
'''


def test_the_digest_is_the_same_on_every_python_version(tmp_path):
    """Recorded under 3.11.7; CPython 3.12.7, 3.13.2, 3.14.2 and 3.15.0rc1 (as Pyodide) gave the same."""
    assert code_of(tmp_path, SYNTAX) == "2ac21f5cc4c9"
    assert code_of(tmp_path, SYNTAX) != content(tmp_path / "code.py")  # it has a tree
    # And the walk itself, in full, of something small.
    tree = ast.parse("import a\nx: int = f(0, None)")
    assert " ".join(digest._parts(tree, False)) == (
        "(Module body [ (Import names [ (alias name str 'a' ) ] ) (AnnAssign annotation (Name ctx (Load ) id str 'int' ) "
        "simple int 1 target (Name ctx (Store ) id str 'x' ) value (Call args [ (Constant value int 0 ) "
        "(Constant value NoneType None ) ] func (Name ctx (Load ) id str 'f' ) ) ) ] )"
    )


# ---- a program and its local modules --------------------------------------------------------------------


def test_touch_means_nothing(project):
    path = project.write("train.py", "import helper")
    project.write("helper.py", "x = 1")
    before = project.code()
    assert set(before) == {"train.py", "helper.py"}
    os.utime(path, (1, 1))
    os.utime(project.folder / "helper.py")
    assert project.code() == before


@pytest.mark.parametrize(
    ("statement", "module", "also"),
    [
        ("import helper", "helper.py", []),
        ("import helper as h, os", "helper.py", []),
        ("from helper import function", "helper.py", []),
        ("from helper import *", "helper.py", []),
        ("def f():\n    import helper", "helper.py", []),
        ("class A:\n    def f(self):\n        from helper import x", "helper.py", []),
        ("try:\n    import helper\nexcept ImportError: pass", "helper.py", []),
        ("if 0:\n    import helper", "helper.py", []),
        ("import model.net", "model/net.py", ["model/__init__.py"]),
        ("import model.net", "model/__init__.py", ["model/net.py"]),
        ("from model import net", "model/net.py", ["model/__init__.py"]),
        ("from model.net import Net", "model/net.py", ["model/__init__.py"]),
        ("import model.deep.er", "model/deep/er.py", ["model/__init__.py", "model/deep/__init__.py"]),
        ("import model.deep.er", "model/deep/__init__.py", ["model/__init__.py", "model/deep/er.py"]),
        ("import spaces.inner", "spaces/inner.py", []),  # no __init__.py: a namespace package
        ("from spaces import inner", "spaces/inner.py", []),
        ("import importlib\nimportlib.import_module('const')", "const.py", []),
        (
            "from importlib import import_module\nx = import_module('model.net')",
            "model/net.py",
            ["model/__init__.py"],
        ),
        ("__import__('const')", "const.py", []),
    ],
)
def test_a_change_in_a_local_module_is_seen(project, statement, module, also):
    project.write("train.py", statement)
    for name in (
        "helper",
        "const",
        "model/__init__",
        "model/net",
        "model/deep/__init__",
        "model/deep/er",
        "spaces/inner",
    ):
        project.write(f"{name}.py", "x = 1")
    assert set(project.code()) == {"train.py", module, *also}
    assert project.changed(module, "x = 1  # comment") == set()
    assert project.changed(module, "x = 2") == {module}


@pytest.mark.parametrize(
    ("place", "statement", "module", "also"),
    [
        ("model/net.py", "from . import layers", "model/layers.py", ["model/__init__.py"]),
        ("model/net.py", "from .layers import *", "model/layers.py", ["model/__init__.py"]),
        (
            "model/net.py",
            "from .deep import er",
            "model/deep/er.py",
            ["model/__init__.py", "model/deep/__init__.py"],
        ),
        ("model/net.py", "from . import *", "model/__init__.py", []),
        (
            "model/deep/er.py",
            "def f(): from .. import layers",
            "model/layers.py",
            ["model/__init__.py", "model/deep/__init__.py"],
        ),
        (
            "model/deep/er.py",
            "import importlib\nimportlib.import_module('.sub', __package__)",
            "model/deep/sub.py",
            ["model/__init__.py", "model/deep/__init__.py"],
        ),
        ("model/net.py", "import helper", "helper.py", ["model/__init__.py"]),
    ],
)
def test_modules_of_modules_and_relative_imports(project, place, statement, module, also):
    """`train.py` imports one module, which imports another."""
    names = ("helper", "model/__init__", "model/net", "model/layers", "model/deep/__init__", "model/deep/er")
    for name in (*names, "model/deep/sub"):
        project.write(f"{name}.py", "x = 1")
    project.write("train.py", f"import {place.removesuffix('.py').replace('/', '.')}")
    project.write(place, statement)
    assert set(project.code()) == {"train.py", place, module, *also}
    assert project.changed(module, "x = 2") == {module}


def test_modules_are_looked_for_beside_the_program(project):
    """As Python does: its own folder comes first, not the working directory."""
    project.write("scripts/train.py", "import helper")
    project.write("scripts/helper.py", "x = 1")
    project.write("helper.py", "x = 1")
    words = "python scripts/train.py"
    assert set(project.code(words)) == {"train.py", "helper.py"}
    assert project.changed("scripts/helper.py", "x = 2", words) == {"helper.py"}
    assert project.changed("helper.py", "x = 2", words) == set()


def test_a_module_that_cannot_be_read_is_named(project):
    project.write("train.py", "import helper")
    (project.folder / "helper.py").symlink_to("/proc/self/mem")  # there, and every read of it fails
    with pytest.raises(SweepError, match=r"'.*helper\.py' can't be read \(Input/output error\)"):
        project.code()


def test_modules_that_import_each_other(project):
    project.write("train.py", "import a")
    project.write("a.py", "import b")
    project.write("b.py", "import a, train")
    assert set(project.code()) == {"train.py", "a.py", "b.py"}
    assert project.changed("b.py", "import a, train\nx = 1") == {"b.py"}


def test_installed_packages_are_not_followed(project):
    project.write("train.py", "import json, yaml\nfrom keras import layers\nimport nowhere.at_all")
    project.write("yaml/data.csv", "a folder that is no package")
    assert set(project.code()) == {"train.py"}


def test_a_text_that_is_a_modules_name_is_no_import(project):
    project.write("train.py", "print('helper')\nimport_module(1)\nopen('helper')")
    project.write("helper.py", "x = 1")
    assert set(project.code()) == {"train.py"}


def test_a_local_module_that_shadows_an_installed_one_is_followed(project):
    project.write("train.py", "import yaml")
    project.write("yaml.py", "x = 1")
    assert project.changed("yaml.py", "x = 2") == {"yaml.py"}


def test_pythonpath_counts_within_the_project(project, monkeypatch, tmp_path):
    project.write("scripts/train.py", "import one, two")
    words = "python scripts/train.py"
    project.write("lib/one/__init__.py", "x = 1")
    project.write("lib/two/__init__.py", "from . import three")
    project.write("lib/two/three.py", "x = 1")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "one.py").write_text("x = 1")
    monkeypatch.setenv("PYTHONPATH", f"{outside}{os.pathsep}{project.folder / 'lib'}")
    assert set(project.code(words)) == {"train.py", "one/__init__.py", "two/__init__.py", "two/three.py"}
    assert project.changed("lib/one/__init__.py", "x = 2", words) == {"one/__init__.py"}
    assert project.changed("lib/two/__init__.py", "from . import three\nx = 2", words) == {"two/__init__.py"}


def test_python_m(project):
    project.write("train.py", "")
    project.write("pkg/__init__.py", "x = 1")
    project.write("pkg/mod.py", "from . import other\nimport top")
    project.write("pkg/other.py", "x = 1")
    project.write("top.py", "x = 1")
    words = "python -m pkg.mod --train.py"
    assert set(project.code(words)) == {"pkg/__init__.py", "pkg/mod.py", "pkg/other.py", "top.py"}
    for module in ("pkg/__init__.py", "pkg/other.py", "top.py"):
        assert project.changed(module, "x = 2", words) == {module}
    project.write("pkg/mod.py", "x = 1")
    assert project.changed("pkg/__init__.py", "x = 3", words) == {"pkg/__init__.py"}  # it runs all the same


def test_python_m_of_a_package(project):
    project.write("pkg/__init__.py", "")
    project.write("pkg/__main__.py", "from pkg import net")
    project.write("pkg/net.py", "x = 1")
    assert set(project.code("python -m pkg")) == {"pkg/__init__.py", "pkg/__main__.py", "pkg/net.py"}
    assert project.changed("pkg/net.py", "x = 2", "python -m pkg") == {"pkg/net.py"}


def test_python_m_of_an_installed_launcher(project):
    project.write("train.py", "x = 1")
    words = "python -m torch.distributed.run train.py"
    assert project.changed("train.py", "x = 2", words) == {"train.py"}
    # Not every -m is Python's.
    assert project.changed("train.py", "x = 3", "runner -m train.py") == {"train.py"}


def test_a_folder_as_a_program(project):
    project.write("app/__main__.py", "import helper")
    project.write("app/helper.py", "x = 1")
    assert project.changed("app/helper.py", "x = 2", "python app") == {"helper.py"}


def test_other_languages_count_by_their_bytes(project):
    project.write("fit.R", "x <- 1")
    project.write("conf.yaml", "a: 1")
    words = "Rscript fit.R --config=conf.yaml {flags}"
    assert set(project.code(words)) == {"fit.R", "conf.yaml"}
    assert project.changed("fit.R", "x <- 1 # comment", words) == {"fit.R"}
    assert project.changed("conf.yaml", "a: 2", words) == {"conf.yaml"}


def test_the_interpreter_is_no_part_of_the_program(project):
    """Another Python version changes nothing, however it is named."""
    project.write("train.py", "x = 1")
    project.write(".venv/bin/python", b"\x7fELF 1")
    project.write(".venv/bin/python3.11", b"\x7fELF 1")
    plain = project.code("python train.py")
    assert project.code(".venv/bin/python train.py") == plain
    assert project.code("nice .venv/bin/python3.11 -u train.py") == plain
    assert project.code(f"{sys.executable} train.py") == plain


def test_a_program_that_is_no_python_source_counts(project):
    project.write("fit", b"\x7fELF 1")
    assert project.changed("fit", "\x7fELF 2", "./fit {flags}") == {"fit"}


def test_files_of_the_same_name_all_count(project):
    for name in ("a/main.py", "b/main.py"):
        project.write(name, "x = 1")
    words = "python a/main.py --then b/main.py"
    assert len(project.code(words)) == 2
    assert len(project.changed("a/main.py", "x = 2", words)) == 1
    assert len(project.changed("b/main.py", "x = 2", words)) == 1


def test_the_digest_is_the_same_in_another_place(project, tmp_path):
    """Results and sources copied to another machine."""
    project.write("scripts/train.py", "import model.net, zoo")
    for name in ("scripts/model/__init__", "scripts/model/net", "scripts/zoo"):
        project.write(f"{name}.py", f"x = {name!r}")
    words = ["python", "scripts/train.py"]
    before = digest_program(words, [project.folder], Memo(tmp_path / "none"))
    other = tmp_path / "another" / "place"
    other.parent.mkdir()
    project.folder.rename(other)
    assert digest_program(words, [other], Memo(tmp_path / "none")) == before
    assert [part.partition("=")[0] for part in before.split()] == [
        *("model/__init__.py", "model/net.py", "train.py", "zoo.py"),
    ]


def test_many_modules_are_one_digest(project, tmp_path):
    names = [f"m{i:02}" for i in range(30)]
    for name in names:
        project.write(f"{name}.py", "x = 1")
    project.write("train.py", f"import {', '.join(names)}")
    words = ["python", "train.py"]
    before = digest_program(words, [project.folder], Memo(tmp_path / "none"))
    assert "and 30 modules=" in before
    assert len(before) < 100
    project.write("m17.py", "x = 2")
    assert digest_program(words, [project.folder], Memo(tmp_path / "none")) != before


def test_the_working_directory_comes_before_the_snakefiles(tmp_path):
    here, home = tmp_path / "here", tmp_path / "home"
    for folder in (here, home):
        folder.mkdir()
    (home / "train.py").write_text("")
    assert find("train.py", [here, home]) == home / "train.py"
    (here / "train.py").write_text("")
    assert find("train.py", [here, home]) == here / "train.py"
    assert find("none.py", [here, home]) is None


def test_words_that_can_be_no_file(tmp_path):
    """A word may be longer than any file's name: `python -c "…"`."""
    assert find("x" * 5000, [tmp_path]) is None
    assert digest_program(["python", "-c", "print('x')" * 100], [tmp_path], Memo(tmp_path / "none")) == ""


# ---- data -----------------------------------------------------------------------------------------------


def flip_a_byte(path, at: int) -> None:
    """Change one byte in place, and set the mtime back to the nanosecond."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.fixture
def settled(monkeypatch):
    """Let the clock run an hour ahead: what was just written was written long ago, so the memo takes it."""
    now = digest.time.time_ns
    monkeypatch.setattr(digest.time, "time_ns", lambda: now() + 3600 * 10**9)


@pytest.mark.parametrize(("size", "at"), [(1000, 999), (50 * 10**6, 25 * 10**6)], ids=["1 kB", "50 MB"])
@pytest.mark.parametrize("inside", [False, True], ids=["file", "folder"])
def test_one_changed_byte_is_seen_though_the_mtime_is_kept(tmp_path, settled, size, at, inside):
    path = tmp_path / ("images/deep/data.bin" if inside else "data.bin")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    name = "images" if inside else "data.bin"
    memo = Memo(tmp_path / "memo.json")
    before = digest_data([name], [tmp_path], memo)
    memo.save()
    assert digest_data([name], [tmp_path], Memo(tmp_path / "memo.json")) == before
    flip_a_byte(path, at)
    after = digest_data([name], [tmp_path], Memo(tmp_path / "memo.json"))
    assert after != before
    assert after.partition("=")[0] == before.partition("=")[0] == name
    flip_a_byte(path, at)
    assert digest_data([name], [tmp_path], Memo(tmp_path / "memo.json")) == before


def test_touch_and_place_change_no_datas_digest(tmp_path):
    """The digest of a file is the first 12 digits of its SHA-256, here of `abc` (FIPS 180-2, B.1)."""
    path = tmp_path / "a" / "data.csv"
    path.parent.mkdir()
    path.write_bytes(b"abc")
    assert digest_data(["a/data.csv"], [tmp_path], Memo(tmp_path / "none")) == "data.csv=ba7816bf8f01"
    os.utime(path, (1, 1))
    path.rename(tmp_path / "data.csv")
    assert (
        digest_data([str(tmp_path / "data.csv")], [tmp_path], Memo(tmp_path / "none"))
        == "data.csv=ba7816bf8f01"
    )


def test_a_folder_counts_by_its_names_and_contents(tmp_path):
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / "deep" / "b").write_text("2")

    def now() -> str:
        return digest_data(["images"], [tmp_path], Memo(tmp_path / "none"))

    seen = [now()]
    os.utime(folder / "a", (1, 1))
    assert now() == seen[0]
    for change in (
        lambda: (folder / "c").write_text(""),
        lambda: (folder / "a").rename(folder / "a2"),
        lambda: (folder / "deep" / "b").rename(folder / "b"),
        lambda: (folder / "b").write_text("3"),
        lambda: (folder / os.fsdecode(b"\xff.bin")).write_text("no UTF-8 name"),
        lambda: (folder / "c").unlink(),
    ):
        change()
        seen.append(now())
    assert len(set(seen)) == len(seen)


def test_links_in_a_folder(tmp_path):
    """What a link leads to counts; a circle of links has an end."""
    folder, other = tmp_path / "images", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "a").write_text("1")
    (folder / "link").symlink_to(other)
    (folder / "circle").symlink_to(folder)
    (folder / "broken").symlink_to(tmp_path / "none")
    before = digest_data(["images"], [tmp_path], Memo(tmp_path / "none"))
    (other / "a").write_text("2")
    assert digest_data(["images"], [tmp_path], Memo(tmp_path / "none")) != before


def test_several_data(tmp_path):
    for name in ("a/x.csv", "b/x.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("1")
    before = digest_data(["a/x.csv", "b/x.csv"], [tmp_path], Memo(tmp_path / "none"))
    assert before.count("x.csv=") == 2
    (tmp_path / "a/x.csv").write_text("2")
    assert digest_data(["a/x.csv", "b/x.csv"], [tmp_path], Memo(tmp_path / "none")) != before


def test_missing_data_is_told(tmp_path):
    with pytest.raises(SweepError, match=r"data: 'none.npz' does not exist; mend the path"):
        digest_data(["none.npz"], [tmp_path], Memo(tmp_path / "none"))
    with pytest.raises(SweepError, match=r"dataset: 'none.npz' does not exist"):
        digest_data(["none.npz"], [tmp_path], Memo(tmp_path / "none"), key="dataset")


# ---- the memo --------------------------------------------------------------------------------------------


class Reader:
    """Digests files, and counts how often it does."""

    __name__ = "reader"

    def __init__(self):
        self.reads = 0

    def __call__(self, path) -> str:
        self.reads += 1
        return content(path)


def test_what_did_not_change_is_not_read_again(tmp_path, settled):
    path, kept, reader = tmp_path / "data", tmp_path / "results" / "private" / "memo.json", Reader()
    path.write_text("1")
    memo = Memo(kept)
    first = memo.digest(path, reader)
    assert memo.digest(path, reader) == first
    assert reader.reads == 1
    memo.save()
    again = Memo(kept)
    assert again.digest(path, reader) == first
    assert reader.reads == 1
    path.write_text("2")
    assert again.digest(path, reader) != first
    assert reader.reads == 2
    os.utime(path)  # touched: read, found the same
    assert again.digest(path, reader) == again.digest(path, reader)
    assert reader.reads == 3


def test_the_memo_knows_what_was_asked(tmp_path, settled):
    path = tmp_path / "code.py"
    path.write_text("x = 1")
    memo = Memo(tmp_path / "memo.json")
    assert memo.digest(path, meaning) == meaning(path) != content(path) == memo.digest(path, content)


def test_a_file_put_in_anothers_place_is_read(tmp_path, settled):
    """Same name, size and mtime; another inode."""
    path, other, reader = tmp_path / "data", tmp_path / "other", Reader()
    path.write_text("1")
    other.write_text("2")
    os.utime(path, ns=(10**18, 10**18))
    os.utime(other, ns=(10**18, 10**18))
    memo = Memo(tmp_path / "memo.json")
    first = memo.digest(path, reader)
    other.replace(path)
    assert memo.digest(path, reader) != first


def test_what_was_just_written_is_not_trusted(tmp_path):
    """A second write within one tick of the file system's clock leaves every time as it was."""
    path, reader, memo = tmp_path / "data", Reader(), Memo(tmp_path / "memo.json")
    for number in range(200):
        path.write_text(f"{number:03}")
        assert memo.digest(path, reader) == content(path)
    assert reader.reads == 200
    memo.save()
    assert not (tmp_path / "memo.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '["a"]', "\x00"])
def test_a_broken_memo_is_no_memo(tmp_path, settled, text):
    kept, path = tmp_path / "memo.json", tmp_path / "data"
    kept.write_text(text)
    path.write_text("1")
    memo = Memo(kept)
    assert memo.digest(path, content) == content(path)
    memo.save()
    reader = Reader()
    reader.__name__ = "content"
    assert Memo(kept).digest(path, reader) == content(path)
    assert reader.reads == 0


def test_a_memo_that_cannot_be_kept_is_no_error(tmp_path, settled):
    path = tmp_path / "data"
    path.write_text("1")
    memo = Memo(path / "memo.json")  # in a "folder" that is a file
    assert memo.digest(path, content) == content(path)
    memo.save()
    assert path.read_text() == "1"


def test_the_memo_forgets_what_is_gone(tmp_path, settled):
    kept = tmp_path / "memo.json"
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
        memo = Memo(kept)
        memo.digest(tmp_path / name, content)
        memo.save()
    assert "other" in kept.read_text()
    assert "/one" not in kept.read_text()
