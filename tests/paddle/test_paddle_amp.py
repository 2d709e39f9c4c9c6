"""Autocast does not reach what hooks do. CPU builds have none, so its state is what is looked at."""

from paddle.base import core

from tensorstash.backends.paddle.repairs.surroundings import autocast_off


def test_a_hook_runs_with_autocast_off_and_it_is_on_again_after_errors():
    amp = core._get_amp_attrs()
    before, on = amp._amp_level, core.AmpLevel.O2
    seen = []

    def hook(value):
        seen.append(core._get_amp_attrs()._amp_level)
        return 1 / value

    try:
        amp._amp_level = on
        assert autocast_off(hook)(2) == 0.5
        try:
            autocast_off(hook)(0)
        except ZeroDivisionError:
            seen.append(core._get_amp_attrs()._amp_level)
    finally:
        amp._amp_level = before
    assert seen == [core.AmpLevel.O0, core.AmpLevel.O0, on]
