"""The operations of the reference engine that suites need."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tensorstash import reference
from tensorstash.host.arrays import Array, aligned_empty, as_bytes
from tensorstash.reference import Node, Parameter, SavedTensor, Tensor
from tensorstash.spec import contiguous_strides
from tensorstash.testing.lab import Lab, Layout, Sink
from tensorstash.testing.layouts import floats


class ReferenceLab(Lab):
    """The reference engine, in host memory and on its simulated accelerator."""

    name: ClassVar[str] = "reference"
    framework: ClassVar[Any] = reference
    devices = ("cpu", "sim:0")
    dtypes = tuple(reference.DTYPES)
    float_dtypes = ("float16", "float32", "float64")

    def tensor(self, bits: Array, dtype: str | None = None, *, requires_grad: bool = False) -> Tensor:
        bits = np.asarray(bits, order="C")
        memory = aligned_empty(bits.nbytes)
        memory[...] = as_bytes(bits)
        tensor = reference.from_buffer(
            memory, bits.shape, contiguous_strides(bits.shape), 0, dtype or bits.dtype.name, self.device
        )
        return tensor.requires_grad_(requires_grad)

    def parameter(self, values: Array, *, trainable: bool = True) -> Parameter:
        return Parameter(self.tensor(values), requires_grad=trainable)

    def model(self) -> reference.nn.Module:
        return _Model(*(self.tensor(floats(*shape)) for shape in ((16, 8), (16,), (4, 16), (4,))))

    def bits(self, tensor: Tensor) -> Array:
        return tensor.host_bits()

    def layout(self, tensor: Tensor) -> Layout:
        return self._layout(tensor, tensor.strides, tensor.device)

    def as_strided(self, tensor: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
        return tensor.as_strided(shape, strides, tensor.offset + offset * tensor.layout.itemsize)

    def observe(self, tensor: Tensor, saved: Sequence[Tensor], sink: Sink) -> Tensor:
        return tensor.detach().clone().alias(_Observe(tensor, saved, sink))

    def add_(self, tensor: Tensor, value: float) -> None:
        # The engine writes through a view only where nothing is recorded.
        with reference.set_grad_enabled(not tensor.is_leaf and tensor.base is None):
            tensor.add_(value)

    def write_unversioned(self, tensor: Tensor, value: float) -> None:
        tensor.carriers()[...] = value


class _Model(reference.nn.Module):
    def __init__(self, *weights: Tensor) -> None:
        self.first, self.last = reference.nn.Linear(*weights[:2]), reference.nn.Linear(*weights[2:])

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(inputs).tanh())
        return out


class _Observe(Node):
    def __init__(self, tensor: Tensor, saved: Sequence[Tensor], sink: Sink) -> None:
        super().__init__([tensor.node])
        self._saved = [SavedTensor(each) for each in saved]
        self._sink = sink

    def apply(self, gradient: Tensor) -> Sequence[Tensor]:
        self._sink([each.unpack(self) for each in self._saved])
        return [gradient]

    def release(self) -> None:
        for each in self._saved:
            each.release()
