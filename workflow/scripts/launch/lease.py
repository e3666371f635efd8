"""Lease GPUs and shares of their memory: locks that the kernel frees when the last holder dies.

One file per device, in memory and the same for all users of the host. A lease is a set of open-file-description
locks on its bytes, one byte per MiB of the device. Whoever waits holds the device's turnstile, another byte, so
that waiters come one after the other; the rest block on it. A locked slot says whose note to read. What is in
the file means nothing without the locks, so nothing in it can be stale.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time

from launch.light import suppress

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WHOLE = None  # what to ask for if nobody else may be on the device
_ALL = 1 << 30  # bytes that stand for memory, on whatever device
_TURNSTILE = 1 << 31
_SLOTS = 1 << 32
_SLOT_COUNT = 1024
_NOTE_BYTES = 512
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux
_LONGEST_PAUSE = 0.25  # seconds between two looks of the one that is first in the queue
_ROOM = 0.9  # of a device's memory must be free of strangers for a whole-device lease: a screen may use some


class Holder:
    """Who holds a lease, as its note says.

    Attributes:
        pid: the process that took it.
        mib: how much, 0 for a study that only prefers this device.
        text: user, since when, and what for.
    """

    def __init__(self, pid: int, mib: int, text: str):
        self.pid = pid
        self.mib = mib
        self.text = text


class Ledger:
    """One device's file."""

    def __init__(self, device, folder: str):
        self.device = device
        self._path = os.path.join(folder, f"snakesweep-{boot()}-{device.uuid.replace('/', '_')}")
        self.fd = _open(self._path)

    def is_current(self) -> bool:
        """Say whether the file still is where everybody looks for it; a cleaner may have removed it."""
        with suppress(OSError):
            return os.stat(self._path).st_ino == os.fstat(self.fd).st_ino
        return False

    def close(self) -> None:
        """Give back all that is held through this file."""
        os.close(self.fd)

    def holders(self) -> list[Holder]:
        """Read the notes of all that hold a lease."""
        found = []
        for start, end in self._held(_SLOTS, _SLOTS + _SLOT_COUNT):
            for slot in range(start - _SLOTS, end - _SLOTS):
                text = (
                    os.pread(self.fd, _NOTE_BYTES, slot * _NOTE_BYTES).rstrip(b"\0 ").decode(errors="replace")
                )
                with suppress(ValueError):
                    pid, mib, text = text.split(" ", 2)
                    found.append(Holder(int(pid), int(mib), text))
        return found

    def leased(self) -> int:
        """Return the MiB that are leased."""
        return sum(min(end, self.device.memory) - start for start, end in self._held(0, self.device.memory))

    def available(self) -> int:
        """Return the MiB that neither a lease nor a process of strangers takes."""
        return self.device.memory - self.leased() - self.device.strangers({h.pid for h in self.holders()})

    def take(self, mib: int | None, what: str) -> bool:
        """Lock `mib` bytes, or all; the turnstile must be held. Return whether it could be done."""
        memory = self.device.memory
        if mib is WHOLE:
            if self._held(0, _ALL) or self.available() < _ROOM * memory:
                return False
            wanted = [(0, _ALL)]
        else:
            if self.available() < mib:
                return False
            wanted = list(_first(mib, self._free(memory)))
        if not self._note(memory if mib is WHOLE else mib, what):
            return False
        return all(self._lock(start, end) for start, end in wanted)

    def remember(self, number: int | None = None) -> int | None:
        """Keep a number about the device for all, the size of a CUDA context, or tell the one that is kept."""
        place = _SLOT_COUNT * _NOTE_BYTES
        if number is not None:
            os.pwrite(self.fd, str(number).encode().ljust(16), place)
            return number
        text = os.pread(self.fd, 16, place).strip()
        return int(text) if text.isdigit() else None

    def prefer(self, what: str) -> None:
        """Leave a note that a study uses this device, so that others choose another if they can."""
        self._note(0, what)

    def turn(self) -> bool:
        """Pass the turnstile, if nobody stands in it."""
        return self._lock(_TURNSTILE, _TURNSTILE + 1)

    def wait_for_turn(self) -> None:
        """Block until the turnstile is ours."""
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLKW, _flock(fcntl.F_WRLCK, _TURNSTILE, _TURNSTILE + 1))

    def end_turn(self) -> None:
        """Let the next one through."""
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, _TURNSTILE, _TURNSTILE + 1))

    def give_back(self) -> None:
        """Unlock all but the turnstile."""
        for start, end in ((0, _ALL), (_SLOTS, _SLOTS + _SLOT_COUNT)):
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, start, end))

    def _note(self, mib: int, what: str) -> bool:
        text = f"{os.getpid()} {mib} {_user()} since {time.strftime('%H:%M')}: {what}".encode()
        taken = {
            slot for start, end in self._held(_SLOTS, _SLOTS + _SLOT_COUNT) for slot in range(start, end)
        }
        for slot in range(_SLOTS, _SLOTS + _SLOT_COUNT):
            if slot not in taken and self._lock(slot, slot + 1):
                os.pwrite(self.fd, text[:_NOTE_BYTES].ljust(_NOTE_BYTES), (slot - _SLOTS) * _NOTE_BYTES)
                return True
        return False

    def _lock(self, start: int, end: int) -> bool:
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, start, end))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _held(self, start: int, end: int) -> list[tuple[int, int]]:
        """List the ranges that others have locked, sorted. The kernel shows one at a time, in no order."""
        found, waiting = [], [(start, end)]
        while waiting:
            first, last = waiting.pop()
            if first >= last:
                continue
            answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, first, last))
            kind, _, begin, length, _ = struct.unpack(_FLOCK, answer)
            if kind != fcntl.F_UNLCK:
                begin, stop = max(begin, first), min(begin + length if length else end, last)
                found.append((begin, stop))
                waiting += [(first, begin), (stop, last)]
        return sorted(found)

    def _free(self, end: int) -> Iterator[tuple[int, int]]:
        place = 0
        for start, stop in self._held(0, end):
            if start > place:
                yield place, start
            place = stop
        if place < end:
            yield place, end


def ledgers(devices: Sequence, folder: str | None = None) -> list[Ledger]:
    """Open the files of some devices, in an order that is the same for all: no two wait for each other."""
    return [Ledger(device, folder or common_folder()) for device in sorted(devices, key=lambda d: d.uuid)]


class Lease:
    """The right to use some devices. It ends when the last process that has its descriptors open ends.

    Attributes:
        devices: the devices, in the order in which the program is to see them.
        mib: MiB of each, WHOLE for all.
    """

    def __init__(self, ledgers: Sequence[Ledger], mib: int | None):
        self._ledgers = ledgers
        self.devices = [ledger.device for ledger in ledgers]
        self.mib = mib

    @property
    def descriptors(self) -> list[int]:
        """Return the descriptors that hold it."""
        return [ledger.fd for ledger in self._ledgers]

    def end(self) -> None:
        """Give it back, if nobody else has its descriptors."""
        for ledger in self._ledgers:
            ledger.close()


def acquire(
    devices: Sequence,
    count: int,
    wanted: Callable[[object], int | None],
    what: str,
    pause: Callable,
    say: Callable[[list[Ledger]], None] = lambda ledgers: None,
    folder: str | None = None,
) -> Lease:
    """Wait for a lease on `count` of some devices, those with the most free memory.

    Args:
        devices: the allowed ones.
        wanted: how many MiB of a device, or WHOLE; asked again at every look, as measurements may come in.
        what: a note for others who wait.
        pause: `pause(seconds, descriptor)` waits until the descriptor can be read, or raises to give up.
        say: called once if we have to wait.
        folder: where the files lie; the same for all users of the host.
    """
    told = []

    def tell(opened):
        if not told:
            say(opened)
            told.append(True)

    while True:
        opened = ledgers(devices, folder)
        try:
            for ledger in opened:
                if not ledger.turn():
                    tell(opened)
                    _block(ledger, pause)
            if all(ledger.is_current() for ledger in opened):
                lease = _look(opened, count, wanted, what, pause, tell)
                for ledger in opened:
                    ledger.end_turn()
                    if ledger.device not in lease.devices:
                        ledger.close()
                return lease
        except BaseException:  # we give up: whoever is next must not wait for us
            for ledger in opened:
                ledger.close()
            raise
        for ledger in opened:
            ledger.close()


def only_one(run: str, pause: Callable, say: Callable[[], None], folder: str | None = None) -> int:
    """Wait until nothing of an earlier attempt at a run is left on this host; return a descriptor that holds the run.

    A killed `launch` leaves its program some seconds to save its work: a second one must not start beside it.

    Args:
        run: the run's folder. One file serves all runs: the folder's inode tells which byte is locked.
        pause, folder: see `acquire`.
        say: called once if we have to wait.
    """
    descriptor = _open(os.path.join(folder or common_folder(), f"snakesweep-{boot()}-runs"))
    about = os.stat(run)
    place = (about.st_dev << 40 ^ about.st_ino) & (1 << 62) - 1
    told = False
    while True:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, place, place + 1))
            return descriptor
        except (BlockingIOError, PermissionError):
            if not told:
                say()
            told = True
            pause(0.1)


def _look(
    opened: list[Ledger], count: int, wanted: Callable, what: str, pause: Callable, tell: Callable
) -> Lease:
    """Look again and again, first in the queue, until there is room."""
    started = time.monotonic()
    while not (lease := _take(opened, count, wanted, what)):
        waited = time.monotonic() - started
        if waited > 1:
            tell(opened)
        pause(min(_LONGEST_PAUSE, max(0.001, waited / 10)))
    return lease


def _take(opened: list[Ledger], count: int, wanted: Callable, what: str) -> Lease | None:
    taken: list[Ledger] = []
    for ledger in sorted(opened, key=lambda ledger: (-ledger.available(), ledger.device.place)):
        mib = wanted(ledger.device)
        if ledger.take(mib, what):
            taken.append(ledger)
            if len(taken) == count:
                # As the user or the cluster ordered them.
                return Lease(sorted(taken, key=lambda ledger: ledger.device.place), mib)
        else:
            ledger.give_back()
    for ledger in taken:
        ledger.give_back()
    return None


def _block(ledger: Ledger, pause: Callable) -> None:
    """Block on the turnstile in a thread, so that we still hear signals: no other wait costs nothing."""
    import threading  # seldom needed

    hear, tell = os.pipe()

    def block():
        ledger.wait_for_turn()
        os.write(tell, b"1")

    threading.Thread(target=block, daemon=True).start()
    while not select.select([hear], [], [], 0)[0]:
        pause(60, hear)
    os.close(hear)
    os.close(tell)


def _first(count: int, ranges: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the first `count` bytes of some ranges."""
    for start, end in ranges:
        if count <= 0:
            return
        yield start, min(end, start + count)
        count -= end - start


def _flock(kind: int, start: int, end: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, start, end - start, 0)


def _open(path: str) -> int:
    """Open a device's file, whoever made it. In a folder like /dev/shm, O_CREAT on another's file is refused."""
    for attempt in range(100):
        with suppress(FileNotFoundError):
            try:
                return os.open(path, os.O_RDWR)
            except PermissionError:
                if attempt > 50:
                    raise
                time.sleep(0.01)  # its maker is about to open it to all
                continue
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask
            return descriptor
    raise PermissionError(f"{path} can't be opened")


def common_folder() -> str:
    """Return where the files lie: in memory, and never on a file system that other hosts see."""
    return os.environ.get("SNAKESWEEP_LEASES") or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp")


def boot() -> str:
    """Name this host since it was started; containers on it share the name."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(8)
    except OSError:
        return os.uname().nodename


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return str(os.getuid())
