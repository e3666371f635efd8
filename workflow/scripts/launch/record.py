"""Keep a line about every attempt at a step of a run, and its log, whatever becomes of later ones."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launch.process import Ended


class Attempt:
    """One attempt: its log `logs/STEP.N.log` and its line in `attempts.jsonl`."""

    def __init__(self, folder: Path, step: str):
        self.folder = folder
        self.step = step
        self._started = time.time()
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.number = 1 + max(
            (int(p.name.split(".")[1]) for p in logs.glob(f"{step}.*.log") if p.name.split(".")[1].isdigit()),
            default=0,
        )
        self.log = logs / f"{step}.{self.number}.log"
        self._point_to_log(logs / f"{step}.log")

    def _point_to_log(self, link: Path) -> None:
        """Let a name that never changes lead to the last attempt's log."""
        beside = link.with_name(f".{link.name}.{os.getpid()}")
        with suppress(OSError):
            beside.symlink_to(self.log.name)
            beside.replace(link)

    def write(self, ended: Ended, reason: str, words: Sequence[str]) -> None:
        """Add the attempt's line: one write, so that a reader never sees half of it."""
        line = {
            "step": self.step,
            "attempt": self.number,
            "exit": ended.status,
            "reason": reason,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started)),
            "wall_s": round(ended.wall, 3),
            "host": os.uname().nodename,
            "log": f"logs/{self.log.name}",
            "command": list(words),
        }
        descriptor = os.open(self.folder / "attempts.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)

    def tail(self, lines: int) -> list[str]:
        """Return the last lines of the log, reading no more of it than needed."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 200 * lines))
            return file.read().decode(errors="replace").splitlines()[-lines:]
        return []
