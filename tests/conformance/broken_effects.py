"""Faults in what is said where nothing happens, each with the checks that must notice it."""

from functools import partial
from typing import Any

from planted import Fault, Planted, note

from tensorstash.backends.forward import replace_method
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.engine.session import Session

FAULTS: list[Fault] = []

caught_by = partial(note, FAULTS)


class _Silent(Session):
    """Keeps it to itself."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.adviser.say = lambda message: None


@caught_by(
    "test_line12_a_scope_that_sees_nothing_says_so_once",
    "test_line12_a_policy_that_stashes_nothing_says_why",
    "test_line12_a_policy_that_shrinks_nothing_says_so",
    "test_line12_limits_larger_than_what_there_is_to_gain_are_told",
    "test_line12_a_wrap_that_is_never_called_says_so",
    "test_line12_a_forward_that_is_replaced_drops_no_wrap_in_silence",
)
class SaysNothing(Planted):
    session = _Silent


class _Alarmed(Session):
    """Takes what works for what does not."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.adviser.judge = lambda stats: self.adviser.say("the policy may have no effect")


@caught_by("test_line12_what_only_measures_or_works_says_nothing")
class CriesWolf(Planted):
    session = _Alarmed


@caught_by("test_line12_a_model_that_is_wrapped_already_says_so")
class FindsNoWrap(Planted):
    class Backend(ReferenceBackend):
        def wrap_forward(self, model: Any, scope: Any, /) -> Any:
            return replace_method(model, lambda: scope())  # whose scope it is cannot be told


@caught_by("test_line12_a_pattern_without_a_module_is_refused")
class NamesWhatIsNotThere(Planted):
    session = _Silent

    class Backend(ReferenceBackend):
        def named_modules(self, model: Any, /) -> Any:
            yield from super().named_modules(model)
            yield "frist", model
