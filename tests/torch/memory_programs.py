"""Programs that write into memory which the graph has saved, and everything a session may do with them meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

import numpy as np
import torch
from gates import Gated, GatedStore
from submissions import Submissions
from torch import Tensor

import tensorstash as ts
from tensorstash.errors import SavedTensorModifiedError, StashError
from tensorstash.host.arrays import Array
from tensorstash.policies import StoreIn
from tensorstash.policies.plan import HookPolicy
from tensorstash.protocols import Slot
from tensorstash.stores import Memory

POLICIES: dict[str, Callable[[str], HookPolicy]] = {
    "memory": lambda _: StoreIn(Memory()),
    "compress": lambda _: ts.Compress(),
    "disk": lambda directory: ts.DiskSpill(directory),
    "compress | disk": lambda directory: ts.Compress() | ts.DiskSpill(directory),
}

LIMITS = {"default": ts.Limits(), "synchronous": ts.Limits(in_flight=0), "tiny": ts.Limits(in_flight=700, ahead=700)}

SETTINGS = [*product(POLICIES, ["default", "synchronous"]), ("memory", "tiny")]
"""What is run: names of a policy and of limits."""


class Rereading(Gated):
    """A store that holds every put back until its gate opens, and notices when its bytes are others by then."""

    def let_arrive(self) -> None:
        """Wait a little for a put that may never come."""
        self.arrived.acquire(timeout=0.002)

    def open(self) -> GatedStore:
        store = super().open()
        put = store.put

        def reread(data: Array, /) -> Slot:
            before = data.copy()
            slot = put(data)
            if not np.array_equal(before.view(np.uint8), data.view(np.uint8)):
                raise OSError("bytes changed while they were being stored")
            return slot

        store.put = reread  # type: ignore[method-assign]
        return store


@dataclass
class Moment:
    """When the workers of a session get to their work; called like a scope, and between two parts of a program."""

    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    between: Callable[[], None] = lambda: None
    after: Callable[[], None] = field(default=lambda: None)

    def __call__(self) -> AbstractContextManager[Any]:
        return self.around()


Program = Callable[[Moment], Any]
"""Returns tensors: gradients, losses, and whatever else must be as without hooks."""


def moments(directory: str, submissions: Submissions) -> Iterator[tuple[str, Moment]]:
    """Give each setting with workers that are as fast as they are, and that are waited for, and a store that waits."""
    for policy, limits in SETTINGS:
        for timing, between in (("untimed", lambda: None), ("captured at once", submissions.wait)):
            if timing == "untimed" and limits == "synchronous":
                continue
            made = POLICIES[policy](directory)
            stash = ts.stash(made, framework="torch", min_bytes=0, limits=LIMITS[limits])
            yield f"{policy}, {limits} limits, {timing}", Moment(lambda stash=stash: stash, between)
    for encodes, writers in ((False, 1), (False, 16), (True, 1)):
        gate = Rereading()
        gate.puts.clear()
        made = ts.Compress() | StoreIn(gate) if encodes else StoreIn(gate)
        stash = ts.stash(made, framework="torch", min_bytes=0, limits=ts.Limits(writers=writers))
        name = f"{writers} writers that wait, {'encoded' if encodes else 'as it is'}"
        yield name, Moment(lambda stash=stash: stash, gate.let_arrive, gate.puts.set)


def result(program: Program, moment: Moment) -> Any:
    """Return what a program computes, or the error of a saved tensor that was modified."""
    torch.manual_seed(0)
    try:
        return program(moment)
    except SavedTensorModifiedError:
        return "modified"
    except StashError as error:
        return f"{type(error).__name__}: {error}"
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return "modified"
    finally:
        moment.after()


def differences(
    program: Program, directory: str, submissions: Submissions, same: Callable[[Any, Any], bool], third: int | None
) -> list[str]:
    """Return where in all settings and moments, or a third, a program computes anything but what it does without."""
    plain = result(program, Moment())

    def is_same(found: Any) -> bool:
        return found == plain if isinstance(plain, str) or isinstance(found, str) else same(plain, found)

    assert is_same(result(program, Moment()))  # else the comparison says nothing
    return [
        f"{name}: {found if isinstance(found, str) else 'other bits'}"
        for name, moment in islice(moments(directory, submissions), third, None, third is None or 3)
        if not is_same(found := result(program, moment))
    ]


def alias_by_set(tensor: Tensor) -> Tensor:
    """Return a tensor of the same memory that knows nothing of the other's version."""
    alias = torch.empty(0, dtype=tensor.dtype)
    alias.set_(tensor.detach().untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return alias


UNVERSIONED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "data": lambda tensor, values: tensor.data.copy_(values),
    "numpy": lambda tensor, values: tensor.detach().numpy().__setitem__(..., values.numpy()),
    "dlpack": lambda tensor, values: torch.from_dlpack(tensor.detach()).copy_(values),
    "set_": lambda tensor, values: alias_by_set(tensor).copy_(values),
    "storage": lambda tensor, values: tensor.untyped_storage().copy_(values.clone().untyped_storage(), False),
}
"""Ways to write into a whole tensor that bump no version of it."""


class Writing(torch.autograd.Function):
    """Its backward writes into what it has saved, as kernels that reuse memory do."""

    @staticmethod
    def forward(ctx, x, bumps):
        ctx.save_for_backward(x)
        ctx.bumps = bumps
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        out = grad * x
        (x if ctx.bumps else x.data).mul_(2.0)
        return out, None
