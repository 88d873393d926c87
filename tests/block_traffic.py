"""What cuda/block.cu moves and computes in a training step, kernel by kernel, beside the least of its form.

    python tests/block_traffic.py           # bytes, flops and ceilings of each recipe of the LRU paper's Table 4

In units of the number of rows B*T: a kernel that reads or writes an array of D channels counts one `d`, of L = 2N lanes
one `l`. The least form ("lean") is products by a library, scans, and one kernel for what is pointwise between two
products, with values and gates kept from forward. The kernels as they are make these again, from the layer's output:
less memory for one more product.
"""

from __future__ import annotations

from typing import NamedTuple

WALK_THREADS, WALK_STEPS = 256, 16  # of row_walk.h


class Recipe(NamedTuple):
    """Sizes of a recipe: sequences, steps, channels, planes, directions, the GLU's matrices, whether it is ragged."""

    B: int
    T: int
    D: int
    N: int
    K: int
    G: int
    ragged: bool = False


RECIPES = {
    "sCIFAR": Recipe(50, 1024, 512, 384, 1, 2),
    "ListOps": Recipe(32, 2048, 128, 256, 1, 2, True),
    "Text": Recipe(32, 4096, 256, 192, 1, 2, True),
    "Retrieval": Recipe(128, 4000, 128, 256, 1, 2, True),
    "Pathfinder": Recipe(64, 1024, 192, 256, 2, 2),
    "Path-X": Recipe(32, 16384, 128, 256, 2, 1),
}
BANDWIDTH = 3.0e12  # of an H100: what a copy reads and writes in a second
RATES = {"fp32": 60e12, "tf32": 400e12}  # its flops in a second


class Kernel(NamedTuple):
    """Arrays of D and of L numbers a row that a kernel moves, and its flops a row."""

    name: str
    d: float
    l: float = 0.0  # noqa: E741
    flops: float = 0.0


def product(name: str, d: float, l: float, inner: int, outer: int) -> Kernel:  # noqa: E741
    return Kernel(name, d, l, 2.0 * inner * outer)


def parts(r: Recipe, sums: int) -> float:
    """The partial sums of a walk over rows, written and read, in arrays of D numbers a row."""
    lanes = WALK_THREADS // max(min(r.D // 4, WALK_THREADS), 1)
    return 2 * sums / (lanes * WALK_STEPS)


def forward(r: Recipe) -> list[Kernel]:
    """block_forward, in training: the layer's output is kept."""
    L, D, half = 2 * r.N, r.D, r.G == 1
    return [
        product("v = W x", 1, 1, D, L),
        *[Kernel("scan: v, states", 0, 2)] * r.K,
        *[product("out = W_out h", 1, 1, L, D)] * r.K,
        Kernel("layer_walk: out of each direction, x; layer, z", r.K + 3),
        product("value, gate = W z", 1 + r.G, 0, D, r.G * D),
        Kernel("gate_walk: value, gate, x; y, and z of a half form", r.G + 2 + half + parts(r, 4)),
    ]


def backward(r: Recipe) -> list[Kernel]:
    """block_backward, with what a batch norm adds `later`."""
    L, D, half = 2 * r.N, r.D, r.G == 1
    return [
        Kernel("layer_walk: layer; z", 2),
        product("value, gate = W z", 1 + r.G, 0, D, r.G * D),
        Kernel("gate_adjoint_walk: dy, later, value, gate; dvalue, dgate", 2 + 2 * r.G + 2 * half + parts(r, 2)),
        product("dz = W^T dgate", r.G + 1, 0, r.G * D, D),
        product("dW = dgate z", r.G + 1, 0, D, r.G * D),
        Kernel("layer_adjoint_walk: dz, layer, x; dlayer for each direction", 3 + half + r.K + parts(r, 1)),
        *[product("dW_out = dlayer h", 1, 1, D, L)] * r.K,
        *[product("dh = W_out^T dlayer", 1, 1, D, L)] * r.K,
        Kernel("adjoint scan: dh, states; g", 0, 3),
        *[Kernel("adjoint scan: dh, states, g; g", 0, 4)] * (r.K - 1),
        *[Kernel("mask_walk: x", 2)] * r.ragged,
        product("dW_in = g x", 1, 1, D, L),
        product("r = W_in^T g", 1, 1, D, L),
        Kernel("input_adjoint_walk: r, dlayer, x, dy, later; dx", 6 + parts(r, 2)),
    ]


def lean(r: Recipe) -> list[Kernel]:
    """The least of this form, forward and backward."""
    L, D, half = 2 * r.N, r.D, r.G == 1
    return [
        product("v", 1, 1, D, L),
        *[Kernel("scan", 0, 2)] * r.K,
        *[product("out", 1 + (k > 0), 1, L, D) for k in range(r.K)],
        Kernel("layer", 4),
        product("value, gate", 1 + r.G, 0, D, r.G * D),
        Kernel("y", r.G + 2 + half),
        Kernel("dvalue, dgate", 2 + 2 * r.G + half),
        product("dz", r.G + 1, 0, r.G * D, D),
        product("dW", r.G + 1, 0, D, r.G * D),
        Kernel("dlayer", 4),
        *[product("dW_out", 1, 1, D, L)] * r.K,
        *[product("dh", 1, 1, D, L)] * r.K,
        *[Kernel("adjoint scan", 0, 3 + (k > 0)) for k in range(r.K)],
        product("dW_in", 1, 1, D, L),
        product("r", 1, 1, D, L),
        Kernel("dx", 5),
    ]


def moved(r: Recipe, kernels: list[Kernel], size: int = 4) -> float:
    """Bytes of a block."""
    return float(size * r.B * r.T * sum(k.d * r.D + k.l * 2 * r.N for k in kernels))


def computed(r: Recipe, kernels: list[Kernel]) -> float:
    """Flops of a block's products."""
    return r.B * r.T * sum(k.flops for k in kernels)


def seconds(r: Recipe, kernels: list[Kernel], rate: float) -> float:
    """Least time of a block: each kernel by what binds it."""
    return sum(max(computed(r, [k]) / rate, moved(r, [k]) / BANDWIDTH) for k in kernels)


if __name__ == "__main__":
    heads = "".join(f"{one:>8}" for one in ("GB", "lean", "ratio", "GFLOP", "lean", "ratio"))
    print(f"{'a block':12}{heads}   steps/s of six at most (lean)")
    for name, r in RECIPES.items():
        here, least = [*forward(r), *backward(r)], lean(r)
        sizes = [moved(r, one) / 1e9 for one in (here, least)]
        flops = [computed(r, one) / 1e9 for one in (here, least)]
        line = f"{name:12}{sizes[0]:8.2f}{sizes[1]:8.2f}{sizes[0] / sizes[1]:8.2f}"
        line += f"{flops[0]:8.1f}{flops[1]:8.1f}{flops[0] / flops[1]:8.2f}  "
        for label, rate in RATES.items():
            times = [6 * seconds(r, one, rate) for one in (here, least)]
            line += f" {label} {1 / times[0]:6.1f} ({1 / times[1]:6.1f})"
        print(line)
