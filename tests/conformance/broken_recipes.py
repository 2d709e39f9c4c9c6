"""What is made again broken on purpose, one fault each, and the checks that must notice."""

from functools import partial
from typing import Any

from planted import Fault, Planted, note

from tensorstash.abilities.recipes import Recipe
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.backends.reference.producers import Producers
from tensorstash.engine.recompute.inputs import AS_THEY_ARE
from tensorstash.engine.recompute.recomputer import Recomputer
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


class _Claims:
    """Any handle, which comes back exactly, as it says."""

    is_exact = is_made = True

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.depth, self.peek, self.add_user = handle.depth, handle.peek, handle.add_user

    def __call__(self) -> Any:
        return self._handle()


class _NoProofs:
    """Finds all recipes right: whether a lossy source has come back yet when it is looked at is a matter of time."""

    def allow(self, *_: Any, **__: Any) -> bool:
        return True

    def refuse(self, kind: Any) -> None:
        pass


class _TakesAnything(Recomputer):
    def _proved(self, tensor: Any, spec: Any, recipe: Recipe, inputs: tuple[Any, ...], wanted: Any) -> Any:
        self._proofs = _NoProofs()
        claimed = tuple(each if isinstance(each, AS_THEY_ARE) else _Claims(each) for each in inputs)
        return super()._proved(tensor, spec, recipe, claimed, wanted)


@caught_by("test_line01_what_is_made_again_widens_no_error", raises=(TensorStashError,))
class MakesThingsOfWhatHasLost(Planted):
    recomputer = _TakesAnything
