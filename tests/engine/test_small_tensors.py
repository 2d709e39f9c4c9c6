"""Sizes below which tensors stay where they are."""

import pytest

import tensorstash as ts
import tensorstash.reference as ref

KIB = 2**10


def stashed_sizes(policy: str, device: str, sizes: list[int], **settings: int) -> list[int]:
    """Return those of the sizes in bytes whose tensors leave."""
    found = []
    for nbytes in sizes:
        x = ref.zeros((nbytes // 4,), device=device, requires_grad=True)
        with ts.stash(policy, framework="reference", **settings) as session:
            y = x.exp().exp()
        found += [nbytes] if session.stats().stashed.tensors else []
        del y
    return found


@pytest.mark.parametrize(
    ("policy", "device", "least"),
    [("compress", "cpu", 64 * KIB), ("disk_spill", "cpu", 256 * KIB), ("cpu_offload", "sim:0", 1024 * KIB)],
)
def test_what_costs_more_to_move_stays_up_to_a_larger_size(policy: str, device: str, least: int) -> None:
    sizes = [least - 4, least]
    assert stashed_sizes(policy, device, sizes) == [least]
    assert stashed_sizes(policy, device, sizes, min_bytes=0) == sizes


def test_kernels_that_leave_their_payload_on_the_device_have_the_size_of_memory() -> None:
    assert stashed_sizes("quantize:bits=8", "sim:0", [64 * KIB - 4, 64 * KIB]) == [64 * KIB]
