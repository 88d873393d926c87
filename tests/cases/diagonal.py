"""Rows of `polar_transition` and `diagonal_weights`."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.table import Arrays, Case, normal
from rotrnn.ops.diagonal import (
    diagonal_weights,
    diagonal_weights_backward,
    polar_transition,
    polar_transition_backward,
)


def polar_case(N: int, nu_log: bool, theta_log: bool) -> Case:
    logs = {"nu_log": nu_log, "theta_log": theta_log}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        a, rates = polar_transition(**args, **logs)
        return dict(zip(args, polar_transition_backward(doutputs[0], a, rates, **logs), strict=True))

    def reference(args: Arrays) -> tuple[Any]:
        nu, theta = (np.exp(args[name]) if log else args[name] for name, log in zip(args, logs.values(), strict=True))
        return (np.exp(-nu) * np.exp(1j * theta),)

    return Case(
        f"polar_transition{' nu_log' * nu_log}{' theta_log' * theta_log} {N}",
        lambda rng: {"nu": normal(rng, (N,)), "theta": normal(rng, (N,))},
        lambda args: polar_transition(**args, **logs)[:1],
        backward,
        reference,
        terms=64,  # angles of up to e^4, of which a relative error of eps is 55 of a radian
    )


def weights_case(N: int, D: int, K: int, complex_gain: bool, weight: float) -> Case:
    names = ("C_re", "C_im", "C_re_reverse", "C_im_reverse")[: 2 * K]

    def make(rng: np.random.Generator) -> Arrays:
        B = {name: normal(rng, (N, D)) for name in ("B_re", "B_im")}
        return {"gain": normal(rng, (N,), complex_gain), **B, **{name: normal(rng, (D, N)) for name in names}}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = diagonal_weights_backward(*doutputs, args["gain"], args["B_re"], args["B_im"], weight=weight)
        return {name: getattr(grads, f"d{name}") for name in args}

    def reference(args: Arrays) -> tuple[Any, Any]:
        B = args["gain"][:, None] * (args["B_re"] + 1j * args["B_im"])
        w_in, w_out = np.zeros((2 * N, D)), np.zeros((K, D, 2 * N))
        w_in[0::2], w_in[1::2] = B.real, B.imag
        for k in range(K):
            w_out[k, :, 0::2], w_out[k, :, 1::2] = weight * args[names[2 * k]], -weight * args[names[2 * k + 1]]
        return w_in, w_out

    return Case(
        f"diagonal_weights{' complex' * complex_gain} weight {weight:g} {N}x{D}x{K}",
        make,
        lambda args: diagonal_weights(**args, weight=weight),
        backward,
        reference,
        terms=2 * D + 4,
        linear=(("B_re", "B_im", *names), ("gain", *names)),
    )


OPS = [
    *(polar_case(5, nu_log, theta_log) for nu_log in (False, True) for theta_log in (False, True)),
    polar_case(0, True, True),
    *(weights_case(3, 5, K, complex_gain, 1 + K) for K in (1, 2) for complex_gain in (False, True)),
    weights_case(0, 3, 1, False, 1.0),
    weights_case(2, 0, 1, True, 1.0),
    weights_case(40, 33, 2, True, 2.0),
]
OPS_LARGE = [weights_case(300, 300, 2, False, 1.0), weights_case(300, 300, 1, True, 2.0)]
