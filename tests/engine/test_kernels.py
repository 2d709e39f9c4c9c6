"""Codecs that run where the tensor is: the same meaning, a small transfer, and payloads that stay on their device."""

from typing import Any

import numpy as np
import pytest
from gates import Gated

import tensorstash as ts
import tensorstash.reference as ref
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.backends.reference.devices import DeviceKernels, NumpyKernel
from tensorstash.engine.session import Session
from tensorstash.errors import CodecError
from tensorstash.policies import Encode, StoreIn
from tensorstash.stores.memory import MemoryStore
from tensorstash.testing.faults import FaultyCodec
from tensorstash.testing.harness import AT_ONCE, reference_counting_only

SIM = ref.memory("sim:0")
N = 1024
POLICIES = {
    "stays": ts.Quantize(bits=4),
    "memory": ts.Quantize(bits=4) | ts.CpuOffload(),
    "cast": ts.Cast("bfloat16") | ts.CpuOffload(),
    "two kernels": ts.Cast("bfloat16") | ts.Quantize(bits=8),
    "compressed": ts.Quantize(bits=4) | ts.Compress(min_ratio=1),
}


class HostOnly(ReferenceBackend):
    """A backend without kernels."""

    kernels = None  # type: ignore[assignment]


class EveryKernel(DeviceKernels):
    """Kernels for the codecs of the tests, too."""

    def kernel(self, codec: Any, spec: Any, /) -> Any:
        return NumpyKernel(codec, spec) if spec.device != "cpu" else None


class WithKernel(ReferenceBackend):
    """A backend that also has kernels for the codecs of the tests."""

    kernels = EveryKernel()


def session(policy: Any, backend: Any = None, limits: ts.Limits = ts.Limits()) -> Session[Any]:  # noqa: B008
    return Session(policy, backend or ReferenceBackend(), min_bytes=0, limits=limits)


def leaf() -> Any:
    values = np.random.default_rng(3).standard_normal((8, N // 8)).astype(np.float32)
    return ref.tensor(values, device="sim:0", requires_grad=True)


class WithoutStreams(ReferenceBackend):
    """A backend whose devices do their work in the order of the program."""

    streams = None  # type: ignore[assignment]


@pytest.mark.parametrize("backend", [HostOnly, WithoutStreams])
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("limits", [ts.Limits(), AT_ONCE], ids=["workers", "at once"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_gradients_are_the_same_without_kernels_and_without_streams(
    policy: Any, limits: ts.Limits, view: bool, backend: type[ReferenceBackend]
) -> None:
    gradients = []
    for here in (session(policy, backend(), limits), session(policy, None, limits)):
        with here.scope():
            x = leaf()
            y = x * 1.0
            loss = ((y.T if view else y) * 1.5).exp().tanh().sum()
        here.drain()
        stays = here.backend.kernels is not None and policy.plan(here.backend.spec(x)).store is None
        assert set(here.stats().stored) == ({"device"} if stays else {"memory"})
        loss.backward()
        gradients.append(x.grad.host_bits())
    assert np.array_equal(*gradients)


def test_a_recipe_is_proved_on_a_device_without_streams() -> None:
    backend, policy = WithoutStreams(), ts.Recompute() | ts.CpuOffload()
    here: Session[Any] = Session(policy, backend, min_bytes=0, limits=ts.Limits())
    with here.scope():
        hidden = (leaf() * 1.0).exp()
        loss = ref.ops.gelu(hidden.tanh() * hidden).sum()
    loss.backward()
    stats = here.stats()
    assert not stats.refused, dict(stats.refused)
    assert "mul" in stats.recomputed


def test_a_payload_that_stays_is_counted_and_freed_by_reference_counting() -> None:
    with reference_counting_only():
        before = SIM.allocated_bytes
        x = leaf()
        here = session(ts.Quantize(bits=8))
        with here.scope():
            loss = (x * 1.0).exp().exp().sum()
        here.drain()
        stats = here.stats()
        assert set(stats.stored) == {"device"}
        assert stats.stored["device"].tensors == 2
        assert stats.live.nbytes == SIM.allocated_bytes - before - x.nbytes - loss.nbytes
        assert stats.live.nbytes < 2 * 1.2 * N
        assert set(stats.stages) == {"affine"}
        del loss
        assert here.stats().live.tensors == 0
        assert SIM.allocated_bytes == before + x.nbytes


def test_a_payload_that_stays_answers_any_number_of_requests_with_private_memory() -> None:
    here = session(ts.Quantize(bits=8))
    tensor = leaf() * 1.0
    with here.scope():
        handle, twin = here.pack(tensor), here.pack(tensor)
    here.drain()
    first = handle()
    bits = first.host_bits()
    with ref.no_grad():
        first.mul_(0.0)
    for again in (handle, twin, handle):
        assert np.array_equal(again().host_bits(), bits)


@pytest.mark.parametrize("name", ["memory", "compressed"])
def test_only_the_small_payload_crosses(name: str) -> None:
    here = session(POLICIES[name])
    with here.scope():
        handle = here.pack(leaf() * 1.0)
    here.drain()
    stats = here.stats()
    after_kernel = stats.stages["affine"].bytes_out
    assert stats.stages["affine"].bytes_in == 4 * N
    assert after_kernel < 4 * N / 6
    behind = stats.stages["memory" if name == "memory" else "lossless"]
    assert behind.bytes_in == after_kernel
    handle()
    assert here.stats().stages["affine"].loads == 1


@pytest.mark.parametrize(
    "fault", ["encode_error", "encode_wrong_size", "encode_wrong_dtype", "decode_error", "decode_wrong_size"]
)
@pytest.mark.parametrize("stored", [False, True])
def test_a_kernel_that_fails_ends_in_an_error_that_names_it(fault: Any, stored: bool) -> None:
    policy = Encode(FaultyCodec(fault=fault)) | (StoreIn(Gated()) if stored else ts.Keep())
    here = session(policy, WithKernel())
    verb = fault.partition("_")[0]

    def step() -> None:
        with here.scope():
            handle = here.pack(leaf() * 1.0)
        here.drain()
        handle()

    with pytest.raises(CodecError, match=rf"stage 1 of 2 \(FaultyCodec.*tensor float32\(8, 128\) on sim:0: {verb}"):
        step()


def test_a_kernel_that_returns_no_tensor_ends_in_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumpyKernel, "encode", lambda self, dense: dense.host_bits())
    here = session(ts.Quantize(), None, AT_ONCE)
    with here.scope(), pytest.raises(CodecError, match=r"stage 1 of 2 .*encode returned ndarray, expected a tensor"):
        here.pack(leaf() * 1.0)


def test_in_host_memory_the_payload_goes_to_the_memory_store_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    stored: list[int] = []
    encode, put = NumpyKernel.encode, MemoryStore.put

    def noting(kernel: Any, dense: Any) -> Any:
        payload = encode(kernel, dense)
        made.append(payload.data_ptr())
        return payload

    monkeypatch.setattr(DeviceKernels, "kernel", lambda self, codec, spec: NumpyKernel(codec, spec))
    monkeypatch.setattr(NumpyKernel, "encode", noting)
    monkeypatch.setattr(MemoryStore, "put", lambda self, data: (stored.append(data.ctypes.data), put(self, data))[1])
    here = session(ts.Quantize(), None, AT_ONCE)
    x = leaf().to("cpu").detach()
    with here.scope():
        handle = here.pack(x)
    assert stored == made
    assert set(here.stats().stored) == {"memory"}
    spec = here.backend.spec(x)
    assert np.all(np.abs(handle().numpy() - x.numpy()) <= ts.codecs.Affine().error_bound(x.numpy(), spec))
