"""The policy that runs cheap operations again in backward."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from tensorstash.errors import ConfigError
from tensorstash.policies.plan import Plan, Rebuilding
from tensorstash.policies.policy import Policy
from tensorstash.policies.selectors import texts_of
from tensorstash.registry import did_you_mean, names
from tensorstash.spec import TensorSpec

_NAMES = "add batch_norm cast clone dropout gelu glu layer_norm masks mul narrow relu silu"
RULES = tuple(_NAMES.split())
"""The rules that are built in; each backend has those that its framework can follow."""


@dataclass(frozen=True)
class Recompute(Policy):
    """Tensors that one cheap operation makes again, bit for bit, of others that are saved anyway are not stored.

    All other tensors are left to the steps of the chain behind this one. Under a lossy step, only tensors made of
    parameters and of exact tensors are made again, so that no error is ever widened.

    The first tensor of a kind is made again at once, and its kind is stored if it is not equal to the bit. All others
    are compared whole when backward needs them: a difference is a :class:`~tensorstash.errors.StashError`.

    Args:
        ops: names of the rules to use, of :data:`RULES` or of plug-ins; None for all.
        depth: most operations that are run one after the other for one tensor, 1 or more.

    >>> from tensorstash.policies import DiskSpill
    >>> Recompute(ops=("gelu", "cast")) | DiskSpill()  # doctest: +ELLIPSIS
    Chain(steps=(Recompute(ops=('gelu', 'cast'), depth=8), DiskSpill(...)))
    """

    name: ClassVar[str] = "recompute"
    ops: str | tuple[str, ...] | None = None
    _: KW_ONLY
    depth: int = 8

    def __post_init__(self) -> None:
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 1:
            raise ConfigError(f"recompute.depth: got {self.depth!r}, expected a number of operations, 1 or more")
        if self.ops is not None:
            ops = tuple(dict.fromkeys(texts_of(self.ops, path="recompute.ops")))
            known = (*RULES, *names("recipes"))
            for name in ops:
                if name not in known:
                    raise ConfigError(f"recompute.ops: unknown rule {name!r}; {did_you_mean(name, known)}")
            object.__setattr__(self, "ops", ops if len(ops) > 1 else ops[0])  # one alone has a form on one line

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        ops = None if self.ops is None else frozenset((self.ops,) if isinstance(self.ops, str) else self.ops)
        return plan.then(Plan(rebuilding=Rebuilding(ops, self.depth)))
