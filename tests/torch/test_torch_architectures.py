"""Real architectures train bit for bit as without hooks, under every policy that loses nothing."""

from contextlib import nullcontext

import pytest
import torch
from architectures import ARCHITECTURES, gradients

import tensorstash as ts


def policies(directory):
    disk = ts.DiskSpill(str(directory), budget="1GiB")
    return {
        "keep": ts.Keep(),
        "cpu_offload": ts.CpuOffload(),
        "compress": ts.Compress(min_ratio=1),
        "disk_spill": disk,
        "compress | disk_spill": ts.Compress(min_ratio=1) | disk,
    }


@pytest.mark.parametrize("build", ARCHITECTURES)
def test_gradients_are_bitwise_those_without_hooks(build, tmp_path, same_bits):
    torch.manual_seed(0)
    model, loss_of = build()
    model.train()
    gradients(model, loss_of)
    buffers = [buffer.clone() for buffer in model.buffers()]

    def run(around=nullcontext):
        for buffer, start in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(start)
        return gradients(model, loss_of, around)

    plain = run()
    assert same_bits(plain, run())  # else the comparison says nothing
    stashed = {}
    for name, policy in policies(tmp_path).items():
        stash = ts.stash(policy, framework="torch", min_bytes=0)
        assert same_bits(plain, run(lambda stash=stash: stash)), name
        stashed[name] = stash.stats().stashed.tensors
    assert stashed["keep"] == stashed["cpu_offload"] == 0  # these tensors are in host memory already
    assert min(stashed["compress"], stashed["disk_spill"], stashed["compress | disk_spill"]) > 10
