"""Acts inside a program that `launch` started, on its first import of TensorFlow or PyTorch, and at its end.

Python imports a module of this name by itself when it starts. It keeps the program under its memory cap, and
leaves a note of versions and of the peak that the framework counted. No program is touched for it.
"""

import atexit
import os
import sys

_CAP = os.environ.get("SNAKESWEEP_CAP_MIB")
_NOTES = os.environ.get("SNAKESWEEP_NOTES")
_PROCESS = os.getpid()


class _Finder:
    """Finds the frameworks as Python would, and has us act once they are loaded."""

    def __init__(self, actions):
        self._actions = actions

    def find_spec(self, name, path=None, target=None):
        if name not in self._actions:
            return None
        act = self._actions.pop(name)
        spec = None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                break
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            _act(name, act, module)

        spec.loader.exec_module = exec_module
        return spec


def _act(name, act, module):
    try:
        act(module)
    except Exception as error:  # a framework that changed is no reason to fail the run
        print(f"Snakesweep can't limit {name}'s GPU memory ({error})", file=sys.stderr)


def _cap_tensorflow(tf):
    """Give every GPU that TensorFlow sees the cap as its size; a program's own settings can't raise it."""
    cap = int(_CAP)
    config = tf.config
    set_devices = config.set_logical_device_configuration
    for gpu in config.list_physical_devices("GPU"):
        set_devices(gpu, [config.LogicalDeviceConfiguration(memory_limit=cap)])

    def set_smaller_devices(device, logical_devices):
        limits = [getattr(logical, "memory_limit", None) for logical in logical_devices]
        if device.device_type != "GPU" or (None not in limits and sum(limits) <= cap):
            set_devices(device, logical_devices)

    def set_memory_growth(device, enable):
        """Do nothing: memory grows up to the cap already, and TensorFlow would raise."""

    config.set_logical_device_configuration = set_smaller_devices
    config.experimental.set_virtual_device_configuration = set_smaller_devices
    config.experimental.set_memory_growth = set_memory_growth


def _cap_torch(torch):
    """Set the fraction when CUDA starts: to do it now would start CUDA, and forbid to fork."""
    fraction = float(os.environ["SNAKESWEEP_CAP_FRACTION"])
    torch.cuda._lazy_call(lambda: torch.cuda.set_per_process_memory_fraction(fraction))


def _note():
    """Write down versions and the peak of GPU memory, in bytes."""
    if os.getpid() != _PROCESS:  # a fork of the program
        return
    lines = [f"python={sys.version.split()[0]}"]
    for name in ("tensorflow", "keras", "numpy", "torch", "jax"):
        if version := getattr(sys.modules.get(name), "__version__", None):
            lines.append(f"{name}={version}")
    if os.environ.get("CUDA_VISIBLE_DEVICES", "-1") not in ("", "-1"):
        for measure in (_peak_of_tensorflow, _peak_of_torch, _peak_of_jax):
            try:
                lines.append(f"peak={int(measure())}")
            except Exception:  # not imported, or it never used a GPU
                continue
    try:
        with open(os.path.join(_NOTES, f"{_PROCESS}.note"), "w") as file:
            file.write("\n".join(lines))
    except OSError:  # it is not worth a run
        pass


def _peak_of_tensorflow():
    tf = sys.modules["tensorflow"]
    gpus = tf.config.list_logical_devices("GPU")
    return sum(tf.config.experimental.get_memory_info(f"GPU:{n}")["peak"] for n in range(len(gpus))) or 1 / 0


def _peak_of_torch():
    cuda = sys.modules["torch"].cuda
    return (
        sum(cuda.max_memory_reserved(n) for n in range(cuda.device_count()))
        if cuda.is_initialized()
        else 1 / 0
    )


def _peak_of_jax():
    devices = [d for d in sys.modules["jax"].local_devices() if d.platform == "gpu"]
    return sum(d.memory_stats()["peak_bytes_in_use"] for d in devices) or 1 / 0


def _next_sitecustomize():
    """Import the module of this name that ours hides."""
    ours = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != ours]
    this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this


def start():
    """Watch over this process; frameworks that are there already, in a warm start, are capped at once."""
    if _NOTES:
        atexit.register(_note)
    if _CAP:
        actions = {"tensorflow": _cap_tensorflow, "torch": _cap_torch}
        for name in [name for name in actions if name in sys.modules]:
            _act(name, actions.pop(name), sys.modules[name])
        sys.meta_path.insert(0, _Finder(actions))


if __name__ == "sitecustomize":
    start()
    _next_sitecustomize()
