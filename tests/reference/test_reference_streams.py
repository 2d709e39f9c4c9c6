"""Streams of the simulated accelerators: order where there is one, any order where there is none, memory used again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from asynchronous import asynchronous

import tensorstash.reference as ref
from tensorstash.reference.storage import streams
from tensorstash.reference.storage.streams import Stream, current_stream, use_stream


class Lazy:
    """Nothing is done before somebody waits for it."""

    def pauses(self) -> bool:
        return True

    def pick(self, ready: list[Stream]) -> Stream:
        return ready[0]


@pytest.fixture
def lazy() -> Iterator[None]:
    with asynchronous(Lazy()):
        yield


def test_work_is_done_when_it_is_submitted_unless_a_schedule_is_in_force() -> None:
    done: list[int] = []
    stream = Stream("sim:0")
    stream.submit(lambda: done.append(1))
    assert done == [1]
    assert stream.record().query()
    with asynchronous(Lazy()):
        stream.submit(lambda: done.append(2))
        assert done == [1]
        assert not stream.record().query()
    assert done == [1, 2]


def test_streams_keep_their_order_and_wait_for_events(lazy: None) -> None:
    done: list[str] = []
    first, second = Stream("sim:0"), Stream("sim:0")
    second.submit(lambda: done.append("b"))
    first.submit(lambda: done.append("a"))
    second.wait_event(first.record())
    second.submit(lambda: done.append("c"))
    first.submit(lambda: done.append("d"))
    second.synchronize()
    assert done.index("a") < done.index("c")
    assert done.index("b") < done.index("c")
    assert set(done) <= {"a", "b", "c", "d"}


def test_a_finalizer_that_waits_for_the_device_does_not_run_in_the_middle_of_its_work(lazy: None) -> None:
    class Waits:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            side.synchronize()

    done: list[str] = []
    stream, side = Stream("sim:0"), Stream("sim:0")

    def work() -> None:
        done.append("begins")
        assert [[] for _ in range(20_000)], "containers, which make the interpreter collect garbage"
        done.append("ends")

    gc.collect()
    stream.submit(work)
    side.submit(lambda: done.append("beside"))
    Waits()
    stream.synchronize()
    assert done[done.index("begins") + 1] == "ends"


def test_freed_memory_is_used_again_at_once_and_overwritten_in_the_order_of_its_own_stream(lazy: None) -> None:
    x = ref.full((64,), 7.0, device="sim:0")
    window, address = x.carriers(), x.data_ptr()
    side, seen = Stream("sim:0"), np.zeros(64, np.float32)
    side.submit(lambda: np.copyto(seen, window))
    del x
    y = ref.full((64,), 8.0, device="sim:0")
    assert y.data_ptr() == address
    current_stream("sim:0").synchronize()
    side.synchronize()
    assert (seen == 8.0).all()  # nothing had ordered the copy before the next use
    z = ref.full((64,), 9.0, device="sim:0")
    with use_stream(side):
        del z
        other = ref.full((64,), 10.0, device="sim:0")
    assert other.data_ptr() != address  # memory goes back to the stream it was allocated for


def test_freed_memory_waits_for_other_streams_that_were_said_to_use_it(lazy: None) -> None:
    x = ref.full((64,), 7.0, device="sim:0")
    address, window = x.data_ptr(), x.carriers()
    side, seen = Stream("sim:0"), np.zeros(64, np.float32)
    side.wait_event(current_stream("sim:0").record())
    side.submit(lambda: np.copyto(seen, window))
    streams.driver().use_in(x.storage, side)
    del x
    assert ref.full((64,), 8.0, device="sim:0").data_ptr() != address
    side.synchronize()
    assert (seen == 7.0).all()
    fresh = [ref.full((64,), 8.0, device="sim:0") for _ in range(2)]
    assert address in [tensor.data_ptr() for tensor in fresh]


def test_the_current_stream_is_that_of_the_thread() -> None:
    side = Stream("sim:0")
    found: list[Stream] = []
    with use_stream(side):
        assert current_stream("sim:0") is side
        thread = threading.Thread(target=lambda: found.append(current_stream("sim:0")))
        thread.start()
        thread.join()
        assert current_stream("sim:1") is streams.default_stream("sim:1")
    assert found == [streams.default_stream("sim:0")]
    assert current_stream("sim:0") is streams.default_stream("sim:0")
