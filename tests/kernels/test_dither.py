"""The random bits of stochastic rounding look random; payloads of test_golden.py say which they are."""

import numpy as np

from tensorstash.kernels.dither import dither, group_keys, seed_word
from tensorstash.kernels.groups import Groups


def test_bits_look_random() -> None:
    groups = Groups.of((4096, 128), 128)
    rng = np.random.default_rng(1)
    parts, others = [], []
    for block in groups.blocks():
        places = block.places(groups.length)
        low, scale = (rng.random((2, len(places))) + 1).astype(np.float32)
        parts.append(dither(group_keys(low, scale, seed_word(0)), places))
        others.append(dither(group_keys(low, scale, seed_word(1)), places))
    bits, other = (np.concatenate(some).reshape(-1).astype(np.float64) / 65536 - 0.5 for some in (parts, others))
    spread = 1 / np.sqrt(bits.size)
    assert abs(bits.mean()) < 4 * spread / np.sqrt(12)
    assert abs(np.var(bits) * 12 - 1) < 4 * spread
    for a, b in ((bits[:-1], bits[1:]), (bits[:-2], bits[2:]), (bits[:-128], bits[128:]), (bits, other)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 * spread
    assert np.unique([seed_word(seed) for seed in (0, 1, 2**31, 2**32 - 1, 2**32, 2**70)]).size == 6
