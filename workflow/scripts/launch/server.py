"""Serve warm starts: import what a program imports once, then fork for every request.

Started by `warm.py` with the program's own interpreter: `python server.py SOCKET OWNER IMPORTS`. Each request gets
a keeper, as in a cold start, but forked from here; the keeper forks the program. In that process everything on
this page unwinds to its last line, and Python runs the program, and ends, as it would have from the start.
"""

import atexit
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
IDLE = 60.0  # seconds without a request after which a server ends


class Program(BaseException):
    """Unwinds a new process to the top, to become the program."""

    def __init__(self, request: dict):
        super().__init__()
        self.request = request


def serve() -> None:
    """Import, then answer requests until nobody needs us."""
    sys.path.pop(0)  # our own folder; programs have theirs
    atexit.register(leave)  # before all others, and so called after them
    listener, owner = int(sys.argv[1]), int(sys.argv[2])
    problem = import_all(sys.argv[3].split("\n"))
    settle()
    before = {n for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")}
    sys.path.insert(0, os.path.dirname(HERE))
    import select
    import signal
    import socket
    import time

    from launch import process

    process.prctl(process.SUBREAPER, 1)  # what a killed keeper leaves comes to us
    hear, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C ends snakemake, and its end ends us
        signal.signal(number, signal.SIG_IGN)
    server = socket.socket(fileno=listener)
    poll = select.poll()
    for descriptor in (listener, hear):
        poll.register(descriptor, select.POLLIN)
    if owner:
        try:
            owner_fd = os.pidfd_open(owner)
        except OSError:  # it has ended already
            return
        poll.register(owner_fd, select.POLLIN)
    keepers: set[int] = set()
    told = False
    last = time.monotonic()
    while True:
        ready = {fd for fd, _ in poll.poll(1000)}
        if hear in ready:
            os.read(hear, 4096)
        reap(keepers)
        if owner and owner_fd in ready:
            return
        if keepers:
            last = time.monotonic()
        elif time.monotonic() - last > IDLE:
            return
        if listener not in ready:
            continue
        connection, _ = server.accept()
        with connection:
            request, descriptors = receive(connection)
            if request is None:
                continue
            if request == "end":
                return
            last = time.monotonic()
            answer = problem or refuse(request)
            if not answer:
                keeper = os.fork()
                if not keeper:
                    keep(request, descriptors, connection, before, process)
                keepers.add(keeper)
            else:
                connection.sendall(f"{'cold' if told else 'first'} {answer}\n".encode())
                told = True
            for descriptor in descriptors:
                os.close(descriptor)


def import_all(statements: list[str]) -> str:
    """Import; return why nothing can be forked from what that made of us."""
    first = 0
    for statement in statements:
        try:
            exec(statement, {"__name__": "__warm__"})
        except BaseException as error:  # the program will find out itself
            return f"`{statement}` failed here ({type(error).__name__})"
        # NumPy's OpenBLAS has threads of its own that survive a fork; it comes along with the first import.
        if not first and "numpy" in sys.modules:
            first = len(os.listdir("/proc/self/task"))
    if len(os.listdir("/proc/self/task")) > max(1, blas_threads()):
        return "an import started threads, which a fork would lose"
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/nvidia"):
                return "an import started CUDA, which can't be forked"
        except OSError:
            continue
    own = next(filter(is_projects_own, sorted(sys.modules.values(), key=lambda m: m.__name__)), None)
    return f"{own.__name__} is no installed package, and an edit of it must be seen" if own else ""


def is_projects_own(module) -> bool:
    """Say whether a module lies where people edit: neither Python's own nor in a folder of installed packages."""
    path = getattr(module, "__file__", None)
    if not path or module.__name__ in ("__main__", "sitecustomize", "usercustomize"):
        return False
    path = os.path.realpath(path)
    python = os.path.dirname(os.path.realpath(os.__file__))
    return not path.startswith(python + os.sep) and not {"site-packages", "dist-packages"} & set(
        path.split(os.sep)
    )


def blas_threads() -> int:
    """Return how many threads this process has if OpenBLAS started its own, and nothing else any."""
    if "numpy" not in sys.modules:
        return 1
    number = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    cores = len(os.sched_getaffinity(0))
    return min(int(number), cores) if number.isdigit() else cores


def refuse(request: dict) -> str:
    """Say why a request must be started cold: a local module hides one that is imported here."""
    folder = os.path.dirname(os.path.realpath(request["words"][1]))
    tops = {name.partition(".")[0] for name in sys.modules} - {"__main__", "launch"}
    try:
        names = {
            name.partition(".")[0] for name in os.listdir(folder) if name.endswith(".py") or "." not in name
        }
    except OSError:
        return "its folder can't be read"
    hidden = sorted(
        top
        for top in tops & names
        if os.path.isfile(f"{folder}/{top}.py") or os.path.isfile(f"{folder}/{top}/__init__.py")
    )
    return f"{hidden[0]} beside the program hides an installed module" if hidden else ""


def receive(connection) -> tuple[dict | str | None, list[int]]:
    """Read a request of this user, and the descriptors that come with it."""
    import json
    import socket
    import struct

    connection.settimeout(5)
    try:
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.getuid():
            return None, []
        data, descriptors, _, _ = socket.recv_fds(connection, 65536, 64)
        size, newline, text = data.partition(b"\n")
        while len(text) < int(size):
            more = connection.recv(65536)
            if not more:
                return None, descriptors
            text += more
        return json.loads(text), descriptors
    except (OSError, ValueError):
        return None, []


def keep(request: dict, descriptors: list[int], connection, before: set[str], process) -> None:
    """Be the keeper of one program; never returns, but in the program's process raises Program."""
    import signal

    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    log, wake, tell, *more = descriptors
    watched, held = more[: request["watched"]], more[request["watched"] :]
    try:
        connection.sendall(f"ok {os.getpid()}\n".encode())
        if connection.recv(2) != b"go":
            os._exit(0)
    except OSError:  # whoever asked is gone
        os._exit(0)
    connection.close()
    ours = process.Heard(wake, watched)

    def start(words, env, log, held):
        return fork(request, log, held, before, process)

    try:
        text = process.keep(
            words=request["words"],
            env={},
            log=log,
            listener=ours,
            grace=request["grace"],
            limit=request["limit"],
            held=held,
            start=start,
        )
        os.write(tell, "\n".join(map(str, text)).encode())
    except Program:
        raise
    except BaseException:
        os._exit(1)
    os._exit(0)


def fork(request: dict, log: int, held: list[int], before: set[str], process) -> int:
    """Fork the program's process; in it, raise Program."""
    import signal

    keeper = os.getpid()
    program = os.fork()
    if program:
        return program
    os.setsid()
    process.prctl(process.PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(0)
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
        os.dup2(descriptor, number)
    stay = {0, 1, 2, *held, *map(int, before)}
    listener = int(sys.argv[1])
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in stay or descriptor == listener:
            try:
                os.close(descriptor)
            except OSError:
                continue
    for descriptor in held:
        os.set_inheritable(descriptor, True)
    raise Program(request)


def settle() -> None:
    """Have nothing that was imported here be looked at again, when a program's memory is tidied and when it ends.

    Each collection, and Python's end, would walk over all objects of all packages, and by that copy their memory: 0.8 s
    per process with TensorFlow.
    """
    import ctypes
    import gc

    leave.packages = {
        name: module
        for name, module in sys.modules.items()
        if name.partition(".")[0] not in sys.stdlib_module_names and name != "__main__"
    }
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(leave.packages))  # for ever: Python's end takes none apart
    gc.collect()
    gc.freeze()


def leave() -> None:
    """Leave packages as they are at a program's end; its own modules end as always.

    A file that a program keeps open in a package, as `package.log = open(…)`, is flushed here: no end of that package will.
    """
    import gc
    import io

    for thing in gc.get_objects():  # those that were made after the fork
        if issubclass(type(thing), io.IOBase) and not thing.closed and thing.writable():
            try:
                thing.flush()
            except (OSError, ValueError):
                continue
    for name, module in leave.packages.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


leave.packages = {}


def reap(keepers: set[int]) -> None:
    """Take note of ended keepers, and end what a killed one left: it is our child now."""
    import signal

    killed = False
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            break
        killed |= ended not in keepers or os.WIFSIGNALED(status)
        keepers.discard(ended)
    if killed:
        from launch import process

        for child in set(process.children()) - keepers:
            os.kill(child, signal.SIGKILL)


def become(request: dict) -> None:
    """Make this process what a cold start would have made of it, and run the program."""
    import random
    import resource
    import signal

    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    for number, limits in enumerate(request["limits"]):
        try:
            resource.setrlimit(number, tuple(limits))
        except (OSError, ValueError):
            continue
    # As Python leaves them when it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    words = request["words"]
    script = os.path.join(request["cwd"], words[1])
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    sys.argv = words[1:]
    sys.orig_argv = words
    for name in [name for name in sys.modules if name == "launch" or name.startswith("launch.")]:
        del sys.modules[name]
    import importlib.machinery
    import types

    # What Python imports by itself in a cold start; this process had no program when it did.
    inside = types.ModuleType("snakesweep_inside")
    with open(os.path.join(HERE, "inside", "sitecustomize.py"), "rb") as file:
        exec(compile(file.read(), file.name, "exec"), inside.__dict__)
    inside.start()
    main = types.ModuleType("__main__")
    main.__file__ = script
    main.__builtins__ = __builtins__
    main.__cached__ = None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", script)
    sys.modules["__main__"] = main
    with open(script, "rb") as file:
        source = file.read()
    exec(compile(source, script, "exec"), main.__dict__)


def run(request: dict) -> None:
    """Run the program, and word its errors as Python does: without our own frames."""
    try:
        become(request)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            import atexit
            import signal
            import threading

            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        raise SystemExit(1) from None


if __name__ == "__main__":
    try:
        place = os.stat(sys.argv[4]).st_ino
        serve()
        if os.stat(sys.argv[4]).st_ino == place:  # else it is another server's by now
            os.unlink(sys.argv[4])
        os._exit(0)
    except Program as program:
        request = program.request
    except BaseException:  # nothing of a run depends on us
        os._exit(1)
    run(request)
