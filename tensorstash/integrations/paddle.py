"""``paddle.Model``, the trainer that comes with PaddlePaddle.

One line::

    model.fit(data, callbacks=[StashCallback("compress | disk_spill")])
"""

from typing import Any

from tensorstash.integrations.training import StashesTraining, needs

with needs("paddle", "tensorstash[paddle]"):
    from paddle.callbacks import Callback


class StashCallback(StashesTraining, Callback):
    """Fits under a policy, and adds what it does per step to what the callbacks behind it log.

    Arguments and errors are those of :class:`~tensorstash.integrations.training.Training`.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        """Wrap the network, and tell the loggers of more metrics."""
        self._training.begin(self.model.network)
        # What has the list already (the bar of progress, VisualDL, W&B) logs those of it that it is given.
        self.params["metrics"] += [name for name in self._training.names() if name not in self.params["metrics"]]

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        """Add what the batch has done."""
        self._training.step()
        if logs is not None:
            logs.update(self._training.scalars())

    def on_train_end(self, logs: Any = None) -> None:
        """Unwrap the network."""
        self._training.end()
