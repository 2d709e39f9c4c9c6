"""Contract lines 1 to 3: the same training, the same tensor, in any order and number."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorstash.codecs.zstd import Zstd
from tensorstash.host.arrays import Array
from tensorstash.policies import Compress, DiskSpill, Encode, Quantize, Recompute, StoreIn
from tensorstash.policies.plan import HookPolicy
from tensorstash.protocols import SupportsErrorBound
from tensorstash.stores.memory import Memory
from tensorstash.testing.contents import float_bits
from tensorstash.testing.harness import Harness, settled
from tensorstash.testing.lab import Lab, Layout, Tensor
from tensorstash.testing.layouts import assert_same_arrays, assert_same_bits, floats, pattern
from tensorstash.testing.programs import (
    POLICIES,
    attention,
    gated,
    lossless_policies,
    lossy_policies,
    recomputing_policies,
    square,
    training,
)


class SameTraining(Harness):
    """Contract line 1."""

    def test_line01_training_is_bitwise_that_without_hooks(self, lab: Lab, tmp_path: Path) -> None:
        policies = {**lossless_policies(tmp_path), **recomputing_policies(lab, tmp_path)}
        after, meanwhile = self.scope, self.stash  # backward when all bytes have left, or while they are leaving
        ways: dict[Callable[..., dict[str, Array]], Callable[..., AbstractContextManager[Any]]] = {
            attention: after,
            partial(attention, dtype="float64"): meanwhile,
            training: meanwhile,
        }
        for program, enter in ways.items():
            expected = program(lab)
            for name, policy in policies.items():
                got = program(lab, scope=partial(enter, policy))
                assert_same_arrays(got, expected, f"{program} under {name}")

    def test_line01_gradients_of_strided_operands_are_bitwise(self, lab: Lab) -> None:
        for dtype in lab.float_dtypes:
            gradients: list[dict[str, Array]] = []
            for policy in (None, StoreIn(Memory()), Compress(min_ratio=1)):
                operands = self._strided(lab, dtype)
                shapes = {name: lab.layout(operand).shape for name, operand in operands.items()}
                finite = {name: float_bits(floats(*shape).astype("float64"), dtype) for name, shape in shapes.items()}
                leaves = {name: lab.tensor(bits, dtype, requires_grad=True) for name, bits in finite.items()}
                with self.scope(policy):
                    losses = [(operands[name] * leaf).sum() for name, leaf in leaves.items()]
                for loss in losses:
                    lab.backward(loss)
                gradients.append({name: lab.gradient(leaf) for name, leaf in leaves.items()})
                assert_same_arrays(gradients[-1], gradients[0], f"over {dtype} operands under {policy!r}")

    def test_line01_what_is_made_again_is_bitwise_what_was_saved(self, lab: Lab, tmp_path: Path) -> None:
        expected = gated(lab)
        for name, policy in recomputing_policies(lab, tmp_path).items():
            stash = self.stash(policy)
            for enter in (partial(settled, stash), lambda stash=stash: stash) * 2:
                assert_same_arrays(gated(lab, enter), expected, f"a gate under {name}")
            stats = stash.stats()
            assert "mul" in stats.recomputed, f"nothing was made again under {name}: {stats}"
            assert not stats.refused, f"a recipe did not give the saved bits under {name}: {stats.refused}"

    def test_line01_what_is_made_again_widens_no_error(self, lab: Lab) -> None:
        lossy = Quantize(bits=8) | StoreIn(Memory())
        expected = gated(lab, partial(self.scope, lossy))
        if recomputing_policies(lab):
            got = gated(lab, partial(self.scope, Recompute() | lossy))
            assert_same_arrays(got, expected, "gradients under Recompute() | Quantize(8)")

    def test_line01_the_random_state_of_the_user_is_untouched(self, lab: Lab, tmp_path: Path) -> None:
        lab.seed(5)
        gated(lab)
        expected = lab.draw()
        policies = lossless_policies(tmp_path), lossy_policies(tmp_path), recomputing_policies(lab, tmp_path)
        for name, policy in (item for each in policies for item in each.items()):
            lab.seed(5)
            gated(lab, partial(self.stash, policy))
            assert lab.draw() == expected, f"{name} has drawn from the user's random state"

    def test_line01_a_lossy_codec_keeps_its_bound(self, lab: Lab, tmp_path: Path) -> None:
        for dtype in ("float32", "float64"):
            values = floats(6, 40, dtype=dtype) * np.array([[1], [1e-3], [1e3], [0], [1e-30], [7]], dtype)
            tensor = lab.tensor(values)
            spec = lab.backend.spec(tensor).dense()
            for name, policy in lossy_policies(tmp_path).items():
                codec = next(codec for codec in policy.plan(spec).codecs if not codec.lossless)
                assert isinstance(codec, SupportsErrorBound), f"{codec!r} is lossy and states no bound"
                got = self._came_back(values, policy, lab)
                error = np.abs(got.astype("float64") - values.astype("float64"))
                bound = codec.error_bound(values, spec)
                assert np.all(error <= bound), f"{name}, {dtype}: an error of {error.max()} exceeds the bound"
                assert np.any(error > 0), f"{name}, {dtype}: nothing was encoded"

    def test_line01_lossy_policies_never_touch_integers(self, lab: Lab, tmp_path: Path) -> None:
        for name, policy in lossy_policies(tmp_path).items():
            for dtype in (d for d in lab.dtypes if d == "bool" or "int" in d):
                bits = pattern(dtype, 300)
                with self.scope(policy) as session:
                    handle = session.pack(lab.tensor(bits, dtype))
                assert_same_bits(lab.bits(session.unpack(handle)), bits, f"{dtype} under {name}")

    def _came_back(self, values: Array, policy: HookPolicy, lab: Lab) -> Array:
        """Return a factor as a product gets it back, which nobody holds: the gradient of the other one."""
        ones, others = (lab.tensor(np.ones_like(values), requires_grad=True) for _ in range(2))
        with self.stash(policy):
            # The second product saves the first, which shows who reads the factor.
            loss = (ones * lab.tensor(values) * others).sum()
        lab.backward(loss)
        return lab.gradient(ones)


class SameTensor(Harness):
    """Contract line 2."""

    def test_line02_backward_sees_the_saved_bits_and_layout(self, lab: Lab, tmp_path: Path) -> None:
        saved = [tensor for dtype in lab.dtypes for tensor in self._strided(lab, dtype).values()]
        for number, (name, policy) in enumerate(lossless_policies(tmp_path).items()):
            is_whole = name in ("cpu_offload", "compress | disk")  # every layout in every dtype
            self._assert_observed_unchanged(saved if is_whole else saved[number % 7 :: 7], policy, lab)

    def test_line02_lazy_flags_survive(self, lab: Lab) -> None:
        values = floats(3, 4) + 1j * floats(3, 4, seed=1)
        for flags in [(), *((flag,) for flag in lab.flags), lab.flags]:
            tensor = lab.tensor(values.astype("complex64")).T
            for flag in flags:
                tensor = lab.flagged(tensor, flag)
            assert lab.layout(tensor).flags == set(flags)
            for policy in (StoreIn(Memory()), Compress(min_ratio=1)):
                self._assert_observed_unchanged([tensor], policy, lab)

    def test_line02_requires_grad_comes_back_as_the_framework_expects(self, lab: Lab) -> None:
        seen: list[list[bool]] = []
        for policy in (None, StoreIn(Memory())):
            leaf = lab.tensor(floats(4, 4), requires_grad=True)
            with self.scope(policy):
                inner = leaf.tanh()
                saved = [leaf, inner, lab.tensor(floats(4, 4))]
                loss = lab.observe(inner, saved, lambda got: seen.append([*map(lab.requires_grad, got)])).sum()
            lab.backward(loss)
        assert seen[1] == seen[0], f"requires-grad of a leaf, a non-leaf and data is {seen[1]}, expected {seen[0]}"

    def test_line02_every_unpack_is_fresh_private_and_writable(self, lab: Lab, tmp_path: Path) -> None:
        for policy in (StoreIn(Memory()), Encode(Zstd()) | StoreIn(Memory()), DiskSpill(tmp_path)):
            source = lab.tensor(floats(5, 4))
            bits = lab.bits(source)
            with self.scope(policy) as session:
                handle = session.pack(source)
            first = session.unpack(handle)
            second = session.unpack(handle)
            assert len({lab.address(t) for t in (source, first, second)}) == 3, f"{policy!r}: memory is shared"
            lab.write_unversioned(first, 7.0)
            lab.add_(second, 1.0)
            assert_same_bits(lab.bits(session.unpack(handle)), bits, f"third unpack under {policy!r}")
            assert_same_bits(lab.bits(source), bits, f"the user's tensor under {policy!r}")

    def test_line02_only_the_elements_of_a_view_are_stored(self, lab: Lab) -> None:
        buffer = lab.tensor(floats(1000))
        with self.scope(StoreIn(Memory())) as session:
            handle = session.pack(buffer[100:110])
        assert session.stats().live.nbytes == 40
        assert_same_bits(lab.bits(session.unpack(handle)), lab.bits(buffer)[100:110], "ten rows of a thousand")

    def _assert_observed_unchanged(self, saved: Sequence[Tensor], policy: HookPolicy, lab: Lab) -> None:
        expected = [(lab.bits(tensor), lab.layout(tensor)) for tensor in saved]
        observed: list[tuple[Array, Layout]] = []

        def look(unpacked: Sequence[Tensor]) -> None:
            observed.extend((lab.bits(tensor), lab.layout(tensor)) for tensor in unpacked)

        leaf = lab.tensor(floats(2), requires_grad=True)
        with self.scope(policy):
            loss = lab.observe(leaf, saved, look).sum()
        lab.backward(loss)
        assert len(observed) == len(expected), f"backward saw {len(observed)} of {len(expected)} tensors"
        for (bits, layout), (expected_bits, expected_layout) in zip(observed, expected, strict=True):
            assert layout == expected_layout, f"under {policy!r}: got {layout}, expected {expected_layout}"
            assert_same_bits(bits, expected_bits, f"{expected_layout} under {policy!r}")


class AnyOrderAnyNumber(Harness):
    """Contract line 3."""

    def test_line03_handles_unpack_in_any_order_and_number_on_any_thread(self, lab: Lab) -> None:
        for policy in POLICIES:
            tensors = [lab.tensor(floats(3, n, seed=n)).T for n in range(1, 13)]
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
    def test_line03_backward_runs_anywhere_and_again(self, lab: Lab, way: str) -> None:
        expected = self._cubes(lab, None, way)
        for policy in self._policies(lab):
            assert_same_bits(self._cubes(lab, policy, way), expected, f"backward {way} under {policy!r}")

    def test_line03_double_backward(self, lab: Lab) -> None:
        expected = self._second_derivative(lab, None, inside=False)
        for policy in self._policies(lab):
            for inside in (False, True):
                got = self._second_derivative(lab, policy, inside)
                where = "inside" if inside else "after"
                assert_same_bits(got, expected, f"second derivative, taken {where} the scope of {policy!r}")

    def _policies(self, lab: Lab) -> Sequence[HookPolicy]:
        return (*POLICIES, Recompute()) if recomputing_policies(lab) else POLICIES

    def _cubes(self, lab: Lab, policy: Any, way: str) -> Any:
        leaf, inner = square(lab)
        with self.scope(policy):
            loss = (inner * inner * inner.tanh()).sum()
            if way == "inside of the scope":
                lab.backward(loss)
        if way == "on another thread":
            with ThreadPoolExecutor(1) as pool:
                pool.submit(lab.backward, loss).result()
        elif way == "twice":
            lab.backward(loss, retain_graph=True)
            lab.backward(loss)
        return lab.gradient(leaf)

    def _second_derivative(self, lab: Lab, policy: Any, inside: bool) -> Any:
        leaf, inner = square(lab)

        def differentiate(output: Tensor) -> Tensor:
            (first,) = lab.grad(output, [leaf], create_graph=True)
            return (first * first).sum()

        with self.scope(policy):
            output = (inner.tanh() * inner).exp().sum()
            penalty = differentiate(output) if inside else None
        if not inside:
            penalty = differentiate(output)
        lab.backward(penalty)
        return lab.gradient(leaf)
