"""`python workflow/scripts/launch STEP RECORD … -- COMMAND…`, as the rules type it."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import LAUNCH, PATIENCE, PROMISE, launch, wait_for

WRITE = 'import sys; open(sys.argv[1], "w").write(sys.argv[2])'
# Writes its output, then leaves with 0 when asked to end, as a program that saves its work does.
SAVING = """
import os, signal, sys

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
open(sys.argv[1], "w").write("half a model")
open(sys.argv[2] + "/epoch-1", "w").close()
open("program-ready", "w").close()
while True:
    signal.pause()
"""


def run(folder: Path, *command: str, env: dict | None = None, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        launch(folder, *command, **options),
        cwd=folder,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def attempts(folder: Path) -> list[dict]:
    """Read the lines that were written at the end of each attempt."""
    lines = [json.loads(line) for line in (folder / "run/attempts.jsonl").read_text().splitlines()]
    return [line for line in lines if line["reason"] != "lost"]


def left(folder: Path) -> set[str]:
    """Name what lies in the run's folder."""
    return {path.name for path in (folder / "run").iterdir()}


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ("exit 0", 0, "finished"),
        ("exit 3", 3, "exit status 3"),
        ("kill -KILL $$", 137, "killed by SIGKILL"),  # 128 + 9
    ],
)
def test_exit_status_is_the_programs(tmp_path, script, status, reason):
    done = run(tmp_path, "sh", "-c", script)
    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr == (f"train failed in run: {reason}\n" if status else "")
    assert [(a["exit"], a["detail"]) for a in attempts(tmp_path)] == [(status, reason)]


def test_program_that_cannot_be_started(tmp_path):
    done = run(tmp_path, "no-such-program", "--x=1")
    assert done.returncode == 127
    assert "train failed in run: no-such-program can't be started: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "run").write_text("no folder")
    done = run(tmp_path, "true")
    assert done.returncode == 1
    assert done.stderr.startswith("train can't be run in run: ")
    assert "Traceback" not in done.stderr


def test_arguments_reach_the_program_as_they_are(tmp_path):
    """No shell, and a second `--` is the program's."""
    words = ["a b", "", "--", "-x", "$HOME", "*", "é", "--threads", "x;y", "a\nb"]
    run(tmp_path, sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads((tmp_path / "run/logs/train.1.log").read_text()) == words


def test_command_line_that_names_no_program_is_refused(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 2
    assert "usage: launch STEP RECORD" in done.stderr
    assert "there is no command; write it after --" in done.stderr


def test_end_of_the_log_is_shown_when_a_program_fails(tmp_path):
    done = run(tmp_path, "sh", "-c", "seq 100; echo no memory >&2; exit 1")
    lines = [*map(str, range(87, 101)), "no memory"]  # the last 15
    assert done.stderr.splitlines() == [
        "train failed in run: exit status 1",
        "The end of run/logs/train.1.log:",
        *(f"  | {line}" for line in lines),
    ]
    assert (tmp_path / "run/logs/train.1.log").read_text().startswith("1\n2\n")


def test_end_of_a_huge_log_costs_nothing(tmp_path):
    """200 MB of log (a hole in the file, so that the test is quick), and launch stays far below that."""
    program = "import os; os.ftruncate(1, 200_000_000); os.lseek(1, 0, 2); print('\\nlast words'); exit(1)"
    words = launch(tmp_path, sys.executable, "-c", program)
    # A small process between: the peak of a child begins with that of the process that forked it.
    peak = "import resource, subprocess, sys; status = subprocess.call(sys.argv[1:])\n"
    peak += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(status)"
    done = subprocess.run(
        [sys.executable, "-c", peak, *words], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    text = done.stderr
    assert text.endswith("  | last words\n")
    assert len(text) < 10_000
    assert done.returncode == 1
    assert (tmp_path / "run/logs/train.1.log").stat().st_size == 200_000_012
    assert int(done.stdout) < 100_000  # kB


def test_thread_pools_get_the_declared_number(tmp_path):
    """Snakemake sets what it granted; TensorFlow has names of its own: tf.config.threading."""
    names = [f"{pool}_NUM_THREADS" for pool in ("OMP", "OPENBLAS", "GOTO", "MKL", "NUMEXPR")]
    names += ["VECLIB_MAXIMUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"]
    script = "import os, sys; print(*(os.environ[name] for name in sys.argv[1:]))"
    command = [sys.executable, "-c", script, *names]
    log = tmp_path / "run/logs/train.1.log"
    run(tmp_path, *command, options=["--threads", "3"], env={"OMP_NUM_THREADS": "7"})
    assert log.read_text().split() == ["3"] * 8
    run(tmp_path, *command, env={"OMP_NUM_THREADS": "7"})
    assert log.with_name("train.2.log").read_text().split() == ["1"] * 8


def test_environment_passes_through(tmp_path):
    """CUDA_VISIBLE_DEVICES is Snakemake's or the cluster's; output is not held back unless the user says so."""
    env = {"CUDA_VISIBLE_DEVICES": "2,GPU-x", "KERAS_BACKEND": "jax", "MY_OWN": "a b"}
    script = 'echo "$CUDA_VISIBLE_DEVICES $KERAS_BACKEND $MY_OWN $PYTHONUNBUFFERED"'
    run(tmp_path, "sh", "-c", script, env=env | {"PYTHONUNBUFFERED": "0"})
    assert (tmp_path / "run/logs/train.1.log").read_text() == "2,GPU-x jax a b 0\n"
    words = ["env", "-u", "PYTHONUNBUFFERED", *launch(tmp_path, "sh", "-c", script)]
    subprocess.run(words, cwd=tmp_path, env=os.environ | env, check=True)
    assert (tmp_path / "run/logs/train.2.log").read_text() == "2,GPU-x jax a b 1\n"


def test_record_vouches_for_the_outputs(tmp_path):
    run(
        tmp_path,
        sys.executable,
        "-c",
        WRITE,
        "{write:model.bin}",
        "weights",
        made_with=["run x=1", "code a=1 b"],
    )
    done = run(
        tmp_path,
        *[sys.executable, "-c", "import sys; open(sys.argv[2], 'w').write('{\"accuracy\": 0.5}')"],
        *["{read:model.bin}", "{metrics:metrics.json}"],
        step="evaluate",
        record="run/evaluation.json",
        made_with=["fixed "],
    )
    assert done.returncode == 0
    model = hashlib.sha256(b"weights").hexdigest()
    assert json.loads((tmp_path / "run/record.json").read_text()) == {
        "made_with": {"run": "x=1", "code": "a=1 b"},
        "inputs": {},
        "outputs": {"model.bin": model},
        "diverged": False,
    }
    assert json.loads((tmp_path / "run/evaluation.json").read_text()) == {
        "made_with": {"fixed": ""},
        "inputs": {"model.bin": model},
        "outputs": {"metrics.json": hashlib.sha256(b'{"accuracy": 0.5}\n').hexdigest()},
        "diverged": False,
    }
    assert left(tmp_path) == {
        "model.bin", "record.json", "metrics.json", "evaluation.json", "attempts.jsonl", "logs"
    }  # fmt: skip


def test_diverged_run_is_a_result(tmp_path):
    """C19: https://github.com/treeverse/vscode-dvc/issues/2733."""
    text = '{"loss": NaN, "top5": Infinity, "accuracy": 0.5}'
    done = run(tmp_path, sys.executable, "-c", WRITE, "{metrics:metrics.json}", text)
    assert done.returncode == 0
    assert (tmp_path / "run/metrics.json").read_text() == '{"loss": null, "top5": null, "accuracy": 0.5}\n'
    assert json.loads((tmp_path / "run/record.json").read_text())["diverged"] is True
    assert attempts(tmp_path)[0]["reason"] == "diverged"


@pytest.mark.parametrize(
    ("place", "script", "says"),
    [
        ("{write:model.bin}", "true", "without writing model.bin"),
        ("{write:model.bin}", ": > $0", "model.bin is empty"),
        ("{write:model/}", "mkdir $0", "folder model is empty"),
        ("{metrics:m.json}", "echo '{\"a\": 1' > $0", "m.json is no JSON"),
        ("{metrics:m.json}", "echo '{}' > $0", "m.json must hold one object"),
        ("{write:model}", "mkdir $0; echo > $0/x", "model is a folder; write its name as `model/`"),
        ("{write:model/}", "echo > $0", "model is a file; write its name as `model`"),
    ],
)
def test_bad_output_is_a_failure(tmp_path, place, script, says):
    """C21 a-c: https://github.com/snakemake/snakemake/issues/344."""
    done = run(tmp_path, "sh", "-c", script, place)
    assert done.returncode == 1
    assert says in done.stderr
    assert attempts(tmp_path)[0]["reason"] == "bad output"
    assert says in attempts(tmp_path)[0]["detail"]
    assert left(tmp_path) == {"attempts.jsonl", "logs"}


def test_failed_program_puts_nothing_in_place(tmp_path):
    done = run(tmp_path, "sh", "-c", "echo whole > $0; exit 3", "{write:model.bin}")
    assert done.returncode == 3
    assert left(tmp_path) == {"attempts.jsonl", "logs"}


def test_program_asked_to_end_puts_nothing_in_place_but_keeps_its_state(family):
    folder = family.folder
    words = launch(folder, sys.executable, "-c", SAVING, "{write:model.bin}", "{keep:state}")
    process = family.start(*words)
    assert wait_for((folder / "program-ready").exists)
    process.terminate()
    assert process.wait(PATIENCE) == 143  # 128 + SIGTERM, although the program left with 0
    assert left(folder) == {"attempts.jsonl", "logs", "state", ".state.made-with"}
    assert [(a["exit"], a["reason"]) for a in attempts(folder)] == [(143, "preempted")]


def test_interrupt_is_no_traceback(family):
    process = family.start(
        *launch(family.folder, "sh", "-c", "touch program-ready; exec sleep 600"), stderr=subprocess.PIPE
    )
    assert wait_for((family.folder / "program-ready").exists)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130  # 128 + SIGINT
    assert stderr == "train failed in run: killed by SIGINT\n"


def test_killed_launch_leaves_no_output_and_the_next_attempt_cleans_up(family):
    folder = family.folder
    words = launch(folder, sys.executable, "-c", SAVING, "{write:model.bin}", "{keep:state}")
    process = family.start(*words)
    assert wait_for((folder / "program-ready").exists)
    process.kill()
    process.wait()
    assert wait_for(lambda: not family.alive(), PROMISE)
    assert not (folder / "run/model.bin").exists()
    (leftover,) = (folder / "run").glob(".train-*")
    assert (leftover / "model.bin").read_text() == "half a model"
    done = run(folder, "sh", "-c", 'ls "$1"; echo whole > "$0"', "{write:model.bin}", "{keep:state}")
    assert done.returncode == 0
    assert (folder / "run/logs/train.2.log").read_text() == "epoch-1\n"  # it could go on from there
    assert (folder / "run/model.bin").read_text() == "whole\n"
    assert left(folder) == {"model.bin", "record.json", "attempts.jsonl", "logs"}


def test_second_attempt_waits_for_the_end_of_the_first(family):
    """Launch is killed and the run started again, while its program has its grace time: never both at once."""
    folder = family.folder
    program = "trap '' TERM; touch ready-$0; while :; do sleep 0.05; done"
    first = family.start(*launch(folder, "sh", "-c", program, "1", options=["--grace=1.5"]))
    assert wait_for((folder / "ready-1").exists)
    first.kill()
    second = family.start(*launch(folder, "touch", "ready-2"), stderr=subprocess.PIPE)
    assert second.stderr.readline() == "train waits: an earlier attempt in run is still ending\n"
    assert not (folder / "ready-2").exists()
    assert second.wait(PATIENCE) == 0
    assert (folder / "ready-2").exists()
    assert not family.alive()


def test_every_attempt_has_its_line_and_its_log(tmp_path):
    script = 'echo "$0"; exit "$1"'
    for number, (word, status) in enumerate([("first", 1), ("second", 2), ("third", 0)], start=1):
        assert run(tmp_path, "sh", "-c", script, word, str(status)).returncode == status
        assert (tmp_path / f"run/logs/train.{number}.log").read_text() == f"{word}\n"
    run(tmp_path, "sh", "-c", script, "score", "0", step="evaluate", record="run/evaluation.json")
    assert (tmp_path / "run/logs/train.1.log").read_text() == "first\n"
    lines = [(a["step"], a["attempt"], a["exit"], a["log"]) for a in attempts(tmp_path)]
    assert lines == [
        ("train", 1, 1, "logs/train.1.log"),
        ("train", 2, 2, "logs/train.2.log"),
        ("train", 3, 0, "logs/train.3.log"),
        ("evaluate", 1, 0, "logs/evaluate.1.log"),
    ]
    assert attempts(tmp_path)[1]["command"] == ["sh", "-c", script, "second", "2"]


def test_only_the_standard_library_is_imported(tmp_path):
    """Isolated and without site-packages it works, and all that it imports is Python's or its own."""
    words = [sys.executable, "-I", "-S", "-X", "importtime", str(LAUNCH), "train", "run/record.json", "--"]
    words += [*words[:1], "-c", WRITE, "{metrics:m.json}", '{"a": 1}']
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    imported = {
        line.split("|")[2].strip().partition(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:") and "imported package" not in line
    }
    assert {"ctypes", "launch"} <= imported
    assert imported - set(sys.stdlib_module_names) == {"launch"}


def test_heavy_modules_are_left_out(tmp_path):
    """They would add to what every process costs; what a run without a folder to remove needs is little."""
    words = [sys.executable, "-S", "-X", "importtime", *launch(tmp_path, "true")[1:]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    imported = {line.split("|")[2].strip() for line in done.stderr.splitlines() if line.count("|") == 2}
    assert "launch.process" in imported
    assert not imported & {"dataclasses", "typing", "shutil", "tempfile", "platform", "inspect", "random"}
    assert not imported & {"signal", "enum", "json", "re", "contextlib", "collections", "hashlib"}
