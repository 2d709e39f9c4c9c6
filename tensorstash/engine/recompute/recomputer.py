"""Finds out which saved tensors can be made again, and makes the handles of those."""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any
from weakref import WeakSet

from tensorstash.abilities.recipes import Leaf, Producers, Recipe, SupportsProducers
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.two_valued import TwoValued
from tensorstash.engine.handle import Handle, Stashed
from tensorstash.engine.recompute.inputs import KeptHandle, kept_in
from tensorstash.engine.recompute.proofs import Proofs
from tensorstash.engine.recompute.recomputed import Recomputed, RecomputedHandle, Saved, are_there
from tensorstash.engine.scope import Thread
from tensorstash.engine.state import SessionState
from tensorstash.errors import ConfigError
from tensorstash.policies.plan import Rebuilding
from tensorstash.protocols import Codec
from tensorstash.registry import lookup, names
from tensorstash.spec import TensorSpec

NewRecomputer = Callable[[SessionState, Thread], "Recomputer"]
"""Makes a recomputer for one session."""

_FIRST_ELEMENTS = 64
"""Nearly all tensors show within so many elements that they have more than two values."""

_SMALL_BYTES = 2**16
"""Inputs of recipes up to this size are rather copied than compared."""

_REFERABLE = KeptHandle, Stashed, RecomputedHandle


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
            if isinstance(handle, _REFERABLE):
                return handle.state is state
            kept = kept_in(handle)
            return kept is not None and kept[0] is state

        self._state = state
        self._thread = thread
        self._producers: Producers[Any] = backend.producers(is_ours, rules)
        if self._producers.lacks:
            state.adviser.say(f"recompute: nothing is made again: {self._producers.lacks}")
        self._proofs = Proofs(state.ledger)
        self._contents: WeakSet[Recomputed] = WeakSet()
        """Of the stretch of saves that began when backward had last asked for something."""

    def begin_stretch(self) -> None:
        """Forget what was saved before backward has asked for something: what is the same now may be rewritten."""
        self._contents = WeakSet()
        self._producers.forget()
        self._proofs.step_ended()

    def settle(self) -> None:
        """Make what was saved so far immune to later changes."""
        self._producers.forget()  # what is captured comes back as it was, whatever is written to it from now on
        contents, self._contents = self._contents, WeakSet()
        for content in contents:
            content.settle()

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
        known = self._producers.noted(tensor)
        if known is None:
            content = self._new_content(tensor, spec, wanted, pack)
        else:  # what is stored already is stored once
            content = known.content if isinstance(known, RecomputedHandle) else None
        if content is None or content.version != self._state.version(tensor):
            return None
        if known is not None and not content.is_there():
            return None
        content.users += 1
        self._contents.add(content)
        self._state.ledger.recomputed(content.rule, spec.nbytes, perf_counter() - started)
        return RecomputedHandle(self._state, content, spec)

    def mask_codecs(self, tensor: Any, spec: TensorSpec, wanted: Rebuilding) -> tuple[Codec, ...]:
        """Return what brings a mask to one bit per element; empty if the tensor is none.

        What the graph has made is none. Floating-point numbers are looked at on the host alone.
        """
        backend = self._state.backend
        if not _uses(wanted, "masks") or backend.producer(tensor):
            return ()
        if spec.kind == "bool":
            return (PackBits(),)
        if spec.kind != "float" or spec.device != "cpu" or not spec.nbytes:
            return ()
        few = backend.to_host(tensor, spec).reshape(-1)[:_FIRST_ELEMENTS].view(f"u{spec.itemsize}")
        others = few[few != few[0]]
        return () if others.size and (others != others[0]).any() else (TwoValued(),)

    def noted(self, tensor: Any, handle: Any) -> Any:
        """Return a handle in a form that recipes can refer to, and remember that it stands for a tensor."""
        handle = _referable(handle)
        if not isinstance(handle, RecomputedHandle):
            handle.is_made = bool(self._state.backend.producer(tensor))
        self._producers.note(tensor, handle)
        return handle

    def _new_content(
        self, tensor: Any, spec: TensorSpec, wanted: Rebuilding, pack: Callable[[Any], Handle]
    ) -> Recomputed | None:
        producers = self._producers
        recipe = producers.recipe(tensor, wanted.ops, wanted.depth)
        if not isinstance(recipe, str):
            inputs = tuple(map(_referable, recipe.inputs))
            return self._proved(tensor, recipe, inputs, wanted)
        narrowed = producers.narrowed(tensor) if _uses(wanted, "narrow") else None
        if narrowed is None:
            self._state.ledger.without_recipe(recipe, spec.nbytes)
            return None
        recipe, narrow = narrowed
        # It goes the way of what cannot be made again, and nobody has it but its handle.
        return self._proved(tensor, recipe, (_referable(pack(narrow)),), wanted)

    def _proved(self, tensor: Any, recipe: Recipe, inputs: tuple[Any, ...], wanted: Rebuilding) -> Recomputed | None:
        producers, state = self._producers, self._state
        handles = [each for each in inputs if type(each) is not Leaf]
        whole = producers.whole(tensor)
        spec = state.backend.spec(whole)
        depth = recipe.depth + max([each.depth for each in handles], default=0)
        if depth > wanted.depth:
            state.ledger.refused(f"{recipe.rule}: deeper than depth", spec.nbytes)
            return None
        if not all([each.is_exact for each in handles]):  # noqa: C419  (it is run for every tensor)
            state.ledger.refused(f"{recipe.rule}: made of what comes back with a loss", spec.nbytes)
            return None
        if not are_there(producers, inputs):
            state.ledger.refused(f"{recipe.rule}: made of a parameter that is freed meanwhile", spec.nbytes)
            return None
        module = self._thread.module
        version = state.version(tensor)
        kind = recipe.rule, recipe.operation, spec, version, module
        fault = partial(_fault, producers, recipe, inputs, whole, spec)
        if not self._proofs.allow(kind, recipe.rule, spec.nbytes, fault, always=wanted.verify == "always"):
            return None
        inputs = tuple(map(self._apart, inputs))
        for each in inputs:
            if type(each) is not Leaf:
                each.add_user()
        sample = producers.sample(whole)
        saved = Saved(spec, module, version, producers.probe(whole), sample)
        return Recomputed(state, producers, recipe, inputs, saved, depth)

    def _apart(self, needed: Any) -> Any:
        """Return a small input that stays where it is, and that others may write to unseen, as a copy of its own."""
        if not isinstance(needed, KeptHandle) or needed.is_made:
            return needed
        content = self._producers.content(needed.tensor)
        if content is None or content.nbytes > _SMALL_BYTES:
            return needed
        backend = self._state.backend
        return Leaf(backend.from_host(content.copy(), backend.spec(needed.tensor)))


def _uses(wanted: Rebuilding, rule: str) -> bool:
    return wanted.ops is None or rule in wanted.ops


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
