import pytest

from tensorstash.policies.limits import Limits
from tensorstash.testing import BackendSuite
from tensorstash.testing.labs.reference import ReferenceLab


class TestReference(BackendSuite):
    lab = ReferenceLab()


@pytest.mark.usefixtures("nothing_is_compiled")
class TestReferenceAtOnceWithNothingCompiled(BackendSuite):
    lab = ReferenceLab()
    limits = Limits(in_flight=0, ahead=0)
