"""Contract line 11: an impossible request is refused at once."""

import os
from contextlib import ExitStack

import pytest

from tensorstash.errors import BackendError, ConfigError, StoreError
from tensorstash.policies import Compress, DiskSpill, Keep, Route, Rule, StoreIn
from tensorstash.policies.selectors import ModuleNames
from tensorstash.stores.memory import Memory
from tensorstash.testing.harness import Harness, scratch_directory
from tensorstash.testing.layouts import floats
from tensorstash.testing.programs import save_one


class FailClosed(Harness):
    """Contract line 11, as far as it concerns entering a scope."""

    def test_line11_what_is_no_policy_is_refused(self) -> None:
        model = self.lab.model()
        for wrong in (None, "compres", Compress, Memory(), object()):
            with pytest.raises(ConfigError):
                self.stash(wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigError):
                self.wrap(model, wrong)  # type: ignore[arg-type]

    def test_line11_a_size_that_is_none_is_refused(self) -> None:
        model = self.lab.model()
        for wrong in (-1, "many", 1.5, True):
            with pytest.raises(ConfigError, match="min_bytes"):
                self.stash(Keep(), min_bytes=wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="min_bytes"):
                self.wrap(model, Keep(), min_bytes=wrong)  # type: ignore[arg-type]

    def test_line11_what_is_no_model_is_refused(self) -> None:
        for wrong in (None, "model", object(), floats(3)):
            with pytest.raises((BackendError, ConfigError)):
                self.wrap(wrong, Keep())

    def test_line11_rules_by_module_name_need_a_model(self) -> None:
        with pytest.raises(ConfigError, match="wrap"):
            self.stash(Route((Rule(ModuleNames("first"), StoreIn(Memory())),)))

    def test_line11_a_store_that_cannot_be_opened_is_refused_before_any_step(self) -> None:
        with scratch_directory() as directory:
            missing = os.path.join(directory, "missing")
        model = self.lab.model()
        with pytest.raises((StoreError, ConfigError), match="missing"):
            self.stash(DiskSpill(missing))
        with pytest.raises((StoreError, ConfigError), match="missing"):
            self.wrap(model, DiskSpill(missing))

    def test_line11_scopes_left_out_of_order_are_refused_and_hooks_survive(self, device: str) -> None:
        first, second, outer = self.stash(Keep()), self.stash(Keep()), self.stash(Keep())
        with outer:
            first.__enter__()
            second.__enter__()
            with pytest.raises(BackendError):
                first.__exit__(None, None, None)
            with ExitStack() as rest:
                rest.callback(second.__exit__, None, None, None)
            save_one(self.lab, device)
        assert outer.stats().seen.tensors == 1, "the outer scope was lost"
