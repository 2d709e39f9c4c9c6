import os

import hypothesis
import pytest

from tensorstash.testing.harness import reference_counting_only
from tests.samples import IS_LONG


@pytest.fixture
def no_gc():
    """Only reference counting frees."""
    with reference_counting_only():
        yield


hypothesis.settings.register_profile(
    "default",
    max_examples=10 if IS_LONG else 7,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.register_profile("long", parent=hypothesis.settings.get_profile("default"), max_examples=1200)
hypothesis.settings.register_profile("thorough", parent=hypothesis.settings.get_profile("default"), max_examples=10_000)
hypothesis.settings.load_profile("default")
