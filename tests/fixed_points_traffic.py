"""What an iteration of a fixed point launches, moves and computes on a GPU, for each mixer:

    PYTHONPATH=tests:. python tests/fixed_points_traffic.py

counts the kernels of a third iteration in the harness (traffic.py), of whole sequences without acceleration, and writes
benchmarks/results/fixed_points_gpu.md; operations of CuPy between them are not counted. Times the iterations of
benchmarks/results/fixed_points.md it is the work of a forward pass; a backward pass with the gradient "implicit" has as
many of the adjoint, each of about the same work.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, markdown, origin
from h100 import BANDWIDTH, RATES
from rotrnn.nn.fixed_points.iteration import NotConverged
from rotrnn.nn.fixed_points.mixer import MIXERS
from rotrnn.nn.layers.bedouin import Bedouin
from rotrnn.nn.layers.fixed_point import FixedPointRNN
from strict import kernels_of, to_device
from traffic import Launch, counter

B, T, E, RANK = 2, 32, 64, 4
SIZES = {Bedouin: {"d_state": 8, "expand": 1}, FixedPointRNN: {"d_state": E}}
MOST = 3
"""The iteration that is counted: how far it is from the fixed point does not change its work."""


def launches(layer: Any, count: int) -> list[Launch]:
    """Those of a forward pass of so many iterations."""
    layer = replace(layer, max_iterations=count)
    params = to_device(layer.init(np.random.default_rng(0)))
    x = to_device(np.random.default_rng(1).standard_normal((B, T, E), dtype=np.float32))
    counting = counter()
    counting.launches = []
    with kernels_of(counting):
        layer.forward(params, x)
    return counting.launches


def totals(of: list[Launch]) -> Any:
    """Launches, bytes, flops and least seconds."""
    least = sum(max(one.flops / RATES["float32"], one.moved / BANDWIDTH) for one in of)
    return np.array([len(of), sum(one.moved for one in of), sum(one.flops for one in of), least])


def row(layer: Any) -> list[str]:
    """Launches of an iteration; arrays that a token moves; its multiply-adds; its least time."""
    count, moved, flops, least = totals(launches(layer, MOST)) - totals(launches(layer, MOST - 1))
    name = f"{layer.mixer} {layer.rank}" if layer.rank > 1 else layer.mixer
    numbers = [f"{count:.0f}", f"{moved / (4 * E * B * T):.1f}", f"{flops / (2 * B * T):.0f}"]
    return [type(layer).__name__, name, *numbers, f"{1e9 * least / (B * T):.2g}"]


def main() -> None:
    warnings.simplefilter("ignore", NotConverged)
    rows = []
    for make, sizes in SIZES.items():
        for mixer in MIXERS:
            rank = 1 if mixer in ("kronecker", "orthogonal", "dense") else RANK
            rows.append(row(make(E, mixer=mixer, rank=rank, tol=1e-30, damping="none", **sizes)))
            print(*rows[-1], flush=True)
    head = ["layer", "mixer", "launches", f"arrays of {E} numbers a token", "multiply-adds a token", "least ns a token"]
    sizes = f"{B} x {T} tokens of {E} channels, float32, commit {origin()['commit']}"
    limits = f"{BANDWIDTH / 1e12:.1f} TB/s or its products at {RATES['float32'] / 1e12:.0f} TFLOP/s, of an H100"
    about = f"`python tests/fixed_points_traffic.py`: the kernels of one iteration, counted in the harness, {sizes}. "
    about += f"The least time of a launch is its bytes at {limits}. No card has run it."
    (RESULTS / "fixed_points_gpu.md").write_text(f"{about}\n\n{markdown(head, rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
