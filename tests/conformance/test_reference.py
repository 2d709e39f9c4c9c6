import pytest

from tensorstash import native
from tensorstash.engine.limits import Limits
from tensorstash.testing import BackendSuite
from tensorstash.testing.reference_lab import ReferenceLab


class TestReference(BackendSuite):
    lab = ReferenceLab()


class TestReferenceWithoutWorkers(BackendSuite):
    lab = ReferenceLab()
    limits = Limits(in_flight=0, ahead=0)


class TestReferenceWithNothingCompiled(BackendSuite):
    lab = ReferenceLab()

    @pytest.fixture(autouse=True)
    def _nothing_is_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native, "functions", None)
