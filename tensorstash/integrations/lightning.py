"""The ``Trainer`` of Lightning."""

from typing import Any

from tensorstash.integrations.training import StashesTraining, needs

with needs("lightning"):
    from lightning.pytorch import Callback


class StashCallback(StashesTraining, Callback):
    """Fits under a policy, and logs its numbers per step to every logger of the trainer.

    Arguments and errors are those of :class:`~tensorstash.integrations.training.StashesTraining`.
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._step()
        scalars = self.scalars()
        if scalars:
            pl_module.log_dict(scalars, on_step=True, on_epoch=False)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end()
