"""Codecs with one fault each, and the checks that must notice."""

import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from planted import Fault

from tensorstash.errors import CodecError
from tensorstash.testing import CodecSuite, Golden

FAULTS: list[Fault] = []


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A codec without a fault: it copies, behind a byte that says so."""

    name: ClassVar[str] = "copy"
    lossless: ClassVar[bool] = True
    kind: ClassVar[str] = "array->array"

    def accepts(self, spec: Any, /) -> bool:
        return spec.shape != (-1,)

    def encoded_spec(self, spec: Any, /) -> Any:
        return spec

    def encode(self, data: Any, spec: Any, /) -> Any:
        return data.copy()

    def decode(self, data: Any, spec: Any, /) -> Any:
        if (data.dtype.name, data.shape) != (spec.carrier, spec.shape):
            raise CodecError(f"{self!r}: got {data.dtype}{data.shape}, expected {spec}")
        return data.copy()


class Sound(CodecSuite):
    codec = Copy()
    is_registered = False


def plant(
    *checks: str, raises: tuple[type[BaseException], ...] = (), suite: dict[str, Any] | None = None, **arguments: Any
):
    def add(kind: type) -> type:
        members = {"codec": kind(), "is_registered": False, **(suite or {})}
        FAULTS.append(Fault(type(kind.__name__, (CodecSuite,), members), checks, arguments, raises, Sound))
        return kind

    return add


@plant("test_it_is_a_frozen_keyword_only_dataclass")
class IsNoDataclass:
    name, lossless, kind = "is_no_dataclass", True, "array->array"
    accepts, encoded_spec, encode, decode = Copy.accepts, Copy.encoded_spec, Copy.encode, Copy.decode


@plant("test_a_lossy_codec_states_its_bound")
@dataclass(frozen=True, kw_only=True)
class StatesNoBound(Copy):
    lossless: ClassVar[bool] = False


@plant("test_its_configuration_round_trips")
@dataclass(frozen=True, kw_only=True)
class HidesAField(Copy):
    level: int = 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}(level={self.level + 1})"


@plant("test_an_unknown_field_is_refused")
@dataclass(frozen=True, kw_only=True)
class SwallowsFields(Copy):
    def __init__(self, **fields: Any) -> None:
        pass


@plant("test_a_value_that_cannot_be_is_refused_with_its_path", suite={"refused": ({"level": "high"},)})
@dataclass(frozen=True, kw_only=True)
class TakesAnyValue(Copy):
    level: int | str = 1


@plant("test_it_says_of_every_spec_whether_it_accepts_it")
@dataclass(frozen=True, kw_only=True)
class ChangesItsMind(Copy):
    asked: ClassVar[list[int]] = []

    def accepts(self, spec: Any, /) -> bool:
        self.asked.append(1)
        return len(self.asked) % 2 == 0


@plant("test_round_trip_of_every_accepted_dtype", shape=(2, 300))
@dataclass(frozen=True, kw_only=True)
class ComputesWithBits(Copy):
    def encode(self, data: Any, spec: Any, /) -> Any:
        with np.errstate(all="ignore"):
            return data + data.dtype.type(0) if data.dtype.kind == "f" else data.copy()


@plant("test_round_trip_of_large_tensors")
@dataclass(frozen=True, kw_only=True)
class StopsAfterTheFirstBlock(Copy):
    def encode(self, data: Any, spec: Any, /) -> Any:
        payload = data.copy()
        payload.reshape(-1)[1 << 16 :] = 0
        return payload


@plant("test_round_trip_of_any_bits")
@dataclass(frozen=True, kw_only=True)
class LosesTheLastByte(Copy):
    def encode(self, data: Any, spec: Any, /) -> Any:
        payload = data.copy()
        payload.reshape(-1).view(np.uint8)[-1:] = 0
        return payload


@plant("test_round_trip_of_every_accepted_dtype", shape=(2, 300))
@dataclass(frozen=True, kw_only=True)
class BreaksItsBound(Copy):
    lossless: ClassVar[bool] = False

    def accepts(self, spec: Any, /) -> bool:
        return spec.dtype == "float32"

    def encode(self, data: Any, spec: Any, /) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(np.round(data), data.dtype)

    def error_bound(self, data: Any, spec: Any, /) -> Any:
        return np.full(data.shape, 0.1)


@plant("test_arguments_are_neither_written_nor_kept")
@dataclass(frozen=True, kw_only=True)
class GivesItsArgumentAway(Copy):
    def encode(self, data: Any, spec: Any, /) -> Any:
        return data if data.flags.writeable or data.base is None else data.base


@plant("test_equal_input_gives_equal_payloads")
@dataclass(frozen=True, kw_only=True)
class SaltsPayloads(Copy):
    salt: ClassVar[list[int]] = []

    def encode(self, data: Any, spec: Any, /) -> Any:
        self.salt.append(1)
        payload = data.copy()
        payload.reshape(-1).view(np.uint8)[:1] = len(self.salt) % 256
        return payload


@plant("test_a_damaged_payload_is_refused_or_gives_an_array_of_the_right_kind", shape=(3, 50))
@dataclass(frozen=True, kw_only=True)
class ChecksNothing(Copy):
    def decode(self, data: Any, spec: Any, /) -> Any:
        return data.copy()


@plant("test_the_payload_of_another_tensor_is_not_taken_for_this_one")
@dataclass(frozen=True, kw_only=True)
class TakesWhatComes(Copy):
    def decode(self, data: Any, spec: Any, /) -> Any:
        return np.resize(data, spec.shape)


@plant("test_threads_do_not_disturb_one_another")
@dataclass(frozen=True, kw_only=True)
class KnowsOneThread(Copy):
    def decode(self, data: Any, spec: Any, /) -> Any:
        is_main = threading.current_thread().name.startswith("Thread-")
        return data.copy() if is_main else np.zeros_like(data)


@plant("test_it_works_in_a_session", raises=(CodecError,))
@dataclass(frozen=True, kw_only=True)
class WantsToWrite(Copy):
    def encode(self, data: Any, spec: Any, /) -> Any:
        data[...] = data
        return data.copy()


@plant(
    "test_golden_payloads_stay_readable",
    suite={"golden": (Golden("uint8", np.arange(4, dtype=np.uint8), bytes([3, 2, 1, 0])),)},
)
@dataclass(frozen=True, kw_only=True)
class ChangedItsFormat(Copy):
    pass
