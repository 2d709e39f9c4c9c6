"""Blocks that are left whatever interrupts them, compiled and in Python."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tensorstash as ts
from tensorstash.host import native
from tensorstash.host.blocks import PythonBlock, guarded
from tensorstash.testing.labs import lab_of
from tests.processes import forked

BASES = [PythonBlock] if native.functions is None else [PythonBlock, native.functions.Block]


@pytest.fixture(params=BASES, ids=["Python", "compiled"][: len(BASES)])
def recorded(request):
    """A block that writes down what is called, and raises what it is told to, one after another."""

    class Recorded(request.param):
        def __init__(self, **errors):
            self.calls = []
            self.errors = errors

        def _call(self, name, *arguments):
            self.calls.append((name, *arguments))
            pending = self.errors.get(name, [])
            if pending:
                raise pending.pop(0)

        def enter(self):
            self._call("enter")
            return "entered"

        def leave(self, kind, error, trace):
            self._call("leave", kind)
            return kind is ZeroDivisionError

        def undo(self):
            self._call("undo")

        def finish(self, kind, error, trace):
            self._call("finish", kind)

    return Recorded


def test_what_entering_has_begun_is_undone_until_it_is(recorded):
    block = recorded(enter=[KeyboardInterrupt("first")], undo=[KeyboardInterrupt("second"), OSError("third")])
    with pytest.raises(KeyboardInterrupt, match="first"), block:
        pytest.fail("it was not entered")
    assert block.calls == [("enter",), ("undo",), ("undo",), ("undo",)]


def test_what_leaving_has_not_done_is_finished(recorded):
    block = recorded(leave=[KeyboardInterrupt("first")], finish=[KeyboardInterrupt("second")])
    with pytest.raises(KeyboardInterrupt, match="first"), block:
        pass
    assert block.calls == [("enter",), ("leave", None), ("finish", None), ("finish", None)]


def interrupted(framework, times):
    """Interrupt entering and leaving at random moments, and see that nothing is left of them; ends the process."""
    lab, stash, signals = lab_of(framework), ts.stash(ts.Quantize(8), framework=framework, min_bytes=0), []

    def interrupt(*_):
        signals.append(1)
        raise KeyboardInterrupt

    def entered_and_left(number):
        for _ in range(number):
            with stash:
                pass

    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = lambda args: None
    entered_and_left(100)
    started = time.perf_counter()
    entered_and_left(100)
    each = (time.perf_counter() - started) / 100
    leaf = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    for number in range(times):
        before, caught = len(signals), None
        try:
            signal.setitimer(signal.ITIMER_REAL, max(each * (1 + number % 97 / 97), 1e-6))
            while len(signals) == before:
                entered_and_left(1)
        except KeyboardInterrupt as error:
            caught = error
        # As long as the error is there, and its traceback with everything in it.
        seen = stash.stats().seen.tensors
        own = lab.tensor(leaf, requires_grad=True)
        lab.backward((own * own).tanh().sum())
        assert lab.gradient(own).any(), f"nothing is recorded after {number}"
        assert stash.stats().seen.tensors == seen, f"hooks are left after {number}"
        assert not stash._entered.scopes
        del caught


@pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers of POSIX")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork", "ignore:nothing was seen")
@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_no_interrupt_leaves_hooks_behind(framework):
    """At random moments of entering and leaving, which take some microseconds."""
    times = int(os.environ.get("TENSORSTASH_INTERRUPTS", "60"))
    assert forked(lambda: interrupted(framework, times)) == 0


def test_a_block_is_entered_and_left_and_what_its_body_raises_may_end_there(recorded):
    block = recorded()
    with block as found:
        assert found == "entered"
    assert block.calls == [("enter",), ("leave", None)]
    block.calls.clear()
    with block:
        1 / 0  # noqa: B018
    with pytest.raises(KeyError), block:
        raise KeyError
    assert block.calls == [("enter",), ("leave", ZeroDivisionError), ("enter",), ("leave", KeyError)]


def test_what_can_never_be_finished_is_given_up(recorded):
    block = recorded(leave=[OSError("first")])
    block.finish = lambda *raised: 1 / 0
    with pytest.raises(OSError, match="first"), block:
        pass


@pytest.mark.filterwarnings("ignore:nothing was seen:tensorstash.TensorStashWarning")  # nothing is saved
def test_threads_enter_one_stash_apart():
    stash = ts.stash(ts.Keep(), framework="reference")

    def depths(_):
        found = set()
        for _ in range(50):
            with stash, stash:
                found.add(len(stash._entered.scopes))
        return found

    with ThreadPoolExecutor(4) as pool:
        assert set().union(*pool.map(depths, range(4))) == {2}


@pytest.mark.usefixtures("either_way")
def test_what_a_guarded_function_raises_goes_to_the_handler_and_its_result_is_returned():
    raised = []

    def handler(error):
        raised.append(error)
        if isinstance(error, KeyError):
            raise error
        return "handled"

    def function(error):
        if error is not None:
            raise error
        return "made"

    call, interrupt = guarded(function, handler), KeyboardInterrupt()
    assert [call(None), call(interrupt)] == ["made", "handled"]
    assert raised == [interrupt]
    assert interrupt.__traceback__ is not None
    with pytest.raises(KeyError):
        call(KeyError())
