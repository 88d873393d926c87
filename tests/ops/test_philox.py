"""Philox-4x32-10 against the known answers published by its authors (Random123, file kat_vectors)."""

import numpy as np
import pytest

from rotrnn import _cpu
from rotrnn.ops.random import philox

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


def test_the_seed_is_the_key():
    """Its lower half is the first word."""
    seed, counter = 0x299F31D0A4093822, [[0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]]
    np.testing.assert_array_equal(philox(counter, seed), [[0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]])


@pytest.mark.parametrize(
    ("counter", "seed", "message"),
    [
        ([1, 2, 3, 4], 0, r"counter has shape \(4,\), expected \(n, 4\)"),
        ([[1, 2, 3]], 0, r"counter has shape \(1, 3\), expected \(n, 4\)"),
        ([[1, 2, 3, ONES + 1]], 0, "counter has 1 to 4294967296, expected words from 0"),
        ([[1, 2, 3, -1]], 0, "counter has -1 to 3, expected words from 0"),
        ([[1, 2, 3, 4]], -1, "seed is -1"),
        ([[1, 2, 3, 4]], 2**64, "seed is 18446744073709551616"),
        ([[1, 2, 3, 4]], [[1, 2], [3, 4]], r"seed has shape \(2, 2\), expected an integer or \(n=1, 2\)"),
    ],
)
def test_bad_input(counter, seed, message):
    with pytest.raises(ValueError, match=f"philox: {message}"):
        philox(counter, seed)
