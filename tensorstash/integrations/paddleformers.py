"""The ``Trainer`` of PaddleFormers."""

from typing import Any

from tensorstash.integrations.trainer import LogsStash, StashesTrainer
from tensorstash.integrations.training import needs

with needs("paddleformers"):
    from paddleformers.peft import LoRAModel
    from paddleformers.trainer import TrainerCallback

__all__ = ["LogsStash", "StashCallback"]


class StashCallback(StashesTrainer, TrainerCallback):
    """Trains under a policy: the model is wrapped when training begins, however the trainer has prepared it.

    Arguments and errors are those of :class:`~tensorstash.integrations.training.StashesTraining`.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wrap the model; the trainer calls the inner model of a model with adapters, and not that model."""
        model = kwargs["model"]
        super().on_train_begin(args, state, control, model=model.model if isinstance(model, LoRAModel) else model)
