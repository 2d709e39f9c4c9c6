"""The duties of every store, as one class of tests."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import pytest

from tensorstash.config import to_dict
from tensorstash.errors import CorruptDataError, SlotGoneError, StoreError, StoreFullError
from tensorstash.host.arrays import Array, borrowed
from tensorstash.policies import StoreIn
from tensorstash.protocols import Store, StoreConfig
from tensorstash.testing.config_suite import ConfigSuite
from tensorstash.testing.harness import reference_counting_only
from tensorstash.testing.layouts import assert_same_bits

SIZES = (0, 1, 7, 63, 4095, 4096, 4097, 100_000, (1 << 20) + 3, (5 << 20) + 8)
"""Lengths of records, in bytes."""

_DIES = """
import json, os, signal, sys
import numpy as np
from tensorstash import from_dict
store = from_dict(json.loads(sys.argv[1])).store.open()
slots = [store.put(np.full(9000, n, np.uint8)) for n in range(20)]
assert store.get(slots[3])[0] == 3
os.kill(os.getpid(), signal.SIGKILL)
"""


class StoreSuite(ConfigSuite):
    """Every promise of a store; a test is a subclass that says how to describe one::

        class TestMyStore(StoreSuite):
            def config(self, directory):
                return MyStore()

    Attributes:
        is_registered: whether configurations know the store by name.
        refused: fields, by name, with values that must be refused when the description is built.
        timeout_s: how long a deadlock is waited for, in seconds.
    """

    protocol, policy, group = StoreConfig, StoreIn, "stores"
    attribute = ("tier", ("memory", "disk"))
    timeout_s: ClassVar[float] = 60.0

    def with_budget(self, directory: str, budget_bytes: int) -> StoreConfig | None:
        """Return a description with a budget, or None if the store has no such thing."""
        del directory, budget_bytes
        return None

    def on_a_device_that_alters(self, directory: str) -> Store | None:
        """Return a store whose medium alters a bit of every record, or None where memory is the medium."""
        del directory
        return None

    @pytest.fixture
    def store(self, tmp_path: os.PathLike[str]) -> Iterator[Store]:
        """An open store."""
        store = self.config(os.fspath(tmp_path)).open()
        yield store
        store.close()

    def test_what_was_put_comes_back(self, store: Store) -> None:
        payloads = [payload(size) for size in (*SIZES, 7, 7)]
        payloads += [borrowed(payload(70_000)[start:]) for start in (1, 16, 64, 512)]
        slots = [store.put(array if array.base is not None else array.copy()) for array in payloads]
        assert len(set(slots)) == len(slots), "a slot was given twice"
        for _ in range(2):
            for slot, array in zip(slots[::-1], payloads[::-1], strict=True):
                found = store.get(slot)
                assert_same_bits(found, array, f"record of {array.size} bytes")
                if found.flags.writeable:
                    found[...] = 0

    def test_what_it_does_not_retain_may_change_after_put(self, store: Store) -> None:
        source = payload(5000)
        slot = store.put(source)
        if store.retains:
            source = source.copy()
        source[:] = 0
        assert_same_bits(store.get(slot), payload(5000), "a record after its source changed")

    def test_what_it_hands_out_outlives_the_record(self, store: Store) -> None:
        slot = store.put(payload(3 << 20))
        array, part = store.get(slot), store.get(slot)[1000:2000]
        store.delete(slot)
        others = [store.get(store.put(payload(3 << 20, seed=seed))) for seed in (1, 2)]
        store.close()
        assert_same_bits(array, payload(3 << 20), "an array whose record and store are gone")
        assert_same_bits(part, payload(3 << 20)[1000:2000], "a part of an array whose record and store are gone")
        assert_same_bits(others[0], payload(3 << 20, seed=1), "an array that was read before another")

    def test_a_slot_of_nobody_is_gone(self, store: Store) -> None:
        deleted = store.put(payload(100))
        store.delete(deleted)
        for nobody in (object(), 0, "slot", None, deleted):
            with pytest.raises(SlotGoneError):
                store.get(nobody)
            store.delete(nobody)

    def test_closing_is_final_and_idempotent(self, store: Store) -> None:
        slot = store.put(payload(1 << 20))
        together = threading.Barrier(5)

        def read() -> None:
            together.wait(self.timeout_s)
            with suppress(SlotGoneError):
                assert_same_bits(store.get(slot), payload(1 << 20), "a record that was read while its store closed")

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read) for _ in range(4)]
            together.wait(self.timeout_s)
            store.close()
        for reader in readers:
            reader.result()
        store.close()
        with pytest.raises(SlotGoneError):
            store.get(slot)
        with pytest.raises(StoreError):
            store.put(payload(100))
        for _ in range(2):
            store.delete(slot)

    def test_two_stores_of_one_description_share_nothing(self, tmp_path: os.PathLike[str]) -> None:
        config = self.config(os.fspath(tmp_path))
        first, second = config.open(), config.open()
        slot, other = first.put(payload(100)), second.put(payload(100, seed=1))
        with pytest.raises(SlotGoneError):
            second.get(slot)
        first.close()
        assert_same_bits(second.get(other), payload(100, seed=1), "the other store")
        second.close()

    def test_threads_do_not_disturb_one_another(self, store: Store) -> None:
        together = threading.Barrier(4)
        shared = store.put(payload(300_000))

        def work(worker: int) -> None:
            together.wait(self.timeout_s)
            rng = np.random.default_rng(worker)
            held: list[tuple[object, Array]] = []
            for step in range(40):
                array = payload(int(rng.integers(0, 9000)), seed=worker * 1000 + step)
                held.append((store.put(array.copy()), array))
                slot, expected = held[int(rng.integers(0, len(held)))]
                assert_same_bits(store.get(slot), expected, f"record of worker {worker}")
                assert_same_bits(store.get(shared), payload(300_000), "a record that all threads read")
                if len(held) > 8:
                    slot, _ = held.pop(int(rng.integers(0, len(held))))
                    store.delete(slot)

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, worker) for worker in range(4)]:
                done.result()

    def test_delete_may_run_inside_any_other_method(self, store: Store) -> None:
        slot = store.put(payload(500))
        doomed = iter([store.put(payload(500)) for _ in range(2000)])
        stuck: list[str] = []

        def delete_here_and_elsewhere() -> None:
            store.delete(next(doomed))
            other = threading.Thread(target=store.delete, args=(next(doomed),), daemon=True)
            other.start()
            other.join(self.timeout_s)
            stuck.extend(["a delete waits for a call that another thread is in"] * other.is_alive())

        def work() -> None:
            for call in (lambda: store.delete(store.put(payload(500))), lambda: store.get(slot)):
                line = 0
                while not stuck and _interrupt(call, delete_here_and_elsewhere, at_line=line):
                    line += 1 + line // 8

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        worker.join(2 * self.timeout_s)
        assert not worker.is_alive(), "a delete that came from a finalizer blocks for ever"
        assert not stuck, stuck[0]
        assert_same_bits(store.get(slot), payload(500), "the record beside those that finalizers deleted")

    def test_a_budget_holds_and_freed_room_is_used_again(self, tmp_path: os.PathLike[str]) -> None:
        size, budget = 8192, 8 * 8192
        config = self.with_budget(os.fspath(tmp_path), budget)
        if config is None:
            pytest.skip("the store has no budget")
        store = config.open()
        slots: list[Any] = []

        def fill() -> None:
            for n in range(100):
                slots.append(store.put(payload(size, seed=n)))

        with pytest.raises(StoreFullError):
            fill()
        assert len(slots) * size <= budget, f"{len(slots)} records of {size} bytes in a budget of {budget}"
        assert len(slots) >= 4, f"only {len(slots)} records of {size} bytes in a budget of {budget}"
        for seed, slot in enumerate(slots):
            assert_same_bits(store.get(slot), payload(size, seed=seed), "a record of a store that was full")
        for _ in range(30):
            store.delete(slots.pop(0))
            slots.append(store.put(payload(size)))
            for too_much in (size, budget + 1):
                with pytest.raises(StoreFullError):
                    store.put(payload(too_much))
        for slot in slots:
            store.delete(slot)
        for round_ in range(60):
            slots = [store.put(payload(blocks * 4096)) for blocks in ((1, 3, 2) if round_ % 2 else (2, 1, 1))]
            for slot in slots if round_ % 3 else reversed(slots):
                store.delete(slot)
        store.close()

    def test_altered_records_are_noticed(self, tmp_path: os.PathLike[str]) -> None:
        store = self.on_a_device_that_alters(os.fspath(tmp_path))
        if store is None:
            pytest.skip("the store's medium is memory")
        for size in (size for size in SIZES if size > 0):
            slot = store.put(payload(size))
            with pytest.raises(CorruptDataError):
                store.get(slot)
        store.close()

    def test_no_file_is_left(self, tmp_path: os.PathLike[str]) -> None:
        for closes in (True, False):
            before = _open_files()
            with reference_counting_only():
                store = self.config(os.fspath(tmp_path)).open()
                slots = [store.put(payload(9000, seed=n)) for n in range(5)]
                with pytest.raises(SlotGoneError):
                    store.get("no slot at all")
                if closes:
                    store.close()
                del store, slots
                assert os.listdir(tmp_path) == [], "files are left"
                assert _open_files() <= before, "files are open"

    @pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
    def test_no_file_survives_a_killed_process(self, tmp_path: os.PathLike[str]) -> None:
        if not self.is_registered:
            pytest.skip("another process cannot be told of a store that has no name")
        config = self.config(os.fspath(tmp_path))
        program = [sys.executable, "-c", _DIES, json.dumps(to_dict(StoreIn(config)))]
        done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == -9, done.stderr
        config.open().close()  # the next start may clean up
        assert os.listdir(tmp_path) == [], "files survive the process"


def payload(size: int, seed: int = 0) -> Array:
    """Return reproducible bytes in memory of their own."""
    return np.random.default_rng([seed, size]).integers(0, 256, size, np.uint8)


def _interrupt(call: Callable[[], object], finalizer: Callable[[], None], *, at_line: int) -> bool:
    """Run ``call``, and ``finalizer`` inside it before its n-th line, as the collector may; tell whether it has one."""
    lines = count()

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "line" and next(lines) == at_line:
            sys.settrace(None)
            finalizer()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return next(lines) > at_line


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
