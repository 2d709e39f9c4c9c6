"""Contract line 2: the same tensor."""

from collections.abc import Sequence
from pathlib import Path

from tensorstash.codecs.zstd import Zstd
from tensorstash.host.arrays import Array
from tensorstash.policies import Compress, DiskSpill, Encode, StoreIn
from tensorstash.policies.plan import HookPolicy
from tensorstash.stores.memory import Memory
from tensorstash.testing.harness import Harness
from tensorstash.testing.lab import Layout, Tensor
from tensorstash.testing.layouts import (
    LAYOUTS,
    assert_same_bits,
    floats,
    special_values,
)
from tensorstash.testing.programs import lossless_policies


class SameTensor(Harness):
    """Contract line 2."""

    def test_line02_backward_sees_the_saved_bits_and_layout(self, device: str, layout: str, tmp_path: Path) -> None:
        for policy in lossless_policies(tmp_path).values():
            saved = [LAYOUTS[layout].of(self.lab, dtype, device) for dtype in self.lab.dtypes]
            self._assert_observed_unchanged(saved, policy, device)

    def test_line02_nan_payloads_signed_zeros_and_subnormals_survive(self, device: str, tmp_path: Path) -> None:
        names = [name for name in ("float16", "bfloat16", "float32", "float64") if name in self.lab.dtypes]
        for policy in lossless_policies(tmp_path).values():
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
            for policy in (StoreIn(Memory()), Compress(min_ratio=1)):
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

    def test_line02_every_unpack_is_fresh_private_and_writable(self, device: str, tmp_path: Path) -> None:
        lab = self.lab
        for policy in (StoreIn(Memory()), Encode(Zstd()) | StoreIn(Memory()), DiskSpill(tmp_path)):
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
            case = f"{expected_layout.dtype} under {policy!r}"
            assert layout == expected_layout, f"{case}: got {layout}, expected {expected_layout}"
            assert_same_bits(bits, expected_bits, case)
