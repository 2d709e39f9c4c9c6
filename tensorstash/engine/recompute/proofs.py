"""Which kinds of tensors are recomputed: those whose recipe was seen to give the same bits, and did ever since."""

import threading
from collections.abc import Callable, Hashable

from tensorstash.engine.ledger import Ledger
from tensorstash.host.forks import renew_after_fork

_REMEMBERED = 4096


class Proofs:
    """What is known of kinds of tensors. Thread-safe; holds no tensor.

    A kind is named by the operations of its recipe, the layout of what they make, and where that is saved. It is proved
    by its first tensor. One difference, then or in any backward, or one error, and its tensors are stored from then on.

    Args:
        ledger: where refusals are counted.
    """

    __slots__ = ("__weakref__", "_known", "_ledger", "_lock")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[Hashable, str | None] = {}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def allow(self, kind: Hashable, rule: str, nbytes: int, fault: Callable[[], str | None], *, always: bool) -> bool:
        """Whether a tensor may be recomputed, which is proved if it has to be.

        Args:
            kind: of the tensor.
            rule: the name of its recipe.
            nbytes: of the tensor.
            fault: recomputes it, and returns the fault of the result, if any.
            always: whether it is proved though its kind is.
        """
        why = self._known.get(kind, "unknown")
        if why == "unknown" or (always and why is None):
            why = fault()
            self._learn(kind, why)
        if why is not None:
            self._ledger.refused(f"{rule}: {why}", nbytes)
        return why is None

    def refuse(self, kind: Hashable) -> None:
        """Store the tensors of a kind from now on: one of them differed in backward."""
        self._learn(kind, "came out different in backward")

    def _learn(self, kind: Hashable, why: str | None) -> None:
        with self._lock:
            if len(self._known) >= _REMEMBERED and kind not in self._known:
                self._known.clear()
            self._known[kind] = why
