"""Small training programs in terms of a lab, and the policies they run under."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from tensorstash.abilities.recipes import SupportsProducers
from tensorstash.codecs.sparse import Sparse
from tensorstash.codecs.zstd import Zstd
from tensorstash.host.arrays import Array
from tensorstash.policies import Cast, Compress, CpuOffload, DiskSpill, Encode, Keep, Quantize, Recompute, StoreIn
from tensorstash.policies.plan import HookPolicy
from tensorstash.stores.memory import Memory
from tensorstash.testing.lab import Lab, Tensor
from tensorstash.testing.layouts import floats

Scope = Callable[[], AbstractContextManager[Any]]


POLICIES = (Keep(), StoreIn(Memory()), Compress(min_ratio=1))
"""A policy of each kind: nothing leaves, tensors leave as they are, or encoded."""


def lossless_policies(directory: Path) -> Mapping[str, HookPolicy]:
    """Return policies under which training must not change by one bit, by name."""
    return {
        "keep": Keep(),
        "cpu_offload": CpuOffload(),
        "memory": StoreIn(Memory()),
        "compress": Compress(min_ratio=1),
        "sparse | zstd": Encode(Sparse()) | Encode(Zstd(shuffle=True)),
        "disk": DiskSpill(directory),
        "compress | disk": Compress(min_ratio=1) | DiskSpill(directory),
        "cpu_offload | disk": CpuOffload() | DiskSpill(directory),
    }


def recomputing_policies(lab: Lab, directory: Path | None = None) -> Mapping[str, HookPolicy]:
    """Return policies that make tensors again, by name; none where the framework hides the producers."""
    if not isinstance(lab.backend, SupportsProducers):
        return {}
    policies: dict[str, HookPolicy] = {"recompute": Recompute(), "recompute | memory": Recompute() | StoreIn(Memory())}
    if directory is not None:
        policies["recompute | compress | disk"] = Recompute() | Compress(min_ratio=1) | DiskSpill(directory)
    return policies


def lossy_policies(directory: Path) -> Mapping[str, HookPolicy]:
    """Return policies that may change floating-point payloads, by name."""
    return {
        "quantize 8": Quantize(bits=8),
        "quantize 2, stochastic": Quantize(bits=2, rounding="stochastic"),
        "cast": Cast("bfloat16"),
        "quantize | compress | disk": Quantize(bits=4) | Compress(min_ratio=1) | DiskSpill(directory),
    }


def attention(lab: Lab, dtype: str = "float32", scope: Scope = nullcontext) -> dict[str, Array]:
    """Run forward inside ``scope`` and backward after it; return the loss and every gradient.

    One head of attention between two projections. Its saved tensors are slices, transposed, broadcast, gathered, an
    operation's own output, or saved more than once.
    """
    inputs = lab.tensor(floats(3, 4, 8, dtype=dtype))
    table = lab.parameter(floats(10, 8, dtype=dtype))
    enter = lab.parameter(floats(8, 24, dtype=dtype))
    leave = lab.parameter(floats(8, 8, dtype=dtype))
    scale = lab.tensor(floats(1, 8, seed=1, dtype=dtype), requires_grad=True)
    tokens = lab.tensor(np.array([1, 7, 1, 0, 3, 9, 9, 2, 4, 4, 5, 6]))
    with scope():
        hidden = inputs.reshape(12, 8)
        hidden = hidden * table[tokens]
        projected = (hidden @ enter).tanh()
        query, key, value = (projected[:, start : start + 8] for start in (0, 8, 16))
        weights = (query @ key.T).softmax(1)
        mixed = (weights @ value) * scale.expand(12, 8) + lab.relu(hidden)
        out = mixed[2:12] @ leave
        loss = (out * out).exp().sum()
    lab.backward(loss)
    leaves = {"table": table, "enter": enter, "leave": leave, "scale": scale}
    return {"loss": lab.bits(loss), **{name: lab.gradient(leaf) for name, leaf in leaves.items()}}


def gated(lab: Lab, scope: Scope = nullcontext) -> dict[str, Array]:
    """Run forward inside ``scope`` and backward after it; return the loss and every gradient.

    A gate: the product of two layers goes into a third. It is saved, and so are both of its factors.
    """
    inputs = lab.tensor(floats(6, 8))
    gate, up, down = (
        lab.parameter(floats(*shape, seed=seed)) for seed, shape in enumerate(((8, 16), (8, 16), (16, 8)))
    )
    with scope():
        product = (inputs @ gate) * (inputs @ up)
        out = product @ down
        loss = (out * out).sum()
    del product, out
    lab.backward(loss)
    leaves = {"gate": gate, "up": up, "down": down}
    return {"loss": lab.bits(loss), **{name: lab.gradient(leaf) for name, leaf in leaves.items()}}


def training(lab: Lab, scope: Scope = nullcontext, steps: int = 3) -> dict[str, Array]:
    """Train the lab's model for some steps, forward inside ``scope``; return losses and the final state."""
    model = lab.model()
    losses: dict[str, Array] = {}
    for step in range(steps):
        inputs = lab.tensor(floats(6, 8, seed=step))
        with scope():
            out = model(inputs)
            loss = (out * out).sum()
        lab.backward(loss)
        losses[f"loss {step}"] = lab.bits(loss)
        for parameter in model.parameters():
            lab.descend(parameter, 0.01)
    return {**losses, **lab.state(model)}


def square(lab: Lab, *, count: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return a leaf and a non-leaf of the same values, for operations that save the non-leaf."""
    leaf = lab.tensor(floats(count, seed=seed), requires_grad=True)
    return leaf, leaf * 1.0


def squared(lab: Lab, scope: Scope = nullcontext) -> tuple[Tensor, Tensor, Tensor, Array]:
    """Square a non-leaf inside ``scope``; return its leaf, itself, the sum, and the gradient that the leaf must get."""
    leaf, inner = square(lab)
    with scope():
        loss = (inner * inner).sum()
    return leaf, inner, loss, (lab.bits(inner) * 2).astype("float32")


def save_one(lab: Lab) -> None:
    """Run a step in which the framework saves one tensor."""
    _, inner = square(lab)
    lab.backward(inner.exp().sum())
