"""A study in a temporary folder, run by the real Snakemake: what the end-to-end tests share."""

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parent.parent

# Tiny programs: the "model" is a JSON file that holds what the program was given.
TRAIN = '''\
"""Train nothing in no time."""
import argparse
import json

import helper

parser = argparse.ArgumentParser(allow_abbrev=False)
for name in ("seed", "data", "model", "history"):
    parser.add_argument(f"--{name}")
options, flags = parser.parse_known_args()
with open(options.model, "w") as file:
    json.dump({"seed": int(options.seed), "flags": flags, "bonus": helper.bonus()}, file)
if options.history:
    with open(options.history, "w") as file:
        file.write("epoch,loss\\n1,0.5\\n")
'''
HELPER = "def bonus():\n    from package import number\n    return number.ZERO\n"
EVAL = '''\
"""Score the model: more for a larger x."""
import argparse
import json

parser = argparse.ArgumentParser(allow_abbrev=False)
for name in ("model", "metrics", "split"):
    parser.add_argument(f"--{name}")
options = parser.parse_args()
with open(options.model) as file:
    model = json.load(file)
x = sum(float(flag.partition("=")[2]) for flag in model["flags"] if flag.startswith("--x="))
with open(options.metrics, "w") as file:
    json.dump({"accuracy": (x + model["seed"] / 100) / (1 + x), "loss": 1 / (1 + x)}, file)
'''
CONFIG = """\
train: python train.py {flags} --seed {seed} --data {data} --model {model} --history {history}
eval: python eval.py --model {model} --split {split} --metrics {metrics}
data: data.bin
model: model.json
fixed: {epochs: 2}
grid:
  x: [1, 2]
  y: [adam, sgd]
seeds: [0, 1]
"""


@dataclass
class Outcome:
    """What a call of snakemake did.

    Attributes:
        status: its exit status.
        text: what it printed.
        log: all its messages, of which it shows progress instead.
    """

    status: int
    text: str
    log: str

    @property
    def jobs(self) -> tuple[int, int]:
        """Count the train and evaluate jobs that were started."""
        return tuple(
            len(re.findall(rf"^(?:local)?rule {rule}:", self.log, re.M)) for rule in ("train", "evaluate")
        )


class Study:
    """A folder with tiny programs, data and a config, and ways to edit and run it."""

    def __init__(self, folder: Path, config: str = CONFIG, train: str = TRAIN, evaluate: str = EVAL):
        self.folder = folder
        self.write("train.py", train)
        self.write("helper.py", HELPER)
        self.write("package/__init__.py", "")
        self.write("package/number.py", "ZERO = 0\n")
        self.write("eval.py", evaluate)
        self.write("data.bin", "some data")
        self.write("config.yaml", config)

    @property
    def results(self) -> Path:
        """Return the results folder."""
        return self.folder / "results"

    def write(self, name: str, text: str) -> Path:
        """Write a file of the study."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = dedent(text)
        if name == "config.yaml" and "\nreport:" not in text:  # drawing takes longer than such a study
            text = f"{text.rstrip()}\nreport: false\n"
        path.write_text(text)
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text that stands in a file."""
        path = self.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def snakemake(self, *arguments: str, status: int | None = 0, env: dict | None = None) -> Outcome:
        """Run snakemake as a user would, and expect an exit status (None: any)."""
        words = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile")]
        words += [*arguments] if "--cores" in arguments or "-n" in arguments else ["--cores", "2", *arguments]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=os.environ | {"PATH": path} | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        written = re.search(r"^Complete log\(s\): (.*)$", done.stdout, re.M)
        log = Path(written[1]).read_text() if written else done.stdout
        outcome = Outcome(done.returncode, done.stdout, log)
        assert status is None or outcome.status == status, outcome.text
        # A program's own may be shown, as the end of its log.
        assert not re.search(r"^(?!\s*\| ).*Traceback", outcome.text, re.M), outcome.text
        return outcome

    def table(self, name: str = "runs.csv") -> list[dict[str, str]]:
        """Read a table of the results folder."""
        with (self.results / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def json(self, name: str) -> dict:
        """Read a JSON file of the results folder as a strict reader would."""

        def refuse(word: str):
            raise ValueError(f"{word} is no JSON")

        return json.loads((self.results / name).read_text(), parse_constant=refuse)
