"""The operations of PaddlePaddle that suites need."""

from collections.abc import Sequence
from typing import Any, ClassVar

import paddle
from paddle.autograd import PyLayer

from tensorstash.host.arrays import Array
from tensorstash.spec import DTYPES
from tensorstash.testing.lab import Lab, Layout, Sink, Tensor
from tensorstash.testing.layouts import floats

_SIGNED = {"uint16": "int16", "uint32": "int32", "uint64": "int64", "uint8": "uint8", "bool": "bool"}
_DTYPES = tuple(
    name
    for name in DTYPES
    if name not in ("uint16", "uint32", "uint64") and isinstance(getattr(paddle, name, None), paddle.dtype)
)


class PaddleLab(Lab):
    """PaddlePaddle on the CPU and, where there is one, on the first GPU."""

    name: ClassVar[str] = "paddle"
    framework: ClassVar[Any] = paddle
    dtypes = _DTYPES
    float_dtypes = ("float32", "float64")

    def __init__(self) -> None:
        has_gpu = paddle.device.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
        self.devices = ("cpu", "gpu:0") if has_gpu else ("cpu",)

    def tensor(self, bits: Array, dtype: str | None = None, *, requires_grad: bool = False) -> Tensor:
        name = dtype or bits.dtype.name
        carrier = _SIGNED.get(bits.dtype.name, bits.dtype.name)
        tensor = paddle.to_tensor(bits.copy(order="C").view(carrier), place=_place(self.device))
        if str(tensor.dtype) != f"paddle.{name}":
            element = getattr(paddle, name)
            tensor = tensor.view(element) if tensor.ndim else tensor.reshape([1]).view(element).reshape([])
        tensor = tensor.detach()
        tensor.stop_gradient = not requires_grad
        return tensor

    def parameter(self, values: Array, *, trainable: bool = True) -> Tensor:
        parameter = paddle.create_parameter(list(values.shape), getattr(paddle, values.dtype.name))
        parameter.set_value(self.tensor(values))
        parameter.stop_gradient = not trainable
        return parameter

    def model(self) -> paddle.nn.Layer:
        layers = ("first", paddle.nn.Linear(8, 16)), ("act", paddle.nn.Tanh()), ("last", paddle.nn.Linear(16, 4))
        model = paddle.nn.Sequential(*layers)
        for parameter in model.parameters():
            parameter.set_value(self.tensor(floats(*parameter.shape)))
        return model

    def bits(self, tensor: Tensor) -> Array:
        plain = tensor.detach().clone().reshape([-1])
        name = str(tensor.dtype).removeprefix("paddle.")
        carrier = DTYPES[name].carrier
        array: Array = plain.view(_SIGNED.get(carrier, carrier)).numpy()
        return array.view(carrier).reshape(tensor.shape)

    def layout(self, tensor: Tensor) -> Layout:
        place = str(tensor.place).removeprefix("Place(").removesuffix(")")
        return self._layout(tensor, tensor.strides, place, offset=tensor._offset())

    def requires_grad(self, tensor: Tensor) -> bool:
        return not tensor.stop_gradient

    def as_strided(self, tensor: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
        return paddle.as_strided(tensor, list(shape), list(strides), tensor._offset() + offset * tensor.element_size())

    def relu(self, tensor: Tensor) -> Tensor:
        return paddle.nn.functional.relu(tensor)

    def observe(self, tensor: Tensor, saved: Sequence[Tensor], sink: Sink) -> Tensor:
        return _Observe.apply(tensor, _Saved(saved), sink)  # type: ignore[no-untyped-call]

    def seed(self, seed: int) -> None:
        paddle.seed(seed)

    def draw(self) -> float:
        drawn: Any = paddle.rand([1]).item()
        return float(drawn)

    def descend(self, leaf: Tensor, rate: float) -> None:
        with paddle.no_grad():
            leaf.subtract_(leaf.grad * rate)
        leaf.clear_gradient(False)

    def add_(self, tensor: Tensor, value: float) -> None:
        with paddle.set_grad_enabled(not tensor.is_leaf):
            tensor.add_(paddle.full([1], value, tensor.dtype))

    def write_unversioned(self, tensor: Tensor, value: float) -> None:
        # An alias through DLPack has a version of its own.
        alias = paddle.from_dlpack(tensor.detach())
        alias.fill_(value)


class _Saved:
    """Hides tensors from PyLayer, which would take them for inputs that want gradients."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tuple(tensors)


class _Observe(PyLayer):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, saved: _Saved, sink: Sink) -> Tensor:
        ctx.sink = sink
        ctx.save_for_backward(*saved.tensors)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.sink(ctx.saved_tensor())
        return gradient


def _place(device: str) -> Any:
    return paddle.CPUPlace() if device == "cpu" else paddle.CUDAPlace(int(device.partition(":")[2]))
