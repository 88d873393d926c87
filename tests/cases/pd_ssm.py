"""Rows of PD-SSM and of scans with one-hot transitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.ops import sigmoid_formula
from cases.rnn import SHAPES
from cases.table import Arrays, Case, normal, padding
from rotrnn.nn.layers.pd_ssm import PDSSM
from rotrnn.ops.permuted import PermutedScan, permuted_scan, permuted_scan_backward


def one_hot_columns(M: Any) -> Any:
    """Returns P of M (N, N): 1 where a column has its first largest number."""
    P = np.zeros(M.shape)
    for j in range(M.shape[1]):
        P[max(range(len(M)), key=lambda i: M[i, j]), j] = 1
    return P


def complex_of(x: Any) -> Any:
    """Returns numbers of parts (..., 2, N)."""
    return x[..., 0, :] + 1j * x[..., 1, :]


def parts_of(z: Any) -> Any:
    return np.stack([z.real, z.imag], -2)


def permuted_loop(w: Any, m: Any, d: Any, x: Any, h0: Any, lengths: Any = None) -> tuple[Any, Any]:
    """Products with matrices, one step after the other; (h, hT)."""
    h, hT = np.zeros(x.shape), np.array(h0)
    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            P = one_hot_columns(np.tensordot(w[b, t], m, 1))
            h[b, t] = hT[b] = parts_of(P @ np.diag(complex_of(d[b, t])) @ complex_of(hT[b]) + complex_of(x[b, t]))
    return h, hT


def permuted_case(B: int, T: int, N: int, K: int, lengths: Any = None) -> Case:
    """Lanes keep their sizes, and random matrices send several to the same lane."""

    def make(rng: np.random.Generator) -> Arrays:
        return {
            "w": normal(rng, (B, T, K)),
            "m": normal(rng, (K, N, N)),
            "d": parts_of(np.exp(1j * rng.uniform(-np.pi, np.pi, (B, T, N)))),
            "x": normal(rng, (B, T, 2, N)),
            "h0": normal(rng, (B, 2, N)),
        }

    def forward(args: Arrays) -> tuple[Any, ...]:
        return tuple(permuted_scan(**args, lengths=lengths)[:2])

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        dh, dhT = doutputs
        w, m, d, _, h0 = args.values()
        found = PermutedScan(*outputs, permuted_scan(**args, lengths=lengths).p)
        grads = permuted_scan_backward(dh, w, m, d, found, h0, dhT=dhT, lengths=lengths)
        return {name: getattr(grads, f"d{name}") for name in args}

    return Case(
        f"permuted_scan{' ragged' * (lengths is not None)} {B}x{T}x{N} K{K}",
        make,
        forward,
        backward,
        lambda args: permuted_loop(**args, lengths=lengths),
        # a state is a sum of T products of each lane that comes together, and a gradient of M one of K N rows
        terms=8 * (T + 2) * (N + 2) + 4 * K * N,
        linear=(("x", "h0"),),
        ragged=padding(lengths, "w", "d", "x", "out0"),
        lengths=lengths,
        estimated=("w", "m"),
    )


def pd_ssm_reference(layer: PDSSM, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """The equations with matrices."""
    h, y = complex_of(state), np.zeros(x.shape)
    N = layer.d_state
    In = params["B"][:N] + 1j * params["B"][N:]
    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            u = x[b, t]
            e = np.exp(params["S"] @ u)
            P = one_hot_columns(np.tensordot(e / e.sum(), params["M"], 1))
            size, turns = (sigmoid_formula(params[f"W_{name}"] @ u + params[f"b_{name}"]) for name in ("size", "phase"))
            h[b] = P @ np.diag(size * np.exp(2j * np.pi * turns)) @ h[b] + In @ u
            y[b, t] = params["C"] @ parts_of(h[b]).ravel() + params["D"] * u
    return y, parts_of(h)


OPS = [
    permuted_case(2, 13, 5, 3),
    permuted_case(1, 1, 1, 1),
    permuted_case(2, 0, 3, 2),
    permuted_case(0, 3, 2, 2),
    permuted_case(2, 4, 0, 2),
    permuted_case(3, 9, 7, 2, (9, 0, 4)),
    permuted_case(2, 7, 35, 2, (7, 5)),  # three strips of columns
]
OPS_LARGE = [permuted_case(3, 70, 40, 3, (70, 0, 33))]

LAYERS = [
    LayerRow(
        "", PDSSM(3, 4, 3), B, T, lengths, pd_ssm_reference, terms=40 * (T + 6) ** 2,
        linear=(("B", "state"), ("C", "D")),
    )
    for B, T, lengths in SHAPES
]  # fmt: skip
