"""RotRNN with input-dependent rotations, which the RotRNN paper leaves to future work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import beside, einsum
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import (
    EVALUATION,
    Array,
    Context,
    Params,
    Recurrent,
    State,
    StateArray,
    StateForm,
    mask_steps,
    trusted,
)
from rotrnn.nn.layers.linear import planes_apart
from rotrnn.nn.layers.rotrnn import RotRNN
from rotrnn.nn.listing import Listing, Unlisted
from rotrnn.ops.boundary import Boundary, rename
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.linear_layer import System, checked_system, complex_of
from rotrnn.ops.pointwise import LAST_PLACE, exp, mask_padding
from rotrnn.ops.random import philox
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward

GAMMAS = ("constant", "input", "random")
SLOWEST, FASTEST = 1e-30, 1e3
"""Bounds of -log gamma_t; beyond them gamma_t is 1 or 0 to rounding and is kept constant."""


class Decays(NamedTuple):
    """-log gamma (H,), -log gamma_t (..., H), gamma_t, and the ratio of xi_t to xi."""

    mean: Array
    varying: Array
    modulus: Array
    gain: Array


class SelectiveRotRNNSaved(NamedTuple):
    """Saved for backward: the folded system; lengths; the input; the decays if they vary; the constant factor of the
    transitions (planes,), their varying factor (a_t divided by the constant one) and the scan's input v_t, both
    (B, T, planes); the state before x, all states, and the state after x."""

    folded: Folded[System]
    lengths: npt.NDArray[np.int64] | None
    u: Array
    decays: Decays | None
    constant: Array
    turn: Array
    v: Array
    state0: Array | None
    h: Array
    state: Array


@dataclass(frozen=True)
class SelectiveRotRNN(Recurrent):
    """``x_t = gamma_t P R(theta_t) P^T x_{t-1} + xi_t B u_t`` per head, ``y_t = C x_t + D * u_t``, with input-dependent
    angles ``theta_t = theta + W_theta u_t``.

    ``P = expm(M - M^T)`` and ``xi_t = sqrt((1 - gamma_t^2) / tr(B^T B))`` are as in `RotRNN`; so are parameters and
    states (P is folded into the projections). For white input (independent steps, zero mean, unit covariance)
    E|x_t|^2 stays 1 per head: R(theta_t) depends on u_t but is a rotation, and there is no cross term because x_{t-1}
    is independent of u_t and has zero mean. The decay is ``gamma_t = exp(-exp(gamma_log + e_t))``, where `gamma` sets
    e_t:

    - "constant": e_t = 0.
    - "random": in training, e_t is drawn uniformly from +-`gamma_spread` for each head and time step, the same for all
      sequences, with the context's seed and step. In evaluation it is 0, its median. It is independent of u, so
      E|x_t|^2 stays 1.
    - "input": ``e_t = W_gamma u_t``. If it correlates with |B u_t|, E|x_t|^2 is not 1. The norm is then not guaranteed
      but reported: "state_norm" of `report` is the root mean square of |x_t| over steps, sequences and heads.

    With ``normalise="bounded"``, ``xi_t = (1 - gamma_t) / |B|``, |B| the largest singular value: then |x_t| is never
    above the largest |u_s|, for any input, any angles and any decays.

    `d_state` is N, the total number of real lanes of all heads, as in `RotRNN`.

    Parameters (dict of float32), for H heads of width W = d_state / H with P = W // 2 planes: those of RotRNN with the
    same initial values, theta (H, P), gamma_log (H,), M (H, W, W), B (H, W, D), C (D, N), D (D,); W_theta (H, P, D)
    and, for "input", W_gamma (H, D), both N(0, selectivity^2 / D). `site` makes the random numbers of a model's layers
    different.

    With ``window=L`` the state depends only on the last L inputs (`diagonal_scan`). Then E|x_t|^2 is as after L steps
    from a zero state: 1 - gamma^(2L) with a constant decay.
    """

    about: ClassVar[str] = "RotRNN with input-dependent angles and, optionally, decays"
    paper: ClassVar[str] = 'future work named in "RotRNN: Modelling Long Sequences with Rotations" (2024)'
    recurrent: ClassVar[frozenset[str]] = RotRNN.recurrent | {"W_theta", "W_gamma"}
    lanes: ClassVar[str] = "d_state"

    d_state: int
    heads: int = 1
    gamma: str = "constant"
    selectivity: float = 0.1
    gamma_spread: float = 0.5
    gamma_init: tuple[float, float] = (0.5, 0.999)
    theta_max: float = 2 * math.pi
    normalise: str = "input"
    site: int = 0
    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "heads", *(() if self.window is None else ("window",)))
        self.check_sizes("site", least=0)
        self.check_choice("gamma", GAMMAS)
        self.check_choice("normalise", ("input", "bounded"))
        for name in ("selectivity", "gamma_spread"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"SelectiveRotRNN: {name}={getattr(self, name)!r}, expected a nonnegative number")
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

    @property
    def state_form(self) -> StateForm:
        past = () if self.window is None else (self.window - 1,)
        return StateArray("h", (*past, self.base.planes), "complex")

    @property
    def hidden(self) -> StateArray:
        return StateArray("h", (self.base.planes,), "complex")

    def init(self, rng: np.random.Generator) -> Params:
        params = self.base.init(rng)
        spread = self.selectivity / np.sqrt(self.d_model)
        for name, shape in self.shapes.items():
            if name not in params:
                params[name] = (spread * rng.standard_normal(shape)).astype(np.float32)
        return params

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, SelectiveRotRNNSaved]:
        """Returns (y (B, T, D), saved). The state (B, planes), complex, is that of RotRNN. With a window it is
        (B, L-1, planes): the last inputs of the recurrence, each multiplied by the transitions up to the current
        step."""
        return self._run(params, trusted(self.prepare)(params), x, ctx, state)

    def prepare(self, params: Params) -> Folded[System]:
        """Returns RotRNN's folded system: gamma e^{i theta}, and projections that contain P and xi."""
        return self.base.fold(params)

    def step(
        self, params: Params, state: State, x_t: Array, prepared: Folded[System] | None = None
    ) -> tuple[Array, State]:
        if prepared is None:
            prepared = trusted(self.prepare)(params)
        else:
            checked_system(Boundary("prepared"), prepared.weights)
        y, saved = self._run(params, prepared, x_t[:, None], EVALUATION, state)
        return y[:, 0], saved.state

    def _run(
        self, params: Params, folded: Folded[System], x: Array, ctx: Context, state: State
    ) -> tuple[Array, SelectiveRotRNNSaved]:
        system, given = folded.weights, () if state is None else (state,)
        # u gets the widest precision of all arrays, so that all that is computed from it has the same
        real = np.result_type(*[one.real.dtype for one in (x, *params.values(), *system, *given)])
        u = mask_padding(x.astype(real, copy=False), ctx.lengths)
        angles = dense(u, self._angle_weights(params))
        v = dense(u, system.w_in).view(complex_of(real))
        turn = np.empty_like(v)
        turn.real, turn.imag = np.cos(angles), np.sin(angles)
        decays, constant = self._decays(params, u, ctx), system.a
        if decays is not None:
            constant = self.base.units(params["theta"]).ravel()
            self._heads(turn)[...] *= decays.modulus[..., None]
            self._heads(v)[...] *= decays.gain[..., None]
        how: dict[str, Any] = {"window": self.window, "lengths": ctx.lengths}
        h, after = diagonal_scan(constant * turn, v, state, return_state=True, **how)
        y = dense(h.view(real), system.w_out[0]) + system.skip * u
        return y, SelectiveRotRNNSaved(folded, ctx.lengths, u, decays, constant, turn, v, state, h, after)

    def emit(self, to: Listing, params: Params, x: int) -> int:
        if self.window is not None:
            raise Unlisted(f"the model has a SelectiveRotRNN with window={self.window}")
        wide = to.exact(params)
        w_in, a, w_out, skip = self.base.fold(wide).weights
        v, angles = to("Dense", x, planes_apart(w_in.T).T), to("Dense", x, self._angle_weights(wide))
        decays: tuple[Any, ...] = (None, None, None)
        if self.gamma == "input":
            a, mean = self.base.units(wide["theta"]).ravel(), np.clip(np.exp(wide["gamma_log"]), SLOWEST, FASTEST)
            decays = to("Dense", x, params["W_gamma"]), params["gamma_log"], 1 / self._gain(mean)
        h = to("TurningScan", v, angles, np.stack([a.real, a.imag]), *decays, bounded=self.normalise == "bounded")
        y: int = to("Skip", x, skip, to("Dense", h, planes_apart(w_out[0])))
        return y

    def backward(
        self, params: Params, saved: SelectiveRotRNNSaved, dy: Array, dstate: State = None, dh: Array | None = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, dstate0). `dh` (B, T, planes), if given by another module, is a further gradient of
        `hidden_states`."""
        folded, lengths, u, decays, constant, turn, v, state0, h, _ = saved
        system, a, real = folded.weights, constant * turn, h.real.dtype
        dy = mask_padding(dy.astype(real, copy=False), lengths)
        out = dense_backward(dy, h.view(real), system.w_out[0])
        how: dict[str, Any] = {"window": self.window, "lengths": lengths}
        read = out.dx.view(h.dtype)
        if dh is not None:
            read += dh
        scan = diagonal_scan_backward(read, a, h, state0, x=v, dhT=dstate, **how)
        # d log |a_t| + i d theta_t, and d log of the gain
        dpolar, dv = a.conj() * scan.da, scan.dx
        dparams: Params = {}
        du, P = system.skip * dy, self.base.width // 2
        if decays is not None:
            dmodulus = self._heads(dpolar).real.sum(-1)
            dgain = (self._heads(dv).conj() * self._heads(v)).real.sum(-1)
            # log gamma_t = -varying, and varying = e^{gamma_log + e}
            de = dgain * self._share(decays.varying) - dmodulus * decays.varying
            dgamma_log = de - dgain * self._share(decays.mean)
            self._heads(dv)[...] *= decays.gain[..., None]
            if self.gamma == "input":
                of_decay = dense_backward(de, u, params["W_gamma"])
                dparams["W_gamma"] = of_decay.dw
                du += of_decay.dx
        into = dense_backward(dv.view(real), u, system.w_in)
        turned = dense_backward(dpolar.imag, u, self._angle_weights(params))
        da = (scan.da * turn.conj()).sum((0, 1)) if decays is None else np.zeros_like(constant)
        dskip = einsum("btd,btd->d", dy, u)
        dparams |= self.base.fold_backward(params, folded, System(into.dw, da, out.dw[None], dskip))
        if decays is not None:
            dparams["gamma_log"] = dparams["gamma_log"] + dgamma_log.sum((0, 1))
            dparams["theta"] = dparams["theta"] + dpolar.imag.sum((0, 1)).reshape(self.heads, -1)[:, :P]
        dparams["W_theta"] = turned.dw.reshape(self.heads, -1, self.d_model)[:, :P]
        du += into.dx
        du += turned.dx
        return du, {name: dparams[name] for name in self.shapes}, scan.dh0

    def report(self, saved: SelectiveRotRNNSaved) -> dict[str, float]:
        h = self.hidden_states(saved)
        steps = h.shape[0] * h.shape[1] if saved.lengths is None else int(saved.lengths.sum())
        square = float(np.vdot(h, h).real)
        return {"state_norm": math.sqrt(square / (steps * self.heads))} if steps else {}

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions gamma_t e^{i theta_t} (B, T, planes), complex, along sequences: one eigenvalue per
        plane (the other one is its conjugate). Zero beyond the lengths. Arguments are those of `forward`."""
        _, saved = self.forward(params, x, ctx, state)
        return mask_steps(saved.constant * saved.turn, ctx.lengths)

    def hidden_states(self, saved: SelectiveRotRNNSaved) -> Array:
        return saved.h

    @property
    def state_size(self) -> int:
        return 2 * self.base.planes  # with a window, the state is more than h_t

    def _decays(self, params: Params, u: Array, ctx: Context) -> Decays | None:
        """Returns the decays of each head for u (B, T, D), or None if they are constant."""
        if self.gamma == "input":
            e = dense(u, params["W_gamma"])
        elif self.gamma == "random" and ctx.train:
            e = beside(self.gamma_spread * (2 * uniform((u.shape[1], self.heads), ctx, self.site) - 1), u)
        else:
            return None
        gamma_log = params["gamma_log"]
        mean = np.clip(np.exp(gamma_log), SLOWEST, FASTEST)
        varying = np.clip(exp(gamma_log + e.astype(gamma_log.dtype)), SLOWEST, FASTEST)
        return Decays(mean, varying, exp(-varying), self._gain(varying) / self._gain(mean))

    def _gain(self, x: Array) -> Array:
        """Returns ``sqrt(1 - gamma^2)``, or ``1 - gamma`` if bounded, for ``gamma = exp(-x)``."""
        gain: Array = -np.expm1(-x) if self.normalise == "bounded" else np.sqrt(-np.expm1(-2 * x))
        return gain

    def _share(self, x: Array) -> Array:
        """Returns the derivative of log `_gain` by log x: ``x / (e^(k x) - 1)``, k = 2, or 1 if bounded."""
        k = 1 if self.normalise == "bounded" else 2
        share: Array = x * np.exp(-k * x) / -np.expm1(-k * x)
        return share

    def _angle_weights(self, params: Params) -> Array:
        """Returns W_theta as (planes, D); the rows of planes with the last lane of an odd head are zero."""
        odd = self.base.width % 2
        return np.pad(params["W_theta"], ((0, 0), (0, odd), (0, 0))).reshape(-1, self.d_model)

    def _heads(self, z: Array) -> Array:
        """Returns (B, T, planes) as a view (B, T, H, planes of a head)."""
        return z.reshape(*z.shape[:2], self.heads, z.shape[2] // self.heads)


def uniform(shape: tuple[int, int], ctx: Context, site: int) -> Array:
    """Returns uniform random numbers on (0, 1) for the context's seed and step and a site. They come from Philox blocks
    that dropout does not use."""
    n = math.prod(shape)
    counter = np.empty((-(-n // 4), 4), np.int64)
    counter[:, 0] = np.arange(len(counter))
    counter[:, 1:] = LAST_PLACE, ctx.step, site
    words = philox(counter, ctx.seed)
    return np.asarray((words.ravel()[:n].reshape(shape) + 0.5) / 2**32)
