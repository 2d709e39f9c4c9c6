"""The functions compiled from ``native/``, where the package was installed with a C compiler."""

from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

from tensorstash.buffers import Array


class Functions(Protocol):
    """What is compiled. Each function does what its caller otherwise does in NumPy or Python, with the same result.

    Arrays are contiguous, and only those that are said to be filled or added to are written. All release the
    interpreter lock while they work.
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


def _load() -> Functions | None:
    if find_spec("tensorstash._native") is None:
        return None
    return cast(Functions, import_module("tensorstash._native"))


functions: Functions | None = _load()
"""None where nothing was compiled; a test sets it to None to see that everything works without."""
