"""A saved content that is not stored: its recipe, and the tensor that this makes when backward asks.

Whatever a recipe makes is compared whole with the tensor that was saved, each time, by a digest of all bits. There is
no exception for a recipe whose inputs were all saved and version-checked: its output may have been edited in place
after it was made, through ``.data`` or an alias that bumps no version, before it was saved or after.
"""

import threading
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any

from tensorstash.abilities.recipes import Leaf, Producers, Recipe
from tensorstash.engine.state import SessionState
from tensorstash.errors import SavedTensorModifiedError, StashError, TensorStashError, modified
from tensorstash.host.budget import Lease
from tensorstash.spec import TensorSpec

_COPY = Recipe("copy", 0, (), 0)
"""Returns its only input, in fresh memory as whatever a recipe makes."""


class Saved:
    """The tensor that a recipe has to make, whole: itself while somebody may write to it, and a digest of it then.

    Where the framework tells who holds a memory, it waits among :class:`~tensorstash.engine.residency.Residency`
    until nobody else does, as payloads do: until then the memory itself is what backward reads without hooks, and
    afterwards nobody can change it. Else the digest is taken at once.

    Args:
        state: of the session.
        producers: looks at the bits.
        whole: the tensor, of a graph or not.
        spec: its layout.
        module: that it was saved in; empty where that is not known.
        token: names its memory.
    """

    __slots__ = (
        "__weakref__",
        "_is_new",
        "_modified",
        "_module",
        "_probe",
        "_producers",
        "_state",
        "alias",
        "digest",
        "spec",
        "token",
        "users",
        "version",
    )

    is_recipe = True
    """It is made again, and not captured."""
    reading = None
    """Nothing depends on who reads it, as for payloads with a loss."""

    is_streamed = may_stay = False
    """A budget leaves no room to what a recipe makes again."""

    def __init__(
        self, state: SessionState, producers: Producers[Any], whole: Any, spec: TensorSpec, module: str, token: Hashable
    ) -> None:
        backend = state.backend
        self._state, self._producers, self._module = state, producers, module
        self.spec, self.version, self.users = spec, state.version(whole), 0
        self.token = token
        """Names the memory among those that others may hold."""
        self._is_new = True
        self.digest: Any = None
        self._modified: SavedTensorModifiedError | None = None
        self.alias: Any = backend.detached(whole)
        """The tensor, as long as somebody may write to it."""
        self._probe: Any = None
        if state.residency is None:
            self._probe = backend.version_probe(whole)
            self.capture()

    def first_time(self) -> bool:
        """Whether this was not asked before: then it becomes resident."""
        is_new, self._is_new = self._is_new, False
        return is_new

    def is_owned(self) -> None:
        """Nobody else holds the memory."""

    def add_user(self) -> None:
        """Count one more handle, or a recipe that will ask."""
        self.users += 1

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return self.spec.nbytes

    def capture(self) -> None:
        """Take the digest, and let go of the memory; from now on it is immune to later changes."""
        alias = self.alias
        if alias is None:
            return
        self._modified = self._modification(alias)
        if self._modified is None:
            self.digest = self._producers.digest(alias)
        self.alias = None

    def check(self) -> None:
        """Raise SavedTensorModifiedError if it was modified in place since it was saved."""
        watched = self._probe if self.alias is None else self.alias
        error = self._modified or (None if watched is None else self._modification(watched))
        if error is not None:
            raise error

    def settle(self) -> None:
        """Make it immune to later changes of the tensor that was saved, unless there were any."""
        if self._probe is not None and self._modification(self._probe) is None:
            self._probe = None

    def is_still(self, tensor: Any) -> bool:
        """Whether a tensor of the same node of the graph holds the same bits; its memory may be the same, or not."""
        if self.version != self._state.version(tensor):
            return False
        return self.alias is not None or bool(self.digest == self._producers.digest(self._producers.whole(tensor)))

    def _modification(self, watched: Any) -> SavedTensorModifiedError | None:
        now = self._state.version(watched)
        return None if now == self.version else modified(str(self), now, self.version)

    def __str__(self) -> str:
        return str(self.spec.inside(self._module))


class Recomputed:
    """The output of one recipe, made again for all handles that need it. Thread-safe.

    It holds the handles that its recipe needs, and nothing else of the step: no tensor of the program, and no node of
    the graph. The output is held until everybody who is known to need it has asked, as far as the budget goes. Who
    may write into it, as functions of users may, gets one of its own.

    Args:
        state: of the session.
        producers: runs the recipe.
        recipe: how it is made.
        inputs: for each of the recipe's a handle that can be referred to weakly, or a copy.
        present: tensors that are there, and without which it cannot be made.
        spec: of the output.
        depth: operations that are run for it at most, those of its inputs among them.
        refuse: stores tensors of this kind from now on.
    """

    __slots__ = (
        "__weakref__",
        "_lease",
        "_lock",
        "_made",
        "_producers",
        "_recipe",
        "_refuse",
        "_spec",
        "_state",
        "_uses",
        "depth",
        "inputs",
        "present",
        "rule",
        "seconds",
        "users",
    )

    def __init__(
        self,
        state: SessionState,
        producers: Producers[Any],
        recipe: Recipe,
        inputs: tuple[Any, ...],
        present: list[Any],
        spec: TensorSpec,
        depth: int,
        refuse: Callable[[], None],
    ) -> None:
        self._state = state
        self._producers = producers
        self._recipe = recipe
        self.inputs = inputs
        """Handles of its inputs, and copies."""
        self.present = present
        """Tensors without which it cannot be made, those behind its inputs among them."""
        self.rule = recipe.rule
        """The name of its recipe."""
        self._spec = spec
        self.depth = depth
        self._refuse = refuse
        self.users = 0
        """Handles of it, and recipes that need it."""
        self._uses = 0
        self.seconds: float | None = None
        """That its recipe took when it was last made, without what that is made of."""
        self._made: tuple[Any, int, Any] | None = None
        self._lease: Lease | None = None
        self._lock = threading.Lock()

    def add_user(self) -> None:
        """Count one more handle, or a recipe that needs it."""
        self.users += 1

    def restore(self, saved: Saved, spec: TensorSpec) -> Any:
        """Return a tensor that was saved, with a layout of its memory: in that memory where it still is.

        Raises:
            SavedTensorModifiedError: an input was modified in place since it was saved.
            StashError: the recipe raised, or made another tensor than was saved.
        """
        alias, state = saved.alias, self._state
        if alias is None:
            return self._producers.part(self._output(saved), spec)
        state.ledger.forwarded()
        assert state.residency is not None
        if not state.residency.may_give(saved):
            alias = self._producers.run(_COPY, (alias,), self._spec)
        return self._producers.part(alias, spec)

    def _output(self, saved: Saved) -> Any:
        may_write = self.users > 1 and self._state.may_write()
        reused = self._reuse()
        if reused is None:
            whole, digest = self._make(saved)
            if self.users > 1:  # or nobody else will ask
                self._hold(whole, digest, may_write=may_write)
        else:
            whole, digest = self._make(saved) if may_write else reused  # never into what others have
        self._producers.require_equal(digest, saved.digest, lambda: self._difference(saved))
        return whole

    def peek(self, saved: Saved, spec: TensorSpec) -> Any:
        """Return the same without being asked by backward, to look at it and drop it."""
        whole = saved.alias
        if whole is None:
            values = [each.tensor if isinstance(each, Leaf) else each.peek() for each in self.inputs]
            whole = self._producers.run(self._recipe, values, self._spec)
        return self._producers.part(whole, spec)

    def _make(self, saved: Saved) -> tuple[Any, Any]:
        values = []
        for each in self.inputs:
            if type(each) is Leaf:
                values.append(each.tensor)
                continue
            try:
                values.append(each())
            except TensorStashError as error:
                error.add_note(f"needed for {self._place(saved)}")
                raise
        started = perf_counter()
        try:
            whole = self._producers.run(self._recipe, values, self._spec)
        except Exception as error:
            self._refuse()
            raise StashError(f"{self._place(saved)}: {type(error).__name__}: {error}") from error
        digest = self._producers.digest(whole)
        self.seconds = perf_counter() - started
        self._state.ledger.made_again(self.rule, self.seconds)
        return whole, digest

    def _difference(self, saved: Saved) -> StashError:
        self._refuse()
        return StashError(
            f"{self._place(saved)}: it came out different from the tensor that was saved: a tensor between the inputs "
            f"of the recipe and this one, or one of them, was edited without a record (under no_grad, through .data, "
            f".detach() or NumPy); tensors of this kind are stored from the next step on; to store all of them, leave "
            f"the rule out (Recompute(ops=...)), or edit with an operation that autograd records"
        )

    def _place(self, saved: Saved) -> str:
        return f"Recompute, rule {self.rule}, tensor {saved}"

    def _reuse(self) -> tuple[Any, Any] | None:
        if self.users == 1:  # nothing is held for others
            return None
        with self._lock:
            made = self._made
            if made is None:
                return None
            whole, version, digest = made
            self._uses += 1
            is_intact = self._state.version(whole) == version
            if not (self._uses % self.users and is_intact):
                self._made = self._lease = None
        return (whole, digest) if is_intact else None

    def _hold(self, whole: Any, digest: Any, *, may_write: bool) -> None:
        with self._lock:
            self._uses += 1
            if may_write or self._uses % self.users == 0:
                return
            if self._lease is None:
                self._lease = self._state.prefetcher.hold(self._spec.nbytes)
            if self._lease is not None:
                self._made = whole, self._state.version(whole), digest


class RecomputedHandle:
    """The handle of a tensor that is recomputed, in the graph."""

    __slots__ = ("__weakref__", "content", "saved", "spec", "state")

    def __init__(self, state: SessionState, content: Recomputed, saved: Saved, spec: TensorSpec) -> None:
        self.state = state
        self.content = content
        self.saved = saved
        self.spec = spec

    def __call__(self) -> Any:
        """Return the tensor: its own memory where somebody holds that, else see :meth:`Recomputed.restore`.

        Raises:
            SavedTensorModifiedError: it was modified in place since it was saved, as autograd refuses it.
        """
        self.state.asked(self.spec.nbytes)
        self.saved.check()
        return self.content.restore(self.saved, self.spec)

    def peek(self) -> Any:
        """Return the tensor, to look at it and drop it."""
        return self.content.peek(self.saved, self.spec)

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
        self.content.add_user()
        self.saved.add_user()
