"""Devices that Paddle gets from a plug-in: gradients are exact, though operators run on the host.

The plug-in is built once, against the headers that come with Paddle.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import paddle
import pytest

HERE = Path(__file__).parent
CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tensorstash-tests"
COMPILER = shutil.which("c++") or shutil.which("g++")

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="plug-ins are built with a C++ compiler on Linux"
)


Found = dict[str, Any]


def plug_in(caches: Path) -> Path:
    """Return the folder of the built device; build it if this source was never built for this Paddle."""
    libraries = Path(paddle.base.__file__).parent
    sources = b"".join((HERE / name).read_bytes() for name in ("sim_device.cc", "sim_kernels.h"))
    key = hashlib.sha256(repr((sources, paddle.__version__, str(libraries))).encode()).hexdigest()[:16]
    folder = caches / f"paddle-device-{key}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-DSIM_KERNELS", "-I", paddle.sysconfig.get_include()]
        # What Paddle exports for kernels is found in the library that Python has loaded, which itself does not link.
        links = [f"-L{libraries}", "-l:libpaddle.so", f"-Wl,-rpath,{libraries}", "-Wl,--unresolved-symbols=ignore-all"]
        made = [COMPILER, *flags, str(HERE / "sim_device.cc"), "-o", str(fresh / "libsim.so"), *links]
        subprocess.run(made, check=True)
        with contextlib.suppress(OSError):  # somebody else was faster
            fresh.rename(folder)
    return folder


@pytest.fixture(scope="module")
def on_device() -> Found:
    """Return what is found on the device."""
    variables = {
        "CUSTOM_DEVICE_ROOT": str(plug_in(CACHES)),
        "FLAGS_allocator_strategy": "auto_growth",
        "GLOG_minloglevel": "2",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    worker = [sys.executable, str(HERE / "custom_device_worker.py")]
    done = subprocess.run(worker, env={**os.environ, **variables}, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found: Found = json.loads(done.stdout.splitlines()[-1])
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


def test_what_is_saved_in_strides_has_the_gradients_that_it_has_without_hooks(on_device):
    assert {name for name, same in on_device["strided"].items() if not same} == set()
    assert len(on_device["strided"]) >= 25
