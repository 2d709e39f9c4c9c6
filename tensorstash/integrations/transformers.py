"""The ``Trainer`` of Transformers, and all that derive from it: those of TRL, with PEFT's adapters or without."""

from tensorstash.integrations.trainer import LogsStash, StashesTrainer
from tensorstash.integrations.training import needs

with needs("transformers"):
    from transformers import TrainerCallback

__all__ = ["LogsStash", "StashCallback"]


class StashCallback(StashesTrainer, TrainerCallback):
    """Trains under a policy: the model is wrapped when training begins, however the trainer has prepared it.

    Arguments and errors are those of :class:`~tensorstash.integrations.training.StashesTraining`.
    """
