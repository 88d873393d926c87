"""PyTorch's random order, compared with results of torch.randperm (torch 2.13.0, CPU)."""

import hashlib

import numpy as np
import pytest

from rotrnn.tasks.order import torch_random_order

SEED_42 = {  # n -> the first of them, and the SHA-256 of all as little-endian int64
    0: ([], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    1: ([0], "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"),
    2: ([0, 1], "9d34149fbd1fe777eb238799054c8cbfbce372255f219f8740838def9bfd02db"),
    5: ([2, 4, 3, 0, 1], "17462966d8ec9fea166c8bd9eb5528f288d86432a482d8fb221a8dd875d95ebc"),
    1000: ([542, 618, 816, 68, 94], "ac5c22de20fc5d169c3080fbf2719977f1c5e187f76217d18f95047e3cf159d6"),
    50_000: ([37542, 44491, 216, 43688, 41558], "55ecb6cd4e1eb48274001018b26a797b833f72ae79a02b388e4874497445b43d"),
    200_000: (
        [37542, 143173, 127710, 58234, 152906],
        "ee4e53fa9a9cb4316c55a0d184c7aa8fd2f92e97453e62e49195c42034a31789",
    ),
}
TEN = {
    0: [4, 1, 7, 5, 3, 9, 0, 8, 6, 2],
    1: [5, 6, 1, 2, 0, 8, 9, 3, 7, 4],
    42: [2, 6, 1, 8, 4, 5, 0, 9, 3, 7],
    2**32 - 1: [1, 4, 6, 2, 0, 5, 8, 7, 9, 3],
    2**40 + 7: [5, 0, 3, 4, 1, 7, 9, 6, 8, 2],
}


@pytest.mark.parametrize("n", SEED_42)
def test_orders_of_seed_42(n):
    order = torch_random_order(n)
    first, digest = SEED_42[n]
    assert order.dtype == np.int64
    assert order[: len(first)].tolist() == first
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest() == digest


@pytest.mark.parametrize("seed", TEN)
def test_orders_of_ten(seed):
    assert torch_random_order(10, seed).tolist() == TEN[seed]


def test_bad_arguments():
    with pytest.raises(ValueError, match="torch_random_order: n is -1, expected an integer from 0"):
        torch_random_order(-1)
    with pytest.raises(ValueError, match="torch_random_order: n is 214748365, expected"):
        torch_random_order(2**32 // 20 + 1)
    with pytest.raises(ValueError, match="torch_random_order: seed is -1, expected"):
        torch_random_order(3, -1)
