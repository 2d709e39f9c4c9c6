"""Policies as plain data: nothing is lost on the way there and back."""

import json

import pytest
from hypothesis import example, given
from policy_strategies import eval_repr, policies

import tensorstash as ts
import tensorstash.codecs
from tensorstash.codecs import Zstd
from tensorstash.config import from_dict, parse, to_dict
from tensorstash.errors import ConfigError
from tensorstash.policies.route import automatic
from tensorstash.policies.selectors import Dtypes, MinBytes, ModuleNames
from tensorstash.stores import Disk, Memory
from tests.processes import output_of

EVERYTHING = ts.Route(
    (
        ts.Rule(MinBytes("1 MiB") & Dtypes("float32"), ts.Quantize(4) | ts.DiskSpill("/a", budget="40 GiB")),
        ts.Rule(~ModuleNames(("head", "*.norm")), ts.PackMasks() | ts.Compress(level=3)),
    ),
    otherwise=ts.Encode(Zstd(level=9)) | ts.StoreIn(Disk(directory="/x", direct=False)),
)


def line(table):
    """Return the line of text that a plain table stands for, as a person would write it; None where there is none."""
    if table["name"] == "chain" and table["steps"]:
        steps = [line(step) for step in table["steps"]]
        return None if None in steps else " | ".join(steps)
    for name, field in (("encode", "codec"), ("store_in", "store")):
        if table["name"] == name:  # which the reader puts around a codec and a store
            return line(table[field])
    options = {key: value for key, value in table.items() if key != "name"}
    if any(isinstance(value, dict | list) for value in options.values()):
        return None
    quoted = (f"{key}='{str(value).replace(chr(39), 2 * chr(39))}'" for key, value in options.items())
    return f"{table['name']}:{','.join(quoted)}".replace("'True'", "true").replace("'False'", "false").removesuffix(":")


@given(policies)
@example(EVERYTHING)
def test_every_form_of_a_policy_leads_back_to_it(policy):
    data = to_dict(policy)
    assert from_dict(data) == policy
    assert eval_repr(policy) == policy
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    text = line(data)
    assert text is None or parse(text) == policy or (isinstance(policy, ts.Chain) and len(policy.steps) < 2)


def test_names_of_codecs_and_stores_stand_for_policies():
    assert from_dict({"name": "zstd", "level": 9}) == ts.Encode(Zstd(level=9))
    assert from_dict({"name": "memory", "budget": "1 KiB"}) == ts.StoreIn(Memory(budget=1024))
    assert parse("sparse | zstd:level=9,shuffle=true | disk:directory=/x,direct=false") == ts.Chain(
        (*parse("sparse | zstd:level=9,shuffle=true").steps, ts.StoreIn(Disk(directory="/x", direct=False)))
    )


def test_policies_and_codecs_have_names_of_their_own():
    assert parse("cast:dtype=float16") == ts.Cast("float16")
    assert parse("astype:dtype=float16") == ts.Encode(tensorstash.codecs.AsType(dtype="float16"))
    codec = ts.Encode(tensorstash.codecs.AsType(dtype="float16"))
    assert parse("encode:codec='astype:dtype=float16'") == codec == from_dict(to_dict(codec))


def test_text_stands_for_a_component_anywhere():
    data = {"name": "route", "rules": [{"when": "min_bytes:size=1KiB", "use": "quantize:bits=4 | compress"}]}
    assert from_dict(data) == ts.Route((ts.Rule(MinBytes(1024), ts.Quantize(4) | ts.Compress()),))
    assert from_dict({"name": "encode", "codec": "zstd:level=9"}) == ts.Encode(Zstd(level=9))
    assert from_dict({"name": "store_in", "store": "memory"}) == ts.StoreIn(Memory())
    chain = {"name": "chain", "steps": ["keep", "quantize | compress"]}
    assert from_dict(chain) == ts.Keep() | ts.Quantize() | ts.Compress()


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("auto", automatic()),
        ("keep", ts.Keep()),
        ("  quantize :  bits = 4 ,seed=7|compress ", ts.Quantize(4, seed=7) | ts.Compress()),
        ("quantize | compress | disk_spill:budget=2GiB", ts.Quantize() | ts.Compress() | ts.DiskSpill(budget=2**31)),
        ("disk_spill:budget=4096,directory=/x", ts.DiskSpill("/x", budget=4096)),
        ("disk_spill:directory=4", ts.DiskSpill("4")),
        (r"disk_spill:directory=C:\scratch", ts.DiskSpill(r"C:\scratch")),
        ("disk_spill:directory=/a=b", ts.DiskSpill("/a=b")),
        ("disk_spill:directory='/a,b|c'", ts.DiskSpill("/a,b|c")),
        ('disk_spill:directory="/it\'s"', ts.DiskSpill("/it's")),
        ("disk_spill:directory='/it''s'", ts.DiskSpill("/it's")),
        ("disk_spill:directory=' '", ts.DiskSpill(" ")),
    ],
)
def test_one_line_of_text(text, policy):
    assert parse(text) == policy


def test_reading_a_configuration_imports_no_framework_and_opens_nothing(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"policy": to_dict(EVERYTHING)}).replace("/a", str(tmp_path / "not" / "there")))
    program = f"""
import sys, threading
from tensorstash.config.files import load_settings
from tensorstash.registry import names
for group in ("policies", "codecs", "stores", "selectors"):
    names(group)
touched = []
watched = ("open", "os.mkdir", "os.listdir", "os.scandir", "socket.__new__", "subprocess.Popen")
sys.addaudithook(lambda event, args: touched.append(args[0]) if event in watched else None)
load_settings({str(path)!r})
print(*touched)
print(*sorted({{"torch", "paddle"}} & set(sys.modules)), threading.active_count())
"""
    assert output_of(program).splitlines() == [str(path), "1"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy.json"]


def test_what_is_not_registered_cannot_be_written():
    class Mine(ts.Compress):
        name = "mine"

    class Imposter(ts.Compress):
        pass

    with pytest.raises(
        ConfigError, match=r"policy.steps\[1\]: .*Mine is not registered: policies: unknown name 'mine'"
    ):
        to_dict(ts.Keep() | Mine())
    with pytest.raises(ConfigError, match=r"policy: got .*Imposter.*, but the name 'compress' of policies stands for"):
        to_dict(Imposter())


@pytest.mark.parametrize("value", [ts.Keep, Zstd(), 3, {"name": "keep"}])
def test_only_policies_are_written(value):
    with pytest.raises(ConfigError, match=r"policy: got .*, expected a policy that is a dataclass"):
        to_dict(value)
