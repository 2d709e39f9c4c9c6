"""What the checksum sees."""

import numpy as np
import pytest

from tensorstash.host.arrays import borrowed
from tensorstash.host.checksum import CHECKSUM_BLOCK, block_checksums, checksum, joint_checksum


@pytest.mark.parametrize("nbytes", [0, 7, CHECKSUM_BLOCK, CHECKSUM_BLOCK + 1, 3 * CHECKSUM_BLOCK + 77_777])
def test_each_block_has_its_checksum_and_a_copy_is_made_of_all_bytes_and_no_more(payload, nbytes):
    data, memory = borrowed(payload(nbytes)), np.full(nbytes + 20, 77, np.uint8)
    copy = memory[3 : 3 + nbytes]
    blocks = [data[start : start + CHECKSUM_BLOCK] for start in range(0, nbytes, CHECKSUM_BLOCK)]
    assert block_checksums(data) == block_checksums(data, copy=copy) == list(map(checksum, blocks))
    assert np.array_equal(copy, data)
    assert (memory[:3] == 77).all()
    assert (memory[3 + nbytes :] == 77).all()
    assert joint_checksum(data[:5], data[5:]) == checksum(data)
