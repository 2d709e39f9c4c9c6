"""The place of a content that is not stored: its recipe, and the tensor that this makes when backward asks.

Whatever a recipe makes is compared whole with the tensor that was saved, each time, by a digest of all bits. There is
no exception for a recipe whose inputs were all saved and version-checked: its output may have been edited in place
after it was made, through ``.data`` or an alias that bumps no version, before it was saved or after.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from time import perf_counter
from typing import Any

from tensorstash.abilities.recipes import Leaf, Producers, Recipe
from tensorstash.engine.content import Content
from tensorstash.engine.handle import SessionState
from tensorstash.errors import StashError, TensorStashError, is_out_of_memory
from tensorstash.host.budget import Lease
from tensorstash.spec import TensorSpec

_COPY = Recipe("copy", 0, (), 0)
"""Returns its only input, in fresh memory as whatever a recipe makes."""


class RecipePlace:
    """The output of one recipe, made again for all contents that need it. Thread-safe.

    It holds the handles that its recipe needs, and nothing else of the step: no tensor of the program, and no node of
    the graph. The output is held until everybody who is known to need it has asked, as far as the budget goes. Who
    may write into it, as functions of users may, gets one of its own.

    Args:
        state: of the session.
        producers: runs the recipe.
        recipe: how it is made.
        inputs: for each of the recipe's a handle that can be referred to weakly, or a copy.
        present: tensors that are there, and without which it cannot be made; those behind its inputs among them.
        spec: of the output.
        depth: operations that are run for it at most, those of its inputs among them.
        name: the same for all places of one stretch of saves with an equal output.
        refuse: stores tensors of this kind from now on.
    """

    __slots__ = (
        "__weakref__", "_lease", "_lock", "_made", "_recipe", "_refuse", "_uses", "backend", "depth",
        "inputs", "name", "numbers", "present", "producers", "spec", "state", "users",
    )  # fmt: skip

    tier = "recipe"
    is_lossless = True
    transfers = None

    def __init__(
        self,
        state: SessionState,
        producers: Producers[Any],
        recipe: Recipe,
        inputs: Sequence[Any],
        present: list[Any],
        spec: TensorSpec,
        depth: int,
        name: Hashable,
        refuse: Callable[[], None],
    ) -> None:
        self.state, self.backend, self.producers = state, state.backend, producers
        self._recipe, self.inputs, self._refuse = recipe, inputs, refuse
        self.present, self.spec, self.depth, self.name = present, spec, depth, name
        self.numbers = state.ledger.recipe(recipe.rule)
        """Counts those who need it, and how often it was made."""
        self.users = self._uses = 0
        self._made: tuple[Any, int, Any] | None = None
        self._lease: Lease | None = None
        self._lock = threading.Lock()

    def add_user(self) -> None:
        """Count one more handle, or a recipe that needs it."""
        self.users += 1

    def load(self, content: "RecipeContent") -> Any:
        """Return the whole tensor of a content.

        Raises:
            SavedTensorModifiedError: an input was modified in place since it was saved.
            StashError: the recipe raised, or made another tensor than was saved.
        """
        whole, digest = self._make(content) if self.users == 1 else self._shared(content, self.state.may_write())
        if type(digest) is not int or digest != content.digest:
            self.producers.require_equal(digest, content.digest, lambda: self._difference(content))
        return whole

    def peek(self) -> Any:
        """Return the same without being asked by backward, to look at it and drop it."""
        values = [each.tensor if isinstance(each, Leaf) else each.peek() for each in self.inputs]
        return self.producers.run(self._recipe, values, self.spec)

    def forward(self, source: Any, spec: TensorSpec, wanted: TensorSpec, *, may_give: bool) -> Any:
        """Return a part of a source that is still there, or of a copy; see :meth:`Place.forward`."""
        if not may_give:
            source = self.producers.run(_COPY, (source,), self.spec)
        return self.producers.part(source, wanted)

    def _shared(self, content: "RecipeContent", may_write: bool) -> tuple[Any, Any]:
        """Return the output that is held for others too, and its digest, unless the operation may write to it."""
        with self._lock:
            self._uses += 1
            is_last = self._uses % self.users == 0
            made = self._made
            is_intact = made is not None and self.state.version(made[0]) == made[1]
            if is_last or not is_intact:
                self._made = self._lease = None
        if made is not None and is_intact and not may_write:
            return made[0], made[2]
        whole, digest = self._make(content)
        if not (is_last or may_write):
            with self._lock:
                if self._lease is None:
                    self._lease = self.state.prefetcher.hold(self.spec.nbytes)
                if self._lease is not None:
                    self._made = whole, self.state.version(whole), digest
        return whole, digest

    def _make(self, content: "RecipeContent") -> tuple[Any, Any]:
        values = []
        try:
            for each in self.inputs:
                values.append(each.tensor if type(each) is Leaf else SessionState.restore(each))
        except TensorStashError as error:
            error.add_note(f"needed for {self._label(content)}")
            raise
        started = perf_counter()
        try:
            whole = self.producers.run(self._recipe, values, self.spec)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._refuse()
            raise StashError(f"{self._label(content)}: {type(error).__name__}: {error}") from error
        digest = self.producers.digest(whole)
        self.state.ledger.add(self.numbers, 0, 0, 0, 0.0, 1, perf_counter() - started)
        return whole, digest

    def _difference(self, content: "RecipeContent") -> StashError:
        self._refuse()
        return StashError(
            f"{self._label(content)}: it came out different from the tensor that was saved: a tensor between the "
            f"inputs of the recipe and this one, or one of them, was edited without a record (under no_grad, through "
            f".data, .detach() or NumPy); tensors of this kind are stored from the next step on; to store all of them, "
            f"leave the rule out (Recompute(ops=...)), or edit with an operation that autograd records"
        )

    def _label(self, content: "RecipeContent") -> str:
        return f"Recompute, rule {self._recipe.rule}, tensor {content.spec}"


class RecipeContent(Content):
    """A whole tensor that a recipe has to make: itself while somebody may write to it, and a digest of it then.

    Where the framework tells who holds a memory, it waits among :class:`~tensorstash.engine.residency.Residency`
    until nobody else does, as other contents do. Else the digest is taken at once.

    Args:
        place: makes it again.
        whole: the tensor, of a graph or not.
        module: that it was saved in; empty where that is not known.
    """

    __slots__ = ("digest",)

    place: RecipePlace  # type: ignore[assignment]  # shared by contents that are made of the same
    is_recipe = True

    def __init__(self, place: RecipePlace, whole: Any, module: str) -> None:
        state, backend = place.state, place.backend
        ahead, readers, token = state.prefetcher.budget, state.prefetcher.readers, backend.storage(whole)[0]
        spec = place.spec.inside(module) if module else place.spec
        parts: tuple[Any, ...] = place, backend.detached(whole), spec, state.version(whole), None, ahead, readers, token
        super().__init__(*parts)
        self.digest: Any = None
        place.add_user()
        if state.residency is None:
            self.is_held()
            self.capture()

    def add_user(self) -> None:
        """Count one more handle, or a recipe that will ask."""
        self.users += 1
        self.place.add_user()

    def capture(self) -> None:
        """Take the digest and drop the source; from now on it is immune to later changes."""
        source, place = self.alias, self.place
        if source is None:
            return
        try:
            probe = None if self._is_alone else place.backend.version_probe(source)
            self.digest = place.producers.digest(source)
            self._check(source)
            self._probe = probe
        except TensorStashError as error:
            self._fail(error)
        except Exception as error:
            if is_out_of_memory(error):  # a full device has no room for a digest: the tensor stays
                return
            self._fail(self._unreadable(source, error))
        self.alias = None

    def is_still(self, tensor: Any) -> bool:
        """Whether a tensor of the same node of the graph holds the same bits; its memory may be the same, or not."""
        place = self.place
        if self._version != place.backend.version(tensor):
            return False
        return self.alias is not None or bool(self.digest == place.producers.digest(place.producers.whole(tensor)))

    def restore(self, spec: TensorSpec) -> Any:
        """Return a layout of the whole tensor, which is made again.

        Raises:
            SavedTensorModifiedError: the tensor or an input was modified in place since it was saved.
            StashError: the recipe raised, or made another tensor than was saved.
        """
        if self._error is not None or self._probe is not None:
            self.raise_failure()
        return self.place.producers.part(self.place.load(self), spec)

    def peek(self, spec: TensorSpec) -> Any:
        """Return the tensor to look at it and drop it."""
        whole = self.alias
        return self.place.producers.part(self.place.peek() if whole is None else whole, spec)
