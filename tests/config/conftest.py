"""Property tests here have no deadline: nothing is asserted about time. ``--hypothesis-profile long`` tries more."""

import pytest
from hypothesis import settings

from tensorstash import registry

settings.register_profile("config", settings.get_profile("default"), deadline=None, max_examples=40)
settings.register_profile("long", settings.get_profile("config"), max_examples=1200)
settings.load_profile("config")


@pytest.fixture
def rows(monkeypatch):
    """Return the registered names, by group; those that a test registers are forgotten after it."""
    table = registry._TABLE
    for group in table:
        registry.names(group)
        monkeypatch.setitem(table, group, dict(table[group]))
    return table
