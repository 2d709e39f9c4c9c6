"""Different policies for different tensors, and the default policy."""

from dataclasses import dataclass, field
from typing import ClassVar

from tensorstash.errors import ConfigError
from tensorstash.policies.placement import CpuOffload, DiskSpill, Keep
from tensorstash.policies.plan import HookPolicy, Plan
from tensorstash.policies.policy import Chain, Policy, extend, require_policy
from tensorstash.policies.recompute import Recompute
from tensorstash.policies.selectors import Devices, require_selector
from tensorstash.protocols import Selector
from tensorstash.spec import TensorSpec


@dataclass(frozen=True)
class Rule:
    """One line of a :class:`Route`.

    Args:
        when: which tensors, seen as they were saved, before any codec.
        use: their policy.

    >>> Rule(Devices("cuda"), CpuOffload()).use
    CpuOffload()
    """

    when: Selector
    use: HookPolicy

    def __post_init__(self) -> None:
        require_selector(self.when, path="rule.when")
        _require_choice(self.use, path="rule.use")


@dataclass(frozen=True)
class Route(Policy):
    """The policy of the first rule whose selector accepts the tensor.

    Args:
        rules: tried in order.
        otherwise: for tensors that no rule selects.

    >>> route = Route((Rule(Devices("cpu"), DiskSpill()),), otherwise=CpuOffload())
    >>> route.plan(TensorSpec((2,), (1,), 0, "float32", "cuda:0")).store
    Memory(budget=None, then=None)
    """

    name: ClassVar[str] = "route"
    rules: tuple[Rule, ...]
    otherwise: HookPolicy = field(default_factory=Keep)

    def __post_init__(self) -> None:
        if not isinstance(self.rules, tuple | list):
            raise ConfigError(f"route.rules: got {self.rules!r}, expected a tuple of Rule(when, use)")
        for place, rule in enumerate(self.rules):
            if not isinstance(rule, Rule):
                raise ConfigError(f"route.rules[{place}]: got {rule!r}, expected Rule(when, use)")
        _require_choice(self.otherwise, path="route.otherwise")
        object.__setattr__(self, "rules", tuple(self.rules))

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        chosen = next((rule.use for rule in self.rules if rule.when.accepts(spec)), self.otherwise)
        return extend(chosen, plan, spec)

    def choices(self) -> tuple[HookPolicy, ...]:
        return (*(rule.use for rule in self.rules), self.otherwise)


def _require_choice(value: HookPolicy, *, path: str) -> None:
    require_policy(value, path=path)
    first = value.steps[0] if isinstance(value, Chain) and value.steps else value
    if getattr(first, "leads", False):
        raise ConfigError(f"{path}: got {first!r}, which is about whole modules, not tensors; put it before the route")


AUTO = "auto"


def automatic() -> HookPolicy:
    """Return ``recompute | cpu_offload`` for tensors on an accelerator, ``recompute | disk_spill`` for all others."""
    return Recompute() | Route((Rule(Devices("cpu"), DiskSpill()),), otherwise=CpuOffload())
