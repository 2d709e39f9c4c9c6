"""Names, what they stand for, and who may claim them."""

import pkgutil
import sys
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

import tensorstash.codecs
import tensorstash.policies
import tensorstash.policies.selectors
import tensorstash.stores
from tensorstash.errors import ConfigError, MissingDependencyError
from tensorstash.policies.plan import HookPolicy
from tensorstash.protocols import Codec, Selector, StoreConfig
from tensorstash.registry import lookup, names, register
from tests.processes import output_of

GROUPS = ["backends", "codecs", "policies", "selectors", "stores"]


pytestmark = pytest.mark.usefixtures("rows")


@dataclass(frozen=True, kw_only=True)
class Mirror:
    name: ClassVar[str] = "mirror"


@pytest.mark.parametrize("group", ["codecs", "policies", "selectors", "stores"])
def test_every_built_in_name_leads_to_a_class_of_that_name(group):
    for name in names(group):
        assert lookup(group, name).name == name
        assert lookup(group, name) is lookup(group, name)


@pytest.mark.parametrize(
    ("group", "package", "protocol"),
    [
        ("codecs", tensorstash.codecs, Codec),
        ("stores", tensorstash.stores, StoreConfig),
        ("policies", tensorstash.policies, HookPolicy),
        ("selectors", tensorstash.policies.selectors, Selector),
    ],
)
def test_every_component_of_the_package_has_a_name(group, package, protocol):
    modules = [package]
    for found in pkgutil.iter_modules(getattr(package, "__path__", ())):
        modules.append(import_module(f"{package.__name__}.{found.name}"))
    components = {
        member
        for module in modules
        for name, member in vars(module).items()
        if not name.startswith("_") and is_dataclass(member) and isinstance(member, protocol)
    }
    assert components
    assert components <= {lookup(group, name) for name in names(group)}


def test_unknown_name_tells_the_nearest_and_all():
    with pytest.raises(ConfigError, match=r"stores: unknown name 'dissk'; did you mean 'disk'\? Known: disk, memory"):
        lookup("stores", "dissk")


def test_unknown_group_tells_the_nearest():
    for use in (names, lambda group: lookup(group, "x"), lambda group: register(group, "x", Mirror)):
        with pytest.raises(ConfigError, match="unknown registry group 'codec'; did you mean 'codecs'"):
            use("codec")


def test_registered_class_is_found_and_one_made_anew_takes_its_place():
    register("codecs", "mirror", Mirror)
    assert lookup("codecs", "mirror") is Mirror
    assert "mirror" in names("codecs")
    with pytest.raises(ConfigError, match="Mirror is registered as 'mirage', but its name is 'mirror'"):
        register("codecs", "mirage", Mirror)
    again = type("Mirror", (), {"name": "mirror", "__module__": Mirror.__module__})
    register("codecs", "mirror", again)
    assert lookup("codecs", "mirror") is again


def test_taken_name_is_refused_naming_both(monkeypatch):
    monkeypatch.setattr(Mirror, "name", "sparse")
    both = r"'sparse' is claimed by tensorstash.codecs.sparse:Sparse of tensorstash and by .*:Mirror of register\(\)"
    with pytest.raises(ConfigError, match=both):
        register("codecs", "sparse", Mirror)
    assert lookup("codecs", "sparse").__module__ == "tensorstash.codecs.sparse"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("Mirror", "Mirror is registered as 'mirage', but its name is 'mirror'"),
        ("Smoke", "points at .*:Smoke, which does not exist"),
        ("GROUPS", r"got \['backends', .*\], expected a class"),
    ],
)
def test_targets_that_are_no_class_of_that_name_are_refused(target, message, rows):
    rows["codecs"]["mirage"] = (EntryPoint("mirage", f"{Mirror.__module__}:{target}", "codecs"),)
    with pytest.raises(ConfigError, match=message):
        lookup("codecs", "mirage")


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_missing_framework_says_what_to_install(framework, monkeypatch):
    monkeypatch.setitem(sys.modules, f"tensorstash.backends.{framework}.backend", None)
    with pytest.raises(MissingDependencyError, match=rf"pip install tensorstash\[{framework}\]"):
        lookup("backends", framework)


def test_plug_in_that_takes_a_built_in_name_makes_that_name_an_error_and_no_other(tmp_path):
    info = tmp_path / "flipper-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flipper\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tensorstash.codecs]\nzstd = flipper:Flip\n")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import tensorstash.registry as registry
from tensorstash.errors import ConfigError
print(registry.lookup("codecs", "sparse").__module__)
try:
    registry.lookup("codecs", "zstd")
except ConfigError as error:
    print(error)
"""
    other, taken = output_of(program).splitlines()
    assert other == "tensorstash.codecs.sparse"
    assert "tensorstash.codecs.zstd:Zstd of tensorstash and by flipper:Flip of flipper" in taken
