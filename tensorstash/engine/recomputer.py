"""Saved tensors that are made again: their recipes, and the proofs of these.

Whatever a recipe makes is compared whole with the tensor that was saved, each time, by a digest of all bits. There is
no exception for a recipe whose inputs were all saved and version-checked: its output may have been edited in place
after it was made, through ``.data`` or an alias that bumps no version, before it was saved or after.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Any, ClassVar
from weakref import WeakValueDictionary, ref

from tensorstash.abilities import Backend
from tensorstash.abilities.recipes import Leaf, Producers, Recipe, SupportsProducers
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.two_valued import MOST_VALUES, TwoValued
from tensorstash.engine.content import Content
from tensorstash.engine.handle import Handle, KeptHandle, SessionState, Stashed
from tensorstash.engine.ledger import Numbers
from tensorstash.engine.scope import Thread
from tensorstash.errors import ConfigError, StashError, TensorStashError, is_out_of_memory
from tensorstash.host.budget import Lease
from tensorstash.policies.plan import Rebuilding
from tensorstash.protocols import Codec
from tensorstash.registry import lookup, names
from tensorstash.spec import TensorSpec

_COPY = Recipe("copy", 0, (), 0)  # its only input, in fresh memory as whatever a recipe makes

_SMALL_BYTES = 2**16  # inputs of recipes up to this size may be copied

_REMEMBERED = 4096


@dataclass(eq=False, slots=True, weakref_slot=True)
class RecipePlace:
    """The output of one recipe, made again for all contents that need it. Thread-safe.

    It holds the handles that its recipe needs, and nothing else of the step: no tensor of the program, and no node of
    the graph. The output is held until everybody who is known to need it has asked, as far as the budget goes. Who
    may write into it, as functions of users may, gets one of its own.

    Args:
        kind: of tensors that are stored from now on if it comes out different.
        inputs: for each of the recipe's a handle that can be referred to weakly, or a copy.
        present: tensors that are there, and without which it cannot be made; those behind its inputs among them.
        depth: operations that are run for it at most, those of its inputs among them.
        name: the same for all places of one stretch of saves with an equal output.
    """

    recomputer: "Recomputer"
    recipe: Recipe
    kind: Hashable
    spec: TensorSpec
    inputs: Sequence[Any]
    present: Sequence[Any]
    depth: int
    name: Hashable
    users: int = 0
    _uses: int = 0
    _made: tuple[Any, int, Any] | None = None
    _lease: Lease | None = None
    _lock: Lock = field(default_factory=Lock)
    backend: Backend[Any] = field(init=False)
    producers: Producers[Any] = field(init=False)
    numbers: Numbers = field(init=False)

    tier: ClassVar[str] = "recipe"
    is_lossless: ClassVar[bool] = True
    transfers: ClassVar[None] = None

    def __post_init__(self) -> None:
        state, self.producers = self.recomputer.state, self.recomputer.producers
        self.backend, self.numbers = state.backend, state.ledger.recipes[self.recipe.rule]

    def add_user(self) -> None:
        """Count one more handle, or a recipe that needs it."""
        self.users += 1

    def load(self, content: "RecipeContent") -> Any:
        """Return the whole tensor of a content, after the comparison with the bits that were saved."""
        whole, digest = self._make(content) if self.users == 1 else self._shared(content)
        if type(digest) is not int or digest != content.digest:
            self.producers.require_equal(digest, content.digest, lambda: self._difference(content))
        return whole

    def peek(self) -> Any:
        """Return the same without being asked by backward, to look at it and drop it."""
        values = [each.tensor if isinstance(each, Leaf) else each.peek() for each in self.inputs]
        return self.producers.run(self.recipe, values, self.spec)

    def forward(self, source: Any, spec: TensorSpec, wanted: TensorSpec, *, may_give: bool) -> Any:
        """Return a part of a source that is still there, or of a copy; see :meth:`Place.forward`."""
        if not may_give:
            source = self.producers.run(_COPY, (source,), self.spec)
        return self.producers.part(source, wanted)

    def _shared(self, content: "RecipeContent") -> tuple[Any, Any]:
        """Return the output that is held for others too, and its digest, unless the operation may write to it."""
        may_write = self.recomputer.state.may_write()
        with self._lock:
            self._uses += 1
            is_last = self._uses % self.users == 0
            made = self._made
            is_intact = made is not None and self.recomputer.state.version(made[0]) == made[1]
            if is_last or not is_intact:
                self._made = self._lease = None
        if made is not None and is_intact and not may_write:
            return made[0], made[2]
        whole, digest = self._make(content)
        if not (is_last or may_write):
            with self._lock:
                if self._lease is None:
                    self._lease = self.recomputer.state.prefetcher.hold(self.spec.nbytes)
                if self._lease is not None:
                    self._made = whole, self.recomputer.state.version(whole), digest
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
            whole = self.producers.run(self.recipe, values, self.spec)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.recomputer.learn(self.kind, "came out different in backward")
            raise StashError(f"{self._label(content)}: {type(error).__name__}: {error}") from error
        digest = self.producers.digest(whole)
        self.recomputer.state.ledger.add(self.numbers, 0, 0, 0, 0.0, 1, perf_counter() - started)
        return whole, digest

    def _difference(self, content: "RecipeContent") -> StashError:
        self.recomputer.learn(self.kind, "came out different in backward")
        return StashError(
            f"{self._label(content)}: it came out different from the tensor that was saved: a tensor between the "
            f"inputs of the recipe and this one, or one of them, was edited without a record (under no_grad, through "
            f".data, .detach() or NumPy); tensors of this kind are stored from the next step on; to store all of them, "
            f"leave the rule out (Recompute(ops=...)), or edit with an operation that autograd records"
        )

    def _label(self, content: "RecipeContent") -> str:
        return f"Recompute, rule {self.recipe.rule}, tensor {content.spec}"


class RecipeContent(Content):
    """A whole tensor that a recipe has to make: itself while somebody may write to it, and a digest of it then.

    Where the framework does not tell who holds a memory, the digest is taken at once.
    """

    __slots__ = ("digest",)

    place: RecipePlace  # type: ignore[assignment]  # shared by contents that are made of the same
    is_recipe = True

    def __init__(self, place: RecipePlace, whole: Any, module: str) -> None:
        state, backend = place.recomputer.state, place.backend
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
        if self._version != self.place.backend.version(tensor):
            return False
        producers = self.place.producers
        return self.alias is not None or bool(self.digest == producers.digest(producers.whole(tensor)))

    def restore(self, spec: TensorSpec) -> Any:
        """Return a layout of the whole tensor, which is made again."""
        if self._error is not None or self._probe is not None:
            self.raise_failure()
        return self.place.producers.part(self.place.load(self), spec)

    def peek(self, spec: TensorSpec) -> Any:
        """Return the tensor to look at it and drop it."""
        whole = self.alias
        return self.place.producers.part(self.place.peek() if whole is None else whole, spec)


class Recomputer:
    """Asks the backend for a recipe of each saved tensor that is wanted made again, and trusts those that are proved.

    A kind of tensor is named by the operations of its recipe, the layout of their output, and the place where that is
    saved. It is proved by its first tensor. One difference, then or in any backward, or one error, and its tensors are
    stored from then on. The handles of all other tensors are noted, for other recipes may need them. Thread-safe.
    """

    def __init__(self, state: SessionState, thread: Thread) -> None:
        backend = state.backend
        if not isinstance(backend, SupportsProducers):
            raise ConfigError(f"recompute: the backend {backend.name} does not tell the producer of a tensor")
        plug_ins = [lookup("recipes", name) for name in names("recipes")]
        rules = [each.rule for each in plug_ins if each.framework == backend.name]  # type: ignore[attr-defined]

        def is_ours(handle: object) -> bool:
            owner = handle[0] if type(handle) is tuple and len(handle) == 3 else getattr(handle, "state", None)
            return owner is state

        self.state, self._thread = state, thread
        self.producers: Producers[Any] = backend.producers(is_ours, rules)
        if self.producers.lacks:
            state.adviser.say(f"recompute: nothing is made again: {self.producers.lacks}")
        self._known: dict[Hashable, str | None] = {}
        """Why a kind of tensors is not made again; None for those that are."""
        self._saved: set[ref[RecipeContent]] = set()
        """Of the stretch of saves that began when backward had last asked for something."""
        self._places: WeakValueDictionary[Hashable, RecipePlace] = WeakValueDictionary()
        """Of the same, by their inputs."""

    def begin_stretch(self) -> None:
        """Forget contents saved before backward has asked for one: equal ones may be rewritten."""
        self._saved, self._places = set(), WeakValueDictionary()
        self.producers.forget()

    def settle(self) -> None:
        """Make contents saved so far immune to later changes."""
        known = self._saved
        self.begin_stretch()  # a captured content comes back as it was, whatever is written to it from now on
        for content in filter(None, [each() for each in list(known)]):
            content.settle()

    def handle(
        self, tensor: Any, spec: TensorSpec, wanted: Rebuilding, pack: Callable[[Any], Handle]
    ) -> tuple[Stashed, RecipeContent] | None:
        """Return the handle of a tensor that is made again, perhaps of a smaller one, and its content; else None."""
        started, producers = perf_counter(), self.producers
        known = producers.noted(tensor, spec)
        if known is None:
            content: Any = self._new(tensor, spec, wanted, pack)
            if content is None:
                return None
        else:
            content = known.content if type(known) is Stashed else None
            if not isinstance(content, RecipeContent) or not content.is_still(tensor):  # what is stored is stored once
                return None
            if not producers.are_there(content.place.present):
                return None
            content.add_user()
        self.state.ledger.add(content.place.numbers, 1, spec.nbytes, 0, perf_counter() - started)
        return Stashed(self.state, content, None, spec), content

    def mask_codecs(self, tensor: Any, spec: TensorSpec, wanted: Rebuilding) -> tuple[Codec, ...]:
        """Return the codec that brings a mask to one bit per element; empty if the tensor is none.

        A result of the graph is none. Floating-point numbers are looked at on the host alone.
        """
        backend = self.state.backend
        if backend.producer(tensor) or not (wanted.ops is None or "masks" in wanted.ops):
            return ()
        if spec.kind == "bool":
            return (PackBits(),)
        may_look = spec.kind == "float" and spec.device == "cpu" and spec.nbytes > 0
        sample, size = self.producers.sample(tensor) if may_look else None, spec.itemsize
        if not isinstance(sample, bytes):
            return ()
        values = {sample[at : at + size] for at in range(0, len(sample), size)}
        return (TwoValued(),) if len(values) <= MOST_VALUES else ()  # nearly all others show a third

    def _new(
        self, tensor: Any, spec: TensorSpec, wanted: Rebuilding, pack: Callable[[Any], Handle]
    ) -> RecipeContent | None:
        """Return the content of a tensor, if there is a recipe for it that may be run and is proved."""
        producers, state, module = self.producers, self.state, self._thread.module
        recipe = producers.recipe(tensor, spec, wanted.ops, wanted.depth)
        if isinstance(recipe, str):
            may_narrow = wanted.ops is None or "narrow" in wanted.ops
            narrowed = producers.narrowed(tensor, spec) if may_narrow else None
            if narrowed is None:
                next(state.ledger.without_recipe[recipe][spec.nbytes])
                return None
            # It goes the way of tensors without a recipe, and nobody has it but its handle.
            recipe = narrowed[0]._replace(inputs=(pack(narrowed[1]),))
        whole = producers.whole(tensor)
        if whole is not tensor:
            spec = state.backend.spec(whole)
        kind = recipe.operation, recipe.settings, spec, state.version(tensor), module
        place = self._place(recipe, spec, kind, wanted.depth)
        why = place if isinstance(place, str) else self._known.get(kind, "")  # empty: not proved yet
        if not isinstance(place, str) and why == "":
            why = _fault(place, whole)
            self.learn(kind, why)
        if isinstance(place, str) or why is not None:
            next(state.ledger.refused[f"{recipe.rule}: {why}"][spec.nbytes])
            return None
        same = self._places.setdefault(place.name, place)
        for each in place.inputs if same is place else ():
            if type(each) is Stashed:
                each.content.add_user()
        content = RecipeContent(same, whole, module)
        self._saved.add(ref(content, self._saved.discard))
        return content

    def _place(self, recipe: Recipe, spec: TensorSpec, kind: Hashable, most_depth: int) -> RecipePlace | str:
        """Return the place of a recipe, or why it must not be run.

        Small inputs that the program may change before backward without a refusal are copied. Those are parameters, for
        which autograd has not asked or which other processes may share, and memory that the graph has not made.
        """
        producers, version = self.producers, self.state.version
        inputs, present = list[Any](), list[Any]()
        names = list[Hashable]()  # which tell an input from all others that live while something is made of it
        depth, is_exact, is_safe = recipe.depth, True, True
        for place, each in enumerate(recipe.inputs):
            handle = KeptHandle(each, is_made=False) if type(each) is tuple else each
            name: Hashable = id(each)
            if type(handle) is Stashed:
                is_exact = is_exact and handle.is_exact
                if isinstance(handle.content, RecipeContent):
                    depth = max(depth, recipe.depth + handle.content.place.depth)
                    present += handle.content.place.present
            else:
                tensor, is_leaf = handle.tensor, type(handle) is Leaf
                name = id(tensor), version(tensor)
                if is_leaf or not (handle.is_made or place in recipe.own):
                    copy = producers.copied(tensor, min(_SMALL_BYTES, spec.nbytes // 2))
                    if copy is None:
                        is_safe = is_safe and not is_leaf
                    else:
                        handle, digest = Leaf(copy), producers.digest(copy)
                        name = name, digest if type(digest) is int else None
                present.append(handle.tensor)
            inputs.append(handle)
            names.append(name)
        if depth > most_depth:
            return "deeper than depth"
        if not is_exact:
            return "made of tensors that come back with a loss"
        if not is_safe:
            return "made of a large parameter that autograd has not saved, and so may change before backward"
        if not producers.are_there(present):
            return "made of a parameter that is freed meanwhile, or shared with other processes"
        name = recipe.operation, recipe.settings, spec, *names
        return RecipePlace(self, recipe, kind, spec, inputs, present, depth, name)

    def learn(self, kind: Hashable, why: str | None) -> None:
        """Note why a kind of tensors is not made again from now on; None if it is."""
        if len(self._known) >= _REMEMBERED and kind not in self._known:
            self._known.clear()
        self._known[kind] = why


def _fault(place: RecipePlace, whole: Any) -> str | None:
    """Make a tensor again that is still there, and return the fault of the result; None if there is none."""
    producers = place.producers
    try:
        is_same = bool(producers.digest(place.peek()) == producers.digest(whole))  # may wait for a device
    except Exception as error:  # the tensor is stored, and the statistics say why
        return f"raised {type(error).__name__}: {error}"
    return None if is_same else "came out different"
