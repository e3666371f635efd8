"""What a results folder holds: runs that judge themselves, what changed in words, files that are read and written."""

import csv
import json
import os
import shlex
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import naming, results
from sweep.errors import SweepError
from sweep.results import Accepted, Verdict

NOW = {
    "run": "a=1/seed=0",
    "command": "python train.py '{flags}'",
    "fixed": "--epochs=20",
    "code": "helper.py=111111111111 train.py=222222222222",
    "data": "digits.npz=333333333333",
}


@pytest.fixture
def judge(tmp_path):
    """Judge a training whose record was made with something."""

    def judge(before: object, now: dict = NOW, step: str = "train", accepted: str = "") -> Verdict:
        (tmp_path / "accepted.yaml").write_text(accepted)
        folder = tmp_path / "a=1" / "seed=0"
        folder.mkdir(parents=True, exist_ok=True)
        name = {"train": "record.json", "evaluate": "evaluation.json"}[step]
        (folder / name).write_text(before if isinstance(before, str) else json.dumps({"made_with": before}))
        return results.judge(folder, step, now, Accepted(tmp_path))[0]

    return judge


# ---- judging ------------------------------------------------------------------------------------------


def test_a_run_without_a_record_is_missing(tmp_path):
    verdict, record = results.judge(tmp_path / "a=1/seed=0", "train", NOW, Accepted(tmp_path))
    assert (verdict, record) == (results.MISSING, {})
    assert not verdict.there
    assert not verdict.fresh
    (tmp_path / "a=1/seed=0").mkdir(parents=True)
    (tmp_path / "a=1/seed=0/evaluation.json").write_text(json.dumps({"made_with": NOW}))
    assert results.judge(tmp_path / "a=1/seed=0", "train", NOW, Accepted(tmp_path))[0] == results.MISSING


@pytest.mark.parametrize("step", ["train", "evaluate"])
def test_a_run_made_with_the_same_is_fresh(judge, step):
    verdict = judge(dict(reversed(NOW.items())), step=step)
    assert verdict == Verdict(there=True, changed=(), code=NOW["code"])
    assert verdict.fresh


def test_the_record_is_returned_whole(tmp_path):
    record = {"made_with": NOW, "outputs": {"model.keras": "444444444444"}}
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert results.judge(tmp_path, "train", NOW, Accepted(tmp_path))[1] == record


@pytest.mark.parametrize("part", list(NOW))
def test_any_part_that_differs_makes_it_stale(judge, part):
    verdict = judge(NOW | {part: "other"})
    assert verdict.there
    assert not verdict.fresh
    assert verdict.changed == ((part, "other", NOW[part]),)
    without = {name: text for name, text in NOW.items() if name != part}
    assert judge(without).changed == ((part, "", NOW[part]),)


def test_all_differences_are_named_in_order(judge):
    verdict = judge(NOW | {"data": "x", "fixed": "y"})
    assert [change[0] for change in verdict.changed] == ["fixed", "data"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", "{}", '{"made_with": 3}', '{"made_with": ["a"]}', '{"made_with": null}'],
)
def test_a_record_that_cannot_be_read_is_stale_and_no_traceback(judge, text):
    verdict = judge(text)
    assert verdict.there
    assert not verdict.fresh
    assert results.describe(*verdict.changed[0]) == "its record is unreadable"


# ---- accepted code ---------------------------------------------------------------------------------------

OLD = "helper.py=000000000000 train.py=222222222222"
CLASS = (
    f"# a comment\n- {json.dumps({'step': 'train', 'code': [NOW['code'], OLD], 'changed': '2026-01-01'})}\n"
)


def test_accepted_code_counts_as_equal_and_keeps_its_own_digest(judge):
    verdict = judge(NOW | {"code": OLD}, accepted=CLASS)
    assert verdict.fresh
    assert verdict.code == OLD


def test_acceptance_excuses_nothing_else(judge):
    verdict = judge(NOW | {"code": OLD, "data": "x"}, accepted=CLASS)
    assert verdict.changed == (("data", "x", NOW["data"]),)
    assert verdict.code == OLD
    assert not judge(NOW | {"code": OLD}, step="evaluate", accepted=CLASS).fresh
    assert not judge(NOW | {"code": "train.py=999999999999"}, accepted=CLASS).fresh
    assert not judge(NOW | {"code": OLD}, now=NOW | {"code": "train.py=999999999999"}, accepted=CLASS).fresh


def test_classes_of_accepted_code(tmp_path):
    assert not Accepted(tmp_path).any
    assert Accepted(tmp_path).equal("train", "a=1", "a=1")
    assert not Accepted(tmp_path).equal("train", "a=1", "a=2")
    (tmp_path / "accepted.yaml").write_text(
        "- {step: train, code: [a=1, a=2, a=3]}\n- {step: train, code: [b=1, b=2]}\n"
    )
    accepted = Accepted(tmp_path)
    assert accepted.any
    assert accepted.equal("train", "a=1", "a=3")
    assert accepted.equal("train", "b=2", "b=1")
    assert not accepted.equal("train", "a=1", "b=1")
    assert not accepted.equal("evaluate", "a=1", "a=2")


def test_an_empty_file_accepts_nothing(tmp_path):
    (tmp_path / "accepted.yaml").write_text("# only a comment\n")
    assert not Accepted(tmp_path).any


@pytest.mark.parametrize(
    "text", ["{", "3", "- a", "- {step: train}", "- {code: [a]}", "a: 1", "- {step: train, code: 3}"]
)
def test_a_broken_file_is_told(tmp_path, text):
    (tmp_path / "accepted.yaml").write_text(text)
    with pytest.raises(SweepError, match=r"(?s)accepted\.yaml: can't be read .*; mend it, or remove it"):
        Accepted(tmp_path)


# ---- what changed, in words ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "before", "now", "words"),
    [
        ("code", "a.py=1 b.py=2", "a.py=1 b.py=3", "b.py changed"),
        ("code", "a.py=1", "a.py=2 model/net.py=3", "a.py, model/net.py changed"),
        ("code", "", "a.py=1", "a.py changed"),
        ("code", "my net.py=1 b.py=2", "my net.py=3 b.py=2", "my net.py changed"),
        ("code", "a.py=1 b.py=2?", "a.py=1 b.py=2", "b.py changed"),
        ("code", "a.py=1 and 12 modules=4", "a.py=1 and 12 modules=5", "and 12 modules changed"),
        ("data", "digits.npz=1", "digits.npz=2", "digits.npz changed"),
        ("data", "digits.npz=1 dataset:a.csv=1", "digits.npz=1 dataset:a.csv=2", "dataset:a.csv changed"),
        ("data", "x.csv=1 x.csv=2", "x.csv=3 x.csv=2", "data changed"),  # two of one name
        ("command", "python train.py", "python -u train.py", "the command changed"),
        ("run", "a=1/seed=1", "a=1/seed=0", "made for a=1/seed=1"),
        ("run", "", "a=1/seed=0", "made for another run"),
        ("model", "1", "2", "evaluated another model"),
        ("fixed", "--epochs=2", "--epochs=3", "epochs 2 → 3"),
        ("fixed", "", "--epochs=3", "epochs unset → 3"),
        ("fixed", "--epochs=3", "", "epochs 3 → unset"),
        ("fixed", "--a=1 --b=2 --c=3", "--a=1 --b=3 --c=4", "b 2 → 3, c 3 → 4"),
        ("fixed", "--augment", "--no-augment", "augment on → off"),
        ("fixed", "--hidden 64 64 --x=1", "--hidden 128 --x=1", "hidden 64 64 → 128"),
        ("fixed", "--hidden", "--hidden 64 -1", "hidden on → 64 -1"),
        ("fixed", "'--tag=a b=c'", "'--tag=a b=d'", "tag a b=c → a b=d"),
        ("fixed", "--tag=--x", "--tag=-x", "tag --x → -x"),
    ],
)
def test_a_change_is_worded_by_file_or_flag(part, before, now, words):
    assert results.describe(part, before, now) == words


plain = st.text("ab -='\"$é\n", max_size=5)
flat = (
    st.booleans()
    | st.integers()
    | plain
    | st.lists(st.integers(0, 9) | plain, min_size=1, max_size=3).filter(lambda v: not naming.check_value(v))
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(["a", "b", "opt.lr"]), flat), flat)
def test_every_changed_flag_is_named_and_no_other(fixed, value):
    """Through the same words that the plan writes into a record."""
    now = fixed | {"changed": value}
    text, before = (shlex.join(naming.to_flags(v.items())) for v in (now, fixed))
    described = results.describe("fixed", before, text)
    assert described.startswith("changed unset → ")
    assert results.describe("fixed", text, text) == ""


# ---- the folder -------------------------------------------------------------------------------------------


def test_existing_runs(tmp_path):
    for name in (
        *("seed=0", "a=1/seed=0", "a=1/seed=1", "a=2/b=x/seed=10", "a=2/b=x/more=0123456789ab/seed=0"),
        *("a=3/b=x", ".sweep/x=1/seed=0", "other/a=1/seed=0", "a=1/seed=0/state/x=1/seed=3", "plots"),
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a=file").write_text("")
    (tmp_path / "runs.csv").write_text("")
    assert sorted(results.existing_runs(tmp_path)) == [
        *("a=1/seed=0", "a=1/seed=1", "a=2/b=x/more=0123456789ab/seed=0", "a=2/b=x/seed=10", "seed=0"),
    ]
    assert list(results.existing_runs(tmp_path / "none")) == []


VALUES = [
    None,
    True,
    False,
    0,
    1,
    -(2**70),
    0.0,
    -0.0,
    1e-05,
    1e16,
    -1e22,
    5e-324,
    0.1,
    1.7976931348623157e308,
]
VALUES += [
    "",
    "adam",
    "null",
    "true",
    "no",
    "~",
    "1",
    "1e-3",
    "1e16",
    "2020-10-10",
    "010",
    "1:30",
    "=",
    "- a",
]
VALUES += [
    "a: b # c",
    "é",
    "😀",
    "a😀\\😀b",
    "\\ud83d\\ude00",
    "\x7f",
    "\x85\u2028\ufeff",
    "\t\n\r\x01",
    "'\"",
    "<<",
]
VALUES += [[], [1, 1.0, "1", None, True, 1e-05, "😀"], [""]]


@pytest.mark.parametrize("value", VALUES, ids=ascii)
def test_defaults_read_back_with_their_types(tmp_path, value):
    """1e-05 is a text to YAML 1.1 where JSON has it a number; so are surrogate pairs no characters."""
    results.write_defaults(tmp_path, {"x": value, "opt.lr": 1})
    read = results.read_defaults(tmp_path)
    assert repr(read) == repr({"opt.lr": 1, "x": value})


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
defaults = st.dictionaries(
    st.sampled_from(["a", "opt.lr", "no", "1e"]),
    (scalars | st.lists(scalars, max_size=3)).filter(lambda value: naming.check_value(value) is None),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(defaults)
def test_any_defaults_read_back(values):
    with tempfile.TemporaryDirectory() as folder:
        results.write_defaults(Path(folder), values)
        assert repr(results.read_defaults(Path(folder))) == repr(dict(sorted(values.items())))


def test_defaults_are_explained_in_their_file(tmp_path):
    results.write_defaults(tmp_path / "results", {"dropout": 0.0, "a": "b"})
    assert (tmp_path / "results" / "defaults.yaml").read_text().splitlines()[2:] == [
        '"a": "b"',
        '"dropout": 0.0',
    ]
    assert (
        (tmp_path / "results" / "defaults.yaml").read_text().startswith("# What a path in this folder means")
    )
    assert os.listdir(tmp_path / "results") == ["defaults.yaml"]


def test_no_defaults(tmp_path):
    assert results.read_defaults(tmp_path) == {}
    (tmp_path / "defaults.yaml").write_text("# nothing yet\n")
    assert results.read_defaults(tmp_path) == {}


@pytest.mark.parametrize("text", ["{", "- 1", "3", "a: {b: 1}", "a: .nan", "a: 2020-10-10", "a: [[1]]"])
def test_broken_defaults_are_told(tmp_path, text):
    (tmp_path / "defaults.yaml").write_text(text)
    with pytest.raises(SweepError, match=r"(?s)defaults\.yaml: .*; restore it: it says what paths mean"):
        results.read_defaults(tmp_path)


# ---- small files ------------------------------------------------------------------------------------------


def test_replace_writes_all_or_nothing(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    results.replace(path, "old é")
    results.replace(path, "new é")
    assert path.read_text(encoding="utf-8") == "new é"
    assert os.listdir(path.parent) == ["file.txt"]
    inode = path.stat().st_ino
    with path.open() as reader:
        results.replace(path, "newer")
        assert reader.read() == "new é"  # who reads the old one reads it to its end
    assert path.stat().st_ino != inode


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a": 1}', {"a": 1}), ("{}", {}), ("[1]", {}), ("{", {}), ("", {}), ("3", {}), (None, {})],
)
def test_read_json(tmp_path, text, value):
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    assert results.read_json(tmp_path / "x.json") == value


@pytest.mark.parametrize(
    ("text", "value"), [('["a"]', ["a"]), ("[]", []), ('{"a": 1}', []), ("[", []), (None, [])]
)
def test_read_list(tmp_path, text, value):
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    assert results.read_list(tmp_path / "x.json") == value


def test_last_attempt(tmp_path):
    assert results.last_attempt(tmp_path) == {}
    path = tmp_path / "attempts.jsonl"
    path.write_text("")
    assert results.last_attempt(tmp_path) == {}
    path.write_text('{"exit": 1}\n{"exit": 0, "reason": "finished"}\n')
    assert results.last_attempt(tmp_path) == {"exit": 0, "reason": "finished"}
    path.write_text('{"exit": 1}\n{"exit"')  # killed while writing
    assert results.last_attempt(tmp_path) == {}


def test_write_table(tmp_path):
    rows = [
        {"s": "a,b", "b": True, "l": [64, "x"], "n": None, "f": 1e-05, "i": 3, "more": "not asked for"},
        {"s": 'say "x"\nline', "b": False, "l": [], "f": 0.1, "i": -1},
    ]
    path = tmp_path / "results" / "deep" / "runs.csv"
    results.write_table(path, rows, ["s", "b", "l", "n", "f", "i"])
    assert path.read_bytes() == (
        b's,b,l,n,f,i\n"a,b",true,"[64, ""x""]",,1e-05,3\n"say ""x""\nline",false,[],,0.1,-1\n'
    )
    with path.open(newline="") as file:
        assert [row["s"] for row in csv.DictReader(file)] == ["a,b", 'say "x"\nline']
    assert os.listdir(path.parent) == ["runs.csv"]


def test_a_table_that_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "runs.csv"
    results.write_table(path, [{"a": 1}], ["a"])

    def rows():
        yield {"a": 2}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results.write_table(path, rows(), ["a"])
    assert path.read_text() == "a\n1\n"
