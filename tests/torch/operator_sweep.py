"""Runs what PyTorch lists, operators and modules, with and without a scope around it, and judges the gradients."""

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
from tests.torch.conftest import bits

Scope = Callable[[], AbstractContextManager[Any]]
Visible = dict[str, Tensor]
Sessions = Mapping[str, tuple["Way", ts.api.Stash]]


@dataclass(frozen=True)
class Way:
    """A policy to run a case under.

    Args:
        policy: what becomes of saved tensors.
        limits: at once, or behind the computation.
        holds: whether the program holds inputs and outputs until backward is done, and looks whether they changed.
    """

    policy: ts.HookPolicy
    limits: ts.Limits
    holds: bool


def ways(directory: str) -> dict[str, Way]:
    """Return every way a case is run, by name."""
    at_once, behind = ts.Limits(in_flight=0), ts.Limits()
    return {
        "keep, held": Way(ts.Keep(), behind, True),
        "offload": Way(ts.CpuOffload(), behind, False),
        "memory": Way(StoreIn(Memory()), behind, False),
        "memory, held": Way(StoreIn(Memory()), at_once, True),
        "compress": Way(ts.Compress(min_ratio=1), at_once, False),
        "disk": Way(ts.DiskSpill(directory), behind, False),
        "compress | disk": Way(ts.Compress(min_ratio=1) | ts.DiskSpill(directory), at_once, False),
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
    """One program to run in every way.

    Args:
        name: which it is.
        kind: the column it is counted in.
        twice: whether the gradient is derived once more.
        forward: returns the outputs to derive, the leaves to derive by, and by name what the user can see.
    """

    name: str
    kind: str
    twice: bool
    forward: Callable[[Scope], tuple[list[Tensor], list[Tensor], Visible]]


def operator_case(name: str, kind: str, twice: bool, call: Callable[..., Any], arguments: Any, layout: str) -> Case:
    """Return an operator on one sample, whose tensors become what the layout says inside the scope."""
    start = tree_map(lambda leaf: Start.of(leaf, layout), arguments)

    def forward(scope: Scope) -> tuple[list[Tensor], list[Tensor], Visible]:
        leaves: list[Tensor] = []

        def enter(value: Any) -> Any:
            if not isinstance(value, Start):
                return value
            leaf = value.base.detach().clone().requires_grad_(value.base.requires_grad)
            if leaf.requires_grad:
                leaves.append(leaf)
            # The graph alone holds what the operator is given, unless the caller does.
            inner = leaf * 1 if leaf.requires_grad else leaf.clone()
            return laid_out(layout, inner, value.shape) if value.is_laid_out else inner

        with scope():
            first, others, named = tree_map(enter, start, is_leaf=lambda value: isinstance(value, Start))
            outputs = tensors(call(first, *others, **named))
        return outputs, leaves, numbered("input", (first, others, named)) | numbered("output", outputs)

    return Case(name, kind, twice, forward)


def module_case(name: str, kind: str, info: Any, sample: Any, dtype: torch.dtype, training: bool) -> Case:
    """Return a module on one input, in training or not."""

    def enter(value: Any) -> Any:
        return value.detach().clone().requires_grad_(value.requires_grad) if is_plain(value) else value

    def forward(scope: Scope) -> tuple[list[Tensor], list[Tensor], Visible]:
        made, given = sample.constructor_input, sample.forward_input
        where = next((leaf.device for leaf in tree_leaves((given.args, given.kwargs)) if is_plain(leaf)), None)
        module = info.module_cls(*made.args, **made.kwargs).to(where, dtype).train(training)
        args, named = tree_map(enter, (given.args, given.kwargs))
        with scope():
            outputs = tensors(module(*args, **named))
        inputs = numbered("input", (args, named))
        leaves = [leaf for leaf in [*module.parameters(), *inputs.values()] if leaf.requires_grad]
        buffers = {f"buffer {name}": buffer for name, buffer in module.named_buffers()}
        return outputs, leaves, inputs | numbered("output", outputs) | buffers

    return Case(name, kind, info.supports_gradgrad, forward)


def is_plain(value: object) -> bool:
    """Return whether something is a dense tensor that a layout can be given to."""
    return (
        isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested and not value.is_quantized
    )


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def numbered(word: str, tree: Any) -> Visible:
    """Return the dense tensors among these by a word and their number."""
    return {f"{word} {number}": tensor for number, tensor in enumerate(tensors(tree)) if is_plain(tensor)}


def spread(count: int, wanted: int) -> list[int]:
    """Return ``wanted`` numbers below ``count``, evenly spread, the first and the last among them.

    >>> spread(9, 3), spread(1, 3)
    ([0, 4, 8], [0])
    """
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
            yield operator_case(f"{name}, {layout}", layout, twice, operator, arguments, layout)
    inplace = operator.inplace_variant
    if inplace is not None and operator.supports_inplace_autograd:
        yield operator_case(f"{name}, in place", "in place", False, inplace, arguments, "contiguous")


def module_cases(dtype: torch.dtype, samples: int) -> Iterator[tuple[str, Case]]:
    """Yield every module that PyTorch lists for a dtype, in training and not, on so many of its inputs."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        for training in (True, False):
            reseed(0)
            inputs = info.module_inputs_func(info, "cpu", dtype, requires_grad=True, training=training)
            inputs = [sample for sample in inputs if sample.forward_input is not None]
            mode = "training" if training else "evaluation"
            for number in spread(len(inputs), samples):
                name = f"{info.name}[{number}], {mode}"
                yield info.module_cls.__name__, module_case(name, mode, info, inputs[number], dtype, training)


@dataclass(frozen=True)
class Result:
    """Gradients and buffers after one run, and the names of the user's tensors that backward changed."""

    tensors: tuple[Tensor | None, ...]
    changed: tuple[str, ...] = ()


def run(case: Case, scope: Scope = nullcontext, *, holds: bool = False) -> Result | None:
    """Run forward inside the scope and backward after it; None where there is nothing to derive.

    Args:
        case: what to run.
        scope: made around the forward, and around the first backward where there is a second.
        holds: whether the program refers to inputs and outputs until the end.
    """
    reseed(0)
    outputs, leaves, visible = case.forward(scope)
    buffers = {name: tensor for name, tensor in visible.items() if name.startswith("buffer")}
    loss = weighed([out for out in outputs if out.requires_grad])
    if loss is None or not leaves:
        return None
    if holds:
        visible |= numbered("leaf", leaves)
    else:
        visible = buffers
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
    return Result(tensors + tuple(buffers.values()), changed)


def weighed(tensors: list[Tensor]) -> Tensor | None:
    """Return the sum of tensors times noise, as a real number; None where there is none, or one is not dense."""
    if not tensors or not all(map(is_plain, tensors)):
        return None
    generator = torch.Generator().manual_seed(1)
    noises = [torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator) for tensor in tensors]
    sums = [(tensor * noise).sum() for tensor, noise in zip(tensors, noises, strict=True)]
    return sum((total.real if total.is_complex() else total).double() for total in sums)


def unlike(plain: Result, other: Result) -> str:
    """Return which tensor differs from the plain one, in presence, dtype, shape or any bit; nothing if none does."""
    for number, (a, b) in enumerate(zip(plain.tensors, other.tensors, strict=True)):
        if a is None or b is None:
            if a is not b:
                return f"gradient {number} is {b}, not {a}"
        elif (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"gradient {number} is {b.dtype}{tuple(b.shape)}, not {a.dtype}{tuple(a.shape)}"
        elif bits(a) != bits(b):
            return f"gradient {number} differs"
    return ""


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
    for name, (way, stash) in sessions.items():
        if what := _wrong(case, plain, way, lambda stash=stash: stash):
            yield f"{case.name}: {name}: {what}"


def _wrong(case: Case, plain: Result, way: Way, scope: Scope) -> str:
    try:
        result = run(case, scope, holds=way.holds)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if result is None:
        return "there is no gradient"
    if result.changed and not _again(case).changed:
        return f"backward changed {', '.join(result.changed)}"
    what = unlike(plain, result)
    return "" if what and any(unlike(plain, _again(case)) for _ in range(3)) else what


def _again(case: Case) -> Result:
    result = run(case, holds=True)
    assert result is not None
    return result
