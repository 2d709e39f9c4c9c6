"""Steps of a wrapped model, whether its saved tensors are stashed, and scopes that are noted."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import tensorstash as ts


def wrapped(model: Any, policy: Any = "compress", **options: Any) -> ts.Wrapped:
    """Wrap a model so that every tensor is stashed."""
    return ts.wrap(model, policy, min_bytes=0, **options)


def bits(parameters: Iterable[Any]) -> list[bytes]:
    """Return the bits of the gradients that are there."""
    found = [each.grad.numpy().tobytes() for each in parameters if each.grad is not None]
    assert found
    return found


def train(model: Any, x: Any) -> list[bytes]:
    """Do one step and return the gradients, bit by bit."""
    model(x).square().sum().backward()
    gradients = bits(model.parameters())
    for parameter in model.parameters():
        parameter.grad = None
    return gradients


def assert_stashes(handle: ts.Wrapped, model: Any, x: Any) -> list[bytes]:
    """Do a step, of which tensors must be stashed."""
    before = handle.stats().stashed
    gradients = train(model, x)
    assert handle.stats().stashed.tensors > before.tensors, "the wrap was dropped"
    return gradients


def assert_stands_aside(handle: ts.Wrapped, model: Any, x: Any) -> list[bytes]:
    """Do a step, of which no tensor must be seen."""
    before = handle.stats().seen
    gradients = train(model, x)
    assert handle.stats().seen == before
    return gradients


def noting(entered: list[Any], name: Any) -> Callable[[], AbstractContextManager[None]]:
    """Return a scope that notes each entry."""

    @contextmanager
    def scope() -> Iterator[None]:
        entered.append(name)
        yield

    return scope
