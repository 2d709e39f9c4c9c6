from tensorstash.testing.backend_suite import BackendSuite
from tensorstash.testing.reference_lab import ReferenceLab


class TestReference(BackendSuite):
    lab = ReferenceLab()
