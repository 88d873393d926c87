"""The delta rule: a matrix state that is corrected towards a value at a key (csrc/kernels/delta.c)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy.typing as npt

from rotrnn.ops.boundary import Along, Array, Boundary, asked
from rotrnn.ops.declared import Declared

__all__ = ["DeltaRuleGrads", "delta_rule", "delta_rule_backward"]

DELTA = Declared("delta_forward", "delta_backward", keys="K", values="V")


class DeltaRuleGrads(NamedTuple):
    """Gradients of `delta_rule`, each in the shape of its argument; None for an argument that was not given, except
    h0."""

    dq: Array
    dk: Array
    dv: Array
    dbeta: Array | None
    ddecay: Array | None
    dh0: Array
    dread: Array | None
    derase: Array | None


@overload
def delta_rule(
    q: npt.ArrayLike, k: npt.ArrayLike, v: npt.ArrayLike, beta: npt.ArrayLike | None = None,
    decay: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, read: npt.ArrayLike | None = None,
    erase: npt.ArrayLike | None = None, *,
    return_state: Literal[False] = False, return_carries: Literal[False] = False, **how: Unpack[Along],
) -> Array: ...  # fmt: skip
@overload
def delta_rule(
    q: npt.ArrayLike, k: npt.ArrayLike, v: npt.ArrayLike, beta: npt.ArrayLike | None = None,
    decay: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, read: npt.ArrayLike | None = None,
    erase: npt.ArrayLike | None = None, *,
    return_state: Literal[True], return_carries: Literal[False] = False, **how: Unpack[Along],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def delta_rule(
    q: npt.ArrayLike, k: npt.ArrayLike, v: npt.ArrayLike, beta: npt.ArrayLike | None = None,
    decay: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, read: npt.ArrayLike | None = None,
    erase: npt.ArrayLike | None = None, *,
    return_state: Literal[False] = False, return_carries: Literal[True], **how: Unpack[Along],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def delta_rule(
    q: npt.ArrayLike, k: npt.ArrayLike, v: npt.ArrayLike, beta: npt.ArrayLike | None = None,
    decay: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, read: npt.ArrayLike | None = None,
    erase: npt.ArrayLike | None = None, *,
    return_state: Literal[True], return_carries: Literal[True], **how: Unpack[Along],
) -> tuple[Array, Array, Array]: ...  # fmt: skip
@overload
def delta_rule(
    q: npt.ArrayLike, k: npt.ArrayLike, v: npt.ArrayLike, beta: npt.ArrayLike | None = None,
    decay: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, read: npt.ArrayLike | None = None,
    erase: npt.ArrayLike | None = None, *,
    return_state: bool = False, return_carries: bool = False, **how: Unpack[Along],
) -> Array | tuple[Array, ...]: ...  # fmt: skip
def delta_rule(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    beta: npt.ArrayLike | None = None,
    decay: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    read: npt.ArrayLike | None = None,
    erase: npt.ArrayLike | None = None,
    *,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
    return_state: bool = False,
    return_carries: bool = False,
) -> Array | tuple[Array, ...]:
    """Linear recurrence of a matrix state by delta rules: DeltaNet, DeltaProduct, KDA, Comba, RWKV-7 and others.

    In each head, a token t decays the state h (K, V), makes R Householder steps i = 0..R-1, and is read:

    ``h <- decay_t h``, ``h <- h + beta_{t,i} k_{t,i} (v_{t,i} - h^T k_{t,i})^T``, ``y_t = h^T q_t``.

    A step is ``h <- (I - beta k k^T) h + beta k v^T``. For a key of unit length, its matrix has the eigenvalue
    ``1 - beta`` along k and 1 across: a projection at beta = 1, a reflection at beta = 2. h is the transpose of the
    state S of the papers. A decay is a number for each head, or one for each key, which is the factor of a row of h.

    In general a step reads the state at a separate key e = `read`, before the state decays, and erases the value read
    at a key f = `erase`, with the diagonal matrix d of the decay in the first step, and d = 1 in others:

    ``p = h^T e``, ``h <- d h + beta k (v - p)^T``, or with `erase` ``h <- d h - f p^T + beta k v^T``.

    ============================================== ============== ============ =========== ====== ============
    rule                                           decay          read         erase       beta   v
    ============================================== ============== ============ =========== ====== ============
    DeltaNet (Yang et al. 2024)                    none           (k)          (beta k)    beta   v
    Gated DeltaNet (Yang et al. 2024, eq. 10)      head           (decay k)    (beta k)    beta   v
    DeltaProduct (Siems et al. 2025), R > 1        none or head   (decay k)    (beta k)    beta   v
    Kimi Delta Attention (2510.26692)              keys           (decay k)    (beta k)    beta   v
    Gated DeltaNet-2, with gates b and w           keys           decay * b k  (k)         none   w * v
    Comba (2506.02475), with p near k              head           p            (beta k)    beta   v
    RWKV-7 (2503.14456)                            keys           kappa        kappa * a   none   v
    ============================================== ============== ============ =========== ====== ============

    Entries in brackets are the defaults.

    Parameters
    ----------
    q : (B, T, H, K)
        Queries. All arrays are float32 or float64, and are promoted to their common dtype. Any T >= 0.
    k : (B, T, R, H, K)
        Keys; they are not normalised here.
    v : (B, T, R, H, V)
        Values.
    beta : (B, T, R, H), optional
        Step sizes. Default: 1.
    decay : (B, T, H) or (B, T, H, K), optional
        The factor of the state, or of each of its rows, before the first step of a token. Default: 1.
    h0 : (B, H, K, V), optional
        Initial state; with `reverse` it enters at the last valid token. Default: zero.
    read : (B, T, R, H, K), optional
        The keys e at which steps read the state as it is before the decay. Default: ``decay k``.
    erase : (B, T, R, H, K), optional
        The keys f at which the value read is erased. Default: ``beta k``, which takes half the work.
    reverse : bool
        Run backward in time, without copying the input. The steps of a token keep their order.
    lengths : (B,) integers in [0, T], optional
        Number of valid tokens of each sequence. Padding beyond is never read (it may be NaN) and is zero in `y`.
    return_state : bool
        Also return the final state.
    return_carries : bool
        Also return the carries, so that `delta_rule_backward` need not run forward again.

    Returns
    -------
    y : (B, T, H, V)
    hT : (B, H, K, V)
        Only with `return_state`: the state after the last valid token in scan order; `h0` (or zero) for a sequence
        without tokens.
    carries : (B, H, tiles, K, V)
        Only with `return_carries`: the states before each tile of 16 tokens.

    Raises
    ------
    TypeError
        An array has another dtype (integers, float16 and complex numbers are not supported).
    ValueError
        Shapes disagree, R is 0, a length is out of range, or a size product overflows.
    """
    args = Boundary("delta_rule")
    reverse = args.flag("reverse", reverse)
    return_state, return_carries = args.flag("return_state", return_state), args.flag("return_carries", return_carries)
    arrays = {"q": q, "k": k, "v": v, "beta": beta, "decay": decay, "h0": h0, "read": read, "erase": erase}
    _take(args, lengths, arrays)
    results = args.run("delta_forward", y=True, hT=return_state, carries=return_carries, reverse=reverse)
    return asked(*results.values())


def delta_rule_backward(
    dy: npt.ArrayLike,
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    beta: npt.ArrayLike | None = None,
    decay: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    read: npt.ArrayLike | None = None,
    erase: npt.ArrayLike | None = None,
    *,
    dhT: npt.ArrayLike | None = None,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
    carries: Array | None = None,
) -> DeltaRuleGrads:
    """Adjoint of `delta_rule`.

    With g the gradient of the state after a step, and ``error = v - h^T k`` of the state h before it, decayed:
    ``dq_t = h dy_t`` and ``g <- g + q_t dy_t^T`` where the state is read; in each step ``dv = beta g^T k``,
    ``dbeta = (g^T k) . error``, ``dk = beta g error - h dv`` and ``g <- g - k dv^T``; then
    ``ddecay_t = sum of g * h_{t-1}`` and ``g <- decay_t g``. At the end of time g is dhT, at its beginning dh0.
    With keys e and f, and ``dp = -dv``, or with `erase` ``dp = -g^T f`` and ``derase = -g p``:
    ``dk = g u``, u the value that is added at k, ``dread = h dp``, ``ddecay_t`` sums g * h, ``g <- d g + e dp^T``.

    Parameters
    ----------
    dy : (B, T, H, V)
        Gradient of `y`; padding beyond `lengths` is never read.
    q, k, v, beta, decay, h0, read, erase, reverse, lengths
        As given to `delta_rule`.
    dhT : (B, H, K, V), optional
        Gradient of the final state.
    carries : (B, H, tiles, K, V), optional
        As returned by `delta_rule`; recomputed if not given.

    Returns
    -------
    DeltaRuleGrads
        ``(dq, dk, dv, dbeta, ddecay, dh0, dread, derase)``, all new arrays (nothing is accumulated), zero beyond
        `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `delta_rule`.
    """
    args = Boundary("delta_rule_backward")
    reverse = args.flag("reverse", reverse)
    arrays = {"q": q, "k": k, "v": v, "beta": beta, "decay": decay, "h0": h0, "read": read, "erase": erase}
    given = _take(args, lengths, {"dy": dy, **arrays, "dhT": dhT, "carries": carries})
    if carries is None:
        given["carries"] = args.run("delta_forward", carries=True, reverse=reverse)["carries"]
    return DeltaRuleGrads(**args.run("delta_backward", reverse=reverse))


def _take(args: Boundary, lengths: npt.ArrayLike | None, arrays: dict[str, Any]) -> dict[str, Any]:
    given = args.take(DELTA, **arrays, lengths=lengths)
    if not args.size["R"]:
        raise ValueError(f"{args.op}: k has R=0 steps for each token, expected at least 1")
    return given
