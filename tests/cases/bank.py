"""Rows of the diagonal bank."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.table import Arrays, Case, normal, padding, scan_loop
from rotrnn.ops.bank import diagonal_bank, diagonal_bank_backward


def bank_loop(
    a: Any, c: Any, skip: Any, u: Any, h0: Any = None, reverse: bool = False, lengths: Any = None, window: Any = None
) -> tuple[Any, Any]:
    """h_t = a h_{t-1} + u_t, y_t = Re sum_n c_n h_{t,n} + skip u_t, channel after channel; (y, hT)."""
    if window is not None:
        return bank_window_loop(a, c, skip, u, h0, reverse, lengths, window)
    y = np.zeros_like(u)
    finals = []
    for d in range(u.shape[2]):
        inputs = np.repeat(u[:, :, d : d + 1], a.shape[1], 2)
        h, final = scan_loop(a[d], inputs, None if h0 is None else h0[:, d], reverse, lengths)
        y[:, :, d] = (h * c[d]).sum(-1).real + skip[d] * u[:, :, d]
        finals.append(final)
    for b, steps in enumerate(lengths or ()):
        y[b, steps:] = 0
    return y, np.stack(finals, 1) if finals else np.zeros((len(u), 0, a.shape[1]), a.dtype)


def bank_window_loop(
    a: Any, c: Any, skip: Any, u: Any, h0: Any, reverse: bool, lengths: Any, L: int
) -> tuple[Any, Any]:
    """y_t = sum_{k<L} Re(sum_n c_n a_n^k) u_{t-k} + skip u_t; h0 holds the previous inputs, most recent last."""
    B, T, D = u.shape
    y, hT = np.zeros_like(u), np.zeros((B, L - 1, D), u.dtype)
    response = np.stack([(c * a**k).sum(1).real for k in range(L)])
    for b in range(B):
        valid = u[b, : T if lengths is None else lengths[b]]
        valid = valid[::-1] if reverse else valid
        line = [*(np.zeros((L - 1, D)) if h0 is None else h0[b]), *valid]
        out = [sum(response[k] * line[L - 1 + t - k] for k in range(L)) + skip * x for t, x in enumerate(valid)]
        if out:
            y[b, : len(out)] = out[::-1] if reverse else out
        hT[b] = np.reshape(line[len(line) - L + 1 :], (L - 1, D))
    return y, hT


def bank_case(
    B: int, T: int, D: int, N: int, *, window: int | None = None, reverse: bool = False, lengths: Any = None
) -> Case:
    def make(rng: np.random.Generator) -> Arrays:
        return {
            "a": rng.uniform(0.9, 1, (D, N)) * np.exp(1j * rng.uniform(-np.pi, np.pi, (D, N))),
            "c": normal(rng, (D, N), True),
            "skip": normal(rng, (D,)),
            "u": normal(rng, (B, T, D)),
            "h0": normal(rng, (B, D, N), True) if window is None else normal(rng, (B, window - 1, D)),
        }

    how = {"window": window, "reverse": reverse, "lengths": lengths}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        system = args["a"], args["c"], args["skip"]
        saved = diagonal_bank(*system, args["u"], args["h0"], **how)[2]
        grads = diagonal_bank_backward(doutputs[0], *system, saved, doutputs[1], reverse=reverse)
        return {"a": grads.da, "c": grads.dc, "skip": grads.dskip, "u": grads.du, "h0": grads.dh0}

    flags = "".join([f" window {window}" * (window is not None), " reverse" * reverse, " ragged" * bool(lengths)])
    return Case(
        f"diagonal_bank{flags} {B}x{T}x{D} by {N}",
        make,
        lambda args: diagonal_bank(**args, **how)[:2],
        backward,
        lambda args: bank_loop(**args, **how),
        terms=6 * T + 4 * N + 8,
        linear=(("u", "h0"), ("c", "skip")),
        ragged=padding(lengths, "u", "out0"),
        lengths=lengths,
    )


OPS = [
    bank_case(2, 13, 3, 5),  # a group of states, and one more
    bank_case(1, 70, 2, 4, reverse=True),  # more than one tile
    bank_case(3, 66, 35, 3, lengths=(66, 0, 65)),  # and of channels
    bank_case(3, 9, 18, 2, reverse=True, lengths=(9, 0, 4)),
    *(bank_case(2, 9, 3, 2, window=L, reverse=reverse) for L in (1, 4, 12) for reverse in (False, True)),
    bank_case(3, 9, 2, 3, window=4, lengths=(9, 0, 3)),
    bank_case(3, 9, 2, 3, window=4, reverse=True, lengths=(9, 0, 3)),
    *(bank_case(*shape, window=3) for shape in ((2, 0, 3, 2), (0, 4, 3, 2), (2, 4, 0, 2), (2, 4, 3, 0))),
    *(bank_case(*shape) for shape in ((2, 0, 3, 2), (0, 4, 3, 2), (2, 4, 0, 2), (2, 4, 3, 0), (2, 1, 1, 1))),
]
OPS_LARGE = [
    bank_case(18, 70, 40, 7, lengths=tuple(range(53, 71))),  # more sequences than slots of partial sums
    bank_case(2, 200, 70, 33, reverse=True),
]
