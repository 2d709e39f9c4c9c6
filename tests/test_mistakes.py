"""Mistakes that people make: each ends in an error or a warning that names the mistake and the cure."""

import gc
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensorstash as ts
import tensorstash.reference
from tensorstash.engine.advice import directories_in_memory
from tensorstash.errors import (
    BackendError,
    ConfigError,
    PlanError,
    SavedTensorModifiedError,
    StoreError,
    StoreFullError,
)
from tests.documents import ROOT

AT_ONCE = ts.Limits(in_flight=0, ahead=0)
SHAPE = 512, 1024


def model(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))


def by_name(*patterns: str) -> Any:
    rule = {"when": {"name": "module_names", "patterns": list(patterns)}, "use": "compress"}
    return ts.from_dict({"name": "route", "rules": [rule]})


def stash(policy: Any = "compress", **options: Any) -> ts.Stash:
    return ts.stash(policy, **{"framework": "torch", "min_bytes": 0, "limits": AT_ONCE, **options})


def train(around: ts.Stash, steps: int = 4) -> None:
    for _ in range(steps):
        with around:
            loss = torch.zeros(SHAPE, requires_grad=True).exp().tanh().sum()
        loss.backward()


def entered_for_backward_alone(steps: int = 3) -> None:
    around = stash()
    for _ in range(steps):
        loss = torch.ones(8, requires_grad=True).exp().sum()
        with around:
            loss.backward()


def forward_on_another_thread() -> None:
    with stash(), ThreadPoolExecutor(1) as others:
        others.submit(lambda: torch.ones(8, requires_grad=True).exp()).result()


def wrapped_and_checkpointed() -> None:
    block = model()
    ts.wrap(block, "disk_spill")
    for _ in range(4):
        checkpoint(block, torch.ones(2**15, 8), use_reentrant=False).sum().backward()


def integers_alone() -> None:
    around = stash("quantize")
    for _ in range(3):
        with around:
            torch.ones(8, requires_grad=True).index_select(0, torch.arange(7) + 1).sum().backward()


class Written(nn.Module):
    """Has a forward of its own, which the compiler takes though the graph breaks around it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = model(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def compiled(layers: nn.Module, *, wraps_first: bool) -> None:
    torch.compiler.reset()
    options: dict[str, Any] = {"min_bytes": 0, "limits": AT_ONCE}
    if wraps_first:
        ts.wrap(layers, "disk_spill", **options)
    faster = torch.compile(layers, backend="aot_eager")
    if not wraps_first:
        ts.wrap(faster, "disk_spill", **options)
    for _ in range(4):
        faster(torch.ones(4096, 64)).sum().backward()


def recomputed_by_paddle(**how: bool) -> None:
    import paddle
    from paddle.distributed.fleet.utils import recompute

    block = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.GELU())
    ts.wrap(block, "disk_spill", min_bytes=0)
    x = paddle.ones([4, 8])
    x.stop_gradient = False
    recompute(block, x, **how).sum().backward()


def only_evaluated() -> None:
    wrapped = model()
    with ts.wrap(wrapped, "compress"), torch.no_grad():
        wrapped(torch.ones(1, 8))


def one_inside_another() -> None:
    outer, inner = stash("disk_spill"), stash()
    for _ in range(3):
        with outer, inner:
            torch.ones(8, requires_grad=True).exp()


def changed_in_place() -> None:
    with stash("keep"):
        y = torch.ones(8, requires_grad=True).exp()
    y.add_(1)
    y.sum().backward()


def left_on_another_thread() -> None:
    with stash() as around, ThreadPoolExecutor(1) as others:
        others.submit(around.__exit__, None, None, None).result()


def too_large_for_its_budget() -> None:
    with stash(ts.DiskSpill(budget="1KiB")):
        loss = torch.zeros(SHAPE, requires_grad=True).exp().sum()
    loss.backward()


def batches() -> Any:
    yield 1


def without_a_framework() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorstash.backends._loaded", list)
        ts.stash("compress")


Says = Callable[[], object]
POLICIES: list[tuple[str, Any, str]] = [
    ("a name with a typing error", "compres", "compres.*did you mean 'compress'"),
    ("a name in another case", "DISK_SPILL", "DISK_SPILL.*did you mean 'disk_spill'"),
    ("half of a key", "disk_spill:dir=/tmp", r"\.dir: unknown key; did you mean 'directory'"),
    ("a class's name in a line", "CpuOffload", "did you mean 'cpu_offload'"),
    ("a class in place of a policy", ts.Compress, r"expected a policy such as"),
    ("nothing in place of a policy", None, "got None, expected a policy such as"),
    ("an empty line in place of a policy", "", "got '', expected a step such as disk_spill"),
    ("a dictionary in place of a policy", {"name": "compress"}, "from_dict"),
    ("a list in place of a policy", [ts.Compress(), ts.Keep()], r"join the steps by \|"),
    ("a value without its key", "quantize:8", "write quantize:bits=8"),
    ("steps joined by a comma", "compress, disk_spill", r"write 'compress \| disk_spill'"),
    ("a step behind options", "quantize:bits=4, disk_spill", r"write 'quantize:bits=4 \| disk_spill'"),
    ("steps joined by an arrow", "compress > disk_spill", r"write 'compress \| disk_spill'"),
    ("a path in place of a policy", Path("policy.toml"), r"load_settings\('policy.toml'\)"),
    ("a name of which only policies are listed", "qantize", "Known: cast, chain, checkpoint, compress, cpu_offload"),
    ("a dtype by half its name", "cast:dtype=bf16", "dtype: got 'bf16', expected 'bfloat16'"),
    ("module names without a model", by_name("*"), "use wrap"),
]
OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("a limit outside of the limits", {"in_flight": "1MiB"}, r"limits=Limits\(in_flight='1MiB'\)"),
    ("an argument with a typing error", {"min_byte": 0}, "did you mean 'min_bytes'"),
    ("a budget without a unit, as text", {"budget": "6"}, "size with a unit, such as '6GiB'"),
    ("a negative size", {"min_bytes": -1}, "min_bytes: got -1, expected .* 0 or more"),
    ("limits as a dictionary", {"limits": {"in_flight": 1}}, r"expected Limits, such as Limits\("),
    ("limits as text", {"limits": "64 MiB"}, r"Limits\(in_flight='64 MiB'\)"),
    ("a framework by another name", {"framework": "pytorch"}, "did you mean 'torch'"),
]
MISTAKES: dict[type[Exception], list[tuple[str, Says, str]]] = {
    ConfigError: [
        *((name, partial(stash, policy), pattern) for name, policy, pattern in POLICIES),
        *((name, partial(stash, **options), pattern) for name, options, pattern in OPTIONS),
        ("model and policy swapped", lambda: ts.wrap(ts.Compress(), model()), "arguments are swapped"),  # type: ignore[arg-type]
        ("a class in place of a model", lambda: ts.wrap(nn.GELU, "compress"), "make an instance of it"),
        ("bits as text", lambda: ts.Quantize("8"), "got '8', expected one of 2, 4, 8"),  # type: ignore[arg-type]
        ("a framework's object as a dtype", lambda: ts.Cast(torch.bfloat16), "expected.*bfloat16"),  # type: ignore[arg-type]
        ("a pattern that matches nothing", lambda: ts.wrap(model(), by_name(r"\d+")), "shell-style.*There are: 0, 1"),
        ("a method by another name", lambda: ts.wrap(model(), methods="foward"), "did you mean 'forward'"),
        ("a generator decorated", lambda: stash()(batches), "use `with stash"),
        ("a batch by other names", lambda: ts.estimate(Written(), {"y": 1}), r"Name its entries as in \(x\)"),
    ],
    PlanError: [
        ("a store before a codec", lambda: stash("disk_spill | quantize"), r"policy: write quantize \| disk_spill"),
        ("two steps of one kind", lambda: ts.Quantize() | ts.Cast("float16"), r"write cast:dtype=float16 \| quantize"),
    ],
    BackendError: [
        ("the object around a model", lambda: ts.wrap(SimpleNamespace(network=model())), r"a module; .*model\.network"),
        ("a function in place of a model", lambda: ts.wrap(len, "compress"), "expected a module"),
        ("no word of which framework", lambda: ts.stash("compress"), "pass framework="),
        ("no framework", without_a_framework, "no framework is imported; import one first"),
        ("left on another thread", left_on_another_thread, "enter and leave on one thread"),
    ],
    StoreError: [
        (
            "a directory that is not there",
            lambda: stash(ts.DiskSpill("/no/such")),
            r"does not exist or takes no files; .*DiskSpill\(",
        ),
        ("a file in place of a directory", lambda: stash(ts.DiskSpill(__file__)), r"not a directory; .*DiskSpill\("),
    ],
    StoreFullError: [("a budget that is too small", too_large_for_its_budget, "does not fit, .*; raise the budget")],
    SavedTensorModifiedError: [("a saved tensor changed in place", changed_in_place, "by an inplace.*Clone it before")],
    TypeError: [("a stash in a pickle", lambda: pickle.dumps(stash()), "holds threads.*make a new one")],
}
ERRORS = [pytest.param(kind, *rest, id=name) for kind, rows in MISTAKES.items() for name, *rest in rows]
INSIDE = "inside of a checkpoint.*Wrap the whole model"

WARNINGS: dict[str, tuple[Says, str]] = {
    "a stash that is never entered": (lambda: stash(), "never entered.*with tensorstash.stash"),
    "only the backward inside": (entered_for_backward_alone, "nothing was seen.*forward pass has to run inside"),
    "nothing but evaluation": (only_evaluated, "never called while gradients were recorded"),
    "only the backward inside, once": (lambda: entered_for_backward_alone(1), "without effect: nothing was seen"),
    "the forward on another thread": (forward_on_another_thread, "without effect: .*on the thread that enters"),
    "a wrap inside of a checkpoint": (wrapped_and_checkpointed, INSIDE),
    "a wrap inside of Paddle's recompute": (recomputed_by_paddle, INSIDE),
    "a wrap inside of Paddle's other recompute": (lambda: recomputed_by_paddle(use_reentrant=False), INSIDE),
    "compiled after the wrap": (lambda: compiled(model(64), wraps_first=True), r"gains nothing here: .*block\.compile"),
    "compiled as one graph after the wrap": (lambda: compiled(Written(), wraps_first=True), r"at once.*block\.compile"),
    "nothing but integers": (integers_alone, r"int64 is never quantized\): add .*\| disk_spill"),
    "offload, once": (lambda: train(stash("cpu_offload"), 1), r"without effect: nothing was stashed.*DiskSpill\("),
    "a budget without a unit": (lambda: train(stash("disk_spill", budget=6)), "6 bytes, .*write '6GiB'"),
    "a budget beyond the machine's memory": (
        lambda: train(stash("disk_spill", budget="4000GiB")),
        "more than the .* of this machine.*budget='auto'",
    ),
    "a wrap around a compiled model": (lambda: compiled(model(64), wraps_first=False), r"at once.*block\.compile"),
    "a stash inside a stash": (one_inside_another, "takes its place.*use one of them"),
    "offload without an accelerator": (lambda: train(stash("cpu_offload")), "nothing was stashed.*use DiskSpill"),
}


@pytest.mark.parametrize(("kind", "make", "pattern"), ERRORS)
def test_a_mistake_is_an_error_with_the_cure(kind: type[Exception], make: Says, pattern: str) -> None:
    with pytest.raises(kind) as raised:
        make()
    assert re.search(pattern, str(raised.value), re.DOTALL), str(raised.value)


# Of the compiler, about graphs that break and gradients of what is no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:Dynamo")
@pytest.mark.parametrize("mistake", WARNINGS)
def test_a_mistake_without_effect_is_a_warning_with_the_cure(mistake: str) -> None:
    make, pattern = WARNINGS[mistake]
    gc.collect()  # what other tests have left says something when it goes
    with pytest.warns(ts.TensorStashWarning) as said:
        make()
    hits = [one for one in said if re.search(pattern, str(one.message), re.DOTALL)]
    assert hits, [str(one.message) for one in said]
    assert {one.filename for one in hits} == {__file__}
    ours = [str(one.message) for one in said if issubclass(one.category, ts.TensorStashWarning)]
    assert len(hits) == len(ours), ours


def test_a_variable_that_nobody_reads_is_a_warning_with_the_cure(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import tensorstash")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "TENSORSTASH_POLICY": "disk_spill", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert f"{script}:1: TensorStashWarning: TENSORSTASH_POLICY is set and has no effect" in done.stderr
    assert "start the program with `python -m tensorstash SCRIPT`" in done.stderr


@pytest.mark.skipif(directories_in_memory(["/dev/shm"]) == [], reason="/dev/shm is not kept in memory here")
def test_a_directory_in_memory_is_a_warning_with_the_cure() -> None:
    with (
        pytest.warns(ts.TensorStashWarning, match="saves nothing; pass a directory on a disk"),
        stash(ts.DiskSpill("/dev/shm")),
    ):
        pass
