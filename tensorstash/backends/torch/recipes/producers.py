"""Producers of saved tensors, and their recipes, found in the graph of PyTorch while a tensor is packed.

A node shows its saved tensors, and so the handles of its operands; operands that it has not saved are found as outputs
of other nodes, for which a handle was noted or which are followed further. Nothing of the graph is held: a note lies in
the node itself, and refers to its handle weakly. Where a node lacks an attribute that is wanted, there is no recipe.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _DisableTorchDispatch, _len_torch_dispatch_stack, _len_torch_function_stack
from torch.nn import Parameter

from tensorstash.abilities.recipes import Leaf, Recipe
from tensorstash.backends.search import Call, NoRecipe, Number, Search, run_again
from tensorstash.backends.torch.layout import DTYPE_NAMES, Unrecorded, dense, restored
from tensorstash.backends.torch.readers import CAN_TELL
from tensorstash.backends.torch.recipes.digests import Comparisons, device_digest
from tensorstash.backends.torch.recipes.rules import CAST, Rule
from tensorstash.backends.torch.recipes.rules import rules as built_in
from tensorstash.host.arrays import few_bytes
from tensorstash.host.checksum import checksum_at
from tensorstash.spec import ALIGNMENT, TensorSpec, memory_order

_VIEW = "view"


class Producers:
    """The producers of saved tensors, for one session; see :class:`tensorstash.abilities.recipes.Producers`."""

    __slots__ = ("_comparisons", "_rules", "is_ours", "key")

    def __init__(self, is_ours: Callable[[object], bool], rules: Sequence[Rule]) -> None:
        self.is_ours = is_ours
        self._rules = {**built_in(), **{rule.node: rule for rule in rules}}
        self.key = object()
        """Of the notes that count."""
        self._comparisons = Comparisons()

    def note(self, tensor: Tensor, spec: TensorSpec, handle: Any, /) -> None:
        """Remember in the tensor's node which handle stands for it, and in that of its base, which views have one."""
        node: Any = tensor.grad_fn
        if node is None:
            return
        noted, key, base = ref(handle), self.key, tensor._base
        node.metadata[key, tensor.output_nr] = noted
        made: Any = None if base is None else base.grad_fn
        if base is not None and made is not None:
            made.metadata.setdefault((key, base.output_nr, _VIEW), noted)

    def noted(self, tensor: Tensor, spec: TensorSpec, /) -> Any:
        base = tensor._base
        made = tensor if base is None else base
        node: Any = made.grad_fn
        # Of another dtype or with a lazy flag it is no layout of the remade tensor.
        if node is None or spec.conj or spec.neg or not (base is None or _is_plain(tensor, base)):
            return None
        key, number = self.key, made.output_nr
        note = node.metadata.get((key, number)) or node.metadata.get((key, number, _VIEW))
        return None if note is None else note()

    @property
    def lacks(self) -> str:
        hides = f"PyTorch {torch.__version__} hides the saved tensors of its graph; use 2.10 or newer"
        return "" if CAN_TELL else hides

    def forget(self) -> None:
        self.key = object()

    def recipe(self, tensor: Tensor, spec: TensorSpec, ops: frozenset[str] | None, depth: int, /) -> Recipe | str:
        base = tensor._base
        made = tensor if base is None else base
        node = made.grad_fn
        if node is None or not CAN_TELL:
            return self.lacks or "made outside of the graph"
        if not _is_whole(tensor, spec, base):
            return "part of a larger memory"
        return _Search(self._rules, ops, depth, self).recipe(node, made.output_nr, settings=_settings())

    def narrowed(self, tensor: Tensor, spec: TensorSpec, /) -> tuple[Recipe, Tensor] | None:
        """Return the source of a cast to a wide floating-point type, and the cast."""
        base = tensor._base
        made = tensor if base is None else base
        node, dtype = made.grad_fn, made.dtype
        if type(node).__name__ != CAST.node or not dtype.is_floating_point:  # as nearly all
            return None
        before, number = node.next_functions[0]  # type: ignore[union-attr]
        shown: Any = getattr(before, "_input_metadata", ())
        source = shown[number].dtype if number < len(shown) else None
        holds_all = source in (torch.float16, torch.bfloat16) and dtype.itemsize > source.itemsize
        if not holds_all or not _is_whole(tensor, spec, base):
            return None
        with _unseen():
            narrow = made.detach().to(source)
        return Recipe("narrow", Call(CAST, (dtype,), (0,)), (), 1), narrow

    def whole(self, tensor: Tensor, /) -> Tensor:
        base = tensor._base
        return tensor if base is None else base

    def run(self, recipe: Recipe, values: Sequence[Tensor], spec: TensorSpec, /) -> Tensor:
        device, before = spec.device.partition(":")[0], _settings()
        follows, wanted = torch.is_autocast_enabled(device), recipe.settings or before
        try:
            if wanted != before:
                _set(wanted)
            if follows:
                torch.set_autocast_enabled(device, False)
            with _unseen():
                return _laid_out(run_again(recipe.operation, values), values, spec)
        finally:
            if follows:
                torch.set_autocast_enabled(device, True)
            if wanted != before:
                _set(before)

    def part(self, whole: Tensor, spec: TensorSpec, /) -> Tensor:
        with _unseen():
            if whole.shape != spec.shape or whole.stride() != spec.strides or spec.offset:
                start = whole.storage_offset() + spec.offset // spec.itemsize
                whole = whole.as_strided(spec.shape, spec.strides, start)
            return whole.detach()

    def are_there(self, tensors: Sequence[Tensor], /) -> bool:
        """Whether the storage of each tensor has any bytes, or need not have, and no other process can write to it."""
        with DisableTorchFunction():
            for tensor in tensors:
                storage = tensor.untyped_storage()
                if (not storage.nbytes() and tensor.numel()) or (tensor.is_cpu and storage.is_shared()):
                    return False
        return True

    def sample(self, tensor: Tensor, /) -> Hashable:
        if not tensor.is_cpu:
            return None
        with _unseen():
            there = tensor.untyped_storage().nbytes() - int(tensor.storage_offset()) * tensor.itemsize
            nbytes = min(tensor.nbytes, there)  # less where it repeats itself; none where its memory was freed
            return few_bytes(tensor.data_ptr(), nbytes, tensor.itemsize) if nbytes > 0 else None

    def digest(self, whole: Tensor, /) -> Any:
        """Return a checksum of one run of memory, which the strides only read in some order; a tensor on a device."""
        with _unseen():
            if not whole.is_cpu:
                return device_digest(whole)
            there = whole.untyped_storage().nbytes() - int(whole.storage_offset()) * whole.itemsize
            return checksum_at(whole.data_ptr(), whole.nbytes) if whole.nbytes <= there else None  # somebody freed it

    def require_equal(self, one: Any, other: Any, refuse: Callable[[], Exception], /) -> None:
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            self._comparisons.require_equal(one, other, refuse)
        elif one != other:
            raise refuse()

    def copied(self, tensor: Tensor, most_bytes: int, /) -> Tensor | None:
        if type(tensor) not in (Tensor, Parameter) or tensor.layout != torch.strided or tensor.nbytes > most_bytes:
            return None
        with _unseen():
            is_freed = tensor.numel() and not tensor.untyped_storage().nbytes()
            return None if is_freed else tensor.detach().clone()


class _Search(Search):
    """Follows the graph back from one tensor."""

    __slots__ = ()

    def output(self, node: Any, number: int, *, is_root: bool = False) -> tuple[Any, int]:
        """Return how an output of a node is made, and in how many operations; raise NoRecipe if it cannot be."""
        if not is_root:
            if node is None:
                raise NoRecipe("an operand that the graph does not know")
            note = node.metadata.get((self._producers.key, number))
            handle = None if note is None else note()
            if handle is not None:
                return self.input(handle), 0
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            return self._leaf(node.variable), 0
        rule = self.rule(kind)
        if number:
            raise NoRecipe(f"no rule for {kind}")
        try:
            settings = rule.settings(node)
            if settings is None:
                raise NoRecipe(f"{kind} does not tell its settings")
            operands = []
            for place, each in enumerate(rule.inputs):
                operands.append(self._operand(node, place, *each))
        except AttributeError as error:
            raise NoRecipe(f"{kind} of this version of PyTorch has no {error.name}") from error
        except RuntimeError as error:  # its saved tensors are released
            raise NoRecipe(f"{kind} hides its saved tensors") from error
        return self.call(rule, settings, operands)

    def _operand(self, node: Any, place: int, name: str, optional: bool, which: int | None) -> tuple[Any, int]:
        if name:
            shown = getattr(node, f"_raw_saved_{name}")
            kept = (shown if which is None else shown[which]).data
            if isinstance(kept, Tensor):
                if kept.dim() or not kept.is_cpu:
                    raise NoRecipe("an operand that was saved outside of the scope")
                value = kept.item()
                return Number(repr(value), value), 0
            if kept is not None:
                if not self._producers.is_ours(kept):
                    raise NoRecipe("an operand that was saved under the hooks of others")
                self.inputs.append(kept)  # as :meth:`input` does, without its frame
                found = len(self.inputs) - 1
                if name.startswith("result"):  # PyTorch's name for what the operation has returned
                    self.own.append(found)
                return found, 0
        edges = node.next_functions
        before, number = edges[place] if place < len(edges) else (None, 0)
        if before is None and optional:
            return None, 0
        return self.output(before, number)

    def _leaf(self, tensor: Tensor) -> int:
        if type(tensor) not in (Tensor, Parameter) or not tensor.untyped_storage().nbytes():
            raise NoRecipe("a leaf without memory of its own")
        return self.input(Leaf(tensor))


def _laid_out(made: Tensor, values: Sequence[Any], spec: TensorSpec) -> Tensor:
    if DTYPE_NAMES.get(made.dtype) != spec.dtype or made.shape != spec.shape:
        raise ValueError(f"made {made.dtype}{tuple(made.shape)}, expected {spec}")
    address, is_fresh = made.untyped_storage().data_ptr(), True
    for value in values:
        if value is not None and value.untyped_storage().data_ptr() == address:
            is_fresh = False
    if not is_fresh or made.stride() != spec.strides or made.storage_offset():
        made = torch.empty_strided(spec.shape, spec.strides, dtype=made.dtype, device=made.device).copy_(made)
    if made.data_ptr() % ALIGNMENT != spec.alignment and made.numel():
        made = restored(dense(made, spec), spec, adopt=False)
    return made


def _settings() -> tuple[int, bool]:
    """Return the numbers that choose the kernel of an element: the last of each thread's share are made otherwise."""
    return torch.get_num_threads(), torch._C._get_mkldnn_enabled()


def _set(settings: Any) -> None:
    threads, mkldnn = settings
    if threads != torch.get_num_threads():  # even the same number changes the last bits of later products of MKL
        torch.set_num_threads(threads)
    torch._C._set_mkldnn_enabled(mkldnn)


def _unseen() -> AbstractContextManager[None]:
    """Return a block that records no gradients, and of which no mode of the user's sees anything."""
    if torch.is_grad_enabled() or _len_torch_dispatch_stack() or _len_torch_function_stack():
        return _hidden()
    return _AS_IT_IS  # as nearly always in backward


_AS_IT_IS = nullcontext()


@contextmanager
def _hidden() -> Iterator[None]:
    with DisableTorchFunction(), _DisableTorchDispatch(), Unrecorded():
        yield


def _is_whole(tensor: Tensor, spec: TensorSpec, base: Tensor | None) -> bool:
    """Whether a tensor, or the base of a view, is all of its memory, and the tensor is read as it lies there."""
    made = tensor if base is None else base
    if made.is_nested or made.storage_offset() or spec.conj or spec.neg:
        return False
    if base is not None and not _is_plain(tensor, base):
        return False
    span = memory_order(made.shape, made.stride()).span
    return bool(span * made.itemsize == made.nbytes == tensor.untyped_storage().nbytes())


def _is_plain(view: Tensor, base: Tensor) -> bool:
    """Whether a view is of the dtype of its base, which has no lazy flags."""
    return view.dtype == base.dtype and not base.is_conj() and not base.is_neg()
