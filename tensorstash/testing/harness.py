"""The common part of all groups of contract checks: the lab, and the entry points under test."""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import pytest

from tensorstash import api
from tensorstash.api import Stash, Wrapped
from tensorstash.engine.session import Session
from tensorstash.policies.limits import Limits
from tensorstash.policies.plan import HookPolicy
from tensorstash.testing.lab import Lab, Model, Tensor
from tensorstash.testing.layouts import LAYOUTS

AT_ONCE = Limits(in_flight=0, ahead=0)
"""Everything happens inside pack and unpack."""


class Harness:
    """Base of the groups of contract checks; see :class:`~tensorstash.testing.BackendSuite`."""

    lab: ClassVar[Lab]
    limits: ClassVar[Limits] = Limits()

    def stash(self, policy: HookPolicy, *, min_bytes: int = 0, limits: Limits | None = None) -> Stash:
        """Return the entry point under test for a block of code."""
        return api.stash(policy, framework=self.lab.name, min_bytes=min_bytes, limits=limits or self.limits)

    def wrap(self, model: Model, policy: HookPolicy, *, min_bytes: int = 0, limits: Limits | None = None) -> Wrapped:
        """Return the entry point under test for a model."""
        return api.wrap(model, policy, min_bytes=min_bytes, limits=limits or self.limits)

    def scope(self, policy: HookPolicy | None) -> AbstractContextManager[Any]:
        """Return a fresh :meth:`stash` that settles, or no hooks at all for None."""
        return nullcontext() if policy is None else settled(self.stash(policy))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run every check with a ``lab`` of each device."""
        if "lab" in metafunc.fixturenames:
            metafunc.parametrize("lab", [self.lab.on(each) for each in self.lab.devices], ids=self.lab.devices)

    def _strided(self, lab: Lab, dtype: str) -> dict[str, Tensor]:
        """Return a tensor of each layout that the framework has, by name."""
        layouts = ((name, layout) for name, layout in LAYOUTS.items() if lab.reverses or not layout.is_reversed)
        return {name: layout.of(lab, dtype) for name, layout in layouts}


@contextmanager
def settled(stash: Stash) -> Iterator[Session[Any]]:
    """Enter a stash, and wait at the end of the block until the bytes of all that was saved are captured."""
    with stash:
        yield stash._session
    stash.drain()


@contextmanager
def collector_off() -> Iterator[None]:
    """Run a block without the cyclic garbage collector."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def reference_counting_only() -> Iterator[None]:
    """Run a block without the cyclic garbage collector, after it has had a last go."""
    gc.collect()
    with collector_off():
        yield
