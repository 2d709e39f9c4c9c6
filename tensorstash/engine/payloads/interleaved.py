"""Contents that lie interleaved in one memory, as the parts of a split do, and come back in one.

Rebuilt one by one, each would take memory for its gaps too, which the others fill.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import ref

from tensorstash.abilities import SupportsSharedMemory
from tensorstash.host.arrays import Array, aligned_empty, lender
from tensorstash.spec import ALIGNMENT, TensorSpec

Block = tuple[tuple[int, int], ...]

_MOST = 64
"""Contents that are put back together: each is compared with all others."""


@dataclass(frozen=True, slots=True)
class InterleavedView:
    """The elements of a view with gaps: the same run of memory again and again.

    Args:
        start: of the first element, in elements from some point of the storage.
        block: (size, stride) pairs of :attr:`~tensorstash.spec.MemoryOrder.block`.
    """

    start: int
    block: Block

    @classmethod
    def of(cls, spec: TensorSpec, start: int) -> "InterleavedView | None":
        """Return the view of a tensor that starts so many bytes into its storage; None if it has no gaps.

        >>> InterleavedView.of(TensorSpec((5, 3), (9, 1), 24, "float32", "cpu"), 24)
        InterleavedView(start=6, block=((5, 9), (3, 1)))
        >>> InterleavedView.of(TensorSpec((5, 3), (3, 1), 24, "float32", "cpu"), 24)
        """
        block = spec.order.block
        if not block or block[0][1] == 1 or start % spec.itemsize:
            return None
        return cls(start // spec.itemsize, block)

    def stop(self, depth: int = 1) -> int:
        """Return where the first run ends that the ``depth`` outermost dimensions repeat."""
        return self.start + 1 + sum((size - 1) * stride for size, stride in self.block[depth:])

    def is_apart(self, other: "InterleavedView") -> bool:
        """Whether the two have certainly no element in common.

        >>> left, right = InterleavedView(0, ((5, 9), (3, 1))), InterleavedView(3, ((5, 9), (6, 1)))
        >>> left.is_apart(right), left.is_apart(InterleavedView(2, ((5, 9), (3, 1))))
        (True, False)
        """
        first, second = sorted((self, other), key=attrgetter("start"))
        for depth, (ours, theirs) in enumerate(zip(self.block, other.block, strict=False), start=1):
            if ours != theirs or max(self.stop(depth), other.stop(depth)) - first.start > ours[1]:
                return False
            # What both repeat lies within one period; here it lies side by side.
            if first.stop(depth) <= second.start:
                return True
        return False


class InterleavedPlace:
    """One content's place among those that it lies interleaved with.

    Args:
        group: they.
        view: where it lies.
    """

    __slots__ = ("__weakref__", "_group", "view")

    def __init__(self, group: "InterleavedGroup", view: InterleavedView) -> None:
        self._group = group
        self.view = view

    @property
    def memory(self) -> Array | None:
        """The memory in which the last of them was rebuilt, as long as there is any."""
        return self._group.memory

    def rebuild(self, data: Array, spec: TensorSpec) -> Any:
        """Return a detached tensor with the exact layout of ``spec`` in memory that is shared with the others.

        Its elements are nobody else's.

        Args:
            data: elements in memory order.
            spec: any layout of the same block of memory.
        """
        memory, start = self._group.place(self.view, spec)
        return self._group.backend.place(data.reshape(spec.dense().shape), spec, memory, start)


class InterleavedGroup:
    """Contents with gaps that others of them fill: live views of one memory that repeat with one period. Thread-safe.

    No two have an element in common, and each is written into the memory once, so that whoever writes into one of the
    tensors changes no other. The memory is known only weakly, and goes with the last of the tensors in it.

    Args:
        backend: the framework's adapter.
    """

    __slots__ = ("_first", "_lock", "_memory", "_places", "_run", "_stop", "_taken", "backend")

    def __init__(self, backend: SupportsSharedMemory[Any]) -> None:
        self.backend = backend
        self._places: list[ref[InterleavedPlace]] = []
        self._lock = threading.Lock()
        self._memory: Callable[[], Array | None] = _nothing
        self._taken: list[InterleavedView] = []
        self._first = self._stop = 0
        self._run = slice(0)

    @property
    def is_live(self) -> bool:
        """Whether any content has its place here."""
        return any(known() is not None for known in self._places)

    @property
    def memory(self) -> Array | None:
        """The memory that was rebuilt in last, as long as there is any."""
        return self._memory()

    def add(self, view: InterleavedView) -> InterleavedPlace | None:
        """Return the place of a view among the others.

        None if it may overlap one, together they reach beyond a period, or there are many already.
        """
        with self._lock:
            live = self._live()
            if len(live) == _MOST or not all(view.is_apart(other.view) for other in live):
                return None
            place = InterleavedPlace(self, view)
            self._places.append(ref(place))
        return place

    def place(self, view: InterleavedView, spec: TensorSpec) -> tuple[Array, int]:
        """Return memory for a view, and where in it a tensor of ``spec`` goes, in bytes.

        That place is nobody else's as long as the memory is there.
        """
        with self._lock:
            memory = self._memory()
            if memory is None or not self._is_free(view):
                memory = self._renew(view, spec)
            self._taken.append(view)
            return memory[self._run], (view.start - self._first) * spec.itemsize

    def _renew(self, view: InterleavedView, spec: TensorSpec) -> Array:
        """Return memory for all that are live now, and know it from now on."""
        views = [place.view for place in self._live()]
        first, stop = min(one.start for one in views), max(one.stop() for one in views)
        size, period = view.block[0]
        nbytes = ((size - 1) * period + stop - first) * spec.itemsize
        alignment = (spec.alignment - (view.start - first) * spec.itemsize) % ALIGNMENT
        run = aligned_empty(nbytes, alignment)
        memory = lender(run)
        begin = run.ctypes.data - memory.ctypes.data
        self._memory, self._run = ref(memory), slice(begin, begin + nbytes)
        self._first, self._stop, self._taken = first, stop, []
        return memory

    def _is_free(self, view: InterleavedView) -> bool:
        """Whether nothing has been written there yet."""
        is_inside = self._first <= view.start and view.stop() <= self._stop
        return is_inside and all(view.is_apart(other) for other in self._taken)

    def _live(self) -> list[InterleavedPlace]:
        live = [place for known in self._places if (place := known()) is not None]
        if len(live) < len(self._places):
            self._places = [ref(place) for place in live]
        return live


class Rebuilt(NamedTuple):
    """A tensor that was handed out and may be again, as long as nobody has written into it.

    Args:
        tensor: shares memory and version with what was handed out.
        spec: its layout.
        version: of the tensor when it was handed out.
        memory: that it lies in, unless it was copied.
    """

    tensor: Any
    spec: TensorSpec
    version: int
    memory: Array


def memory_of(data: Array, place: InterleavedPlace | None) -> Array:
    """Return the memory that the tensor of some elements lies in, unless they were copied for it alone.

    Args:
        data: what it was rebuilt from.
        place: of its own among others, if it has one.
    """
    shared = None if place is None else place.memory
    return lender(data) if shared is None else shared


def _nothing() -> None:
    return None
