"""Streams of the simulated accelerators; that they keep or lose their order is seen by the faults of interleavings."""

from __future__ import annotations

import gc
import threading

from asynchronous import asynchronous

from tensorstash.reference.storage import streams
from tensorstash.reference.storage.streams import Stream, current_stream, use_stream


class Lazy:
    """Nothing is done before somebody waits for it."""

    def pauses(self) -> bool:
        return True

    def pick(self, ready: list[Stream]) -> Stream:
        return ready[0]


def test_a_finalizer_that_waits_for_the_device_does_not_run_in_the_middle_of_its_work() -> None:
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
    with asynchronous(Lazy()):
        stream.submit(work)
        side.submit(lambda: done.append("beside"))
        Waits()
        stream.synchronize()
    assert done[done.index("begins") + 1] == "ends"


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
