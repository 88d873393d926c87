"""The complex scan in Triton, by its associative_scan: chunks of time one after the other, complex numbers as pairs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

STEPS, LANES = 64, 16


@triton.jit
def _compose(ar, ai, xr, xi, br, bi, yr, yi):
    return ar * br - ai * bi, ar * bi + ai * br, br * xr - bi * xi + yr, br * xi + bi * xr + yi


@triton.jit
def _scan(a, x, h, T, N, REVERSE: tl.constexpr, STEPS: tl.constexpr, LANES: tl.constexpr):
    lanes = tl.program_id(1) * LANES + tl.arange(0, LANES)
    first = tl.program_id(0).to(tl.int64) * T
    ar = tl.broadcast_to(tl.load(a + 2 * lanes)[None, :], (STEPS, LANES))
    ai = tl.broadcast_to(tl.load(a + 2 * lanes + 1)[None, :], (STEPS, LANES))
    hr = tl.zeros((LANES,), tl.float32)
    hi = tl.zeros((LANES,), tl.float32)
    last = (tl.arange(0, STEPS) == STEPS - 1)[:, None]
    for start in range(0, T, STEPS):
        steps = start + tl.arange(0, STEPS)
        inside = (steps < T)[:, None]
        if REVERSE:
            steps = T - 1 - steps
        at = 2 * ((first + steps)[:, None] * N + lanes[None, :])
        xr = tl.load(x + at, mask=inside, other=0.0)
        xi = tl.load(x + at + 1, mask=inside, other=0.0)
        pr, pi, sr, si = tl.associative_scan((ar, ai, xr, xi), 0, _compose)
        sr += pr * hr[None, :] - pi * hi[None, :]
        si += pr * hi[None, :] + pi * hr[None, :]
        tl.store(h + at, sr, mask=inside)
        tl.store(h + at + 1, si, mask=inside)
        hr = tl.sum(tl.where(last, sr, 0.0), 0)
        hi = tl.sum(tl.where(last, si, 0.0), 0)


def scan(a: torch.Tensor, x: torch.Tensor, reverse: bool = False) -> torch.Tensor:
    """States (B, T, N) of ``h_t = a h_{t-1} + x_t``, complex64, N a multiple of 16."""
    B, T, N = x.shape
    h = torch.empty_like(x)
    _scan[(B, N // LANES)](*map(torch.view_as_real, (a, x, h)), T, N, reverse, STEPS, LANES)
    return h
