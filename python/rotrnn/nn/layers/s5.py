"""S5: one state space model over all channels (Smith, Warrington, Linderman 2023, "Simplified State Space Layers")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.layer import Array, Context, Params, State, astype
from rotrnn.nn.layers.continuous import (
    DISCRETISATIONS,
    check_dt,
    check_steps,
    hippo_normal,
    input_gain,
    input_gain_backward,
    log_steps,
    transition,
    transition_backward,
)
from rotrnn.nn.layers.diagonal import DiagonalFolding, DiagonalRecurrence
from rotrnn.nn.layers.linear import LinearSaved
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.declared import pairs, planes
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.linear_layer import LinearLayerStates, System
from rotrnn.ops.pointwise import mask_padding
from rotrnn.ops.sampled import sampled_scan, sampled_scan_backward

READOUTS = ("trunc_standard_normal", "lecun_normal", "complex_normal")
CLIPPED = -1e-4
"""Largest real part of an eigenvalue with `clip_eigs`."""


@dataclass(frozen=True)
class S5(DiagonalRecurrence):
    """``x'(t) = Lambda x + B u``, ``y = Re(C x) + D * u``, sampled with a separate step for each state.

    ``h_t = a * h_{t-1} + gain * (B u_t)`` with ``a = exp(Lambda Delta)``, ``gain = (a - 1) / Lambda`` (zoh), ``a = (1 +
    Lambda Delta / 2) / (1 - Lambda Delta / 2)``, ``gain = Delta / (1 - Lambda Delta / 2)`` (bilinear), or zoh's a with
    ``gain = Delta`` (first_order: the LRU paper, section 4); ``Delta = step_scale exp(log_step)``. With `step_scale` 2
    a trained model can be applied to data sampled at half the rate, as to speech at 8 kHz in the paper. With
    `conjugate`, `d_state` is the number of real lanes: N = d_state / 2 complex states are kept, each also represents
    its conjugate, and ``y = 2 Re(C h) + D * u``. Without, N = d_state is the number of complex states (2N real lanes).
    `clip_eigs` keeps ``Re Lambda <= -1e-4``; this setting, `conjugate` (conj_sym), `c_init` and `blocks` come from the
    released code (lindermanlab/S5). With `rotrnn.Context.dt`, for samples at uneven times, step t has ``Delta_t = Delta
    dt_t`` (section 6.3).

    Parameters (dict of float32): lambda_re, lambda_im, log_step (N,), B_re, B_im (N, D), C_re, C_im (D, N), D (D,). A
    bidirectional layer also has C_re_reverse and C_im_reverse (D, N); the directions share the other parameters.

    Initial values: Lambda holds the eigenvalues of HiPPO-N of size d_state / blocks, repeated `blocks` times; with
    `conjugate`, only those with negative imaginary part. log Delta is uniform from log dt_min to log dt_max. With V the
    eigenvectors of HiPPO-N, B = V^H B' and C = C' V. B' is real with variance 1 / d_state. C' is complex with variance
    1 / d_state (`c_init` trunc_standard_normal) or 1 / (d_model d_state) (lecun_normal) per part. Both are normal
    numbers truncated at two standard deviations. With complex_normal, C ~ N(0, 1/2) per part, without V. D ~ N(0, 1).
    """

    about: ClassVar[str] = "diagonal state space model over all channels, with a separate step size for each state"
    paper: ClassVar[str] = 'Smith et al. 2023, "Simplified State Space Layers for Sequence Modeling"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"lambda_re", "lambda_im", "log_step", "B_re", "B_im"})
    lanes: ClassVar[str] = "d_state"

    blocks: int = 1
    conjugate: bool = True
    discretisation: str = "zoh"
    c_init: str = "trunc_standard_normal"
    dt_min: float = 1e-3
    dt_max: float = 0.1
    clip_eigs: bool = False
    step_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("blocks")
        self.check_choice("discretisation", DISCRETISATIONS)
        check_steps("S5", self.dt_min, self.dt_max, self.step_scale)
        multiple = self.blocks * (1 + self.conjugate)
        if self.d_state % multiple:
            raise ValueError(
                f"S5: d_state={self.d_state}, expected a multiple of {multiple}, with blocks={self.blocks} and "
                f"conjugate={self.conjugate}"
            )
        self.check_choice("c_init", READOUTS)

    @property
    def planes(self) -> int:
        return self.d_state // self.weight

    @property
    def weight(self) -> int:
        return 2 if self.conjugate else 1

    @property
    def transition_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("lambda_re", "lambda_im", "log_step"), (self.planes,))

    def init(self, rng: np.random.Generator) -> Params:
        D, N, size = self.d_model, self.d_state, self.d_state // self.blocks
        eigenvalues, vectors = (one[..., : size // self.weight] for one in hippo_normal(size))
        B = truncated_normal(rng, (self.blocks, size, D)) / np.sqrt(N)
        B = np.einsum("np,bnd->bpd", vectors.conj(), B).reshape(self.planes, D)  # not BLAS: any threads, same bits
        params = {
            "lambda_re": np.tile(eigenvalues.real, self.blocks),
            "lambda_im": np.tile(eigenvalues.imag, self.blocks),
            "log_step": log_steps(rng, self.dt_min, self.dt_max, self.planes),
            "B_re": B.real,
            "B_im": B.imag,
        }
        for suffix in self.directions:
            if self.c_init == "complex_normal":
                C = np.sqrt(0.5) * (rng.standard_normal((2, D, self.planes)))
                params["C_re" + suffix], params["C_im" + suffix] = C
                continue
            fan_in = N if self.c_init == "trunc_standard_normal" else D * N
            parts = truncated_normal(rng, (2, D, self.blocks, size)) / np.sqrt(fan_in)
            CV = np.einsum("dbn,np->dbp", parts[0] + 1j * parts[1], vectors).reshape(D, self.planes)
            params["C_re" + suffix], params["C_im" + suffix] = CV.real, CV.imag
        params["D"] = rng.standard_normal(D)
        return astype(params, np.float32)

    def transition(self, params: Params) -> DiagonalFolding:
        lam, step = self._continuous(params)
        a, gain = transition(self.discretisation, lam, step), input_gain(self.discretisation, lam, step)
        return DiagonalFolding(a, gain)

    def transition_backward(self, params: Params, folding: DiagonalFolding, da: Array, dgain: Array) -> Params:
        lam, step = self._continuous(params)
        of_a = transition_backward(da, self.discretisation, lam, step)
        of_gain = input_gain_backward(dgain, self.discretisation, lam, step)
        dlam, dstep = (one + other for one, other in zip(of_a, of_gain, strict=True))
        return self._continuous_backward(params, step, dlam, dstep)

    def _continuous_backward(self, params: Params, step: Array, dlam: Array, dstep: Array) -> Params:
        clipped = self.clip_eigs & (params["lambda_re"] > CLIPPED)
        return {"lambda_re": np.where(clipped, 0, dlam.real), "lambda_im": dlam.imag.copy(), "log_step": step * dstep}

    def check_dt(self, args: Boundary) -> None:
        check_dt(self, args)

    def forward_at(self, params: Params, x: Array, dt: Array, ctx: Context, state: State) -> tuple[Array, LinearSaved]:
        lam, step = self._continuous(params)
        folded = self.fold_weights(params, DiagonalFolding(lam, np.ones_like(step)))  # gain follows from dt
        w_in, _, w_out, skip = folded.weights
        u = mask_padding(x, ctx.lengths)
        v = planes(dense(u, w_in))
        dt = dt.astype(v.real.dtype, copy=False)
        h, hT = sampled_scan(
            lam, step, dt, v, state, method=self.discretisation, lengths=ctx.lengths, return_state=True
        )
        y = skip * u + dense(pairs(h), w_out[0])
        return y, LinearSaved(folded, LinearLayerStates(u, state, ctx.lengths, h[None], v=v), hT, dt=dt)

    def backward_at(
        self, params: Params, saved: LinearSaved, dy: Array, dstate: State, dh: Array | None
    ) -> tuple[Array, Params, State]:
        assert isinstance(saved.layer, LinearLayerStates)
        u, h0, lengths, h, _, v, _ = saved.layer
        assert v is not None
        assert saved.dt is not None
        lam, step = self._continuous(params)
        w_in, _, w_out, skip = saved.folded.weights
        dy = mask_padding(dy, lengths)
        dout, dw_out, _ = dense_backward(dy, pairs(h[0]), w_out[0])
        dstates = planes(dout) if dh is None else planes(dout) + dh
        grads = sampled_scan_backward(
            dstates, lam, step, saved.dt, v, h[0], h0, dhT=dstate, method=self.discretisation, lengths=lengths
        )
        du, dw_in, _ = dense_backward(pairs(grads.dx), u, w_in)
        dsystem = System(dw_in, lam, dw_out[None], (dy * u).sum((0, 1)))
        dparams = self._continuous_backward(params, step, grads.dlam, grads.dstep)
        dparams |= self.fold_weights_backward(params, saved.folded.kept, dsystem)[1]
        return du + skip * dy, dparams, grads.dh0

    def _continuous(self, params: Params) -> tuple[Array, Array]:
        """Returns (Lambda, Delta)."""
        real = np.minimum(params["lambda_re"], CLIPPED) if self.clip_eigs else params["lambda_re"]
        return real + 1j * params["lambda_im"], self.step_scale * np.exp(params["log_step"])


def truncated_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns normal numbers truncated at two standard deviations, scaled to variance 1."""
    x = rng.standard_normal(shape)
    while (beyond := np.abs(x) > 2).any():
        x[beyond] = rng.standard_normal(int(beyond.sum()))
    return x / 0.879625661034240  # their standard deviation, sqrt(1 - 4 pdf(2) / (2 cdf(2) - 1))
