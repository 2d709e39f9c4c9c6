"""Train a small transformer on the CPU, without a policy and with disk_spill: the peak of the process falls.

Each policy has a fresh process. `tensorstash compare` does the same with a script of your own.
"""

import hashlib
import resource
import subprocess
import sys

import torch
from torch import nn

import tensorstash as ts

POLICIES = ("none", "disk_spill")


def train(policy: str) -> None:
    """Run two steps, and print the peak of this process and a digest of the gradients."""
    torch.manual_seed(0)
    blocks = [nn.TransformerEncoderLayer(256, 4, 1024, activation="gelu", batch_first=True) for _ in range(6)]
    model = nn.Sequential(nn.Embedding(512, 256), *blocks, nn.Linear(256, 512))
    if policy != "none":
        ts.wrap(model, policy)
    tokens = torch.randint(0, 512, (16, 128))
    digest = hashlib.sha256()
    for _ in range(2):
        model.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        for parameter in model.parameters():
            digest.update(parameter.grad.numpy())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, digest.hexdigest())  # KiB on Linux


def main() -> None:
    digests = set()
    for policy in POLICIES:
        done = subprocess.run([sys.executable, __file__, policy], stdout=subprocess.PIPE, text=True, check=True)
        peak, digest = done.stdout.split()
        digests.add(digest)
        print(f"{policy}: peak {peak} MiB")
    print("gradients bitwise equal:", len(digests) == 1)


if __name__ == "__main__":
    train(sys.argv[1]) if sys.argv[1:] else main()
