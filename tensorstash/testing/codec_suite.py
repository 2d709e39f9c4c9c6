"""The duties of every codec, as one class of tests."""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest

from tensorstash.errors import CodecError
from tensorstash.host.arrays import Array, as_bytes, borrowed
from tensorstash.policies import Encode
from tensorstash.protocols import Codec, SupportsErrorBound
from tensorstash.spec import TensorSpec
from tensorstash.testing.config_suite import ConfigSuite
from tensorstash.testing.contents import LARGE, LARGE_DTYPES, SHAPES, contents, dense_spec, every_spec, float_values
from tensorstash.testing.layouts import assert_same_bits


@dataclasses.dataclass(frozen=True, slots=True)
class Golden:
    """Bytes that an earlier version made by ``encode`` of elements of a type, given as carrier bits."""

    dtype: str
    data: Array
    payload: bytes


class CodecSuite(ConfigSuite):
    """Every promise of a codec; a test is a subclass that names one::

        class TestMyCodec(CodecSuite):
            codec = MyCodec(level=3)

    Attributes:
        codec: under test.
        is_registered: whether configurations know the codec by name.
        golden: payloads that must stay readable.
        refused: fields, by name, with values that must be refused when the codec is built.
        overhead: bytes that a lossless payload may have more than its tensor; None where nothing is promised.
    """

    codec: ClassVar[Codec]
    golden: ClassVar[tuple[Golden, ...]] = ()
    overhead: ClassVar[int | None] = None

    protocol, policy, group = Codec, Encode, "codecs"
    attribute = ("kind", ("array->array", "array->bytes", "bytes->bytes"))

    def config(self, directory: str) -> Codec:
        del directory
        return self.codec

    def test_a_lossy_codec_states_its_bound(self) -> None:
        assert isinstance(self.codec, SupportsErrorBound) != self.codec.lossless

    def test_it_says_of_every_spec_whether_it_accepts_it(self) -> None:
        answers = []
        for spec in (spec for shape in SHAPES for spec in every_spec(shape)):
            answers.append({self.codec.accepts(spec) for _ in range(3)})
            assert answers[-1] in ({True}, {False}), f"{self.codec!r} is of two minds about {spec}"
        assert {True} in answers, f"{self.codec!r} accepts nothing"

    @pytest.mark.parametrize("shape", [*SHAPES, LARGE], ids=str)
    def test_round_trip_of_every_accepted_dtype(self, shape: tuple[int, ...]) -> None:
        for spec in self._accepted(shape):
            if shape != LARGE or (spec.dtype in LARGE_DTYPES and spec.shape == LARGE):
                for name, data in contents(spec).items():
                    self._assert_round_trip(data, spec, f"{name} as {spec}")

    def test_arguments_stay_as_they_are_and_equal_ones_give_equal_results(self) -> None:
        before = repr(np.random.get_state())
        for spec in self._accepted((6, 50)):
            for name, data in contents(spec).items():
                case, bits = f"{name} as {spec}", data.tobytes()
                payload = self.codec.encode(borrowed(data), spec)
                assert data.tobytes() == bits, f"encode wrote to {case}"
                if payload.flags.writeable:
                    assert not np.shares_memory(payload, data), f"encode gives away {case}, not its own"
                stored = payload.copy()
                back = self.codec.decode(borrowed(payload), spec)
                assert_same_bits(payload, stored, f"the payload of {case}, decoded")
                if back.flags.writeable:
                    assert not np.shares_memory(back, payload), "decode gives away memory that is not its own"
                assert_same_bits(self.codec.encode(data.copy(), spec), stored, f"second payload of {case}")
                assert_same_bits(self.codec.decode(stored, spec), back, f"second array from the payload of {case}")
        assert repr(np.random.get_state()) == before, "the user's random state was used"

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("shape", [(), (3, 50)], ids=str)
    def test_a_damaged_payload_is_refused_or_gives_an_array_of_the_right_kind(self, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(5)
        for spec in (s for s in self._accepted(shape) if s.shape != (-1,)):
            for number, (name, data) in enumerate(contents(spec).items()):
                payload = self.codec.encode(data, spec)
                for damaged in _damaged(payload, rng, number):
                    self._assert_refused_or_fitting(damaged, payload.nbytes, spec, f"{name} as {spec}, damaged")

    def test_the_payload_of_another_tensor_is_not_taken_for_this_one(self) -> None:
        for spec in (s for s in self._accepted((6, 50)) if s.shape != (-1,)):
            other = dense_spec((6, 51), spec.dtype)
            for data in contents(other).values():
                payload = self.codec.encode(data, other)
                with pytest.raises(CodecError):
                    self.codec.decode(borrowed(payload), spec)

    def test_threads_do_not_disturb_one_another(self) -> None:
        spec = next(self._accepted(LARGE))
        arrays = list(contents(spec).values())
        alone = [self.codec.encode(data, spec) for data in arrays]
        backs = [self.codec.decode(payload, spec) for payload in alone]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda data: self.codec.encode(data, spec), arrays * 4))
            returned = list(pool.map(lambda payload: self.codec.decode(payload, spec), alone * 4))
        for n in range(len(together)):
            assert_same_bits(together[n], alone[n % len(alone)], "payload made beside others")
            assert_same_bits(returned[n], backs[n % len(backs)], "array decoded beside others")

    def test_golden_payloads_stay_readable(self) -> None:
        for golden in self.golden:
            spec = dense_spec(golden.data.shape, golden.dtype)
            payload = np.frombuffer(golden.payload, np.uint8)
            encoded = self.codec.encoded_spec(spec)
            if encoded.shape != (-1,):
                payload = payload.view(encoded.carrier).reshape(encoded.shape)
            now = self.codec.decode(self.codec.encode(golden.data, spec), spec)
            assert_same_bits(self.codec.decode(payload, spec), now, f"golden payload of {spec}")

    def _accepted(self, shape: tuple[int, ...]) -> Iterator[TensorSpec]:
        return (spec for spec in every_spec(shape) if self.codec.accepts(spec))

    def _assert_refused_or_fitting(self, damaged: Array, nbytes: int, spec: TensorSpec, case: str) -> None:
        __tracebackhide__ = True
        refusal = ""
        try:
            back = self.codec.decode(borrowed(damaged), spec)
        except CodecError as error:
            refusal = str(error)
        if refusal:
            assert repr(self.codec) in refusal, f"{case}: the error does not name the codec: {refusal}"
            return
        assert isinstance(back, np.ndarray), f"{case}: got {type(back).__name__}"
        fits = (back.dtype.name, back.shape) == (spec.carrier, spec.shape)
        assert fits, f"{case}: got {back.dtype}{back.shape}"
        assert damaged.nbytes == nbytes, f"{case}: {damaged.nbytes} bytes were taken for {nbytes}"

    def _assert_round_trip(self, data: Array, spec: TensorSpec, case: str) -> None:
        __tracebackhide__ = True
        codec = self.codec
        payload = codec.encode(data, spec)
        described = codec.encoded_spec(spec)
        assert payload.flags.c_contiguous, f"{case}: the payload is not C-contiguous"
        assert payload.dtype.name == described.carrier, f"{case}: payload of {payload.dtype}, announced {described}"
        assert payload.ndim == 1 if described.shape == (-1,) else payload.shape == described.shape, (
            f"{case}: payload of shape {payload.shape}, announced {described.shape}"
        )
        assert described.device == spec.device, f"{case}: announced on {described.device}"
        if codec.lossless and self.overhead is not None:
            most = data.nbytes + self.overhead
            assert payload.nbytes <= most, f"{case}: payload of {payload.nbytes} bytes, expected at most {most}"
        back = codec.decode(payload, spec)
        assert back.flags.c_contiguous
        if codec.lossless:
            assert_same_bits(back, data, case)
            return
        assert (back.dtype, back.shape) == (data.dtype, data.shape), case
        assert isinstance(codec, SupportsErrorBound)
        bound = codec.error_bound(borrowed(data), spec)
        assert bound.dtype == np.float64
        assert not np.isnan(bound).any()
        value, got = float_values(data, spec.dtype), float_values(back, spec.dtype)
        with np.errstate(invalid="ignore"):
            kept = (value == got) | (np.isnan(value) & np.isnan(got)) | (np.abs(value - got) <= bound)
        assert kept.all(), f"{case}: {value[~kept][:3]} came back as {got[~kept][:3]}, beyond the bound"


def _damaged(payload: Array, rng: np.random.Generator, number: int) -> list[Array]:
    """Return a payload cut, with more at its end, of other bytes, and with one altered: every fourth, from a number."""
    flat = as_bytes(payload)
    cuts = sorted({0, 1, 7, 15, 16, 17, flat.size // 2, flat.size - 1} & set(range(flat.size)))
    damaged = [flat[:cut] for cut in cuts]
    damaged += [np.concatenate([flat, np.zeros(extra, np.uint8)]) for extra in (1, 8, 65, 1000)]
    damaged += [rng.integers(0, 256, flat.size, np.uint8), np.zeros(flat.size, np.uint8)]
    places = {*range(min(flat.size, 64)), *rng.integers(0, max(flat.size, 1), 30).tolist()} & set(range(flat.size))
    for place in sorted(places)[number % 4 :: 4]:
        altered = flat.copy()
        altered[place] ^= rng.choice([1, 0x41, 0x80, 0xFF])
        damaged.append(altered)
    return [*damaged, flat.reshape(1, -1).copy(), flat.astype(np.float32)]
