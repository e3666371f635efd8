"""Leases: never over-committed, never lost, nobody starves, and death is a way to give one back."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from launch.devices import Device
from launch.lease import WHOLE, Ledger, acquire
from processes import PATIENCE, SCRIPTS, wait_for


def pause(seconds: float, until: int | None = None) -> None:
    import select

    select.select([] if until is None else [until], [], [], min(seconds, 0.05))


@pytest.fixture
def take(tmp_path):
    """Acquire leases on devices of 1,000 MiB; what a test does not give back is given back after it."""
    leases = []
    devices = {name: Device(f"GPU-{name}", memory=1000) for name in "ab"}

    def take(mib, names="a", count=1, **options):
        wanted = mib if callable(mib) else lambda device: mib
        chosen = [devices[name] for name in names]
        options = {"pause": pause, "folder": str(tmp_path)} | options
        leases.append(acquire(chosen, count, wanted, "train run", **options))
        return leases[-1]

    take.devices = devices
    yield take
    for lease in leases:
        for descriptor in lease.descriptors:
            try:
                os.close(descriptor)
            except OSError:
                continue


class Full(Exception):
    """There was no room, and a test does not want to wait."""


def at_once(seconds: float, until: int | None = None) -> None:
    if seconds >= 0.03 or until is not None:
        raise Full
    time.sleep(seconds)


def refused(take, mib, names="a", **options) -> bool:
    try:
        take(mib, names, pause=at_once, **options)
    except Full:
        return True
    return False


def test_shares_add_up_to_the_device_and_no_further(take):
    for mib in (400, 300, 300):
        take(mib)
    assert refused(take, 1)


def test_any_free_bytes_serve(take):
    """Two holes of 200 make a lease of 400: one contiguous range would not be found."""
    leases = [take(200) for _ in range(5)]
    leases[1].end()
    leases[3].end()
    assert take(400).mib == 400
    assert refused(take, 1)


def test_whole_device_and_shares_exclude_each_other(take):
    whole = take(WHOLE)
    assert refused(take, 1)
    whole.end()
    share = take(1)
    assert refused(take, WHOLE)
    share.end()
    take(WHOLE)


def test_the_device_with_most_free_memory_is_taken(take):
    take(300, "a")
    assert [d.uuid for d in take(100, "ab").devices] == ["GPU-b"]
    take(500, "b")
    assert [d.uuid for d in take(100, "ab").devices] == ["GPU-a"]


def test_two_devices_or_none(take):
    both = take(WHOLE, "ab", count=2)
    assert [d.uuid for d in both.devices] == ["GPU-a", "GPU-b"]
    both.end()
    take(10, "b")
    assert refused(take, WHOLE, "ab", count=2)
    assert take(WHOLE, "a").mib is WHOLE  # what was tried and failed holds nothing


def test_memory_of_strangers_counts_as_taken(take):
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        take.devices["a"]._processes = lambda: [(stranger.pid, 300)]
        assert refused(take, 701)
        take(700)
        take.devices["b"]._processes = lambda: [(stranger.pid, 50)]
        take(WHOLE, "b").end()  # a screen
        take.devices["b"]._processes = lambda: [(stranger.pid, 150)]
        assert refused(take, WHOLE, "b")
    finally:
        stranger.kill()
        stranger.wait()


def test_memory_used_under_a_lease_is_no_strangers(take):
    take(600)
    take.devices["a"]._processes = lambda: [(os.getpid(), 500)]
    take(400)


def test_what_is_wanted_is_asked_again_at_every_look(take):
    """A measurement may come in while a run waits."""
    take(900)
    answers = iter([200, 200, 100])
    assert take(lambda device: next(answers)).mib == 100


def test_a_note_tells_who_holds_a_lease(take, tmp_path):
    take(250)
    (holder,) = Ledger(take.devices["a"], str(tmp_path)).holders()
    assert (holder.pid, holder.mib) == (os.getpid(), 250)
    assert "train run" in holder.text
    assert Ledger(take.devices["b"], str(tmp_path)).holders() == []


def test_an_index_is_no_device_of_its_own(take, tmp_path):
    """The file is the device's uuid's, whatever the device is called in CUDA_VISIBLE_DEVICES."""
    take(WHOLE)
    other = Device("GPU-a", memory=1000)
    other.id = "0"
    with pytest.raises(Full):
        acquire([other], 1, lambda device: 1, "x", at_once, folder=str(tmp_path))


def test_file_that_a_cleaner_removed_is_made_anew(take, tmp_path):
    take(WHOLE).end()
    (path,) = tmp_path.glob("snakesweep-*-GPU-a")
    assert path.stat().st_mode & 0o777 == 0o666
    path.unlink()
    take(WHOLE)
    assert path.exists()
    assert refused(take, 1)


def test_other_users_can_open_the_file_whatever_the_umask(take, tmp_path):
    before = os.umask(0o077)
    try:
        take(1)
    finally:
        os.umask(before)
    (path,) = tmp_path.glob("snakesweep-*-GPU-a")
    assert path.stat().st_mode & 0o777 == 0o666


HOLD = """
import os, select, sys, time
from launch.devices import Device
from launch.lease import acquire

def pause(seconds, until=None):
    select.select([until] if until else [], [], [], seconds)

if sys.argv[2] == "nobody":
    os.setuid(65534)
lease = acquire([Device("GPU-a", memory=1000)], 1, lambda device: 700, "x", pause, folder=sys.argv[1])
for descriptor in lease.descriptors:
    os.set_inheritable(descriptor, True)
if sys.argv[2] == "child":
    os.spawnvp(os.P_NOWAIT, "sleep", ["sleep", "600"])
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def hold(family, tmp_path):
    """Hold 700 of 1,000 MiB in another process."""

    def hold(kind="alone"):
        process = family.start(sys.executable, "-c", HOLD, str(tmp_path), kind, stdout=subprocess.PIPE)
        assert process.stdout.readline()
        return process

    return hold


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("first", ["nobody", "root"])
def test_several_users(take, hold, tmp_path, first):
    """In a folder like /dev/shm, where O_CREAT on another user's file is refused (fs.protected_regular)."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o1777)
    before = os.umask(0o022)
    try:
        if first == "root":
            take(300)
        hold("nobody")
    finally:
        os.umask(before)
    assert refused(take, 400)
    (path,) = tmp_path.glob("snakesweep-*-GPU-a")
    assert path.stat().st_uid == (0 if first == "root" else 65534)


def test_a_killed_holder_gives_its_lease_back(take, hold):
    process = hold()
    assert refused(take, 400)
    process.kill()
    process.wait()
    take(400)


def test_a_lease_is_held_until_the_last_process_ends(take, hold, family):
    process = hold("child")
    process.kill()
    process.wait()
    assert refused(take, 400)  # the child may still be on the device
    family.end()
    take(400)


def test_waiting_costs_next_to_nothing(hold, family, tmp_path):
    """The first in the queue looks four times a second, the second blocks."""
    hold()
    waiting = [family.start(sys.executable, "-c", HOLD, str(tmp_path), "alone") for _ in range(2)]
    time.sleep(1.5)
    before = [cpu(process.pid) for process in waiting]
    time.sleep(2)
    used = [cpu(process.pid) - b for process, b in zip(waiting, before, strict=True)]
    assert max(used) < 0.1  # of 2 s, on a machine that may be busy
    assert all(process.poll() is None for process in waiting)


def cpu(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_whole_device_gets_its_turn_among_small_ones(take, tmp_path):
    """Small ones come all the time; without a queue the device would never be empty."""
    end = threading.Event()

    def small():
        device = Device("GPU-a", memory=1000)
        while not end.is_set():
            lease = acquire([device], 1, lambda d: 250, "small", pause, folder=str(tmp_path))
            time.sleep(random.uniform(0.01, 0.03))
            lease.end()

    threads = [threading.Thread(target=small, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.2)
        started = time.monotonic()
        take(WHOLE).end()
        assert time.monotonic() - started < 3
    finally:
        end.set()
        for thread in threads:
            thread.join(PATIENCE)


# Takes leases of random size until told to end. Every MiB that it holds it locks once more, in another way: a
# classic lock of its own on a cell per MiB. If there are not enough cells, the device was over-committed.
WORKER = """
import fcntl, os, random, select, sys, time
folder, seed = sys.argv[1:]
random.seed(seed)
cells = [os.open(f"{folder}/cells-{n}", os.O_RDWR) for n in range(2)]  # opened first, closed first at death
counted = os.open(f"{folder}/count", os.O_WRONLY | os.O_APPEND)
from launch.devices import Device
from launch.lease import WHOLE, acquire
devices = [Device(f"GPU-{n}", memory=40) for n in range(2)]

def pause(seconds, until=None):
    select.select([until] if until else [], [], [], seconds)

while True:
    mib = random.choice([WHOLE, *[random.randint(1, 20)] * 7])
    started = time.monotonic()
    lease = acquire(devices, 1, lambda device: mib, seed, pause, folder=folder)
    waited = time.monotonic() - started
    number = devices.index(lease.devices[0])
    locked = 0
    for cell in range(40):
        try:
            fcntl.lockf(cells[number], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, cell)
            locked += 1
        except BlockingIOError:
            pass
        if locked == (mib or 40):
            break
    word = "fine" if locked == (mib or 40) else "over-committed"
    time.sleep(random.uniform(0, 0.002))
    os.write(counted, f"{word} {seed} {waited:.3f} {mib}\\n".encode())
    fcntl.lockf(cells[number], fcntl.LOCK_UN)
    lease.end()
"""


def test_ten_thousand_leases_of_64_processes_with_kills(tmp_path):
    """Never over-committed, never lost, none starved."""
    generator = random.Random(1)
    for name in ("cells-0", "cells-1", "count"):
        (tmp_path / name).touch()
    env = os.environ | {"PYTHONPATH": str(SCRIPTS)}

    def start(number: int) -> subprocess.Popen:
        words = [sys.executable, "-c", WORKER, str(tmp_path), str(number)]
        return subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    workers = [start(number) for number in range(64)]
    killed = 0
    started = time.monotonic()
    try:
        while (count := (tmp_path / "count").read_bytes().count(b"\n")) < 10_000:
            assert time.monotonic() - started < 300, f"only {count} leases"
            time.sleep(0.1)
            number = generator.randrange(64)
            workers[number].send_signal(signal.SIGKILL)
            workers[number].wait()
            workers[number].stderr.close()
            workers[number] = start(64 + killed)
            killed += 1
        lines = [line.split() for line in (tmp_path / "count").read_text().splitlines()]
        assert all(worker.poll() is None for worker in workers), "one failed by itself"
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            worker.stderr.close()
    assert killed > 20
    assert {line[0] for line in lines} == {"fine"}
    waits = sorted(float(line[2]) for line in lines)
    print(
        f"{len(lines)} leases in {time.monotonic() - started:.1f} s, {killed} killed, longest wait {waits[-1]:.2f} s"
    )
    assert waits[-1] < 15  # a turn of 64 takes well under a second
    whole = [line for line in lines if line[3] == "None"]
    assert len(whole) > 500
    # Nothing is lost: with all of them dead, both devices are free at once.
    for number in range(2):
        device = Device(f"GPU-{number}", memory=40)
        assert wait_for(lambda device=device: not Ledger(device, str(tmp_path)).leased())
        acquire([device], 1, lambda d: WHOLE, "x", at_once, folder=str(tmp_path)).end()
