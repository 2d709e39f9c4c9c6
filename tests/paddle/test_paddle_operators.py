"""Every operator of the table, in every layout and type, is the same under lossless policies, bit by bit.

``TENSORSTASH_OPERATORS=all`` runs the whole table and no sample, ``TENSORSTASH_OPERATORS_SEED`` another sample.
"""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from paddle_operators.cases import LAYOUTS, Case, every_case
from paddle_operators.driving import Server, sampled, serve
from paddle_operators.lossy import cases_of_readers
from paddle_operators.rows import ROWS

from tensorstash.backends.paddle.operations import WRITERS
from tensorstash.backends.paddle.recipes import READERS

WHOLE = os.environ.get("TENSORSTASH_OPERATORS") == "all"
SEED = int(os.environ.get("TENSORSTASH_OPERATORS_SEED", "0"))
STATED = 0.15
"""What the gradients of one operator stay within, in norm, under ``Quantize(8)`` and under ``Cast("bfloat16")``."""

AMPLIFIED = 'geometric.send_uv(x(), positive(), i(5, high=3), i(5, high=3), "div")'
"""No measure of one operator: it is two, of which the second divides by what the first got inexactly."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    program = f"from {serve.__module__} import serve; serve()"
    with Server(program, TENSORSTASH_TEST_DIRECTORY=str(tmp_path_factory.mktemp("spilled"))) as server:
        yield server


def test_the_table_has_more_than_500_operators_and_all_layouts():
    cases = list(every_case())
    assert {case.layout for case in cases} == set(LAYOUTS)
    assert len({ROWS[case.row].name for case in cases}) > 500


@pytest.mark.long
@pytest.mark.timeout(0)
def test_lossless_policies_change_no_bit_of_any_operator_but_where_plain_paddle_refuses_it(server):
    cases = sampled(every_case(), SEED)
    said = server.outcomes("jobs.under_policies", cases if WHOLE else cases[:250])
    counted = Counter(outcome.get("excluded", "compared") for outcome in said.values())
    print(f"seed {SEED}: {dict(counted)} of {len(cases)} cases")
    assert counted["compared"] > counted.total() / 4
    assert not {case.id: outcome for case, outcome in said.items() if outcome.keys() & {"failed", "died"}}


@pytest.mark.long
@pytest.mark.timeout(0)
def test_gradients_under_lossy_policies_stay_within_the_stated_error(server):
    cases = [case for case in sampled(cases_of_readers(), 1) if case.row != AMPLIFIED]
    said = server.outcomes("lossy.under_lossy_policies", cases if WHOLE else cases[:30]).items()
    assert not {case.id: by for case, by in said if "died" in by or max(by.values(), default=0.0) > STATED}


SAVE_NOTHING = """
    Add AddN Cast Ceil Concat Dropout Expand Flatten Floor Mean Reshape Scale Slice Split SplitWithNum Squeeze Stack
    Subtract Sum Transpose Unbind Unsqueeze Where
    """
"""Nodes whose backward needs shapes alone, or a mask."""


@pytest.mark.long
@pytest.mark.timeout(0)
def test_readers_have_an_edge_to_whatever_made_what_they_save_and_guarded_ones_alone_write_into_it(server):
    cases = (case for case in every_case() if case.dtype == "float32")
    # Operators that work in place have the nodes of others.
    few = (case for case in cases if case.layout == "contiguous" and not ROWS[case.row].name.endswith("_"))
    found = server.outcomes("jobs.looked_at", cases if WHOLE else few).items()
    wrote = {node for _, outcome in found for node in outcome.get("wrote", ())}
    assert wrote == {"CrossEntropyWithSoftmaxGradNode"}
    assert wrote <= {"".join(word.capitalize() for word in name.split("_")) + "GradNode" for name in WRITERS}
    # Decompositions are made of several operations, of which some are no part of the graph.
    found = [one for one in found if one[0].layout == "contiguous" and not one[0].row.startswith("linalg.")]
    apart = {case.row: nodes for case, outcome in found if (nodes := READERS & set(outcome.get("apart", ())))}
    assert not apart
    saving = {node for _, outcome in found for node in outcome.get("saved", ())}
    assert READERS - saving == {f"{name}GradNode" for name in SAVE_NOTHING.split()}


def test_the_search_finds_planted_faults_and_names_a_case_that_kills_its_process(server):
    changed = "F.softmax_with_cross_entropy(x(5, 4), i(5, 1, high=4), return_softmax=True)"
    planted = {
        Case("paddle.exp(x())", "contiguous", "float32"): "alive",
        Case("paddle.exp(x())", "sliced", "float32"): {"died": "SIGSEGV"},
        Case("paddle.square(x())", "contiguous", "float32"): None,
        Case("paddle.square(x())", "transposed", "float32"): "other gradients",
        Case(changed, "contiguous", "float32"): "backward changed output 1",
    }
    assert server.outcomes("jobs.faulty", planted) == planted
