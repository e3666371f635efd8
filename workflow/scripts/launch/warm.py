"""Ask a server for a warm start, or start one: `server.py`, one per interpreter, imports and environment."""

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from launch.call import CALL
from launch.imports import Beginning, TooEarly, beginning
from launch.lease import boot, common_folder
from launch.light import say
from launch.process import Bare, Cold

SERVERS = 5  # at once; the one that was used longest ago ends first
PATIENCE = 120.0  # seconds that a server's imports may take
# What can matter when packages are imported, and so makes another server.
_MATTERS = (
    "TF_",
    "XLA_",
    "OMP_",
    "KERAS_",
    "LD_",
    "PYTHON",
    "CUDA_",
    "MKL_",
    "OPENBLAS_",
    "GOTO_",
    "NUMEXPR_",
)
_MATTERS += (
    "VECLIB_",
    "LANG",
    "LC_",
    "PATH",
    "HOME",
    "JAX_",
    "TORCH",
    "PYTORCH_",
    "NVIDIA_",
    "VIRTUAL_ENV",
    "CONDA_",
)
_NOT = ("CUDA_VISIBLE_DEVICES",)


def explain(commands: Mapping[str, Sequence[str]]) -> None:
    """Say which programs have to start cold though they import packages, and why; note those that import none."""
    bare = []
    told = set()  # steps may share a program
    for step, words in commands.items():
        try:
            _beginning(words)
        except TooEarly as reason:
            if str(reason) not in told:
                print(f"{step} can't start warm: {reason}, and could matter to it.", file=sys.stderr)
            told.add(str(reason))
        except Bare:
            bare.append(step)
        except Cold:  # every run finds that out at once
            continue
    if bare:
        os.environ[CALL] += f" bare={','.join(bare)}"


def ask(
    words: Sequence[str],
    env: Mapping[str, str],
    descriptors: Sequence[int],
    watched: int,
    grace: float,
    limit: float | None,
    pause,
    owner: int | None,
) -> int:
    """Have a server start a keeper and its program.

    Args:
        descriptors: log, wake and tell, then `watched` more to watch, then what is held.
        pause: waits until a descriptor can be read, see `process.Listener`.
        owner: the snakemake that servers end with.

    Returns:
        The keeper's number.

    Raises:
        Cold: it must be started cold, and why.
        process.Asked: we are to end.
    """
    import json
    import resource

    start = _beginning(words)
    request = {
        "words": list(words),
        "env": dict(env),
        "cwd": os.getcwd(),
        "umask": _umask(),
        "limits": [resource.getrlimit(number) for number in range(16)],  # all that Linux has
        "watched": watched,
        "grace": grace,
        "limit": limit,
    }
    text = json.dumps(request).encode()
    try:
        answer = ""
        for _ in range(2):  # a server may end just when we ask it
            with _connect(words, env, start, owner or 0) as connection:
                if answer := _request(connection, text, descriptors, pause):
                    break
    except (OSError, ValueError) as error:
        raise Cold(str(error)) from None
    kind, _, rest = (answer or "cold the server ended").partition(" ")
    if kind == "first":  # of all that were refused
        say(f"{words[1]} can't start warm: {rest}")
    if kind != "ok":
        raise Cold(rest)
    return int(rest)


def _request(connection: socket.socket, text: bytes, descriptors: Sequence[int], pause) -> str:
    """Send a request; return the answer, nothing if the server ended."""
    try:
        socket.send_fds(connection, [f"{len(text)}\n".encode()], list(descriptors))
        connection.sendall(text)
    except ConnectionError:
        return ""
    answer = b""
    deadline = time.monotonic() + PATIENCE
    while not answer.endswith(b"\n"):
        if time.monotonic() > deadline:
            raise Cold("the server did not answer")
        pause(1, connection.fileno())
        try:
            more = connection.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
        except ConnectionError:
            return ""
        if not more:
            return ""
        answer += more
    if answer.startswith(b"ok"):
        connection.sendall(b"go")  # only now will the keeper start anything: we may have given up
    return answer.decode().strip()


def _beginning(words: Sequence[str]) -> Beginning:
    name = os.path.basename(words[0])
    if not name.startswith("python") or name.strip("python.0123456789"):
        raise Cold(f"{name} is no Python")
    if len(words) < 2 or not words[1].endswith(".py") or not os.path.isfile(words[1]):
        raise Cold("the command does not begin with `python PROGRAM.py`")
    if os.environ.get("PYTHONSAFEPATH"):
        raise Cold("PYTHONSAFEPATH is set")
    return beginning(words[1])


def _connect(words: Sequence[str], env: Mapping[str, str], start: Beginning, owner: int) -> socket.socket:
    """Connect to the server of this key; start it if there is none."""
    import hashlib
    import shutil

    interpreter = shutil.which(words[0], path=env.get("PATH"))
    if interpreter is None:
        raise Cold(f"{words[0]} is not found")
    base = {k: v for k, v in (dict(env) | start.environ).items() if not k.startswith("SNAKESWEEP_")}
    matters = sorted(f"{k}={v}" for k, v in base.items() if k.startswith(_MATTERS) and k not in _NOT)
    folder = os.path.dirname(os.path.realpath(words[1]))
    key = "\0".join([interpreter, *_versions(interpreter), *start.imports, *matters, folder, str(owner)])
    place = _place()
    path = os.path.join(place, hashlib.sha256(os.fsencode(key)).hexdigest()[:24])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _reach(connection.connect, path)
    except OSError:
        import fcntl

        turn = os.open(os.path.join(place, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            try:
                _reach(connection.connect, path)
            except OSError:
                _make_room(place)
                _start(path, interpreter, start, base, owner)
                _reach(connection.connect, path)
        finally:
            os.close(turn)
    with suppress(OSError):
        os.utime(path)  # used now
    return connection


def _reach(what, path: str) -> None:
    """Connect or bind to a path of any length: a socket's address has 107 bytes."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        what(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)


def _start(path: str, interpreter: str, start: Beginning, env: Mapping[str, str], owner: int) -> None:
    """Start a server that listens already: requests wait until it has imported."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError):
        os.unlink(path)  # of one that was killed
    _reach(listener.bind, path)
    listener.listen(256)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        listener.close()
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.set_inheritable(listener.fileno(), True)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nowhere, number)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != listener.fileno():
                try:
                    os.set_inheritable(descriptor, False)
                except OSError:
                    continue
        server = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server.py")
        words = [interpreter, server, str(listener.fileno()), str(owner), "\n".join(start.imports), path]
        os.execve(interpreter, words, dict(env))
    finally:
        os._exit(1)


def _make_room(place: str) -> None:
    """Have the server end that was used longest ago, if there are too many; remove what dead ones left."""
    found = []
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if name == "lock":
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                _reach(probe.connect, path)
                found.append((os.stat(path).st_mtime, path))
            except OSError:
                try:
                    os.unlink(path)
                except FileNotFoundError:
                    continue
    for _, path in sorted(found)[: max(0, len(found) - SERVERS + 1)]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            _reach(last.connect, path)
            last.sendall(b'5\n"end"')
        with suppress(FileNotFoundError):
            os.unlink(path)


def _place() -> str:
    """Return the folder of this user's sockets, made if need be; nobody else can look into it."""
    path = os.path.join(common_folder(), f"snakesweep-{boot()}-warm-{os.getuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        about = os.lstat(path)
        if about.st_uid != os.getuid() or about.st_mode & 0o777077 != 0o040000:
            raise Cold(f"{path} is not ours alone") from None
    return path


def _versions(interpreter: str) -> list[str]:
    """Name what is installed for an interpreter: the times of its folders change with every package."""
    home = os.path.dirname(os.path.dirname(interpreter))
    found = [str(os.stat(interpreter).st_mtime_ns)]
    lib = os.path.join(home, "lib")
    for name in sorted(os.listdir(lib)) if os.path.isdir(lib) else []:
        packages = os.path.join(lib, name, "site-packages")
        if os.path.isdir(packages):
            found += sorted(n for n in os.listdir(packages) if n.endswith(".dist-info"))
            found.append(str(os.stat(packages).st_mtime_ns))
    return found


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
