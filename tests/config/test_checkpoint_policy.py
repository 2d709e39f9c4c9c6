"""Checkpoint as a value: where it may stand, how it is written, and which modules of a model it means."""

import pytest

import tensorstash as ts
from tensorstash import reference as ref
from tensorstash.errors import ConfigError, PlanError
from tensorstash.policies.checkpoint import Checkpoint
from tensorstash.policies.policy import PROBES


class ModuleList: ...


class Block: ...


class Head: ...


KINDS = {
    ModuleList: ("h", "h.0.mlp", "heads"),
    Block: ("h.0", "h.0.mlp.0", "h.0.mlp.1", "h.1", "h.2"),
    Head: ("", "h.0.mlp.0.up", "h.0.mlp.1.up", "h.1.mlp", "h.2.mlp", "heads.0", "heads.1"),
}
NESTED = dict(sorted((name, kind()) for kind, names in KINDS.items() for name in names))


@pytest.mark.parametrize("text", ["checkpoint", "checkpoint:every=2", "checkpoint:blocks=*.layers.*"])
def test_a_line_of_text_describes_it_and_comes_back(text):
    policy = ts.parse(f"{text} | disk_spill")
    assert policy == eval(repr(policy), vars(ts))
    assert ts.from_dict(ts.to_dict(policy)) == policy


def test_what_follows_plans_as_if_it_were_alone():
    rest = ts.Recompute() | ts.DiskSpill("/nvme")
    assert all((Checkpoint() | rest).plan(spec) == rest.plan(spec) for spec in PROBES)
    assert all(Checkpoint().plan(spec).keeps for spec in PROBES)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ts.Compress() | Checkpoint(),
        lambda: ts.Keep() | Checkpoint(),
        lambda: Checkpoint() | Checkpoint(every=2),
        lambda: Checkpoint() | ts.DiskSpill() | Checkpoint(),
    ],
)
def test_it_stands_nowhere_but_first(build):
    with pytest.raises(PlanError, match="it is about whole modules"):
        build()


@pytest.mark.parametrize("use", [Checkpoint(), Checkpoint() | ts.Compress()])
def test_it_is_no_choice_of_a_route(use):
    with pytest.raises(ConfigError, match=r"route\.otherwise: got Checkpoint.*before the route"):
        ts.Route((), otherwise=use)


def test_blocks_are_the_outermost_repeated_children_that_have_modules_inside():
    assert list(Checkpoint().chosen(NESTED)) == ["h.0", "h.1", "h.2"]
    assert list(Checkpoint(every=2).chosen(NESTED)) == ["h.0", "h.2"]


def test_patterns_name_the_outermost_that_they_mean():
    assert list(Checkpoint(blocks="h.*").chosen(NESTED)) == ["h.0", "h.1", "h.2"]
    assert list(Checkpoint(blocks=("*.mlp", "heads.1")).chosen(NESTED)) == ["h.0.mlp", "h.1.mlp", "h.2.mlp", "heads.1"]
    with pytest.raises(ConfigError, match=r"checkpoint\.blocks: 'h\.9' matches no module"):
        Checkpoint(blocks="h.9").chosen(NESTED)


def test_a_stash_refuses_it_with_the_cure():
    with pytest.raises(ConfigError, match=r"use ts\.wrap\(model, policy\)"):
        ts.stash("checkpoint | disk_spill", framework="reference")


def test_a_framework_that_repeats_no_block_refuses_it():
    model = ref.nn.Sequential(*(ref.nn.Sequential(ref.nn.GELU()) for _ in range(2)))
    with pytest.raises(ConfigError, match=r"Checkpoint is not there for reference.*Leave Checkpoint out"):
        ts.wrap(model, "checkpoint:blocks=*")
    assert ts.wrapped(model) == ()
