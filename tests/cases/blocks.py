"""Rows of the linear layer and of the fused residual block."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.ops import dropout_mask, gelu_formula, norm_formula, sigmoid_formula
from cases.table import Arrays, Case, beside, normal, padding, scan_loop
from rotrnn.ops.block import ChannelNorm, Gating, RowNorm, residual_block, residual_block_backward
from rotrnn.ops.linear_layer import System, linear_layer, linear_layer_backward


def system_of(rng: np.random.Generator, D: int, N: int, K: int) -> Arrays:
    """Arguments of the linear layer, of size about one."""
    return {
        "w_in": normal(rng, (2 * N, D)) / np.sqrt(D),
        "a": rng.uniform(0.8, 1, N) * np.exp(1j * rng.uniform(-np.pi, np.pi, N)),
        "w_out": normal(rng, (K, D, 2 * N)) / np.sqrt(2 * N),
        "skip": normal(rng, (D,)),
    }


def system_loop(w_in: Any, a: Any, w_out: Any, skip: Any, u: Any, h0: Any, lengths: Any = None) -> tuple[Any, Any]:
    """y = W_out h + skip u with the scans of W_in u, one or two, step by step; (y, hT)."""
    v = (u @ w_in.T).view(a.dtype)
    y, hT = skip * u, np.zeros_like(h0)
    for k, out in enumerate(w_out):
        h, hT[k] = scan_loop(a, v, h0[k], k == 1, lengths)
        y += h.view(u.dtype) @ out.T
    for b, steps in enumerate(() if lengths is None else lengths):
        y[b, steps:] = 0
    return y, hT


def linear_layer_case(
    B: int, T: int, D: int, N: int, K: int, *, fused: bool = True, lengths: Any = None
) -> Case:  # fmt: skip
    def make(rng: np.random.Generator) -> Arrays:
        return {"u": normal(rng, (B, T, D)), "h0": normal(rng, (K, B, N), True), **system_of(rng, D, N, K)}

    def run(args: Arrays) -> tuple[Any, Any, Any, Any]:
        system = System(*(args[name] for name in System._fields))
        return system, *linear_layer(system, args["u"], args["h0"], lengths=lengths, fused=fused)

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        system, _, _, saved = run(args)
        grads = linear_layer_backward(doutputs[0], system, saved, doutputs[1])
        return {"u": grads.du, "h0": grads.dh0, **grads.system._asdict()}

    return Case(
        f"linear_layer{'' if fused else ' unfused'} {B}x{T}x{D} N{N} K{K}{' ragged' * (lengths is not None)}",
        make,
        lambda args: run(args)[1:3],
        backward,
        lambda args: system_loop(**args, lengths=lengths),
        terms=6 * T + 4 * N + D + 20,
        linear=(("u", "h0"), ("w_out", "skip")),
        ragged=padding(lengths, "u", "out0"),
        lengths=lengths,
    )


def block_case(
    B: int, T: int, D: int, N: int, K: int, *, norm: str, form: str, rate: float = 0.0, over_time: bool = False,
    lengths: Any = None, keep: bool = False,
) -> Case:  # fmt: skip
    """A residual block. Its arguments are x, the arrays of the norm, the linear layer and the gate, and h0."""
    places = None if lengths is None else 2**32 - 2 - 3 * np.arange(B)
    key = {"seed": 2**40 + 5, "step": 7, "site": 3, "rate": rate, "over_time": over_time, "places": places}
    weights = ("w_gate", "b_gate", "w_value", "b_value") if form == "full" else ("w_gate", "b_gate")
    center = np.linspace(-1, 1, D)

    def make(rng: np.random.Generator) -> Arrays:
        args = {"x": normal(rng, (B, T, D)), "h0": normal(rng, (K, B, N), True), **system_of(rng, D, N, K)}
        args |= {"scale": normal(rng, (D,)), "bias": normal(rng, (D,))}
        return args | {w: normal(rng, (D, D) if w[0] == "w" else (D,)) / np.sqrt(D) for w in weights}

    def parts(args: Arrays) -> tuple[Any, System, Gating]:
        scale, bias = args["scale"], args["bias"]
        middle = beside(center.astype(scale.dtype), scale)
        part = RowNorm(scale, bias) if norm == "row" else ChannelNorm(middle, scale, bias)
        system = System(*(args[name] for name in System._fields))
        return part, system, Gating(form=form, **{w: args[w] for w in weights}, **key)

    def run(args: Arrays) -> Any:
        return residual_block(args["x"], *parts(args), args["h0"], lengths=lengths, keep=("layer",) * keep)

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = residual_block_backward(doutputs[0], *parts(args), run(args).saved, doutputs[1])
        return {
            "x": grads.dx, "h0": grads.dh0, **grads.system._asdict(),
            "scale": grads.norm_product, "bias": grads.norm_sum,
            **{w: getattr(grads.gating, w) for w in weights},
        }  # fmt: skip

    def reference(args: Arrays) -> tuple[Any, Any]:
        x = args["x"]
        normed = norm_formula(-1) if norm == "row" else lambda x, scale, bias: scale * (x - center) + bias
        y, hT = system_loop(
            *(args[name] for name in System._fields), normed(x, args["scale"], args["bias"]), args["h0"], lengths
        )
        masks = [dropout_mask((B, T, D), rate, 2**40 + 5, 7, 3 + i, over_time, places) / (1 - rate) for i in (0, 1)]
        z = masks[0] * gelu_formula(y)
        value = {"half1": z, "half2": y}.get(form)
        value = z @ args["w_value"].T + args["b_value"] if value is None else value
        out = x + masks[1] * value * sigmoid_formula(z @ args["w_gate"].T + args["b_gate"])
        for b, steps in enumerate(() if lengths is None else lengths):
            out[b, steps:] = 0
        return out, hT

    flags = "".join(
        [f" dropout{' over time' * over_time}" * (rate > 0), " ragged" * (lengths is not None), " kept" * keep]
    )
    return Case(
        f"residual_block {norm} {form}{flags} {B}x{T}x{D} N{N} K{K}",
        make,
        lambda args: (lambda result: (result.y, result.hT))(run(args)),
        backward,
        reference,
        terms=12 * T + 8 * N + 6 * D + 100,
        ragged=padding(lengths, "x", "out0"),
        lengths=lengths,
    )


# Many sequences run side by side, each tile after tile; few run one by one, their tiles of 96 steps side by side.
FUSED = [
    *(
        linear_layer_case(B, T, D, N, K, fused=fused, lengths=lengths)
        for K in (1, 2)
        for fused, B, T, D, N, lengths in (
            (True, 2, 5, 3, 2, None),
            (True, 2, 0, 3, 2, None),
            (True, 0, 4, 3, 2, None),
            (True, 3, 200, 3, 2, (200, 0, 97)),
            (True, 1, 200, 4, 3, None),
            (True, 2, 400, 3, 2, (193, 400)),  # tiles side by side
            (True, 2, 20, 70, 33, (20, 13)),  # edges of the matrix kernel
            (True, 1, 200, 3, 70, None),
            (True, 2, 5, 3, 0, None),
            (True, 2, 5, 0, 3, None),
            (False, 3, 20, 3, 2, (20, 0, 7)),
        )
    ),
    *(
        block_case(*shape, norm=norm, form=form, lengths=lengths, keep=keep)
        for norm, form, shape, lengths, keep in (
            ("channel", "full", (2, 5, 3, 2, 1), None, False),
            ("channel", "full", (3, 7, 5, 2, 2), (7, 0, 2), True),
            ("channel", "half1", (2, 9, 4, 3, 1), (9, 4), False),
            ("channel", "half2", (2, 9, 4, 3, 1), (9, 4), True),
            ("row", "full", (2, 9, 4, 3, 1), (9, 4), True),
            ("row", "half1", (2, 9, 4, 3, 2), None, False),
            ("row", "half2", (2, 9, 4, 3, 2), (9, 4), False),
            ("row", "full", (1, 200, 3, 2, 1), None, False),
            ("channel", "full", (1, 200, 3, 2, 2), (170,), True),
            ("channel", "half2", (2, 200, 3, 2, 2), (200, 98), False),
            ("row", "full", (2, 0, 3, 2, 1), None, False),
            ("channel", "full", (1, 300, 3, 70, 2), None, False),
            ("channel", "full", (2, 5, 3, 0, 1), None, False),
            ("channel", "half1", (2, 5, 0, 3, 1), None, True),
        )
    ),
    *(
        block_case(
            2, 100, 3, 2, 1, norm="channel", form=form, rate=0.3, over_time=over_time, lengths=(100, 3), keep=keep
        )
        for form, over_time, keep in (("full", False, False), ("half1", True, True), ("half2", False, False))
    ),
]

FUSED_LARGE = [
    linear_layer_case(40, 100, 20, 30, 2, lengths=tuple(range(61, 101))),  # more sequences than partial sums
    linear_layer_case(2, 2000, 20, 150, 2, lengths=(2000, 1900)),  # more tiles than partial sums
    block_case(40, 100, 20, 30, 2, norm="row", form="full", rate=0.1),
    block_case(1, 2000, 20, 150, 2, norm="channel", form="full", rate=0.1),
]
