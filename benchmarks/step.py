"""Time of a whole training step beside its matrix products alone.

    python -m benchmarks.step [--quick]

One step is forward, backward and AdamW of the classifier of recipe listops-rotrnn on random tokens of full length. Its
products are those of the blocks, twelve a block (four forward, eight backward), run by NumPy on whole matrices. Both
are minima over their repeats, taken in turn in one run. Writes benchmarks/results/step.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from benchmarks.measure import record, seconds_in_turn
from rotrnn.models.build import ModelSettings, build_classifier
from rotrnn.nn.layer import Context
from rotrnn.ops.pointwise import cross_entropy
from rotrnn.tasks.task import FeatureSplit, Task
from rotrnn.training.optimiser import AdamW


def products(B: int, T: int, D: int, N: int, n_layers: int) -> tuple[Callable[[], None], float]:
    """A function that runs the blocks' products by NumPy, and their floating-point operations."""
    rng = np.random.default_rng(0)
    M = B * T
    x = rng.standard_normal((M, D), dtype=np.float32)
    h = rng.standard_normal((M, N), dtype=np.float32)
    w_in = rng.standard_normal((N, D), dtype=np.float32)
    w = rng.standard_normal((D, D), dtype=np.float32)
    y, v = np.empty_like(x), np.empty_like(h)

    def run() -> None:
        for _ in range(n_layers):
            np.matmul(x, w_in.T, out=v)  # forward
            np.matmul(h, w_in, out=y)
            np.matmul(x, w.T, out=y)
            np.matmul(x, w.T, out=y)
            for _ in range(2):  # the gate's backward
                np.matmul(x, w, out=y)
                np.matmul(x.T, y)
            np.matmul(x, w_in.T, out=v)  # the layer's backward
            np.matmul(x.T, h)
            np.matmul(h, w_in, out=y)
            np.matmul(h.T, x)

    return run, n_layers * 3 * (2 * 2 * M * D * N + 2 * 2 * M * D * D)


def training_step(B: int, T: int, D: int, N: int, heads: int, n_layers: int) -> Callable[[], None]:
    """A function that runs one training step."""
    rng = np.random.default_rng(0)
    empty = FeatureSplit(np.empty((0, T, 1)), np.empty(0, np.int64))
    task = Task("random", empty, empty, empty, n_classes=10, vocab=18, n_features=None)
    settings = ModelSettings(layer="rotrnn", d_model=D, n_layers=n_layers)
    model = build_classifier(settings, {"d_state": N, "heads": heads}, task)
    params = model.init(rng)
    optimiser = AdamW()
    moments = optimiser.init(params)
    tokens, labels = rng.integers(0, 18, (B, T)), rng.integers(0, 10, B)

    def run() -> None:
        logits, saved = model.forward(params, tokens, Context(train=True))
        _, dlogits = cross_entropy(logits, labels)
        optimiser.update(params, model.backward(params, saved, dlogits), moments, model.is_recurrent, 0, 100)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small size, to try the benchmark itself")
    args = parser.parse_args()
    size = {"B": 32, "T": 2048, "D": 128, "N": 256, "n_layers": 6} | ({"B": 2, "T": 256} if args.quick else {})
    multiply, flops = products(**size)
    step = training_step(heads=32, **size)
    products_s, step_s = seconds_in_turn([multiply, step], repeats=3 if args.quick else 5)
    print(f"matrix products {products_s:.3f} s ({flops / products_s / 1e9:.0f} GFLOP/s), step {step_s:.3f} s")
    print(f"step / products = {step_s / products_s:.2f}")
    record("step", {**size, "products_s": products_s, "step_s": step_s, "ratio": step_s / products_s})


if __name__ == "__main__":
    main()
