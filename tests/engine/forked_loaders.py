"""Data loaders inside the block, whose workers compute with gradients.

    python tests/engine/forked_loaders.py FRAMEWORK METHOD DIRECTORY

METHOD is "fork", "spawn" or "process" (spawned by hand). Each policy has a process of its own, forked from one that has
imported the framework and done nothing else, if workers are forked and inherit its block. Those that are spawned
inherit nothing, and start inside the blocks of all policies. Prints a policy when everything is right.
"""

import multiprocessing
import os
import sys
from contextlib import ExitStack

import numpy as np

import tensorstash as ts
from tensorstash.policies import StoreIn
from tensorstash.stores import Memory
from tensorstash.testing.labs import lab_of
from tensorstash.testing.layouts import floats

POLICIES = {
    "memory": lambda directory: StoreIn(Memory()),
    "disk": lambda directory: ts.DiskSpill(directory),
    "quantize": lambda directory: ts.Quantize(8),
}
LENGTH = 4


def gradient(framework, seed):
    """Return a gradient, computed in whatever scope the process is in: none, or that of its parent, which keeps all."""
    lab = lab_of(framework)
    leaf = lab.tensor(floats(64, 64, seed=seed), requires_grad=True)
    x = lab.mul(leaf, 1.0)
    for _ in range(4):
        x = lab.tanh(lab.mul(x, x))
    lab.backward(lab.sum(x))
    return lab.gradient(leaf)


class Gradients:
    """A data set of gradients."""

    def __init__(self, framework):
        self.framework = framework

    def __len__(self):
        return LENGTH

    def __getitem__(self, seed):
        return np.array(gradient(self.framework, seed))


def loaded(framework, method):
    """Return what the workers of a data loader have computed."""
    data = Gradients(framework)
    if method == "process":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            computed = [pool.apply_async(data.__getitem__, (seed,)).get(100) for seed in range(LENGTH)]
            pool.close()  # else they are killed, which Paddle has a lot to say about
            pool.join()
            return computed
    if framework == "torch":
        from torch.utils.data import DataLoader

        loader = DataLoader(data, batch_size=1, num_workers=1, multiprocessing_context=method, timeout=100)
        return [batch[0].numpy() for batch in loader]
    from paddle.io import DataLoader, Dataset

    class Data(Gradients, Dataset):
        pass

    loader = DataLoader(Data(framework), batch_size=1, num_workers=1, shuffle=False, timeout=100)
    return [(batch[0] if isinstance(batch, list) else batch).numpy().reshape(64, 64) for batch in loader]


def train(framework, policies, method, directory):
    """Compare with what the same program computes in this process."""
    plain = [gradient(framework, seed) for seed in range(LENGTH)]
    lab, losses = lab_of(framework), {}
    leaf = lab.tensor(floats(64, 64), requires_grad=True)
    with ExitStack() as blocks:
        for policy in policies:
            blocks.enter_context(ts.stash(POLICIES[policy](directory), framework=framework, min_bytes=0))
            gradient(framework, 0)
            losses[policy] = lab.sum(lab.tanh(lab.tanh(leaf)))
        got = loaded(framework, method)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(got, plain, strict=True))
    for policy, loss in losses.items():
        lab.backward(loss)
        print(policy)


def main(framework, method, directory):
    """Train under each policy."""
    lab_of(framework)
    for policies in [[policy] for policy in POLICIES] if method == "fork" else [list(POLICIES)]:
        child = os.fork()
        if not child:
            train(framework, policies, method, directory)
            return
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{policies} is wrong")


if __name__ == "__main__":
    main(*sys.argv[1:])
