"""Contract line 7: tensors that are never stashed."""

from collections.abc import Sequence

from tensorstash.policies import CpuOffload, StoreIn
from tensorstash.testing.faults import Tap, Watched
from tensorstash.testing.harness import AT_ONCE, Harness, settled
from tensorstash.testing.lab import Tensor
from tensorstash.testing.layouts import assert_same_bits, floats


class NeverStashed(Harness):
    """Contract line 7."""

    def test_line07_parameters_views_of_them_and_leaves_that_require_grad_are_kept(self, device: str) -> None:
        lab = self.lab
        for trainable in (True, False):
            weight = lab.parameter(floats(6, 4), device=device, trainable=trainable)
            views = lab.transpose(weight), lab.rows(weight, 1, 3), lab.reshape(weight, (24,))
            self._assert_kept((weight,), "parameter")
            self._assert_kept(views, "" if trainable else "parameter")
        self._assert_kept((lab.tensor(floats(6, 4), device=device, requires_grad=True),), "leaf")

    def test_line07_the_weights_of_a_model_are_never_stashed(self, device: str) -> None:
        lab = self.lab
        tap = Tap()
        model = lab.model(device=device)
        wrapped = self.wrap(model, StoreIn(Watched(tap=tap)), limits=AT_ONCE)
        inputs = lab.tensor(floats(5, 8), device=device)
        out = model(inputs)
        # The input (5, 8) and the hidden activation (5, 16); the weights are (8, 16) and (16, 4).
        assert 0 < tap.live_bytes <= (5 * 8 + 2 * 5 * 16) * 4, f"{tap.live_bytes} bytes are stashed"
        assert any("parameter" in reason for reason in wrapped.stats().kept), f"kept: {dict(wrapped.stats().kept)}"
        lab.backward(lab.sum(out))
        wrapped.remove()

    def test_line07_small_tensors_are_kept(self, device: str) -> None:
        lab = self.lab
        tap = Tap()
        with settled(self.stash(StoreIn(Watched(tap=tap)), min_bytes=64)) as session:
            handles = [session.pack(lab.tensor(floats(n), device=device)) for n in (15, 16)]
        assert tap.puts == 1, f"of 60 and 64 bytes, {tap.puts} were stashed with min_bytes=64"
        assert [tally.nbytes for reason, tally in session.stats().kept.items() if "min_bytes" in reason] == [60]
        assert [lab.bits(session.unpack(handle)).size for handle in handles] == [15, 16]

    def test_line07_offloading_to_the_host_keeps_what_is_there(self, device: str) -> None:
        lab = self.lab
        with self.scope(CpuOffload()) as session:
            handle = session.pack(lab.tensor(floats(4), device=device))
        stats = session.stats()
        if device == "cpu":
            assert stats.stashed.tensors == 0
            assert [reason for reason in stats.kept if "host memory" in reason]
        else:
            assert stats.stashed.tensors == 1
        assert_same_bits(lab.bits(session.unpack(handle)), floats(4), "an offloaded tensor")

    def test_line07_kinds_that_cannot_be_rebuilt_are_kept(self, device: str) -> None:
        for kind, tensor in self.lab.unstashable(device).items():
            tap = Tap()
            with self.scope(StoreIn(Watched(tap=tap))) as session:
                handle = session.pack(tensor)
            unpacked = session.unpack(handle)
            assert tap.puts == 0, f"a {kind} tensor was stashed"
            assert type(unpacked) is type(tensor), f"a {kind} tensor came back as {type(unpacked).__qualname__}"
            assert all(session.stats().kept), f"{kind}: kept without a reason"

    def _assert_kept(self, tensors: Sequence[Tensor], reason: str) -> None:
        lab = self.lab
        for tensor in tensors:
            tap = Tap()
            with self.scope(StoreIn(Watched(tap=tap))) as session:
                handle = session.pack(tensor)
            unpacked = session.unpack(handle)
            assert tap.puts == 0, f"a {reason} of layout {lab.layout(tensor)} was stashed"
            assert any(reason in said for said in session.stats().kept), f"kept: {dict(session.stats().kept)}"
            assert lab.address(unpacked) == lab.address(tensor), f"a kept {reason} came back as a copy"
