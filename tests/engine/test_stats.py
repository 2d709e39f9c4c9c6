"""Statistics are values: they can be subtracted, logged, pickled and copied."""

import copy
import pickle

import tensorstash as ts
from tensorstash import reference as ref


def session_of(steps):
    session = ts.stash("compress", framework="reference", min_bytes=8)
    snapshots = []
    for _ in range(steps):
        with session as entered:
            loss = (ref.tensor([[1.0, 2.0]], requires_grad=True).exp().tanh() * 2.0).sum()
        entered.drain()
        loss.backward()
        snapshots.append(session.stats())
    return snapshots


def test_later_minus_earlier_is_what_was_done_in_between():
    first, second = session_of(2)
    step = second - first
    assert step.seen == first.seen
    assert step.stashed == first.stashed
    assert dict(step.kept) == dict(first.kept)
    assert step.unpacked == first.unpacked
    assert step.peak_bytes == second.peak_bytes
    assert (second - second).scalars()["tensorstash/seen/tensors"] == 0
    assert not (second - second).kept


def test_pickles_and_copies_are_equal():
    (stats,) = session_of(1)
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert copy.deepcopy(stats) == stats
    assert pickle.loads(pickle.dumps(stats)).to_dict() == stats.to_dict()


def test_scalars_are_flat_numbers():
    (stats,) = session_of(1)
    scalars = stats.scalars("stash/")
    assert scalars["stash/stashed/nbytes"] == stats.stashed.nbytes
    assert all(type(value) is float and name.startswith("stash/") for name, value in scalars.items())
    assert not any("advice" in name for name in scalars)


def test_what_was_saved_is_what_left_the_memory_of_the_tensors():
    def saved(policy, device):
        with ts.stash(policy, framework="reference", min_bytes=64) as session:
            loss = (ref.ones((64, 64), device=device, requires_grad=True) * 1.0).exp().sum()
        session.drain()
        stats = session.stats()
        del loss
        return stats.saved_bytes, stats.stashed.nbytes, stats.stored

    moved, stashed, _ = saved("disk_spill", "cpu")
    assert moved == stashed == 16384
    smaller, stashed, stored = saved("compress", "cpu")
    assert smaller == stashed - stored["memory"].nbytes > 0
    assert saved("cpu_offload", "sim:0")[0] == 16384
    assert saved("store_in:store=memory", "cpu")[0] == 0


def test_modules_that_a_policy_names_are_counted_by_name():
    model = ref.nn.Sequential(ref.nn.GELU(), ref.nn.GELU(), ref.nn.GELU())
    rule = {"when": {"name": "module_names", "patterns": ["*[02]"]}, "use": "compress"}
    handle = ts.wrap(model, ts.from_dict({"name": "route", "rules": [rule]}), min_bytes=0)
    model(ref.ones((8, 8), requires_grad=True) * 1.0).sum().backward()
    modules = handle.stats().modules
    assert len(modules) == 2
    assert sum(tally.tensors for tally in modules.values()) == handle.stats().stashed.tensors


def test_people_read_text():
    (stats,) = session_of(1)
    first, second, *_ = str(stats).splitlines()
    sizes = f"{stats.saved_bytes} B", f"{stats.stashed.nbytes} B"
    assert first.startswith("per step: {} left memory of {} that could; process peak ".format(*sizes))
    assert second == "over 1 step: {} of {}".format(*sizes)


def test_what_is_printed_is_per_step_with_the_sums_behind():
    def trained(steps):
        session = ts.stash("disk_spill", framework="reference", min_bytes=0, limits=ts.Limits(in_flight=0))
        for _ in range(steps):
            with session:
                loss = ref.ones((64, 64), requires_grad=True).exp().sum()
            loss.backward()
        return session.stats()

    once, four = trained(1), trained(4)
    assert (once.steps, four.steps, (four - once).steps, ts.Stats().steps) == (1, 4, 3, 0)
    said = "per step: 16 KiB left memory of 16 KiB that could"
    assert [str(each).partition(";")[0] for each in (once, four)] == [said] * 2
    assert "over 4 steps: 64 KiB of 64 KiB" in str(four)
    assert four.process_peak > four.stashed.nbytes


def test_with_gives_the_stash_itself_and_it_says_what_it_does():
    stash = ts.stash("compress", framework="reference")
    with stash as session:
        pass
    assert session is stash
    assert {name for name in dir(session) if not name.startswith("_")} >= {"stats", "drain"}
    assert "Compress" in repr(session)


def test_the_peak_is_the_most_that_was_alive_at_one_time():
    stash, alive = ts.stash("compress", framework="reference", min_bytes=0), []
    for size in (4000, 16_000, 1000):
        with stash as session:
            loss = (ref.ones((size,), requires_grad=True) * 1.0).exp().sum()
        session.drain()
        alive.append(stash.stats().live.nbytes)
        del loss
    assert stash.stats().live.nbytes == 0
    assert stash.stats().peak_bytes == alive[1] == max(alive) > 0
