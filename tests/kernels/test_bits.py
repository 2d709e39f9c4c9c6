"""Codes of a few bits: packed into bytes, and unpacked."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tensorstash.kernels.bits import pack_codes, packed_nbytes, unpack_codes


@pytest.mark.parametrize("bits", [2, 4])
@given(data=st.data())
def test_codes_are_one_number_whose_lowest_bits_are_the_first(bits: int, data: st.DataObject) -> None:
    codes = np.array(data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=40)), np.uint8)
    packed = np.full(packed_nbytes(codes.size, bits), 0xFF, np.uint8)
    pack_codes(codes, bits, packed)
    assert unpack_codes(packed, bits, codes.size).tolist() == codes.tolist()
    number = sum(int(code) << (bits * place) for place, code in enumerate(codes))
    assert packed.tobytes() == number.to_bytes(packed.size, "little")
