"""Mistakes that people make: each ends in an error or a warning that names the mistake and the cure."""

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorstash as ts
from tensorstash import reference as ref
from tensorstash.engine.advice import directories_in_memory
from tensorstash.errors import (
    BackendError,
    ConfigError,
    MissingDependencyError,
    PlanError,
    SavedTensorModifiedError,
    StoreError,
    StoreFullError,
)

AT_ONCE = ts.Limits(in_flight=0, ahead=0)
SHAPE = 512, 1024


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


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


def entered_for_backward_alone() -> None:
    around = stash()
    for _ in range(3):
        loss = torch.ones(8, requires_grad=True).exp().sum()
        with around:
            loss.backward()


def called_past_the_wrap() -> None:
    wrapped = model()
    handle = ts.wrap(wrapped, "compress")
    wrapped.forward(torch.ones(1, 8))
    handle.remove()


def only_evaluated() -> None:
    wrapped = model()
    handle = ts.wrap(wrapped, "compress")
    with torch.no_grad():
        wrapped(torch.ones(1, 8))
    handle.remove()


def wrapped_twice() -> None:
    wrapped = model()
    ts.wrap(wrapped, "compress")
    ts.wrap(wrapped, "disk_spill")


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
    around, errors = stash(), []

    def leave() -> None:
        try:
            around.__exit__(None, None, None)
        except BackendError as error:
            errors.append(error)

    with around:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    raise errors[0]


def compiled_as_a_whole() -> None:
    torch.compiler.reset()
    blocks = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
    compiled, around = torch.compile(blocks, backend="aot_eager"), stash()
    x = torch.ones(2048, 64)
    for _ in range(4):
        with around:
            loss = compiled(x).sum()
        loss.backward()


def compiled_as_one_graph_around_a_wrap() -> None:
    torch.compiler.reset()
    wrapped = model()
    ts.wrap(wrapped, "compress")
    wrapped(torch.ones(2, 8))
    torch.compile(lambda x: 3 * wrapped(x), backend="eager", fullgraph=True)(torch.ones(2, 8))


def too_large_for_its_budget() -> None:
    with stash(ts.DiskSpill(budget="1KiB")):
        loss = torch.zeros(SHAPE, requires_grad=True).exp().sum()
    loss.backward()


def decorated_generator() -> None:
    @stash()
    def batches() -> Any:
        yield 1


def made_and_dropped() -> None:
    ts.stash("compress", framework="torch")


def without_its_library() -> None:
    missing = "tensorstash.integrations.lightning"
    kept = {name: sys.modules.pop(name) for name in [*sys.modules] if name in (missing, "lightning.pytorch")}
    sys.modules["lightning.pytorch"] = None  # type: ignore[assignment]
    try:
        __import__(missing)
    finally:
        del sys.modules["lightning.pytorch"]
        sys.modules.update(kept)


Says = Callable[[], object]
ERRORS: dict[str, tuple[Says, type[Exception], str]] = {
    "a name with a typing error": (lambda: stash("compres"), ConfigError, "compres.*did you mean 'compress'"),
    "a class's name in a line": (lambda: stash("CpuOffload"), ConfigError, "did you mean 'cpu_offload'"),
    "a key with a typing error": (lambda: stash("compress:levle=3"), ConfigError, "levle.*did you mean 'level'"),
    "a class in place of a policy": (lambda: stash(ts.Compress), ConfigError, r"expected a policy such as"),
    "a dictionary in place of a policy": (lambda: stash({"name": "compress"}), ConfigError, "from_dict"),
    "a list in place of a policy": (lambda: stash([ts.Compress(), ts.Keep()]), ConfigError, r"joined by \|.*Chain"),
    "a tuple in place of a part of a policy": (lambda: ts.Route((), (ts.Compress(),)), ConfigError, r"by \|.*Chain"),
    "model and policy swapped": (lambda: ts.wrap(ts.Compress(), model()), ConfigError, "expected a policy such as"),  # type: ignore[arg-type]
    "a class in place of a model": (lambda: ts.wrap(nn.GELU, "compress"), ConfigError, "make an instance of it"),
    "a function in place of a model": (lambda: ts.wrap(len, "compress"), BackendError, "expected a module"),
    "bits that there are not": (lambda: ts.Quantize(3), ConfigError, "got 3.*expected"),  # type: ignore[arg-type]
    "a unit that there is not": (lambda: stash(ts.DiskSpill(budget="40 GO")), ConfigError, "40 GO.*expected"),
    "a framework's object as a dtype": (lambda: ts.Cast(torch.bfloat16), ConfigError, "expected.*bfloat16"),  # type: ignore[arg-type]
    "the store before the codec": (lambda: ts.DiskSpill() | ts.Compress(), PlanError, "before the payload is stored"),
    "two steps of one kind": (lambda: ts.Quantize(8) | ts.Cast("float16"), PlanError, "encoded already; swap the two"),
    "a directory that is not there": (lambda: stash(ts.DiskSpill("/no/such")), StoreError, "/no/such"),
    "limits as text": (lambda: stash(limits="64 MiB"), ConfigError, r"Limits\(in_flight='64 MiB'\)"),
    "min_bytes with a typing error": (lambda: stash(min_bytes="64 KO"), ConfigError, "min_bytes.*64 KO"),
    "a framework by another name": (lambda: stash(framework="pytorch"), ConfigError, "did you mean 'torch'"),
    "no word of which framework": (lambda: ts.stash("compress"), BackendError, "pass framework="),
    "a pattern that matches nothing": (lambda: ts.wrap(model(), by_name("attention")), ConfigError, "There are: 0, 1"),
    "a regular expression": (lambda: ts.wrap(model(), by_name(r"\d+")), ConfigError, "shell-style"),
    "module names without a model": (lambda: stash(by_name("*")), ConfigError, "use wrap"),
    "a method that there is not": (
        lambda: ts.wrap(model(), "compress", methods="foward"),
        ConfigError,
        "did you mean 'forward'",
    ),
    "a generator decorated": (decorated_generator, ConfigError, "use `with stash"),
    "a saved tensor changed in place": (
        changed_in_place,
        SavedTensorModifiedError,
        "by an inplace.*Clone it before",
    ),
    "left on another thread": (left_on_another_thread, BackendError, "enter and leave on one thread"),
    "a budget that is too small": (too_large_for_its_budget, StoreFullError, "budget"),
    "one graph around a wrap": (
        compiled_as_one_graph_around_a_wrap,
        torch._dynamo.exc.Unsupported,
        r"compile first and wrap.*block\.compile",
    ),
    "a trainer that is not installed": (without_its_library, MissingDependencyError, "pip install lightning"),
}

WARNINGS: dict[str, tuple[Says, str]] = {
    "a stash that is never entered": (made_and_dropped, "never entered.*with tensorstash.stash"),
    "only the backward inside": (entered_for_backward_alone, "nothing was seen.*forward pass has to run inside"),
    "a call past the wrap": (called_past_the_wrap, "never called.*methods="),
    "nothing but evaluation": (only_evaluated, "never called while gradients were recorded"),
    "a model wrapped twice": (wrapped_twice, "wrapped already.*unwrap"),
    "a stash inside a stash": (one_inside_another, "takes its place.*use one of them"),
    "offload without an accelerator": (lambda: train(stash("cpu_offload")), "nothing was stashed.*use DiskSpill"),
    "everything below min_bytes": (lambda: train(stash(min_bytes="1 GiB")), "nothing was stashed.*lower min_bytes"),
    "budgets larger than the gain": (
        lambda: train(stash(limits=ts.Limits(in_flight="256 MiB"))),
        "limits are larger.*pass limits=",
    ),
    "a store in host memory": (lambda: train(stash("store_in:store=memory")), "shrinks nothing.*Compress"),
    "one compiled graph": (compiled_as_a_whole, r"asks for everything at once.*block\.compile"),
}


@pytest.mark.parametrize("mistake", ERRORS)
def test_a_mistake_is_an_error_with_the_cure(mistake: str) -> None:
    make, kind, pattern = ERRORS[mistake]
    with pytest.raises(kind) as raised:
        make()
    assert re.search(pattern, str(raised.value), re.DOTALL), str(raised.value)


# Of the compiler, about graphs that break and gradients of what is no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:Dynamo")
@pytest.mark.parametrize("mistake", WARNINGS)
def test_a_mistake_without_effect_is_a_warning_with_the_cure(mistake: str) -> None:
    make, pattern = WARNINGS[mistake]
    with pytest.warns(ts.TensorStashWarning) as said:
        make()
    assert any(re.search(pattern, str(one.message), re.DOTALL) for one in said), [str(one.message) for one in said]


@pytest.mark.skipif(directories_in_memory(["/dev/shm"]) == [], reason="/dev/shm is not kept in memory here")
def test_a_directory_in_memory_is_a_warning_with_the_cure() -> None:
    with (
        pytest.warns(ts.TensorStashWarning, match="saves nothing; pass a directory on a disk"),
        stash(ts.DiskSpill("/dev/shm")),
    ):
        pass


def test_a_file_in_place_of_a_directory_is_an_error_with_the_cure(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StoreError, match=r"directory"):
        stash(ts.DiskSpill(str(file)))


def test_there_are_enough_of_them() -> None:
    assert len(ERRORS) + len(WARNINGS) >= 25
    assert ref is not None  # two frameworks are imported, so that one has to be named
