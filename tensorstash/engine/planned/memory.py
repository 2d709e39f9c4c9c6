"""How much memory there is for saved tensors, by what a budget says."""

import os
from typing import Any

from tensorstash.abilities import Backend, SupportsMemoryUse
from tensorstash.errors import BackendError
from tensorstash.policies.budget import Budget

_OUT_OF_MEMORY = "out of memory", "can't allocate memory", "not enough memory"
"""What the allocators of frameworks say."""


class MemoryInUse:
    """What a budget leaves for saved tensors.

    Args:
        policy: the budget.
        backend: tells how much memory of a device is in use.
    """

    def __init__(self, policy: Budget, backend: Backend[Any]) -> None:
        self._policy = policy
        self._backend = backend
        self._total: int | None = None
        self._others = 0
        """Most bytes in use when a step began: nothing was saved then."""

    def begin(self, device: str) -> None:
        """Look at memory where a step begins.

        Args:
            device: of its first tensor.

        Raises:
            BackendError: it cannot be told how much memory of the device is in use.
        """
        policy = self._policy
        if policy.size is not None:
            return
        used, free = self._use(device)
        if self._total is None:
            self._total = int(used + free) if policy.total is None else int(policy.total)
            self._total = int(self._total * (1 - policy.margin))
        self._others = max(self._others, used)

    def room(self, small: int) -> tuple[int, int]:
        """Return the bytes of the budget, and those among them that no decision changes.

        Args:
            small: bytes of tensors that are too small to be looked at.
        """
        if self._policy.size is not None:
            return int(self._policy.size), small
        return self._total or 0, self._others + small

    def _use(self, device: str) -> tuple[int, int]:
        if device == "cpu":
            return _process_memory()
        if not isinstance(self._backend, SupportsMemoryUse):
            raise BackendError(
                f"budget: {self._backend.name} does not tell how much memory of {device} is in use; say how much "
                f"saved tensors may take instead: Budget(size)"
            )
        return self._backend.memory_use(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in text for sign in _OUT_OF_MEMORY)


def _process_memory() -> tuple[int, int]:
    """Return the resident bytes of this process, and those that are free on the machine or in its container."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration) as error:
        raise BackendError(
            "budget: this system does not tell how much memory a process takes; say how much saved tensors may take "
            "instead: Budget(size)"
        ) from error
    return used, min(free, _container_free(used))


def _container_free(used: int) -> int:
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            current = int(file.read())
    except OSError:
        return 2**62
    return 2**62 if limit == "max" else max(int(limit) - max(current, used), 0)
