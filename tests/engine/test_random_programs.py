"""Random programs, layouts, policies, budgets, threads and faults, in every framework.

State a seed and a number of examples to repeat or to lengthen a run::

    python -m pytest tests/engine/test_random_programs.py --hypothesis-profile long --hypothesis-seed 1 --timeout 0

The profile "thorough" runs 10,000 examples of each; ``-k memory_of_the_user`` chooses those that rewrite buffers.
"""

import contextlib
import tempfile
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import ahead, in_flight, session_of, settle
from planted_faults import Faulty
from random_programs import LOSSLESS, RECOMPUTING, Forward, limits, programs
from schedules import Auditor, TellingBudget, budgeted

import tensorstash as ts
from tensorstash.abilities import SupportsGraph
from tensorstash.errors import SavedTensorModifiedError, StashError, StoreFullError, TensorStashError
from tensorstash.policies import StoreIn
from tensorstash.stores.memory import Memory
from tensorstash.testing.faults import FaultyCodec, FaultyStore
from tensorstash.testing.labs.paddle import PaddleLab
from tensorstash.testing.labs.reference import ReferenceLab
from tensorstash.testing.labs.torch import TorchLab

pytestmark = pytest.mark.filterwarnings("ignore::tensorstash.TensorStashWarning")  # a random policy may have no effect

MOVING = ["memory", "compress", "disk", "compress | disk"]

LARGEST = 2000
"""Bytes that no tensor of these programs exceeds."""

FAULTS = ["full", "put_error", "get_error", "gone", "corrupt", "short_read"]


LABS = [ReferenceLab(), TorchLab(), PaddleLab()]


@pytest.fixture(scope="module")
def directory():
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def gradient(lab, device, program, scope=contextlib.nullcontext, **rewriting):
    with scope():
        forward = Forward(lab, device, program, **rewriting)
    forward.finish()
    lab.backward(forward.loss)
    return lab.gradient(forward.leaf)


def assert_nothing_is_held(stash):
    session = session_of(stash)
    settle(session)
    assert stash.stats().live.tensors == 0
    assert in_flight(session).used == ahead(session).used == 0


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
class TestRandomPrograms:
    @given(data=st.data(), program=programs(), policy=st.sampled_from(sorted(LOSSLESS)), limits=limits())
    def test_gradients_are_those_without_hooks_and_no_slot_is_left(self, lab, directory, data, program, policy, limits):
        device = data.draw(st.sampled_from(lab.devices))
        threads = data.draw(st.sampled_from([1, 1, 1, 3]))
        plain = gradient(lab, device, program)
        stash = ts.stash(LOSSLESS[policy](directory), framework=lab.name, min_bytes=0, limits=limits)
        found = []

        def run():
            for _ in range(2):
                found.append(gradient(lab, device, program, lambda: stash))

        workers = [threading.Thread(target=run) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(found) == 2 * threads
        assert all(np.array_equal(plain, grad, equal_nan=True) for grad in found)
        assert_nothing_is_held(stash)

    @given(program=programs(modified=True), policy=st.sampled_from(sorted(LOSSLESS)), limits=limits())
    def test_a_value_changed_in_place_gives_the_saved_gradient_or_autograds_error(
        self, lab, directory, program, policy, limits
    ):
        device = lab.devices[-1]

        def run(scope):
            with scope:
                forward = Forward(lab, device, program)
            lab.add_(forward.held[forward.modified_number], 1.0)
            lab.backward(forward.loss)
            return lab.gradient(forward.leaf)

        untouched = gradient(lab, device, program)
        try:
            natively = run(contextlib.nullcontext())
        except RuntimeError:
            natively = None
        stash = ts.stash(LOSSLESS[policy](directory), framework=lab.name, min_bytes=0, limits=limits)
        try:
            found = run(stash)
        except SavedTensorModifiedError:
            assert natively is None, "a program that trains without hooks was refused"
        else:
            assert np.array_equal(found, untouched, equal_nan=True)
        # PyTorch's queue of this thread holds what a failed backward left in it until the next backward.
        gradient(lab, device, program)
        assert_nothing_is_held(stash)

    @given(program=programs(rewrites=True), policy=st.sampled_from(MOVING), limits=limits(), again=st.booleans())
    def test_memory_of_the_user_rewritten_without_a_bump_counts_as_it_does_without_hooks_or_as_it_was_saved(
        self, lab, directory, program, policy, limits, again
    ):
        device = lab.devices[-1]
        # Where the framework says who holds a memory, what somebody holds is live as without hooks; else all is copied.
        is_live = isinstance(lab.backend, SupportsGraph)
        expected = gradient(lab, device, program, values_too=is_live, replaces=not is_live)
        stash = ts.stash(LOSSLESS[policy](directory), framework=lab.name, min_bytes=0, limits=limits)
        for _ in range(2 if again else 1):
            found = gradient(lab, device, program, lambda: stash, values_too=is_live)
            assert np.array_equal(expected, found, equal_nan=True)
        assert_nothing_is_held(stash)

    @given(program=programs(edits=True), policy=st.sampled_from(sorted(RECOMPUTING)), starts_edited=st.booleans())
    def test_an_edit_without_a_record_gives_the_gradient_without_hooks_or_a_named_error(
        self, lab, directory, program, policy, starts_edited
    ):
        device, unedited = lab.devices[-1], replace(program, edits=())
        # Where the framework does not say who holds a memory, its bytes count as they were saved, unless they are kept.
        is_live = isinstance(lab.backend, SupportsGraph)
        policy = "recompute | compress" if policy == "recompute" and not is_live else policy
        copied = ts.stash(StoreIn(Memory()), framework=lab.name, min_bytes=0)
        around = contextlib.nullcontext if is_live else lambda: copied
        stash = ts.stash(RECOMPUTING[policy](directory), framework=lab.name, min_bytes=0)
        for each in (program, program, program) if starts_edited else (unedited, program, program):
            try:
                expected = gradient(lab, device, each, around)
            except RuntimeError:
                expected = None  # refused
            try:
                found = gradient(lab, device, each, lambda: stash)
            except TensorStashError:
                assert each.edits, "a program without edits was refused"
            else:
                assert expected is not None, "a program that is refused without hooks has trained"
                assert found.tobytes() == expected.tobytes(), "another gradient"
        gradient(lab, device, unedited)
        assert_nothing_is_held(stash)

    @given(
        program=programs(),
        which=st.integers(0, 9),
        limits=limits(),
        threads=st.integers(1, 3),
        stalls=st.integers(0, 3),
        compresses=st.booleans(),
    )
    def test_no_budget_is_exceeded_by_one_byte_and_no_schedule_hangs(
        self, lab, directory, program, which, limits, threads, stalls, compresses
    ):
        plain = gradient(lab, "cpu", program)
        store = Faulty(budgeted(directory)[which])
        # The program itself waits for the put of a tensor that is larger than what may be in flight.
        auditor = Auditor(store.opened, stalls if limits.in_flight_bytes >= LARGEST else 0)
        store.board.plant("put", auditor.put)
        policy = ts.Compress(min_ratio=1) | StoreIn(store) if compresses else StoreIn(store)
        stash = ts.stash(policy, framework=lab.name, min_bytes=0, limits=limits)
        session = session_of(stash)
        session.sender.in_flight = TellingBudget(limits.in_flight_bytes, auditor.gate)
        outcomes = []

        @contextlib.contextmanager
        def scope():
            with stash:
                try:
                    yield
                finally:
                    auditor.gate.set()

        def train():
            for _ in range(3):
                try:
                    outcomes.append(np.array_equal(gradient(lab, "cpu", program, scope), plain, equal_nan=True))
                except StoreFullError:
                    outcomes.append(True)

        workers = [threading.Thread(target=train, daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(120)
        assert outcomes == [True] * (3 * threads), "a thread hangs, has failed, or has another gradient"
        # Frameworks hold what a failed call left in them until the next backward.
        gradient(lab, "cpu", program)
        assert_nothing_is_held(stash)
        assert in_flight(session).peak <= limits.in_flight_bytes
        assert ahead(session).peak <= limits.ahead_bytes
        assert store.used_bytes == 0
        assert auditor.excess == []

    @given(program=programs(rewrites=True), limits=limits())
    def test_memory_of_the_user_that_is_kept_counts_as_it_does_without_hooks(self, lab, program, limits):
        device = lab.devices[-1]
        expected = gradient(lab, device, program, values_too=True)
        stash = ts.stash(ts.Keep(), framework=lab.name, min_bytes=0, limits=limits)
        found = gradient(lab, device, program, lambda: stash, values_too=True)
        assert np.array_equal(expected, found, equal_nan=True)

    @given(
        program=programs(),
        fault=st.sampled_from(FAULTS),
        at=st.integers(1, 8),
        times=st.integers(1, 3),
        in_codec=st.sampled_from(
            [None, None, "encode_error", "decode_error", "encode_wrong_size", "decode_wrong_size"]
        ),
        numel=st.sampled_from([None, 4, 6, 12]),
        limits=limits(),
    )
    def test_a_fault_ends_in_a_named_error_or_the_right_gradient_and_the_next_step_works(
        self, lab, program, fault, at, times, in_codec, numel, limits
    ):
        device = lab.devices[-1]
        plain = gradient(lab, device, program)
        policy = StoreIn(FaultyStore(fault=fault, at=at, times=times))
        if in_codec is not None:
            policy = ts.policies.Encode(FaultyCodec(fault=in_codec, numel=numel)) | policy
        stash = ts.stash(policy, framework=lab.name, min_bytes=0, limits=limits)
        for _ in range(times + 9):
            try:
                found = gradient(lab, device, program, lambda: stash)
            except StashError as error:
                message = str(error)
            else:
                message = "stage, tensor "
                assert np.array_equal(found, plain, equal_nan=True)
            assert "stage" in message
            assert "tensor " in message
        found = gradient(lab, device, program)
        assert np.array_equal(found, plain, equal_nan=True)
        assert_nothing_is_held(stash)


@given(program=programs())
def test_a_program_means_the_same_in_every_framework(program):
    found = [gradient(lab, "cpu", program) for lab in LABS]
    tolerance = 1e-4 if program.dtype == "float32" else 1e-10
    assert np.allclose(found[0], found[1], rtol=tolerance, atol=tolerance)
    assert np.allclose(found[0], found[2], rtol=tolerance, atol=tolerance)
