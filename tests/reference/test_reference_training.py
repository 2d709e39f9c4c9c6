"""A small transformer learns real text, with and without saved tensors off the device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from tensorstash.reference import Generator, MemorySpace, nn, ops, optim, save_on_cpu, tensor

TOKENS, BATCH, STEPS = 24, 4, 24


def train(scope: type[AbstractContextManager[Any]], device: str) -> list[float]:
    text = np.frombuffer(
        "".join(topics[name] for name in sorted(topics))[:100_000].encode("latin-1", "replace"), np.uint8
    )
    entries, encoded = np.unique(text, return_inverse=True)
    model = nn.TransformerLM(len(entries), TOKENS, 32, 4, 2, generator=Generator(0)).to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    starts = np.random.default_rng(0).integers(0, len(encoded) - TOKENS - 1, (STEPS, BATCH))
    losses = []
    for begin in starts:
        batch = encoded[begin[:, None] + np.arange(TOKENS + 1)]
        with scope():
            logits = model(tensor(batch[:, :-1], device=device))
            loss = ops.cross_entropy(logits, tensor(batch[:, 1:], device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_loss_on_real_text_falls_and_offloading_changes_no_bit_of_it(sim: MemorySpace) -> None:
    plain = train(nullcontext, "sim:0")
    peak = sim.peak_bytes
    assert plain[0] > 3.5
    assert np.mean(plain[-5:]) < 0.75 * plain[0]
    sim.reset_peak()
    assert train(save_on_cpu, "sim:0") == plain
    assert sim.peak_bytes < 0.7 * peak
