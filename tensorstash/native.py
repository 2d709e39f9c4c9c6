"""The functions compiled from ``native/``, where the package was installed with a C compiler."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, cast

from tensorstash.buffers import Array


class Functions(Protocol):
    """What is compiled. Each function does what its caller otherwise does in NumPy or Python, with the same result.

    Arrays are contiguous, and only those that are said to be filled or added to are written. What works on
    arrays releases the interpreter lock meanwhile.
    """

    def affine_encode(
        self, source: Array, body: Array, dtype: str, groups: tuple[int, int, int], bits: int, seed: int, /
    ) -> None:
        """Fill what follows the header in a payload of :class:`~tensorstash.codecs.affine.Affine`.

        Args:
            source: the elements, as carrier bits, at an address that is a multiple of their size.
            body: ``uint8``: the scales, the lows and the packed codes; filled.
            dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
            groups: rows, elements of a row and of a group.
            bits: of a code.
            seed: word of stochastic rounding; -1 for rounding to nearest.

        Raises:
            ValueError: the sizes do not fit together.
        """
        ...

    def affine_decode(self, body: Array, target: Array, dtype: str, groups: tuple[int, int, int], bits: int, /) -> None:
        """Fill the elements that a payload stands for, whatever is in it.

        Args:
            body: what follows its header.
            target: the elements, as carrier bits, at an address that is a multiple of their size; filled.
            dtype: as for :meth:`affine_encode`, like ``groups`` and ``bits``.
            groups: likewise.
            bits: likewise.

        Raises:
            ValueError: the sizes do not fit together.
        """
        ...

    def column_sums(self, words: Array, sums: Array, block: int, copy: Array = ..., /) -> None:
        """Add the words of each block, seen as the rows of a matrix, to the sums of its columns.

        Args:
            words: ``uint64`` at any address, not empty.
            sums: ``uint64``, a row for each block and a column for each of the matrix; added to, modulo 2**64.
            block: words of a block; the last may be shorter, and so may the last row of each matrix.
            copy: filled with ``words`` on the way, if it is given; elsewhere in memory.
        """
        ...

    def narrow_bfloat16(self, values: Array, bits: Array, /) -> None:
        """Fill words with rounded floats, as :func:`~tensorstash.codecs.floats.narrow` rounds them.

        Args:
            values: ``float32``, at an address that is a multiple of 4.
            bits: words of 2 bytes, as many, at an address that is a multiple of 2; filled.

        Raises:
            ValueError: the sizes do not fit together.
        """
        ...

    def widen_bfloat16(self, bits: Array, values: Array, /) -> None:
        """Fill floats with the values of words; the inverse of :meth:`narrow_bfloat16`, and for the same addresses."""
        ...

    def pack_booleans(self, flags: Array, packed: Array, /) -> bool:
        """Whether all bytes are 0 or 1; if so they are packed, else what is packed means nothing.

        Args:
            flags: any elements, as bytes.
            packed: one bit for each byte, the first in the lowest bit; filled, the rest of the last byte with zeros.
        """
        ...

    def unpack_booleans(self, packed: Array, flags: Array, /) -> None:
        """Fill flags, the inverse of :meth:`pack_booleans`."""
        ...

    def pack_two_values(self, words: Array, pair: Array, packed: Array, /) -> bool:
        """Whether there are at most two values; if so they and the bits are filled, else these mean nothing.

        Args:
            words: elements of 1, 2, 4 or 8 bytes.
            pair: two elements, the first of which is ``words[0]``, and is repeated if there is no other.
            packed: one bit for each element, as of :meth:`pack_booleans`: 1 where it is the second.
        """
        ...

    def unpack_two_values(self, packed: Array, pair: Array, words: Array, /) -> None:
        """Fill words, the inverse of :meth:`pack_two_values`."""
        ...

    def mask_nonzero(self, words: Array, itemsize: int, mask: Array, /) -> int:
        """Fill the bit of each element that is not zero with 1, the others with 0, and return how many are not zero.

        Args:
            words: elements of ``itemsize`` bytes, which are 2, 4 or 8.
            mask: one bit for each, as of :meth:`pack_booleans`.
        """
        ...

    def gather_masked(self, words: Array, itemsize: int, mask: Array, values: Array, /) -> bool:
        """Whether the mask has as many ones as there are values; if so these are filled with the elements there."""
        ...

    def scatter_masked(self, values: Array, itemsize: int, mask: Array, words: Array, /) -> bool:
        """Whether the mask has as many ones as there are values; if so they are put there, and zeros elsewhere."""
        ...

    def extremes(self, words: Array, itemsize: int, is_signed: bool, /) -> tuple[int, int]:
        """Return the smallest and the largest of at least one integer of 2, 4 or 8 bytes."""
        ...

    def narrow_words(self, words: Array, least: Array, stored: Array, /) -> None:
        """Fill ``stored`` with the differences between integers and the least one, without their high bytes.

        Args:
            words: integers of 2, 4 or 8 bytes.
            least: one such integer.
            stored: as many integers, of 1, 2 or 4 bytes and narrower.
        """
        ...

    def widen_words(self, stored: Array, least: Array, words: Array, /) -> None:
        """Fill words, the inverse of :meth:`narrow_words`."""
        ...

    def take_fields(self, floats: Array, itemsize: int, pairs: tuple[tuple[int, Array], ...], /) -> None:
        """Fill fields of floats of 2, 4 or 8 bytes.

        Args:
            floats: elements of ``itemsize`` bytes.
            pairs: at most four: the lowest bit of a field, or -1 for the sign and the seven bits below the last field,
                in one byte; and an unsigned integer of 1, 2 or 4 bytes for each float, narrower than it; filled.
        """
        ...

    def join_fields(self, floats: Array, /, *fields: Array) -> None:
        """Fill floats from all their fields, the highest first."""
        ...

    def huffman_frames(
        self, words: Array, itemsize: int, start: int, width: int, count: int, frames: Array, /
    ) -> tuple[int, int]:
        """Fill ``frames`` with as many whole Zstandard frames as there is room for, of Huffman coded literals alone.

        The library, which stands in for it elsewhere, writes other frames of the same content.

        Args:
            words: bytes, or floats of 2, 4 or 8 bytes.
            itemsize: of one of them.
            start: of the field that is coded, as for :meth:`take_fields`; 0 for bytes.
            width: of that field, in bytes; 1 for bytes.
            count: words of a frame, at most 2**20; the last one may have fewer.
            frames: bytes, with room for one frame at least; what lies beyond the last one is filled with anything.

        Returns:
            How many words are in the frames, and how many bytes these take.

        Raises:
            ValueError: the sizes do not fit together, or there is no room for one frame.
        """
        ...

    def keeping(
        self,
        small: Mapping[int, Any],
        min_bytes: int,
        large: Mapping[int, Any] | None,
        nbytes: Callable[[Any], int],
        state: object,
        alias: Callable[[Any], Any],
        version: Callable[[Any], int],
        pack: Callable[[Any], Any],
        /,
    ) -> Callable[[Any], Any]:
        """Return ``pack`` with a short way for tensors that are kept whatever they are.

        Args:
            small: counters, by bytes, of tensors below ``min_bytes``.
            min_bytes: in bytes.
            large: counters of all others, or None for those that ``pack`` has to look at.
            nbytes: of a tensor; may raise RuntimeError, which is left to ``pack``.
            state: the first item of a handle.
            alias: of a tensor; the second item.
            version: of a tensor; the third item.
            pack: the function that defines what is done.
        """
        ...

    def restoring(self, restore: Callable[[Any], Any], /) -> Callable[[Any], Any]:
        """Return :func:`tensorstash.engine.handle.restore` with a short way for unchanged tensors that were kept."""
        ...

    def packing(
        self,
        innermost: dict[int, Any],
        box: Callable[[Any], Any],
        unhooked: Callable[[Any], Any],
        not_packed: Callable[[Any, BaseException], Any],
        /,
    ) -> Callable[[Any], Any]:
        """Return the pack hook of :func:`tensorstash.backends.paddle_packed.pair_for_paddle`.

        Args:
            innermost: scopes by thread.
            box: gets the scope and what its ``pack`` made of the tensor, in a tuple; what ``keeping`` has made takes
                the scope itself.
            unhooked: takes what is saved where no scope is ready for it.
            not_packed: takes a scope and what its ``pack`` has raised.
        """
        ...

    def unpacking(
        self,
        box: type,
        unboxed: Callable[[Any], Any],
        hook_failed: Callable[[BaseException], None],
        backwards: Any,
        with_memory: Callable[[Any], Any],
        /,
    ) -> Callable[[Any], Any]:
        """Return the unpack hook of :func:`tensorstash.backends.paddle_packed.pair_for_paddle`.

        Args:
            box: the type that ``packing`` was given.
            unboxed: takes everything else.
            hook_failed: takes what was raised.
            backwards: whose ``release`` says whether the box is to be emptied.
            with_memory: takes a tensor without memory, and returns what stands in for it.
        """
        ...

    def aliasing(self, detach: Callable[[Any], Any], /) -> Callable[[Any], Any]:
        """Return :meth:`tensorstash.backends.paddle.PaddleBackend.alias`, given what detaches a tensor."""
        ...

    def sizing(self, element_size: Callable[[Any], int], /) -> Callable[[Any], int]:
        """Return :meth:`tensorstash.backends.paddle.PaddleBackend.nbytes`, given the bytes of an element."""
        ...


def _load() -> Functions | None:
    if find_spec("tensorstash._native") is None:
        return None
    return cast(Functions, import_module("tensorstash._native"))


functions: Functions | None = _load()
"""None where nothing was compiled; a test sets it to None to see that everything works without."""
