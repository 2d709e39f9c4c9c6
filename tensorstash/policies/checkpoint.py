"""The policy that computes whole blocks of a model again, and which modules of a model are such blocks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tensorstash.errors import ConfigError
from tensorstash.policies.plan import HookPolicy, Plan
from tensorstash.policies.policy import Chain, Policy
from tensorstash.policies.selectors import named_for, texts_of
from tensorstash.spec import TensorSpec

_LISTS = {"ModuleList", "Sequential", "LayerList"}


@dataclass(frozen=True)
class Checkpoint(Policy):
    """Blocks of a model save their inputs alone, and are computed again in backward by the framework's own function.

    It stands first in a chain and is for ``wrap``. The other steps are for the inputs of the blocks, and for whatever
    is saved outside of them. A block is proved on its first call: it is stored, as if this policy were not there, if it
    changes anything, or if a second run saves other bits.

    Args:
        every: of so many blocks the first is computed again, the others are left to the rest of the chain; 1 for all.
        blocks: one shell-style pattern of module names or several; None for the repeated children of lists of modules.

    Raises:
        ConfigError: a value is none of these.

    >>> from tensorstash.policies import DiskSpill
    >>> Checkpoint(every=2) | DiskSpill()
    Chain(steps=(Checkpoint(every=2, blocks=None), DiskSpill(directory=None, budget=None)))
    """

    name: ClassVar[str] = "checkpoint"
    leads: ClassVar[bool] = True
    every: int = 1
    blocks: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ConfigError(f"checkpoint.every: got {self.every!r}, expected a number of blocks, 1 or more")
        if self.blocks is not None:
            patterns = texts_of(self.blocks, path="checkpoint.blocks")
            object.__setattr__(self, "blocks", patterns if len(patterns) > 1 else patterns[0])

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        return plan

    def chosen(self, modules: Mapping[str, object]) -> dict[str, str]:
        """Return the modules that are computed again, each with the name under which the policy knows it.

        Of a model's modules by dotted names, each comes before those inside of it. None to choose is a ConfigError.
        """
        if self.blocks is not None:
            named = named_for(texts_of(self.blocks, path="checkpoint.blocks"), modules, path="checkpoint.blocks")
        elif not (named := {name: name for name in repeated(modules)}):
            raise ConfigError(
                "checkpoint.blocks: the model has no ModuleList, Sequential or LayerList with two or more modules of "
                "one class that have modules inside; name them by a shell-style pattern of their dotted names, such as "
                "Checkpoint(blocks='*.layers.*') or 'checkpoint:blocks=*.layers.*'"
            )
        outermost: list[str] = []
        for name in modules:
            if name in named and not (outermost and name.startswith(f"{outermost[-1]}.")):
                outermost.append(name)
        # A unit of FSDP 1 takes its weights apart in each call, and hooks of one call are lost in the next (PyTorch's
        # set_data makes new gradient accumulators where the dtype changes): the block inside is called again.
        inside = {name: f"{name}._fsdp_wrapped_module" for name in outermost[:: self.every]}
        return {block if block in modules else name: named[name] for name, block in inside.items()}


def checkpoint_of(policy: HookPolicy) -> Checkpoint | None:
    """Return the checkpoint that a policy begins with, or None."""
    first = policy.steps[0] if isinstance(policy, Chain) and policy.steps else policy
    return first if isinstance(first, Checkpoint) else None


def repeated(modules: Mapping[str, object]) -> list[str]:
    """Return the modules that lists of a model have two or more of, and that have modules inside."""
    parents = {name: name.rpartition(".")[0] for name in modules if name}
    lists = {name for name, module in modules.items() if _LISTS & {each.__name__ for each in type(module).__mro__}}
    kinds = {name: (parents[name], type(modules[name])) for name in parents.values() if name and parents[name] in lists}
    return [name for name in modules if name in kinds and [*kinds.values()].count(kinds[name]) > 1]


def is_on_accelerator(modules: Iterable[Any]) -> bool:
    """Return whether the first weight of modules is on a device that is not the host."""
    weights = (weight for part in modules for weight in getattr(part, "_parameters", {}).values() if weight is not None)
    return str(getattr(next(weights, None), "device", "cpu")).partition(":")[0] not in ("cpu", "meta")
