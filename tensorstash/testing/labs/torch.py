"""The operations of PyTorch that suites need."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from tensorstash.host.arrays import Array
from tensorstash.spec import DTYPES
from tensorstash.testing.lab import Lab, Layout, Sink
from tensorstash.testing.layouts import floats


class TorchLab(Lab):
    """PyTorch on the CPU and, where there is one, on the first device of an accelerator."""

    name: ClassVar[str] = "torch"
    framework: ClassVar[Any] = torch.autograd
    flags = ("conj", "neg")
    reverses = False

    def __init__(self) -> None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        self.devices = ("cpu",) if accelerator is None else ("cpu", f"{accelerator.type}:0")
        self.dtypes = tuple(name for name in DTYPES if hasattr(torch, name))

    def tensor(self, bits: Array, dtype: str | None = None, *, requires_grad: bool = False) -> Tensor:
        carrier = torch.from_numpy(bits.copy(order="C")).clone().to(self.device)  # in memory of PyTorch's own
        tensor = carrier.view(getattr(torch, dtype)) if dtype not in (None, bits.dtype.name) else carrier
        return tensor.requires_grad_(requires_grad)

    def parameter(self, values: Array, *, trainable: bool = True) -> Tensor:
        return torch.nn.Parameter(self.tensor(values), requires_grad=trainable)

    def model(self) -> torch.nn.Module:
        layers = OrderedDict(first=torch.nn.Linear(8, 16), act=torch.nn.Tanh(), last=torch.nn.Linear(16, 4))
        model = torch.nn.Sequential(layers).to(self.device)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(self.tensor(floats(*parameter.shape)))
        return model

    def unstashable(self) -> Mapping[str, Tensor]:
        dense = self.tensor(floats(4, 4))
        return {
            "sparse": dense.to_sparse(),
            "subclass": dense.as_subclass(_Tagged),
            "without memory": torch.empty(4, 4, device="meta"),
        }

    def bits(self, tensor: Tensor) -> Array:
        plain = tensor.detach()
        if plain.is_conj():
            plain = plain.conj()
        if plain.is_neg():
            plain = torch._neg_view(plain)
        name = str(plain.dtype).removeprefix("torch.")
        carrier = plain.view(getattr(torch, DTYPES[name].carrier))
        array: Array = carrier.clone(memory_format=torch.contiguous_format).cpu().numpy()
        return array

    def layout(self, tensor: Tensor) -> Layout:
        flags = {"conj": tensor.is_conj(), "neg": tensor.is_neg()}
        set_flags = frozenset(flag for flag, is_set in flags.items() if is_set)
        return self._layout(tensor, tensor.stride(), tensor.device, flags=set_flags)

    def as_strided(self, tensor: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
        return tensor.as_strided(shape, strides, offset)

    def flagged(self, tensor: Tensor, flag: str) -> Tensor:
        return tensor.conj() if flag == "conj" else torch._neg_view(tensor)

    def observe(self, tensor: Tensor, saved: Sequence[Tensor], sink: Sink) -> Tensor:
        observed: Tensor = _Observe.apply(tensor, sink, *saved)  # type: ignore[no-untyped-call]
        return observed

    def seed(self, seed: int) -> None:
        # PyTorch's function for all devices writes down the stack once for each kind that is not there.
        (torch.default_generator if self.devices == ("cpu",) else torch).manual_seed(seed)

    def draw(self) -> float:
        return torch.rand(()).item()

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        try:
            super().backward(loss, retain_graph=retain_graph)
        except BaseException:
            # Autograd's thread of a device lets go of a graph that failed before it takes the next one.
            leaf = torch.ones((), device=loss.device, requires_grad=True)
            leaf.mul(1.0).backward()  # type: ignore[no-untyped-call]
            raise

    def write_unversioned(self, tensor: Tensor, value: float) -> None:
        tensor.data.fill_(value)


class _Tagged(Tensor):
    """A subclass that no backend can know how to rebuild."""


class _Observe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sink: Sink, *saved: Tensor) -> Tensor:
        ctx.sink = sink
        ctx.save_for_backward(*saved)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.sink(ctx.saved_tensors)
        return gradient, None, *([None] * (len(ctx.needs_input_grad) - 2))
