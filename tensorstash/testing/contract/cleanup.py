"""Contract line 10: nothing is left behind."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tensorstash.api import Stash
from tensorstash.policies import Compress, DiskSpill, Keep, Route, Rule, StoreIn
from tensorstash.policies.selectors import ModuleNames
from tensorstash.stores.memory import Memory
from tensorstash.testing.faults import Tap, Watched
from tensorstash.testing.harness import AT_ONCE, Harness
from tensorstash.testing.lab import Model
from tensorstash.testing.layouts import assert_same_arrays, assert_same_bits, floats
from tensorstash.testing.programs import attention, save_one


class NothingLeftBehind(Harness):
    """Contract line 10."""

    def test_line10_scopes_nest_and_leave_no_hooks(self, device: str) -> None:
        outer, inner = self.stash(Keep()), self.stash(StoreIn(Memory()))
        with outer:
            save_one(self.lab, device)
            with pytest.raises(KeyboardInterrupt):
                self._interrupted(inner, device)
            save_one(self.lab, device)
            with outer:
                save_one(self.lab, device)
        save_one(self.lab, device)
        assert (outer.stats().seen.tensors, inner.stats().seen.tensors) == (3, 1)

    def test_line10_scopes_of_other_threads_are_their_own(self, device: str) -> None:
        stash = self.stash(Keep())
        with stash, ThreadPoolExecutor(1) as pool:
            pool.submit(save_one, self.lab, device).result()
        assert stash.stats().seen.tensors == 0, "hooks of one thread are in force on another"

    def test_line10_wrap_leaves_the_model_as_it_is(self, device: str) -> None:
        lab = self.lab
        model = lab.model(device=device)
        before = self._portrait(model)
        by_module = Route((Rule(ModuleNames("first"), StoreIn(Memory())),))
        for policy in (StoreIn(Memory()), by_module):
            wrapped = self.wrap(model, policy)
            self._assert_same_portrait(model, before, "wrapped")
            lab.backward(lab.sum(model(lab.tensor(floats(5, 8), device=device))))
            self._assert_same_portrait(model, before, "after a step")
            wrapped.remove()
            self._assert_same_portrait(model, before, "unwrapped")

    def test_line10_a_wrapped_model_trains_the_same_until_it_is_unwrapped(self, device: str) -> None:
        lab = self.lab
        expected = self._gradients(lab.model(device=device), device)
        model = lab.model(device=device)
        wrapped = self.wrap(model, StoreIn(Memory()))
        assert_same_arrays(self._gradients(model, device), expected, "gradients of the wrapped model")
        with pytest.raises(Exception):  # noqa: B017  (each framework has its own for shapes that do not fit)
            model(lab.tensor(floats(5, 3), device=device))
        seen = wrapped.stats().seen.tensors
        assert seen > 0
        save_one(lab, device)
        assert wrapped.stats().seen.tensors == seen, "hooks are in force after a forward that raised"
        wrapped.remove()
        wrapped.remove()
        unwrapped = lab.model(device=device)
        out = model(lab.tensor(floats(5, 8), device=device))
        assert_same_bits(lab.bits(out), lab.bits(unwrapped(lab.tensor(floats(5, 8), device=device))), "output")
        assert wrapped.stats().seen.tensors == seen, "the model is still wrapped after remove()"

    def test_line10_rules_by_module_name_reach_their_module_only(self, device: str) -> None:
        lab = self.lab
        tap = Tap()
        policy = Route((Rule(ModuleNames("first"), StoreIn(Watched(tap=tap))),))
        model = lab.model(device=device)
        wrapped = self.wrap(model, policy, limits=AT_ONCE)
        # While a forward runs its caller holds the input; the next forward finds it free.
        outs = [model(lab.tensor(floats(5, 8), device=device)) for _ in range(2)]
        assert 0 < tap.puts < wrapped.stats().seen.tensors
        for out in outs:
            lab.backward(lab.sum(out))

    def test_line10_no_file_is_left(self, device: str, tmp_path: Path) -> None:
        for policy in (DiskSpill(tmp_path), Compress(min_ratio=1) | DiskSpill(tmp_path)):
            attention(self.lab, device, scope=partial(self.stash, policy))
        assert os.listdir(tmp_path) == []

    def _interrupted(self, stash: Stash, device: str) -> None:
        with stash:
            save_one(self.lab, device)
            raise KeyboardInterrupt

    def _gradients(self, model: Model, device: str) -> dict[str, Any]:
        lab = self.lab
        lab.backward(lab.sum(model(lab.tensor(floats(5, 8), device=device))))
        return {str(n): lab.gradient(parameter) for n, parameter in enumerate(lab.parameters(model))}

    def _portrait(self, model: Model) -> dict[str, Any]:
        return {
            "class": type(model),
            "parameters": [id(parameter) for parameter in self.lab.parameters(model)],
            "modules": [name for name, _ in self.lab.backend.named_modules(model)],
            "state": self.lab.state(model),
        }

    def _assert_same_portrait(self, model: Model, before: dict[str, Any], when: str) -> None:
        now = self._portrait(model)
        assert_same_arrays(now.pop("state"), before["state"], f"state_dict, {when}")
        assert now == {key: value for key, value in before.items() if key != "state"}, f"the model has changed, {when}"
