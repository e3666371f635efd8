"""Find jobs on a cluster that an earlier call of snakemake left behind when it was killed, and cancel them.

Snakemake would submit their runs again, and two jobs would train one run.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

from launch.light import say

PATIENCE = 300.0  # seconds until cancelled jobs must be gone: they have their grace time to save their work


def cancel_orphans(workflow, kept: Path, logs: list[str]) -> None:
    """Cancel what is left on Slurm of earlier calls for this results folder, and remember this call.

    Args:
        kept: the file that remembers the calls, one run ID per line, as the plug-in gives it to its jobs as name.
        logs: Snakemake's log files of this call, where the plug-in has written its run ID.
    """
    if workflow.remote_exec or "slurm" not in (getattr(workflow.executor_plugin, "name", "") or ""):
        return
    before = kept.read_text().split() if kept.exists() else []
    if before and (left := _jobs(before)):
        say(
            f"{len(left)} Slurm job{'s' * (len(left) > 1)} of an earlier call that was killed: cancelled, so that no run is "
            f"trained twice ({' '.join(left)})."
        )
        subprocess.run(["scancel", *left], stdout=sys.stderr, check=False)
        deadline = time.monotonic() + PATIENCE
        while left := _jobs(before):
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"Slurm jobs of an earlier call don't end: {' '.join(left)}; see squeue, then try again"
                )
            time.sleep(1)
    text = "".join(Path(log).read_text(errors="replace") for log in logs)
    own = re.findall(r"^SLURM run ID: (\S+)$", text, re.M)
    kept.write_text("".join(f"{name}\n" for name in own))


def _jobs(names: list[str]) -> list[str]:
    """List the numbers of jobs with these names that wait or run."""
    words = ["squeue", "--me", "--noheader", "--format=%i", f"--name={','.join(names)}"]
    for _ in range(3):  # the controller may be busy
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.split()
        time.sleep(2)
    raise SystemExit(f"Can't ask Slurm for the jobs of an earlier call: {done.stderr.strip()}")
