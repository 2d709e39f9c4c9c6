"""Lines 1 to 4 broken on purpose, one fault each, and the checks that must notice."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import call
from typing import Any, ClassVar

import numpy as np
import paddle
import torch
from planted import Answering, Fault, Planted, PlantedPaddle, PlantedTorch, note

from tensorstash import reference
from tensorstash.api import Stash
from tensorstash.backends.paddle.backend import PaddleBackend
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.engine.session import Session
from tensorstash.errors import SavedTensorModifiedError, StoreError, TensorStashError
from tensorstash.host.arrays import adopted
from tensorstash.policies import Encode
from tensorstash.policies.limits import Limits
from tensorstash.spec import contiguous_strides

FAULTS: list[Fault] = []
caught_by = partial(note, FAULTS)


# Line 1: the same training


@caught_by(
    "test_line01_gradients_are_bitwise_those_without_hooks",
    "test_line01_parameters_after_training_are_bitwise_equal",
    dtype="float32",
)
@caught_by("test_line01_gradients_of_strided_operands_are_bitwise", layout="contiguous")
class FlipsTheLastBit(Planted):
    class Backend(ReferenceBackend):
        def from_host(self, data: Any, spec: Any, /) -> Any:
            tensor = super().from_host(data, spec)
            if spec.kind == "float" and spec.numel:
                tensor.storage.buffer[tensor.offset] ^= 1
            return tensor


@caught_by("test_line01_the_random_state_of_the_user_is_untouched")
class DrawsFromTheUser(Planted):
    class Backend(ReferenceBackend):
        def to_host(self, tensor: Any, spec: Any, /) -> Any:
            np.random.random()
            return super().to_host(tensor, spec)


@caught_by("test_line01_a_lossy_codec_keeps_its_bound")
class AddsNoise(Planted):
    class Backend(ReferenceBackend):
        def from_host(self, data: Any, spec: Any, /) -> Any:
            return super().from_host(data + np.asarray(0.5, data.dtype), spec)


@dataclass(frozen=True, kw_only=True)
class DropsLowBits:
    """Claims to be lossless."""

    name: ClassVar[str] = "drops_low_bits"
    lossless: ClassVar[bool] = True
    kind: ClassVar[str] = "array->array"

    def accepts(self, spec: Any, /) -> bool:
        return spec.kind in ("int", "uint", "bool")

    def encoded_spec(self, spec: Any, /) -> Any:
        return spec

    def encode(self, data: Any, spec: Any, /) -> Any:
        return data & ~np.asarray(1, data.dtype) if data.dtype != np.bool_ else ~data

    def decode(self, data: Any, spec: Any, /) -> Any:
        return data.copy()


@caught_by(
    "test_line01_lossy_policies_never_touch_integers",
    "test_line01_rows_chosen_by_a_stashed_index_are_the_same",
)
class TouchesIntegers(Planted):
    def stash(self, policy: Any, **options: Any) -> Stash:
        return super().stash(Encode(DropsLowBits()) | policy, **options)


# Line 2: the same tensor


@caught_by("test_line02_backward_sees_the_saved_bits_and_layout", layout="transposed")
@caught_by("test_line02_backward_sees_the_saved_bits_and_layout", layout="expanded")
@caught_by("test_line02_backward_sees_the_saved_bits_and_layout", layout="split columns")
class DropsStrides(Planted):
    class Backend(ReferenceBackend):
        def from_host(self, data: Any, spec: Any, /) -> Any:
            return super().from_host(data, spec).contiguous().clone()


@caught_by("test_line02_backward_sees_the_saved_bits_and_layout", layout="offset")
class DropsAlignment(Planted):
    class Backend(ReferenceBackend):
        def spec(self, tensor: Any, /) -> Any:
            spec = super().spec(tensor)
            return type(spec)(spec.shape, spec.strides, spec.offset, spec.dtype, spec.device)


@caught_by("test_line02_nan_payloads_signed_zeros_and_subnormals_survive")
class ComputesWithPayloads(Planted):
    class Backend(ReferenceBackend):
        def from_host(self, data: Any, spec: Any, /) -> Any:
            with np.errstate(all="ignore"):
                return super().from_host(data + data.dtype.type(0) if data.dtype.kind == "f" else data, spec)


@caught_by("test_line02_lazy_flags_survive", control=PlantedTorch)
class ForgetsConjugation(PlantedTorch):
    class Backend(TorchBackend):
        def from_host(self, data: Any, spec: Any, /) -> Any:
            tensor = super().from_host(data, spec)
            return torch.view_as_complex(torch.view_as_real(tensor.conj())) if tensor.is_conj() else tensor


@caught_by("test_line02_requires_grad_comes_back_as_the_framework_expects", control=PlantedPaddle)
class LeavesPyLayersToPaddle(PlantedPaddle):
    class Backend(PaddleBackend):
        def hooks(self, pack: Any, unpack: Any, /, *, trusted: bool = False) -> Any:
            return paddle.autograd.saved_tensors_hooks(lambda tensor: partial(unpack, pack(tensor)), call)


@caught_by("test_line02_every_unpack_is_fresh_private_and_writable")
class LendsThePayload(Planted):
    class Backend(ReferenceBackend):
        def from_host(self, data: Any, spec: Any, /) -> Any:
            writable = np.ndarray(data.nbytes, np.uint8, _address_as_buffer(data))
            strides = contiguous_strides(spec.shape)
            tensor = reference.from_buffer(writable, spec.shape, strides, 0, spec.dtype, spec.device)
            self._lent = data
            return tensor


def _address_as_buffer(data: Any) -> Any:
    import ctypes

    return (ctypes.c_uint8 * data.nbytes).from_address(data.ctypes.data)


class _StoresStorages(Session):
    def pack(self, tensor: Any) -> Any:
        whole = tensor.as_strided((tensor.storage.nbytes // 4,), (1,), 0)
        self._whole = super().pack(whole)
        return super().pack(tensor)


@caught_by("test_line02_only_the_elements_of_a_view_are_stored")
class StoresTheWholeStorage(Planted):
    session = _StoresStorages


# Line 3: any order, any number


class _Once(Session):
    """Gives each tensor away once, as trackers that pop do."""

    def pack(self, tensor: Any) -> Any:
        handles = [super().pack(tensor)]
        return lambda: self.unpack(handles.pop())


@caught_by(
    "test_line03_handles_unpack_in_any_order_and_number",
    "test_line03_retained_graph_runs_backward_again",
    "test_line05_a_retained_graph_frees_its_slots_when_it_is_dropped",
    raises=(IndexError,),
)
class GivesTensorsAwayOnce(Planted):
    session = _Once


class _LastInFirstOut(Session):
    """Believes that backward asks in reverse order of packing."""

    def pack(self, tensor: Any) -> Any:
        self._stack = [*getattr(self, "_stack", []), super().pack(tensor)]
        return lambda: self.unpack(self._stack.pop())


@caught_by(
    "test_line03_handles_unpack_in_any_order_and_number",
    "test_line03_double_backward",
    "test_line03_a_tensor_nobody_asks_for_is_no_trouble",
    raises=(IndexError, reference.HookError),
)
class CountsOnReverseOrder(Planted):
    session = _LastInFirstOut


class _OneThread(Answering):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._maker = threading.get_ident()

    def answer(self, handle: Any, like: Any) -> Any:
        return self.unpack(handle) if threading.get_ident() == self._maker else reference.zeros(*like)


@caught_by(
    "test_line03_handles_unpack_on_any_thread_at_once",
    "test_line03_backward_inside_the_scope_or_on_another_thread",
)
class KnowsOneThread(Planted):
    session = _OneThread


class _OwnsPayloads(Session):
    """Has the graph hold numbers only, and forgets what they stand for at the end of the scope."""

    def pack(self, tensor: Any) -> Any:
        self._handles = [*getattr(self, "_handles", []), super().pack(tensor)]
        number = len(self._handles) - 1
        return lambda: self.unpack(self._handles[number])

    @contextmanager
    def scope(self) -> Iterator[Any]:
        with super().scope():
            yield self
        self._handles = []


@caught_by("test_line03_backward_after_stash_and_session_are_gone", raises=(IndexError,))
class OwnsThePayloads(Planted):
    session = _OwnsPayloads


# Line 4: in-place safety


@caught_by(
    "test_line04_a_kept_tensor_modified_in_place_is_refused",
    "test_line04_a_kept_parameter_modified_before_backward_is_refused",
    "test_line04_bytes_modified_before_they_are_captured_are_refused",
)
class SkipsTheVersionCheck(Planted):
    class Backend(ReferenceBackend):
        def version(self, tensor: Any, /) -> int:
            return 0


@caught_by("test_line04_captured_bytes_are_immune", control=PlantedTorch)
class StoresAnAlias(PlantedTorch):
    class Backend(TorchBackend):
        def to_host(self, tensor: Any, spec: Any, /) -> Any:
            return adopted(super().to_host(tensor, spec))


class _Waits(Answering):
    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, limits=Limits(timeout_s=0.05), **kwargs)

    def answer(self, handle: Any, like: Any) -> Any:
        self.drain()
        return self.unpack(handle)


@caught_by("test_line04_an_unpack_does_not_wait_for_bytes_on_their_way", raises=(StoreError,))
class WaitsForTheStore(Planted):
    session = _Waits


@caught_by("test_line04_what_trains_without_hooks_trains", raises=(SavedTensorModifiedError,))
class RefusesWhatWasEverModified(Planted):
    class Backend(ReferenceBackend):
        def __init__(self) -> None:
            self._asked = 0

        def version(self, tensor: Any, /) -> int:
            self._asked += tensor._version > 0
            return self._asked


class _Poisoned(Answering):
    _error: BaseException | None = None

    def answer(self, handle: Any, like: Any) -> Any:
        try:
            if self._error is not None:
                raise self._error
            return self.unpack(handle)
        except TensorStashError as error:
            self._error = error
            raise


@caught_by(
    "test_line04_the_next_step_works_after_a_refusal",
    "test_line08_a_failed_backward_of_a_retained_graph_can_be_tried_again",
    raises=(TensorStashError,),
)
@caught_by("test_line08_a_store_that_fails_ends_in_a_named_error", raises=(TensorStashError,), fault="get_error", at=1)
@caught_by("test_line08_a_codec_that_fails_ends_in_a_named_error", raises=(TensorStashError,), fault="decode_error")
class StaysPoisoned(Planted):
    session = _Poisoned
