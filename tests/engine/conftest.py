import gc

import pytest


@pytest.fixture
def no_gc():
    """Only reference counting frees."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
