"""Contract line 3: unpack in any order, any number of times."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tensorstash.policies import Compress, Keep, StoreIn
from tensorstash.stores.memory import Memory
from tensorstash.testing.harness import Harness
from tensorstash.testing.lab import Tensor
from tensorstash.testing.layouts import assert_same_bits, floats
from tensorstash.testing.programs import square

POLICIES = (Keep(), StoreIn(Memory()), Compress(min_ratio=1))


class AnyOrderAnyNumber(Harness):
    """Contract line 3."""

    def test_line03_handles_unpack_in_any_order_and_number_on_any_thread(self, device: str) -> None:
        lab = self.lab
        for policy in POLICIES:
            tensors = [lab.transpose(lab.tensor(floats(3, n, seed=n), device=device)) for n in range(1, 13)]
            expected = [(lab.bits(tensor), lab.layout(tensor)) for tensor in tensors]
            with self.scope(policy) as session:
                handles = [session.pack(tensor) for tensor in tensors]

            def unpack(n: int, session: Any = session, handles: list[Any] = handles) -> Any:
                unpacked = session.unpack(handles[n])
                return lab.bits(unpacked), lab.layout(unpacked)

            order = random.Random(0).choices(range(len(handles)), k=64)
            with ThreadPoolExecutor(4) as pool:
                for n, (bits, layout) in zip(order * 2, (*map(unpack, order), *pool.map(unpack, order)), strict=True):
                    assert_same_bits(bits, expected[n][0], f"tensor {n} under {policy!r}")
                    assert layout == expected[n][1]

    @pytest.mark.parametrize("way", ["inside of the scope", "on another thread", "twice"])
    def test_line03_backward_runs_anywhere_and_again(self, device: str, way: str) -> None:
        expected = self._cubes(device, None, way)
        for policy in POLICIES:
            assert_same_bits(self._cubes(device, policy, way), expected, f"backward {way} under {policy!r}")

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

    def _cubes(self, device: str, policy: Any, way: str) -> Any:
        lab = self.lab
        leaf, inner = square(lab, device)
        with self.scope(policy):
            loss = lab.sum(lab.mul(lab.mul(inner, inner), lab.tanh(inner)))
            if way == "inside of the scope":
                lab.backward(loss)
        if way == "on another thread":
            with ThreadPoolExecutor(1) as pool:
                pool.submit(lab.backward, loss).result()
        elif way == "twice":
            lab.backward(loss, retain_graph=True)
            lab.backward(loss)
        return lab.gradient(leaf)

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
