import pytest

from tensorstash.policies.limits import Limits
from tensorstash.testing import BackendSuite
from tensorstash.testing.labs.reference import ReferenceLab
from tests.samples import IS_LONG


class HostAlone(ReferenceLab):
    """In a sample, the simulated accelerator is the one that does its work whenever it likes."""

    devices = ReferenceLab.devices if IS_LONG else ("cpu",)


class TestReference(BackendSuite):
    lab = HostAlone()


@pytest.mark.usefixtures("nothing_is_compiled")
class TestReferenceAtOnceWithNothingCompiled(BackendSuite):
    lab = HostAlone()
    limits = Limits(in_flight=0, ahead=0)
