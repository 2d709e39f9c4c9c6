"""Scopes that install saved-tensor hooks in the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from tensorstash.reference.autograd.modes import HookPair, hook_stack, hooks_disabled_because, set_hooks_disabled
from tensorstash.reference.errors import HookError
from tensorstash.reference.tensor import Tensor


class saved_tensors_hooks:  # noqa: N801  (the name both frameworks give it)
    """Run `pack` on every tensor this thread saves for backward in the scope, and `unpack` at each use.

    Scopes nest; only the innermost pair runs. Both functions run with gradient recording off. `pack` is given the
    saved tensor itself, an operation's own output as a detached alias. `unpack` must return a tensor of the same
    shape, type and device; the engine puts history back. It may be called any number of times, from any thread.

    Args:
        pack: from the saved tensor to any object, which the graph owns.
        unpack: from that object to a tensor.

    Raises:
        HookError: on entry, hooks are disabled (as RuntimeError text) or on exit, another scope is still open.

    >>> from tensorstash.reference import tensor
    >>> a = tensor([2.0], requires_grad=True)
    >>> with saved_tensors_hooks(lambda x: x.host_bits(), lambda bits: tensor(bits)):
    ...     y = a * a
    >>> y.backward()
    >>> a.grad.tolist()
    [4.0]
    """

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        self._pair = HookPair(pack, unpack)

    def __enter__(self) -> None:
        message = hooks_disabled_because()
        if message is not None:
            raise HookError(message)
        hook_stack().append(self._pair)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack = hook_stack()
        positions = [index for index, pair in enumerate(stack) if pair is self._pair]
        if not positions:
            raise HookError("saved_tensors_hooks was exited in a thread that has not entered it")
        innermost = positions[-1] == len(stack) - 1
        del stack[positions[-1]]
        if not innermost:
            raise HookError("saved_tensors_hooks scopes were exited out of order: an inner scope is still open")


class save_on_cpu(saved_tensors_hooks):  # noqa: N801
    """Keep saved tensors in host memory until backward needs them.

    A tensor that lies in host memory is copied too: captured bytes are immune to in-place writes.

    Args:
        pin_memory: accepted for the frameworks' signature; copies of a simulated device are synchronous, so page
            locking has nothing to give.
    """

    def __init__(self, pin_memory: bool = False) -> None:
        self.pin_memory = pin_memory
        super().__init__(_to_host, _to_device)


def _to_host(tensor: Tensor) -> tuple[str, Tensor]:
    return tensor.device, tensor.detach().to("cpu", copy=True)


def _to_device(packed: tuple[str, Tensor]) -> Tensor:
    device, tensor = packed
    return tensor.to(device, copy=True)


@contextmanager
def disable_saved_tensors_hooks(message: str) -> Iterator[None]:
    """Make entering `saved_tensors_hooks` raise `message` in this thread for one scope.

    Raises:
        HookError: hooks are active already.
    """
    if hook_stack():
        raise HookError(message)
    previous = hooks_disabled_because()
    set_hooks_disabled(message)
    try:
        yield
    finally:
        set_hooks_disabled(previous)
