"""Configurations of stores: frozen values that open nothing and refuse nonsense."""

import dataclasses
import os
from pathlib import Path

import pytest

from tensorstash.errors import ConfigError
from tensorstash.protocols import StoreConfig
from tensorstash.stores import Disk, Memory, Tiered

CONFIGS = [
    Memory(),
    Memory(budget="1.5 KiB"),
    Disk(),
    Disk(directory="/nowhere", budget=0, direct=False),
    Disk(directory=Path("/nowhere"), budget="40GiB"),
    Tiered(first=Memory(budget=10), then=Disk(directory="/nowhere")),
    Tiered(first=Disk(directory="/nowhere", budget=10), then=Tiered(first=Memory(budget=1), then=Memory())),
]


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_a_config_is_a_value_that_evaluates_from_its_repr(config):
    assert eval(repr(config)) == config
    assert hash(eval(repr(config))) == hash(config)
    assert isinstance(config, StoreConfig)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, dataclasses.fields(config)[0].name, None)


@pytest.mark.parametrize("budget", [-1, 1.5, True, "many", "1 XB", b"1"])
def test_a_budget_that_is_no_size_is_refused_with_its_path(budget):
    for build, path in ((Memory, "memory.budget"), (Disk, "disk.budget")):
        with pytest.raises(ConfigError, match=path):
            build(budget=budget)


@pytest.mark.parametrize("directory", ["", b"/tmp", 3, (), ["/a"], "/a\0b"])
def test_a_directory_that_is_no_path_is_refused(directory):
    with pytest.raises(ConfigError, match=r"disk\.directory"):
        Disk(directory=directory)


def test_other_nonsense_is_refused():
    with pytest.raises(ConfigError, match=r"disk\.direct"):
        Disk(direct="yes")
    for wrong in (None, "memory", Memory, object()):
        with pytest.raises(ConfigError, match=r"tiered\.first"):
            Tiered(first=wrong, then=Memory())
        with pytest.raises(ConfigError, match=r"tiered\.then"):
            Tiered(first=Memory(), then=wrong)


def test_a_home_directory_is_found_on_the_machine_that_opens(monkeypatch):
    config = Disk(directory="~/scratch")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("USERPROFILE", "/home/someone")
    assert config.directory == "~/scratch"
    assert config.directories == (os.path.join("/home/someone", "scratch"),)


def test_sizes_and_paths_are_normalised():
    assert Memory(budget="1 KiB") == Memory(budget=1024)
    assert Disk(directory=Path("/a")).directory == "/a"


def test_the_default_directory_is_one_for_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert Disk().directories == (str(tmp_path),)
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr("tempfile.tempdir", None)
    assert os.path.isdir(*Disk().directories)


def test_a_tier_that_cannot_open_closes_the_other(tmp_path):
    opened = []

    class Watched:
        name = tier = "memory"

        def open(self):
            opened.append(Memory().open())
            return opened[0]

    from tensorstash.errors import SlotGoneError, StoreError

    with pytest.raises(StoreError, match="none"):
        Tiered(first=Watched(), then=Disk(directory=str(tmp_path / "none"))).open()
    with pytest.raises(SlotGoneError):
        opened[0].put(None)
