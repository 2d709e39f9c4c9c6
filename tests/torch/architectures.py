"""Real architectures, small: each makes a model and the inputs of a step, by name."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from lazy import Lazy
from torch import Tensor, nn

transformers = Lazy("transformers")
TOKENS = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
Inputs = dict[str, Tensor]


def text(length: int = 12, *, is_masked: bool = False) -> Inputs:
    ids = torch.randint(3, 61, (2, 12))
    mask = {"attention_mask": (torch.arange(24).view(2, 12) < 20).long()} if is_masked else {}
    return {"input_ids": ids, "labels": ids[:, :length].clone()} | mask


def images(size: int) -> Inputs:
    pixels = torch.randn(3, 3, size, size).contiguous(memory_format=torch.channels_last)
    return {"pixel_values": pixels, "labels": torch.tensor([0, 1, 0])}


def made(name: str, head: str, options: dict[str, Any], inputs: Callable[[], Inputs]) -> tuple[nn.Module, Inputs]:
    """Return a model of Transformers, its weights in the order of channels, and inputs."""
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, name + head)(config).to(memory_format=torch.channels_last), inputs()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(61, 24)
        self.lstm = nn.LSTM(24, 24, 2, batch_first=True, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(48, 61)

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        hidden, _ = self.lstm(self.embedding(input_ids))
        return SimpleNamespace(loss=nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten()))


GPT2 = TOKENS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
VIT = SMALL | {"image_size": 16, "patch_size": 4}
GROUPED = TOKENS | SMALL | {"num_key_value_heads": 2}
T5 = TOKENS | {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "basic"}

ARCHITECTURES: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "gpt2": partial(made, "GPT2", "LMHeadModel", GPT2, text),
    "llama": partial(made, "Llama", "ForCausalLM", GROUPED, text),
    "bert": partial(made, "Bert", "ForMaskedLM", TOKENS | SMALL, partial(text, is_masked=True)),
    "vit": partial(made, "ViT", "ForImageClassification", VIT, lambda: images(16)),
    "t5": partial(made, "T5", "ForConditionalGeneration", T5, partial(text, 7)),
    "mixtral": partial(made, "Mixtral", "ForCausalLM", GROUPED | {"num_local_experts": 4}, text),
    "resnet": partial(made, "ResNet", "ForImageClassification", RESNET, lambda: images(32)),
    "lstm": lambda: (Recurrent(), text()),
}


def gradients(model, inputs, around=nullcontext):
    """Return the loss and the gradients of a step whose forward pass runs in a scope."""
    model.zero_grad()
    torch.manual_seed(2)
    with around():
        loss = model(**inputs).loss
    loss.backward()
    return [loss, *(None if p.grad is None else p.grad.clone() for p in model.parameters())]
