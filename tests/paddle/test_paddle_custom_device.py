"""Devices that Paddle gets from a plug-in: gradients are exact, though operators run on the host.

The plug-in is built here, against the headers that come with Paddle. Run ``TENSORSTASH_SCHEDULES=3000`` for the long
search over schedules.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import paddle
import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("c++") or shutil.which("g++")

TIMEOUT_S = float(os.environ.get("TENSORSTASH_SCHEDULES_TIMEOUT", "200"))

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="plug-ins are built with a C++ compiler on Linux"
)


@pytest.fixture(scope="module")
def on_device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what each part of the worker has found on the device."""
    plugins = tmp_path_factory.mktemp("plugins")
    command = [COMPILER, "-std=c++17", "-O1", "-fPIC", "-shared", "-I", paddle.sysconfig.get_include()]
    subprocess.run([*command, str(HERE / "sim_device.cc"), "-o", str(plugins / "libsim.so")], check=True)
    paths = [str(HERE.parents[1]), str(HERE.parent / "engine"), os.environ.get("PYTHONPATH", "")]
    variables = {
        "CUSTOM_DEVICE_ROOT": str(plugins),
        "FLAGS_allocator_strategy": "naive_best_fit",
        "GLOG_minloglevel": "2",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    worker = [sys.executable, str(HERE / "custom_device_worker.py")]
    done = subprocess.run(worker, env={**os.environ, **variables}, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_gradients_are_those_without_hooks_and_tensors_are_moved(on_device):
    found = on_device["training"]
    assert {name: same for name, (same, *_) in found.items() if not same} == {}
    assert all(moved > 10 for _, moved, _ in found.values())
    reason = "PaddlePaddle copies to and from sim only in the stream of the computation"
    assert all(waits == {"sim:0": reason} for *_, waits in found.values())


def test_every_layout_is_rebuilt_and_copied_exactly(on_device):
    for name, (saved, rebuilt, copied) in on_device["layouts"].items():
        assert rebuilt == saved, name
        assert copied == saved, name


def test_what_a_hook_returns_in_another_layout_is_put_where_it_belongs(on_device):
    without, under = on_device["hooks"]
    assert under == without


def test_no_schedule_gives_another_gradient_or_leaves_a_byte(on_device):
    wrong, ran = on_device["schedules"]
    assert wrong == []
    assert ran >= 9


def test_a_step_takes_less_of_the_devices_memory(on_device):
    plain, offloaded = on_device["memory"]
    assert offloaded < plain / 2
