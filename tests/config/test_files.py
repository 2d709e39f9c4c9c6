"""Settings come from files of three formats, from what libraries for configuration make, and from command lines."""

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import tensorstash as ts
from tensorstash.config.files import settings_of
from tensorstash.errors import ConfigError, MissingDependencyError, TensorStashWarning
from tensorstash.sizes import parse_budget

LIMITS = ts.Limits(in_flight="64MiB")
SETTINGS = {"policy": ts.Compress() | ts.DiskSpill(), "budget": 2**31, "min_bytes": 2**20, "limits": LIMITS}
TEXTS = {
    "s.toml": 'policy = "compress | disk_spill"\nbudget = "2GiB"\nmin_bytes = "1MiB"\n[limits]\nin_flight = "64MiB"\n',
    "s.json": '{"policy": "compress | disk_spill", "budget": "2GiB", "min_bytes": "1MiB",'
    '"limits": {"in_flight": "64MiB"}}',
    "s.yaml": "policy: compress | disk_spill\nbudget: 2GiB\nmin_bytes: 1MiB\nlimits:\n  in_flight: 64MiB\n",
    "s.YML": "policy:\n  steps: [compress, {name: disk_spill}]\n  name: chain\n"
    "budget: 2147483648\nmin_bytes: 1MiB\nlimits: {in_flight: 64MiB}",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_gives_the_arguments_of_a_scope(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(TEXTS[name])
    assert ts.load_settings(path) == SETTINGS == settings_of(str(path), "--policy")
    if name == "s.toml":
        with path.open("rb") as file:
            assert ts.load_settings(file) == SETTINGS
            assert not file.closed
    with ts.stash(**ts.load_settings(path), framework="reference") as session:
        assert session.stats().seen.tensors == 0


def test_a_file_with_a_budget_alone_has_the_policy_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('budget = "auto"')
    assert ts.load_settings(tmp_path / "s.toml") == {"policy": ts.parse("auto"), "budget": "auto"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.toml", "policy = ", "s.toml: not TOML: "),
        ("s.toml", "", r"s\.toml: policy: missing; expected a table"),
        ("s.toml", "policy = 'keep'\nother = 1", r"s\.toml: other: unknown key; Known: budget, limits"),
        ("s.json", "{", "s.json: not JSON: "),
        ("s.yaml", "a: [", "s.yaml: not YAML: "),
        ("s.yaml", "- 1", r"s.yaml: got \[1\], expected a table"),
        ("s.toml", 'policy = "keep"\n[limits]\nin_fligt = 1', r"s.toml: limits.in_fligt: unknown key; did you mean"),
        ("s.toml", 'policy = "keep"\n[limits]\nin_flight = "much"', r"limits: limits.in_flight: got 'much'"),
        ("s.toml", 'policy = "keep"\nmin_bytes = "much"', "s.toml: min_bytes: got 'much'"),
        ("s.toml", 'budget = "6"', "s.toml: budget: got '6', expected a size with a unit"),
        ("s.toml", 'policy = "keep"\nlimits = 3', "s.toml: limits: got 3, expected a table with in_flight"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_place(name: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        ts.load_settings(path)


def test_without_pyyaml_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "s.yaml"
    path.write_text("policy: keep")
    with pytest.raises(MissingDependencyError, match="pip install pyyaml"):
        ts.load_settings(path)


def test_what_omegaconf_makes_is_read_as_it_is() -> None:
    from omegaconf import OmegaConf  # only this test needs it

    policy = ts.Quantize(4) | ts.DiskSpill("/a")
    config = OmegaConf.create({"policy": ts.to_dict(policy), "line": "compress"})
    assert ts.from_dict(config.policy) == policy


class Training(BaseModel):
    """Settings of a training, as people declare them."""

    policy: ts.Policy
    spill: ts.DiskSpill = ts.DiskSpill()


def test_fields_of_pydantic_take_objects_plain_data_and_text() -> None:
    read = Training.model_validate({"policy": {"name": "quantize", "bits": 4}, "spill": "disk_spill:budget=2GiB"})
    assert read == Training(policy=ts.Quantize(4), spill=ts.DiskSpill(budget="2GiB"))
    assert Training(policy="quantize:bits=4").policy == ts.Quantize(4)  # type: ignore[arg-type]
    assert Training.model_validate_json(read.model_dump_json()) == read
    assert Training.model_json_schema()["required"] == ["policy"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("policy", {"name": "quantize", "bitz": 4}, "Policy.bitz: unknown key; did you mean 'bits'"),
        ("policy", 3, "Policy: got 3, expected a policy"),
        ("spill", "keep", r"DiskSpill: got Keep\(\), expected a DiskSpill"),
        ("spill", {"name": "disk_spill", "bugdet": 1}, "DiskSpill.bugdet: unknown key; did you mean 'budget'"),
    ],
)
def test_fields_of_pydantic_keep_the_message(field: str, value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Training(**{"policy": "keep", field: value})  # type: ignore[arg-type]


def test_an_option_of_argparse_keeps_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", type=ts.policy_argument)
    assert parser.parse_args(["--policy", "keep"]).policy == ts.Keep()
    with pytest.raises(SystemExit):
        parser.parse_args(["--policy", "compres"])
    assert "argument --policy: policy: unknown policy 'compres'; did you mean 'compress'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (lambda: ts.Limits(in_flight="64"), "limits.in_flight"),
        (lambda: ts.Limits(pinned=8), "limits.pinned"),
        (lambda: ts.DiskSpill(budget=4), "disk.budget"),
        (lambda: ts.parse("disk_spill:budget=40"), "disk.budget"),
    ],
)
def test_a_bare_number_too_small_for_a_budget_warns(build: Any, path: str) -> None:
    with pytest.warns(TensorStashWarning, match=rf"{path}: \d+ without a unit .* write '\d+GiB'"):
        build()


@pytest.mark.parametrize("size", [0, 4096, "64B", "1 KiB", "1.5k"])
def test_a_budget_that_may_be_meant_does_not_warn(size: int | str, recwarn: pytest.WarningsRecorder) -> None:
    parse_budget(size, path="x")
    ts.DiskSpill(budget=size).alternatives()
    assert not recwarn.list
