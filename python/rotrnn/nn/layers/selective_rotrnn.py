"""RotRNN with input-dependent rotations, which the RotRNN paper leaves to future work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rotrnn.nn.instructions import Dense, Skip, TurningScan
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, mask_steps, trusted
from rotrnn.nn.layers.rotrnn import RotRNN
from rotrnn.nn.packing import PackedSaved
from rotrnn.nn.program import Builder, Call, Instruction, Program, Programmed, ProgramSaved, Shape
from rotrnn.ops.boundary import rename
from rotrnn.ops.linear_layer import System

GAMMAS = ("constant", "input")


@dataclass(frozen=True)
class SelectiveRotRNN(Programmed):
    """``x_t = gamma_t P R(theta_t) P^T x_{t-1} + xi_t B u_t`` per head, ``y_t = C x_t + D * u_t``, with input-dependent
    angles ``theta_t = theta + W_theta u_t``.

    ``P = expm(M - M^T)`` and ``xi_t = sqrt((1 - gamma_t^2) / tr(B^T B))`` are as in `RotRNN`; so are parameters and
    states (P is folded into the projections). For white input (independent steps, zero mean, unit covariance)
    E|x_t|^2 stays 1 per head: R(theta_t) depends on u_t but is a rotation, and there is no cross term because x_{t-1}
    is independent of u_t and has zero mean. The decay is ``gamma_t = exp(-exp(gamma_log + e_t))``, where `gamma` sets
    e_t:

    - "constant": e_t = 0.
    - "input": ``e_t = W_gamma u_t``. If it correlates with |B u_t|, E|x_t|^2 is not 1. The norm is then not guaranteed
      but reported: "state_norm" of `report` is the root mean square of |x_t| over steps, sequences and heads.

    With ``normalise="bounded"``, ``xi_t = (1 - gamma_t) / |B|``, |B| the largest singular value: then |x_t| is never
    above the largest |u_s|, for any input, any angles and any decays.

    `d_state` is N, the total number of real lanes of all heads, as in `RotRNN`.

    Parameters (dict of float32), for H heads of width W = d_state / H with P = W // 2 planes: RotRNN's with the same
    initial values, theta (H, P), gamma_log (H,), M (H, W, W), B (H, W, D), C (D, N), D (D,); W_theta (H, P, D) and, for
    "input", W_gamma (H, D), both N(0, selectivity^2 / D).
    """

    about: ClassVar[str] = "RotRNN with input-dependent angles and, optionally, decays"
    paper: ClassVar[str] = 'future work named in "RotRNN: Modelling Long Sequences with Rotations" (2024)'
    recurrent: ClassVar[frozenset[str]] = RotRNN.recurrent | {"W_theta", "W_gamma"}
    lanes: ClassVar[str] = "d_state"
    removed: ClassVar[dict[str, Any]] = {"gamma_spread": ..., "site": ..., "window": None}

    d_state: int
    heads: int = 1
    gamma: str = "constant"
    selectivity: float = 0.1
    gamma_init: tuple[float, float] = (0.5, 0.999)
    theta_max: float = 2 * math.pi
    normalise: str = "input"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "heads")
        self.check_choice("gamma", GAMMAS)
        self.check_choice("normalise", ("input", "bounded"))
        if not 0 <= self.selectivity < math.inf:
            raise ValueError(f"SelectiveRotRNN: selectivity={self.selectivity!r}, expected a nonnegative number")
        try:
            _ = self.base  # checks the other settings
        except ValueError as error:
            rename(error, "RotRNN", "SelectiveRotRNN")
            raise

    conditioned: ClassVar[tuple[str, ...]] = RotRNN.conditioned

    def condition(self, value: Array) -> Any:
        return self.base.condition(value)

    def condition_message(self, value: Array) -> str:
        return self.base.condition_message(value)

    @property
    def base(self) -> RotRNN:
        """The layer with constant rotations and the same parameters."""
        inherited = {name: getattr(self, name) for name in ("heads", "gamma_init", "theta_max", "normalise")}
        return RotRNN(self.d_model, self.d_state, **inherited)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, H, base = self.d_model, self.heads, self.base
        shapes = base.shapes | {"W_theta": (H, base.width // 2, D)}
        return shapes | {"W_gamma": (H, D)} if self.gamma == "input" else shapes

    def init(self, rng: np.random.Generator) -> Params:
        params = self.base.init(rng)
        spread = self.selectivity / np.sqrt(self.d_model)
        for name, shape in self.shapes.items():
            if name not in params:
                params[name] = (spread * rng.standard_normal(shape)).astype(np.float32)
        return params

    def program(self) -> Program:
        """The state (B, planes), complex, is RotRNN's."""
        p = Builder(self)
        w_in, a, w_out, skip, unit, w_theta = p(Turned(self.base), "W_theta", *self.base.shapes)
        phi, v = p(Dense(), p.x, w_theta), p(Dense(), p.x, w_in)
        e = p(Dense(), p.x, "W_gamma") if self.gamma == "input" else None
        h = p(TurningScan(self.normalise == "bounded"), v, phi, a, "gamma_log", unit, e)
        return p.returns(p(Skip(), p.x, skip, None, p(Dense(), h, w_out)), h=h)

    def report(self, saved: ProgramSaved) -> dict[str, float]:
        h: Any = self.hidden_states(saved)
        steps = h.shape[0] * h.shape[1] if saved.lengths is None else int(saved.lengths.sum())
        square = float(np.vdot(h, h).real)
        return {"state_norm": math.sqrt(square / (steps * self.heads))} if steps else {}

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions gamma_t e^{i theta_t} (B, T, planes), complex, along sequences: one eigenvalue per
        plane (the other one is its conjugate). Zero beyond the lengths. Arguments as in `forward`."""
        _, saved = self.forward(params, x, ctx, state)
        kept = saved.kept["TurningScan"]
        parts = kept.parts if isinstance(kept, PackedSaved) else (kept,)
        each = [saved.registers[f"Turned_{1 if one.decays is None else 4}"] * one.turn for one in parts]
        return mask_steps(kept.segments.packed(each) if isinstance(kept, PackedSaved) else each[0], ctx.lengths)


@dataclass(frozen=True)
class Turned(Instruction):
    """The folded system of `base`, of its parameters: w_in (2N, D), a (N,), w_out (D, 2N), skip (D,); and a / |a| (N,),
    and W_theta (H, P, D) as (N, D), where the rows of planes with the last lane of an odd head are zero."""

    base: RotRNN
    foldable = True

    def shapes(self, W_theta: Any, *params: Any) -> tuple[Shape, ...]:
        N, D = self.base.planes, self.base.d_model
        return (2 * N, D), (N,), (D, 2 * N), (D,), (N,), (N, D)

    def forward(self, call: Call, W_theta: Array, *params: Array) -> tuple[Array, ...]:
        named, odd = self._named(params), self.base.width % 2
        call.kept = trusted(self.base.fold)(named)
        w_in, a, w_out, skip = call.kept.weights
        w_theta = np.pad(W_theta, ((0, 0), (0, odd), (0, 0))).reshape(-1, self.base.d_model)
        return w_in, a, w_out[0], skip, self.base.units(named["theta"]).ravel(), w_theta

    def backward(self, call: Call, dy: tuple[Any, ...], W_theta: Array, *params: Array) -> tuple[Array, ...]:
        dw_in, da, dw_out, dskip, dunit, dw_theta = dy
        named, (H, P, D) = self._named(params), W_theta.shape
        d = System(dw_in, np.zeros_like(dunit) if da is None else da, dw_out[None], dskip)
        dparams = self.base.fold_backward(named, call.kept, d)
        if dunit is not None:
            of_heads = dunit.reshape(H, -1)
            dparams["theta"] = dparams["theta"] + (self.base.units(named["theta"]).conj() * of_heads).imag[:, :P]
        return dw_theta.reshape(H, -1, D)[:, :P], *(dparams[name] for name in self.base.shapes)

    def _named(self, params: tuple[Array, ...]) -> Params:
        return dict(zip(self.base.shapes, params, strict=True))
