"""Real processes and what became of them: what the tests of `launch` share."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent / "workflow" / "scripts"
LAUNCH = SCRIPTS / "launch" / "__main__.py"
PROMISE = 5.0  # seconds after which no program of a killed study may be left
PATIENCE = 30.0  # seconds that anything else may take on a busy machine
_MARK = "TESTED_FAMILY"

# Runs a program with `launch.process` alone, and prints how it ended: `python -c … GRACE LOG WORD…`.
RUN = """
import json, os, sys
from launch.process import run

with open(sys.argv[2], "wb") as log:
    ended = run(sys.argv[3:], os.environ, log, grace=float(sys.argv[1]))
print(json.dumps([ended.status, ended.reason, ended.detail]))
"""


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Wait until a condition holds; return whether it came to hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return bool(condition())
        time.sleep(0.01)
    return True


class Family:
    """All processes that come from one start, wherever they went since: they inherit a mark.

    Attributes:
        folder: their working directory.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        self._started: list[subprocess.Popen] = []

    def env_with(self, **more: str) -> dict[str, str]:
        """Return the environment to start a process of the family with."""
        name, _, value = self._mark.partition("=")
        return os.environ | {"PYTHONPATH": str(SCRIPTS)} | more | {name: value}

    @property
    def env(self) -> dict[str, str]:
        """Return that environment as it is."""
        return self.env_with()

    def start(self, *words: str, **options) -> subprocess.Popen:
        """Start a process and go on; its output is thrown away unless `options` say otherwise."""
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": self.env} | options
        process = subprocess.Popen(words, cwd=self.folder, start_new_session=True, text=True, **options)
        self._started.append(process)
        return process

    def start_run(self, *words: str, grace: float = 600, **options) -> subprocess.Popen:
        """Start a program through `launch.process.run`."""
        return self.start(*run_words(*words, grace=grace), **({"stdout": subprocess.PIPE} | options))

    def alive(self) -> list[int]:
        """List the processes of the family that have not ended."""
        return list(self._living())

    def end(self) -> None:
        """Kill what is left, so that a failed test leaves nothing running."""
        while left := self.alive():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            time.sleep(0.01)
        for process in self._started:
            process.wait()
            for stream in (process.stdout, process.stderr, process.stdin):
                if stream:
                    stream.close()

    def _living(self) -> Iterator[int]:
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile, or is another user's
                if self._mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    yield int(path.name)


def run_words(*words: str, grace: float = 600, log: str = "log") -> list[str]:
    """Return a command line that runs a program through `launch.process.run`."""
    return [sys.executable, "-c", RUN, str(grace), log, *words]


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    """Return the status, reason and detail that `launch.process.run` gave, once it has ended."""
    text, _ = process.communicate(timeout=PATIENCE)
    return tuple(json.loads(text))


def launch(
    folder: Path,
    *command: str,
    step: str = "train",
    record: str = "run/record.json",
    made_with: Sequence[str] = (),
    options: Sequence[str] = (),
) -> list[str]:
    """Return a command line of `launch`, to be run in `folder`."""
    words = [sys.executable, "-S", str(LAUNCH), step, record, *options]
    words += ["--made-with", *made_with] if made_with else []
    return [*words, "--", *command]
