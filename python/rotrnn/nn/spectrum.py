"""The gain of a rotating recurrence for inputs that are not white: measured from the input, or a bound for any input.

For one head, ``s_t = gamma R(theta) s_{t-1} + xi v_t`` with ``v_t = P^T B u_t``. For a stationary input,

    E|s_t|^2 = xi^2 V / (1 - gamma^2),   V = sum_p mean over omega of Pi_gamma(omega - theta_p) S_p(omega)

S_p is the spectrum of v in the plane p, and ``Pi_gamma(phi) = (1 - gamma^2) / (1 - 2 gamma cos phi + gamma^2)`` the
Poisson kernel: each plane reads the spectrum near its own angle. For white input V = tr(B^T B). V is measured without
a spectrum. For any v, with s the scan of v from zero and xi = 1, and the periodogram of v as S_p,

    V = mean_t v_t . (2 s_t - v_t) = ((1 - gamma^2) sum_t |s_t|^2 + gamma^2 |s_T|^2) / T

which lies between (1 - gamma) / (1 + gamma) and (1 + gamma) / (1 - gamma) times mean |v_t|^2. With a window of L
inputs, V is (1 - gamma^2) / T times the sum of |s_t|^2, over the L - 1 steps after the end, too; for white input V =
(1 - gamma^2L) tr(B^T B).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import einsum
from rotrnn.nn.layer import Array, Gather, mask_steps
from rotrnn.ops.dense import dense, dense_backward, matmul
from rotrnn.ops.linear_layer import complex_of
from rotrnn.ops.pointwise import count_steps
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward

SQUARINGS = 12
"""Squarings in `norm_bound`: for n = 1024 the bound is at most n^(1 / 2^13) - 1 = 0.09 % above the norm."""


class Measured(NamedTuple):
    """V (H,) of a batch, and the arrays that its adjoint needs: the input and the map into the planes, v and its scans
    for each direction, 1 - gamma^2 (H,), the number of steps, and lengths."""

    energy: Array
    x: Array
    w_in: Array
    v: Array
    scans: tuple[Array, ...]
    leak: Array
    steps: int
    lengths: npt.NDArray[np.int64] | None


def measure(
    a: Array, leak: Array, w_in: Array, x: Array, lengths: npt.NDArray[np.int64] | None, directions: int,
    gather: Gather | None = None, window: int | None = None,
) -> Measured:  # fmt: skip
    """Returns V of each head for x (B, T, D), with the transitions a (planes,), ``leak = 1 - gamma^2`` (H,), and w_in
    (2 planes, D) without a gain. For two directions, it is the mean. Without a valid step, V is zero."""
    H = len(leak)
    v = mask_steps(dense(x, w_in), lengths).view(complex_of(w_in.dtype))
    scans, total = [], np.zeros(H, like=leak)
    if window is not None:
        v = np.pad(v, ((0, 0), (0, window - 1), (0, 0)))  # until the window is empty
    for k in range(directions):
        if window is None:
            s, last = diagonal_scan(a, v, reverse=bool(k), lengths=lengths, return_state=True)
            after = (1 - leak) * _squares(last, H)
        else:  # backwards, a plane reads the spectrum at the opposite angle: as forwards with conj(a)
            s, after = diagonal_scan(a.conj() if k else a, v, window=window), np.zeros_like(leak)
        scans.append(s)
        total = total + (leak * _squares(s.reshape(-1, len(a)), H) + after) / directions
    steps = count_steps(x.shape, lengths)
    if gather is not None:
        row = np.concatenate([total, total[:1] * 0 + steps])
        sums = np.concatenate(gather(row[None])).sum(0)
        total, steps = sums[:-1], sums[-1]
    energy = (total / np.maximum(steps, 1)).astype(w_in.dtype)
    return Measured(energy, x, w_in, v, tuple(scans), leak, steps, lengths)


def _squares(z: Array, heads: int) -> Array:
    """Returns the sums of |z|^2 (rows, planes) over each head (H,), in float64."""
    lanes = z.view(z.real.dtype)
    return einsum("rn,rn->n", lanes, lanes).reshape(heads, -1).sum(1, dtype=np.float64)


def measure_backward(
    denergy: Array, measured: Measured, a: Array, window: int | None = None
) -> tuple[Array, Array, Array]:
    """Adjoint of `measure`: returns (da, dw_in, dx)."""
    energy, x, w_in, v, scans, leak, steps, lengths = measured
    planes = v.shape[2] // len(denergy)
    by_plane = np.repeat(denergy * (2 / np.maximum(steps, 1)), planes).astype(v.real.dtype)
    share = by_plane / len(scans)
    if window is None:  # of v . (2 s - v)
        dv, da = -by_plane * v, np.zeros_like(a)
    else:  # of (1 - gamma^2) |s|^2; the first factor is every plane's
        dv, da = np.zeros_like(v), -2 * np.repeat(denergy * energy / (leak * planes), planes) * a
        share = share * np.repeat(leak, planes)
    for k, s in enumerate(scans):
        if window is None:
            grads = diagonal_scan_backward(share * v, a, s, x=v, reverse=bool(k), lengths=lengths)
            dv += share * s + grads.dx
            da += grads.da
        else:
            grads = diagonal_scan_backward(share * s, a.conj() if k else a, None, x=v, window=window)
            dv += grads.dx
            da += grads.da.conj() if k else grads.da
    if window is not None:
        dv = mask_steps(dv[:, : x.shape[1]], lengths)
    into = dense_backward(dv.view(w_in.dtype), x, w_in)
    return da, into.dw, into.dx


class NormBound(NamedTuple):
    """A bound of each matrix's norm (H,), and its gradient (H, W, D)."""

    bound: Array
    gradient: Array


def norm_bound(B: Array) -> NormBound:
    """Returns for each B (H, W, D) the Schatten norm ``tr((B B^T)^p)^(1 / 2p)``, p = 2^12: at least the largest
    singular value, and at most ``min(W, D)^(1 / 2p)`` times it. Its gradient is ``(B B^T)^(p-1) B`` up to a factor.

    It comes from products of matrices alone, so results have the same bits for any number of threads.
    """
    wide = B.shape[1] > B.shape[2]
    A = B.swapaxes(1, 2) if wide else B
    G = matmul(A, A.swapaxes(1, 2))
    scale = _trace(G)
    power = G / scale[:, None, None]  # (B B^T)^(2^j), of trace 1
    rest, log = power, np.log(scale.astype(np.float64))
    for j in range(SQUARINGS):
        square = matmul(power, power)
        scale = _trace(square)
        power, log = square / scale[:, None, None], log + np.log(scale.astype(np.float64)) / 2 ** (j + 1)
        if j + 1 < SQUARINGS:
            rest = matmul(rest, power)
            rest = rest / _trace(rest)[:, None, None]
    bound = np.exp(log / 2).astype(B.dtype)
    gradient = matmul(rest, A) * (bound / einsum("hij,hji->h", rest, G))[:, None, None]
    return NormBound(bound, gradient.swapaxes(1, 2) if wide else gradient)


def _trace(A: Array) -> Array:
    """Returns the traces (H,) of A (H, n, n)."""
    return np.diagonal(A, axis1=1, axis2=2).sum(1)
