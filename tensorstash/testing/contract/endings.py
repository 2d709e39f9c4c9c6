"""Contract lines 8 and 10 to 12: failures, leftovers, refusals, and policies without effect."""

import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from tensorstash.api import Stash, Wrapped
from tensorstash.codecs.zstd import Zstd
from tensorstash.errors import BackendError, CodecError, ConfigError, StashError, StoreError, TensorStashWarning
from tensorstash.host.arrays import Array
from tensorstash.policies import Compress, DiskSpill, Encode, Keep, Route, Rule, StoreIn
from tensorstash.policies.limits import Limits
from tensorstash.policies.selectors import ModuleNames
from tensorstash.stores.memory import Memory
from tensorstash.testing.faults import CodecFault, FaultyCodec, FaultyStore, PutFault, StoreFault, Watched
from tensorstash.testing.harness import AT_ONCE, Harness, reference_counting_only, settled
from tensorstash.testing.lab import Lab, Model
from tensorstash.testing.layouts import assert_same_arrays, assert_same_bits, floats
from tensorstash.testing.programs import attention, save_one, squared


class NothingLostQuietly(Harness):
    """Contract line 8."""

    @pytest.mark.parametrize("fault", get_args(StoreFault))
    def test_line08_a_store_that_fails_ends_in_a_named_error(self, lab: Lab, fault: str) -> None:
        tap = Watched()
        faulty = FaultyStore(fault=fault, at=3, inner=tap)  # type: ignore[arg-type]
        expected = attention(lab)
        for policy in (StoreIn(faulty), Encode(Zstd()) | StoreIn(faulty)):
            with reference_counting_only():
                stash = self.stash(policy)
                self._assert_fails(stash, lab, StashError, r"stage \d of \d \(FaultyStore.*\), tensor \w+\(.*\) on ")
                got = attention(lab, scope=lambda stash=stash: settled(stash))  # type: ignore[misc]
                assert_same_arrays(got, expected, f"the step after the fault, under {policy!r}")
                if fault in get_args(PutFault):  # or a thread may still read one
                    assert tap.live == 0, f"{tap.live} payloads are left"

    @pytest.mark.parametrize("fault", get_args(CodecFault))
    def test_line08_a_codec_that_fails_ends_in_a_named_error(self, lab: Lab, fault: str) -> None:
        # Of all tensors in the program, only the weights of attention are 12 by 12.
        policy = Encode(FaultyCodec(fault=fault, numel=144)) | StoreIn(Watched())  # type: ignore[arg-type]
        stash = self.stash(policy)
        self._assert_fails(stash, lab, CodecError, r"stage 1 of 2 \(FaultyCodec.*float32\(12, 12\)")
        leaf, _, loss, expected = squared(lab, lambda: settled(stash))
        lab.backward(loss)
        assert_same_bits(lab.gradient(leaf), expected, "the step after the fault")

    def test_line08_a_failed_backward_of_a_retained_graph_can_be_tried_again(self, lab: Lab) -> None:
        policy = StoreIn(FaultyStore(fault="get_error"))
        leaf, _, loss, expected = squared(lab, lambda: self.scope(policy))
        with pytest.raises(StoreError):
            lab.backward(loss, retain_graph=True)
        lab.backward(loss)
        assert_same_bits(lab.gradient(leaf), expected, "the second attempt")

    def _assert_fails(self, stash: Stash, lab: Lab, kind: type[StashError], message: str) -> None:
        with pytest.raises(kind, match=message):
            attention(lab, scope=lambda: settled(stash))


class NothingLeftBehind(Harness):
    """Contract line 10."""

    def test_line10_scopes_nest_and_leave_no_hooks(self, lab: Lab) -> None:
        outer, inner = self.stash(Keep()), self.stash(StoreIn(Memory()))
        with outer:
            save_one(lab)
            with pytest.raises(KeyboardInterrupt):
                self._interrupted(inner, lab)
            save_one(lab)
            with outer:
                save_one(lab)
        save_one(lab)
        assert (outer.stats().seen.tensors, inner.stats().seen.tensors) == (3, 1)

    def test_line10_scopes_of_other_threads_are_their_own(self, lab: Lab) -> None:
        stash = self.stash(Keep())
        with stash, ThreadPoolExecutor(1) as pool:
            pool.submit(save_one, lab).result()
        assert stash.stats().seen.tensors == 0, "hooks of one thread are in force on another"

    def test_line10_a_wrapped_model_is_and_trains_as_it_did(self, lab: Lab) -> None:
        expected = self._gradients(lab, lab.model())
        by_module = Route((Rule(ModuleNames("first"), StoreIn(Memory())),))
        for policy in (StoreIn(Memory()), by_module):
            model = lab.model()
            before = self._portrait(model)
            wrapped = self.wrap(model, policy)
            assert self._portrait(model) == before, "the model has changed, wrapped"
            assert_same_arrays(self._gradients(lab, model), expected, "gradients of the wrapped model")
            assert self._portrait(model) == before, "the model has changed, after a step"
            with pytest.raises(Exception):  # noqa: B017  (each framework has its own for shapes that do not fit)
                model(lab.tensor(floats(5, 3)))
            seen = wrapped.stats().seen.tensors
            assert seen > 0
            save_one(lab)
            assert wrapped.stats().seen.tensors == seen, "hooks are in force after a forward that raised"
            for _ in range(2):
                wrapped.remove()
            assert self._portrait(model) == before, "the model has changed, unwrapped"
            model(lab.tensor(floats(5, 8)))
            assert wrapped.stats().seen.tensors == seen, "the model is still wrapped after remove()"

    def test_line10_rules_by_module_name_reach_their_module_only(self, lab: Lab) -> None:
        tap = Watched()
        policy = Route((Rule(ModuleNames("first"), StoreIn(tap)),))
        model = lab.model()
        wrapped = self.wrap(model, policy, limits=AT_ONCE)
        # While a forward runs its caller holds the input; the next forward finds it free.
        outs = [model(lab.tensor(floats(5, 8))) for _ in range(2)]
        assert 0 < tap.puts < wrapped.stats().seen.tensors
        for out in outs:
            lab.backward(out.sum())

    def test_line10_no_file_is_left(self, lab: Lab, tmp_path: Path) -> None:
        for policy in (DiskSpill(tmp_path), Compress(min_ratio=1) | DiskSpill(tmp_path)):
            attention(lab, scope=partial(self.stash, policy))
        assert os.listdir(tmp_path) == []

    def _interrupted(self, stash: Stash, lab: Lab) -> None:
        with stash:
            save_one(lab)
            raise KeyboardInterrupt

    def _gradients(self, lab: Lab, model: Model) -> dict[str, Any]:
        lab.backward(model(lab.tensor(floats(5, 8))).sum())
        return {str(n): lab.gradient(parameter) for n, parameter in enumerate(model.parameters())}

    def _portrait(self, model: Model) -> dict[str, Any]:
        return {
            "class": type(model),
            "parameters": [id(parameter) for parameter in model.parameters()],
            "modules": [name for name, _ in self.lab.backend.named_modules(model)],
            "state": {name: (bits.shape, bits.tobytes()) for name, bits in self.lab.state(model).items()},
        }


class FailClosed(Harness):
    """Contract line 11, as far as it concerns entering a scope."""

    def test_line11_what_is_no_policy_is_refused(self) -> None:
        for wrong in (None, "compres", Compress, Memory(), object()):
            self._assert_refused(wrong)

    def test_line11_a_size_that_is_none_is_refused(self) -> None:
        for wrong in (-1, "many", 1.5, True):
            self._assert_refused(Keep(), "min_bytes", min_bytes=wrong)

    def test_line11_what_is_no_model_is_refused(self) -> None:
        for wrong in (None, "model", object(), floats(3)):
            with pytest.raises((BackendError, ConfigError)):
                self.wrap(wrong, Keep())

    def test_line11_rules_by_module_name_need_a_model(self) -> None:
        with pytest.raises(ConfigError, match="wrap"):
            self.stash(Route((Rule(ModuleNames("first"), StoreIn(Memory())),)))

    def test_line11_a_store_that_cannot_be_opened_is_refused_before_any_step(self, tmp_path: Path) -> None:
        self._assert_refused(DiskSpill(tmp_path / "missing"), "missing", (StoreError, ConfigError))

    def test_line11_scopes_left_out_of_order_are_refused_and_hooks_survive(self, lab: Lab) -> None:
        first, second, outer = self.stash(Keep()), self.stash(Keep()), self.stash(Keep())
        with outer:
            first.__enter__()
            second.__enter__()
            with pytest.raises(BackendError):
                first.__exit__(None, None, None)
            with ExitStack() as rest:
                rest.callback(second.__exit__, None, None, None)
            save_one(lab)
        assert outer.stats().seen.tensors == 1, "the outer scope was lost"

    def _assert_refused(self, policy: Any, match: str | None = None, kind: Any = ConfigError, **options: Any) -> None:
        for enter in (self.stash, partial(self.wrap, self.lab.model())):
            with pytest.raises(kind, match=match):
                enter(policy, **options)


STEPS = 4
"""More than it takes to be sure."""

ROOMY = Limits(in_flight="64 MiB", ahead="64 MiB")


class SaysWhenNothing(Harness):
    """Contract line 12."""

    def test_line12_a_scope_that_sees_nothing_says_so_once(self, lab: Lab) -> None:
        stash = self.stash(StoreIn(Memory()))
        said = self._said_once(lambda: self._enter(stash, lambda: None), "nothing was seen")
        assert said in stash.stats().advice
        assert not self._said(lambda: self._enter(stash, lambda: None)), "said twice"

    def test_line12_a_policy_that_stashes_nothing_says_why(self, lab: Lab) -> None:
        stash = self.stash(StoreIn(Memory()), min_bytes=2**40)
        step = partial(save_one, lab)
        said = self._said_once(lambda: self._enter(stash, step), "nothing was stashed", "lower min_bytes")
        assert said in stash.stats().advice

    def test_line12_what_only_measures_or_works_says_nothing(self, lab: Lab) -> None:
        for policy in (Keep(), StoreIn(Memory())):
            stash = self.stash(policy)
            said = self._said(lambda stash=stash: self._enter(stash, lambda: save_one(lab)))  # type: ignore[misc]
            assert not said, said
        working = self.stash(Compress(min_ratio=1), limits=AT_ONCE)
        said = self._said(lambda: self._train(working, lab, floats(64, 4096) * 0))
        assert not said, said

    def test_line12_a_policy_that_shrinks_nothing_says_so(self) -> None:
        stash = self.stash(StoreIn(Memory()), limits=AT_ONCE)
        self._said_once(
            lambda: self._train(stash, self.lab.on("cpu"), floats(64, 4096)), "shrinks nothing", "DiskSpill("
        )

    def test_line12_limits_larger_than_what_there_is_to_gain_are_told(self, lab: Lab) -> None:
        stash = self.stash(Compress(min_ratio=1), limits=ROOMY)
        train = partial(self._train, stash, lab, floats(64, 4096) * 0)
        self._said_once(train, "limits are larger", "Limits(in_flight=")

    def test_line12_a_wrap_that_is_never_called_says_so(self, lab: Lab) -> None:
        self._said_once(self.wrap(lab.model(), StoreIn(Memory())).remove, "never called")

    def test_line12_a_forward_that_is_replaced_drops_no_wrap_in_silence(self, lab: Lab) -> None:
        model: Any = lab.model()
        own = type(model).forward
        wrapped = self.wrap(model, StoreIn(Memory()))
        model.forward = lambda x: own(model, x)

        def train() -> None:
            lab.backward(model(lab.tensor(floats(5, 8))).sum())
            wrapped.remove()

        said = self._said(train)
        assert said or wrapped.stats().stashed.tensors, "the wrap was dropped, and nothing was said"

    def test_line12_a_model_that_is_wrapped_already_says_so(self, lab: Lab) -> None:
        model = lab.model()
        wraps: list[Wrapped] = []
        first = self._said(lambda: wraps.append(self.wrap(model, Keep())))
        assert not first, first
        self._said_once(lambda: wraps.append(self.wrap(model, StoreIn(Memory()))), "wrapped already", "unwrap(model)")
        model(lab.tensor(floats(5, 8)))

    def test_line12_a_pattern_without_a_module_is_refused(self, lab: Lab) -> None:
        policy = Route((Rule(ModuleNames("frist"), StoreIn(Memory())),))
        with pytest.raises(ConfigError, match=r"'frist' matches no module.*did you mean 'first'"):
            self.wrap(lab.model(), policy)

    def _said(self, program: Callable[[], object]) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TensorStashWarning)
            program()
        said = [str(one.message) for one in caught if isinstance(one.message, TensorStashWarning)]
        return [message for message in said if "compiled part" not in message]  # as it is installed here

    def _said_once(self, program: Callable[[], object], *parts: str) -> str:
        said = self._said(program)
        assert len(said) == 1, said
        assert all(part in said[0] for part in parts), said
        return said[0]

    def _enter(self, stash: Stash, body: Callable[[], object]) -> None:
        for _ in range(STEPS):
            with stash:
                body()

    def _train(self, stash: Stash, lab: Lab, values: Array) -> None:
        for _ in range(STEPS):
            weight = lab.parameter(values)
            with stash:
                loss = (weight * 1.0).tanh().exp().sum()
            lab.backward(loss)
