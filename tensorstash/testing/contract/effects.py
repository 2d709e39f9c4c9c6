"""Contract line 12: it says when it does nothing."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tensorstash.api import Stash, Wrapped
from tensorstash.errors import ConfigError, TensorStashWarning
from tensorstash.host.arrays import Array
from tensorstash.policies import Compress, Keep, Route, Rule, StoreIn
from tensorstash.policies.limits import Limits
from tensorstash.policies.selectors import ModuleNames
from tensorstash.stores.memory import Memory
from tensorstash.testing.harness import AT_ONCE, Harness
from tensorstash.testing.layouts import floats
from tensorstash.testing.programs import save_one

STEPS = 4
"""More than it takes to be sure."""

ROOMY = Limits(in_flight="64 MiB", ahead="64 MiB")


class SaysWhenNothing(Harness):
    """Contract line 12."""

    def test_line12_a_scope_that_sees_nothing_says_so_once(self, device: str) -> None:
        stash = self.stash(StoreIn(Memory()))
        said = self._said_once(lambda: self._enter(stash, lambda: None), "nothing was seen")
        assert said in stash.stats().advice
        assert not self._said(lambda: self._enter(stash, lambda: None)), "said twice"

    def test_line12_a_policy_that_stashes_nothing_says_why(self, device: str) -> None:
        stash = self.stash(StoreIn(Memory()), min_bytes=2**40)
        step = partial(save_one, self.lab, device)
        said = self._said_once(lambda: self._enter(stash, step), "nothing was stashed", "lower min_bytes")
        assert said in stash.stats().advice

    def test_line12_what_only_measures_or_works_says_nothing(self, device: str) -> None:
        for policy in (Keep(), StoreIn(Memory())):
            stash = self.stash(policy)
            said = self._said(lambda stash=stash: self._enter(stash, lambda: save_one(self.lab, device)))  # type: ignore[misc]
            assert not said, said
        working = self.stash(Compress(min_ratio=1), limits=AT_ONCE)
        said = self._said(lambda: self._train(working, device, floats(64, 4096) * 0))
        assert not said, said

    def test_line12_a_policy_that_shrinks_nothing_says_so(self) -> None:
        stash = self.stash(StoreIn(Memory()), limits=AT_ONCE)
        self._said_once(lambda: self._train(stash, "cpu", floats(64, 4096)), "shrinks nothing")

    def test_line12_limits_larger_than_what_there_is_to_gain_are_told(self, device: str) -> None:
        stash = self.stash(Compress(min_ratio=1), limits=ROOMY)
        train = partial(self._train, stash, device, floats(64, 4096) * 0)
        self._said_once(train, "limits are larger", "Limits(in_flight=")

    def test_line12_a_wrap_that_is_never_called_says_so(self, device: str) -> None:
        self._said_once(self.wrap(self.lab.model(device=device), StoreIn(Memory())).remove, "never called")

    def test_line12_a_forward_that_is_replaced_drops_no_wrap_in_silence(self, device: str) -> None:
        lab = self.lab
        model: Any = lab.model(device=device)
        own = type(model).forward
        wrapped = self.wrap(model, StoreIn(Memory()))
        model.forward = lambda x: own(model, x)

        def train() -> None:
            lab.backward(lab.sum(model(lab.tensor(floats(5, 8), device=device))))
            wrapped.remove()

        said = self._said(train)
        assert said or wrapped.stats().stashed.tensors, "the wrap was dropped, and nothing was said"

    def test_line12_a_model_that_is_wrapped_already_says_so(self, device: str) -> None:
        model = self.lab.model(device=device)
        wraps: list[Wrapped] = []
        first = self._said(lambda: wraps.append(self.wrap(model, Keep())))
        assert not first, first
        self._said_once(lambda: wraps.append(self.wrap(model, StoreIn(Memory()))), "wrapped already")
        model(self.lab.tensor(floats(5, 8), device=device))

    def test_line12_a_pattern_without_a_module_is_refused(self, device: str) -> None:
        policy = Route((Rule(ModuleNames("frist"), StoreIn(Memory())),))
        with pytest.raises(ConfigError, match=r"'frist' matches no module.*did you mean 'first'"):
            self.wrap(self.lab.model(device=device), policy)

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

    def _train(self, stash: Stash, device: str, values: Array) -> None:
        lab = self.lab
        for _ in range(STEPS):
            weight = lab.parameter(values, device=device)
            with stash:
                loss = lab.sum(lab.exp(lab.tanh(lab.mul(weight, 1.0))))
            lab.backward(loss)
