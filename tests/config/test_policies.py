"""What each policy plans for each kind of tensor."""

import pytest
from hypothesis import given
from policy_strategies import eval_repr, policies, spec, specs

import tensorstash as ts
from tensorstash.codecs import Affine, PackBits, Sparse, Zstd
from tensorstash.errors import ConfigError, PlanError
from tensorstash.policies.plan import HookPolicy, Plan
from tensorstash.policies.selectors import All, Any, Devices, Dtypes, MinBytes, ModuleNames, Not
from tensorstash.spec import DTYPES, TensorSpec
from tensorstash.stores import Disk, Memory


def test_disk_spill_takes_every_tensor():
    for dtype in DTYPES:
        assert ts.DiskSpill("/x", budget="1 KiB").plan(spec(dtype)) == Plan((), Disk(directory="/x", budget=1024))


@pytest.mark.parametrize("dtype", [name for name, dtype in DTYPES.items() if dtype.kind != "float"])
@pytest.mark.parametrize("policy", [ts.Quantize(), ts.Cast()])
def test_only_floating_point_is_ever_quantized_or_cast(policy, dtype):
    plan = policy.plan(spec(dtype))
    assert plan.keeps
    assert plan.reason.startswith(f"{dtype} is n")


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

    ts.Encode(Picky()).plan(TensorSpec((3, 4), (1, 8), 12, "float32", "cpu"))
    assert Picky.seen == ((4, 3), (3, 1), 0)


def test_first_rule_that_selects_decides():
    route = ts.Route(
        (
            ts.Rule(ModuleNames("head"), ts.Keep()),
            ts.Rule(MinBytes(1024), ts.DiskSpill("/big")),
            ts.Rule(MinBytes(256), ts.Quantize()),
        ),
        otherwise=ts.PackMasks(),
    )
    big = spec(shape=(16, 16))
    assert route.plan(spec(shape=(16, 16), module="head.linear")).keeps
    assert route.plan(big).store == Disk(directory="/big")
    assert route.plan(spec(shape=(8, 8))).codecs == (Affine(),)
    assert route.plan(spec("bool", shape=(3,))).codecs == (PackBits(),)


@given(policies, specs())
def test_plans_are_pure_and_among_the_alternatives_and_every_codec_accepts_what_it_is_given(policy, tensor):
    plan, alternatives = policy.plan(tensor), policy.alternatives()
    assert plan == policy.plan(tensor)
    assert plan in alternatives
    assert len(set(alternatives)) == len(alternatives)
    assert plan.reason or not plan.keeps
    assert isinstance(policy, HookPolicy)
    assert hash(policy) == hash(eval_repr(policy))
    at = tensor.dense()
    for codec in plan.codecs:
        assert codec.accepts(at)
        at = codec.encoded_spec(at)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ts.Quantize(seed=1.5), "quantize: affine.seed: got 1.5"),
        (lambda: ts.Compress(level=99), "compress: lossless.level: got 99"),
        (lambda: ts.Cast("int8"), "cast: .*int8"),
        (lambda: ts.DiskSpill(budget="lots"), "disk_spill: disk.budget: got 'lots'"),
        (lambda: ts.Encode(Zstd), "encode.codec: got <class .*Zstd'>, expected a codec"),
        (lambda: ts.StoreIn(Zstd()), r"store_in.store: got Zstd\(level=1, shuffle=False\), expected a store"),
        (lambda: ts.Rule(ts.Keep(), ts.Keep()), r"rule.when: got Keep\(\), expected a selector"),
        (lambda: ts.Rule(MinBytes(1), MinBytes(1)), r"rule.use: got MinBytes\(size=1\), expected a policy"),
        (lambda: ts.Route(ts.Rule(MinBytes(1), ts.Keep())), r"route.rules: got Rule\(.*\), expected a tuple of Rule"),
        (lambda: ts.Route(((MinBytes(1), ts.Keep()),)), r"route.rules\[0\]: got \(.*\), expected Rule\(when, use\)"),
        (lambda: ts.Route((), otherwise=ts.Keep), r"route.otherwise: got the class Keep, .* such as Keep\(\)"),
        (lambda: ts.Route((), otherwise=Memory()), r"got the store .*; write StoreIn\(Memory\(budget=None, then=None"),
        (lambda: ts.Chain(ts.Keep()), r"chain.steps: got Keep\(\), expected a tuple of policies"),
        (lambda: ts.Keep() | 3, r"chain.steps\[1\]: got 3, expected a policy"),
        (lambda: 3 | ts.Keep(), r"chain.steps\[0\]: got 3, expected a policy"),
        (lambda: ts.Keep() | ts.Quantize, r"chain.steps\[1\]: got the class Quantize, .* such as Quantize\(\)"),
        (lambda: Zstd() | ts.Keep(), r"chain.steps\[0\]: got the codec Zstd\(.*\).*write Encode\(Zstd"),
        (lambda: MinBytes("3 parsecs"), "min_bytes.size: got '3 parsecs', expected a number of bytes"),
        (lambda: Dtypes("flaot32"), "dtypes.names: unknown dtype 'flaot32'; did you mean 'float32'"),
        (lambda: Dtypes(()), r"dtypes.names: got \(\), expected a text or a tuple of texts"),
        (lambda: Dtypes((3,)), r"dtypes.names: got \(3,\)"),
        (lambda: Devices(None), "devices.patterns: got None"),
        (lambda: ModuleNames(("a", "")), r"module_names.patterns: got \('a', ''\)"),
        (lambda: All(MinBytes(1)), r"all.of: got MinBytes\(size=1\), expected a tuple of selectors"),
        (lambda: Any((MinBytes(1), 3)), r"any.of\[1\]: got 3, expected a selector"),
        (lambda: Not(MinBytes), r"not.selector: got the class MinBytes, expected an instance"),
        (lambda: Not(Zstd()), r"not.selector: got Zstd\(level=1, shuffle=False\), expected a selector"),
        (lambda: MinBytes(1) & 3, r"all.of\[1\]: got 3, expected a selector"),
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
