"""Rows of the bank whose transition is diagonal plus rank one, and of S4."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.table import Arrays, Case, normal, padding
from rotrnn.nn.layers.liquid_s4 import LiquidS4
from rotrnn.nn.layers.s4 import S4
from rotrnn.ops.dplr_bank import DplrSystem, dplr_bank, dplr_bank_backward

COEFFICIENTS = DplrSystem._fields


def dplr_loop(
    a: Any, p: Any, q: Any, gain: Any, c: Any, skip: Any, u: Any, h0: Any = None, reverse: bool = False,
    lengths: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """s_t = Re q h_{t-1}, h_t = a h_{t-1} + p s_t + gain u_t, y_t = Re c h_t + skip u_t, step by step; (y, hT)."""
    B, T, D = u.shape
    y, hT = np.zeros_like(u), np.zeros((B, *a.shape), a.dtype) if h0 is None else np.array(h0)
    for b in range(B):
        steps = range(T if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            for d in range(D):
                s = (q[d] * hT[b, d]).sum().real
                hT[b, d] = a[d] * hT[b, d] + p[d] * s + gain[d] * u[b, t, d]
                y[b, t, d] = (c[d] * hT[b, d]).sum().real + skip[d] * u[b, t, d]
    return y, hT


def dplr_case(B: int, T: int, D: int, N: int, *, reverse: bool = False, lengths: Any = None) -> Case:
    """With |p|, |q| < 1 / (2 sqrt N) and |a| < 0.7 no state grows: the transition's norm is below 0.7 + 1/4."""

    def make(rng: np.random.Generator) -> Arrays:
        def inside(radius: float) -> Any:
            return radius * rng.uniform(0, 1, (D, N)) * np.exp(1j * rng.uniform(-np.pi, np.pi, (D, N)))

        return {
            "a": inside(0.7),
            "p": inside(0.5 / np.sqrt(max(N, 1))),
            "q": inside(0.5 / np.sqrt(max(N, 1))),
            "gain": normal(rng, (D, N), True),
            "c": normal(rng, (D, N), True),
            "skip": normal(rng, (D,)),
            "u": normal(rng, (B, T, D)),
            "h0": normal(rng, (B, D, N), True),
        }

    how = {"reverse": reverse, "lengths": lengths}

    def run(args: Arrays) -> Any:
        return dplr_bank(DplrSystem(*(args[name] for name in COEFFICIENTS)), args["u"], args["h0"], **how)

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        system = DplrSystem(*(args[name] for name in COEFFICIENTS))
        grads = dplr_bank_backward(doutputs[0], system, run(args)[2], doutputs[1], reverse=reverse)
        return {**grads.system._asdict(), "u": grads.du, "h0": grads.dh0}

    return Case(
        f"dplr_bank{' reverse' * reverse}{' ragged' * bool(lengths)} {B}x{T}x{D} by {N}",
        make,
        lambda args: run(args)[:2],
        backward,
        lambda args: dplr_loop(**args, **how),
        terms=8 * T + 8 * N + 8,
        linear=(("u", "h0"), ("c", "skip")),
        ragged=padding(lengths, "u", "out0"),
        lengths=lengths,
    )


BANK = [
    dplr_case(2, 13, 3, 5),  # a group of states, and one more
    dplr_case(1, 70, 2, 4, reverse=True),  # more than one tile
    dplr_case(3, 34, 35, 3, lengths=(34, 0, 33)),  # and of channels
    dplr_case(3, 9, 18, 2, reverse=True, lengths=(9, 0, 4)),
    *(dplr_case(*shape) for shape in ((2, 0, 3, 2), (0, 4, 3, 2), (2, 4, 0, 2), (2, 4, 3, 0), (2, 1, 1, 1))),
]
BANK_LARGE = [
    dplr_case(18, 35, 40, 7, lengths=tuple(range(18, 36))),  # more sequences than slots of partial sums
    dplr_case(2, 200, 70, 33, reverse=True),
]

# -------------------------------------------------------------------------------------------------------- layers


def dense_transition(params: Arrays) -> tuple[Any, Any]:
    """(1 - Delta A / 2)^-1 (1 + Delta A / 2) and (1 - Delta A / 2)^-1 Delta B of each channel, by dense matrices of all
    states: those kept, then their conjugates. (D, 2N, 2N) and (D, 2N)."""

    def both(name: str) -> Any:
        kept = params[f"{name}_re"] + 1j * params[f"{name}_im"]
        return np.concatenate([kept, kept.conj()], 1)

    kept = -np.exp(params["log_A_re"]) + 1j * params["A_im"]
    diagonal, P, step = np.concatenate([kept, kept.conj()], 1), both("P"), np.exp(params["log_step"])[:, None, None]
    one = np.eye(diagonal.shape[1])
    A = diagonal[:, :, None] * one - P[:, :, None] * P.conj()[:, None, :]
    inverse = np.linalg.inv(one - step / 2 * A)
    return inverse @ (one + step / 2 * A), (inverse @ (step * both("B")[:, :, None]))[..., 0]


def s4_one_way(params: Arrays, x: Any, state: Any, lengths: Any, suffix: str = "", power: int = 1) -> tuple[Any, Any]:
    """h_t = transition h_{t-1} + gain^power u_t, y_t = 2 Re C h_t, for all states by dense matrices; reversed too."""
    transition, gain = dense_transition(params)
    C = params["C_re" + suffix] + 1j * params["C_im" + suffix]
    half, gain = C.shape[1], gain**power
    y = np.zeros_like(x)
    h = np.zeros((len(x), *C.shape), C.dtype) if state is None else state
    h = np.concatenate([h, h.conj()], 2)
    for b in range(len(x)):
        steps = range(x.shape[1] if lengths is None else lengths[b])
        for t in reversed(steps) if suffix else steps:
            h[b] = np.einsum("dij,dj->di", transition, h[b]) + gain * x[b, t][:, None]
            y[b, t] = 2 * (C * h[b, :, :half]).sum(1).real
    return y, h[:, :, :half]


def s4_loop(layer: S4, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    y, hT = s4_one_way(params, x, state, lengths)
    if layer.bidirectional:
        y, hT = y + s4_one_way(params, x, None, lengths, "_reverse")[0], None
    for b in range(len(x)):
        steps = slice(None if lengths is None else lengths[b])
        y[b, steps] += params["D"] * x[b, steps]
    return y, hT


def of_larger_steps(layer: S4, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """The loop with steps as the layer scales them."""
    return s4_loop(layer, {**params, "log_step": params["log_step"] + np.log(layer.step_scale)}, x, state, lengths)


def s4_row(name: str, layer: S4, B: int, T: int, lengths: Any = None, reference: Any = s4_loop) -> LayerRow:
    """A transition is a contraction, so that rounding errors of steps add up; one more factor of the number of states
    is for the norm of the inverse, and of HiPPO's matrix, in float32."""
    inputs = () if isinstance(layer, LiquidS4) else (("x",) if layer.bidirectional else ("x", "state"),)
    return LayerRow(
        name,
        layer,
        B,
        T,
        lengths,
        reference,
        terms=(8 * T + 8 * layer.d_state + 20) * layer.d_state,
        linear=(*inputs, tuple(key for key in layer.shapes if key.startswith(("C", "D")))),
    )


def liquid_loop(layer: LiquidS4, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """S4, and for each product v_t = u_t u_{t-1} ... u_{t-m+1} that bank with gain^m, or C gain^m v_t alone."""
    before, h = (np.zeros((len(x), layer.degree - 1, layer.d_model)), None) if state is None else state
    y, hT = s4_loop(layer, params, x, h, lengths)
    after = np.zeros_like(before)
    gain = dense_transition(params)[1][:, : layer.d_state // 2]
    for suffix in layer.directions:
        for m in range(2, layer.degree + 1):
            products = np.zeros_like(x)
            for b in range(len(x)):
                valid = x[b, : x.shape[1] if lengths is None else lengths[b]]
                line = np.concatenate([before[b], valid[::-1] if suffix else valid])
                found = [np.prod(line[t : t + m], axis=0) for t in range(layer.degree - m, len(line) - m + 1)]
                if len(valid):
                    products[b, : len(valid)] = found[::-1] if suffix else found
                after[b] = line[len(valid) :]
            if layer.kernel == "pb":
                C = params["C_re" + suffix] + 1j * params["C_im" + suffix]
                y += 2 * (C * gain**m).sum(1).real * products
                continue
            further, more = s4_one_way(params, products, None, lengths, suffix, m)
            y += further
            hT = None if hT is None else hT + more
    return y, None if layer.bidirectional else (after, hT)


LAYERS = [
    s4_row("", S4(3, 4), 2, 9),
    s4_row("", S4(3, 4), 1, 0),
    s4_row("large steps", S4(2, 10, dt_min=0.1, dt_max=0.5), 3, 8, (8, 0, 3)),
    s4_row("bidirectional", S4(3, 2, bidirectional=True), 3, 9, (9, 0, 4)),
    s4_row("half rate", S4(2, 4, step_scale=2.0), 2, 6, (6, 2), of_larger_steps),
    s4_row("pb", LiquidS4(3, 4, dt_min=0.1, dt_max=0.5), 2, 9, None, liquid_loop),
    s4_row("pb", LiquidS4(3, 4), 1, 0, None, liquid_loop),
    s4_row("pb 4", LiquidS4(2, 2, degree=4, dt_min=0.1, dt_max=0.5), 3, 7, (7, 0, 2), liquid_loop),
    s4_row("kb 3", LiquidS4(3, 4, degree=3, kernel="kb", dt_min=0.1, dt_max=0.5), 3, 7, (7, 0, 1), liquid_loop),
    s4_row(
        "kb bidirectional",
        LiquidS4(2, 2, kernel="kb", bidirectional=True, dt_min=0.1, dt_max=0.5),
        *(3, 6, (6, 0, 3), liquid_loop),
    ),
]
LAYERS_LARGE = [s4_row("", S4(40, 16, bidirectional=True), 4, 100, (100, 0, 99, 17), None)]
