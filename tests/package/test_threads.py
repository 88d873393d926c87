"""Several Python threads call kernels at once, as the module's slot Py_mod_gil says they may: each gets its own bits.

While a kernel runs the GIL is released, so with it too kernels and the pool's memory are used at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import rotrnn
from bare import SMALL
from rotrnn import _cpu

THREADS, ROUNDS = 6, 12


def scan(seed: int) -> list[Any]:
    """Forward and backward of arrays that are large enough for the pool, and some that are not."""
    rng = np.random.default_rng(seed)
    a, x = rng.uniform(0.1, 0.9, 64), rng.standard_normal((2, 1000 + 100 * seed, 64))
    h = rotrnn.diagonal_scan(a, x)
    grads = rotrnn.diagonal_scan_backward(np.ones_like(h), a, h)
    return [h, grads.dx, grads.da]


def layer(seed: int) -> list[Any]:
    """A layer's step forward and back, which takes workspaces and draws nothing."""
    rng = np.random.default_rng(seed)
    rotation = rotrnn.RotRNN(d_model=16, d_state=16, heads=2)
    params = rotation.init(rng)
    x = rng.standard_normal((2, 200 + seed, 16)).astype(np.float32)
    y, saved = rotation.forward(params, x)[:2]
    dx, grads = rotation.backward(params, saved, np.ones_like(y))[:2]
    return [y, dx, *(grads[name] for name in sorted(grads))]


def all_at_once(work: Callable[[int], list[Any]], count: int = ROUNDS) -> list[list[list[Any]]]:
    """What each thread made of every seed, round after round, all having started together."""
    start = threading.Barrier(THREADS)

    def rounds(seed: int) -> list[list[Any]]:
        _cpu.use_threads(2)  # OpenMP's number belongs to the thread
        start.wait()
        return [work(seed) for _ in range(count)]

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(rounds, range(THREADS)))


@pytest.mark.parametrize("work", [scan, layer])
def test_threads_get_the_bits_of_a_single_one(work: Callable[[int], list[Any]]) -> None:
    expected = [work(seed) for seed in range(THREADS)]
    for seed, found in enumerate(all_at_once(work)):
        for one in found:
            for got, wanted in zip(one, expected[seed], strict=True):
                np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", rotrnn.LAYERS)
def test_every_layer_on_shared_arrays(name: str) -> None:
    """Threads share the input, the parameters and what steps prepare, which a layer may extend; each has its state."""
    settings = SMALL.get(name, {"d_state": 4}) | ({"window": None} if name == "wrope_memory" else {})
    layer = rotrnn.LAYERS[name](d_model=4, **settings)
    rng = np.random.default_rng(0)
    params, x = layer.init(rng), rng.standard_normal((2, 12, 4)).astype(np.float32)
    ready = layer.prepare(params)

    def work(_: int) -> list[Any]:
        y, saved = layer.forward(params, x)[:2]
        dx = layer.backward(params, saved, np.ones_like(y))[0]
        state, outputs = None, []
        for t in range(12):
            one, state = layer.step(params, state, x[:, t], ready)
            outputs.append(one)
        return [y, dx, *outputs]

    expected = work(0)
    for found in all_at_once(work, 2):
        for one in found:
            for got, wanted in zip(one, expected, strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_the_instruction_set_may_change_while_others_compute() -> None:
    """Every call runs on one of the sets from its start to its end: each array has the bits of one of them."""
    x, w = np.random.default_rng(0).standard_normal((2, 64, 65)).astype(np.float32)
    before = _cpu.simd()
    expected = []
    for level in _cpu.SIMD_AVAILABLE:
        _cpu.use_simd(level)
        expected.append(rotrnn.dense(x, w).tobytes())
    done = threading.Event()

    def switch() -> None:
        while not done.is_set():
            for level in _cpu.SIMD_AVAILABLE:
                _cpu.use_simd(level)

    other = threading.Thread(target=switch)
    other.start()
    try:
        found = {rotrnn.dense(x, w).tobytes() for _ in range(200)}
    finally:
        done.set()
        other.join()
        _cpu.use_simd(before)
    assert found <= set(expected)


def test_memory_is_released_while_others_take_it() -> None:
    expected = scan(0)
    done = threading.Event()

    def release() -> None:
        while not done.is_set():
            rotrnn.release_memory()

    other = threading.Thread(target=release)
    other.start()
    try:
        found = [scan(0) for _ in range(ROUNDS)]
    finally:
        done.set()
        other.join()
    for one in found:
        for got, wanted in zip(one, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
