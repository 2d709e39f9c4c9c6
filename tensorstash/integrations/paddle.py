"""``paddle.Model``, the trainer that comes with PaddlePaddle.

One line::

    model.fit(data, callbacks=[StashCallback("compress | disk_spill")])
"""

from typing import Any

from tensorstash.api import DEFAULT_LIMITS, DEFAULT_MIN_BYTES
from tensorstash.engine.limits import Limits
from tensorstash.engine.stats import Stats
from tensorstash.integrations.training import Training, needs
from tensorstash.policies.plan import HookPolicy

with needs("paddle", "tensorstash[paddle]"):
    from paddle.callbacks import Callback


class StashCallback(Callback):
    """Fits under a policy, and adds what it does per step to what the callbacks behind it log.

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
        super().__init__()
        self._training = Training(policy, limits=limits, min_bytes=min_bytes)

    def stats(self) -> Stats:
        """Return what was done in the fit that runs, or in the last one."""
        return self._training.stats()

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
