"""Three steps of a small random Llama in each trainer, plain or under a policy put in one of three places."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import accelerate
import datasets
import lightning
import peft
import tokenizers
import torch
import transformers
import trl
from cells import Cell
from torch import Tensor

import tensorstash as ts
from tensorstash.integrations import lightning as with_lightning
from tensorstash.integrations import transformers as with_transformers

STEPS, BATCH, LENGTH, WORDS = 3, 2, 16, 64
AT_ONCE = ts.Limits(in_flight=0, ahead=0)
OPTIONS: dict[str, Any] = {"limits": AT_ONCE, "min_bytes": 0}
ARGUMENTS: dict[str, Any] = {"max_steps": STEPS, "per_device_train_batch_size": BATCH, "use_cpu": True}
ARGUMENTS |= {"save_strategy": "no", "disable_tqdm": True}


@dataclass
class Trained:
    """What a training leaves: its parameters, and what the policy did."""

    parameters: list[Tensor]
    stats: ts.Stats


def llama() -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": LENGTH}
    config = transformers.LlamaConfig(vocab_size=WORDS, use_cache=False, **shape, **heads)
    return transformers.LlamaForCausalLM(config)


def adapters() -> Any:
    return peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")


def model_of(cell: Cell) -> Any:
    model = llama()
    if cell.lora and cell.trainer != "trl":
        model = peft.get_peft_model(model, adapters())
    if cell.checkpointing and cell.trainer in ("accelerate", "lightning"):  # which have no word for it
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    return model


def rows(accumulation: int) -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, WORDS, (STEPS * accumulation * BATCH, LENGTH), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens.tolist()]


def collate(batch: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    return {name: torch.tensor([row[name] for row in batch]) for name in ("input_ids", "labels")}


def loader(cell: Cell) -> Any:
    return torch.utils.data.DataLoader(rows(cell.accumulation), batch_size=BATCH, collate_fn=collate)  # type: ignore[arg-type]


class Under:
    """Puts the policy of a cell where the cell says."""

    def __init__(self, cell: Cell, kind: Any = None) -> None:
        self._where = cell.where
        self.callback = kind("compress", **OPTIONS) if cell.where == "callback" else None
        self._handle: ts.Wrapped | None = None

    def reach(self, where: str, model: object) -> None:
        if where == self._where:
            self._handle = ts.wrap(model, "compress", **OPTIONS)

    @property
    def callbacks(self) -> list[Any]:
        return [] if self.callback is None else [self.callback]

    def stats(self) -> ts.Stats:
        found = self._handle or self.callback
        return ts.Stats() if found is None else found.stats()


def forget_accelerators() -> None:
    """Make Accelerate begin anew: it has one state for a process."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def in_transformers(cell: Cell, directory: str) -> Trained:
    return _in_trainer(cell, directory, transformers.Trainer, transformers.TrainingArguments)


def in_trl(cell: Cell, directory: str) -> Trained:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(n): n for n in range(WORDS)}, unk_token="0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="1", pad_token="2")
    options = {"processing_class": tokenizer, "peft_config": adapters() if cell.lora else None}
    return _in_trainer(cell, directory, trl.SFTTrainer, trl.SFTConfig, **options)


def _in_trainer(cell: Cell, directory: str, kind: Any, arguments: Any, **options: Any) -> Trained:
    forget_accelerators()
    under = Under(cell, with_transformers.StashCallback)
    model = model_of(cell)
    under.reach("before", model)
    ways = {"gradient_accumulation_steps": cell.accumulation, "gradient_checkpointing": cell.checkpointing}
    quiet = {"report_to": [], "logging_strategy": "no", "seed": 0}
    args = arguments(**ARGUMENTS, **ways, **quiet, output_dir=directory, bf16=cell.precision == "bf16")
    if kind is transformers.Trainer:
        options["data_collator"] = collate
    torch.manual_seed(0)
    data = datasets.Dataset.from_list(rows(cell.accumulation))
    trainer = kind(model=model, args=args, train_dataset=data, callbacks=under.callbacks, **options)
    under.reach("after", trainer.model)
    trainer.train()
    return Trained(list(trainer.model.parameters()), under.stats())


def in_accelerate(cell: Cell, directory: str) -> Trained:
    forget_accelerators()
    under = Under(cell)
    model = model_of(cell)
    under.reach("before", model)
    precision, every = "bf16" if cell.precision == "bf16" else "no", cell.accumulation
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=every)
    model, optimizer, batches = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3), loader(cell))
    under.reach("after", model)
    model.train()
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    return Trained(list(model.parameters()), under.stats())


class LoggedTrainer(with_transformers.LogsStash, transformers.Trainer):  # type: ignore[misc]
    """A trainer whose reporters get the scalars."""


class Lit(lightning.LightningModule):
    """A causal model, as Lightning wants it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW((p for p in self.parameters() if p.requires_grad), 1e-3)


def lightning_trainer(directory: str, **options: Any) -> Any:
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    settings = {"accelerator": "cpu", "devices": 1, "max_steps": STEPS, "logger": False, **quiet, **options}
    return lightning.Trainer(default_root_dir=directory, **settings)


def in_lightning(cell: Cell, directory: str) -> Trained:
    under = Under(cell, with_lightning.StashCallback)
    lit = Lit(model_of(cell).train())
    under.reach("before", lit)
    precision = "bf16-mixed" if cell.precision == "bf16" else "32-true"
    options = {"accumulate_grad_batches": cell.accumulation, "callbacks": under.callbacks, "precision": precision}
    trainer = lightning_trainer(directory, **options)
    under.reach("after", lit)
    trainer.fit(lit, loader(cell))
    return Trained(list(lit.parameters()), under.stats())


def train(cell: Cell, directory: Path) -> Trained:
    """Train as a cell says, from the same weights and on the same rows each time."""
    torch.manual_seed(0)
    trainer = {"transformers": in_transformers, "trl": in_trl, "accelerate": in_accelerate, "lightning": in_lightning}
    return trainer[cell.trainer](cell, str(directory))


@cache
def plain(cell: Cell, directory: Path) -> list[Tensor]:
    """Return the parameters after the same training without a policy."""
    return train(cell, directory).parameters
