"""Configurations of stores: frozen values that open nothing and refuse nonsense."""

import os
from pathlib import Path

from tensorstash.stores import Disk, Memory


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
