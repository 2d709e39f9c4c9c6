"""The comparison of recomputed tensors on a device, here on the host's memory."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import tensorstash as ts
from tensorstash.backends.torch.recipes import producers
from tensorstash.backends.torch.recipes.digests import device_digest
from tensorstash.errors import StashError

FLOATS = {
    "one bit": lambda bits: bits[7].bitwise_xor_(1),
    "two signs": lambda bits: bits[3:5].bitwise_xor_(-(2**31)),
    "all signs": lambda bits: bits.bitwise_xor_(-(2**31)),
    "two places": lambda bits: bits.__setitem__([3, 900], bits[[900, 3]]),
    "the order": lambda bits: bits.copy_(bits.flip(0).clone()),
}


def zero(made):
    made[2, 4] = 0


EDITS = [
    *(
        pytest.param(torch.randn(1000), lambda made, edit=edit: edit(made.view(torch.int32)), id=name)
        for name, edit in FLOATS.items()
    ),
    *(
        pytest.param(torch.ones(3, 5, dtype=dtype), zero, id=str(dtype))
        for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float64, torch.complex64)
    ),
]


@pytest.mark.parametrize(("made", "edit"), EDITS)
def test_a_digest_of_a_device_depends_on_every_bit_and_its_place(made, edit):
    before = device_digest(made)
    assert torch.equal(before, device_digest(made.clone()))
    edit(made)
    assert not torch.equal(before, device_digest(made))


def test_a_difference_on_a_device_is_raised_out_of_backward(monkeypatch):
    monkeypatch.setattr(producers.Producers, "digest", lambda self, whole: device_digest(whole))

    def step(around, *, edits):
        leaf, weight = torch.randn(8, 16, requires_grad=True), torch.randn(16, 4, requires_grad=True)
        with around:
            hidden = F.gelu(leaf.sin())
            product = hidden * hidden
            if edits:
                product.data[5] = 0.5
            loss = (torch.sigmoid(product) @ weight).sum()
            del hidden, product
        loss.backward()

    around = ts.stash("recompute", framework="torch", min_bytes=1)
    for _ in range(2):
        step(around, edits=False)
    with pytest.raises(StashError, match="came out different"):
        step(around, edits=True)
    step(around, edits=True)  # stored from now on
    step(around, edits=False)
