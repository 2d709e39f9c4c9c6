"""Every way to get a configuration wrong is told with its dotted path and what would be right."""

import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import ClassVar, Literal

import pytest

from tensorstash import registry
from tensorstash.config import from_dict, parse, to_dict
from tensorstash.errors import ConfigError, MissingDependencyError
from tensorstash.policies import Keep, Policy, append
from tensorstash.protocols import Codec


def rule(when="min_bytes:size=1", use="keep"):
    return {"name": "route", "rules": [{"when": when, "use": use}]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"nam": "quantize"}, "policy.name: missing; expected the name of a policy"),
        (3, "policy: got 3, expected a policy (a table with a name, or text)"),
        (
            {"name": "quantize", "bitz": 4},
            "policy.bitz: unknown key; did you mean 'bits'? Known: bits, group_size",
        ),
        ({"name": "quantize", "bits": 3}, "policy.bits: got 3, expected 2 or 4 or 8"),
        ({"name": "quantize", "seed": True}, "policy.seed: got True, expected a whole number"),
        ({"name": "quantize", "group_size": 0}, "policy: quantize: affine.group_size: got 0"),
        ({"name": "disk", "direct": 1}, "policy.direct: got 1, expected true or false"),
        ({"name": "route"}, "policy.rules: missing; expected a list of: a table with when, use"),
        ({"name": "route", "rules": ["keep"]}, "policy.rules[0]: got 'keep', expected a table with when, use"),
        ({"name": "route", "rules": [{"when": "min_bytes:size=1"}]}, "policy.rules[0].use: missing; expected a policy"),
        ({"name": "chain", "steps": [{"name": "keep"}, {"name": "quantize", "bitz": 4}]}, "policy.steps[1].bitz: unkn"),
        (rule(when="min_byte"), "policy.rules[0].when: unknown selector 'min_byte'; did you mean 'min_bytes'?"),
        (rule(when="min_bytes:size=1 | dtypes:names=bool"), "policy.rules[0].when: got 2 steps in"),
        (rule(when={"name": "min_bytes", "size": "x"}), "policy.rules[0].when: min_bytes.size: got 'x'"),
        (rule(when={"name": "all", "of": ["min_bytes:size=1", {"name": "no"}]}), "policy.rules[0].when.of[1]: unknown"),
        (rule(use="keep | quantize:bitz=4"), "policy.rules[0].use.steps[1].bitz: unknown key; did you mean 'bits'?"),
        ({"name": "encode", "codec": "disk"}, "policy.codec: unknown codec 'disk'; Known: "),
        ({"name": "encode", "codec": {"name": "zstd", "levle": 1}}, "policy.codec.levle: unknown key; did you mean 'l"),
    ],
)
def test_wrong_data(data, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_dict(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quantize:", "policy: got '' in 'quantize:', expected key=value"),
        ("quantize:bits", "policy: got 'bits', expected key=value"),
        ("quantize:bits=4,bits=8", "policy.bits: given twice in 'quantize:bits=4,bits=8'"),
        ("quantize:name=cast", "policy.name: given twice"),
        ("keep | quantize:seed=x", "policy.steps[1].seed: got 'x', expected a whole number"),
        ("keep | dissk", "policy.steps[1]: unknown policy 'dissk'; did you mean 'disk'?"),
        ("disk_spill:directory='/x", "policy: the quotation mark ' is not closed in"),
        ("disk_spill:directory='/x'y", "policy.directory: got \"'/x'y\", expected nothing after the closing '"),
        ("disk_spill:directory=/'x'", "policy.directory: got \"/'x'\"; put all of a value that holds a quotation mark"),
        ("chain:steps=keep", "policy.steps: got 'keep', expected a list of: a policy"),
        (3, "policy: got 3, expected text such as"),
    ],
)
def test_wrong_text(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(text)


@dataclass(frozen=True, kw_only=True)
class Odd(Policy):
    """A policy of a plug-in with every kind of field, and some that have no plain form."""

    name: ClassVar[str] = "odd"
    ratio: float = 0.5
    mode: Literal["a", 1, True] = "a"
    limits: tuple[int, ...] = ()
    codec: Codec | None = None
    either: str | int | bool = "x"
    lookup: dict | None = None
    missing_is_one: int | None = 1

    def __post_init__(self):
        if self.ratio > 1:
            raise ValueError("ratio is above 1")

    def extend(self, plan, spec, /):
        return append(plan, spec)


@dataclass(frozen=True, kw_only=True)
class NoPolicy:
    name: ClassVar[str] = "no_policy"


class NoDataclass:
    name = "no_dataclass"


@pytest.fixture(autouse=True)
def _plug_ins(rows):
    for plug_in in (Odd, NoPolicy, NoDataclass):
        registry.register("policies", plug_in.name, plug_in)
    rows["policies"]["absent"] = (EntryPoint("absent", "no_such_module:Absent", "policies"),)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("odd:ratio=1", Odd(ratio=1.0)),
        ("odd:ratio=1e-3,mode=1", Odd(ratio=0.001, mode=1)),
        ("odd:either=12", Odd(either=12)),
        ("odd:either=12x", Odd(either="12x")),
        ("odd:codec=zstd", Odd(codec=from_dict({"name": "zstd"}).codec)),
    ],
)
def test_text_is_read_as_the_field_wants_it(text, policy):
    back = parse(text)
    assert back == policy
    assert (type(back.mode), type(back.either), type(back.ratio)) == (type(policy.mode), type(policy.either), float)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"ratio": "x"}, "policy.ratio: got 'x', expected a number"),
        ({"ratio": 2}, "policy: ratio is above 1"),
        ({"limits": [1, "x"]}, "policy.limits[1]: got 'x', expected a whole number"),
        ({"mode": False}, "policy.mode: got False, expected 'a' or 1 or True"),
        ({"lookup": {}}, "policy.lookup: a field of type <class 'dict'> cannot be configured; build the object in Py"),
    ],
)
def test_wrong_data_for_plug_ins(data, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_dict({"name": "odd", **data})


def test_plug_in_that_is_no_policy_is_refused():
    with pytest.raises(ConfigError, match=r"policy: NoPolicy\(\) does not implement HookPolicy"):
        parse("no_policy")


def test_missing_library_is_told_with_its_place_and_what_to_install():
    with pytest.raises(MissingDependencyError, match=r"policy.steps\[1\]: .*'absent' .*check the installation of"):
        parse("keep | absent")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Odd(lookup={}), "policy.lookup: got {}, which has no plain form"),
        (Odd(missing_is_one=None), "policy.missing_is_one: None has no plain form, and leaving it out means another"),
        (Keep() | Odd(limits=(1, object)), "policy.steps[1].limits[1]: got <class 'object'>, which has no plain form"),
    ],
)
def test_what_has_no_plain_form_cannot_be_written(policy, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        to_dict(policy)
