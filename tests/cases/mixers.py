"""Rows of channel mixers other than Householder's, of mixing about an origin, and of the maps for mixers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.linalg

from cases.ops import householder_product
from cases.table import Arrays, Case, beside, normal, valid_steps
from rotrnn._cpu import MIXER
from rotrnn.nn.fixed_points.mixer import CONTRACTION
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.lagged import Columns, lagged_maps, lagged_maps_backward, lagged_products
from rotrnn.ops.mixer import (
    dplr_mix,
    dplr_mix_backward,
    gram_mix,
    gram_mix_backward,
    householder_mix,
    householder_mix_backward,
    kronecker_mix,
    kronecker_mix_backward,
    low_rank_mix,
    low_rank_mix_backward,
    mixer_gains,
    mixer_gains_backward,
    monarch_mix,
    monarch_mix_backward,
    rotation_mix,
    rotation_mix_backward,
)


def unit_rows(v: Any, eps: float = 0.0) -> Any:
    return v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), eps)


def outer_sum(u: Any, alpha: Any, eps: float = 0.0) -> Any:
    """sum_i alpha_i w_i w_i^T, formed."""
    w = unit_rows(u, eps)
    return np.einsum("r,ri,rj->ij", alpha, w, w)


def reflections(u: Any, alpha: Any, eps: float = 0.0) -> Any:
    """prod_i (I - 2 alpha_i w_i w_i^T), formed."""
    Q = np.eye(u.shape[1])
    for w, gain in zip(unit_rows(u, eps), alpha, strict=True):
        Q = Q @ (np.eye(len(w)) - 2 * gain * np.outer(w, w))
    return Q


def gram(rows: Any, n: int) -> Any:
    """U U^T of the upper triangular U (n, n) with these rows."""
    U = np.zeros((n, n))
    U[np.triu_indices(n)] = rows
    return U @ U.T


def power_norm(W: Any, steps: int) -> float:
    x = np.full(len(W), len(W) ** -0.5)
    for _ in range(steps - 1):
        x = W @ x / np.linalg.norm(W @ x)
    return float(np.linalg.norm(W @ x))


def kronecker_factor(rows: Any, gains: Any, eps: float = 0.0, steps: int = 0) -> Any:
    """diag(gains) rownormalise(U U^T), divided by an estimate of its norm before the gains."""
    W = unit_rows(gram(rows, len(gains)), eps)
    return gains[:, None] * (W / (power_norm(W, steps) + eps) if steps else W)


def kronecker_matrix(u: Any, alpha: Any, a: int, eps: float = 0.0, steps: int = 0) -> Any:
    """I - 2 L^T (x) K, formed: it acts on matrices (a, b) read by rows."""
    split = a * (a + 1) // 2
    left = kronecker_factor(u[:split], alpha[:a], eps, steps)
    right = kronecker_factor(u[split:], alpha[a:], eps, steps)
    return np.eye(len(left) * len(right)) - 2 * np.kron(left.T, right)


def monarch_matrix(u: Any, alpha: Any, n: int, normalised: bool, eps: float = 0.0) -> Any:
    blocks = [gram(rows, n) for rows in np.split(u, len(alpha))]
    if normalised:
        blocks = [G / (np.linalg.norm(G, axis=0).max() + eps) for G in blocks]
    return np.eye(n * len(alpha)) - scipy.linalg.block_diag(*(gain * G for gain, G in zip(alpha, blocks, strict=True)))


def rotation_product(angles: Any, D: int) -> Any:
    """R_0 R_1 .., formed: factor k turns the planes of lanes i and D / 2 + (i + s) mod D / 2, with s = 0, 1, 3, .."""
    Q, half = np.eye(D), D // 2
    for k, row in enumerate(angles):
        R, s = np.eye(D), 2 ** (k % max(D - 1, 1).bit_length()) - 1
        for i, angle in enumerate(row):
            j = half + (i + s) % half
            R[np.ix_((i, j), (i, j))] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        Q = Q @ R
    return Q


def mixer_matrix(form: str, u: Any, alpha: Any, rows: int | None) -> Any:
    """Q of an op, as it is given its gains."""
    match form:
        case "householder":
            return householder_product(u, alpha)
        case "dplr":
            return np.eye(u.shape[1]) - 2 * outer_sum(u, alpha)
        case "low_rank":
            return outer_sum(u, alpha)
        case "monarch":
            return monarch_matrix(u, alpha, rows or 1, False)
        case "gram":
            return alpha[0] * gram(u, rows or 1)
        case "rotation":
            return rotation_product(u, 2 * u.shape[1])
        case _:
            return kronecker_matrix(u, alpha, rows or 1)


def divisor(width: int) -> int:
    return max(a for a in range(1, int(width**0.5) + 1) if width % a == 0)


def layer_mixer(layer: Any, parts: Arrays, width: int, largest: float = 1.0) -> Any:
    """Q of one token of a layer, from its parts, with what the layer's settings say of their normalisation."""
    u, eps, steps = parts["u"], layer.unit_eps, 16 if layer.spectral else 0
    alpha = largest / (1 + np.exp(-parts["alpha"])) if "alpha" in parts else None
    match layer.mixer:
        case "householder":
            return reflections(u, alpha, eps)
        case "dplr":
            return np.eye(width) - 2 * outer_sum(u, alpha, eps)
        case "low_rank":
            return outer_sum(u, alpha, eps) / layer.rank
        case "kronecker":
            return kronecker_matrix(u, alpha, divisor(width), eps, steps)
        case "monarch":
            return monarch_matrix(u, alpha, layer.rank, True, eps)
        case "rotation":
            bound = CONTRACTION / layer.rank if getattr(layer, "contractive", False) else np.pi
            return rotation_product(bound * np.tanh(u / bound), width)
        case "dense":
            G = gram(u, width)
            return G / (power_norm(G, 32) + eps)
        case _:
            assert layer.mixer == "mixture"
            Q = np.eye(width)
            for i in range(layer.rank):
                at = i // 2
                if i % 2:
                    gains = 1 / (1 + np.exp(-parts["gains"][at]))
                    Q = kronecker_matrix(parts["factors"][at], gains, divisor(width), eps, steps) @ Q
                else:
                    Q = reflections(u[at : at + 1], alpha[at : at + 1], eps) @ Q
            return Q


MIXERS = {
    "householder": (householder_mix, householder_mix_backward),
    "dplr": (dplr_mix, dplr_mix_backward),
    "low_rank": (low_rank_mix, low_rank_mix_backward),
    "kronecker": (kronecker_mix, kronecker_mix_backward),
    "monarch": (monarch_mix, monarch_mix_backward),
    "gram": (gram_mix, gram_mix_backward),
    "rotation": (rotation_mix, rotation_mix_backward),
}


def part_shapes(form: str, R: int, D: int) -> tuple[Any, Any]:
    """Shapes of u and alpha of one token; None without gains."""
    if form == "kronecker":
        b = D // R
        return ((R * (R + 1) + b * (b + 1)) // 2,), (R + b,)
    if form in ("monarch", "gram"):
        return (D // R * (R * (R + 1) // 2),), (D // R,)
    return ((R, D // 2), None) if form == "rotation" else ((R, D), (R,))


def mixer_case(
    form: str, B: int, T: int, R: int, D: int, *,
    u_varies: bool = False, alpha_varies: bool = False, origin: bool = True, lengths: Any = None,
) -> Case:  # fmt: skip
    """R vectors, or the R rows of matrices, about an origin."""
    forward, backward = MIXERS[form]
    u_shape, alpha_shape = part_shapes(form, R, D)
    if form in ("kronecker", "monarch"):
        forward, backward = functools.partial(forward, rows=R), functools.partial(backward, rows=R)

    def make(rng: np.random.Generator) -> Arrays:
        args = {"u": normal(rng, (B, T, *u_shape) if u_varies else u_shape)}
        if alpha_shape:
            args["alpha"] = rng.uniform(-0.2, 1.2, (B, T, *alpha_shape) if alpha_varies else alpha_shape)
        args["x"] = normal(rng, (B, T, D))
        return args | ({"origin": normal(rng, (B, T, D))} if origin else {})

    def run_backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = backward(doutputs[0], **args, lengths=lengths)
        return {name: getattr(grads, f"d{name}") for name in args}

    def reference(args: Arrays) -> tuple[Any]:
        y = np.zeros((B, T, D))
        for b in range(B):
            for t in range(T if lengths is None else lengths[b]):
                u, alpha = (args["u"][b, t] if u_varies else args["u"]), args.get("alpha")
                gains = alpha[b, t] if alpha_varies and alpha_shape else alpha
                Q = mixer_matrix(form, u, gains, R)
                o = args["origin"][b, t] if origin else 0
                y[b, t] = o + Q @ (args["x"][b, t] - o)
        return (y,)

    padded = {}
    if lengths is not None:
        varying = {
            "x": True,
            "origin": origin,
            "u": u_varies,
            "alpha": alpha_varies and alpha_shape is not None,
            "out0": True,
        }
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
        terms=4 * (D + 4) * (R + 1) * (1 if form in ("householder", "dplr", "low_rank") else 4) + B * T,
        linear=(("x", "origin") if origin else ("x",),),
        ragged=padded,
        lengths=lengths,
    )


def gains_case(
    form: str, R: int, D: int, *, eps: float = 0.0, steps: int = 0, tokens: tuple[int, ...] = (2, 3), small: float = 1.0
) -> Case:
    """`mixer_gains`; `small` is the size of u, beside eps."""
    number = MIXER[form]
    u_shape, alpha_shape = part_shapes(form, R, D)
    how: dict[str, Any] = {"eps": eps, "steps": steps}

    def squared_power(rows: Any) -> float:
        return float(4.0 ** np.floor(np.log2(np.abs(rows).max())))

    def of_token(u: Any, alpha: Any) -> Any:
        """The gains with which the op is the mixer of what is divided by lengths and norms."""
        if form == "kronecker":
            a, split = R, R * (R + 1) // 2
            gains = []
            for rows, own in ((u[:split], alpha[:a]), (u[split:], alpha[a:])):
                G = gram(rows, len(own))
                length, W = np.linalg.norm(G, axis=1), unit_rows(G, eps)
                kept = length / np.maximum(length, eps)
                gains.append(own * kept / (power_norm(W, steps) + eps if steps else 1))
            return np.concatenate(gains)
        if form == "monarch":
            blocks = [(rows, gram(rows, R)) for rows in np.split(u, D // R)]
            return alpha * [squared_power(rows) / (np.linalg.norm(G, axis=0).max() + eps) for rows, G in blocks]
        if form == "gram":
            return alpha * squared_power(u) / (power_norm(gram(u, D), steps) + eps)
        length = np.linalg.norm(u, axis=1)
        return alpha * (length / np.maximum(length, eps)) ** 2

    def reference(args: Arrays) -> tuple[Any]:
        flat_u = args["u"].reshape(-1, *u_shape)
        flat_alpha = args["alpha"].reshape(-1, *alpha_shape)
        gains = [of_token(*one) for one in zip(flat_u, flat_alpha, strict=True)]
        return (np.array(gains).reshape(args["alpha"].shape),)

    def make(rng: np.random.Generator) -> Arrays:
        u, alpha = small * normal(rng, (*tokens, *u_shape)), rng.uniform(-0.2, 1.2, (*tokens, *alpha_shape))
        return {"u": u, "alpha": alpha}

    def run_backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = mixer_gains_backward(doutputs[0], number, args["u"], args["alpha"], R, D, **how)
        return {"u": grads.du, "alpha": grads.dalpha}

    return Case(
        f"mixer_gains {form} {R} of {D} eps {eps} steps {steps} of {tokens} small {small}",
        make,
        lambda args: (mixer_gains(number, args["u"], args["alpha"], R, D, **how),),
        run_backward,
        reference,
        terms=16 * (D + 4) * (steps + 1),
        linear=(("alpha",),),
    )


def lagged_reference(p: Any, columns: tuple[Columns, ...], lengths: Any, eps: float = 0.0) -> tuple[Any, ...]:
    """Applies the function of each range of columns."""
    functions = {
        "linear": lambda v: v,
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
        "silu": lambda v: v / (1 + np.exp(-v)),
        "softplus": lambda v: np.log1p(np.exp(v)),
        "unit": lambda v: v / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), eps),
    }
    ends = np.cumsum([width for width, _ in columns])
    parts = [functions[f](v) for (_, f), v in zip(columns, np.split(p, ends[:-1], axis=-1), strict=True)]
    return tuple(np.where(valid_steps(p.shape, lengths), part, 0) for part in parts)


def lagged_case(
    B: int, T: int, columns: tuple[Columns, ...], given: tuple[str, ...], lengths: Any = None, eps: float = 0.0
) -> Case:
    K = sum(width for width, _ in columns)
    shapes = {"base": (B, T, K), "late": (B, T, K), "first": (B, K)}

    def inputs(args: Arrays) -> tuple[Any, ...]:
        return args["base"], args.get("late"), args.get("first"), columns

    def run_backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = lagged_maps_backward(doutputs, *inputs(args), eps=eps, lengths=lengths)
        return {name: getattr(grads, f"d{name}") for name in args}

    def reference(args: Arrays) -> tuple[Any, ...]:
        p = args["base"].copy()
        if "late" in args and T:
            p[:, 1:] += args["late"][:, :-1]
        if "first" in args and T:
            p[:, 0] += args["first"]
        return lagged_reference(p, columns, lengths, eps)

    padded = {}
    if lengths is not None:
        # late's last valid step is not read either
        padded = {"base": lengths, "late": tuple(max(n - 1, 0) for n in lengths), "first": None}
        padded = {name: padded[name] for name in shapes if name in given and padded[name] is not None}
        padded |= {f"out{i}": lengths for i in range(len(columns))}
    return Case(
        f"lagged_maps {'+'.join(f for _, f in columns)} of {', '.join(given)}"
        f"{' ragged' * (lengths is not None)}{f' eps {eps}' * (eps > 0)} {B}x{T}x{K}",
        lambda rng: {name: normal(rng, shapes[name]) for name in given},
        lambda args: tuple(lagged_maps(*inputs(args), eps=eps, lengths=lengths)),
        run_backward,
        reference,
        terms=32 + K,
        ragged=padded,
        lengths=lengths,
    )


def lagged_product_case(
    B: int, T: int, E: int, columns: tuple[Columns, ...], lengths: Any = None, eps: float = 0.0
) -> Case:
    """The adjoint is `lagged_maps_backward`, followed by that of the product."""
    K = sum(width for width, _ in columns)

    def make(rng: np.random.Generator) -> Arrays:
        shapes = {"base": (B, T, K), "y": (B, T, E), "v": (K, E), "first": (B, K)}
        return {name: normal(rng, shape) for name, shape in shapes.items()}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        late = dense(args["y"], args["v"])
        maps = lagged_maps_backward(doutputs, args["base"], late, args["first"], columns, eps=eps, lengths=lengths)
        read = valid_steps((B, T), None if lengths is None else np.maximum(lengths, 1) - 1)
        y = np.where(beside(read, args["y"]), args["y"], 0)
        product = dense_backward(maps.dlate, y, args["v"])
        return {"base": maps.dbase, "y": product.dx, "v": product.dw, "first": maps.dfirst}

    def reference(args: Arrays) -> tuple[Any, ...]:
        before = np.concatenate([np.zeros((B, 1, K)), args["y"] @ args["v"].T], 1)[:, :T]
        before[:, :1] += args["first"][:, None]
        return lagged_reference(args["base"] + before, columns, lengths, eps)

    padded = {}
    if lengths is not None:  # y's last valid step is not read either
        padded = {"base": lengths, "y": tuple(max(n - 1, 0) for n in lengths)}
        padded |= {f"out{i}": lengths for i in range(len(columns))}
    return Case(
        f"lagged_products {'+'.join(f for _, f in columns)}{' ragged' * (lengths is not None)}"
        f"{f' eps {eps}' * (eps > 0)} {B}x{T}x{E} to {K}",
        make,
        lambda args: tuple(
            lagged_products(*(args[name] for name in ("base", "y", "v", "first")), columns, eps=eps, lengths=lengths)
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
        for form, R in (
            *(("householder", 2), ("dplr", 3), ("low_rank", 2), ("kronecker", 2)),
            *(("monarch", 3), ("gram", 6), ("rotation", 3)),
        )
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
    *(
        mixer_case(form, 3, 7, R, 8, u_varies=varies, alpha_varies=not varies, origin=varies, lengths=(7, 0, 3))
        for form, R in (("monarch", 2), ("gram", 8), ("rotation", 2))
        for varies in (False, True)
    ),
    *(mixer_case(form, 2, 3, 1, D) for form, D in (("monarch", 3), ("gram", 1))),
    mixer_case("rotation", 1, 3, 6, 10, u_varies=True),  # all shifts, and the first ones again
    *(mixer_case("rotation", 2, 3, R, D) for R, D in ((0, 4), (1, 0), (3, 2))),
    *(mixer_case(form, 0, 3, 2, 4) for form in ("dplr", "kronecker", "monarch", "rotation")),
    gains_case("householder", 2, 6, eps=2.4),  # lengths on both sides
    gains_case("low_rank", 3, 5, eps=1e-5, tokens=()),
    gains_case("dplr", 2, 4, eps=0.1, tokens=(2, 0)),
    gains_case("kronecker", 2, 6, eps=1.0),
    gains_case("kronecker", 2, 6, steps=16),
    gains_case("kronecker", 3, 12, eps=0.8, steps=16, tokens=()),
    gains_case("kronecker", 1, 2, eps=1e-5, steps=2),
    gains_case("monarch", 4, 8, eps=1e-5),
    gains_case("monarch", 1, 3, tokens=()),
    gains_case("monarch", 3, 6, eps=0.5, small=0.1),
    gains_case("gram", 5, 5, steps=32, eps=1e-5),
    gains_case("gram", 4, 4, steps=3, tokens=()),
    *(mixer_case(form, 2, 0, 2, 4, u_varies=True) for form in ("low_rank", "kronecker")),
    lagged_product_case(2, 5, 4, EVERY),
    lagged_product_case(3, 6, 4, EVERY, (6, 0, 3)),
    *(lagged_product_case(B, T, E, EVERY) for B, T, E in ((2, 1, 3), (2, 0, 3), (0, 2, 3), (2, 3, 0))),
    lagged_product_case(2, 130, 3, EVERY, (130, 61)),  # more than one piece
    lagged_product_case(2, 5, 4, EVERY, eps=3.0),
    lagged_case(2, 5, EVERY, ALL),
    lagged_case(3, 6, EVERY, ALL, (6, 0, 3), eps=2.5),
    lagged_case(2, 4, EVERY, ("base",)),
    lagged_case(3, 6, EVERY, ALL, (6, 0, 3)),
    lagged_case(2, 1, EVERY, ("base", "late")),
    lagged_case(2, 0, EVERY, ALL),
    lagged_case(0, 3, EVERY, ALL),
]

OPS_LARGE = [
    *(mixer_case(form, 3, 150, 4, 40, lengths=(150, 3, 149)) for form in ("dplr", "low_rank", "kronecker", "monarch")),
    mixer_case("gram", 3, 150, 20, 20, u_varies=True, lengths=(150, 3, 149)),
    mixer_case("rotation", 3, 150, 4, 80, u_varies=True, lengths=(150, 3, 149)),
    gains_case("kronecker", 4, 40, steps=16, eps=1.0, tokens=(3, 100)),
    mixer_case("kronecker", 3, 150, 4, 80, u_varies=True, alpha_varies=True, lengths=(150, 3, 149)),
    lagged_product_case(3, 300, 20, (Columns(130, "linear"), Columns(130, "unit")), (300, 3, 299)),
    lagged_case(3, 300, (Columns(130, "linear"), Columns(130, "unit")), ALL, (300, 3, 299)),
]
