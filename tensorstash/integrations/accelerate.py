"""Loops of your own with Accelerate.

One line, in place of ``accelerator.prepare(model, optimizer, loader)``::

    model, optimizer, loader = StashCallback("disk_spill").prepare(accelerator, model, optimizer, loader)
"""

from typing import Any

from tensorstash.errors import ConfigError
from tensorstash.integrations.training import StashesTraining, needs

with needs("accelerate"):
    from accelerate import Accelerator


class StashCallback(StashesTraining):
    """Prepares a model as Accelerate does, and runs its calls under a policy.

    Arguments and errors are those of :class:`~tensorstash.integrations.training.StashesTraining`.
    """

    _accelerator: Any = None

    def prepare(self, accelerator: Any, model: Any, *others: Any, **options: Any) -> Any:
        """Return the result of ``accelerator.prepare(model, *others)``, with the model wrapped.

        Args:
            accelerator: an ``Accelerator``.
            model: trained under the policy, unwrapped by :meth:`remove`.
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
        self._begin(model)
        self._accelerator = accelerator
        return accelerator.prepare(model, *others, **options)

    def log(self, step: int | None = None) -> None:
        """Send :meth:`scalars` to the accelerator's trackers, as ``accelerator.log`` does."""
        self._accelerator.log(self.scalars(), step=step)

    def remove(self) -> None:
        """Unwrap the model; idempotent."""
        self._end()
