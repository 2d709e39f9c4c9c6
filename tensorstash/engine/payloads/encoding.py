"""Where the codecs of the host run: at once on all cores, or behind the computation."""

from collections.abc import Iterable
from typing import Any

from tensorstash.abilities import Backend, SupportsComputeThreads
from tensorstash.kernels.team import Team, cores
from tensorstash.policies.limits import Limits
from tensorstash.protocols import Codec

_SHORT_BYTES = 8 * 2**20
"""Up to here a quick codec takes less than a millisecond, and handing the work to a thread about as long."""


class Encoding:
    """Whether codecs run in the hook that saves a tensor or asks for it. Thread-safe.

    Where the framework computes on every core, a thread behind it takes one away, and the others wait for that one at
    the end of each operation; in the hook they are all free. Where a core is to spare, the work costs no time behind
    the computation, as long as it keeps up; when it does not, the hook would only wait, and helps instead. So nothing
    has to be known of the machine but whether the framework's threads fill it. Work that is over sooner than a thread
    has taken it up is done in the hook everywhere.

    This is for codecs that share out their work (``on_all_cores``) and payloads in host memory: a disk is waited for,
    which takes no core.

    Args:
        backend: the framework's adapter.
        limits: of the session; ``encode`` may force either.
    """

    __slots__ = ("is_auto", "is_now", "shares_out", "team")

    def __init__(self, backend: Backend[Any], limits: Limits) -> None:
        self.team = Team(lambda: 0)
        if isinstance(backend, SupportsComputeThreads):
            self.team = Team(backend.compute_threads, backend.compute_library())
        """The threads that the framework computes with."""
        self.is_auto = limits.encode == "auto"
        """Whether that depends on the machine."""
        self.is_now = limits.encode == "now"
        """Whether what may run in the hook does."""
        self.shares_out = True
        """Whether the team has more threads than the one that saves tensors, as far as is known."""

    def look(self) -> None:
        """Look again how many threads the framework computes with, and how many cores there are."""
        self.shares_out = self.team.helps
        if self.is_auto:
            threads = self.team.threads()
            self.is_now = threads >= cores() and (threads == 1 or self.shares_out)

    def may_be_now(self, *, is_computed: bool, on_all_cores: bool) -> bool:
        """Whether the codecs of a route may run in the hook.

        Args:
            is_computed: whether they run on the host, and the result stays in its memory, so that all is computing.
            on_all_cores: whether, besides, each codec shares out its work.
        """
        return on_all_cores if self.is_auto else is_computed

    def is_short(self, codecs: Iterable[Codec], nbytes: int) -> bool:
        """Whether codecs are done with a tensor before a thread would be: each is quick, and the tensor is small.

        Args:
            codecs: of a route that may run in the hook.
            nbytes: of the tensor.
        """
        return self.is_auto and nbytes <= _SHORT_BYTES and all(getattr(codec, "is_quick", False) for codec in codecs)
