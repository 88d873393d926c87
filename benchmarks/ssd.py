"""Time of Mamba-2 at the size of ListOps: of its scan beside the scan's matrix products alone, and of the layer beside
the layer's products alone and beside Mamba.

    python -m benchmarks.ssd [--json] [--quick]

The products alone are NumPy's, on whole squares of a chunk, of which the scan computes the lower triangles; the layer's
products are the projections' and the scan's. Both layers have their default settings; Mamba-2 has 128 states for each
channel, Mamba 16. They also run with an equal number, 16. Two functions at a time take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.layers import both
from benchmarks.measure import arguments, products, row, seconds_in_turn, show
from benchmarks.model import LISTOPS, QUICK
from rotrnn._cpu import SSD_CHUNK as CHUNK
from rotrnn.nn.layers.mamba2 import Mamba2
from rotrnn.ops.ssd import ssd_scan, ssd_scan_backward

SIZES = ("B", "T", "D")


def scan(layer: Mamba2, B: int, T: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """The scan of a layer forward, and with backward."""
    rng = np.random.default_rng(0)
    H, P, G, N = layer.heads, layer.width, layer.groups, layer.d_state
    x, dy = rng.standard_normal((2, B, T, H, P), dtype=np.float32)
    directions = rng.standard_normal((2, B, T, G, N), dtype=np.float32)
    delta = rng.uniform(0.001, 0.1, (B, T, H)).astype(np.float32)
    A = rng.uniform(-16, -1, H).astype(np.float32)
    args = x, delta, A, *directions, np.ones(H, np.float32)

    def with_backward() -> None:
        _, carries = ssd_scan(*args, return_carries=True)
        ssd_scan_backward(dy, *args, carries=carries)

    return lambda: ssd_scan(*args), with_backward


def scan_products(layer: Mamba2, B: int, T: int, backward: bool) -> Callable[[], None]:
    """The products of the scan over all chunks at once: for each group ``C B^T``, and in backward again, with the two
    of dB and dC; for each head the products of pairs of steps and of states, three forward and six in backward."""
    C, P, N = CHUNK, layer.width, layer.d_state
    chunks = B * -(-T // CHUNK)
    groups, heads = chunks * layer.groups, chunks * layer.heads
    kinds = [(groups, C, N, C, 4 if backward else 1), (heads, C, C, P, 3 if backward else 1)]
    kinds += [(heads, C, N, P, 3 if backward else 1), (heads, P, C, N, 3 if backward else 1)]
    rng = np.random.default_rng(0)
    given = [
        (rng.standard_normal((n, i, k), dtype=np.float32), rng.standard_normal((n, k, j), dtype=np.float32), times)
        for n, i, k, j, times in kinds
    ]
    outs = [np.empty((len(x), x.shape[1], w.shape[2]), np.float32) for x, w, _ in given]

    def run() -> None:
        for (x, w, times), out in zip(given, outs, strict=True):
            for _ in range(times):
                np.matmul(x, w, out=out)

    return run


def layer_products(layer: Mamba2, B: int, T: int) -> Callable[[], None]:
    """The products of the layer, forward and backward."""
    inward = layer.inner + layer.convolved + layer.heads
    dense, _ = products(B * T, [(layer.d_model, inward), (layer.inner, layer.d_model)], backward=True)
    within = scan_products(layer, B, T, backward=True)

    def run() -> None:
        dense()
        within()

    return run


def rows(B: int, T: int, D: int, states: int, window: float) -> Iterator[dict[str, Any]]:
    """Mamba-2 with this many states."""
    size = dict(zip(SIZES, (B, T, D), strict=True)) | {"N": states}
    layer = Mamba2(D, d_state=states)
    for way, run in zip(("forward", "forward and backward"), scan(layer, B, T), strict=True):
        alone = scan_products(layer, B, T, backward=way != "forward")
        yield row(f"scan, N {states}, {way}", *seconds_in_turn([run, alone], window=window), limit="products", **size)
    run = both("mamba2", (B, T, D), d_state=states)
    for limit, other in (("products", layer_products(layer, B, T)), ("mamba, N 16", both("mamba", (B, T, D)))):
        seconds = seconds_in_turn([run, other], window=window)
        yield row(f"layer, N {states}, beside {limit}", *seconds, limit=limit, **size)


def main() -> None:
    args = arguments(__doc__).parse_args()
    size, window = (QUICK, 0.2) if args.quick else (LISTOPS, 8.0)
    show([one for states in (16, 128) for one in rows(size.B, size.T, size.D, states, window)], args.json)


if __name__ == "__main__":
    main()
