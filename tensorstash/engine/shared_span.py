"""One memory for views with gaps that lie side by side in a storage, as the parts of a split do.

Rebuilt one by one, each would take memory for its gaps too, which the others fill.
"""

import threading
from collections.abc import Callable, Hashable
from typing import Any
from weakref import ref

from tensorstash.abilities import SupportsSharedMemory
from tensorstash.host.arrays import Array, aligned_empty
from tensorstash.spec import ALIGNMENT, TensorSpec


class SharedSpan:
    """Rows of a storage in which several contents have their columns; each is written once per memory. Thread-safe.

    The memory is known only weakly, and goes with the last of the tensors in it.
    """

    __slots__ = ("__weakref__", "_backend", "_lock", "_taken", "memory")

    def __init__(self, backend: SupportsSharedMemory[Any]) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self.memory: Callable[[], Array | None] = lambda: None
        """Returns the memory that a content was rebuilt in last, as long as there is any."""
        self._taken: list[range] = []

    def rebuild(self, data: Array, spec: TensorSpec) -> Any:
        """Return a detached tensor with the exact layout of ``spec``, whose elements no other content shares."""
        rows, period, columns = _columns(spec)
        start = columns.start * spec.itemsize
        with self._lock:
            run = self.memory()
            if run is None or any(columns.start < other.stop and other.start < columns.stop for other in self._taken):
                alignment = (spec.order.alignment(spec) - start) % ALIGNMENT
                run = aligned_empty(rows * period * spec.itemsize, alignment)
                self.memory, self._taken = ref(run), []
            self._taken.append(columns)
        return self._backend.place(data.reshape(spec.dense().shape), spec, run, start)


def span_of(token: Hashable, spec: TensorSpec) -> Hashable:
    """Return the name of the rows in which a view has its columns; None if it has no gaps, or crosses rows.

    >>> thirds = [TensorSpec((5, 3), (9, 1), start, "float32", "cpu") for start in (0, 12, 24, 28)]
    >>> len({span_of("storage", third) for third in thirds[:3]}), span_of("storage", thirds[3])
    (1, None)
    """
    block = spec.order.block
    if not block or block[0][1] == 1 or spec.offset % spec.itemsize:
        return None
    rows, period, columns = _columns(spec)
    first = spec.order.lowest(spec) // spec.itemsize - columns.start
    return None if columns.stop > period else (token, first, rows, period, spec.dtype)


def _columns(spec: TensorSpec) -> tuple[int, int, range]:
    """Return the number of rows, the elements of each, and those that are the view's."""
    (rows, period), *inner = spec.order.block
    begin = spec.order.lowest(spec) // spec.itemsize % period
    return rows, period, range(begin, begin + 1 + sum((size - 1) * stride for size, stride in inner))
