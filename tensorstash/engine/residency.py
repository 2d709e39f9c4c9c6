"""Resident contents, in the order of saving, until nobody else holds their memory and a limit is reached."""

import threading
from collections import deque
from collections.abc import Hashable, Iterable
from itertools import chain
from operator import attrgetter, call
from typing import Any
from weakref import ref

from tensorstash.abilities import SupportsGraph
from tensorstash.engine.content import Content
from tensorstash.engine.ladder import Ladder
from tensorstash.engine.stats import Tally
from tensorstash.host.budget import Lease

_LOOKS = 8
"""Memories of the newest and of the others, looked at per saved tensor: each takes a microsecond, and there may be
thousands."""

_is_streamed = attrgetter("is_streamed")


class Residency:
    """Contents that are resident, oldest first, and known weakly; and the one limit of bytes. Thread-safe.

    A content waits until its source is the last alias of its memory. Until then the program may write to that memory,
    with or without a new version, and may resize or free it. From then on the bytes are those that backward would read
    without hooks, whenever they are captured. A lossy plan waits, besides, until the readers are known.

    On a device with streams the newest contents stay, as far as the budget of tensors that are brought back goes. With
    a ladder, contents stay until its limit is reached, and the oldest leaves first: backward needs it last.
    """

    def __init__(self, backend: SupportsGraph[Any], ladder: Ladder | None = None) -> None:
        self._backend, self._ladder = backend, ladder
        self._holders = backend.holders
        self._groups: dict[Hashable, list[ref[Content]]] = {}
        self._staying: deque[ref[Content]] = deque()
        self._near: deque[tuple[ref[Lease], list[ref[Content]]]] = deque()
        """The newest on devices, in groups that leave together, each with the bytes that it has taken."""
        self._room_bytes = 0  # of the last group
        self._is_full = False  # for a group beside the others
        self._alive: dict[ref[Content], int] = {}
        self._gone: deque[ref[Content]] = deque()
        self._used_bytes = 0
        self.peak_bytes = 0  # that have counted towards the limit at one time
        self.is_tight = False
        """Whether more than the limit is held, once those that have left last are on their way."""
        self._lock = threading.Lock()

    def leaving(self, content: Any = None, *, look: bool = True, all_of_them: bool = False) -> list[Any]:
        """Return contents that leave now, the oldest first: nobody else holds their memory any more.

        Args:
            content: becomes resident; its source is the only alias of its memory here.
            look: look at memories of others first; False where that was done for this tensor.
            all_of_them: look at every memory, not at a few, and wait for no reader.
        """
        # Without frames of Python: it runs for every saved tensor.
        with self._lock:
            groups = self._groups
            freed: list[Content] = []
            if look:  # without this one: while it is being saved its memory is held
                oldest: list[Hashable] = []
                looked = list(groups)
                if len(groups) > 2 * _LOOKS and not all_of_them:
                    oldest = looked[:_LOOKS]
                    looked = [*oldest, *looked[: -_LOOKS - 1 : -1]]
                asked: list[tuple[Hashable, list[Content]]] = []
                aliases: list[Any] = []
                for token in looked:
                    group = groups[token]
                    live = list(filter(None, map(call, group)))
                    is_ready = True
                    for other in () if all_of_them else live:
                        reading = other.reading
                        is_ready = is_ready and (reading is None or reading.known >= other.users)
                    if not live:
                        del groups[token]
                        continue
                    if len(live) < len(group):
                        groups[token] = list(map(ref, live))
                    if is_ready:
                        asked.append((token, live))
                        aliases.append(live[0].alias)
                counts = self._holders(aliases) if asked else ()
                for (token, live), holders in zip(asked, counts, strict=True):
                    if holders <= len(live):
                        del groups[token]
                        freed += live
                for token in oldest:  # the others have their turn before these
                    if token in groups:
                        groups[token] = groups.pop(token)
            if content is not None:
                groups.setdefault(content.token, []).append(ref(content))
                if self._ladder is not None:
                    self._alive[ref(content, self._gone.append)] = content.nbytes
                    self._used_bytes += content.nbytes
            if self._ladder is None:
                return self._beyond_the_newest(freed) if any(map(_is_streamed, freed)) else freed
            return self._beyond_the_limit(self._ladder, freed, is_early=not all_of_them)

    def clear(self) -> list[Any]:
        """Return all contents, whoever holds their memory, but for memory that is not there now."""
        with self._lock:
            groups, self._groups = self._groups, {}
            cleared: list[Content] = []
            for token, group in groups.items():
                live = _live(group)
                if all(self._backend.is_there(content.alias, content.spec) for content in live):
                    cleared += live
                    for content in live:
                        content.is_held()
                else:
                    self._groups[token] = group
            cleared += _live(chain(self._staying, *(group for _, group in self._near)))
            self._staying.clear()
            self._near.clear()
            return cleared

    def may_give(self, content: Any) -> bool:
        """Whether the source of a content may be handed out as it is, to a reader that may write into it.

        That is as without hooks while somebody besides the graph holds the memory, and no harm if nobody asks again.
        """
        with self._lock:
            group = self._groups.get(content.token, [])
            if ref(content) in group and self._holders([content.alias])[0] > len(_live(group)):
                return True
        return content.users == 1 and not self._backend.keeps_graph()

    def tally(self) -> Tally:
        """Return how many contents wait for others to release their memory, and their bytes."""
        with self._lock:
            waiting = [content.nbytes for group in self._groups.values() for content in _live(group)]
        return Tally(len(waiting), sum(waiting))

    def spare_bytes(self) -> int:
        """Return the bytes that are left of the limit; less than none if it is exceeded."""
        assert self._ladder is not None, "a limit without a budget"
        if self._gone:
            with self._lock:
                self._settle()
        held = self._used_bytes + self._ladder.other_bytes()
        self.peak_bytes = max(self.peak_bytes, held)
        return self._ladder.limit_bytes - held

    def _beyond_the_newest(self, freed: list[Any]) -> list[Any]:
        """Return the freed contents that leave, and older ones in place of those that stay on their device."""
        leaving: list[Any] = []
        for content in freed:
            if not (content.is_streamed and content.place.is_lossless):
                leaving.append(content)
                continue
            lease = self._near[-1][0]() if self._near and content.nbytes <= self._room_bytes else None
            if lease is None:
                lease = self._begun_group(content, leaving)
            if lease is None:
                leaving.append(content)
            else:
                self._room_bytes -= content.nbytes
                self._near[-1][1].append(ref(content))
                content.stay([content], lease)
        return leaving

    def _begun_group(self, content: Any, leaving: list[Any]) -> Lease | None:
        """Begin a group of the newest with a content, in place of the oldest groups, which leave as they are."""
        near = None if self._near and self._is_full else content.place.transfers.near(content.nbytes)
        self._is_full = near is None  # as nearly always from then on
        while near is None and self._near:
            oldest: list[Any] = list(filter(None, map(call, self._near.popleft()[1])))
            if oldest:
                oldest[0].stay(oldest, None)
            leaving += oldest
            near = content.place.transfers.near(content.nbytes)
        if near is None:
            return None
        lease: Lease = near[0]
        self._near.append((ref(lease), []))
        self._room_bytes = near[1]
        return lease

    def _beyond_the_limit(self, ladder: Ladder, freed: list[Any], *, is_early: bool) -> list[Any]:
        if self._gone:
            self._settle()
        leaving: list[Content] = []
        for content in freed:
            is_exact = content.place.is_lossless and not content.is_recipe
            if is_exact and (content.record is None or content.record.fate != "stored"):
                self._staying.append(ref(content))
            else:
                leaving.append(content)
        other_bytes = ladder.other_bytes()
        self.is_tight = self._used_bytes + other_bytes > ladder.limit_bytes
        for content in leaving:
            self._used_bytes -= self._alive.pop(ref(content), 0)
        # Where no plan knows the step, stores need time: contents begin to leave below the limit.
        early_bytes = 0 if ladder.is_planned or not is_early else ladder.in_flight.limit
        most_bytes = ladder.limit_bytes - other_bytes - early_bytes
        while self._used_bytes > most_bytes and self._staying:
            if (oldest := self._staying.popleft()()) is not None:
                leaving.append(oldest)
                self._used_bytes -= self._alive.pop(ref(oldest), 0)
        self.peak_bytes = max(self.peak_bytes, self._used_bytes + other_bytes)
        return leaving

    def _settle(self) -> None:
        while self._gone:
            self._used_bytes -= self._alive.pop(self._gone.popleft(), 0)


def _live(group: Iterable[ref[Content]]) -> list[Content]:
    return list(filter(None, map(call, group)))
