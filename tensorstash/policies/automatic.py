"""The policy of those who name none: the cheapest lossless ways of the machine."""

from tensorstash.policies.placement import CpuOffload, DiskSpill
from tensorstash.policies.plan import HookPolicy
from tensorstash.policies.recompute import Recompute
from tensorstash.policies.route import Route, Rule
from tensorstash.policies.selectors import Devices

AUTO = "auto"


def automatic() -> HookPolicy:
    """Return ``recompute | cpu_offload`` for tensors on an accelerator, ``recompute | disk_spill`` for all others.

    >>> from tensorstash.spec import TensorSpec
    >>> automatic().plan(TensorSpec((4,), (1,), 0, "float32", "cuda:0")).rest.store
    Memory(budget=None, then=None)
    """
    return Recompute() | Route((Rule(Devices("cpu"), DiskSpill()),), otherwise=CpuOffload())
