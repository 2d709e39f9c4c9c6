"""Codecs as PyTorch's own operators, for devices without Triton and for what the Triton kernels leave out.

The functions are those of :mod:`~tensorstash.backends.torch.triton`, and write the same bits. They read and write
memory several times, in pieces that keep their temporaries small, and never wait for the device.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tensorstash.codecs.wire.format import HEADER_NBYTES
from tensorstash.kernels.bits import COARSENING
from tensorstash.kernels.dither import GOLDEN
from tensorstash.kernels.floats import FORMATS
from tensorstash.kernels.groups import Groups
from tensorstash.kernels.quantize import FINEST, SPECIALS, Arithmetic

_PIECE = 1 << 22
"""Elements that are worked on at a time."""

_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def quantize(
    dense: Tensor, payload: Tensor, header: tuple[int, int], groups: Groups, bits: int, seed: int | None
) -> None:
    """Write the payload of :class:`~tensorstash.codecs.affine.Affine`.

    Args:
        dense: contiguous floats.
        payload: bytes, all of which are written.
        header: its first sixteen bytes, as two integers.
        groups: how ``dense`` is cut.
        bits: of a code.
        seed: word of stochastic rounding; None for rounding to nearest.
    """
    _put_header(payload, header)
    work = torch.float64 if dense.dtype == torch.float64 else torch.float32
    scales, lows, packed = _sections(payload, groups, work)
    codes = torch.empty((groups.rows, groups.length), dtype=torch.uint8, device=dense.device)
    rows = dense.reshape(groups.rows, groups.length)
    for row, column, group in _pieces(groups):
        part = rows[row, column].reshape(*_shape(groups, row, column, group))
        places = _places(groups, row, column, part) if seed is not None else None
        scale, low, code = _quantized(part.to(work), bits, seed, places)
        scales[row, group], lows[row, group] = scale, low
        codes[row, column] = code.reshape(code.shape[0], -1)
    packed.copy_(_packed(codes.reshape(-1), bits))


def dequantize(payload: Tensor, dense: Tensor, groups: Groups, bits: int) -> None:
    """Write the elements that a payload stands for.

    Args:
        payload: as written by :func:`quantize`.
        dense: contiguous floats, all of which are written.
        groups: how ``dense`` is cut.
        bits: of a code.
    """
    work = torch.float64 if dense.dtype == torch.float64 else torch.float32
    scales, lows, packed = _sections(payload, groups, work)
    codes = _unpacked(packed, bits, dense.numel()).reshape(groups.rows, groups.length)
    rows = dense.reshape(groups.rows, groups.length)
    for row, column, group in _pieces(groups):
        scale, low = scales[row, group, None], lows[row, group, None]
        code = codes[row, column].reshape(*_shape(groups, row, column, group))
        values = code.to(work).mul_(scale.abs()).add_(low)
        for k, odd in enumerate((-torch.inf, torch.inf, torch.nan)):
            values.masked_fill_(scale.signbit() & (code == 2**bits - SPECIALS + k), odd)
        rows[row, column] = _narrowed(values, dense.dtype).reshape(values.shape[0], -1)


def convert(source: Tensor, target: Tensor) -> None:
    """Write floats in another format, rounded to nearest even, by way of ``float32``."""
    flat, result = source.reshape(-1), target.reshape(-1)
    for start in range(0, flat.numel(), _PIECE):
        result[start : start + _PIECE] = _narrowed(_widened(flat[start : start + _PIECE]), target.dtype)


def pack_flags(flags: Tensor, payload: Tensor, header: tuple[int, int]) -> None:
    """Write the payload of :class:`~tensorstash.codecs.pack_bits.PackBits`; bytes that are not 0 count as 1."""
    _put_header(payload, header)
    payload[HEADER_NBYTES:] = _packed((flags.reshape(-1).view(torch.uint8) != 0).to(torch.uint8), 1)


def unpack_flags(payload: Tensor, flags: Tensor) -> None:
    """Write the booleans that a payload stands for."""
    flags.reshape(-1).view(torch.uint8).copy_(_unpacked(payload[HEADER_NBYTES:], 1, flags.numel()))


def mark_others(words: Tensor, marks: Tensor, found: Tensor) -> None:
    """Write one bit per word: whether it differs from the first.

    Args:
        words: signed integers, flat.
        marks: bytes, the first bit in the lowest place.
        found: two ``int64``, the smallest and the largest of the words that differ; to be given as the largest and the
            smallest possible, and left like that if none differs.
    """
    others = words != words[0]
    marks.copy_(_packed(others.to(torch.uint8), 1))
    wide = words.to(torch.int64)
    found[0] = torch.where(others, wide, found[0]).amin()
    found[1] = torch.where(others, wide, found[1]).amax()


def choose(marks: Tensor, words: Tensor, pair: Tensor) -> None:
    """Write one of two words for every bit: the inverse of :func:`mark_others`."""
    words.copy_(torch.where(_unpacked(marks, 1, words.numel()) != 0, pair[1], pair[0]))


def _quantized(values: Tensor, bits: int, seed: int | None, places: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scale and the low of each group, and the codes, of shape (rows, groups, width)."""
    arithmetic = Arithmetic.of("float64" if values.dtype == torch.float64 else "float32")
    finite = values.isfinite()
    held = values.clamp(-arithmetic.limit, arithmetic.limit)
    low, high = _smallest(held, finite), _largest(held, finite)
    none = ~finite.any(-1)
    low, high = low.masked_fill(none, 0), high.masked_fill(none, 0)
    special = ~finite.all(-1)
    if bits == 2:
        middle = low + (high - low) * 0.5
        low, high = torch.where(special, middle, low), torch.where(special, middle, high)
    span = high - low
    rest = 2**bits - 1 - SPECIALS
    highest = FINEST if seed is None else 2**bits - 1
    coarse = ~(span >= arithmetic.least)
    # By tensors: where the divisor is a number, PyTorch multiplies by its inverse on CUDA, which rounds differently.
    finest, reach = (torch.full_like(span, number).masked_fill_(special, rest) for number in (FINEST, highest))
    unit = torch.ones_like(span).masked_fill_(~special, FINEST // (2**bits - 1))
    scale = (span / finest).mul_(unit).masked_fill_(coarse, 0)
    inverse = (reach / span).masked_fill_(coarse, 0)
    low = low + 0.0  # never -0
    scale = torch.where(special, -scale, scale)
    steps = torch.where(finite, held, low[..., None]).sub_(low[..., None])
    if seed is None or places is None:
        sums = steps.mul_(inverse[..., None]).add_(arithmetic.magic)
        codes = sums.view(_SIGNED[sums.itemsize]) & 0xFF
        if bits < 8:
            factor, half = COARSENING[bits]
            codes = torch.where(special[..., None], codes, (codes * factor + half) >> 8)
        codes = codes.to(torch.uint8)
    else:
        fixed = steps.mul_((inverse * (65536 * (1 - 2.0**-21)))[..., None]).to(_SIGNED[steps.itemsize])
        codes = (fixed.add_(_noise(scale, low, seed, places)) >> 16).to(torch.uint8)
    odd = 2**bits - SPECIALS + (values > 0).to(torch.uint8) + 2 * values.isnan()
    return scale, low, torch.where(finite, codes, odd)


def _smallest(values: Tensor, finite: Tensor) -> Tensor:
    order = _order(values)
    return _order(order.masked_fill(~finite, torch.iinfo(order.dtype).max).amin(-1)).view(values.dtype)


def _largest(values: Tensor, finite: Tensor) -> Tensor:
    order = _order(values)
    return _order(order.masked_fill(~finite, torch.iinfo(order.dtype).min).amax(-1)).view(values.dtype)


def _order(bits: Tensor) -> Tensor:
    """Return integers in the order of floats, in which -0 comes before 0; its own inverse."""
    signed = bits.view(_SIGNED[bits.itemsize])
    return signed ^ ((signed >> (8 * bits.itemsize - 1)) & torch.iinfo(signed.dtype).max)


def _noise(scale: Tensor, low: Tensor, seed: int, places: Tensor) -> Tensor:
    keys = _mix(_mix(_words(scale) ^ _int32(seed)) + _words(low))
    words = _mix((places >> 1).to(torch.int32).mul_(_int32(GOLDEN)).add_(keys[..., None]))
    return (words >> ((places & 1) * 16).to(torch.int32)) & 0xFFFF


def _words(floats: Tensor) -> Tensor:
    words = floats.contiguous().view(torch.int32)
    if floats.itemsize == 4:
        return words
    halves = words.reshape(*floats.shape, 2)
    return halves[..., 0] + halves[..., 1] * _int32(GOLDEN)


def _mix(words: Tensor) -> Tensor:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        words = (words ^ ((words >> shift) & ((1 << (32 - shift)) - 1))) * _int32(factor)
    return words ^ ((words >> 16) & 0xFFFF)


def _int32(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _places(groups: Groups, row: slice, column: slice, part: Tensor) -> Tensor:
    rows = torch.arange(row.start, row.stop, device=part.device)[:, None] * groups.length
    return (rows + torch.arange(column.start, column.stop, device=part.device)).reshape(part.shape)


def _pieces(groups: Groups) -> Iterator[tuple[slice, slice, slice]]:
    """Yield rows, columns and groups of rectangles of groups of one size."""
    whole = groups.length // groups.size
    tall = max(_PIECE // groups.length, 1)
    wide = max(_PIECE // groups.size, 1)
    for top in range(0, groups.rows, tall):
        row = slice(top, min(top + tall, groups.rows))
        for first in range(0, whole, wide):
            group = slice(first, min(first + wide, whole))
            yield row, slice(group.start * groups.size, group.stop * groups.size), group
        if whole < groups.per_row:
            yield row, slice(whole * groups.size, groups.length), slice(whole, whole + 1)


def _shape(groups: Groups, row: slice, column: slice, group: slice) -> tuple[int, int, int]:
    count = group.stop - group.start
    return row.stop - row.start, count, (column.stop - column.start) // count


def _sections(payload: Tensor, groups: Groups, work: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    nbytes = groups.count * work.itemsize
    body = payload[HEADER_NBYTES:]
    shape = (groups.rows, groups.per_row)
    scales, lows = (body[at : at + nbytes].view(work).reshape(shape) for at in (0, nbytes))
    return scales, lows, body[2 * nbytes :]


def _put_header(payload: Tensor, header: tuple[int, int]) -> None:
    words = payload[:HEADER_NBYTES].view(torch.int64)
    for k, word in enumerate(header):
        words[k].fill_(word)


def _packed(codes: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return codes
    per_byte = 8 // bits
    codes = torch.nn.functional.pad(codes, (0, -codes.numel() % per_byte)).reshape(-1, per_byte)
    packed = codes[:, 0].clone()
    for k in range(1, per_byte):
        packed |= codes[:, k] << (bits * k)
    return packed


def _unpacked(packed: Tensor, bits: int, count: int) -> Tensor:
    if bits == 8:
        return packed
    codes = torch.stack([(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)], dim=-1)
    return codes.reshape(-1)[:count]


def _widened(floats: Tensor) -> Tensor:
    """Return ``float32``; NaNs keep their sign and payload, where hardware would not."""
    if floats.dtype in (torch.float32, torch.float64):
        return floats.to(torch.float32)
    form = FORMATS[str(floats.dtype).removeprefix("torch.")]
    drop, highest = 23 - form.mantissa, (1 << (form.nbits - 1)) - 1
    raw = floats.view(_SIGNED[floats.itemsize]).to(torch.int32)
    nan = ((raw << drop) & _int32(0x80000000 | highest << drop)) | 0x7F800000
    values = floats.to(torch.float32)
    return torch.where(values.isnan(), nan, values.view(torch.int32)).view(torch.float32)


def _narrowed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values in another format; NaNs become the one of their sign that the codecs write."""
    if dtype in (torch.float32, torch.float64):
        return values.to(dtype)
    form = FORMATS[str(dtype).removeprefix("torch.")]
    if form.saturates:  # which PyTorch itself has not always done
        values = values.clamp(-form.largest, form.largest)
    bits = values.to(dtype).view(_SIGNED[dtype.itemsize])
    sign = -(1 << (form.nbits - 1))
    bits = torch.where(values.isnan(), torch.where(values.signbit(), sign | form.nan, form.nan).to(bits.dtype), bits)
    return bits.view(dtype)
