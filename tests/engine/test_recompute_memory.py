"""What is made again is really gone: resident memory of a fresh process."""

from pathlib import Path

import pytest

from tests.processes import output_of

WORKER = Path(__file__).with_name("recompute_memory.py")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell what is resident")
@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_resident_memory_falls_by_what_is_made_again(framework):
    kept, recomputed, logical = map(int, output_of(WORKER, framework).split()[-3:])
    assert logical > 20 * 2**20
    assert kept - recomputed > 0.7 * logical
