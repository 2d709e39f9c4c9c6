"""Every layout of every element type goes to the host and comes back as it was."""

import os
import sys
import threading

import numpy as np
import pytest
import torch

from tensorstash.backends.torch.layout import DTYPE_NAMES
from tensorstash.host.arrays import borrowed
from tensorstash.testing.labs.torch import TorchLab
from tensorstash.testing.layouts import LAYOUTS, assert_same_bits

LAB = TorchLab()

neg_view = torch._neg_view


def assert_round_trip(backend, tensor):
    assert backend.keep_reason(tensor) in (None, "memory of another library")  # NumPy has read it before
    spec = backend.spec(tensor)
    version = backend.version(tensor)
    host = backend.to_host(tensor, spec)
    assert host.shape == spec.dense().shape
    assert host.dtype.name == spec.carrier
    assert host.flags.c_contiguous
    for data in (borrowed(host), host.copy()):
        back = backend.from_host(data, spec)
        assert LAB.layout(back) == LAB.layout(tensor)
        assert_same_bits(LAB.bits(back), LAB.bits(tensor), "what came back")
        assert back._base is None
        assert back.grad_fn is None
        assert not back.requires_grad
    assert backend.version(tensor) == version


def test_a_view_without_elements_may_begin_behind_its_memory(backend):
    assert_round_trip(backend, torch.zeros(0, 0, dtype=torch.complex64).imag)


@pytest.mark.parametrize("layout", [name for name, layout in LAYOUTS.items() if not layout.is_reversed])
def test_conj_and_neg_flags_come_back(backend, layout):
    for dtype in ("complex32", "complex64", "complex128"):
        conjugated = LAYOUTS[layout].of(LAB, dtype).conj()
        assert conjugated.is_conj()
        assert_round_trip(backend, conjugated)
        assert_round_trip(backend, neg_view(conjugated))
        negated = conjugated.imag
        assert negated.is_neg()
        assert_round_trip(backend, negated)


def test_the_table_holds_every_dtype_that_numpy_and_its_carriers_can_move():
    build = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    absent = {str(dtype).removeprefix("torch.") for dtype in build - set(DTYPE_NAMES)}
    quantized = {"qint8", "qint32", "quint8", "quint4x2", "quint2x4"}
    below_a_byte = {f"{sign}int{n}" for sign in ("", "u") for n in range(1, 8)} | {"bits1x8", "bits2x4", "bits4x2"}
    experimental = {"bcomplex32"}  # from PyTorch 2.14 on; hardly any operator takes it
    assert absent <= quantized | below_a_byte | experimental


def test_address_that_is_no_multiple_of_the_itemsize_comes_back(backend):
    tensor = torch.from_numpy(np.zeros(101, np.uint8)[1:]).view(torch.float32)
    tensor.copy_(torch.arange(25))
    assert tensor.data_ptr() % 4
    assert_round_trip(backend, tensor)


@pytest.mark.parametrize("nbytes", [0, 100 * 100 * 4 - 1])
def test_freed_memory_is_an_error_and_no_crash(backend, nbytes):
    tensor = torch.randn(100, 100)
    spec = backend.spec(tensor)
    tensor.untyped_storage().resize_(nbytes)  # as FSDP does with gathered weights
    with pytest.raises(RuntimeError, match=f"out of bounds for storage of size {nbytes}"):
        backend.to_host(tensor, spec)


@pytest.mark.skipif(sys.platform != "linux", reason="a process lists its threads nowhere else")
def test_a_thread_that_copies_gaps_away_starts_no_thread_of_the_framework(backend):
    tensor = torch.randn(1024, 1024)[:, ::2]
    spec, counts = backend.spec(tensor), []

    def copy():
        for _ in range(2):
            counts.append(len(os.listdir("/proc/self/task")) - threading.active_count())
            backend.to_host(tensor, spec)

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        worker = threading.Thread(target=copy)
        worker.start()
        worker.join()
    finally:
        torch.set_num_threads(threads)
    assert len(set(counts)) == 1


def test_storage_token_does_not_keep_memory_alive(backend):
    tensor = torch.randn(4, 8)
    token, _ = backend.storage(tensor)
    expired = torch.UntypedStorage._expired
    assert not expired(token)
    del tensor
    assert expired(token)


@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
@pytest.mark.parametrize("layout", [name for name, layout in LAYOUTS.items() if not layout.is_reversed])
def test_dense_elements_and_the_layout_they_came_from(backend, layout, dtype, adopt):
    for device in LAB.devices:
        tensor = LAYOUTS[layout].of(LAB.on(device), dtype)
        spec = backend.spec(tensor)
        dense = backend.layouts.dense(tensor, spec)
        assert dense.is_contiguous()
        assert backend.spec(dense).shape == spec.dense().shape
        back = backend.layouts.restored(dense.clone(), spec, adopt=adopt)
        assert LAB.layout(back) == LAB.layout(tensor)
        assert_same_bits(LAB.bits(back), LAB.bits(tensor), layout)
        assert back.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()


def test_memory_of_dense_elements_is_adopted_only_where_that_is_allowed(backend):
    dense = torch.randn(36)[:35]
    spec = backend.spec(dense.reshape(5, 7).t())
    assert backend.layouts.restored(dense, spec, adopt=True).data_ptr() == dense.data_ptr()
    assert backend.layouts.restored(dense, spec, adopt=False).data_ptr() != dense.data_ptr()
    elsewhere = backend.layouts.restored(dense, backend.spec(torch.randn(36)[1:]), adopt=True)
    assert elsewhere.data_ptr() != dense.data_ptr()
    assert torch.equal(elsewhere, dense)


def test_a_payload_has_the_type_and_shape_of_its_spec_and_shares_host_memory(backend):
    tensor = torch.randn(6, 4).to(torch.bfloat16)
    spec = backend.spec(tensor)
    data = backend.to_host(tensor, spec)
    payload = backend.kernels.payload(data, spec)
    assert torch.equal(payload, tensor)
    assert payload.data_ptr() == tensor.data_ptr()
