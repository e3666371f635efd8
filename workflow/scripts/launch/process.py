"""Run one program as a process group of its own that never outlives what started it, nor do its children."""

from __future__ import annotations

import _signal as signal  # without what `signal` adds to it: enums, which take 8 ms to import
import os
import resource
import select
import time

from launch.light import suppress

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from io import BufferedWriter

GRACE = 30.0  # seconds between asking a program to end and ending it
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PDEATHSIG = 1
SUBREAPER = 36
_ASKED = {
    signal.SIGINT: "interrupted",
    signal.SIGHUP: "interrupted",
    signal.SIGTERM: "preempted",
    signal.SIGALRM: "timed out",
}


class Ended:  # no dataclass: importing those takes longer than all else here
    """How a program ended.

    Attributes:
        status: exit status; 128 + n for signal n, 127 for a program that could not be started.
        reason: finished, failed, crashed, killed, interrupted, preempted, timed out, or not started.
        detail: the same in words.
        wall: seconds it took.
        cpu: seconds of processor time, its children's included.
        memory: peak memory of its largest process, MiB.
        start: "warm", or "cold" and why.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        detail: str,
        wall: float = 0.0,
        cpu: float = 0.0,
        memory: float = 0.0,
    ):
        self.status = status
        self.reason = reason
        self.detail = detail
        self.wall = wall
        self.cpu = cpu
        self.memory = memory
        self.start = "cold"


class Asked(Exception):
    """We were asked to end, by a signal or by the death of what started us, while nothing was running yet."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Cold(Exception):
    """A program can't be started warm; why."""


class Bare(Cold):
    """Nothing would be gained."""

    def __init__(self):
        super().__init__("it imports no installed package")


class Heard:
    """What a keeper listens to: a pipe with the numbers of signals, and processes to die with (pidfd)."""

    def __init__(self, wake: int, watched: list[int]):
        self.wake = wake
        self.watched = watched


class Listener(Heard):
    """Hears the signals that we pass on, and the death of the process that we belong to.

    Args:
        owner: the process to die with, if it is another than our parent.
    """

    def __init__(self, owner: int | None = None):
        super().__init__(-1, [])
        for process in filter(None, (owner, os.getppid())):
            with suppress(OSError):  # one outside our container can't be watched
                self.watched.append(os.pidfd_open(process))
        self.wake, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        for number in _PASSED_ON:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # under nohup
                signal.signal(number, lambda *_: None)

    def pause(self, seconds: float, until: int | None = None) -> None:
        """Wait, or until a descriptor can be read.

        Raises:
            Asked: we are to end.
        """
        poll = select.poll()
        for descriptor in (self.wake, *self.watched, *([] if until is None else [until])):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(seconds * 1000):
            if descriptor in self.watched:
                raise Asked(signal.SIGTERM)
            if descriptor == self.wake:
                for number in os.read(self.wake, 64):
                    if number in _PASSED_ON:
                        raise Asked(number)


def run(
    words: Sequence[str],
    env: Mapping[str, str],
    log: BufferedWriter,
    grace: float = GRACE,
    limit: float | None = None,
    listener: Listener | None = None,
    held: Sequence[int] = (),
    sample: Callable[[int], None] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
    ask: Callable[..., int] | None = None,
) -> Ended:
    """Run a program to its end, its standard output and error going to `log`.

    SIGINT, SIGTERM and SIGHUP are passed on to its process group; a second SIGINT, or `grace` seconds, kill it.
    When we die, or the process that we belong to, the program is ended the same way. What it leaves running is
    killed, in whatever group or session it is.

    The program is the child of a keeper, a fork of this process in a session of its own, so that something is
    left to end the program's children if we are killed; if the keeper is killed, we end them.

    Args:
        limit: seconds after which the program is ended.
        held: descriptors that stay open in the program: a lease is held until the last of its processes ends.
        sample: called every second with the keeper's number, the ancestor of all that runs.
        meanwhile: called once, when the program runs.
        ask: has a server start the keeper (warm), or raises Cold.
    """
    listener = listener or Listener()
    hear, tell = os.pipe()
    keeper, start = 0, "cold"
    if ask:
        try:
            keeper = ask([log.fileno(), listener.wake, tell, *listener.watched, *held], len(listener.watched))
            start = "warm"
        except Cold as reason:
            start = f"cold: {reason}"
    prctl(SUBREAPER, 1)
    forked = not keeper and (keeper := os.fork())
    if not keeper:
        try:
            signal.set_wakeup_fd(-1)
            os.close(listener.wake_write)
            text = keep(words, env, log.fileno(), listener, grace, limit, held)
            os.write(tell, "\n".join(map(str, text)).encode())
        finally:
            os._exit(0)
    os.close(tell)
    meanwhile()
    text = _hear(hear, keeper, sample)
    if forked:
        os.waitpid(keeper, 0)  # it is about to end, or was killed
    _end_children()
    if not text:
        return Ended(137, "killed", "killed by SIGKILL, with its keeper")
    status, reason, detail, *numbers = text.split("\n")
    ended = Ended(int(status), reason, detail, *map(float, numbers))
    ended.start = start
    if ended.reason == "not started":
        log.write(f"{ended.detail}\n".encode())
    return ended


def _hear(pipe: int, keeper: int, sample: Callable[[int], None] | None) -> str:
    """Read all that the keeper says, sampling meanwhile."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    said = []
    while True:
        if sample and not poll.poll(1000):
            sample(keeper)
            continue
        if not (more := os.read(pipe, 4096)):
            os.close(pipe)
            return b"".join(said).decode()
        said.append(more)


def keep(
    words: Sequence[str],
    env: Mapping[str, str],
    log: int,
    listener: Heard,
    grace: float,
    limit: float | None,
    held: Sequence[int],
    start: Callable[..., int] | None = None,
) -> tuple:
    """Start the program, wait for its end, and end what it left; return what `Ended` is made of."""
    started = time.monotonic()
    os.setsid()
    prctl(SUBREAPER, 1)
    try:
        program = (start or _start)(words, env, log, held)
    except OSError as error:
        return 127, "not started", f"{words[0]} can't be started: {error.strerror}", 0.0, 0.0, 0.0
    asked = _watch(program, listener, grace, limit)
    # As long as nobody has waited for the program, its number is no other's, and so is its group's.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    wall = time.monotonic() - started
    _end_children()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return *_ended(code, asked), wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def _start(words: Sequence[str], env: Mapping[str, str], log: int, held: Sequence[int]) -> int:
    """Start a program in a session of its own; return its process number."""
    keeper = os.getpid()
    hear, tell = os.pipe()
    program = os.fork()
    if not program:
        try:
            os.setsid()
            prctl(PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:
                os._exit(0)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
                signal.signal(number, signal.SIG_DFL)
            for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
                os.dup2(descriptor, number)
            for descriptor in held:
                os.set_inheritable(descriptor, True)
            os.execvpe(words[0], words, env)
        except OSError as error:
            os.write(tell, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(tell)
    with open(hear, "rb") as pipe:
        number = int(pipe.read() or 0)
    if number:
        os.waitpid(program, 0)
        raise OSError(number, os.strerror(number))
    return program


def _watch(program: int, listener: Heard, grace: float, limit: float | None) -> int:
    """Wait until the program has ended; return the signal that it was asked to end with, or 0.

    SIGALRM stands for the time limit: the program gets SIGTERM then.
    """
    poll = select.poll()
    program_fd = os.pidfd_open(program)
    wake = listener.wake
    for descriptor in (program_fd, wake, *listener.watched):
        poll.register(descriptor, select.POLLIN)
    asked, deadline = 0, None if limit is None else time.monotonic() + limit
    while True:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = {fd for fd, _ in poll.poll(timeout)}
        if program_fd in ready:
            return asked or _asked_at_once(program, wake)
        heard = os.read(wake, 64) if wake in ready else b""
        numbers = [number for number in heard if number in _PASSED_ON]
        for fd in ready - ({wake} if heard else set()):  # launch, or what it belongs to, has died
            poll.unregister(fd)
            numbers.append(signal.SIGTERM)
        if not ready:  # time is up
            numbers, deadline = [signal.SIGKILL if asked else signal.SIGALRM], None
        for number in numbers:
            if number == asked == signal.SIGINT:  # Ctrl-C came a second time
                number, deadline = signal.SIGKILL, None
            elif number != signal.SIGKILL:
                if asked not in (0, number):  # Ctrl-C comes from the terminal, then from snakemake as SIGTERM
                    continue
                if not asked:
                    asked, deadline = number, time.monotonic() + grace
            _signal(program, signal.SIGTERM if number == signal.SIGALRM else number)


def _asked_at_once(program: int, wake: int) -> int:
    """Return the signal that came just when the program ended, or 0.

    A cluster signals all processes of a job: what ended the program may reach us a moment later.
    """
    ended = os.waitid(os.P_PID, program, os.WEXITED | os.WNOWAIT)
    died = ended.si_code == os.CLD_KILLED and ended.si_status == signal.SIGTERM
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    heard = os.read(wake, 64) if poll.poll(500 if died else 0) else b""
    return next((number for number in heard if number in _PASSED_ON), 0)


def _signal(program: int, number: int) -> None:
    """Signal a program that nobody has waited for, and its group, which a fork makes only after it has begun."""
    try:
        os.killpg(program, number)
    except ProcessLookupError:
        os.kill(program, number)


def _end_children() -> None:
    """Kill all children and, as their orphans become ours, all that come from them; wait for each."""
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            for child in children():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.001)


def children() -> list[int]:
    """List our children."""
    ours = os.getpid()
    return [number for number in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(number) == ours]


def parent(process: int) -> int:
    """Return the number of a process's parent, 0 if it has none that we can see."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _ended(code: int, asked: int) -> tuple[int, str, str]:
    """Word how a program ended: its exit status or minus a signal, and the signal that it was asked with."""
    if code < 0:
        after = f" after {_asked_by(asked)}" if asked not in (0, -code) else ""
        reason = _ASKED.get(asked) or ("killed" if -code in (signal.SIGKILL, signal.SIGTERM) else "crashed")
        return 128 - code, reason, f"killed by {_name(-code)}{after}"
    if asked:
        # A program that saves its work and leaves with 0 when asked to end has not finished.
        return code or 128 + asked, _ASKED[asked], f"ended by {_asked_by(asked)}"
    return (code, "failed", f"exit status {code}") if code else (0, "finished", "finished")


def _asked_by(number: int) -> str:
    return "its time limit" if number == signal.SIGALRM else _name(number)


def _name(number: int) -> str:
    try:
        from signal import Signals

        return Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def prctl(option: int, value: int) -> None:
    """Set a property of this process that dies or adopts; see prctl(2)."""
    import ctypes

    ctypes.CDLL(None).prctl(option, value)
