"""Philox-4x32-10 against the known answers that its authors publish (Random123, file kat_vectors)."""

import numpy as np
import pytest

from rotrnn import _cpu

ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter, key):
    counter, key = np.array(counter, np.int64), np.array(key, np.int64)
    out = np.empty(counter.shape, np.int64)
    _cpu.philox(out, counter, key, len(counter))
    return out


@pytest.mark.parametrize("level", _cpu.SIMD_AVAILABLE)
def test_known_answers(level):
    before = _cpu.use_simd(level)
    try:
        counter, key, expected = zip(*KNOWN * 8, strict=True)  # each goes through every lane of a register
        np.testing.assert_array_equal(philox(counter, key), expected)
    finally:
        _cpu.use_simd(before)


def test_every_counter_and_key_bit_counts():
    """A flipped input bit flips each of the 128 output bits with probability 1/2: mean 64, deviation sqrt(32) = 5.7."""
    base = np.zeros((192, 4), np.int64), np.zeros((192, 2), np.int64)
    for bit in range(128):
        base[0][bit, bit // 32] = 1 << bit % 32
    for bit in range(64):
        base[1][128 + bit, bit // 32] = 1 << bit % 32
    flipped = philox(*base) ^ philox([[0, 0, 0, 0]], [[0, 0]])
    counts = np.bitwise_count(flipped).sum(1)
    assert counts.min() >= 64 - 5 * 5.7
    assert counts.max() <= 64 + 5 * 5.7
