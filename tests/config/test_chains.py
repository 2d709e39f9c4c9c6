"""How policies compose: what follows what, what is refused, and that grouping does not matter."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_strategies import chains, policies, spec, specs

import tensorstash as ts
from tensorstash.codecs import Affine, AsType, Lossless, PackBits, Sparse, TwoValued, Zstd
from tensorstash.errors import PlanError
from tensorstash.policies.plan import HookPolicy, Plan
from tensorstash.policies.policy import in_text
from tensorstash.policies.selectors import Dtypes, MinBytes
from tensorstash.stores import Disk, Memory


@pytest.mark.parametrize(
    ("chain", "dtype", "device", "plan"),
    [
        (ts.Quantize() | ts.CpuOffload(), "float32", "cuda:0", Plan((Affine(),), Memory())),
        (ts.Quantize() | ts.CpuOffload(), "float32", "cpu", Plan((Affine(),))),
        (ts.Quantize() | ts.CpuOffload(), "int64", "cuda:0", Plan((), Memory())),
        (ts.CpuOffload() | ts.Quantize(), "float32", "cuda:0", Plan((Affine(),), Memory())),
        (ts.Quantize() | ts.Compress(), "float32", "cpu", Plan((Affine(), Lossless()), Memory())),
        (ts.Quantize() | ts.Compress(), "int64", "cpu", Plan((Lossless(),), Memory())),
        (ts.PackMasks() | ts.Compress(), "bool", "cpu", Plan((PackBits(), Lossless()), Memory())),
        (ts.PackMasks() | ts.Quantize(), "bool", "cpu", Plan((PackBits(),))),
        (ts.Compress() | ts.CpuOffload(), "int8", "cuda:0", Plan((Lossless(),), Memory())),
        (ts.CpuOffload() | ts.DiskSpill("/x"), "int8", "cuda:0", Plan((), Disk(directory="/x"))),
        (ts.Compress() | ts.StoreIn(Memory(budget=9)), "int8", "cpu", Plan((Lossless(),), Memory(budget=9))),
        (ts.StoreIn(Memory(budget=9)) | ts.CpuOffload(), "int8", "cuda:0", Plan((), Memory(budget=9))),
        (ts.DiskSpill("/x") | ts.DiskSpill("/x"), "int8", "cpu", Plan((), Disk(directory="/x"))),
        (ts.Encode(Sparse()) | ts.Encode(Zstd()), "float32", "cpu", Plan((Sparse(), Zstd()))),
        (ts.Encode(Sparse()) | ts.Encode(Zstd()), "int8", "cpu", Plan((Zstd(),))),
    ],
)
def test_steps_work_on_what_earlier_steps_left(chain, dtype, device, plan):
    assert chain.plan(spec(dtype, device)) == plan


def test_a_codec_sees_the_dtype_an_earlier_step_made():
    chain = ts.Cast("bfloat16") | ts.Encode(Affine())
    assert chain.plan(spec()).codecs == (AsType(dtype="bfloat16"), Affine())
    with pytest.raises(PlanError, match="its input is encoded already"):  # which takes no float8
        ts.Cast("float8_e5m2") | ts.Encode(Affine())


def test_selectors_see_the_tensor_as_it_was_saved():
    rule = ts.Rule(Dtypes("float32") & MinBytes(512), ts.DiskSpill("/x"))
    chain = ts.Quantize() | ts.Route((rule,), otherwise=ts.CpuOffload())
    assert chain.plan(spec()).store == Disk(directory="/x")
    assert chain.plan(spec("float16", "cuda:0")).store == Memory()


def test_reasons_of_steps_that_did_nothing_are_told_together():
    assert (ts.Quantize() | ts.PackMasks() | ts.CpuOffload()).plan(spec("int8")).reason == (
        "int8 is never quantized; int8 is not a mask; already in host memory"
    )
    assert (ts.Quantize() | ts.DiskSpill("/x")).plan(spec("int8")).reason == ""


IMPOSSIBLE = [
    (ts.Compress(), ts.Quantize()),
    (ts.Compress(), ts.Cast()),
    (ts.Encode(Zstd()), ts.Quantize()),
    (ts.Quantize(), ts.Quantize(4)),
    (ts.PackMasks(), ts.PackMasks()),
    (ts.Cast(), ts.Cast("float16")),
    (ts.Encode(Sparse()), ts.Quantize()),
    (ts.DiskSpill("/x"), ts.Compress()),
    (ts.DiskSpill("/x"), ts.CpuOffload()),
    (ts.DiskSpill("/x"), ts.StoreIn(Memory())),
    (ts.DiskSpill("/x"), ts.DiskSpill("/y")),
]


@pytest.mark.parametrize(("first", "second"), IMPOSSIBLE, ids=lambda policy: policy.name)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda policy: policy,
        lambda policy: ts.Keep() | policy,
        lambda policy: ts.Route((ts.Rule(MinBytes(1), policy),)),
        lambda policy: ts.Route((), otherwise=policy),
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


def test_what_looks_for_masks_leaves_floats_to_those_who_encode_all_of_them():
    for step in (ts.Quantize(), ts.Cast(), ts.Compress(), ts.Encode(Sparse()), ts.Encode(Zstd())):
        assert (ts.PackMasks() | step).plan(spec()) == step.plan(spec())
        spilled = step | ts.DiskSpill("/x")
        assert ((ts.PackMasks() | ts.Keep()) | spilled).plan(spec()) == spilled.plan(spec())
    masks = ts.PackMasks() | ts.DiskSpill("/x")
    assert masks.plan(spec()).codecs == (TwoValued(),)
    assert masks.plan(spec(device="cuda:0")).codecs == ()


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
    assert (Foreign(ts.Quantize()) | ts.DiskSpill("/x")).plan(spec()) == Plan((Affine(),), Disk(directory="/x"))
    assert (ts.Quantize() | Foreign(ts.Compress())).plan(spec()) == Plan((Affine(), Lossless()), Memory())
    assert (ts.Keep() | Foreign(ts.Quantize())).plan(spec("int8")).reason == "int8 is never quantized"


@given(chains, st.integers(0, 6), st.integers(0, 6))
def test_grouping_does_not_matter(chain, first, second):
    low, high = sorted((first, second))
    a, b, c = (ts.Chain(part) for part in (chain.steps[:low], chain.steps[low:high], chain.steps[high:]))
    assert (a | b) | c == a | (b | c) == chain


@given(policies, specs())
def test_keep_is_neutral(policy, tensor):
    assert (ts.Keep() | policy).plan(tensor) == policy.plan(tensor) == (policy | ts.Keep()).plan(tensor)
