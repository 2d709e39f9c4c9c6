"""One rank of a two-process ``DataParallel`` run; prints one JSON line.

Started by the tests as ``python paddle_worker.py`` with Paddle's environment for a rank.
"""

import json
from contextlib import nullcontext

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed import fleet
from paddle_cases import bits

import tensorstash as ts
from tensorstash.backends.paddle.backend import PaddleBackend
from tests.frameworks.copying import CopyingPair


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
    report |= under_fleet() | under_budget()
    print(json.dumps(report), flush=True)


def under_budget() -> dict[str, object]:
    """Train under a budget, and tell which plan each step has followed."""

    def train(around, on_step):
        paddle.seed(2)
        layers = [nn.Sequential(nn.Linear(64, 64), nn.Silu(), nn.Tanh()) for _ in range(4)]
        net = nn.Sequential(*layers)
        model = paddle.DataParallel(net)
        found = []
        for step in range(6):
            paddle.seed(10 * step + dist.get_rank())
            with around:
                loss = (model(paddle.randn([256, 64])) ** 2).mean()
            loss.backward()
            del loss
            on_step()
            found.append([bits(parameter.grad) for parameter in net.parameters()])
            net.clear_gradients()
        return found

    expected = train(nullcontext(), lambda: None)
    stash = ts.stash("disk_spill", budget="256KiB", framework="paddle", min_bytes=4096)
    equal = train(stash, lambda: None) == expected
    return {"budget_equal": equal, "budget_plan": {fate: one.nbytes for fate, one in stash.stats().planned.items()}}


def under_fleet() -> dict[str, object]:
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
        return [bits(one) for one in net.parameters()], handle and handle.stats().stashed.tensors

    expected, _ = train("nowhere")
    found = {where: train(where) for where in ("before", "after")}
    return {
        "fleet_equal": all(parameters == expected for parameters, _ in found.values()),
        "fleet_stashed": min(stashed for _, stashed in found.values()),
    }


if __name__ == "__main__":
    main()
