"""What all callbacks share: the policy that a model trains under, and the numbers that its trainer logs."""

from contextlib import AbstractContextManager
from types import TracebackType

from tensorstash.api import DEFAULT_LIMITS, DEFAULT_MIN_BYTES, Wrapped, policy_of, wrap
from tensorstash.engine.stats import Stats
from tensorstash.errors import MissingDependencyError
from tensorstash.policies.limits import Limits, limits_of
from tensorstash.policies.plan import HookPolicy
from tensorstash.sizes import parse_bytes

_MIB = 2.0**20

_PREFIX = "tensorstash/"
_NAMES = ("stashed_MiB", "saved_MiB", "kept_MiB", "peak_payload_MiB", "out_s", "back_s")


class Training:
    """A policy for each training of a model: wrapped when it begins, and unwrapped when it ends.

    Args:
        policy: what happens to each saved tensor; also one line of text, as of :func:`~tensorstash.parse`.
        limits: byte budgets of what is under way, and the timeout.
        min_bytes: tensors below this size are kept; bytes, or text such as ``"1MiB"``.

    Raises:
        ConfigError: one of them is none; said here, and not when training begins.

    >>> import tensorstash.reference as ref
    >>> training = Training("compress", min_bytes=0)
    >>> model = ref.nn.GELU()
    >>> training.begin(model)
    >>> _ = model(ref.ones((64,), requires_grad=True) * 2.0)
    >>> training.end()
    >>> training.scalars()["tensorstash/stashed_MiB"] > 0
    True
    """

    def __init__(
        self,
        policy: HookPolicy | str,
        *,
        limits: Limits = DEFAULT_LIMITS,
        min_bytes: int | str = DEFAULT_MIN_BYTES,
    ) -> None:
        self._policy = policy_of(policy, "StashCallback")
        self._limits = limits_of(limits, "StashCallback")
        self._min_bytes = parse_bytes(min_bytes, path="StashCallback.min_bytes")
        self._handle: Wrapped | None = None
        self._logged = Stats()
        self._steps = 0

    def begin(self, model: object) -> None:
        """Wrap a model; a training that an error has ended before is forgotten.

        Raises:
            ConfigError, BackendError, StoreError: as :func:`~tensorstash.wrap` does.
        """
        self.end()
        self._handle = wrap(model, self._policy, limits=self._limits, min_bytes=self._min_bytes)
        self._logged, self._steps = Stats(), 0

    def end(self) -> None:
        """Unwrap the model; idempotent. The statistics stay."""
        if self._handle is not None:
            self._handle.remove()

    def step(self) -> None:
        """Count a step, so that what is logged is per step."""
        self._steps += 1

    def stats(self) -> Stats:
        """Return what was done in the training that runs, or in the last one."""
        return Stats() if self._handle is None else self._handle.stats()

    @staticmethod
    def names() -> list[str]:
        """Return the names of all :meth:`scalars`."""
        return [_PREFIX + name for name in _NAMES]

    def scalars(self) -> dict[str, float]:
        """Return what a step has done, on average since the last call, as loggers take it; {} if nothing was."""
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
        return dict(zip(self.names(), numbers, strict=True))

    def __getstate__(self) -> dict[str, object]:
        # What runs belongs to this process: a copy elsewhere begins its own.
        return {**vars(self), "_handle": None, "_logged": Stats()}


class StashesTraining:
    """What the callbacks of all libraries have in common: put in front of the library's own class.

    Arguments and errors are those of :class:`Training`.
    """

    def __init__(
        self,
        policy: HookPolicy | str,
        *,
        limits: Limits = DEFAULT_LIMITS,
        min_bytes: int | str = DEFAULT_MIN_BYTES,
    ) -> None:
        super().__init__()
        self._training = Training(policy, limits=limits, min_bytes=min_bytes)

    def stats(self) -> Stats:
        """Return what was done in the training that runs, or in the last one."""
        return self._training.stats()

    def scalars(self) -> dict[str, float]:
        """Return what a step has done, on average since the last call, as loggers take it; {} if nothing was."""
        return self._training.scalars()


class needs(AbstractContextManager[None]):  # noqa: N801  (reads as a statement)
    """A block that imports a library; where it is missing, the error names the command that installs it.

    Args:
        library: as pip knows it.
        command: the arguments of ``pip install``.

    >>> with needs("no_such_library", "no-such-library"):
    ...     import no_such_library
    Traceback (most recent call last):
    tensorstash.errors.MissingDependencyError: no_such_library is not installed; run: pip install 'no-such-library'
    """

    def __init__(self, library: str, command: str) -> None:
        self._library = library
        self._command = command

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if isinstance(error, ModuleNotFoundError):
            missing = (error.name or self._library).partition(".")[0]
            raise MissingDependencyError(f"{missing} is not installed; run: pip install '{self._command}'") from error
