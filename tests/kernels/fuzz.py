"""Every compiled function against NumPy on random arrays, and against arrays that do not fit together.

    python tests/kernels/fuzz.py MODULE [--rounds 200] [--seed 0]

MODULE is a compiled ``tensorstash.host._native``, usually one built with sanitizers. Every array ends where its memory
ends, so that a sanitizer sees what lies beyond. Ends with an exception where a result is not NumPy's, and prints how
often each function was called.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from itertools import count
from pathlib import Path
from typing import Any

NAME = "tensorstash.host._native"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def loaded(path: str) -> Any:
    """Return the module of a file, which the package then takes for its own."""
    loader = ExtensionFileLoader(NAME, path)
    spec = spec_from_loader(NAME, loader, origin=path)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[NAME] = module
    return module


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("module")
parser.add_argument("--rounds", type=int, default=200)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
native = loaded(options.module)

import numpy as np  # noqa: E402

from tensorstash import kernels  # noqa: E402
from tensorstash.host import native as host  # noqa: E402
from tensorstash.host.arrays import Array  # noqa: E402
from tensorstash.kernels.floats import FORMATS  # noqa: E402
from tensorstash.kernels.groups import Groups  # noqa: E402
from tensorstash.kernels.quantize import section_nbytes  # noqa: E402
from tensorstash.spec import DTYPES  # noqa: E402

REFUSALS = (ValueError, TypeError, BufferError, OverflowError)
SIZES = (0, 1, 2, 7, 8, 9, 63, 64, 65, 127, 129, 1000, 1023, 1024, 1025, 4099)
FLOATS = ("float16", "bfloat16", "float32", "float64")
called: Counter[str] = Counter()
rng = np.random.default_rng(options.seed)


def placed(array: Array) -> Array:
    """Return a copy that ends where its memory does, and may start at any address."""
    start = int(rng.choice([0, 0, 1, 3]))
    room = np.empty(array.nbytes + start, np.uint8)[start:]
    room[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return room.view(array.dtype).reshape(array.shape)


def words_of(itemsize: int, size: int) -> Array:
    """Return unsigned integers: of any bits, of few values, of many zeros, of a small range, or of ordinary floats."""
    kind = rng.integers(5)
    bits = rng.integers(0, 256, size * itemsize, np.uint8).view(f"u{itemsize}")
    if kind == 1:
        bits = rng.choice(np.resize(bits, 2), size) if size else bits
    elif kind == 2:
        bits = np.where(rng.random(size) < rng.random(), bits, bits.dtype.type(0))
    elif kind == 3:
        bits = (rng.integers(0, 200, size) + (3 << (8 * itemsize - 3))).astype(bits.dtype)
    elif kind == 4 and itemsize > 1:
        bits = rng.standard_normal(size).astype("f8" if itemsize == 8 else "f4").view(f"u{max(itemsize, 4)}")
        bits = (bits >> (16 if itemsize == 2 else 0)).astype(f"u{itemsize}")
    return bits


def filled(dtype: str, size: int) -> Array:
    return np.full(size, 77, dtype)


def cases() -> Iterator[tuple[str, tuple[Any, ...], tuple[str, tuple[Any, ...]]]]:
    """Yield functions of the table with arguments that fit, and the compiled function that does it with its own."""
    size = int(rng.choice(SIZES))
    values = words_of(4, size).view(np.float32)
    dtype = str(rng.choice(list(FORMATS)))
    carrier = words_of(FORMATS[dtype].nbits // 8, size).view(DTYPES[dtype].carrier)
    half = str(rng.choice(["bfloat16", "float16"]))
    narrowed = (values, "float32", filled(DTYPES[dtype].carrier, size), dtype)
    yield "convert", narrowed, ("narrow_floats", (values, filled("u2", size), half))
    widened = (carrier, dtype, filled("f4", size), "float32")
    yield "convert", widened, ("widen_floats", (words_of(2, size), filled("f4", size), half))
    yield from quantized()


def quantized() -> Iterator[tuple[str, tuple[Any, ...], tuple[str, tuple[Any, ...]]]]:
    shape = tuple(int(n) for n in rng.choice([1, 2, 7, 33, 129, 2050], rng.integers(0, 4)))
    while np.prod(shape) > 20_000:
        shape = shape[1:]
    bits, dtype = int(rng.choice([2, 4, 8])), str(rng.choice(FLOATS))
    groups = Groups.of(shape, int(rng.choice([1, 2, 5, 16, 127, 128, 129, 2048, 2049, 10**6])))
    size, itemsize = int(np.prod(shape, dtype=int)), DTYPES[dtype].itemsize
    source = words_of(itemsize, size)
    infinity = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF << 52}[dtype]
    odd = rng.random(size) < rng.choice([0, 0.02])
    source[odd] |= source.dtype.type(infinity)  # a NaN, or infinite
    source = source.view(DTYPES[dtype].carrier)
    seed = None if rng.random() < 0.5 else int(rng.integers(1 << 32))
    body = rng.integers(0, 256, sum(section_nbytes(dtype, groups, bits)), np.uint8)
    rows = (groups.rows, groups.length, groups.size)
    compiled = "float32" if dtype == "float64" else dtype  # refused, for its size
    raw = (source, body, compiled, rows, bits, -1 if seed is None else seed)
    yield "affine_encode", (source, body, dtype, groups, bits, seed), ("affine_encode", raw)
    target = filled(DTYPES[dtype].carrier, size)
    yield "affine_decode", (body, target, dtype, groups, bits), ("affine_decode", (body, target, compiled, rows, bits))


def mapped(change: Callable[[Array], Any], arguments: Iterable[Any]) -> list[Any]:
    """Return arguments with every array among them changed."""
    return [change(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]


def arrays_in(arguments: Iterable[Any]) -> list[Array]:
    return [argument for argument in arguments if isinstance(argument, np.ndarray)]


def equal(one: Array, other: Array, *, numbers: bool) -> bool:
    """Whether two arrays hold the same bytes; of floats of payloads that mean nothing, the same numbers or NaNs."""
    if one.tobytes() == other.tobytes():
        return True
    return numbers and one.dtype.kind == "f" and np.array_equal(one, other, equal_nan=True)


def assert_as_in_numpy(name: str, arguments: tuple[Any, ...]) -> None:
    given = mapped(placed, arguments), mapped(placed, arguments)
    for functions, some in zip((native, None), given, strict=True):
        host.functions = functions
        getattr(kernels, name)(*some)
    host.functions = native
    called[name] += 1
    for one, other in zip(arrays_in(given[0]), arrays_in(given[1]), strict=True):
        # Sums of NaNs carry the bits of either.
        numbers = name == "affine_decode"
        if numbers and one.dtype == np.uint16:
            one, other = ((array.astype(np.uint32) << 16).view(np.float32) for array in (one, other))
        assert equal(one, other, numbers=numbers), name


def spoiled(array: Array) -> Any:
    """Return something that does not fit where the array did, or perhaps does."""
    flat = array.reshape(-1)
    locked = placed(flat)
    locked.flags.writeable = False
    choices = (
        placed(flat[:-1]),
        placed(np.concatenate([flat, flat[:1]])),
        placed(flat.view(np.uint8)),
        placed(words_of(int(rng.choice([1, 2, 4, 8])), int(rng.choice(SIZES)))),
        placed(np.zeros(int(rng.choice(SIZES)), rng.choice(["V3", "c16", "S5", "V1"]))),
        locked,
        bytes(flat),
        None,
    )
    return choices[rng.integers(len(choices))]


def assert_hostile_arguments_end(name: str, arguments: tuple[Any, ...]) -> None:
    """Call a compiled function with one argument that may not fit: it may refuse, and read and write what is given."""
    victim, place = int(rng.integers(len(arrays_in(arguments)))), count()

    def change(array: Array) -> Any:
        return spoiled(array) if next(place) == victim else placed(array)

    changed = mapped(change, arguments)
    for k, argument in enumerate(changed):
        if isinstance(argument, int) and rng.random() < 0.2:
            changed[k] = int(rng.choice([-1, 0, 3, 2**31 - 1, -(2**31)]))
        if name.startswith("affine") and isinstance(argument, tuple) and rng.random() < 0.3:
            changed[k] = tuple(int(rng.choice([-1, 0, 1, n, n + 1, 2**31, 2**62])) for n in argument)
    try:
        getattr(native, name)(*changed)
    except REFUSALS:
        called[f"{name}, refused"] += 1
    called[name] += 1


def main() -> None:
    print(f"seed {options.seed}")
    for _ in range(options.rounds):
        for name, arguments, (compiled, raw) in cases():
            assert_as_in_numpy(name, arguments)
            for _ in range(3):
                assert_hostile_arguments_end(compiled, raw)
    missing = {name for name in vars(native) if not name.startswith("_")} - set(called)
    missing -= {"Block", "guarded"}  # which do no arithmetic
    assert not missing, f"never called: {missing}"
    print(", ".join(f"{name} {number}" for name, number in sorted(called.items())))


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
