"""Real architectures, small: each returns a model and what computes its loss."""

from contextlib import nullcontext

import torch
import transformers
from torch import nn

TOKENS = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def tokens(batch=2, length=12):
    return torch.randint(3, 61, (batch, length))


def gpt2():
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=32, **TOKENS)
    ids = tokens()
    return transformers.GPT2LMHeadModel(config), lambda model: model(ids, labels=ids).loss


def llama():
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        **TOKENS,
    )
    ids = tokens()
    return transformers.LlamaForCausalLM(config), lambda model: model(ids, labels=ids).loss


def bert():
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, **TOKENS
    )
    ids, mask = tokens(), torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    return transformers.BertForMaskedLM(config), lambda model: model(ids, attention_mask=mask, labels=ids).loss


def vit():
    config = transformers.ViTConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4
    )
    images, labels = torch.randn(3, 3, 16, 16), torch.tensor([0, 1, 0])
    return transformers.ViTForImageClassification(config), lambda model: model(images, labels=labels).loss


def t5():
    config = transformers.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, **TOKENS)
    config.decoder_start_token_id = 0
    ids, labels = tokens(), tokens(length=7)
    return transformers.T5ForConditionalGeneration(config), lambda model: model(ids, labels=labels).loss


def mixtral():
    config = transformers.MixtralConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        **TOKENS,
    )
    ids = tokens()
    return transformers.MixtralForCausalLM(config), lambda model: model(ids, labels=ids).loss


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_labels=3
    )
    model = transformers.ResNetForImageClassification(config).to(memory_format=torch.channels_last)
    images, labels = torch.randn(3, 3, 32, 32).contiguous(memory_format=torch.channels_last), torch.tensor([0, 1, 2])
    return model, lambda model: model(images, labels=labels).loss


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(61, 24)
        self.lstm = nn.LSTM(24, 24, 2, batch_first=True, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(48, 61)

    def forward(self, ids):
        hidden, _ = self.lstm(self.embedding(ids))
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), ids.flatten())


def lstm():
    ids = tokens()
    return Recurrent(), lambda model: model(ids)


ARCHITECTURES = [gpt2, llama, bert, vit, t5, mixtral, resnet, lstm]


def gradients(model, loss_of, around=nullcontext):
    model.zero_grad()
    torch.manual_seed(2)
    with around():
        loss = loss_of(model)
    loss.backward()
    return [loss, *(None if p.grad is None else p.grad.clone() for p in model.parameters())]
