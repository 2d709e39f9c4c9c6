"""Random tensors through every codec, and through chains of two, on the memory of each framework.

    python tests/bench/fuzz_codecs.py                        # 100,000 tensors, half of them of each framework
    python tests/bench/fuzz_codecs.py --count 2000 --seed 7

A tensor of any dtype and layout goes through the backend, one codec or a chain, with the backend's kernel where it has
one, and back. Lossless codecs have to give back every bit, lossy ones to keep to the bound that they state. Prints the
seed and the counts; with a failure the case's own seed, which ``--only`` repeats. The exit status is 1 if there is any.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "codecs")]

from codec_cases import CODECS, FLOAT_FIELDS, contents, to_float64  # noqa: E402

from tensorstash.buffers import Array, as_bytes, borrowed  # noqa: E402
from tensorstash.protocols import Codec, SupportsErrorBound, SupportsKernels  # noqa: E402
from tensorstash.spec import TensorSpec  # noqa: E402
from tensorstash.testing.contents import dense_spec  # noqa: E402

FRAMEWORKS = ("torch", "paddle")
WIDTHS = (1, 2, 3, 7, 33, 64, 100, 128, 129, 256, 384)
SLACK = 64


def lab_of(framework: str) -> Any:
    if framework == "torch":
        from tensorstash.testing.torch_lab import TorchLab

        return TorchLab()
    from tensorstash.testing.paddle_lab import PaddleLab

    return PaddleLab()


def tensor_of(lab: Any, codec: Codec, rng: np.random.Generator) -> tuple[Any, str]:
    """Return a random tensor that a codec accepts, and what it is."""
    rank = int(rng.integers(0, 4))
    shape = tuple(int(n) for n in rng.integers(1, 6, rank)) + (() if not rank else (int(rng.choice(WIDTHS)),))
    dtype = str(rng.choice([name for name in lab.dtypes if codec.accepts(dense_spec(shape, name))]))
    named = list(contents(shape, dtype, seed=int(rng.integers(1 << 30))))
    name, data = named[rng.integers(len(named))]
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
    dense = spec.dense()
    data = np.array(backend.to_host(tensor, spec).wait()).reshape(dense.shape)
    kernel = backend.kernel(chain[0], dense) if isinstance(backend, SupportsKernels) else None
    if kernel is not None:
        encoded = kernel.encode(backend.dense(tensor, spec))
        payload = backend.to_host(encoded, backend.spec(encoded)).wait()
        if not np.array_equal(payload, chain[0].encode(borrowed(data), dense)):
            raise AssertionError("the kernel's payload is not the codec's")
    else:
        payload = chain[0].encode(borrowed(data), dense)
    for codec in chain[1:]:
        between = chain[0].encoded_spec(dense)
        stored = codec.encode(borrowed(payload), between)
        back = codec.decode(borrowed(stored), between)
        if as_bytes(back).tobytes() != as_bytes(payload).tobytes():
            raise AssertionError(f"{codec!r} changed the payload of {chain[0]!r}")
        payload, stored = back, stored
    nbytes = (stored if len(chain) > 1 else payload).nbytes
    if kernel is not None:
        decoded = kernel.decode(backend.payload(payload, backend.spec(encoded)))
        elements = np.array(backend.to_host(decoded, dense).wait()).reshape(dense.shape)
    else:
        elements = chain[0].decode(borrowed(payload), dense)
    rebuilt = backend.from_host(elements.copy(), spec)
    return data, np.array(backend.to_host(rebuilt, spec).wait()).reshape(dense.shape), nbytes


def fault(codec: Codec, spec: TensorSpec, data: Array, back: Array, nbytes: int) -> str | None:
    """Say what is wrong, or return None."""
    if codec.lossless:
        if nbytes > data.nbytes + SLACK:
            return f"{nbytes} bytes for {data.nbytes}"
        return None if data.tobytes() == back.tobytes() else "bits differ"
    assert isinstance(codec, SupportsErrorBound)
    assert spec.dtype in FLOAT_FIELDS
    bound = codec.error_bound(borrowed(data), spec)
    value, got = to_float64(data, spec.dtype), to_float64(back, spec.dtype)
    with np.errstate(invalid="ignore"):
        kept = (value == got) | (np.isnan(value) & np.isnan(got)) | (np.abs(value - got) <= bound)
    return None if kept.all() else f"{value[~kept][:3]} came back as {got[~kept][:3]}, bound {bound[~kept][:3]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="tensors in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one case, to repeat it alone")
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    arguments = parser.parse_args()
    frameworks = arguments.framework or list(FRAMEWORKS)
    labs = {name: lab_of(name) for name in frameworks}
    counts: Counter[str] = Counter()
    faults = 0
    cases = range(arguments.count) if arguments.only is None else [arguments.only]
    for number in cases:
        rng = np.random.default_rng((arguments.seed, number))
        framework = frameworks[number % len(frameworks)]
        lab = labs[framework]
        first = _choice(list(CODECS), rng)
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
        counts[framework] += 1
        counts["chains" if len(chain) > 1 else "single codecs"] += 1
        counts[f"codec {first.name}"] += 1
    print(f"seed {arguments.seed}: {sum(counts[name] for name in frameworks)} tensors, {faults} faults")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
