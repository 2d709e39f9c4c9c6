"""Checks of payloads, of their sources, and of the fields of codecs.

A payload never outlives its process, and stores verify their bytes. So payloads name no codec and no version: each
codec tells its forms by their lengths, and checks these.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from tensorstash.errors import CodecError, ConfigError
from tensorstash.host.arrays import Array, aligned_empty, as_bytes, payload_empty
from tensorstash.protocols import Codec, CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes


class Shrinking(ABC):
    """A codec that passes on, untouched and without a copy, a tensor that would not get smaller.

    The length of a payload tells which of the two it is: one as long as the tensor is the bytes of the tensor.
    """

    __slots__ = ()
    name: ClassVar[str]
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"
    is_quick: ClassVar[bool] = False
    """Whether it takes hardly longer than a copy."""

    @abstractmethod
    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether tensors of this spec may be encoded."""

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes, whose length depends on the elements."""
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload, in fresh memory, or ``data`` itself as bytes where it is passed on."""
        check_data(self, data, spec)
        payload = self.packed(data, spec)
        return as_bytes(data) if payload is None else payload

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array, in fresh memory, or ``data`` itself in the shape of the tensor where it was passed on."""
        check_run(self, data)
        if data.size != spec.nbytes:
            return self.unpacked(data, spec)
        if data.ctypes.data % min(spec.itemsize, 8):
            data = data.copy()
        return data.view(spec.carrier).reshape(spec.shape)

    @abstractmethod
    def packed(self, data: Array, spec: TensorSpec, /) -> Array | None:
        """Return a payload that is smaller than the array, or None."""

    @abstractmethod
    def unpacked(self, payload: Array, spec: TensorSpec, /) -> Array:
        """Return the array of a payload that :meth:`packed` has made, in fresh memory."""


def empty_array(spec: TensorSpec) -> Array:
    """Return uninitialised memory for the elements of a tensor, in its shape."""
    return aligned_empty(spec.nbytes).view(spec.carrier).reshape(spec.shape)


def joined(*parts: Array) -> Array:
    """Return runs of bytes one behind the other, in fresh memory of a payload."""
    payload = payload_empty(sum(part.size for part in parts))
    np.concatenate(parts, out=payload)
    return payload


def split_sections(codec: Codec, body: Array, *sizes: int) -> list[Array]:
    """Return consecutive views of a run of bytes, which together have to be all of it."""
    check_run(codec, body, sum(sizes))
    ends = np.cumsum(sizes).tolist()
    return [body[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def damaged(codec: Codec, fault: str) -> CodecError:
    """Return the error for a payload whose parts contradict one another."""
    return CodecError(f"{codec!r}: {fault}; the payload was cut or altered, or belongs to another tensor")


def check_run(codec: Codec, payload: Array, nbytes: int | None = None, at_least: int = 0) -> None:
    """Raise a CodecError unless a payload is a run of bytes, of a known or a least length."""
    if payload.dtype != np.uint8 or payload.ndim != 1:
        raise damaged(codec, f"got a payload of {payload.dtype}{payload.shape}, expected a run of bytes")
    if payload.size != nbytes if nbytes is not None else payload.size < at_least:
        expected = f"at least {at_least}" if nbytes is None else nbytes
        raise damaged(codec, f"got {payload.size} bytes, expected {expected}")


def check_data(codec: Codec, data: Array, spec: TensorSpec) -> None:
    """Raise a CodecError unless ``codec`` accepts ``spec`` and ``data`` is of it."""
    if not codec.accepts(spec):
        raise CodecError(f"{codec!r} does not accept {spec}; put a selector in front of it")
    check_shape(codec, data, spec)


def check_shape(codec: Codec, data: Array, spec: TensorSpec) -> None:
    """Raise a CodecError unless ``data`` has the shape and the carrier dtype of ``spec``."""
    is_run = spec.shape == (-1,) and data.ndim == 1
    if data.dtype != spec.carrier or (data.shape != spec.shape and not is_run) or not data.flags.c_contiguous:
        raise CodecError(
            f"{codec!r}: got an array {data.dtype}{data.shape}, expected a C-contiguous {spec.carrier}{spec.shape}"
        )


def check_choice(path: str, value: object, choices: Iterable[object]) -> None:
    """Raise a ConfigError unless the field at a path, such as ``"affine.bits"``, is a choice, of the same type."""
    allowed = tuple(choices)
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise ConfigError(f"{path}: got {value!r}, expected one of {', '.join(map(repr, allowed))}")


def check_integer(path: str, value: object, low: int, high: int | None = None) -> None:
    """Raise a ConfigError unless ``value`` is an int from ``low`` to ``high``, both included."""
    if type(value) is not int or value < low or (high is not None and value > high):
        limits = f"{low} or more" if high is None else f"from {low} to {high}"
        raise ConfigError(f"{path}: got {value!r}, expected a whole number, {limits}")
