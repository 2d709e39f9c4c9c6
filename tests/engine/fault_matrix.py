"""Every fault, every store, every kind of limits: what has to come of each, and which of them cannot exist."""

import errno
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import planted_faults as faults
from failing_process import killed, no_descriptor, no_directory, no_new_thread, no_permission, shut_down
from planted_faults import Faulty, Plant, calls, end_the_thread, held, refuse, used_up

import tensorstash as ts
from tensorstash.errors import CodecError, CorruptDataError, SlotGoneError, StashError, StoreError, StoreFullError
from tensorstash.host.pages import BLOCK
from tensorstash.policies import Encode, StoreIn
from tensorstash.protocols import StoreConfig
from tensorstash.stores import Disk, Memory
from tensorstash.testing.faults import CodecFault, FaultyCodec
from tensorstash.testing.labs import BACKENDS
from tests.samples import pairwise

SHAPE = (48, 64)  # of every payload: three blocks of a disk in float32, so that there is a middle
NBYTES = 3 * BLOCK

STORES: Mapping[str, Callable[[str, str], StoreConfig]] = {
    "memory": lambda first, last: Memory(budget=8 * NBYTES),
    "disk direct": lambda first, last: Disk(directory=last, budget=8 * NBYTES),
    "disk buffered": lambda first, last: Disk(directory=last, budget=8 * NBYTES, direct=False),
    "both": lambda first, last: Memory(budget=NBYTES, then=Disk(directory=last, budget=8 * NBYTES)),
}
"""What is opened over two directories; faults of directories strike the last one."""

LIMITS: Mapping[str, ts.Limits] = {
    "asynchronous": ts.Limits(in_flight=2 * NBYTES, ahead=2 * NBYTES, timeout_s=60),
    "synchronous": ts.Limits(in_flight=0, ahead=0, timeout_s=60),
}

PATIENCE_S = 0.05  # how long a session waits that has to find out that a device hangs, in seconds
ANSWERS_S = 4 * PATIENCE_S  # when a device that hangs answers after all, so that a test ends, in seconds
NO_DEVICE = {"memory": "it has no device: what is put is kept as the array it is"}
NO_FILES = {"memory": "it has no directory and no file"}
NOT_READ_AHEAD = {"memory": "what is in memory is not read ahead of backward"}
NO_WORKERS = {"synchronous": "no worker runs: all is done inside pack and unpack"}


@dataclass(frozen=True)
class Fault:
    """One way to fail.

    Args:
        plant: the fault is there during this context.
        ends: the class of the error; None if the step gives the right gradients all the same.
        says: what the message matches besides its place.
        impossible: stores and limits that cannot fail this way, and why.
        at_open: the error comes before there is a session, and so names no stage and no tensor.
        hangs: where the session has a short timeout.
        codec: what is in front of the store.
        verifies: whether the store checks what it gives back, or leaves that to the engine.
    """

    plant: Plant
    ends: type[StashError] | None
    says: str = ""
    impossible: Mapping[str, str] = field(default_factory=dict)
    at_open: bool = False
    hangs: Literal["put", "get"] | None = None
    codec: CodecFault | None = None
    verifies: bool = True

    @property
    def next_shape(self) -> tuple[int, int]:
        """Of the step after the fault; a codec fails at one shape for ever."""
        return SHAPE if self.codec is None else (32, 64)

    def policy(self, store: Faulty) -> ts.HookPolicy:
        if self.codec is None:
            return StoreIn(store)
        return Encode(FaultyCodec(fault=self.codec, numel=SHAPE[0] * SHAPE[1])) | StoreIn(store)

    @property
    def timeout_s(self) -> float:
        """How long the session waits from where the fault strikes on, in seconds."""
        return 60 if self.hangs is None else PATIENCE_S


def _of_a_device(plant: Plant, ends: type[StashError] | None, says: str = "", **more: Any) -> Fault:
    return Fault(plant, ends, says, NO_DEVICE, **more)


FAULTS: Mapping[str, Fault] = {
    "budget used up at record 1": Fault(used_up(at=1), StoreFullError, "budget"),
    "budget used up at record 4": Fault(used_up(at=4), StoreFullError, "budget"),
    "device full at growth 1": _of_a_device(calls("reserve", refuse(errno.ENOSPC)), StoreFullError, "ENOSPC"),
    "device full at write 1": _of_a_device(calls("write", refuse(errno.ENOSPC)), StoreFullError, "ENOSPC"),
    "device full at write 3": _of_a_device(calls("write", refuse(errno.ENOSPC), at=3), StoreFullError, "ENOSPC"),
    "quota used up": _of_a_device(calls("reserve", refuse(errno.EDQUOT)), StoreFullError, "EDQUOT"),
    "short writes": _of_a_device(calls("write", faults.move_one_block), None),
    "short write, and no more": _of_a_device(
        calls("write", faults.move_one_block_and_no_more), StoreError, "and then no more"
    ),
    "short reads": _of_a_device(calls("read", faults.move_one_block), None),
    "short read, and no more": _of_a_device(
        calls("read", faults.move_one_block_and_no_more), CorruptDataError, "ends at byte"
    ),
    "torn record": _of_a_device(calls("write", faults.tear), CorruptDataError, "checksum"),
    "flipped bit": _of_a_device(calls("write", faults.flip_a_bit, at=3), CorruptDataError, "checksum"),
    "lost write": _of_a_device(calls("write", faults.lose), CorruptDataError, "checksum"),
    "I/O error at put": _of_a_device(calls("write", refuse(errno.EIO), at=2), StoreError, "EIO"),
    "I/O error at get": _of_a_device(calls("read", refuse(errno.EIO), at=2), StoreError, "EIO"),
    "slow at put": _of_a_device(held("write", opens=True), None),
    "slow at get": _of_a_device(held("read", opens=True), None),
    "hangs at put": _of_a_device(held("write", longest_s=ANSWERS_S), StoreError, "hangs", hangs="put"),
    "hangs at get": _of_a_device(held("read", longest_s=ANSWERS_S), StoreError, "hangs", hangs="get"),
    "hangs at reading ahead": Fault(
        held("read", prefix="tensorstash-reader"), StoreError, "hangs", NOT_READ_AHEAD | NO_WORKERS, hangs="get"
    ),
    "a store's own exception at put": Fault(calls("put", refuse(errno.ENXIO), at=2), StoreError, "OSError"),
    "a store's own exception at get": Fault(calls("get", refuse(errno.ENXIO), at=2), StoreError, "OSError"),
    "a store that returns a byte too few": Fault(calls("get", faults.lack_a_byte), CorruptDataError, "gave back"),
    "a store that alters a byte": Fault(calls("get", faults.alter_a_byte), CorruptDataError, "altered", verifies=False),
    "a store that has lost the slot": Fault(calls("get", faults.lose_the_slot), SlotGoneError, "deleted"),
    "no thread can be started": Fault(no_new_thread, None, impossible=NO_WORKERS),
    "no more work is taken": Fault(shut_down, None, impossible=NO_WORKERS),
    "writer killed while it waits": Fault(killed("writer"), None, impossible=NO_WORKERS),
    "writer killed at work": Fault(
        calls("put", end_the_thread, prefix="tensorstash-writer"), None, impossible=NO_WORKERS
    ),
    "reader killed while it waits": Fault(killed("reader"), None, impossible=NO_WORKERS),
    "reader killed at work": Fault(
        calls("get", end_the_thread, prefix="tensorstash-reader"), StoreError, "was killed", NOT_READ_AHEAD | NO_WORKERS
    ),
    "no directory at open": Fault(no_directory, StoreError, "does not exist", NO_FILES, at_open=True),
    "no permission at open": Fault(no_permission, StoreError, "may not be written to", NO_FILES, at_open=True),
    "out of descriptors at open": Fault(no_descriptor, StoreError, "EMFILE", NO_FILES, at_open=True),
    "directory removed": Fault(no_directory, None, impossible=NO_FILES),
    "permission withdrawn": Fault(no_permission, None, impossible=NO_FILES),
    "out of descriptors": Fault(no_descriptor, None, impossible=NO_FILES),
    **{
        f"codec: {fault}": Fault(lambda site: nullcontext(), CodecError, fault.partition("_")[0], codec=fault)
        for fault in get_args(CodecFault)
    },
}


class Cell(NamedTuple):
    fault: str
    store: str
    limits: str
    backend: str

    def __str__(self) -> str:
        return ", ".join(self)


def exists(fault: str, store: str, limits: str, backend: str) -> bool:
    """Return whether a store can fail this way under these limits."""
    return not {store, limits} & FAULTS[fault].impossible.keys()


CELLS = [Cell(*names) for names in pairwise(FAULTS, STORES, LIMITS, BACKENDS, exists=exists)]
