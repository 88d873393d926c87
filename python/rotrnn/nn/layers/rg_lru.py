"""RG-LRU: the real-gated linear recurrent unit of Griffin, Hawk and RecurrentGemma."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import Affine, BlockDense, Decay, DecayGain, Product, Scan, Sigmoid, Skip, Softplus
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, astype
from rotrnn.nn.program import Builder, Program, Programmed

RATE = 8
"""c, the largest rate of decay in units of softplus(a_param)."""


@dataclass(frozen=True)
class RGLRU(Programmed):
    """``h_t = a_t * h_{t-1} + sqrt(1 - a_t^2) * i_t * u_t``, ``a_t = exp(-8 softplus(a_param) * r_t)``, ``y_t = h_t``.

    The gates ``r_t = s(W_a u_t + b_a)`` and ``i_t = s(W_x u_t + b_x)``, s the sigmoid, have block-diagonal matrices of
    `heads` blocks, as in the authors' code (De et al. 2024, "Griffin", section 2.4; google-deepmind/
    recurrentgemma). * is the product of channels.

    At the first step of a sequence the factor ``sqrt(1 - a_t^2)`` is 1: ``h_1 = a_1 * h_0 + i_1 * u_1``; h_0 is zero
    unless given. A sequence begins where no state is given, or a state whose number of steps is 0, whatever its h:
    chunks and streams therefore equal one forward. The factor is computed from log a_t, so it is exact for a_t near 1
    in float32. In backward its square root has the slope ``1 / sqrt(max(4 v, 1e-6))`` of ``v = 1 - a_t^2``, at most
    1000, as in that code: beyond, for 1 - a_t < 1.25e-7, gradients are smaller than the derivative.

    Parameters
    ----------
    heads : int
        H, a divisor of `d_model`: the number of blocks of the gates' matrices.
    r_min, r_max : float
        Initial ``exp(-softplus(a_param))``, uniform in area on the ring between these radii.

    Parameters (dict of float32): a_param, a_gate_bias, input_gate_bias (D,), a_gate_w, input_gate_w (H, D/H, D/H). They
    are the parameters of that code, but its matrices multiply from the right (``x @ w``), here from the left. Its state
    is (places (B,) int64, the number of steps so far, h (B, D)).

    Initial values, as in that code: matrices ~ N(0, H/D), biases 0, the ring of `r_min` and `r_max`. With the power of
    8 the transition at r_t = 1 begins between 0.43 and 0.992.
    """

    about: ClassVar[str] = "real-gated linear recurrent unit: a scan with gated decay that keeps the variance"
    paper: ClassVar[str] = 'De et al. 2024, "Griffin: Mixing Gated Linear Recurrences with Local Attention"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"a_param"})
    lanes: ClassVar[str] = "d_model"

    heads: int = 1
    r_min: float = 0.9
    r_max: float = 0.999

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("heads")
        self.check_divisor("heads", self.d_model, f"d_model={self.d_model}")
        if not 0 < self.r_min <= self.r_max < 1:
            raise ValueError(f"RGLRU: r_min={self.r_min}, r_max={self.r_max}, expected 0 < r_min <= r_max < 1")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, width = self.d_model, self.d_model // self.heads
        gates: dict[str, tuple[int, ...]] = {"w": (self.heads, width, width), "bias": (D,)}
        return {"a_param": (D,)} | {f"{one}_{key}": gates[key] for one in ("a_gate", "input_gate") for key in gates}

    def init(self, rng: np.random.Generator) -> Params:
        params = {}
        for name, shape in self.shapes.items():
            params[name] = rng.standard_normal(shape) / np.sqrt(shape[-1]) if len(shape) == 3 else np.zeros(shape)
        log_a = 0.5 * np.log(rng.uniform(self.r_min**2, self.r_max**2, self.d_model))
        params["a_param"] = np.log(np.expm1(-log_a))  # softplus(a_param) = -log_a
        return astype(params, np.float32)

    def program(self) -> Program:
        p = Builder(self)
        r, i = (p(Sigmoid(), p(BlockDense(), p.x, f"{one}_w", f"{one}_bias")) for one in ("a_gate", "input_gate"))
        rate = p(Affine(-RATE), p(Softplus(), "a_param"))
        gain = p(DecayGain(), p(Skip(), r, rate))
        a = p(Decay(), r, rate)
        h = p(Scan(), a, p(Product(), gain, p(Product(), i, p.x)))
        return p.returns(h, h=h, a=a)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions a_t (B, T, D), real, along sequences: each state's factor per step. Zero beyond the
        lengths. Arguments as in `forward`."""
        return self.registers(params, x, ctx, state)["a"]
