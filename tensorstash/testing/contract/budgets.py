"""Contract line 9: budgets hold."""

from pathlib import Path
from typing import Any

import pytest

from tensorstash.errors import StoreError, StoreFullError
from tensorstash.policies import Compress, DiskSpill, StoreIn
from tensorstash.policies.limits import Limits
from tensorstash.stores.memory import Memory
from tensorstash.testing.faults import Gate, Gated, Tap, Watched
from tensorstash.testing.harness import AT_ONCE, Harness, settled
from tensorstash.testing.layouts import assert_same_arrays, assert_same_bits, floats
from tensorstash.testing.programs import attention


class Bounded(Harness):
    """Contract line 9, as far as it can be seen from outside."""

    @pytest.mark.parametrize("tier", ["memory", "disk"])
    def test_line09_a_budget_holds(self, device: str, tier: str, tmp_path: Path) -> None:
        lab = self.lab
        budget = 256 if tier == "memory" else 3 * 4096
        policy = StoreIn(Memory(budget=budget)) if tier == "memory" else DiskSpill(tmp_path, budget=budget)
        with self.entered(policy, limits=AT_ONCE) as session:
            handles: list[Any] = []

            def fill() -> None:
                for n in range(100):
                    handle = session.pack(lab.tensor(floats(32, seed=n), device=device))
                    session.drain()
                    handles.append(handle)

            with pytest.raises(StoreFullError, match="budget"):
                fill()
            assert len(handles) >= 2, f"{len(handles)} payloads of 128 bytes fit the budget of {budget}"
            assert session.stats().peak_bytes_by_tier[tier] <= budget
            for n in range(len(handles)):
                assert_same_bits(lab.bits(session.unpack(handles[n])), floats(32, seed=n), f"tensor {n} before the end")
            handles.pop()
            again = session.pack(lab.tensor(floats(32, seed=200), device=device))
            assert_same_bits(lab.bits(session.unpack(again)), floats(32, seed=200), "a payload in freed room")

    def test_line09_a_budget_that_is_just_enough_is_enough(self, device: str) -> None:
        lab = self.lab
        with self.scope(StoreIn(Memory(budget=64))) as session:
            handles = [session.pack(lab.tensor(floats(8, seed=n), device=device)) for n in range(2)]
        for n, handle in enumerate(handles):
            assert_same_bits(lab.bits(session.unpack(handle)), floats(8, seed=n), f"tensor {n}")
        assert session.stats().peak_bytes == 64

    def test_line09_statistics_agree_with_the_store(self, device: str) -> None:
        tap = Tap()
        stash = self.stash(Compress(min_ratio=1) | StoreIn(Watched(tap=tap)))
        attention(self.lab, device, scope=lambda: settled(stash))
        stats = stash.stats()
        assert sum(tally.tensors for tally in stats.stored.values()) == tap.puts
        assert stats.peak_bytes == tap.peak_bytes
        assert stats.seen.tensors == sum(
            tally.tensors for tally in (*stats.kept.values(), stats.stashed, stats.deduplicated)
        )
        assert stats.unpacked >= stats.stashed.tensors

    def test_line09_bytes_in_flight_hold_and_a_hanging_store_is_named(self, device: str) -> None:
        lab = self.lab
        gate = Gate()
        tap = Tap()
        policy = StoreIn(Gated(gate=gate, inner=Watched(tap=tap)))
        limits = Limits(in_flight=256, ahead=0, timeout_s=0.5)  # on a device as much as may be read ahead stays
        with self.entered(policy, limits=limits) as session:
            handles = [session.pack(lab.tensor(floats(32, seed=n), device=device)) for n in range(2)]
            more: list[Any] = []

            def pack_more() -> None:
                for n in (2, 3):  # the one before is still held by its caller while this one is packed
                    more.append(session.pack(lab.tensor(floats(32, seed=n), device=device)))

            with pytest.raises(StoreError, match=r"256 bytes.*0\.5 seconds.*hangs"):
                pack_more()
            gate.open()
        for n, handle in enumerate(handles):
            assert_same_bits(lab.bits(session.unpack(handle)), floats(32, seed=n), f"tensor {n}")

    def test_line09_the_forward_waits_and_goes_on_when_bytes_have_left(self, device: str) -> None:
        expected = attention(self.lab, device)
        for in_flight, ahead in ((0, 0), (600, 0), (600, 600), (10_000, 10_000)):
            limits = Limits(in_flight=in_flight, ahead=ahead)
            stash = self.stash(Compress(min_ratio=1), limits=limits)
            got = attention(self.lab, device, scope=lambda stash=stash: stash)  # type: ignore[misc]
            assert_same_arrays(got, expected, f"gradients under {limits}")
