"""Lines 5 to 7 broken on purpose, one fault each, and the checks that must notice."""

from typing import Any

from planted import Planted, PlantedTorch, caught_by, planted, replacing

from tensorstash import CpuOffload
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.engine.session import Session
from tensorstash.errors import SavedTensorModifiedError
from tensorstash.policies import StoreIn
from tensorstash.stores.memory import Memory

# Line 5: ownership

HOARD: list[Any] = []


@replacing("session")
class HoardsHandles(Session):
    def pack(self, tensor: Any) -> Any:
        handle = super().pack(tensor)
        HOARD.append(handle)
        return handle


@caught_by("test_line05_a_tensor_of_its_own_dies_with_its_last_user")
@replacing("session")
class HoldsTensors(Session):
    def pack(self, tensor: Any) -> Any:
        self._tensors = [*getattr(self, "_tensors", []), tensor]
        return super().pack(tensor)


caught_by(
    "test_line05_a_branch_that_is_never_used_frees_its_slots",
    "test_line05_two_live_graphs_own_their_slots",
    "test_line05_slots_outlive_the_session_and_the_store_closes_with_the_last",
)(HoardsHandles)
caught_by("test_line08_a_store_that_fails_ends_in_a_named_error", fault="put_error")(HoardsHandles)
for place in ("forward", "backward"):
    caught_by("test_line05_an_exception_frees_every_slot", place=place)(HoardsHandles)
for ending in ("backward", "dropped", "retained"):
    caught_by("test_line05_a_graph_that_ends_frees_every_slot", ending=ending)(HoardsHandles)

caught_by("test_line05_a_dropped_graph_of_kept_tensors_is_freed")(
    planted("KeepsOutputsWithTheirHistory", PlantedTorch, backend={"alias": lambda self, tensor: tensor})
)

# Line 6: one copy


class Remembers(Session):
    def pack(self, tensor: Any) -> Any:
        self._known = getattr(self, "_known", {})
        content = (*self.backend.storage(tensor), self.version(tensor), tensor.layout)
        if content not in self._known:
            self._known[content] = super().pack(tensor)
        return self._known[content]

    def version(self, tensor: Any) -> int:
        return self.backend.version(tensor)


modified = "test_line06_content_modified_between_two_saves_is_two_payloads"


@caught_by(modified, raises=(SavedTensorModifiedError,), is_made=False, between="a write")
@replacing("session")
class IgnoresVersions(Remembers):
    def version(self, tensor: Any) -> int:
        return 0


caught_by(
    "test_line06_a_tensor_saved_twice_is_one_payload",
    "test_line06_views_of_the_same_elements_are_one_payload",
)(planted("NeverShares", backend={"storage": lambda self, tensor: (object(), tensor.offset)}))


@caught_by("test_line06_other_elements_of_the_same_storage_are_another_payload")
@replacing("backend.storage", PlantedTorch)
def forgets_the_offset(self: Any, tensor: Any) -> Any:
    return TorchBackend.storage(self, tensor)[0], 0


@caught_by("test_line06_a_reused_address_is_another_payload")
@replacing("backend.storage", PlantedTorch)
def keys_by_address(self: Any, tensor: Any) -> Any:
    return tensor.untyped_storage().data_ptr(), TorchBackend.storage(self, tensor)[1]


caught_by(modified, is_made=True, between="a write", device="sim:0")(
    planted("CountsNoVersions", backend={"version": lambda self, tensor: 0})
)

remembers = planted("RemembersAcrossSteps", session=Remembers)
for between in ("a drain", "another entry"):
    for is_made in (False, True):
        caught_by(modified, is_made=is_made, between=between)(remembers)

# Line 7: never stashed

caught_by("test_line07_parameters_views_of_them_and_leaves_that_require_grad_are_kept")(
    planted("StashesEverything", backend={"keep_reason": lambda self, tensor: None})
)


@caught_by("test_line07_small_tensors_are_kept")
@replacing("stash")
def ignores_the_threshold(self: Any, policy: Any, min_bytes: Any = 0, limits: Any = None) -> Any:
    return Planted.stash(self, policy, limits=limits)


@caught_by("test_line07_offloading_to_the_host_keeps_what_is_there")
@replacing("stash")
def offloads_what_is_there(self: Any, policy: Any, **options: Any) -> Any:
    return Planted.stash(self, StoreIn(Memory()) if policy == CpuOffload() else policy, **options)


@caught_by("test_line07_kinds_that_cannot_be_rebuilt_are_kept")
@replacing("backend.keep_reason", PlantedTorch)
def takes_subclasses_for_plain(self: Any, tensor: Any) -> str | None:
    reason = TorchBackend.keep_reason(self, tensor)
    return None if reason == "subclass" else reason
