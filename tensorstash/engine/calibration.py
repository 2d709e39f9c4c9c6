"""Codecs that settle on something once they have seen what one step saves."""

from dataclasses import replace
from math import prod

from tensorstash.codecs.wire.calibration import Measured, SupportsCalibration
from tensorstash.host.arrays import Array
from tensorstash.policies.plan import Plan
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec


class Calibration:
    """What a session measures in its first step, and what its codecs make of it. Used under the session's lock.

    Measuring happens in the order in which tensors are saved, so that the same training settles on the same.
    """

    def __init__(self) -> None:
        self._measured: dict[SupportsCalibration, dict[TensorSpec, tuple[int, list[Measured]]]] = {}
        self._chosen: dict[tuple[SupportsCalibration, TensorSpec], Codec] = {}
        self.is_settled = False

    @property
    def chosen(self) -> dict[TensorSpec, Codec]:
        """The codec of each kind of tensor; empty before the first step has ended."""
        return {spec: codec for (_, spec), codec in self._chosen.items()}

    def wants(self, plan: Plan) -> bool:
        """Whether a tensor of this plan is to be measured."""
        return not self.is_settled and bool(plan.codecs) and isinstance(plan.codecs[0], SupportsCalibration)

    def measure(self, plan: Plan, data: Array, spec: TensorSpec) -> None:
        """Measure a tensor, given as its distinct elements."""
        codec = plan.codecs[0]
        assert isinstance(codec, SupportsCalibration)
        found = codec.measure(data, spec)
        kinds = self._measured.setdefault(codec, {})
        count, before = kinds.get(spec, (0, []))
        kinds[spec] = (count + prod(data.shape), [*before, found])

    def settle(self) -> bool:
        """Choose, at the end of the first step; return whether that changes plans."""
        if self.is_settled:
            return False
        self.is_settled = True
        for codec, kinds in self._measured.items():
            mean = {
                spec: (count, tuple(sum(values) / len(values) for values in zip(*found, strict=True)))
                for spec, (count, found) in kinds.items()
            }
            for spec, choice in codec.choose(mean).items():
                self._chosen[codec, spec] = choice
        self._measured.clear()
        return bool(self._chosen)

    def applied(self, plan: Plan, spec: TensorSpec) -> Plan:
        """Return the plan with what was chosen for tensors of a spec."""
        if not self._chosen or not plan.codecs:
            return plan
        first = plan.codecs[0]
        choice = self._chosen.get((first, spec)) if isinstance(first, SupportsCalibration) else None
        return plan if choice is None else replace(plan, codecs=(choice, *plan.codecs[1:]))
