"""Time of one iteration of a Fixed-Point RNN: with a vector state, beside one diagonal scan and one Householder mix;
of Bedouin, beside one selective scan, one Householder mix and the product with the previous output; and of Bedouin's
forward and backward with several tolerances, beside the direct solver.

    python -m benchmarks.iteration [--json] [--quick]

An iteration mixes, scans, computes the residual and updates the iterate, for a vector state in one pass over memory;
its adjoint is an iteration of the implicit gradient. A direct solution is such a pass, too, with a small system for
each token before it. The limit is the time of the ops alone, in the same window. `output_error` and
`limit_output_error` are against the direct solver in float64, with outputs of order 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.measure import arguments, row, seconds_in_turn, show
from rotrnn.nn.layer import Context, astype
from rotrnn.nn.layers.bedouin import Bedouin
from rotrnn.ops.dense import dense
from rotrnn.ops.fixed_point import depth_pass, depth_solve, prepare_mixer, relax
from rotrnn.ops.mixer import HOUSEHOLDER, householder_mix
from rotrnn.ops.scan import diagonal_scan
from rotrnn.ops.selective import selective_scan

WAYS = (("iteration", "forward"), ("iteration", "adjoint"), ("direct", "forward"), ("direct", "adjoint"))


def rows(B: int, T: int, D: int, rank: int, window: float) -> list[dict[str, Any]]:
    """Forward and adjoint with this many reflections per token."""
    rng = np.random.default_rng(0)
    x, y, out = rng.standard_normal((3, B, T, D), dtype=np.float32)
    u = rng.standard_normal((B, T, rank, D), dtype=np.float32)
    alpha = (rng.uniform(0, 0.5, (B, T, rank)) / rank).astype(np.float32)
    lam = rng.uniform(0.9, 0.999, (B, T, D)).astype(np.float32)
    h0, s = np.zeros((B, D), np.float32), np.full(B, 0.99, np.float32)
    mixer = prepare_mixer(HOUSEHOLDER, rank, u, alpha, D)

    def direct(adjoint: bool) -> None:
        depth_solve(y, x, lam, mixer, h0, tile=None, tol=0.1, limit=1, adjoint=adjoint)

    scan, mix, *times = seconds_in_turn(
        [
            lambda: diagonal_scan(lam, x, h0, out=out),
            lambda: householder_mix(u, alpha, x, out=out),
            lambda: depth_pass(y, x, lam, mixer, h0, s),
            lambda: depth_pass(y, x, lam, mixer, h0, s, adjoint=True),
            lambda: direct(False),
            lambda: direct(True),
        ],
        window=window,
    )
    more = {"limit": "scan and mix", "B": B, "T": T, "D": D}
    return [
        row(f"{solver}, {rank} reflections, {way}", seconds, scan + mix, **more)
        for (solver, way), seconds in zip(WAYS, times, strict=True)
    ]


def bedouin_row(B: int, T: int, D: int, rank: int, window: float) -> dict[str, Any]:
    """With this many reflections per token, all feedback on, and D channels in the iteration."""
    rng = np.random.default_rng(0)
    layer = Bedouin(D, expand=1, rank=rank, max_iterations=2, train_iterations=2)
    _, saved = layer.forward(layer.init(rng), rng.standard_normal((B, T, D), dtype=np.float32), Context(train=True))
    depth, y, applied, lengths, _ = saved.found
    x, maps, (u, alpha) = depth.x, applied.maps, applied.operands
    s, V = np.full(B, 0.99, np.float32), depth.driven.V
    scan, mix, product, iteration = seconds_in_turn(
        [
            lambda: selective_scan(x, maps["delta"], depth.A, maps["B"], maps["C"], h0=depth.h0),
            lambda: householder_mix(u, alpha, x),
            lambda: dense(y, V),
            lambda: relax(y, depth(y, lengths), s, lengths=lengths),
        ],
        window=window,
    )
    more = {"limit": "scan, mix and product", "B": B, "T": T, "D": D}
    return row(f"Bedouin's iteration, {rank} reflections", iteration, scan + mix + product, **more)


def solver_rows(B: int, T: int, D: int, window: float) -> Iterator[dict[str, Any]]:
    """Bedouin's forward and backward by iteration, beside the direct solver."""
    x, dy = np.random.default_rng(0).standard_normal((2, B, T, D), dtype=np.float32)
    direct = Bedouin(D, solver="direct")
    params = direct.init(np.random.default_rng(0))
    exact, _ = direct.forward(astype(params, np.float64), x.astype(np.float64))

    def both(layer: Bedouin) -> Callable[[], object]:
        return lambda: layer.backward(params, layer.forward(params, x, Context(train=True))[1], dy)

    def error(y: Any) -> float:
        return float(np.abs(y - exact).max())

    for tol in (1e-1, 1e-2, 1e-3, 1e-5):
        iterated = Bedouin(D, tol=tol)
        y, saved = iterated.forward(params, x)
        seconds, limit = seconds_in_turn([both(iterated), both(direct)], window=window)
        found = {"tol": tol, "iterations": int(saved.iterations.max()), "output_error": error(y)}
        more = {"limit": "direct solver", "limit_output_error": error(direct.forward(params, x)[0])}
        yield row(f"Bedouin to {tol:g}", seconds, limit, **found, **more, B=B, T=T, D=D)


def main() -> None:
    args = arguments(__doc__).parse_args()
    sizes = (2, 64, 16, 0.05) if args.quick else (8, 1024, 128, 6.0)
    vector = [one for rank in (1, 2, 4) for one in rows(*sizes[:3], rank, sizes[3])]
    bedouin = [bedouin_row(*sizes[:3], rank, sizes[3]) for rank in (1, 2, 4)]
    show([*vector, *bedouin, *solver_rows(*sizes)], args.json)


if __name__ == "__main__":
    main()
