"""Every attempt has a line and a log, whatever becomes of later ones."""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from launch.record import Attempt, last_attempt


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]


def test_lines_of_an_attempt(tmp_path):
    """One at its start, which is all that is left if launch is killed, and one at its end."""
    before = datetime.now(UTC).replace(microsecond=0)
    attempt = Attempt(tmp_path / "run", "train", call="c0ffee")
    attempt.begin()
    attempt.end(exit=137, reason="killed", command=["python", "é.py", "--x=1"])
    started, ended = lines(tmp_path / "run")
    when = datetime.strptime(started.pop("started"), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert before <= when <= datetime.now(UTC)
    assert re.fullmatch(r"\S+", started.pop("host"))
    same = {"step": "train", "attempt": 1, "log": "logs/train.1.log"}
    detail = "killed with launch, or the machine went down"
    assert started == same | {"exit": None, "reason": "lost", "detail": detail}
    about = {"call": "c0ffee", "exit": 137, "reason": "killed", "command": ["python", "é.py", "--x=1"]}
    assert ended.items() >= (same | about).items()
    assert last_attempt(tmp_path / "run", "train") == ended
    assert last_attempt(tmp_path / "run", "evaluate") == last_attempt(tmp_path / "none", "train") == {}


def test_time_is_utc_wherever_one_is(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        Attempt(tmp_path, "train").begin()
    finally:
        monkeypatch.undo()
        time.tzset()
    started = datetime.strptime(lines(tmp_path)[0]["started"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - started).total_seconds()) < 3600


def test_attempts_of_a_step_are_counted_by_their_logs(tmp_path):
    """A killed launch leaves a log and no line; its number is not used again."""
    for step, number in (("train", 1), ("train", 2), ("evaluate", 1), ("train", 3)):
        attempt = Attempt(tmp_path, step)
        Path(attempt.log).write_text(f"{step} {number}")
        assert (attempt.number, Path(attempt.log)) == (number, tmp_path / f"logs/{step}.{number}.log")
    (tmp_path / "logs/train.10.log").touch()
    (tmp_path / "logs/train.mine.log").touch()
    assert Attempt(tmp_path, "train").number == 11
    assert (tmp_path / "logs/train.1.log").read_text() == "train 1"


def test_lines_are_added(tmp_path):
    for number in range(3):
        attempt = Attempt(tmp_path, "train")
        attempt.begin()
        attempt.end(exit=number, reason=f"reason {number}")
    assert [line["reason"] for line in lines(tmp_path)[1::2]] == ["reason 0", "reason 1", "reason 2"]


def test_odd_text_stays_one_line(tmp_path):
    """Arguments may hold newlines, and bytes that are no text (as surrogates)."""
    words = ["a\nb", "\udcff", "\u2028", 'say "x"']
    Attempt(tmp_path, "train").end(detail="a\nreason", command=words)
    assert lines(tmp_path)[0]["command"] == words
    assert (tmp_path / "attempts.jsonl").read_bytes().count(b"\n") == 1


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"1\n2\n3\n4", ["2", "3", "4"]),
        (b"1\r2\r3\r4\n", ["2", "3", "4"]),  # a progress bar
        ("é\n".encode() + b"\xff\n", ["é", "\ufffd"]),
        (b"x" * 10_000 + b"\nlast\n", ["x" * 594, "last"]),  # 200 bytes a line at most, all in all
    ],
)
def test_tail_of_a_log(tmp_path, text, tail):
    attempt = Attempt(tmp_path, "train")
    Path(attempt.log).write_bytes(text)
    assert attempt.tail(3) == tail


def test_tail_of_a_log_that_is_gone(tmp_path):
    assert Attempt(tmp_path, "train").tail(3) == []
