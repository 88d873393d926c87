"""Recurrences with a dense matrix, simple, LSTM and GRU, and their adjoints (csrc/kernels/rnn.c).

They do not include the products of inputs and weights; compute these first by `dense` over all steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import CELL
from rotrnn.devices.device import empty, empty_like
from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import Declared

__all__ = [
    "GruGrads",
    "GruResult",
    "LstmGrads",
    "LstmResult",
    "RnnGrads",
    "gru",
    "gru_backward",
    "lstm",
    "lstm_backward",
    "rnn",
    "rnn_backward",
]

RNN = Declared("rnn_forward", "rnn_backward", **{"w": "A", "gates_of(cell), N": "N"})
LSTM = Declared("rnn_forward", "rnn_backward", **{"gates_of(cell), N": "4*N"})
LSTM.forms |= {name: LSTM.forms[name]._replace(optional=False) for name in ("c", "gates")}
GRU = Declared("rnn_forward", "rnn_backward", **{"gates_of(cell), N": "3*N"})
GRU.forms |= {name: GRU.forms[name]._replace(optional=False) for name in ("bias", "gates")}
ACTIVATIONS = tuple(name for name in CELL if name not in ("lstm", "gru"))


def _cell(args: Boundary, activation: str) -> int:
    return CELL[args.choice("activation", activation, ACTIVATIONS)]


def recurrent_weight_grad(
    args: Boundary,
    w: Array,
    dz: Array,
    h: Array,
    h0: Array | None,
    steps: npt.NDArray[np.int64] | None,
    reverse: bool,
    dbias: Array | None = None,
) -> Array:
    """Returns ``dw = sum dz_t h_{t-1}^T`` over sequences and time, for w (G N, N), dz (B, T, G N), h (B, T, N); dbias
    (G N,), if given, becomes ``sum dz_t``."""
    B, T, N = h.shape
    before = empty_like(h)  # h_{t-1}; any finite numbers at padding, where dz is zero
    if T:
        before[:, -1 if reverse else 0] = 0
        here, there = (slice(None, -1), slice(1, None))[:: 1 if reverse else -1]
        before[:, here] = h[:, there]
        if h0 is not None:
            count = np.full(B, T) if steps is None else steps
            some = np.flatnonzero(count)
            rows, first = map(args.device.asarray, (some, count[some] - 1 if reverse else np.zeros_like(some)))
            before[rows, first] = h0[rows]
    dw = np.empty_like(w)
    args.kernels.matmul_weight_grad(dw=dw, dbias=dbias, x=before, dy=dz, M=B * T, d_in=N, d_out=len(w))
    return dw


class RnnGrads(NamedTuple):
    """Gradients of `rnn`: of A (N, N), x (B, T, N) and h0 (B, N)."""

    dA: Array
    dx: Array
    dh0: Array


def rnn(
    A: npt.ArrayLike,
    x: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    activation: str = "identity",
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Simple recurrent network (Elman 1990): ``h_t = f(A h_{t-1} + x_t)`` with ``h_{-1} = h0`` (default zero).

    With x_t = B u_t these are the dense models of the LRU paper (Orvieto et al. 2023, eq. 1 and table 1). With
    ``reverse`` time runs backward, ``h_t = f(A h_{t+1} + x_t)``, and `h0` enters at the last valid step.

    Parameters
    ----------
    A : (N, N)
        Transition.
    x : (B, T, N)
        Input, any T >= 0. All arrays are float32 or float64, and are promoted to their common dtype.
    h0 : (B, N), optional
        Initial state.
    activation : "identity", "tanh" or "relu"
        The function f.
    reverse : bool
        Run backward in time, without copying the input.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `h`.

    Returns
    -------
    h : (B, T, N)
        All states.
    hT : (B, N)
        The state after the last valid step in scan order; `h0` (or zero) for a sequence without steps.

    Raises
    ------
    TypeError
        An array has another dtype (integers and float16 are not supported).
    ValueError
        Shapes disagree, a length is out of range, the activation is unknown, or a size product overflows.
    """
    args = Boundary("rnn")
    args.take(RNN, x=x, A=A, h0=h0, lengths=lengths)
    results = args.run("rnn_forward", cell=_cell(args, activation), reverse=args.flag("reverse", reverse))
    return results["h"], results["hT"]


def rnn_backward(
    dh: npt.ArrayLike,
    A: npt.ArrayLike,
    h: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    dhT: npt.ArrayLike | None = None,
    activation: str = "identity",
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> RnnGrads:
    """Adjoint of `rnn`.

    ``g_t = dh_t + A^T dx_{t+1}`` with boundary ``g_{T-1} = dh_{T-1} + dhT``; then ``dx_t = f'(z_t) g_t``, with f'
    computed from ``h_t = f(z_t)``, ``dA = sum_{b,t} dx_t h_{t-1}^T`` and ``dh0 = A^T dx_0``. If a sequence has no
    steps, ``dh0 = dhT``. The derivative of ReLU at 0 is 0.

    Parameters
    ----------
    dh : (B, T, N)
        Gradient of `h`; padding beyond `lengths` is never read.
    A, h0, activation, reverse, lengths
        As given to `rnn`.
    h : (B, T, N)
        As returned by `rnn`.
    dhT : (B, N), optional
        Gradient of the final state.

    Returns
    -------
    RnnGrads
        ``(dA, dx, dh0)``, all new arrays; `dx` is zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `rnn`.
    """
    args = Boundary("rnn_backward")
    reverse = args.flag("reverse", reverse)
    given = args.take(RNN, dh=dh, A=A, h=h, h0=h0, dhT=dhT, lengths=lengths)
    grads = args.run("rnn_backward", cell=_cell(args, activation), reverse=reverse)
    dA = recurrent_weight_grad(args, given["A"], grads["dx"], given["h"], given["h0"], given["lengths"], reverse)
    return RnnGrads(dA, grads["dx"], grads["dh0"])


class LstmResult(NamedTuple):
    """Result of `lstm`: all states h and cells c (B, T, N), the gates (B, T, 4N), final state and cell (B, N)."""

    h: Array
    c: Array
    gates: Array
    hT: Array
    cT: Array


class LstmGrads(NamedTuple):
    """Gradients of `lstm`: of w (4N, N), x (B, T, 4N), h0 and c0 (B, N)."""

    dw: Array
    dx: Array
    dh0: Array
    dc0: Array


def lstm(
    w: npt.ArrayLike,
    x: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    c0: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
) -> LstmResult:
    """Long short-term memory with a forget gate (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    ``z_t = x_t + w h_{t-1}``, split into four parts of N in PyTorch's order: ``i = s(z_i)``, ``f = s(z_f)``,
    ``g = tanh(z_g)``, ``o = s(z_o)`` with the sigmoid s. Then ``c_t = f c_{t-1} + i g`` and ``h_t = o tanh(c_t)``.

    Parameters
    ----------
    w : (4N, N)
        Recurrent weights, PyTorch's `weight_hh`.
    x : (B, T, 4N)
        Inputs of the gates, ``weight_ih u_t + bias``, any T >= 0. All arrays are float32 or float64, and are promoted
        to their common dtype.
    h0, c0 : (B, N), optional
        Initial state and cell. Default: zero.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `h`, `c` and
        `gates`.

    Returns
    -------
    LstmResult
        ``(h, c, gates, hT, cT)``; `gates` holds i, f, g, o for `lstm_backward`.

    Raises
    ------
    TypeError, ValueError
        As `rnn`.
    """
    args = Boundary("lstm")
    args.take(LSTM, w=w, x=x, h0=h0, c0=c0, lengths=lengths)
    return LstmResult(**args.run("rnn_forward", c=True, cT=True, gates=True, cell=CELL["lstm"], reverse=False))


def lstm_backward(
    dh: npt.ArrayLike,
    w: npt.ArrayLike,
    h: npt.ArrayLike,
    c: npt.ArrayLike,
    gates: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    c0: npt.ArrayLike | None = None,
    *,
    dhT: npt.ArrayLike | None = None,
    dcT: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> LstmGrads:
    """Adjoint of `lstm`, for gradients of the states h and of the final state and cell.

    With ``g_t = dh_t + w^T dz_{t+1}`` the total gradient of h_t and ``e_t = f_{t+1} e_{t+1} + g_t o (1 - tanh(c_t)^2)``
    the gradient of c_t: ``dz_i = e_t g i (1 - i)``, ``dz_f = e_t c_{t-1} f (1 - f)``, ``dz_g = e_t i (1 - g^2)``,
    ``dz_o = g_t tanh(c_t) o (1 - o)``; ``dx = dz``, ``dw = sum dz_t h_{t-1}^T``, ``dh0 = w^T dz_0``, ``dc0 = f_0 e_0``.

    Parameters
    ----------
    dh : (B, T, N)
        Gradient of `h`; padding beyond `lengths` is never read.
    w, h0, c0, lengths
        As given to `lstm`.
    h, c, gates
        As returned by `lstm`.
    dhT, dcT : (B, N), optional
        Gradients of the final state and cell.

    Returns
    -------
    LstmGrads
        ``(dw, dx, dh0, dc0)``, all new arrays; `dx` is zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `lstm`.
    """
    args = Boundary("lstm_backward")
    given = args.take(LSTM, w=w, dh=dh, h=h, c=c, gates=gates, h0=h0, c0=c0, dhT=dhT, dcT=dcT, lengths=lengths)
    grads = args.run("rnn_backward", dc0=True, cell=CELL["lstm"], reverse=False)
    dw = recurrent_weight_grad(args, given["w"], grads["dx"], given["h"], given["h0"], given["lengths"], False)
    return LstmGrads(dw, **grads)


class GruResult(NamedTuple):
    """Results of `gru`: states h (B, T, N), the gates r, z, n and ``w_n h_{t-1} + b_n`` (B, T, 4N) that `gru_backward`
    needs, and the final state hT (B, N)."""

    h: Array
    gates: Array
    hT: Array


class GruGrads(NamedTuple):
    """Gradients of `gru`: of w (3N, N), x (B, T, 3N), bias (3N,) and h0 (B, N)."""

    dw: Array
    dx: Array
    dbias: Array
    dh0: Array


def gru(
    w: npt.ArrayLike,
    x: npt.ArrayLike,
    bias: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
) -> GruResult:
    """Gated recurrent unit (Cho et al. 2014), with the reset gate after the product, as in PyTorch and cuDNN.

    ``u_t = w h_{t-1} + bias``, and x_t and u_t are split into three parts of N in PyTorch's order:
    ``r = s(x_r + u_r)``, ``z = s(x_z + u_z)`` with the sigmoid s, ``n = tanh(x_n + r u_n)``. Then
    ``h_t = (1 - z) n + z h_{t-1}``.

    Parameters
    ----------
    w : (3N, N)
        Recurrent weights, PyTorch's `weight_hh`.
    x : (B, T, 3N)
        Inputs of the gates, ``weight_ih u_t + bias_ih``, any T >= 0. All arrays are float32 or float64, and are
        promoted to their common dtype.
    bias : (3N,)
        PyTorch's `bias_hh`. Its last part is multiplied by the reset gate.
    h0 : (B, N), optional
        Initial state. Default: zero.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `h` and
        `gates`.

    Returns
    -------
    GruResult
        ``(h, gates, hT)``.

    Raises
    ------
    TypeError, ValueError
        As `rnn`.
    """
    args = Boundary("gru")
    args.take(GRU, w=w, x=x, bias=bias, h0=h0, lengths=lengths)
    found = args.run("rnn_forward", gates=True, cell=CELL["gru"], reverse=False)
    return GruResult(found["h"], found["gates"], found["hT"])


def gru_backward(
    dh: npt.ArrayLike,
    w: npt.ArrayLike,
    h: npt.ArrayLike,
    gates: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    dhT: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> GruGrads:
    """Adjoint of `gru`, for gradients of the states h and of the final state.

    With ``g_t = dh_t + w^T du_{t+1} + z_{t+1} g_{t+1}`` the total gradient of h_t:
    ``dx_z = g (h_{t-1} - n) z (1 - z)``, ``dx_n = g (1 - z) (1 - n^2)``, ``dx_r = dx_n u_n r (1 - r)``;
    ``du = (dx_r, dx_z, r dx_n)``, ``dw = sum du_t h_{t-1}^T``, ``dbias = sum du_t``, ``dh0 = w^T du_0 + z_0 g_0``.

    Parameters
    ----------
    dh : (B, T, N)
        Gradient of `h`; padding beyond `lengths` is never read.
    w, h0, lengths
        As given to `gru`.
    h, gates
        As returned by `gru`.
    dhT : (B, N), optional
        Gradient of the final state.

    Returns
    -------
    GruGrads
        ``(dw, dx, dbias, dh0)``, all new arrays; `dx` is zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `gru`.
    """
    args = Boundary("gru_backward")
    given = args.take(GRU, w=w, dh=dh, h=h, gates=gates, h0=h0, c0=h0, dhT=dhT, lengths=lengths)
    grads = args.run("rnn_backward", cell=CELL["gru"], reverse=False)
    dx, N = grads["dx"], given["h"].shape[2]
    du = dx.copy()
    du[..., 2 * N :] *= given["gates"][..., :N]
    dbias = empty((3 * N,), dx.dtype, like=dx)
    dw = recurrent_weight_grad(args, given["w"], du, given["h"], given["h0"], given["lengths"], False, dbias)
    return GruGrads(dw, dx, dbias, grads["dh0"])
