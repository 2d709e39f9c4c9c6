"""Which kernels write into what they unpack: derived again, and compared with the operations that are guarded."""

import os

import pytest
from paddle_operators.cases import Case, every_case
from paddle_operators.driving import outcomes, sampled
from paddle_operators.exclusions import exclusions
from paddle_operators.table import ROWS

from tensorstash.backends.paddle.repairs.writers import WRITERS

WHOLE = os.environ.get("TENSORSTASH_OPERATORS") == "all"
KNOWN = ("F.cross_entropy", "F.softmax_with_cross_entropy")


@pytest.mark.long
@pytest.mark.timeout(0)
def test_no_other_kernel_than_those_of_guarded_operations_writes_into_what_it_unpacks():
    known = [Case(row, "contiguous", "float32") for row in ROWS if row.startswith(KNOWN)]
    other = [case for case in sampled(every_case(), 0) if (WHOLE or case.dtype == "float32") and case not in known]
    kept = [[case for case in cases if case not in exclusions()] for cases in (known, other)]
    tried = [*outcomes("writers", kept[0]), *outcomes("writers", kept[1], None if WHOLE else 3)]
    wrote = {node for _, outcome in tried for node, _ in outcome.get("wrote", ())}
    assert wrote == {"CrossEntropyWithSoftmaxGradNode"}
    assert wrote <= {"".join(word.capitalize() for word in name.split("_")) + "GradNode" for name in WRITERS}
