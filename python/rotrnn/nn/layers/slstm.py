"""sLSTM: the LSTM with exponential gates, a normaliser and recurrent weights in heads (Beck et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.layer import EVALUATION, Array, Context, Params, Recurrent, State, StateArray, StateForm, astype, trusted
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.device import full
from rotrnn.ops.pointwise import layer_norm, layer_norm_backward, mask_padding
from rotrnn.ops.slstm import FORGET_GATES, SlstmResult, slstm, slstm_backward


class SLSTMSaved(NamedTuple):
    """Saved for backward: input with zeroed padding; the op's result; its normed output and the norm's statistics;
    lengths; the states before and after x."""

    x: Array
    result: SlstmResult
    normed: Array
    mean: Array
    rstd: Array
    lengths: npt.NDArray[np.int64] | None
    state0: State
    state: State


@dataclass(frozen=True)
class SLSTM(Recurrent):
    """``y = W_out norm(h)``, h the output of the scalar memory `rotrnn.ops.slstm`, in H = `heads` heads of P channels.

    ``z_t = W u_t + b + R h_{t-1}``, R block diagonal, one block for each head; of its four parts the gates
    ``i = exp(z_i)`` and ``f = s(z_f)`` with the sigmoid s, or ``f = exp(z_f)`` with ``forget="exp"``, the input
    ``z = tanh(z_z)``, and ``o = s(z_o)``: ``c_t = f c_{t-1} + i z``, ``n_t = f n_{t-1} + i``, ``h_t = o c_t / n_t``
    (equations 8 to 14), kept scaled so that no gate overflows (15 to 17).

    The norm is a layer norm of each head with a scale for each channel, as in the paper's blocks; the cell's equations
    have none. The convolution that the paper's block may have before i and f is not built here.

    Parameters
    ----------
    d_state : int
        N = H P, the number of channels of the memory.
    heads : int
        H, a divisor of N that leaves P >= 2.
    forget : "sigmoid" or "exp"
        The function of the forget gate; the paper allows both, its released code has the sigmoid.
    norm_eps : float
        Added to the variance in the norm.

    Parameters (dict of float32): in_proj (4N, D) and bias (4N,), with rows for i, f, z, o, each by heads; recurrent
    (H, 4P, P), the blocks of R, with rows in the same order; norm (N,); out_proj (D, N). The state is (h, c, n, m),
    each (B, H, P), where c and n are scaled by e^{-m}, and n is 0 before the first step.

    Initial values, as in the released code: in_proj N(0, 2 / (5 D)), recurrent zero, and biases zero, but those of the
    forget gate, 5 - 12 x^0.3 with x evenly from 0 to 1 over the channels of a head (of which the log-sigmoid is taken
    with ``forget="exp"``); norm = 1. out_proj ~ N(0, 1/N).
    """

    about: ClassVar[str] = "long short-term memory with exponential gates, a normaliser and heads"
    paper: ClassVar[str] = 'Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory"'
    recurrent: ClassVar[frozenset[str]] = frozenset()
    lanes: ClassVar[str] = "4 d_state"

    d_state: int
    heads: int = 1
    forget: str = "sigmoid"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "heads")
        if self.d_state % self.heads or self.width < 2:
            raise ValueError(
                f"SLSTM: heads={self.heads}, expected a divisor of d_state={self.d_state} that leaves each head 2 "
                "channels or more"
            )
        self.check_choice("forget", FORGET_GATES)
        if not 0 < self.norm_eps < math.inf:
            raise ValueError(f"SLSTM: norm_eps={self.norm_eps!r}, expected a positive number")

    @property
    def width(self) -> int:
        """P, the number of channels of a head."""
        return self.d_state // self.heads

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N, H, P = self.d_model, self.d_state, self.heads, self.width
        shapes: dict[str, tuple[int, ...]] = {"in_proj": (4 * N, D), "bias": (4 * N,), "recurrent": (H, 4 * P, P)}
        return {**shapes, "norm": (N,), "out_proj": (D, N)}

    @property
    def state_form(self) -> StateForm:
        return tuple(StateArray(name, (self.heads, self.width)) for name in "hcnm")

    @property
    def hidden(self) -> StateArray:
        return StateArray("h", (self.d_state,))

    def init(self, rng: np.random.Generator) -> Params:
        D, N, H, P = self.d_model, self.d_state, self.heads, self.width
        bias = np.zeros((4, H, P))
        bias[1] = 5 - 12 * np.linspace(0, 1, P) ** 0.3
        if self.forget == "exp":
            bias[1] = -np.log1p(np.exp(-bias[1]))
        params = {
            "in_proj": rng.standard_normal((4 * N, D)) * np.sqrt(2 / (5 * D)),
            "bias": bias.ravel(),
            "recurrent": np.zeros((H, 4 * P, P)),
            "norm": np.ones(N),
            "out_proj": rng.standard_normal((D, N)) / np.sqrt(N),
        }
        return astype(params, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, SLSTMSaved]:
        """Returns (y (B, T, D), saved). The state is (h, c, n, m), each (B, H, P)."""
        return self._run(params, trusted(self.prepare)(params), x, ctx.lengths, state)

    def prepare(self, params: Params) -> Array:
        """Returns W_out with its columns multiplied by the norm's scale."""
        w_out: Array = params["out_proj"] * params["norm"]
        return w_out

    def step(self, params: Params, state: State, x_t: Array, prepared: Array | None = None) -> tuple[Array, State]:
        w_out = trusted(self.prepare)(params) if prepared is None else prepared
        y, saved = self._run(params, w_out, x_t[:, None], None, state)
        return y[:, 0], saved.state

    def _run(
        self, params: Params, w_out: Array, x: Array, lengths: npt.NDArray[np.int64] | None, state: State
    ) -> tuple[Array, SLSTMSaved]:
        x = mask_padding(x, lengths)
        z = dense(x, params["in_proj"], params["bias"]).reshape(*x.shape[:2], 4, self.heads, self.width)
        before = () if state is None else state
        result = slstm(params["recurrent"], z, *before, forget=self.forget, lengths=lengths)
        normed, mean, rstd = layer_norm(self._rows(result.h), *self._plain(x), eps=self.norm_eps)
        normed = normed.reshape(*x.shape[:2], self.d_state)
        after = result.hT, result.cT, result.nT, result.mT
        return dense(normed, w_out), SLSTMSaved(x, result, normed, mean, rstd, lengths, state, after)

    def backward(
        self, params: Params, saved: SLSTMSaved, dy: Array, dstate: State = None, dh: Array | None = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, gradient of forward's `state`, or of a zero state if it was None). `dh` (B, T, N), if
        given by another module, is a further gradient of `hidden_states`."""
        s = saved
        out = dense_backward(mask_padding(dy, s.lengths), s.normed, trusted(self.prepare)(params))
        scale, _ = self._plain(s.x)
        read = layer_norm_backward(self._rows(out.dx), self._rows(s.result.h), scale, s.mean, s.rstd).dx
        read = read.reshape(s.result.h.shape)
        if dh is not None:
            read = read + dh.reshape(read.shape)
        before = () if s.state0 is None else s.state0
        after = {} if dstate is None else dict(zip(("dhT", "dcT", "dnT", "dmT"), dstate, strict=True))
        grads = slstm_backward(
            read, params["recurrent"], s.result, *before, **after, forget=self.forget, lengths=s.lengths
        )
        dz = dense_backward(grads.dx.reshape(*s.x.shape[:2], 4 * self.d_state), s.x, params["in_proj"])
        dparams = {"in_proj": dz.dw, "bias": dz.dbias, "recurrent": grads.dw}
        dparams |= {"norm": (out.dw * params["out_proj"]).sum(0), "out_proj": out.dw * params["norm"]}
        return dz.dx, dparams, (grads.dh0, grads.dc0, grads.dn0, grads.dm0)

    @property
    def state_size(self) -> int:
        return self.d_state  # the state is h_t and its memory

    def hidden_states(self, saved: SLSTMSaved) -> Array:
        return saved.result.h.reshape(*saved.x.shape[:2], self.d_state)

    def _rows(self, x: Array) -> Array:
        """Returns what all heads have of a sequence, (B, T, N) or (B, T, H, P), as rows (B, T H, P)."""
        return x.reshape(len(x), x.shape[1] * self.heads, self.width)

    def _plain(self, like: Array) -> tuple[Array, Array]:
        """The norm's own scale and bias: the scale of the parameters is in W_out (`prepare`)."""
        return full((self.width,), 1, like.dtype, like), full((self.width,), 0, like.dtype, like)
