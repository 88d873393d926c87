"""Rows of LinOSS and of real 2 x 2 recurrences."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.ops import sigmoid_formula
from cases.rnn import SHAPES
from cases.table import Arrays, Case, normal, padding
from rotrnn.nn.layers.linoss import LinOSS
from rotrnn.ops.oscillator import oscillator_scan, oscillator_scan_backward


def oscillator_loop(m: Any, f: Any, u: Any, h0: Any, lengths: Any = None) -> tuple[Any, Any]:
    """One lane of one step after the other; (h, hT). m and f are constant, or begin with (B, T)."""
    (B, T, N), hT = u.shape, np.array(h0)
    h = np.zeros((B, T, 2, N))
    m, f = np.broadcast_to(m, (B, T, 2, 2, N)), np.broadcast_to(f, (B, T, 2, N))
    for b in range(B):
        for t in range(T if lengths is None else lengths[b]):
            for n in range(N):
                hT[b, :, n] = m[b, t, :, :, n] @ hT[b, :, n] + f[b, t, :, n] * u[b, t, n]
            h[b, t] = hT[b]
    return h, hT


def oscillator_case(B: int, T: int, N: int, lengths: Any = None, varying: bool = False) -> Case:
    """Turns by any angles, of which the first is 0: |h| grows with the input alone."""

    def make(rng: np.random.Generator) -> Arrays:
        own = (B, T) if varying else ()
        angle = np.arange(N) * 0.7 + (normal(rng, (*own, N)) if varying else 0)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        turn = np.moveaxis(turn, (0, 1), (-3, -2)).copy()
        return {"m": turn, "f": normal(rng, (*own, 2, N)), "u": normal(rng, (B, T, N)), "h0": normal(rng, (B, 2, N))}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        dh, dhT = doutputs
        m, f, u, h0 = args.values()
        grads = oscillator_scan_backward(dh, m, f, u, outputs[0], h0, dhT=dhT, lengths=lengths)
        return {name: getattr(grads, f"d{name}") for name in args}

    return Case(
        f"oscillator_scan{' varying' * varying}{' ragged' * (lengths is not None)} {B}x{T}x{N}",
        make,
        lambda args: oscillator_scan(**args, lengths=lengths, return_state=True),
        backward,
        lambda args: oscillator_loop(**args, lengths=lengths),
        terms=8 * (B * T + 2),
        linear=(("u", "h0"), ("f", "h0")),
        ragged=padding(lengths, *(("m", "f") if varying else ()), "u", "out0"),
        lengths=lengths,
    )


def linoss_reference(
    layer: LinOSS, params: Arrays, x: Any, state: Any, lengths: Any, dt: Any = None
) -> tuple[Any, Any]:
    """The schemes as they are written, for complex z and x: implicit, by solving for both; implicit-explicit; and with
    a damping that is implicit too. Intervals dt (B, T) are factors of the steps."""
    B, T, _ = x.shape
    a, g = np.maximum(params["A"], 0), np.maximum(params.get("G", 0 * params["A"]), 0)
    h = state[0] + 1j * state[1]
    In, out = params["B_re"] + 1j * params["B_im"], params["C_re"] + 1j * params["C_im"]
    y = np.zeros(x.shape)
    for b in range(B):
        for t in range(T if lengths is None else lengths[b]):
            s = layer.step_scale * sigmoid_formula(params["dt"]) * (1 if dt is None else dt[b, t])
            if layer.method == "damped":
                low, high = ((2 + s * g + sign * 2 * np.sqrt(1 + s * g)) / s**2 for sign in (-1, 1))
                a = np.clip(params["A"], low, high)
            z, place = h[b]
            force = In @ x[b, t]
            if layer.method == "im":  # z' = z + s (force - a x'),  x' = x + s z'
                z = (z + s * (force - a * place)) / (1 + s * s * a)
            else:  # z' = z + s (force - a x - g z'),  x' = x + s z'
                z = (z + s * (force - a * place)) / (1 + s * g)
            place = place + s * z
            h[b] = z, place
            y[b, t] = (out @ place).real + params["D"] * x[b, t]
    return y, (h.real, h.imag)


OPS = [
    oscillator_case(2, 13, 5),
    oscillator_case(1, 1, 1),
    oscillator_case(2, 0, 3),
    oscillator_case(0, 3, 2),
    oscillator_case(3, 9, 7, (9, 0, 4)),
    oscillator_case(2, 31, 131, (31, 17)),  # more than two strips of lanes
    *(oscillator_case(*shape, varying=True) for shape in ((2, 13, 5), (1, 1, 1), (2, 0, 3), (0, 3, 2))),
    oscillator_case(2, 9, 131, (9, 4), varying=True),
]
OPS_LARGE = [oscillator_case(3, 130, 150, (130, 0, 77))]

LAYERS = [
    LayerRow(
        method, LinOSS(3, 4, method), B, T, lengths, linoss_reference, terms=40 * (T + 6) ** 2,
        linear=(("x", "state"), ("C_re", "C_im", "D")),
    )
    for method in ("im", "imex", "damped")
    for B, T, lengths in SHAPES
] + [LayerRow("half rate", LinOSS(2, 4, step_scale=2.0), 2, 5, (3, 5), linoss_reference, terms=40 * 11**2)]  # fmt: skip
