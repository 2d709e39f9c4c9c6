"""A test that is skipped for want of what pip can install fails the run; the others are listed with their reasons."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import skips

ROOT = Path(__file__).resolve().parent.parent

FORBIDDEN = {
    "test_module.py": "import pytest\npytest.importorskip('no_such_package')\n",
    "test_inside.py": "import pytest\ndef test_it():\n    pytest.importorskip('no_such_package')\n",
    "test_own_words.py": "import pytest\ndef test_it():\n    pytest.skip('needs a package: pip install it')\n",
    "test_mark.py": "import pytest\n@pytest.mark.skip(reason='flaky')\ndef test_it(): ...\n",
    "test_doctest.py": "'''\n>>> 1  # doctest: +SKIP\n'''\n",
}
TOLERATED = """
import pytest

@pytest.mark.skip(reason="no CUDA device")
@pytest.mark.parametrize("number", [1, 2])
def test_it(number): ...

@pytest.mark.xfail
def test_other():
    assert False
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest prints about a folder with all of these."""
    folder = tmp_path_factory.mktemp("skipped")
    for name, text in {**FORBIDDEN, "test_device.py": TOLERATED}.items():
        (folder / name).write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.skips",
        "--doctest-modules",
        "-rfE",
    ]
    ran = subprocess.run(
        [*command, "--continue-on-collection-errors", "-c", os.devnull, "--rootdir", folder, folder],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 1, ran.stdout
    return ran.stdout


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_is_skipped_for_another_reason_than_those_listed_fails_the_run(output: str, name: str) -> None:
    verdicts = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR")) and name in line]
    assert verdicts, output


def test_the_message_says_what_to_do(output: str) -> None:
    assert "What pip can install belongs in the extra `test`" in output


def test_what_may_be_skipped_is_counted_by_reason(output: str) -> None:
    assert "    2  device: no CUDA device" in output
    assert "2 skipped, 1 xfailed" in output.splitlines()[-1]


def test_the_rule_is_in_force_here(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    for hook in ("pytest_runtest_makereport", "pytest_make_collect_report", "print_skips"):
        assert getattr(conftest, hook) is getattr(skips, hook)
