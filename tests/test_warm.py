"""A Python that has imported things before it is started cannot be told from another by what it does."""

import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked_workers import PROGRAMS
from tests.warm import AT_START, _end

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system cannot wait for processes as for streams"),
    pytest.mark.skipif(os.environ.get("OMP_NUM_THREADS") != "1", reason="NumPy starts threads when it is imported"),
]

SHOW = """
import json, os, sys
found = dict(words=sys.argv, name=__name__, place=os.getcwd(), given=sys.stdin.read(), set=os.environ.get("SET"))
found.update(imported="numpy" in sys.modules, path=sys.path[:2])
print("said", file=sys.stderr)
print(json.dumps(found))
sys.exit(3)
"""

Warm = Callable[..., str]


@pytest.mark.parametrize("kind", ["text", "module", "file"])
@pytest.mark.parametrize("variables", [{}, {"MALLOC_ARENA_MAX": "2"}], ids=["forked", "other start"])
def test_a_program_finds_and_gives_what_it_would(
    warm: Warm, kind: str, variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    arguments = {"text": ["-c", SHOW], "module": ["-m", "show"], "file": [str(tmp_path / "show.py")]}[kind]
    environment = os.environ | {"SET": "here", "PYTHONPATH": "/some/path"} | variables
    found = []
    for python in (warm("numpy"), sys.executable):
        command = [python, "-W", "error", *arguments, "one", "two"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, input="text", capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (3, "said\n")
        found.append(json.loads(done.stdout))
    assert [each.pop("imported") for each in found] == [not variables, False]
    assert found[0] == found[1]


def test_what_kills_a_program_or_fails_in_it_is_seen(warm: Warm) -> None:
    def ends(program: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([warm("numpy"), "-c", program], capture_output=True, text=True)

    assert ends("import os; os.kill(os.getpid(), 11)").returncode == -signal.SIGSEGV
    failed = ends("def f(): raise ValueError('why')\nf()")
    assert failed.returncode == 1
    assert failed.stderr.endswith("ValueError: why\n")
    assert ends("import atexit, threading; threading.Thread(target=print, args=[1]).start()").stdout == "1\n"
    assert ends("import sys; sys.exit('because')").stderr == "because\n"


def test_a_program_ends_with_what_was_started(warm: Warm) -> None:
    program = "import time; print(1, flush=True); time.sleep(100)"
    with subprocess.Popen([warm("numpy"), "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        assert process.stdout.read() == ""  # comes to an end when nobody can write


def test_what_a_program_starts_is_forked_too(warm: Warm) -> None:
    inner = "import sys; print('numpy' in sys.modules)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    done = subprocess.run([warm("numpy"), "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("framework", PROGRAMS)
def test_programs_are_forked_whatever_libraries_have_set_in_the_process_that_runs_tests(
    warm: Warm, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = warm(*PROGRAMS[framework])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp")  # as PyTorch's compiler does
    importlib.import_module("sklearn")
    program = f"import sys; print({framework!r} in sys.modules)"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n", [name for name in os.environ if name.startswith(AT_START)]


@pytest.mark.parametrize("options", [[], ["-u"]], ids=["as always", "unbuffered"])
def test_what_a_program_prints_is_written_when_python_would(warm: Warm, options: list[str]) -> None:
    program = "import sys; print(sys.stdout.write_through)"
    commands = [[python, *options, "-c", program] for python in (warm("numpy"), sys.executable)]
    ours, theirs = (subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in commands)
    assert ours == theirs


def test_python_itself_has_imported_nothing() -> None:
    """Though the process that runs the test may have been forked where frameworks are imported."""
    program = "import sys; print(sys.executable, {'numpy', 'torch', 'paddle'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sys.executable} set()\n"


def test_a_client_that_goes_at_the_moment_that_its_program_ends_is_no_matter() -> None:
    client, server = socket.socketpair()
    client.close()
    with server, selectors.DefaultSelector() as waiting:
        pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", ""])
        ended = os.pidfd_open(pid)
        waiting.register(ended, selectors.EVENT_READ)
        waiting.register(server, selectors.EVENT_READ, ended)
        while ended not in [key.fd for key, _ in waiting.select()]:
            pass
        children = {ended: (pid, server)}
        _end(waiting, children, ended)
        assert not children
        assert not waiting.get_map()
