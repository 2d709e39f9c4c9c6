"""Set everything up and run it; needs nothing but Python 3.11 or newer.

    python3 run.py train [--quick] [--policy LINE] ...   train under each policy and print the comparison
    python3 run.py test [pytest arguments]               lint, type-check and test
    python3 run.py docs                                  build the site from docs/ into site/

What is installed goes into .venv beside this file, and only when something there has to change.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
GROUPS = "first", "test"  # each includes those before it
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def fingerprint() -> str:
    """Return a digest of what decides what is installed: Python, the place, what the project asks for and compiles."""
    sources = [ROOT / "pyproject.toml", *sorted((ROOT / "native").iterdir())]
    return hashlib.sha256(b"\0".join((f"{sys.version} {ROOT}".encode(), *map(Path.read_bytes, sources)))).hexdigest()


def set_up(group: str) -> None:
    """Install the package, a dependency group and those before it, unless they are as the project asks for them now."""
    for each in GROUPS[: GROUPS.index(group) + 1]:
        if not is_set_up(each):
            print(f"Installing the dependency group {each} in {VENV}; this happens once.", file=sys.stderr, flush=True)
            install(each)
            stamp(each).write_text(fingerprint())


def install(group: str) -> None:
    """Install a dependency group; the first with the package, in a new environment."""
    needed, packages = requirements(group), []
    if group == GROUPS[0]:
        create_environment()
        # What is pinned is large, and one process unpacks on one core; the next group brings its dependencies.
        pinned = {each for each in needed if "==" in each.split(";")[0]}
        packages = [start_pip("--no-deps", each) for each in (f"-e{ROOT}", *sorted(pinned))]
        needed -= pinned
    for package in (start_pip("--no-warn-conflicts", *sorted(needed)), *packages):
        leave_unless_done(package)


def create_environment() -> None:
    """Make the virtual environment anew, with the newest pip: the one that comes with Python may take twice as long."""
    venv.create(VENV, clear=True)
    newest = [sys.executable, "-m", "pip", "--python", PYTHON, "install", "--no-compile", "pip"]
    if subprocess.run(newest, stdout=sys.stderr.fileno()).returncode != 0:  # none there, or one before 22.3
        venv.create(VENV, with_pip=True, clear=True, upgrade_deps=True)


def start_pip(*arguments: str) -> subprocess.Popen[bytes]:
    """Start to install something; the report goes to standard error: standard output is for the table."""
    return start("pip", "install", "--no-compile", *arguments, output=sys.stderr.fileno())


def requirements(group: str) -> set[str]:
    """Return the requirements of the package and of a dependency group, with the groups that it includes."""
    import tomllib  # an older Python lacks it, and is refused below

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = set(project["project"]["dependencies"])
    for each in project["dependency-groups"][group]:
        needed |= {each} if isinstance(each, str) else requirements(each["include-group"])
    return needed


def is_set_up(group: str) -> bool:
    """Whether the environment has a dependency group as the project asks for it now."""
    return stamp(group).exists() and stamp(group).read_text() == fingerprint()


def stamp(group: str) -> Path:
    """Return the file that says for which fingerprint a dependency group was installed."""
    return VENV / f"installed-{group}"


def run(module: str, *arguments: object, output: int | None = None, **variables: str) -> None:
    """Run a module of the virtual environment, and leave with its exit status if that is not 0; see :func:`start`."""
    leave_unless_done(start(module, *arguments, output=output, **variables))


def leave_unless_done(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process, and leave with its exit status if that is not 0."""
    status = process.wait()
    if status != 0:
        sys.exit(status)


def start(module: str, *arguments: object, output: int | None = None, **variables: str) -> subprocess.Popen[bytes]:
    """Start a module of the virtual environment.

    Args:
        module: what follows ``python -m``.
        arguments: of the command line.
        output: file descriptor for its standard output, if that is not ours.
        variables: added to the environment.
    """
    command = [str(PYTHON), "-m", module, *map(str, arguments)]
    # What is imported is compiled when it is first imported, and once: to compile all that is installed takes longer
    # than to install it.
    bytecode = {"PYTHONPYCACHEPREFIX": str(VENV / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    environment = {**os.environ, **bytecode, **variables}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output)


def train(arguments: list[str]) -> None:
    """Train under no policy and under each policy, print one table and draw it as policies.png."""
    set_up("test")
    run("benchmarks", "policies", "--plot", "policies.png", *arguments)


def test(arguments: list[str]) -> None:
    """Run every check; the arguments are for pytest."""
    set_up("first")
    run("ruff", "check", ".")
    run("ruff", "format", "--check", ".")
    with tempfile.TemporaryFile() as report:
        types = start("mypy", output=report.fileno())  # has one thread, as has pip: other cores would wait for them
        try:
            set_up("test")
            # Each test process would compile the frameworks anew if all came to them at once.
            imports = [start("timeit", "-n1", "-r1", f"import {name}") for name in ("torch", "paddle")]
            for each in imports:
                each.wait()
            # One compute thread per test process: the processes share the cores, and OpenMP threads that wait spin.
            # One process more than there are cores, since many tests wait for programs that they have started. A few
            # take half a minute: whoever has nothing left to do takes from the others.
            processes = min((os.cpu_count() or 1) + 1, 4)
            run("pytest", "-n", processes, "--dist", "worksteal", *arguments, OMP_NUM_THREADS="1")
        finally:
            types.wait()
            report.seek(0)
            print(report.read().decode(), end="", flush=True)
    leave_unless_done(types)


def docs(arguments: list[str]) -> None:
    """Build the site; whatever mkdocs warns of is an error."""
    set_up("test")
    run("mkdocs", "build", "--strict", *arguments, NO_MKDOCS_2_WARNING="1")


def main() -> None:
    """Do what the command line asks for."""
    commands = {"train": train, "test": test, "docs": docs}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is run by whatever Python is there
        sys.exit(f"Python 3.11 or newer is needed; this is {sys.version}")
    commands[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    main()
