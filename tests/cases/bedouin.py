"""Rows of Bedouin, whose reference solves a linear system for each token's fixed point, given the past; and of FPMamba,
whose reference runs the authors' loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cases.fixed_point import ACCELERATED
from cases.layer_row import LayerRow
from cases.mixers import layer_mixer, unit_rows
from cases.table import Arrays, rotation_of
from rotrnn.nn.layer import zero_state
from rotrnn.nn.layers.bedouin import Bedouin
from rotrnn.nn.layers.fpmamba import FPMamba

TOL = 1e-13
TERMS = 2000
"""As of the vector state (fixed_point.py): an iterate of residual TOL is within 4 TERMS eps of the fixed point where a
step brings it closer by 0.9, with a little for rounding."""


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def silu(z: Any) -> Any:
    return z * sigmoid(z)


def mixer_of(layer: Any, parts: Arrays) -> Any:
    """Returns Q of one token as a matrix."""
    if layer.mixer == "orthogonal":
        return rotation_of(parts["M"] - parts["M"].T)
    return layer_mixer(layer, parts, layer.width)


def shifted(params: Arrays, v: Any, tail: Any) -> tuple[Any, Any]:
    """Returns SiLU(conv(v)) of a token and the last inputs after it."""
    window = np.concatenate([tail, v[None]])
    return silu(np.einsum("kd,dk->d", window, params["conv_w"]) + params["conv_bias"]), window[1:]


def transition(decay: Any, negative: bool) -> Any:
    return 2 * decay - 1 if negative else decay


def token(layer: Bedouin, params: Arrays, x: Any, h: Any, before: Any) -> tuple[Any, Any]:
    """(h, y) of a token: y = [I - k delta (I - Q)]^-1 (C (lam h) + k delta Q x) with k = B.C; maps read `before`."""

    def mapped(name: str) -> Any:
        if layer.symmetric and name in layer._mixer.parts:
            return params[f"W_{name}"] @ (x + before)
        p = params[f"W_{name}"] @ x
        return p + params[f"V_{name}"] @ before if f"V_{name}" in params else p

    delta = sigmoid(mapped("delta") + params["b_delta"])
    B, C = mapped("B"), mapped("C")
    if layer.normalise:
        B, C = unit_rows(np.stack([B, C]), layer.unit_eps)
    parts = {name: params[name] if name == "M" else mapped(name) for name in layer._mixer.parts}
    if layer.mixer_silu:
        parts |= {name: silu(parts[name]) for name in ("u", "factors") if name in parts}
    Q = mixer_of(layer, parts)
    h = transition(np.exp(-8 * np.log1p(np.exp(params["omega"])) * delta[:, None]), layer.negative) * h
    gain, identity = (B @ C) * delta[:, None], np.eye(layer.width)
    y = np.linalg.solve(identity - gain * (identity - Q), h @ C + gain[:, 0] * (Q @ x))
    mixed = Q @ (x - y) + y
    return h + np.outer(delta * mixed, B), y


def bedouin_loop(layer: Bedouin, params: Arrays, inputs: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    B, T, D = inputs.shape
    out = np.zeros((B, T, D))
    *tail, h, before = map(np.array, zero_state("", layer, B, np.float64) if state is None else state)
    for b in range(B):
        for t in range(T if lengths is None else lengths[b]):
            x, gate = np.split(params["W_in"] @ inputs[b, t], 2)
            if layer.d_conv:
                x, tail[0][b] = shifted(params, x, tail[0][b])
            read = before[b] / np.sqrt((before[b] ** 2).mean() + 1e-5) if layer.feedback_norm else before[b]
            if "V_gate" in params:
                gate = gate + params["V_gate"] @ read
            h[b], before[b] = token(layer, params, x, h[b], read)
            out[b, t] = params["W_out"] @ (gate * silu(before[b] + params["D"] * x))
    return out, (*tail, h, before)


def row(name: str, B: int, T: int, lengths: Any = None, **settings: Any) -> LayerRow:
    """A direct solution has no more roundings than the iteration."""
    exact = {"gradient": "implicit", "tol": TOL, "max_iterations": 2000}
    layer = Bedouin(2, **{"d_state": 3, **exact, **settings})
    return LayerRow(name, layer, B, T, lengths, bedouin_loop, terms=TERMS, linear=(("W_out",),), noise=0.3)


def formed(mixer: str, B: int, T: int, lengths: Any = None, **settings: Any) -> LayerRow:
    """With the direct solver of a mixer whose systems are formed: the residual is the rounding that a system lets grow,
    some thousand times for these, which TOL would call singular."""
    name = " ".join(["direct", mixer, *(str(key) for key in settings)])
    return row(name, B, T, lengths, mixer=mixer, solver="direct", tol=ACCELERATED, **settings)


class Tokens(NamedTuple):
    """What the step of the authors' code takes from its input, for a sequence or a batch: x and z, the parts of B and C
    from the input, and delta before its softplus, by channels."""

    x: Any
    z: Any
    B: Any
    C: Any
    dt: Any


def of_input(layer: FPMamba, p: Arrays, inputs: Any, tail: Any, lengths: Any) -> Tokens:
    """The projections of a batch, convolved; `tail` becomes the last inputs of the convolution."""
    x, z = np.split(inputs @ p["W_in"].T, 2, -1)
    S, heads = layer.d_state, layer.d_head > 0
    v = np.concatenate([x, inputs @ p["W_B"].T, inputs @ p["W_C"].T], -1) if heads else x
    for b in range(len(v) if layer.d_conv else 0):
        for t in range(lengths[b]):
            v[b, t], tail[b] = shifted(p, v[b, t], tail[b])
    x = v[..., : layer.width]
    if heads:
        dt = np.repeat(inputs @ p["W_dt"].T + p["b_dt"], layer.d_head, -1)
        return Tokens(x, z, v[..., -2 * S : -S], v[..., -S:], dt)
    return Tokens(x, z, x @ p["W_B"].T, x @ p["W_C"].T, x @ p["W_d"].T @ p["W_dt"].T + p["b_dt"])


def printed_step(layer: FPMamba, p: Arrays, of: Tokens, y: Any, h: Any, before: Any) -> tuple[Any, Any]:
    """Returns F(y) of one sequence, and the state after it, with weights normalised where they are used."""
    x, z = of.x, of.z
    A, skip = np.exp(p["A_log"]), p["D"]
    if layer.d_head:
        A, skip = np.repeat(A, layer.d_head)[:, None], np.repeat(skip, layer.d_head)

    def weight(name: str) -> Any:
        return p[f"g_{name}"][..., None] * p[name] / np.linalg.norm(p[name], axis=-1, keepdims=True)

    out = np.zeros_like(y)
    for t in range(len(y)):
        last = before if t == 0 else y[t - 1]
        delta = np.log1p(np.exp(of.dt[t]))
        own = {"B": of.B[t], "C": of.C[t]}
        B, C = (own[n] + (weight(f"V_{n}") @ last if f"V_{n}" in p else 0) for n in "BC")
        B, C = unit_rows(np.stack([B, C]), layer.unit_eps)
        parts = {name: p[name] for name in ("M",) if name in p}
        if not parts:
            both = np.concatenate([x[t], last]) if "mixer" in layer.feedback else x[t]
            both = x[t] + last if layer.symmetric else both
            for name in layer._mixer.parts:
                value = weight(f"P_{name}") @ both + p.get(f"b_{name}", 0)
                parts[name] = silu(value) if layer.mixer_silu and name in ("u", "factors") else value
        mixed = mixer_of(layer, parts) @ (x[t] - y[t]) + y[t]
        lam = transition(np.exp(-A * delta[:, None]), layer.negative)
        h = lam * h + np.outer(delta * mixed, B)
        f = (h @ C + skip * mixed) * (silu(z[t]) if layer.gate_in_loop or layer.d_head else 1)
        if layer.d_head:
            out[t] = p["scale"] * f / np.sqrt((f**2).mean() + layer.norm_eps)
        else:
            out[t] = p["scale"] * (f - f.mean()) / np.sqrt(f.var() + layer.norm_eps) + p["bias"]
    return out, h


def printed_loop(layer: FPMamba, p: Arrays, inputs: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """The loop of the authors' code in evaluation mode, over a batch or for each sequence separately."""
    B, T, _ = inputs.shape
    E = layer.width
    lengths = [T] * B if lengths is None else lengths
    *tail, h0, y0 = map(np.array, zero_state("", layer, B, np.float64) if state is None else state)
    tokens = of_input(layer, p, inputs, tail[0] if tail else None, lengths)

    def apply(b: int) -> tuple[Any, Any]:
        of = Tokens(*(one[b, : lengths[b]] for one in tokens))
        return printed_step(layer, p, of, y[b], h0[b], y0[b])

    y = [np.zeros((n, E)) for n in lengths]
    some = [b for b in range(B) if lengths[b]]
    for group in [some] if layer.stop == "quantile" else [[b] for b in some]:
        lowest, size, patience = dict.fromkeys(group, np.inf), dict.fromkeys(group, 0.99), dict.fromkeys(group, 15)
        for _ in range(layer.max_iterations):
            if max(lowest.values(), default=0) < layer.tol:
                break
            for b in group:
                f, _ = apply(b)
                residual = (np.abs(y[b] - f).max(1) / (np.abs(f).max(1) + 1e-8)).max()
                y[b] = size[b] * f + (1 - size[b]) * y[b]
                patience[b] = 15 if residual < lowest[b] else patience[b] - 1
                lowest[b] = min(lowest[b], residual)
                if patience[b] == 0:
                    patience[b], size[b] = 15, 0.9 * size[b]
    out, hT, yT = np.zeros(inputs.shape), np.array(h0), np.array(y0)
    for b in some:
        y[b], hT[b] = apply(b)
        gate = tokens.z[b, : lengths[b]]
        if "V_gate" in p:
            V = p["g_V_gate"][:, None] * p["V_gate"] / np.linalg.norm(p["V_gate"], axis=1, keepdims=True)
            gate = gate + np.concatenate([y0[b : b + 1], y[b][:-1]]) @ V.T
        out[b, : lengths[b]] = ((1 if layer.gate_in_loop else silu(gate)) * y[b]) @ p["W_out"].T
        yT[b] = y[b][-1]
    return out, (*tail, hT, yT)


def printed_row(name: str, B: int, T: int, lengths: Any = None, **settings: Any) -> LayerRow:
    """Does not compare chunks and single steps, because the fixed point depends on the path of the iteration."""
    layer = FPMamba(2, **{"d_state": 3, "gradient": "implicit", "tol": TOL, "max_iterations": 2000, **settings})
    return LayerRow(
        name, layer, B, T, lengths, printed_loop, terms=TERMS, linear=(("W_out",),), noise=0.3, streams=False
    )


ALL = ("lambda", "mixer", "B", "C", "gate")
GATED: dict[str, Any] = {"gate_in_loop": True, "feedback": ("mixer", "B", "C"), "norm_eps": 0.3}
"""A gate in the loop makes the norm's input small, which the norm would then magnify more than the iteration bears."""

BEDOUIN = [
    row("", 2, 6),
    row("rank 2", 3, 5, (5, 0, 3), rank=2),
    row("tiles", 3, 5, (5, 0, 3), rank=2, tile=2),
    row("tiles, nothing fed back", 2, 5, feedback=(), tile=3, d_conv=2),
    row("tokens kronecker", 2, 4, (4, 3), tile=1, damping="anderson", mixer="kronecker", expand=3, tol=ACCELERATED),
    row("anderson", 2, 4, damping="anderson", feedback=ALL, tol=ACCELERATED),
    row("all fed back", 2, 5, feedback=ALL),
    row("nothing fed back", 2, 5, (2, 5), feedback=(), mixer="dplr", rank=2, d_state=8),
    row("orthogonal", 2, 5, mixer="orthogonal", damping="none"),
    row("low rank", 1, 5, mixer="low_rank", rank=2, feedback=["B", "C"]),
    row("kronecker", 2, 4, mixer="kronecker", expand=3),
    row("convolution", 3, 5, (5, 0, 2), d_conv=3),
    row("symmetric", 2, 5, d_conv=1, symmetric=True, rank=2),
    row("symmetric kronecker", 1, 4, symmetric=True, mixer="kronecker", feedback=("mixer",), expand=3),
    row("silu", 2, 4, mixer_silu=True, rank=2),
    row("feedback norm", 3, 5, (5, 0, 3), rank=2, feedback_norm=True),
    row("feedback norm, tiles", 2, 5, tile=2, feedback_norm=True, symmetric=True, feedback=("mixer", "C")),
    row("negative", 2, 6, (6, 3), negative=True, feedback=("lambda", "mixer", "B")),
    row("epsilon", 2, 5, (5, 3), rank=2, unit_eps=1.5),
    row("spectral", 1, 4, mixer="kronecker", expand=3, spectral=True, unit_eps=1e-5),
    row("monarch", 2, 4, (4, 3), mixer="monarch", rank=2, unit_eps=1e-5),
    row("dense", 1, 4, mixer="dense", symmetric=True),
    row("mixture", 2, 3, mixer="mixture", rank=2),
    row("rotation", 2, 4, (4, 3), mixer="rotation", rank=2),
    row("", 0, 3),
    row("", 2, 0),
    row("", 1, 1),
]
FPMAMBA = [
    printed_row("", 2, 4),
    printed_row("by the sequence", 3, 4, (4, 0, 2), stop="sequence", rank=2, feedback=("B", "gate")),
    printed_row("kronecker", 1, 3, mixer="kronecker", feedback=("C",), norm_eps=0.3),
    printed_row("epsilon", 2, 4, unit_eps=1.0),
    printed_row("monarch", 1, 3, mixer="monarch", rank=2, unit_eps=1e-5, norm_eps=0.3),
    printed_row("mixture", 1, 3, mixer="mixture", rank=2, unit_eps=1e-5, feedback=("C",), norm_eps=0.3),
    printed_row("convolution, symmetric", 3, 4, (4, 0, 2), stop="sequence", d_conv=4, symmetric=True),
    printed_row("gate in the loop", 2, 4, (4, 3), stop="sequence", **GATED),
    printed_row("linear vectors", 2, 3, mixer_silu=False, feedback=("mixer", "C")),
    printed_row("negative", 2, 4, negative=True, dt_min=0.3, dt_max=0.6, symmetric=True),
    printed_row("heads", 3, 4, (4, 0, 3), stop="sequence", d_head=2, norm_eps=0.3),
    printed_row("heads, convolution", 2, 4, (4, 2), stop="sequence", d_head=1, d_conv=3, norm_eps=0.3, rank=2),
    printed_row("heads, gate in the loop", 2, 3, d_head=4, negative=True, dt_min=0.3, dt_max=0.6, **GATED),
    printed_row("", 2, 0),
    printed_row("", 0, 2),
    printed_row("", 1, 1),
]

LAYERS = [*BEDOUIN, *FPMAMBA]
ON_CPU = [
    row("direct", 2, 6, solver="direct"),
    row("direct rank 2", 5, 5, (5, 0, 3, 4, 1), rank=2, solver="direct"),
    row("direct dplr", 2, 5, mixer="dplr", rank=3, feedback=("mixer", "gate"), solver="direct"),
    row("direct low rank", 1, 5, mixer="low_rank", rank=2, feedback=(), solver="direct"),
    row("direct convolution", 2, 5, (5, 3), d_conv=4, symmetric=True, negative=True, solver="direct"),
    row("direct symmetric", 2, 5, symmetric=True, rank=2, solver="direct"),
    row("direct, all fed back", 2, 5, (5, 3), solver="direct", feedback=ALL),
    row("direct epsilon, silu", 2, 5, (5, 3), solver="direct", rank=2, unit_eps=1.5, mixer_silu=True),
    row("direct feedback norm", 5, 5, (5, 0, 3, 4, 1), rank=2, solver="direct", feedback_norm=True, feedback=ALL),
    formed("kronecker", 2, 4, (4, 3), expand=3, feedback=("lambda", "mixer"), feedback_norm=True),
    formed("kronecker", 1, 3, expand=3, spectral=True, unit_eps=1e-5),
    formed("orthogonal", 2, 5),
    formed("orthogonal", 5, 4, feedback=("lambda",)),
    formed("monarch", 2, 4, (4, 3), rank=2, unit_eps=1e-5, negative=True),
    formed("dense", 2, 4, (4, 3), symmetric=True),
    formed("mixture", 2, 4, (4, 3), rank=3, mixer_silu=True, unit_eps=0.5),
    formed("mixture", 1, 3, rank=2, spectral=True, feedback=("mixer",)),
    formed("rotation", 2, 4, (4, 3), rank=2, d_conv=2),
    *(row("direct", B, T, solver="direct") for B, T in ((0, 3), (2, 0), (1, 1))),
    *(formed("mixture", B, T, rank=2) for B, T in ((0, 3), (2, 0), (1, 1))),
    row("auto", 3, 5, (5, 0, 3), solver="auto", rank=2),
    row("auto monarch", 2, 4, (4, 3), solver="auto", mixer="monarch", rank=2, tol=ACCELERATED),
]
"""The direct solver, which has no kernel on a GPU; "auto" takes it for small systems."""
