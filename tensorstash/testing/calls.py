"""Contract lines 3 and 4: unpack in any order and number, and safety in place."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tensorstash.engine.limits import Limits
from tensorstash.errors import SavedTensorModifiedError
from tensorstash.policies import Compress, Keep, StoreIn
from tensorstash.stores.memory import Memory
from tensorstash.testing.faults import Gate, Gated
from tensorstash.testing.harness import Harness
from tensorstash.testing.lab import Tensor
from tensorstash.testing.layouts import assert_same_arrays, assert_same_bits, floats
from tensorstash.testing.programs import attention, square

POLICIES = (Keep(), StoreIn(Memory()), Compress())


class AnyOrderAnyNumber(Harness):
    """Contract line 3."""

    def test_line03_handles_unpack_in_any_order_and_number(self, device: str) -> None:
        lab = self.lab
        for policy in POLICIES:
            tensors = [lab.transpose(lab.tensor(floats(3, n, seed=n), device=device)) for n in range(1, 13)]
            expected = [(lab.bits(tensor), lab.layout(tensor)) for tensor in tensors]
            with self.scope(policy) as session:
                handles = [session.pack(tensor) for tensor in tensors]
            for n in random.Random(0).choices(range(len(handles)), k=40):
                unpacked = session.unpack(handles[n])
                assert_same_bits(lab.bits(unpacked), expected[n][0], f"tensor {n} under {policy!r}")
                assert lab.layout(unpacked) == expected[n][1]

    def test_line03_handles_unpack_on_any_thread_at_once(self, device: str) -> None:
        lab = self.lab
        for policy in POLICIES:
            tensors = [lab.tensor(floats(40, n, seed=n), device=device) for n in range(1, 9)]
            expected = [lab.bits(tensor) for tensor in tensors]
            with self.scope(policy) as session:
                handles = [session.pack(tensor) for tensor in tensors]

            def unpack(n: int, session: Any = session, handles: list[Any] = handles) -> Any:
                return lab.bits(session.unpack(handles[n]))

            order = random.Random(1).choices(range(len(handles)), k=64)
            with ThreadPoolExecutor(4) as pool:
                for n, got in zip(order, pool.map(unpack, order), strict=True):
                    assert_same_bits(got, expected[n], f"tensor {n} on another thread under {policy!r}")

    def test_line03_backward_inside_the_scope_or_on_another_thread(self, device: str) -> None:
        expected = self._cubes(device, None, lambda loss: self.lab.backward(loss))
        for policy in POLICIES:
            with self.stash(policy):
                got = self._cubes(device, None, lambda loss: self.lab.backward(loss))
            assert_same_bits(got, expected, f"backward inside the scope of {policy!r}")
            got = self._cubes(device, policy, self._backward_elsewhere)
            assert_same_bits(got, expected, f"backward on another thread under {policy!r}")

    def test_line03_backward_after_stash_and_session_are_gone(self, device: str) -> None:
        expected = attention(self.lab, device)
        for policy in POLICIES:
            # The program enters a stash that nobody else holds.
            got = attention(self.lab, device, scope=partial(self.stash, policy))
            assert_same_arrays(got, expected, f"gradients under {policy!r}")

    def test_line03_retained_graph_runs_backward_again(self, device: str) -> None:
        def twice(loss: Tensor) -> None:
            self.lab.backward(loss, retain_graph=True)
            self.lab.backward(loss)

        expected = self._cubes(device, None, twice)
        for policy in POLICIES:
            assert_same_bits(self._cubes(device, policy, twice), expected, f"two backwards under {policy!r}")

    def test_line03_double_backward(self, device: str) -> None:
        expected = self._second_derivative(device, None, inside=False)
        for policy in POLICIES:
            for inside in (False, True):
                got = self._second_derivative(device, policy, inside)
                where = "inside" if inside else "after"
                assert_same_bits(got, expected, f"second derivative, taken {where} the scope of {policy!r}")

    def test_line03_a_tensor_nobody_asks_for_is_no_trouble(self, device: str) -> None:
        lab = self.lab
        for policy in POLICIES:
            leaf, inner = square(lab, device)
            with self.scope(policy) as session:
                used = lab.sum(lab.mul(inner, inner))
                unused = lab.sum(lab.exp(inner))
            lab.backward(used)
            del unused
            expected = (lab.bits(inner) * 2).astype("float32")
            assert_same_bits(lab.gradient(leaf), expected, f"gradient of the used branch under {policy!r}")
            assert session.stats().seen.tensors == 3

    def _cubes(self, device: str, policy: Any, backward: Callable[[Tensor], None]) -> Any:
        lab = self.lab
        leaf, inner = square(lab, device)

        with self.scope(policy):
            loss = lab.sum(lab.mul(lab.mul(inner, inner), lab.tanh(inner)))
        backward(loss)
        return lab.gradient(leaf)

    def _backward_elsewhere(self, loss: Tensor) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self.lab.backward, loss).result()

    def _second_derivative(self, device: str, policy: Any, inside: bool) -> Any:
        lab = self.lab
        leaf, inner = square(lab, device)

        def differentiate(output: Tensor) -> Tensor:
            (first,) = lab.grad(output, [leaf], create_graph=True)
            return lab.sum(lab.mul(first, first))

        with self.scope(policy):
            output = lab.sum(lab.exp(lab.mul(lab.tanh(inner), inner)))
            penalty = differentiate(output) if inside else None
        if not inside:
            penalty = differentiate(output)
        lab.backward(penalty)
        return lab.gradient(leaf)


class InPlaceSafety(Harness):
    """Contract line 4."""

    def test_line04_a_kept_tensor_modified_in_place_is_refused(self, device: str) -> None:
        lab = self.lab
        for why, policy, min_bytes in (("policy", Keep(), 0), ("size", StoreIn(Memory()), 1 << 20)):
            for how, modify in self._modifications().items():
                leaf, inner = square(lab, device)
                with self.stash(policy, min_bytes=min_bytes):
                    loss = lab.sum(lab.mul(inner, inner))
                modify(inner)
                with pytest.raises(SavedTensorModifiedError, match=r"modified by an inplace operation.*version"):
                    lab.backward(loss)
                assert leaf.grad is None, f"kept for its {why}, modified {how}: a gradient was written all the same"

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

    def test_line04_the_next_step_works_after_a_refusal(self, device: str) -> None:
        lab = self.lab
        stash = self.stash(Keep())
        _, inner = square(lab, device)
        with stash:
            loss = lab.sum(lab.mul(inner, inner))
        lab.add_(inner, 1.0)
        with pytest.raises(SavedTensorModifiedError):
            lab.backward(loss)
        expected = attention(lab, device)
        assert_same_arrays(attention(lab, device, scope=lambda: stash), expected, "the step after a refused one")

    def _modifications(self) -> dict[str, Callable[[Tensor], None]]:
        lab = self.lab
        return {
            "itself": lambda tensor: lab.add_(tensor, 10.0),
            "through a view": lambda tensor: lab.add_(lab.rows(tensor, 0, 2), 10.0),
        }
