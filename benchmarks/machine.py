"""This machine's limits: bandwidth of a plain copy, and rate of NumPy's matrix product.

    python -m benchmarks.machine [--json] [--quick]

The copy is 64 MiB with ordinary stores, twice that many bytes moved. The products are a square product, and the
products of a layer with D 128 and N 256 over 65536 time steps.
"""

from __future__ import annotations

import numpy as np

from benchmarks.measure import arguments, layer_products, plain_copy, products, row, seconds_in_turn, show


def main() -> None:
    args = arguments(__doc__).parse_args()
    size, window = (256, 0.1) if args.quick else (2048, 4.0)
    x = np.ones(4 * size * size, np.float32)
    copy = plain_copy(np.empty_like(x), x)
    square, square_flops = products(size, [(size, size)], backward=False)
    layer, layer_flops = products(32 * size, layer_products(128, 256), backward=False)
    copy_s, square_s, layer_s = seconds_in_turn([copy, square, layer], window=window)
    rows = [
        row(f"copy {x.nbytes >> 20} MiB", copy_s, **{"GB/s": 2e-9 * x.nbytes / copy_s}),
        row(f"product of {size} x {size}", square_s, **{"GFLOP/s": 1e-9 * square_flops / square_s}),
        row("products of a layer", layer_s, **{"GFLOP/s": 1e-9 * layer_flops / layer_s}),
    ]
    show(rows, args.json)


if __name__ == "__main__":
    main()
