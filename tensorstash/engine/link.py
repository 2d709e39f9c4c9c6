"""The link between a device and the host: its rate, and the advice where it sets the pace."""

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

from tensorstash.abilities import Streams
from tensorstash.errors import is_out_of_memory
from tensorstash.sizes import format_bytes
from tensorstash.spec import TensorSpec

PROBE_BYTES = 64 * 2**20
"""Size of the copy that measures a link, unless a step sends less."""
_WORTH_BYTES = 64 * 2**20


def bytes_per_s(streams: Streams[Any], device: str, nbytes: int) -> float:
    """Measure how many bytes a second a device copies to the host, after all its work; 0 without memory for them."""
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
    side.wait_event(streams.recorded(compute))
    streams.recorded(side).synchronize()
    begin = perf_counter()
    streams.copy_out([source], [pages], side)
    streams.recorded(side).synchronize()
    return nbytes / (perf_counter() - begin)


def pace(streams: Streams[Any], sent: Mapping[str, int], say: Callable[[str], object]) -> Iterator[None]:
    """Say once where copies out take longer than the forward pass, a third of a step, so that computation waits.

    It is advanced where a step ends, and measures the third, since the first ones allocate. Bytes sent are by device.
    """
    yield
    before, began = dict(sent), perf_counter()
    yield
    step_s = perf_counter() - began
    for device, total in dict(sent).items():
        nbytes = total - before.get(device, 0)
        rate = 0.0 if nbytes < _WORTH_BYTES else bytes_per_s(streams, device, min(nbytes, PROBE_BYTES))
        if rate and nbytes / rate > step_s / 3:
            say(
                f"the link of {device} sets the pace: a step of {step_s:.2f} s sends {format_bytes(nbytes)} at "
                f"{format_bytes(int(rate))}/s, which takes longer than its forward pass. Let fewer bytes leave: "
                "'recompute | cpu_offload', or wrap(model, 'checkpoint | cpu_offload'), or a budget"
            )
