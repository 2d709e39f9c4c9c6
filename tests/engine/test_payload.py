"""One content and all who ask for it: what is the same, what is handed out, what is given back after a failure."""

import ctypes

import numpy as np
import paddle
import pytest
from gates import Gated, behind
from inside import ahead, in_flight, session_of, set_timeout

import tensorstash as ts
import tensorstash.reference as ref
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.engine import places
from tensorstash.engine.place import Place
from tensorstash.errors import SavedTensorModifiedError, StoreError
from tensorstash.policies import Route, Rule, StoreIn
from tensorstash.policies.plan import Plan
from tensorstash.policies.selectors import ModuleNames
from tensorstash.stores import Memory
from tensorstash.testing.labs.reference import ReferenceLab

VALUES = np.linspace(-1, 1, 50, dtype=np.float32)


def made():
    """Return a tensor that an operation has made."""
    return ref.tensor(VALUES, requires_grad=True) * 1.0


class Squaring(ref.nn.Module):
    """Saves what it is given, in the module inside of it and then itself."""

    def __init__(self, inner=None):
        self.inner = inner

    def forward(self, x):
        return x * x if self.inner is None else self.inner(x) + x * x


def test_a_content_saved_in_modules_of_two_policies_is_two_contents():
    stores = [Gated(), Gated()]
    rules = (Rule(ModuleNames("inner.inner"), StoreIn(stores[0])), Rule(ModuleNames("inner"), StoreIn(stores[1])))
    model = Squaring(Squaring(Squaring()))
    handle = ts.wrap(model, Route(rules), min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))
    leaf, plain = (ref.tensor(VALUES, requires_grad=True) for _ in range(2))
    Squaring(Squaring(Squaring()))(plain * 1.0).sum().backward()
    loss = model(leaf * 1.0).sum()
    assert {name: found.tensors for name, found in handle.stats().modules.items()} == {"inner.inner": 1, "inner": 1}
    assert [store.opened[0].put_count for store in stores] == [1, 1]
    loss.backward()
    assert np.array_equal(leaf.grad.numpy(), plain.grad.numpy())


def test_who_needs_a_content_second_does_not_see_what_a_kernel_wrote_into_the_first():
    # Paddle's kernels write into what they unpack, and its tensors take over the memory of what was read.
    tensor = paddle.to_tensor(VALUES, stop_gradient=False) * 1.0
    stash = ts.stash("disk_spill", framework="paddle", min_bytes=0)
    with stash as session:
        handles = [session_of(stash).pack(tensor) for _ in range(2)]
    del tensor
    session.drain()
    first = handles[0]()
    ctypes.memset(first.data_ptr(), 0, VALUES.nbytes)
    assert not first.numpy().any()
    assert np.array_equal(handles[1]().numpy(), VALUES)


def test_who_needs_a_content_second_does_not_see_what_was_written_into_the_first():
    stash, tensor = behind(Gated(), in_flight=0), made()
    with stash as session:
        handles = [session_of(stash).pack(tensor) for _ in range(3)]
    session.drain()
    first = handles[0]()
    with ref.no_grad():
        first.mul_(2.0)
    second = handles[1]()
    assert np.array_equal(second.numpy(), VALUES)
    address = ReferenceLab().address
    assert address(handles[2]()) == address(second), "which nobody wrote into"


def test_a_change_between_two_requests_for_one_content_is_refused():
    gate = Gated()
    stash, tensor = behind(gate, in_flight=0), made()
    with stash:
        handles = [session_of(stash).pack(tensor) for _ in range(2)]
    handles[0]()
    with ref.no_grad():
        tensor.mul_(2.0)
    with pytest.raises(SavedTensorModifiedError, match="at version 1; expected version 0"):
        handles[1]()
    assert gate.opened[0].get_count == 1


def test_a_change_while_the_source_is_copied_is_refused(monkeypatch):
    gate = Gated()
    gate.puts.clear()
    stash, tensor = behind(gate, in_flight="1MiB"), made()
    copy = Place.copy

    def changed_meanwhile(route, *source_and_layouts):
        with ref.no_grad():
            tensor.mul_(2.0)
        gate.puts.set()
        session.drain()  # who captures the bytes finds out, and lets go of the source
        return copy(route, *source_and_layouts)

    with stash as session:
        handle = session_of(stash).pack(tensor)
    monkeypatch.setattr(Place, "copy", changed_meanwhile)
    with pytest.raises(SavedTensorModifiedError, match="at version 1; expected version 0"):
        handle()


def test_what_was_read_ahead_counts_until_it_is_handed_out_or_could_not_be_read(monkeypatch):
    gate = Gated()
    stash, tensor = behind(gate, ahead="1MiB", in_flight=0), made()
    budget = ahead(stash)
    with stash:
        handle = session_of(stash).pack(tensor)
    store = gate.opened[0]

    def fail(slot):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store, "get", fail)
    assert handle.content.prefetch()
    assert budget.used == VALUES.nbytes
    with pytest.raises(StoreError, match="Input/output error"):
        handle()
    assert budget.used == 0
    monkeypatch.undo()
    assert handle.content.prefetch()
    assert budget.used == VALUES.nbytes
    assert np.array_equal(handle().numpy(), VALUES)
    assert budget.used == 0


def test_what_stays_on_its_device_is_not_held_for_who_asks_next(monkeypatch):
    monkeypatch.setattr(ReferenceBackend, "streams", None)
    tensor = ref.tensor(VALUES, device="sim:0", requires_grad=True) * 1.0
    stash = ts.stash("quantize:bits=8", framework="reference", min_bytes=0)
    with stash as session:
        handles = [session_of(stash).pack(tensor) for _ in range(2)]
    session.drain()
    del tensor
    handles[0]()
    assert ahead(stash).used == 0
    assert np.allclose(handles[1]().to("cpu").numpy(), VALUES, atol=0.01)


def test_no_more_kinds_of_tensors_are_remembered_than_a_few(monkeypatch):
    monkeypatch.setattr(places, "_REMEMBERED", 8)
    stash, planned, plan = behind(Gated()), [], StoreIn.plan
    monkeypatch.setattr(StoreIn, "plan", lambda policy, spec: planned.append(spec.shape) or plan(policy, spec))
    sizes = [*range(1, 30), 29, 1]
    with stash:
        handles = [session_of(stash).pack(ref.tensor(VALUES[:size], requires_grad=True) * 1.0) for size in sizes]
    assert planned == [*[(size,) for size in range(1, 30)], (1,)], "29 is remembered, and 1 is not"
    assert all(handle().shape == (size,) for size, handle in zip(sizes, handles, strict=True))


def test_no_two_plans_have_one_number_whoever_comes_in_between(monkeypatch):
    def between(plan):
        while others:
            found.append(ways.way(others.pop(), "")[1].number)
        return known(plan)

    monkeypatch.setattr(StoreIn, "plan", lambda policy, spec: Plan((), Memory(budget=spec.nbytes)))
    stash, known, found = behind(Gated()), Plan.__hash__, []
    ways, tensor = session_of(stash).places, made()
    others = [session_of(stash).backend.spec(tensor[:8])]
    monkeypatch.setattr(Plan, "__hash__", between)
    with stash:
        found.append(ways.way(session_of(stash).backend.spec(tensor), "")[1].number)
    assert len(set(found)) == 2


def test_what_drain_gave_up_is_not_waited_for_again():
    gate = Gated()
    gate.puts.clear()
    stash, tensor = behind(gate, in_flight="1MiB"), made()
    with stash as session:
        handle = session_of(stash).pack(tensor)
    gate.arrived.acquire()
    set_timeout(stash, 0.05)
    with pytest.raises(StoreError, match=r"200 bytes are still on their way after 0\.05 seconds"):
        session.drain()
    assert in_flight(stash).used == 0
    set_timeout(stash, 60)
    session.drain()
    gate.puts.set()
    del handle
