"""What a real PaddlePaddle model saves, once it is trained a little: the GPT of paddle_workloads.py."""

import numpy as np
import paddle
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it
from paddle_workloads import GPT

import tensorstash as ts
from benchmarks.data import Text
from tensorstash.backends import backend_named

Saved = tuple[np.ndarray, str]
"""Carrier bits of one storage, and the dtype."""


def capture(model: str, steps: int, scale: int) -> list[Saved]:
    """Return what the step after ``steps`` of training saves, each storage once, without parameters.

    Args:
        model: ``"gpt"``.
        steps: of training.
        scale: of the batch.
    """
    paddle.seed(0)
    network = GPT(context=256, width=384, heads=6, depth=6, recompute=False)
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=network.parameters())
    text, backend = Text(), backend_named("paddle")
    saved: dict[object, Saved] = {}

    def pack(tensor: paddle.Tensor) -> paddle.Tensor:
        if backend.keep_reason(tensor) is None:
            spec = backend.spec(tensor)
            token, _ = backend.storage(tensor)
            bits = np.array(backend.to_host(tensor, spec).wait()).reshape(spec.dense().shape)
            saved.setdefault(token, (bits, spec.dtype))
        return tensor

    for step in range(steps):
        inputs, targets = map(paddle.to_tensor, text.batch(scale, 256, step))
        loss = F.cross_entropy(network(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    with ts.saved_tensors_hooks(pack, lambda tensor: tensor, framework="paddle"):
        inputs, targets = map(paddle.to_tensor, text.batch(scale, 256, steps))
        F.cross_entropy(network(inputs).flatten(0, 1), targets.flatten())
    return list(saved.values())
