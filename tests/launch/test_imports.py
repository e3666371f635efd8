"""What may be imported beforehand, and what forbids it."""

import pytest
from launch.imports import beginning
from launch.process import Cold


@pytest.fixture
def read(tmp_path):
    """Analyse a program, with modules beside it."""

    def read(program: str, **modules: str):
        for name, text in modules.items():
            path = tmp_path / f"{name.replace('___', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        (tmp_path / "train.py").write_text(program)
        found = beginning(str(tmp_path / "train.py"))
        return found.imports, found.environ

    return read


HARMLESS = '''\
"""What it does."""
from __future__ import annotations
import json, os.path
from collections.abc import Mapping
SIZES: list[int] = [1, 2, -3]
NAMES = ("a", f"{SIZES}")
TABLE = {"a": 1} | {"b": 2}
def main(count: int = 3, *, name=None) -> None:
    print("later")
class Model:
    """A model."""
    size = 3
    def run(self): ...
'''


def test_installed_packages_in_their_order(read):
    program = (
        HARMLESS
        + "import numpy as np\nfrom keras.layers import Dense, Flatten as F\nimport yaml.nodes\nmain()\n"
    )
    assert read(program) == (
        ["import numpy", "from keras.layers import Dense, Flatten", "import yaml.nodes"],
        {},
    )


def test_what_comes_after_the_last_import_does_not_matter(read):
    assert read("import numpy\nnumpy.random.seed(0)\nimport json\nprint(1)\n")[0] == ["import numpy"]


def test_local_modules_are_followed_at_their_place(read):
    imports, _ = read("import digits\nimport keras\n", digits="import numpy\nimport train\n")
    assert imports == ["import numpy", "import keras"]


def test_local_packages_are_followed(read):
    assert read(
        "from models import net\nimport keras\n", models_____init__="", models___net="import numpy\n"
    )[0] == [
        "import numpy",
        "import keras",
    ]


def test_constant_environment_joins_the_server(read):
    program = 'import os\nos.environ["KERAS_BACKEND"] = "jax"\nimport keras\nos.environ["LATER"] = "x"\n'
    assert read(program) == (["import keras"], {"KERAS_BACKEND": "jax", "LATER": "x"})


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("import os\nos.environ['A'] = str(1)", 2),
        ("import os\nos.environ.setdefault('A', '1')", 2),
        ("import sys\nsys.path.insert(0, 'lib')", 2),
        ("import sys\nsys.path += ['lib']", 2),
        ("import matplotlib\nmatplotlib.use('Agg')", 2),
        ("print('hello')", 1),
        ("X = open('x')", 1),
        ("if True:\n    pass", 1),
        ("try:\n    import jax\nexcept ImportError:\n    jax = None", 1),
        ("@decorated\ndef f(): pass", 1),
        ("def f(x=print()): pass", 1),
        ("class A(metaclass=B): pass", 1),
        ("class A:\n    x = print()", 1),
        ("del X", 1),
        ("assert X", 1),
        ("from . import x", 1),
    ],
)
def test_what_could_matter_is_named_with_its_line(read, before, line):
    with pytest.raises(Cold, match=f"line {line} of train.py comes before `import numpy`"):
        read(f"{before}\nimport numpy\n")


def test_what_a_local_module_does_before_matters_too(read):
    with pytest.raises(Cold, match="line 2 of helper.py comes before `import numpy`"):
        read("import helper\nimport numpy\n", helper="import logging\nlog = logging.getLogger()\n")


@pytest.mark.parametrize("program", ["import json\n", "print(\n", "\0"])
def test_nothing_to_import_or_to_read(read, program):
    with pytest.raises(Cold):
        read(program)
