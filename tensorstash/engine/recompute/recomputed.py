"""A saved content that is not stored: its recipe, and what it makes of it when backward asks."""

import threading
from collections.abc import Hashable, Iterator, Sequence
from time import perf_counter
from typing import Any

from tensorstash.abilities.recipes import Leaf, Producers, Recipe
from tensorstash.engine.handle import Asking, Stashed
from tensorstash.engine.recompute.inputs import checksum_of
from tensorstash.engine.state import SessionState
from tensorstash.errors import StashError, TensorStashError, modified
from tensorstash.host.budget import Lease
from tensorstash.spec import TensorSpec


class Saved:
    """What a whole tensor was when it was saved, and whether that still counts.

    Args:
        state: of the session.
        spec: its layout.
        module: that it was saved in; empty where that is not known.
        version: its in-place version.
        probe: what shares that version, without the memory.
    """

    __slots__ = ("__weakref__", "_is_refused_if_modified", "_module", "_probe", "_state", "spec", "version")

    def __init__(self, state: SessionState, spec: TensorSpec, module: str, version: int, probe: Any) -> None:
        self._state = state
        self.spec = spec
        self._module = module
        self.version = version
        self._probe = probe
        self._is_refused_if_modified = True

    def check(self) -> None:
        """Raise SavedTensorModifiedError if it was modified in place since it was saved."""
        if self._is_refused_if_modified:
            version = self._state.version(self._probe)
            if version != self.version:
                raise modified(str(self), version, self.version)

    def settle(self) -> None:
        """Make it immune to later changes of the tensor that was saved, unless there were any."""
        if self._state.version(self._probe) == self.version:
            self._is_refused_if_modified = False

    def __str__(self) -> str:
        return str(self.spec.inside(self._module))


class Recomputed:
    """One storage content, made again for all handles that need it. Thread-safe.

    It holds the handles that its recipe needs, and nothing else of the step: no tensor of the program, and no node of
    the graph. What was made is held until everybody who is known to need it has asked, as far as the budget goes. Who
    may write into it, as functions of users may, gets one of its own.

    Inputs of a recipe that were modified in place since they were saved are refused: they check that themselves, but
    for parameters. What does not come with a new version shows in a few elements that are compared each time; in a
    checksum, where the graph has not made an input and others may write to it.

    Args:
        state: of the session.
        producers: runs the recipe.
        recipe: how it is made.
        inputs: what of: for each of the recipe's a handle that can be referred to weakly, or a leaf.
        marks: for each of these what tells whether it was written to, as :func:`marked` returns it.
        present: tensors that are there, and without which it cannot be made.
        saved: what it was, or one of those that were equal to it.
        sample: a few of its elements, or a checksum of all; None where they are not looked at.
        depth: operations that are run for it at most, those of its inputs among them.
        is_summed: whether ``sample`` is a checksum: of what was made of memory that others may write to unseen.
    """

    __slots__ = (
        "__weakref__",
        "_is_summed",
        "_lease",
        "_lock",
        "_made",
        "_marks",
        "_producers",
        "_recipe",
        "_saved",
        "_state",
        "_uses",
        "depth",
        "inputs",
        "present",
        "rule",
        "sample",
        "seconds",
        "users",
    )

    def __init__(
        self,
        state: SessionState,
        producers: Producers[Any],
        recipe: Recipe,
        inputs: tuple[Any, ...],
        marks: Sequence[Hashable],
        present: Sequence[Any],
        saved: Saved,
        sample: Hashable,
        depth: int,
        *,
        is_summed: bool,
    ) -> None:
        self._state = state
        self._producers = producers
        self._recipe = recipe
        self.inputs = inputs
        """Handles of what it is made of, and leaves."""
        self.present = present
        """Tensors without which it cannot be made, those behind its inputs among them."""
        self.rule = recipe.rule
        """What its recipe is called."""
        self._saved = saved
        self.sample = sample
        self._is_summed = is_summed
        self._marks = marks
        self.depth = depth
        self.users = 0
        """Handles of it, and recipes that need it."""
        self._uses = 0
        self.seconds: float | None = None
        """That its recipe took when it was last made, without what that is made of."""
        self._made: tuple[Any, int] | None = None
        self._lease: Lease | None = None
        self._lock = threading.Lock()

    @property
    def is_prefetched(self) -> bool:
        """Whether what was made is held, and counted among what is read ahead."""
        return self._made is not None

    def gives(self, saved: Saved, sample: Hashable) -> bool:
        """Whether what it makes is another tensor too, which the same recipe makes of the same."""
        own = self._saved
        return saved.version == own.version and sample == self.sample and saved.spec == own.spec

    def restore(self, spec: TensorSpec) -> Any:
        """Return the tensor with a layout of the same memory.

        Raises:
            SavedTensorModifiedError: what it is made of was modified in place since it was saved.
            StashError: the recipe raised, or made something else than was saved.
        """
        may_write = self.users > 1 and self._state.may_write()
        whole = self._reuse()
        if whole is None:
            whole = self._make()
            if self.users > 1:  # or nobody else will ask
                self._hold(whole, may_write=may_write)
        elif may_write:  # into what others have
            whole = self._make()
        return self._producers.part(whole, spec)

    def peek(self, spec: TensorSpec) -> Any:
        """Return the same without being asked by backward, to look at it and drop it."""
        values = [each.tensor if isinstance(each, Leaf) else each.peek() for each in self.inputs]
        return self._producers.part(self._producers.run(self._recipe, values, self._saved.spec), spec)

    def _make(self) -> Any:
        recipe, saved = self._recipe, self._saved
        values = []
        for place, each in enumerate(self.inputs):
            values.append(self._leaf(place, each.tensor) if type(each) is Leaf else self._given(place, each))
        started = perf_counter()
        try:
            whole = self._producers.run(recipe, values, saved.spec)
        except Exception as error:
            raise StashError(f"{self._place()}: {type(error).__name__}: {error}") from error
        if self.sample is not None and self._look(whole) != self.sample:
            raise StashError(
                f"{self._place()}: it came out different from what was saved: the tensor, or what it is made of, was "
                f"written to without a new version; leave the rule out (Recompute(ops=...)), or store this tensor"
            )
        self.seconds = perf_counter() - started
        self._state.ledger.made_again(self.rule, self.seconds)
        return whole

    def _look(self, whole: Any) -> Hashable:
        return checksum_of(whole, self._producers) if self._is_summed else self._producers.sample(whole)

    def _given(self, place: int, needed: Any) -> Any:
        try:
            tensor = needed()
        except TensorStashError as error:
            error.add_note(f"needed for {self._place()}")
            raise
        known = self._marks[place]
        if known is not None and checksum_of(tensor, self._producers) != known:
            raise StashError(
                f"{self._place()}: {self._state.backend.describe(tensor)} that it is made of, which the graph has "
                f"not made, was written to without a new version between forward and backward; run backward "
                f"first, write to another tensor, or leave the rule out (Recompute(ops=...))"
            )
        return tensor

    def _leaf(self, place: int, tensor: Any) -> Any:
        known: Any = self._marks[place]
        backend = self._state.backend
        version, sample = self._state.version(tensor), self._producers.sample(tensor)
        if version != known[0]:
            raise modified(f"{backend.describe(tensor)}, for {self._place()}", version, known[0])
        if sample != known[1]:
            raise StashError(
                f"{self._place()}: the parameter {backend.describe(tensor)} that it is made of was changed, or freed, "
                f"between forward and backward; run backward first, or leave the rule out (Recompute(ops=...))"
            )
        return tensor

    def _place(self) -> str:
        return f"Recompute, rule {self.rule}, tensor {self._saved}"

    def _reuse(self) -> Any:
        if self.users == 1:  # nothing is held for others
            return None
        with self._lock:
            made = self._made
            if made is None:
                return None
            whole, version = made
            self._uses += 1
            if self._uses % self.users and self._state.version(whole) == version:
                return whole
            self._made = self._lease = None
        return whole if self._state.version(whole) == version else None

    def _hold(self, whole: Any, *, may_write: bool) -> None:
        with self._lock:
            self._uses += 1
            if may_write or self._uses % self.users == 0:
                return
            if self._lease is None:
                self._lease = self._state.prefetcher.hold(self._saved.spec.nbytes)
            if self._lease is not None:
                self._made = whole, self._state.version(whole)


class RecomputedHandle(Asking):
    """What the graph holds in place of a tensor that is made again."""

    __slots__ = ("__weakref__", "content", "saved", "spec", "state")

    def __init__(self, state: SessionState, content: Recomputed, saved: Saved, spec: TensorSpec) -> None:
        self.state = state
        self.content = content
        self.saved = saved
        self.spec = spec

    def __call__(self) -> Any:
        """Return the tensor; see :meth:`Recomputed.restore`.

        Raises:
            SavedTensorModifiedError: it was modified in place since it was saved, as autograd refuses it.
        """
        self.state.was_asked = True
        self.state.ledger.unpacked()
        self.saved.check()
        return self.content.restore(self.spec)

    def peek(self) -> Any:
        """Return the tensor, to look at it and drop it."""
        return self.content.peek(self.spec)

    def asks(self) -> Iterator[Stashed]:
        """Give what its recipe needs of what is stored."""
        for each in self.content.inputs:
            if isinstance(each, Asking):
                yield from each.asks()

    @property
    def depth(self) -> int:
        """Operations that are run for it at most."""
        return self.content.depth

    is_exact = True
    """Recipes are only made of what comes back exactly."""
    is_made = True
    """Only what the graph has made is made again."""

    def add_user(self) -> None:
        """Count a recipe that will ask."""
        self.content.users += 1
