"""Saved activations of PyTorch and PaddlePaddle, moved, compressed, quantized or spilled by policy.

>>> import tensorstash as ts
>>> ts.Cast("bfloat16") | ts.Compress()
Chain(steps=(Cast(dtype='bfloat16'), Compress(level=1, min_ratio=1.25)))
"""

from tensorstash.api import Stash, Wrapped, stash, unwrap, wrap, wrapped
from tensorstash.config import from_dict, parse, policy_argument, to_dict
from tensorstash.config.files import Settings, load_settings
from tensorstash.drop_ins import save_on_cpu, saved_tensors_hooks, suspended
from tensorstash.engine.stats import Stats
from tensorstash.errors import TensorStashError, TensorStashWarning
from tensorstash.footprint import Estimate, estimate
from tensorstash.host import allocator
from tensorstash.policies import (
    Cast,
    Chain,
    Checkpoint,
    Compress,
    CpuOffload,
    DiskSpill,
    Encode,
    Keep,
    PackMasks,
    Policy,
    Quantize,
    Recompute,
    Route,
    Rule,
    StoreIn,
)
from tensorstash.policies.limits import Limits
from tensorstash.policies.plan import HookPolicy, Plan
from tensorstash.registry import register

__version__ = "0.1.0"

__all__ = [
    "Cast",
    "Chain",
    "Checkpoint",
    "Compress",
    "CpuOffload",
    "DiskSpill",
    "Encode",
    "Estimate",
    "HookPolicy",
    "Keep",
    "Limits",
    "PackMasks",
    "Plan",
    "Policy",
    "Quantize",
    "Recompute",
    "Route",
    "Rule",
    "Settings",
    "Stash",
    "Stats",
    "StoreIn",
    "TensorStashError",
    "TensorStashWarning",
    "Wrapped",
    "allocator",
    "estimate",
    "from_dict",
    "load_settings",
    "parse",
    "policy_argument",
    "register",
    "save_on_cpu",
    "saved_tensors_hooks",
    "stash",
    "suspended",
    "to_dict",
    "unwrap",
    "wrap",
    "wrapped",
]
