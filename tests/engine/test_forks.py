"""A forked child keeps what it saves in the block of its parent, and trains in blocks of its own alone."""

import os
from functools import partial

import numpy as np
import pytest
from forked_loaders import gradient, graph, load_inside_the_block

import tensorstash as ts
from tensorstash.errors import StashError
from tensorstash.host.pinned import PinnedMemory, registered_pages
from tensorstash.policies import StoreIn
from tensorstash.stores import Memory
from tensorstash.testing.labs import BACKENDS, lab_of
from tests.processes import FORKS, forked, locks_held

pytestmark = FORKS

POLICIES = {
    "memory": lambda directory: StoreIn(Memory()),
    "disk": lambda directory: ts.DiskSpill(directory),
    "compressed disk": lambda directory: ts.Compress(min_ratio=1) | ts.DiskSpill(directory),
    "quantize": lambda directory: ts.Quantize(8),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("framework", BACKENDS)
def test_a_child_is_told_whatever_locks_were_held_that_the_session_is_its_parents(framework, policy, tmp_path):
    lab, made = lab_of(framework), POLICIES[policy](str(tmp_path))
    stash = ts.stash(made, framework=framework, min_bytes=0)
    expected = [gradient(lab, stash, seed) for seed in (0, 0, 1)]
    leaf, loss = graph(lab, stash)
    stash.drain()

    def is_told(stash, loss):
        for work in (lambda: graph(lab, stash), stash.stats, stash.drain, lambda: lab.backward(loss)):
            with pytest.raises(StashError, match=r"made before this process was forked: .* of its own in the child"):
                work()

    def child():
        is_told(stash, loss)
        own = ts.stash(made, framework=framework, min_bytes=0)
        assert np.array_equal([gradient(lab, own, seed) for seed in (0, 0, 1)], expected)
        assert own.stats().stashed.tensors > 0
        own_loss = graph(lab, own)[1]
        own.drain()
        assert forked(lambda: is_told(own, own_loss)) == 0
        assert np.array_equal(gradient(lab, own), expected[1])

    with locks_held() as locks:
        assert len(locks) >= 6
        assert forked(child) == 0
    lab.backward(loss)
    assert np.array_equal(lab.gradient(leaf), expected[1])
    assert np.array_equal(gradient(lab, stash), expected[1])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("framework", BACKENDS)
def test_a_child_forked_inside_the_block_keeps_what_it_saves_and_harms_nothing(framework, policy, tmp_path):
    lab = lab_of(framework)
    stash = ts.stash(POLICIES[policy](str(tmp_path)), framework=framework, min_bytes=0)
    expected, known = gradient(lab, None), [gradient(lab, stash) for _ in range(2)]

    def child():
        assert np.array_equal(gradient(lab, None), expected)
        own = ts.stash(ts.DiskSpill(str(tmp_path)), framework=framework, min_bytes=0)
        assert np.array_equal(gradient(lab, own), expected)
        stash.__exit__(None, None, None)
        assert np.array_equal(gradient(lab, own), expected)

    with stash:
        leaf, loss = graph(lab, None)
        with locks_held():
            assert forked(child) == 0
    lab.backward(loss)
    assert np.array_equal(lab.gradient(leaf), known[1])


def test_a_child_drops_page_locked_memory_without_the_device_of_its_parent():
    unlocked = []
    pinned = PinnedMemory(partial(registered_pages, lambda _: partial(unlocked.append, os.getpid())), 2**20)
    pinned.take(2**16)

    def child():
        nonlocal pinned
        del pinned
        assert not unlocked

    assert forked(child) == 0
    del pinned
    assert unlocked == [os.getpid()]


@pytest.mark.parametrize("framework", BACKENDS[1:])
def test_workers_of_data_loaders_inside_the_block_compute_at_once(framework, tmp_path):
    assert forked(lambda: load_inside_the_block(framework, str(tmp_path))) == 0
    assert os.listdir(tmp_path) == []
