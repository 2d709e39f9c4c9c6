"""A call of a module that is computed again in backward, in any framework, and the proof that it can be."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from tensorstash.abilities.checkpoints import ALREADY, Region

_HOOKS = {"_forward_pre_hooks", "_forward_hooks"}

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
    notes: ClassVar[frozenset[str]] = frozenset()
    """Attributes in which the framework notes the first call of a module."""
    sets_back_host: ClassVar[bool]
    """Whether the framework sets Python's and NumPy's random numbers back, too."""

    @abstractmethod
    def is_in_backward(self) -> bool:
        """Return whether this thread runs a backward, so that nothing is computed again later."""

    @abstractmethod
    def is_checkpointed(self, module: Any) -> bool:
        """Return whether the model computes the module again by itself."""

    @abstractmethod
    def repeat(self, again: Callable[..., Any], module: Any, tensors: list[Any]) -> Any:
        """Call a module on tensors, so that backward calls it again."""

    @abstractmethod
    def finish(self, tensors: list[Any]) -> None:
        """Wait until the devices of tensors have done all that they were told."""

    @abstractmethod
    def buffers(self, module: Any) -> dict[str, Any]:
        """Return the tensors of a module that a call may write, by their names."""

    @abstractmethod
    def unwritten(self, module: Any, names: tuple[str, ...]) -> AbstractContextManager[None]:
        """Leave the buffers of these names as they are, whatever the block writes."""

    @abstractmethod
    def own(self, module: Any) -> frozenset[int]:
        """Return the numbers by which ``memory_of`` knows the buffers of a module."""

    @abstractmethod
    def memory_of(self, tensor: Any, own: frozenset[int]) -> int | None:
        """Return which weight or buffer a tensor is or is a view of; None if it is neither."""

    @abstractmethod
    def digest(self, tensor: Any, own: frozenset[int]) -> Hashable:
        """Return a key, equal for tensors of one kind with the same bits; of a weight or a buffer, its identity."""

    @abstractmethod
    def address(self, tensor: Any) -> int:
        """Return a key that tells a live tensor from others, also where hooks get it."""

    @abstractmethod
    def copied(self, tensor: Any) -> Any:
        """Return a copy that is no leaf and requires grad as the tensor does."""

    @abstractmethod
    def version(self, tensor: Any) -> int:
        """Return how often a tensor was written."""

    @abstractmethod
    def saving(self, pack: Callable[[Any], None], unpack: Callable[[None], Any]) -> AbstractContextManager[None]:
        """Install hooks for this thread."""

    @abstractmethod
    def leaves(self, outputs: Any) -> tuple[list[Any], str]:
        """Return the tensors in a module's result, and the reason why it cannot be computed again."""

    @abstractmethod
    def random_state(self, tensors: list[Any]) -> Callable[[], None]:
        """Return a function that sets the framework's random numbers back to their present state."""

    @abstractmethod
    def parts(self, module: Any) -> Iterable[tuple[str, Any]]:
        """Return a module and those inside, with their names."""

    @abstractmethod
    def is_weight(self, value: object) -> bool:
        """Return whether a value is a weight or a view of one."""

    @abstractmethod
    def is_checkpoint_saving(self) -> bool:
        """Return whether the hook that is running is called for a checkpoint inside."""


def call_again(
    framework: Repeats,
    region: Region,
    module: Any,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a module so that backward calls it again, if it is proved that it can be, and as ever otherwise.

    Args:
        framework: of the module.
        region: record of the module; gets the result of the proof.
        module: in training.
        call: of the module.
        args: of the call.
        kwargs: of the call.
    """
    if not region.is_wanted or region.refusal or not module.training or framework.is_in_backward():
        return call(*args, **kwargs)
    if framework.is_checkpointed(module):
        region.judged(region.refusal or ALREADY)
        return call(*args, **kwargs)
    tensors: list[Any] = []
    opaque: list[object] = []
    build = taken_apart((args, kwargs), framework, tensors, opaque)
    if opaque:
        region.judged(f"takes a {type(opaque[0]).__qualname__}, which a second call may find changed")
    elif region.refusal is None:
        region.judged(*_proof(framework, module, call, tensors, build))
    if not region.is_repeated:
        return call(*args, **kwargs)

    is_again = False

    def again(*tensors: Any) -> Any:
        args, kwargs = build(tensors)
        with framework.unwritten(module, region.written) if is_again else nullcontext():
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
    framework: Repeats, module: Any, call: Callable[..., Any], tensors: list[Any], build: Callable[[Any], Any]
) -> tuple[str, tuple[str, ...], int]:
    """Return why a module cannot be called again, empty if it can, the buffers that a call writes, and the saved bytes.

    It runs twice on copies, from the same random numbers, and both runs have to save the same bits. Its attributes and
    buffers are put back.
    """
    buffers = framework.buffers(module)
    before = {name: framework.digest(buffer, frozenset()) for name, buffer in buffers.items()}
    drawn: list[str] = []
    with framework.unwritten(module, tuple(buffers)), _quiet(framework, module) as changed:
        own = framework.own(module)
        first, second = _Run(framework, own), _Run(framework, own)
        for run in (first, second):
            with _same_numbers(framework, tensors) as numbers:
                run.of(call, tensors, build)
            drawn += numbers
        after = framework.buffers(module)
        written = tuple(name for name in buffers if framework.digest(after[name], frozenset()) != before[name])
    refusal = first.refusal or (f"keeps a value of its own in {changed[0]}" if changed else "")
    refusal = refusal or (f"draws numbers from {drawn[0]}, which is not set back" if drawn else "")
    refusal = refusal or ("saves other values when it is called again" if first.saved != second.saved else "")
    return refusal, written, sum(first.sizes.values())


class _Run:
    """One call of a module on copies of its arguments, and the digests of its saved and returned tensors.

    Args:
        framework: of the module.
        own: the memory of the module, which a call may write.
    """

    def __init__(self, framework: Repeats, own: frozenset[int]) -> None:
        self._framework = framework
        self._own = own
        self._given: frozenset[int] = frozenset()
        self.sizes: dict[Hashable, int] = {}
        """Saved bytes beside weights, buffers and arguments; equal bits count once."""
        self.saved: list[Hashable] = []
        self.refusal = ""

    def of(self, call: Callable[..., Any], tensors: list[Any], build: Callable[[Any], Any]) -> None:
        """Call it."""
        framework = self._framework
        copies = [framework.copied(tensor) for tensor in tensors]
        versions = [framework.version(copy) for copy in copies]
        self._given = frozenset(framework.address(copy) for copy in copies)
        args, kwargs = build(copies)
        parts = _parts((args, kwargs))
        try:
            with framework.saving(self._pack, _refuse):
                outputs = call(*args, **kwargs)
        except WantsBack:
            self.refusal = "computes gradients of its own"
            return
        leaves, refusal = framework.leaves(outputs)
        self.refusal = self.refusal or refusal
        self.saved += [framework.digest(leaf, self._own) for leaf in leaves]
        left = _parts((args, kwargs))
        is_same = len(left) == len(parts) and all(one is other for one, other in zip(left, parts, strict=True))
        if not is_same or [framework.version(copy) for copy in copies] != versions:
            self.refusal = "writes its arguments in place"

    def _pack(self, tensor: Any) -> None:
        if self._framework.is_checkpoint_saving():
            self.refusal = ALREADY
        framework = self._framework
        digest = framework.digest(tensor, self._own)
        self.saved.append(digest)
        if framework.memory_of(tensor, self._own) is None and framework.address(tensor) not in self._given:
            self.sizes[digest] = tensor.element_size() * int(tensor.numel())


def _parts(value: Any) -> list[Any]:
    """Return all that is inside of containers, which can be compared by identity."""
    if type(value) is dict:
        return [dict, *value, *(part for item in value.values() for part in _parts(item))]
    if type(value) in (tuple, list):
        return [type(value), *(part for item in value for part in _parts(item))]
    return [value]


class WantsBack(Exception):  # noqa: N818  (no error: it ends a run)
    """Raised where a run asks for a saved tensor."""


def _refuse(packed: None) -> Any:
    raise WantsBack


@contextmanager
def _quiet(framework: Repeats, module: Any) -> Iterator[list[str]]:
    """Take the hooks of others off the modules inside, put their attributes back, and tell which were changed."""
    changed: list[str] = []
    spaces = [(name, space) for name, part in framework.parts(module) for space in (vars(part), part._buffers)]
    held = [dict(space) for _, space in spaces]
    drawers: list[Any] = [one for space in held for one in space.values() if isinstance(one, framework.generator)]
    states = [one.get_state() for one in drawers]
    for _, space in spaces:
        for kind in _HOOKS & space.keys():
            if foreign := [key for key, hook in space[kind].items() if not _brings_weights(framework, hook)]:
                space[kind] = type(space[kind])(item for item in space[kind].items() if item[0] not in foreign)
    try:
        yield changed
    finally:
        for (name, space), before in zip(spaces, held, strict=True):
            space.update({kind: before[kind] for kind in _HOOKS & before.keys()})
            new = [key for key in space if space[key] is not before.get(key) and key not in framework.notes]
            for key in [key for key in new if _is_value(framework, space[key])]:
                changed.append(f"{name}.{key}".lstrip("."))
                if key in before:
                    space[key] = before[key]
                else:
                    del space[key]
        for drawer, state in zip(drawers, states, strict=True):
            drawer.set_state(state)


def _is_value(framework: Repeats, value: object) -> bool:
    kinds = (int, float, complex, framework.tensor, tuple, list, dict, framework.generator)
    return isinstance(value, kinds) and not framework.is_weight(value)


def _brings_weights(framework: Repeats, hook: Any) -> bool:
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", "")).startswith(framework.bringers)


@contextmanager
def _same_numbers(framework: Repeats, tensors: list[Any]) -> Iterator[list[str]]:
    """Set all random numbers back at the end; tell whose were drawn that checkpoints do not set back."""
    drawn: list[str] = []
    set_back = framework.random_state(tensors)
    pythons, numpys = random.getstate(), np.random.get_state()
    try:
        yield drawn
    finally:
        if random.getstate() != pythons:
            drawn.append("Python's random")
            random.setstate(pythons)
        if repr(np.random.get_state()) != repr(numpys):
            drawn.append("NumPy's random")
            np.random.set_state(numpys)
        if framework.sets_back_host:
            drawn.clear()
        set_back()
