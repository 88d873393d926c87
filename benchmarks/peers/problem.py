"""The problems that peers and we solve: the same random numbers, the same loss, and how far answers may differ.

- "scan": ``h_t = a h_{t-1} + x_t``, real lanes. Answer: h.
- "scan gradient": the same, and its adjoint for a given dh. Answer: h, dx, da.
- "rotrnn" and "lru": one whole training step of a residual block (batch norm, layer, GELU, full GLU), mean pool, linear
  head and cross entropy, then AdamW on every parameter. Answer: the loss of the first step, and the gradients, which
  are what AdamW's first moments then hold times 1 / (1 - beta1).
- "rotrnn bf16": the same in bfloat16. rotrnn runs in its precision bf16; in JAX operands of the block's products are
  cast by hand, sums are float32; PyTorch runs in autocast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn import LRU, RotRNN
from rotrnn.nn.blocks.block import ResidualBlock
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.blocks.gate import Gate
from rotrnn.nn.blocks.norm import BatchNorm
from rotrnn.nn.layer import flatten

Array = npt.NDArray[Any]

CLASSES = 10
MOMENTUM, NORM_EPS = 0.9, 1e-5
LR, BETA1, BETA2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.05
RADII = (0.9, 0.99)
"""Moduli of the transitions: a state remembers at most ``1 / (1 - 0.99)`` steps."""

ROUNDINGS = 4 + 2 * math.pi
"""A complex multiplication and an addition, and an angle of the transition up to 2 pi, rounded."""


class Size(NamedTuple):
    """Batch, time, width, real lanes of state."""

    B: int
    T: int
    D: int
    N: int


class Scan(NamedTuple):
    """a (N,), x and dh (B, T, N)."""

    a: Array
    x: Array
    dh: Array


class Training(NamedTuple):
    """The block and head, their parameters by flattened name ("block.layer.theta"), x (B, T, D), labels (B,), and the
    precision, float32 or bf16."""

    block: ResidualBlock
    head: Dense
    params: dict[str, Array]
    x: Array
    labels: Array
    precision: str


class Trial(NamedTuple):
    """A peer at work on a problem.

    `step` runs it once; `answer` makes NumPy arrays of what the first call of step returned, before any other call.
    `compile_seconds` is what was spent before the first step could run; None where nothing compiles. `roundings` are
    the rounding errors that each step back in time adds to a state, see `error_bound`.
    """

    step: Callable[[], Any]
    answer: Callable[[Any], dict[str, Array]]
    compile_seconds: float | None = None
    roundings: float = ROUNDINGS


def problem(task: str, size: Size) -> Scan | Training:
    rng = np.random.default_rng(0)
    if task.startswith("scan"):
        x, dh = rng.standard_normal((2, size.B, size.T, size.N), dtype=np.float32)
        return Scan(rng.uniform(*RADII, size.N).astype(np.float32), x, dh)
    D, N = size.D, size.N
    name, _, precision = task.partition(" ")
    layer = (
        RotRNN(D, N, heads=N // 8, gamma_init=RADII)
        if name == "rotrnn"
        else LRU(D, N // 2, r_min=RADII[0], r_max=RADII[1])
    )
    block, head = ResidualBlock(BatchNorm(D, MOMENTUM, NORM_EPS), layer, Gate(D)), Dense(D, CLASSES)
    params = dict(flatten({"block": block.init(rng), "head": head.init(rng)}))
    x = rng.standard_normal((size.B, size.T, D), dtype=np.float32)
    return Training(block, head, params, x, rng.integers(0, CLASSES, size.B), precision or "float32")


def chunk_length(T: int) -> int:
    """The largest divisor of T that is not above its root: steps of a chunk, where time is scanned in chunks."""
    return max(length for length in range(1, math.isqrt(T) + 1) if T % length == 0)


def error_bound(size: Size, roundings: float, task: str = "") -> float:
    """How far two answers of a task may lie apart, |g - g'| / |g| for each array: in float32, if it is not in bf16.

    With unit roundoff u, the weight a^L of an input L steps back carries a relative error of `roundings` L u, in a loop
    or a tree. The mean lag is 1 / (1 - 0.99), and twice that where a
    derivative with respect to a brings a factor L. A gradient goes through up to three such factors: the state, the
    adjoint, and the gate after both. Sums over the B T steps and over lanes add u sqrt of their number, for rounding
    errors without a common sign (Higham and Mary 2019), the assumption under which a norm is bounded by its parts.
    Both answers err.

    In bf16 a gradient goes through seven products, one after the other: forward those of w_in, w_out and the gate,
    their three adjoints, and its own. Each rounds two operands, and some their result, by up to 2^-8 of it.
    """
    u = 2.0**-24
    lag = 1 / (1 - RADII[1])
    coarse = 7 * 3 * 2.0**-8 if task.endswith(" bf16") else 0
    return 2 * (coarse + u * (3 * 2 * lag * roundings + math.sqrt(size.B * size.T) + math.sqrt(size.N)))
