"""The matrix memory of the mLSTM, with exponential gates (csrc/kernels/mlstm.c)."""

from __future__ import annotations

from typing import NamedTuple

import numpy.typing as npt

from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import Declared

__all__ = ["MlstmGrads", "MlstmResult", "mlstm", "mlstm_backward"]

MLSTM = Declared("mlstm_forward", "mlstm_backward", batch="B")


class MlstmResult(NamedTuple):
    """Result of `mlstm`: y (B, T, H, P); the final state cT (B, H, P, N), nT (B, H, N), mT (B, H); and for
    `mlstm_backward` the scaled denominators den (B, T, H), and the states before each chunk of 64 steps, carries
    (B, chunks, H, P + 1, N), whose last row is n, with their levels m (B, chunks, H)."""

    y: Array
    cT: Array
    nT: Array
    mT: Array
    den: Array
    carries: Array
    levels: Array


class MlstmGrads(NamedTuple):
    """Gradients of `mlstm`, each in the shape of its argument."""

    dq: Array
    dk: Array
    dv: Array
    dlog_i: Array
    dlog_f: Array
    dc0: Array
    dn0: Array
    dm0: Array


def mlstm(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    log_i: npt.ArrayLike,
    log_f: npt.ArrayLike,
    c0: npt.ArrayLike | None = None,
    n0: npt.ArrayLike | None = None,
    m0: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
) -> MlstmResult:
    """Matrix memory with a normaliser and exponential gates (Beck et al. 2024, "xLSTM", equations 19 to 21).

    For each head, with the input gate ``i_t = exp(log_i_t)`` and the forget gate ``f_t = exp(log_f_t)``:
    ``C_t = f_t C_{t-1} + i_t v_t k_t^T``, ``n_t = f_t n_{t-1} + i_t k_t``, ``y_t = C_t q_t / max(|n_t . q_t|, 1)``.

    The gates may overflow; y does not. A state is stored as ``c = e^{-m} C`` and ``n = e^{-m} n`` with the level
    ``m_t = max(log_f_t + m_{t-1}, log_i_t)`` (equation 15), and 1 in the quotient becomes ``e^{-m}``. Logarithms beyond
    45,000 in magnitude count as 45,000. Computed in chunks of 64 steps as products of matrices; the states of single
    steps are not stored.

    Parameters
    ----------
    q, k : (B, T, H, N)
        Queries and keys of H heads, any T >= 0 and N >= 0. The paper divides keys by sqrt(N); this function does not.
        All arrays are float32 or float64, and are promoted to their common dtype.
    v : (B, T, H, P)
        Values.
    log_i, log_f : (B, T, H)
        Logarithms of the gates, of any sign.
    c0 : (B, H, P, N), optional
    n0 : (B, H, N), optional
    m0 : (B, H), optional
        Initial state, scaled by ``e^{-m0}``. Default: zero.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `y`.

    Returns
    -------
    MlstmResult
        ``(y, cT, nT, mT, den, carries, levels)``: y; the state after the last valid step, which is the initial one for
        a sequence without steps; and arrays for `mlstm_backward`.

    Raises
    ------
    TypeError
        An array has another dtype (integers, float16 and complex numbers are not supported).
    ValueError
        Shapes disagree, a length is out of range, or a size product overflows.
    """
    args = Boundary("mlstm")
    args.take(MLSTM, q=q, k=k, v=v, log_i=log_i, log_f=log_f, c0=c0, n0=n0, m0=m0, lengths=lengths)
    return MlstmResult(**args.run("mlstm_forward"))


def mlstm_backward(
    dy: npt.ArrayLike,
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    log_i: npt.ArrayLike,
    log_f: npt.ArrayLike,
    result: MlstmResult,
    *,
    dcT: npt.ArrayLike | None = None,
    dnT: npt.ArrayLike | None = None,
    dmT: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> MlstmGrads:
    """Adjoint of `mlstm`.

    With S the matrix with the rows of C and n, v_t extended by 1, and dY_t the gradient of ``Y_t = S_t q_t``, of
    which y is the quotient: ``g_t = dY_t q_t^T + f_{t+1} g_{t+1}``, with the gradient of the final state as boundary;
    ``dq_t = S_t^T dY_t``, ``dv_t = i_t g_t k_t``, ``dk_t = i_t g_t^T v_t``, ``dlog_i_t = v_t . dv_t``,
    ``dlog_f_t = f_t g_t . S_{t-1}``. y does not depend on the levels m; the scaled final state and its level do, and so
    the gradients reach the gates of which that level is made. If a sequence has no steps, the gradients of the initial
    state equal the final state's.

    Parameters
    ----------
    dy : (B, T, H, P)
        Gradient of `y`; padding beyond `lengths` is never read.
    q, k, v, log_i, log_f, lengths
        As given to `mlstm`.
    result : MlstmResult
        As returned by `mlstm`; of it y, den, carries and levels are read.
    dcT : (B, H, P, N), optional
    dnT : (B, H, N), optional
    dmT : (B, H), optional
        Gradient of the final state.

    Returns
    -------
    MlstmGrads
        ``(dq, dk, dv, dlog_i, dlog_f, dc0, dn0, dm0)``, all new arrays, zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `mlstm`; also if `result` is not a MlstmResult.
    """
    args = Boundary("mlstm_backward")
    args.one_of("result", result, MlstmResult)
    inputs = {"dy": dy, "q": q, "k": k, "v": v, "log_i": log_i, "log_f": log_f, "dcT": dcT, "dnT": dnT, "dmT": dmT}
    saved = {name: getattr(result, name) for name in ("y", "den", "carries", "levels")}
    args.take(MLSTM, **inputs, **saved, lengths=lengths)
    return MlstmGrads(**args.run("mlstm_backward"))
