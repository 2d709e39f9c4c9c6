"""What may happen between saving a tensor and capturing its bytes, with a worker that is held back on purpose."""

import numpy as np
import pytest
import torch
from gates import Gated, behind
from inside import in_flight

import tensorstash as ts
import tensorstash.reference as ref
from tensorstash.errors import StoreError
from tensorstash.host.workers import Workers
from tensorstash.policies import StoreIn
from tensorstash.stores import Memory
from tensorstash.testing import FaultyStore
from tensorstash.testing.labs import BACKENDS, lab_of
from tensorstash.testing.layouts import assert_same_bits, floats


def leaf(values=(1.0, 2.0, 3.0)):
    return ref.tensor(np.array(values, np.float32), requires_grad=True)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_codec_loses_is_lost_to_a_request_before_the_capture_too(backend, rounding):
    lab = lab_of(backend)
    lab = lab.on(lab.devices[-1])

    def gradient(closed):
        gate = Gated()
        if closed:
            gate.puts.clear()
        policy = ts.Quantize(4, rounding=rounding) | StoreIn(gate)
        limits = ts.Limits(in_flight="1MiB" if closed else 0)
        x = lab.tensor(floats(40, 33), requires_grad=True)
        with ts.stash(policy, framework=backend, min_bytes=0, limits=limits):
            y = (x * x).exp().sum()
        lab.backward(y)
        assert (gate.opened[0].put_count == 0) is closed
        gate.puts.set()
        return lab.gradient(x)

    assert_same_bits(gradient(True), gradient(False), "a gradient of what was not stored yet")


def test_a_dropped_graph_takes_its_waiting_work_with_it(no_gc):
    gate = Gated()
    gate.puts.clear()
    stash, x = behind(gate, in_flight="1MiB"), leaf()
    with stash as session:
        for _ in range(5):
            y = (x * 1.0).exp().sum()
    gate.arrived.acquire()
    del y
    gate.puts.set()
    session.drain()
    # One was inside put already; the others were never started.
    assert gate.opened[0].put_count == 1
    assert gate.slots == 0
    assert stash.stats().live.tensors == 0


def test_bytes_in_flight_come_back_when_launching_a_capture_raises(monkeypatch):
    gate = Gated()
    stash, x = behind(gate, in_flight=100), leaf()

    def refuse(*_, **__):
        raise StoreError("planted")

    monkeypatch.setattr(Workers, "submit", refuse)
    with pytest.raises(StoreError, match="planted") as caught, stash:
        (x * 1.0).exp()
    assert caught.value.__traceback__ is not None, "what holds every frame there was"
    assert in_flight(stash).used == 0
    monkeypatch.undo()
    del caught
    with stash:
        y = (x * 1.0).exp().sum()
    y.backward()
    assert np.array_equal(x.grad.numpy(), np.exp(np.float32([1, 2, 3])))
    assert gate.opened


def test_a_tensor_larger_than_the_limit_is_captured_before_pack_returns():
    gate = Gated()
    stash, x = behind(gate, in_flight=8), leaf()
    with stash:
        y = (x * 1.0).exp().sum()
        assert gate.opened[0].put_count == 1
    y.backward()
    assert np.array_equal(x.grad.numpy(), np.exp(np.float32([1, 2, 3])))
    assert stash.stats().forwarded == 0


@pytest.mark.parametrize("in_flight", ["1MiB", 0])
def test_memory_that_is_not_there_for_a_copy_is_named(in_flight, monkeypatch):
    def refuse(data):
        raise MemoryError(f"{data.size} bytes")

    limits = ts.Limits(in_flight=in_flight, timeout_s=60)
    stash = ts.stash(StoreIn(Memory()), framework="torch", min_bytes=0, limits=limits)

    def step():
        x = torch.tensor([1.0, 2, 3], requires_grad=True)
        with stash as session:
            loss = (x * 1.0).exp().sum()
        session.drain()
        loss.backward()
        return x.grad.numpy()

    monkeypatch.setattr("tensorstash.engine.place.copied", refuse)
    with pytest.raises(StoreError, match=r"stage 1 of 1 \(Memory\(.*tensor float32\(3,\).*MemoryError: 12 bytes"):
        step()
    monkeypatch.undo()
    assert np.array_equal(step(), torch.tensor([1.0, 2, 3]).exp())


def test_a_failure_keeps_no_frame_and_no_memory_alive(no_gc):
    class Broken(Gated):
        def open(self):
            store = super().open()
            store.put = lambda data: (_ for _ in ()).throw(OSError(5, "Input/output error"))
            return store

    before = ref.memory("sim:0").allocated_bytes
    stash = ts.stash(StoreIn(Broken()), framework="reference", min_bytes=0)
    x = ref.tensor(np.ones(1000, np.float32), device="sim:0", requires_grad=True)
    with stash as session:
        y = (x * 1.0).exp().sum()
    session.drain()
    assert ref.memory("sim:0").allocated_bytes - before < 3 * 4000
    for retain_graph in (True, False):
        with pytest.raises(StoreError, match=r"stage 1 of 1 .*Broken.*float32\(1000,\).*Input/output error"):
            y.backward(retain_graph=retain_graph)
    del y, x
    assert ref.memory("sim:0").allocated_bytes == before


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_a_failed_read_is_told_once_and_the_next_backward_reads_again(device):
    def loss(x):
        return (x * 1.5).exp().exp().tanh().sum()

    plain, x = (ref.tensor(np.linspace(-1, 1, 64, dtype=np.float32), device=device, requires_grad=True) for _ in "ab")
    loss(plain).backward()
    faulty = StoreIn(FaultyStore(fault="get_error", at=2))  # on a device read ahead, when another one is asked for
    with ts.stash(faulty, framework="reference", min_bytes=0) as session:
        y = loss(x)
    session.drain()
    with pytest.raises(StoreError, match=r"stage 1 of 1 \(FaultyStore.*injected by FaultyStore"):
        y.backward(retain_graph=True)
    for _ in range(2):
        x.grad = None
        y.backward(retain_graph=True)
        assert np.array_equal(x.grad.to("cpu").numpy(), plain.grad.to("cpu").numpy())
