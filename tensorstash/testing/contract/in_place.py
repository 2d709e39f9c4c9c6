"""Contract line 4: in-place safety."""

from collections.abc import Callable
from typing import Any

import pytest

from tensorstash.errors import SavedTensorModifiedError, StashError
from tensorstash.policies import Compress, Keep, StoreIn
from tensorstash.policies.limits import Limits
from tensorstash.stores.memory import Memory
from tensorstash.testing.faults import Gate, Gated
from tensorstash.testing.harness import Harness
from tensorstash.testing.lab import Tensor
from tensorstash.testing.layouts import assert_same_arrays, assert_same_bits, floats
from tensorstash.testing.programs import attention, recomputing_policies, square

POLICIES = (Keep(), StoreIn(Memory()), Compress(min_ratio=1))


class InPlaceSafety(Harness):
    """Contract line 4."""

    def test_line04_a_kept_tensor_modified_in_place_is_refused_and_the_next_step_works(self, device: str) -> None:
        lab = self.lab
        expected = attention(lab, device)
        for why, policy, min_bytes in (("policy", Keep(), 0), ("size", StoreIn(Memory()), 1 << 20)):
            for how, modify in self._modifications().items():
                leaf, inner = square(lab, device)
                stash = self.stash(policy, min_bytes=min_bytes)
                with stash:
                    loss = lab.sum(lab.mul(inner, inner))
                modify(inner)
                with pytest.raises(SavedTensorModifiedError, match=r"modified by an inplace operation.*version"):
                    lab.backward(loss)
                assert leaf.grad is None, f"kept for its {why}, modified {how}: a gradient was written all the same"
                got = attention(lab, device, scope=lambda stash=stash: stash)  # type: ignore[misc]
                assert_same_arrays(got, expected, "the step after a refused one")

    def test_line04_a_kept_parameter_modified_before_backward_is_refused(self, device: str) -> None:
        lab = self.lab
        weight = lab.parameter(floats(4, 4), device=device)
        inputs = lab.tensor(floats(2, 4), device=device, requires_grad=True)
        with self.stash(StoreIn(Memory())):
            loss = lab.sum(lab.matmul(inputs, weight))
        lab.add_(weight, 1.0)
        with pytest.raises(SavedTensorModifiedError):
            lab.backward(loss)

    def test_line04_captured_bytes_are_immune(self, device: str) -> None:
        lab = self.lab
        for how, modify in self._modifications().items():
            leaf, inner = square(lab, device)
            expected = (lab.bits(inner) * 2).astype("float32")
            with self.scope(StoreIn(Memory())):
                loss = lab.sum(lab.mul(inner, inner))
            modify(inner)
            lab.backward(loss)
            assert_same_bits(lab.gradient(leaf), expected, f"gradient of a captured tensor modified {how}")

    def test_line04_bytes_modified_before_they_are_captured_are_refused(self, device: str) -> None:
        lab = self.lab
        for how, modify in self._modifications().items():
            for opens_first in (False, True):
                gate = Gate()
                leaf, inner = square(lab, device)
                with self.stash(StoreIn(Gated(gate=gate)), limits=Limits()) as session:
                    loss = lab.sum(lab.mul(inner, inner))
                modify(inner)
                if opens_first:
                    gate.open()
                    session.drain()
                with pytest.raises(SavedTensorModifiedError, match="modified by an inplace operation"):
                    lab.backward(loss)
                assert leaf.grad is None, f"modified {how}: a gradient was written all the same"
                gate.open()

    def test_line04_an_unpack_does_not_wait_for_bytes_on_their_way(self, device: str) -> None:
        lab = self.lab
        gate = Gate()
        leaf, inner = square(lab, device)
        expected = (lab.bits(inner) * 2).astype("float32")
        with self.stash(StoreIn(Gated(gate=gate)), limits=Limits()):
            loss = lab.sum(lab.mul(inner, inner))
        lab.backward(loss)
        gate.open()
        assert_same_bits(lab.gradient(leaf), expected, "gradient while the store is held back")

    def test_line04_what_trains_without_hooks_trains(self, device: str) -> None:
        lab = self.lab

        def program(policy: Any) -> Any:
            leaf, inner = square(lab, device)
            lab.add_(inner, 1.0)
            data = lab.tensor(floats(8), device=device)
            lab.add_(data, 2.0)
            with self.scope(policy):
                scaled = lab.mul(inner, data)
                lab.add_(scaled, 0.5)
                out = lab.tanh(scaled)
                shifted = lab.mul(out, 1.0)
                lab.add_(shifted, 3.0)
                loss = lab.sum(lab.mul(out, inner))
            lab.backward(loss)
            return lab.gradient(leaf)

        expected = program(None)
        for policy in POLICIES:
            assert_same_bits(program(policy), expected, f"in-place writes that autograd allows, under {policy!r}")

    def test_line04_what_recipes_are_made_of_is_refused_if_it_was_modified(self, device: str) -> None:
        lab = self.lab
        for name, policy in recomputing_policies(lab).items():
            for how, modify in self._modifications().items():
                for place in ("a factor", "the product"):
                    (leaf, left), (_, right) = square(lab, device), square(lab, device, seed=1)
                    with self.stash(policy) as session:
                        product = lab.mul(left, right)
                        loss = lab.sum(lab.mul(product, product))
                    assert "mul" in session.stats().recomputed
                    modify(left if place == "a factor" else product)
                    with pytest.raises(SavedTensorModifiedError, match=r"modified by an inplace operation.*version"):
                        lab.backward(loss)
                    assert leaf.grad is None, f"{name}: {place} was modified {how}, and a gradient was written"

    def test_line04_what_recipes_are_made_of_is_refused_if_it_was_written_without_a_version(self, device: str) -> None:
        lab = self.lab
        for name, policy in recomputing_policies(lab).items():
            if name != "recompute":
                continue
            (leaf, inner), (_, right) = square(lab, device), square(lab, device, seed=1)
            with self.stash(policy):
                left = lab.exp(inner)
                product = lab.mul(left, right)
                loss = lab.sum(lab.mul(product, product))
                del product  # or backward gets it as it is there
            lab.write_unversioned(left, 7.0)
            with pytest.raises(StashError, match=r"Recompute, rule mul.*came out different"):
                lab.backward(loss)
            if device == "cpu":  # devices are asked once, after backward: the error stands beside the gradient
                assert leaf.grad is None

    def _modifications(self) -> dict[str, Callable[[Tensor], None]]:
        lab = self.lab
        return {
            "itself": lambda tensor: lab.add_(tensor, 10.0),
            "through a view": lambda tensor: lab.add_(lab.rows(tensor, 0, 2), 10.0),
        }
