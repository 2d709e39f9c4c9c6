"""What runs on a simulated device of PyTorch, in a process of its own: a process has one accelerator."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.chosen import Card
from tests.device.simulated import compiler
from tests.processes import Program, output_of

ON_DEVICE = Path(__file__).resolve().with_name("on_device")

LEAVES_WITH_COPIES_UNDER_WAY = """
import warnings
warnings.simplefilter("error")
from tests.device.simulated import simulated
device = simulated()
import tensorstash as ts
from tests.device.models import made
model, x = made("language")
device.link(bandwidth=1e5)
stash = ts.stash(ts.CpuOffload(), framework="torch", min_bytes=0)
with stash:
    loss = model(x)
assert stash.stats().stashed.tensors
"""

TRAINS_ON_THE_SECOND = """
import os
import torch
from tests.device.simulated import simulated
device = simulated()
torch.accelerator.set_device_index(1)
import tensorstash as ts
x = torch.randn(64, 256, device="sim:1", requires_grad=True)
for policy in ("cpu_offload", "cpu_offload | compress", "disk_spill", "quantize:bits=8 | cpu_offload"):
    stash = ts.stash(policy, framework="torch", min_bytes=0)
    for _ in range(3):
        with stash:
            loss = (x * 2).tanh().exp().square().mean()
        loss.backward()
    stash.drain()
    assert stash.stats().stashed.tensors, policy
print(device.contexts(), flush=True)
os._exit(0)  # PyTorch alone aborts here too: its autograd thread frees the last GraphTask while Python ends
"""

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.mark.long
def test_on_the_device() -> None:
    """All of them in one process: to start it takes longer than most of its files."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", str(ON_DEVICE)]
    environment = os.environ | {"TENSORSTASH_TEST_DEVICE": "sim", "OMP_NUM_THREADS": "1"}
    inner = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=880, check=False)
    assert inner.returncode == 0, inner.stdout[-6000:] + inner.stderr[-3000:]
    assert " skipped" not in inner.stdout.splitlines()[-1]


def test_a_name_that_no_device_has_is_a_mistake() -> None:
    with pytest.raises(BaseException, match="limitd") as raised:  # a skip is one, too
        _ = Card.__new__(Card).limitd
    assert raised.type is AttributeError


def test_no_thread_touches_a_device_that_the_program_does_not_use() -> None:
    assert output_of(TRAINS_ON_THE_SECOND) == "[1]\n"


def test_a_program_may_end_with_copies_under_way() -> None:
    with Program(LEAVES_WITH_COPIES_UNDER_WAY) as program:
        assert program.wait() == (0, "")
