"""Which kinds of tensors are made again: those whose recipe was seen to give the same bits."""

import threading
from collections.abc import Callable, Hashable
from typing import TypeVar

from tensorstash.engine.ledger import Ledger
from tensorstash.host.forks import renew_after_fork

V = TypeVar("V")

_STEPS = 64
"""Steps after which a kind that was proved is proved again."""

_REMEMBERED = 4096


class Proofs:
    """What is known of kinds of tensors. Thread-safe; holds no tensor.

    A kind is named by the operations of its recipe, the layout of what they make, and where that is saved. It is proved
    by its first tensor, and by one of them again from time to time. One difference, or one error, and its tensors are
    stored from then on.

    Args:
        ledger: where refusals are counted.
    """

    __slots__ = ("__weakref__", "_ledger", "_lock", "_proved", "_refused", "_step")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._proved: dict[Hashable, int] = {}
        self._refused: dict[Hashable, str] = {}
        self._step = 0
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def step_ended(self) -> None:
        """Note the end of a step."""
        self._step += 1

    def allow(self, kind: Hashable, rule: str, nbytes: int, fault: Callable[[], str | None], *, always: bool) -> bool:
        """Whether a tensor may be made again, which is proved if it has to be.

        Args:
            kind: of the tensor.
            rule: what its recipe is called.
            nbytes: of the tensor.
            fault: makes it again, and returns what is wrong with the result.
            always: whether it is proved whatever is known.
        """
        known = self._proved.get(kind)
        if known is not None and self._step - known < _STEPS and not always:
            return True
        why = self._refused.get(kind)
        if why is None:
            why = fault()
            with self._lock:
                if why is None:
                    _remember(self._proved, kind, self._step)
                    return True
                self._proved.pop(kind, None)
                _remember(self._refused, kind, why)
        self._ledger.refused(f"{rule}: {why}", nbytes)
        return False


def _remember(known: dict[Hashable, V], kind: Hashable, value: V) -> None:
    if len(known) >= _REMEMBERED and kind not in known:
        known.clear()
    known[kind] = value
