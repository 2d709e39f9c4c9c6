"""What may become of a saved tensor, with what it leaves and takes, measured on a sample of it."""

import os
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter

from tensorstash.engine.stats import Stats
from tensorstash.host.arrays import Array
from tensorstash.planner.model import COPIES, DISK, KEEP, Option
from tensorstash.policies.plan import HookPolicy, Plan
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec

SAMPLE_BYTES = 2**18

_DISK_BYTES_PER_S = 1e9
_COPY_BYTES_PER_S = 8e9
"""Taken for a link of which nothing was measured yet."""

_HANDLING = 0.05
"""Part of the seconds of a store's link by which a step is longer, as is taken before plans were tried."""

_HANDLING_S = 1e-4
"""The same for each tensor, whatever its size."""

_SURE = 0.75
"""Most that an option may leave of a sample. Codecs pass on what they hardly shrink, so that in the next step all of it
may be left."""

_UNKNOWN = 0.5, 0.0, 0.0
"""Taken for codecs that cannot be tried on a sample."""

_SHARE_OF_CORES = 1.0 if (os.cpu_count() or 1) <= 2 else 0.3
"""Part of what a codec takes on another thread that the computation is slower for."""


def options(tiers: Mapping[str, HookPolicy], spec: TensorSpec, sample: Array | None) -> tuple[Option, ...]:
    """Return what may become of a tensor, besides being kept.

    Args:
        tiers: policies by name.
        spec: of the tensor.
        sample: some of its elements; None where there are none on the host.
    """
    found = []
    measured: dict[tuple[Codec, ...], tuple[float, float, float]] = {(): (1.0, 0.0, 0.0)}
    for tier, policy in tiers.items():
        plan = policy.plan(spec).rest
        if tier == KEEP or plan.keeps:
            continue
        if plan.codecs not in measured:
            measured[plan.codecs] = _sampled(plan, spec, sample) if sample is not None and sample.nbytes else _UNKNOWN
        option = _measured(tier, plan, spec, *measured[plan.codecs])
        if option.resident <= _SURE * spec.nbytes:
            found.append(option)
    return tuple(found)


def rates(stats: Stats) -> dict[str, tuple[float, float]]:
    """Return bytes per second out and back of each store, as far as they were measured."""
    found = {}
    for tier in ("disk", "memory"):
        stage = stats.stages.get(tier)
        if stage is not None and stage.seconds_in > 0 and stage.tensors:
            out = stage.bytes_in / stage.seconds_in
            back = stage.bytes_in / stage.tensors * stage.loads / stage.seconds_back if stage.seconds_back else out
            found[tier] = out, max(back, 1.0)
    return found


def at_rates(option: Option, known: Mapping[str, tuple[float, float]]) -> Option:
    """Return an option that goes to disk with the seconds that it takes at measured rates, as of :func:`rates`.

    Codecs take what they took.
    """
    if option.link != DISK:
        return option
    out, back = known.get(DISK, (_DISK_BYTES_PER_S, _DISK_BYTES_PER_S))
    took = (option.out_s + option.back_s - option.seconds / _SHARE_OF_CORES) / 2
    out_s, back_s = took * _DISK_BYTES_PER_S / out, took * _DISK_BYTES_PER_S / back
    return replace(
        option,
        seconds=option.seconds + _HANDLING_S + _HANDLING * (out_s + back_s),
        out_s=option.out_s - took + out_s,
        back_s=option.back_s - took + back_s,
    )


def _measured(tier: str, plan: Plan, spec: TensorSpec, ratio: float, encode_s: float, decode_s: float) -> Option:
    nbytes = spec.nbytes * ratio
    seconds = _SHARE_OF_CORES * (encode_s + decode_s)
    if plan.store is not None and plan.store.tier == "disk":
        took = nbytes / _DISK_BYTES_PER_S
        return Option(tier, 0, seconds, DISK, encode_s + took, decode_s + took)  # at_rates adds the rest
    if spec.device == "cpu":
        return Option(tier, round(nbytes), seconds, "cores", encode_s, decode_s)
    if plan.store is None:
        return Option(tier, round(nbytes), seconds)
    took = nbytes / _COPY_BYTES_PER_S
    return Option(tier, 0, seconds + _HANDLING_S + _HANDLING * took, COPIES, encode_s + took, decode_s + took)


def _sampled(plan: Plan, spec: TensorSpec, sample: Array) -> tuple[float, float, float]:
    at = TensorSpec(sample.shape, (1,), 0, spec.dtype, "cpu")
    specs, data = [], sample
    started = perf_counter()
    for codec in plan.codecs:
        specs.append(at)
        data = codec.encode(data, at)
        at = codec.encoded_spec(at)
    encoded = perf_counter()
    ratio = data.nbytes / sample.nbytes
    for codec, before in zip(reversed(plan.codecs), reversed(specs), strict=True):
        data = codec.decode(data, before)
    larger = spec.nbytes / sample.nbytes
    return ratio, larger * (encoded - started), larger * (perf_counter() - encoded)
