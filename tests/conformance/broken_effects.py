"""Faults in what is said where nothing happens, each with the checks that must notice it."""

from typing import Any

from planted import caught_by, planted, replacing

from tensorstash.backends.forward import replace_method
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.engine.session import Session


class SaysNothing(Session):
    """Keeps it to itself."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.adviser.say = lambda message: None


@caught_by("test_line12_what_only_measures_or_works_says_nothing")
@replacing("session")
class CriesWolf(Session):
    """Takes what works for what does not."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.adviser.judge = lambda stats, is_last=False: is_last or self.adviser.say("the policy may have no effect")


caught_by(
    "test_line12_a_scope_that_sees_nothing_says_so_once",
    "test_line12_a_policy_that_stashes_nothing_says_why",
    "test_line12_a_policy_that_shrinks_nothing_says_so",
    "test_line12_limits_larger_than_what_there_is_to_gain_are_told",
    "test_line12_a_wrap_that_is_never_called_says_so",
    "test_line12_a_forward_that_is_replaced_drops_no_wrap_in_silence",
)(planted("SaysNothing", session=SaysNothing))


def names_another(self: Any, model: Any) -> Any:
    return [*ReferenceBackend.named_modules(self, model), ("frist", model)]


@caught_by("test_line12_a_model_that_is_wrapped_already_says_so")
@replacing("backend.wrap_forward")
def hides_the_scope(self: Any, model: Any, scope: Any) -> Any:
    return replace_method(model, lambda: scope())


caught_by("test_line12_a_pattern_without_a_module_is_refused")(
    planted("NamesWhatIsNotThere", backend={"named_modules": names_another}, session=SaysNothing)
)
