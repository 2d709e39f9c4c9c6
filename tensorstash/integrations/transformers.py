"""The ``Trainer`` of Transformers, and all that derive from it: those of TRL, with PEFT's adapters or without.

One line::

    trainer = Trainer(model, args, train_dataset=data, callbacks=[StashCallback("compress | disk_spill")])
"""

from typing import Any

from tensorstash.api import DEFAULT_LIMITS, DEFAULT_MIN_BYTES
from tensorstash.engine.limits import Limits
from tensorstash.engine.stats import Stats
from tensorstash.integrations.training import Training, needs
from tensorstash.policies.plan import HookPolicy

with needs("transformers", "tensorstash[transformers]"):
    from transformers import TrainerCallback


class StashCallback(TrainerCallback):
    """Trains under a policy: the model is wrapped when training begins, however the trainer has prepared it.

    What the policy does per step goes into ``log_history`` and to what prints. The reporters (TensorBoard, W&B) have
    their turn before any callback of the user: for them, derive the trainer from :class:`LogsStash` too.

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
        """Return what was done in the training that runs, or in the last one."""
        return self._training.stats()

    def scalars(self) -> dict[str, float]:
        """Return what a step has done, on average since the last call."""
        return self._training.scalars()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wrap the model."""
        self._training.begin(kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the step."""
        self._training.step()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add what a step has done to what is logged about training."""
        if "loss" in kwargs["logs"]:
            scalars = self._training.scalars()
            kwargs["logs"].update(scalars)
            state.log_history[-1].update(scalars)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Unwrap the model."""
        self._training.end()


class LogsStash:
    """Put in front of a trainer, sends what its :class:`StashCallback` did per step to every reporter.

    ::

        class LoggedTrainer(LogsStash, Trainer): ...
    """

    callback_handler: Any

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log also what a step has done under the policy."""
        if "loss" in logs:
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, StashCallback):
                    logs.update(callback.scalars())
        super().log(logs, *args, **kwargs)  # type: ignore[misc]
