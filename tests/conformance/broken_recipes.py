"""What is made again broken on purpose, one fault each, and the checks that must notice."""

from functools import partial
from typing import Any
from unittest.mock import patch

from planted import Fault, Planted, note

from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.backends.reference.producers import Producers
from tensorstash.engine import recomputer
from tensorstash.engine.handle import Stashed
from tensorstash.engine.recomputer import Recomputer
from tensorstash.errors import TensorStashError

FAULTS: list[Fault] = []
caught_by = partial(note, FAULTS)


class _Trusting(Producers):
    """Runs something else, and finds nothing wrong with it."""

    def run(self, recipe: Any, values: Any, spec: Any, /) -> Any:
        return super().run(recipe, [value * 2 for value in values], spec)

    def are_equal(self, one: Any, other: Any, /) -> bool:
        return True

    def digest(self, whole: Any, /) -> int:
        return 0


class _Blind(Producers):
    def digest(self, whole: Any, /) -> int:
        return 0


class _Holding(Producers):
    handles: list[Any] = []  # noqa: RUF012  (that is the fault)

    def note(self, tensor: Any, spec: Any, handle: Any, /) -> None:
        self.handles.append(handle)
        super().note(tensor, spec, handle)


@caught_by("test_line01_what_is_made_again_is_bitwise_what_was_saved")
class RunsAnotherOperation(Planted):
    class Backend(ReferenceBackend):
        def producers(self, *arguments: Any) -> Producers:
            return _Trusting(*arguments)


@caught_by("test_line04_what_recipes_are_made_of_is_refused_if_it_was_modified")
class ForgetsVersions(Planted):
    class Backend(ReferenceBackend):
        def version_probe(self, tensor: Any, /) -> Any:
            return (tensor * 1).detach()


@caught_by("test_line04_what_recipes_are_made_of_is_refused_if_it_was_written_without_a_version")
class ComparesNothing(Planted):
    class Backend(ReferenceBackend):
        def producers(self, *arguments: Any) -> Producers:
            return _Blind(*arguments)


@caught_by("test_line05_what_recipes_are_made_of_goes_with_the_graph")
class HoldsWhatItNotes(Planted):
    class Backend(ReferenceBackend):
        def producers(self, *arguments: Any) -> Producers:
            return _Holding(*arguments)


class _TakesAnything(Recomputer):
    """Takes any handle for an exact one, and finds all recipes right.

    Whether a lossy source has come back yet when it is looked at is a matter of time.
    """

    def handle(self, *arguments: Any) -> Any:
        with patch.object(Stashed, "is_exact", True), patch.object(recomputer, "_fault", lambda *_: None):
            return super().handle(*arguments)


@caught_by("test_line01_what_is_made_again_widens_no_error", raises=(TensorStashError,))
class MakesThingsOfWhatHasLost(Planted):
    recomputer = _TakesAnything
