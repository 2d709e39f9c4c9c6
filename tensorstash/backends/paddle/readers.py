"""The operator that a tensor is being saved for, and the accuracy that its backward needs.

Paddle tells a hook nothing about who saves, and its nodes hide their saved tensors. But ``pack`` is called from inside
the C++ function of the operator, whose name the dynamic linker knows: so the return addresses on the stack are looked
up, once each. Nothing in Paddle is replaced, and no way of calling an operator escapes: not a method of ``Tensor``, not
an alias that a program took before, not calls inside C++.
"""

import ctypes
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from types import MappingProxyType
from typing import Any

import paddle
from paddle import Tensor
from paddle.nn import functional

from tensorstash.backends.readers import listed
from tensorstash.protocols import Demand

PYLAYER = "PyLayer"
"""The name of a reader that is a user's ``PyLayer``."""

_NEAR, _FAR = 24, 96
"""Numbers of frames to look at; the second where the first were not enough."""


def reader() -> str | None:
    """Return the name of the graph node that the tensor being packed is saved for, on this thread.

    As ``Tensor.grad_fn.name()`` gives it, without the ``Final`` at the end of some: ``"MaxGradNode"``. To be called
    inside ``pack``; about 6 microseconds, and a millisecond more the first time that an operator is met.

    Returns:
        The name, :data:`PYLAYER`, or None if it cannot be told: outside of operators, for operators that are not
        Paddle's own, or on a system that cannot look up its stack.
    """
    return _site()[0] or None


class Readers:
    """Tells how exactly a reader needs the tensor being packed. Thread-safe.

    Unknown and untried readers, a ``PyLayer`` too, get the exact tensor.

    Args:
        hooks: puts a pair of hooks in force, for this thread and one block.
    """

    def __init__(self, hooks: Callable[[Any, Any], AbstractContextManager[None]]) -> None:
        self._hooks = hooks
        self._inputs: dict[str, frozenset[int]] = {}

    def demand(self) -> Demand:
        """Return the demand of the reader of the tensor being packed; called inside ``pack``, as :func:`reader`."""
        name, address = _site()
        needs = listed(__file__)
        if f"{name}.input" in needs and address in self._places_of_input(name):
            return needs[f"{name}.input"]
        return needs.get(f"{name}.saved", "exact")

    def _places_of_input(self, name: str) -> frozenset[int]:
        """Return where in its code an operator saves its input.

        A norm saves large inputs and small statistics alike, and needs them differently exactly. It is called with a
        small example, whose input is known by its shape.
        """
        known = self._inputs.get(name)
        if known is None:
            found: set[int] = set()

            def pack(tensor: Tensor) -> Tensor:
                if tensor.shape == _SHAPE:
                    found.add(_site()[1])
                return tensor.detach()

            with paddle.enable_grad(), self._hooks(pack, lambda tensor: tensor):
                example = paddle.ones(_SHAPE)
                example.stop_gradient = False
                _EXAMPLES[name](example)
            known = self._inputs[name] = frozenset(found)
        return known


_SHAPE = [2, 3, 5]

_EXAMPLES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "LayerNormGradNode": lambda x: functional.layer_norm(x, 5),
        "InstanceNormGradNode": lambda x: functional.instance_norm(x),
        "BatchNormGradNode": lambda x: functional.batch_norm(
            x, paddle.zeros([3]), paddle.ones([3]), paddle.ones([3]), paddle.zeros([3]), training=True
        ),
    }
)
"""Calls of the operators whose input and other saved tensors need not be equally exact."""


def _site() -> tuple[str, int]:
    """Return the node that the tensor being packed is saved for, and the place in the code; empty if not known."""
    process = _process()
    if process is None:
        return "", 0
    for depth in (_NEAR, _FAR):
        array = (ctypes.c_void_p * depth)()
        count = process.backtrace(array, depth)
        for address in array[:count]:
            name = _NAMED.get(address)
            if name is None:
                name = _NAMED[address] = _node_name(_symbol(process, address))
            if name:
                return name, address or 0
        if count < depth:
            break
    return "", 0


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
    """Return the mangled name of the exported function that calls from an address; empty if there is none."""
    found = (ctypes.c_char_p * 4)()  # the file, where it begins, the name of the function, where that begins
    # The call itself is before the address it returns to, which may be another function's already.
    is_found = address and process.dladdr(address - 1, found)
    return (found[2] or b"") if is_found else b""


_NAMED: dict[int | None, str] = {}
"""The node that the code at a return address makes, by address; an empty name for code that makes none."""

_MANGLED = re.compile(rb"_Z(?:N6sparse)?(\d+)")

_PYLAYER_APPLY = b"pylayer_method_apply"


def _node_name(symbol: bytes) -> str:
    """Return the name of the node that a C++ function makes.

    >>> _node_name(b"_Z11max_ad_funcRKN6paddle6TensorE"), _node_name(b"_Z13sqrt__ad_funcRN6paddle6TensorE")
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
