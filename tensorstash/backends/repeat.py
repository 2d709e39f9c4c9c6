"""A call of a module that is computed again in backward, in any framework, and the proof that it can be."""

import random
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from copy import copy
from functools import partial
from itertools import chain, starmap
from math import prod
from operator import call as called
from operator import setitem
from typing import Any

import numpy as np

from tensorstash.abilities.checkpoints import ALREADY, CHECKPOINTED, Region, Repeats
from tensorstash.backends.arguments import apart, written
from tensorstash.backends.forward import is_called_by
from tensorstash.errors import SavedTensorModifiedError, StashError, modified

_DRAWERS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, np.ndarray, np.generic, Iterator)
_STATE = (int, float, complex, str, bytes, *_CONTAINERS, *_DRAWERS)
"""Types of attributes that are compared with all that is inside; of all others but tensors only the identity is."""
_NUMPY = {np.bool_, np.int32, np.int64, np.float32, np.float64}
_VALUES = {bool, int, float, complex, str, bytes, type(None), *_NUMPY}
_COPIED = {dict, list, OrderedDict}
_FEW = 256
"""Later calls find these attributes as they were: values, and containers of at most so many values or modules."""

_HOOKS = {"_forward_pre_hooks", "_forward_hooks", "_forward_post_hooks"}
_FRAMEWORKS = ("paddle.", "torch.")
_SHARDING = ("accelerate.", "paddle.distributed.", "torch.distributed.")
_BRINGERS = ("accelerate.", "contextlib", *_FRAMEWORKS)
"""Python modules whose hooks bring weights, or do nothing. Those of others may count calls or collect outputs."""

_COPIED_BYTES = 64 * 1024
"""Size up to which buffers are copied at each call: it may read those that it writes. Larger ones must not change."""

Snapshot = dict[str, tuple[Any, list[Any]]]
"""The state of a module, by the reasons to refuse one that changes it: texts, with what they name."""

Saved = tuple[list[Hashable], list[Hashable]]
"""Keys of what a call saves, and of what it returns and its weights."""

Held = tuple[dict[str, Any], str, Any]
"""The dictionary of a module, a name in it, and the weight or buffer of that name, or a value of its."""

Notes = list[tuple[dict[str, Any], str, weakref.ref[Any], Hashable]]
"""Weights or buffers with their versions, as :data:`Held`."""


class Again:
    """Calls a module on other tensors; after its first call with the attributes, modules and buffers of that.

    Weights get a gradient, or get none, as in that call, too.

    Args:
        region: of the module.
        module: the block.
        call: calls it.
        given: its arguments in the first call, and the identities of their tensors.
        arguments: makes its arguments of tensors, for later calls.
    """

    def __init__(
        self, region: Region, module: Any, call: Callable[..., Any], given: Any, arguments: Callable[..., Any]
    ) -> None:
        self.region, self.module, self.call, self._given, self._arguments = region, module, call, given, arguments
        self.parts: list[Any] = [part for _, part in region.backend.named_modules(module)]
        self._names: list[tuple[dict[str, Any], frozenset[str]]] = []
        self._own: list[Held] = []
        self._weights: Notes | None = None
        self._buffers: Notes = []
        self._copies: list[Held] = []
        self._flags: list[Held] = []

    def __call__(self, *tensors: Any) -> Any:
        if self._weights is None:
            given, numbers = self._given
            is_own = numbers == [*map(id, tensors)]  # then with the lists that it may fill for its caller
            args, kwargs = given if is_own else self._arguments(tensors)
            self.begin()
            outputs = self.call(*args, **kwargs)
            self.end()
            return outputs
        if name := self.changed():
            raise SavedTensorModifiedError(
                f"block {self.region.name} is computed again in backward, but its {name} has been modified by an "
                f"inplace operation, or replaced, since the forward pass. Call backward before that, such as a step of "
                f"the optimizer, or leave the block out: Checkpoint(blocks=...) names the others"
            )
        args, kwargs = self._arguments(tensors)
        fresh = {id(each): each.clone() for _, _, each in self._copies}  # some may be one tensor under two names
        then = [(space, key, kept) for space, key, kept in self._own if _is_other(space.get(key, self), kept)]
        then += [(space, key, fresh[id(each)]) for space, key, each in self._copies]
        put: list[tuple[Any, ...]] = [(setitem, *each) for each in then]
        back: list[tuple[Any, ...]] = [
            (setitem, space, key, space[key]) if key in space else (dict.pop, space, key, None)
            for space, key, _ in then
        ]
        for space, names in self._names:
            for key in [key for key in space.keys() - names if type(space[key]) in _VALUES]:
                put.append((space.pop, key))
                back.append((setitem, space, key, space[key]))
        trained = self.region.backend.repeats.trained
        for space, key, flag in self._flags:
            value = space.get(key)
            if value is not None and getattr(value, trained) is not flag and value.is_leaf:
                put.append((setattr, value, trained, flag))
                back.append((setattr, value, trained, not flag))
        exchanging, putting_back = starmap(called, put), starmap(called, back)
        try:
            # Within one call of C each, the next: no Ctrl-C finds some of them exchanged, or leaves them so.
            deque(exchanging, maxlen=0)
            return self.call(*args, **kwargs)
        finally:
            deque(putting_back, maxlen=0)

    def kinds(self) -> tuple[type, ...]:
        """Return the classes of the modules inside."""
        return tuple(map(type, self.parts))

    def begin(self) -> None:
        """Copy the small buffers, and note the large ones."""
        _, large, small = self.held()
        copies = {id(buffer): buffer.detach().clone() for _, _, buffer in small}
        self._copies = [(space, key, copies[id(buffer)]) for space, key, buffer in small]
        self._buffers = self._noted(large)

    def end(self) -> None:
        """Have all calls from now on repeat one with the present weights."""
        # Only now: sharding and offloading replace weights for a call, and free those that they have replaced.
        held, trained = self.held(), self.region.backend.repeats.trained
        self._flags = [(space, key, getattr(value, trained)) for space, key, value in chain(*held)]
        self._weights, self._given = self._noted(held[0]), None
        notes, parts = self.region.backend.repeats.notes, {*map(id, self.parts)}
        self._names, self._own = [(vars(part), frozenset(vars(part))) for part in self.parts], []
        for space, names in self._names:
            for key in names - notes:
                value = space[key]
                if type(value) in _VALUES:
                    self._own.append((space, key, value))
                # No others: what holds outputs would keep their graphs for ever, and they this.
                elif (type(value) in _COPIED or type(value) is tuple) and len(value) <= _FEW:
                    values = [*(value.values() if isinstance(value, dict) else value)]
                    if _VALUES.issuperset(map(type, values)) or parts.issuperset(map(id, values)):
                        self._own.append((space, key, copy(value)))

    def held(self) -> tuple[list[Held], list[Held], list[Held]]:
        """Return the weights, the large buffers and the small ones of the module."""
        is_buffer = self.region.backend.repeats.is_buffer
        found: tuple[list[Held], list[Held], list[Held]] = [], [], []
        for part in self.parts:
            for space in (part._buffers, part._parameters):
                for key, value in space.items():
                    if value is not None:
                        kind = is_buffer(value) and 1 + (value.element_size() * prod(value.shape) <= _COPIED_BYTES)
                        found[kind].append((space, key, value))
        return found

    def changed(self) -> str:
        """Return the name of a weight or large buffer that was modified or replaced since, or ``""``."""
        version = self.region.backend.repeats.version
        for space, key, reference, then in chain(self._weights or (), self._buffers):
            value, now = reference(), space.get(key)
            if value is not None and version(value) != then:
                return key
            if (value is None or value is not now) and not self._is_brought(key, value, now):
                return key
        return ""

    def _noted(self, held: list[Held]) -> Notes:
        version = self.region.backend.repeats.version
        return [(space, key, weakref.ref(value), version(value)) for space, key, value in held]

    def _is_brought(self, key: str, *weights: Any) -> bool:
        """Return whether sharding or offloading has put one of the weights into its place for a while."""
        if weights[0] is not None and any(vars(part).get(key) is weights[0] for part in self.parts):
            return True  # FSDP 1 takes it from the parameters
        bases = (getattr(weight, "_base", None) for weight in weights)
        kinds = (kind for each in (*weights, *bases, *self.parts) for kind in type(each).__mro__)
        sources = chain((kind.__module__ for kind in kinds), _sources_of_hooks(self.parts))
        return any(getattr(weight, "is_meta", False) for weight in weights) or any(
            source.startswith(_SHARDING) for source in sources
        )


def _is_other(now: Any, kept: Any) -> bool:
    """Return whether an attribute is neither what was kept, nor what that is a copy of."""
    if now is kept or type(now) is not type(kept) or type(kept) not in _COPIED or len(now) != len(kept):
        return now is not kept
    return [*map(id, chain(now, now.values() if isinstance(now, dict) else ()))] != [
        *map(id, chain(kept, kept.values() if isinstance(kept, dict) else ()))
    ]


def call_inside(inside: Any, module: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Call a module in a context, or so that backward calls it again where that is a :class:`Region`."""
    if isinstance(inside, Region):
        outputs = call_again(inside, module, call, args, kwargs)
        return call(*args, **kwargs) if outputs is None else outputs[0]
    with inside:
        return call(*args, **kwargs)


def call_again(
    region: Region, module: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any] | None:
    """Call a module so that backward calls it again; return its outputs, or None where it is to be called as ever."""
    if region.fate != CHECKPOINTED or region.refusal or not module.training:
        return None
    framework: Repeats = region.backend.repeats
    arguments, tensors, opaque = apart((args, kwargs), framework)
    again = Again(region, module, call, ((args, kwargs), [*map(id, tensors)]), arguments)
    is_new = region.refusal is None
    if framework.is_checkpointed() or vars(module).get("gradient_checkpointing"):
        region.judged(ALREADY)
    elif opaque:
        region.judged(f"takes a {type(opaque[0]).__qualname__}, which a second call may find changed")
    elif is_new and (why := region.refused.get(again.kinds()) or _hooks_of_others(again.parts)):
        region.judged(why)
    else:
        return (_first_call(again, tensors, args, kwargs) if is_new else framework.repeat(again, tensors),)
    return None


def _sources_of_hooks(parts: list[Any]) -> list[str]:
    hooks = [hook for part in parts for kind in _HOOKS & vars(part).keys() for hook in vars(part)[kind].values()]
    return [str(getattr(getattr(hook, "func", hook), "__module__", "")) for hook in hooks]


def _hooks_of_others(parts: list[Any]) -> str:
    found = next((source for source in _sources_of_hooks(parts) if not source.startswith(_BRINGERS)), None)
    return "" if found is None else f"has hooks of {found}, which may count its calls or collect its outputs"


def _first_call(again: Again, tensors: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module as ever, and then again, to see whether it changes nothing and saves the same bits.

    The first call is that of the program: where the module is refused, nothing has to be undone. What it has saved
    stays in memory then, so that blocks of the same modules are refused without a call of theirs.
    """
    region, framework, kinds = again.region, again.region.backend.repeats, again.kinds()
    again.begin()
    again.end()
    before, numbers = _state(again, (args, kwargs)), framework.numbers(tensors)
    outputs, saved, nbytes, refusal = _run(again, partial(again.call, *args, **kwargs))
    if again.kinds() != kinds:  # it has made its weights
        return outputs
    after = _state(again, (args, kwargs))
    refusal = next(_changes(before, after), "writes its weights in place" if again.changed() else refusal)
    again.end()
    if not refusal:
        during = partial(_state, again, (args, kwargs), is_over=False)
        at_last: list[Snapshot] = []
        try:
            with numbers():
                saved_again = _run(again, partial(again, *tensors), saved, lambda: at_last.append(during()))[1]
            again_other = "saves other values when it is called again, so that state outside of it may have advanced"
            # PyTorch ends later calls where the last tensor is saved: a block would not put back what it has changed.
            unfinished = _changes(at_last[-1], during()) if at_last else iter(())
            refusal = next((f"{name} until it returns" for name in unfinished), again_other * (saved != saved_again))
            if not refusal:
                with numbers():  # a later call may draw fewer, as it finds what the first has kept
                    repeated = framework.repeat(again, tensors)
                if _returned(repeated, framework) != _returned(outputs, framework):
                    refusal = "returns other values where no gradients are recorded"
                elif not any(type(part).__name__ == "FullyShardedDataParallel" for part in again.parts):
                    outputs = repeated  # hooks of FSDP 1 are on the gradient accumulators of the first call
        except Exception as error:
            refusal = f"raises {type(error).__name__} when it is called again"
    if refusal:
        region.refused[kinds] = refusal
    region.judged(refusal, nbytes)
    return outputs


def _changes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    return (name for name in {**after, **before} if before.get(name, [0])[0] != after.get(name, [0])[0])


def _returned(outputs: Any, framework: Repeats) -> list[Any]:
    digests: list[Any] = [framework.digest(tensor) for tensor in apart(outputs, framework)[1]]
    return [bits for bits, _ in digests]  # without versions


def _state(again: Again, arguments: Any, *, is_over: bool = True) -> Snapshot:
    """Return all that a call may change; in a repeated one without buffers and modules of frameworks themselves."""
    backend = again.region.backend

    def key_of(value: Any) -> tuple[bytes, list[Any]]:
        return written(value, lambda part: isinstance(part, _STATE), lambda part: f"{id(part)} {_bits(part, backend)}")

    try:
        drawn = random.getstate(), np.random.get_state()
        found: dict[str, Any] = {"draws numbers from Python's random or NumPy's": key_of(drawn)}
        found["writes its arguments in place"] = key_of(arguments)
        parts = [*backend.named_modules(again.module)]
        found["replaces its modules"] = [(name, id(part)) for name, part in parts], parts
        for name, part in parts:
            if not is_over and all(kind.__module__.startswith(_FRAMEWORKS) for kind in type(part).__mro__[:-1]):
                continue
            reason = f"keeps a value of its own in {name}{'.' * bool(name)}"
            own = {key: value for key, value in vars(part).items() if key not in backend.repeats.notes}
            for key, value in own.items():
                is_compared = isinstance(value, _STATE) or _bits(value, backend)
                found[reason + key] = key_of(value) if is_compared else (id(value), [value])
            found |= {reason + key: (id(buffer), [buffer]) for key, buffer in part._buffers.items() if is_over}
        large = again.held()[1]
        found["writes its large buffers in place"] = [backend.repeats.digest(buffer) for _, _, buffer in large], []
        return found
    except Exception as error:  # whatever the state of others raises
        return {f"holds state that cannot be compared ({error})": (object(), [])}  # which equals nothing


def _bits(part: Any, backend: Any) -> Hashable:
    """Return a key of the bits of a generator, or of a tensor that is no weight; None for all else.

    Sharding may take the memory of weights away at any time.
    """
    weights = "parameter", "view of a parameter"
    is_weight = isinstance(part, backend.repeats.tensor) and backend.keep_reason(part) in weights
    return None if is_weight else backend.repeats.digest(part)


def _run(
    again: Again, call: Callable[[], Any], first: Saved | None = None, at_last: Callable[[], object] = bool
) -> tuple[Any, Saved, int, str]:
    """Call a module; for the second time where the keys of the ``first`` are given, which leaves no graph.

    ``at_last`` is called where the last tensor of the second call is saved.

    Returns the outputs; the keys; the bytes saved beside weights and buffers, where equal bits count once; and the
    reason to refuse the module, if there is one.
    """
    backend, framework = again.region.backend, again.region.backend.repeats
    keys: list[Any] = []
    kept: list[tuple[Any, int]] = []
    refusals: list[str] = []

    def key_of(tensor: Any) -> tuple[str, int, Hashable]:
        bits, nbytes = None, 0
        try:
            bits, nbytes = _bits(tensor, backend), tensor.element_size() * prod(map(int, tensor.shape))
            if bits and tensor.data_ptr() in {each.data_ptr() for held in again.held()[1:] for _, _, each in held}:
                bits = None  # of buffers, whose bits may be others later
        except Exception as error:  # the tensor is of a rare kind
            refusals.append(f"saves or returns a tensor that cannot be compared ({error})")
        return str(backend.describe(tensor)), nbytes, bits

    def pack(tensor: Any) -> Any:
        if is_called_by(framework.source):
            refusals.append(ALREADY)
        keys.append(key_of(tensor))
        if first is not None:
            if len(keys) == len(first[0]):
                at_last()
            return None
        kept.append((backend.alias(tensor), backend.version(tensor)))
        return kept[-1]

    def unpack(packed: Any) -> Any:
        refusals.append("computes gradients of its own")
        if packed is None:
            raise StashError(
                f"block {again.region.name} was called twice for its proof, and has left tensors of the second call "
                "outside, such as in a list of losses: return them, or name other blocks: Checkpoint(blocks=...)"
            )
        alias, version = packed
        if (now := backend.version(alias)) != version:
            raise modified(backend.describe(alias), now, version)
        return alias

    with backend.hooks(pack, unpack, trusted=True):
        outputs = call()
    if any(backend.version(alias) != version for alias, version in kept):
        refusals.append("modifies in place what it has saved")
    kept.clear()  # a framework may hold on to the hooks
    nbytes = sum(size for _, size, bits in {*keys} if bits)
    _, returned, opaque = apart(outputs, framework)
    refusals += [f"returns a {type(part).__qualname__}" for part in opaque] + ["returns no tensor"] * (not returned)
    # Sharding may swap weights in the first call.
    weights: list[Hashable] = [id(weight) for _, _, weight in again.held()[0]]
    refusals += ["returns a weight"] * any(id(tensor) in weights for tensor in returned)
    others = [*map(key_of, returned), *weights]
    return outputs, (keys, others), nbytes, next(iter(refusals), "")
