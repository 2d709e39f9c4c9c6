"""Tensors saved for backward, and the hooks that may stand in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorstash.reference.autograd.graph import Node, hook_stack, no_grad
from tensorstash.reference.errors import GraphReleasedError, HookError, InplaceError
from tensorstash.reference.tensor import Tensor

_RELEASED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
    "been freed). Specify retain_graph=True if you need to backward through the graph a second time."
)


class SavedTensor:
    """A tensor saved for backward, through this thread's innermost hooks if there are any.

    Without hooks it holds a detached alias and checks the version at use. With hooks it holds the result of `pack`, and
    the version check is off, as in PyTorch. In both cases it puts history back itself, so tensors between hooks may
    be detached. An operation's own output is handed to `pack` detached: no hook can close a reference cycle. Exceptions
    of the hooks pass through.
    """

    __slots__ = ("_content", "_hooks", "_is_output", "_meta", "_node", "_released", "_version")

    def __init__(self, tensor: Tensor, *, is_output: bool = False) -> None:
        self._is_output = is_output
        self._node = None if is_output else tensor.node
        self._meta = tensor.meta
        self._version = tensor._version
        self._released = False
        self._hooks: saved_tensors_hooks | None = next(reversed(hook_stack()), None)
        if self._hooks is None:
            self._content: Any = tensor.alias(None)
            return
        with no_grad():
            self._content = self._hooks.pack(tensor.alias(None) if is_output else tensor)
        if tensor._version != self._version:
            raise HookError("a pack hook modified the saved tensor in place; work on a copy")

    def unpack(self, node: Node) -> Tensor:
        """Give the tensor, with its history, to the node that recorded it; any number of times until `release`."""
        if self._released:
            raise GraphReleasedError(_RELEASED)
        origin = node if self._is_output else self._node
        if self._hooks is None:
            return self._unhooked(origin)
        with no_grad():
            value = self._hooks.unpack(self._content)
        if not isinstance(value, Tensor):
            raise HookError(f"an unpack hook must return a tensor, got {type(value).__name__}")
        if value.meta != self._meta:
            raise HookError(f"an unpack hook returned {value.meta}, expected {self._meta}")
        return value.alias(origin)

    @property
    def packed(self) -> Any:
        """The hooks' object in place of the tensor; None without hooks, and after `release`."""
        return None if self._hooks is None else self._content

    def release(self) -> None:
        """Drop the object; a packed object without other owners is freed now."""
        self._released = True
        self._content = self._hooks = self._node = None

    def _unhooked(self, origin: Node | None) -> Tensor:
        tensor: Tensor = self._content
        if tensor._version != self._version:
            source = "a leaf" if origin is None else f"output 0 of {origin.name}"
            raise InplaceError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self._meta.dtype} {list(self._meta.shape)}], which is {source}, is at version "
                f"{tensor._version}; expected version {self._version} instead."
            )
        return tensor.alias(origin)


class saved_tensors_hooks:  # noqa: N801  (the name both frameworks give it)
    """Run `pack` on every tensor this thread saves for backward in the scope, and `unpack` at each use.

    Scopes nest; only the innermost pair runs. Both functions run with gradient recording off. `pack` is given the
    saved tensor itself, an operation's own output as a detached alias. `unpack` must return a tensor of the same
    shape, type and device; the engine puts history back. It may be called any number of times, from any thread.
    """

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        self.pack, self.unpack = pack, unpack

    def __enter__(self) -> None:
        hook_stack().append(self)

    def __exit__(self, kind: object, error: BaseException | None, trace: object, /) -> None:
        stack, wrong = hook_stack(), "saved_tensors_hooks was exited in a thread that has not entered it"
        if self in stack:
            inner = stack[::-1].index(self)
            del stack[-1 - inner]
            wrong = "saved_tensors_hooks scopes were exited out of order: an inner scope is still open" if inner else ""
        if wrong and error is None:
            raise HookError(wrong)
        if wrong and error is not None:
            error.add_note(wrong)
