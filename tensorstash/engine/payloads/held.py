"""Saved tensors whose memory somebody besides the graph still holds: to move them would save nothing."""

import threading
from collections.abc import Hashable, Iterable
from itertools import islice
from operator import call
from typing import Any
from weakref import ref

from tensorstash.abilities import SupportsHolders
from tensorstash.engine.payloads.payload import Payload
from tensorstash.engine.stats import Tally
from tensorstash.host.forks import renew_after_fork

_LOOKS = 8
"""Memories that are looked at per saved tensor, of the newest and of the others in turn: each look costs a microsecond,
and a program may hold thousands."""


class Held:
    """Payloads that wait until nobody else holds the memory of their source. Thread-safe.

    Whoever holds the memory can write to it, with or without a new version, and may resize or free it. Once the aliases
    of the waiting payloads are all that is left of it, nobody can any more: what is captured from then on is what
    backward would have read without hooks, whenever the capture happens.

    It knows payloads only weakly: a handle that is dropped takes its payload with it.

    A payload whose codecs lose something waits, too, until it is known what will read it.

    Args:
        backend: tells who holds the memory of a tensor.
    """

    __slots__ = ("__weakref__", "_backend", "_groups", "_holders", "_lock")

    def __init__(self, backend: SupportsHolders[Any]) -> None:
        self._backend = backend
        self._holders = backend.holders
        self._groups: dict[Hashable, list[ref[Payload]]] = {}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def add(self, token: Hashable, payload: Payload) -> None:
        """Let a payload wait; its source is the only alias of the memory that it holds."""
        with self._lock:
            self._groups.setdefault(token, []).append(ref(payload))
            payload.token = token

    def freed(self, *, all_of_them: bool = False) -> list[Payload]:
        """Return payloads that nobody else holds the memory of any more; they wait no longer.

        Args:
            all_of_them: look at every memory, instead of a few of them each time, and wait for no reader.
        """
        with self._lock:
            if all_of_them or len(self._groups) <= 2 * _LOOKS:
                return self._taken(list(self._groups), unread=all_of_them)
            newest = list(islice(reversed(self._groups), _LOOKS))
            oldest = list(islice(self._groups, _LOOKS))
            freed = self._taken([*oldest, *newest], unread=False)
            for token in oldest:  # the others have their turn before these
                if token in self._groups:
                    self._groups[token] = self._groups.pop(token)
            return freed

    def clear(self) -> list[Payload]:
        """Let none wait any longer, whoever holds their memory, and return them; but for memory that is not there."""
        with self._lock:
            groups, self._groups = self._groups, {}
            cleared: list[Payload] = []
            for token, group in groups.items():
                live = _live(group)
                if all(self._backend.is_there(payload.alias, payload.spec) for payload in live):
                    cleared += live
                else:
                    self._groups[token] = group
            return cleared

    def may_give(self, payload: Payload) -> bool:
        """Whether the source of a payload may be handed out as it is.

        Whoever gets it may write into it. That is as without hooks while somebody else holds the memory, and does no
        harm if nobody asks for it again.
        """
        return self.holds(payload) or (payload.users == 1 and not self._backend.keeps_graph())

    def holds(self, payload: Payload) -> bool:
        """Whether somebody besides the graph holds the memory of a payload that waits."""
        with self._lock:
            group = self._groups.get(payload.token, [])
            return ref(payload) in group and self._holders(payload.alias) > len(_live(group))

    def tally(self) -> Tally:
        """Return how many payloads wait, and their bytes."""
        with self._lock:
            waiting = [payload.nbytes for group in self._groups.values() for payload in _live(group)]
        return Tally(len(waiting), sum(waiting))

    def _taken(self, tokens: Iterable[Hashable], *, unread: bool) -> list[Payload]:
        # Without frames of Python but one for each memory: it runs for every saved tensor.
        taken: list[Payload] = []
        for token in tokens:
            group = self._groups[token]
            live = list(filter(None, map(call, group)))
            is_ready = True
            for payload in () if unread else live:
                is_ready = is_ready and (payload.route.is_lossless or payload.known_readers >= payload.users)
            if not live or (is_ready and self._holders(live[0].alias) <= len(live)):
                del self._groups[token]
                taken += live
            elif len(live) < len(group):
                self._groups[token] = [ref(payload) for payload in live]
        return taken


def _live(group: list[ref[Payload]]) -> list[Payload]:
    return list(filter(None, map(call, group)))
