"""Devices that Paddle gets from a plug-in: gradients are exact, though operators run on the host.

The plug-in is built once, against the headers that come with Paddle.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import paddle
import pytest

from tests.processes import output_of

HERE = Path(__file__).parent
CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tensorstash-tests"
COMPILER = shutil.which("c++") or shutil.which("g++")

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="plug-ins are built with a C++ compiler on Linux"
)


def plug_in(caches: Path) -> Path:
    """Return the folder of the built device; build it if this source was never built for this Paddle."""
    libraries = Path(paddle.base.__file__).parent
    source = HERE / "sim_device.cc"
    key = hashlib.sha256(repr((source.read_bytes(), paddle.__version__)).encode()).hexdigest()[:16]
    folder = caches / f"paddle-device-{key}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-I", paddle.sysconfig.get_include()]
        # What Paddle exports for kernels is found in the library that Python has loaded, which itself does not link.
        links = [f"-L{libraries}", "-l:libpaddle.so", "-Wl,--unresolved-symbols=ignore-all"]
        made = [COMPILER, *flags, str(source), "-o", str(fresh / "libsim.so"), *links]
        subprocess.run(made, check=True)
        with contextlib.suppress(OSError):  # somebody else was faster
            fresh.rename(folder)
    return folder


def test_gradients_and_layouts_are_those_without_hooks():
    worker = HERE / "custom_device_worker.py"
    said = output_of(worker, CUSTOM_DEVICE_ROOT=str(plug_in(CACHES)), FLAGS_allocator_strategy="auto_growth")
    assert "exact on sim:0" in said
