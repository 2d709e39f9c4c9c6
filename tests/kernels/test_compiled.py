"""What is compiled gives the bits that NumPy gives, and touches nothing beyond its arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from codec_cases import spec_of

from tensorstash import kernels
from tensorstash.codecs import AsType
from tensorstash.errors import CodecError
from tensorstash.host import native
from tensorstash.host.arrays import Array, as_bytes, borrowed
from tensorstash.kernels.floats import FORMATS
from tensorstash.spec import DTYPES

pytestmark = pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")


def both_ways(call: Callable[[], Array]) -> tuple[Any, Any]:
    """Return what a call gives compiled, and what in NumPy: bytes, or the message of its error."""

    def outcome() -> Array | str:
        try:
            return as_bytes(call())
        except CodecError as error:
            return str(error)

    # Both at once: memory that is used again would hold the right bytes wherever none are written.
    compiled = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "functions", None)
        outcomes = compiled, outcome()
    compiled, defined = (result if isinstance(result, str) else result.tobytes() for result in outcomes)
    return compiled, defined


def shifted(array: Array, by: int) -> Array:
    """Return a read-only copy whose address is ``by`` bytes behind an aligned one."""
    room = np.empty(array.nbytes + by, np.uint8)[by:]
    room[:] = as_bytes(array)
    return borrowed(room.view(array.dtype).reshape(array.shape))


def converted(source: Array, dtype: str, wanted: str) -> Array:
    target = np.zeros(source.size, DTYPES[wanted].carrier)
    kernels.convert(source, dtype, target, wanted)
    return target


@pytest.mark.parametrize("dtype", FORMATS)
def test_floats_are_converted_as_in_numpy(dtype: str) -> None:
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    hard = np.concatenate([high | np.uint32(low) for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    words = np.arange(1 << FORMATS[dtype].nbits).astype(f"u{FORMATS[dtype].nbits // 8}")
    with np.errstate(all="ignore"):
        for by in (0, 1):
            narrowed = both_ways(lambda by=by: converted(shifted(hard, by), "float32", dtype))
            narrow = shifted(words.view(DTYPES[dtype].carrier), by)
            widened = both_ways(lambda narrow=narrow: converted(narrow, dtype, "float32"))
            assert narrowed[0] == narrowed[1]
            assert widened[0] == widened[1]


def test_subnormals_do_not_depend_on_the_mode_of_a_thread() -> None:
    halves = np.arange(1, 2**17, dtype=np.uint32).astype(np.uint16)
    codec, spec = AsType(dtype="float16"), spec_of(halves.shape, "float32")
    before = codec.decode(halves.view(np.float16), spec).tobytes()
    torch.set_flush_denormal(True)
    try:
        assert codec.decode(halves.view(np.float16), spec).tobytes() == before
    finally:
        torch.set_flush_denormal(False)


def test_sizes_that_do_not_fit_are_refused() -> None:
    module, words = native.functions, np.zeros(20, np.uint32)
    byte = np.zeros(1, np.uint8)
    calls: dict[str, list[tuple[Any, ...]]] = {
        "narrow_floats": [
            (words, np.zeros(19, np.uint16), "bfloat16"),
            (words, byte.repeat(81), "float16"),
            (words, np.zeros(20, np.uint16), "float64"),
        ],
        "widen_floats": [(np.zeros(40, np.uint16), words.view(np.uint8)[:79], "bfloat16")],
    }
    for name, cases in calls.items():
        for arrays in cases:
            with pytest.raises(ValueError, match="expected"):
                getattr(module, name)(*arrays)
