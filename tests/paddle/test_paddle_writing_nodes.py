"""Which kernels write into what they unpack: derived again, and compared with the list in the package."""

import os

import pytest
from paddle_operators.cases import Case, every_case
from paddle_operators.driving import outcomes, sampled
from paddle_operators.exclusions import exclusions
from paddle_operators.table import ROWS

from tensorstash.backends.paddle_writing_nodes import WRITING_NODES

WHOLE = os.environ.get("TENSORSTASH_OPERATORS") == "all"
KNOWN = ("F.cross_entropy", "F.softmax_with_cross_entropy")


@pytest.mark.timeout(0)
def test_no_other_kernel_than_those_listed_writes_into_what_it_unpacks():
    known = [Case(row, "contiguous", "float32") for row in ROWS if row.startswith(KNOWN)]
    other = [case for case in sampled(every_case(), 0) if WHOLE or case.dtype == "float32"]
    cases = [case for case in (*known, *other) if case not in exclusions()]
    written = {
        node for _, outcome in outcomes("writers", cases, None if WHOLE else 20) for node, _ in outcome.get("wrote", ())
    }
    assert written == WRITING_NODES
