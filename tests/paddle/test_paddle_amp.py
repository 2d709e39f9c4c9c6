"""Autocast does not reach what hooks do. CPU builds have none, so its state is looked at."""

import pytest
from paddle.base import core

from tensorstash.backends.paddle.hooks import _without_autocast


def level(new=None):
    """Return the level of autocast, which is ``new`` if that is given."""
    amp = core._get_amp_attrs()
    if new is not None:
        amp._amp_level = new
    return amp._amp_level


def test_a_hook_runs_with_autocast_off_and_it_is_on_again_after_errors(monkeypatch):
    monkeypatch.setattr(core, "is_compiled_with_cuda", lambda: True)
    before, on = level(), level(core.AmpLevel.O2)
    seen = []
    hook = _without_autocast(lambda value: seen.append(level()) or 1 / value)
    try:
        assert hook(2) == 0.5
        with pytest.raises(ZeroDivisionError):
            hook(0)
        seen.append(level())
    finally:
        level(before)
    assert seen == [core.AmpLevel.O0, core.AmpLevel.O0, on]
