"""What a program gets of the GPUs, on a machine as an inventory describes it, and what is kept of its use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launch.gpu import Peaks
from launch.lease import WHOLE
from processes import PATIENCE, launch, wait_for

NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_FORCE_GPU_ALLOW_GROWTH", "SNAKESWEEP_CAP_MIB")
NAMES += ("SNAKESWEEP_CAP_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION")
SHOW = f"import json, os; print(json.dumps({{n: os.environ[n] for n in {NAMES} if n in os.environ}}))"
# Stands for a framework with a counter of its own: the hook inside the program asks what it would ask PyTorch.
TORCH = """
class cuda:
    @staticmethod
    def is_initialized(): return True
    @staticmethod
    def device_count(): return 1
    @staticmethod
    def max_memory_reserved(number): return PEAK * 2**20
    @staticmethod
    def _lazy_call(act): act()
    @staticmethod
    def set_per_process_memory_fraction(fraction): print("fraction", fraction)
__version__ = "0.torch"
"""


@pytest.fixture
def gpus(tmp_path):
    """Make a machine with two GPUs of 1,000 MiB and run programs on it."""
    return Gpus(tmp_path)


class Gpus:
    def __init__(self, folder: Path):
        self.folder = folder
        self.inventory = folder / "inventory.json"
        self.describe()
        (folder / "leases").mkdir()

    def describe(self, *used, count=2, **more):
        devices = [
            {"uuid": f"GPU-{n}", "name": "Test", "memory": 1000, "context": 100, "used": used, **more}
            for n in range(count)
        ]
        self.inventory.write_text(json.dumps({"driver": "1.2", "devices": devices}))

    @property
    def env(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if k not in NAMES}
        return env | {
            "SNAKESWEEP_INVENTORY": str(self.inventory),
            "SNAKESWEEP_LEASES": str(self.folder / "leases"),
        }

    def run(self, share: str, *command: str, env=None, options=(), status=0, **more):
        words = launch(self.folder, *command, options=[f"--gpus={share}", *options], **more)
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.env | (env or {}),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == status, done.stderr
        return done

    def shown(self, share: str, **more) -> dict:
        """Run a program that shows its environment."""
        self.run(share, sys.executable, "-c", SHOW, **more)
        return json.loads((self.folder / "run/logs/train.log").read_text())

    def torch(self, peak: int) -> dict[str, str]:
        """Return an environment in which a program can import the stand-in."""
        (self.folder / "lib").mkdir(exist_ok=True)
        (self.folder / "lib/torch.py").write_text(TORCH.replace("PEAK", str(peak)))
        return {"PYTHONPATH": str(self.folder / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}

    @property
    def attempts(self) -> list[dict]:
        lines = map(json.loads, (self.folder / "run/attempts.jsonl").read_text().splitlines())
        return [line for line in lines if line["reason"] != "lost"]


GROWTH = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def test_whole_device(gpus):
    """C24: only its own GPU, before any framework is imported, growing as it needs, and no cap."""
    assert gpus.shown("1") == GROWTH | {"CUDA_VISIBLE_DEVICES": "GPU-0"}
    (attempt,) = gpus.attempts
    assert attempt["devices"] == [{"place": 0, "uuid": "GPU-0", "name": "Test"}]
    assert (attempt["share"], attempt["leased_mib"], attempt["driver"]) == ("1", None, "1.2")


def test_two_devices(gpus):
    assert gpus.shown("2")["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"


def test_share_is_a_hard_cap_less_the_context(gpus):
    """A quarter of 1,000 MiB, of which a CUDA context takes 100."""
    cap = {"SNAKESWEEP_CAP_MIB": "150", "SNAKESWEEP_CAP_FRACTION": "0.1500"}
    fraction = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1500"}
    assert gpus.shown("0.25") == GROWTH | {"CUDA_VISIBLE_DEVICES": "GPU-0"} | cap | fraction
    assert gpus.attempts[0]["leased_mib"] == 250


def test_none(gpus):
    assert gpus.shown("0") == {"CUDA_VISIBLE_DEVICES": "-1"}


def test_machine_without_gpus(gpus):
    gpus.describe(count=0)
    assert gpus.shown("1") == {}
    assert "devices" not in gpus.attempts[0]


def test_users_own_settings_stay(gpus):
    own = {"TF_FORCE_GPU_ALLOW_GROWTH": "false", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert gpus.shown("1", env=own).items() >= own.items()


@pytest.mark.parametrize(("text", "expected"), [("1", "1"), (" 1 ", "1"), ("GPU-1,0", "GPU-1"), ("-1", None)])
def test_visible_devices_are_the_allowed_set_and_their_names_stay(gpus, text, expected):
    shown = gpus.shown("1", env={"CUDA_VISIBLE_DEVICES": text})
    assert shown["CUDA_VISIBLE_DEVICES"] == expected if expected else "SNAKESWEEP_CAP_MIB" not in shown


def test_devices_of_the_study(gpus):
    """What snakemake chose for the study, as `announce` leaves it in the environment."""
    from launch.lease import boot

    call = f"boot={boot()} devices=GPU-1"
    assert gpus.shown("1", env={"SNAKESWEEP_CALL": call})["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    # Another host's devices are no use.
    call = "boot=elsewhere devices=GPU-1"
    assert gpus.shown("1", env={"SNAKESWEEP_CALL": call})["CUDA_VISIBLE_DEVICES"] == "GPU-0"


def test_waiting_says_for_what_and_who_holds_it(gpus, family):
    words = launch(
        gpus.folder, "sh", "-c", "touch ready; exec sleep 600", options=["--gpus=2"], record="a/record.json"
    )
    holder = family.start(*words, env=family.env_with(**gpus.env))
    assert wait_for((gpus.folder / "ready").exists)
    words = launch(gpus.folder, "touch", "second", options=["--gpus=1"], record="b/record.json")
    waiter = family.start(*words, env=family.env_with(**gpus.env), stderr=subprocess.PIPE)
    said = [waiter.stderr.readline() for _ in range(3)]
    assert said[0] == "train b waits for a GPU:\n"
    assert f"train a (process {holder.pid}, 1,000 MiB)" in said[1]
    assert not (gpus.folder / "second").exists()
    holder.terminate()
    assert waiter.wait(PATIENCE) == 0
    assert (gpus.folder / "second").exists()


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_waiting_can_be_ended(gpus, family, name, status):
    import signal

    words = launch(
        gpus.folder, "sh", "-c", "touch ready; exec sleep 600", options=["--gpus=2"], record="a/record.json"
    )
    family.start(*words, env=family.env_with(**gpus.env))
    assert wait_for((gpus.folder / "ready").exists)
    for _ in range(2):  # the first in the queue, and one that blocks behind it
        words = launch(gpus.folder, "touch", "second", options=["--gpus=1"], record="b/record.json")
        waiter = family.start(*words, env=family.env_with(**gpus.env), stderr=subprocess.PIPE)
        waiter.stderr.readline()
        waiter.send_signal(signal.Signals[name])
        assert waiter.wait(PATIENCE) == status
    assert list((gpus.folder / "b").iterdir()) == []  # it was no attempt


def test_peak_and_versions_are_kept(gpus):
    gpus.run("0.5", sys.executable, "-c", "import torch", env=gpus.torch(300))
    (attempt,) = gpus.attempts
    assert attempt["versions"] == {"python": sys.version.split()[0], "torch": "0.torch"}
    assert (attempt["gpu_memory_mib"], attempt["gpu_memory_by"]) == (400, "framework")  # with the context
    assert (gpus.folder / "run/logs/train.log").read_text() == "fraction 0.4\n"


def test_peak_by_nvml_where_no_framework_counts(gpus):
    """Sampled every second."""
    program = (
        "import json, os, time\n"
        f"path = {str(gpus.inventory)!r}; text = json.load(open(path))\n"
        "text['devices'][0]['used'] = [[os.getpid(), 640], [1, 30]]\n"
        "json.dump(text, open(path, 'w')); time.sleep(2.2)"
    )
    gpus.run("1", sys.executable, "-c", program)
    assert (gpus.attempts[0]["gpu_memory_mib"], gpus.attempts[0]["gpu_memory_by"]) == (640, "nvml")


def test_out_of_gpu_memory_in_a_share_is_tried_again_alone(gpus):
    """And the figure that `auto` goes by is corrected."""
    program = (
        "import os, sys, torch\n"
        "if 'SNAKESWEEP_CAP_MIB' in os.environ:\n"
        "    sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB')"
    )
    done = gpus.run("0.25", sys.executable, "-c", program, env=gpus.torch(700))
    assert "train in run needs more GPU memory: again, alone." in done.stderr
    first, second = gpus.attempts
    assert (first["reason"], first["detail"]) == ("out of GPU memory", "its share of 250 MiB was too little")
    assert (second["reason"], second["leased_mib"], second["gpu_memory_mib"]) == ("finished", None, 800)
    assert "CUDA out of memory" in (gpus.folder / first["log"].replace("logs", "run/logs")).read_text()


def test_out_of_gpu_memory_with_a_whole_device_is_a_failure(gpus):
    gpus.run("1", "sh", "-c", "echo RESOURCE_EXHAUSTED; exit 1", status=1)
    (attempt,) = gpus.attempts
    assert (attempt["reason"], attempt["detail"]) == ("out of GPU memory", "the whole GPU was too little")


@pytest.mark.parametrize("share", ["1", "0.5"])
def test_lost_device(gpus, share):
    gpus.run(share, "sh", "-c", "echo 'CUDA error: GPU is lost'; exit 1", status=1)
    assert [a["reason"] for a in gpus.attempts] == ["device lost"]


def test_auto_leases_what_was_measured(gpus):
    """The first run alone; a combination's later runs its first one's peak x 1.15; others the largest."""
    options = ["--peaks=peaks.jsonl"]
    program = [sys.executable, "-c", "import torch"]

    def leased(combination: str, seed: int, peak: int) -> int | None:
        record = f"results/{combination}/seed={seed}/record.json"
        gpus.run("auto", *program, env=gpus.torch(peak), options=options, record=record)
        line = (gpus.folder / record).with_name("attempts.jsonl").read_text().splitlines()[-1]
        return json.loads(line)["leased_mib"]

    assert leased("x=1", 0, 100) is None  # nothing is known
    assert leased("x=1", 1, 90) == 230  # (100 + 100 of the context) x 1.15
    assert leased("x=2", 0, 300) == 230
    assert leased("x=2", 1, 300) == 460  # its own first
    assert leased("x=3", 0, 100) == 460  # the largest
    assert leased("x=1", 2, 100) == 230


def test_peaks(tmp_path):
    folder = str(tmp_path / "results/x=1/seed=0")
    peaks = Peaks(tmp_path / "peaks.jsonl", "train", folder)
    assert peaks.needed() is WHOLE
    peaks.add(100)
    with (tmp_path / "peaks.jsonl").open("a") as file:
        file.write("half a li\n")
    assert peaks.needed() == 115
    assert Peaks(tmp_path / "peaks.jsonl", "evaluate", folder).needed() is WHOLE
    peaks.add(200)  # it exhausted its share, and was tried again alone
    assert peaks.needed() == 230
