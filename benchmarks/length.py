"""Time per token of one sequence, by its length: scan beside a copy, layer beside its products.

    python -m benchmarks.length [--json] [--quick]

B 1, D 128, N 256 real lanes, T from 2^10 to 2^20; OMP_NUM_THREADS says how many threads.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.measure import arguments, layer_products, plain_copy, products, row, seconds_in_turn, show
from benchmarks.model import LISTOPS, PATHS, QUICK, classifier
from rotrnn.ops.scan import diagonal_scan


def main() -> None:
    args = arguments(__doc__).parse_args()
    size, window = (QUICK, 0.1) if args.quick else (LISTOPS, 1.5)
    lengths = (64, 128) if args.quick else tuple(1 << k for k in range(10, 21, 2))
    D, N = size.D, size.N
    path, ctx = next(iter(PATHS.items()))
    layer = classifier(size).stack.blocks[0].layer
    rng = np.random.default_rng(0)
    params = layer.init(rng)
    a = layer.eigenvalues(params)
    for T in lengths:
        x = rng.standard_normal((1, T, N), dtype=np.float32)
        h = np.empty_like(x)
        u = x.reshape(-1)[: T * D].reshape(1, T, D)
        scan = partial(diagonal_scan, a, x.view(a.dtype), out=h.view(a.dtype))
        forward = partial(layer.forward, params, u, ctx)
        multiply, _ = products(T, layer_products(D, N), backward=False)
        rows = []
        for name, run, limit, what in (
            ("long scan", scan, plain_copy(h, x), "plain copy"),
            ("long layer forward", forward, multiply, "products alone"),
        ):
            seconds, limit_s = seconds_in_turn([run, limit], window=window)
            rate = {"ns/token": 1e9 * seconds / T}
            rows.append(row(name, seconds, limit_s, limit=what, **rate, path=path, B=1, T=T, D=D, N=N))
        show(rows, args.json)


if __name__ == "__main__":
    main()
