"""The common part of callbacks for trainers with the interface of Transformers."""

from typing import Any

from tensorstash.integrations.training import StashesTraining


class StashesTrainer(StashesTraining):
    """Wraps the model when training begins, however the trainer has prepared it, and adds to the log.

    The policy's numbers per step go into ``log_history``, where the trainer keeps one, and to the printed log.
    Reporters (TensorBoard, W&B) have their turn before any callback of the user: for them, derive the trainer from
    :class:`LogsStash` too.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin(kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"]:
            scalars = self.scalars()
            kwargs["logs"].update(scalars)
            for last in state.log_history[-1:]:
                last.update(scalars)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end()


class LogsStash:
    """Sends the numbers of a ``StashCallback`` to every reporter: ``class LoggedTrainer(LogsStash, Trainer): ...``."""

    callback_handler: Any

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, StashesTrainer):
                    logs.update(callback.scalars())
        super().log(logs, *args, **kwargs)  # type: ignore[misc]
