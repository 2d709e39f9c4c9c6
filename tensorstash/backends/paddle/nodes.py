"""Nodes of Paddle's graph: the one that made a tensor, and the one that it is being saved for.

Paddle tells a hook nothing about who saves, and its nodes hide their saved tensors. But ``pack`` is called from inside
the C++ function of the operator, whose name the dynamic linker knows: so the return addresses on the stack are looked
up, once each. Nothing in Paddle is replaced, and no way of calling an operator escapes: not a method of ``Tensor``, not
an alias that a program took before, not calls inside C++.
"""

import ctypes
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import paddle
from paddle import Tensor

from tensorstash.backends.paddle.packed import Settings, call
from tensorstash.backends.readers import listed
from tensorstash.protocols import Demand

ACCUMULATION = "GradNodeAccumulation"  # of a leaf

_NEAR, _FAR = 24, 96
"""Numbers of frames to look at: an operator is some 14 above, and more where each call of Python takes several of C, as
where a profiler or PyTorch's compiler has replaced the evaluation of frames."""

_LEAST_AXES = {"BatchNormGradNode": 2, "InstanceNormGradNode": 2, "GroupNormGradNode": 3}


def node_of(tensor: Tensor) -> Any:
    """Return the node that made a tensor, or the one that accumulates the gradient of a leaf; None if there is none.

    ``Tensor.grad_fn`` counts a reference too many on every call (Paddle 3.3.1), so that the graph is never freed; it is
    taken back here.
    """
    node: Any = tensor.grad_fn
    if node is not None:
        for _ in range(_surplus()):
            _take_back(node)
    return node


@cache
def _surplus() -> int:
    example = paddle._C_ops.empty([1], paddle.float32, paddle.CPUPlace())
    example.stop_gradient = False
    node = example.grad_fn
    # One reference is the variable's, one that of the argument.
    return 0 if node is None else max(sys.getrefcount(node) - 2, 0)


_take_back: Callable[[Any], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))


def kind_of(node: Any) -> str:
    """Return the name of a node, without the ``Final`` at the end of some."""
    name: str = node.name()
    return name.removesuffix("Final")


def is_first(kind: str, settings: Settings | None, tensor: Tensor) -> bool:
    """Whether a tensor is the input or the first output of an operation; others, such as statistics, are its own."""
    if kind == "DropoutGradNode":
        return tensor.dtype != paddle.uint8
    if kind == "LayerNormGradNode":
        return settings is not None and len(tensor.shape) > settings.values[1]
    return len(tensor.shape) >= _LEAST_AXES.get(kind, 0)


def demand(tensor: Tensor) -> Demand:
    """Return how exactly the :func:`reader` of the tensor being packed needs it; unknown and untried ones: exactly.

    A norm saves large inputs and small statistics alike, and needs them differently exactly.
    """
    name, needs = reader(), listed(__file__)
    is_input = f"{name}.input" in needs and is_first(str(name), call.settings, tensor)
    return needs.get(f"{name}.{'input' if is_input else 'saved'}", "exact")


def reader() -> str | None:
    """Return the kind of the node that the tensor being packed is saved for, on this thread, in 6 microseconds.

    None if it cannot be told: outside of Paddle's own operators, such as for a user's ``PyLayer``, or on a system that
    cannot look up its stack.
    """
    process = _process()
    if process is None:
        return None
    for most in (_NEAR, _FAR):
        array = (ctypes.c_void_p * most)()
        for address in array[: process.backtrace(array, most)]:
            name = _NAMED.get(address)
            if name is None:
                name = _NAMED[address] = _node_name(_symbol(process, address))
            if name:
                return name
    return None


@cache
def _process() -> Any:
    """Return the functions of the C library that look at this thread's stack; None where there are none."""
    # PyDLL, as this takes less time than giving the interpreter's lock away and getting it back.
    process = ctypes.PyDLL(None)
    try:
        process.backtrace.argtypes = (ctypes.c_void_p, ctypes.c_int)
        process.dladdr.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    except AttributeError:  # musl has no backtrace
        return None
    return process


def _symbol(process: Any, address: int | None) -> bytes:
    """Return the mangled name of the exported function that a call returns to; empty if there is none."""
    found = (ctypes.c_char_p * 4)()  # the file, where it begins, the name of the function, where that begins
    # The call is before the address, which may be another function's already.
    return (found[2] or b"") if address and process.dladdr(address - 1, found) else b""


_NAMED: dict[int | None, str] = {}
"""The node that the code at a return address makes, by address; an empty name for code that makes none."""

_MANGLED = re.compile(rb"_Z(\d+)")


def _node_name(symbol: bytes) -> str:
    """Return the name of the node that a C++ function makes; empty for those of sparse tensors, too.

    >>> _node_name(b"_Z11max_ad_funcRKN6paddle6TensorE"), _node_name(b"_Z13sqrt__ad_funcRKN6paddle6TensorE")
    ('MaxGradNode', 'SqrtGradNode')
    """
    found = _MANGLED.match(symbol)
    name = symbol[found.end() : found.end() + int(found[1])].decode() if found else ""
    words = name.removesuffix("_ad_func").removesuffix("_").split("_")
    made = "".join(word[:1].upper() + word[1:] for word in words)
    return f"{made}GradNode" if name.endswith("_ad_func") else ""
