import pytest

from tensorstash.policies.limits import Limits
from tensorstash.testing import BackendSuite
from tensorstash.testing.labs.reference import ReferenceLab
from tests.samples import IS_LONG


class TestReference(BackendSuite):
    lab = ReferenceLab()


class HostAlone(ReferenceLab):
    """In a sample, NumPy in place of what is compiled is for the host."""

    devices = ReferenceLab.devices if IS_LONG else ("cpu",)


@pytest.mark.usefixtures("nothing_is_compiled")
class TestReferenceAtOnceWithNothingCompiled(BackendSuite):
    lab = HostAlone()
    limits = Limits(in_flight=0, ahead=0)
