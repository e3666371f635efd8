"""Kill anything at any moment: nothing is left running, nothing finished is lost, and the same line goes on.

`make test-kill N=20` kills twenty times per cell; here it is once, at a moment that the seed fixes.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from launch.devices import Device
from launch.lease import WHOLE, acquire
from processes import PATIENCE, PROMISE, wait_for
from study import ROOT, Study

ROUNDS = int(os.environ.get("KILL_ROUNDS", "1"))
# The second run does not end by itself, and has a child in a session of its own.
TRAIN = """\
import numpy  # so that it starts warm, if it may
import os, subprocess, sys, time
x, model = sys.argv[1].partition("=")[2], sys.argv[3]
if x == "2" and not os.path.exists("go"):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    os.rename("pid", "running")
    time.sleep(600)
open(model, "w").write("model")
"""
EVAL = """import sys; open(sys.argv[2], "w").write('{"accuracy": 1}')\n"""
CONFIG = """\
train: python train.py {flags} --model {model}
eval: python eval.py {model} {metrics}
model: model.txt
grid: {x: [1, 2]}
seeds: 1
"""


def find(family, what: str) -> int | None:
    """Find the launch of the second run, or its program."""
    if what == "program":
        with suppress(OSError):
            return int((family.folder / "running").read_text())
        return None
    for pid in family.alive():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            # The keeper of a cold start has the same words as launch, and leads a session.
            keeper = os.getsid(pid) == pid
            if (
                any(w.endswith("/launch/__main__.py") for w in words)
                and any("x=2" in w for w in words)
                and not keeper
            ):
                return pid
    return None


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("target", ["snakemake", "launch", "program"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("warm", ["true", "false"], ids=["warm", "cold"])
def test_kill(tmp_path, family, name, target, number, warm):
    study = Study(tmp_path, f"{CONFIG}warm: {warm}\n", TRAIN, EVAL)
    inventory = tmp_path / "inventory.json"
    inventory.write_text(json.dumps({"devices": [{"uuid": "GPU-0", "memory": 1000}]}))
    env = {"SNAKESWEEP_INVENTORY": str(inventory), "SNAKESWEEP_LEASES": str(tmp_path)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    moment = random.Random(f"{name} {target} {warm} {number}")
    words = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "2"]
    snakemake = family.start(*words, env=family.env_with(**env, PATH=path))
    if target == "snakemake":
        time.sleep(moment.uniform(0.0, 4.0))
        victim = snakemake.pid
    else:
        assert wait_for(lambda: find(family, target))
        time.sleep(moment.uniform(0.0, 0.3))
        victim = find(family, target)
    os.kill(victim, signal.Signals[name])
    # A study whose launch or program was killed goes on, and ends by itself.
    snakemake.wait(PATIENCE if target != "snakemake" else PROMISE)
    assert wait_for(lambda: not family.alive(), PROMISE), "something is left running"
    assert snakemake.returncode != 0
    # The lease is free.
    acquire([Device("GPU-0", memory=1000)], 1, lambda d: WHOLE, "test", no_pause, folder=str(tmp_path)).end()
    # What is finished stays finished, and the same line trains the rest only.
    finished = [x for x in (1, 2) if (study.results / f"x={x}/seed=0/metrics.json").exists()]
    before = {x: (study.results / f"x={x}/seed=0/record.json").stat().st_mtime_ns for x in finished}
    assert 2 not in finished
    (tmp_path / "go").touch()
    if name == "SIGKILL" and target == "snakemake":
        subprocess.run(
            [*words[:5], "--unlock"], cwd=tmp_path, env=os.environ | env, check=True, capture_output=True
        )
    study.snakemake(env=env)
    assert {row["status"] for row in study.table()} == {"finished"}
    assert {x: (study.results / f"x={x}/seed=0/record.json").stat().st_mtime_ns for x in finished} == before
    left = {p.name for x in (1, 2) for p in (study.results / f"x={x}/seed=0").iterdir()}
    assert left == {"model.txt", "record.json", "metrics.json", "evaluation.json", "attempts.jsonl", "logs"}


def no_pause(seconds: float, until: int | None = None) -> None:
    """Give a lease no more than a moment: it must be free already."""
    assert until is None
    assert seconds < 0.1
    time.sleep(seconds)
