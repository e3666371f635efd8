"""Run one program as a process group of its own that never outlives what started it."""

import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BufferedWriter

GRACE = 30.0  # seconds between asking a program to end and ending it
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


class Ended:  # no dataclass: importing those takes longer than all else here
    """How a program ended.

    Attributes:
        status: exit status; 128 + n for signal n, 127 for a program that could not be started.
        reason: the same in words.
        wall: seconds it took.
    """

    def __init__(self, status: int, reason: str, wall: float = 0.0):
        self.status = status
        self.reason = reason
        self.wall = wall


def run(words: Sequence[str], env: Mapping[str, str], log: BufferedWriter, grace: float = GRACE) -> Ended:
    """Run a program to its end, its standard output and error going to `log`.

    SIGINT, SIGTERM and SIGHUP are passed on to its process group; a second SIGINT, or `grace` seconds, kill it.
    When the process that started us dies, the program is ended the same way; when we are killed, the kernel
    kills it. What it leaves running in its group is killed.
    """
    started = time.monotonic()
    parent = os.getppid()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in _PASSED_ON:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # under nohup
            signal.signal(number, lambda *_: None)
    ours = os.getpid()
    try:
        child = subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _die_with(ours),
        )
    except OSError as error:
        text = f"{words[0]} can't be started: {error.strerror}"
        log.write(f"{text}\n".encode())
        return Ended(127, text)
    asked = _watch(child.pid, parent, wake_read, grace)
    # As long as nobody has waited for the program, its number is no other's, and so is its group's.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    return _ended(child.wait(), asked, time.monotonic() - started)


def _ended(code: int, asked: int, wall: float) -> Ended:
    """Word how a program ended: its exit status or minus a signal, and the signal that it was asked with."""
    if code < 0:
        after = f" after {_name(asked)}" if asked not in (0, -code) else ""
        return Ended(128 - code, f"killed by {_name(-code)}{after}", wall)
    if asked:
        # A program that saves its work and leaves with 0 when asked to end has not finished.
        return Ended(code or 128 + asked, f"ended by {_name(asked)}", wall)
    return Ended(code, f"exit status {code}" if code else "finished", wall)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _watch(program: int, parent: int, wake: int, grace: float) -> int:
    """Wait until the program has ended; return the signal that it was asked to end with, or 0."""
    poll = select.poll()
    program_fd = os.pidfd_open(program)
    poll.register(program_fd, select.POLLIN)
    poll.register(wake, select.POLLIN)
    parent_fd = -1
    with suppress(OSError):
        parent_fd = os.pidfd_open(parent)
        poll.register(parent_fd, select.POLLIN)
    if os.getppid() != parent:  # it died before we could watch it
        os.kill(os.getpid(), signal.SIGTERM)
    asked, deadline = 0, None
    while True:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = {fd for fd, _ in poll.poll(timeout)}
        if program_fd in ready:
            return asked
        numbers = [number for number in os.read(wake, 64) if number in _PASSED_ON] if wake in ready else []
        if parent_fd in ready:
            poll.unregister(parent_fd)
            numbers.append(signal.SIGTERM)
        if not ready:  # time is up
            numbers, deadline = [signal.SIGKILL], None
        for number in numbers:
            if number == asked == signal.SIGINT:  # Ctrl-C came a second time
                number, deadline = signal.SIGKILL, None
            elif number != signal.SIGKILL:
                if asked not in (0, number):  # Ctrl-C comes from the terminal, then from snakemake as SIGTERM
                    continue
                if not asked:
                    asked, deadline = number, time.monotonic() + grace
            with suppress(ProcessLookupError):
                os.killpg(program, number)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
