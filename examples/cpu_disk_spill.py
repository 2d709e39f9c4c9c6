"""Train a small GPT-2 on the CPU, without a policy and with disk_spill: the peak of the process falls.

Each policy has a fresh process. `tensorstash compare` does the same with a script of your own.
"""

import hashlib
import resource
import subprocess
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tensorstash as ts

POLICIES = ("none", "disk_spill")


def train(policy: str) -> None:
    """Run three steps, and print the peak of this process and a digest of the gradients."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=6, n_embd=256, n_head=4, vocab_size=512, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).train()
    if policy != "none":
        ts.wrap(model, policy)
    tokens = torch.randint(0, config.vocab_size, (16, 128))
    digest = hashlib.sha256()
    for _ in range(3):
        model.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
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
