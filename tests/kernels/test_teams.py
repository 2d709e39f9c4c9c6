"""What is shared out among the framework's threads is the same to the bit as on one thread, whoever asks."""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tensorstash.codecs import Affine, AsType, PackBits, TwoValued
from tensorstash.host import native
from tensorstash.host.arrays import Array, as_bytes, borrowed
from tensorstash.kernels.team import Team, openmp_function
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec, contiguous_strides

torch = pytest.importorskip("torch")
LIBRARY = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
pytestmark = [
    pytest.mark.skipif(native.load() is None, reason="nothing is compiled here"),
    pytest.mark.skipif(sys.platform != "linux", reason="no OpenMP for what GCC compiles"),
]

SHAPES = [(1500, 256), (150001,), (3, 70007), (9, 127, 129), (5, 1)]
CODECS: tuple[Codec, ...] = (
    Affine(),
    Affine(bits=4, group_size=100),
    Affine(bits=2, group_size=3, rounding="stochastic", seed=7),
    AsType(),
    AsType(dtype="float16"),
    TwoValued(),
)


def team(threads: int) -> Team:
    found = Team(lambda: threads, LIBRARY)
    assert found.helps == (threads > 1), "PyTorch computes with OpenMP here"
    return found


def random_floats(shape: tuple[int, ...], codec: Codec) -> Array:
    rng = np.random.default_rng(7)
    values = rng.standard_normal(shape, np.float32)
    if isinstance(codec, TwoValued):
        return np.where(values > 0.5, np.float32(1.25), np.float32(0))
    values.reshape(-1)[::1000] = [np.inf, -np.inf, np.nan, 1e-42, -0.0][values.size % 5]
    return values


def both_ways(codec: Codec, data: Array, spec: TensorSpec) -> tuple[bytes, bytes]:
    payload = codec.encode(borrowed(data), spec)
    return as_bytes(payload).tobytes(), as_bytes(codec.decode(borrowed(payload), spec)).tobytes()


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_number_of_threads_gives_the_same_bits(codec: Codec, shape: tuple[int, ...]) -> None:
    data = random_floats(shape, codec)
    spec = TensorSpec(shape, contiguous_strides(shape), 0, "float32", "cpu")
    alone = both_ways(codec, data, spec)
    for threads in (1, 2, 5):
        with team(threads):
            assert both_ways(codec, data, spec) == alone, threads


def test_masks_are_the_same_bits_and_refused_alike() -> None:
    flags = np.random.default_rng(1).random(1_000_003) < 0.1
    spec = TensorSpec(flags.shape, (1,), 0, "bool", "cpu")
    odd = flags.view(np.uint8).copy()
    odd[900_000] = 2
    thrice = random_floats((600_000,), TwoValued())
    thrice[-1] = 3
    floats = TensorSpec(thrice.shape, (1,), 0, "float32", "cpu")
    alone = both_ways(PackBits(), flags, spec)
    for threads in (1, 2, 5):
        with team(threads):
            assert both_ways(PackBits(), flags, spec) == alone
            assert PackBits().packed(odd.view(bool), spec) is None
            assert TwoValued().packed(thrice, floats) is None


@contextmanager
def flushing_denormals() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def test_subnormals_do_not_depend_on_the_mode_of_a_thread() -> None:
    halves = np.arange(1, 2**17, dtype=np.uint32).astype(np.uint16)
    spec = TensorSpec(halves.shape, (1,), 0, "float32", "cpu")
    codec = AsType(dtype="float16")
    alone = as_bytes(codec.decode(borrowed(halves.view(np.float16)), spec)).tobytes()
    with flushing_denormals(), team(2):
        assert as_bytes(codec.decode(borrowed(halves.view(np.float16)), spec)).tobytes() == alone


def encode_in_child(answers: "multiprocessing.Queue[bytes]") -> None:
    answers.put(both_ways(Affine(), *_case())[0])


def _case() -> tuple[Array, TensorSpec]:
    data = random_floats((1000, 256), Affine())
    return data, TensorSpec(data.shape, (256, 1), 0, "float32", "cpu")


def test_a_child_that_is_forked_inside_works_alone() -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    alone = both_ways(Affine(), *_case())[0]
    with team(2):
        assert both_ways(Affine(), *_case())[0] == alone  # the threads have been started
        child = context.Process(target=encode_in_child, args=(answers,))
        child.start()
        assert answers.get(timeout=60) == alone
        child.join(60)
    assert child.exitcode == 0


def test_a_library_without_openmp_has_no_team() -> None:
    assert openmp_function("/nowhere/libnothing.so", "GOMP_parallel") is None
    assert openmp_function(None, "GOMP_parallel") is None
    assert not Team(lambda: 8, "/nowhere/libnothing.so").helps
