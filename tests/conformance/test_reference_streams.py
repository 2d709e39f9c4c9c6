"""The contract on a simulated accelerator that does its work whenever it likes."""

from collections.abc import Iterator
from zlib import crc32

import pytest
from asynchronous import Shuffled, asynchronous

from tensorstash.reference import Tensor, streams
from tensorstash.testing import BackendSuite
from tensorstash.testing.labs.reference import ReferenceLab
from tests.samples import IS_LONG


class BehindTheProgram(ReferenceLab):
    """The simulated accelerator, where nothing is done at once."""

    devices = ("sim:0",)
    dtypes = ReferenceLab.dtypes if IS_LONG else ("bool", "int16", "float32", "int64", "complex128")  # one of each size

    def write_unversioned(self, tensor: Tensor, value: float) -> None:
        streams.current_stream(tensor.device).synchronize()
        super().write_unversioned(tensor, value)


class TestReferenceBehindTheProgram(BackendSuite):
    lab = BehindTheProgram()

    @pytest.fixture(autouse=True)
    def _schedule(self, request: pytest.FixtureRequest) -> Iterator[None]:
        seed = crc32(request.node.name.encode())
        with asynchronous(Shuffled(seed, eagerness=(seed % 10) / 10)):
            yield
