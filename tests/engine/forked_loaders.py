"""Data loaders inside the block, whose workers compute with gradients."""

from contextlib import nullcontext

import numpy as np

import tensorstash as ts
from tensorstash.policies import StoreIn
from tensorstash.stores import Memory
from tensorstash.testing.labs import lab_of
from tensorstash.testing.layouts import floats

LENGTH = 4


def graph(lab, stash, seed=0):
    """Return a leaf and a loss, in the scope of a stash or in that of the process: none, or its parent's."""
    leaf = lab.tensor(floats(64, 64, seed=seed), requires_grad=True)
    with stash or nullcontext():
        x = leaf * 1.0
        for _ in range(4):
            x = (x * x).tanh()
        loss = x.sum()
        del x  # as what the program holds is not encoded
    return leaf, loss


def gradient(lab, stash, seed=0):
    leaf, loss = graph(lab, stash, seed)
    lab.backward(loss)
    return lab.gradient(leaf)


class Gradients:
    """A data set of gradients."""

    def __init__(self, framework):
        self.framework = framework

    def __len__(self):
        return LENGTH

    def __getitem__(self, seed):
        return np.array(gradient(lab_of(self.framework), None, seed))


def loaded(framework):
    """Return what the workers of a data loader have computed."""
    if framework == "torch":
        from torch.utils.data import DataLoader

        loader = DataLoader(Gradients(framework), num_workers=1, multiprocessing_context="fork", timeout=100)
        return [batch[0].numpy() for batch in loader]
    from paddle.io import DataLoader, Dataset

    data = type("Data", (Gradients, Dataset), {})(framework)
    loader = DataLoader(data, num_workers=1, shuffle=False, timeout=100)
    return [(batch[0] if isinstance(batch, list) else batch).numpy().reshape(64, 64) for batch in loader]


def load_inside_the_block(framework, directory):
    """Compare with what the same program computes outside of the block, in this process."""
    lab = lab_of(framework)
    plain = [gradient(lab, None, seed) for seed in range(LENGTH)]
    for policy in (StoreIn(Memory()), ts.DiskSpill(directory), ts.Quantize(8)):
        leaf = lab.tensor(floats(64, 64), requires_grad=True)
        with ts.stash(policy, framework=framework, min_bytes=0):
            gradient(lab, None)
            loss = leaf.tanh().tanh().sum()
            got = loaded(framework)
        assert all(map(np.array_equal, got, plain))
        assert len(got) == LENGTH
        lab.backward(loss)
