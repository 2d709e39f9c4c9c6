"""Spill the activations of a Hugging Face transformer to disk; training does not notice."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tensorstash as ts


def gradients(model: GPT2LMHeadModel, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Run one training step with dropout, from one seed, and return copies of all gradients."""
    torch.manual_seed(1)
    model.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def main() -> None:
    torch.manual_seed(0)
    sizes = {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 128, "vocab_size": 512}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).train()
    tokens = torch.randint(0, config.vocab_size, (8, 128))

    expected = gradients(model, tokens)
    with ts.wrap(model, ts.DiskSpill()) as wrapped:
        found = gradients(model, tokens)

    stats = wrapped.stats()
    print(stats)
    print(f"on disk at the peak: {stats.peak_bytes_by_tier['disk'] / 2**20:.0f} MiB; now: {stats.live.nbytes} bytes")
    print("gradients bitwise equal:", all(map(torch.equal, found, expected)))


if __name__ == "__main__":
    main()
