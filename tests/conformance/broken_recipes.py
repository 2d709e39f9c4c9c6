"""What is made again broken on purpose, one fault each, and the checks that must notice."""

from typing import Any
from unittest.mock import patch

from planted import caught_by, planted, replacing

from tensorstash.backends.reference.producers import Producers
from tensorstash.engine import recomputer
from tensorstash.engine.handle import Stashed
from tensorstash.engine.recomputer import Recomputer
from tensorstash.errors import TensorStashError


def making(name: str, **methods: Any) -> type:
    """Return the suite over a backend whose producers have other methods."""
    faulty: Any = type(name, (Producers,), methods)
    return planted(name, backend={"producers": lambda self, *arguments: faulty(*arguments)})


caught_by("test_line01_what_is_made_again_is_bitwise_what_was_saved")(
    making(
        "RunsAnotherOperation",
        run=lambda self, recipe, values, spec: Producers.run(self, recipe, [value * 2 for value in values], spec),
        digest=lambda *_: 0,
    )
)

caught_by("test_line04_what_recipes_are_made_of_is_refused_if_it_was_written_without_a_version")(
    making("ComparesNothing", digest=lambda *_: 0)
)

HELD: list[Any] = []


def holding(self: Producers, tensor: Any, spec: Any, handle: Any) -> None:
    HELD.append(handle)
    Producers.note(self, tensor, spec, handle)


caught_by("test_line05_what_recipes_are_made_of_goes_with_the_graph")(making("HoldsWhatItNotes", note=holding))


@caught_by("test_line04_what_recipes_are_made_of_is_refused_if_it_was_modified")
@replacing("backend.version_probe")
def forgets_versions(self: Any, tensor: Any) -> Any:
    return (tensor * 1).detach()


@caught_by("test_line01_what_is_made_again_widens_no_error", raises=(TensorStashError,))
@replacing("recomputer")
class TakesAnything(Recomputer):
    """Takes any handle for an exact one, and finds all recipes right.

    Whether a lossy source has come back yet when it is looked at is a matter of time.
    """

    def handle(self, *arguments: Any) -> Any:
        with patch.object(Stashed, "is_exact", True), patch.object(recomputer, "_fault", lambda *_: None):
            return super().handle(*arguments)
