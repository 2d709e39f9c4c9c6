"""What a session says where it has no effect, from where, and when it holds its tongue."""

import logging
import re
import subprocess
import sys
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

import tensorstash as ts
from tensorstash import reference as ref
from tensorstash.errors import TensorStashWarning
from tensorstash.host.mounts import directories_in_memory
from tensorstash.policies.limits import Limits
from tensorstash.stores.memory import Memory

AT_ONCE = Limits(in_flight=0, ahead=0)
LARGE = np.zeros((512, 1024), np.float32)


def stash(policy="compress", **options):
    return ts.stash(policy, framework="reference", min_bytes=0, **options)


@contextmanager
def heard():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def train(session, steps=4, values=LARGE):
    for _ in range(steps):
        weight = ref.tensor(values, requires_grad=True)
        with session:
            loss = weight.exp().tanh().sum()
        loss.backward()


def test_the_first_entries_an_evaluation_and_interrupted_entries_are_not_judged():
    for _ in range(2):
        with stash():
            pass
    evaluated, interrupted = stash(), stash()
    for _ in range(5):
        with ref.no_grad(), evaluated:
            ref.tensor([1.0], requires_grad=True).exp()
        with pytest.raises(KeyboardInterrupt), interrupted:
            raise KeyboardInterrupt


def test_a_long_first_entry_is_judged_at_its_end():
    session = stash("cpu_offload")
    x = ref.tensor([1.0], requires_grad=True)

    def enter():
        with session:
            for _ in range(1000):
                x.exp()

    with pytest.warns(TensorStashWarning, match=r"nothing was stashed of 1000 .*DiskSpill"):
        enter()


def test_reasons_and_cures_are_those_of_what_was_kept():
    session = stash("cpu_offload")
    with pytest.warns(TensorStashWarning, match=r"6 of 12 MiB: already in host memory.*accelerators only"):
        train(session)


def test_limits_of_a_small_model_are_told_and_those_of_what_fits_are_not():
    with pytest.warns(TensorStashWarning, match=r"a step stashes 4 MiB.*in_flight='512 KiB'"):
        train(stash("compress", limits=Limits(in_flight="256 MiB", ahead="256 MiB")))
    train(stash("compress", limits=Limits(in_flight="512 KiB", ahead="512 KiB")))
    train(stash("compress"))


def test_small_tensors_are_not_judged_for_gains():
    train(stash(ts.StoreIn(Memory())), values=np.zeros(4, np.float32))


def test_a_directory_in_memory_is_told_when_it_is_opened(monkeypatch, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw\nshm {tmp_path} tmpfs rw\n")
    assert directories_in_memory([str(tmp_path / "deep" / "er"), "/"], str(mounts)) == [str(tmp_path / "deep" / "er")]
    mounts.write_text(f"disk / ext4 rw\nshm {tmp_path} tmpfs rw\ndisk {tmp_path} xfs rw\n")
    assert directories_in_memory([str(tmp_path)], str(mounts)) == []
    assert directories_in_memory([str(tmp_path)], str(tmp_path / "none")) == []


@pytest.mark.skipif(sys.platform == "win32", reason="links are for administrators")
def test_a_directory_that_is_a_link_to_itself_is_no_error_before_it_is_opened(tmp_path):
    loop, mounts = tmp_path / "loop", tmp_path / "mounts"
    loop.symlink_to(loop)
    mounts.write_text(f"shm {tmp_path} tmpfs rw\n")
    assert directories_in_memory([str(loop)], str(mounts)) == [str(loop)]


def test_a_stash_that_is_never_entered_says_so_and_one_that_is_does_not():
    with pytest.warns(TensorStashWarning, match=r"never entered.*decorate"):
        stash()
    with heard() as said:
        with stash("compress", limits=AT_ONCE):
            ref.tensor(LARGE, requires_grad=True).exp()
        stash()(lambda: None)
    assert not said


@pytest.mark.parametrize("steps", [1, 2])
def test_a_short_trial_without_effect_is_judged_once_when_it_ends(steps):
    with heard() as said:
        train(session := stash("cpu_offload"), steps)
        assert not said
        del session
    (one,) = said
    assert re.match(r"a stash has ended without effect: nothing was stashed of .*DiskSpill", str(one.message))
    assert one.filename == __file__


def test_the_end_of_a_process_is_the_end_of_a_trial():
    program = (
        "import tensorstash as ts, tensorstash.reference as ref\n"
        "around = ts.stash('compress')\n"
        "with around:\n"
        "    pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.count("<string>:2: TensorStashWarning: a stash has ended without effect: nothing was seen") == 1


def test_a_warning_points_at_the_line_that_made_the_session_whatever_library_runs_and_reaches_the_logger(caplog):
    library = {}
    source = "def run(session):\n    for _ in range(3):\n        with session:\n            pass\n"
    exec(compile(source, "/env/lib/python3/site-packages/library.py", "exec"), library)
    with heard() as said, caplog.at_level(logging.WARNING, "tensorstash"):
        library["run"](session := stash())
    assert [one.filename for one in said] == [__file__]
    assert caplog.messages == [str(said[0].message)] == [session.stats().advice]


def test_advice_of_several_kinds_is_a_line_each(nothing_is_compiled):
    with heard():
        train(session := stash("compress", limits=Limits(in_flight="256 MiB")))
    lines = session.stats().advice.splitlines()
    assert [("limits" in line, "compiler" in line) for line in lines][:2] == [(True, False), (False, True)]


def test_a_part_that_an_inner_scope_takes_out_is_meant():
    for policy in ("keep", "compress"):
        outer, inner = stash("disk_spill", limits=AT_ONCE), stash(policy, limits=AT_ONCE)
        for _ in range(4):
            with outer:
                hidden = ref.tensor(LARGE, requires_grad=True).exp().tanh().exp()
                with inner:
                    loss = hidden.tanh().sum()
            loss.backward()
        assert "another stash" not in outer.stats().advice
