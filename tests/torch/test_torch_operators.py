"""Every differentiable operator that PyTorch lists, on PyTorch's own samples, in every layout and dtype.

A run takes a part of the operators, chosen by a seed. ``TENSORSTASH_SWEEP=all`` takes them all, another number between
0 and 1 that part; ``TENSORSTASH_SWEEP_SEED`` chooses others.
"""

import os
from itertools import islice
from zlib import crc32

import pytest
import torch
from operator_layouts import LAYOUTS, samples_of
from operator_sweep import operator_cases, operators, sessions, spread, wrong

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # samples of deprecated and prototype operators
    pytest.mark.timeout(7200),
]

DTYPES = ["float32", "float64", "bfloat16", "float16", "complex64"]

SAMPLES = 2  # of each operator: the first and the last
EXCLUDED = {"nn.functional.rrelu"}
"""Its gradient no saved-tensor hook can leave as it is: it saves its noise before it is filled (pytorch#193671)."""

EXCLUDED_LAYOUTS = {("nn.functional.pdist", "empty")}
"""What PyTorch itself does not survive: its backward divides by the number of rows, and the process dies."""

SHARE = os.environ.get("TENSORSTASH_SWEEP", "0.025")
SEED = int(os.environ.get("TENSORSTASH_SWEEP_SEED", "0"))


def is_chosen(*name: object) -> bool:
    """Return whether a run takes this one; the same seed and share always take the same."""
    return SHARE == "all" or crc32(repr((SEED, *name)).encode()) / 2**32 < float(SHARE)


def finish(found):
    """Fail if something is wrong, and say how to run the same again."""
    assert not found, "\n".join([f"again with TENSORSTASH_SWEEP={SHARE} TENSORSTASH_SWEEP_SEED={SEED}", *found])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operator_gives_what_it_gives_without_hooks(tmp_path, dtype):
    found, made = [], sessions(str(tmp_path))
    for operator in operators(getattr(torch, dtype)):
        if operator.name in EXCLUDED or not is_chosen(dtype, operator.formatted_name):
            continue
        samples = list(samples_of(operator, "cpu", getattr(torch, dtype)))
        for turn, number in enumerate(spread(len(samples), SAMPLES)):
            for place, case in enumerate(operator_cases(operator, number, samples[number], LAYOUTS)):
                # A layout meets every way, and a sample too, but each sample in each layout only every second.
                ways = made if SHARE == "all" else dict(islice(made.items(), (turn + place) % 2, None, 2))
                if (operator.name, case.layout) not in EXCLUDED_LAYOUTS:
                    found += wrong(case, ways)
    finish(found)


FAULTS = {
    "saved tensors come back a little larger": (lambda tensor: tensor * (1 + 2**-20), "differs"),
    "backward gets what the user holds, and it is written into": (lambda tensor: tensor.add_(1), "backward changed"),
    "a saved tensor cannot be had": (lambda tensor: 1 / 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_sweep_notices(fault):
    unpack, what = FAULTS[fault]
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), unpack)
    for name in ("sigmoid", "mul", "mm"):
        operator = next(op for op in operators(torch.float32) if op.name == name)
        cases = operator_cases(operator, 0, next(samples_of(operator, "cpu", torch.float32)), LAYOUTS)
        found = [line for case in cases for line in wrong(case, {"planted": (True, hooks)})]
        assert any(what in line for line in found), (name, found)
