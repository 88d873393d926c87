"""Every op and layer in several threads at once, on shared arrays: under the thread sanitizer, by races.py.

The rows are those whose kernels divide their work among threads. With an argument, threads write one array: a race
that must be found.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from cases import LARGE
from rotrnn import _cpu
from rotrnn.nn.layer import flatten
from rotrnn.nn.registry import LAYERS
from rotrnn.ops import diagonal_scan
from small_models import sizes_of

THREADS, TEAM = 3, 2


def arrays_of(value: Any) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        return [array for _, leaf in flatten(value) for array in arrays_of(leaf)]
    return [array for one in value for array in arrays_of(one)] if isinstance(value, tuple | list) else []


def of_case(case: Any) -> Callable[[], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    args = {
        name: value.astype(np.result_type(value.dtype.type(0), np.float32)) for name, value in case.make(rng).items()
    }
    cotangents = tuple(np.ones_like(one) for one in case.forward(args))

    def work() -> list[np.ndarray]:
        outputs = case.forward(args)
        return arrays_of((*outputs, case.backward(args, outputs, cotangents)))

    return work


def of_layer(name: str) -> Callable[[], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    layer = LAYERS[name](d_model=16, **sizes_of(name, d_state=16, length=50))
    params, x = layer.init(rng), rng.standard_normal((2, 500, 16)).astype(np.float32)

    def work() -> list[np.ndarray]:
        y, saved = layer.forward(params, x)[:2]
        return arrays_of((y, *layer.backward(params, saved, np.ones_like(y))[:2]))

    return work


def together(work: Callable[[], list[np.ndarray]]) -> list[list[np.ndarray]]:
    start = threading.Barrier(THREADS)

    def one(_: int) -> list[np.ndarray]:
        _cpu.use_threads(TEAM)
        start.wait()
        return work()

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(THREADS)))


def main() -> None:
    _cpu.use_threads(1)
    if len(sys.argv) > 1:
        a, x = np.full(64, 0.5), np.ones((2, 2000, 64))
        out = np.empty_like(x)
        together(lambda: [diagonal_scan(a, x, out=out)])
        return
    assert "races" in _cpu.__file__, _cpu.__file__
    works = {case.name: of_case(case) for case in LARGE} | {name: of_layer(name) for name in LAYERS}
    for name, work in works.items():
        expected = work()
        for found in together(work):
            for got, wanted in zip(found, expected, strict=True):
                if got.tobytes() != wanted.tobytes():
                    sys.exit(f"{name}: other bits in threads")
    print(f"{len(works)} ops and layers in {THREADS} threads")


if __name__ == "__main__":
    main()
