"""Finds out which saved tensors can be made again, and makes the handles of those."""

from collections.abc import Callable, Hashable
from functools import partial
from time import perf_counter
from typing import Any
from weakref import ref

from tensorstash.abilities.recipes import Leaf, Producers, Recipe, SupportsProducers
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.two_valued import MOST_VALUES, TwoValued
from tensorstash.engine.handle import Handle, Stashed
from tensorstash.engine.recompute.inputs import AS_THEY_ARE, KeptHandle, kept_in
from tensorstash.engine.recompute.proofs import Proofs
from tensorstash.engine.recompute.recomputed import Recomputed, RecomputedHandle, Saved
from tensorstash.engine.scope import Thread
from tensorstash.engine.state import SessionState
from tensorstash.errors import ConfigError
from tensorstash.policies.plan import Rebuilding
from tensorstash.protocols import Codec
from tensorstash.registry import lookup, names
from tensorstash.spec import TensorSpec

NewRecomputer = Callable[[SessionState, Thread], "Recomputer"]
"""Makes a recomputer for one session."""

_SMALL_BYTES = 2**16
"""Inputs of recipes up to this size may be copied."""

_READY = frozenset((KeptHandle, Stashed, RecomputedHandle, Leaf))
"""What recipes refer to as it is."""

_REMEMBERED = 4096


class Recomputer:
    """Asks the backend for a recipe of each saved tensor that is wanted made again, and trusts those that are proved.

    The handles of all others are noted, for they may be what other recipes need.

    Args:
        state: of the session.
        thread: where a thread is, within the session.

    Raises:
        ConfigError: the backend cannot tell what made a tensor.
    """

    def __init__(self, state: SessionState, thread: Thread) -> None:
        backend = state.backend
        if not isinstance(backend, SupportsProducers):
            raise ConfigError(f"recompute: the backend {backend.name} does not tell what made a tensor")
        plug_ins = [lookup("recipes", name) for name in names("recipes")]
        rules = [each.rule for each in plug_ins if each.framework == backend.name]  # type: ignore[attr-defined]

        def is_ours(handle: object) -> bool:
            if type(handle) is tuple:
                return len(handle) == 3 and handle[0] is state
            return getattr(handle, "state", None) is state

        self._state = state
        self._thread = thread
        self._producers: Producers[Any] = backend.producers(is_ours, rules)
        if self._producers.lacks:
            state.adviser.say(f"recompute: nothing is made again: {self._producers.lacks}")
        self._proofs = Proofs(state.ledger)
        self._saved: set[ref[Saved]] = set()
        """Of the stretch of saves that began when backward had last asked for something."""
        self._contents: dict[Hashable, ref[Recomputed]] = {}
        """Of the same, by what they are made of."""

    def begin_stretch(self) -> None:
        """Forget what was saved before backward has asked for something: what is the same now may be rewritten."""
        self._saved, self._contents = set(), {}
        self._producers.forget()

    def settle(self) -> None:
        """Make what was saved so far immune to later changes."""
        self._producers.forget()  # what is captured comes back as it was, whatever is written to it from now on
        known, self._saved, self._contents = self._saved, set(), {}
        for saved in filter(None, [each() for each in list(known)]):
            saved.settle()

    def handle(
        self, tensor: Any, spec: TensorSpec, wanted: Rebuilding, pack: Callable[[Any], Handle]
    ) -> RecomputedHandle | None:
        """Return the handle of a tensor that is made again; None if it cannot be.

        Args:
            tensor: that autograd saves.
            spec: of it.
            wanted: which tensors are made again.
            pack: returns the handle of a smaller tensor that it may be made of.
        """
        started = perf_counter()
        producers = self._producers
        known = producers.noted(tensor, spec)
        if known is None:
            recipe = producers.recipe(tensor, spec, wanted.ops, wanted.depth)
            if isinstance(recipe, str):
                found = self._narrowed(tensor, spec, wanted, pack, recipe)
            else:
                inputs = tuple([each if type(each) in _READY else _referable(each) for each in recipe.inputs])
                for place in recipe.own:
                    inputs[place].is_from(recipe.rule)
                found = self._proved(tensor, spec, recipe, inputs, wanted)
            if found is None:
                return None
            content, saved = found
        elif isinstance(known, RecomputedHandle):
            content, saved = known.content, known.saved
            if not saved.is_still(tensor) or not producers.are_there(content.present):
                return None
        else:  # what is stored already is stored once
            return None
        self._state.ledger.recomputed(content.rule, spec.nbytes, perf_counter() - started)
        handle = RecomputedHandle(self._state, content, saved, spec)
        handle.add_user()
        return handle

    def mask_codecs(self, tensor: Any, spec: TensorSpec, wanted: Rebuilding) -> tuple[Codec, ...]:
        """Return what brings a mask to one bit per element; empty if the tensor is none.

        What the graph has made is none. Floating-point numbers are looked at on the host alone.
        """
        backend = self._state.backend
        if backend.producer(tensor) or not (wanted.ops is None or "masks" in wanted.ops):
            return ()
        if spec.kind == "bool":
            return (PackBits(),)
        if spec.kind != "float" or spec.device != "cpu" or not spec.nbytes:
            return ()
        sample, size = self._producers.sample(tensor), spec.itemsize
        if not isinstance(sample, bytes):
            return ()
        values = {sample[at : at + size] for at in range(0, len(sample), size)}
        return (TwoValued(),) if len(values) <= MOST_VALUES else ()  # nearly all others show a third

    def noted(self, tensor: Any, spec: TensorSpec, handle: Any) -> Any:
        """Return a handle in a form that recipes can refer to, and remember that it stands for a tensor."""
        if type(handle) is tuple:
            handle = KeptHandle(handle)
        if not isinstance(handle, RecomputedHandle):
            handle.is_from(self._state.backend.producer(tensor))
        self._producers.note(tensor, spec, handle)
        return handle

    def _narrowed(
        self, tensor: Any, spec: TensorSpec, wanted: Rebuilding, pack: Callable[[Any], Handle], why: str
    ) -> tuple[Recomputed, Saved] | None:
        may_narrow = wanted.ops is None or "narrow" in wanted.ops
        narrowed = self._producers.narrowed(tensor, spec) if may_narrow else None
        if narrowed is None:
            next(self._state.ledger.without_recipe[why][spec.nbytes])
            return None
        recipe, narrow = narrowed
        # It goes the way of what cannot be made again, and nobody has it but its handle.
        return self._proved(tensor, spec, recipe, (_referable(pack(narrow)),), wanted)

    def _proved(
        self, tensor: Any, spec: TensorSpec, recipe: Recipe, inputs: tuple[Any, ...], wanted: Rebuilding
    ) -> tuple[Recomputed, Saved] | None:
        producers, state = self._producers, self._state
        whole = producers.whole(tensor)
        if whole is not tensor:
            spec = state.backend.spec(whole)
        others = [each for each in inputs if not isinstance(each, AS_THEY_ARE)]
        depth = max([recipe.depth, *(recipe.depth + each.depth for each in others)])
        own, names = self._apart(inputs, spec.nbytes)
        present = _present(own)
        why = None
        if depth > wanted.depth:
            why = "deeper than depth"
        elif not all(each.is_exact for each in others):
            why = "made of what comes back with a loss"
        elif any(own[place] is each for place, each in enumerate(inputs) if type(each) is Leaf):
            why = "made of a large parameter that autograd has not saved, and so may change before backward"
        elif not producers.are_there(present):
            why = "made of a parameter that is freed meanwhile, or shared with other processes"
        if why is not None:
            state.ledger.refused(f"{recipe.rule}: {why}", spec.nbytes)
            return None
        module = self._thread.module
        kind = recipe.operation, recipe.settings, spec, state.version(tensor), module
        fault = partial(_fault, producers, recipe, inputs, whole, spec)
        if not self._proofs.allow(kind, recipe.rule, spec.nbytes, fault, always=wanted.verify == "always"):
            return None
        saved = Saved(state, producers, whole, spec, module, state.backend.storage(tensor)[0])
        self._saved.add(ref(saved, self._saved.discard))
        name = recipe.operation, recipe.settings, spec, *names
        shared = self._contents.get(name)
        content = None if shared is None else shared()
        if content is None:
            for each in others:
                each.add_user()
            refuse = partial(self._proofs.refuse, kind)
            content = Recomputed(state, producers, recipe, own, present, spec, depth, refuse)
            if len(self._contents) >= _REMEMBERED:
                self._contents.clear()
            self._contents[name] = ref(content)
        return content, saved

    def _apart(self, inputs: tuple[Any, ...], nbytes: int) -> tuple[tuple[Any, ...], list[Hashable]]:
        """Return inputs, with copies of small ones that the program may change before backward without a refusal.

        Those are parameters, for which autograd has not asked or which other processes may share, and memory that the
        graph has not made.

        Args:
            inputs: of a recipe.
            nbytes: of the tensor that it makes; copies are smaller.

        Returns:
            The inputs; and for each a name that tells it from all others that live while something is made of it.
        """
        producers, own = self._producers, list(inputs)
        labels: list[Hashable] = []
        for place, each in enumerate(inputs):
            if not isinstance(each, AS_THEY_ARE):
                labels.append(id(each))
                continue
            label: Hashable = id(each.tensor), self._state.version(each.tensor)
            if isinstance(each, Leaf) or not each.is_made:
                copy = producers.copied(each.tensor, min(_SMALL_BYTES, nbytes // 2))
                if copy is not None:
                    own[place], digest = Leaf(copy), producers.digest(copy)
                    label = label, digest if type(digest) is int else None
            labels.append(label)
        return tuple(own), labels


def _present(inputs: tuple[Any, ...]) -> list[Any]:
    """Return the tensors without which nothing can be made of these inputs, those behind them among them."""
    present: list[Any] = []
    for each in inputs:
        if isinstance(each, AS_THEY_ARE):
            present.append(each.tensor)
        elif isinstance(each, RecomputedHandle):
            present += each.content.present
    return present


def _referable(handle: Any) -> Any:
    kept = kept_in(handle)
    return handle if kept is None else KeptHandle(kept)


def _fault(
    producers: Producers[Any], recipe: Recipe, inputs: tuple[Any, ...], whole: Any, spec: TensorSpec
) -> str | None:
    """Make a tensor again that is still there, and say what is wrong with the result; None if nothing is."""
    before = producers.random_state(whole)
    why = None
    try:
        values = [each.tensor if isinstance(each, Leaf) else each.peek() for each in inputs]
        if not producers.are_equal(producers.run(recipe, values, spec), whole):
            why = "came out different"
    except Exception as error:  # what cannot be made again is stored, and the statistics say why
        why = f"raised {type(error).__name__}: {error}"
    if producers.random_state(whole) != before:
        producers.set_random_state(whole, before)
        why = "drew random numbers"
    return why
