"""Stores: where payloads live. Each file holds a frozen configuration and the live store that it opens."""

from tensorstash.stores.disk.store import Disk
from tensorstash.stores.memory import Memory

__all__ = ["Disk", "Memory"]
