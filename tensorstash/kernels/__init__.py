"""Arithmetic on arrays. NumPy defines each function; a compiled one takes its place here where it knows the dtypes.

Arrays are contiguous and may start at any address. The compiled functions come from ``native/``, give the same bits,
and release the interpreter lock.
"""

from tensorstash.host import native
from tensorstash.host.arrays import Array
from tensorstash.kernels import floats, quantize
from tensorstash.kernels.groups import Groups

_QUANTIZED = frozenset({"float32", "bfloat16", "float16"})  # in compiled code: those that compute in float32
_CONVERTED = frozenset({"bfloat16", "float16"})  # from and to float32 in compiled code


def affine_encode(source: Array, body: Array, dtype: str, groups: Groups, bits: int, seed: int | None) -> None:
    """Quantize as :func:`tensorstash.kernels.quantize.quantize` does."""
    if native.functions is not None and dtype in _QUANTIZED and source.flags.aligned:
        rows = groups.rows, groups.length, groups.size
        native.functions.affine_encode(source, body, dtype, rows, bits, -1 if seed is None else seed)
    else:
        quantize.quantize(source, body, dtype, groups, bits, seed)


def affine_decode(body: Array, target: Array, dtype: str, groups: Groups, bits: int) -> None:
    """Dequantize as :func:`tensorstash.kernels.quantize.dequantize` does."""
    if native.functions is not None and dtype in _QUANTIZED and target.flags.aligned:
        native.functions.affine_decode(body, target, dtype, (groups.rows, groups.length, groups.size), bits)
    else:
        quantize.dequantize(body, target, dtype, groups, bits)


def convert(source: Array, dtype: str, target: Array, wanted: str) -> None:
    """Convert as :func:`tensorstash.kernels.floats.convert` does."""
    is_compiled = native.functions is not None and source.flags.aligned and target.flags.aligned
    if is_compiled and dtype == "float32" and wanted in _CONVERTED:
        native.functions.narrow_floats(source, target, wanted)
    elif is_compiled and dtype in _CONVERTED and wanted == "float32":
        native.functions.widen_floats(source, target, dtype)
    else:
        floats.convert(source, dtype, target, wanted)
