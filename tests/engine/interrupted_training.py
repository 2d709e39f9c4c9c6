"""A program that trains until it is interrupted, and says after each interrupt whether all is as it was before."""

import gc
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import numpy as np
from inside import ahead, in_flight, session_of

import tensorstash as ts
from tensorstash.host.arrays import Array
from tensorstash.policies import StoreIn
from tensorstash.stores import Memory
from tensorstash.testing.lab import Lab
from tensorstash.testing.layouts import floats

SHAPE = (64, 256)
NBYTES = 4 * SHAPE[0] * SHAPE[1]
LIMITS = ts.Limits(in_flight=3 * NBYTES, ahead=4 * NBYTES, timeout_s=30)
"""Tight, so that forward waits for bytes, and backward reads ahead as far as it may."""

SHARED = "disk, shared records"
ROOMY = ts.Limits(in_flight=16 * NBYTES, ahead=16 * NBYTES, timeout_s=30)  # so that payloads share records
POLICIES: dict[str, Callable[[str], ts.HookPolicy]] = {
    "memory": lambda directory: StoreIn(Memory(budget=64 * NBYTES)),
    "disk": lambda directory: ts.DiskSpill(directory, budget=64 * NBYTES),
    SHARED: lambda directory: ts.DiskSpill(directory, budget=64 * NBYTES),
    "quantize": lambda directory: ts.Quantize(8),
    "compressed disk": lambda directory: ts.Compress(min_ratio=1) | ts.DiskSpill(directory),
}


class Signals:
    """Interrupts, as the interpreter's own handler makes them, and counted: one in a finalizer is lost."""

    def __init__(self) -> None:
        self.count = 0
        signal.signal(signal.SIGINT, self)

    def __call__(self, *_: object) -> None:
        self.count += 1
        raise KeyboardInterrupt


def step(lab: Lab, leaf: Any, stash: ts.Stash | None) -> Array:
    """Return the gradient of a program whose saved tensors are used once, twice, and read in and out of order."""
    own = lab.tensor(leaf, requires_grad=True)
    with stash or nullcontext():
        x = own * 1.0
        for _ in range(4):
            x = x.tanh()
            x = x * x.tanh()
        loss = x.sum()
        del x
    lab.backward(loss)
    return lab.gradient(own)


def left(stash: ts.Stash) -> list[str]:
    """Return what is still held."""
    session = session_of(stash)
    held = {
        "in flight": in_flight(session).used,
        "read ahead": ahead(session).used,
        "counted as live": stash.stats().live.nbytes,
    }
    held |= {f"in {config}": store.used_bytes for config, store in session.places.stores.items()}
    return [f"{nbytes} bytes are left {place}" for place, nbytes in held.items() if nbytes]


def faults(stash: ts.Stash, lab: Lab, leaf: Array, expected: Array) -> list[str]:
    """Return what is not as it was."""
    seen = stash.stats().seen.tensors
    if not np.array_equal(step(lab, leaf, None), PLAIN):
        return ["a step without hooks is wrong"]
    found = ["hooks are left"] if stash.stats().seen.tensors != seen else []
    gc.collect()
    stash.drain()
    # What a caller has been asked for, and nobody waits for any more, comes to its end on its own.
    pause, deadline = threading.Event(), monotonic() + 20
    while left(stash) and monotonic() < deadline:
        pause.wait(0.01)
    found += left(stash)
    after = [step(lab, leaf, stash) for _ in range(3)]
    if not all(is_right(one, expected) for one in after) or not np.array_equal(after[-1], expected):
        found.append("the next step is wrong")
    return found


def is_right(got: Array, expected: Array) -> bool:
    """Whether a gradient is the expected one, or as near to the one without hooks.

    A lossy policy keeps exactly what it has yet to find a reader of, as in its first step.
    """
    error = np.abs(expected - PLAIN).max()
    return np.array_equal(got, expected) or (error > 0 and np.abs(got - PLAIN).max() <= 2 * error)


def train(lab: Lab, policy: str, directory: str, parent: Connection) -> None:
    """Say when this process may be interrupted, and then "whole" or what is not, for as long as the parent says so."""
    global PLAIN
    signals, leaf = Signals(), floats(*SHAPE)
    sys.unraisablehook = sys.__unraisablehook__  # that of pytest holds what an interrupted finalizer has raised
    warnings.simplefilter("ignore")
    gc.collect()
    gc.freeze()

    def stash() -> ts.Stash:
        limits = ROOMY if policy == SHARED else LIMITS
        return ts.stash(POLICIES[policy](directory), framework=lab.name, min_bytes=0, limits=limits)

    PLAIN = step(lab, leaf, None)
    under_test = stash()
    expected = [step(lab, leaf, under_test) for _ in range(3)][-1]
    for number in count():
        if not parent.recv():
            return
        if number % 5 == 4:
            under_test = stash()  # whose threads have yet to start
        before, wrong = signals.count, 0
        try:
            parent.send("may be interrupted")
            while signals.count == before:
                wrong += not is_right(step(lab, leaf, under_test), expected)
        except KeyboardInterrupt:
            pass
        found = faults(under_test, lab, leaf, expected)
        found += ["an interrupt was lost and the step is wrong"] * bool(wrong)
        parent.send("; ".join(found) or "whole")


PLAIN: Array
