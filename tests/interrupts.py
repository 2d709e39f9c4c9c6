"""Interrupts at a place of choice, as a signal handler raises them."""

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any


def interrupt(call: Callable[[], object], file: str, count: int) -> bool:
    """Call something, and raise KeyboardInterrupt before the ``count``-th line of a file that runs on this thread.

    What is raised in a finalizer is lost, as it is when a signal comes there.

    Args:
        call: what to call.
        file: the end of the file's name.
        count: from 1 on.

    Returns:
        Whether there were as many lines.
    """
    lines = 0

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if event == "line" and frame.f_lasti not in _ends_of_with(frame.f_code):
            lines += 1
            if lines == count:
                sys.settrace(None)
                raise KeyboardInterrupt
        return on_line

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        return on_line if frame.f_code.co_filename.endswith(file) else None

    unraisable, sys.unraisablehook = sys.unraisablehook, lambda args: None
    sys.settrace(on_call)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
        sys.unraisablehook = unraisable
    return lines >= count


@cache
def _ends_of_with(code: CodeType) -> frozenset[int]:
    """Return where the end of a ``with`` block begins: the interpreter looks for no signal from there on.

    It does so after calls, at the start of functions, and where loops go back; the context manager of a lock is C.
    """
    ends, begin, nones = set(), 0, 0
    for step in dis.get_instructions(code):
        if step.starts_line not in (None, False):
            begin, nones = step.offset, 0
        nones = nones + 1 if step.opname == "LOAD_CONST" and step.argval is None else 0
        if nones == 3:
            ends.add(begin)
    return frozenset(ends)
