"""No result depends on timing: programs and architectures under random delays, limits, policies, threads and holders.

Run ``TENSORSTASH_DELAYS=2000 pytest tests/engine/test_random_delays.py`` for the long search; a failure names its seed,
and ``TENSORSTASH_DELAYS_FROM`` starts there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from delays import Bag, Dice, delays, limits, policy
from torch import nn

import tensorstash as ts
from tensorstash.testing.labs import BACKENDS, lab_of
from tensorstash.testing.programs import attention, training

pytestmark = pytest.mark.filterwarnings("ignore::tensorstash.TensorStashWarning")  # a random policy may have no effect

RUNS = int(os.environ.get("TENSORSTASH_DELAYS", "32"))
FIRST = int(os.environ.get("TENSORSTASH_DELAYS_FROM", "0"))

Result = list[bytes]
Program = Callable[[Callable[[], object], Bag], Result]


def arrays(found: dict[str, np.ndarray]) -> Result:
    return [name.encode() + np.ascontiguousarray(value).tobytes() for name, value in found.items()]


def of_lab(backend: str, program: str) -> Program:
    lab = lab_of(backend)

    def run(scope, bag):
        if program == "training":
            return arrays(training(lab, scope))
        return arrays(attention(lab, "float64" if program == "attention, float64" else "float32", scope))

    return run


def architecture(build) -> Program:
    torch.manual_seed(0)
    model, inputs = build()
    model.train()
    start = [buffer.clone() for buffer in model.buffers()]

    def run(scope, bag):
        for buffer, value in zip(model.buffers(), start, strict=True):
            buffer.data.copy_(value)  # without a bump
        found = []
        hooks = [part.register_forward_hook(lambda part, args, out: bag.hold(out)) for part in model.modules()]
        for _ in range(2):
            model.zero_grad()
            torch.manual_seed(2)
            with scope():
                loss = model(**inputs).loss
            loss.backward()
            found += [
                loss.detach(),
                *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None),
            ]
        for hook in hooks:
            hook.remove()
        return [np.asarray(value).tobytes() for value in [*found, *model.buffers()]]

    return run


class Shared(nn.Module):
    """What two threads run at once; nothing of it is written in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 16)
        self.register_buffer("scale", torch.full((64,), 0.5))

    def forward(self, x, bag):
        hidden = self.first(x).tanh() * self.scale
        bag.hold(hidden)
        out = self.second(torch.nn.functional.gelu(hidden) * hidden)
        bag.hold(out)
        return out + x


def threads() -> Program:
    torch.manual_seed(0)
    model = Shared()

    def run(scope, bag):
        found: list[Result | None] = [None, None, None]

        def train(index):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(index))
            mine: Result = []
            for _ in range(3):
                with scope():
                    out = model(model(x * 1.0, bag), bag).square().sum()
                gradients = torch.autograd.grad(out, list(model.parameters()))
                mine += [np.asarray(gradient).tobytes() for gradient in gradients]
            found[index] = mine

        workers = [threading.Thread(target=train, args=(index,)) for index in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert None not in found
        return [piece for mine in found for piece in mine or ()]

    return run


def refilled() -> Program:
    """A staging buffer, a layer with running statistics and a fused optimizer: nothing of them bumps a version."""

    def run(scope, bag):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Linear(32, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
        staging, mask, losses, found = torch.empty(8, 16), torch.empty(8, 4), [], []
        for step in range(4):
            staging.data.copy_(torch.randn(8, 16))
            mask.data.copy_((torch.randn(8, 4) > 0).float())
            model.train(step % 3 != 2)
            with scope():
                hidden = staging * model[0].weight.sum()
                bag.hold(hidden)
                out = model(hidden) * mask + model[3].bias.detach()
                loss = out.square().sum() + (staging * model[0].weight.data[0]).sum() * out.mean()
            losses.append(loss)
            if step % 2:
                optimizer.zero_grad()
                loss.backward()
                found += [parameter.grad.clone() for parameter in model.parameters()]
                optimizer.step()
        return [np.asarray(value.detach()).tobytes() for value in [*found, *losses, *model.state_dict().values()]]

    return run


PROGRAMS: dict[str, Callable[[], Program]] = {
    "threads": threads,
    "refilled": refilled,
    **{
        f"{program} of {backend}": partial(of_lab, backend, program)
        for backend in BACKENDS
        for program in ("attention", "attention, float64", "training")
    },
    **{name: partial(architecture, build) for name, build in ARCHITECTURES.items()},
}


@cache
def prepared(name: str) -> tuple[Program, Result]:
    program = PROGRAMS[name]()
    with Bag(Dice(0)) as bag:
        plain = program(nullcontext, bag)
        assert program(nullcontext, bag) == plain  # else the comparison says nothing
    return program, plain


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_results_are_those_without_hooks_however_slow_anything_is(seed, tmp_path):
    name = list(PROGRAMS)[seed % len(PROGRAMS)]
    program, plain = prepared(name)
    dice = Dice(seed)
    made, under = policy(dice, str(tmp_path)), limits(dice)
    framework = name.rpartition(" of ")[2] if " of " in name else "torch"
    stash = ts.stash(made, framework=framework, min_bytes=dice.choice([0, 0, 300]), limits=under)
    with delays(dice), Bag(dice) as bag:
        found = program(lambda: stash, bag)
    different = [index for index, (left, right) in enumerate(zip(plain, found, strict=True)) if left != right]
    assert different == [], f"seed {seed}: {name} under {made!r} with {under!r}"
