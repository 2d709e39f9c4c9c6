"""The adapter of a framework, as far as the engine needs each one."""

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, TypeVar

from tensorstash.abilities.devices import Kernels, Layouts, Streams
from tensorstash.host.arrays import Array
from tensorstash.protocols import Undo
from tensorstash.spec import TensorSpec

T = TypeVar("T")


class Backend(Protocol[T]):
    """The one adapter of a framework. Thread-safe, without state but its hook stack."""

    name: ClassVar[str]
    backward_writes: ClassVar[bool]
    """Whether built-in backward kernels write into the tensors that they unpack."""

    @property
    def kernels(self) -> Kernels[T] | None:
        """The codecs that run where the tensor is; None if all run on the host."""

    @property
    def layouts(self) -> Layouts[T] | None:
        """The layouts that take tensors apart where they are; None if the host does it."""

    @property
    def streams(self) -> Streams[T] | None:
        """The devices whose copies can run beside the computation; None if there are none but the host."""

    def owns(self, obj: object, /) -> bool:
        """Whether ``obj`` is a tensor or a module of this framework."""

    def hooks(
        self, pack: Callable[[T], Any], unpack: Callable[[Any], T], /, *, trusted: bool = False
    ) -> AbstractContextManager[None]:
        """Install a pair of hooks for this thread; nests, the innermost pair runs, the outer one is restored.

        Hooks run in the state in which the framework calls them; the methods of a backend are indifferent to gradient
        recording and autocast. The framework drops the result of ``pack`` as soon as backward is done with it. A
        trusted pair is the engine's: functions or methods whose work and results need no check.
        """

    def suspended(self) -> AbstractContextManager[None]:
        """Take all hooks of this thread off until a block ends, others' too.

        Raises:
            BackendError: at its end: hooks that were entered inside are still in force.
        """

    def is_recording(self) -> bool:
        """Whether this thread records its operations, so that autograd saves tensors."""

    def keep_reason(self, tensor: T, /) -> str | None:
        """Say why the tensor must be kept as it is, or return None if it can be stashed.

        Parameters and views of them, other leaves that require grad, and every kind of tensor that cannot be
        rebuilt exactly: sparse, unknown subclasses, without real memory, under tracing.
        """

    def nbytes(self, tensor: T, /) -> int:
        """Return numel times itemsize; raises RuntimeError where the tensor has no such number."""

    def most_bytes(self, tensor: T, /) -> int:
        """Return a cheap upper bound of :meth:`nbytes`; 0 where the tensor has no memory of its own.

        It is asked for every saved tensor, and one below the session's ``min_bytes`` is asked nothing else.
        """

    def spec(self, tensor: T, /) -> TensorSpec:
        """Return the spec; only asked for tensors without a :meth:`keep_reason`. Equal specs may be one object."""

    def describe(self, tensor: T, /) -> str:
        """Return a short description for messages; works on every tensor."""

    def version(self, tensor: T, /) -> int:
        """Return the in-place version, which all views of one storage share."""

    def storage(self, tensor: T, /) -> tuple[Hashable, int]:
        """Return a token of the live storage and the byte offset of the lowest element in it.

        A live token never equals that of another storage, also not of a later one at the same address. It does not
        keep the storage alive.
        """

    def producer(self, tensor: T, /) -> str:
        """Return the name of the operation of the graph that made a tensor; empty if the graph did not make it."""

    def alias(self, tensor: T, /) -> T:
        """Return the object kept in place of the tensor: a leaf itself, else :meth:`detached` of it."""

    def detached(self, tensor: T, /) -> T:
        """Return a new tensor object that shares memory and version, and is no part of any graph."""

    def version_probe(self, tensor: T, /) -> T:
        """Return an object whose :meth:`version` stays that of ``tensor``, without keeping its memory.

        In-place kernels write first and count afterwards, and release the interpreter lock meanwhile. A version that
        is compared on another thread while bytes are copied can therefore come too early; one that is compared by
        the thread that needs the tensor cannot.
        """

    def to_host(self, tensor: T, spec: TensorSpec, /) -> Array:
        """Return the distinct elements, in memory order, as carrier bits shaped like ``spec.dense()``.

        The array is read-only if its memory is still the tensor's own.
        """

    def from_host(self, data: Array, spec: TensorSpec, /) -> T:
        """Return a fresh, detached tensor in private writable memory with the exact layout of ``spec``.

        ``data`` has the elements in memory order, ``spec.dense()``; memory of a writable array may be adopted.
        """

    def named_modules(self, model: object, /) -> Iterable[tuple[str, object]]:
        """Return the model and every module below it, with dotted names; the model's own is empty."""

    def wrap_forward(self, model: object, scope: Callable[[], AbstractContextManager[Any]], /) -> Undo:
        """Run every forward of ``model`` inside ``scope()`` until the returned function is called."""
