"""Two processes over gloo: gradients are bitwise those without hooks, and the same on both ranks."""

import json
import socket
from pathlib import Path

import pytest

from tests.processes import Program, outputs_of

WORKER = Path(__file__).with_name("paddle_worker.py")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def reports():
    endpoints = [f"127.0.0.1:{port}" for port in free_ports(2)]

    environments = [
        {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": "2",
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
            "PADDLE_DISTRI_BACKEND": "gloo",
        }
        for rank in range(2)
    ]
    outputs = outputs_of(*(Program(WORKER, **variables) for variables in environments))
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def test_gradients_are_bitwise_those_without_hooks(reports):
    for report in reports:
        assert report["repeatable"]
        assert report["copied_equal"]
        assert report["copied"] >= 4
        assert not report["live"]
        assert report["stashed_equal"]
        assert report["stashed"] >= 4


def test_gradients_were_reduced_and_no_weight_was_copied(reports):
    assert reports[0]["gradient"] == reports[1]["gradient"]
    assert not any(report["parameters_copied"] for report in reports)


def test_under_fleet_a_wrap_holds_before_and_after_the_model_is_distributed(reports):
    for report in reports:
        assert report["fleet_equal"]
        assert report["fleet_stashed"] >= 4


def test_under_a_budget_gradients_are_bitwise_and_every_rank_stores_the_excess(reports):
    for report in reports:
        assert report["budget_equal"]
        assert report["budget_plan"]["stored"] > 0
        assert report["budget_plan"]["kept"] <= 2**20
