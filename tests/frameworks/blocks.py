"""Models of blocks for tests of checkpoints."""

import operator
import random
from contextlib import nullcontext

import numpy as np
import pytest

import tensorstash as ts

CHECKPOINTED = "checkpointed"
BLOCKS = ("blocks.0", "blocks.1", "blocks.2")


class Blocks:
    """Models of blocks that do something beside what they return, and their training.

    Args:
        framework: of the models.
    """

    def __init__(self, framework):
        nn = framework.nn
        listed = getattr(nn, "ModuleList", None) or nn.LayerList

        class Block(framework.module):
            of = framework

            def __init__(self, before=None, after=None, state=lambda: None, width=16):
                super().__init__()
                self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
                self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
                self.before, self.after = before, after
                self.state = self.up.state = state()
                self.first = self.state

            def forward(self, x, *more):
                x = self.before(self, x, *more) if self.before else x
                y = x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))
                return self.after(self, y) if self.after else y

        class Model(framework.module):
            def __init__(self, blocks, call):
                super().__init__()
                self.blocks, self.call = listed(blocks), call

            def forward(self, x):
                x = x * 1
                for block in self.blocks:
                    x = self.call(block, x)
                return x

        self.lab, self._block, self._model = framework.lab, Block, Model

    def model(self, before=None, after=None, state=lambda: None, *, call=operator.call, made=None, depth=3):
        """Return blocks with the same weights every time.

        Args:
            before: what a block does to its input.
            after: what it does to its output.
            state: makes what its calls may change in place.
            call: calls a block with its input.
            made: makes another block of each.
            depth: the number of blocks.
        """
        self.lab.seed(0)
        blocks = [self._block(before, after, state) for _ in range(depth)]
        return self._model(list(map(made, blocks)) if made else blocks, call)

    def attributes(self, model):
        """Return the classes of the modules and the names of their attributes."""
        return [(type(part), set(vars(part))) for _, part in self.lab.backend.named_modules(model)]

    def trained(self, model, x, steps=2, look=lambda: None):
        """Train; return the bits of every gradient, of the weights and of the random numbers that come next."""
        self.lab.seed(2)
        random.seed(3)
        np.random.seed(3)
        found = []
        for _ in range(steps):
            model(x).square().sum().backward()
            for weight in model.parameters():
                if weight.grad is not None:
                    found.append(self.lab.gradient(weight).tobytes())
                    self.lab.descend(weight, 0.01)
            look()
        return [*found, *(value.tobytes() for value in self.lab.state(model).values()), self.lab.draw()]

    def trained_alike(self, made, x, policy="checkpoint | compress", *, why=""):
        """Train what is made without a policy and under one, with equal results; return the statistics."""
        expected = self.trained(made(), x)
        handle = ts.wrap(model := made(), policy, min_bytes=0)
        with pytest.warns(ts.TensorStashWarning, match=why) if why else nullcontext():
            assert self.trained(model, x) == expected
        for block in (block for block in model.blocks if hasattr(block, "first")):
            assert all(getattr(part, "state", block.first) is block.first for part in (block, block.up))
        return handle.stats()
