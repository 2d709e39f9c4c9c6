"""The capture of saved tensors, in the hook or on a writer behind the program."""

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any
from weakref import ref

from tensorstash.abilities import Streams
from tensorstash.engine.content import Content
from tensorstash.engine.places import Places
from tensorstash.engine.transfers import MOST_TOGETHER, Transfers
from tensorstash.errors import StoreError
from tensorstash.host.budget import ByteBudget, Shares
from tensorstash.host.pool import IDLE_BYTES, POOL
from tensorstash.host.workers import Workers
from tensorstash.policies.limits import AUTO, Limits

_nbytes = attrgetter("nbytes")


class Sender:
    """Has contents captured on workers, oldest first, and holds the budgets of bytes that are on their way."""

    def __init__(self, limits: Limits, streams: Streams[Any] | None) -> None:
        self.shares = Shares()
        """Budgets that the limits leave open."""
        self.writers = Workers("tensorstash-writer", limits.writers, timeout_s=limits.timeout_s)
        self.in_flight = ByteBudget(limits.in_flight_bytes)
        self.ahead = ByteBudget(limits.ahead_bytes)
        """Bytes that are read back early."""
        for budget, limit in ((self.in_flight, limits.in_flight), (self.ahead, limits.ahead)):
            if limit == AUTO:
                self.shares.follow(budget)
        self.transfers = None if streams is None else Transfers(streams, limits, self.shares)
        """Copies between devices and the host; None where no device works behind the program."""
        self._saving_bytes = self._saved_bytes = 0
        self._worth_bytes = IDLE_BYTES

    def entry_began(self, saved_bytes: int, *, is_a_step: bool) -> None:
        """Leave no more host memory idle than saving has last used: backward needs its own no more.

        Bytes are saved where payloads are smaller than their tensors, or elsewhere. In a step backward has asked since.
        """
        used, _ = POOL.take_stock()
        if is_a_step:
            self._worth_bytes, self._saved_bytes = saved_bytes - self._saved_bytes, saved_bytes
            POOL.give_back(max(self._saving_bytes - used, 0))

    def entry_ended(self, saved_bytes: int) -> None:
        """Leave no more host memory idle from now on than a step saves, bytes on their way included, or payloads take.

        Else a policy that finds little to save would have a higher peak than none.
        """
        used, self._saving_bytes = POOL.take_stock()
        POOL.worth(max(min(self._worth_bytes, saved_bytes - self._saved_bytes + self.in_flight.used), used))

    def step_ended(self) -> None:
        self.shares.step_ended()
        self.ahead.count_anew()
        if self.transfers is not None:
            self.transfers.end_step()

    def start(self, contents: Iterable[Any], places: Places) -> None:
        """Capture contents on a worker, or here where too many bytes are in flight; a failure is kept for later."""
        group: list[Any] = []
        room_bytes = MOST_TOGETHER
        for content in contents:
            if content.is_recipe:  # nothing leaves: it is recomputed
                content.capture()
                continue
            if content.reading is not None and not places.suits(content):
                continue
            place, nbytes = content.place, content.nbytes
            if not place.needs_worker:
                if group and (content.spec.device != group[0].spec.device or room_bytes < nbytes):
                    self._launch(group)
                    group, room_bytes = [], MOST_TOGETHER
                group.append(content)
                room_bytes -= nbytes
                continue
            limit = self.in_flight.limit
            if nbytes > limit or place.is_now or (place.may_be_now and self.in_flight.used + nbytes > limit):
                self._capture_now(content)
                continue
            lease = self.in_flight.try_acquire(nbytes)
            lease = lease or self.in_flight.acquire(nbytes, timeout_s=self.writers.timeout_s)
            if lease is None:
                raise self._given_up(f"{place.label}: {self.in_flight.used} bytes have been on their way for")
            try:
                if content.is_streamed:
                    self._launch([content])
                # Weakly: a handle that is dropped before its turn takes its work with it. The lease ends with the work,
                # also when its thread is lost: its bytes are written off.
                self.writers.submit(partial(_capture, ref(content)), ended=lease.release)
            except BaseException:
                lease.release()
                raise
        if group:
            self._launch(group)

    def _launch(self, group: list[Any]) -> None:
        self.shares.saw(sum(map(_nbytes, group)))
        group[0].launch(group)

    def _capture_now(self, content: Any) -> None:
        place, nbytes = content.place, content.nbytes
        if content.is_streamed:
            self._launch([content])
        if not place.may_hang:
            content.capture()
        else:
            captured = self.writers.submit(partial(_capture, ref(content)))
            try:
                captured.outcome(self.writers.timeout_s)
            except TimeoutError as error:
                raise self._given_up(f"{place.label}: storing {nbytes} bytes took longer than") from error
        if nbytes > self.in_flight.limit:
            content.raise_store_failure()

    def make_room(self, spare_bytes: Callable[[], int]) -> None:
        """Wait until no bytes are lacking, or nothing is on its way any more."""
        while (spare := spare_bytes()) < 0 < (used := self.in_flight.used):
            if not self.in_flight.wait(max(used + spare, 0), timeout_s=self.writers.timeout_s):
                break

    def drain(self) -> None:
        """Wait until everything has been captured, for ``timeout_s`` at most."""
        if not self.in_flight.wait(0, timeout_s=self.writers.timeout_s):
            raise self._given_up(f"{self.in_flight.used} bytes are still on their way after")
        if self.transfers is not None:
            self.transfers.drain()

    def _given_up(self, took: str) -> StoreError:
        self.writers.abandon()
        cure = "the device hangs, or timeout_s is too short for it"
        return StoreError(f"{took} {self.writers.timeout_s} seconds; {cure}")


def _capture(content: ref[Content]) -> None:
    """Capture a content, if it is still needed."""
    if (wanted := content()) is not None:
        wanted.capture()
