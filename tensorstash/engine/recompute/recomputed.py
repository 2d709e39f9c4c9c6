"""A saved content that is not stored: its recipe, and what it makes of it when backward asks."""

import threading
from collections.abc import Hashable, Iterable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

from tensorstash.abilities.recipes import Leaf, Producers, Recipe
from tensorstash.engine.handle import Asking, Stashed
from tensorstash.engine.recompute.inputs import KeptHandle
from tensorstash.engine.state import SessionState
from tensorstash.errors import StashError, TensorStashError, modified
from tensorstash.host.arrays import as_bytes
from tensorstash.host.budget import Lease
from tensorstash.spec import TensorSpec
from tensorstash.stores.disk.checksum import checksum


class Saved(NamedTuple):
    """What a whole tensor was when it was saved.

    Args:
        spec: its layout.
        module: that it was saved in; empty where that is not known.
        version: its in-place version.
        probe: what shares that version, without the memory.
        sample: a few of its elements; None where they are not looked at.
    """

    spec: TensorSpec
    module: str
    version: int
    probe: Any
    sample: Hashable

    def __str__(self) -> str:
        return str(self.spec.inside(self.module))


class Recomputed:
    """One storage content, made again for all handles that need it. Thread-safe.

    It holds the handles that its recipe needs, and nothing else of the step: no tensor of the program, and no node of
    the graph. What was made is held until everybody who is known to need it has asked, as far as the budget goes.

    A tensor that was modified in place since it was saved is refused, as autograd refuses it; so are a recipe's inputs,
    which check that themselves, and parameters. What does not come with a new version shows in a few elements that are
    compared each time; in a checksum, where the graph has not made an input and others may write to it.

    Args:
        state: of the session.
        producers: runs the recipe.
        recipe: how it is made.
        inputs: what of: for each of the recipe's a handle that can be referred to weakly, or a leaf.
        saved: what it was.
        depth: operations that are run for it at most, those of its inputs among them.
    """

    __slots__ = (
        "__weakref__",
        "_is_refused_if_modified",
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
        "seconds",
        "users",
    )

    def __init__(
        self,
        state: SessionState,
        producers: Producers[Any],
        recipe: Recipe,
        inputs: tuple[Any, ...],
        saved: Saved,
        depth: int,
    ) -> None:
        self._state = state
        self._producers = producers
        self._recipe = recipe
        self.inputs = inputs
        """Handles of what it is made of, and leaves."""
        self._saved = saved
        self._marks = [
            (state.version(each.tensor), producers.sample(each.tensor)) if type(each) is Leaf else self._digest(each)
            for each in inputs
        ]
        self._is_refused_if_modified = True
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
    def version(self) -> int:
        """The in-place version that the tensor had."""
        return self._saved.version

    @property
    def is_prefetched(self) -> bool:
        """Whether what was made is held, and counted among what is read ahead."""
        return self._made is not None

    @property
    def rule(self) -> str:
        """What its recipe is called."""
        return self._recipe.rule

    def is_there(self) -> bool:
        """Whether all that it is made of has its memory now, as far as that is not stored."""
        return are_there(self._producers, self.inputs)

    def restore(self, spec: TensorSpec) -> Any:
        """Return the tensor with a layout of the same memory.

        Raises:
            SavedTensorModifiedError: it, or what it is made of, was modified in place since it was saved.
            StashError: the recipe raised, or made something else than was saved.
        """
        saved = self._saved
        if self._is_refused_if_modified:
            version = self._state.version(saved.probe)
            if version != saved.version:
                raise modified(str(saved), version, saved.version)
        whole = self._reuse()
        if whole is None:
            whole = self._make()
            self._hold(whole)
        return self._producers.part(whole, spec)

    def settle(self) -> None:
        """Make it immune to later changes of the tensor that was saved, unless there were any."""
        if self._state.version(self._saved.probe) == self._saved.version:
            self._is_refused_if_modified = False

    def peek(self, spec: TensorSpec) -> Any:
        """Return the same without being asked by backward, to look at it and drop it."""
        values = [each.tensor if isinstance(each, Leaf) else each.peek() for each in self.inputs]
        return self._producers.part(self._producers.run(self._recipe, values, self._saved.spec), spec)

    def _make(self) -> Any:
        recipe, saved = self._recipe, self._saved
        values = [self._value(each, place) for place, each in enumerate(self.inputs)]
        started = perf_counter()
        try:
            whole = self._producers.run(recipe, values, saved.spec)
        except Exception as error:
            raise StashError(f"{self._place()}: {type(error).__name__}: {error}") from error
        if saved.sample is not None and self._producers.sample(whole) != saved.sample:
            raise StashError(
                f"{self._place()}: it came out different from what was saved: the tensor, or what it is made of, was "
                f"written to without a new version; leave the rule out (Recompute(ops=...)), or store this tensor"
            )
        self.seconds = perf_counter() - started
        self._state.ledger.made_again(recipe.rule, self.seconds)
        return whole

    def _digest(self, needed: Any) -> Hashable:
        """Return a checksum of an input that others than the graph may write to unseen; None for all else."""
        if isinstance(needed, RecomputedHandle) or needed.is_made:
            return None
        if isinstance(needed, Stashed):
            held = self._state.held
            source = needed.payload.alias if held is not None and held.holds(needed.payload) else None
        else:
            source = needed.tensor
        return None if source is None else self._checksum(source)

    def _checksum(self, tensor: Any) -> int | None:
        content = self._producers.content(tensor)
        return None if content is None else checksum(as_bytes(content))

    def _value(self, needed: Any, place: int) -> Any:
        known: Any = self._marks[place]
        if type(needed) is not Leaf:
            try:
                tensor = needed()
            except TensorStashError as error:
                error.add_note(f"needed for {self._place()}")
                raise
            if known is not None and self._checksum(tensor) != known:
                raise StashError(
                    f"{self._place()}: {self._state.backend.describe(tensor)} that it is made of, which the graph has "
                    f"not made, was written to without a new version between forward and backward; run backward "
                    f"first, write to another tensor, or leave the rule out (Recompute(ops=...))"
                )
            return tensor
        assert known is not None, "a leaf that was not looked at"
        version, sample = self._state.version(needed.tensor), self._producers.sample(needed.tensor)
        if version != known[0]:
            raise modified(f"{self._state.backend.describe(needed.tensor)}, for {self._place()}", version, known[0])
        if sample != known[1]:
            raise StashError(
                f"{self._place()}: the parameter {self._state.backend.describe(needed.tensor)} that it is made of was "
                f"changed, or freed, between forward and backward; run backward first, or leave the rule out "
                f"(Recompute(ops=...))"
            )
        return needed.tensor

    def _place(self) -> str:
        return f"Recompute, rule {self._recipe.rule}, tensor {self._saved}"

    def _reuse(self) -> Any:
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

    def _hold(self, whole: Any) -> None:
        with self._lock:
            self._uses += 1
            if self._uses % self.users == 0:
                return
            if self._lease is None:
                self._lease = self._state.prefetcher.budget.try_acquire(self._saved.spec.nbytes)
            if self._lease is not None:
                self._made = whole, self._state.version(whole)


def are_there(producers: Producers[Any], inputs: Iterable[Any]) -> bool:
    """Return whether inputs of a recipe have their memory now, as far as they are not stored.

    An operation outside of a module whose parameters are sharded may save what the module returns. Its backward comes
    before that of the module, and so before the parameters are gathered again: then nothing can be made of them.

    Args:
        producers: of the backend.
        inputs: handles and leaves.
    """
    for each in inputs:
        if isinstance(each, RecomputedHandle):
            if not each.content.is_there():
                return False
        elif isinstance(each, Leaf | KeptHandle) and not producers.is_there(each.tensor):
            return False
    return True


class RecomputedHandle(Asking):
    """What the graph holds in place of a tensor that is made again."""

    __slots__ = ("__weakref__", "content", "spec", "state")

    def __init__(self, state: SessionState, content: Recomputed, spec: TensorSpec) -> None:
        self.state = state
        self.content = content
        self.spec = spec

    def __call__(self) -> Any:
        """Return the tensor; see :meth:`Recomputed.restore`."""
        self.state.was_asked = True
        self.state.ledger.unpacked()
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

    def add_user(self) -> None:
        """Count a recipe that will ask."""
        self.content.users += 1
