"""A study on a real Slurm with four pretended GPUs, to its end, whatever happens on the way."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from slurm import Slurm, missing
from study import EVAL, ROOT, Outcome, Study

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"no Slurm here ({', '.join(missing())} missing): apt-get install slurm-wlm munge"
)

# Takes a while, says where and when, and does what the file `what-SEED` in its folder says, once.
TRAIN = """\
import json, os, sys, time
options = dict(word[2:].split("=", 1) for word in sys.argv[1:])
began = time.time()
what = f"what-{options['x']}"
do = open(what).read() if os.path.exists(what) else ""
state = os.path.join(options["state"], "saved")
print("saved before" if os.path.exists(state) else "from the beginning", flush=True)
open(state, "w").close()
if do == "raise":
    raise ValueError("boom")
time.sleep(60 if do == "sleep" else float(options["pause"]))
with open(f"log-{os.getpid()}", "w") as file:
    json.dump([os.environ.get("CUDA_VISIBLE_DEVICES"), began, time.time(), os.environ.get("SLURM_JOB_ID")], file)
with open(options["model"], "w") as file:
    json.dump({"seed": 0, "flags": [f"--x={options['x']}"]}, file)
"""
CONFIG = """\
train: python train.py {flags} --model={model} --state={state}
eval: python eval.py --model {model} --split {split} --metrics {metrics}
model: model.json
fixed: {pause: 1}
grid: {x: [1, 2, 3, 4, 5, 6, 7, 8]}
seeds: 1
grace_time: 2s
"""


@pytest.fixture(scope="module")
def slurm():
    with tempfile.TemporaryDirectory(prefix="sl", dir="/tmp") as folder:  # it holds sockets: a short path
        slurm = Slurm(Path(folder))
        try:
            slurm.start()
            yield slurm
        finally:
            slurm.stop()


class OnSlurm(Study):
    """A study that is sent to Slurm."""

    slurm: Slurm

    def start(self, *arguments: str) -> subprocess.Popen:
        """Start snakemake with the shipped profile."""
        words = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile")]
        words += ["--profile", str(ROOT / "profiles/slurm"), "--latency-wait", "10", *arguments]
        words += ["--slurm-init-seconds-before-status-checks", "1"]
        path = f"{self.slurm.folder}/bin:{Path(sys.executable).parent}:{self.slurm.env['PATH']}"
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=os.environ | self.slurm.env | {"PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, process: subprocess.Popen, status: int | None = 0) -> Outcome:
        """Wait for snakemake, and expect an exit status (None: any)."""
        text, _ = process.communicate(timeout=600)
        assert status is None or process.returncode == status, text
        return Outcome(process.returncode, text, text)

    def train_jobs(self, state: str = "RUNNING") -> list[str]:
        return [number for number, _, is_now in self.slurm.jobs() if is_now == state]

    def wait(self, ready, seconds: float = 90):
        """Wait until something is so, and return it."""
        deadline = time.monotonic() + seconds
        while not (found := ready()):
            assert time.monotonic() < deadline, self.slurm.ask("squeue")
            time.sleep(0.2)
        return found

    def begun(self, x: int) -> bool:
        """Say whether the program is at work, and has saved something."""
        return (self.results / f"x={x}/seed=0/state/saved").exists()

    def attempts(self, x: int) -> list[str]:
        path = self.results / f"x={x}/seed=0/attempts.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line["reason"] for line in lines if line["step"] == "train"]

    def trained(self) -> list[list]:
        return [json.loads(path.read_text()) for path in self.folder.glob("log-*")]


@pytest.fixture
def study(slurm, tmp_path) -> OnSlurm:
    study = OnSlurm(tmp_path, CONFIG, TRAIN, EVAL)
    study.slurm = slurm
    yield study
    slurm.ask("scancel", "--user", str(os.getuid()), check=False)


def smaller(study: OnSlurm, *values: int) -> None:
    study.edit("config.yaml", "[1, 2, 3, 4, 5, 6, 7, 8]", str(list(values)))


def test_a_study_to_its_end(study):
    """Each run in a job of its own, with a device of its own, four at once at most."""
    outcome = study.end(study.start())
    assert [row["status"] for row in study.table()] == ["finished"] * 8
    assert study.table("summary.csv")[0]["x"] == "8"
    assert study.json("test.json")["best"]["path"] == "x=8"
    logs = study.trained()
    assert len({job for *_, job in logs}) == 8
    assert {device for device, *_ in logs} == {"0", "1", "2", "3"}
    for one in logs:
        at_once = [other for other in logs if other[1] < one[2] and one[1] < other[2]]
        assert len({device for device, *_ in at_once}) == len(at_once) <= 4
    # Training and evaluation shared a job; the test had its own.
    assert len(set(re.findall(r"external jobid '?(\d+)", outcome.log))) in (0, 9)
    assert "Nothing to be done" in study.end(study.start()).text


def test_failure_is_told_and_not_multiplied(study):
    smaller(study, 1, 2, 3)
    study.write("what-2", "raise")
    outcome = study.end(study.start(), status=1)
    assert {row["x"]: row["status"] for row in study.table()} == {
        "1": "finished",
        "2": "failed",
        "3": "finished",
    }
    assert study.attempts(2) == ["lost", "failed"]
    assert (
        "failed: results/x=2/seed=0: train failed, exit status 1; log: results/x=2/seed=0/logs/train.1.log"
        in outcome.text
    )
    assert "| ValueError: boom" in outcome.text


def test_cancelled_job_is_tried_again_and_goes_on(study):
    smaller(study, 1)
    study.write("what-1", "sleep")
    process = study.start()
    study.wait(lambda: study.begun(1))
    (job,) = study.train_jobs()
    (study.folder / "what-1").unlink()
    study.slurm.ask("scancel", job)
    study.end(process)
    assert study.attempts(1)[-1] == "finished"
    assert study.attempts(1)[1] == "preempted"
    assert (study.results / "x=1/seed=0/logs/train.2.log").read_text() == "saved before\n"


def test_time_limit_of_the_job(study):
    smaller(study, 1)
    study.write("what-1", "sleep")
    process = study.start()
    study.wait(lambda: study.begun(1))
    (job,) = study.train_jobs()
    (study.folder / "what-1").unlink()
    study.slurm.ask("scontrol", "update", f"JobId={job}", "TimeLimit=0:01")
    study.end(process)
    assert study.attempts(1)[-1] == "finished"
    assert study.attempts(1)[1] in ("preempted", "lost")


def test_preempted_job_is_requeued_and_goes_on(study):
    smaller(study, 1)
    study.write("what-1", "sleep")
    process = study.start("--slurm-requeue")
    study.wait(lambda: study.begun(1))
    (study.folder / "what-1").unlink()
    study.slurm.ask("sbatch", "-o", "/dev/null", "-p", "urgent", "--gpus=4", "-c", "8", "--wrap", "sleep 3")
    study.end(process)
    assert study.attempts(1)[-1] == "finished"


def test_ctrl_c_cancels_the_jobs(study):
    smaller(study, 1, 2)
    for x in (1, 2):
        study.write(f"what-{x}", "sleep")
    process = study.start()
    study.wait(lambda: study.begun(1) and study.begun(2))
    process.send_signal(signal.SIGINT)
    study.end(process, status=1)
    study.wait(lambda: not study.slurm.jobs(), 30)
    for x in (1, 2):
        (study.folder / f"what-{x}").unlink()
    study.end(study.start())
    assert [row["status"] for row in study.table()] == ["finished"] * 2


def test_killed_snakemake_leaves_no_second_job_of_a_run(study):
    """SIGKILL: the jobs live on. The next call cancels them before it submits any."""
    smaller(study, 1, 2)
    for x in (1, 2):
        study.write(f"what-{x}", "sleep")
    process = study.start()
    study.wait(lambda: study.begun(1) and study.begun(2))
    process.kill()
    process.communicate()
    left = study.train_jobs()
    assert len(left) == 2
    study.end(study.start("--unlock"))
    for x in (1, 2):
        (study.folder / f"what-{x}").unlink()
    outcome = study.end(study.start())
    assert "2 Slurm jobs of an earlier call that was killed: cancelled" in outcome.text
    assert [row["status"] for row in study.table()] == ["finished"] * 2
    assert len(study.trained()) == 2
    assert not {job for *_, job in study.trained()} & set(left)
