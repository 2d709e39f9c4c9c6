"""Trains a small random Llama with the ``Trainer`` of PaddleFormers in every way, and prints a line for each.

The exit status is the number of ways in which the parameters are not those without a policy, or nothing was stashed.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import paddle
from paddleformers.peft import LoRAConfig, LoRAModel
from paddleformers.trainer import Trainer, TrainingArguments
from paddleformers.transformers import LlamaConfig, LlamaForCausalLM

import tensorstash as ts
from tensorstash.integrations.paddleformers import LogsStash, StashCallback

STEPS, BATCH, LENGTH, WORDS = 3, 2, 16, 64
OPTIONS: dict[str, Any] = {"limits": ts.Limits(in_flight=0, ahead=0), "min_bytes": 0}
SCALAR = "tensorstash/stashed_MiB"

# The trainer synchronizes where it accumulates; Paddle refuses that for a CPU, which has nothing to wait for.
paddle.device.synchronize = lambda device=None: None


@dataclass(frozen=True)
class Cell:
    """One way to train: where the policy is put (``"plain"``: nowhere), and how the trainer trains.

    In float32: Paddle's autocast does nothing on a CPU.
    """

    where: str
    lora: bool
    recompute: bool
    accumulation: int
    policy: str


class Rows(paddle.io.Dataset):
    """Tokens that are the same each time."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._rows = np.random.default_rng(1).integers(0, WORDS, (count, LENGTH))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index]


class LoggedTrainer(LogsStash, Trainer):
    """A trainer whose reporters get the scalars, and which remembers what was logged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logged: set[str] = set()

    def log(self, logs: dict[str, float], **kwargs: Any) -> None:
        super().log(logs, **kwargs)
        self.logged |= logs.keys()


def collate(batch: list[Any]) -> dict[str, Any]:
    tokens = paddle.to_tensor(np.stack(batch))
    return {"input_ids": tokens, "labels": tokens}


def model_of(cell: Cell) -> Any:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": WORDS}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": LENGTH}
    layers = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    # The fused norm has no kernel for the CPU.
    config = LlamaConfig(**shape, **heads, **(layers if cell.recompute else {}), fuse_rms_norm=False)
    model = LlamaForCausalLM(config)
    if cell.lora:
        model = LoRAModel(model, LoRAConfig(r=4, target_modules=[".*q_proj.*", ".*v_proj.*", ".*down_proj.*"]))
        model.mark_only_lora_as_trainable()
    return model


def train(cell: Cell) -> tuple[list[Any], ts.Stats, set[str]]:
    """Return the parameters after three steps, what the policy did, and the names of what was logged."""
    paddle.seed(0)
    np.random.seed(0)
    model = model_of(cell)
    called = model.model if cell.lora else model
    handle = ts.wrap(called, cell.policy, **OPTIONS) if cell.where == "before" else None
    callbacks = [StashCallback(cell.policy, **OPTIONS)] if cell.where == "callback" else []
    with tempfile.TemporaryDirectory() as directory:
        args = TrainingArguments(
            output_dir=directory,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=cell.accumulation,
            amp_master_grad=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            device="cpu",
            recompute_granularity="full" if cell.recompute else None,
        )
        rows = Rows(STEPS * BATCH * cell.accumulation)
        trainer = LoggedTrainer(model=model, args=args, train_dataset=rows, data_collator=collate, callbacks=callbacks)
        trainer.train()
    parts = callbacks or ([handle] if handle else [])
    stats = parts[0].stats() if parts else ts.Stats()
    return [parameter.numpy() for parameter in model.parameters()], stats, trainer.logged


@cache
def plain(cell: Cell) -> list[Any]:
    return train(cell)[0]


def every_cell() -> Iterator[Cell]:
    no_or_yes = (False, True)
    policies = ("compress", "recompute | disk_spill")
    for values in product(("before", "callback"), no_or_yes, no_or_yes, (1, 2), policies):
        yield Cell(*values)


def fault_of(cell: Cell) -> str:
    """Return what is wrong with a way to train, or nothing."""
    expected = plain(replace(cell, where="plain", policy=""))
    parameters, stats, logged = train(cell)
    if not stats.stashed.tensors:
        return "nothing was stashed"
    if cell.where == "callback" and SCALAR not in logged:
        return f"{SCALAR} was not logged"
    if not all(map(np.array_equal, expected, parameters)):
        return "other parameters"
    print(f"ok   {cell}: {stats.stashed.tensors} of {stats.seen.tensors} saved tensors stashed")
    return ""


def main() -> int:
    """Train in every way, and return in how many something is wrong."""
    faults = {cell: fault for cell in every_cell() if (fault := fault_of(cell))}
    for cell, fault in faults.items():
        print(f"FAIL {cell}: {fault}")
    return len(faults)


if __name__ == "__main__":
    sys.exit(main())
