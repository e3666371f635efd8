"""What one sees while a study runs: counts, time, the best so far, what runs where; and the same from files alone."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import watch
from madeup import MadeUp, line
from see.progress import Standing, duration
from see.study import read_study
from study import ROOT, TRAIN, Study

RUNS = [f"x={x}/seed={seed}" for x in (1, 2) for seed in (0, 1)]
BOOM = TRAIN.replace("options, flags", "import time\noptions, flags").replace(
    "if options.history",
    "if '--x=2' in flags and options.seed == '1': raise ValueError('boom')\nif options.history",
)


@pytest.fixture
def standing(tmp_path) -> Standing:
    """Make a study of four runs, none of them begun."""
    return Standing(tmp_path, RUNS, "accuracy", "max", Counter(train=4, evaluate=4))


def score(standing: Standing, run: str, accuracy: object) -> None:
    path = standing.results / run / "metrics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"accuracy": accuracy}))


def test_counts_and_time_left(standing):
    assert standing.line(0.0) == "0 of 4 runs finished, 0 running, 4 left"
    assert standing.left(0.0) is None
    standing.begin("train", RUNS[0], 0.0)
    standing.begin("train", RUNS[1], 0.0)
    assert standing.left(5.0) is None  # nothing was measured yet
    standing.end("train", RUNS[0], 10.0)
    standing.begin("evaluate", RUNS[0], 10.0)
    standing.end("train", RUNS[1], 10.0)
    standing.begin("evaluate", RUNS[1], 10.0)
    score(standing, RUNS[0], 0.5)
    score(standing, RUNS[1], 0.7)
    standing.end("evaluate", RUNS[0], 12.0)
    standing.end("evaluate", RUNS[1], 12.0)
    # Two trainings of 10 s and two evaluations of 2 s are left; two ran at once, all the time.
    assert standing.left(12.0) == pytest.approx(12.0)
    assert (
        standing.line(12.0)
        == "2 of 4 runs finished, 0 running, 2 left, about 12 s to go | best accuracy 0.6 (x=1)"
    )
    standing.begin("train", RUNS[2], 12.0)
    standing.begin("train", RUNS[3], 12.0)
    assert standing.left(17.0) == pytest.approx(14 / 2)  # of 20 + 4 seconds' work 10 are done
    text = standing.line(17.0)
    assert text.endswith("| train x=2/seed=0 5 s | train x=2/seed=1 5 s")
    standing.fail("train", RUNS[2])
    assert "2 of 4 runs finished, 1 running, 1 failed, 0 left" in standing.line(17.0)
    assert standing.left(17.0) < 14 / 2  # the failed one's training and evaluation are not waited for
    standing.begin("train", RUNS[2], 18.0)  # tried again
    assert "2 running, 0 left" in standing.line(18.0)


def test_best_is_of_complete_combinations(standing):
    for run, accuracy in zip(RUNS, (0.9, None, 0.5, 0.7), strict=True):
        score(standing, run, accuracy)
        standing.finish(run)
    assert standing.best == (pytest.approx(0.6), "x=2")  # the other one has a run without a number
    standing.mode = "min"
    score(standing, RUNS[1], 0.1)
    standing.finished.discard(RUNS[1])
    standing.finish(RUNS[1])
    assert standing.best == (pytest.approx(0.5), "x=1")


def test_where_a_run_is(standing):
    """Its device and how far it got come from its folder."""
    standing.begin("train", RUNS[0], 0.0)
    folder = standing.results / RUNS[0]
    (folder / ".train-12").mkdir(parents=True)
    (folder / ".train-12/history.csv").write_text("epoch,loss\n1,0.5\n2,0.4\n")
    device = {"uuid": "GPU-0123456789abcdef", "name": "A100", "place": 1}
    (folder / "attempts.jsonl").write_text(
        json.dumps(line("train", exit=None, reason="lost", devices=[device])) + "\n"
    )
    assert standing.line(65.0).endswith("| train x=1/seed=0 epoch 2 on GPU 1 GPU-01234567 65 s")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (3599, "60 min"),
        (7200, "2.0 h"),
        (100_000, "28 h"),
        (172_800, "2.0 d"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_plain_lines_where_there_is_no_terminal(tmp_path):
    study = Study(tmp_path, train=BOOM)
    outcome = study.snakemake(status=1)
    assert not re.search(r"^(local)?rule ", outcome.text, re.M)
    assert "Finished jobid" not in outcome.text
    assert "Error in rule" not in outcome.text
    assert "\x1b[K" not in outcome.text
    assert outcome.text.count("train failed in results/x=2/y=adam/seed=1: exit status 1") == 1
    assert outcome.text.count("| ValueError: boom") == 4  # when it happens, and at the end
    assert "Combinations: 2 complete, 2 incomplete; none is chosen before all are complete." in outcome.text
    assert "rule train:" in outcome.log  # Snakemake's log file has all


@pytest.mark.parametrize("option", ["--verbose", "--printshellcmds"])
def test_snakemakes_own_messages_on_demand(study, option):
    assert "rule train:" in study.snakemake(option).text


def test_one_line_on_a_terminal(tmp_path):
    Study(tmp_path, train=BOOM.replace("import time\n", "import time; time.sleep(1.5)\n"))
    command = f"stty cols 150; exec {sys.executable} -m snakemake -s {ROOT}/Snakefile --cores 2"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    child, terminal = pty.fork()
    if not child:
        os.chdir(tmp_path)
        os.execvpe("sh", ["sh", "-c", command], os.environ | {"PATH": path, "TERM": "xterm"})
    text = b""
    while True:
        try:
            more = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        text += more
    os.waitpid(child, 0)
    os.close(terminal)
    shown = text.decode().replace("\r\n", "\n")
    drawn = [piece.partition("\r")[0] for piece in shown.split("\r\x1b[K")[1:]]
    lines = [piece for piece in drawn if re.match(r"\d of 8 runs finished", piece)]
    assert all(len(piece.splitlines()[0]) < 150 for piece in lines)
    assert any(re.match(r"2 of 8 runs finished, . running.*about \d+ s to go", piece) for piece in lines)
    assert any("best accuracy 0.5025 (x=1/y=" in piece for piece in lines), shown
    assert any("| train x=" in piece for piece in lines)
    # What others print begins in a line of its own, and is kept.
    told = "train failed in results/x=2/y=sgd/seed=1: exit status 1\n"
    assert any(piece.startswith(told) for piece in drawn)
    assert "Runs: 2 failed, 6 finished." in shown


def standing_of(results: Path) -> str:
    words = [sys.executable, ROOT / "workflow/scripts/watch.py", results]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_same_from_files_alone(tmp_path):
    made = MadeUp(tmp_path / "results", [{"x": x} for x in range(5)])
    runs = {f"x={x}/seed={seed}" for x in (0, 1) for seed in (0, 1)} | {"x=2/seed=0"}
    made.finish(lambda c, seed: 0.5 + c["x"] / 10 + seed / 100, runs=runs)
    made.attempt("x=2/seed=1", line("train", exit=1, reason="failed", detail="exit status 1"))
    lost = line("train", exit=None, reason="lost")
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3))
    with subprocess.Popen([sys.executable, "-c", "input()", "launch"], stdin=subprocess.PIPE) as alive:
        made.attempt("x=3/seed=0", lost | {"pid": alive.pid, "started": started})
        made.attempt("x=3/seed=1", lost | {"pid": alive.pid, "host": "elsewhere", "started": started})
        text = standing_of(made.results)
    assert "10 runs: 5 finished, 2 running, 1 failed, 2 not run; about" in text
    assert "5 combinations: 2 complete, 1 incomplete, 2 without a finished run" in text
    assert "Best of the complete ones: accuracy 0.605, x=1 (2 seeds)" in text
    assert re.search(
        r"^running:\n  x=3/seed=0  train, \S+, [3-9] s\n  x=3/seed=1  train, elsewhere, ", text, re.M
    )
    assert "failed:\n  x=2/seed=1  train failed, exit status 1; log: " in text
    # The one here has ended without a word: it was killed.
    assert "lost:\n  x=3/seed=0  train lost" in standing_of(made.results)


def test_time_left_from_files(tmp_path):
    made = MadeUp(tmp_path, [{"x": x} for x in range(4)], seeds=1)
    made.finish(lambda c, seed: 0.0, runs={"x=0/seed=0"})  # 5 s and 2 s
    made.attempt(
        "x=1/seed=0",
        line("train", exit=None, reason="lost", host="elsewhere", started="2026-12-01T12:00:00Z"),
    )
    began = watch.begun_at({"started": "2026-12-01T12:00:00Z"})
    # 3 s of this training and its evaluation, and two whole runs, one at a time: 5 + 2 x 7.
    assert watch.to_go(read_study(tmp_path), began + 2) == "; about 19 s to go"


def test_no_study_there(tmp_path):
    words = [sys.executable, ROOT / "workflow/scripts/watch.py", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"watch.py: {tmp_path}: no study was started there; name the results folder" in done.stderr
