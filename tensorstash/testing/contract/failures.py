"""Contract line 8: nothing is lost quietly."""

from typing import get_args

import pytest

from tensorstash.api import Stash
from tensorstash.codecs.zstd import Zstd
from tensorstash.errors import CodecError, StashError, StoreError
from tensorstash.policies import Encode, StoreIn
from tensorstash.policies.plan import HookPolicy
from tensorstash.testing.faults import CodecFault, FaultyCodec, FaultyStore, Tap, Watched
from tensorstash.testing.harness import Harness, reference_counting_only, settled
from tensorstash.testing.layouts import assert_same_arrays, assert_same_bits
from tensorstash.testing.programs import attention, square

STORE_FAULTS = ("full", "put_error", "get_error", "gone", "corrupt", "short_read", "zeros")

CODEC_FAULTS = get_args(CodecFault)


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
        expected = attention(lab, device)
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
                assert_same_arrays(attention(lab, device), expected, f"plain training after {fault}")

    def test_line08_a_failed_backward_of_a_retained_graph_can_be_tried_again(self, device: str) -> None:
        lab = self.lab
        leaf, inner = square(lab, device)
        with self.scope(StoreIn(FaultyStore(fault="get_error"))):
            loss = lab.sum(lab.mul(inner, inner))
        with pytest.raises(StoreError):
            lab.backward(loss, retain_graph=True)
        lab.backward(loss)
        assert_same_bits(lab.gradient(leaf), (lab.bits(inner) * 2).astype("float32"), "the second attempt")

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
