"""What our module does inside a program: caps and notes, and nothing that the program could trip over."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PATIENCE, SCRIPTS

INSIDE = SCRIPTS / "launch" / "inside"
# Writes down what is asked of it, as TensorFlow's own `config` is on a machine with two GPUs.
TENSORFLOW = """
class Device:
    def __init__(self, name, kind): self.name, self.device_type = name, kind
class config:
    asked = []
    class LogicalDeviceConfiguration:
        def __init__(self, memory_limit=None): self.memory_limit = memory_limit
    class experimental:
        @staticmethod
        def set_memory_growth(device, enable): raise ValueError("Cannot set memory growth")
        @staticmethod
        def set_virtual_device_configuration(device, devices): raise AssertionError
        @staticmethod
        def get_memory_info(name): return {"current": 0, "peak": 5 * 2**20}
    @staticmethod
    def list_physical_devices(kind): return [Device("gpu:0", kind), Device("gpu:1", kind)]
    @staticmethod
    def list_logical_devices(kind): return [1]
    @classmethod
    def set_logical_device_configuration(cls, device, devices):
        cls.asked.append((device.name, [d.memory_limit for d in devices]))
__version__ = "0.tf"
"""


@pytest.fixture
def inside(tmp_path):
    """Run a program as launch would have it run."""
    (tmp_path / "lib").mkdir()

    def inside(program: str, cap: int | None = 500, **env) -> str:
        paths = [str(INSIDE), str(tmp_path / "lib"), env.pop("PYTHONPATH", "")]
        env |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "SNAKESWEEP_NOTES": str(tmp_path)}
        if cap:
            env |= {"SNAKESWEEP_CAP_MIB": str(cap), "SNAKESWEEP_CAP_FRACTION": "0.5"}
        done = subprocess.run(
            [sys.executable, "-B", "-c", program],
            env=os.environ | env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        inside.stderr = done.stderr
        return done.stdout

    inside.lib = tmp_path / "lib"
    inside.notes = lambda: dict(
        line.split("=") for path in tmp_path.glob("*.note") for line in path.read_text().splitlines()
    )
    return inside


def test_every_gpu_gets_the_cap_and_the_program_cannot_raise_it(inside):
    (inside.lib / "tensorflow.py").write_text(TENSORFLOW)
    program = """
import json, tensorflow as tf
gpu = tf.config.list_physical_devices("GPU")[0]
tf.config.experimental.set_memory_growth(gpu, True)  # the commonest snippet there is
new = tf.config.LogicalDeviceConfiguration
for limits in ([None], [600], [300, 300], [200, 200]):
    tf.config.set_logical_device_configuration(gpu, [new(limit) for limit in limits])
tf.config.experimental.set_virtual_device_configuration(gpu, [new(400)])
print(json.dumps(tf.config.asked))
"""
    first = [["gpu:0", [500]], ["gpu:1", [500]]]
    assert json.loads(inside(program)) == [*first, ["gpu:0", [200, 200]], ["gpu:0", [400]]]
    assert inside.notes()["tensorflow"] == "0.tf"


def test_without_a_cap_nothing_is_changed(inside):
    (inside.lib / "tensorflow.py").write_text(TENSORFLOW)
    assert inside("import tensorflow as tf; print(tf.config.asked)", cap=None) == "[]\n"


def test_peak_is_asked_for_only_where_there_is_a_gpu(inside):
    (inside.lib / "tensorflow.py").write_text(TENSORFLOW)
    inside("import tensorflow", CUDA_VISIBLE_DEVICES="-1")
    assert "peak" not in inside.notes()
    inside("import tensorflow", CUDA_VISIBLE_DEVICES="0")
    assert inside.notes()["peak"] == str(5 * 2**20)


def test_framework_that_changed_does_not_fail_the_run(inside):
    (inside.lib / "tensorflow.py").write_text("__version__ = '99'")
    inside("import tensorflow")
    assert "Snakesweep can't limit tensorflow's GPU memory" in inside.stderr


def test_real_tensorflow(inside):
    """On this machine without a GPU there is nothing to cap; what programs do about growth must go through."""
    program = """
import sys, tensorflow as tf
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
tf.config.experimental.set_memory_growth(tf.config.list_physical_devices("CPU")[0], True)
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
print(len(tf.config.list_logical_devices("CPU")), float(tf.reduce_sum(tf.ones(3))))
"""
    assert inside(program, CUDA_VISIBLE_DEVICES="-1") == "2 3.0\n"
    assert set(inside.notes()) >= {"python", "tensorflow", "keras", "numpy"}


def test_another_sitecustomize_is_not_hidden(inside):
    """Distributions and coverage tools have one."""
    (inside.lib / "sitecustomize.py").write_text("import builtins; builtins.other = 'there'")
    assert inside("import sitecustomize; print(other, sitecustomize.__file__)").split() == [
        "there",
        str(inside.lib / "sitecustomize.py"),
    ]


def test_sitecustomize_that_fails_is_the_programs_own_fault(inside):
    (inside.lib / "sitecustomize.py").write_text("import no_such_module")
    inside("print(1)")
    assert "no_such_module" in inside.stderr


def test_import_path_is_the_programs(inside):
    own = "import sys; print([path for path in sys.path if path.endswith('inside')])"
    assert inside(own) == "[]\n"


def test_forks_leave_no_note_of_their_own(inside, tmp_path):
    inside("import os, sys; pid = os.fork(); pid and os.waitpid(pid, 0); sys.exit(0)")
    assert len(list(tmp_path.glob("*.note"))) == 1


def test_folder_that_is_gone_does_not_fail_the_run(inside, tmp_path):
    inside("import os; os.environ['x'] = '1'", cap=None)
    program = f"import shutil; shutil.rmtree({str(tmp_path / 'gone')!r})"
    Path(tmp_path / "gone").mkdir()
    env = {"PYTHONPATH": str(INSIDE), "SNAKESWEEP_NOTES": str(tmp_path / "gone")}
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | env, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
