"""How a fault is planted into what a suite tests, and how it is found out whether a check notices."""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

from tensorstash import api
from tensorstash.api import Stash, Wrapped
from tensorstash.backends.paddle.backend import PaddleBackend
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.engine import session as engine_session
from tensorstash.engine.recomputer import Recomputer
from tensorstash.engine.session import Session
from tensorstash.errors import BackendError
from tensorstash.policies.limits import Limits
from tensorstash.testing import BackendSuite, CodecSuite, StoreSuite
from tensorstash.testing.labs.paddle import PaddleLab
from tensorstash.testing.labs.reference import ReferenceLab
from tensorstash.testing.labs.torch import TorchLab

NOTICED = (AssertionError, pytest.fail.Exception)  # how a check fails


class Planted(BackendSuite):
    """The suite over a backend and a session of choice, with the public entry points in between."""

    lab = ReferenceLab()
    Backend: ClassVar[Callable[[], Any]] = ReferenceBackend
    session: ClassVar[type[Session[Any]]] = Session
    recomputer: ClassVar[type[Recomputer]] = Recomputer

    def stash(self, policy: Any, *, min_bytes: Any = 0, limits: Limits | None = None) -> Stash:
        with self._planted():
            return super().stash(policy, min_bytes=min_bytes, limits=limits)

    def wrap(self, model: Any, policy: Any, *, min_bytes: Any = 0, limits: Limits | None = None) -> Wrapped:
        with self._planted():
            return super().wrap(model, policy, min_bytes=min_bytes, limits=limits)

    @contextmanager
    def _planted(self) -> Iterator[None]:
        backend = self.Backend()

        def backend_of(model: object) -> Any:
            if not backend.owns(model):
                raise BackendError(f"got {model!r}")
            return backend

        with (
            patch.object(api, "backend_chosen", lambda name: backend),
            patch.object(api, "backend_of", backend_of),
            patch.object(api, "Session", self.session),
            patch.object(engine_session, "Recomputer", self.recomputer),
        ):
            yield


class PlantedTorch(Planted):
    """The same over PyTorch."""

    lab = TorchLab()
    Backend = TorchBackend


class PlantedPaddle(Planted):
    """The same over Paddle."""

    lab = PaddleLab()
    Backend = PaddleBackend


class Answering(Session[Any]):
    """A session with a fault between a handle and whoever calls it."""

    def pack(self, tensor: Any) -> Any:
        return partial(self.answer, super().pack(tensor), (tensor.shape, tensor.dtype, tensor.device))

    def answer(self, handle: Any, like: tuple[Any, ...]) -> Any:
        """Give what the graph gets back."""
        return self.unpack(handle)


def planted(name: str, control: Any = Planted, *, backend: Mapping[str, Any] | None = None, **members: Any) -> type:
    """Return the suite over a backend with other methods, with another session or lab, or other entry points."""
    if backend:
        members["Backend"] = type(name, (control.Backend,), dict(backend))
    return type(name, (control,), members)


def replacing(member: str, control: Any = Planted) -> Callable[[Any], type]:
    """Return what makes a suite of a member of it, or of a method of its backend, and names it after that.

    Args:
        member: such as ``session``, or ``backend.to_host``.
        control: the suite without the fault.
    """
    place, _, method = member.partition(".")
    return lambda fault: planted(fault.__name__, control, **{place: {method: fault} if method else fault})


@dataclass(frozen=True)
class Fault:
    """A planted fault.

    Args:
        suite: what carries it; its base is the same without the fault.
        checks: which must notice it.
        arguments: of the checks.
        raises: how the fault may show besides a failed assertion.
    """

    suite: type
    checks: tuple[str, ...]
    arguments: dict[str, Any]
    raises: tuple[type[BaseException], ...]


FAULTS: dict[type, list[Fault]] = {BackendSuite: [], CodecSuite: [], StoreSuite: []}
"""The planted faults, by the suite that has to notice them."""


def caught_by(*checks: str, raises: tuple[type[BaseException], ...] = (), **arguments: Any) -> Callable[[type], type]:
    """Return what notes a suite with a fault."""

    def add(suite: type) -> type:
        kit = next(kit for kit in FAULTS if issubclass(suite, kit))
        FAULTS[kit].append(Fault(suite, checks, arguments, raises))
        return suite

    return add


def failure_of(suite: type, check: str, directory: Path, arguments: dict[str, Any]) -> BaseException | None:
    """Run one check on a thread of its own, whose hooks and modes end with it, and return what it raised."""
    instance = suite()
    method = getattr(instance, check)
    wanted = inspect.signature(method).parameters
    directory.mkdir()
    offered = {"tmp_path": directory} | arguments
    if "lab" in wanted:
        offered["lab"] = instance.lab.on(arguments.get("device", "cpu"))
    if "store" in wanted:
        offered["store"] = instance.config(str(directory)).open()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            method(**{name: offered[name] for name in wanted})
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120)
    assert not thread.is_alive(), f"{check} hangs"
    return raised[0] if raised else None


def checks_of(suite: type) -> set[str]:
    """Return the names of a suite's checks."""
    return {name for name in dir(suite) if name.startswith("test_")}
