"""Bytes that a model saves for backward, before it is trained: by module and dtype, and under each policy."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

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
    """Saved tensors, each memory once, of the modules of one dotted name (empty: the model itself) in one dtype."""

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
        left: bytes that stay in the memory of the device, by policy; None where they depend on the values.
        is_imagined: whether nothing was computed; otherwise a few rows of the batch were.

    >>> Estimate((), 0, {}, True).to_dict()
    {'rows': (), 'nbytes': 0, 'left': {}, 'is_imagined': True}
    """

    rows: tuple[SavedBytes, ...]
    nbytes: int
    left: Mapping[str, int | None]
    is_imagined: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries, tuples, numbers and texts, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        known = [f"{format_bytes(left)} under {policy}" for policy, left in self.left.items() if left is not None]
        unknown = [policy for policy, left in self.left.items() if left is None]
        lines = [f"A step saves {format_bytes(self.nbytes)} for backward; it leaves {', '.join(known)}."]
        lines += [f"Under {' and '.join(unknown)} it depends on the values."] if unknown else []
        lines += ["", f"{'module':44} {'dtype':10} {'tensors':>7} {'bytes':>10}"]
        folded = (replace(row, module=re.sub(r"(?<![^.])\d+(?![^.])", "*", row.module)) for row in self.rows)
        for row in _summed(folded):
            lines.append(f"{row.module:44} {row.dtype:10} {row.tensors:>7} {format_bytes(row.nbytes):>10}")
        return "\n".join(lines)


def estimate(model: Any, *inputs: Any, **named: Any) -> Estimate:
    """Return the bytes that a forward pass of a model saves for backward; those of the loss are not counted.

    On PyTorch nothing is computed and nothing allocated: tensors are imagined, with shapes alone. Elsewhere, and for
    an LSTM on the CPU, two and four rows of the batch are run, which draws random numbers and moves running statistics;
    their bytes are extended to the whole batch.

    Args:
        model: a module of a known framework; stays as it is.
        inputs: arguments of the model; the first dimension of each tensor is that of the batch. A dictionary alone
            whose names are arguments of the model, such as a batch of Transformers, is passed by name.
        named: the same, by name.

    Raises:
        BackendError: a model of no known framework, or one that cannot run on imagined tensors.
        ConfigError: the names of a dictionary are not those of the model's arguments.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> ts.estimate(ref.nn.GELU(), ref.ones((64, 256), requires_grad=True).exp()).nbytes
    65536
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

            def imagined(tensor: Any) -> TensorSpec | None:
                shape, dtype, device = backend.outline(tensor)
                return None if is_weight(tensor) else TensorSpec(shape, contiguous_strides(shape), 0, dtype, device)

            return _estimate(_saved(backend, model, call, imagined), is_imagined=True)

    def spec_of(tensor: Any) -> TensorSpec | None:
        return backend.spec(tensor) if backend.keep_reason(tensor) is None else None

    shapes = [tuple(each.shape) for each in (*inputs, *named.values()) if backend.owns(each)]
    batch = {shape[0] for shape in shapes if shape}
    rows = int(batch.pop()) if len(batch) == 1 else 0
    if rows <= _SAMPLES[1]:
        return _estimate(_saved(backend, model, partial(model, *inputs, **named), spec_of), is_imagined=False)

    def some(count: int) -> _Saved:
        def part(value: Any) -> Any:
            return value[:count] if backend.owns(value) and value.shape and value.shape[0] == rows else value

        parts = {name: part(value) for name, value in named.items()}
        return _saved(backend, model, partial(model, *map(part, inputs), **parts), spec_of)

    return _estimate(_extended(some(_SAMPLES[0]), some(_SAMPLES[1]), rows), is_imagined=False)


_Saved = list[tuple[str, TensorSpec, int]]
"""All memories that were saved, in order: the module, a tensor in it, and its bytes."""


class _Memory:
    """A memory that was saved, alive as long as a handle in the graph has it."""

    def __init__(self, module: str, spec: TensorSpec) -> None:
        self.module, self.spec = module, spec


def _saved(
    backend: Backend[Any], model: Any, call: Callable[[], Any], spec_of: Callable[[Any], TensorSpec | None]
) -> _Saved:
    inside: list[str] = [""]
    memories: WeakValueDictionary[Any, _Memory] = WeakValueDictionary()

    @contextmanager
    def named(name: str) -> Iterator[None]:
        inside.append(name)
        try:
            yield
        finally:
            inside.pop()

    def pack(tensor: Any) -> tuple[Any, _Memory | None]:
        alias, spec = backend.alias(tensor), spec_of(tensor)  # the graph holding its own output would be a cycle
        if spec is None:
            return alias, None
        return alias, memories.setdefault((*backend.storage(tensor), spec.nbytes), _Memory(inside[-1], spec))

    with ExitStack() as undos:
        for name, module in backend.named_modules(model):
            undos.callback(backend.wrap_forward(module, partial(named, name)))
        with backend.hooks(pack, lambda handle: handle[0]):
            output = call()
        found = [(each.module, each.spec, each.spec.nbytes) for each in memories.values()]
    del output
    return found


def _extended(few: _Saved, more: _Saved, rows: int) -> _Saved:
    first, second = _SAMPLES
    if len(few) != len(more):
        cure = f"nothing can be said of {rows}; call it with a batch of at most {second} rows"
        raise BackendError(f"estimate: {first} rows save {len(few)} tensors and {second} save {len(more)}, so {cure}")
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


def _summed(rows: Iterable[SavedBytes]) -> tuple[SavedBytes, ...]:
    """Return one row for each module and dtype, in the order of their first."""
    sums: dict[tuple[str, str], SavedBytes] = {}
    for row in rows:
        key = row.module, row.dtype
        so_far = sums.get(key, SavedBytes(*key, 0, 0))
        sums[key] = SavedBytes(*key, so_far.tensors + row.tensors, so_far.nbytes + row.nbytes)
    return tuple(sums.values())


def _estimate(saved: _Saved, *, is_imagined: bool) -> Estimate:
    rows = _summed(SavedBytes(module, spec.dtype, 1, nbytes) for module, spec, nbytes in saved)
    left = {name: _left(saved, policy) for name, policy in _POLICIES.items()}
    return Estimate(rows, sum(row.nbytes for row in rows), left, is_imagined)


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
