"""Every operator of the table, in every layout and type, is the same under lossless policies, bit by bit.

A sample of some seconds runs always. ``TENSORSTASH_OPERATORS=all`` runs the whole table, and
``TENSORSTASH_OPERATORS_SEED`` chooses another sample.
"""

import os
from collections import Counter
from pathlib import Path

import pytest
from paddle_operators.cases import LAYOUTS, Case, every_case
from paddle_operators.driving import outcomes, sampled
from paddle_operators.exclusions import exclusions
from paddle_operators.table import ROWS

WHOLE = os.environ.get("TENSORSTASH_OPERATORS") == "all"
SEED = int(os.environ.get("TENSORSTASH_OPERATORS_SEED", "0"))


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENSORSTASH_TEST_DIRECTORY", str(tmp_path))


def test_the_table_has_more_than_400_operators_and_all_layouts():
    assert len({row.name for row in ROWS.values()}) > 500
    assert {case.layout for case in every_case()} == set(LAYOUTS)
    tried = {case.row for case in every_case() if case not in exclusions()}
    assert len({ROWS[row].name for row in tried}) > 500


@pytest.mark.long
@pytest.mark.timeout(0)
def test_lossless_policies_change_no_bit_of_any_operator_but_where_plain_paddle_refuses_it():
    cases = [case for case in sampled(every_case(), SEED) if case not in exclusions()]
    wrong, counted = {}, Counter()
    for case, outcome in outcomes("under_policies", cases, None if WHOLE else 5):
        counted[outcome.get("excluded", "compared")] += 1
        if outcome.keys() & {"failed", "died"}:
            wrong[case.id] = outcome
    print(f"seed {SEED}: {dict(counted)} of {len(cases)} cases")
    assert counted["compared"] > counted.total() / 4
    assert not wrong


def test_the_search_finds_planted_faults_and_names_a_case_that_kills_its_process():
    planted = {
        Case("paddle.exp", "contiguous", "float32"): "alive",
        Case("paddle.exp", "sliced", "float32"): {"died": "SIGSEGV"},
        Case("paddle.square", "contiguous", "float32"): None,
        Case("paddle.square", "transposed", "float32"): "other gradients",
        Case("F.softmax_with_cross_entropy(return_softmax=True)", "contiguous", "float32"): "backward changed output 1",
    }
    assert dict(outcomes("paddle_operators.planted.faulty", planted)) == planted
