"""Faults of the process and of what is around it: threads that die, directories, permissions, descriptors."""

import ctypes
import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal
from unittest import mock

from inside import teams
from planted_faults import Plant, Site

from tensorstash.host.workers import Workers

if sys.platform != "win32":
    import resource

Role = Literal["writer", "reader"]


def workers(site: Site, role: Role) -> Workers:
    assert site.session is not None
    return teams(site.session)[role == "reader"]


def killed(role: Role) -> Plant:
    """Kill threads that wait for work."""

    @contextmanager
    def plant(site: Site) -> Iterator[None]:
        team = workers(site, role)
        victims = {team.submit(threading.current_thread).result(60) for _ in range(8)}
        for victim in victims:
            ident, error = ctypes.c_ulong(victim.ident or 0), ctypes.py_object(SystemExit)
            assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error) == 1
        yield
        for victim in victims:
            team.submit(lambda: None).result(60)  # by another, if this one has had nothing to do
            victim.join(60)
            assert not victim.is_alive()

    return plant


@contextmanager
def shut_down(site: Site) -> Iterator[None]:
    """No work is accepted any more, as while the interpreter exits."""
    for role in ("writer", "reader"):
        pool = workers(site, role)._pool
        pool._calls.put(pool)
    yield


@contextmanager
def no_new_thread(site: Site) -> Iterator[None]:
    """The system has no room for another thread."""
    start, refused = threading.Thread.start, []

    def refuse_ours(thread: threading.Thread) -> None:
        if thread.name.startswith("tensorstash-"):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with mock.patch.object(threading.Thread, "start", refuse_ours):
        yield
    assert refused


@contextmanager
def no_directory(site: Site) -> Iterator[None]:
    site.directory.rmdir()
    try:
        yield
    finally:
        site.directory.mkdir()


@contextmanager
def no_permission(site: Site) -> Iterator[None]:
    """This user, who is not the superuser, may read the directory and not write to it."""
    user, mode, owner = os.geteuid(), stat.S_IRUSR | stat.S_IXUSR, site.directory.stat().st_uid
    if user == 0:
        os.chown(site.directory, 65534, -1)
    site.directory.chmod(mode)
    if user == 0:
        os.seteuid(65534)
    try:
        assert not os.access(site.directory, os.W_OK, effective_ids=True)
        yield
    finally:
        os.seteuid(user)
        site.directory.chmod(stat.S_IRWXU)
        os.chown(site.directory, owner, -1)


@contextmanager
def no_descriptor(site: Site) -> Iterator[None]:
    """The process has every file open that it may; the limit is put back afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
