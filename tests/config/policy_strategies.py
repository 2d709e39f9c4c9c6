"""Random policies and specs for the property tests."""

from hypothesis import strategies as st

import tensorstash as ts
from tensorstash.codecs import Affine, AsType, Lossless, PackBits, Sparse, TwoValued, Zstd
from tensorstash.policies.selectors import All, Any, Devices, Dtypes, MinBytes, ModuleNames, Not
from tensorstash.spec import DTYPES, TensorSpec, contiguous_strides
from tensorstash.stores import Disk, Memory

# Everything a path or pattern may hold: quotation marks, separators, spaces, other scripts, but no lone surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
sizes = st.one_of(st.integers(0, 2**50), st.sampled_from(["0", "4096", "1.5 KiB", "2GiB", "7 mb"]))
budgets = st.none() | sizes
text_or_texts = texts | st.lists(texts, min_size=1, max_size=3).map(tuple)

simple_selectors = st.one_of(
    st.builds(MinBytes, sizes),
    st.builds(Dtypes, st.lists(st.sampled_from(sorted(DTYPES)), min_size=1, max_size=3).map(tuple)),
    st.builds(Devices, text_or_texts),
    st.builds(ModuleNames, text_or_texts),
)
selectors = st.recursive(
    simple_selectors,
    lambda inner: st.one_of(
        st.builds(All, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Any, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Not, inner),
    ),
    max_leaves=4,
)

bits = st.sampled_from([2, 4, 8])
levels = st.integers(-7, 22)
masks = st.sampled_from([ts.PackMasks(), ts.Encode(PackBits())])
lossy = st.one_of(
    st.builds(
        ts.Quantize,
        bits,
        group_size=st.integers(1, 4096),
        rounding=st.sampled_from(["auto", "nearest", "stochastic"]),
        seed=st.integers(0, 2**40),
    ),
    st.builds(ts.Cast, st.sampled_from(["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])),
    st.builds(ts.Encode, st.builds(Affine, bits=bits)),
    st.builds(ts.Encode, st.builds(AsType, dtype=st.sampled_from(["bfloat16", "float8_e5m2"]))),
)
rearranged = st.sampled_from([ts.Encode(TwoValued()), ts.Encode(Sparse())])
lossless = st.one_of(
    st.builds(ts.Compress, level=st.integers(1, 22), min_ratio=st.floats(1, 100)),
    st.builds(ts.Encode, st.builds(Zstd, level=levels)),
    st.builds(ts.Encode, st.builds(Lossless, level=st.integers(1, 22), min_ratio=st.floats(1, 100))),
)
memories = st.builds(Memory, budget=budgets)
in_memory = st.just(ts.CpuOffload()) | st.builds(ts.StoreIn, memories)
directories = st.none() | texts
disks = st.builds(Disk, directory=directories, budget=budgets, direct=st.booleans())
on_disk = st.one_of(
    st.builds(ts.DiskSpill, directories, budget=budgets),
    st.builds(ts.StoreIn, disks | st.builds(Memory, budget=st.integers(4096, 2**40), then=disks)),
)
stages = [masks, rearranged, lossless, in_memory, on_disk]
lossy_stages = [masks, lossy, lossless, in_memory, on_disk]


def routes(uses):
    rules = st.lists(st.builds(ts.Rule, selectors, uses), max_size=3)
    return st.builds(lambda rules, otherwise: ts.Route(tuple(rules), otherwise), rules, uses)


def step_lists(stage_steps):
    """Policies that can follow one another: of each stage at most one, possibly as a route."""
    # Strategies are made here once, not in each example.
    nothing = st.just(())
    keep = st.sampled_from([*([()] * 9), (ts.Keep(),)])
    parts = []
    for stage in stage_steps:
        step = stage | routes(stage | st.just(ts.Keep()))
        parts += [nothing | step.map(lambda step: (step,)), keep]
    return st.tuples(*parts).map(lambda parts: sum(parts, ()))


chains = (step_lists(stages) | step_lists(lossy_stages)).map(ts.Chain)
single = st.one_of(st.just(ts.Keep()), lossy, *stages)
policies = st.one_of(single, chains, routes(single | chains))


@st.composite
def specs(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    strides = tuple(draw(st.integers(0, 9)) for _ in shape)
    return TensorSpec(
        shape,
        strides,
        8 * draw(st.integers(0, 3)),
        draw(st.sampled_from(sorted(DTYPES))),
        draw(st.sampled_from(["cpu", "cuda:0", "gpu:1", "sim:0"])),
        module=draw(st.sampled_from(["", "a", "a.b", "layers.0.mlp"])),
    )


def spec(dtype="float32", device="cpu", shape=(8, 16), **more):
    return TensorSpec(shape, contiguous_strides(shape), 0, dtype, device, **more)


def eval_repr(policy):
    return eval(repr(policy), {**vars(ts), **globals()})
