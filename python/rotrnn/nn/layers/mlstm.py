"""mLSTM: the LSTM with a matrix memory and exponential gates (Beck et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.layer import (
    EVALUATION,
    Array,
    Context,
    Params,
    Recurrent,
    State,
    StateArray,
    StateForm,
    astype,
    mask_steps,
    trusted,
)
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.device import full
from rotrnn.ops.mlstm import MlstmResult, mlstm, mlstm_backward
from rotrnn.ops.pointwise import (
    glu,
    glu_backward,
    layer_norm,
    layer_norm_backward,
    mask_padding,
    softplus,
    softplus_backward,
)
from rotrnn.ops.slstm import FORGET_GATES


class Prepared(NamedTuple):
    """The keys' projection divided by the root of their size, and W_out (D, H P) with its columns multiplied by the
    norm's scale."""

    k_proj: Array
    w_out: Array


class MLSTMSaved(NamedTuple):
    """Saved for backward: input with zeroed padding; q, k (B, T, H, N) and v (B, T, H, P); the gates before their
    functions: i and f (B, T, H), o (B, T, H P); the logarithm of the forget gate; the memory's result; its normed
    output, of which the statistics; what the output gate lets through; lengths; the states before and after x."""

    x: Array
    q: Array
    k: Array
    v: Array
    i: Array
    f: Array
    o: Array
    log_f: Array
    memory: MlstmResult
    normed: Array
    mean: Array
    rstd: Array
    gated: Array
    lengths: npt.NDArray[np.int64] | None
    state0: State
    state: State


@dataclass(frozen=True)
class MLSTM(Recurrent):
    """``y = W_out (s(o) * norm(h))``, h the output of the matrix memory `rotrnn.ops.mlstm`, s the sigmoid.

    ``q = W_q u``, ``k = W_k u / sqrt(N)``, ``v = W_v u``, ``o = W_o u`` (equations 22 to 24 and 27; with `bias` also
    + b, to k after the division: ``W_k u / sqrt(N) + b_k``), and for each of H = `heads` heads the gates
    ``i = exp(w_i u + b_i)`` and ``f = s(w_f u + b_f)``, or ``f = exp(w_f u + b_f)`` with ``forget="exp"`` (25, 26):
    ``C_t = f C_{t-1} + i v k^T``, ``n_t = f n_{t-1} + i k``, ``h = C q / max(|n . q|, 1)`` (19 to 21), kept scaled so
    that no gate overflows (15).

    The norm is a layer norm of each head with a scale for each channel, as in the paper's blocks; the cell's equations
    have none. Norm, output gate and projection are in the order of the authors' later model (xLSTM 7B). The paper's
    block around the cell, with a convolution before q and k, is not built here.

    The released code adds 1e-6 to the scaled denominator, ``max(|n . q|, e^{-m}) + 1e-6``; the paper and this layer do
    not. In that of the paper's blocks, the gates read q, k and v in place of u.

    Parameters
    ----------
    heads : int
        H, a divisor of `expand` * `d_model`.
    d_state : int
        N, the size of a key.
    expand : int
        The heads' values have together `expand` * `d_model` numbers, P = `expand` * `d_model` / H >= 2 each.
    forget : "sigmoid" or "exp"
        The function of the forget gate; the paper allows both, its released code has the sigmoid.
    bias : bool
        Whether q, k, v, o and the output have biases, as in the paper; its released code has none. Gates always do.
    norm_eps : float
        Added to the variance in the norm.

    Parameters (dict of float32): q_proj, k_proj (H N, D), v_proj, o_proj (H P, D), i_proj, f_proj (H, D), i_bias,
    f_bias (H,), norm (H P,), out_proj (D, H P); with `bias`, q_bias, k_bias (H N,), v_bias, o_bias (H P,), out_bias
    (D,). The state is the scaled memory c (B, H, P, N), n (B, H, N), and its level m (B, H).

    Initial values, as in the released code: projections N(0, 2 / (5 D)), biases zero; w_i = w_f = 0, b_i ~ N(0, 0.01),
    b_f evenly from 3 to 6 over the heads (with ``forget="exp"`` their log-sigmoid), norm = 1. But
    out_proj ~ N(0, 1 / (H P)), because that code's scale depends on the number of blocks.
    """

    about: ClassVar[str] = "matrix memory with exponential gates and a normaliser, by products of matrices"
    paper: ClassVar[str] = 'Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"i_proj", "i_bias", "f_proj", "f_bias"})
    lanes: ClassVar[str] = "expand d_model d_state + heads (d_state + 1)"

    heads: int = 1
    d_state: int = 16
    expand: int = 1
    forget: str = "sigmoid"
    bias: bool = False
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("heads", "d_state", "expand")
        if self.inner % self.heads or self.width < 2:
            raise ValueError(
                f"MLSTM: heads={self.heads}, expected a divisor of expand * d_model = {self.inner} that leaves each "
                "head 2 channels or more"
            )
        self.check_choice("forget", FORGET_GATES)
        if not 0 < self.norm_eps < math.inf:
            raise ValueError(f"MLSTM: norm_eps={self.norm_eps!r}, expected a positive number")

    @property
    def inner(self) -> int:
        """H P, the number of value channels."""
        return self.expand * self.d_model

    @property
    def width(self) -> int:
        """P, the size of a head's value."""
        return self.inner // self.heads

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, H, inner, keys = self.d_model, self.heads, self.inner, self.heads * self.d_state
        rows = {"q": keys, "k": keys, "v": inner, "o": inner, "i": H, "f": H}
        shapes: dict[str, tuple[int, ...]] = {f"{name}_proj": (count, D) for name, count in rows.items()}
        shapes |= {f"{name}_bias": (count,) for name, count in rows.items() if self.bias or name in "if"}
        shapes |= {"norm": (inner,), "out_proj": (D, inner)}
        return {**shapes, "out_bias": (D,)} if self.bias else shapes

    @property
    def state_form(self) -> StateForm:
        H, N = self.heads, self.d_state
        return StateArray("c", (H, self.width, N)), StateArray("n", (H, N)), StateArray("m", (H,))

    def init(self, rng: np.random.Generator) -> Params:
        params: Params = {}
        for name, shape in self.shapes.items():
            if name in ("i_proj", "f_proj"):
                params[name] = np.zeros(shape)
            elif name == "out_proj":
                params[name] = rng.standard_normal(shape) / np.sqrt(self.inner)
            elif name.endswith("_proj"):
                params[name] = rng.standard_normal(shape) * np.sqrt(2 / (5 * self.d_model))
            elif name == "i_bias":
                params[name] = 0.1 * rng.standard_normal(shape)
            elif name == "f_bias":
                bias = np.linspace(3, 6, self.heads)
                params[name] = bias if self.forget == "sigmoid" else -np.log1p(np.exp(-bias))
            else:
                params[name] = np.ones(shape) if name == "norm" else np.zeros(shape)
        return astype(params, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, MLSTMSaved]:
        """Returns (y (B, T, D), saved). The state is (c (B, H, P, N), n (B, H, N), m (B, H))."""
        return self._run(params, trusted(self.prepare)(params), x, ctx.lengths, state)

    def prepare(self, params: Params) -> Prepared:
        """Returns the keys' projection over sqrt(N), and W_out with the norm's scale."""
        return Prepared(params["k_proj"] * self._key_scale, params["out_proj"] * params["norm"])

    def step(self, params: Params, state: State, x_t: Array, prepared: Prepared | None = None) -> tuple[Array, State]:
        ready = trusted(self.prepare)(params) if prepared is None else prepared
        y, saved = self._run(params, ready, x_t[:, None], None, state)
        return y[:, 0], saved.state

    def _run(
        self, params: Params, ready: Prepared, x: Array, lengths: npt.NDArray[np.int64] | None, state: State
    ) -> tuple[Array, MLSTMSaved]:
        x = mask_padding(x, lengths)
        weights = {name: params[f"{name}_proj"] for name in "qvoif"} | {"k": ready.k_proj}
        q, k, v, o, i, f = (dense(x, weights[name], params.get(f"{name}_bias")) for name in "qkvoif")
        q, k, v = self._by_head(q), self._by_head(k), self._by_head(v)
        log_f = -softplus(-f) if self.forget == "sigmoid" else f
        memory = mlstm(q, k, v, i, log_f, *(() if state is None else state), lengths=lengths)
        normed, mean, rstd = layer_norm(self._rows(memory.y), *self._plain(x), eps=self.norm_eps)
        normed = normed.reshape(o.shape)
        gated = glu(normed, o)
        y = mask_padding(dense(gated, ready.w_out, params.get("out_bias")), lengths)
        after = memory.cT, memory.nT, memory.mT
        return y, MLSTMSaved(x, q, k, v, i, f, o, log_f, memory, normed, mean, rstd, gated, lengths, state, after)

    def backward(
        self, params: Params, saved: MLSTMSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        s, ready = saved, trusted(self.prepare)(params)
        out = dense_backward(mask_padding(dy, s.lengths), s.gated, ready.w_out)
        gate = glu_backward(out.dx, s.normed, s.o)
        scale, _ = self._plain(s.x)
        norm = layer_norm_backward(self._rows(gate.dvalue), self._rows(s.memory.y), scale, s.mean, s.rstd)
        after = {} if dstate is None else dict(zip(("dcT", "dnT", "dmT"), dstate, strict=True))
        dread = norm.dx.reshape(s.memory.y.shape)
        memory = mlstm_backward(dread, s.q, s.k, s.v, s.i, s.log_f, s.memory, **after, lengths=s.lengths)
        df = softplus_backward(memory.dlog_f, -s.f) if self.forget == "sigmoid" else memory.dlog_f
        before = {"q": memory.dq, "k": memory.dk, "v": memory.dv, "o": gate.dgate, "i": memory.dlog_i, "f": df}
        dparams: Params = {"out_proj": out.dw * params["norm"], "norm": (out.dw * params["out_proj"]).sum(0)}
        dparams["out_bias"] = out.dbias
        dx = np.zeros_like(s.x)
        for name, done in before.items():
            w = ready.k_proj if name == "k" else params[f"{name}_proj"]
            grads = dense_backward(done.reshape(*s.x.shape[:2], len(w)), s.x, w)
            dparams |= {f"{name}_proj": grads.dw, f"{name}_bias": grads.dbias}
            dx += grads.dx
        dparams["k_proj"] = dparams["k_proj"] * self._key_scale
        return dx, {name: dparams[name] for name in self.shapes}, (memory.dc0, memory.dn0, memory.dm0)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions f_t (B, T, H), real, along sequences: each head's factor per step. Zero beyond the
        lengths. Arguments are those of `forward`."""
        _, saved = self.forward(params, x, ctx, state)
        return mask_steps(np.exp(saved.log_f), ctx.lengths)

    @property
    def _key_scale(self) -> float:
        return 1 / math.sqrt(self.d_state)

    def _by_head(self, x: Array) -> Array:
        """Returns (B, T, H width) as (B, T, H, width)."""
        return x.reshape(*x.shape[:2], self.heads, x.shape[2] // self.heads)

    def _rows(self, x: Array) -> Array:
        """Returns what all heads have of a sequence, (B, T, H P) or (B, T, H, P), as rows (B, T H, P)."""
        return x.reshape(len(x), x.shape[1] * self.heads, self.width)

    def _plain(self, like: Array) -> tuple[Array, Array]:
        """The norm's own scale and bias: the scale of the parameters is in W_out (`prepare`)."""
        return full((self.width,), 1, like.dtype, like), full((self.width,), 0, like.dtype, like)
