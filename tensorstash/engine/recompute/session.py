"""A session under a policy that makes tensors again."""

from collections.abc import Hashable
from functools import partial
from time import perf_counter
from typing import Any, TypeVar
from weakref import WeakSet

from tensorstash.abilities import Backend
from tensorstash.abilities.recipes import Leaf, Producers, Recipe, SupportsProducers
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.two_valued import TwoValued
from tensorstash.engine.handle import Handle, Stashed
from tensorstash.engine.limits import Limits
from tensorstash.engine.payloads.dedup import DedupIndex
from tensorstash.engine.payloads.route import PayloadRoute, route_for
from tensorstash.engine.recompute.inputs import KeptHandle
from tensorstash.engine.recompute.proofs import Proofs
from tensorstash.engine.recompute.recomputed import Recomputed, RecomputedHandle, Saved
from tensorstash.engine.session import Session
from tensorstash.errors import ConfigError
from tensorstash.policies.plan import HookPolicy, Plan, Rebuilding
from tensorstash.registry import lookup, names
from tensorstash.spec import TensorSpec
from tensorstash.stores.memory import Memory

T = TypeVar("T")

_REMEMBERED_SPECS = 4096

_UNKNOWN = Rebuilding(frozenset(), 0, "first")

_FIRST_ELEMENTS = 64
"""Nearly all tensors show within so many elements that they have more than two values."""


class RecomputingSession(Session[T]):
    """Executes a policy with :class:`~tensorstash.policies.recompute.Recompute` in it.

    For each tensor that the policy wants made again, the backend is asked for a recipe: where there is one, and it is
    proved for tensors of its kind, the graph gets a handle that holds the recipe. All others go the way of any session,
    and their handles are noted, for they may be what other recipes need.

    Args:
        policy: what becomes of each saved tensor.
        backend: the framework's adapter.
        min_bytes: tensors below this size are kept, in bytes.
        limits: byte budgets and the timeout.

    Raises:
        ConfigError: the backend cannot tell what made a tensor.
        StoreError: a store the policy may use cannot be opened.
    """

    def __init__(self, policy: HookPolicy, backend: Backend[T], *, min_bytes: int, limits: Limits) -> None:
        super().__init__(policy, backend, min_bytes=min_bytes, limits=limits)
        if not isinstance(backend, SupportsProducers):
            raise ConfigError(f"recompute: the backend {backend.name} does not tell what made a tensor")
        plug_ins = [lookup("recipes", name) for name in names("recipes")]
        rules = [each.rule for each in plug_ins if each.framework == backend.name]  # type: ignore[attr-defined]
        state = self._state

        def is_ours(handle: object) -> bool:
            if type(handle) is tuple:
                return len(handle) == 3 and handle[0] is state
            return isinstance(handle, KeptHandle | Stashed | RecomputedHandle) and handle.state is state

        self._producers = backend.producers(is_ours, rules)
        self._proofs = Proofs(state.ledger)
        self._wanted: dict[Hashable, Rebuilding | None] = {}
        self._stretch: DedupIndex | None = None
        self._contents: WeakSet[Recomputed] = WeakSet()
        """Of the stretch of saves that began when backward had last asked for something."""
        self._mask_routes: dict[Hashable, PayloadRoute] = {}

    def pack(self, tensor: T) -> Handle:
        """Return the handle that the graph holds in place of ``tensor``.

        Raises:
            StashError: the tensor's bytes had to be captured at once and could not be, or a store hangs.
        """
        if self._most_bytes(tensor) < self._min_bytes or self._keep_reason(tensor) is not None:
            return super().pack(tensor)
        spec = self._spec(tensor)
        wanted = self._rebuilding(spec)
        handle: Any = None
        if wanted is not None and spec.nbytes >= self._min_bytes:
            handle = self._recomputed(tensor, spec, wanted)
            if handle is None and _uses(wanted, "masks"):
                handle = self._bits(tensor, spec)
        if handle is None:
            handle = _referable(super().pack(tensor))
        elif self._movable.is_counting:
            self._movable.look(tensor, self.backend, self._min_bytes, is_over=self._state.was_asked)
        self._producers.note(tensor, handle)
        return handle  # type: ignore[no-any-return]

    def _most_bytes(self, tensor: T) -> int:
        try:
            return self._nbytes(tensor)
        except RuntimeError:  # sparse tensors have no such number
            return 0

    def drain(self) -> None:
        """Wait until the bytes of everything saved so far are captured; see :meth:`Session.drain`."""
        super().drain()
        self._producers.forget()  # what is captured comes back as it was, whatever is written to it from now on
        with self._lock:
            contents, self._contents = self._contents, WeakSet()
        for content in contents:
            content.settle()

    def _rebuilding(self, spec: TensorSpec) -> Rebuilding | None:
        module = self._thread.module
        key: Hashable = (module, spec) if module else spec
        wanted = self._wanted.get(key, _UNKNOWN)
        if wanted is _UNKNOWN:
            if len(self._wanted) >= _REMEMBERED_SPECS:
                self._wanted.clear()
            wanted = self.policy.plan(spec.inside(module) if module else spec).rebuilding
            self._wanted[key] = wanted
        return wanted

    def _recomputed(self, tensor: T, spec: TensorSpec, wanted: Rebuilding) -> RecomputedHandle | None:
        started = perf_counter()
        if self._state.was_asked or self._dedup is not self._stretch:
            self._begin_stretch()
        known = self._producers.noted(tensor)
        if known is None:
            content = self._new_content(tensor, wanted)
        else:  # what is stored already is stored once
            content = known.content if type(known) is RecomputedHandle else None
        if content is None or content.version != self._version(tensor):
            return None
        content.users += 1
        self._contents.add(content)
        self._state.ledger.recomputed(content.rule, spec.nbytes, perf_counter() - started)
        return RecomputedHandle(self._state, content, spec)

    def _begin_stretch(self) -> None:
        """Forget what was saved before backward has asked for something: what is the same now may be rewritten."""
        with self._lock:
            stretch = self._current_dedup()
            if stretch is self._stretch:
                return
            self._stretch = stretch
            self._contents = WeakSet()
            self._producers.forget()
            self._proofs.step_ended()

    def _new_content(self, tensor: T, wanted: Rebuilding) -> Recomputed | None:
        producers = self._producers
        recipe = producers.recipe(tensor, wanted.ops, wanted.depth)
        if not isinstance(recipe, str):
            inputs = tuple(map(_referable, recipe.inputs))
            return self._proved(tensor, recipe, inputs, wanted)
        narrowed = producers.narrowed(tensor) if _uses(wanted, "narrow") else None
        if narrowed is None:
            return None
        recipe, narrow = narrowed
        # It goes the way of what cannot be made again, and nobody has it but its handle.
        handle = super().pack(narrow)
        return self._proved(tensor, recipe, (_referable(handle),), wanted)

    def _proved(self, tensor: T, recipe: Recipe, inputs: tuple[Any, ...], wanted: Rebuilding) -> Recomputed | None:
        producers, state = self._producers, self._state
        handles = [each for each in inputs if type(each) is not Leaf]
        whole = producers.whole(tensor)
        spec = self._spec(whole)
        depth = recipe.depth + max([each.depth for each in handles], default=0)
        if depth > wanted.depth:
            state.ledger.refused(f"{recipe.rule}: deeper than depth", spec.nbytes)
            return None
        if not all([each.is_exact for each in handles]):  # noqa: C419  (it is run for every tensor)
            state.ledger.refused(f"{recipe.rule}: made of what comes back with a loss", spec.nbytes)
            return None
        module = self._thread.module
        version = self._version(tensor)
        kind = recipe.rule, recipe.operation, spec, version, module
        fault = partial(_fault, producers, recipe, inputs, whole, spec)
        if not self._proofs.allow(kind, recipe.rule, spec.nbytes, fault, always=wanted.verify == "always"):
            return None
        for each in handles:
            each.add_user()
        sample = producers.sample(whole)
        saved = Saved(spec, module, version, producers.probe(whole), sample)
        return Recomputed(state, producers, recipe, inputs, saved, depth)

    def _bits(self, tensor: T, spec: TensorSpec) -> Stashed | None:
        """Return the handle of a mask at one bit per element; None if it is none.

        What the graph has made is none. Floating-point numbers are looked at on the host alone.
        """
        if self.backend.producer(tensor):
            return None
        if spec.kind != "bool":
            if spec.kind != "float" or spec.device != "cpu":
                return None
            few = self.backend.to_host(tensor, spec).reshape(-1)[:_FIRST_ELEMENTS].view(f"u{spec.itemsize}")
            others = few[few != few[0]]
            if others.size and (others != others[0]).any():
                return None
        return self._stash(tensor, spec, self._mask_route(spec))

    def _mask_route(self, spec: TensorSpec) -> PayloadRoute:
        key = self._thread.module, spec
        route = self._mask_routes.get(key)
        if route is None:
            codec = PackBits() if spec.kind == "bool" else TwoValued()
            store = self.policy.plan(spec).rest.store or (Memory() if spec.device == "cpu" else None)
            config = store or Memory()
            parts = Plan((codec,), store), spec, self.backend, config, self._store(config)
            route = route_for(*parts, self._state.ledger, self._transfers)
            if config.tier == "memory" and spec.device == "cpu":  # to hand it to a worker would take longer
                route.needs_worker = False
            if len(self._mask_routes) >= _REMEMBERED_SPECS:
                self._mask_routes.clear()
            self._mask_routes[key] = route
        return route


def _uses(wanted: Rebuilding, rule: str) -> bool:
    return wanted.ops is None or rule in wanted.ops


def _referable(handle: Any) -> Any:
    return KeptHandle(handle) if type(handle) is tuple else handle


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
