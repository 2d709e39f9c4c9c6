"""The link of a device: copies out, back and both at once, and page-locking of host memory.

python -m benchmarks torch_link --device cuda
"""

import argparse
from functools import partial
from time import perf_counter

import torch

from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import interleave, seconds
from benchmarks.harness.torch_accelerator import accelerator_named
from tensorstash.backends.torch.streams import DeviceStreams

COLUMNS = columns("MiB:> | out GB/s:.2f | back GB/s:.2f | both GB/s:.2f | page-locking s/GiB:.2f")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="of any accelerator of PyTorch")
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 8, 64, 512])


def main(options: argparse.Namespace, report: Report) -> None:
    accelerator = accelerator_named(options.device)
    report.begin(COLUMNS, "", accelerator.name)
    streams = DeviceStreams()
    for mib in options.mib:
        nbytes = mib << 20
        started = perf_counter()
        pages = [torch.from_numpy(streams.locked_pages(nbytes)) for _ in range(2)]
        locking = (perf_counter() - started) / (2 * nbytes / 2**30)
        there = [torch.empty(nbytes, dtype=torch.uint8, device=accelerator.device) for _ in range(2)]
        sides = [torch.Stream(device=accelerator.device) for _ in range(2)]

        def copy(ways: tuple[int, ...], pages=pages, there=there, sides=sides) -> float:  # type: ignore[no-untyped-def]
            def run() -> None:
                for way in ways:
                    source, target = (there[way], pages[way]) if way == 0 else (pages[way], there[way])
                    with sides[way]:
                        target.copy_(source, non_blocking=True)
                accelerator.synchronize()

            return seconds(run)

        times = interleave({ways: partial(copy, ways) for ways in ((0,), (1,), (0, 1))}, 6)
        rates = [len(ways) * nbytes / min(some[1:]) / 1e9 for ways, some in times.items()]
        report.row([str(mib), *rates, locking])
