"""Choose per module and per size in a file, and see what each rule did."""

from pathlib import Path

import torch
from torch import nn

import tensorstash as ts


class Block(nn.Module):
    """A transformer block, so that modules have names to choose by."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.linear = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.linear(x)


def main() -> None:
    policy = ts.load_settings(Path(__file__).with_name("policy.toml"))["policy"]
    assert ts.from_dict(ts.to_dict(policy)) == policy
    print(policy)

    torch.manual_seed(0)
    model = Block(128)
    x = torch.randn(16, 64, 128)
    limits = ts.Limits(in_flight=0)  # nothing behind the computation, so that every run prints the same
    with ts.wrap(model, policy, limits=limits) as wrapped:
        model(x).square().mean().backward()

    stats = wrapped.stats()
    print(stats)
    print("payloads:", ", ".join(f"{tally.tensors} in {tier}" for tier, tally in sorted(stats.stored.items())))


if __name__ == "__main__":
    main()
