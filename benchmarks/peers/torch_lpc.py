"""torchlpc: time-varying all-pole filters with a gradient, here of order 1. It wants a coefficient for every step.

Its layout, (batch, time), is made beforehand and not timed.
"""

from __future__ import annotations

import numpy as np
import torch
from torchlpc import sample_wise_lpc

from benchmarks.peers.problem import Array, Scan, Trial


def _sequences(x: Array) -> torch.Tensor:
    """(B, T, N) to (B N, T)."""
    return torch.from_numpy(np.ascontiguousarray(x.swapaxes(1, 2))).flatten(0, 1)


def _back(y: torch.Tensor, problem: Scan) -> Array:
    B, _, N = problem.x.shape
    back: Array = y.detach().unflatten(0, (B, N)).swapaxes(1, 2).numpy()
    return back


def _coefficients(a: torch.Tensor, problem: Scan) -> torch.Tensor:
    """-a as (B N, T, 1)."""
    B, T, _ = problem.x.shape
    return (-a).repeat(B)[:, None, None].expand(-1, T, 1)


def scan(problem: Scan) -> Trial:
    x, a = _sequences(problem.x), torch.from_numpy(problem.a)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return sample_wise_lpc(x, _coefficients(a, problem))

    return Trial(step, lambda h: {"h": _back(h, problem)})


def scan_gradient(problem: Scan) -> Trial:
    x, dh = _sequences(problem.x).requires_grad_(), _sequences(problem.dh)
    a = torch.from_numpy(problem.a).requires_grad_()

    def step() -> tuple[torch.Tensor, ...]:
        h = sample_wise_lpc(x, _coefficients(a, problem))
        return (h, *torch.autograd.grad(h, (x, a), dh))

    def answer(found: tuple[torch.Tensor, ...]) -> dict[str, Array]:
        h, dx, da = found
        return {"h": _back(h, problem), "dx": _back(dx, problem), "da": da.numpy()}

    return Trial(step, answer)
