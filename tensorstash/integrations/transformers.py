"""The ``Trainer`` of Transformers, and all that derive from it: those of TRL, with PEFT's adapters or without.

One line::

    trainer = Trainer(model, args, train_dataset=data, callbacks=[StashCallback("compress | disk_spill")])
"""

from typing import Any

from tensorstash.integrations.training import StashesTraining, needs

with needs("transformers", "tensorstash[transformers]"):
    from transformers import TrainerCallback


class StashCallback(StashesTraining, TrainerCallback):
    """Trains under a policy: the model is wrapped when training begins, however the trainer has prepared it.

    What the policy does per step goes into ``log_history`` and to what prints. The reporters (TensorBoard, W&B) have
    their turn before any callback of the user: for them, derive the trainer from :class:`LogsStash` too.

    Arguments and errors are those of :class:`~tensorstash.integrations.training.Training`.
    """

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
