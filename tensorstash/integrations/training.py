"""The base of all callbacks: the policy that a model trains under, and the numbers that its trainer logs."""

from collections.abc import Iterator
from contextlib import contextmanager

from tensorstash.api import DEFAULT_LIMITS, Wrapped, wrap
from tensorstash.config.reading import policy_of
from tensorstash.engine.stats import Stats
from tensorstash.errors import MissingDependencyError
from tensorstash.policies.limits import Limits, explains_arguments, limits_of
from tensorstash.policies.plan import HookPolicy
from tensorstash.sizes import budget_of, parse_bytes

_MIB = 2.0**20

NAMES = [f"tensorstash/{n}" for n in ("stashed_MiB", "saved_MiB", "kept_MiB", "peak_payload_MiB", "out_s", "back_s")]
"""Names of all scalars."""


class StashesTraining:
    """The policy that a model trains under: in front of a library's own class of callbacks.

    The model is wrapped when training begins, and unwrapped when it ends. The arguments are those of
    :func:`~tensorstash.wrap`.

    Raises:
        ConfigError: one of them is none; said here, and not when training begins.
    """

    @explains_arguments
    def __init__(
        self,
        policy: HookPolicy | str = "auto",
        *,
        budget: int | str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        min_bytes: int | str | None = None,
    ) -> None:
        super().__init__()
        self._policy = policy_of(policy, "StashCallback")
        self._limits = limits_of(limits, "StashCallback")
        self._min_bytes = None if min_bytes is None else parse_bytes(min_bytes, path="StashCallback.min_bytes")
        budget_of(budget, "StashCallback.budget")
        self._budget = budget
        self._handle: Wrapped | None = None
        self._logged = Stats()
        self._steps = 0

    def stats(self) -> Stats:
        """Return the statistics of the training that runs, or of the last one."""
        return Stats() if self._handle is None else self._handle.stats()

    def scalars(self) -> dict[str, float]:
        """Return the figures of a step, averaged since the last call, as loggers take them; {} without any."""
        now = self.stats()
        done, steps = now - self._logged, max(self._steps, 1)
        if not done.seen.tensors:
            return {}
        self._logged, self._steps = now, 0
        numbers = (
            done.stashed.nbytes / steps / _MIB,
            done.saved_bytes / steps / _MIB,
            sum(tally.nbytes for tally in done.kept.values()) / steps / _MIB,
            done.peak_bytes / _MIB,
            sum(stage.seconds_in for stage in done.stages.values()) / steps,
            sum(stage.seconds_back for stage in done.stages.values()) / steps,
        )
        return dict(zip(NAMES, numbers, strict=True))

    def _begin(self, model: object) -> None:
        """Wrap a model, as :func:`~tensorstash.wrap` does; a training that an error has ended before is forgotten."""
        self._end()
        options = {"budget": self._budget, "min_bytes": self._min_bytes, "limits": self._limits}
        self._handle = wrap(model, self._policy, **options)  # type: ignore[arg-type]
        self._logged, self._steps = Stats(), 0

    def _end(self) -> None:
        """Unwrap the model; idempotent. The statistics stay."""
        if self._handle is not None:
            self._handle.remove()

    def _step(self) -> None:
        """Count a step, so that logged figures are per step."""
        self._steps += 1

    def __getstate__(self) -> dict[str, object]:
        # A wrapped model belongs to this process: a copy elsewhere begins its own.
        return {**vars(self), "_handle": None, "_logged": Stats()}


@contextmanager
def needs(command: str) -> Iterator[None]:
    """Run a block that imports a library; where it is missing, the error has the arguments of ``pip install``."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise MissingDependencyError(f"{missing} is not installed; run: pip install {command}") from error
