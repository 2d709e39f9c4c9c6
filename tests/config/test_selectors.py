"""Which tensors each selector takes, and what it refuses to be built from."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from policy_strategies import selectors, spec, specs

from tensorstash.policies.selectors import Devices, Dtypes, MinBytes, ModuleNames, Not


@pytest.mark.parametrize(("numel", "taken"), [(255, False), (256, True), (257, True)])
def test_min_bytes_includes_its_bound(numel, taken):
    assert MinBytes("1 KiB").accepts(spec(shape=(numel,))) is taken


def test_dtypes_takes_one_name_or_several():
    assert Dtypes("bool") == Dtypes(("bool",)) == Dtypes(["bool"])
    both = Dtypes(("bool", "bfloat16"))
    assert [both.accepts(spec(dtype=dtype)) for dtype in ("bool", "bfloat16", "float16")] == [True, True, False]


def test_devices_match_by_name_or_by_type():
    patterns = "cuda", "cuda:0", "cuda*", "cuda:[01]", "cuda:1", "cud", "CUDA"
    matching = [pattern for pattern in patterns if Devices(pattern).accepts(spec(device="cuda:0"))]
    assert matching == ["cuda", "cuda:0", "cuda*", "cuda:[01]"]


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("layers.1", ["layers.1", "layers.1.attn.q"]),
        ("layers.?", ["layers.1", "layers.1.attn.q", "layers.3"]),
        ("layers.[0-2]", ["layers.1", "layers.1.attn.q"]),
        ("*.attn", ["layers.1.attn.q", "layers.10.attn"]),
        ("attn", []),
        ("layers", ["layers.1", "layers.1.attn.q", "layers.10.attn", "layers.3"]),
        ("Layers.1", []),
        ("*", ["layers.1", "layers.1.attn.q", "layers.10.attn", "layers.3", "layersnorm"]),
    ],
)
def test_module_pattern_matches_the_module_or_one_around_it(pattern, matching):
    modules = "layers.1", "layers.1.attn.q", "layers.10.attn", "layers.3", "layersnorm", ""
    assert [module for module in modules if ModuleNames(pattern).accepts(spec(module=module))] == matching


@given(selectors, selectors, specs())
def test_operators_are_the_logic_they_spell(a, b, tensor):
    one, other = a.accepts(tensor), b.accepts(tensor)
    assert (a & b).accepts(tensor) is (one and other)
    assert (a | b).accepts(tensor) is (one or other)
    assert (~a).accepts(tensor) is not one


@dataclass(frozen=True)
class Scalars:
    """A selector of a plug-in, which knows the protocol only."""

    name: ClassVar[str] = "scalars"

    def accepts(self, spec, /):
        return spec.shape == ()


def test_foreign_selectors_combine():
    assert (MinBytes(0) & Scalars()).accepts(spec(shape=()))
    assert Not(Scalars()).accepts(spec())
