"""Loops of your own with Accelerate.

One line, in place of ``accelerator.prepare(model, optimizer, loader)``::

    model, optimizer, loader = StashCallback("compress | disk_spill").prepare(accelerator, model, optimizer, loader)
"""

from typing import Any

from tensorstash.api import DEFAULT_LIMITS, DEFAULT_MIN_BYTES
from tensorstash.engine.limits import Limits
from tensorstash.engine.stats import Stats
from tensorstash.errors import ConfigError
from tensorstash.integrations.training import Training, needs
from tensorstash.policies.plan import HookPolicy

with needs("accelerate", "tensorstash[accelerate]"):
    from accelerate import Accelerator


class StashCallback:
    """Prepares a model as Accelerate does, and runs its calls under a policy.

    Args:
        policy: what happens to each saved tensor; also one line of text, as of :func:`~tensorstash.parse`.
        limits: byte budgets of what is under way, and the timeout.
        min_bytes: tensors below this size are kept; bytes, or text such as ``"1MiB"``.

    Raises:
        ConfigError: one of them is none.
    """

    def __init__(
        self,
        policy: HookPolicy | str,
        *,
        limits: Limits = DEFAULT_LIMITS,
        min_bytes: int | str = DEFAULT_MIN_BYTES,
    ) -> None:
        self._training = Training(policy, limits=limits, min_bytes=min_bytes)
        self._accelerator: Any = None

    def prepare(self, accelerator: Any, model: Any, *others: Any, **options: Any) -> Any:
        """Return what ``accelerator.prepare(model, *others)`` does, with the model wrapped.

        Args:
            accelerator: an ``Accelerator``.
            model: what is trained, unwrapped by :meth:`remove`.
            others: optimizers, loaders and schedulers, as ``prepare`` takes them.
            options: of ``prepare``, such as ``device_placement``.

        Raises:
            ConfigError: the accelerator is none.
            BackendError: the model is none.
        """
        if not isinstance(accelerator, Accelerator):
            raise ConfigError(
                f"StashCallback.prepare: got a {type(accelerator).__qualname__} first, expected the Accelerator, then "
                f"the model: prepare(accelerator, model, optimizer, loader)"
            )
        self._training.begin(model)
        self._accelerator = accelerator
        return accelerator.prepare(model, *others, **options)

    def stats(self) -> Stats:
        """Return what was done since :meth:`prepare`."""
        return self._training.stats()

    def scalars(self) -> dict[str, float]:
        """Return what was done since the last call, for ``accelerator.log({"loss": loss, **stash.scalars()})``."""
        return self._training.scalars()

    def log(self, step: int | None = None) -> None:
        """Send :meth:`scalars` to the accelerator's trackers.

        Args:
            step: as of ``accelerator.log``.
        """
        self._accelerator.log(self.scalars(), step=step)

    def remove(self) -> None:
        """Unwrap the model; idempotent."""
        self._training.end()
