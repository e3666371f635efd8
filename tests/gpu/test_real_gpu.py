"""On a machine with a GPU: `make test-gpu`. With whatever framework it has, else with CUDA alone.

Not part of `make test`. The programs allocate, compute and leave; what is checked is the device's memory.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time

import pytest
from launch.devices import machine
from processes import launch
from study import ROOT, Study

FRAMEWORK = next((name for name in ("torch", "tensorflow", "jax") if importlib.util.find_spec(name)), "cuda")
# ALLOCATE(mib) takes that much memory and returns something to keep; WORK(seconds) multiplies matrices.
PROGRAMS = {
    "torch": """
import torch
def allocate(mib): return torch.empty(mib * 2**20, dtype=torch.uint8, device="cuda")
def work(steps):
    a = torch.rand(2048, 2048, device="cuda")
    for _ in range(steps): a = (a @ a) % 1
    torch.cuda.synchronize()
""",
    "tensorflow": """
import tensorflow as tf
def allocate(mib):
    with tf.device("GPU:0"): return tf.zeros(mib * 2**18, tf.float32) + 1
def work(steps):
    with tf.device("GPU:0"):
        a = tf.random.uniform((2048, 2048))
        for _ in range(steps): a = (a @ a) % 1
    return float(a[0, 0])
""",
    "jax": """
import jax, jax.numpy as jnp
def allocate(mib): return (jnp.zeros(mib * 2**18, jnp.float32) + 1).block_until_ready()
def work(steps):
    a = jax.random.uniform(jax.random.key(0), (2048, 2048))
    for _ in range(steps): a = (a @ a) % 1
    a.block_until_ready()
""",
    "cuda": """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
assert not cuda.cuInit(0) and not cuda.cuDeviceGet(ctypes.byref(device), 0)
assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) and not cuda.cuCtxSetCurrent(context)
def allocate(mib):
    if cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib * 2**20)):
        raise MemoryError("CUDA_ERROR_OUT_OF_MEMORY")
def work(steps): pass
""",
}
PROGRAM = (
    PROGRAMS[FRAMEWORK]
    + """
import os, sys, time
mib, steps, hold = map(int, sys.argv[1:4])
kept = allocate(mib)
started = time.monotonic()
work(steps)
took = time.monotonic() - started
time.sleep(hold)
if len(sys.argv) > 4: open(sys.argv[4], "w").write("model")
print("TOOK", took)
"""
)

pytestmark = pytest.mark.skipif(not machine().allowed(os.environ), reason="there is no GPU in this machine")


@pytest.fixture
def device():
    return machine().allowed(os.environ)[0]


def used(device) -> int:
    return sum(mib for _, mib in device.usage())


def run(folder, share: str, *numbers: int, status: int | None = 0) -> list[dict]:
    """Run the program through launch; return its attempts."""
    (folder / "program.py").write_text(PROGRAM)
    words = launch(folder, sys.executable, "program.py", *map(str, numbers), options=[f"--gpus={share}"])
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600)
    assert status in (None, done.returncode), done.stderr
    lines = map(json.loads, (folder / "run/attempts.jsonl").read_text().splitlines())
    return [line for line in lines if line["reason"] != "lost"]


def test_memory_is_back_after_each_run(tmp_path, device):
    before = used(device)
    for _ in range(3):
        attempts = run(tmp_path, "1", 1000, 10, 2)
        deadline = time.monotonic() + 10
        while used(device) > before + 50 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert used(device) <= before + 50
        assert attempts[-1]["gpu_memory_mib"] >= 1000


@pytest.mark.skipif(FRAMEWORK == "cuda", reason="plain CUDA has no allocator to cap")
def test_cap_is_obeyed(tmp_path, device):
    """More than its share: refused there, then tried again alone on the device."""
    share = 4000 / device.memory
    attempts = run(tmp_path, f"{share:.4f}", 1000, 10, 2)
    assert attempts[-1]["gpu_memory_mib"] <= 4000
    attempts = run(tmp_path, f"{share:.4f}", 6000, 10, 2)
    assert [a["reason"] for a in attempts[-2:]] == ["out of GPU memory", "finished"]
    assert attempts[-1]["leased_mib"] is None


@pytest.mark.skipif(FRAMEWORK == "cuda", reason="plain CUDA has no allocator to cap")
def test_a_cap_costs_no_speed(tmp_path, device):
    """Printed, and held to a bound that only a fault would pass: device time is noisy on shared machines."""
    took = {}
    for share in ("1", f"{4000 / device.memory:.4f}") * 3:
        run(tmp_path, share, 500, 300, 0)
        text = (tmp_path / "run/logs/train.log").read_text()
        took.setdefault(share, []).append(float(text.partition("TOOK")[2].split()[0]))
    whole, capped = (sorted(times)[1] for times in took.values())
    print(f"{FRAMEWORK}: whole {whole:.3f} s, capped {capped:.3f} s, ratio {capped / whole:.3f}")
    assert capped < 2 * whole


CONFIG = """\
train: python program.py 1000 10 3 {model} {flags}
eval: python eval.py {model} {metrics}
model: model.txt
gpus_per_run: SHARE
grid: {x: [1, 2, 3, 4, 5, 6]}
seeds: 1
"""


def study(folder, share: str) -> Study:
    made = Study(
        folder,
        CONFIG.replace("SHARE", share),
        "",
        """import sys; open(sys.argv[2], "w").write('{"accuracy": 1}')\n""",
    )
    made.write("program.py", PROGRAM)
    return made


def test_packing_by_auto(tmp_path):
    made = study(tmp_path, "auto")
    made.snakemake("--cores", "6", "--resources", "gpu=1")
    leased = [
        [json.loads(line) for line in path.read_text().splitlines()][1]["leased_mib"]
        for path in made.results.glob("x=*/seed=0/attempts.jsonl")
    ]
    print("leased:", leased)
    assert leased.count(None) == 1
    assert all(mib is None or mib > 1000 for mib in leased)


def test_two_studies_at_once(tmp_path_factory, device):
    """Quarters of one, halves of the other: never more than the device has."""
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    words = [
        sys.executable,
        "-m",
        "snakemake",
        "-s",
        str(ROOT / "Snakefile"),
        "--cores",
        "4",
        "--resources",
        "gpu=1",
    ]
    running = []
    for folder, share in zip(folders, ("0.25", "0.5"), strict=True):
        study(folder, share)
        with (folder / "out").open("wb") as out:
            running.append(subprocess.Popen(words, cwd=folder, stdout=out, stderr=out))
    most = 0
    while any(process.poll() is None for process in running):
        most = max(most, used(device))
        time.sleep(0.2)
    assert [process.returncode for process in running] == [0, 0]
    print(f"at most {most:,} of {device.memory:,} MiB")
    assert most <= device.memory
