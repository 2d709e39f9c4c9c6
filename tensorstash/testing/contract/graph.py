"""Contract lines 4 and 5: in-place safety, and the graph that owns all handles."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tensorstash.api import Stash
from tensorstash.errors import SavedTensorModifiedError, StashError
from tensorstash.policies import Chain, Keep, Recompute, StoreIn
from tensorstash.policies.limits import Limits
from tensorstash.policies.plan import HookPolicy
from tensorstash.stores.memory import Memory
from tensorstash.testing.faults import Watched
from tensorstash.testing.harness import Harness, reference_counting_only, settled
from tensorstash.testing.lab import Lab, Sink, Tensor
from tensorstash.testing.layouts import assert_same_arrays, assert_same_bits, floats
from tensorstash.testing.programs import POLICIES, attention, recomputing_policies, square, squared


class InPlaceSafety(Harness):
    """Contract line 4."""

    def test_line04_a_kept_tensor_modified_in_place_is_refused_and_the_next_step_works(self, lab: Lab) -> None:
        expected = attention(lab)
        for why, policy, min_bytes in (("policy", Keep(), 0), ("size", StoreIn(Memory()), 1 << 20)):
            for how, modify in self._modifications().items():
                stash = self.stash(policy, min_bytes=min_bytes)
                leaf, inner, loss, _ = squared(lab, lambda stash=stash: stash)  # type: ignore[misc]
                modify(inner)
                with pytest.raises(SavedTensorModifiedError, match=r"modified by an inplace operation.*version"):
                    lab.backward(loss)
                assert leaf.grad is None, f"kept for its {why}, modified {how}: a gradient was written all the same"
                got = attention(lab, scope=lambda stash=stash: stash)  # type: ignore[misc]
                assert_same_arrays(got, expected, "the step after a refused one")

    def test_line04_a_kept_parameter_modified_before_backward_is_refused(self, lab: Lab) -> None:
        weight = lab.parameter(floats(4, 4))
        inputs = lab.tensor(floats(2, 4), requires_grad=True)
        with self.stash(StoreIn(Memory())):
            loss = (inputs @ weight).sum()
        lab.add_(weight, 1.0)
        with pytest.raises(SavedTensorModifiedError):
            lab.backward(loss)

    def test_line04_captured_bytes_are_immune(self, lab: Lab) -> None:
        for how, modify in self._modifications().items():
            leaf, inner, loss, expected = squared(lab, lambda: self.scope(StoreIn(Memory())))
            modify(inner)
            lab.backward(loss)
            assert_same_bits(lab.gradient(leaf), expected, f"gradient of a captured tensor modified {how}")

    def test_line04_bytes_modified_before_they_are_captured_are_refused(self, lab: Lab) -> None:
        for how, modify in self._modifications().items():
            for opens_first in (False, True):
                gate = Watched(held_s=10.0)
                stash = self.stash(StoreIn(gate), limits=Limits())
                leaf, inner, loss, _ = squared(lab, lambda stash=stash: stash)  # type: ignore[misc]
                modify(inner)
                if opens_first:
                    gate.let_go()
                    stash.drain()
                with pytest.raises(SavedTensorModifiedError, match="modified by an inplace operation"):
                    lab.backward(loss)
                assert leaf.grad is None, f"modified {how}: a gradient was written all the same"
                gate.let_go()

    def test_line04_an_unpack_does_not_wait_for_bytes_on_their_way(self, lab: Lab) -> None:
        gate = Watched(held_s=10.0)
        stash = self.stash(StoreIn(gate), limits=Limits())
        leaf, _, loss, expected = squared(lab, lambda: stash)
        lab.backward(loss)
        gate.let_go()
        assert_same_bits(lab.gradient(leaf), expected, "gradient while the store is held back")

    def test_line04_what_trains_without_hooks_trains(self, lab: Lab) -> None:

        def program(policy: Any) -> Any:
            leaf, inner = square(lab)
            lab.add_(inner, 1.0)
            data = lab.tensor(floats(8))
            lab.add_(data, 2.0)
            with self.scope(policy):
                scaled = inner * data
                lab.add_(scaled, 0.5)
                out = scaled.tanh()
                shifted = out * 1.0
                lab.add_(shifted, 3.0)
                loss = (out * inner).sum()
            lab.backward(loss)
            return lab.gradient(leaf)

        expected = program(None)
        for policy in POLICIES:
            assert_same_bits(program(policy), expected, f"in-place writes that autograd allows, under {policy!r}")

    def test_line04_what_recipes_are_made_of_is_refused_if_it_was_modified(self, lab: Lab) -> None:
        for name, policy in recomputing_policies(lab).items():
            for how, modify in self._modifications().items():
                for place in ("a factor", "the product"):
                    (leaf, left), (_, right) = square(lab), square(lab, seed=1)
                    with self.stash(policy) as session:
                        product = left * right
                        loss = (product * product).sum()
                    assert "mul" in session.stats().recomputed
                    modify(left if place == "a factor" else product)
                    with pytest.raises(SavedTensorModifiedError, match=r"modified by an inplace operation.*version"):
                        lab.backward(loss)
                    assert leaf.grad is None, f"{name}: {place} was modified {how}, and a gradient was written"

    def test_line04_what_recipes_are_made_of_is_refused_if_it_was_written_without_a_version(self, lab: Lab) -> None:
        if recomputing_policies(lab):
            (leaf, inner), (_, right) = square(lab), square(lab, seed=1)
            with self.stash(Recompute()):
                left = inner.exp()
                product = left * right
                loss = (product * product).sum()
                del product  # or backward gets it as it is there
            lab.write_unversioned(left, 7.0)
            with pytest.raises(StashError, match=r"Recompute, rule mul.*came out different"):
                lab.backward(loss)
            if lab.device == "cpu":  # devices are asked once, after backward: the error stands beside the gradient
                assert leaf.grad is None

    def _modifications(self) -> dict[str, Callable[[Tensor], None]]:
        lab = self.lab
        return {
            "itself": lambda tensor: lab.add_(tensor, 10.0),
            "through a view": lambda tensor: lab.add_(tensor[:2], 10.0),
        }


def _fail(unpacked: Sequence[Tensor]) -> None:
    raise RuntimeError("deliberate")


class Ownership(Harness):
    """Contract line 5; the cyclic garbage collector is off in every check."""

    @pytest.mark.parametrize("ending", ["backward", "dropped", "retained"])
    def test_line05_a_graph_that_ends_frees_every_slot(self, lab: Lab, ending: str) -> None:
        with self._watched() as (tap, stash):
            for _ in range(3):
                loss, sentinel = self._graph(stash, lab)
                before = tap.live
                assert before > 0
                if ending != "dropped":
                    lab.backward(loss, retain_graph=ending == "retained")
                if ending != "backward":
                    assert tap.live == before, "a retained graph lost its payloads"
                    del loss
                    assert sentinel() is None
                self._assert_nothing_is_left(tap, stash)

    def test_line05_a_dropped_graph_of_kept_tensors_is_freed(self, lab: Lab) -> None:
        with reference_counting_only():
            for run_backward in (False, True):
                loss, sentinel = self._graph(self.stash(Keep()), lab)
                assert sentinel() is not None
                if run_backward:
                    lab.backward(loss, retain_graph=True)
                del loss
                assert sentinel() is None, "the graph lives on: something in it holds its own output"

    @pytest.mark.parametrize("place", ["forward", "backward"])
    def test_line05_an_exception_frees_every_slot(self, lab: Lab, place: str) -> None:
        with self._watched() as (tap, stash):
            with pytest.raises(Exception, match="deliberate"):
                self._failing(stash, lab, place)
            self._assert_nothing_is_left(tap, stash)

    def test_line05_a_branch_that_is_never_used_frees_its_slots(self, lab: Lab) -> None:
        with self._watched() as (tap, stash):
            leaf, inner = square(lab)
            with settled(stash):
                used = inner.exp()
                loss, unused = used.sum(), inner.tanh().sum()
            lab.backward(loss)
            assert_same_bits(lab.gradient(leaf), lab.bits(used), "gradient of the used branch")
            assert tap.live == 1, f"{tap.live} payloads after the backward of one of two branches, expected 1"
            del unused
            self._assert_nothing_is_left(tap, stash)

    def test_line05_two_live_graphs_own_their_slots(self, lab: Lab) -> None:
        with self._watched() as (tap, stash):
            first, _ = self._graph(stash, lab)
            alone = tap.live
            second, _ = self._graph(stash, lab)
            assert tap.live == 2 * alone
            lab.backward(first)
            assert tap.live == alone, "the backward of one graph changed the handles of another one"
            lab.backward(second)
            self._assert_nothing_is_left(tap, stash)

    def test_line05_slots_outlive_the_session_and_the_store_closes_with_the_last(self, lab: Lab) -> None:
        with reference_counting_only():
            tap = Watched()
            leaf, _, loss, expected = squared(lab, lambda: self.scope(StoreIn(tap)))
            assert (tap.live, tap.open_stores) == (1, 1), "the payload went with its session"
            lab.backward(loss)
            assert_same_bits(lab.gradient(leaf), expected, "gradient after the session")
            assert (tap.live, tap.open_stores) == (0, 0), "the store outlives session and payloads"

    def test_line05_a_tensor_of_its_own_dies_with_its_last_user(self, lab: Lab) -> None:
        with self._watched() as (_, stash):
            tensor = lab.tensor(floats(32))
            died: list[bool] = []
            weakref.finalize(tensor, died.append, True)
            with settled(stash) as session:
                handle = session.pack(tensor)
            del tensor
            assert died, "a stashed tensor is kept alive besides its payload"
            assert_same_bits(lab.bits(session.unpack(handle)), floats(32), "the payload of a tensor that is gone")

    def test_line05_what_recipes_are_made_of_goes_with_the_graph(self, lab: Lab) -> None:
        if recomputing_policies(lab):
            for ending in ("backward", "retained", "dropped", "error"):
                with self._watched(Recompute()) as (tap, stash):
                    loss = self._gate(stash, lab, _fail if ending == "error" else None)
                    assert "mul" in stash.stats().recomputed
                    assert tap.live > 0
                    if ending == "error":
                        with pytest.raises(Exception, match="deliberate"):
                            lab.backward(loss)
                    elif ending != "dropped":
                        lab.backward(loss, retain_graph=ending == "retained")
                    if ending != "backward":
                        del loss
                    self._assert_nothing_is_left(tap, stash)

    def _gate(self, stash: Stash, lab: Lab, sink: Sink | None) -> Tensor:
        (_, left), (_, right) = square(lab), square(lab, seed=1)
        with settled(stash):
            left = left.exp()
            product = left * right.exp()
            again = product * product
            loss: Tensor = (again if sink is None else lab.observe(product, [left], sink) * again).sum()
        return loss

    @contextmanager
    def _watched(self, before: HookPolicy = Keep()) -> Iterator[tuple[Watched, Stash]]:  # noqa: B008  (a frozen value)
        with reference_counting_only():
            tap = Watched()
            yield tap, self.stash(Chain((before, StoreIn(tap))))

    def _graph(self, stash: Stash, lab: Lab) -> "tuple[Tensor, weakref.ref[Sink]]":
        """Return the loss of a fresh graph and a weak reference to a part of it."""

        def sink(unpacked: Sequence[Tensor]) -> None:
            """Look at nothing."""

        _, inner = square(lab)
        with settled(stash):
            hidden = inner.exp()
            product = lab.observe(hidden * inner, [hidden], sink)
            loss = (product * product.exp()).tanh().sum()
        return loss, weakref.ref(sink)

    def _failing(self, stash: Stash, lab: Lab, place: str) -> None:
        _, inner = square(lab)
        with stash as session:
            loss = lab.observe(inner.exp(), [inner], _fail).tanh().sum()
            session.drain()  # or there may be nothing yet that could be left
            if place == "forward":
                raise RuntimeError("deliberate")
        lab.backward(loss)

    def _assert_nothing_is_left(self, tap: Watched, stash: Stash) -> None:
        __tracebackhide__ = True
        assert tap.live == 0, f"{tap.live} payloads of {tap.live_bytes} bytes are left"
        live = stash.stats().live
        assert (live.tensors, live.nbytes) == (0, 0), f"statistics say {live}, but the store is empty"
