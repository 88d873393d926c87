"""Rows of LRU's ladder, RotRNN's normalisations, S5 and S4D."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.bank import bank_loop
from cases.layer_row import LayerRow
from cases.linear import linear_row, rotrnn_loop
from cases.table import Arrays, scan_loop
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.layers.rotrnn import RotRNN
from rotrnn.nn.layers.s4d import S4D
from rotrnn.nn.layers.s5 import S5


def readout(params: Arrays, suffix: str = "") -> Any:
    return params["C_re" + suffix] + 1j * params["C_im" + suffix]


def diagonal_loop(
    layer: Any, params: Arrays, x: Any, state: Any, lengths: Any, a: Any, gain: Any, weight: int
) -> tuple[Any, Any]:
    """h = a h + gain B u, y = weight Re(C h) + D u; reversed too."""
    Bu = x @ (gain[:, None] * (params["B_re"] + 1j * params["B_im"])).T
    h, hT = scan_loop(a, Bu, state, False, lengths)
    y = weight * (h @ readout(params).T).real + params["D"] * x
    if layer.bidirectional:
        h, _ = scan_loop(a, Bu, None, True, lengths)
        y += weight * (h @ readout(params, "_reverse").T).real
        hT = None
    for b, steps in enumerate(lengths or ()):
        y[b, steps:] = 0
    return y, hT


def lru_ladder_loop(layer: LRU, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    a = {
        "real_imag": lambda p: p["lambda_re"] + 1j * p["lambda_im"],
        "exp": lambda p: np.exp(-p["nu"] + 1j * p["theta"]),
        "stable_exp": lambda p: np.exp(-np.exp(p["nu_log"]) + 1j * p["theta"]),
        "log_phase": lambda p: np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"])),
    }[layer.form](params)
    gain = np.exp(params["gamma_log"]) if layer.gamma else np.ones(layer.d_state)
    return diagonal_loop(layer, params, x, state, lengths, a, gain, 1)


def discretised(method: str, lam: Any, step: Any, step_input: Any) -> tuple[Any, Any]:
    """Returns (a, gain) by the formulas in the papers."""
    if method == "bilinear":
        return (1 + lam * step / 2) / (1 - lam * step / 2), step_input / (1 - lam * step_input / 2)
    gain = (np.exp(lam * step_input) - 1) / lam if method == "zoh" else step_input + 0 * lam
    return np.exp(lam * step), gain


def s5_loop(layer: S5, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    lam = params["lambda_re"] + 1j * params["lambda_im"]
    if layer.clip_eigs:
        lam = np.minimum(lam.real, -1e-4) + 1j * lam.imag
    step = layer.step_scale * np.exp(params["log_step"])
    a, gain = discretised(layer.discretisation, lam, step, step)
    return diagonal_loop(layer, params, x, state, lengths, a, gain, 2 if layer.conjugate else 1)


def s4d_loop(layer: S4D, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """The state in and out is h / (gain B)."""
    A = -np.exp(params["log_A_re"]) + 1j * params["A_im"]
    step = layer.step_scale * np.exp(params["log_step"])[:, None]
    step_input = step if layer.tied else layer.step_scale * np.exp(params["log_step_input"])[:, None]
    a, gain = discretised(layer.discretisation, A, step, step_input)
    weighted = (2 if layer.conjugate else 1) * gain * (params["B_re"] + 1j * params["B_im"])
    c, skip, window = weighted * readout(params), params["D"], layer.window
    y, hT = bank_loop(a, c, skip, x, state, False, lengths, window)
    if layer.bidirectional:
        c = weighted * readout(params, "_reverse")
        y += bank_loop(a, c, 0 * skip, x, None, True, lengths, window)[0]
        hT = None
    return y, hT


def s4d_row(name: str, layer: S4D, B: int, T: int, lengths: Any = None, reference: Any = s4d_loop) -> LayerRow:
    return LayerRow(
        name,
        layer,
        B,
        T,
        lengths,
        reference,
        terms=6 * T + 8 * layer.d_state + 20,
        linear=(
            ("x",) if layer.bidirectional else ("x", "state"),
            tuple(key for key in layer.shapes if key.startswith(("C", "D"))),
        ),
    )


LADDER = [
    linear_row("real_imag", LRU(3, 2, form="real_imag", gamma=False), 2, 8, None, lru_ladder_loop),
    linear_row("exp", LRU(3, 2, form="exp", r_max=0.9, bidirectional=True), 3, 7, (7, 0, 3), lru_ladder_loop),
    linear_row("stable_exp", LRU(3, 2, form="stable_exp", gamma=False), 3, 7, (7, 0, 3), lru_ladder_loop),
    linear_row("alpha", RotRNN(4, 6, heads=2, normalise="alpha"), 2, 8, None, rotrnn_loop),
    linear_row("c 3", RotRNN(3, 4, heads=2, c=3.0), 3, 7, (7, 0, 3), rotrnn_loop),
    linear_row("alpha c 1/2", RotRNN(3, 5, normalise="alpha", c=0.5, bidirectional=True), 2, 6, None, rotrnn_loop),
    linear_row("bounded", RotRNN(4, 6, heads=2, normalise="bounded", c=2.0), 3, 7, (7, 0, 3), rotrnn_loop),
    linear_row("bounded", RotRNN(2, 5, normalise="bounded", bidirectional=True), 2, 6, None, rotrnn_loop),
    linear_row("zoh", S5(3, 8, blocks=2), 2, 9, None, s5_loop),
    linear_row("zoh", S5(3, 8, blocks=2), 1, 0, None, s5_loop),
    linear_row("bilinear", S5(3, 4, discretisation="bilinear", c_init="lecun_normal"), 3, 8, (8, 0, 3), s5_loop),
    linear_row("half rate", S5(2, 4, step_scale=2.0), 2, 5, (3, 5), s5_loop),
    linear_row(
        "bidirectional",
        S5(3, 3, conjugate=False, c_init="complex_normal", bidirectional=True),
        3,
        7,
        (7, 0, 3),
        s5_loop,
    ),
    linear_row("clipped", S5(2, 4, clip_eigs=True, discretisation="first_order", dt_min=0.05), 2, 6, None, s5_loop),
    s4d_row("legs zoh", S4D(3, 4), 2, 9),
    s4d_row("legs zoh", S4D(3, 4), 1, 0),
    s4d_row("lin untied", S4D(2, 6, frequencies="lin", discretisation="first_order", tied=False), 3, 8, (8, 0, 3)),
    s4d_row("inv bilinear", S4D(3, 2, frequencies="inv", discretisation="bilinear", conjugate=False), 2, 8),
    s4d_row("half rate", S4D(2, 4, step_scale=2.0, tied=False), 2, 6, (6, 2)),
    s4d_row("window 4", S4D(3, 4, window=4), 2, 9),
    s4d_row("window 20 bidirectional", S4D(3, 4, window=20, bidirectional=True), 3, 9, (9, 0, 4)),
    s4d_row("bidirectional", S4D(3, 4, frequencies="inv_lru", tied=False, bidirectional=True), 3, 9, (9, 0, 4)),
]
LADDER_LARGE = [s4d_row("", S4D(40, 16, bidirectional=True), 4, 200, (200, 0, 199, 17), None)]
