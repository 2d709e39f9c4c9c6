"""Contract line 11: an impossible request is refused at once."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tensorstash.errors import BackendError, ConfigError, StoreError
from tensorstash.policies import Compress, DiskSpill, Keep, Route, Rule, StoreIn
from tensorstash.policies.selectors import ModuleNames
from tensorstash.stores.memory import Memory
from tensorstash.testing.harness import Harness
from tensorstash.testing.layouts import floats
from tensorstash.testing.programs import save_one


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

    def _assert_refused(self, policy: Any, match: str | None = None, kind: Any = ConfigError, **options: Any) -> None:
        for enter in (self.stash, partial(self.wrap, self.lab.model())):
            with pytest.raises(kind, match=match):
                enter(policy, **options)
