"""Contract line 6: one copy per content."""

import numpy as np
import pytest

from tensorstash.policies import StoreIn
from tensorstash.stores.memory import Memory
from tensorstash.testing.faults import Tap, Watched
from tensorstash.testing.harness import AT_ONCE, Harness, settled
from tensorstash.testing.layouts import assert_same_bits, floats
from tensorstash.testing.programs import square


class OneCopy(Harness):
    """Contract line 6."""

    def test_line06_a_tensor_saved_twice_is_one_payload(self, device: str) -> None:
        lab = self.lab
        tap = Tap()
        leaf, inner = square(lab, device)
        with self.scope(StoreIn(Watched(tap=tap))) as session:
            loss = lab.sum(lab.mul(lab.mul(inner, inner), inner))
        stats = session.stats()
        assert tap.live == 2, f"three times inner and once its square became {tap.live} payloads, expected 2"
        assert (stats.stashed.tensors, stats.deduplicated.tensors) == (2, 2)
        assert stats.live.nbytes == tap.live_bytes == 64
        values = lab.bits(inner)
        lab.backward(loss)
        assert_same_bits(lab.gradient(leaf), values * values + (values + values) * values, "gradient of the cube")
        assert tap.live == 0

    def test_line06_views_of_the_same_elements_are_one_payload(self, device: str) -> None:
        lab = self.lab
        tap = Tap()
        _, inner = square(lab, device, count=24)
        tensor = lab.reshape(inner, (4, 6))
        views = [tensor, lab.transpose(tensor), lab.reshape(tensor, (2, 12)), lab.reshape(tensor, (24,))]
        with self.scope(StoreIn(Watched(tap=tap))) as session:
            handles = [session.pack(view) for view in views]
        assert tap.puts == 1, f"four views of the same elements became {tap.puts} payloads"
        for n, view in enumerate(views):
            unpacked = session.unpack(handles[n])
            assert lab.layout(unpacked) == lab.layout(view)
            assert_same_bits(lab.bits(unpacked), lab.bits(view), f"view of shape {lab.layout(view).shape}")
        while handles:
            assert tap.live == 1, "a payload went before its last handle"
            handles.pop()
        assert tap.live == 0

    def test_line06_other_elements_of_the_same_storage_are_another_payload(self, device: str) -> None:
        lab = self.lab
        tap = Tap()
        tensor = lab.tensor(floats(4, 6), device=device)
        views = [lab.rows(tensor, 0, 2), lab.rows(tensor, 2, 4), lab.columns(tensor, 0, 2), lab.columns(tensor, 1, 3)]
        with self.scope(StoreIn(Watched(tap=tap))) as session:
            handles = [session.pack(view) for view in views]
        for view, handle in zip(views, handles, strict=True):
            assert_same_bits(lab.bits(session.unpack(handle)), lab.bits(view), "part of a tensor")
        assert tap.puts == 4

    def test_line06_a_reused_address_is_another_payload(self, device: str) -> None:
        lab = self.lab
        with self.entered(StoreIn(Memory()), limits=AT_ONCE) as session:
            handles = []
            for n in range(200):
                tensor = lab.tensor(floats(8, seed=n), device=device)
                handles.append(session.pack(tensor))
                del tensor
        for n, handle in enumerate(handles):
            assert_same_bits(lab.bits(session.unpack(handle)), floats(8, seed=n), f"tensor {n} of 200")

    @pytest.mark.parametrize("is_made", [False, True])
    def test_line06_content_modified_between_two_saves_is_two_payloads(self, device: str, is_made: bool) -> None:
        lab = self.lab
        tensor = square(lab, device)[1] if is_made else lab.tensor(floats(8), device=device)
        before = lab.bits(tensor)
        with self.entered(StoreIn(Memory())) as session:
            first = session.pack(tensor)
            if not is_made:
                session.drain()
            lab.add_(tensor, 1.0)
            second = session.pack(tensor)
        assert_same_bits(lab.bits(session.unpack(second)), lab.bits(tensor), "the second save")
        if not is_made:
            assert_same_bits(lab.bits(session.unpack(first)), before, "the first save")

    def test_line06_content_is_never_shared_across_steps(self, device: str) -> None:
        lab = self.lab
        data = lab.tensor(floats(8), device=device)
        losses = []
        stash = self.stash(StoreIn(Memory()))
        for step in range(3):
            weight = lab.tensor(floats(8, seed=9), device=device, requires_grad=True)
            with settled(stash):
                losses.append(lab.sum(lab.mul(data, weight)))
            lab.backward(losses[-1], retain_graph=True)
            assert_same_bits(lab.gradient(weight), lab.bits(data), f"gradient of step {step}")
            lab.write_unversioned(data, float(step))

    def test_line06_content_is_never_shared_across_entries(self, device: str) -> None:
        lab = self.lab
        leaf, inner = square(lab, device)
        stash = self.stash(StoreIn(Memory()))
        with stash:
            first = lab.sum(lab.mul(inner, inner))
        lab.write_unversioned(inner, 7.0)
        with stash:
            second = lab.sum(lab.mul(inner, inner))
        lab.backward(second, retain_graph=True)
        assert_same_bits(lab.gradient(leaf), np.full(8, 14.0, np.float32), "gradient of the second entry's tensor")
        del first

    def test_line06_content_is_never_shared_across_a_drain(self, device: str) -> None:
        lab = self.lab
        _, inner = square(lab, device)
        with self.scope(StoreIn(Memory())) as session:
            first = session.pack(inner)
            before = lab.bits(inner)
            session.drain()
            lab.write_unversioned(inner, 7.0)
            second = session.pack(inner)
        assert_same_bits(lab.bits(second()), np.full(8, 7.0, np.float32), "the tensor saved after the drain")
        assert_same_bits(lab.bits(first()), before, "the tensor saved before the drain")

    def test_line06_payloads_take_no_more_than_the_framework_holds(self, device: str) -> None:
        lab = self.lab
        tap = Tap()
        _, inner = square(lab, device, count=64)
        with self.scope(StoreIn(Watched(tap=tap))):
            loss = lab.sum(lab.mul(lab.tanh(lab.exp(inner)), inner))
        # exp's output, tanh's output (saved by tanh and mul) and inner; some frameworks also save tanh's input.
        assert tap.live_bytes <= 3 * 64 * 4, f"{tap.live_bytes} bytes for three distinct tensors of 256 bytes"
        lab.backward(loss)
