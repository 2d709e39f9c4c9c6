"""The doctor finds what is wrong, and each finding that is none too good has a cure."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorstash.backends import features
from tensorstash.cli import doctor, main
from tensorstash.cli.doctor import Finding
from tensorstash.errors import MissingDependencyError, TensorStashWarning
from tensorstash.host import native


def found(kind: str, findings: list[Finding]) -> str:
    """Return what is said of a subject."""
    return next(f"{each.state}: {each.text} -> {each.cure}" for each in findings if kind in each.subject)


def test_every_subject_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--directory", str(tmp_path), "--size", "16MiB", "--json"])
    findings = [Finding(**each) for each in json.loads(capsys.readouterr().out)]
    subjects = " ".join(each.subject for each in findings)
    for subject in ("compiled extension", "allocator", "disk at", "torch", "paddlepaddle", "accelerators of"):
        assert subject in subjects
    assert status == any(each.state == "bad" for each in findings)
    assert all(each.cure for each in findings if each.state != "good")
    assert "/s, direct I/O " in found("disk at", findings)
    assert f"{len(features.FRAMEWORKS['torch'].features)} private features found" in found("torch", findings)


def test_a_missing_extension_is_noted_with_its_cure(nothing_is_compiled: None) -> None:
    assert native.functions is None
    assert "install a C compiler" in found("extension", list(doctor.extension()))


def test_a_directory_that_cannot_be_used_is_bad(tmp_path: Path) -> None:
    (findings,) = [list(doctor.disks([str(tmp_path / "none")], nbytes=1))]
    assert found("disk", findings).startswith("bad: cannot be used")


def test_a_directory_in_memory_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "directories_in_memory", list)
    assert "saves nothing" in found("disk", list(doctor.disks(["/dev/shm"])))


@pytest.fixture(autouse=True)
def required_anew() -> Iterator[None]:
    """Frameworks are looked at again, in the test and after it."""
    features.require.cache_clear()
    yield
    features.require.cache_clear()


def lacking(monkeypatch: pytest.MonkeyPatch, *added: features.Feature) -> None:
    """Make it so that PyTorch would have to have more."""
    torch = features.FRAMEWORKS["torch"]
    more = features.Framework(torch.package, torch.oldest, torch.newest, (*torch.features, *added))
    monkeypatch.setitem(features.FRAMEWORKS, "torch", more)  # type: ignore[arg-type]


def test_a_framework_that_lacks_something_is_refused_with_versions_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch, features.Feature("torch._C:_of_next_year", "hooks"))
    with pytest.raises(MissingDependencyError, match=r"lacks torch\._C\._of_next_year.*'torch>=2\.8'"):
        features.require("torch")
    assert found("_of_next_year", list(doctor.frameworks())).startswith("bad: missing, needed for hooks")


def test_a_framework_that_lacks_what_can_be_done_without_works(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch, features.Feature("torch._C:_of_next_year", "speed", "it is slower"))
    features.require("torch")
    assert "it is slower" in found("_of_next_year", list(doctor.frameworks()))


@pytest.mark.parametrize("newer", ["3.4.0", "3.10.1+cu", "4.0.0.dev20270101", "3.3.2"])
def test_a_framework_that_is_newer_than_those_that_work_is_told(newer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "installed", lambda name: newer)
    if newer == "3.3.2":  # the same interface, but not tested
        with pytest.warns(TensorStashWarning, match=r"3\.3\.2 is newer than 3\.3\.1"):
            features.require("paddle")
    else:
        with pytest.raises(MissingDependencyError, match=r"newer than.*pip install 'paddlepaddle>=3.3.1,<3.4'"):
            features.require("paddle")
