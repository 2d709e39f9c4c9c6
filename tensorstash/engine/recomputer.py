"""Finds out which saved tensors can be made again, and makes the handles of those."""

from collections.abc import Callable, Hashable
from functools import partial
from time import perf_counter
from typing import Any
from weakref import ref

from tensorstash.abilities.recipes import Leaf, Producers, Recipe, SupportsProducers
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.two_valued import MOST_VALUES, TwoValued
from tensorstash.engine.handle import Handle, KeptHandle, SessionState, Stashed
from tensorstash.engine.recipe_place import RecipeContent, RecipePlace
from tensorstash.engine.scope import Thread
from tensorstash.errors import ConfigError
from tensorstash.policies.plan import Rebuilding
from tensorstash.protocols import Codec
from tensorstash.registry import lookup, names
from tensorstash.spec import TensorSpec

NewRecomputer = Callable[[SessionState, Thread], "Recomputer"]
"""Makes a recomputer for one session."""

_SMALL_BYTES = 2**16
"""Inputs of recipes up to this size may be copied."""

_REMEMBERED = 4096

_UNPROVED = "not proved yet"


class Recomputer:
    """Asks the backend for a recipe of each saved tensor that is wanted made again, and trusts those that are proved.

    A kind of tensor is named by the operations of its recipe, the layout of their output, and the place where that is
    saved. It is proved by its first tensor. One difference, then or in any backward, or one error, and its tensors are
    stored from then on. The handles of all other tensors are noted, for other recipes may need them. Thread-safe.

    Args:
        state: of the session.
        thread: where a thread is, within the session.

    Raises:
        ConfigError: the backend cannot tell the producer of a tensor.
    """

    def __init__(self, state: SessionState, thread: Thread) -> None:
        backend = state.backend
        if not isinstance(backend, SupportsProducers):
            raise ConfigError(f"recompute: the backend {backend.name} does not tell the producer of a tensor")
        plug_ins = [lookup("recipes", name) for name in names("recipes")]
        rules = [each.rule for each in plug_ins if each.framework == backend.name]  # type: ignore[attr-defined]

        def is_ours(handle: object) -> bool:
            if type(handle) is tuple:
                return len(handle) == 3 and handle[0] is state
            return getattr(handle, "state", None) is state

        self._state = state
        self._thread = thread
        self.producers: Producers[Any] = backend.producers(is_ours, rules)
        """Remember which handle stands for which tensor."""
        if self.producers.lacks:
            state.adviser.say(f"recompute: nothing is made again: {self.producers.lacks}")
        self._known: dict[Hashable, str | None] = {}
        """Why a kind of tensors is not made again; None for those that are."""
        self._saved: set[ref[RecipeContent]] = set()
        """Of the stretch of saves that began when backward had last asked for something."""
        self._places: dict[Hashable, ref[RecipePlace]] = {}
        """Of the same, by their inputs."""

    def begin_stretch(self) -> None:
        """Forget contents saved before backward has asked for one: equal ones may be rewritten."""
        self._saved, self._places = set(), {}
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
        """Return the handle of a tensor that is made again, and its content; None if it cannot be.

        Args:
            tensor: that autograd saves.
            spec: of it.
            wanted: which tensors are made again.
            pack: returns the handle of a smaller tensor that it may be made of.
        """
        started = perf_counter()
        producers = self.producers
        known = producers.noted(tensor, spec)
        if known is None:
            content = self._new(tensor, spec, wanted, pack)
            if content is None:
                return None
        else:
            same = known.content if type(known) is Stashed else None
            if not isinstance(same, RecipeContent):  # a stored content is stored once
                return None
            content = same
            if not content.is_still(tensor) or not producers.are_there(content.place.present):
                return None
            content.add_user()
        self._state.ledger.add(content.place.numbers, 1, spec.nbytes, 0, perf_counter() - started)
        return Stashed(self._state, content, None, spec), content

    def mask_codecs(self, tensor: Any, spec: TensorSpec, wanted: Rebuilding) -> tuple[Codec, ...]:
        """Return the codec that brings a mask to one bit per element; empty if the tensor is none.

        A result of the graph is none. Floating-point numbers are looked at on the host alone.
        """
        backend = self._state.backend
        if backend.producer(tensor) or not (wanted.ops is None or "masks" in wanted.ops):
            return ()
        if spec.kind == "bool":
            return (PackBits(),)
        if spec.kind != "float" or spec.device != "cpu" or not spec.nbytes:
            return ()
        sample, size = self.producers.sample(tensor), spec.itemsize
        if not isinstance(sample, bytes):
            return ()
        values = {sample[at : at + size] for at in range(0, len(sample), size)}
        return (TwoValued(),) if len(values) <= MOST_VALUES else ()  # nearly all others show a third

    def _new(
        self, tensor: Any, spec: TensorSpec, wanted: Rebuilding, pack: Callable[[Any], Handle]
    ) -> RecipeContent | None:
        """Return the content of a tensor, if there is a recipe for it that may be run and is proved."""
        producers, state, module = self.producers, self._state, self._thread.module
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
        if isinstance(place, str):
            why: str | None = place
        else:
            why = self._known.get(kind, _UNPROVED)
            if why is _UNPROVED:
                why = _fault(place, whole)
                self._learn(kind, why)
        if isinstance(place, str) or why is not None:
            next(state.ledger.refused[f"{recipe.rule}: {why}"][spec.nbytes])
            return None
        if len(self._places) >= _REMEMBERED:
            self._places.clear()
        mine = ref(place)
        same = self._places.setdefault(place.name, mine)()
        if same is None:
            self._places[place.name], same = mine, place
        if same is place:
            for each in place.inputs:
                if type(each) is Stashed:
                    each.content.add_user()
        place = same
        content = RecipeContent(place, whole, module)
        self._saved.add(ref(content, self._saved.discard))
        return content

    def _place(self, recipe: Recipe, spec: TensorSpec, kind: Hashable, most_depth: int) -> RecipePlace | str:
        """Return the place of a recipe, or why it must not be run.

        Small inputs that the program may change before backward without a refusal are copied. Those are parameters, for
        which autograd has not asked or which other processes may share, and memory that the graph has not made.

        Args:
            recipe: of a tensor.
            spec: of that tensor, than which copies are smaller.
            kind: of that tensor.
            most_depth: operations that may be run for it.
        """
        producers, version = self.producers, self._state.version
        inputs: list[Any] = []
        names: list[Hashable] = []
        """For each input one that tells it from all others that live while something is made of it."""
        present: list[Any] = []
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
        refuse = partial(self._learn, kind, "came out different in backward")
        return RecipePlace(self._state, producers, recipe, inputs, present, spec, depth, name, refuse)

    def _learn(self, kind: Hashable, why: str | None) -> None:
        if len(self._known) >= _REMEMBERED and kind not in self._known:
            self._known.clear()
        self._known[kind] = why


def _fault(place: RecipePlace, whole: Any) -> str | None:
    """Make a tensor again that is still there, and return the fault of the result; None if there is none."""
    producers = place.producers
    before = producers.random_state(whole)
    why = None
    try:
        if not producers.are_equal(place.peek(), whole):
            why = "came out different"
    except Exception as error:  # the tensor is stored, and the statistics say why
        why = f"raised {type(error).__name__}: {error}"
    if producers.random_state(whole) != before:
        producers.set_random_state(whole, before)
        why = "drew random numbers"
    return why
