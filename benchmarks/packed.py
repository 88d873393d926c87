"""Training steps of ragged batches: with padding beside one packed row, and beside a full batch of as many valid steps.

    python -m benchmarks.packed [--json] [--quick] [--only LAYER]

A classifier of two blocks of width 128 reads 16 sequences of tokens whose lengths are uniform up to 2,000, the longest
length of ListOps, so that half of the steps are padding. A step is forward, loss and backward, in processor time, so
that other work on the machine counts little. Memory is the most that NumPy's arrays hold in a step. Writes
benchmarks/results/packed.json.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.layers import settings_of
from benchmarks.measure import RESULTS, arguments, origin, row, seconds_in_turn, show
from benchmarks.record import record
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.nn.layer import Context
from rotrnn.nn.registry import LAYERS
from rotrnn.tasks.task import Batch, PackedBatch

VOCABULARY, CLASSES = 18, 10
LIKE_THESE = ("rotrnn", "lru", "s5", "mamba", "mamba2", "delta_net", "rg_lru", "mlstm", "lstm", "attention")
"""One of each engine."""


def step(model: Any, params: Any, batch: PackedBatch) -> Callable[[], object]:
    """Forward, loss and backward of a batch."""
    ctx = Context(batch.lengths, train=True, cu_seqlens=batch.cu_seqlens)

    def run() -> None:
        logits, saved = model.forward(params, batch.inputs, ctx)
        dlogits = model.loss(logits, batch.labels).dlogits
        model.backward(params, saved, dlogits)

    return run


def peak(run: Callable[[], object]) -> int:
    """Most bytes that new arrays hold in a call."""
    tracemalloc.start()
    run()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def rows(names: list[str], B: int, T: int, D: int, window: float) -> Iterator[dict[str, Any]]:
    """A row for each layer: the packed row, whose limit is the padded batch."""
    rng = np.random.default_rng(0)
    lengths = np.sort(1 + np.arange(B) * (T - 1) // (B - 1))
    ragged = Batch(rng.integers(0, VOCABULARY, (B, T)), rng.integers(0, CLASSES, B), lengths)
    full = rng.integers(0, VOCABULARY, (B, int(lengths.sum()) // B))
    for name in names:
        settings = ModelSettings(layer=name, d_model=D, n_layers=2)
        model = build_model(settings, settings_of(name, D), vocab=VOCABULARY, n_classes=CLASSES)
        params = model.init(np.random.default_rng(0))
        batches = ragged.packed(model.stepwise), PackedBatch(*ragged), PackedBatch(full, ragged.labels, None)
        packed, padded, valid = (step(model, params, one) for one in batches)
        timed = seconds_in_turn([packed, padded, valid], window=window, clock=time.process_time)
        more = {"limit": "padded", "full_seconds": timed[2], "bytes": peak(packed), "padded_bytes": peak(padded)}
        yield row(f"{name} packed", timed[0], timed[1], **more, layer=name, B=B, T=T, D=D)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=LAYERS, action="append", help="this layer, and others given likewise")
    args = parser.parse_args()
    size = (4, 40, 16, 0.05) if args.quick else (16, 2000, 128, 2.0)
    found = list(rows(args.only or list(LIKE_THESE), *size))
    show(found, args.json)
    if not (args.only or args.quick):
        record(RESULTS / "packed.json", {"rows": found, "clock": "processor time", **origin()})


if __name__ == "__main__":
    main()
