"""Tell the programs that a call of snakemake starts to whom they belong; settle how many run at once on GPUs."""

import os
import sys

from launch.devices import machine
from launch.lease import boot, ledgers

CALL = "SNAKESWEEP_CALL"


def announce(workflow, gpus_per_run: float | str) -> int:
    """Register this call of snakemake, and limit the runs at once to what the GPUs take.

    `--resources gpu=N` counts devices; Snakemake counts what its jobs ask for. Devices are chosen here, for
    the whole study; with another executor than the local one that is left to the jobs' own machines.

    Args:
        gpus_per_run: devices of a run, a share of one, or "auto".

    Returns:
        What a rule of a run is to ask for as `gpu`.

    Raises:
        SystemExit: there are fewer devices than a run needs.
    """
    call = {
        "boot": boot(),
        "pid": os.getpid(),
        # A cluster job's process belongs to the call that submitted it, if the environment came along.
        "call": (not workflow.is_main_process and current().get("call")) or os.urandom(6).hex(),
        "commit": _commit(),
    }
    asked = 1 if gpus_per_run == "auto" else max(1, int(gpus_per_run)) if gpus_per_run else 0
    local = workflow.is_main_process and workflow.resource_settings.cores is not None
    if local and asked:
        asked = _limit(workflow, gpus_per_run, asked, call)
    # Words, not JSON: what `launch` imports before the program starts, every run waits for.
    os.environ[CALL] = " ".join(f"{key}={value}" for key, value in call.items() if value)
    return asked


def _limit(workflow, gpus_per_run: float | str, asked: int, call: dict) -> int:
    given = workflow.global_resources.get("gpu")
    given = getattr(given, "value", None)
    allowed = machine().allowed(os.environ)
    if given is not None and asked > given:
        raise SystemExit(
            f"gpus_per_run: {gpus_per_run} is more than --resources gpu={given} allows; raise the one or lower the other"
        )
    if allowed and asked > len(allowed):
        raise SystemExit(
            f"gpus_per_run: {gpus_per_run} is more than the {len(allowed)} that this machine has; lower it"
        )
    count = min(filter(None, (given, len(allowed))), default=0)
    if not allowed:
        if given is None:
            return 0  # nothing limits but the cores
        print(
            "No GPU here: runs use the CPU, and --resources gpu only limits how many run at once.",
            file=sys.stderr,
        )
    elif given is not None and given > len(allowed):
        print(
            f"--resources gpu={given}, but there are {len(allowed)} GPUs here: using these.", file=sys.stderr
        )
    if allowed:
        call["devices"] = ",".join(_choose(allowed, count))
    if gpus_per_run == "auto":
        # As many as fit: the cores limit them, and leases. Snakemake takes 0 for "no limit".
        return 0 if allowed else 1
    at_once = count if gpus_per_run >= 1 else count * int(1 / gpus_per_run + 1e-9)
    workflow.register_resource("gpu", at_once)
    return asked


def _choose(allowed: list, count: int) -> list[str]:
    """Choose devices that the fewest studies use and that have the most free memory; tell the others."""
    opened = ledgers(allowed)
    free = {ledger.device.uuid: ledger.available() for ledger in opened}
    studies = {ledger.device.uuid: sum(not h.mib for h in ledger.holders()) for ledger in opened}
    opened.sort(key=lambda ledger: (studies[ledger.device.uuid], -free[ledger.device.uuid]))
    for ledger in opened[:count]:
        ledger.prefer(f"a study in {os.getcwd()}")  # its file stays open as long as this process lives
    for ledger in opened[count:]:
        ledger.close()
    return [ledger.device.uuid for ledger in opened[:count]]


def _commit() -> str | None:
    """Name the commit of the programs' repository, with + where files differ from it."""
    import subprocess  # here and not in `launch`, where every import is paid once per run

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def current() -> dict[str, str]:
    """Read what `announce` left in the environment: boot, pid, call, commit, devices, as far as they count here."""
    call = dict(word.partition("=")[::2] for word in os.environ.get(CALL, "").split())
    if call.get("boot") != boot():  # a cluster's job on another host
        for key in ("pid", "devices"):
            call.pop(key, None)
    return call
