"""How policies compose: what follows what, what is refused, and that grouping does not matter."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_strategies import chains, policies, specs

from tensorstash.codecs.affine import Affine
from tensorstash.codecs.lossless import Lossless
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.sparse import Sparse
from tensorstash.codecs.two_valued import TwoValued
from tensorstash.codecs.zstd import Zstd
from tensorstash.errors import ConfigError, PlanError
from tensorstash.policies import (
    Cast,
    Chain,
    Compress,
    CpuOffload,
    DiskSpill,
    Encode,
    Keep,
    PackMasks,
    Quantize,
    Route,
    Rule,
    StoreIn,
)
from tensorstash.policies.plan import HookPolicy, Plan
from tensorstash.policies.policy import in_text
from tensorstash.policies.selectors import Dtypes, MinBytes
from tensorstash.spec import TensorSpec, opaque_bytes
from tensorstash.stores.disk.store import Disk
from tensorstash.stores.memory import Memory


def spec(dtype="float32", device="cpu"):
    return TensorSpec((8, 16), (16, 1), 0, dtype, device)


@pytest.mark.parametrize(
    ("chain", "dtype", "device", "plan"),
    [
        (Quantize() | CpuOffload(), "float32", "cuda:0", Plan((Affine(),), Memory())),
        (Quantize() | CpuOffload(), "float32", "cpu", Plan((Affine(),))),
        (Quantize() | CpuOffload(), "int64", "cuda:0", Plan((), Memory())),
        (CpuOffload() | Quantize(), "float32", "cuda:0", Plan((Affine(),), Memory())),
        (Quantize() | Compress(), "float32", "cpu", Plan((Affine(), Lossless()), Memory())),
        (Quantize() | Compress(), "int64", "cpu", Plan((Lossless(),), Memory())),
        (PackMasks() | Compress(), "bool", "cpu", Plan((PackBits(), Lossless()), Memory())),
        (PackMasks() | Quantize(), "bool", "cpu", Plan((PackBits(),))),
        (Compress() | CpuOffload(), "int8", "cuda:0", Plan((Lossless(),), Memory())),
        (CpuOffload() | DiskSpill("/x"), "int8", "cuda:0", Plan((), Disk(directory="/x"))),
        (Compress() | StoreIn(Memory(budget=9)), "int8", "cpu", Plan((Lossless(),), Memory(budget=9))),
        (StoreIn(Memory(budget=9)) | CpuOffload(), "int8", "cuda:0", Plan((), Memory(budget=9))),
        (DiskSpill("/x") | DiskSpill("/x"), "int8", "cpu", Plan((), Disk(directory="/x"))),
        (Encode(Sparse()) | Encode(Zstd()), "float32", "cpu", Plan((Sparse(), Zstd()))),
        (Encode(Sparse()) | Encode(Zstd()), "int8", "cpu", Plan((Zstd(),))),
    ],
)
def test_steps_work_on_what_earlier_steps_left(chain, dtype, device, plan):
    assert chain.plan(spec(dtype, device)) == plan


def test_a_codec_sees_the_dtype_an_earlier_step_made():
    chain = Cast("bfloat16") | Encode(OnlyBfloat16())
    assert chain.plan(spec()).codecs[1:] == (OnlyBfloat16(),)
    assert Encode(OnlyBfloat16()).plan(spec()).keeps


def test_array_codecs_skip_what_has_become_bytes():
    chain = Encode(FloatsToBytes()) | Encode(AnyArray())
    assert chain.plan(spec()).codecs == (FloatsToBytes(),)
    assert chain.plan(spec("int8")).codecs == (AnyArray(),)


def test_selectors_see_the_tensor_as_it_was_saved():
    chain = Quantize() | Route((Rule(Dtypes("float32") & MinBytes(512), DiskSpill("/x")),), otherwise=CpuOffload())
    assert chain.plan(spec()).store == Disk(directory="/x")
    assert chain.plan(spec("float16", "cuda:0")).store == Memory()


def test_reasons_of_steps_that_did_nothing_are_told_together():
    assert (Quantize() | PackMasks() | CpuOffload()).plan(spec("int8")).reason == (
        "int8 is never quantized; int8 is not a mask; already in host memory"
    )
    assert (Quantize() | DiskSpill("/x")).plan(spec("int8")).reason == ""


@dataclass(frozen=True, kw_only=True)
class AnyArray:
    """A codec that takes every array."""

    name: ClassVar[str] = "any_array"
    lossless: ClassVar[bool] = True
    kind: ClassVar[str] = "array->array"

    def accepts(self, spec, /):
        return True

    def encoded_spec(self, spec, /):
        return spec

    def encode(self, data, spec, /):
        return data.copy()

    def decode(self, data, spec, /):
        return data.copy()


@dataclass(frozen=True, kw_only=True)
class OnlyBfloat16(AnyArray):
    """A codec that takes one dtype, and makes another of it."""

    name: ClassVar[str] = "only_bfloat16"

    def accepts(self, spec, /):
        return spec.dtype == "bfloat16"

    def encoded_spec(self, spec, /):
        return replace(spec, dtype="uint16")


@dataclass(frozen=True, kw_only=True)
class FloatsToBytes(AnyArray):
    """A codec that takes floating-point arrays, and makes bytes of them."""

    name: ClassVar[str] = "floats_to_bytes"
    kind: ClassVar[str] = "array->bytes"

    def accepts(self, spec, /):
        return spec.kind == "float"

    def encoded_spec(self, spec, /):
        return opaque_bytes(spec)


IMPOSSIBLE = [
    (Compress(), Quantize()),
    (Compress(), Cast()),
    (Encode(Zstd()), Quantize()),
    (Quantize(), Quantize(4)),
    (Cast(), Cast("float16")),
    (Encode(Sparse()), Quantize()),
    (DiskSpill("/x"), Compress()),
    (DiskSpill("/x"), CpuOffload()),
    (DiskSpill("/x"), StoreIn(Memory())),
    (DiskSpill("/x"), DiskSpill("/y")),
]


@pytest.mark.parametrize(("first", "second"), IMPOSSIBLE, ids=lambda policy: policy.name)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda policy: policy,
        lambda policy: Keep() | policy,
        lambda policy: Route((Rule(MinBytes(1), policy),)),
        lambda policy: Route((), otherwise=policy),
        lambda policy: Foreign(policy),
    ],
    ids=["plain", "in a chain", "in a rule", "as otherwise", "foreign"],
)
def test_impossible_order_is_refused_at_construction_and_names_both_steps(first, second, wrap):
    with pytest.raises(PlanError) as caught:
        wrap(first) | second
    assert str(caught.value).startswith("write ")
    assert in_text(second) in str(caught.value).partition(": ")[0]
    with pytest.raises(PlanError):
        first | wrap(second)


def test_masks_are_not_packed_twice():
    with pytest.raises(PlanError, match="write pack_masks once"):
        PackMasks() | PackMasks()


def test_what_looks_for_masks_leaves_floats_to_those_who_encode_all_of_them():
    for step in (Quantize(), Cast(), Compress(), Encode(Sparse()), Encode(Zstd())):
        assert (PackMasks() | step).plan(spec()) == step.plan(spec())
        assert ((PackMasks() | Keep()) | (step | DiskSpill("/x"))).plan(spec()) == (step | DiskSpill("/x")).plan(spec())
    masks = PackMasks() | DiskSpill("/x")
    assert masks.plan(spec()).codecs == (TwoValued(),)


@dataclass(frozen=True)
class Foreign:
    """A policy of a plug-in, which knows the protocol only."""

    name: ClassVar[str] = "foreign"
    inner: HookPolicy

    def __repr__(self):
        return repr(self.inner)

    def plan(self, spec, /):
        return self.inner.plan(spec)

    def alternatives(self):
        return self.inner.alternatives()


def test_foreign_policies_chain_on_either_side():
    assert (Foreign(Quantize()) | DiskSpill("/x")).plan(spec()) == Plan((Affine(),), Disk(directory="/x"))
    assert (Quantize() | Foreign(Compress())).plan(spec()) == Plan((Affine(), Lossless()), Memory())
    assert (Keep() | Foreign(Quantize())).plan(spec("int8")).reason == "int8 is never quantized"


@given(chains, st.integers(0, 6), st.integers(0, 6))
def test_grouping_does_not_matter(chain, first, second):
    low, high = sorted((first, second))
    a, b, c = (Chain(part) for part in (chain.steps[:low], chain.steps[low:high], chain.steps[high:]))
    assert (a | b) | c == a | (b | c) == chain


@given(policies, specs())
def test_keep_is_neutral(policy, spec):
    assert (Keep() | policy).plan(spec) == policy.plan(spec) == (policy | Keep()).plan(spec)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Chain(Keep()), r"chain.steps: got Keep\(\), expected a tuple of policies"),
        (lambda: Keep() | 3, r"chain.steps\[1\]: got 3, expected a policy"),
        (lambda: 3 | Keep(), r"chain.steps\[0\]: got 3, expected a policy"),
        (
            lambda: Keep() | Quantize,
            r"chain.steps\[1\]: got the class Quantize, expected a policy such as Quantize\(\)",
        ),
        (
            lambda: Zstd() | Keep(),
            r"chain.steps\[0\]: got the codec Zstd\(level=1, shuffle=False\).*write Encode\(Zstd",
        ),
    ],
)
def test_what_is_no_policy_is_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
