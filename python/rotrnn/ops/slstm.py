"""The scalar memory of the sLSTM, with exponential gates that read the previous output (csrc/kernels/slstm.c)."""

from __future__ import annotations

from typing import NamedTuple

import numpy.typing as npt

from rotrnn.devices.device import HOST, contiguous, empty_like
from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import Declared
from rotrnn.ops.rnn import recurrent_weight_grad

__all__ = ["SlstmGrads", "SlstmResult", "slstm", "slstm_backward"]

FORGET_GATES = ("sigmoid", "exp")
"""Functions of the forget gate in the xLSTM paper."""
SLSTM = Declared("slstm_forward", "slstm_backward")


class SlstmResult(NamedTuple):
    """Result of `slstm`: all outputs h and scaled memories c, n with their levels m (B, T, H, P), the gates before
    their functions (B, T, 4, H, P), the final output and memory (B, H, P)."""

    h: Array
    c: Array
    n: Array
    m: Array
    gates: Array
    hT: Array
    cT: Array
    nT: Array
    mT: Array


class SlstmGrads(NamedTuple):
    """Gradients of `slstm`: of w (H, 4P, P), x (B, T, 4, H, P), h0, c0, n0 and m0 (B, H, P)."""

    dw: Array
    dx: Array
    dh0: Array
    dc0: Array
    dn0: Array
    dm0: Array


def slstm(
    w: npt.ArrayLike,
    x: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    c0: npt.ArrayLike | None = None,
    n0: npt.ArrayLike | None = None,
    m0: npt.ArrayLike | None = None,
    *,
    forget: str = "sigmoid",
    lengths: npt.ArrayLike | None = None,
) -> SlstmResult:
    """Scalar memory with a normaliser and exponential gates (Beck et al. 2024, "xLSTM", equations 8 to 17).

    For each of H heads of P channels ``z_t = x_t + w h_{t-1}``, in four parts: ``i = exp(z_i)``, ``f = s(z_f)`` with
    the sigmoid s or ``f = exp(z_f)``, ``z = tanh(z_z)``, ``o = s(z_o)``. Then ``c_t = f c_{t-1} + i z``,
    ``n_t = f n_{t-1} + i``, ``h_t = o c_t / n_t``.

    The gates may overflow; h does not. A memory is stored as ``e^{-m} c`` and ``e^{-m} n`` with the level
    ``m_t = max(log f + m_{t-1}, z_i)`` (equation 15). Logarithms of gates beyond 45,000 in magnitude count as 45,000.
    Before the first step n is 0, and only there: a channel with
    ``n0 = 0`` has no past, whatever c0 and m0 are, and these get no gradient.

    Parameters
    ----------
    w : (H, 4P, P)
        Recurrent weights: the blocks of a block-diagonal matrix, rows in the order i, f, z, o.
    x : (B, T, 4, H, P)
        Inputs of the gates i, f, z, o, any T >= 0. All arrays are float32 or float64, and are promoted to their common
        dtype.
    h0, c0, n0, m0 : (B, H, P), optional
        Initial output and memory, scaled by ``e^{-m0}``; n0 >= 0. Default: zero.
    forget : "sigmoid" or "exp"
        The function of the forget gate.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in the results.

    Returns
    -------
    SlstmResult
        ``(h, c, n, m, gates, hT, cT, nT, mT)``, for `slstm_backward`.

    Raises
    ------
    TypeError
        An array has another dtype (integers, float16 and complex numbers are not supported).
    ValueError
        Shapes disagree, `forget` is unknown, a length is out of range, n0 has a negative number (checked on the CPU
        alone), or a size product overflows.
    """
    args = Boundary("slstm")
    given = args.take(SLSTM, x=x, w=w, h0=h0, c0=c0, n0=n0, m0=m0, lengths=lengths)
    check_normaliser(args, "n0", given["n0"])
    exponential = args.choice("forget", forget, FORGET_GATES) == "exp"
    return SlstmResult(**args.run("slstm_forward", exponential=exponential))


def check_normaliser(args: Boundary, name: str, n: Array | None) -> None:
    """Checks a normaliser before the first step, of which the output is a quotient. Elsewhere than on the CPU this
    would wait for the device."""
    if n is not None and args.device is HOST and (n < 0).any():
        raise ValueError(f"{args.op}: {name} has the number {n.min()}, expected numbers of at least 0")


def slstm_backward(
    dh: npt.ArrayLike,
    w: npt.ArrayLike,
    result: SlstmResult,
    h0: npt.ArrayLike | None = None,
    c0: npt.ArrayLike | None = None,
    n0: npt.ArrayLike | None = None,
    m0: npt.ArrayLike | None = None,
    *,
    dhT: npt.ArrayLike | None = None,
    dcT: npt.ArrayLike | None = None,
    dnT: npt.ArrayLike | None = None,
    dmT: npt.ArrayLike | None = None,
    forget: str = "sigmoid",
    lengths: npt.ArrayLike | None = None,
) -> SlstmGrads:
    """Adjoint of `slstm`, for gradients of the outputs h and of the final output and memory.

    With ``g_t = dh_t + w^T dx_{t+1}`` the total gradient of h_t, and ``dc_t = f_{t+1} dc_{t+1} + g_t o / n_t``,
    ``dn_t = f_{t+1} dn_{t+1} - g_t o c_t / n_t^2``: ``dx_i = i (dc z + dn)``, ``dlog f = f (dc c_{t-1} + dn n_{t-1})``,
    ``dx_z = dc i (1 - z^2)``, ``dx_o = g_t (c_t / n_t) o (1 - o)``; ``dw = sum dx_t h_{t-1}^T``, ``dh0 = w^T dx_0``. h
    does not depend on the levels m; the scaled final memory and its level do, and so the gradients reach the gates of
    which that level is made. If a sequence has no steps, gradients of the initial state equal the final state's.

    Parameters
    ----------
    dh : (B, T, H, P)
        Gradient of `h`; padding beyond `lengths` is never read.
    w, h0, c0, n0, m0, forget, lengths
        As given to `slstm`.
    result : SlstmResult
        As returned by `slstm`; of it h, c, n, m and gates are read.
    dhT, dcT, dnT, dmT : (B, H, P), optional
        Gradients of the final output and memory.

    Returns
    -------
    SlstmGrads
        ``(dw, dx, dh0, dc0, dn0, dm0)``, all new arrays; `dx` is zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `slstm`; also if `result` is not a SlstmResult.
    """
    args = Boundary("slstm_backward")
    args.one_of("result", result, SlstmResult)
    exponential = args.choice("forget", forget, FORGET_GATES) == "exp"
    before = {"h0": h0, "c0": c0, "n0": n0, "m0": m0}
    after = {"dhT": dhT, "dcT": dcT, "dnT": dnT, "dmT": dmT}
    steps = {name: getattr(result, name) for name in ("gates", "h", "c", "n", "m")}
    given = args.take(SLSTM, dh=dh, w=w, **steps, **before, **after, lengths=lengths)
    grads = args.run("slstm_backward", exponential=exponential)
    dx, aw, h, first = grads["dx"], given["w"], given["h"], given["h0"]
    dw = empty_like(aw)
    for head in range(args.size["H"]):
        dz = contiguous(dx[:, :, :, head]).reshape(*dx.shape[:2], aw.shape[1])
        before_head = None if first is None else contiguous(first[:, head])
        states = contiguous(h[:, :, head])
        dw[head] = recurrent_weight_grad(args, aw[head], dz, states, before_head, given["lengths"], False)
    return SlstmGrads(dw, **grads)
