"""Random programs, layouts, policies, budgets, delays, threads and schedules, in every framework.

``--hypothesis-profile long --hypothesis-seed 1 --timeout 0`` lengthens and repeats a run; "thorough" is longer.
"""

import contextlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from conditions import LOSSLESS, MOVING, POLICIES, RECOMPUTING, assert_nothing_is_held, budgeted, conditions, limits
from delays import Dice, delays, released
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import ahead, in_flight
from planted_faults import Faulty
from random_programs import Forward, programs

import tensorstash as ts
from tensorstash.abilities import SupportsGraph
from tensorstash.errors import SavedTensorModifiedError, StoreFullError, TensorStashError
from tensorstash.policies import StoreIn
from tensorstash.stores.memory import Memory
from tensorstash.testing.labs import BACKENDS, lab_of

pytestmark = pytest.mark.filterwarnings("ignore::tensorstash.TensorStashWarning")  # a random policy may have no effect

LABS = [lab_of(name) for name in BACKENDS]

often = settings(max_examples=2 * settings.default.max_examples)


@pytest.fixture(scope="module")
def directory():
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def gradient(lab, program, scope=contextlib.nullcontext, **how):
    with scope():
        forward = Forward(lab, program, **how)
    forward.finish()
    lab.backward(forward.loss)
    return lab.gradient(forward.leaf)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
class TestRandomPrograms:
    @given(
        data=st.data(),
        steps=st.lists(programs(), min_size=1, max_size=2),
        conditions=conditions(POLICIES),
        threads=st.sampled_from([1, 1, 3]),
    )
    def test_gradients_are_those_without_hooks_however_slow_anything_is(
        self, lab, directory, data, steps, conditions, threads
    ):
        lab = lab.on(data.draw(st.sampled_from(lab.devices)))
        plain = [gradient(lab, program) for program in steps]

        def train(number):
            held = {}
            with released(held, conditions.dice):
                found = gradient(lab, steps[number % len(steps)], lambda: stash, held=held)
            assert np.array_equal(plain[number % len(steps)], found, equal_nan=True)

        with conditions.stash(lab, directory) as stash, ThreadPoolExecutor(threads) as pool:
            list(pool.map(train, range(4 * threads)))

    @often
    @given(
        program=programs(modified=True),
        conditions=conditions(LOSSLESS),
        drains=st.sampled_from(["", "before", "after"]),
    )
    def test_a_value_changed_in_place_is_refused_for_ever_if_autograd_refuses_it_unless_it_was_captured(
        self, lab, directory, program, conditions, drains
    ):
        lab = lab.on(lab.devices[-1])
        captures = drains == "before" and conditions.policy in ("memory", "disk", "slow") and conditions.budget is None

        def attempts(stash):
            with stash or contextlib.nullcontext():
                forward = Forward(lab, program)
            refusal = RuntimeError if stash is None else SavedTensorModifiedError
            if stash is not None and drains == "before":
                stash.drain()
            lab.add_(forward.held[forward.modified_number], 1.0)
            if stash is not None and drains == "after":
                stash.drain()
            for _ in range(2):
                try:
                    lab.backward(forward.loss, retain_graph=True)
                except refusal:
                    assert forward.leaf.grad is None, "a gradient was written all the same"
                    yield None
                else:
                    yield lab.gradient(forward.leaf).copy()

        untouched = gradient(lab, program)
        natively = [found is None for found in attempts(None)]
        with conditions.stash(lab, directory) as stash:
            for number, (found, is_refused) in enumerate(zip(attempts(stash), natively, strict=True), 1):
                if found is None:
                    assert is_refused, "a program that trains without hooks was refused"
                    assert not captures, "captured bytes were refused"
                else:
                    assert np.array_equal(found, number * untouched, equal_nan=True)
                    assert drains == "before" or not is_refused, "a program that autograd refuses has trained"
            assert np.array_equal(gradient(lab, program, lambda: stash), untouched, equal_nan=True)
            # PyTorch's queue of this thread holds what a failed backward left in it until the next backward.
            gradient(lab, program)

    @given(program=programs(rewrites=True), conditions=conditions(["keep", *MOVING], budgets=False))
    def test_memory_of_the_user_rewritten_without_a_bump_counts_as_it_does_without_hooks_or_as_it_was_saved(
        self, lab, directory, program, conditions
    ):
        lab = lab.on(lab.devices[-1])
        # What is kept, or held where the framework says so, is live as without hooks; all else is copied.
        is_live = conditions.policy == "keep" or isinstance(lab.backend, SupportsGraph)
        expected = gradient(lab, program, values_too=is_live, replaces=not is_live)
        with conditions.stash(lab, directory) as stash:
            for _ in range(2):
                found = gradient(lab, program, lambda: stash, values_too=is_live)
                assert np.array_equal(expected, found, equal_nan=True)

    @given(program=programs(edits=True), conditions=conditions(RECOMPUTING, budgets=False), starts_edited=st.booleans())
    def test_an_edit_without_a_record_gives_the_gradient_without_hooks_or_a_named_error(
        self, lab, directory, program, conditions, starts_edited
    ):
        lab, unedited = lab.on(lab.devices[-1]), replace(program, edits=())
        # Where the framework does not say who holds a memory, its bytes count as they were saved, unless they are kept.
        is_live = isinstance(lab.backend, SupportsGraph)
        if conditions.policy == "recompute" and not is_live:
            conditions = replace(conditions, policy="recompute | compress")
        copied = ts.stash(StoreIn(Memory()), framework=lab.name, min_bytes=0)
        around = contextlib.nullcontext if is_live else lambda: copied
        with conditions.stash(lab, directory) as stash:
            for each in (program, program, program) if starts_edited else (unedited, program, program):
                try:
                    expected = gradient(lab, each, around)
                except RuntimeError:
                    expected = None  # refused
                try:
                    found = gradient(lab, each, lambda: stash)
                except TensorStashError:
                    assert each.edits, "a program without edits was refused"
                else:
                    assert expected is not None, "a program that is refused without hooks has trained"
                    assert found.tobytes() == expected.tobytes(), "another gradient"
            gradient(lab, unedited)

    @given(
        program=programs(),
        which=st.integers(0, 9),
        limits=limits(),
        threads=st.integers(1, 3),
        seed=st.integers(0, 10**6),
        compresses=st.booleans(),
    )
    def test_no_budget_is_exceeded_by_one_byte_and_nothing_hangs(
        self, lab, directory, program, which, limits, threads, seed, compresses
    ):
        plain = gradient(lab, program)
        store, dice, excess = Faulty(budgeted(directory)[which]), Dice(seed), []

        def put(call, data):
            try:
                return dice.slowly(call, data)
            finally:
                excess.extend(store.excess())

        store.board.plant("put", put)
        policy = ts.Compress(min_ratio=1) | StoreIn(store) if compresses else StoreIn(store)
        stash = ts.stash(policy, framework=lab.name, min_bytes=0, limits=limits)

        def train(_):
            for _ in range(3):
                with contextlib.suppress(StoreFullError):
                    found = gradient(lab, program, lambda: stash)
                    assert np.array_equal(found, plain, equal_nan=True)

        with delays(dice), ThreadPoolExecutor(threads) as pool:
            list(pool.map(train, range(threads)))
        # Frameworks hold what a failed call left in them until the next backward.
        gradient(lab, program)
        assert_nothing_is_held(stash)
        assert in_flight(stash).peak <= limits.in_flight_bytes
        assert ahead(stash).peak <= limits.ahead_bytes
        assert store.used_bytes == 0
        assert excess == []


@given(program=programs())
def test_a_program_means_the_same_in_every_framework(program):
    found = [gradient(lab, program) for lab in LABS]
    tolerance = 1e-4 if program.dtype == "float32" else 1e-10
    assert np.allclose(found[0], found[1], rtol=tolerance, atol=tolerance)
    assert np.allclose(found[0], found[2], rtol=tolerance, atol=tolerance)
