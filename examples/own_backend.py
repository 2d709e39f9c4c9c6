"""A backend of your own: what tensorstash has to know about a framework, here about tiny_autograd.py.

A backend for others is checked with the conformance suite of ``tensorstash.testing``.
"""

import weakref
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
from tiny_autograd import Memory, Tensor, saved_hooks

import tensorstash as ts
from tensorstash.errors import BackendError, SavedTensorModifiedError
from tensorstash.host.arrays import Array, aligned_empty, borrowed
from tensorstash.protocols import Undo
from tensorstash.spec import ALIGNMENT, TensorSpec, contiguous_strides


class TinyBackend:
    """Everything is contiguous and on the CPU, so that a specification is a shape and a dtype."""

    name: ClassVar[str] = "tiny"
    backward_writes: ClassVar[bool] = False
    kernels = layouts = streams = None  # no device but the host

    def owns(self, obj: object, /) -> bool:
        return isinstance(obj, Tensor)

    def hooks(
        self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor], /, *, trusted: bool = False
    ) -> AbstractContextManager[None]:
        return saved_hooks(pack, unpack)

    def is_recording(self) -> bool:
        return True  # there is no way to switch it off

    def keep_reason(self, tensor: Tensor, /) -> str | None:
        return "leaf" if tensor.operation is None else None  # leaves stay alive anyway: gradients arrive there

    def most_bytes(self, tensor: Tensor, /) -> int:
        return self.nbytes(tensor)

    def nbytes(self, tensor: Tensor, /) -> int:
        return tensor.memory.array.nbytes

    def spec(self, tensor: Tensor, /) -> TensorSpec:
        array = tensor.memory.array
        strides = contiguous_strides(array.shape)
        return TensorSpec(array.shape, strides, 0, array.dtype.name, "cpu", alignment=array.ctypes.data % ALIGNMENT)

    def describe(self, tensor: Tensor, /) -> str:
        return f"{tensor.memory.array.dtype}{tensor.memory.array.shape}"

    def version(self, tensor: Tensor, /) -> int:
        return tensor.memory.version.count

    def storage(self, tensor: Tensor, /) -> tuple[Hashable, int]:
        return weakref.ref(tensor.memory), 0

    def producer(self, tensor: Tensor, /) -> str:
        return "" if tensor.operation is None else type(tensor.operation).__name__

    def alias(self, tensor: Tensor, /) -> Tensor:
        return tensor if tensor.operation is None else Tensor(tensor.memory)

    def detached(self, tensor: Tensor, /) -> Tensor:
        return Tensor(tensor.memory)

    def version_probe(self, tensor: Tensor, /) -> Tensor:
        return Tensor(Memory(np.empty(0), tensor.memory.version))  # outlives the array, and tells of writes to it

    def to_host(self, tensor: Tensor, spec: TensorSpec, /) -> Array:
        return borrowed(tensor.memory.array.reshape(spec.dense().shape))

    def from_host(self, data: Array, spec: TensorSpec, /) -> Tensor:
        array = aligned_empty(spec.nbytes, spec.alignment).view(spec.carrier).reshape(spec.shape)
        array[...] = data.reshape(spec.shape)
        return Tensor(Memory(array))

    def named_modules(self, model: object, /) -> Iterable[tuple[str, object]]:
        return [("", model)]

    def wrap_forward(self, model: object, scope: Callable[[], AbstractContextManager[Any]], /) -> Undo:
        raise BackendError("tiny_autograd has no modules to wrap; use `with stash(...)`")


def main() -> None:
    ts.register("backends", "tiny", TinyBackend)  # a package does this with an entry point instead
    x = Tensor(Memory(np.linspace(-1.0, 1.0, 1 << 16)))

    limits = ts.Limits(in_flight=0)  # nothing behind the computation, so that every run prints the same
    with ts.stash(ts.Compress(), framework="tiny", limits=limits) as session:
        fourth = (x * x) * (x * x)
        loss = fourth.sum()
    del fourth
    loss.backward()
    print(session.stats())
    print("x ** 4 has the gradient 4 x ** 3:", np.allclose(x.grad, 4 * x.memory.array**3))

    with ts.stash(ts.Keep(), framework="tiny"):
        square = x * x
        loss = (square * square).sum()
    square.add_(1.0)
    try:
        loss.backward()
    except SavedTensorModifiedError as error:
        print("refused:", str(error).partition(":")[0])


if __name__ == "__main__":
    main()
