"""What can be asked of a case; each answer goes into JSON."""

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import paddle
from paddle.base import core

import tensorstash as ts
from tensorstash.backends.paddle.backend import PaddleBackend
from tensorstash.backends.paddle.nodes import kind_of, node_of, reader
from tensorstash.host.arrays import aligned_empty, as_bytes
from tensorstash.policies import Compress, CpuOffload, DiskSpill

from .cases import Case, NoGradientError, Ran, run

POLICIES = {
    "compress": Compress(min_ratio=1),
    "disk": DiskSpill(os.environ.get("TENSORSTASH_TEST_DIRECTORY", "/tmp")),
    "offload": CpuOffload(),
    "chain": Compress(min_ratio=1) | DiskSpill(os.environ.get("TENSORSTASH_TEST_DIRECTORY", "/tmp")),
}
"""What must not change a bit."""


def plain(case: Case) -> dict[str, Any]:
    """Why a case says nothing about hooks: what plain Paddle makes of it; and what backward changes there."""
    try:
        first, second = run(case), run(case)
    except NoGradientError:
        return {"excluded": "not differentiable"}
    except Exception as error:
        return {"excluded": "Paddle refuses it", "says": said(error)}
    finally:
        paddle.set_grad_enabled(True)
    if (first.outputs, first.gradients) != (second.outputs, second.gradients):
        return {"excluded": "plain Paddle is not deterministic"}
    return {"changed": first.changed}


def under_policies(case: Case) -> dict[str, Any]:
    """Compare a case under each policy with plain Paddle."""
    found = plain(case)
    if "excluded" in found:
        return found
    expected = run(case)
    for name in POLICIES:
        wrong = difference(expected, case, _stash(name))
        if wrong:
            _stash.cache_clear()
            found.setdefault("failed", {})[name] = wrong
    return found


@cache
def _stash(name: str) -> AbstractContextManager[Any]:
    return ts.stash(POLICIES[name], framework="paddle", min_bytes=0)


def difference(expected: Ran, case: Case, scope: AbstractContextManager[Any]) -> str | None:
    """Say what a scope changes about a case; None if nothing."""
    try:
        ran = run(case, scope)
    except Exception as error:
        return said(error)
    finally:
        paddle.set_grad_enabled(True)
    if ran.outputs != expected.outputs:
        return "other outputs"
    if ran.gradients != expected.gradients:
        return "other gradients"
    if ran.changed:
        return f"backward changed {', '.join(ran.changed)}"
    return None


def said(error: BaseException) -> str:
    """The first line of what was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "Error" in line and ":" in line and "Traceback" not in line), "")
    return f"{type(error).__name__}: {(told or (lines or [''])[0])[:160]}"


def looked_at(case: Case) -> dict[str, Any]:
    """Return the nodes that write into what they unpack, each time into a private copy, those that have saved what an
    operation has made, and those of them that have no edge to it."""
    backend = PaddleBackend()
    made: list[tuple[str, int]] = []
    near: dict[str, set[int]] = {}
    given: list[tuple[str, Any, bytes]] = []

    def pack(tensor: Any) -> Any:
        name = reader() or "unknown"
        if not tensor.is_leaf and tensor.dtype == paddle.float32 and tensor._is_initialized():
            made.append((name, node_of(tensor).node_ptr()))
        if backend.keep_reason(tensor) in ("no real memory", "no elements", "dtype"):
            return tensor.detach()
        spec = backend.spec(tensor)
        return name, backend.to_host(tensor, spec).copy(), spec

    def unpack(packed: Any) -> Any:
        if not isinstance(packed, tuple):
            return packed
        name, data, spec = packed
        memory = aligned_empty(data.nbytes, spec.alignment)
        memory[:] = as_bytes(data)
        private = memory.view(data.dtype).reshape(data.shape)
        given.append((name, private, data.tobytes()))
        return backend.from_host(private, spec)

    def walk(returned: list[Any]) -> None:
        stack = [node_of(tensor) for tensor in returned if not tensor.stop_gradient]
        while stack:
            node = stack.pop()
            after = [each for each in node.next_functions if each is not None]
            near.setdefault(kind_of(node), set()).update(each.node_ptr() for each in (node, *after))
            stack += after

    try:
        run(case, backend.hooks(pack, unpack, trusted=True), look=walk)
    except Exception as error:
        return {"excluded": said(error)}
    finally:
        paddle.set_grad_enabled(True)
    return {
        "wrote": sorted({name for name, private, before in given if private.tobytes() != before}),
        "saved": sorted({name for name, _ in made if name in near}),
        "apart": sorted({name for name, node in made if name in near and node not in near[name]}),
    }


def faulty(case: Case) -> str | None:
    """Do wrong: crash in one layout; save as Paddle's documentation does, which gets layouts wrong; save no copy."""
    if case.row == "paddle.exp(x())":
        if case.layout == "sliced":
            os.kill(os.getpid(), signal.SIGSEGV)
        return "alive"
    pair = (paddle.Tensor.numpy, paddle.to_tensor) if case.row == "paddle.square(x())" else (lambda tensor: tensor,) * 2
    return difference(run(case), case, _unrepaired(*pair))


@contextmanager
def _unrepaired(pack: Any, unpack: Any) -> Iterator[None]:
    core.eager.register_saved_tensors_hooks(pack, unpack)
    try:
        yield
    finally:
        core.eager.reset_saved_tensors_hooks()
