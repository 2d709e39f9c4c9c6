"""What each policy plans for each kind of tensor."""

import pytest
from hypothesis import given
from policy_strategies import policies, specs

from tensorstash.codecs.affine import Affine
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.sparse import Sparse
from tensorstash.codecs.two_valued import TwoValued
from tensorstash.codecs.zstd import Zstd
from tensorstash.errors import ConfigError, PlanError
from tensorstash.policies import (
    Cast,
    Compress,
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
from tensorstash.policies.selectors import MinBytes, ModuleNames
from tensorstash.spec import DTYPES, TensorSpec
from tensorstash.stores.disk.store import Disk
from tensorstash.stores.memory import Memory


def spec(dtype="float32", device="cpu", shape=(8, 16), **more):
    return TensorSpec(shape, tuple(1 for _ in shape), 0, dtype, device, **more)


def test_disk_spill_takes_every_tensor():
    for dtype in DTYPES:
        assert DiskSpill("/x", budget="1 KiB").plan(spec(dtype)) == Plan((), Disk(directory="/x", budget=1024))


@pytest.mark.parametrize("dtype", [name for name, dtype in DTYPES.items() if dtype.kind != "float"])
@pytest.mark.parametrize("policy", [Quantize(), Cast()])
def test_only_floating_point_is_ever_quantized_or_cast(policy, dtype):
    plan = policy.plan(spec(dtype))
    assert plan.keeps
    assert plan.reason.startswith(f"{dtype} is n")


def test_pack_masks_packs_booleans_and_looks_at_floats_of_the_host():
    assert PackMasks().plan(spec("float32")) == Plan((TwoValued(),))
    assert PackMasks().plan(spec("float32", device="cuda:0")).reason == "float32 is not a mask"
    assert PackMasks().plan(spec("bool")) == Plan((PackBits(),))
    assert PackMasks().plan(spec("uint8")).reason == "uint8 is not a mask"


def test_codecs_are_asked_about_the_dense_payload():
    class Picky:
        name, lossless, kind = "picky", True, "array->array"
        seen = ()

        def accepts(self, spec, /):
            Picky.seen = (spec.shape, spec.strides, spec.offset)
            return False

        def encoded_spec(self, spec, /):
            return spec

        encode = decode = encoded_spec

    Encode(Picky()).plan(TensorSpec((3, 4), (1, 8), 12, "float32", "cpu"))
    assert Picky.seen == ((4, 3), (3, 1), 0)


def test_first_rule_that_selects_decides():
    route = Route(
        (
            Rule(ModuleNames("head"), Keep()),
            Rule(MinBytes(1024), DiskSpill("/big")),
            Rule(MinBytes(256), Quantize()),
        ),
        otherwise=PackMasks(),
    )
    big = spec(shape=(16, 16))
    assert route.plan(spec(shape=(16, 16), module="head.linear")).keeps
    assert route.plan(big).store == Disk(directory="/big")
    assert route.plan(spec(shape=(8, 8))).codecs == (Affine(),)
    assert route.plan(spec("bool", shape=(3,))).codecs == (PackBits(),)


@given(policies, specs())
def test_plans_are_pure_and_among_the_alternatives(policy, spec):
    plan = policy.plan(spec)
    assert plan == policy.plan(spec)
    assert plan in policy.alternatives()
    assert plan.reason or not plan.keeps


@given(policies)
def test_alternatives_are_without_repetition(policy):
    alternatives = policy.alternatives()
    assert len(set(alternatives)) == len(alternatives)
    assert isinstance(policy, HookPolicy)
    assert hash(policy) == hash(eval_repr(policy))


def eval_repr(policy):
    import policy_strategies

    return eval(repr(policy), vars(policy_strategies))


@given(policies, specs())
def test_every_codec_accepts_what_it_will_be_given(policy, spec):
    at = spec.dense()
    for codec in policy.plan(spec).codecs:
        assert codec.accepts(at)
        at = codec.encoded_spec(at)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Quantize(3), "quantize: affine.bits: got 3, expected one of 2, 4, 8"),
        (lambda: Quantize(seed=1.5), "quantize: affine.seed: got 1.5"),
        (lambda: Compress(level=99), "compress: lossless.level: got 99"),
        (lambda: Cast("int8"), "cast: .*int8"),
        (lambda: DiskSpill(budget="lots"), "disk_spill: disk.budget: got 'lots'"),
        (lambda: Encode(Zstd), "encode.codec: got <class .*Zstd'>, expected a codec"),
        (lambda: StoreIn(Zstd()), r"store_in.store: got Zstd\(level=1, shuffle=False\), expected a store"),
        (lambda: Rule(Keep(), Keep()), r"rule.when: got Keep\(\), expected a selector"),
        (lambda: Rule(MinBytes(1), MinBytes(1)), r"rule.use: got MinBytes\(size=1\), expected a policy"),
        (lambda: Route(Rule(MinBytes(1), Keep())), r"route.rules: got Rule\(.*\), expected a tuple of Rule"),
        (lambda: Route(((MinBytes(1), Keep()),)), r"route.rules\[0\]: got \(.*\), expected Rule\(when, use\)"),
        (lambda: Route((), otherwise=Keep), r"route.otherwise: got the class Keep, expected a policy such as Keep\(\)"),
        (lambda: Route((), otherwise=Memory()), r"got the store .*; write StoreIn\(Memory\(budget=None, then=None\)\)"),
    ],
)
def test_bad_values_are_refused_at_construction(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_a_plan_whose_array_codec_follows_bytes_is_refused():
    with pytest.raises(PlanError, match=r"Sparse\(\) takes an array, but Zstd\(.*\) before it returns bytes"):
        Plan((Zstd(), Sparse()))
    with pytest.raises(PlanError):
        Plan((Zstd(),)).then(Plan((Sparse(),)))
