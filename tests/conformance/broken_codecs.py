"""Codecs with one fault each, and the checks that must notice."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from planted import caught_by

from tensorstash.testing import CodecSuite, FaultyCodec, Golden
from tensorstash.testing.faults import CodecFault


@dataclass(frozen=True, kw_only=True)
class Copy(FaultyCodec):
    """A codec without a fault: it copies."""

    name: ClassVar[str] = "copy"
    fault: CodecFault = "encode_error"
    numel: int | None = -1


class Sound(CodecSuite):
    codec = Copy()
    is_registered = False


def faulty(name: str, base: type = Copy, *, suite: Mapping[str, Any] | None = None, **members: Any) -> type:
    """Return the suite of a codec with other members, and with members of its own."""
    codec = type(name, (base,), {"__module__": __name__, **members})()
    return type(name, (Sound,), {"codec": codec, **(suite or {})})


@dataclass(frozen=True, kw_only=True)
class Levels(Copy):
    level: int | str = 1


class IsNoDataclass:
    name, lossless, kind, fault, numel = "is_no_dataclass", True, "array->array", "encode_error", -1
    accepts, encoded_spec = FaultyCodec.accepts, FaultyCodec.encoded_spec
    encode, decode, _pass = FaultyCodec.encode, FaultyCodec.decode, FaultyCodec._pass


caught_by("test_it_is_a_frozen_keyword_only_dataclass")(faulty("IsNoDataclass", IsNoDataclass))
caught_by("test_a_lossy_codec_states_its_bound")(faulty("StatesNoBound", lossless=False))
caught_by("test_its_configuration_round_trips_and_opens_nothing")(
    faulty("HidesAField", Levels, __repr__=lambda self: f"HidesAField(level={self.level + 1})")
)
caught_by("test_it_is_a_frozen_keyword_only_dataclass")(faulty("SwallowsFields", __init__=lambda self, **fields: None))
caught_by("test_a_value_that_cannot_be_is_refused_with_its_path")(
    faulty("TakesAnyValue", Levels, suite={"refused": ({"level": "high"},)})
)

ASKED: list[int] = []


def changes_its_mind(self: Any, spec: Any) -> bool:
    ASKED.append(1)
    return len(ASKED) % 2 == 0


def computes(self: Any, data: Any, spec: Any) -> Any:
    with np.errstate(all="ignore"):
        return data + data.dtype.type(0) if data.dtype.kind == "f" else data.copy()


def stops_after_the_first_block(self: Any, data: Any, spec: Any) -> Any:
    payload = data.copy()
    payload.reshape(-1)[1 << 16 :] = 0
    return payload


def loses_the_last_byte(self: Any, data: Any, spec: Any) -> Any:
    payload = data.copy()
    payload.reshape(-1).view(np.uint8)[-1:] = 0
    return payload


def rounds(self: Any, data: Any, spec: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(np.round(data), data.dtype)


def gives_its_argument_away(self: Any, data: Any, spec: Any) -> Any:
    return data if data.flags.writeable or data.base is None else data.base


def salts(self: Any, data: Any, spec: Any) -> Any:
    ASKED.append(1)
    payload = data.copy()
    payload.reshape(-1).view(np.uint8)[:1] = len(ASKED) % 256
    return payload


def knows_one_thread(self: Any, data: Any, spec: Any) -> Any:
    is_main = threading.current_thread().name.startswith("Thread-")
    return data.copy() if is_main else np.zeros_like(data)


def writes(self: Any, data: Any, spec: Any) -> Any:
    data[...] = data
    return data.copy()


caught_by("test_it_says_of_every_spec_whether_it_accepts_it")(faulty("ChangesItsMind", accepts=changes_its_mind))
caught_by("test_round_trip_of_every_accepted_dtype", shape=(2, 300))(faulty("ComputesWithBits", encode=computes))
caught_by("test_round_trip_of_every_accepted_dtype", shape=(70_001,))(
    faulty("StopsAfterTheFirstBlock", encode=stops_after_the_first_block)
)
caught_by("test_round_trip_of_every_accepted_dtype", shape=(7,))(faulty("LosesTheLastByte", encode=loses_the_last_byte))
caught_by("test_round_trip_of_every_accepted_dtype", shape=(2, 300))(
    faulty(
        "BreaksItsBound",
        lossless=False,
        accepts=lambda self, spec: spec.dtype == "float32",
        encode=rounds,
        error_bound=lambda self, data, spec: np.full(data.shape, 0.1),
    )
)
caught_by("test_arguments_stay_as_they_are_and_equal_ones_give_equal_results")(
    faulty("GivesItsArgumentAway", encode=gives_its_argument_away)
)
caught_by("test_arguments_stay_as_they_are_and_equal_ones_give_equal_results")(faulty("SaltsPayloads", encode=salts))
caught_by("test_a_damaged_payload_is_refused_or_gives_an_array_of_the_right_kind", shape=(3, 50))(
    faulty("ChecksNothing", decode=lambda self, data, spec: data.copy())
)
caught_by("test_the_payload_of_another_tensor_is_not_taken_for_this_one")(
    faulty("TakesWhatComes", decode=lambda self, data, spec: np.resize(data, spec.shape))
)
caught_by("test_threads_do_not_disturb_one_another")(faulty("KnowsOneThread", decode=knows_one_thread))
caught_by("test_arguments_stay_as_they_are_and_equal_ones_give_equal_results", raises=(ValueError,))(
    faulty("WantsToWrite", encode=writes)
)
caught_by("test_golden_payloads_stay_readable")(
    faulty("ChangedItsFormat", suite={"golden": (Golden("uint8", np.arange(4, dtype=np.uint8), bytes([3, 2, 1, 0])),)})
)
