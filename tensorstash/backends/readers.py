"""The use that operations make of saved tensors: some must not get a lossy one.

Each framework has a list of them, ``readers.txt``, that is measured: one saved tensor at a time goes through a lossy
codec, and the gradients are compared. ``exact`` readers compare with the saved tensor, select by it, or divide by its
distance from a pole. ``relative`` readers divide by it or take its sign: rounding to fewer bits passes, codes of a
group do not.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast

from tensorstash.protocols import Demand


@cache
def listed(beside: str) -> Mapping[str, Demand]:
    """Return the demand of each measured reader, such as ``"MmBackward0.self"``, from the list beside a file.

    Others need the exact tensor.
    """
    lines = Path(beside).with_name("readers.txt").read_text("utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    saves = [(row[0], *save.split("=")) for row in rows for save in row[1:]]
    return {f"{operation}.{place}": cast(Demand, need) for operation, place, need in saves}
