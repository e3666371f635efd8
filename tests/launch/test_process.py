"""A program is a process group of its own, and nothing of it outlives its run, however that ends."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest
from processes import PATIENCE, PROMISE, ended, run_words, wait_for

# Both the program and a child of it write down which signals they get. The program waits for its child, then
# leaves with the status that it was given.
FAMILY = """
import os, signal, sys

status, *names = sys.argv[1:]
child = os.fork()
me = "program" if child else "child"

def note(number, frame):
    open(f"{me}-{signal.Signals(number).name}", "w").close()
    if child:
        os.waitpid(child, 0)
    os._exit(int(status))

for name in names:
    signal.signal(signal.Signals[name], note)
open(f"{me}-ready", "w").close()
while True:
    signal.pause()
"""
# Ignores what it is asked, but says that it heard.
DEAF = """
import signal, sys

for name in sys.argv[1:]:
    signal.signal(signal.Signals[name], lambda number, _: open(signal.Signals(number).name, "w").close())
open("program-ready", "w").close()
while True:
    signal.pause()
"""


def run(family, *words: str, **options) -> tuple[int, str, str]:
    return ended(family.start_run(*words, **options))


def ready(family, *names: str) -> bool:
    return wait_for(lambda: all((family.folder / f"{name}-ready").exists() for name in names))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", (0, "finished", "finished")),
        ("exit 3", (3, "failed", "exit status 3")),
        ("exit 255", (255, "failed", "exit status 255")),
        # Shells report a program that signal n killed as 128 + n: SIGKILL is 9, SIGSEGV 11, SIGTERM 15.
        ("kill -KILL $$", (137, "killed", "killed by SIGKILL")),
        ("kill -SEGV $$", (139, "crashed", "killed by SIGSEGV")),
        ("kill -TERM $$", (143, "killed", "killed by SIGTERM")),
        ("kill -40 $$", (168, "crashed", "killed by signal 40")),  # a real-time signal has no name
    ],
)
def test_exit_status_is_passed_on(family, script, expected):
    assert run(family, "sh", "-c", script) == expected


def test_program_that_cannot_be_started(family):
    """127 is what a shell gives for a command that it can't find."""
    file = family.folder / "no-program"
    file.touch(mode=0o644)
    for word, number in (("no-such-program", errno.ENOENT), (str(file), errno.EACCES)):
        assert run(family, word) == (127, "not started", f"{word} can't be started: {os.strerror(number)}")
        assert word in (family.folder / "log").read_text()


def test_output_and_error_go_to_the_log_in_order(family):
    run(family, "sh", "-c", "echo one; echo two >&2; echo three")
    assert (family.folder / "log").read_text() == "one\ntwo\nthree\n"


def test_standard_input_is_empty(family):
    """A program that asks a question gets an end of file, whatever stands at launch's own input."""
    process = family.start_run("sh", "-c", "readlink /proc/self/fd/0; cat", stdin=subprocess.PIPE)
    assert ended(process) == (0, "finished", "finished")
    assert (family.folder / "log").read_text() == "/dev/null\n"


def test_program_leads_a_process_group_and_session_of_its_own(family):
    run(family, sys.executable, "-c", "import os; print(os.getpid(), os.getpgid(0), os.getsid(0))")
    pid, group, session = (family.folder / "log").read_text().split()
    assert group == session == pid


def test_program_inherits_nothing_open(family):
    """Standard input, output and error, and the descriptor that lists them."""
    run(family, "sh", "-c", "ls /proc/self/fd")
    assert (family.folder / "log").read_text().split() == ["0", "1", "2", "3"]


@pytest.mark.parametrize("script", ["sleep 600 &", "trap '' TERM INT HUP; sleep 600 & sleep 600 & exit 3"])
def test_children_that_a_program_leaves_behind_are_ended(family, script):
    run(family, "sh", "-c", f"{script} touch left")
    assert wait_for(lambda: not family.alive(), PROMISE)


def test_finished_program_is_not_held_up_by_children_with_its_output(family):
    """They hold the log open; a pipe instead of a file would wait for them."""
    assert run(family, "sh", "-c", "sleep 600 & exit 4") == (4, "failed", "exit status 4")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_reach_the_program_and_its_children(family, name):
    process = family.start_run(sys.executable, "-c", FAMILY, "5", name)
    assert ready(family, "program", "child")
    process.send_signal(signal.Signals[name])
    # The program's own status, and what asked for it.
    reason = "preempted" if name == "SIGTERM" else "interrupted"
    assert ended(process) == (5, reason, f"ended by {name}")
    assert (family.folder / f"program-{name}").exists()
    assert (family.folder / f"child-{name}").exists()


def test_cluster_signals_the_program_first(family):
    """A job is signalled as a whole, its program a moment before us: that is a preemption, not somebody's kill."""
    process = family.start_run(
        sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    )
    log = family.folder / "log"
    assert wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    os.kill(int(log.read_text()), signal.SIGTERM)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "preempted", "killed by SIGTERM")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_program_that_leaves_with_0_when_asked_to_end_has_not_finished(family, name):
    process = family.start_run(sys.executable, "-c", FAMILY, "0", name)
    assert ready(family, "program", "child")
    process.send_signal(signal.Signals[name])
    reason = "preempted" if name == "SIGTERM" else "interrupted"
    assert ended(process) == (128 + signal.Signals[name], reason, f"ended by {name}")


def test_program_that_does_not_listen_is_ended_by_the_signal_itself(family):
    process = family.start_run("sh", "-c", "touch program-ready; exec sleep 600")
    assert ready(family, "program")
    process.terminate()
    assert ended(process) == (143, "preempted", "killed by SIGTERM")


def test_program_has_its_grace_time_to_save(family):
    script = "trap 'sleep 0.5; touch saved; exit 7' TERM; touch program-ready; while :; do sleep 0.02; done"
    process = family.start_run("sh", "-c", script)
    assert ready(family, "program")
    process.terminate()
    assert ended(process) == (7, "preempted", "ended by SIGTERM")
    assert (family.folder / "saved").exists()


def test_program_that_ignores_the_signal_is_killed_after_the_grace_time(family):
    process = family.start_run(sys.executable, "-c", DEAF, "SIGTERM", grace=0.3)
    assert ready(family, "program")
    process.terminate()
    assert ended(process) == (137, "preempted", "killed by SIGKILL after SIGTERM")
    assert (family.folder / "SIGTERM").exists()  # it was asked first
    assert wait_for(lambda: not family.alive(), PROMISE)


def test_second_interrupt_kills_at_once(family):
    """Ctrl-C twice; the grace time of ten minutes is not waited for."""
    process = family.start_run(sys.executable, "-c", DEAF, "SIGINT", grace=600)
    assert ready(family, "program")
    process.send_signal(signal.SIGINT)
    assert wait_for((family.folder / "SIGINT").exists)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (137, "interrupted", "killed by SIGKILL after SIGINT")


def test_second_termination_is_passed_on_and_does_not_kill(family):
    """Slurm signals every process of a job, and launch passes the same on: the program gets both."""
    process = family.start_run(sys.executable, "-c", DEAF, "SIGTERM", grace=600)
    assert ready(family, "program")
    for _ in range(2):
        process.terminate()
        assert wait_for((family.folder / "SIGTERM").exists)
        (family.folder / "SIGTERM").unlink()
    assert process.poll() is None


def test_ctrl_c_is_not_followed_by_a_termination(family):
    """Ctrl-C comes from the terminal, then from snakemake as SIGTERM: a program that saves goes on saving."""
    process = family.start_run(sys.executable, "-c", DEAF, "SIGINT", grace=600)
    assert ready(family, "program")
    process.send_signal(signal.SIGINT)
    assert wait_for((family.folder / "SIGINT").exists)
    process.terminate()  # DEAF would die of it
    time.sleep(0.5)
    assert process.poll() is None


def test_hangup_is_ignored_under_nohup(family):
    """`nohup snakemake … &`, then the terminal goes: what is told to ignore it must not end the run."""
    process = family.start(
        "nohup", *run_words(sys.executable, "-c", FAMILY, "5", "SIGTERM"), stdout=subprocess.PIPE
    )
    assert ready(family, "program", "child")
    # Pending signals are delivered lowest number first: had the hangup (1) counted, it would be the reason.
    for number in (signal.SIGHUP, signal.SIGTERM):
        process.send_signal(number)
    assert ended(process) == (5, "preempted", "ended by SIGTERM")


PARENT = "import subprocess, sys; subprocess.run(sys.argv[1:])"


def test_killed_parent_takes_the_program_and_its_children_along(family):
    """FACTS: SIGKILL of snakemake ends neither bash nor the program."""
    words = run_words(sys.executable, "-c", FAMILY, "0", "SIGUSR1")
    parent = family.start(sys.executable, "-c", PARENT, *words)
    assert ready(family, "program", "child")
    parent.kill()
    assert wait_for(lambda: not family.alive(), PROMISE)


def test_killed_parent_leaves_the_program_its_grace_time_and_no_more(family):
    words = run_words(sys.executable, "-c", DEAF, "SIGTERM", grace=0.3)
    parent = family.start(sys.executable, "-c", PARENT, *words)
    assert ready(family, "program")
    parent.kill()
    assert wait_for((family.folder / "SIGTERM").exists, PROMISE)
    assert wait_for(lambda: not family.alive(), PROMISE)


def test_killed_launch_takes_the_program_along(family):
    process = family.start_run("sh", "-c", "touch program-ready; exec sleep 600")
    assert ready(family, "program")
    process.kill()
    assert wait_for(lambda: not family.alive(), PROMISE)


def test_killed_launch_takes_the_children_of_the_program_along(family):
    process = family.start_run(sys.executable, "-c", FAMILY, "0", "SIGUSR1")
    assert ready(family, "program", "child")
    process.kill()
    assert wait_for(lambda: not family.alive(), PROMISE)


def test_children_in_sessions_of_their_own_are_ended(family):
    run(
        family,
        "sh",
        "-c",
        "setsid sh -c 'touch child-ready; exec sleep 600' & while ! [ -e child-ready ]; do sleep 0.02; done",
    )
    assert wait_for(lambda: not family.alive(), PROMISE)


# A program, forked as a server does, that takes its time to make its group; the signal is there before it has.
EARLY = """
import os, signal, sys, time
from launch.process import Heard, keep

def start(words, env, log, held):
    program = os.fork()
    if not program:
        time.sleep(600)
    return program

signal.signal(signal.SIGINT, signal.SIG_DFL)
if os.fork():  # this process leads a session already
    os.wait()
    sys.exit()
hear, tell = os.pipe()
os.write(tell, bytes([int(sys.argv[1])]))
print(*keep([], {}, 0, Heard(hear, []), 600, None, [], start)[:2])
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_is_not_lost_on_a_program_that_has_no_group_yet(family, name):
    number = signal.Signals[name]
    process = family.start(sys.executable, "-c", EARLY, str(number.value), stdout=subprocess.PIPE)
    text, _ = process.communicate(timeout=PATIENCE)
    assert text.split()[0] == str(128 + number)
