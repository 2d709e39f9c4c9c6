"""Bytes that a model saves for backward, before it is trained: by module and dtype, and under each policy."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from weakref import finalize

from tensorstash.abilities import Backend, SupportsImagining
from tensorstash.backends import backend_of
from tensorstash.errors import BackendError, ConfigError, TensorStashError
from tensorstash.policies import Cast, Compress, CpuOffload, DiskSpill, PackMasks, Quantize
from tensorstash.policies.plan import HookPolicy
from tensorstash.sizes import format_bytes
from tensorstash.spec import TensorSpec, contiguous_strides

_POLICIES: Mapping[str, HookPolicy] = {
    "cpu_offload": CpuOffload(),
    "disk_spill": DiskSpill(),
    "pack_masks": PackMasks(),
    "cast": Cast(),
    "quantize": Quantize(),
    "compress": Compress(),
}

_SAMPLES = 2, 4
"""Rows of the batch that are run where tensors cannot be imagined; the whole batch lies on the line through both."""


@dataclass(frozen=True, slots=True)
class SavedBytes:
    """Saved bytes of the modules of one name in one dtype.

    Args:
        module: dotted name; empty for the model itself.
        dtype: name of the element type.
        tensors: saved, each memory once.
        nbytes: of them.
    """

    module: str
    dtype: str
    tensors: int
    nbytes: int


@dataclass(frozen=True)
class Estimate:
    """Bytes that one training step saves for backward. Prints as a sentence, then a table with alike layers folded.

    Args:
        rows: by module and dtype, in the order of the forward pass.
        nbytes: saved at the end of the forward pass, each memory once, parameters left out.
        left: bytes of ``nbytes`` that stay in the memory of the device under each policy, by its name; None where they
            depend on the values.
        is_imagined: whether nothing was computed; otherwise a few rows of the batch were.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> found = ts.estimate(ref.nn.GELU(), ref.ones((64, 256), requires_grad=True).exp())
    >>> found.nbytes, found.to_dict()["left"]["cast"]
    (65536, 32768)
    """

    rows: tuple[SavedBytes, ...]
    nbytes: int
    left: Mapping[str, int | None]
    is_imagined: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries, lists, numbers and texts, ready for JSON."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        known = [f"{format_bytes(left)} under {policy}" for policy, left in self.left.items() if left is not None]
        unknown = [policy for policy, left in self.left.items() if left is None]
        lines = [f"A step saves {format_bytes(self.nbytes)} for backward; it leaves {', '.join(known)}."]
        lines += [f"Under {' and '.join(unknown)} it depends on the values."] if unknown else []
        lines += ["", f"{'module':44} {'dtype':10} {'tensors':>7} {'bytes':>10}"]
        folded = ((re.sub(r"(?<![^.])\d+(?![^.])", "*", row.module), row) for row in self.rows)
        lines += [
            f"{module:44} {dtype:10} {tensors:>7} {format_bytes(nbytes):>10}"
            for (module, dtype), (tensors, nbytes) in _sums(((m, r.dtype), r.tensors, r.nbytes) for m, r in folded)
        ]
        return "\n".join(lines)


def estimate(model: Any, *inputs: Any, **named: Any) -> Estimate:
    """Return the bytes that a forward pass of a model saves for backward.

    On PyTorch nothing is computed and nothing allocated: tensors are imagined, with shapes alone. Elsewhere, and for
    an LSTM on the CPU, whose kernel hides its saved tensors, two and four rows of the batch are run, which draws
    random numbers and moves running statistics; their bytes are extended to the whole batch. Tensors saved outside
    of the model, such as by the loss, is not counted.

    Args:
        model: a module of a known framework; stays as it is.
        inputs: arguments of the model; the first dimension of each tensor is that of the batch. A dictionary alone
            whose names are arguments of the model, such as a batch of Transformers, is passed by name.
        named: the same, by name.

    Raises:
        BackendError: a model of no known framework, or one that cannot run on imagined tensors.
        ConfigError: the names of a dictionary are not those of the model's arguments.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> found = ts.estimate(ref.nn.GELU(), ref.ones((64, 256), requires_grad=True).exp())
    >>> found.nbytes, found.left["cast"], found.left["compress"]
    (65536, 32768, None)
    """
    if len(inputs) != 1 or named or not isinstance(inputs[0], Mapping):
        return _forward(model, inputs, named)
    misfit = _misfit(model, inputs[0])
    if misfit is None:
        return _forward(model, (), inputs[0])
    try:
        return _forward(model, inputs, {})  # a model may take the dictionary itself
    except TensorStashError:
        raise
    except Exception as error:
        raise ConfigError(f"estimate: {misfit}") from error


def _forward(model: Any, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Estimate:
    backend = backend_of(model)
    if isinstance(backend, SupportsImagining) and backend.can_imagine(model):
        with backend.imagining(model, inputs, named) as (call, is_weight):
            return _estimate(_saved(backend, model, call, is_weight), is_imagined=True)
    rows = _batch(backend, (*inputs, *named.values()))
    if rows is None or rows <= _SAMPLES[1]:
        return _estimate(_saved(backend, model, partial(model, *inputs, **named)), is_imagined=False)
    few, more = (_saved(backend, model, _on_rows(backend, model, inputs, named, rows, n)) for n in _SAMPLES)
    return _estimate(_extended(few, more, rows), is_imagined=False)


_Saved = list[tuple[str, TensorSpec, int]]
"""All memories that were saved, in order: the module, a tensor in it, and its bytes."""


class _Handle:
    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


def _saved(
    backend: Backend[Any], model: Any, call: Callable[[], Any], is_weight: Callable[[Any], bool] | None = None
) -> _Saved:
    inside: list[str] = [""]
    blocks: dict[Any, tuple[str, TensorSpec, int]] = {}
    living: dict[Any, int] = {}

    @contextmanager
    def named(name: str) -> Iterator[None]:
        inside.append(name)
        try:
            yield
        finally:
            inside.pop()

    def gone(key: Any) -> None:
        living[key] -= 1
        if not living[key]:
            del living[key], blocks[key]

    def pack(tensor: Any) -> _Handle:
        handle = _Handle(backend.alias(tensor))  # the graph holding its own output would be a cycle
        if is_weight(tensor) if is_weight is not None else backend.keep_reason(tensor) is not None:
            return handle
        spec = backend.spec(tensor) if is_weight is None else _outlined(backend, tensor)
        token, start = backend.storage(tensor)
        key = token, start, spec.nbytes
        if key not in living:
            blocks[key] = inside[-1], spec, spec.nbytes
        living[key] = living.get(key, 0) + 1
        finalize(handle, gone, key).atexit = False
        return handle

    with ExitStack() as undos:
        for name, module in backend.named_modules(model):
            undos.callback(backend.wrap_forward(module, partial(named, name)))
        with backend.hooks(pack, lambda handle: handle.tensor):
            output = call()
        found = list(blocks.values())
    del output
    return found


def _outlined(backend: Backend[Any], tensor: Any) -> TensorSpec:
    assert isinstance(backend, SupportsImagining)
    shape, dtype, device = backend.outline(tensor)
    return TensorSpec(shape, contiguous_strides(shape), 0, dtype, device)


def _batch(backend: Backend[Any], inputs: tuple[Any, ...]) -> int | None:
    shapes = [tuple(each.shape) for each in inputs if backend.owns(each)]
    sizes = {shape[0] for shape in shapes if shape}
    return int(next(iter(sizes))) if len(sizes) == 1 else None


def _on_rows(
    backend: Backend[Any], model: Any, inputs: tuple[Any, ...], named: Mapping[str, Any], rows: int, count: int
) -> Callable[[], Any]:
    def few(value: Any) -> Any:
        return value[:count] if backend.owns(value) and value.shape and value.shape[0] == rows else value

    return lambda: model(*map(few, inputs), **{name: few(value) for name, value in named.items()})


def _extended(few: _Saved, more: _Saved, rows: int) -> _Saved:
    if len(few) != len(more):
        raise BackendError(
            f"estimate: {_SAMPLES[0]} rows of the batch save {len(few)} tensors and {_SAMPLES[1]} save "
            f"{len(more)}, so nothing can be said of {rows}; call it with a batch of at most {_SAMPLES[1]} rows"
        )
    first, second = _SAMPLES
    return [
        (module, spec, round(one + (other - one) * (rows - first) / (second - first)))
        for (module, spec, one), (_, _, other) in zip(few, more, strict=True)
    ]


def _misfit(model: Any, batch: Mapping[str, Any]) -> str | None:
    """Return the complaint about a batch whose names are not the arguments of a model; None for one that fits."""
    signature = inspect.signature(getattr(model, "forward", model))
    try:
        signature.bind(**batch)
    except TypeError as error:
        takes = ", ".join(signature.parameters)
        return f"the batch does not fit {type(model).__qualname__}: {error}. Name its entries as in ({takes})"
    return None


Key = tuple[str, str]


def _sums(counted: Iterable[tuple[Key, int, int]]) -> Iterable[tuple[Key, tuple[int, int]]]:
    """Return the sums of tensors and bytes, by module and dtype, in the order of their first."""
    sums: dict[Key, tuple[int, int]] = {}
    for key, tensors, nbytes in counted:
        count, total = sums.get(key, (0, 0))
        sums[key] = count + tensors, total + nbytes
    return sums.items()


def _estimate(saved: _Saved, *, is_imagined: bool) -> Estimate:
    sums = _sums(((module, spec.dtype), 1, nbytes) for module, spec, nbytes in saved)
    total = sum(nbytes for _, _, nbytes in saved)
    rows = tuple(SavedBytes(*key, *counted) for key, counted in sums)
    left = {name: _left(saved, policy) for name, policy in _POLICIES.items()}
    return Estimate(rows, total, left, is_imagined)


def _left(saved: _Saved, policy: HookPolicy) -> int | None:
    """Return the bytes that stay under a policy; None if they depend on the values."""
    left = 0
    for _, spec, nbytes in saved:
        plan = policy.plan(spec)
        if plan.store is not None and (plan.store.tier == "disk" or spec.device != "cpu"):
            continue
        at = spec
        for codec in plan.codecs:
            at = codec.encoded_spec(at)
            if at.numel < 0:
                return None
        left += round(nbytes * at.nbytes / max(spec.nbytes, 1))
    return left
