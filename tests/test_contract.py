"""Every line of the contract is held by a class of checks that runs on every backend."""

import re
from pathlib import Path

from tensorstash.testing import BackendSuite

DOCUMENT = Path(__file__).parents[1] / "docs" / "CONTRACT.md"
ROW = re.compile(r"^\| <a id=\"line-(\d+)\"></a>\1 \|.*\[`(\w+)`\]\(\.\./(\S+)\) \|$", re.MULTILINE)
LINES = ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
GROUPS = {group.__name__: group for group in BackendSuite.__bases__}


def test_the_lines_are_numbered_and_name_every_group_of_checks():
    assert [int(number) for number, _, _ in LINES] == list(range(1, len(LINES) + 1))
    assert [name for _, name, _ in LINES] == list(dict.fromkeys(name for _, name, _ in LINES))
    assert {name for _, name, _ in LINES} == set(GROUPS)


def test_each_group_is_where_its_line_says_and_its_checks_bear_its_number():
    for number, name, file in LINES:
        group = GROUPS[name]
        assert file == group.__module__.replace(".", "/") + ".py"
        checks = [check for check in vars(group) if check.startswith("test_")]
        assert checks, name
        assert all(check.startswith(f"test_line{int(number):02}_") for check in checks), name
