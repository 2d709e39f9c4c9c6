"""``paddle.Model``, the trainer that comes with PaddlePaddle."""

from typing import Any

from tensorstash.integrations.training import NAMES, StashesTraining, needs

with needs("'tensorstash[paddle]'"):
    from paddle.callbacks import Callback


class StashCallback(StashesTraining, Callback):
    """Fits under a policy, and adds its numbers per step to the logs of the callbacks behind it.

    Arguments and errors are those of :class:`~tensorstash.integrations.training.StashesTraining`.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        """Wrap the network, and tell the loggers of more metrics."""
        self._begin(self.model.network)
        # Callbacks that have the list already (the bar of progress, VisualDL, W&B) log its names as they come.
        self.params["metrics"] += [name for name in NAMES if name not in self.params["metrics"]]

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self._step()
        if logs is not None:
            logs.update(self.scalars())

    def on_train_end(self, logs: Any = None) -> None:
        self._end()
