"""Codes of a few bits: packed piece by piece from any place on, and unpacked from any place on."""

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tensorstash.kernels.bits import pack_codes, packed_nbytes, unpack_codes


@pytest.mark.parametrize("bits", [2, 4, 8])
@given(data=st.data())
def test_pieces_of_any_length_are_one_stream(bits: int, data: st.DataObject) -> None:
    codes = np.array(data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=40)), np.uint8)
    cuts = sorted(data.draw(st.sets(st.integers(1, codes.size), max_size=5)) | {0, codes.size})
    packed = np.full(packed_nbytes(codes.size, bits), 0xFF, np.uint8)
    for start, stop in pairwise(cuts):
        pack_codes(codes[start:stop].copy(), bits, packed, start)
    for start, stop in pairwise(cuts):
        assert unpack_codes(packed, bits, start, stop - start).tolist() == codes[start:stop].tolist()
    # The first code in the lowest bits, and nothing behind the last.
    number = sum(int(code) << (bits * place) for place, code in enumerate(codes))
    assert packed.tobytes() == number.to_bytes(packed.size, "little")
