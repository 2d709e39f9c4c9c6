"""The conditions of a random program: a policy, limits, a budget, and how slow everything is."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from delays import Dice, delays
from hypothesis import strategies as st
from inside import ahead, in_flight, settle
from planted_faults import Faulty

import tensorstash as ts
from tensorstash.host.pages import BLOCK
from tensorstash.policies import StoreIn
from tensorstash.policies.selectors import MinBytes
from tensorstash.protocols import StoreConfig
from tensorstash.stores import Disk, Memory
from tensorstash.testing.lab import Lab

MakesPolicy = Callable[[str, Dice], ts.HookPolicy]


def slow(store: StoreConfig, dice: Dice) -> StoreIn:
    """Return a policy over a store that takes its time."""
    delayed = Faulty(store)
    for name in ("put", "get"):
        delayed.board.plant(name, dice.slowly)
    return StoreIn(delayed)


MOVING: dict[str, MakesPolicy] = {
    "memory": lambda directory, dice: StoreIn(Memory()),
    "compress": lambda directory, dice: ts.Compress(min_ratio=1),
    "disk": lambda directory, dice: ts.DiskSpill(directory),
    "compress | disk": lambda directory, dice: ts.Compress(min_ratio=1) | ts.DiskSpill(directory),
    "slow": lambda directory, dice: slow(Memory(budget=300, then=Disk(directory=directory)), dice),
}
LOSSLESS: dict[str, MakesPolicy] = {
    "keep": lambda directory, dice: ts.Keep(),
    "cpu_offload": lambda directory, dice: ts.CpuOffload(),
    "route": lambda directory, dice: ts.Route(
        (ts.Rule(~MinBytes(81), ts.Compress(min_ratio=1)), ts.Rule(~MinBytes(201), ts.Keep())),
        otherwise=slow(Disk(directory=directory), dice),
    ),
    **MOVING,
}
RECOMPUTING: dict[str, MakesPolicy] = {
    "recompute": lambda directory, dice: ts.Recompute(),
    "recompute | compress": lambda directory, dice: ts.Recompute() | ts.Compress(min_ratio=1),
    "recompute | disk": lambda directory, dice: ts.Recompute() | ts.DiskSpill(directory),
}
POLICIES = LOSSLESS | RECOMPUTING


def budgeted(directory: str) -> list[StoreConfig]:
    """Return stores of each tier with budgets that some programs exceed."""
    memories = [Memory(budget=nbytes) for nbytes in (100, 800, 4000)]
    disks = [Disk(directory=directory, budget=blocks * BLOCK) for blocks in (2, 6, 40)]
    return [*memories, *disks, *(replace(memory, then=disk) for memory in memories[:2] for disk in disks[:2])]


@dataclass(frozen=True)
class Conditions:
    """The name of a policy, and what decides when it is done: limits, a budget in bytes, and the seed of delays."""

    policy: str
    limits: ts.Limits
    budget: int | None
    seed: int

    @cached_property
    def dice(self) -> Dice:
        return Dice(self.seed)

    @contextmanager
    def stash(self, lab: Lab, directory: str) -> Iterator[ts.Stash]:
        """Give a stash whose workers are delayed until the block ends; nothing of it may be held then."""
        policy = POLICIES[self.policy](directory, self.dice)
        stash = ts.stash(policy, framework=lab.name, min_bytes=0, limits=self.limits, budget=self.budget)
        with delays(self.dice):
            yield stash
        assert_nothing_is_held(stash)


def assert_nothing_is_held(stash: ts.Stash) -> None:
    settle(stash)
    assert stash.stats().live.tensors == 0
    assert in_flight(stash).used == ahead(stash).used == 0


def limits() -> st.SearchStrategy[ts.Limits]:
    nbytes = st.sampled_from([0, 1, 64, 200, 1000, 2000, 10**6])
    threads = st.integers(1, 3)
    return st.builds(ts.Limits, in_flight=nbytes, ahead=nbytes, writers=threads, readers=threads, timeout_s=st.just(60))


def conditions(policies: Iterable[str], *, budgets: bool = True) -> st.SearchStrategy[Conditions]:
    budget = st.sampled_from([None, None, 0, 100, 500, 10**6] if budgets else [None])
    return st.builds(Conditions, st.sampled_from(sorted(policies)), limits(), budget, st.integers(0, 10**6))
