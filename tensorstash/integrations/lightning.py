"""The ``Trainer`` of Lightning.

One line::

    trainer = lightning.Trainer(callbacks=[StashCallback("compress | disk_spill")])
"""

from typing import Any

from tensorstash.api import DEFAULT_LIMITS, DEFAULT_MIN_BYTES
from tensorstash.engine.limits import Limits
from tensorstash.engine.stats import Stats
from tensorstash.integrations.training import Training, needs
from tensorstash.policies.plan import HookPolicy

with needs("lightning", "tensorstash[lightning]"):
    from lightning.pytorch import Callback


class StashCallback(Callback):
    """Fits under a policy, and logs what it does per step to every logger of the trainer.

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

    def stats(self) -> Stats:
        """Return what was done in the fit that runs, or in the last one."""
        return self._training.stats()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Wrap the module: its call, and its ``training_step``."""
        self._training.begin(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log what the batch has done."""
        self._training.step()
        scalars = self._training.scalars()
        if scalars:
            pl_module.log_dict(scalars, on_step=True, on_epoch=False)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Unwrap the module."""
        self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Unwrap the module."""
        self._training.end()
