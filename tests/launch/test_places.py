"""Outputs are whole and checked, or not there; what is kept for another attempt is for the same run only."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launch.places import BadOutput, Places, digest
from processes import PATIENCE, SCRIPTS, launch

# Runs launch until it does a certain system call for the nth time, and is killed right there.
CRASH = """
import os, signal, sys

event, count, *sys.argv[1:] = sys.argv[1:]
left = int(count)

def hook(name, _):
    global left
    if name == event:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

from launch.step import main
sys.addaudithook(hook)
main()
"""
TWO = "echo $2 > $0; mkdir -p $1; echo $2 > $1/weights"


def strict(text: str) -> dict:
    """Read JSON as a strict reader does: NaN and Infinity are none."""

    def refuse(word: str):
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def made(folder: Path, place: str, write) -> Places:
    """Fill one place, and write its output as a program would."""
    places = Places(folder, "train", {"run": "x=1"})
    (path,) = places.fill([place])
    write(Path(path))
    return places


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# ---- filling a command ------------------------------------------------------------------------------------


def test_places_are_filled_within_words(tmp_path):
    places = Places(tmp_path / "run", "train", {})
    one, two, three, four = places.fill(["--model={write:m.bin}", "{read:data}", "{keep:state}", "--x=1"])
    beside = Path(one.removeprefix("--model=")).parent
    assert beside.parent == tmp_path / "run"
    assert beside.is_dir()
    assert (two, three, four) == (str(tmp_path / "run/data"), str(tmp_path / "run/state"), "--x=1")
    assert Path(three).is_dir()


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{{write:x}}", "{write:x}"),  # text of a user, as the plan writes it: every brace doubled
        ("{{{{", "{{"),
        ("a{{b}}c", "a{b}c"),
        ("}}{{", "}{"),
        ("{{{{write:x}}}}", "{{write:x}}"),
        ("{", "{"),
        ("{other:x}", "{other:x}"),
        ("{write:}", "{write:}"),
    ],
)
def test_braces_of_a_user_are_no_places(tmp_path, word, filled):
    places = Places(tmp_path / "run", "train", {})
    assert places.fill([word]) == [filled]
    places.commit(tmp_path / "run/record.json")  # nothing was promised, so nothing is missing


def test_text_beside_a_place_may_have_braces(tmp_path):
    (word,) = Places(tmp_path, "train", {}).fill(["{{{read:m}}}"])
    assert word == "{" + str(tmp_path / "m") + "}"


# ---- outputs ----------------------------------------------------------------------------------------------


def test_output_is_in_place_only_after_the_commit(tmp_path):
    places = made(tmp_path, "{write:m.bin}", lambda path: path.write_text("weights"))
    assert not (tmp_path / "m.bin").exists()
    assert places.commit(tmp_path / "record.json") is False
    places.clear(done=True)
    assert (tmp_path / "m.bin").read_text() == "weights"
    assert names(tmp_path) == {"m.bin", "record.json"}


def make_folder(path: Path) -> None:
    (path / "variables").mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "variables/weights").write_bytes(b"\0\1")


def test_folder_may_be_an_output(tmp_path):
    """Its digest is over the name of every file in it, in order, and the digest of its content."""
    places = made(tmp_path, "{write:model/}", make_folder)
    places.commit(tmp_path / "record.json")
    assert (tmp_path / "model/variables/weights").read_bytes() == b"\0\1"
    sha256 = lambda data: hashlib.sha256(data).hexdigest()  # noqa: E731
    text = f"config.json\0{sha256(b'{}')}\0variables/weights\0{sha256(bytes([0, 1]))}\0"
    outputs = json.loads((tmp_path / "record.json").read_text())["outputs"]
    assert outputs == {"model": sha256(text.encode())}


def test_time_stamp_of_snakemake_does_not_count(tmp_path):
    make_folder(tmp_path / "model")
    before = digest(tmp_path / "model")
    (tmp_path / "model/.snakemake_timestamp").write_text("")
    assert digest(tmp_path / "model") == before


def test_names_that_are_no_text_can_be_digested(tmp_path):
    make_folder(tmp_path / "model")
    before = digest(tmp_path / "model")
    with open(os.fsencode(tmp_path / "model") + b"/\xff", "w") as file:
        file.write("x")
    assert digest(tmp_path / "model") != before


@pytest.mark.parametrize(
    ("place", "write", "says"),
    [
        ("{write:m.bin}", lambda path: None, "without writing m.bin"),
        ("{write:m.bin}", lambda path: path.symlink_to("nowhere"), "without writing m.bin"),
        ("{write:m.bin}", lambda path: path.touch(), "m.bin is empty"),
        ("{write:model/}", lambda path: None, "without writing model"),
        ("{write:model/}", lambda path: path.mkdir(), "the folder model is empty"),
        ("{write:model/}", lambda path: (path.mkdir(), (path / "w").touch()), "the folder model is empty"),
        ("{metrics:m.json}", lambda path: path.write_text('{"a": 1'), "m.json is no JSON"),
        ("{metrics:m.json}", lambda path: path.write_text("accuracy: 1"), "m.json is no JSON"),
        ("{metrics:m.json}", lambda path: path.write_text("{'a': 1}"), "m.json is no JSON"),
        ("{metrics:m.json}", lambda path: path.write_text('{"a": 1}\n{"a": 2}'), "m.json is no JSON"),
        ("{metrics:m.json}", lambda path: path.write_text("[" * 100_000), "m.json is no JSON"),
        ("{metrics:m.json}", lambda path: path.write_bytes(b'{"a": "\xff"}'), "m.json is no JSON"),
        ("{metrics:m.json}", lambda path: path.write_text("{}"), "m.json must hold one object"),
        ("{metrics:m.json}", lambda path: path.write_text("[0.5]"), "m.json must hold one object"),
        ("{metrics:m.json}", lambda path: path.write_text("0.5"), "m.json must hold one object"),
        ("{metrics:m.json}", lambda path: path.write_text("null"), "m.json must hold one object"),
        ("{metrics:m.json}", lambda path: path.write_text("NaN"), "m.json must hold one object"),
        (
            "{metrics:m.json}",
            lambda path: path.write_text('{"a": {"b": 1}}'),
            "must be flat, but 'a' holds dict",
        ),
        ("{metrics:m.json}", lambda path: path.write_text('{"a": [1]}'), "must be flat, but 'a' holds list"),
    ],
)
def test_bad_output_is_refused(tmp_path, place, write, says):
    """C21 a-c: https://github.com/snakemake/snakemake/issues/344."""
    places = made(tmp_path, place, write)
    with pytest.raises(BadOutput, match=says):
        places.commit(tmp_path / "record.json")
    places.clear(done=False)
    assert names(tmp_path) == set()


def test_one_bad_output_keeps_the_good_ones_out(tmp_path):
    places = Places(tmp_path, "train", {})
    good, _ = places.fill(["{write:m.bin}", "{write:history.csv}"])
    Path(good).write_text("weights")
    with pytest.raises(BadOutput, match="without writing history.csv"):
        places.commit(tmp_path / "record.json")
    places.clear(done=False)
    assert names(tmp_path) == set()


def test_missing_input_is_an_error(tmp_path):
    places = made(tmp_path, "{read:m.bin}", lambda path: None)
    with pytest.raises(FileNotFoundError, match="m.bin"):
        places.commit(tmp_path / "record.json")


@pytest.mark.parametrize(
    ("text", "metrics", "diverged"),
    [
        ('{"accuracy": 0.5, "n": 3, "ok": true, "note": "é"}', {"accuracy": 0.5, "n": 3, "ok": True, "note": "é"}, False),
        ('{"loss": NaN, "a": 0.5}', {"loss": None, "a": 0.5}, True),
        ('{"loss": Infinity, "low": -Infinity}', {"loss": None, "low": None}, True),
        ('{"loss": 1e999}', {"loss": None}, True),  # more than a double holds reads as infinite
        ('{"loss": null, "a": 1}', {"loss": None, "a": 1}, True),  # a program that writes strict JSON itself
        ('{"note": "NaN"}', {"note": "NaN"}, False),
    ],
)  # fmt: skip
def test_metrics_are_strict_json_in_one_line(tmp_path, text, metrics, diverged):
    """C19: other readers break on NaN, and one odd metric must not lose the others."""
    places = made(tmp_path, "{metrics:m.json}", lambda path: path.write_text(text))
    assert places.commit(tmp_path / "record.json") is diverged
    written = (tmp_path / "m.json").read_text()
    assert strict(written) == metrics
    assert written.index("\n") == len(written) - 1
    assert json.loads((tmp_path / "record.json").read_text())["diverged"] is diverged


def test_record_is_strict_json_that_ends_in_a_newline(tmp_path):
    made(tmp_path, "{write:m.bin}", lambda path: path.write_text("x")).commit(tmp_path / "record.json")
    text = (tmp_path / "record.json").read_text()
    assert text.endswith("}\n")
    assert strict(text)["made_with"] == {"run": "x=1"}


@pytest.mark.parametrize("name", ["record", "record.txt", "m"])
def test_output_may_be_called_like_the_record(tmp_path, name):
    places = made(tmp_path, f"{{write:{name}}}", lambda path: path.write_text("weights"))
    places.commit(tmp_path / "record.json")
    assert (tmp_path / name).read_text() == "weights"
    assert strict((tmp_path / "record.json").read_text())["outputs"] == {
        name: hashlib.sha256(b"weights").hexdigest()
    }


# ---- old outputs, crashes ---------------------------------------------------------------------------------


def old_file(path: Path) -> None:
    path.write_text("old")


def old_folder(path: Path) -> None:
    path.mkdir()
    (path / "old").write_text("old")


def old_link(path: Path) -> None:
    old_folder(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("old", [old_file, old_folder, old_link])
@pytest.mark.parametrize("new", ["file", "folder"])
def test_old_output_is_replaced_whole(tmp_path, old, new):
    """`model: m` may have become `model: m/` since."""
    old(tmp_path / "m")
    if new == "file":
        made(tmp_path, "{write:m}", lambda p: p.write_text("new")).commit(tmp_path / "record.json")
        assert (tmp_path / "m").read_text() == "new"
    else:
        made(tmp_path, "{write:m/}", make_folder).commit(tmp_path / "record.json")
        assert names(tmp_path / "m") == {"config.json", "variables"}
    assert not (tmp_path / "m").is_symlink()
    if old is old_link:
        assert names(tmp_path / "elsewhere") == {"old"}  # what it pointed at is not ours


def test_new_attempt_removes_what_a_crash_left_of_the_same_step(tmp_path):
    made(tmp_path, "{write:m}", make_folder)
    other = Places(tmp_path, "evaluate", {})
    (word,) = other.fill(["{write:e}"])
    Path(word).write_text("another step's")
    assert len(list(tmp_path.glob(".train-*"))) == 1
    Places(tmp_path, "train", {}).clear(done=False)
    assert list(tmp_path.glob(".train-*")) == []
    assert Path(word).exists()


@pytest.mark.parametrize("count", [2, 3, 4])  # the first rename is that of the link to the log
def test_crash_while_outputs_are_put_in_place(tmp_path, count):
    """Two outputs and a record are three renames; the record must never stand for a mixture of old and new.

    Snakemake would have removed the old outputs; launch by itself must not need that.
    """

    def words(text: str) -> list[str]:
        return launch(tmp_path, "sh", "-c", TWO, "{write:a}", "{write:b/}", text)

    def digests() -> dict:
        return {name: digest(tmp_path / "run" / name) for name in ("a", "b")}

    record = tmp_path / "run/record.json"
    subprocess.run(words("old"), cwd=tmp_path, check=True, timeout=PATIENCE)
    assert json.loads(record.read_text())["outputs"] == digests()
    crash = [sys.executable, "-c", CRASH, "os.rename", str(count), *words("new")[3:]]
    env = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(crash, cwd=tmp_path, env=env, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL
    assert not record.exists()
    subprocess.run(words("new"), cwd=tmp_path, check=True, timeout=PATIENCE)
    assert (tmp_path / "run/a").read_text() == (tmp_path / "run/b/weights").read_text() == "new\n"
    assert json.loads(record.read_text())["outputs"] == digests()
    assert list((tmp_path / "run").glob(".train-*")) == []


# ---- what is kept for another attempt ---------------------------------------------------------------------


def kept(folder: Path, made_with: dict[str, str], done: bool, write: str = "") -> set[str]:
    """Make an attempt; return what its state folder held at its start."""
    places = Places(folder, "train", made_with)
    (state,) = map(Path, places.fill(["{keep:state}"]))
    found = names(state)
    if write:
        (state / write).write_text("checkpoint")
    places.clear(done=done)
    return found


def test_state_survives_failed_attempts_and_goes_with_success(tmp_path):
    made_with = {"run": "x=1/seed=0", "code": "train.py=ab", "data": ""}
    assert kept(tmp_path, made_with, done=False, write="epoch-1") == set()
    assert kept(tmp_path, made_with, done=False, write="epoch-2") == {"epoch-1"}
    assert kept(tmp_path, made_with, done=True) == {"epoch-1", "epoch-2"}
    assert names(tmp_path) == set()
    assert kept(tmp_path, made_with, done=False) == set()


@pytest.mark.parametrize(
    "other",
    [
        {"code": "train.py=cd"},
        {"code": "train.py=ab", "data": "d=1"},
        {},
        {"code": ""},
        {"other": "train.py=ab"},
    ],
)
def test_state_made_with_something_else_is_emptied(tmp_path, other):
    kept(tmp_path, {"code": "train.py=ab"}, done=False, write="epoch-1")
    assert kept(tmp_path, other, done=False) == set()
    assert kept(tmp_path, {"code": "train.py=ab"}, done=False) == set()  # and does not come back


@pytest.mark.parametrize("owner", ["", "code", "code train.py"])
def test_state_of_nobody_is_emptied(tmp_path, owner):
    """Half written by a crash, the note of what it was made with says nothing."""
    kept(tmp_path, {"code": "train.py=ab"}, done=False, write="epoch-1")
    (tmp_path / ".state.made-with").write_text(owner)
    assert kept(tmp_path, {"code": "train.py=ab"}, done=False) == set()


def test_state_that_is_a_link_is_emptied_as_well(tmp_path):
    """To scratch, say: a checkpoint of another run must not be gone on from."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch/epoch-1").write_text("another run's")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/state").symlink_to("../scratch")
    assert kept(tmp_path / "run", {"code": "x"}, done=False) == set()
