"""A call of a module that is computed again in backward, in any framework, and the proof that it can be."""

import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tensorstash.abilities.checkpoints import ALREADY, Region
from tensorstash.backends.isolation import WEIGHTS, NoCopy, buffers_of, isolated, unwritten

_CONSTANTS = (bool, int, float, complex, str, bytes, slice, range)


class Repeats(ABC):
    """The part of a framework in calls that are computed again."""

    tensor: ClassVar[type]
    generator: ClassVar[type]
    """Of the random numbers that a module may hold."""
    constants: ClassVar[tuple[type, ...]]
    """Types of arguments that nobody changes, beside those of Python."""
    bringers: ClassVar[tuple[str, ...]]
    """Python modules whose hooks run in a proof: they bring weights. Those of others may count or collect."""
    notes: ClassVar[frozenset[str]]
    """Attributes of every module, in which the framework notes what it needs."""
    sets_back_host: ClassVar[bool]
    """Whether the framework sets Python's and NumPy's random numbers back, too."""
    rebuilds_outputs: ClassVar[bool]
    """Whether the outputs of a module are put together again of their tensors."""
    source: ClassVar[str]
    """File of the framework's own checkpoints."""

    @abstractmethod
    def repeat(self, again: Callable[..., Any], module: Any, tensors: list[Any]) -> Any:
        """Call a module on tensors, so that backward calls it again."""

    @abstractmethod
    def finish(self, tensors: list[Any]) -> None:
        """Wait until the devices of tensors have done all that they were told."""

    @abstractmethod
    def is_buffer(self, value: Any) -> bool:
        """Return whether a parameter, buffer or None that a module holds is a tensor that its calls may write."""

    @abstractmethod
    def digest(self, tensor: Any) -> Hashable:
        """Return a key of the bits of a tensor."""

    @abstractmethod
    def copied(self, tensor: Any) -> Any:
        """Return a copy that is no leaf and requires grad as the tensor does."""

    @abstractmethod
    def copied_generator(self, generator: Any) -> Any:
        """Return a generator that draws the same numbers."""

    @abstractmethod
    def generator_state(self, generator: Any) -> Hashable:
        """Return a key of the numbers that a generator will draw."""

    @abstractmethod
    def same_numbers(self, tensors: list[Any]) -> AbstractContextManager[None]:
        """Set the framework's random numbers back at the end, on the devices of tensors, too."""


def is_below(wanted: Callable[[CodeType], bool]) -> bool:
    """Return whether a function that is wanted has called, by however many others, this one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not wanted(frame.f_code):
        frame = frame.f_back
    return frame is not None


def call_again(
    region: Region, module: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module so that backward calls it again, if it is proved that it can be, and as ever otherwise.

    Args:
        region: record of the module; gets the result of the proof.
        module: in training.
        call: of the module.
        args: of the call.
        kwargs: of the call.
    """
    if not region.is_wanted or region.refusal or not module.training:
        return call(*args, **kwargs)
    backend, framework = region.backend, region.backend.repeats
    tensors: list[Any] = []
    opaque: list[object] = []
    build = taken_apart((args, kwargs), framework, tensors, opaque)
    if backend.is_checkpointed() or vars(module).get("gradient_checkpointing"):
        region.judged(ALREADY)
    elif opaque:
        region.judged(f"takes a {type(opaque[0]).__qualname__}, which a second call may find changed")
    elif region.refusal is None:
        try:
            proof = _proof(backend, module, call, tensors, build)
        except NoCopy as error:
            proof = str(error), (), 0
        except Exception:  # the call itself raises it, and draws the numbers that it would have drawn
            return call(*args, **kwargs)
        region.judged(*proof)
    if not region.is_repeated:
        return call(*args, **kwargs)

    is_again = False

    def again(*tensors: Any) -> Any:
        args, kwargs = build(tensors)
        written = region.written if is_again else ()
        places = buffers_of(backend, module) if written else {}
        with unwritten(places[name] for name in written):
            return call(*args, **kwargs)

    if not region.is_measured:
        outputs = framework.repeat(again, module, tensors)
    else:
        framework.finish(tensors)
        begin = perf_counter()
        outputs = framework.repeat(again, module, tensors)
        framework.finish(tensors)
        region.took(perf_counter() - begin)
    is_again = True
    return outputs


def taken_apart(value: Any, framework: Repeats, tensors: list[Any], opaque: list[object]) -> Callable[[Any], Any]:
    """Return a function that builds a value of its tensors; note these, and objects that others may change."""
    kind = type(value)
    if isinstance(value, framework.tensor):
        place = next((place for place, tensor in enumerate(tensors) if tensor is value), len(tensors))
        if place == len(tensors):
            tensors.append(value)
        return lambda given: given[place]
    if kind is dict:
        items = [(key, taken_apart(item, framework, tensors, opaque)) for key, item in value.items()]
        return lambda given: {key: build(given) for key, build in items}
    if kind in (tuple, list):
        parts = [taken_apart(item, framework, tensors, opaque) for item in value]
        return lambda given: kind(build(given) for build in parts)
    if value is not None and not isinstance(value, (*_CONSTANTS, *framework.constants)):
        opaque.append(value)
    return lambda given: value


def _proof(
    backend: Any, module: Any, call: Callable[..., Any], tensors: list[Any], build: Callable[[Any], Any]
) -> tuple[str, tuple[str, ...], int]:
    """Return why a module cannot be called again, empty if it can, the buffers that a call writes, and the saved bytes.

    It runs twice on copies of its arguments and of its state, from the same random numbers, and both runs have to save
    the same bits.
    """
    held = [weight for _, part in backend.named_modules(module) for weight in part._parameters.values()]
    weights = [weight for weight in held if weight is not None]
    versions = [backend.version(weight) for weight in weights]
    drawn: list[str] = []
    runs = []
    with isolated(backend, module) as changes:
        own = {_address(backend, space[key]) for space, key in buffers_of(backend, module).values()}
        for _ in range(2):
            with _same_numbers(backend.repeats, tensors) as numbers:
                runs.append(_run(backend, call, tensors, build, own))
            drawn += numbers
        changed, written = changes()
    first, second = runs
    refusal = first.refusal or (f"keeps a value of its own in {changed[0]}" if changed else "")
    refusal = refusal or (f"draws numbers from {drawn[0]}, which is not set back" if drawn else "")
    if versions != [backend.version(weight) for weight in weights]:
        refusal = refusal or "writes its weights in place"
    refusal = refusal or ("saves other values when it is called again" if first.saved != second.saved else "")
    return refusal, written, first.nbytes


class _Run(NamedTuple):
    refusal: str
    saved: list[Hashable]
    """Keys of the saved and returned tensors."""
    nbytes: int
    """Saved beside weights, buffers and arguments; equal bits count once."""


def _run(
    backend: Any, call: Callable[..., Any], tensors: list[Any], build: Callable[[Any], Any], own: set[int]
) -> _Run:
    """Call a module on copies of its arguments; ``own`` are the addresses of its buffers, which it may write."""
    framework = backend.repeats
    copies = [framework.copied(tensor) for tensor in tensors]
    versions = [backend.version(copy) for copy in copies]
    given = {_address(backend, copy) for copy in copies}
    args, kwargs = build(copies)
    parts = _parts((args, kwargs))
    found: list[Hashable] = []
    sizes: dict[Hashable, int] = {}
    is_done = False

    def pack(tensor: Any) -> None:
        nonlocal is_done
        is_done |= is_below(lambda code: code.co_filename == framework.source)
        found.append(_key(backend, tensor, own))
        if isinstance(found[-1], tuple) and _address(backend, tensor) not in given:
            sizes[found[-1]] = tensor.element_size() * int(tensor.numel())

    try:
        with backend.hooks(pack, _refuse, trusted=True):
            outputs = call(*args, **kwargs)
    except _WantsBack:
        return _Run("computes gradients of its own", [], 0)
    leaves: list[Any] = []
    opaque: list[object] = []
    taken_apart(outputs, framework, leaves, opaque)
    found += [_key(backend, leaf, own) for leaf in leaves]
    left = _parts((args, kwargs))
    is_same = len(left) == len(parts) and all(one is other for one, other in zip(left, parts, strict=True))
    refusal = ALREADY if is_done else ""
    if opaque and framework.rebuilds_outputs:
        refusal = refusal or f"returns a {type(opaque[0]).__qualname__}"
    if not is_same or [backend.version(copy) for copy in copies] != versions:
        refusal = "writes its arguments in place"
    return _Run(refusal, found, sum(sizes.values()))


class _WantsBack(Exception):  # noqa: N818  (no error: it ends a run)
    """Raised where a run asks for a saved tensor."""


def _refuse(packed: None) -> Any:
    raise _WantsBack


def _parts(value: Any) -> list[Any]:
    """Return all that is inside of containers, which can be compared by identity."""
    if type(value) is dict:
        return [dict, *value, *(part for item in value.values() for part in _parts(item))]
    if type(value) in (tuple, list):
        return [type(value), *(part for item in value for part in _parts(item))]
    return [value]


def _key(backend: Any, tensor: Any, own: set[int]) -> Hashable:
    """Return a text for a weight or a buffer, a tuple with the digest of its bits for every other tensor."""
    kind: str = backend.describe(tensor)
    if backend.keep_reason(tensor) in WEIGHTS or _address(backend, tensor) in own:
        return kind
    return kind, backend.repeats.digest(tensor)


def _address(backend: Any, tensor: Any) -> int:
    """Return a key that tells a live tensor from others, also where hooks get it."""
    return id(tensor) if backend.keep_reason(tensor) else int(tensor.data_ptr())


@contextmanager
def _same_numbers(framework: Repeats, tensors: list[Any]) -> Iterator[list[str]]:
    """Set all random numbers back at the end; tell whose were drawn that checkpoints do not set back."""
    drawn: list[str] = []
    pythons, numpys = random.getstate(), np.random.get_state()
    try:
        with framework.same_numbers(tensors):
            yield drawn
    finally:
        if not framework.sets_back_host:
            drawn += ["Python's random"] if random.getstate() != pythons else []
            drawn += ["NumPy's random"] if repr(np.random.get_state()) != repr(numpys) else []
        random.setstate(pythons)
        np.random.set_state(numpys)
