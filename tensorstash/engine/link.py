"""The link between a device and the host."""

from time import perf_counter
from typing import Any

from tensorstash.abilities import Streams
from tensorstash.errors import is_out_of_memory
from tensorstash.spec import TensorSpec


def bytes_per_s(streams: Streams[Any], device: str, nbytes: int) -> float:
    """Measure how many bytes a second a device copies to the host; 0 if there is no memory for the copy.

    It waits for all work of the device, and for the copy.

    Args:
        streams: of the framework.
        device: with streams.
        nbytes: size of the copy.
    """
    pages = streams.pinned.take(nbytes)
    compute, side = streams.current_stream(device), streams.side_stream(device, "out")
    if pages is None or compute is None:
        return 0.0
    try:
        source = streams.empty(TensorSpec((nbytes,), (1,), 0, "uint8", device))
    except Exception as error:
        if is_out_of_memory(error):
            return 0.0
        raise
    side.wait(compute.record())
    side.record().synchronize()
    begin = perf_counter()
    streams.copy_out(source, pages, side)
    side.record().synchronize()
    return nbytes / (perf_counter() - begin)
