"""Devices that Paddle gets from a plug-in: gradients are exact, though operators run on the host.

The plug-in is built here, against the headers that come with Paddle. Run ``TENSORSTASH_SCHEDULES=3000`` for the long
search over schedules.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
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


PLAIN = ["training", "layouts", "hooks", "schedules", "memory"]
WITH_KERNELS = ["training", "layouts", "hooks", "strided"]
"""What needs kernels of the device for what is not contiguous."""

Found = dict[str, Any]


def found_on(folder: Path, parts: Sequence[str], *flags: str) -> Found:
    """Return what parts of the worker find on a device that is built with some flags."""
    libraries = Path(paddle.base.__file__).parent
    command = [COMPILER, "-std=c++17", "-O1", "-w", "-fPIC", "-shared", *flags, "-I", paddle.sysconfig.get_include()]
    # What Paddle exports for kernels is found in the library that Python has loaded, which itself does not link.
    links = [f"-L{libraries}", "-l:libpaddle.so", f"-Wl,-rpath,{libraries}", "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run([*command, str(HERE / "sim_device.cc"), "-o", str(folder / "libsim.so"), *links], check=True)
    paths = [str(HERE.parents[1]), str(HERE.parent / "engine"), os.environ.get("PYTHONPATH", "")]
    variables = {
        "CUSTOM_DEVICE_ROOT": str(folder),
        # What is freed goes back to the device at once, so that its own count is exact.
        "FLAGS_allocator_strategy": "auto_growth",
        "FLAGS_auto_growth_chunk_size_in_mb": "0",
        "FLAGS_free_idle_chunk": "1",
        "GLOG_minloglevel": "2",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    worker = [sys.executable, str(HERE / "custom_device_worker.py"), *parts]
    done = subprocess.run(worker, env={**os.environ, **variables}, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def without_kernels(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return what is found on a device that has none: there, only views of what is contiguous can be computed with."""
    return found_on(tmp_path_factory.mktemp("plugins"), PLAIN)


@pytest.fixture(scope="module")
def with_kernels(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return what is found on a device that has kernels for what is not contiguous."""
    return found_on(tmp_path_factory.mktemp("plugins"), WITH_KERNELS, "-DSIM_KERNELS")


@pytest.fixture(params=["without_kernels", "with_kernels"])
def on_device(request: pytest.FixtureRequest) -> Found:
    """Return what is found on either device."""
    found: Found = request.getfixturevalue(request.param)
    return found


def test_gradients_are_those_without_hooks_and_tensors_are_moved(on_device):
    found = on_device["training"]
    assert {name: same for name, (same, *_) in found.items() if not same} == {}
    assert all(moved > 10 for _, moved, _ in found.values())
    assert all(waits == {"sim:0": "its backend has no streams"} for *_, waits in found.values())


def test_every_layout_is_rebuilt_and_copied_exactly(on_device):
    for name, (saved, rebuilt, copied) in on_device["layouts"].items():
        assert rebuilt == saved, name
        assert copied == saved, name


def test_what_a_hook_returns_in_another_layout_is_put_where_it_belongs(on_device):
    without, under = on_device["hooks"]
    assert under == without


def test_no_schedule_gives_another_gradient_or_leaves_a_byte(without_kernels):
    wrong, ran = without_kernels["schedules"]
    assert wrong == []
    assert ran >= 9


def test_with_nothing_under_way_a_step_takes_what_it_takes_with_all_on_the_host(without_kernels):
    for plain, on_host, offloaded in without_kernels["memory"]:
        assert on_host[1] < plain[1]
        assert offloaded == pytest.approx(on_host, rel=0.01)


def test_what_is_saved_in_strides_has_the_gradients_that_it_has_without_hooks(with_kernels):
    assert {name for name, same in with_kernels["strided"].items() if not same} == set()
    assert len(with_kernels["strided"]) >= 25
