"""Lines 1 to 4 broken on purpose, one fault each, and the checks that must notice."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import call
from typing import Any

import numpy as np
import torch
from broken_codecs import Copy
from paddle.base import core
from planted import Answering, Planted, PlantedPaddle, PlantedTorch, caught_by, planted, replacing

from tensorstash import reference
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.engine.session import Session
from tensorstash.errors import SavedTensorModifiedError, StoreError, TensorStashError
from tensorstash.host.arrays import adopted
from tensorstash.policies import Encode
from tensorstash.policies.limits import Limits
from tensorstash.spec import contiguous_strides

from_host = ReferenceBackend.from_host

# Line 1: the same training


@caught_by(
    "test_line01_training_is_bitwise_that_without_hooks",
    "test_line01_gradients_of_strided_operands_are_bitwise",
)
@replacing("backend.from_host")
def flips_the_last_bit(self: Any, data: Any, spec: Any) -> Any:
    tensor = from_host(self, data, spec)
    if spec.kind == "float" and spec.numel:
        tensor.storage.buffer[tensor.offset] ^= 1
    return tensor


@caught_by("test_line01_the_random_state_of_the_user_is_untouched")
@replacing("backend.to_host")
def draws_from_the_user(self: Any, tensor: Any, spec: Any) -> Any:
    np.random.random()
    return ReferenceBackend.to_host(self, tensor, spec)


@caught_by("test_line01_a_lossy_codec_keeps_its_bound")
@replacing("backend.from_host")
def adds_noise(self: Any, data: Any, spec: Any) -> Any:
    return from_host(self, data + np.asarray(0.5, data.dtype), spec)


class DropsLowBits(Copy):
    """Claims to be lossless."""

    def accepts(self, spec: Any, /) -> bool:
        return spec.kind in ("int", "uint", "bool")

    def encode(self, data: Any, spec: Any, /) -> Any:
        return data & ~np.asarray(1, data.dtype) if data.dtype != np.bool_ else ~data


@caught_by("test_line01_lossy_policies_never_touch_integers")
@replacing("stash")
def touches_integers(self: Any, policy: Any, **options: Any) -> Any:
    return Planted.stash(self, Encode(DropsLowBits()) | policy, **options)


# Line 2: the same tensor

LAYOUT = "test_line02_backward_sees_the_saved_bits_and_layout"


@caught_by(LAYOUT)
@replacing("backend.from_host")
def drops_strides(self: Any, data: Any, spec: Any) -> Any:
    return from_host(self, data, spec).contiguous().clone()


@caught_by(LAYOUT)
@replacing("backend.spec")
def drops_alignment(self: Any, tensor: Any) -> Any:
    return replace(ReferenceBackend.spec(self, tensor), alignment=0)


@caught_by(LAYOUT)
@replacing("backend.from_host")
def computes_with_payloads(self: Any, data: Any, spec: Any) -> Any:
    with np.errstate(all="ignore"):
        return from_host(self, data + data.dtype.type(0) if data.dtype.kind == "f" else data, spec)


@caught_by("test_line02_lazy_flags_survive")
@replacing("backend.from_host", PlantedTorch)
def forgets_conjugation(self: Any, data: Any, spec: Any) -> Any:
    tensor = TorchBackend.from_host(data, spec)
    return torch.view_as_complex(torch.view_as_real(tensor.conj())) if tensor.is_conj() else tensor


@caught_by("test_line02_requires_grad_comes_back_as_the_framework_expects")
@replacing("backend.hooks", PlantedPaddle)
@contextmanager
def leaves_layers_to_paddle(self: Any, pack: Any, unpack: Any, *, trusted: bool = False) -> Iterator[None]:
    core.eager.register_saved_tensors_hooks(lambda tensor: partial(unpack, pack(tensor)), call)
    yield
    core.eager.reset_saved_tensors_hooks()


@caught_by("test_line02_every_unpack_is_fresh_private_and_writable")
@replacing("backend.from_host")
def lends_the_payload(self: Any, data: Any, spec: Any) -> Any:
    self._lent = data
    lent = np.ndarray(data.nbytes, np.uint8, (ctypes.c_uint8 * data.nbytes).from_address(data.ctypes.data))
    return reference.from_buffer(lent, spec.shape, contiguous_strides(spec.shape), 0, spec.dtype, spec.device)


@caught_by("test_line02_only_the_elements_of_a_view_are_stored")
@replacing("session")
class StoresTheWholeStorage(Session):
    def pack(self, tensor: Any) -> Any:
        whole = tensor.as_strided((tensor.storage.nbytes // 4,), (1,), 0)
        self._whole = super().pack(whole)
        return super().pack(tensor)


# Line 3: any order, any number


@caught_by(
    "test_line03_handles_unpack_in_any_order_and_number_on_any_thread",
    "test_line03_double_backward",
    raises=(IndexError,),
)
@caught_by("test_line03_backward_runs_anywhere_and_again", raises=(IndexError,), way="twice")
@caught_by("test_line05_a_graph_that_ends_frees_every_slot", raises=(IndexError,), ending="retained")
@replacing("session")
class GivesTensorsAwayOnce(Session):
    """As trackers that pop do."""

    def pack(self, tensor: Any) -> Any:
        handles = [super().pack(tensor)]
        return lambda: self.unpack(handles.pop())


@caught_by("test_line03_handles_unpack_in_any_order_and_number_on_any_thread")
@caught_by("test_line03_backward_runs_anywhere_and_again", way="on another thread")
@replacing("session")
class KnowsOneThread(Answering):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._maker = threading.get_ident()

    def answer(self, handle: Any, like: Any) -> Any:
        return self.unpack(handle) if threading.get_ident() == self._maker else reference.zeros(*like)


# Line 4: in-place safety

caught_by(
    "test_line04_a_kept_tensor_modified_in_place_is_refused_and_the_next_step_works",
    "test_line04_a_kept_parameter_modified_before_backward_is_refused",
    "test_line04_bytes_modified_before_they_are_captured_are_refused",
)(planted("SkipsTheVersionCheck", backend={"version": lambda self, tensor: 0}))


@caught_by("test_line04_captured_bytes_are_immune")
@replacing("backend.to_host", PlantedTorch)
def stores_an_alias(self: Any, tensor: Any, spec: Any) -> Any:
    return adopted(TorchBackend.to_host(tensor, spec))


@caught_by("test_line04_an_unpack_does_not_wait_for_bytes_on_their_way", raises=(StoreError,))
@replacing("session")
class WaitsForTheStore(Answering):
    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, limits=Limits(timeout_s=0.05), **kwargs)

    def answer(self, handle: Any, like: Any) -> Any:
        self.drain()
        return self.unpack(handle)


@caught_by("test_line04_what_trains_without_hooks_trains", raises=(SavedTensorModifiedError,))
@replacing("backend.version")
def refuses_what_was_ever_modified(self: Any, tensor: Any) -> int:
    self._asked = getattr(self, "_asked", 0) + (tensor._version > 0)
    return self._asked


caught = partial(caught_by, raises=(TensorStashError,))


@caught(
    "test_line04_a_kept_tensor_modified_in_place_is_refused_and_the_next_step_works",
    "test_line08_a_failed_backward_of_a_retained_graph_can_be_tried_again",
)
@caught("test_line08_a_store_that_fails_ends_in_a_named_error", fault="get_error")
@caught("test_line08_a_codec_that_fails_ends_in_a_named_error", fault="decode_error")
@replacing("session")
class StaysPoisoned(Answering):
    _error: BaseException | None = None

    def answer(self, handle: Any, like: Any) -> Any:
        try:
            if self._error is not None:
                raise self._error
            return self.unpack(handle)
        except TensorStashError as error:
            self._error = error
            raise
