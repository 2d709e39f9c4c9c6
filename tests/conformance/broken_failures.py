"""Lines 8 to 11 broken on purpose, one fault each, and the checks that must notice."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from planted import Answering, Fault, Planted, note

from tensorstash import Compress, DiskSpill, HookPolicy, Keep, reference
from tensorstash.api import Stash, Wrapped
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.config import walk
from tensorstash.engine.session import Session
from tensorstash.engine.stats import Stats, Tally
from tensorstash.errors import StashError, StoreError, StoreFullError
from tensorstash.policies import StoreIn
from tensorstash.policies.limits import Limits
from tensorstash.reference.autograd import modes, saved
from tensorstash.reference.autograd.modes import HookPair, hook_stack
from tensorstash.stores.memory import Memory, MemoryStore
from tensorstash.testing import Gate, Gated
from tensorstash.testing.labs.reference import ReferenceLab

FAULTS: list[Fault] = []
caught_by = partial(note, FAULTS)


# Line 8: nothing lost quietly


class _LosesErrors(Answering):
    def answer(self, handle: Any, like: Any) -> Any:
        try:
            return self.unpack(handle)
        except StashError:
            return reference.zeros(*like)


@caught_by("test_line08_a_store_that_fails_ends_in_a_named_error", fault="full", at=1)
@caught_by("test_line08_a_store_that_fails_ends_in_a_named_error", fault="corrupt", at=3)
@caught_by("test_line08_a_codec_that_fails_ends_in_a_named_error", fault="encode_wrong_size")
class AnswersWithZeros(Planted):
    session = _LosesErrors


class _Unnamed(Answering):
    def answer(self, handle: Any, like: Any) -> Any:
        try:
            return self.unpack(handle)
        except StashError as error:
            raise type(error)("something went wrong") from None


@caught_by("test_line08_a_store_that_fails_ends_in_a_named_error", fault="gone", at=1)
@caught_by("test_line08_a_codec_that_fails_ends_in_a_named_error", fault="decode_wrong_size")
class NamesNothing(Planted):
    session = _Unnamed


class _StopsRecording(ReferenceLab):
    def backward(self, loss: Any, *, retain_graph: bool = False) -> None:
        try:
            super().backward(loss, retain_graph=retain_graph)
        except StashError:
            modes._thread.grad_enabled = False
            raise


@caught_by("test_line08_recording_goes_on_after_a_hook_has_raised", raises=(RuntimeError,))
class LeavesRecordingOff(Planted):
    lab = _StopsRecording()


# Line 9: budgets


def _without_budgets(policy: HookPolicy) -> HookPolicy:
    for part in walk(policy):
        if isinstance(part, DiskSpill):
            return DiskSpill(part.directory)
        if isinstance(part, Memory):
            return StoreIn(_Unbounded(budget=part.budget))
    return policy


class _Unbounded(Memory):
    def open(self) -> MemoryStore:
        return MemoryStore(Memory())


@caught_by("test_line09_a_memory_budget_holds", "test_line09_a_disk_budget_holds")
class IgnoresBudgets(Planted):
    def stash(self, policy: Any, **options: Any) -> Stash:
        return super().stash(_without_budgets(policy), **options)


@caught_by("test_line09_a_budget_that_is_just_enough_is_enough", raises=(StoreFullError,))
class WantsRoomToSpare(Planted):
    def stash(self, policy: Any, **options: Any) -> Stash:
        return super().stash(StoreIn(Memory(budget=63)), **options)


@caught_by("test_line09_bytes_in_flight_hold_and_a_hanging_store_is_named")
class IgnoresBytesInFlight(Planted):
    def stash(self, policy: Any, *, min_bytes: Any = 0, limits: Limits | None = None) -> Stash:
        return super().stash(policy, min_bytes=min_bytes)


@caught_by("test_line09_the_forward_waits_and_goes_on_when_bytes_have_left", raises=(StoreError,))
class NeverGoesOn(Planted):
    def stash(self, policy: Any, *, min_bytes: Any = 0, limits: Limits | None = None) -> Stash:
        stuck = StoreIn(Gated(gate=Gate(timeout_s=0.2)))
        return super().stash(stuck, limits=Limits(in_flight=600, timeout_s=0.05))


class _CountsTwice(Session):
    def stats(self) -> Stats:
        stats = super().stats()
        return replace(stats, stored={tier: Tally(2 * t.tensors, 2 * t.nbytes) for tier, t in stats.stored.items()})


@caught_by("test_line09_statistics_agree_with_the_store")
class CountsTwice(Planted):
    session = _CountsTwice


# Line 10: nothing left behind


@caught_by("test_line10_hooks_are_gone_after_the_scope", "test_line08_a_failed_step_leaves_no_slot_and_no_hook")
class NeverLeaves(Planted):
    class Backend(ReferenceBackend):
        @contextmanager
        def hooks(self, pack: Any, unpack: Any, /, *, trusted: bool = False) -> Iterator[None]:
            hook_stack().append(HookPair(pack, unpack))
            yield


@caught_by(
    "test_line10_hooks_are_gone_after_a_body_that_raises",
    "test_line10_scopes_nest_and_the_outer_one_is_restored",
    "test_line10_a_wrapped_model_that_raises_leaves_no_hooks",
)
class LeavesOnlyInPeace(Planted):
    class Backend(ReferenceBackend):
        @contextmanager
        def hooks(self, pack: Any, unpack: Any, /, *, trusted: bool = False) -> Iterator[None]:
            hook_stack().append(HookPair(pack, unpack))
            yield
            hook_stack().pop()


@caught_by("test_line10_scopes_of_other_threads_are_their_own")
class HooksEveryThread(Planted):
    class Backend(ReferenceBackend):
        @contextmanager
        def hooks(self, pack: Any, unpack: Any, /, *, trusted: bool = False) -> Iterator[None]:
            with patch.object(saved, "hook_stack", lambda: [HookPair(pack, unpack)]):
                yield


@caught_by("test_line10_wrap_leaves_the_model_as_it_is")
class ChangesTheClass(Planted):
    class Backend(ReferenceBackend):
        def wrap_forward(self, model: Any, scope: Any, /) -> Any:
            kind = type(model)

            def forward(self: Any, *args: Any) -> Any:
                with scope():
                    return kind.forward(self, *args)

            model.__class__ = type(kind.__name__, (kind,), {"forward": forward})
            return lambda: setattr(model, "__class__", kind)


@caught_by("test_line10_a_wrapped_model_trains_the_same_until_it_is_unwrapped")
class NeverUnwraps(Planted):
    class Backend(ReferenceBackend):
        def wrap_forward(self, model: Any, scope: Any, /) -> Any:
            super().wrap_forward(model, scope)
            return lambda: None


class _NoModules(Session):
    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        yield


@caught_by("test_line10_rules_by_module_name_reach_their_module_only")
class ForgetsTheModule(Planted):
    session = _NoModules


@dataclass(frozen=True, kw_only=True)
class Littering:
    name: ClassVar[str] = "littering"
    tier: ClassVar[str] = "disk"
    directory: str

    def open(self) -> MemoryStore:
        Path(self.directory, "payloads.bin").touch()
        return MemoryStore(Memory())


@caught_by("test_line10_no_file_is_left")
class LeavesFiles(Planted):
    def stash(self, policy: Any, **options: Any) -> Stash:
        spills = [part for part in walk(policy) if isinstance(part, DiskSpill)]
        return super().stash(StoreIn(Littering(directory=str(spills[0].directory))), **options)


# Line 11: fail closed


@caught_by("test_line11_what_is_no_policy_is_refused")
class TakesAnythingForAPolicy(Planted):
    def stash(self, policy: Any, **options: Any) -> Stash:
        return super().stash(policy if isinstance(policy, HookPolicy) else Keep(), **options)


@caught_by("test_line11_a_size_that_is_none_is_refused")
class TakesAnythingForASize(Planted):
    def stash(self, policy: Any, *, min_bytes: Any = 0, limits: Limits | None = None) -> Stash:
        return super().stash(policy, min_bytes=min_bytes if isinstance(min_bytes, int) else 0, limits=limits)


@caught_by("test_line11_what_is_no_model_is_refused")
class TakesAnythingForAModel(Planted):
    def wrap(self, model: Any, policy: Any, **options: Any) -> Wrapped:
        return super().wrap(self.lab.model(), policy, **options)


@caught_by("test_line11_rules_by_module_name_need_a_model")
class IgnoresModuleNames(Planted):
    def stash(self, policy: Any, **options: Any) -> Stash:
        return super().stash(Keep(), **options)


@caught_by("test_line11_a_store_that_cannot_be_opened_is_refused_before_any_step")
class FallsBackToMemory(Planted):
    def stash(self, policy: Any, **options: Any) -> Stash:
        try:
            return super().stash(policy, **options)
        except StoreError:
            return super().stash(Compress(min_ratio=1), **options)


@caught_by("test_line11_scopes_left_out_of_order_are_refused_and_hooks_survive")
class PopsWhateverIsOnTop(Planted):
    class Backend(ReferenceBackend):
        @contextmanager
        def hooks(self, pack: Any, unpack: Any, /, *, trusted: bool = False) -> Iterator[None]:
            hook_stack().append(HookPair(pack, unpack))
            try:
                yield
            finally:
                del hook_stack()[-1:]


class _LabWithAWrongGap(ReferenceLab):
    gaps: ClassVar[dict[str, str]] = {"test_line99_no_such_check": "a slip of the pen"}


@caught_by("test_every_declared_gap_names_a_check")
class DeclaresAGapThatIsNone(Planted):
    lab = _LabWithAWrongGap()
