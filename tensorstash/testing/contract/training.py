"""Contract line 1: the same training."""

import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tensorstash.errors import TensorStashWarning
from tensorstash.host.arrays import Array
from tensorstash.policies import Compress, Quantize, Recompute, StoreIn
from tensorstash.policies.plan import HookPolicy
from tensorstash.protocols import SupportsErrorBound
from tensorstash.stores.memory import Memory
from tensorstash.testing.contents import float_bits
from tensorstash.testing.harness import Harness, settled
from tensorstash.testing.lab import Tensor
from tensorstash.testing.layouts import (
    LAYOUTS,
    assert_same_arrays,
    assert_same_bits,
    floats,
    pattern,
)
from tensorstash.testing.programs import (
    attention,
    gated,
    lossless_policies,
    lossy_policies,
    recomputing_policies,
    training,
)


class SameTraining(Harness):
    """Contract line 1."""

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_line01_gradients_are_bitwise_those_without_hooks(self, device: str, dtype: str, tmp_path: Path) -> None:
        expected = attention(self.lab, device, dtype)
        for name, policy in lossless_policies(tmp_path).items():
            for enter in (self.scope, self.stash):  # after all bytes have left, and while they are leaving
                got = attention(self.lab, device, dtype, partial(enter, policy))
                assert_same_arrays(got, expected, f"gradients under {name}")

    def test_line01_gradients_of_strided_operands_are_bitwise(self, device: str, layout: str) -> None:
        for dtype in self.lab.float_dtypes:
            expected = self._gradient_over(LAYOUTS[layout].of(self.lab, dtype, device), None)
            for policy in (StoreIn(Memory()), Compress(min_ratio=1)):
                got = self._gradient_over(LAYOUTS[layout].of(self.lab, dtype, device), policy)
                assert_same_bits(got, expected, f"gradient over a {layout} {dtype} operand under {policy!r}")

    def test_line01_parameters_after_training_are_bitwise_equal(self, device: str, tmp_path: Path) -> None:
        expected = training(self.lab, device)
        for name, policy in lossless_policies(tmp_path).items():
            stash = self.stash(policy)
            with warnings.catch_warnings():
                # CpuOffload rightly does nothing for tensors in host memory.
                warnings.filterwarnings("ignore", "nothing was stashed", TensorStashWarning)
                got = training(self.lab, device, partial(settled, stash))
            assert_same_arrays(got, expected, f"training under {name}")

    def test_line01_what_is_made_again_is_bitwise_what_was_saved(self, device: str, tmp_path: Path) -> None:
        lab = self.lab
        programs = {"attention": attention(lab, device), "gated": gated(lab, device)}
        for name, policy in recomputing_policies(lab, tmp_path).items():
            stash = self.stash(policy)
            for step in range(2):
                for enter in (partial(settled, stash), lambda stash=stash: stash):
                    got = attention(lab, device, scope=enter)
                    assert_same_arrays(got, programs["attention"], f"attention under {name}, step {step}")
                    got = gated(lab, device, enter)
                    assert_same_arrays(got, programs["gated"], f"a gate under {name}, step {step}")
            stats = stash.stats()
            assert "mul" in stats.recomputed, f"nothing was made again under {name}: {stats}"
            assert not stats.refused, f"a recipe did not give the saved bits under {name}: {stats.refused}"

    def test_line01_what_is_made_again_widens_no_error(self, device: str) -> None:
        lab = self.lab
        lossy = Quantize(bits=8) | StoreIn(Memory())
        expected = gated(lab, device, partial(self.scope, lossy))
        for _ in recomputing_policies(lab):
            got = gated(lab, device, partial(self.scope, Recompute() | lossy))
            assert_same_arrays(got, expected, "gradients under Recompute() | Quantize(8)")

    def test_line01_the_random_state_of_the_user_is_untouched(self, device: str, tmp_path: Path) -> None:
        lab = self.lab
        lab.seed(5)
        attention(lab, device)
        expected = lab.draw()
        policies = lossless_policies(tmp_path), lossy_policies(tmp_path), recomputing_policies(lab, tmp_path)
        for name, policy in (item for each in policies for item in each.items()):
            lab.seed(5)
            attention(lab, device, scope=partial(self.stash, policy))
            assert lab.draw() == expected, f"{name} has drawn from the user's random state"

    def test_line01_a_lossy_codec_keeps_its_bound(self, device: str, tmp_path: Path) -> None:
        lab = self.lab
        for dtype in ("float32", "float64"):
            values = floats(6, 40, dtype=dtype) * np.array([[1], [1e-3], [1e3], [0], [1e-30], [7]], dtype)
            tensor = lab.tensor(values, device=device)
            spec = lab.backend.spec(tensor).dense()
            for name, policy in lossy_policies(tmp_path).items():
                codec = next(codec for codec in policy.plan(spec).codecs if not codec.lossless)
                assert isinstance(codec, SupportsErrorBound), f"{codec!r} is lossy and states no bound"
                got = self._came_back(values, policy, device)
                error = np.abs(got.astype("float64") - values.astype("float64"))
                bound = codec.error_bound(values, spec)
                assert np.all(error <= bound), f"{name}, {dtype}: an error of {error.max()} exceeds the bound"
                assert np.any(error > 0), f"{name}, {dtype}: nothing was encoded"

    def test_line01_lossy_policies_never_touch_integers(self, device: str, tmp_path: Path) -> None:
        lab = self.lab
        for name, policy in lossy_policies(tmp_path).items():
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
        leaf = lab.tensor(float_bits(finite, layout.dtype), layout.dtype, device=layout.device, requires_grad=True)
        with self.scope(policy):
            loss = lab.sum(lab.mul(operand, leaf))
        assert_same_bits(lab.bits(operand), bits, "the user's tensor after packing")
        lab.backward(loss)
        return lab.gradient(leaf)

    def _came_back(self, values: Array, policy: HookPolicy, device: str) -> Array:
        """Return a factor as a product gets it back, which nobody holds: the gradient of the other one."""
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
