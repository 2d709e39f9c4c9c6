"""A call of a module that is computed again in backward, in any framework, and the proof that it can be."""

import io
import pickle
import random
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tensorstash.abilities.checkpoints import ALREADY, CHECKPOINTED, Region
from tensorstash.backends.forward import is_called_by
from tensorstash.errors import SavedTensorModifiedError, StashError, modified

_NOT_CALLED = object()

_WEIGHTS = {"parameter", "view of a parameter"}
"""Reasons to keep a tensor whose bits nobody compares: sharding may take its memory away at any time."""

_CONSTANTS = (bool, int, float, complex, str, bytes, slice, range, type(None))

_DRAWERS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, np.ndarray, np.generic, Iterator)
_CHANGING = (int, float, complex, *_CONTAINERS, *_DRAWERS)
"""Types of attributes that are compared with all that is inside. Paddle notes the layout of data, a text, at a call."""

_BUFFERS = "writes its buffers"
"""No reason to refuse a module: in backward it writes copies."""

_HOOKS = {"_forward_pre_hooks", "_forward_hooks", "_forward_post_hooks"}

_BRINGERS = ("torch.", "accelerate.", "paddle.")
"""Python modules whose hooks run in a proof: they bring weights. Those of others may count or collect."""


class Repeats(ABC):
    """The part of a framework in calls that are computed again."""

    tensor: ClassVar[type]
    generator: ClassVar[type]  # of random numbers
    constants: ClassVar[tuple[type, ...]]  # types of arguments that nobody changes, beside those of Python
    notes: ClassVar[frozenset[str]]  # attributes of every module, in which the framework keeps its own bookkeeping
    inside: ClassVar[str]  # that of the modules inside
    source: ClassVar[str]  # name of the Python module of its function
    reenters: ClassVar[bool]
    """Whether that runs outside of the graph: it returns tensors, and sets Python's random numbers back."""

    @abstractmethod
    def is_checkpointed(self) -> bool:
        """Return whether somebody else computes again, in backward, the present work of this thread."""

    @abstractmethod
    def repeat(self, again: "Again", tensors: list[Any]) -> Any:
        """Call a module on tensors, so that backward calls it again."""

    @abstractmethod
    def is_buffer(self, value: Any) -> bool:
        """Return whether a parameter, buffer or None that a module holds is a tensor that its calls may write."""

    @abstractmethod
    def digest(self, value: Any) -> Hashable:
        """Return a key of the bits of a tensor, or of the numbers that a generator will draw."""

    @abstractmethod
    def numbers(self, tensors: list[Any]) -> Callable[[], None]:
        """Return a function that sets back all random numbers that its function sets back on devices of tensors."""


class _Place(NamedTuple):
    number: int


def emptied(value: Any, framework: Repeats, given: Sequence[Any] = ()) -> tuple[Any, list[Any], list[object]]:
    """Return arguments or outputs with places for their tensors, these after the given ones, and changeable objects."""
    tensors, opaque = [*given], []

    def note(part: Any) -> Any:
        if isinstance(part, framework.tensor):
            for number, tensor in enumerate(tensors):
                if tensor is part:
                    return _Place(number)
            tensors.append(part)
            return _Place(len(tensors) - 1)
        if not isinstance(part, _CONSTANTS) and not isinstance(part, framework.constants):
            opaque.append(part)
        return part

    return _mapped(value, note), tensors, opaque


def filled(value: Any, tensors: Any) -> Any:
    """Return what :func:`emptied` has emptied, with tensors in their places."""
    return _mapped(value, lambda part: tensors[part.number] if type(part) is _Place else part)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_mapped(part, change) for part in value])
    if kind is dict:
        return {change(key): _mapped(part, change) for key, part in value.items()}
    return change(value)


class Again:
    """Calls a module on other tensors; after its first call in the modes of that, and on copies of its buffers."""

    def __init__(self, region: Region, module: Any, call: Callable[..., Any], arguments: Any) -> None:
        self.region, self.module, self.call, self._arguments = region, module, call, arguments
        self.framework: Repeats = region.backend.repeats
        self.is_called = False
        self.parts = [module]
        for part in self.parts:  # in a loop of its own, since each call asks
            self.parts += [each for each in getattr(part, self.framework.inside).values() if each is not None]
        self._modes = [part.training for part in self.parts]
        self._weights: list[tuple[Any, str, int]] = []

    def __call__(self, *tensors: Any) -> Any:
        args, kwargs = filled(self._arguments, tensors)
        if not self.is_called:
            outputs = self.call(*args, **kwargs)
            self.was_called()
            return outputs
        for reference, name, expected in self._weights:
            weight = reference()
            if weight is not None and (version := self.region.backend.version(weight)) != expected:
                raise SavedTensorModifiedError(
                    f"block {self.region.name} is computed again in backward, but its {name} has been modified "
                    f"by an inplace operation since the forward pass: it is at version {version}; expected version "
                    f"{expected} instead. Call backward before that operation, such as a step of the optimizer."
                )
        modes = zip(self.parts, self._modes, strict=True)
        changed = [(vars(part), "training", mode) for part, mode in modes if part.training is not mode]
        if self.region.writes:
            buffers = self.held(buffers=True)
            copies = {id(buffer): buffer.detach().clone() for _, _, buffer in buffers}  # their versions stay, too
            changed += [(space, key, copies[id(buffer)]) for space, key, buffer in buffers]
        with _exchanged(changed):
            return self.call(*args, **kwargs)

    def was_called(self) -> None:
        """Have all calls from now on repeat the one that has just ended, with the same weights."""
        self.is_called = True
        held = self.held(buffers=False)
        # Sharding and offloading replace weights, and free those that they have replaced.
        self._weights = [(weakref.ref(weight), key, self.region.backend.version(weight)) for _, key, weight in held]

    def held(self, *, buffers: bool) -> list[tuple[dict[str, Any], str, Any]]:
        """Return the buffers, or else the weights, of the module, each with its dictionary and its name there."""
        spaces = [space for part in self.parts for space in (part._buffers, part._parameters)]
        held = [(space, key, value) for space in spaces for key, value in space.items() if value is not None]
        return [each for each in held if self.framework.is_buffer(each[2]) is buffers]

    def without_others(self) -> AbstractContextManager[None]:
        """Have the module run no hooks of others."""
        held = [(vars(part), kind) for part in self.parts for kind in _HOOKS & vars(part).keys()]
        return _exchanged([(space, kind, _bringing(space[kind])) for space, kind in held])


def _bringing(hooks: dict[int, Any]) -> dict[int, Any]:
    modules = {key: str(getattr(getattr(hook, "func", hook), "__module__", "")) for key, hook in hooks.items()}
    return type(hooks)((key, hook) for key, hook in hooks.items() if modules[key].startswith(_BRINGERS))


@contextmanager
def _exchanged(values: list[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
    held = [(space, key, space[key]) for space, key, _ in values]
    try:
        for space, key, value in values:
            space[key] = value
        yield
    finally:
        for space, key, value in held:
            space[key] = value


def call_inside(inside: Any, module: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Call a module in a context, or so that backward calls it again where that is a :class:`Region`."""
    if isinstance(inside, Region):
        outputs = call_again(inside, module, call, args, kwargs)
        return call(*args, **kwargs) if outputs is _NOT_CALLED else outputs
    with inside:
        return call(*args, **kwargs)


def call_again(
    region: Region, module: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module so that backward calls it again, unless its first call in training has shown that it cannot.

    Returns the outputs, or :data:`_NOT_CALLED`, where the module is to be called as ever.
    """
    if region.fate != CHECKPOINTED or region.refusal or not module.training:
        return _NOT_CALLED
    framework: Repeats = region.backend.repeats
    arguments, tensors, opaque = emptied((args, kwargs), framework)
    if framework.is_checkpointed() or vars(module).get("gradient_checkpointing"):
        region.judged(ALREADY)
    elif opaque:
        region.judged(f"takes a {type(opaque[0]).__qualname__}, which a second call may find changed")
    else:
        again = Again(region, module, call, arguments)
        if region.refusal is not None:
            return framework.repeat(again, tensors)
        return _first_call(again, tensors, args, kwargs)
    return _NOT_CALLED


def _first_call(again: Again, tensors: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module as ever, and then again, to see whether it changes nothing and saves the same bits.

    The first call is that of the program: where the module is refused, nothing has to be undone. What it has saved
    stays in memory then, so that blocks of the same modules are refused without a call of theirs.

    Returns the outputs, or :data:`_NOT_CALLED`.
    """
    region, kinds = again.region, tuple(map(type, again.parts))
    if kinds in region.refused:
        region.judged(region.refused[kinds])
        return _NOT_CALLED
    weights = [weight for _, _, weight in again.held(buffers=False)]
    alive: list[object] = []
    before = _state(again, (args, kwargs), weights, alive)
    begin = again.framework.numbers(tensors)
    outputs, saved, nbytes, refusal = _run(again, tensors, partial(again.call, *args, **kwargs), keeps=True)
    if kinds != tuple(map(type, again.parts)):  # it has made its weights
        return outputs
    end = again.framework.numbers(tensors)
    again.was_called()
    after = _state(again, (args, kwargs), weights, alive)
    changes = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    refusal = next((name for name in changes if name != _BUFFERS), refusal)
    region.judged(refusal, _BUFFERS in changes, nbytes)
    if not refusal:
        begin()
        try:
            with again.without_others():
                _, saved_again, _, _ = _run(again, tensors, partial(again, *tensors), keeps=False)
            if saved != saved_again:
                refusal = "saves other values when it is called again, without hooks of others"
        except Exception as error:
            refusal = f"raises {type(error).__name__} when it is called again"
        if not refusal:
            begin()
            del outputs  # with all that the first call has saved
            with again.without_others():
                outputs = again.framework.repeat(again, tensors)
            end()  # a later call may draw fewer numbers, as it finds what the first has kept
            return outputs
        end()
        region.judged(refusal)
    region.refused[kinds] = refusal
    return outputs


def _state(again: Again, arguments: Any, weights: list[Any], alive: list[object]) -> dict[str, Any]:
    """Return all that a call may change, by the reasons to refuse a module that does.

    It notes objects in ``alive``, as identities are used again.
    """
    backend, framework = again.region.backend, again.framework
    shape, tensors, opaque = emptied(arguments, framework)
    alive += tensors + opaque
    found: dict[str, Any] = {"writes its weights in place": [*map(backend.version, weights)]}
    if not framework.reenters:
        found["draws numbers from Python's random, which is not set back"] = random.getstate()
        found["draws numbers from NumPy's random, which is not set back"] = repr(np.random.get_state())
    try:
        given = [*map(id, tensors + opaque), *map(backend.version, tensors), *map(framework.digest, tensors)]
        found["writes its arguments in place"] = shape, given
        found[_BUFFERS] = [framework.digest(buffer) for _, _, buffer in again.held(buffers=True)]
        for name, part in backend.named_modules(again.module):
            tensors_of = {**part._buffers, **part._parameters}
            held = {key: value for key, value in tensors_of.items() if _is_own(value, backend)}
            alive += held.values()
            keys: dict[str, Hashable] = {key: id(value) for key, value in held.items()}
            for key, value in vars(part).items():
                if key not in framework.notes and (isinstance(value, _CHANGING) or _is_own(value, backend)):
                    keys[key] = _contents(value, backend, alive)
            found |= {f"keeps a value of its own in {f'{name}.{key}'.lstrip('.')}": keys[key] for key in keys}
    except Exception as error:  # whatever the state of others raises
        return {f"holds state that cannot be compared ({error})": object()}  # which equals nothing
    return found


def _contents(value: Any, backend: Any, alive: list[object]) -> Hashable:
    """Return a key of an attribute with the contents of its containers and tensors, and identities of all else."""
    file = io.BytesIO()
    parts: list[Any] = []

    def number_of(part: Any) -> int | None:
        if isinstance(part, (*_CHANGING, str, bytes)) and not isinstance(part, random.SystemRandom | np.memmap):
            return None
        parts.append(part)
        return len(parts)

    pickler = pickle.Pickler(file, 4)
    pickler.persistent_id = number_of  # type: ignore[method-assign]
    pickler.dump(value)
    alive += parts
    own = [backend.repeats.digest(part) for part in parts if _is_own(part, backend)]
    return file.getvalue(), (*map(id, parts),), (*own,)


def _is_own(part: Any, backend: Any) -> bool:
    framework: Repeats = backend.repeats
    is_activation = isinstance(part, framework.tensor) and backend.keep_reason(part) not in _WEIGHTS
    return is_activation or isinstance(part, framework.generator) or framework.is_buffer(part)


def _run(
    again: Again, tensors: list[Any], call: Callable[[], Any], *, keeps: bool
) -> tuple[Any, list[Hashable], int, str]:
    """Call a module; its graph is of use only where it keeps what it saves.

    Returns the outputs; keys of the saved and returned tensors, and of the weights; the bytes saved beside weights,
    buffers and arguments, where equal bits count once; the reason to refuse the module, if there is one.
    """
    backend, framework = again.region.backend, again.framework
    keys: list[Hashable] = []
    sizes: dict[Hashable, int] = {}
    refusals: list[str] = []

    def key_of(tensor: Any) -> Hashable:
        # A text for weights and buffers, whose bits may be others later; a tuple for every other tensor.
        kind, reason = str(backend.describe(tensor)), backend.keep_reason(tensor)
        own = {buffer.data_ptr() for _, _, buffer in again.held(buffers=True)} if reason is None else ()
        if reason in _WEIGHTS or (reason is None and tensor.data_ptr() in own):
            return kind
        try:
            return kind, framework.digest(tensor)
        except Exception as error:  # the tensor is of a rare kind
            refusals.append(f"saves or returns a tensor that cannot be compared ({error})")
            return kind

    def pack(tensor: Any) -> Any:
        if is_called_by(framework.source):
            refusals.append(ALREADY)
        keys.append(key := key_of(tensor))
        if isinstance(key, tuple):
            sizes[key] = tensor.element_size() * int(tensor.numel())
        return (backend.alias(tensor), backend.version(tensor)) if keeps else None

    def unpack(packed: Any) -> Any:
        refusals.append("computes gradients of its own")
        if packed is None:
            raise StashError(
                f"block {again.region.name} was called twice for its proof, and left tensors of the second call "
                f"outside of it, such as in a list of losses, from which backward was called: return them, or choose "
                f"other blocks by checkpoint:blocks="
            )
        alias, version = packed
        if (now := backend.version(alias)) != version:
            raise modified(backend.describe(alias), now, version)
        return alias

    given = {key_of(tensor) for tensor in tensors}
    with backend.hooks(pack, unpack, trusted=True):
        outputs = call()
    _, returned, opaque = emptied(outputs, framework)
    keys += map(key_of, returned)
    keys += (id(weight) for _, _, weight in again.held(buffers=False))  # sharding may swap them in the first call
    if opaque and framework.reenters:
        refusals.append(f"returns a {type(opaque[0]).__qualname__}")
    return outputs, keys, sum(sizes[key] for key in sizes.keys() - given), next(iter(refusals), "")
