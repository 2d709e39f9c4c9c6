"""Scopes that install saved-tensor hooks in the calling thread."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from tensorstash.reference.autograd.modes import HookPair, hook_stack
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
        HookError: on exit, another scope is still open.

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
