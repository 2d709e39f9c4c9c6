"""A sample of the operators and modules that PyTorch lists, on the device.

``TENSORSTASH_SWEEP`` and ``TENSORSTASH_SWEEP_SEED`` choose more and others, as for the sweeps on the host.
"""

import os
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from operator_layouts import samples_of
from operator_sweep import Tally, judge, module_cases, operator_cases, operators, spread, ways

import tensorstash as ts
from tests.device.simulated import Simulated

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # samples of deprecated and prototype operators
    pytest.mark.timeout(7200),
]

EXCLUDED = {"nn.functional.rrelu", "RReLU"}
"""They save their noise before it is filled (pytorch#193671)."""

SHARE = float(os.environ.get("TENSORSTASH_SWEEP", "0.02").replace("all", "1"))
SEED = int(os.environ.get("TENSORSTASH_SWEEP_SEED", "0"))


def is_chosen(name: str) -> bool:
    return name not in EXCLUDED and crc32(repr((SEED, name)).encode()) / 2**32 < SHARE


@pytest.fixture
def sessions(tmp_path: Path, device: Simulated) -> dict[str, Any]:
    device.delays(0.0005)
    chosen = {name: way for name, way in ways(str(tmp_path)).items() if name in ("offload", "compress | disk")}
    return {
        name: (way, ts.stash(way.policy, framework="torch", min_bytes=0, limits=way.limits))
        for name, way in chosen.items()
    }


def judged(tally: Tally, sessions: dict[str, Any]) -> None:
    assert tally.wrong == []
    assert tally.cases
    assert all(stash.stats().stashed.tensors for _, stash in sessions.values())


def test_operators(sessions: dict[str, Any]) -> None:
    tally = Tally()
    for operator in operators(torch.float32):
        if is_chosen(operator.formatted_name):
            samples = list(samples_of(operator, "sim:0", torch.float32))
            for number in spread(len(samples), 2):
                for case in operator_cases(operator, number, samples[number], ("contiguous", "transposed")):
                    judge(case, sessions, tally, row="device")
    judged(tally, sessions)


def test_modules(sessions: dict[str, Any]) -> None:
    tally = Tally()
    for case in module_cases(torch.float32, 2, "sim:0"):
        if is_chosen(case.module.__name__):
            judge(case, sessions, tally, row="modules, device")
    judged(tally, sessions)
