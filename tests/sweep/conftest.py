"""What the tests of the planning package share: a config is read from a real file."""

from textwrap import dedent

import pytest
from sweep.config import read_config

COMMANDS = """\
train: python train.py {flags} --seed {seed} --model {model}
eval: python eval.py --model {model} --metrics {metrics}
"""


@pytest.fixture
def read(tmp_path):
    """Read a config from its text; `seeds: 1` and the two commands are added where the text lacks them."""

    def read(text: str, overrides: dict | None = None):
        text = dedent(text)
        for key, line in (
            ("train:", COMMANDS.splitlines()[0]),
            ("eval:", COMMANDS.splitlines()[1]),
            ("seeds:", "seeds: 1"),
        ):
            if not any(row.startswith(key) for row in text.splitlines()):
                text += f"\n{line}"
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return read_config(path, overrides or {})

    return read
