"""Two processes over gloo: gradients are bitwise those without hooks, and the same on both ranks."""

import socket
from contextlib import ExitStack
from pathlib import Path

from tests.processes import output_of

WORKER = Path(__file__).with_name("paddle_worker.py")


def test_ranks_train_as_without_hooks_and_reduce_the_same_gradients():
    with ExitStack() as sockets:
        free = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        endpoints = [f"127.0.0.1:{each.getsockname()[1]}" for each in free]
    variables = {
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_DISTRI_BACKEND": "gloo",
    }
    assert output_of(WORKER, **variables).splitlines()[-1] == "the same"
