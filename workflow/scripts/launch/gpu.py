"""Hand a program its GPUs: how many, which, how much of their memory, and what it used of them."""

from __future__ import annotations

import os
import sys

from launch import lease
from launch.devices import Device, Machine, machine
from launch.lease import WHOLE, Lease, Ledger
from launch.light import from_json, say, suppress, to_json

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

AUTO = "auto"
_HEADROOM = 1.15  # of what was measured: allocators round up, and runs differ a little
_CONTEXT = 500  # MiB of a CUDA context where it can't be measured
_INSIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside")

# What frameworks print when a GPU's memory is full, and when the GPU itself is gone.
FULL = (
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA out of memory",
    "RESOURCE_EXHAUSTED",
    "ResourceExhaustedError",
    "OOM when allocating tensor",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "cudaErrorMemoryAllocation",
)
GONE = ("GPU is lost", "fallen off the bus", "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error")


class Peaks:
    """What runs of a study have been measured to need: a line per run in a file of the results folder."""

    def __init__(self, path: str | None, step: str, folder: str):
        self._path = path
        self._step = step
        self._combination = os.path.dirname(folder)  # replicates are siblings

    def needed(self) -> int | None:
        """Return the MiB to lease: by the combination's own runs, else by the largest of the study."""
        import math

        own, all_of_study = [], []
        with suppress(OSError, TypeError), open(self._path, encoding="utf-8") as file:
            for line in file:
                with suppress(ValueError):
                    peak = from_json(line)
                    if peak["step"] == self._step:
                        all_of_study.append(peak["mib"])
                        if peak["combination"] == self._combination:
                            own.append(peak["mib"])
        # A run that exhausted its share was measured again alone: the larger figure counts from then on.
        known = own or all_of_study
        return math.ceil(max(known) * _HEADROOM) if known else WHOLE

    def add(self, mib: int) -> None:
        """Write down what a run needed."""
        if self._path:
            line = to_json({"step": self._step, "combination": self._combination, "mib": mib})
            with suppress(OSError):
                os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
                with open(self._path, "ab", buffering=0) as file:
                    file.write(f"{line}\n".encode())


class Gpus:
    """What one run may use.

    Args:
        share: how much: "0" nothing, "0.25" a quarter of one device, "2" two devices, "auto" as measured; None
            for whatever there is.
        allowed: uuids of the devices that the study keeps to, None for all that CUDA_VISIBLE_DEVICES allows.
    """

    def __init__(self, share: str | None, allowed: Sequence[str] | None, peaks: Peaks):
        self._share = share
        self._peaks = peaks
        self.lease: Lease | None = None
        self._peak = 0
        self._machine = Machine([]) if share in (None, "0") else machine()
        devices = self._machine.allowed(os.environ) if share not in (None, "0") else []
        self._devices = [d for d in devices if allowed is None or d.uuid in allowed] or devices

    def acquire(self, what: str, pause: Callable, alone: bool = False) -> None:
        """Wait until the devices are ours; on a machine without GPUs there is nothing to wait for.

        Args:
            what: for whom, as others will read it.
            pause: see `lease.acquire`.
            alone: whether nobody else may be on the device, whatever the share.
        """
        if not self._devices:
            return
        count = 1 if self._share == AUTO else max(1, int(float(self._share)))
        self._alone = alone
        self.lease = lease.acquire(
            self._devices,
            min(count, len(self._devices)),
            self._wanted,
            what,
            pause,
            lambda ledgers: say(waiting(what, ledgers)),
        )

    def _wanted(self, device: Device) -> int | None:
        if self._alone:
            return WHOLE
        if self._share == AUTO:
            needed = self._peaks.needed()
            return needed if needed is None or needed < device.memory else WHOLE
        share = float(self._share)
        return WHOLE if share >= 1 else int(share * device.memory)

    @property
    def shared(self) -> bool:
        """Say whether others may be on the device too."""
        return self.lease is not None and self.lease.mib is not WHOLE

    def environment(self, environ: Mapping[str, str], notes: str) -> dict[str, str]:
        """Return the program's environment: which devices, how much of them, and our module inside it."""
        env = dict(environ)
        env["SNAKESWEEP_NOTES"] = os.path.abspath(notes)  # the program may go elsewhere
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [_INSIDE, env.get("PYTHONPATH")]))
        for name in ("SNAKESWEEP_CAP_MIB", "SNAKESWEEP_CAP_FRACTION"):
            env.pop(name, None)
        if self.lease is None:
            if self._share == "0":
                env["CUDA_VISIBLE_DEVICES"] = "-1"
            return env
        env["CUDA_VISIBLE_DEVICES"] = ",".join(device.id for device in self.lease.devices)
        # So that a number means the same to CUDA as to the driver's tools and to us.
        env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        env.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        env.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        device = self.lease.devices[0]
        if self.shared and device.measured:
            cap = max(1, self.lease.mib - context(device))
            env["SNAKESWEEP_CAP_MIB"] = str(cap)
            env["SNAKESWEEP_CAP_FRACTION"] = f"{cap / device.memory:.4f}"
            if "XLA_CLIENT_MEM_FRACTION" not in env:
                env.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{cap / device.memory:.4f}")
        return env

    def sample(self, ancestor: int) -> None:
        """Look how much memory the program uses now."""
        self._peak = max(self._peak, sum(device.used_by(ancestor) for device in self.lease.devices))

    def about(self, notes: Mapping[str, str]) -> dict:
        """Describe the lease and what was used of it, for the attempt's record."""
        if self.lease is None:
            return {}
        counted = int(notes.get("peak", 0)) // 2**20
        peak = counted + context(self.lease.devices[0]) if counted else self._peak
        return {
            "devices": self.devices(),
            "share": self._share,
            "leased_mib": self.lease.mib,
            "gpu_memory_mib": peak or None,
            "gpu_memory_by": "framework" if counted else "nvml" if peak else None,
            "driver": self._machine.driver or None,
        }

    def devices(self) -> list[dict]:
        """Name the leased devices; `place` counts them from 0 among those that are allowed."""
        devices = self.lease.devices if self.lease else []
        return [{"uuid": d.uuid, "name": d.name, "place": d.place} for d in devices]

    def measured(self, mib: int | None) -> None:
        """Take down what the run needed, for the ones to come."""
        if mib and self._share == AUTO:
            self._peaks.add(mib)

    def release(self) -> None:
        """Give the devices back."""
        if self.lease:
            self.lease.end()
            self.lease = None


def waiting(what: str, ledgers: Sequence[Ledger]) -> str:
    """Say what a run waits for and who holds it."""
    lines = [f"{what} waits for a GPU:"]
    for ledger in ledgers:
        device = ledger.device
        holders = [h for h in ledger.holders() if h.mib]
        strangers = device.strangers({h.pid for h in holders})
        names = [f"{h.text} (process {h.pid}, {h.mib:,} MiB)" for h in holders]
        names += [f"programs that hold no lease ({strangers:,} MiB)"] if strangers else []
        lines.append(f"  {device.id} {device.name}: {'; '.join(names) or 'others wait for it, too'}")
    return "\n".join(lines)


def context(device: Device) -> int:
    """Return the MiB that a CUDA context takes on a device, measured once and kept for all."""
    if not device.context:
        (ledger,) = lease.ledgers([device])
        device.context = ledger.remember() or ledger.remember(_measure_context(device) or _CONTEXT)
        ledger.close()
    return device.context


def _measure_context(device: Device) -> int:
    """Start CUDA in a process and look what it uses."""
    import subprocess  # slow to import, and seldom needed

    code = (
        "import ctypes, sys; cuda = ctypes.CDLL('libcuda.so.1'); number = ctypes.c_int(); c = ctypes.c_void_p()\n"
        "failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(number), 0)\n"
        "failed = failed or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(c), number)\n"
        "print(failed, flush=True); sys.stdin.read()"
    )
    with suppress(OSError):
        probe = subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": device.id},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with probe:
            return device.used_by(probe.pid) if probe.stdout.readline().strip() == b"0" else 0
    return 0
