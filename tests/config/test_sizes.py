"""Byte counts as people write them, and what is none."""

import pytest

from tensorstash.errors import ConfigError
from tensorstash.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), (" 4 KiB ", 4096), ("1.5kb", 1500), ("2 TiB", 2 * 2**40), ("6G", 6 * 2**30), ("6GB", 6 * 10**9)],
)
def test_a_number_with_a_unit_is_a_number_of_bytes(text, nbytes):
    assert parse_bytes(text, path="x") == nbytes


@pytest.mark.parametrize(
    "text", ["4 KiB!", "4 KiB 5", "4/s", "KiB", "", "-1", "1e9", "4 PiB", True, False, -1, 1.5, None]
)
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError, match=r"x: got .*, expected a number of bytes"):
        parse_bytes(text, path="x")
