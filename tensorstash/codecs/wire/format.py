"""The wire format: headers and sections of payloads, the checks that keep a damaged one from becoming a tensor.

Also the checks of a codec's fields, which decide what is in a payload.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from struct import Struct

import numpy as np

from tensorstash.errors import CodecError, ConfigError
from tensorstash.host.arrays import Array, aligned_empty, as_bytes, payload_empty
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec

PLAIN, CODED = 0, 1
"""Modes of a payload: the bytes as they are, and what the codec makes of them."""

_HEADER = Struct("<4sBBHQ")
HEADER_NBYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class Header:
    """The first 16 bytes of a payload.

    Args:
        magic: four bytes that name the codec and the version of its format.
        mode: which of the codec's layouts follows.
        param: a small number of the codec's own.
        count: elements or bytes that the payload stands for.
    """

    magic: bytes
    mode: int
    param: int
    count: int

    def write(self, payload: Array) -> None:
        """Put the header in front of ``payload``, a writable run of bytes."""
        _HEADER.pack_into(payload.data, 0, self.magic, self.mode, self.param, 0, self.count)


def read_header(codec: Codec, payload: Array, magic: bytes) -> tuple[Header, Array]:
    """Return the header of a payload, and what follows it.

    Raises:
        CodecError: the payload is not a run of bytes, is too short, or does not begin with ``magic``.
    """
    if payload.dtype != np.uint8 or payload.ndim != 1:
        raise CodecError(f"{codec!r}: got a payload of {payload.dtype}{payload.shape}, expected a run of bytes")
    if payload.size < HEADER_NBYTES:
        raise CodecError(f"{codec!r}: got a payload of {payload.size} bytes, expected a header of {HEADER_NBYTES}")
    found, mode, param, reserved, count = _HEADER.unpack_from(payload.data)
    if found != magic or reserved:
        raise CodecError(f"{codec!r}: the payload begins with {found!r}, expected {magic!r}; it is not of this codec")
    return Header(found, mode, param, count), payload[HEADER_NBYTES:]


def open_payload(
    codec: Codec,
    payload: Array,
    spec: TensorSpec,
    magic: bytes,
    *,
    modes: Collection[int] = (PLAIN, CODED),
    plain: int = PLAIN,
    param: int = 0,
    unit: int = 1,
) -> tuple[Header, Array, Array | None]:
    """Check what every payload begins with, and decode one that holds the bytes of the tensor as they are.

    Args:
        codec: whose payload it is, for messages.
        payload: to be decoded.
        spec: of the tensor.
        magic: the codec's.
        modes: that the codec writes.
        plain: the one of them that is followed by the bytes as they are.
        param: that the codec writes.
        unit: what ``count`` counts, per element: 1 for elements, the bytes of one for bytes.

    Returns:
        The header, what follows it, and the tensor where its bytes are that, else None.

    Raises:
        CodecError: it is not a payload of this codec and this spec.
    """
    header, body = read_header(codec, payload, magic)
    if header.mode not in modes or header.param != param or header.count % unit:
        raise damaged(codec, f"unknown mode {header.mode} with {header.param} for {header.count}")
    count = header.count // unit
    check_count(codec, count, spec)
    if header.mode != plain:
        return header, body, None
    check_length(codec, body, count * spec.itemsize)
    array = empty_array(codec, count, spec)
    as_bytes(array)[:] = body
    return header, body, array


def plain_payload(header: Header, data: Array) -> Array:
    """Return a header and, behind it, the bytes of ``data`` as they are."""
    payload = payload_empty(HEADER_NBYTES + data.nbytes)
    header.write(payload)
    payload[HEADER_NBYTES:] = as_bytes(data)
    return payload


def passed_on(payload: Array, spec: TensorSpec) -> Array:
    """Return a payload that is the bytes of a tensor, in its shape; the same memory if that is aligned."""
    if payload.ctypes.data % min(spec.itemsize, 8):
        payload = payload.copy()
    return payload.view(spec.carrier).reshape(spec.shape)


def split_sections(codec: Codec, body: Array, *sizes: int) -> list[Array]:
    """Return consecutive views of a run of bytes, which together are all of it.

    Args:
        sizes: lengths in bytes, 0 or more.

    Raises:
        CodecError: the lengths do not add up to the run's.
    """
    check_length(codec, body, sum(sizes))
    sections, start = [], 0
    for size in sizes:
        sections.append(body[start : start + size])
        start += size
    return sections


def damaged(codec: Codec, what: str) -> CodecError:
    """Return the error for a payload whose parts contradict one another."""
    return CodecError(f"{codec!r}: {what}; the payload was cut or altered, or belongs to another tensor")


def check_data(codec: Codec, data: Array, spec: TensorSpec) -> None:
    """Raise unless ``codec`` accepts ``spec`` and ``data`` is what ``spec`` says.

    Raises:
        CodecError: it does not, or it is not.
    """
    if not codec.accepts(spec):
        raise CodecError(f"{codec!r} does not accept {spec}; put a selector in front of it")
    check_shape(codec, data, spec)


def check_shape(codec: Codec, data: Array, spec: TensorSpec) -> None:
    """Raise unless ``data`` has the shape and the carrier dtype of ``spec``.

    Raises:
        CodecError: it has not.
    """
    is_run = spec.shape == (-1,) and data.ndim == 1
    if data.dtype != spec.carrier or (data.shape != spec.shape and not is_run) or not data.flags.c_contiguous:
        raise CodecError(
            f"{codec!r}: got an array {data.dtype}{data.shape}, expected a C-contiguous {spec.carrier}{spec.shape}"
        )


def check_count(codec: Codec, count: int, spec: TensorSpec) -> None:
    """Raise unless a payload of ``count`` elements is one of a tensor of this spec, whose length may be unknown.

    Raises:
        CodecError: it is not.
    """
    if spec.shape != (-1,) and count != spec.numel:
        raise damaged(codec, f"the payload holds {count} elements, expected {spec.numel} for {spec}")


def empty_array(codec: Codec, count: int, spec: TensorSpec) -> Array:
    """Return fresh aligned memory shaped as ``spec`` says, or of ``count`` bytes where that is a run of any length.

    Raises:
        CodecError: there is not as much memory as a run, whose length only the payload knows, asks for.
    """
    if spec.shape != (-1,):
        return aligned_empty(spec.nbytes).view(spec.carrier).reshape(spec.shape)
    try:
        return aligned_empty(count)
    except (MemoryError, ValueError, OverflowError) as error:
        raise damaged(codec, f"the payload asks for {count} bytes: {error}") from error


def check_length(codec: Codec, body: Array, nbytes: int) -> None:
    """Raise unless so many bytes follow the header.

    Raises:
        CodecError: there are others.
    """
    if body.size != nbytes:
        raise CodecError(
            f"{codec!r}: got {body.size} bytes after the header, expected {nbytes}; the payload was cut or altered"
        )


def check_choice(path: str, value: object, choices: Iterable[object]) -> None:
    """Raise unless ``value`` is one of ``choices``, of the same type.

    Args:
        path: the dotted path of the field, such as ``"affine.bits"``.

    Raises:
        ConfigError: it is not.
    """
    allowed = tuple(choices)
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise ConfigError(f"{path}: got {value!r}, expected one of {', '.join(map(repr, allowed))}")


def check_integer(path: str, value: object, low: int, high: int | None = None) -> None:
    """Raise unless ``value`` is an int from ``low`` to ``high``, both included.

    Args:
        path: the dotted path of the field, such as ``"zstd.level"``.

    Raises:
        ConfigError: it is not.
    """
    if type(value) is not int or value < low or (high is not None and value > high):
        limits = f"{low} or more" if high is None else f"from {low} to {high}"
        raise ConfigError(f"{path}: got {value!r}, expected a whole number, {limits}")


def check_ratio(path: str, value: object, low: float) -> None:
    """Raise unless ``value`` is a finite number of at least ``low``.

    Args:
        path: the dotted path of the field, such as ``"lossless.min_ratio"``.

    Raises:
        ConfigError: it is not.
    """
    if type(value) not in (int, float) or not low <= value < float("inf"):  # type: ignore[operator]
        raise ConfigError(f"{path}: got {value!r}, expected a finite number, {low} or more")
