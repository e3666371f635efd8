"""Know the GPUs of this machine: by NVML, by what the driver shows without it, or by a file for tests."""

from __future__ import annotations

import os

from launch.light import suppress
from launch.process import parent

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INVENTORY = "SNAKESWEEP_INVENTORY"  # for tests: a JSON file in place of the machine's GPUs
UNKNOWN = 1 << 20  # a device's memory where nothing tells it: shares of it still add up


class Device:
    """One GPU, or one part of a GPU that was divided (MIG).

    Attributes:
        id: how it is called in CUDA_VISIBLE_DEVICES: as the user or the cluster wrote it, else the uuid.
        uuid: how it is called everywhere.
        name: the model.
        memory: MiB, UNKNOWN where nothing tells it.
        place: its place among the allowed devices.
        context: MiB that a CUDA context takes beside what a framework counts; 0 where it was not measured.
    """

    def __init__(self, uuid: str, name: str = "", memory: int = UNKNOWN, processes=None, context: int = 0):
        self.id = self.uuid = uuid
        self.name = name
        self.memory = memory
        self.place = 0
        self.context = context
        self._processes = processes or (lambda: [])

    @property
    def measured(self) -> bool:
        """Say whether the device's memory is known."""
        return self.memory != UNKNOWN

    def usage(self) -> list[tuple[int, int]]:
        """List who uses its memory: process number (0: unknown) and MiB."""
        return self._processes()

    def strangers(self, holders: set[int]) -> int:
        """Return the MiB used by processes that come from none of the lease holders."""
        return sum(mib for process, mib in self.usage() if not _comes_from(process, holders))

    def used_by(self, ancestor: int) -> int:
        """Return the MiB used by a process and all that come from it."""
        return sum(mib for process, mib in self.usage() if _comes_from(process, {ancestor}))


class Machine:
    """The GPUs of this machine, in the order of their numbers.

    Attributes:
        devices: all of them.
        driver: its version, where it is known.
    """

    def __init__(self, devices: Sequence[Device], driver: str = ""):
        self.devices = list(devices)
        self.driver = driver

    def allowed(self, environ: Mapping[str, str]) -> list[Device]:
        """List the devices that CUDA_VISIBLE_DEVICES allows, as CUDA reads it; all if it is not set."""
        text = environ.get("CUDA_VISIBLE_DEVICES")
        if text is None:
            found = self.devices
        else:
            found = []
            for word in map(str.strip, text.split(",")):
                if not word:
                    continue
                device = self._find(word)
                if device is None:  # CUDA ignores what it does not know, and all behind it
                    break
                if device.uuid not in [other.uuid for other in found]:
                    device.id = word
                    found.append(device)
        for place, device in enumerate(found):
            device.place = place
        return found

    def _find(self, word: str) -> Device | None:
        if word.isdecimal():
            if int(word) < len(self.devices):
                return self.devices[int(word)]
            return None if self.devices else Device(f"index-{int(word)}")
        if word.startswith(("GPU-", "MIG-")):
            # CUDA takes any beginning that no other device has.
            found = [device for device in self.devices if device.uuid.startswith(word)]
            if len(found) == 1:
                return found[0]
            return None if found or (self.devices and not word.startswith("MIG-")) else Device(word)
        return None


def machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """Find the GPUs of this machine."""
    if path := environ.get(INVENTORY):
        return _from_file(path)
    if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg"):  # the latter is Windows' own Linux
        try:
            return _from_nvml()
        except Exception:  # no library, or none that fits the driver: the driver's own files are left
            return Machine(_from_driver())
    return Machine([])


def _from_file(path: str) -> Machine:
    """Read an inventory: `{"devices": [{"uuid", "name", "memory", "context", "used": [[process, MiB]]}]}`."""
    import json

    def processes(number: int):
        with open(path) as file:
            return [tuple(pair) for pair in json.load(file)["devices"][number].get("used", [])]

    with open(path) as file:
        text = json.load(file)
    return Machine(
        [
            Device(
                item["uuid"],
                item.get("name", "test"),
                item.get("memory", UNKNOWN),
                lambda number=number: processes(number),
                item.get("context", 0),
            )
            for number, item in enumerate(text["devices"])
        ],
        text.get("driver", ""),
    )


def _from_nvml() -> Machine:
    try:
        import pynvml
    except (
        ImportError
    ):  # `launch` is started without the folders of installed packages, which takes 6 ms less
        import site

        site.main()
        import pynvml

    pynvml.nvmlInit()
    devices = []
    for number in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        parts = []
        with suppress(pynvml.NVMLError):  # most have no parts
            if pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
                for part in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                    with suppress(pynvml.NVMLError):
                        parts.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, part))
        devices += [_nvml_device(pynvml, part) for part in parts or [handle]]
    return Machine(devices, _text(pynvml.nvmlSystemGetDriverVersion()))


def _nvml_device(pynvml, handle) -> Device:
    uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20

    def processes() -> list[tuple[int, int]]:
        found: dict[int, int] = {}
        known = True
        for ask in (
            pynvml.nvmlDeviceGetComputeRunningProcesses,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            with suppress(pynvml.NVMLError):
                for process in ask(handle):
                    known &= process.usedGpuMemory is not None
                    found[process.pid] = (process.usedGpuMemory or 0) // 2**20
        if known:
            return list(found.items())
        # The driver tells only the sum: an even part of it is each one's.
        used = pynvml.nvmlDeviceGetMemoryInfo(handle).used // 2**20
        return [(process, used // len(found)) for process in found]

    return Device(uuid, _text(pynvml.nvmlDeviceGetName(handle)), memory, processes)


def _from_driver() -> list[Device]:
    """List the GPUs by the driver's files, in the order of their PCI addresses: memory is not in them."""
    root = "/proc/driver/nvidia/gpus"
    devices = []
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        with open(f"{root}/{name}/information") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        about = {key.strip(): value.strip() for key, value in lines.items()}
        devices.append(Device(about.get("GPU UUID", name), about.get("Model", "")))
    return devices


def _text(value) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _comes_from(process: int, ancestors: set[int]) -> bool:
    while process > 1:
        if process in ancestors:
            return True
        process = parent(process)
    return False
