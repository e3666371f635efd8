"""A warm start is a cold start but for its time: whatever the program asks about itself, and however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import PATIENCE, PROMISE, launch, wait_for

# Everything a program can ask that a warm start could get wrong.
CURIOUS = '''\
"""A program."""
import numpy
import atexit, ctypes, inspect, json, multiprocessing, os, resource, signal, sys, threading
import beside

def square(x):
    return x * x

class Here:
    pass

def main():
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        squares = pool.map(square, range(4))
    found = dict(
        argv=sys.argv, name=__name__, file=__file__, doc=__doc__, spec=repr(__spec__), cached=__cached__,
        loader=type(__loader__).__name__, path0=sys.path[0], path=sys.path, cwd=os.getcwd(), beside=beside.VALUE,
        main=sys.modules["__main__"].__dict__ is globals(), here=Here.__module__, launch="launch" in sys.modules,
        env=sorted((k, v) for k, v in os.environ.items() if k not in IGNORED), mine=libc.getenv(b"MINE").decode(),
        umask=os.umask(0o22), limits=resource.getrlimit(resource.RLIMIT_CORE), orig=sys.orig_argv[1:],
        signals={s.name: str(signal.getsignal(s)) for s in signal.valid_signals() if isinstance(s, signal.Signals)},
        blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), stdin=os.readlink("/proc/self/fd/0"),
        group=os.getpgid(0) == os.getsid(0) == os.getpid(), threads=threading.active_count(),
        fds=sorted(n for n in os.listdir("/proc/self/fd") if int(n) < 3), flags=str(sys.flags), squares=squares,
        encoding=sys.stdout.encoding, line=sys.stdout.line_buffering, through=sys.stdout.write_through,
        source=inspect.getsource(square), executable=sys.executable, hook=sys.excepthook is sys.__excepthook__,
        finders=[getattr(f, "__name__", type(f).__name__) for f in sys.meta_path], warn=sys.warnoptions,
        timer=signal.getitimer(signal.ITIMER_REAL), usage=resource.getrusage(resource.RUSAGE_SELF).ru_utime < 5,
    )
    print(json.dumps(found, default=str))
    atexit.register(lambda: print("at exit"))
    global kept
    kept = open("unflushed", "w")
    kept.write("what a program leaves in a buffer")

IGNORED = ("SNAKESWEEP_NOTES",)
if __name__ == "__main__":
    main()
'''


class Warm:
    """Run the same program cold and warm."""

    def __init__(self, folder: Path, family):
        self.folder = folder
        self.family = family
        self.count = 0
        (folder / "leases").mkdir()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def start(self, *arguments: str, warm=True, program="program.py", **options) -> subprocess.Popen:
        self.count += 1
        more = options.pop("env", {})
        env = self.family.env_with(SNAKESWEEP_LEASES=str(self.folder / "leases"), MINE="mine", **more)
        if "PYTHONPATH" not in more:  # as a user has it
            env.pop("PYTHONPATH")
        words = ["--warm"] if warm else []
        command = launch(
            self.folder,
            *(options.pop("python", "python"), program, *arguments),
            record=f"run{self.count}/record.json",
            options=[*words, *options.pop("options", [])],
        )
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
        return self.family.start(*command, env=env, stderr=subprocess.PIPE, **options)

    def run(self, *arguments: str, **options) -> tuple[dict, str]:
        """Run a program; return its attempt and its log."""
        process = self.start(*arguments, **options)
        _, self.stderr = process.communicate(timeout=PATIENCE * 2)
        run = self.folder / f"run{self.count}"
        attempt = json.loads((run / "attempts.jsonl").read_text().splitlines()[-1])
        return attempt, (run / "logs/train.1.log").read_text()

    def servers(self) -> list[int]:
        found = []
        for pid in self.family.alive():
            try:
                if b"launch/server.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                continue
        return [pid for pid in found if parent(pid) not in found]  # forks have the same words


@pytest.fixture
def warm(tmp_path, family):
    return Warm(tmp_path, family)


def both(warm, *arguments, **options) -> tuple[str, str]:
    """Run cold and warm; return the logs, and expect the same end."""
    cold, cold_log = warm.run(*arguments, warm=False, **options)
    hot, hot_log = warm.run(*arguments, **options)
    assert (cold["start"], hot["start"]) == ("cold", "warm")
    assert (hot["exit"], hot["reason"], hot["detail"]) == (cold["exit"], cold["reason"], cold["detail"])
    assert hot["versions"] == cold["versions"]
    return cold_log, hot_log


def test_a_program_that_asks_about_everything(warm):
    warm.write("program.py", CURIOUS)
    warm.write("beside.py", "VALUE = 3\n")
    logs = both(warm, "a", "--b=c d")
    cold, hot = (json.loads(log.splitlines()[0]) for log in logs)
    assert hot == cold
    assert [log.splitlines()[1] for log in logs] == ["at exit"] * 2
    assert (warm.folder / "unflushed").read_text() == "what a program leaves in a buffer"


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "sys.exit(7)",
        "sys.exit('no such thing')",
        "sys.exit(None)",
        "raise ValueError('wrong shape')",
        "os._exit(9)",
        "os.abort()",
        "os.kill(os.getpid(), 9)",
        "os.kill(os.getpid(), 15)",
        "raise KeyboardInterrupt",
        "import ctypes; ctypes.string_at(0)",
        "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()",
        "__import__('no_such_module')",
        "atexit.register(lambda: 1 / 0)",
        "1 +",
    ],
)
def test_ends(warm, end):
    warm.write(
        "program.py", f"import numpy\nimport atexit, os, sys, threading, time\nprint('begun')\n{end}\n"
    )
    cold, hot = both(warm) if end != "1 +" else [warm.run(warm=w)[1] for w in (False, True)]
    assert re.sub("0x[0-9a-f]+", "0x", hot) == re.sub("0x[0-9a-f]+", "0x", cold)


@pytest.mark.parametrize(
    "left",
    [
        "kept = open('left', 'w')",
        "numpy.kept = open('left', 'w')",
        "numpy.random.kept = [open('left', 'wb', buffering=1000)]",
        "logging.kept = open('left', 'w')",
        "beside.kept = open('left', 'w')",
        "kept = Ends(open('left', 'w'))",
        "beside.kept = Ends(open('left', 'w')); beside.kept.itself = beside.kept",
    ],
)
def test_what_is_left_to_the_end_is_done(warm, left):
    warm.write("beside.py", "import numpy\n")
    kept = left.partition(" = ")[0]
    text = "b'in a buffer'" if "'wb'" in left else "'in a buffer'"
    file = f"{kept}[0]" if "[" in left else f"{kept}.file" if "Ends" in left else kept
    warm.write(
        "program.py",
        "import numpy\nimport atexit, gc, logging, beside\n"
        "class Ends:\n"
        "    def __init__(self, file): self.file = file\n"
        "    def __del__(self): print('ends'); self.file.write(' and at the end')\n"
        "atexit.register(lambda: print('at exit'))\n"
        f"{left.partition(';')[0] if 'Ends' not in left else ''}\n{left}\n{file}.write({text})\n",
    )
    logs, files = [], []
    for start in (False, True):
        logs.append(warm.run(warm=start)[1])
        files.append((warm.folder / "left").read_text())
        (warm.folder / "left").unlink()
    assert logs[0] == logs[1]
    assert files[0] == files[1] == "in a buffer" + " and at the end" * ("Ends" in left)


def test_an_edit_is_seen(warm):
    warm.write("program.py", "import numpy\nimport beside\nprint(1, beside.VALUE)\n")
    warm.write("beside.py", "VALUE = 1\n")
    assert warm.run()[1] == "1 1\n"
    warm.write("beside.py", "VALUE = 22\n")
    assert warm.run()[1] == "1 22\n"
    warm.write("program.py", "import numpy\nimport beside\nprint(333, beside.VALUE)\n")
    attempt, log = warm.run()
    assert (attempt["start"], log) == ("warm", "333 22\n")
    assert len(warm.servers()) == 1


def test_random_numbers_that_nobody_seeded_differ(warm):
    warm.write("program.py", "import numpy\nimport random\nprint(random.random(), numpy.random.rand())\n")
    logs = [warm.run()[1].split() for _ in range(3)]
    assert len({log[0] for log in logs}) == len({log[1] for log in logs}) == 3


def test_blas_threads_survive_the_fork(warm):
    """OpenBLAS has handlers for fork; a matrix product of this size uses its threads."""
    warm.write(
        "program.py", "import numpy as np\na = np.arange(1e6).reshape(1000, 1000) % 7\nprint((a @ a).sum())\n"
    )
    cold, hot = both(warm, options=["--threads=4"])
    assert hot == cold


def test_environment_that_matters_at_import_makes_another_server(warm):
    warm.write(
        "program.py",
        "import numpy\nimport os\nprint(os.environ.get('KERAS_BACKEND'), os.environ.get('OTHER'))\n",
    )
    for env in ({"KERAS_BACKEND": "jax"}, {"KERAS_BACKEND": "torch"}, {"KERAS_BACKEND": "jax", "OTHER": "1"}):
        attempt, log = warm.run(env=env)
        assert attempt["start"] == "warm"
        assert log == f"{env['KERAS_BACKEND']} {env.get('OTHER')}\n"
    assert len(warm.servers()) == 2


def test_program_that_sets_the_backend_first(warm):
    """https://keras.io/getting_started/: the backend is what the variable says when Keras is imported."""
    program = 'import os\nos.environ["KERAS_BACKEND"] = "tensorflow"\nimport keras\nprint(keras.backend.backend())\n'
    warm.write("program.py", program)
    cold, hot = both(warm, env={"KERAS_BACKEND": "jax"})
    # What packages print when they are imported is the server's, and not in the run's log.
    assert hot == cold.splitlines(keepends=True)[-1] == "tensorflow\n"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            "import os\nos.environ['A'] = str(1)\nimport numpy\n",
            "line 2 of program.py comes before `import numpy`",
        ),
        ("import json\n", "it imports no installed package"),
        ("import thready\n", "an import started threads, which a fork would lose"),
        ("import broken\n", "`import broken` failed here (ZeroDivisionError)"),
        ("import own\n", "own is no installed package, and an edit of it must be seen"),
        ("import numpy\nprint('hidden')\n", "colorsys beside the program hides an installed module"),
    ],
)
def test_cold_with_the_reason(warm, program, why):
    site = warm.folder / "site"
    site.mkdir()
    site.joinpath("thready.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    )
    site.joinpath("own.py").write_text("import numpy\n")
    site.joinpath("broken.py").write_text("1 / 0\n")
    site.joinpath("sitecustomize.py").write_text("import colorsys\n")
    if "hidden" in program:
        warm.write("colorsys.py", "")
    warm.write("program.py", program)
    attempt, _ = warm.run(env={"PYTHONPATH": str(site)})
    assert attempt["start"] == f"cold: {why}"
    by_server = "comes before" not in why and "it imports no" not in why
    assert self_said(warm) == by_server
    warm.run(env={"PYTHONPATH": str(site)})
    assert not self_said(warm)  # once is enough


def self_said(warm) -> bool:
    return "program.py can't start warm: " in warm.stderr


def test_no_more_servers_than_a_handful(warm):
    warm.write("program.py", "import numpy\n")
    for number in range(7):
        assert warm.run(env={"KERAS_BACKEND": str(number)})[0]["start"] == "warm"
        if number == 1:
            kept = warm.servers()
        if number > 1:  # the first two are used again and again, so others end
            for again in (0, 1):
                warm.run(env={"KERAS_BACKEND": str(again)})
    assert wait_for(lambda: len(warm.servers()) == 5)
    assert set(kept) <= set(warm.servers())


def test_other_commands_start_cold(warm):
    attempt, _ = warm.run(program="-c")
    assert attempt["start"] == "cold: the command does not begin with `python PROGRAM.py`"


def test_killed_server_is_replaced_and_hurts_no_run(warm):
    warm.write(
        "program.py", "import numpy\nimport time, sys\nopen('running', 'w')\ntime.sleep(float(sys.argv[1]))\n"
    )
    process = warm.start("1.5")
    assert wait_for((warm.folder / "running").exists)
    (server,) = warm.servers()
    os.kill(server, signal.SIGKILL)
    assert process.wait(PATIENCE) == 0
    process.stderr.close()
    attempt, _ = warm.run("0")
    assert (attempt["exit"], attempt["start"]) == (0, "warm")


def test_server_ends_with_its_snakemake(warm):
    owner = subprocess.Popen(["sleep", "600"])
    from launch.lease import boot

    warm.write("program.py", "import numpy\n")
    warm.run(env={"SNAKESWEEP_CALL": f"boot={boot()} pid={owner.pid} call=x"})
    assert len(warm.servers()) == 1
    owner.kill()
    owner.wait()
    assert wait_for(lambda: not warm.family.alive(), PROMISE)
    assert [p.name for p in (warm.folder / "leases").glob("*-warm-*/*")] == ["lock"]


FAMILY = """\
import numpy
import os, subprocess, time
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"])
open("running", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["launch", "keeper", "program"])
def test_killed(warm, victim):
    """As in a cold start: nothing of the run is left, and the server goes on."""
    warm.write("program.py", FAMILY)
    process = warm.start("x", options=["--grace=1"])
    assert wait_for((warm.folder / "running").exists)
    (server,) = warm.servers()
    (program,) = [
        p for p in warm.family.alive() if p != server and os.getsid(p) == p and parent(parent(p)) == server
    ]
    os.kill({"launch": process.pid, "keeper": parent(program), "program": program}[victim], signal.SIGKILL)
    process.wait(PATIENCE)
    process.stderr.close()
    assert wait_for(lambda: warm.family.alive() == [server], PROMISE)
    warm.write("program.py", "import numpy\n")
    assert warm.run()[0]["start"] == "warm"


def parent(pid: int) -> int:
    from launch.process import parent

    return parent(pid)


def test_signals_and_grace_time(warm):
    program = "import numpy\nimport signal, sys, time\n"
    program += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('saved') or 7))\nopen('running', 'w')\ntime.sleep(600)\n"
    warm.write("program.py", program)
    process = warm.start()
    assert wait_for((warm.folder / "running").exists)
    process.terminate()
    assert process.wait(PATIENCE) == 7
    process.stderr.close()
    assert (warm.folder / "run1/logs/train.log").read_text() == "saved\n"


def test_many_starts_leave_nothing_behind(warm):
    """No process, no descriptor, no file."""
    warm.write("program.py", "import numpy\n")
    warm.run()
    (server,) = warm.servers()
    files = sorted(str(p) for p in (warm.folder / "leases").rglob("*"))
    descriptors = sorted(os.listdir(f"/proc/{server}/fd"))
    count = int(os.environ.get("WARM_STARTS", "60"))
    started = time.monotonic()
    for _ in range(count):
        attempt, _ = warm.run()
        assert attempt["start"] == "warm"
        (warm.folder / f"run{warm.count}/logs/train.log").unlink()
    print(f"{count} starts, {(time.monotonic() - started) / count * 1000:.0f} ms each")
    assert warm.servers() == warm.family.alive() == [server]
    assert sorted(os.listdir(f"/proc/{server}/fd")) == descriptors
    assert sorted(str(p) for p in (warm.folder / "leases").rglob("*")) == files
