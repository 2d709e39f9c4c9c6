"""Policies that encode payloads."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

from tensorstash.codecs.affine import Affine
from tensorstash.codecs.astype import AsType
from tensorstash.codecs.lossless import Lossless
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.two_valued import TwoValued
from tensorstash.errors import ConfigError
from tensorstash.policies.placement import memory_of
from tensorstash.policies.plan import Plan
from tensorstash.policies.policy import Policy, append, built
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec


@dataclass(frozen=True)
class Encode(Policy):
    """Payloads pass through one codec, where it accepts them: for codecs of your own, and for choosing each one.

    In text and in configuration files the name of a codec alone is enough.

    Args:
        codec: to run; payloads stay where it ran.

    >>> from tensorstash.codecs import Sparse, Zstd
    >>> Encode(Sparse()) | Encode(Zstd())
    Chain(steps=(Encode(codec=Sparse()), Encode(codec=Zstd(level=1, shuffle=False))))
    """

    name: ClassVar[str] = "encode"
    codec: Codec

    def __post_init__(self) -> None:
        if isinstance(self.codec, type) or not isinstance(self.codec, Codec):
            raise ConfigError(f"encode.codec: got {self.codec!r}, expected a codec such as Zstd(level=3)")

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        return append(plan, spec, codecs=(self.codec,), reason=f"{self.codec.name} does not accept {spec.dtype}")


@dataclass(frozen=True, kw_only=True)
class Compress(Policy):
    """Payloads are compressed without loss and held in host memory.

    The form is chosen by content, tensor by tensor: masks and two-valued numbers become one bit per element, zeros are
    left out, and the bytes of numbers are compressed apart, such as exponents. A tensor that does not shrink is kept.

    Args:
        level: of Zstandard, 1 to 22; higher is smaller and slower, and 1 is already the best trade for activations.
        min_ratio: how many times smaller a payload has to be, 1 or more; tensors that shrink less are kept. Dense
            numbers in float32 shrink 1.2 times, at the cost of half a step.

    >>> Compress(level=3)
    Compress(level=3, min_ratio=1.25)
    """

    name: ClassVar[str] = "compress"
    level: int = 1
    min_ratio: float = 1.25

    def __post_init__(self) -> None:
        self._codec()

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        return append(plan, spec, codecs=(self._codec(),), store=memory_of(plan))

    def _codec(self) -> Codec:
        return built(self.name, lambda: Lossless(level=self.level, min_ratio=self.min_ratio))


@dataclass(frozen=True)
class Quantize(Policy):
    """Floating-point payloads become integers of a few bits, with one scale and one offset per group (lossy).

    Integers, booleans and complex numbers are never quantized. Payloads stay where they were made: follow with
    ``CpuOffload()`` or ``DiskSpill()`` to move them.

    Args:
        bits: per element: 2, 4 or 8.
        group_size: elements along the last dimension that share a scale and an offset.
        rounding: ``"nearest"``; ``"stochastic"``, right on average, so that errors do not add up over the layers; or
            ``"auto"``: nearest with 8 bits, and stochastic with fewer.
        seed: of stochastic rounding; the user's random state is never touched.

    >>> Quantize(4).plan(TensorSpec((64, 64), (64, 1), 0, "float32", "cpu")).codecs
    (Affine(bits=4, group_size=128, rounding='stochastic', seed=0),)
    """

    name: ClassVar[str] = "quantize"
    bits: Literal[2, 4, 8] = 8
    _: KW_ONLY
    group_size: int = 128
    rounding: Literal["auto", "nearest", "stochastic"] = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        self._codec()

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        return append(plan, spec, codecs=(self._codec(),), reason=f"{spec.dtype} is never quantized")

    def _codec(self) -> Affine:
        return built(self.name, self._built)

    def _built(self) -> Affine:
        rounding = self.rounding
        if rounding == "auto":
            rounding = "nearest" if self.bits == 8 else "stochastic"
        return Affine(bits=self.bits, group_size=self.group_size, rounding=rounding, seed=self.seed)


@dataclass(frozen=True)
class Cast(Policy):
    """Floating-point payloads become floating-point numbers of fewer bits (lossy); others are left alone.

    Args:
        dtype: held in place of theirs: ``"bfloat16"``, ``"float16"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``.

    >>> Cast("bfloat16") | Compress()
    Chain(steps=(Cast(dtype='bfloat16'), Compress(level=1, min_ratio=1.25)))
    """

    name: ClassVar[str] = "cast"
    dtype: Literal["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"] = "bfloat16"

    def __post_init__(self) -> None:
        self._codec()

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        return append(plan, spec, codecs=(self._codec(),), reason=f"{spec.dtype} is not cast to {self.dtype}")

    def _codec(self) -> AsType:
        return built(self.name, lambda: AsType(dtype=self.dtype))


@dataclass(frozen=True)
class PackMasks(Policy):
    """Masks become one bit per element; others are left alone.

    Masks are booleans and, in host memory, floating-point numbers of two values, such as the scales that dropout saves
    on the CPU: those are told by their content, bit for bit. A mask that a later step encodes is left to that one.

    >>> PackMasks() | Cast("bfloat16")
    Chain(steps=(PackMasks(), Cast(dtype='bfloat16')))
    """

    name: ClassVar[str] = "pack_masks"

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        is_float = spec.kind == "float" and spec.device == "cpu"
        codec = TwoValued() if is_float else PackBits()
        return append(plan, spec, codecs=(codec,), reason=f"{spec.dtype} is not a mask")
