"""The table of differentiable functions: every row is held by every test of test_cases.py.

A case makes its arguments, runs forward and backward on them, and has a reference: the simplest NumPy that can be
right. A new op added here is checked against its reference, finite differences, the adjoint identity, float32,
threads, instruction sets and (with `ragged`) NaN padding, without another line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward, rotation_scan, rotation_scan_backward

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One function at one set of shapes.

    make(rng) gives the differentiable arguments, in float64 or complex128, by name. forward(args) gives the tuple of
    outputs; backward(args, outputs, doutputs) the gradient of sum(Re(conj(doutput) output)) for every argument by
    name; reference(args) the outputs again. `linear` names groups of arguments in which forward is jointly linear.
    `ragged` names the arguments and outputs with padding, with the lengths of their sequences: {name: lengths}.
    `terms` is how many rounded products and sums one output element passes through at most: tolerances scale with it.
    """

    name: str
    make: Callable[[np.random.Generator], Arrays]
    forward: Callable[[Arrays], tuple[Any, ...]]
    backward: Callable[[Arrays, tuple[Any, ...], tuple[Any, ...]], Arrays]
    reference: Callable[[Arrays], tuple[Any, ...]]
    terms: int
    linear: tuple[tuple[str, ...], ...] = ()
    ragged: dict[str, Any] = field(default_factory=dict)
    lengths: Any = None


def normal(rng: np.random.Generator, shape: tuple[int, ...], complex_lanes: bool = False) -> Any:
    """Standard normal numbers, real or complex."""
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if complex_lanes else x


# ---------------------------------------------------------------------------------------------------------- scans


def scan_loop(a: Any, x: Any, h0: Any = None, reverse: bool = False, lengths: Any = None) -> tuple[Any, Any]:
    """h_t = a_t h_{t-1} + x_t, one step after the other; (h, hT)."""
    B, T, N = x.shape
    h = np.zeros((B, T, N), np.result_type(a, x))
    hT = np.zeros((B, N), h.dtype) if h0 is None else np.array(h0, h.dtype)
    for b in range(B):
        steps = range(T if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            hT[b] = (a[b, t] if a.ndim == 3 else a) * hT[b] + x[b, t]
            h[b, t] = hT[b]
    return h, hT


def diagonal_case(
    B: int, T: int, N: int, *, lanes: str = "real", varying: bool = False, reverse: bool = False,
    lengths: Any = None, modulus: float = 1.0,
) -> Case:  # fmt: skip
    is_complex = lanes == "complex"

    def make(rng: np.random.Generator) -> Arrays:
        shape = (B, T, N) if varying else (N,)
        if is_complex:
            a = modulus * np.exp(1j * rng.uniform(-np.pi, np.pi, shape))
        else:
            a = modulus * rng.choice([-1.0, 1.0], shape) * rng.uniform(0.9, 1.0, shape)
        return {"a": a, "x": normal(rng, (B, T, N), is_complex), "h0": normal(rng, (B, N), is_complex)}

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = diagonal_scan(**args, reverse=reverse, lengths=lengths, return_state=True)
        assert isinstance(result, tuple)
        return result

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = diagonal_scan_backward(
            doutputs[0], args["a"], outputs[0], args["h0"], dhT=doutputs[1], reverse=reverse, lengths=lengths
        )
        return {"a": grads.da, "x": grads.dx, "h0": grads.dh0}

    padded = {"x": lengths, "out0": lengths} if lengths is not None else {}
    if varying and lengths is not None:
        padded["a"] = lengths
    flags = "".join([" varying" * varying, " reverse" * reverse, " ragged" * (lengths is not None)])
    return Case(
        f"diagonal_scan {lanes}{flags} {B}x{T}x{N}",
        make,
        forward,
        backward,
        lambda args: scan_loop(**args, reverse=reverse, lengths=lengths),
        terms=4 * T + 4,
        linear=(("x", "h0"),),
        ragged=padded,
        lengths=lengths,
    )


def rotation_loop(
    theta: Any, gamma: Any, x: Any, h0: Any, reverse: bool = False, lengths: Any = None
) -> tuple[Any, Any]:
    """h_t = gamma R(theta) h_{t-1} + x_t with 2x2 rotation matrices; theta (H, P) or (B, T, H, P)."""
    B, T, N = x.shape
    H, P = theta.shape[-2:]
    width = N // H
    h = np.zeros((B, T, N), x.dtype)
    hT = np.array(h0)
    for b in range(B):
        steps = range(T if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            for head in range(H):
                angles = theta[b, t, head] if theta.ndim == 4 else theta[head]
                decay = gamma[b, t, head] if gamma.ndim == 3 else gamma[head]
                rotation = np.eye(width)
                for p in range(P):
                    c, s = np.cos(angles[p]), np.sin(angles[p])
                    rotation[2 * p : 2 * p + 2, 2 * p : 2 * p + 2] = [[c, -s], [s, c]]
                lanes = slice(head * width, (head + 1) * width)
                hT[b, lanes] = decay * rotation @ hT[b, lanes] + x[b, t, lanes]
            h[b, t] = hT[b]
    return h, hT


def rotation_case(
    B: int, T: int, H: int, width: int, *, varying: bool = False, reverse: bool = False, lengths: Any = None
) -> Case:
    P, N = width // 2, H * width
    lead = (B, T) if varying else ()

    def make(rng: np.random.Generator) -> Arrays:
        return {
            "theta": rng.uniform(0, 2 * np.pi, (*lead, H, P)),
            "gamma": rng.uniform(0.9, 1.0, (*lead, H)),
            "x": normal(rng, (B, T, N)),
            "h0": normal(rng, (B, N)),
        }

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = rotation_scan(**args, reverse=reverse, lengths=lengths, return_state=True)
        assert isinstance(result, tuple)
        return result

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = rotation_scan_backward(
            doutputs[0], args["theta"], args["gamma"], outputs[0], args["h0"],
            dhT=doutputs[1], reverse=reverse, lengths=lengths,
        )  # fmt: skip
        return {"theta": grads.dtheta, "gamma": grads.dgamma, "x": grads.dx, "h0": grads.dh0}

    padded = {"x": lengths, "out0": lengths} if lengths is not None else {}
    if varying and lengths is not None:
        padded |= {"theta": lengths, "gamma": lengths}
    flags = "".join([" varying" * varying, " reverse" * reverse, " ragged" * (lengths is not None)])
    return Case(
        f"rotation_scan{flags} {B}x{T} heads {H}x{width}",
        make,
        forward,
        backward,
        lambda args: rotation_loop(**args, reverse=reverse, lengths=lengths),
        terms=6 * T + 6,
        linear=(("x", "h0"),),
        ragged=padded,
        lengths=lengths,
    )


SCANS = [
    *(diagonal_case(2, T, 3, lanes=lanes) for lanes in ("real", "complex") for T in (0, 1, 2, 13, 64, 257)),
    *(
        diagonal_case(3, 17, 5, lanes=lanes, varying=varying, reverse=reverse, lengths=lengths)
        for lanes in ("real", "complex")
        for varying in (False, True)
        for reverse in (False, True)
        for lengths in (None, (17, 0, 5))
        if varying or reverse or lengths
    ),
    diagonal_case(2, 9, 300, lanes="real"),  # more than one block of lanes
    diagonal_case(2, 9, 300, lanes="complex", varying=True, reverse=True),
    diagonal_case(1, 4, 0),
    diagonal_case(0, 4, 3, lanes="complex"),
    *(
        rotation_case(3, 11, 2, width, varying=varying, reverse=reverse, lengths=lengths)
        for width in (1, 2, 4, 5)
        for varying, reverse, lengths in ((False, False, None), (True, False, (11, 0, 4)), (False, True, (3, 11, 1)))
    ),
]

# ---------------------------------------------------------------------------------------------------------- dense


def dense_case(shape: tuple[int, ...], d_out: int) -> Case:
    D = shape[-1]

    def make(rng: np.random.Generator) -> Arrays:
        return {"x": normal(rng, shape), "w": normal(rng, (d_out, D)), "bias": normal(rng, (d_out,))}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = dense_backward(doutputs[0], args["x"], args["w"])
        return {"x": grads.dx, "w": grads.dw, "bias": grads.dbias}

    return Case(
        f"dense {'x'.join(map(str, shape))} to {d_out}",
        make,
        lambda args: (dense(**args),),
        backward,
        lambda args: (np.einsum("...d,od->...o", args["x"], args["w"]) + args["bias"],),
        terms=D + int(np.prod(shape[:-1])) + 2,  # the weights' gradient sums over the rows
        linear=(("w", "bias"),),
    )


DENSE = [
    *(
        dense_case(shape, d_out)
        for shape, d_out in (((7, 3), 5), ((2, 3, 4), 1), ((1, 9), 65), ((0, 3), 2), ((4, 0), 3))
    ),
    dense_case((1100, 70), 33),  # more than one block of rows, groups, panels and edges
    dense_case((127, 64), 128),
]

CASES = [*SCANS, *DENSE]
