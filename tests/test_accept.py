"""`accept.py` as a command line, and what the planner reads in the file that it leaves."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sweep.results import Accepted

PROGRAM = Path(__file__).resolve().parent.parent / "workflow" / "scripts" / "accept.py"


@pytest.fixture
def accept(tmp_path):
    """Accept versions: (step, before, now, number of runs) each."""

    def accept(*versions: tuple) -> str:
        words = [sys.executable, PROGRAM, tmp_path / "accepted.yaml", json.dumps(versions)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return accept


def classes(folder: Path) -> list[tuple[str, list[str]]]:
    """Read the file as YAML, as anybody would."""
    items = yaml.safe_load((folder / "accepted.yaml").read_text())
    return [(item["step"], item["code"]) for item in items]


def test_nothing_to_accept(accept, tmp_path):
    assert accept() == "Nothing to accept: no finished run was made with other code.\n"
    assert list(tmp_path.iterdir()) == []


def test_first_time(accept, tmp_path):
    """It says which digests and how many runs."""
    text = accept(
        ("train", "train.py=aa model.py=11", "train.py=bb model.py=11", 8), ("evaluate", "e=1", "e=2", 1)
    )
    assert text == (
        "Accepted for 8 runs (train):\n"
        "  made with train.py=aa model.py=11\n"
        "  now       train.py=bb model.py=11\n"
        "Accepted for 1 run (evaluate):\n"
        "  made with e=1\n"
        "  now       e=2\n"
        f"Written to {tmp_path / 'accepted.yaml'}. Type the study's command again: it runs nothing for them.\n"
    )
    assert classes(tmp_path) == [
        ("train", ["train.py=aa model.py=11", "train.py=bb model.py=11"]),
        ("evaluate", ["e=1", "e=2"]),
    ]
    assert (tmp_path / "accepted.yaml").read_text().startswith("# Versions of program code")
    assert [path.name for path in tmp_path.iterdir()] == ["accepted.yaml"]


def test_planner_reads_it(accept, tmp_path):
    assert not Accepted(tmp_path).any
    accept(("train", "t=a", "t=b", 1))
    accepted = Accepted(tmp_path)
    assert accepted.any
    assert accepted.equal("train", "t=a", "t=b")
    assert accepted.equal("train", "t=b", "t=a")
    assert accepted.equal("train", "t=c", "t=c")
    assert not accepted.equal("train", "t=a", "t=c")
    assert not accepted.equal("evaluate", "t=a", "t=b")


def test_classes_that_overlap_become_one(accept, tmp_path):
    """a = b and c = d, then b = c: all four are equal."""
    accept(("train", "a", "b", 1))
    accept(("train", "c", "d", 1))
    accept(("evaluate", "a", "z", 1))
    assert sorted(classes(tmp_path)) == [
        ("evaluate", ["a", "z"]),
        ("train", ["a", "b"]),
        ("train", ["c", "d"]),
    ]
    assert not Accepted(tmp_path).equal("train", "a", "d")
    accept(("train", "b", "c", 1))
    assert sorted(classes(tmp_path)) == [("evaluate", ["a", "z"]), ("train", ["a", "b", "c", "d"])]
    assert Accepted(tmp_path).equal("train", "a", "d")


def test_several_old_versions_are_accepted_at_once(accept, tmp_path):
    accept(("train", "a", "now", 2), ("train", "b", "now", 3))
    assert classes(tmp_path) == [("train", ["a", "b", "now"])]


def test_accepting_again_changes_nothing(accept, tmp_path):
    accept(("train", "a", "b", 1))
    before = classes(tmp_path)
    accept(("train", "a", "b", 1))
    assert classes(tmp_path) == before


@pytest.mark.parametrize(
    "code", ["", "modèle.py=1 train.py=2", "a: b # c", 'say "x"', "- x", "{a}", "\x7f", "𝛼.py=1"]
)
def test_any_digest_reads_back(accept, tmp_path, code):
    """Names of files are in it; YAML and JSON must agree on each."""
    accept(("train", code, "now", 1))
    assert Accepted(tmp_path).equal("train", code, "now")
    accept(("train", "now", "later", 1))
    assert Accepted(tmp_path).equal("train", code, "later")


def test_date_of_a_class_stays(accept, tmp_path):
    """A class that is not touched keeps the day on which it changed."""
    accept(("train", "a", "b", 1))
    file = tmp_path / "accepted.yaml"
    file.write_text(re.sub(r"\d{4}-\d\d-\d\d", "2020-02-29", file.read_text()))
    accept(("evaluate", "c", "d", 1))
    assert [item["changed"] == "2020-02-29" for item in yaml.safe_load(file.read_text())] == [True, False]


def test_edited_file_is_still_read(accept, tmp_path):
    """The header invites to remove items; whoever does may also write them as YAML people do."""
    (tmp_path / "accepted.yaml").write_text("# mine\n- step: train\n  code: [a, b]\n")
    accept(("train", "b", "c", 1))
    assert classes(tmp_path) == [("train", ["a", "b", "c"])]


def test_removing_an_item_makes_its_versions_differ_again(accept, tmp_path):
    accept(("train", "a", "b", 1))
    accept(("evaluate", "c", "d", 1))
    file = tmp_path / "accepted.yaml"
    text, count = re.subn(r"- step: train\n(?:  .*\n)+", "", file.read_text())
    assert count == 1
    file.write_text(text)
    assert not Accepted(tmp_path).equal("train", "a", "b")
    assert Accepted(tmp_path).equal("evaluate", "c", "d")
