"""Rows of channel mixers other than Householder's, of mixing about an origin, and of the maps for mixers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from cases.ops import householder_product
from cases.table import Arrays, Case, beside, normal, valid_steps
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.lagged import Columns, lagged_maps, lagged_maps_backward, lagged_products
from rotrnn.ops.mixer import (
    dplr_mix,
    dplr_mix_backward,
    householder_mix,
    householder_mix_backward,
    kronecker_mix,
    kronecker_mix_backward,
    low_rank_mix,
    low_rank_mix_backward,
)


def outer_sum(u: Any, alpha: Any) -> Any:
    """sum_i alpha_i w_i w_i^T, formed."""
    w = u / np.linalg.norm(u, axis=1, keepdims=True)
    return np.einsum("r,ri,rj->ij", alpha, w, w)


def kronecker_factor(rows: Any, gains: Any) -> Any:
    """diag(gains) rownormalise(U U^T) of the upper triangular U with these rows."""
    U = np.zeros((len(gains), len(gains)))
    U[np.triu_indices(len(gains))] = rows
    G = U @ U.T
    return gains[:, None] * G / np.linalg.norm(G, axis=1, keepdims=True)


def kronecker_matrix(u: Any, alpha: Any, a: int) -> Any:
    """I - 2 L^T (x) K, formed: it acts on matrices (a, b) read by rows."""
    split = a * (a + 1) // 2
    left, right = kronecker_factor(u[:split], alpha[:a]), kronecker_factor(u[split:], alpha[a:])
    return np.eye(len(left) * len(right)) - 2 * np.kron(left.T, right)


def mixer_matrix(form: str, u: Any, alpha: Any, rows: int | None) -> Any:
    match form:
        case "householder":
            return householder_product(u, alpha)
        case "dplr":
            return np.eye(u.shape[1]) - 2 * outer_sum(u, alpha)
        case "low_rank":
            return outer_sum(u, alpha)
        case _:
            return kronecker_matrix(u, alpha, rows)


MIXERS = {
    "householder": (householder_mix, householder_mix_backward),
    "dplr": (dplr_mix, dplr_mix_backward),
    "low_rank": (low_rank_mix, low_rank_mix_backward),
    "kronecker": (kronecker_mix, kronecker_mix_backward),
}


def mixer_case(
    form: str, B: int, T: int, R: int, D: int, *,
    u_varies: bool = False, alpha_varies: bool = False, origin: bool = True, lengths: Any = None,
) -> Case:  # fmt: skip
    """R vectors, or the R rows of Kronecker's matrices, about an origin."""
    forward, backward = MIXERS[form]
    u_shape, alpha_shape = (R, D), (R,)
    if form == "kronecker":
        forward, backward = functools.partial(forward, rows=R), functools.partial(backward, rows=R)
        b = D // R
        u_shape, alpha_shape = ((R * (R + 1) + b * (b + 1)) // 2,), (R + b,)

    def make(rng: np.random.Generator) -> Arrays:
        args = {
            "u": normal(rng, (B, T, *u_shape) if u_varies else u_shape),
            "alpha": rng.uniform(-0.2, 1.2, (B, T, *alpha_shape) if alpha_varies else alpha_shape),
            "x": normal(rng, (B, T, D)),
        }
        return args | ({"origin": normal(rng, (B, T, D))} if origin else {})

    def run_backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = backward(doutputs[0], **args, lengths=lengths)
        return {name: getattr(grads, f"d{name}") for name in args}

    def reference(args: Arrays) -> tuple[Any]:
        y = np.zeros((B, T, D))
        for b in range(B):
            for t in range(T if lengths is None else lengths[b]):
                u, alpha = (args["u"][b, t] if u_varies else args["u"]), args["alpha"]
                Q = mixer_matrix(form, u, alpha[b, t] if alpha_varies else alpha, R if form == "kronecker" else None)
                o = args["origin"][b, t] if origin else 0
                y[b, t] = o + Q @ (args["x"][b, t] - o)
        return (y,)

    padded = {}
    if lengths is not None:
        varying = {"x": True, "origin": origin, "u": u_varies, "alpha": alpha_varies, "out0": True}
        padded = {name: lengths for name, varies in varying.items() if varies}
    flags = "".join(
        [" u(t)" * u_varies, " alpha(t)" * alpha_varies, " origin" * origin, " ragged" * (lengths is not None)]
    )
    return Case(
        f"{form}_mix{flags} {B}x{T}x{D} by {R}",
        make,
        lambda args: (forward(**args, lengths=lengths),),
        run_backward,
        reference,
        terms=4 * (D + 4) * (R + 1) * (4 if form == "kronecker" else 1) + B * T,
        linear=(("x", "origin") if origin else ("x",),),
        ragged=padded,
        lengths=lengths,
    )


def lagged_reference(p: Any, columns: tuple[Columns, ...], lengths: Any) -> tuple[Any, ...]:
    """Applies the function of each range of columns."""
    functions = {
        "linear": lambda v: v,
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
        "silu": lambda v: v / (1 + np.exp(-v)),
        "softplus": lambda v: np.log1p(np.exp(v)),
        "unit": lambda v: v / np.linalg.norm(v, axis=-1, keepdims=True),
    }
    ends = np.cumsum([width for width, _ in columns])
    parts = [functions[f](v) for (_, f), v in zip(columns, np.split(p, ends[:-1], axis=-1), strict=True)]
    return tuple(np.where(valid_steps(p.shape, lengths), part, 0) for part in parts)


def lagged_case(B: int, T: int, columns: tuple[Columns, ...], given: tuple[str, ...], lengths: Any = None) -> Case:
    K = sum(width for width, _ in columns)
    shapes = {"base": (B, T, K), "late": (B, T, K), "first": (B, K)}

    def inputs(args: Arrays) -> tuple[Any, ...]:
        return args["base"], args.get("late"), args.get("first"), columns

    def run_backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = lagged_maps_backward(doutputs, *inputs(args), lengths=lengths)
        return {name: getattr(grads, f"d{name}") for name in args}

    def reference(args: Arrays) -> tuple[Any, ...]:
        p = args["base"].copy()
        if "late" in args and T:
            p[:, 1:] += args["late"][:, :-1]
        if "first" in args and T:
            p[:, 0] += args["first"]
        return lagged_reference(p, columns, lengths)

    padded = {}
    if lengths is not None:
        # late's last valid step is not read either
        padded = {"base": lengths, "late": tuple(max(n - 1, 0) for n in lengths), "first": None}
        padded = {name: padded[name] for name in shapes if name in given and padded[name] is not None}
        padded |= {f"out{i}": lengths for i in range(len(columns))}
    return Case(
        f"lagged_maps {'+'.join(f for _, f in columns)} of {', '.join(given)}"
        f"{' ragged' * (lengths is not None)} {B}x{T}x{K}",
        lambda rng: {name: normal(rng, shapes[name]) for name in given},
        lambda args: tuple(lagged_maps(*inputs(args), lengths=lengths)),
        run_backward,
        reference,
        terms=32 + K,
        ragged=padded,
        lengths=lengths,
    )


def lagged_product_case(B: int, T: int, E: int, columns: tuple[Columns, ...], lengths: Any = None) -> Case:
    """The adjoint is `lagged_maps_backward`, followed by that of the product."""
    K = sum(width for width, _ in columns)

    def make(rng: np.random.Generator) -> Arrays:
        shapes = {"base": (B, T, K), "y": (B, T, E), "v": (K, E), "first": (B, K)}
        return {name: normal(rng, shape) for name, shape in shapes.items()}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        late = dense(args["y"], args["v"])
        maps = lagged_maps_backward(doutputs, args["base"], late, args["first"], columns, lengths=lengths)
        read = valid_steps((B, T), None if lengths is None else np.maximum(lengths, 1) - 1)
        y = np.where(beside(read, args["y"]), args["y"], 0)
        product = dense_backward(maps.dlate, y, args["v"])
        return {"base": maps.dbase, "y": product.dx, "v": product.dw, "first": maps.dfirst}

    def reference(args: Arrays) -> tuple[Any, ...]:
        before = np.concatenate([np.zeros((B, 1, K)), args["y"] @ args["v"].T], 1)[:, :T]
        before[:, :1] += args["first"][:, None]
        return lagged_reference(args["base"] + before, columns, lengths)

    padded = {}
    if lengths is not None:  # y's last valid step is not read either
        padded = {"base": lengths, "y": tuple(max(n - 1, 0) for n in lengths)}
        padded |= {f"out{i}": lengths for i in range(len(columns))}
    return Case(
        f"lagged_products {'+'.join(f for _, f in columns)}{' ragged' * (lengths is not None)} {B}x{T}x{E} to {K}",
        make,
        lambda args: tuple(
            lagged_products(*(args[name] for name in ("base", "y", "v", "first")), columns, lengths=lengths)
        ),
        backward,
        reference,
        terms=32 + 4 * (K + E) + B * T,
        ragged=padded,
        lengths=lengths,
    )


EVERY = (Columns(3, "linear"), Columns(2, "sigmoid"), Columns(4, "unit"), Columns(3, "silu"), Columns(2, "softplus"))
ALL = ("base", "late", "first")

OPS = [
    *(
        mixer_case(form, 2, 5, R, 6, u_varies=u_varies, alpha_varies=alpha_varies)
        for form, R in (("householder", 2), ("dplr", 3), ("low_rank", 2), ("kronecker", 2))
        for u_varies, alpha_varies in ((False, False), (True, True))
    ),
    *(
        mixer_case(form, 3, 7, 2, 8, u_varies=varies, alpha_varies=not varies, origin=varies, lengths=(7, 0, 3))
        for form in ("dplr", "low_rank", "kronecker")
        for varies in (False, True)
    ),
    mixer_case("householder", 3, 7, 2, 5, u_varies=True, alpha_varies=True, lengths=(7, 0, 3)),
    mixer_case("kronecker", 2, 3, 5, 35, u_varies=True, alpha_varies=True),
    mixer_case("kronecker", 2, 3, 1, 3),
    *(mixer_case(form, 0, 3, 2, 4) for form in ("dplr", "kronecker")),
    *(mixer_case(form, 2, 0, 2, 4, u_varies=True) for form in ("low_rank", "kronecker")),
    lagged_product_case(2, 5, 4, EVERY),
    lagged_product_case(3, 6, 4, EVERY, (6, 0, 3)),
    *(lagged_product_case(B, T, E, EVERY) for B, T, E in ((2, 1, 3), (2, 0, 3), (0, 2, 3), (2, 3, 0))),
    lagged_product_case(2, 130, 3, EVERY, (130, 61)),  # more than one piece
    lagged_case(2, 5, EVERY, ALL),
    lagged_case(2, 4, EVERY, ("base",)),
    lagged_case(3, 6, EVERY, ALL, (6, 0, 3)),
    lagged_case(2, 1, EVERY, ("base", "late")),
    lagged_case(2, 0, EVERY, ALL),
    lagged_case(0, 3, EVERY, ALL),
]

OPS_LARGE = [
    *(mixer_case(form, 3, 150, 4, 40, lengths=(150, 3, 149)) for form in ("dplr", "low_rank", "kronecker")),
    mixer_case("kronecker", 3, 150, 4, 80, u_varies=True, alpha_varies=True, lengths=(150, 3, 149)),
    lagged_product_case(3, 300, 20, (Columns(130, "linear"), Columns(130, "unit")), (300, 3, 299)),
    lagged_case(3, 300, (Columns(130, "linear"), Columns(130, "unit")), ALL, (300, 3, 299)),
]
