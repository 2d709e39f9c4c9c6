from tensorstash.host.arrays import Array
from tensorstash.stores.disk.syscalls import Syscalls


class AlteringCalls(Syscalls):
    """A device that flips one bit in the first byte of everything read."""

    def read(self, fd: int, out: Array, offset: int) -> int:
        count = super().read(fd, out, offset)
        out[:1] ^= 1
        return count
