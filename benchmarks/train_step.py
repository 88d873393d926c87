"""Time of a whole training step beside its matrix products alone.

    python -m benchmarks.train_step [--json] [--quick]

One step is forward, backward and AdamW of the classifier of recipe listops-rotrnn (D 128, N 256, 6 layers) on B 32
sequences of T 2048 random tokens. Its limit is the twelve products of each block, four forward and eight backward,
run by NumPy on whole matrices. The two take turns; each time is the least of its repeats. Peak memory is that of the
process after the steps, less what it was before them. Writes benchmarks/results/train_step.json.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable

import numpy as np

from benchmarks.measure import record, row, seconds_in_turn, show
from rotrnn.models.build import ModelSettings, build_classifier
from rotrnn.nn.layer import Context
from rotrnn.ops.pointwise import cross_entropy
from rotrnn.tasks.task import FeatureSplit, Task
from rotrnn.training.optimiser import AdamW


def products(B: int, T: int, D: int, N: int, n_layers: int) -> tuple[Callable[[], None], float]:
    """A function that runs the blocks' products by NumPy, and their floating-point operations."""
    rng = np.random.default_rng(0)
    M = B * T
    x, dy = rng.standard_normal((2, M, D), dtype=np.float32)
    h = rng.standard_normal((M, N), dtype=np.float32)
    w_in = rng.standard_normal((N, D), dtype=np.float32)
    w_out = rng.standard_normal((D, N), dtype=np.float32)
    w = rng.standard_normal((D, D), dtype=np.float32)
    y, v = np.empty_like(x), np.empty_like(h)

    def run() -> None:
        for _ in range(n_layers):
            np.matmul(x, w_in.T, out=v)
            np.matmul(h, w_out.T, out=y)
            for _ in range(2):  # the gate's value and gate, backward and forward
                np.matmul(x, w.T, out=y)
                np.matmul(dy, w, out=y)
                np.matmul(dy.T, x)
            np.matmul(dy, w_out, out=v)
            np.matmul(dy.T, h)
            np.matmul(h, w_in, out=y)
            np.matmul(h.T, x)

    return run, n_layers * 3 * (2 * 2 * M * D * N + 2 * 2 * M * D * D)


def training_step(B: int, T: int, D: int, N: int, n_layers: int) -> Callable[[], None]:
    """A function that runs one training step."""
    rng = np.random.default_rng(0)
    empty = FeatureSplit(np.empty((0, T, 1)), np.empty(0, np.int64))
    task = Task("random", empty, empty, empty, n_classes=10, vocab=18, n_features=None)
    settings = ModelSettings(layer="rotrnn", d_model=D, n_layers=n_layers)
    model = build_classifier(settings, {"d_state": N, "heads": 32}, task)
    params = model.init(rng)
    optimiser = AdamW()
    moments = optimiser.init(params)
    tokens, labels = rng.integers(0, 18, (B, T)), rng.integers(0, 10, B)

    def run() -> None:
        logits, saved = model.forward(params, tokens, Context(train=True))
        _, dlogits = cross_entropy(logits, labels)
        optimiser.update(params, model.backward(params, saved, dlogits), moments, model.is_recurrent, 0, 100)

    return run


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="a small size, to try the benchmark itself; not recorded")
    args = parser.parse_args()
    size = {"B": 32, "T": 2048, "D": 128, "N": 256, "n_layers": 6} | ({"B": 2, "T": 256} if args.quick else {})
    multiply, flops = products(**size)
    multiply()
    before = peak_bytes()
    step_s, products_s = seconds_in_turn([training_step(**size), multiply], repeats=3 if args.quick else 6)
    peak = peak_bytes()
    rows = [
        row(
            "training step",
            step_s,
            products_s,
            **{"GFLOP/s": flops / step_s / 1e9, "limit GFLOP/s": flops / products_s / 1e9},
            peak_bytes=peak,
            step_peak_bytes=peak - before,
        )
    ]
    show(rows, args.json)
    if not args.json:
        print(f"peak memory {peak / 2**30:.2f} GiB, of which the step {(peak - before) / 2**30:.2f} GiB")
    if not args.quick:
        record("train_step", {**size, "dtype": "float32", "rows": rows})


if __name__ == "__main__":
    main()
