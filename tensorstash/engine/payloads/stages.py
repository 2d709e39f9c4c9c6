"""Which codecs of a plan run on the device, by its kernels, and which on arrays, and what messages call them."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from tensorstash.abilities import Backend
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.payloads.pipeline import Stage, Stages, array_fault, tensor_fault
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec

_array_nbytes: Callable[[Any], int] = attrgetter("nbytes")


def host_stages(codecs: Sequence[Codec], spec: TensorSpec, places: Sequence[str], ledger: Ledger) -> Stages:
    """Return codecs that run on arrays.

    Args:
        codecs: of a plan; those that no kernel has run.
        spec: of the arrays.
        places: a name for each codec in messages.
        ledger: where they are counted.
    """
    stages: list[Stage] = []
    for codec, place in zip(codecs, places, strict=True):
        after = codec.encoded_spec(spec)
        runs = ledger.stage(codec.name)
        stages.append(Stage(place, spec, after, codec.encode, codec.decode, runs, array_fault, (spec,)))
        spec = after
    return Stages(stages, spec, _array_nbytes)


def device_stages(
    backend: Backend[Any], codecs: Sequence[Codec], spec: TensorSpec, places: Sequence[str], ledger: Ledger
) -> Stages:
    """Return as many codecs, from the first on, as the backend has kernels for where the tensor is.

    Args:
        backend: the framework's adapter.
        codecs: all codecs of the plan.
        spec: of the dense elements.
        places: a name for each codec in messages.
        ledger: where they are counted.
    """
    stages: list[Stage] = []
    kernels, fault = backend.kernels, partial(tensor_fault, backend)
    if kernels is not None:
        for codec, place in zip(codecs, places, strict=True):
            kernel = kernels.kernel(codec, spec)
            if kernel is None:
                break
            after = codec.encoded_spec(spec)
            runs = ledger.stage(codec.name)
            stages.append(Stage(place, spec, after, kernel.encode, kernel.decode, runs, fault))
            spec = after
    return Stages(stages, spec, backend.nbytes)


def stage_places(codecs: Sequence[Codec], store: object, spec: TensorSpec) -> tuple[str, ...]:
    """Return what messages call each codec of a plan, and the store behind them."""
    stages: tuple[Any, ...] = (*codecs, store)
    return tuple(f"stage {i} of {len(stages)} ({stage!r}), tensor {spec}" for i, stage in enumerate(stages, start=1))
