"""A Python that has imported a framework before it is started: a process that forks one for each program.

To import a framework takes seconds, most programs of tests take fewer. :func:`python` starts the process and returns
the path of an executable: a process of its own as far as its caller can see, with its arguments, folder, environment,
streams and exit status. It is no replacement where a test is about memory, about the end of the interpreter, or about
what a program has to import by itself.

Where something that a process reads only when it starts is other than in the one that forks, and where options are
given that are not known here, the executable is Python itself.
"""

import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent

AT_START = ("FLAGS_", "GLIBC_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "TORCH")
"""What variables begin with that a process, or a framework, reads once."""

NOT_AT_START = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR")
"""Those that are read later, and what scikit-learn and PyTorch's compiler set for all that their process starts."""

CLIENT = """\
#!{python} -IS
import json, os, socket, sys
words = sys.argv[1:]
if words[:1] == ["-u"]:
    del words[0]
while words[:1] == ["-W"]:
    words = words[2:]
known = words and (words[0] in ("-c", "-m") or not words[0].startswith("-"))
begun = {{name: os.environ[name] for name in os.environ if name.startswith({at_start}) and name not in {later}}}
if not known or begun != {begun}:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], [0, 1, 2])
    asked = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
    server.sendall(json.dumps(asked).encode() + b"\\n")
    status = server.makefile().readline()
if int(status) < 0:
    os.kill(os.getpid(), -int(status))
os._exit(int(status))
"""


@contextmanager
def python(*modules: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Return the path of a Python that has imported these modules; where the system cannot do it, of Python itself.

    Args:
        modules: by name; none of them may start a thread when it is imported.
        environment: of the process; None for ours.
    """
    variables = dict(os.environ if environment is None else environment)
    # NumPy starts threads when it is imported, unless it is to use one.
    if not hasattr(os, "pidfd_open") or variables.get("OMP_NUM_THREADS") != "1":
        yield sys.executable
        return
    begun = {name: variables[name] for name in variables if name.startswith(AT_START) and name not in NOT_AT_START}
    with tempfile.TemporaryDirectory() as folder:
        path, address = Path(folder, "python"), str(Path(folder, "socket"))
        client = {"python": sys.executable, "at_start": AT_START, "later": NOT_AT_START, "begun": begun}
        path.write_text(CLIENT.format(**client, address=address))
        path.chmod(0o700)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            command = [sys.executable, "-m", "tests.warm", str(listener.fileno()), str(path), *modules]
            forking = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdin=subprocess.PIPE, pass_fds=[listener.fileno()]
            )
        with forking:
            try:
                yield str(path)
            finally:
                forking.communicate()  # it ends, and all that it has forked, when nobody can write to it


def serve(listener: socket.socket, executable: str) -> dict[str, Any] | None:
    """Fork a process for each client; return what one asks for in that process, and None here when standard input ends.

    Args:
        listener: where clients connect.
        executable: what a forked process starts where it wants another Python.
    """
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads: a fork would have one of them"
    children: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as waiting:
        waiting.register(sys.stdin, selectors.EVENT_READ)
        waiting.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is sys.stdin:
                    for pid, _ in children.values():
                        os.kill(pid, signal.SIGKILL)
                    return None
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    _, streams, _, _ = socket.recv_fds(client, 1, 3)
                    line = client.makefile().readline()
                    if not line:  # it has gone
                        client.close()
                        continue
                    asked = json.loads(line)
                    pid = os.fork()
                    if not pid:
                        for number, stream in enumerate(streams):
                            os.dup2(stream, number)
                        sys.executable = executable
                        return dict(asked)
                    for stream in streams:
                        os.close(stream)
                    ended = os.pidfd_open(pid)
                    children[ended] = pid, client
                    waiting.register(ended, selectors.EVENT_READ)
                    waiting.register(client, selectors.EVENT_READ, ended)
                elif key.data is None:
                    _end(waiting, children, key.fd)
                elif key.data in children:  # the client has gone
                    os.kill(children[key.data][0], signal.SIGKILL)
                    waiting.unregister(key.fileobj)


def _end(waiting: selectors.BaseSelector, children: dict[int, tuple[int, socket.socket]], ended: int) -> None:
    """Tell a client how its process has ended."""
    pid, client = children.pop(ended)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    waiting.unregister(ended)
    os.close(ended)
    if client in waiting.get_map():
        waiting.unregister(client)
        with suppress(ConnectionError):  # it has gone at the same moment
            client.sendall(f"{status}\n".encode())
    client.close()


def run(arguments: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
    """Do what ``python`` does with these arguments, in a process that was forked."""
    ours = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    words = list(arguments)
    if words[0] == "-u":
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        del words[0]
    while words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        del words[:2]
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path[1:] if path not in ours)]
    kind = words.pop(0) if words[0] in ("-c", "-m") else ""
    sys.argv[:] = words
    if kind == "-m":
        sys.path.insert(0, folder)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path.insert(0, "")
        sys.argv[0] = "-c"
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(words[0], "<string>", "exec"), main.__dict__)
    else:
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    """Import what the command line names, and serve."""
    number, executable, *modules = sys.argv[1:]
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # What spawns processes hands them descriptors, which a client does not: it takes Python itself.
        for name in ("multiprocessing.spawn", *modules):
            import_module(name)
    gc.freeze()
    gc.enable()
    with socket.socket(fileno=int(number)) as listener:
        asked = serve(listener, executable)
    _leave(partial(run, **asked) if asked else int)


def _leave(program: Callable[[], object]) -> NoReturn:
    """Run a program and end as the interpreter does, but take nothing apart, which would copy all that was imported."""
    status: object = 0
    try:
        program()
    except SystemExit as end:
        status = end.code
        if status is not None and not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(int(status or 0))


if __name__ == "__main__":
    main()
