import numpy as np
from tensorstash_pages.xor import Xor

from tensorstash.testing import CodecSuite, Golden


class TestXor(CodecSuite):
    codec = Xor()
    golden = (Golden("int16", np.array([1, 1, 258], np.int16), bytes([1, 0, 0, 0, 3, 1])),)
    refused = tuple({"distance": wrong} for wrong in (0, -1, True, 1.5, None, "1"))


class TestXorOfRows(CodecSuite):
    codec = Xor(distance=7)
