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


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        ("cuda", True),
        ("cuda:0", True),
        ("cuda*", True),
        ("cuda:[01]", True),
        ("cuda:1", False),
        ("cud", False),
        ("CUDA", False),
    ],
)
def test_devices_match_by_name_or_by_type(pattern, taken):
    assert Devices(pattern).accepts(spec(device="cuda:0")) is taken


@pytest.mark.parametrize(
    ("pattern", "module", "taken"),
    [
        ("layers.1", "layers.1.attn.q", True),
        ("layers.1", "layers.1", True),
        ("layers.1", "layers.10.attn", False),
        ("layers.?", "layers.1.attn", True),
        ("layers.?", "layers.10.attn", False),
        ("layers.[0-2]", "layers.3", False),
        ("*.attn", "layers.1.attn.q", True),
        ("attn", "layers.1.attn", False),
        ("layers", "layersnorm", False),
        ("Layers.1", "layers.1", False),
        ("*", "anything.at.all", True),
        ("*", "", False),
    ],
)
def test_module_pattern_matches_the_module_or_one_around_it(pattern, module, taken):
    assert ModuleNames(pattern).accepts(spec(module=module)) is taken


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
