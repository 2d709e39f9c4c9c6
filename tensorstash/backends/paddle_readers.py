"""Which operator a tensor is being saved for, and how exactly its backward has to get the tensor back.

Paddle tells a hook nothing about who saves, and its nodes do not say what they hold. But ``pack`` is called from inside
the C++ function of the operator, whose name the dynamic linker knows: so the return addresses on the stack are looked
up, once each. Nothing in Paddle is replaced, and no way of calling an operator escapes: not a method of ``Tensor``, not
an alias that a program took before, not what C++ calls by itself.
"""

import ctypes
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from tensorstash.backends.paddle_reader_needs import NEEDS

Need = Literal["exact", "relative", "any"]
"""``"exact"``: backward compares what it gets. ``"relative"``: it divides by it, so that each element must be right in
proportion to itself, as floating-point numbers are. ``"any"``: an error that is small beside the largest will do."""

PYLAYER = "PyLayer"
"""The name of a reader that is a user's ``PyLayer``."""

_NEAR, _FAR = 24, 96
"""How many frames are looked at; the second where the first were not enough."""


def reader() -> str | None:
    """Return the name of the graph node that the tensor being packed is saved for, on this thread.

    As ``Tensor.grad_fn.name()`` gives it: ``"MaxGradNode"``. To be called inside ``pack``; about 6 microseconds.

    Returns:
        The name, :data:`PYLAYER`, or None if it cannot be told: outside of operators, for operators that are not
        Paddle's own, or on a system that cannot look up its stack.
    """
    stack = _stack()
    if stack is None:
        return None
    for depth in (_NEAR, _FAR):
        addresses = stack.addresses(depth)
        for address in addresses:
            name = _NAMED.get(address)
            if name is None:
                name = _NAMED[address] = _node_name(stack.symbol(address))
            if name:
                return name
        if len(addresses) < depth:
            return None
    return None


def reader_need(*, needs: Mapping[str, Need] = NEEDS) -> Need:
    """Return how exactly the reader of the tensor being packed has to get it back; see :func:`reader`.

    A reader that is unknown, or that nobody has tried, gets the exact tensor.

    Args:
        needs: of nodes, by name.
    """
    return needs.get(reader() or "", "exact")


_NAMED: dict[int, str] = {}
"""The node that the code at a return address makes, by address; an empty name for code that makes none."""

_MANGLED = re.compile(rb"_Z(?:N6sparse)?(\d+)")

_PYLAYER_APPLY = b"pylayer_method_apply"


def _node_name(symbol: bytes) -> str:
    """Return the name of the node that a C++ function makes.

    >>> _node_name(b"_Z11max_ad_funcRKN6paddle6TensorE"), _node_name(b"_Z12sqrt__ad_funcRN6paddle6TensorE")
    ('MaxGradNode', 'SqrtGradNode')
    >>> _node_name(b"_ZN6sparse12relu_ad_funcERKN6paddle6TensorE"), _node_name(b"_PyEval_EvalFrameDefault")
    ('ReluSparseGradNode', '')
    """
    if _PYLAYER_APPLY in symbol:
        return PYLAYER
    found = _MANGLED.match(symbol)
    if found is None:
        return ""
    name = symbol[found.end() : found.end() + int(found[1])].decode()
    operator = name.removesuffix("_ad_func").removesuffix("_")
    if not name.endswith("_ad_func"):
        return ""
    words = "".join(word[:1].upper() + word[1:] for word in operator.split("_"))
    return f"{words}{'Sparse' if symbol.startswith(b'_ZN6sparse') else ''}GradNode"


class _Symbol(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class _Stack:
    """This thread's stack, as the C library sees it.

    Args:
        backtrace: puts return addresses, innermost first, into an array; returns how many.
        dladdr: tells the exported function that an address is in.
    """

    def __init__(self, backtrace: Any, dladdr: Any) -> None:
        backtrace.argtypes = (ctypes.c_void_p, ctypes.c_int)
        dladdr.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._backtrace = backtrace
        self._dladdr = dladdr
        self._arrays = {depth: ctypes.c_void_p * depth for depth in (_NEAR, _FAR)}

    def addresses(self, depth: int) -> list[int]:
        """Return return addresses, innermost first, at most ``depth``."""
        array = self._arrays[depth]()
        found: list[int] = array[: self._backtrace(array, depth)]
        return found

    def symbol(self, address: int) -> bytes:
        """Return the mangled name of the exported function that calls from there; empty if there is none."""
        symbol = _Symbol()
        # The call itself is before the address it returns to, which may be another function's already.
        found = self._dladdr(address - 1, ctypes.byref(symbol))
        return (symbol.name or b"") if found else b""


@cache
def _stack() -> _Stack | None:
    # PyDLL, as this takes less time than giving the interpreter's lock away and getting it back.
    process = ctypes.PyDLL(None)
    try:
        return _Stack(process.backtrace, process.dladdr)
    except AttributeError:  # musl has no backtrace
        return None
