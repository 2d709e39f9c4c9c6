"""Contract lines 6, 7 and 9: one copy per content, tensors that are never stashed, and budgets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tensorstash.errors import StoreError, StoreFullError
from tensorstash.policies import Compress, CpuOffload, DiskSpill, StoreIn
from tensorstash.policies.limits import Limits
from tensorstash.stores.memory import Memory
from tensorstash.testing.faults import Watched
from tensorstash.testing.harness import AT_ONCE, Harness, settled
from tensorstash.testing.lab import Lab, Tensor
from tensorstash.testing.layouts import assert_same_arrays, assert_same_bits, floats
from tensorstash.testing.programs import attention, square


class OneCopy(Harness):
    """Contract line 6."""

    def test_line06_a_tensor_saved_twice_is_one_payload(self, lab: Lab) -> None:
        tap, gradients = Watched(), []
        for policy in (None, StoreIn(tap)):
            leaf = lab.tensor(floats(8), requires_grad=True)
            with self.scope(policy) as session:
                hidden = leaf.exp()  # saves its own output
                loss = (hidden * hidden * hidden).sum()
            if session is not None:
                assert tap.live == 2, f"four times hidden and once its square became {tap.live} payloads, expected 2"
                assert (session.stats().stashed.tensors, session.stats().deduplicated.tensors) == (2, 3)
                assert session.stats().live.nbytes == tap.live_bytes == 64
            lab.backward(loss)
            gradients.append(lab.gradient(leaf))
        assert_same_bits(gradients[1], gradients[0], "gradient of the cube")
        assert tap.live == 0

    def test_line06_views_of_the_same_elements_are_one_payload(self, lab: Lab) -> None:
        tap = Watched()
        _, inner = square(lab, count=24)
        tensor = inner.reshape(4, 6)
        views = [tensor, tensor.T, tensor.reshape(2, 12), tensor.reshape(24)]
        with self.scope(StoreIn(tap)) as session:
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

    def test_line06_other_elements_of_the_same_storage_are_another_payload(self, lab: Lab) -> None:
        tap = Watched()
        tensor = lab.tensor(floats(4, 6))
        views = [tensor[:2], tensor[2:4], tensor[:, :2], tensor[:, 1:3]]
        with self.scope(StoreIn(tap)) as session:
            handles = [session.pack(view) for view in views]
        for view, handle in zip(views, handles, strict=True):
            assert_same_bits(lab.bits(session.unpack(handle)), lab.bits(view), "part of a tensor")
        assert tap.puts == 4

    def test_line06_a_reused_address_is_another_payload(self, lab: Lab) -> None:
        with settled(self.stash(StoreIn(Memory()), limits=AT_ONCE)) as session:
            handles = []
            for n in range(200):
                tensor = lab.tensor(floats(8, seed=n))
                handles.append(session.pack(tensor))
                del tensor
        for n, handle in enumerate(handles):
            assert_same_bits(lab.bits(session.unpack(handle)), floats(8, seed=n), f"tensor {n} of 200")

    @pytest.mark.parametrize("between", ["a write", "a drain", "another entry"])
    @pytest.mark.parametrize("is_made", [False, True])
    def test_line06_content_modified_between_two_saves_is_two_payloads(
        self, lab: Lab, is_made: bool, between: str
    ) -> None:
        tensor = square(lab)[1] if is_made else lab.tensor(floats(8))
        before = lab.bits(tensor)
        write = lab.add_ if between == "a write" else lab.write_unversioned
        stash = self.stash(StoreIn(Memory()))
        with stash:
            first = stash._session.pack(tensor)
            if between == "a drain":
                stash.drain()
            if between != "another entry":
                write(tensor, 7.0)
                second = stash._session.pack(tensor)
        if between == "another entry":
            write(tensor, 7.0)
            with stash:
                second = stash._session.pack(tensor)
        assert_same_bits(lab.bits(second()), lab.bits(tensor), "the second save")
        if between == "a drain":
            assert_same_bits(lab.bits(first()), before, "the first save")


class NeverStashed(Harness):
    """Contract line 7."""

    def test_line07_parameters_views_of_them_and_leaves_that_require_grad_are_kept(self, lab: Lab) -> None:
        for trainable in (True, False):
            weight = lab.parameter(floats(6, 4), trainable=trainable)
            self._assert_kept([weight], "parameter")
            with lab.framework.no_grad():
                silent = self._views(weight)
            self._assert_kept([*self._views(weight), *silent], "parameter")
        self._assert_kept([lab.tensor(floats(6, 4), requires_grad=True)], "leaf")

    def test_line07_small_tensors_are_kept(self, lab: Lab) -> None:
        tap = Watched()
        with settled(self.stash(StoreIn(tap), min_bytes=64)) as session:
            handles = [session.pack(lab.tensor(floats(n))) for n in (15, 16)]
        assert tap.puts == 1, f"of 60 and 64 bytes, {tap.puts} were stashed with min_bytes=64"
        assert [tally.nbytes for reason, tally in session.stats().kept.items() if "min_bytes" in reason] == [60]
        assert [lab.bits(session.unpack(handle)).size for handle in handles] == [15, 16]

    def test_line07_offloading_to_the_host_keeps_what_is_there(self, lab: Lab) -> None:
        with self.scope(CpuOffload()) as session:
            handle = session.pack(lab.tensor(floats(4)))
        stats = session.stats()
        if lab.device == "cpu":
            assert stats.stashed.tensors == 0
            assert [reason for reason in stats.kept if "host memory" in reason]
        else:
            assert stats.stashed.tensors == 1
        assert_same_bits(lab.bits(session.unpack(handle)), floats(4), "an offloaded tensor")

    def test_line07_kinds_that_cannot_be_rebuilt_are_kept(self, lab: Lab) -> None:
        for kind, tensor in lab.unstashable().items():
            tap = Watched()
            with self.scope(StoreIn(tap)) as session:
                handle = session.pack(tensor)
            unpacked = session.unpack(handle)
            assert tap.puts == 0, f"a {kind} tensor was stashed"
            assert type(unpacked) is type(tensor), f"a {kind} tensor came back as {type(unpacked).__qualname__}"
            assert all(session.stats().kept), f"{kind}: kept without a reason"

    def _views(self, tensor: Tensor) -> list[Tensor]:
        return [tensor.T, tensor[1:3], tensor[:, 1:3], tensor.T[:2], tensor.reshape(24).reshape(2, 12)]

    def _assert_kept(self, tensors: Sequence[Tensor], reason: str) -> None:
        lab = self.lab
        for tensor in tensors:
            tap = Watched()
            with self.scope(StoreIn(tap)) as session:
                handle = session.pack(tensor)
            unpacked = session.unpack(handle)
            assert tap.puts == 0, f"a {reason} of layout {lab.layout(tensor)} was stashed"
            assert any(reason in said for said in session.stats().kept), f"kept: {dict(session.stats().kept)}"
            assert lab.address(unpacked) == lab.address(tensor), f"a kept {reason} came back as a copy"


class Bounded(Harness):
    """Contract line 9, as far as it can be seen from outside."""

    @pytest.mark.parametrize("tier", ["memory", "disk"])
    def test_line09_a_budget_holds(self, lab: Lab, tier: str, tmp_path: Path) -> None:
        budget = 256 if tier == "memory" else 3 * 4096
        policy = StoreIn(Memory(budget=budget)) if tier == "memory" else DiskSpill(tmp_path, budget=budget)
        with settled(self.stash(policy, limits=AT_ONCE)) as session:
            handles: list[Any] = []

            def fill() -> None:
                for n in range(100):
                    handle = session.pack(lab.tensor(floats(32, seed=n)))
                    session.drain()
                    handles.append(handle)

            with pytest.raises(StoreFullError, match="budget"):
                fill()
            assert len(handles) >= 2, f"{len(handles)} payloads of 128 bytes fit the budget of {budget}"
            assert session.stats().peak_bytes_by_tier[tier] <= budget
            for n in range(len(handles)):
                assert_same_bits(lab.bits(session.unpack(handles[n])), floats(32, seed=n), f"tensor {n} before the end")
            handles.pop()
            again = session.pack(lab.tensor(floats(32, seed=200)))
            assert_same_bits(lab.bits(session.unpack(again)), floats(32, seed=200), "a payload in freed room")

    def test_line09_statistics_agree_with_the_store(self, lab: Lab) -> None:
        tap = Watched()
        stash = self.stash(Compress(min_ratio=1) | StoreIn(tap))
        attention(lab, scope=lambda: settled(stash))
        stats = stash.stats()
        assert sum(tally.tensors for tally in stats.stored.values()) == tap.puts
        assert stats.peak_bytes == tap.peak_bytes
        assert stats.seen.tensors == sum(
            tally.tensors for tally in (*stats.kept.values(), stats.stashed, stats.deduplicated)
        )
        assert stats.unpacked >= stats.stashed.tensors

    def test_line09_bytes_in_flight_hold_and_a_hanging_store_is_named(self, lab: Lab) -> None:
        gate = Watched(held_s=10.0)
        limits = Limits(in_flight=256, ahead=0, timeout_s=0.5)  # on a device as much as may be read ahead stays
        with settled(self.stash(StoreIn(gate), limits=limits)) as session:
            handles = [session.pack(lab.tensor(floats(32, seed=n))) for n in range(2)]
            more: list[Any] = []

            def pack_more() -> None:
                for n in (2, 3):  # the one before is still held by its caller while this one is packed
                    more.append(session.pack(lab.tensor(floats(32, seed=n))))

            with pytest.raises(StoreError, match=r"256 bytes.*0\.5 seconds.*hangs"):
                pack_more()
            gate.let_go()
        for n, handle in enumerate(handles):
            assert_same_bits(lab.bits(session.unpack(handle)), floats(32, seed=n), f"tensor {n}")

    def test_line09_the_forward_waits_and_goes_on_when_bytes_have_left(self, lab: Lab) -> None:
        expected = attention(lab)
        for in_flight, ahead in ((0, 0), (600, 0), (600, 600), (10_000, 10_000)):
            limits = Limits(in_flight=in_flight, ahead=ahead)
            stash = self.stash(Compress(min_ratio=1), limits=limits)
            got = attention(lab, scope=lambda stash=stash: stash)  # type: ignore[misc]
            assert_same_arrays(got, expected, f"gradients under {limits}")
