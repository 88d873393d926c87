"""torchlpc: time-varying all-pole filters with a gradient, here of order 1. It wants a coefficient for every step.

Its layout, (batch, time), is made beforehand and not timed. Numba compiles its loops at the first call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

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


def _compile(run: Callable[[torch.Tensor], Any]) -> float:
    """Seconds of a first call, on one step of one sequence."""
    before = time.perf_counter()
    run(torch.ones(1, 1))
    return time.perf_counter() - before


def scan(problem: Scan) -> Trial:
    x, a = _sequences(problem.x), torch.from_numpy(problem.a)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return sample_wise_lpc(x, _coefficients(a, problem))

    seconds = _compile(lambda one: sample_wise_lpc(one, one[..., None]))
    return Trial(step, lambda h: {"h": _back(h, problem)}, seconds)


def scan_gradient(problem: Scan) -> Trial:
    x, dh = _sequences(problem.x).requires_grad_(), _sequences(problem.dh)
    a = torch.from_numpy(problem.a).requires_grad_()

    def step() -> tuple[torch.Tensor, ...]:
        h = sample_wise_lpc(x, _coefficients(a, problem))
        return (h, *torch.autograd.grad(h, (x, a), dh))

    def answer(found: tuple[torch.Tensor, ...]) -> dict[str, Array]:
        h, dx, da = found
        return {"h": _back(h, problem), "dx": _back(dx, problem), "da": da.numpy()}

    seconds = _compile(lambda one: sample_wise_lpc(one.requires_grad_(), one[..., None]).sum().backward())
    return Trial(step, answer, seconds)
