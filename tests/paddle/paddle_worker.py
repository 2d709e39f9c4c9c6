"""One rank of a two-process ``DataParallel`` run; prints one JSON line.

Started by the tests as ``python paddle_worker.py`` with Paddle's environment for a rank.
"""

import json
import os
from contextlib import nullcontext

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle_cases import CopyingPair, bits

import tensorstash as ts
from tensorstash.backends.paddle.backend import PaddleBackend


def main() -> None:
    """Train under no hooks, a copying pair, and a policy; compare every bit of every gradient."""
    dist.init_parallel_env()
    rank = dist.get_rank()
    paddle.seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    model = paddle.DataParallel(net)
    paddle.seed(100 + rank)
    data = paddle.randn([6, 8])
    pair = CopyingPair(PaddleBackend())

    def gradients(around):
        net.clear_gradients()
        with around:
            loss = (model(data) ** 2).mean()
        loss.backward()
        return [bits(parameter.grad) for parameter in net.parameters()]

    expected = gradients(nullcontext())
    stash = ts.stash(ts.parse("compress"), framework="paddle", min_bytes=0)
    report = {
        "rank": rank,
        "repeatable": gradients(nullcontext()) == expected,
        "copied_equal": gradients(pair.hooks()) == expected,
        "copied": pair.copied.total(),
        "live": pair.live,
        "parameters_copied": any(list(shape) in ([8, 16], [16, 4]) for shape in pair.copied),
        "stashed_equal": gradients(stash) == expected,
        "stashed": stash.stats().stashed.tensors,
        "gradient": [grad[2].hex() for grad in expected],
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
