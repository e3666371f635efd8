"""Run one step of one run, from the command line to the record of how it went."""

import os
import sys

from launch import call, gpu, lease, process
from launch.light import say
from launch.places import BadOutput, Places
from launch.record import Attempt, last_attempt

# What sizes the thread pools of numerical libraries. Snakemake sets some of them to what it granted.
POOLS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
USAGE = """\
usage: launch STEP RECORD [options] -- COMMAND ...

Start a program of a run, in a process of its own, and put what it made in place only when it is whole.

  STEP             train or evaluate; names logs and messages
  RECORD           the record to write, in the run's folder
  --threads N      CPU threads for the program (default: 1)
  --gpus SHARE     GPUs, a share of one, auto, or 0 (default: whatever there is)
  --warm           have a server start it, that has imported what it imports, if that changes nothing
  --peaks FILE     where --gpus=auto keeps what runs needed
  --time-limit S   end the program after S seconds
  --grace S        seconds between asking it to end and ending it (default: 30)
  --made-with TEXT ...   what the result depends on: 'part text' each; the last option

COMMAND is the program and its arguments. {write:F} in it is a place for an output, {metrics:F} one for a flat JSON
object, {read:F} an input in the run's folder, {keep:F} a folder that outlives a failed attempt; {{ and }} are braces."""
OPTIONS = {"--threads": int, "--gpus": str, "--peaks": str, "--time-limit": float, "--grace": float}
TAIL = 15  # lines of a failed program's log that are shown at once
# What is the same every time: another attempt in the same call of snakemake would only cost time.
FINAL = ("failed", "bad output", "not started")


class Options:
    """What the command line says. Read by hand: argparse would take a tenth of what an empty program takes."""

    def __init__(self):
        self.step = self.record = ""
        self.threads = 1
        self.gpus = self.peaks = self.time_limit = None
        self.warm = False
        self.grace = process.GRACE
        self.made_with: dict[str, str] = {}
        self.command: list[str] = []


def leave() -> None:
    """Be the command: run it, and end this process."""
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # nothing is left to tidy up; Python's own tidying would take longer than the rest


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status to leave with: the program's own, where it has one."""
    options = parse(arguments)
    folder = os.path.dirname(options.record) or "."
    listener = process.Listener(owner(caller := call.current()))
    about = {"call": caller.get("call"), "made_with": options.made_with, "commit": caller.get("commit")}
    try:
        os.makedirs(folder, exist_ok=True)
        held = lease.only_one(
            folder,
            listener.pause,
            lambda: say(f"{options.step} waits: an earlier attempt in {folder} is still ending"),
        )
        before = last_attempt(folder, options.step)
        again = bool(about["call"]) and all(before.get(key) == about[key] for key in ("call", "made_with"))
        if again and before["reason"] in FINAL:
            say(f"{options.step} is not tried again in {folder}: {before['detail']}")
            return before["exit"]
        peaks = gpu.Peaks(options.peaks, options.step, folder)
        gpus = gpu.Gpus(options.gpus, caller["devices"].split(",") if "devices" in caller else None, peaks)
        alone = again and before["reason"] == "out of GPU memory"
        while True:
            gpus.acquire(f"{options.step} {folder}", listener.pause, alone)
            attempt = Attempt(folder, options.step, **about)
            status, reason = run(options, attempt, gpus, listener, held)
            if reason != "out of GPU memory" or not gpus.shared:
                return status
            say(f"{options.step} in {folder} needs more GPU memory: again, alone.")
            gpus.release()
            alone = True
    except process.Asked as asked:
        return 128 + asked.number
    except OSError as error:
        say(f"{options.step} can't be run in {folder}: {error}")
        return 1


def run(
    options: Options, attempt: Attempt, gpus: gpu.Gpus, listener: process.Listener, held: int
) -> tuple[int, str]:
    """Make one attempt; return the exit status and the reason."""
    folder = attempt.folder
    places = Places(folder, options.step, options.made_with)
    words = places.fill(options.command)
    env = environment(options.threads, gpus.environment(os.environ, places.beside))
    kills = killed_for_memory()
    with open(attempt.log, "wb") as log:
        ended = process.run(
            words,
            env,
            log,
            options.grace,
            options.time_limit,
            listener,
            [held, *(gpus.lease.descriptors if gpus.lease else [])],
            gpus.sample if gpus.lease else None,
            lambda: attempt.begin(pid=os.getpid(), devices=gpus.devices()),
            warm_start(options, words, env, listener) if options.warm else None,
        )
    if ended.status == 0:
        try:
            if places.commit(options.record):
                ended.reason, ended.detail = "diverged", "a metric is no finite number"
        except (BadOutput, OSError) as error:
            ended.status, ended.reason, ended.detail = 1, "bad output", str(error)
    elif ended.reason in ("failed", "crashed", "killed"):
        find_cause(ended, attempt, gpus, killed_for_memory() > kills)
    notes = places.notes()
    places.clear(done=ended.status == 0)
    used = gpus.about(notes)
    if ended.status == 0:
        gpus.measured(used.get("gpu_memory_mib"))
    attempt.end(
        exit=ended.status,
        reason=ended.reason,
        detail=ended.detail,
        wall_s=round(ended.wall, 3),
        cpu_s=round(ended.cpu, 3),
        memory_mib=round(ended.memory, 1),
        **used,
        versions={name: text for name, text in notes.items() if name != "peak"},
        start=ended.start,
        command=words,
    )
    if ended.status:
        complain(attempt, ended)
    return ended.status, ended.reason


def warm_start(options: Options, words: list[str], env: dict[str, str], listener: process.Listener):
    """Return what asks a server to start the program."""

    def ask(descriptors: list[int], watched: int) -> int:
        caller = call.current()
        if options.step in caller.get("bare", "").split(","):
            raise process.Bare
        from launch import warm

        pid = int(caller.get("pid", 0))
        return warm.ask(
            words, env, descriptors, watched, options.grace, options.time_limit, listener.pause, pid
        )

    return ask


def find_cause(ended: process.Ended, attempt: Attempt, gpus: gpu.Gpus, killed: bool) -> None:
    """Find out whether it was memory, or the device, that ended a program badly."""
    if killed and ended.status == 137:
        ended.reason, ended.detail = "killed for memory", "the machine's memory was full"
    elif gpus.lease:
        end = attempt.last(64_000)
        if any(text in end for text in gpu.GONE):
            ended.reason, ended.detail = "device lost", "the GPU failed"
        elif any(text in end for text in gpu.FULL):
            share = f"its share of {gpus.lease.mib:,} MiB" if gpus.shared else "the whole GPU"
            ended.reason, ended.detail = "out of GPU memory", f"{share} was too little"


def killed_for_memory() -> int:
    """Return how many processes the kernel has killed for want of memory."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def owner(caller: dict) -> int | None:
    """Return the snakemake that we belong to: it may have died before we could look who started us."""
    pid = int(caller.get("pid", 0))
    if pid and not os.path.exists(f"/proc/{pid}"):
        raise SystemExit(f"snakemake, process {pid}, has ended")
    return pid or None


def parse(arguments: list[str] | None) -> Options:
    """Read the command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, options = arguments[:end], Options()
    options.command = arguments[end + 1 :]
    if "-h" in own or "--help" in own:
        print(USAGE)
        raise SystemExit(0)
    words = iter(own)
    places = []
    for word in words:
        name, equals, text = word.partition("=")
        if not word.startswith("-"):
            places.append(word)
        elif word == "--made-with":
            options.made_with = dict(text.partition(" ")[::2] for text in words)
        elif word == "--warm":
            options.warm = True
        elif name in OPTIONS:
            try:
                value = OPTIONS[name](text if equals else next(words, ""))
            except ValueError:
                refuse(f"{name} takes a number")
            setattr(options, name[2:].replace("-", "_"), value)
        else:
            refuse(f"there is no {word}")
    if len(places) != 2:
        refuse(f"there must be STEP and RECORD, not {' '.join(places) or 'nothing'}")
    if not options.command:
        refuse("there is no command; write it after --")
    options.step, options.record = places
    return options


def refuse(why: str) -> None:
    """End with a word on the command line."""
    print(f"{USAGE.splitlines()[0]}\nlaunch: {why}; --help tells more", file=sys.stderr)
    raise SystemExit(2)


def environment(threads: int, env: dict[str, str]) -> dict[str, str]:
    """Return the program's environment: thread pools as declared, whatever the machine has."""
    return {"PYTHONUNBUFFERED": "1"} | env | dict.fromkeys(POOLS, str(threads))


def complain(attempt: Attempt, ended: process.Ended) -> None:
    """Say what failed, with the end of its log and where the rest is."""
    plain = ended.reason in (*FINAL, "crashed", "killed", "interrupted")
    text = ended.detail if plain else f"{ended.reason}, {ended.detail}"
    lines = attempt.tail(TAIL)
    head = [f"The end of {attempt.log}:"] if lines else []
    say(
        f"{attempt.step} failed in {attempt.folder}: {text}",
        *head,
        *(f"  | {line}" for line in lines),
    )
