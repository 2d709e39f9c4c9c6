"""A budget: the excess over it leaves, recipes before stores, the oldest first."""

from contextlib import nullcontext

import numpy as np
import pytest

import tensorstash as ts
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.engine.ladder import Ladder, Record, planned
from tensorstash.engine.ledger import Ledger
from tensorstash.errors import ConfigError
from tensorstash.host.budget import ByteBudget
from tensorstash.spec import TensorSpec
from tensorstash.testing import Lab
from tensorstash.testing.labs import BACKENDS, lab_of

WIDTH, ROWS = 32, 64
ONE = WIDTH * ROWS * 4


def step_of(*sizes: int, remakable: tuple[int, ...] = (), storable: bool = True) -> list[Record]:
    records = [Record(("kind", nbytes), nbytes, place) for place, nbytes in enumerate(sizes)]
    for place, record in enumerate(records):
        record.was_recomputed(place in remakable)
        if storable:
            record.was_stored()
    return records


def fates(records: list[Record], limit: int) -> str:
    letters = {"kept": "k", "recomputed": "r", "stored": "s"}
    return "".join(letters[record.fate] for record in planned(records, limit))


@pytest.mark.parametrize(
    ("sizes", "remakable", "limit", "expected"),
    [
        ((10, 10, 10), (0,), 30, "kkk"),  # all fits
        ((10, 10, 10), (), 20, "skk"),  # the oldest leave first
        ((10, 10, 10), (), 19, "ssk"),
        ((10, 10, 10, 10), (2,), 30, "kkrk"),  # recipes come before stores over the whole step
        ((10, 10, 10, 10), (2,), 20, "skrk"),
        # The newest is made again while all others are still held: one of them has to make room for the result.
        ((10, 10, 10, 20), (3,), 40, "skkr"),
    ],
)
def test_the_excess_leaves_by_recipes_first_and_the_oldest_first(sizes, remakable, limit, expected):
    assert fates(step_of(*sizes, remakable=remakable), limit) == expected


def test_what_cannot_leave_stays():
    assert fates(step_of(10, 10, storable=False), 5) == "kk"


def test_tensors_in_one_memory_leave_together():
    records = step_of(10, 10, 10)
    shared = Record("second view", 10, 0)
    assert fates([*records, shared], 40) == "kkkk"
    assert fates([*records, shared], 39) == "kskk"  # the second view has no store


def test_payloads_in_the_same_memory_gain_only_the_difference():
    records = step_of(10, 10, 10, 10)
    for record in records:
        record.was_stored(8)
    assert fates(records, 38) == "skkk"
    assert fates(records, 36) == "sskk"


def train(lab: Lab, stash: ts.Stash | None, *, depth: int = 6, steps: int = 4, rows: int = ROWS) -> list[bytes]:
    """Return the gradient of each step."""
    found = []
    for step in range(steps):
        values = np.linspace(0.5, 1.5, rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH) + step
        leaf = lab.tensor(values, requires_grad=True)
        with stash or nullcontext():
            out = leaf
            for _ in range(depth):
                out = ((out * 0.25).exp() * 0.5).tanh()
            loss = out.sum()
        del out
        lab.backward(loss)
        found.append(lab.gradient(leaf).tobytes())
    return found


@pytest.fixture(params=BACKENDS)
def lab(request) -> Lab:
    return lab_of(request.param)


def test_a_budget_is_held_from_the_first_step_on(lab):
    budget = 6 * ONE
    stash = ts.stash("disk_spill", budget=budget, framework=lab.name, min_bytes=0)
    assert train(lab, stash, depth=10) == train(lab, None, depth=10)
    stats = stash.stats()
    assert stats.planned["kept"].nbytes <= budget
    assert stats.planned["stored"].nbytes > 0
    assert stats.peak_held <= budget + 2 * ONE  # and the tensors that the program itself holds


def test_where_everything_fits_nothing_leaves_once_the_step_is_known(lab):
    stash = ts.stash("disk_spill", budget="1GiB", framework=lab.name, min_bytes=0)
    train(lab, stash, steps=1)
    stash.drain()  # what is still being written counts when it is
    before = stash.stats()
    train(lab, stash, steps=3)
    assert not (stash.stats() - before).stored


def test_lossy_policies_lose_nothing_where_everything_fits(lab):
    stash = ts.stash("quantize:bits=4", budget="1GiB", framework=lab.name, min_bytes=0)
    assert train(lab, stash)[1:] == train(lab, None)[1:]


@pytest.mark.parametrize("size", ["6", "6 parsecs", True, -1, 1.5, [], "auto "], ids=repr)
def test_a_budget_that_is_none_is_refused_at_once(size):
    with pytest.raises(ConfigError, match=r"stash\.budget"):
        ts.stash("disk_spill", budget=size, framework="reference")


def test_an_equal_step_follows_the_plan_and_another_one_goes_by_age():
    ladder = Ladder(2 * 16, ReferenceBackend(), Ledger(), ByteBudget(0), ByteBudget(0))
    ladder.begin("cpu")
    spec, other = (TensorSpec((4,), (1,), 0, dtype, "cpu") for dtype in ("float32", "int32"))

    def step(*specs):
        seen = []
        for place, each in enumerate(specs):
            record = ladder.saved(each, "", object(), place)
            seen.append(record.fate)
            record.was_stored()
        ladder.step_ended()
        return seen

    assert step(spec, spec, spec) == [None] * 3
    assert step(spec, spec, spec) == ["stored", "kept", "kept"]
    assert step(spec, other, spec) == ["stored", None, None]
    assert step(other, spec) == [None, None]
    assert step(other, spec) == ["kept", "kept"]
