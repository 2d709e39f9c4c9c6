"""The way of one saved tensor through the package: rooms, climbs, re-entries.

Run as ``python -m tests.walk [--policy LINE] [--steps] [torch paddle reference]``. A tensor is packed, captured by a
worker and unpacked as in a second step, when the plan for its kind is made; each call from one module into another is
noted. A *room* is a module that is entered. A *climb* is a call from a module of a lower rank to one of a higher, as
``tests/test_house.py`` ranks them. A *re-entry* is each time that a room is entered after the first.
"""

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

import numpy as np

import tensorstash
import tests.test_house as house
from tensorstash import api
from tensorstash.testing.lab import Lab
from tensorstash.testing.labs import lab_of

MODULE_AT = {str(path): module for module, path in house.MODULES.items()}
OUTSIDE = ""

Step = tuple[str, str, str]
"""Who calls, who is called, and the name of the function."""


@cache
def module_of(filename: str) -> str:
    """Return the module of the package that a file is; the empty name for all others."""
    return MODULE_AT.get(filename, OUTSIDE)


class Walk:
    """Notes, while it is on, each call from one module of the package into another, on all threads."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.is_on = False

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Take an event of :func:`sys.setprofile`."""
        if event != "call" or not self.is_on:
            return
        callee = module_of(frame.f_code.co_filename)
        if callee == OUTSIDE or house.folder(callee) == "reference":
            return
        before = frame.f_back
        while before is not None and (
            module_of(before.f_code.co_filename) == OUTSIDE or before.f_code.co_name == "<module>"
        ):
            before = before.f_back
        caller = OUTSIDE if before is None else module_of(before.f_code.co_filename)
        if caller != callee:
            self.steps.append((caller, callee, frame.f_code.co_name))

    def of(self, *actions: Callable[[], object]) -> list[Step]:
        """Return the steps of some actions and of what they have others do."""
        self.steps = []
        for action in actions:
            sys.setprofile(self.profile)
            self.is_on = True
            try:
                action()
            finally:
                sys.setprofile(None)
        self.is_on = False
        return self.steps


def climbs(steps: list[Step]) -> list[Step]:
    """Return the steps from a lower rank to a higher one."""
    return [(caller, callee, name) for caller, callee, name in steps if caller and _rank(caller) < _rank(callee)]


def _rank(module: str) -> int:
    return 0 if house.folder(module) == "reference" else house.rank(module)


def walks(lab: Lab, line: str) -> dict[str, list[Step]]:
    """Return the steps of one tensor of the second training step into its slot, and back."""
    walk = Walk()
    threading.setprofile(walk.profile)
    found: dict[str, list[Step]] = {}
    with api.stash(tensorstash.parse(line), framework=lab.name, min_bytes=0) as session:
        for _ in range(3):
            leaf = lab.tensor(np.ones((2**9, 2**9), np.float32), requires_grad=True)
            others = lab.mul(leaf, 3.0)
            session._session.pack(others)  # what the first tensor of a step sets going is no part of the walk
            walk_idle(session)
            saved = [lab.mul(leaf, 2.0)]  # that the graph made
            handles: list[Any] = []
            start = session._session._start_all_freed  # what a scope does at its end
            found["pack to slot"] = walk.of(
                lambda saved=saved, handles=handles: handles.append(session._session.pack(saved.pop())),
                start,
                lambda: walk_idle(session),
            )
            tensors: list[Any] = []
            found["back"] = walk.of(
                lambda handles=handles, tensors=tensors: tensors.append(session._session.unpack(handles.pop()))
            )
            del leaf, others, tensors
    threading.setprofile(None)  # type: ignore[arg-type]
    return found


def walk_idle(session: Any) -> None:
    """Wait for the workers, unobserved."""
    sys.setprofile(None)
    session._session._sender.writers.submit(_nothing).result(60)


def _nothing() -> None:
    return None


def report(name: str, steps: list[Step]) -> str:
    """Return a row for all rooms, and one for those of the engine."""
    engine = [step for step in steps if house.folder(step[1]) == "engine"]
    return "\n".join(_row(label, some) for label, some in ((name, steps), (f"{name}, engine only", engine)))


def _row(label: str, steps: list[Step]) -> str:
    entries = Counter(callee for _, callee, _ in steps)
    again = sum(count - 1 for count in entries.values())
    most = ", ".join(f"{room} {count}" for room, count in entries.most_common(3))
    return f"| {label} | {len(entries)} | {len(climbs(steps))} | {again} | {most} |"


def main() -> None:
    """Print a table, and each step where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frameworks", nargs="*", default=["torch", "paddle", "reference"])
    parser.add_argument("--policy", default="zstd", help="one line, as in tensorstash.parse")
    parser.add_argument("--steps", action="store_true", help="print each step, too")
    options = parser.parse_args()
    rows = ["| trip | rooms | climbs | re-entries | most entered |", "|---|---|---|---|---|"]
    for framework in options.frameworks:
        for trip, steps in walks(lab_of(framework), options.policy).items():
            rows.append(report(f"{framework}, {trip}", steps))
            if options.steps:
                print(f"{framework}, {trip}:")
                for step in steps:
                    mark = " (climb)" if climbs([step]) else ""
                    print(f"  {step[0] or 'outside'} -> {step[1]}: {step[2]}{mark}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
