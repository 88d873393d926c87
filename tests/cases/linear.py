"""Rows of the linear recurrences."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.table import Arrays, rotation_of, scan_loop
from rotrnn.nn.layers.bidirectional import Bidirectional
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.layers.rotrnn import RotRNN


def linear_row(
    name: str, layer: LinearRecurrence, B: int, T: int, lengths: Any = None, reference: Any = None
) -> LayerRow:
    """Linear in x and the state, and in the readout: parameters C..., D."""
    return LayerRow(
        name,
        layer,
        B,
        T,
        lengths,
        reference,
        terms=6 * T + 3 * layer.d_state + layer.d_model + 20,
        linear=(
            ("x",) if layer.bidirectional else ("x", "state"),
            tuple(key for key in layer.shapes if key.startswith(("C", "D"))),
        ),
    )


def lru_loop(layer: LRU, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """lambda = exp(-e^nu + i e^theta), h = lambda h + e^gamma B u, y = Re(C h) + D u; reversed too."""
    lam = np.exp(-np.exp(params["nu_log"]) + 1j * np.exp(params["theta_log"]))
    Bu = x @ (np.exp(params["gamma_log"])[:, None] * (params["B_re"] + 1j * params["B_im"])).T
    h, hT = scan_loop(lam, Bu, state, False, lengths)
    y = (h @ (params["C_re"] + 1j * params["C_im"]).T).real + params["D"] * x
    if layer.bidirectional:
        h, _ = scan_loop(lam, Bu, None, True, lengths)
        y += (h @ (params["C_re_reverse"] + 1j * params["C_im_reverse"]).T).real
        hT = None
    for b, steps in enumerate(lengths or ()):
        y[b, steps:] = 0
    return y, hT


def schatten_norm(B: Any) -> Any:
    """Returns the bound of |B| that RotRNN uses: (sum of s^(2 p))^(1 / 2p) over the singular values s, p = 2^12."""
    s = np.linalg.svd(B, compute_uv=False)
    return s[0] * np.sum((s / s[0]) ** 2**13) ** (1 / 2**13)


def rotrnn_loop(layer: RotRNN, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """The dense recurrence as published: x_t = gamma P R P^T x_{t-1} + xi B u_t, y_t = C x_t + D u_t, head by head.

    The state in and out is s = P^T x as complex planes (an odd head's last lane has a zero beside it).
    """
    H, W = layer.heads, layer.width
    B, T, _ = x.shape
    gamma = np.exp(-np.exp(params["gamma_log"]))
    heads, finals = [[], []], []
    for i in range(H):
        P = rotation_of(params["M"][i] - params["M"][i].T)
        R = np.eye(W)
        for p, angle in enumerate(params["theta"][i]):
            c, s = np.cos(angle), np.sin(angle)
            R[2 * p : 2 * p + 2, 2 * p : 2 * p + 2] = [[c, -s], [s, c]]
        trace = np.trace(params["B"][i].T @ params["B"][i])
        if layer.normalise == "input":
            xi, modulus = np.sqrt(layer.c * (1 - gamma[i] ** 2) / trace), gamma[i]
        elif layer.normalise == "bounded":
            leak, modulus = -np.expm1(-np.exp(params["gamma_log"][i])), gamma[i]
            xi = np.sqrt(layer.c) * leak / schatten_norm(params["B"][i])
        else:
            xi = np.sqrt(layer.c / (layer.c * gamma[i] ** 2 + trace))  # alpha
            modulus = xi * gamma[i]
        A = modulus * P @ R @ P.T
        even = W + W % 2
        for direction in range(1 + layer.bidirectional):
            out = np.zeros((B, T, W))
            final = np.zeros((B, even))
            if state is not None:
                final = np.ascontiguousarray(state).view(np.float64).reshape(B, H, even)[:, i]
            h = final[:, :W] @ P.T
            for b in range(B):
                steps = range(T if lengths is None else lengths[b])
                for t in reversed(steps) if direction else steps:
                    h[b] = A @ h[b] + xi * params["B"][i] @ x[b, t]
                    out[b, t] = h[b]
            heads[direction].append(out)
            if direction == 0:
                # a state of an odd head also has the lane beside the last one, which only decays
                count = np.array([T] * B if lengths is None else lengths)[:, None]
                finals.append(np.concatenate([h @ P, final[:, W:] * modulus**count], 1))
    y = np.concatenate(heads[0], 2) @ params["C"].T + params["D"] * x
    if layer.bidirectional:
        y += np.concatenate(heads[1], 2) @ params["C_reverse"].T
    for b, steps in enumerate(lengths or ()):
        y[b, steps:] = 0
    final = np.ascontiguousarray(np.concatenate(finals, 1)).view(np.complex128)
    return y, None if layer.bidirectional else final


LINEAR = [
    *(
        linear_row(name, layer, B, T, lengths, loop)
        for layer, loop, name in (
            (LRU(4, 3, r_min=0.9), lru_loop, ""),
            (LRU(3, 2, bidirectional=True), lru_loop, "bidirectional"),
            (RotRNN(4, 8, heads=2), rotrnn_loop, "2 heads of 4"),
            (RotRNN(3, 10, heads=2, theta_max=0.5), rotrnn_loop, "2 heads of 5"),
            (RotRNN(3, 3, heads=3), rotrnn_loop, "3 heads of 1"),
            (RotRNN(2, 6, bidirectional=True), rotrnn_loop, "bidirectional"),
        )
        for B, T, lengths in ((2, 12, None), (3, 9, (9, 0, 4)), (1, 0, None))
    ),
]


def both_ways_loop(layer: Bidirectional, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """One copy of the layer on each sequence, and the other copy on each reversed sequence."""
    y = np.zeros_like(x)
    for b, steps in enumerate([x.shape[1]] * len(x) if lengths is None else lengths):
        one = x[b : b + 1, :steps]
        reverse = {name: params[f"{name}_reverse"] for name in layer.layer.shapes}
        y[b, :steps] = lru_loop(layer.layer, params, one, None, None)[0][0]
        y[b, :steps] += lru_loop(layer.layer, reverse, one[:, ::-1], None, None)[0][0, ::-1]
    return y, None


BOTH_WAYS = [
    LayerRow("of LRU", Bidirectional(3, LRU(3, 2)), B, T, lengths, both_ways_loop, terms=12 * T + 30, linear=(("x",),))
    for B, T, lengths in ((2, 12, None), (3, 9, (9, 0, 4)), (1, 0, None))
]

LINEAR_LARGE = [
    linear_row("", layer, 4, 300, (300, 0, 299, 17))
    for layer in (
        LRU(24, 64),
        LRU(24, 64, bidirectional=True),
        RotRNN(24, 128, heads=2),
        RotRNN(24, 128, heads=2, bidirectional=True),
    )
]
