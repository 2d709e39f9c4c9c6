"""Recipes of saved tensors, and the ability of a backend to run them."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from tensorstash.spec import TensorSpec

T = TypeVar("T")


class Leaf(NamedTuple):
    """An input of a recipe that nobody saved and that lives anyway, such as a parameter."""

    tensor: Any


class Recipe(NamedTuple):
    """The recipe of one tensor: operations to run, and their inputs. Holds no node of a graph and no activation.

    Args:
        rule: the rules that it follows, for statistics and messages, such as ``"cast(layer_norm)"``.
        operation: number for :meth:`Producers.run`; equal for recipes that run the same operations in the same way.
        inputs: for each value that it needs, the handle of a saved tensor, or a :class:`Leaf`.
        depth: operations that are run one after the other; views count for nothing.
        settings: of the program when the tensor was made, as far as the bits depend on them; None where they do not.
        own: places of inputs that the operations have made themselves, such as the mask of a dropout.
    """

    rule: str
    operation: Hashable
    inputs: tuple[Any, ...]
    depth: int
    settings: Hashable = None
    own: tuple[int, ...] = ()


class Producers(Protocol[T]):
    """The producers of saved tensors, and recipes to make them again. Thread-safe; keeps nothing of a graph alive.

    A backend derives from it, and inherits all that it does not define. A recipe runs under its own settings, records
    no gradients, follows no autocast, and leaves alone whatever is the user's.
    """

    @property
    def lacks(self) -> str:
        """The reason why nothing can be made again with the installed versions, and the cure; empty if tensors can."""
        return ""

    def note(self, tensor: T, spec: TensorSpec, handle: Any, /) -> None:
        """Remember, as long as both live, that ``handle``, referred to weakly, stands for a tensor of the graph."""

    def noted(self, tensor: T, spec: TensorSpec, /) -> Any:
        """Return the handle that was noted for :meth:`whole` of a tensor, or for a view of that; None without one."""

    def forget(self) -> None:
        """Forget the handles that were noted so far."""

    def recipe(self, tensor: T, spec: TensorSpec, ops: frozenset[str] | None, depth: int, /) -> Recipe | str:
        """Return how :meth:`whole` of a tensor is made again from handles that are noted, or saved by its producer.

        Where there is none it returns why: a few words, the same for all tensors of a kind. It uses rules of the names
        ``ops``, or all for None, and at most ``depth`` operations one after the other.
        """

    def narrowed(self, tensor: T, spec: TensorSpec, /) -> tuple[Recipe, T] | None:
        """Return how :meth:`whole` of a tensor is made of a smaller one, such as one it was cast from, and that one.

        The recipe has no inputs, and is to be given the handle of the smaller tensor, which is in fresh memory and part
        of no graph. None for all that is as narrow as can be.
        """
        return None

    def whole(self, tensor: T, /) -> T:
        """Return the tensor itself, or the one that it is a view of, to look at it and drop it."""

    def run(self, recipe: Recipe, values: Sequence[T], spec: TensorSpec, /) -> T:
        """Return the tensor of a recipe in fresh memory, with the layout of ``spec``.

        ``values`` are the tensors behind the handles of its inputs, and its leaves; they are only read.
        """

    def part(self, whole: T, spec: TensorSpec, /) -> T:
        """Return an alias of ``whole``, with its version and with the layout of ``spec`` in its storage."""

    def are_there(self, tensors: Sequence[T], /) -> bool:
        """Whether tensors have their memory now, which no other process shares: trainers free parameters for a while.

        An operation behind a module may ask for its result before the parameters of the module are gathered again.
        """
        return True

    def sample(self, tensor: T, /) -> Hashable:
        """Return a few elements as bits, spread over the tensor; None where reading them would wait for a device."""

    def digest(self, whole: T, /) -> Any:
        """Return a number that depends on every bit of a tensor that :meth:`whole` or :meth:`run` gave, as it is now.

        On the host an int; on a device a tensor, for which nobody waits here.
        """

    def require_equal(self, one: Any, other: Any, refuse: Callable[[], Exception], /) -> None:
        """Raise the error of ``refuse`` if two digests differ: now, or where that would wait for a device, when the
        running backward ends, out of the call that has started it."""
        if one != other:
            raise refuse()

    def copied(self, tensor: T, most_bytes: int, /) -> T | None:
        """Return a plain tensor of at most so many bytes in fresh memory, part of no graph; None for all others."""


@runtime_checkable
class SupportsProducers(Protocol[T]):
    """A backend whose framework tells inside ``pack`` which operation made a tensor, and its inputs."""

    def producers(self, is_ours: Callable[[object], bool], rules: Sequence[Any], /) -> Producers[T]:
        """Return the producers of one session: of handles that ``is_ours`` tells, also by rules of plug-ins."""
