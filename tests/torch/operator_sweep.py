"""Runs the operators that PyTorch lists with and without a scope around them, and judges the gradients."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from operator_layouts import LAYOUTS, laid_out, reseed
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import tensorstash as ts
from tensorstash.policies import StoreIn
from tensorstash.stores.memory import Memory
from tests.torch.conftest import are_same, bits

Scope = Callable[[], AbstractContextManager[Any]]
Visible = dict[str, Tensor]
Sessions = Mapping[str, tuple[bool, AbstractContextManager[Any]]]
"""A scope by name, and whether the program holds inputs and outputs until backward is done, and looks at them then."""


def sessions(directory: str) -> Sessions:
    """Return every way a case is run, by name."""
    at_once, behind = ts.Limits(in_flight=0), ts.Limits()
    ways: dict[str, tuple[bool, ts.HookPolicy, ts.Limits]] = {
        "keep, held": (True, ts.Keep(), behind),
        "offload": (False, ts.CpuOffload(), behind),
        "memory": (False, StoreIn(Memory()), behind),
        "memory, held": (True, StoreIn(Memory()), at_once),
        "compress": (False, ts.Compress(min_ratio=1), at_once),
        "disk": (False, ts.DiskSpill(directory), behind),
        "compress | disk": (False, ts.Compress(min_ratio=1) | ts.DiskSpill(directory), at_once),
    }
    return {
        name: (holds, ts.stash(policy, framework="torch", min_bytes=0, limits=limits))
        for name, (holds, policy, limits) in ways.items()
    }


@dataclass(frozen=True)
class Start:
    """A tensor of a sample before it is laid out: its dense memory, its shape, and whether it takes the layout."""

    base: Tensor
    shape: torch.Size
    is_laid_out: bool

    @classmethod
    def of(cls, value: Any, layout: str) -> Any:
        """Return the start of a dense tensor, and anything else as it is."""
        if not is_plain(value):
            return value
        accepts = LAYOUTS[layout].accepts(value)
        with torch.no_grad():
            base = LAYOUTS[layout].base(value.detach()) if accepts else value.detach()
            base = base.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        return cls(base.requires_grad_(value.requires_grad), value.shape, accepts)


@dataclass(frozen=True)
class Case:
    """An operator on one sample with the start of each of its tensors, to run in every way; ``twice`` is derived."""

    name: str
    layout: str
    twice: bool
    call: Callable[..., Any]
    arguments: Any

    def forward(self, scope: Scope) -> tuple[list[Tensor], list[Tensor], Visible]:
        """Return the outputs to derive, the leaves to derive by, and by name what the user can see."""
        leaves: list[Tensor] = []

        def enter(value: Any) -> Any:
            if not isinstance(value, Start):
                return value
            leaf = value.base.detach().clone().requires_grad_(value.base.requires_grad)
            if leaf.requires_grad:
                leaves.append(leaf)
            # The graph alone holds what the operator is given, unless the caller does.
            inner = leaf * 1 if leaf.requires_grad else leaf.clone()
            return laid_out(self.layout, inner, value.shape) if value.is_laid_out else inner

        with scope():
            first, others, named = tree_map(enter, self.arguments, is_leaf=lambda value: isinstance(value, Start))
            outputs = tensors(self.call(first, *others, **named))
        return outputs, leaves, numbered("input", (first, others, named)) | numbered("output", outputs)


def is_plain(value: object) -> bool:
    """Return whether something is a dense tensor that a layout can be given to."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_nested or value.is_quantized)


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def numbered(word: str, tree: Any) -> Visible:
    """Return the dense tensors among these by a word and their number."""
    return {f"{word} {number}": tensor for number, tensor in enumerate(tensors(tree)) if is_plain(tensor)}


def spread(count: int, wanted: int) -> list[int]:
    """Return ``wanted`` numbers below ``count``, evenly spread, the first and the last among them."""
    return sorted({index * (count - 1) // (wanted - 1) for index in range(wanted)}) if count else []


def operators(dtype: torch.dtype) -> list[Any]:
    """Return what PyTorch lists and can derive in a dtype on the CPU."""
    # It takes ten seconds to import.
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")]


def operator_cases(operator: Any, number: int, sample: Any, layouts: Sequence[str]) -> Iterator[Case]:
    """Yield the cases of one sample: in every layout that one of its tensors can have, and in place."""
    arguments = (sample.input, sample.args, sample.kwargs)
    plain = [leaf for leaf in tree_leaves(arguments) if is_plain(leaf)]
    name = f"{operator.formatted_name}[{number}]"
    for layout in layouts:
        if any(LAYOUTS[layout].accepts(tensor) for tensor in plain):
            twice = operator.supports_gradgrad and layout == "contiguous"
            start = tree_map(lambda leaf, layout=layout: Start.of(leaf, layout), arguments)
            yield Case(f"{name}, {layout}", layout, twice, operator, start)
    inplace = operator.inplace_variant
    if inplace is not None and operator.supports_inplace_autograd:
        start = tree_map(lambda leaf: Start.of(leaf, "contiguous"), arguments)
        yield Case(f"{name}, in place", "contiguous", False, inplace, start)


@dataclass(frozen=True)
class Result:
    """Gradients after one run, and the names of the user's tensors that backward changed."""

    tensors: tuple[Tensor | None, ...]
    changed: tuple[str, ...] = ()


def run(case: Case, scope: Scope = nullcontext, *, holds: bool = False) -> Result | None:
    """Run forward inside the scope and backward after it; None where there is nothing to derive.

    A program that ``holds`` refers to inputs and outputs until the end.
    """
    reseed(0)
    outputs, leaves, visible = case.forward(scope)
    loss = weighed([out for out in outputs if out.requires_grad])
    if loss is None or not leaves:
        return None
    if holds:
        visible |= numbered("leaf", leaves)
    else:
        visible.clear()
        del outputs[:]
    before = {name: bits(tensor) for name, tensor in visible.items()}
    with scope() if case.twice else nullcontext():
        first = torch.autograd.grad(loss, leaves, allow_unused=True, create_graph=case.twice)
        again = weighed([grad for grad in first if grad is not None and grad.requires_grad])
    del loss
    tensors = tuple(grad if grad is None else grad.detach() for grad in first)
    del first
    if again is not None:
        tensors += torch.autograd.grad(again, leaves, allow_unused=True)
    changed = tuple(name for name, tensor in visible.items() if bits(tensor) != before[name])
    return Result(tensors, changed)


def weighed(tensors: list[Tensor]) -> Tensor | None:
    """Return the sum of tensors times noise, as a real number; None where there is none, or one is not dense."""
    if not tensors or not all(map(is_plain, tensors)):
        return None
    generator = torch.Generator().manual_seed(1)
    noises = [torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator) for tensor in tensors]
    sums = [(tensor * noise).sum() for tensor, noise in zip(tensors, noises, strict=True)]
    return sum((total.real if total.is_complex() else total).double() for total in sums)


def wrong(case: Case, sessions: Sessions) -> Iterator[str]:
    """Run a case plainly and in every way, and yield what must not be, one line each.

    Nothing is compared where PyTorch alone refuses the case or gives other bits each time, and where there is no
    gradient, or a sparse one.
    """
    try:
        plain = run(case)
    except Exception:
        return
    if plain is None:
        return
    for name, (holds, stash) in sessions.items():
        if what := _wrong(case, plain, holds, lambda stash=stash: stash):
            yield f"{case.name}: {name}: {what}"


def _wrong(case: Case, plain: Result, holds: bool, scope: Scope) -> str:
    try:
        result = run(case, scope, holds=holds)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if result is None:
        return "there is no gradient"
    if result.changed and not _again(case).changed:
        return f"backward changed {', '.join(result.changed)}"
    if are_same(plain.tensors, result.tensors):
        return ""
    return "a gradient differs" if all(are_same(plain.tensors, _again(case).tensors) for _ in range(3)) else ""


def _again(case: Case) -> Result:
    result = run(case, holds=True)
    assert result is not None
    return result
