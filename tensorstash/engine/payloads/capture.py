"""The bytes of a saved tensor on their way into a store; the slot they end up in."""

from operator import call
from typing import Any

from tensorstash.engine.payloads.pipeline import Stored
from tensorstash.engine.payloads.route import PayloadRoute
from tensorstash.engine.stats import Ledger
from tensorstash.engine.timeouts import Ask
from tensorstash.errors import CodecError, SavedTensorModifiedError, StashError, StoreError, TensorStashError
from tensorstash.protocols import Backend
from tensorstash.spec import TensorSpec


class Capture:
    """Captures the bytes of one storage content and owns what is stored of them.

    Until the bytes are captured it holds a source, and whoever asks gets that or a copy of it: an alias of the saved
    tensor that is captured when nobody else holds its memory, or a private copy of it. Capturing may happen on any
    thread. What has been modified in place since it was saved is refused, as autograd refuses it: the version is
    compared by whoever asks, on a version probe that outlives the memory.

    Nothing here blocks or takes a lock while it is destroyed: it may die in the garbage collector.

    Args:
        route: how the bytes are encoded, and where they go.
        backend: the framework's adapter.
        source: an alias of the saved tensor, part of no graph; or a private copy of it, with the same layout.
        spec: the source's spec.
        version: the saved tensor's in-place version when it was saved.
        ledger: where payloads are counted.
        version_probe: of the saved tensor, if ``source`` is a private copy.
    """

    __slots__ = (
        "__weakref__",
        "_error",
        "_ledger",
        "_source",
        "_stored",
        "_version",
        "_version_probe",
        "backend",
        "is_kept_exact",
        "is_private",
        "route",
        "spec",
    )

    def __init__(
        self,
        route: PayloadRoute[Any],
        backend: Backend[Any],
        source: Any,
        spec: TensorSpec,
        version: int,
        ledger: Ledger,
        version_probe: Any = None,
    ) -> None:
        self.route = route
        self.backend = backend
        self._source = source
        self.spec = spec
        self._version = version
        self._version_probe = version_probe
        self.is_private = version_probe is not None
        """Whether the source is the engine's own, so that nobody may get it and it may become the payload."""
        self.is_kept_exact = False
        """Whether the source is what comes back, since its readers need it exactly and there is no store for it."""
        self._ledger = ledger
        self._stored: Stored | None = None
        self._error: TensorStashError | None = None

    @property
    def needs_worker(self) -> bool:
        """Whether :meth:`run` has anything to do."""
        return True

    def launch(self) -> None:
        """Begin with what has to be done on the thread that saved the tensor; nothing here."""

    def run(self, ask: Ask = call) -> None:
        """Encode and store the source's bytes and let go of it; a failure is kept for whoever asks.

        A source that does not shrink is kept.

        Args:
            ask: how a store is asked that may not answer.
        """
        source = self._source
        try:
            if not self._keep_bytes(source, ask):
                self._ledger.declined(self.spec.nbytes)
                return
        except TensorStashError as error:
            self._error = error.again()
        except Exception as error:
            self._error = self._unreadable(source, error).again()
        # Last: a reader that sees no source takes the slot or the error.
        self._source = None

    def _keep_bytes(self, source: Any, ask: Ask) -> bool:
        """Return whether the bytes are in the store; False if the source itself is the best place for them."""
        version_probe = self._version_probe if self.is_private else self.backend.version_probe(source)
        stored = self.route.encode(source, self.spec, ask, private=self.is_private)
        if stored is None:
            return False
        self.check(version_probe)
        self._version_probe = version_probe
        self._keep(stored)
        return True

    def _unreadable(self, source: Any, error: Exception) -> StashError:
        return StashError(f"reading {self.backend.describe(source)} raised {type(error).__name__}: {error}")

    def _keep(self, stored: Stored) -> None:
        self._stored = stored
        stored.counted = self._ledger.stored(self.route.tier, stored.nbytes)

    @property
    def alias(self) -> Any:
        """The source, whatever its version is; None once the bytes are captured."""
        return self._source

    @property
    def source(self) -> Any:
        """The source; None once the bytes are captured.

        Raises:
            SavedTensorModifiedError: the saved tensor was modified in place since it was saved.
        """
        source = self._source
        if source is not None:
            self.check(self._version_probe if self.is_private else source)
        return source

    def check(self, watched: Any) -> None:
        """Refuse a tensor that has been modified in place since it was saved.

        Args:
            watched: whatever shares the tensor's version; None where later changes do no harm.

        Raises:
            SavedTensorModifiedError: it has.
        """
        if watched is None:
            return
        version = self.backend.version(watched)
        if version != self._version:
            raise modified(str(self.spec), version, self._version)

    @property
    def is_stored(self) -> bool:
        """Whether the bytes are in the store."""
        return self._stored is not None

    @property
    def stored_nbytes(self) -> int:
        """Bytes in the store; 0 before they are captured."""
        return 0 if self._stored is None else self._stored.nbytes

    def raise_failure(self) -> None:
        """Raise what has kept the bytes from being captured as they were saved, if anything has.

        Raises:
            StashError: the bytes could not be encoded or stored.
            SavedTensorModifiedError: the saved tensor was modified in place.
        """
        if self._error is not None:
            raise self._error.again()
        self.check(self._version_probe)

    def raise_store_failure(self) -> None:
        """Raise what has kept the bytes from being encoded or stored; what is wrong with the tensor itself concerns
        only those who ask for it.

        Raises:
            CodecError: the bytes could not be encoded.
            StoreError: they could not be stored.
        """
        if isinstance(self._error, CodecError | StoreError):
            raise self._error.again()

    def settle(self) -> None:
        """Make captured bytes immune to later changes; for threads that are not modifying the source meanwhile."""
        version_probe = self._version_probe
        if version_probe is not None and self.backend.version(version_probe) == self._version:
            self._version_probe = None

    def decode(self, ask: Ask = call) -> Any:
        """Return what the route rebuilds tensors from; writable if it is an array that is private to the caller.

        Args:
            ask: how a store is asked that may not answer.

        Raises:
            StashError: the bytes could not be loaded or decoded.
        """
        assert self._stored is not None, "asked to decode what was never stored"
        return self.route.decode(self._stored, ask)


def modified(tensor: str, version: int, expected: int) -> SavedTensorModifiedError:
    """Return the error that autograd would have raised for a saved tensor that is no longer at its version."""
    return SavedTensorModifiedError(
        f"one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"{tensor} is at version {version}; expected version {expected} instead. "
        f"Clone it before the operation that modifies it, or call drain() on the session before that."
    )
