"""Contract lines 8 and 9: nothing is lost quietly, and budgets hold."""

from typing import Any

import pytest

from tensorstash.api import Stash
from tensorstash.codecs.zstd import Zstd
from tensorstash.engine.limits import Limits
from tensorstash.errors import CodecError, StashError, StoreError, StoreFullError
from tensorstash.policies import Compress, DiskSpill, Encode, StoreIn
from tensorstash.policies.plan import HookPolicy
from tensorstash.stores.memory import Memory
from tensorstash.testing.counting_store import Tap, Watched
from tensorstash.testing.faults import FaultyCodec, FaultyStore, Gate, Gated
from tensorstash.testing.harness import AT_ONCE, Harness, reference_counting_only, scratch_directory, settled
from tensorstash.testing.layouts import assert_same_arrays, assert_same_bits, floats
from tensorstash.testing.programs import attention, square

STORE_FAULTS = ("full", "put_error", "get_error", "gone", "corrupt", "short_read", "zeros")

CODEC_FAULTS = (
    "encode_error",
    "encode_wrong_dtype",
    "encode_wrong_size",
    "encode_no_array",
    "decode_error",
    "decode_wrong_dtype",
    "decode_wrong_size",
    "decode_no_array",
)


class NothingLostQuietly(Harness):
    """Contract line 8."""

    @pytest.mark.parametrize("at", [1, 3])
    @pytest.mark.parametrize("fault", STORE_FAULTS)
    def test_line08_a_store_that_fails_ends_in_a_named_error(self, device: str, fault: str, at: int) -> None:
        faulty = FaultyStore(fault=fault, at=at, inner=Watched(tap=Tap()))  # type: ignore[arg-type]
        for policy in (StoreIn(faulty), Encode(Zstd()) | StoreIn(faulty)):
            message = self._assert_step_fails_and_the_next_works(policy, device, StashError)
            assert "FaultyStore" in message, f"no stage is named: {message}"

    @pytest.mark.parametrize("fault", CODEC_FAULTS)
    def test_line08_a_codec_that_fails_ends_in_a_named_error(self, device: str, fault: str) -> None:
        # Of all tensors in the program, only the weights of attention are 12 by 12.
        policy = Encode(FaultyCodec(fault=fault, numel=144)) | StoreIn(Watched(tap=Tap()))  # type: ignore[arg-type]
        lab = self.lab
        stash = self.stash(policy)
        with pytest.raises(CodecError, match=r"stage 1 of 2 \(FaultyCodec.*float32\(12, 12\)") as caught:
            attention(lab, device, scope=lambda: settled(stash))
        assert not isinstance(caught.value, StoreError)
        leaf, inner = square(lab, device)
        with settled(stash):
            loss = lab.sum(lab.mul(inner, inner))
        lab.backward(loss)
        assert_same_bits(lab.gradient(leaf), (lab.bits(inner) * 2).astype("float32"), "the step after the fault")

    def test_line08_a_failed_step_leaves_no_slot_and_no_hook(self, device: str) -> None:
        lab = self.lab
        for fault in ("put_error", "get_error"):
            with reference_counting_only():
                tap = Tap()
                store = FaultyStore(fault=fault, at=3, inner=Watched(tap=tap))
                stash = self.stash(StoreIn(store))
                self._fail(stash, device)
                assert tap.live == 0, f"{tap.live} payloads are left after {fault}"
                seen = stash.stats().seen.tensors
                _, inner = square(lab, device)
                lab.backward(lab.sum(lab.exp(inner)))
                assert stash.stats().seen.tensors == seen, f"the hooks are still in force after {fault}"

    def test_line08_a_failed_backward_of_a_retained_graph_can_be_tried_again(self, device: str) -> None:
        lab = self.lab
        leaf, inner = square(lab, device)
        with self.scope(StoreIn(FaultyStore(fault="get_error"))):
            loss = lab.sum(lab.mul(inner, inner))
        with pytest.raises(StoreError):
            lab.backward(loss, retain_graph=True)
        lab.backward(loss)
        assert_same_bits(lab.gradient(leaf), (lab.bits(inner) * 2).astype("float32"), "the second attempt")

    def test_line08_recording_goes_on_after_a_hook_has_raised(self, device: str) -> None:
        lab = self.lab
        for fault in ("put_error", "get_error"):
            expected = attention(lab, device)
            self._fail(self.stash(StoreIn(FaultyStore(fault=fault))), device)
            assert_same_arrays(attention(lab, device), expected, f"plain training after {fault}")

    def _assert_step_fails_and_the_next_works(self, policy: HookPolicy, device: str, kind: type[StashError]) -> str:
        lab = self.lab
        expected = attention(lab, device)
        stash = self.stash(policy)
        with pytest.raises(kind, match=r"stage \d of \d \(.*\), tensor \w+\(.*\) on ") as caught:
            attention(lab, device, scope=lambda: settled(stash))
        got = attention(lab, device, scope=lambda: settled(stash))
        assert_same_arrays(got, expected, f"the step after the fault, under {policy!r}")
        return str(caught.value)

    def _fail(self, stash: Stash, device: str) -> None:
        with pytest.raises(StashError):
            attention(self.lab, device, scope=lambda: settled(stash))


class Bounded(Harness):
    """Contract line 9, as far as it can be seen from outside."""

    def test_line09_a_memory_budget_holds(self, device: str) -> None:
        self._assert_budget_holds(StoreIn(Memory(budget=256)), "memory", device)

    def test_line09_a_disk_budget_holds(self, device: str) -> None:
        with scratch_directory() as directory:
            self._assert_budget_holds(DiskSpill(directory, budget=3 * 4096), "disk", device)

    def test_line09_a_budget_that_is_just_enough_is_enough(self, device: str) -> None:
        lab = self.lab
        with self.scope(StoreIn(Memory(budget=64))) as session:
            handles = [session.pack(lab.tensor(floats(8, seed=n), device=device)) for n in range(2)]
        for n, handle in enumerate(handles):
            assert_same_bits(lab.bits(session.unpack(handle)), floats(8, seed=n), f"tensor {n}")
        assert session.stats().peak_bytes == 64

    def test_line09_statistics_agree_with_the_store(self, device: str) -> None:
        tap = Tap()
        stash = self.stash(Compress() | StoreIn(Watched(tap=tap)))
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
        limits = Limits(in_flight=256, timeout_s=0.5)
        with self.stash(policy, limits=limits) as session:
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
            stash = self.stash(Compress(), limits=limits)
            got = attention(self.lab, device, scope=lambda stash=stash: stash)  # type: ignore[misc]
            assert_same_arrays(got, expected, f"gradients under {limits}")

    def _assert_budget_holds(self, policy: HookPolicy, tier: str, device: str) -> None:
        lab = self.lab
        budget = next(plan.store for plan in policy.alternatives() if plan.store is not None).budget  # type: ignore[attr-defined]
        with self.stash(policy, limits=AT_ONCE) as session:
            handles: list[Any] = []

            def fill() -> None:
                for n in range(100):
                    handle = session.pack(lab.tensor(floats(32, seed=n), device=device))
                    session.drain()
                    handles.append(handle)

            with pytest.raises(StoreFullError, match="budget"):
                fill()
            assert handles, "the budget has room for one payload"
            assert session.stats().peak_bytes_by_tier[tier] <= budget
            for n in range(len(handles)):
                assert_same_bits(lab.bits(session.unpack(handles[n])), floats(32, seed=n), f"tensor {n} before the end")
            handles.pop()
            again = session.pack(lab.tensor(floats(32, seed=200), device=device))
            assert_same_bits(lab.bits(session.unpack(again)), floats(32, seed=200), "a payload in freed room")
