"""Lines 5 to 7 broken on purpose, one fault each, and the checks that must notice."""

from functools import partial
from typing import Any

from planted import Fault, Planted, PlantedTorch, note

from tensorstash import CpuOffload
from tensorstash.api import Stash
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.engine.session import Session
from tensorstash.policies import StoreIn
from tensorstash.policies.limits import Limits
from tensorstash.stores.memory import Memory

FAULTS: list[Fault] = []
caught_by = partial(note, FAULTS)


# Line 5: ownership

_HOARD: list[Any] = []


class _Hoards(Session):
    def pack(self, tensor: Any) -> Any:
        handle = super().pack(tensor)
        _HOARD.append(handle)
        return handle


@caught_by(
    "test_line05_backward_frees_every_slot_while_the_loss_lives",
    "test_line05_a_dropped_graph_frees_every_slot",
    "test_line05_a_retained_graph_frees_its_slots_when_it_is_dropped",
    "test_line05_an_exception_in_forward_frees_every_slot",
    "test_line05_an_exception_in_backward_frees_every_slot",
    "test_line05_a_branch_that_is_never_used_frees_its_slots",
    "test_line05_two_live_graphs_own_their_slots",
    "test_line05_micro_batches_free_their_slots_one_by_one",
    "test_line05_slots_outlive_the_session_and_the_store_closes_with_the_last",
    "test_line08_a_failed_step_leaves_no_slot_and_no_hook",
)
class HoardsHandles(Planted):
    session = _Hoards


@caught_by("test_line05_a_dropped_graph_of_kept_tensors_is_freed", control=PlantedTorch)
class KeepsOutputsWithTheirHistory(PlantedTorch):
    class Backend(TorchBackend):
        def alias(self, tensor: Any, /) -> Any:
            return tensor


class _HoldsTensors(Session):
    def pack(self, tensor: Any) -> Any:
        self._tensors = [*getattr(self, "_tensors", []), tensor]
        return super().pack(tensor)


@caught_by("test_line05_a_tensor_of_its_own_dies_with_its_last_user")
class HoldsTensors(Planted):
    session = _HoldsTensors


# Line 6: one copy


@caught_by(
    "test_line06_a_tensor_saved_twice_is_one_payload",
    "test_line06_views_of_the_same_elements_are_one_payload",
    "test_line06_payloads_take_no_more_than_the_framework_holds",
)
class NeverShares(Planted):
    class Backend(ReferenceBackend):
        def storage(self, tensor: Any, /) -> Any:
            return object(), tensor.offset


@caught_by("test_line06_other_elements_of_the_same_storage_are_another_payload", control=PlantedTorch)
class ForgetsTheOffset(PlantedTorch):
    class Backend(TorchBackend):
        def storage(self, tensor: Any, /) -> Any:
            return super().storage(tensor)[0], 0


@caught_by("test_line06_a_reused_address_is_another_payload", control=PlantedTorch)
class KeysByAddress(PlantedTorch):
    class Backend(TorchBackend):
        def storage(self, tensor: Any, /) -> Any:
            return tensor.untyped_storage().data_ptr(), super().storage(tensor)[1]


class _Remembers(Session):
    def pack(self, tensor: Any) -> Any:
        self._known = getattr(self, "_known", {})
        content = (*self.backend.storage(tensor), self.version(tensor), tensor.layout)
        if content not in self._known:
            self._known[content] = super().pack(tensor)
        return self._known[content]


class _RemembersAcrossSteps(_Remembers):
    def version(self, tensor: Any) -> int:
        return self.backend.version(tensor)


class _IgnoresVersions(_Remembers):
    def version(self, tensor: Any) -> int:
        return 0


@caught_by("test_line06_content_modified_between_two_saves_is_two_payloads")
class IgnoresVersions(Planted):
    session = _IgnoresVersions


@caught_by("test_line06_what_the_graph_made_modified_between_two_saves_is_two_payloads", device="sim:0")
class CountsNoVersions(Planted):
    class Backend(ReferenceBackend):
        def version(self, tensor: Any, /) -> int:
            return 0


@caught_by(
    "test_line06_content_is_never_shared_across_steps",
    "test_line06_content_is_never_shared_across_entries",
    "test_line06_content_is_never_shared_across_a_drain",
)
class RemembersAcrossSteps(Planted):
    session = _RemembersAcrossSteps


# Line 7: never stashed


@caught_by(
    "test_line07_parameters_and_views_of_them_are_kept",
    "test_line07_frozen_parameters_are_kept",
    "test_line07_views_of_frozen_parameters_are_kept",
    "test_line07_leaves_that_require_grad_are_kept",
    "test_line07_the_weights_of_a_model_are_never_stashed",
)
class StashesEverything(Planted):
    class Backend(ReferenceBackend):
        def keep_reason(self, tensor: Any, /) -> None:
            return None


@caught_by("test_line07_small_tensors_are_kept")
class IgnoresTheThreshold(Planted):
    def stash(self, policy: Any, *, min_bytes: Any = 0, limits: Limits | None = None) -> Stash:
        return super().stash(policy, limits=limits)


@caught_by("test_line07_offloading_to_the_host_keeps_what_is_there")
class OffloadsWhatIsThere(Planted):
    def stash(self, policy: Any, **options: Any) -> Stash:
        return super().stash(StoreIn(Memory()) if policy == CpuOffload() else policy, **options)


@caught_by("test_line07_kinds_that_cannot_be_rebuilt_are_kept", control=PlantedTorch)
class TakesSubclassesForPlain(PlantedTorch):
    class Backend(TorchBackend):
        def keep_reason(self, tensor: Any, /) -> str | None:
            reason = super().keep_reason(tensor)
            return None if reason == "subclass" else reason
