"""A ``DataParallel`` run of two processes, which import everything together; fails if anything is wrong in one.

Started by the tests as ``python paddle_worker.py`` with Paddle's environment but for the rank.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed import fleet
from paddle_cases import bits

import tensorstash as ts
from tensorstash.backends.paddle.backend import PaddleBackend
from tests.frameworks.copying import CopyingPair


def plainly() -> object:
    """Train under no hooks, a copying pair, and a policy; return the gradients, of which every bit is the same."""
    paddle.seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    model = paddle.DataParallel(net)
    paddle.seed(100 + dist.get_rank())
    data = paddle.randn([6, 8])
    pair, stash = CopyingPair(PaddleBackend()), ts.stash("compress", framework="paddle", min_bytes=0)

    def gradients(around):
        net.clear_gradients()
        with around:
            loss = (model(data) ** 2).mean()
        loss.backward()
        return [bits(parameter.grad) for parameter in net.parameters()]

    expected = gradients(nullcontext())
    assert [gradients(around) for around in (nullcontext(), pair.hooks(), stash)] == [expected] * 3
    assert pair.copied.total() >= 4
    assert not pair.live
    assert not {(8, 16), (16, 4)} & set(pair.copied), "a weight was copied"
    assert stash.stats().stashed.tensors >= 4
    return expected


def under_budget() -> None:
    """Train under a budget; each rank stores the excess."""

    def train(around):
        paddle.seed(2)
        net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Silu(), nn.Tanh()) for _ in range(4)))
        model, found = paddle.DataParallel(net), []
        for step in range(6):
            paddle.seed(10 * step + dist.get_rank())
            with around:
                loss = (model(paddle.randn([256, 64])) ** 2).mean()
            loss.backward()
            del loss
            found.append([bits(parameter.grad) for parameter in net.parameters()])
            net.clear_gradients()
        return found

    stash = ts.stash("disk_spill", budget="256KiB", framework="paddle", min_bytes=4096)
    assert train(stash) == train(nullcontext())
    planned = stash.stats().planned
    assert planned["stored"].nbytes > 0
    assert planned["kept"].nbytes <= 2**20


def under_fleet() -> None:
    """Train under ``fleet``, plain and wrapped before and after the model is distributed."""
    fleet.init(is_collective=True)

    def train(where):
        paddle.seed(1)
        net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        handle = ts.wrap(net, "compress", min_bytes=0) if where == "before" else None
        model = fleet.distributed_model(net)
        optimizer = fleet.distributed_optimizer(paddle.optimizer.AdamW(1e-2, parameters=net.parameters()))
        if where == "after":
            handle = ts.wrap(model, "compress", min_bytes=0)
        for step in range(3):
            model(paddle.full([6, 8], float(step + 1 + dist.get_rank()))).square().mean().backward()
            optimizer.step()
            optimizer.clear_grad()
        assert handle is None or handle.stats().stashed.tensors >= 4
        return [bits(one) for one in net.parameters()]

    assert train("before") == train("after") == train("nowhere")


def main(rank: int) -> object:
    endpoint = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[rank]
    os.environ |= {"PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": endpoint}
    dist.init_parallel_env()
    gradients = plainly()
    under_fleet()
    under_budget()
    return gradients


if __name__ == "__main__":
    with ProcessPoolExecutor(2, get_context("fork")) as ranks:
        first, second = ranks.map(main, range(2))
    print("the same" if first == second else "others")
