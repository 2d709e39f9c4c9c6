"""Lines 8 to 11 broken on purpose, one fault each, and the checks that must notice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from broken_stores import Litters
from planted import Answering, Planted, caught_by, planted

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


class LosesErrors(Answering):
    def answer(self, handle: Any, like: Any) -> Any:
        try:
            return self.unpack(handle)
        except StashError:
            return reference.zeros(*like)


class Unnamed(Answering):
    def answer(self, handle: Any, like: Any) -> Any:
        try:
            return self.unpack(handle)
        except StashError as error:
            raise type(error)("something went wrong") from None


of_stores = "test_line08_a_store_that_fails_ends_in_a_named_error"
of_codecs = "test_line08_a_codec_that_fails_ends_in_a_named_error"
zeros, unnamed = planted("AnswersWithZeros", session=LosesErrors), planted("NamesNothing", session=Unnamed)
for suite, fault in ((zeros, "full"), (zeros, "corrupt"), (unnamed, "gone")):
    caught_by(of_stores, fault=fault)(suite)
for suite, fault in ((zeros, "encode_wrong_size"), (unnamed, "decode_wrong_size")):
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


def never_goes_on(self: Any, policy: Any, min_bytes: Any = 0, limits: Any = None) -> Stash:
    stuck = StoreIn(Watched(held_s=0.2))
    return Planted.stash(self, stuck, limits=Limits(in_flight=600, timeout_s=0.05))


def counts_twice(self: Any) -> Stats:
    stats = Session.stats(self)
    return replace(stats, stored={tier: Tally(2 * t.tensors, 2 * t.nbytes) for tier, t in stats.stored.items()})


for tier in ("memory", "disk"):
    caught_by("test_line09_a_budget_holds", tier=tier)(stashing("IgnoresBudgets", without_budgets))
caught_by("test_line09_a_budget_holds", tier="memory")(
    stashing("WantsRoomToSpare", lambda policy: StoreIn(Memory(budget=255)))
)
caught_by("test_line09_bytes_in_flight_hold_and_a_hanging_store_is_named")(
    planted("IgnoresBytesInFlight", stash=lambda self, policy, min_bytes=0, limits=None: Planted.stash(self, policy))
)
caught_by("test_line09_the_forward_waits_and_goes_on_when_bytes_have_left", raises=(StoreError,))(
    planted("NeverGoesOn", stash=never_goes_on)
)
caught_by("test_line09_statistics_agree_with_the_store")(
    planted("CountsTwice", session=type("CountsTwice", (Session,), {"stats": counts_twice}))
)


# Line 10: nothing left behind


@contextmanager
def hooks_in_peace(self: Any, pack: Any, unpack: Any, *, trusted: bool = False) -> Iterator[None]:
    hook_stack().append(reference.saved_tensors_hooks(pack, unpack))
    yield
    hook_stack().pop()


@contextmanager
def hooks_of_every_thread(self: Any, pack: Any, unpack: Any, *, trusted: bool = False) -> Iterator[None]:
    with patch.object(saved, "hook_stack", lambda: [reference.saved_tensors_hooks(pack, unpack)]):
        yield


@contextmanager
def hooks_on_top(self: Any, pack: Any, unpack: Any, *, trusted: bool = False) -> Iterator[None]:
    hook_stack().append(reference.saved_tensors_hooks(pack, unpack))
    try:
        yield
    finally:
        del hook_stack()[-1:]


caught_by(
    "test_line10_scopes_nest_and_leave_no_hooks",
    "test_line10_a_wrapped_model_is_and_trains_as_it_did",
)(planted("LeavesOnlyInPeace", backend={"hooks": hooks_in_peace}))
caught_by("test_line10_scopes_of_other_threads_are_their_own")(
    planted("HooksEveryThread", backend={"hooks": hooks_of_every_thread})
)


def changes_the_class(self: Any, model: Any, scope: Any) -> Any:
    kind = type(model)

    def forward(self: Any, *args: Any) -> Any:
        with scope():
            return kind.forward(self, *args)

    model.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    return lambda: setattr(model, "__class__", kind)


def never_unwraps(self: Any, model: Any, scope: Any) -> Any:
    ReferenceBackend.wrap_forward(self, model, scope)
    return lambda: None


caught_by("test_line10_a_wrapped_model_is_and_trains_as_it_did")(
    planted("ChangesTheClass", backend={"wrap_forward": changes_the_class})
)
caught_by("test_line10_a_wrapped_model_is_and_trains_as_it_did")(
    planted("NeverUnwraps", backend={"wrap_forward": never_unwraps})
)
caught_by("test_line10_rules_by_module_name_reach_their_module_only")(
    planted(
        "ForgetsTheModule", session=type("ForgetsTheModule", (Session,), {"module": lambda self, name: nullcontext()})
    )
)


def litters(policy: HookPolicy) -> HookPolicy:
    spill = next(part for part in walk(policy) if isinstance(part, DiskSpill))
    return StoreIn(Litters(directory=str(spill.directory)))


caught_by("test_line10_no_file_is_left")(stashing("LeavesFiles", litters))


# Line 11: fail closed


def takes_any_size(self: Any, policy: Any, min_bytes: Any = 0, limits: Any = None) -> Stash:
    return Planted.stash(self, policy, min_bytes=min_bytes if isinstance(min_bytes, int) else 0, limits=limits)


def falls_back(self: Any, policy: Any, **options: Any) -> Stash:
    try:
        return Planted.stash(self, policy, **options)
    except StoreError:
        return Planted.stash(self, Compress(min_ratio=1), **options)


caught_by("test_line11_what_is_no_policy_is_refused")(
    stashing("TakesAnythingForAPolicy", lambda policy: policy if isinstance(policy, HookPolicy) else Keep())
)
caught_by("test_line11_a_size_that_is_none_is_refused")(planted("TakesAnythingForASize", stash=takes_any_size))
caught_by("test_line11_what_is_no_model_is_refused")(
    planted(
        "TakesAnythingForAModel",
        wrap=lambda self, model, policy, **options: Planted.wrap(self, self.lab.model(), policy, **options),
    )
)
caught_by("test_line11_rules_by_module_name_need_a_model")(stashing("IgnoresModuleNames", lambda policy: Keep()))
caught_by("test_line11_a_store_that_cannot_be_opened_is_refused_before_any_step")(
    planted("FallsBackToMemory", stash=falls_back)
)
caught_by("test_line11_scopes_left_out_of_order_are_refused_and_hooks_survive")(
    planted("PopsWhateverIsOnTop", backend={"hooks": hooks_on_top})
)
