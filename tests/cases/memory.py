"""Rows of rotational memories."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.table import Arrays, Case, beside, normal, padding, scan_loop, valid_steps
from cases.window import windowed_row
from rotrnn.nn.layers.memory import RopeMemory, WropeMemory
from rotrnn.ops.memory import history_read, history_read_backward, wrope_angle


def read_loop(weights: Any, h: Any, past: Any, lengths: Any = None) -> Any:
    """m_t = sum_k w_k h_{t-k}, one state after the other."""
    m = np.zeros_like(h)
    for b in range(len(h)):
        for t in range(h.shape[1] if lengths is None else lengths[b]):
            stored = [*past[b], *h[b, : t + 1]]
            for k in range(min(len(weights), len(stored))):
                m[b, t] += weights[k] * stored[-1 - k]
    return m


def history_case(B: int, T: int, N: int, M: int, R: int, lengths: Any = None) -> Case:
    weights = np.exp(1j * np.random.default_rng(M).uniform(0, 7, M))

    def ages(h: Any) -> Any:
        return beside(weights.astype(h.dtype), h)

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = history_read_backward(
            doutputs[0], beside(weights.astype(doutputs[0].dtype), doutputs[0]), R, lengths=lengths
        )
        return {"h": grads.dh, "past": grads.dpast}

    return Case(
        f"history_read {M} ages{' ragged' * (lengths is not None)} {B}x{T}x{N} after {R}",
        lambda rng: {"h": normal(rng, (B, T, N), True), "past": normal(rng, (B, R, N), True)},
        lambda args: (history_read(ages(args["h"]), args["h"], args["past"], lengths=lengths),),
        backward,
        lambda args: (read_loop(weights, args["h"], args["past"], lengths),),
        terms=8 * (T + R) + 50,
        linear=(("h", "past"),),
        ragged=padding(lengths, "h", "out0"),
        lengths=lengths,
    )


HISTORIES = [
    history_case(2, 13, 3, 5, 4),
    history_case(2, 3, 2, 7, 6),
    history_case(1, 4, 2, 30, 0),
    history_case(3, 9, 2, 4, 3, (9, 0, 2)),
    history_case(2, 0, 2, 3, 2),
    history_case(0, 3, 2, 3, 2),
]


def wrope_loop(layer: WropeMemory, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """y_t = Re(C sum_k e^{i Delta_k} B u_{t-k}) + D u_t, with the angle of each age computed separately."""
    B_in, C = params["B_re"] + 1j * params["B_im"], params["C_re"] + 1j * params["C_im"]
    B, T, _ = x.shape
    y = np.zeros_like(x)
    final = np.zeros((B, state.shape[1] + (T if layer.window is None else 0), layer.d_state), complex)
    for b in range(B):
        steps = T if lengths is None else lengths[b]
        stored = list(state[b])
        for t in range(steps):
            stored.append(B_in @ x[b, t])
            seen = stored if layer.window is None else stored[-layer.window :]
            angles = [wrope_angle(k, layer.length, layer.form) for k in range(len(seen))]
            m = sum(np.exp(1j * angle) * h for angle, h in zip(angles, reversed(seen), strict=True))
            y[b, t] = (C @ m).real + params["D"] * x[b, t]
        kept = stored if layer.window is None else stored[len(stored) - layer.window + 1 :]
        final[b, final.shape[1] - len(kept) :] = np.reshape(kept, (len(kept), layer.d_state))
    return y, final


def wrope_row(layer: WropeMemory, B: int, T: int, lengths: Any = None) -> LayerRow:
    return LayerRow(
        f"{layer.form} window {layer.window}",
        layer,
        B,
        T,
        lengths,
        wrope_loop,
        terms=10 * T + 3 * layer.d_state + layer.d_model + 50,
        linear=(("x", "state"), ("C_re", "C_im", "D")),
    )


def rope_loop(layer: RopeMemory, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """h_t = e^{2 pi i / length} h_{t-1} + B u_t, y_t = Re(C h_t) + D u_t."""
    v = x @ (params["B_re"] + 1j * params["B_im"]).T
    h, hT = scan_loop(np.full(layer.d_state, np.exp(2j * np.pi / layer.length)), v, state, False, lengths)
    y = (h @ (params["C_re"] + 1j * params["C_im"]).T).real + params["D"] * x
    return np.where(valid_steps(x.shape, lengths), y, 0), hT


MEMORIES = [
    *(
        LayerRow("", RopeMemory(3, 2, length=5), B, T, lengths, rope_loop, terms=8 * T + 50, linear=(("x", "state"),))
        for B, T, lengths in ((2, 9, None), (3, 7, (7, 0, 2)))
    ),
    windowed_row("", RopeMemory(3, 2, length=8, window=4), 2, 9),
    windowed_row("bidirectional", RopeMemory(3, 2, bidirectional=True, length=5, window=5), 2, 7, (7, 0)),
    wrope_row(WropeMemory(3, 2, length=4, window=5), 2, 9),
    wrope_row(WropeMemory(3, 2, length=4, window=3, form="blend"), 3, 9, (9, 0, 2)),
    wrope_row(WropeMemory(3, 2, length=4, window=1, form="uniform"), 2, 3),
    wrope_row(WropeMemory(3, 2, length=4), 2, 7),
    wrope_row(WropeMemory(3, 2, length=3, form="blend_printed"), 3, 7, (7, 0, 2)),
    wrope_row(WropeMemory(3, 2, length=4), 2, 0),
]
