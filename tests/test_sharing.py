"""Studies on GPUs, as an inventory describes them: who runs where, how many at once, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import wait_for
from study import ROOT, Study

# Keeps its device for a while, and writes down which and when.
TRAIN = """\
import argparse, os, sys, time
started = time.monotonic()
parser = argparse.ArgumentParser()
parser.add_argument("--x")
parser.add_argument("--model")
options = parser.parse_args()
time.sleep(float(os.environ.get("HOLD", "0.3")))
if options.x == os.environ.get("FAILS"):
    sys.exit("no")
open(options.model, "w").write("model")
names = "CUDA_VISIBLE_DEVICES", "SNAKESWEEP_CAP_MIB"
devices, cap = map(os.environ.get, names)
print("USED", devices, started, time.monotonic(), cap)
"""
EVAL = "import sys; open(sys.argv[2], 'w').write('{\"accuracy\": 1}')\n"
CONFIG = """\
train: python train.py {flags} --model {model}
eval: python eval.py {model} {metrics}
model: model.txt
gpus_per_run: 1
grid: {x: [1, 2, 3, 4, 5, 6]}
seeds: 1
"""


class Machine:
    """A study on a machine with some GPUs of 1,000 MiB."""

    def __init__(self, folder, gpus=2, config=CONFIG):
        self.study = Study(folder, config, TRAIN, EVAL)
        devices = [{"uuid": f"GPU-{n}", "memory": 1000, "context": 100} for n in range(gpus)]
        (folder / "inventory.json").write_text(json.dumps({"devices": devices}))
        (folder / "leases").mkdir(exist_ok=True)
        self.env = {
            "SNAKESWEEP_INVENTORY": str(folder / "inventory.json"),
            "SNAKESWEEP_LEASES": str(folder / "leases"),
        }

    def start(self, *arguments, **env) -> subprocess.Popen:
        """Start a study and go on."""
        words = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "6", *arguments]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            words,
            cwd=self.study.folder,
            env=os.environ | {"PATH": path} | self.env | env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def snakemake(self, *arguments, status=0, cores="6", **env):
        return self.study.snakemake("--cores", cores, *arguments, status=status, env=self.env | env)

    @property
    def uses(self) -> list[tuple[str, float, float, str]]:
        """List (devices, start, end, cap) of all trainings, by start."""
        found = []
        for log in self.study.results.glob("*/seed=*/logs/train.*.log"):
            if not log.is_symlink():
                for line in log.read_text().splitlines():
                    if line.startswith("USED "):
                        devices, start, end, cap = line.split()[1:]
                        found.append((devices, float(start), float(end), cap))
        return sorted(found, key=lambda use: use[1])

    def at_once(self, device: str | None = None) -> int:
        """Return how many trainings there were at once, at most, on a device or on all."""
        uses = [use for use in self.uses if device in (None, *use[0].split(","))]
        return max(sum(s <= use[1] < e for _, s, e, _ in uses) for use in uses)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_never_two_on_one_gpu_of_those_allowed(tmp_path):
    """C23: https://github.com/snakemake/snakemake/issues/281."""
    machine = Machine(tmp_path, gpus=4)
    machine.snakemake("--resources", "gpu=2", status=1, CUDA_VISIBLE_DEVICES="2,3", FAILS="3")
    assert len(machine.uses) == 5  # one failed, and its device was free again
    assert {devices for devices, *_ in machine.uses} == {"2", "3"}
    assert machine.at_once("2") == machine.at_once("3") == 1
    assert machine.at_once() == 2


def test_without_resources_all_gpus_are_used(machine):
    machine.snakemake()
    assert {devices for devices, *_ in machine.uses} == {"GPU-0", "GPU-1"}
    assert machine.at_once() == 2


def test_a_study_stays_on_as_many_devices_as_it_was_given(machine):
    machine.snakemake("--resources", "gpu=1")
    assert len({devices for devices, *_ in machine.uses}) == 1
    assert machine.at_once() == 1


def test_shares_multiply_the_runs_at_once(machine):
    machine.snakemake("--resources", "gpu=1", "--config", "gpus_per_run=0.3")
    assert len({devices for devices, *_ in machine.uses}) == 1
    assert machine.at_once() == 3
    assert {cap for *_, cap in machine.uses} == {"200"}  # 0.3 x 1,000 MiB less the context's 100


def test_two_devices_for_one_run(machine):
    machine.snakemake("--config", "gpus_per_run=2")
    assert {devices for devices, *_ in machine.uses} == {"GPU-0,GPU-1"}
    assert machine.at_once() == 1


def test_two_studies_share_the_machine_and_choose_different_devices(machine, tmp_path_factory):
    other = Machine(tmp_path_factory.mktemp("other"))
    first = machine.start("--resources", "gpu=1", HOLD="1")
    try:
        assert wait_for(lambda: list(machine.study.results.glob("*/seed=*/logs/train.log")))
        outcome = other.snakemake("--resources", "gpu=1", **machine.env)
    finally:
        first.wait()
    assert first.returncode == 0
    assert {d for d, *_ in machine.uses}.isdisjoint({d for d, *_ in other.uses})
    assert "waits for a GPU" not in outcome.text


def test_shares_of_two_studies_on_one_device_are_never_over_committed(tmp_path_factory):
    """0.6 and 0.3 fit, 0.6 and two of 0.3 do not: the third waits, and says so."""
    one, two = (Machine(tmp_path_factory.mktemp(name), gpus=1) for name in ("one", "two"))
    first = one.start("--config", "gpus_per_run=0.6")
    try:
        outcome = two.snakemake("--config", "gpus_per_run=0.3", **one.env)
    finally:
        first.wait()
    assert first.returncode == 0
    assert "waits for a GPU" in outcome.text
    uses = [(start, end, 600) for _, start, end, _ in one.uses] + [(s, e, 300) for _, s, e, _ in two.uses]
    for moment, _, _ in uses:
        assert sum(mib for start, end, mib in uses if start <= moment < end) <= 1000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--config", "gpus_per_run=3"],
            "gpus_per_run: 3 is more than the 2 that this machine has; lower it",
        ),
        (
            ["--resources", "gpu=1", "--config", "gpus_per_run=2"],
            "gpus_per_run: 2 is more than --resources gpu=1 allows; raise the one or lower the other",
        ),
        (["--resources", "gpu=0"], "gpus_per_run: 1 is more than --resources gpu=0 allows"),
    ],
)
@pytest.mark.parametrize("dry", [[], ["-n"]], ids=["", "dry"])
def test_more_than_there_is_is_refused_before_anything_runs(machine, arguments, says, dry):
    outcome = machine.snakemake(*arguments, *dry, status=1)
    assert says in outcome.text
    assert outcome.jobs == (0, 0)


def test_fewer_devices_than_asked_for_is_told_in_one_line(machine):
    outcome = machine.snakemake("--resources", "gpu=5")
    assert outcome.text.count("--resources gpu=5, but there are 2 GPUs here: using these.") == 1
    assert machine.at_once() == 2


def test_machine_without_gpus_says_so_once(tmp_path):
    machine = Machine(tmp_path, gpus=0)
    outcome = machine.snakemake("--resources", "gpu=2")
    assert outcome.text.count("No GPU here") == 1
    assert machine.at_once() == 2  # it still limits how many run at once
    machine.snakemake("--forceall", HOLD="1.5")  # without it, cores limit
    assert machine.at_once() == 6


def test_auto_runs_the_first_alone_and_packs_the_rest(machine):
    """The stand-in framework counts 100 MiB, the context takes 100: 230 MiB a run, four on a device."""
    (machine.study.folder / "torch.py").write_text(
        "class cuda:\n"
        "    is_initialized = staticmethod(lambda: True)\n"
        "    device_count = staticmethod(lambda: 1)\n"
        "    max_memory_reserved = staticmethod(lambda number: 100 * 2**20)\n"
        "    _lazy_call = staticmethod(lambda act: None)\n"
        "__version__ = '0'\n"
    )
    machine.study.edit("train.py", "import argparse,", "import torch, argparse,")
    machine.snakemake("--resources", "gpu=1", "--config", "gpus_per_run=auto", HOLD="1")
    first, second = machine.uses[:2]
    assert first[2] <= second[1]
    assert first[3] == "None"
    assert {cap for *_, cap in machine.uses[1:]} == {"130"}
    assert machine.at_once() == 4


def test_sharing_is_no_reason_to_run_again(machine):
    machine.snakemake()
    for more in ("gpus_per_run=0.5", "gpus_per_run=auto", "time_limit=2h", "grace_time=5"):
        assert machine.snakemake("-n", "--config", more).jobs == (0, 0)
