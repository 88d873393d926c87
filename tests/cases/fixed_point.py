"""Rows of Fixed-Point RNNs. The reference is the limit of the iteration: a dense recurrence, one linear system per
token."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.mixers import layer_mixer
from cases.table import Arrays, rotation_of
from rotrnn.nn.fixed_points.mixer import CONTRACTION
from rotrnn.nn.layer import zero_state
from rotrnn.nn.layers.fixed_point import FixedPointRNN

TOL = 1e-13
TERMS = 2000
"""An iterate of residual TOL is within 4 TOL / (1 - 0.9) of the fixed point where a step brings it closer by 0.9:
that is 4 TERMS eps, with a little for rounding."""

DIRECT = 500
"""With gains 1 - lam of 0.1 or so and |I - Q| <= 2, a token's system has a condition of (1 + 0.2) / (1 - 0.2) at most.
A direct solution and the reference pass through sums of N and R terms, some 20 for each of T steps, whose errors do not
grow, and this condition."""


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def silu(z: Any) -> Any:
    return z * sigmoid(z)


def mixer_matrix(layer: FixedPointRNN, parts: Arrays) -> Any:
    """Returns Q of one token as a matrix."""
    N, rank = layer.d_state, layer.rank
    if layer.mixer == "orthogonal":
        S = parts["M"] - parts["M"].T
        largest = 2 * np.arcsin(CONTRACTION / 2) / (1 + np.linalg.norm(S) / np.sqrt(2)) if layer.contractive else 1
        return rotation_of(largest * S)
    bounds = {
        "kronecker": (CONTRACTION / (2 * np.sqrt(N))) ** 0.5,
        "monarch": CONTRACTION / np.sqrt(rank),
    }
    return layer_mixer(layer, parts, N, bounds.get(layer.mixer, CONTRACTION / (2 * rank)) if layer.contractive else 1)


PARTS = ("", "lambda", "mixer", "B")


def dense_recurrence(
    layer: FixedPointRNN, params: Arrays, x_t: Any, h: Any = None, own: Arrays | None = None
) -> tuple[Any, Any]:
    """Returns (A, b) of one token, found by solving for the fixed point h = A h_before + b. `h` is that before it,
    which feedback reads, and `own` has the x of parts that have a convolution."""
    identity, inputs = np.eye(layer.d_state), dict.fromkeys(PARTS, x_t) | (own or {})
    W = params.get("W_lambda", np.zeros((layer.d_state, layer.d_model)))
    lam = sigmoid(W @ inputs["lambda"] + params["b_lambda"])
    lam = 2 * lam - 1 if layer.negative else lam
    v = params["B"] @ inputs[""]
    if "W_B" in params:
        v = sigmoid(params["W_B"] @ inputs["B"] + params["b_B"]) * v
    parts = {}
    for name in layer._mixer.parts:
        parts[name] = params[name] if name in params else params[f"W_{name}"] @ inputs["mixer"]
        if "mixer" in layer.feedback:
            parts[name] = parts[name] + params[f"{'W' if layer.symmetric else 'V'}_{name}"] @ h
        if layer.mixer_silu and name in ("u", "factors"):
            parts[name] = silu(parts[name])
    Q = mixer_matrix(layer, parts)
    gain = 1 - np.abs(lam) if layer.scaled else np.ones_like(lam)
    K = np.linalg.inv(identity - gain[:, None] * (identity - Q))
    return K * lam, K @ (gain * (Q @ v))


def fixed_point_loop(layer: FixedPointRNN, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    B, T, D = x.shape
    y = np.zeros((B, T, D))
    state = zero_state("", layer, B, np.float64) if state is None else state
    *tails, h = map(np.array, state if layer.d_conv else (state,))
    for b in range(B):
        for t in range(T if lengths is None else lengths[b]):
            x_t, own = x[b, t], {}
            for part, tail in zip(layer._convs, tails, strict=True):
                of = f"_{part}" if part else ""
                window = np.concatenate([tail[b], x_t[None]])
                tail[b] = window[1:]
                convolved = np.einsum("kd,dk->d", window, params[f"conv_w{of}"]) + params[f"conv_bias{of}"]
                own[part] = silu(convolved)
            x_t = own.get("", x_t)
            own = dict.fromkeys(PARTS, x_t) | own
            A, drive = dense_recurrence(layer, params, x_t, h[b], own)
            before, h[b] = h[b].copy(), A @ h[b] + drive
            out = h[b]
            if "output" in layer.feedback:
                out = silu(params["W_c"] @ x_t + params["V_c"] @ before) * h[b]
            y[b, t] = params["C"] @ out + params["D"] * x_t
    return y, (*tails, h) if layer.d_conv else h


def row(name: str, B: int, T: int, lengths: Any = None, terms: int = TERMS, **settings: Any) -> LayerRow:
    layer = FixedPointRNN(3, **{"d_state": 4, "gradient": "implicit", "tol": TOL, "max_iterations": 2000} | settings)
    return LayerRow(
        name,
        layer,
        B,
        T,
        lengths,
        fixed_point_loop,
        terms=terms,
        linear=(
            *([] if layer.feedback else [("B", f"state.{len(layer._convs)}" if layer.d_conv else "state")]),
            ("C", "D"),
            *([] if layer.selective else [("x", "state")]),
        ),
    )


BOTH_SIGNS: dict[str, Any] = {"negative": True, "lambda_init": (-0.95, 0.95)}
SOLVED: dict[str, dict[str, Any]] = {
    "": {"contractive": True},
    " low rank": {"mixer": "low_rank", "lambda_init": (-0.95, -0.6)},
    " tile 3": {"contractive": True, "tile": 3},
    " direct": {"rank": 2, "contractive": True, "solver": "direct"},
    " direct low rank": {"mixer": "low_rank", "lambda_init": (-0.95, -0.6), "solver": "direct"},
}
"""Ways to solve with transitions of both signs. A mixer of low rank needs |lam| well above zero."""

ACCELERATED = 1e-12
"""Tolerance of rows with acceleration, whose residual is that of the iterate times |(I - J)^-1|, some ten at most: with
the TOL of the others, rounding would not let it end."""

SMALL_GAIN: dict[str, Any] = {"lambda_init": (0.9, 0.95), "tol": TOL}
"""Transitions whose 1 - lam is small, so that an iteration converges whatever |I - Q| of a mixer without a bound."""

FIXED_POINT = [
    row("", 2, 7, rank=2),
    row("", 3, 6, (6, 0, 4)),
    row("contractive", 2, 6, (2, 6), rank=2, contractive=True, selective=("lambda", "mixer")),
    row("constant", 2, 6, selective=(), damping="none"),
    row("unscaled orthogonal", 2, 5, scaled=False, mixer="orthogonal", selective=("lambda", "B")),
    row("contractive orthogonal", 1, 5, contractive=True, mixer="orthogonal"),
    row("dplr", 2, 4, mixer="dplr", rank=2, selective=("mixer",)),
    row("low rank", 2, 4, mixer="low_rank", rank=2, selective=("lambda", "mixer")),
    row("kronecker", 2, 4, (4, 3), mixer="kronecker", d_state=6, selective=("mixer",)),
    row("unaccelerated", 2, 5, (5, 3), accelerated=False, selective=["mixer"]),
    row("epsilon", 2, 5, (5, 3), rank=2, unit_eps=1.5),
    row("epsilon dplr", 2, 4, mixer="dplr", rank=2, unit_eps=1.5, tile=2, selective=("mixer",)),
    row("epsilon direct", 2, 5, terms=DIRECT, rank=2, unit_eps=1.5, solver="direct"),
    row("epsilon constant", 2, 4, rank=2, unit_eps=2.5, selective=()),
    row("each step", 2, 5, (5, 3), rank=2, contractive=True, stop="step_quantile", damping="none"),
    row("anderson", 3, 6, (6, 0, 4), rank=2, damping="anderson", tile=1, tol=ACCELERATED),
    row("anderson orthogonal", 2, 4, mixer="orthogonal", damping="anderson", contractive=True, tol=ACCELERATED),
    row("feedback", 3, 6, (6, 0, 4), rank=2, contractive=True, feedback=("mixer", "output")),
    row("feedback output", 2, 5, (5, 2), rank=2, feedback=("output",), solver="direct"),
    row("feedback unaccelerated", 2, 5, feedback=("mixer",), accelerated=False, contractive=True, unit_eps=1.5),
    row("separate convolutions", 3, 5, (5, 0, 2), d_conv=3, separate_convs=True, contractive=True),
    row(
        "feedback, convolutions",
        2,
        5,
        d_conv=2,
        separate_convs=True,
        contractive=True,
        feedback=("mixer", "output"),
        selective=("lambda", "mixer"),
    ),
    row("silu", 3, 6, (6, 0, 4), rank=2, mixer_silu=True),
    row("silu direct", 2, 5, (5, 3), DIRECT, rank=2, unit_eps=0.5, mixer_silu=True, solver="direct"),
    row("silu tile", 2, 5, (5, 3), mixer="monarch", rank=2, mixer_silu=True, tile=2, contractive=True),
    row("silu mixture", 2, 3, mixer="mixture", rank=3, mixer_silu=True, **SMALL_GAIN),
    row("silu feedback", 3, 5, (5, 0, 2), rank=2, mixer_silu=True, contractive=True, feedback=("mixer",)),
    row("symmetric", 3, 6, (6, 0, 4), d_state=3, rank=2, contractive=True, feedback=("mixer",), symmetric=True),
    row(
        "symmetric, silu, convolutions",
        2,
        5,
        (5, 3),
        d_state=3,
        d_conv=2,
        separate_convs=True,
        contractive=True,
        feedback=("mixer", "output"),
        mixer_silu=True,
        symmetric=True,
    ),
    row("symmetric dense", 2, 3, d_state=3, mixer="dense", feedback=("mixer",), symmetric=True, **SMALL_GAIN),
    row("", 2, 0, feedback=("mixer", "output")),
    row("", 2, 0, mixer_silu=True),
    row("", 1, 1, d_state=3, feedback=("mixer",), mixer_silu=True, symmetric=True),
    row("", 1, 1, feedback=("mixer", "output")),
    row("spectral", 2, 3, (3, 2), mixer="kronecker", d_state=6, spectral=True, unit_eps=1e-5, **SMALL_GAIN),
    row("spectral epsilon", 2, 4, mixer="kronecker", d_state=4, spectral=True, unit_eps=1.0, **SMALL_GAIN),
    row("monarch", 2, 5, (5, 3), mixer="monarch", rank=2, unit_eps=1e-5),
    row("monarch contractive", 2, 5, mixer="monarch", rank=4, contractive=True, tile=2, feedback=("output",)),
    row("monarch constant", 2, 4, mixer="monarch", rank=2, selective=()),
    row("monarch feedback", 2, 3, mixer="monarch", rank=2, contractive=True, feedback=("mixer",)),
    row("dense", 2, 4, (4, 2), mixer="dense", unit_eps=1e-5, **SMALL_GAIN),
    row("dense constant", 1, 3, mixer="dense", selective=("lambda",), **SMALL_GAIN),
    row("mixture", 2, 4, (4, 3), mixer="mixture", rank=3, **SMALL_GAIN),
    row("mixture constant", 1, 3, mixer="mixture", rank=2, selective=("lambda",), unit_eps=0.5, **SMALL_GAIN),
    row("mixture feedback", 2, 3, mixer="mixture", rank=2, spectral=True, feedback=("mixer",), **SMALL_GAIN),
    row("rotation", 3, 5, (5, 0, 3), mixer="rotation", rank=2, **SMALL_GAIN),
    row("rotation contractive", 2, 5, mixer="rotation", rank=3, contractive=True, tile=2, mixer_silu=True),
    row("rotation constant", 2, 4, mixer="rotation", rank=2, selective=("lambda",), **SMALL_GAIN),
    row("rotation feedback", 2, 3, mixer="rotation", rank=2, contractive=True, feedback=("mixer",)),
    row("convolution", 3, 6, (6, 0, 2), d_conv=4, rank=2),
    *(row(f"negative{how}", 2, 6, (6, 3), **(BOTH_SIGNS | own)) for how, own in SOLVED.items()),
    row("negative constant", 2, 6, **BOTH_SIGNS, selective=("mixer",), contractive=True),
    row("negative unscaled", 2, 5, **BOTH_SIGNS, scaled=False, mixer="orthogonal", selective=("lambda",)),
    *(row(f"tile {tile}", 2, 7, (7, 5), rank=2, tile=tile) for tile in (1, 2, 8)),
    row("tile 3", 3, 6, (6, 0, 4), selective=("lambda",), mixer="low_rank", rank=2, tile=3),
    row("tile 3 kronecker", 2, 4, mixer="kronecker", d_state=6, selective=("mixer",), contractive=True, tile=3),
    row("direct", 3, 7, (7, 0, 5), DIRECT, rank=2, solver="direct"),
    row("direct constant", 2, 6, terms=DIRECT, rank=3, selective=(), solver="direct"),
    row("direct dplr", 2, 5, terms=DIRECT, mixer="dplr", rank=3, selective=("mixer",), solver="direct"),
    row("direct low rank", 2, 5, (5, 3), DIRECT, mixer="low_rank", rank=2, solver="direct"),
    row("", 0, 3),
    row("", 2, 0),
    row("", 1, 1),
    row("tile 2", 2, 0, tile=2),
    row("direct", 2, 0, solver="direct"),
]

FORMED: dict[str, dict[str, Any]] = {
    "kronecker": {"d_state": 6},
    "monarch": {"rank": 2, "unit_eps": 1e-5},
    "orthogonal": {},
    "dense": {"unit_eps": 1e-5},
    "mixture": {"rank": 3},
    "rotation": {"rank": 2, "d_state": 6},
}
"""Mixers whose systems are formed as matrices, which has no kernel on a GPU. The transitions are near 1 or -1, so the
gains 1 - |lam| are small beside the norms of I - Q, up to 8 of a mixture, and the systems are well-conditioned."""

ON_CPU = [
    *(
        row(f"direct {name}", 3, 5, (5, 0, 3), DIRECT, mixer=name, solver="direct", **own)
        for name, own in FORMED.items()
    ),
    *(
        row(f"direct constant {name}", 2, 4, None, DIRECT, mixer=name, solver="direct", selective=(), **own)
        for name, own in FORMED.items()
    ),
    *(
        row(
            *(f"direct negative {name}", 2, 4, (4, 3), DIRECT),
            **{"mixer": name, "solver": "direct", "negative": True, "lambda_init": (-0.95, -0.8)} | own,
        )
        for name, own in FORMED.items()
    ),
    row("direct unscaled", 2, 4, (4, 3), DIRECT, mixer="orthogonal", scaled=False, solver="direct"),
    row("direct unscaled", 3, 5, (5, 0, 3), DIRECT, mixer="rotation", rank=3, scaled=False, solver="direct"),
    row("direct monarch convolution", 2, 4, (4, 3), DIRECT, mixer="monarch", rank=4, d_conv=2, solver="direct"),
    row("direct", 0, 3, terms=DIRECT, mixer="mixture", rank=2, solver="direct"),
    row("direct", 2, 0, terms=DIRECT, mixer="mixture", rank=2, solver="direct"),
    row("direct", 1, 1, terms=DIRECT, mixer="kronecker", solver="direct"),
]
FIXED_POINT_LARGE = [row("", 4, 300, (300, 0, 299, 17), d_state=40, rank=2, tol=1e-6)]
