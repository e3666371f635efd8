"""Run one program as a process group of its own that never outlives what started it."""

import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

GRACE = 30.0  # seconds between asking a program to end and ending it
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


@dataclass
class Ended:
    """How a program ended.

    Attributes:
        status: exit status; 128 + n for signal n, 127 for a program that could not be started.
        reason: the same in words.
        wall: seconds it took.
    """

    status: int
    reason: str
    wall: float = 0.0


def run(words: Sequence[str], env: Mapping[str, str], log: BinaryIO, grace: float = GRACE) -> Ended:
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
    asked = _watch(child, parent, wake_read, grace)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    wall = time.monotonic() - started
    if child.returncode >= 0:
        reason = f"exit status {child.returncode}" if child.returncode else "finished"
        # A program that saves its work and leaves with 0 when asked to end has not finished.
        status = child.returncode or (128 + asked if asked else 0)
        return Ended(status, f"ended by {signal.Signals(asked).name}" if asked else reason, wall)
    name = signal.Signals(-child.returncode).name
    return Ended(128 - child.returncode, f"killed by {name}", wall)


def _watch(child: subprocess.Popen, parent: int, wake: int, grace: float) -> int:
    """Wait for the child; return the signal that it was asked to end with, or 0."""
    poll = select.poll()
    child_fd = os.pidfd_open(child.pid)
    poll.register(child_fd, select.POLLIN)
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
        if child_fd in ready:
            break
        numbers = [number for number in os.read(wake, 64) if number in _PASSED_ON] if wake in ready else []
        if parent_fd in ready:
            poll.unregister(parent_fd)
            numbers.append(signal.SIGTERM)
        if not ready or (asked == signal.SIGINT and signal.SIGINT in numbers):
            numbers = [signal.SIGKILL]  # time is up, or Ctrl-C came a second time
        for number in numbers:
            asked = asked or number
            deadline = deadline or time.monotonic() + grace
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
    child.wait()
    return asked


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
