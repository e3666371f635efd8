"""Keep two lines about every attempt at a step of a run, at its start and at its end, and its log.

`attempts.jsonl` is described in docs/failures.md. A line with `"reason": "lost"` whose end never came was killed
together with `launch`, or the machine went down.
"""

import os
import time

from launch.light import from_json, suppress, to_json

ATTEMPTS = "attempts.jsonl"


class Attempt:
    """One attempt: its log `logs/STEP.N.log` and its lines in `attempts.jsonl`."""

    def __init__(self, folder: str, step: str, **about):
        self.folder = folder
        self.step = step
        logs = os.path.join(folder, "logs")
        os.makedirs(logs, exist_ok=True)
        self.number = 1 + max(
            (int(name.split(".")[1]) for name in os.listdir(logs) if _is_log(name, step)), default=0
        )
        name = f"{step}.{self.number}.log"
        self.log = os.path.join(logs, name)
        with open(self.log, "wb"):  # so that the number is not used again
            pass
        beside = os.path.join(logs, f".{step}.log.{os.getpid()}")
        with suppress(OSError):  # a name that never changes leads to the last attempt's log
            os.symlink(name, beside)
            os.replace(beside, os.path.join(logs, f"{step}.log"))
        self._about = {
            "step": step,
            "attempt": self.number,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "host": os.uname().nodename,
            "log": f"logs/{name}",
        }
        self._more = about

    def begin(self, **more) -> None:
        """Write the first line."""
        self._add(exit=None, reason="lost", detail="killed with launch, or the machine went down", **more)

    def end(self, **more) -> None:
        """Write the last line."""
        self._add(**self._more, **more)

    def _add(self, **more) -> None:
        """Add a line: one write, so that a reader never sees half of it."""
        line = to_json(self._about | more) + "\n"
        descriptor = os.open(
            os.path.join(self.folder, ATTEMPTS), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666
        )
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def tail(self, lines: int) -> list[str]:
        """Return the last lines of the log, reading no more of it than needed."""
        return self.last(200 * lines).splitlines()[-lines:]

    def last(self, count: int) -> str:
        """Return the last bytes of the log."""
        with suppress(OSError), open(self.log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - count))
            return file.read().decode(errors="replace")
        return ""


def last_attempt(folder: str, step: str) -> dict:
    """Return the last line about a step; empty if there is none that can be read."""
    last: dict = {}
    with suppress(OSError), open(os.path.join(folder, ATTEMPTS), encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError):
                attempt = from_json(line)
                if isinstance(attempt, dict) and attempt.get("step") == step:
                    last = attempt
    return last


def _is_log(name: str, step: str) -> bool:
    first, number, *rest = [*name.rsplit(".", 2), "", ""][:3]
    return first == step and number.isdigit() and rest == ["log"]
