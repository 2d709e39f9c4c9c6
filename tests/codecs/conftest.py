"""Tests that run twice: with what is compiled, and in NumPy, which defines what is computed."""

import pytest

from tensorstash import native


@pytest.fixture(params=["compiled", "numpy"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(native, "functions", None)
    elif native.functions is None:
        pytest.skip("nothing is compiled here")
