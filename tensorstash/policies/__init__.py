"""Policies: frozen values that plan for each saved tensor, and compose with ``|``."""

from tensorstash.policies.checkpoint import Checkpoint
from tensorstash.policies.encoding import Cast, Compress, Encode, PackMasks, Quantize
from tensorstash.policies.placement import CpuOffload, DiskSpill, Keep, StoreIn
from tensorstash.policies.policy import Chain, Policy, append
from tensorstash.policies.recompute import Recompute
from tensorstash.policies.route import Route, Rule

__all__ = [
    "Cast",
    "Chain",
    "Checkpoint",
    "Compress",
    "CpuOffload",
    "DiskSpill",
    "Encode",
    "Keep",
    "PackMasks",
    "Policy",
    "Quantize",
    "Recompute",
    "Route",
    "Rule",
    "StoreIn",
    "append",
]
