"""Lines 8 to 11 broken on purpose, one fault each, and the checks that must notice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from broken_stores import Litters
from planted import Answering, Planted, caught_by, planted, replacing

from tensorstash import Compress, DiskSpill, HookPolicy, Keep, reference
from tensorstash.api import Stash
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.config import walk
from tensorstash.engine.session import Session
from tensorstash.engine.stats import Stats, Tally
from tensorstash.errors import StashError, StoreError
from tensorstash.policies import StoreIn
from tensorstash.policies.limits import Limits
from tensorstash.reference.autograd import graph, saved
from tensorstash.reference.autograd.graph import hook_stack
from tensorstash.stores.memory import Memory, MemoryStore
from tensorstash.testing import Watched
from tensorstash.testing.labs.reference import ReferenceLab


def stashing(name: str, other: Callable[[Any], Any]) -> type:
    """Return the suite that stashes under another policy than it is told."""
    return planted(name, stash=lambda self, policy, **options: Planted.stash(self, other(policy), **options))


# Line 8: nothing lost quietly


@replacing("session")
class AnswersWithZeros(Answering):
    def answer(self, handle: Any, like: Any) -> Any:
        try:
            return self.unpack(handle)
        except StashError:
            return reference.zeros(*like)


@replacing("session")
class NamesNothing(Answering):
    def answer(self, handle: Any, like: Any) -> Any:
        try:
            return self.unpack(handle)
        except StashError as error:
            raise type(error)("something went wrong") from None


of_stores = "test_line08_a_store_that_fails_ends_in_a_named_error"
of_codecs = "test_line08_a_codec_that_fails_ends_in_a_named_error"
for suite, fault in ((AnswersWithZeros, "full"), (AnswersWithZeros, "corrupt"), (NamesNothing, "gone")):
    caught_by(of_stores, fault=fault)(suite)
for suite, fault in ((AnswersWithZeros, "encode_wrong_size"), (NamesNothing, "decode_wrong_size")):
    caught_by(of_codecs, fault=fault)(suite)


class StopsRecording(ReferenceLab):
    def backward(self, loss: Any, *, retain_graph: bool = False) -> None:
        try:
            super().backward(loss, retain_graph=retain_graph)
        except StashError:
            graph._thread.grad_enabled = False
            raise


caught_by(of_stores, raises=(RuntimeError,), fault="get_error")(planted("LeavesRecordingOff", lab=StopsRecording()))


# Line 9: budgets


class Unbounded(Memory):
    def open(self) -> MemoryStore:
        return MemoryStore(Memory())


def without_budgets(policy: HookPolicy) -> HookPolicy:
    for part in walk(policy):
        if isinstance(part, DiskSpill):
            return DiskSpill(part.directory)
        if isinstance(part, Memory):
            return StoreIn(Unbounded(budget=part.budget))
    return policy


@caught_by("test_line09_bytes_in_flight_hold_and_a_hanging_store_is_named")
@replacing("stash")
def ignores_bytes_in_flight(self: Any, policy: Any, min_bytes: Any = 0, limits: Any = None) -> Stash:
    return Planted.stash(self, policy)


@caught_by("test_line09_the_forward_waits_and_goes_on_when_bytes_have_left", raises=(StoreError,))
@replacing("stash")
def never_goes_on(self: Any, policy: Any, min_bytes: Any = 0, limits: Any = None) -> Stash:
    stuck = StoreIn(Watched(held_s=0.2))
    return Planted.stash(self, stuck, limits=Limits(in_flight=600, timeout_s=0.05))


@caught_by("test_line09_statistics_agree_with_the_store")
@replacing("session")
class CountsTwice(Session):
    def stats(self) -> Stats:
        stats = super().stats()
        return replace(stats, stored={tier: Tally(2 * t.tensors, 2 * t.nbytes) for tier, t in stats.stored.items()})


for tier in ("memory", "disk"):
    caught_by("test_line09_a_budget_holds", tier=tier)(stashing("IgnoresBudgets", without_budgets))
caught_by("test_line09_a_budget_holds", tier="memory")(
    stashing("WantsRoomToSpare", lambda policy: StoreIn(Memory(budget=255)))
)


# Line 10: nothing left behind


@caught_by(
    "test_line10_scopes_nest_and_leave_no_hooks",
    "test_line10_a_wrapped_model_is_and_trains_as_it_did",
)
@replacing("backend.hooks")
@contextmanager
def leaves_only_in_peace(self: Any, pack: Any, unpack: Any, *, trusted: bool = False) -> Iterator[None]:
    hook_stack().append(reference.saved_tensors_hooks(pack, unpack))
    yield
    hook_stack().pop()


@caught_by("test_line10_scopes_of_other_threads_are_their_own")
@replacing("backend.hooks")
@contextmanager
def hooks_every_thread(self: Any, pack: Any, unpack: Any, *, trusted: bool = False) -> Iterator[None]:
    with patch.object(saved, "hook_stack", lambda: [reference.saved_tensors_hooks(pack, unpack)]):
        yield


@caught_by("test_line11_scopes_left_out_of_order_are_refused_and_hooks_survive")
@replacing("backend.hooks")
@contextmanager
def pops_whatever_is_on_top(self: Any, pack: Any, unpack: Any, *, trusted: bool = False) -> Iterator[None]:
    hook_stack().append(reference.saved_tensors_hooks(pack, unpack))
    try:
        yield
    finally:
        del hook_stack()[-1:]


@caught_by("test_line10_a_wrapped_model_is_and_trains_as_it_did")
@replacing("backend.wrap_forward")
def changes_the_class(self: Any, model: Any, scope: Any) -> Any:
    kind = type(model)

    def forward(self: Any, *args: Any) -> Any:
        with scope():
            return kind.forward(self, *args)

    model.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    return lambda: setattr(model, "__class__", kind)


@caught_by("test_line10_a_wrapped_model_is_and_trains_as_it_did")
@replacing("backend.wrap_forward")
def never_unwraps(self: Any, model: Any, scope: Any) -> Any:
    ReferenceBackend.wrap_forward(self, model, scope)
    return lambda: None


@caught_by("test_line10_rules_by_module_name_reach_their_module_only")
@replacing("session")
class ForgetsTheModule(Session):
    def module(self, name: str) -> Any:
        return nullcontext()


def litters(policy: HookPolicy) -> HookPolicy:
    spill = next(part for part in walk(policy) if isinstance(part, DiskSpill))
    return StoreIn(Litters(directory=str(spill.directory)))


caught_by("test_line10_no_file_is_left")(stashing("LeavesFiles", litters))


# Line 11: fail closed


@caught_by("test_line11_a_size_that_is_none_is_refused")
@replacing("stash")
def takes_anything_for_a_size(self: Any, policy: Any, min_bytes: Any = 0, limits: Any = None) -> Stash:
    return Planted.stash(self, policy, min_bytes=min_bytes if isinstance(min_bytes, int) else 0, limits=limits)


@caught_by("test_line11_a_store_that_cannot_be_opened_is_refused_before_any_step")
@replacing("stash")
def falls_back_to_memory(self: Any, policy: Any, **options: Any) -> Stash:
    try:
        return Planted.stash(self, policy, **options)
    except StoreError:
        return Planted.stash(self, Compress(min_ratio=1), **options)


caught_by("test_line11_what_is_no_policy_is_refused")(
    stashing("TakesAnythingForAPolicy", lambda policy: policy if isinstance(policy, HookPolicy) else Keep())
)
caught_by("test_line11_rules_by_module_name_need_a_model")(stashing("IgnoresModuleNames", lambda policy: Keep()))


@caught_by("test_line11_what_is_no_model_is_refused")
@replacing("wrap")
def takes_anything_for_a_model(self: Any, model: Any, policy: Any, **options: Any) -> Any:
    return Planted.wrap(self, self.lab.model(), policy, **options)
