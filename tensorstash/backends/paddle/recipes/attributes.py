"""Settings that an operation ran with, which its node keeps and Paddle shows nobody.

A node of Paddle is a C++ object with the attributes of its operation in it, for the operation's gradient. Where they
are is found by trial: example nodes with known values are looked through for the one place that holds just these. A
place that is not found, or not the only one, is not used, and neither are the rules that would need it; nor is anything
on systems that do not let a process look at its own memory. What is read is proved before it is used, as all of a
recipe is: see :mod:`tensorstash.engine.recompute.proofs`.
"""

import ctypes
import os
import struct
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any

import paddle
from paddle import Tensor

from tensorstash.backends.paddle.nodes import kind_of, node_of

_LOOKED_AT = 4096
"""Bytes from the beginning of a node; the largest have about half."""


@dataclass(frozen=True, slots=True, eq=False)
class Attribute:
    """One setting of an operation.

    Args:
        node: the name of the node.
        format: of its bytes, for :mod:`struct`.
        values: distinct enough that no other bytes change in the same way from example to example.
        example: calls the operation with a value, on a tensor that is given to it.
        shape: of that tensor.
    """

    node: str
    format: str
    values: tuple[Any, ...]
    example: Callable[[Tensor, Any], Tensor]
    shape: tuple[int, ...] = (2, 3, 4, 5)

    def read(self, node: Any) -> Hashable:
        """Return the value that a node has; None if it cannot be told."""
        place = _place(self)
        if place is None:
            return None
        return struct.unpack(self.format, ctypes.string_at(node.node_ptr() + place, struct.calcsize(self.format)))[0]  # type: ignore[no-any-return]


FLAGS = tuple(digit == "1" for digit in "0110100111001011")
"""Values that hardly any other byte of sixteen nodes has by chance."""


@cache
def _place(attribute: Attribute) -> int | None:
    """Return where in its node an attribute is, in bytes; None if that is not sure."""
    nodes, shown = [], []
    with paddle.enable_grad():
        for value in attribute.values:
            example = paddle._C_ops.full(list(attribute.shape), 1.0, paddle.float32, paddle.CPUPlace())
            example.stop_gradient = False
            node = node_of(attribute.example(example, value))
            if node is None or kind_of(node) != attribute.node:
                return None
            nodes.append(node)  # or the next is made in the memory of this one
            shown.append(_memory(node.node_ptr()))
    size = struct.calcsize(attribute.format)
    wanted = [struct.pack(attribute.format, value) for value in attribute.values]
    found = [
        place
        for place in range(min(map(len, shown)) - size + 1)
        if all(memory[place : place + size] == one for memory, one in zip(shown, wanted, strict=True))
    ]
    return found[0] if len(found) == 1 else None


def _memory(address: int) -> bytes:
    """Return what is there, as far as it may be looked at: this fails where reading by a pointer would be a crash."""
    try:
        file = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.pread(file, _LOOKED_AT, address)
    except OSError:
        return b""
    finally:
        os.close(file)
