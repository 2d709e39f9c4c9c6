"""Contract lines 1 and 2: the same training, and the same tensors."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from tensorstash.codecs.zstd import Zstd
from tensorstash.host.arrays import Array
from tensorstash.policies import Compress, DiskSpill, Encode, Quantize, StoreIn
from tensorstash.policies.plan import HookPolicy
from tensorstash.protocols import SupportsErrorBound
from tensorstash.stores.memory import Memory
from tensorstash.testing.harness import Harness, scratch_directory, settled
from tensorstash.testing.lab import Layout, Tensor
from tensorstash.testing.layouts import (
    LAYOUTS,
    assert_same_arrays,
    assert_same_bits,
    floats,
    pattern,
    special_values,
)
from tensorstash.testing.programs import attention, lossless_policies, lossy_policies, training


class SameTraining(Harness):
    """Contract line 1."""

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_line01_gradients_are_bitwise_those_without_hooks(self, device: str, dtype: str) -> None:
        expected = attention(self.lab, device, dtype)
        with scratch_directory() as directory:
            for name, policy in lossless_policies(directory).items():
                for enter in (self.scope, self.stash):  # after all bytes have left, and while they are leaving
                    got = attention(self.lab, device, dtype, partial(enter, policy))
                    assert_same_arrays(got, expected, f"gradients under {name}")

    def test_line01_gradients_of_strided_operands_are_bitwise(self, device: str, layout: str) -> None:
        for dtype in self.lab.float_dtypes:
            expected = self._gradient_over(LAYOUTS[layout].of(self.lab, dtype, device), None)
            for policy in (StoreIn(Memory()), Compress()):
                got = self._gradient_over(LAYOUTS[layout].of(self.lab, dtype, device), policy)
                assert_same_bits(got, expected, f"gradient over a {layout} {dtype} operand under {policy!r}")

    def test_line01_parameters_after_training_are_bitwise_equal(self, device: str) -> None:
        expected = training(self.lab, device)
        with scratch_directory() as directory:
            for name, policy in lossless_policies(directory).items():
                stash = self.stash(policy)
                got = training(self.lab, device, partial(settled, stash))
                assert_same_arrays(got, expected, f"training under {name}")

    def test_line01_the_random_state_of_the_user_is_untouched(self, device: str) -> None:
        lab = self.lab
        lab.seed(5)
        attention(lab, device)
        expected = lab.draw()
        with scratch_directory() as directory:
            for name, policy in {**lossless_policies(directory), **lossy_policies(directory)}.items():
                lab.seed(5)
                attention(lab, device, scope=partial(self.stash, policy))
                assert lab.draw() == expected, f"{name} has drawn from the user's random state"

    def test_line01_a_lossy_codec_keeps_its_bound(self, device: str) -> None:
        lab = self.lab
        for dtype in ("float32", "float64"):
            values = floats(6, 40, dtype=dtype) * np.array([[1], [1e-3], [1e3], [0], [1e-30], [7]], dtype)
            tensor = lab.tensor(values, device=device)
            spec = lab.backend.spec(tensor).dense()
            with scratch_directory() as directory:
                for name, policy in lossy_policies(directory).items():
                    codec = next(codec for codec in policy.plan(spec).codecs if not codec.lossless)
                    assert isinstance(codec, SupportsErrorBound), f"{codec!r} is lossy and states no bound"
                    got = self._came_back(values, policy, device)
                    error = np.abs(got.astype("float64") - values.astype("float64"))
                    bound = codec.error_bound(values, spec)
                    assert np.all(error <= bound), f"{name}, {dtype}: an error of {error.max()} exceeds the bound"
                    assert np.any(error > 0), f"{name}, {dtype}: nothing was encoded"

    def test_line01_lossy_policies_never_touch_integers(self, device: str) -> None:
        lab = self.lab
        with scratch_directory() as directory:
            for name, policy in lossy_policies(directory).items():
                for dtype in (d for d in lab.dtypes if d == "bool" or "int" in d):
                    bits = pattern(dtype, 300)
                    got = self._through(lab.tensor(bits, dtype, device=device), policy)
                    assert_same_bits(got, bits, f"{dtype} under {name}")

    def test_line01_rows_chosen_by_a_stashed_index_are_the_same(self, device: str) -> None:
        lab = self.lab
        gradients = []
        for policy in (None, Quantize(bits=2) | StoreIn(Memory())):
            table = lab.parameter(floats(7, 4), device=device)
            index = lab.tensor(np.array([6, 1, 1, 5]), device=device)
            with self.scope(policy):
                loss = lab.sum(lab.gather(table, index))
            lab.backward(loss)
            gradients.append(lab.gradient(table))
        assert_same_bits(gradients[1], gradients[0], "gradient of gathered rows")

    def _gradient_over(self, operand: Tensor, policy: HookPolicy | None) -> Array:
        lab = self.lab
        layout = lab.layout(operand)
        finite = floats(*layout.shape, seed=3).astype("float64")
        bits = lab.bits(operand)
        leaf = lab.tensor(_as_bits(finite, layout.dtype), layout.dtype, device=layout.device, requires_grad=True)
        with self.scope(policy):
            loss = lab.sum(lab.mul(operand, leaf))
        assert_same_bits(lab.bits(operand), bits, "the user's tensor after packing")
        lab.backward(loss)
        return lab.gradient(leaf)

    def _came_back(self, values: Array, policy: HookPolicy, device: str) -> Array:
        """Return what a product gets back of a factor that nobody holds: the gradient of the other one."""
        lab = self.lab
        ones, others = (lab.tensor(np.ones_like(values), device=device, requires_grad=True) for _ in range(2))
        with self.stash(policy):
            # The second product saves the first, which shows who reads the factor.
            loss = lab.sum(lab.mul(lab.mul(ones, lab.tensor(values, device=device)), others))
        lab.backward(loss)
        return lab.gradient(ones)

    def _through(self, tensor: Tensor, policy: HookPolicy) -> Array:
        with self.scope(policy) as session:
            handle = session.pack(tensor)
        return self.lab.bits(session.unpack(handle))


class SameTensor(Harness):
    """Contract line 2."""

    def test_line02_backward_sees_the_saved_bits_and_layout(self, device: str, layout: str) -> None:
        with scratch_directory() as directory:
            for policy in lossless_policies(directory).values():
                saved = [LAYOUTS[layout].of(self.lab, dtype, device) for dtype in self.lab.dtypes]
                self._assert_observed_unchanged(saved, policy, device)

    def test_line02_nan_payloads_signed_zeros_and_subnormals_survive(self, device: str) -> None:
        names = [name for name in ("float16", "bfloat16", "float32", "float64") if name in self.lab.dtypes]
        with scratch_directory() as directory:
            for policy in lossless_policies(directory).values():
                saved = [self.lab.tensor(special_values(name), name, device=device) for name in names]
                self._assert_observed_unchanged(saved, policy, device)

    def test_line02_lazy_flags_survive(self, device: str) -> None:
        lab = self.lab
        values = floats(3, 4) + 1j * floats(3, 4, seed=1)
        for flags in [(), *((flag,) for flag in lab.flags), lab.flags]:
            tensor = lab.transpose(lab.tensor(values.astype("complex64"), device=device))
            for flag in flags:
                tensor = lab.flagged(tensor, flag)
            assert lab.layout(tensor).flags == set(flags)
            for policy in (StoreIn(Memory()), Compress()):
                self._assert_observed_unchanged([tensor], policy, device)

    def test_line02_requires_grad_comes_back_as_the_framework_expects(self, device: str) -> None:
        lab = self.lab
        seen: list[list[bool]] = []
        for policy in (None, StoreIn(Memory())):
            leaf = lab.tensor(floats(4, 4), device=device, requires_grad=True)
            with self.scope(policy):
                inner = lab.tanh(leaf)
                plain = lab.tensor(floats(4, 4), device=device)
                loss = lab.sum(lab.observe(inner, [leaf, inner, plain], lambda got: seen.append(self._flags(got))))
            lab.backward(loss)
        assert seen[1] == seen[0], f"requires-grad of a leaf, a non-leaf and data is {seen[1]}, expected {seen[0]}"

    def test_line02_every_unpack_is_fresh_private_and_writable(self, device: str) -> None:
        lab = self.lab
        with scratch_directory() as directory:
            for policy in (StoreIn(Memory()), Encode(Zstd()) | StoreIn(Memory()), DiskSpill(directory)):
                source = lab.tensor(floats(5, 4), device=device)
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

    def test_line02_only_the_elements_of_a_view_are_stored(self, device: str) -> None:
        lab = self.lab
        buffer = lab.tensor(floats(1000), device=device)
        with self.scope(StoreIn(Memory())) as session:
            handle = session.pack(lab.rows(buffer, 100, 110))
        assert session.stats().live.nbytes == 40
        assert_same_bits(lab.bits(session.unpack(handle)), lab.bits(buffer)[100:110], "ten rows of a thousand")

    def _flags(self, tensors: Sequence[Tensor]) -> list[bool]:
        return [self.lab.requires_grad(tensor) for tensor in tensors]

    def _assert_observed_unchanged(self, saved: Sequence[Tensor], policy: HookPolicy, device: str) -> None:
        lab = self.lab
        expected = [(lab.bits(tensor), lab.layout(tensor)) for tensor in saved]
        observed: list[tuple[Array, Layout]] = []

        def look(unpacked: Sequence[Tensor]) -> None:
            observed.extend((lab.bits(tensor), lab.layout(tensor)) for tensor in unpacked)

        leaf = lab.tensor(floats(2), device=device, requires_grad=True)
        with self.scope(policy):
            loss = lab.sum(lab.observe(leaf, saved, look))
        lab.backward(loss)
        assert len(observed) == len(expected), f"backward saw {len(observed)} of {len(expected)} tensors"
        for (bits, layout), (expected_bits, expected_layout) in zip(observed, expected, strict=True):
            what = f"{expected_layout.dtype} under {policy!r}"
            assert layout == expected_layout, f"{what}: got {layout}, expected {expected_layout}"
            assert_same_bits(bits, expected_bits, what)


def _as_bits(values: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return np.asarray(values.astype("float32").view("uint32") >> 16, "uint16")
    return np.asarray(values, dtype)
