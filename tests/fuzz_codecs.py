"""Random tensors through every codec, and through chains of two, on the memory of each framework.

    python -m tests.fuzz_codecs                                # 100,000 tensors, half of them of each framework
    python -m tests.fuzz_codecs --count 2000 --seed 7

A tensor of any dtype and layout goes through the backend, one codec or a chain, with the backend's kernel where it has
one, and back. Lossless codecs have to give back every bit, lossy ones to keep to the bound that they state. Prints the
seed and the counts; with a failure the case's number, which ``--only`` repeats. The exit status is 1 if there is any.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.codecs import codecs_of, dense_bits
from tensorstash.host.arrays import Array, as_bytes, borrowed
from tensorstash.protocols import Codec, SupportsErrorBound
from tensorstash.spec import TensorSpec
from tensorstash.testing.contents import contents, dense_spec, float_bits, float_values
from tensorstash.testing.labs import lab_of
from tensorstash.testing.layouts import special_values

CODECS = codecs_of("""
shuffle zstd zstd:level=-3 zstd:level=9 pack_bits two_valued lossless
lossless:level=5,min_ratio=1 sparse affine affine:bits=4,group_size=33
affine:bits=2,group_size=5,rounding=stochastic,seed=7 affine:bits=4,group_size=100000,rounding=stochastic
affine:bits=8,group_size=1 astype:dtype=bfloat16 astype:dtype=float16
astype:dtype=float8_e4m3fn astype:dtype=float8_e5m2
""")
FRAMEWORKS = ("torch", "paddle")
WIDTHS = (1, 2, 3, 7, 33, 64, 100, 128, 129, 256, 384)
FLOATS = ("float16", "bfloat16", "float32", "float64")
SLACK = 64


def contents_of(spec: TensorSpec, rng: np.random.Generator) -> tuple[str, Array]:
    """Return random contents, and what they are: what models save, and what they should never save but may."""
    name, data = list(contents(spec).items())[rng.integers(len(contents(spec)))]
    flat = rng.permutation(data.reshape(-1))
    over = {"zeros": np.zeros_like(flat), "any bits": np.frombuffer(rng.bytes(flat.nbytes), flat.dtype)}
    if spec.dtype in FLOATS:
        normal = rng.standard_normal(flat.size) * 10.0 ** rng.integers(-7, 4)
        over["normal"] = float_bits(normal, spec.dtype)
        over["specials"] = rng.choice(special_values(spec.dtype), flat.size)
    for what, values in over.items():
        if rng.random() < 0.3:
            there = rng.random(flat.size) < rng.choice([0.01, 0.5, 0.9])
            name, flat = f"{name}, {what}", np.where(there, values, flat)
    return name, flat.reshape(data.shape)


def tensor_of(lab: Any, codec: Codec, rng: np.random.Generator) -> tuple[Any, str]:
    """Return a random tensor that a codec accepts, and what it is."""
    rank = int(rng.integers(0, 4))
    shape = tuple(int(n) for n in rng.integers(1, 6, rank)) + (() if not rank else (int(rng.choice(WIDTHS)),))
    dtype = str(rng.choice([name for name in lab.dtypes if codec.accepts(dense_spec(shape, name))]))
    name, data = contents_of(dense_spec(shape, dtype), rng)
    tensor = lab.tensor(data, dtype)
    if len(shape) == 2 and rng.random() < 0.3 and dtype in lab.float_dtypes:
        tensor, name = lab.transpose(tensor), f"transposed {name}"
    return tensor, f"{name}, {dtype}{shape}"


def chain_of(first: Codec, spec: TensorSpec, rng: np.random.Generator) -> list[Codec]:
    """Return a codec, and perhaps a lossless one that accepts what it makes."""
    if first.kind.endswith("->bytes") or rng.random() < 0.5:
        return [first]
    between = first.encoded_spec(spec)
    return [first, _choice([codec for codec in CODECS if codec.lossless and codec.accepts(between)], rng)]


def _choice(codecs: list[Codec], rng: np.random.Generator) -> Codec:
    return codecs[rng.integers(len(codecs))]


def there_and_back(backend: Any, tensor: Any, spec: TensorSpec, chain: list[Codec]) -> tuple[Array, Array, int]:
    """Return the elements as they were and as they come back, as carrier bits, and the bytes of the payload."""
    dense, data = spec.dense(), dense_bits(backend, tensor)
    kernel = None if backend.kernels is None else backend.kernels.kernel(chain[0], dense)
    payload = chain[0].encode(borrowed(data), dense)
    if kernel is not None:
        encoded = kernel.encode(backend.layouts.dense(tensor, spec))
        if not np.array_equal(dense_bits(backend, encoded), payload):
            raise AssertionError("the kernel's payload is not the codec's")
    nbytes = payload.nbytes
    for codec in chain[1:]:
        between = chain[0].encoded_spec(dense)
        stored = codec.encode(borrowed(payload), between)
        back = codec.decode(borrowed(stored), between)
        if as_bytes(back).tobytes() != as_bytes(payload).tobytes():
            raise AssertionError(f"{codec!r} changed the payload of {chain[0]!r}")
        payload, nbytes = back, stored.nbytes
    if kernel is not None:
        elements = dense_bits(backend, kernel.decode(backend.kernels.payload(payload, backend.spec(encoded))))
    else:
        elements = chain[0].decode(borrowed(payload), dense).copy()
    rebuilt = backend.from_host(elements.reshape(dense.shape), spec)
    return data, dense_bits(backend, rebuilt), nbytes


def fault(codec: Codec, spec: TensorSpec, data: Array, back: Array, nbytes: int) -> str | None:
    """Say what is wrong, or return None."""
    if codec.lossless:
        if nbytes > data.nbytes + SLACK:
            return f"{nbytes} bytes for {data.nbytes}"
        return None if data.tobytes() == back.tobytes() else "bits differ"
    assert isinstance(codec, SupportsErrorBound)
    assert spec.dtype in FLOATS
    bound = codec.error_bound(borrowed(data), spec)
    value, got = float_values(data, spec.dtype), float_values(back, spec.dtype)
    with np.errstate(invalid="ignore"):
        kept = (value == got) | (np.isnan(value) & np.isnan(got)) | (np.abs(value - got) <= bound)
    return None if kept.all() else f"{value[~kept][:3]} came back as {got[~kept][:3]}, bound {bound[~kept][:3]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what went through, and what went wrong; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="tensors in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one case, to repeat it alone")
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    options = parser.parse_args(arguments)
    frameworks = options.framework or list(FRAMEWORKS)
    labs = {name: lab_of(name) for name in frameworks}
    counts: Counter[str] = Counter()
    faults = 0
    cases = range(options.count) if options.only is None else [options.only]
    for number in cases:
        rng = np.random.default_rng((options.seed, number))
        framework = frameworks[number % len(frameworks)]
        lab, first = labs[framework], _choice(list(CODECS), rng)
        tensor, what = tensor_of(lab, first, rng)
        spec = lab.backend.spec(tensor)
        chain = chain_of(first, spec.dense(), rng)
        try:
            data, back, nbytes = there_and_back(lab.backend, tensor, spec, chain)
            wrong = fault(chain[0], spec.dense(), data, back, nbytes)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            faults += 1
            print(f"case {number}: {framework}, {what}, {' | '.join(map(repr, chain))}: {wrong}")
        counts.update((framework, "chains" if len(chain) > 1 else "single codecs", f"codec {first.name}"))
    print(*(f"{count:8} {name}" for name, count in sorted(counts.items())), sep="\n")
    print(f"seed {options.seed}: {len(cases)} tensors, {faults} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
