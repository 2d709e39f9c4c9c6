"""Where the codecs of the host run: at once on all cores, or behind the computation."""

from typing import Any, Protocol

from tensorstash.abilities import Backend, SupportsComputeThreads
from tensorstash.engine.limits import Limits
from tensorstash.host.budget import ByteBudget
from tensorstash.kernels.team import Team, cores


class Route(Protocol):
    """What has to be known of a route."""

    is_computed: bool
    """Whether codecs run on the host, and the result stays in its memory, so that all of the way is computing."""
    on_all_cores: bool
    """Whether, besides, each codec shares out its work."""


class Encoding:
    """Decides for each saved tensor whether its codecs run in the hook that saves or asks for it. Thread-safe.

    Where the framework computes on every core, a thread behind it takes one away, and the others wait for that one at
    the end of each operation; in the hook they are all free. Where a core is to spare, the work costs no time behind
    the computation, as long as it keeps up; when it does not, the hook would only wait, and helps instead. So nothing
    has to be known of the machine but whether the framework's threads fill it.

    This is for codecs that share out their work (``on_all_cores``) and payloads in host memory: a disk is waited for,
    which takes no core.

    Args:
        backend: the framework's adapter.
        limits: of the session; ``encode`` may force either.
    """

    __slots__ = ("_is_auto", "_now", "shares_out", "team")

    def __init__(self, backend: Backend[Any], limits: Limits) -> None:
        self.team = Team(lambda: 0)
        if isinstance(backend, SupportsComputeThreads):
            self.team = Team(backend.compute_threads, backend.compute_library())
        """The threads that the framework computes with."""
        self._is_auto = limits.encode == "auto"
        self._now = limits.encode == "now"
        self.shares_out = True
        """Whether the team has more threads than the one that saves tensors, as far as is known."""

    def look(self) -> None:
        """Look again how many threads the framework computes with, and how many cores there are."""
        self.shares_out = self.team.helps
        if self._is_auto:
            threads = self.team.threads()
            self._now = threads >= cores() and (threads == 1 or self.shares_out)

    def is_now(self, route: Route) -> bool:
        """Whether to encode and decode in the hook."""
        return self._now and (route.on_all_cores if self._is_auto else route.is_computed)

    def is_now_or_full(self, route: Route, nbytes: int, in_flight: ByteBudget) -> bool:
        """Whether to encode in the hook: for that reason, or what would find no room behind.

        Args:
            route: of a tensor.
            nbytes: of the tensor.
            in_flight: bytes that wait behind the computation.
        """
        if nbytes > in_flight.limit or self.is_now(route):
            return True
        may_help = self._is_auto and route.on_all_cores and self.team.helps
        return may_help and in_flight.used + nbytes > in_flight.limit
