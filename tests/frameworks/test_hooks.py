"""Pairs of hooks nest with one another and with those of others, belong to a thread, and go with their block."""

import pytest

from tensorstash.errors import BackendError
from tests.frameworks.copying import Log


@pytest.fixture
def hooks(backend):
    return lambda log: backend.hooks(log.pack, log.unpack)


@pytest.fixture
def foreign(framework):
    return lambda log: framework.foreign(log.pack, log.unpack)


def test_pairs_of_others_nest_both_ways(framework, hooks, foreign):
    logs = outermost, ours, inner, innermost = [Log() for _ in range(4)]
    outputs = []
    with foreign(outermost):
        with hooks(ours):
            with foreign(inner):
                outputs.append(framework.save_one())
                with hooks(innermost):
                    outputs.append(framework.save_one())
            outputs.append(framework.save_one())
        outputs.append(framework.save_one())
    framework.save_one()
    assert [log.packs for log in logs] == [1, 1, 1, 1]
    for output in outputs:
        framework.lab.backward(output.sum())
    assert [log.unpacks for log in logs] == [1, 1, 1, 1]


@pytest.mark.parametrize("is_foreign", [False, True])
def test_leaving_in_another_order_is_an_error_and_the_others_stay(framework, hooks, foreign, is_foreign):
    logs = outer, middle, inner = [Log() for _ in range(3)]
    scopes = [hooks(outer), *map(foreign if is_foreign else hooks, (middle, inner))]
    for scope in scopes:
        scope.__enter__()
    with pytest.raises(BackendError, match="another order"):
        scopes[0].__exit__(None, None, None)
    framework.save_one()
    for scope in scopes[:0:-1]:
        scope.__exit__(None, None, None)
        framework.save_one()
    assert [log.packs for log in logs] == [0, 1, 1]
    with pytest.raises(BackendError, match="no longer in force"):
        scopes[0].__exit__(None, None, None)


def test_ctrl_c_between_the_halves_of_other_hooks_arrives_as_such(framework, hooks, foreign):
    log, error = Log(), KeyboardInterrupt()
    scope, others = hooks(log), foreign(Log())
    scope.__enter__()
    others.__enter__()
    assert not scope.__exit__(KeyboardInterrupt, error, None)
    assert "another order" in "".join(error.__notes__)
    others.__exit__(None, None, None)
    framework.save_one()
    assert log.packs == 0
