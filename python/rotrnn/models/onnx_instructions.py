"""The rules by which the lines of a model (`rotrnn.nn.listing`) become nodes of an ONNX graph.

A rule takes the graph, the line, and its inputs: names of values (B, T, ...), and arrays that do not depend on time. It
returns the name of its output, or a tuple of names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from rotrnn._support.text import an
from rotrnn.models.onnx_graph import Graph, conv, gelu, rms_norm, silu, softplus
from rotrnn.nn.instructions.rotations import FASTEST, SLOWEST
from rotrnn.nn.layer import Array
from rotrnn.nn.listing import Line

Names = list[str]

# ---- maps of a step ----


def _layer_norm(g: Graph, line: Line, x: str, scale: Array | None = None, bias: Array | None = None) -> str:
    """Not by LayerNormalization, which holds its eps in float32."""
    centred = g.op("Sub", x, g.op("ReduceMean", x, g.axes(-1)))
    y = rms_norm(g, centred, np.ones(()) if scale is None else scale, line.settings["eps"])
    return y if bias is None else g.op("Add", y, g.constant(bias))


def _skip(g: Graph, line: Line, x: str, d: Array, z: str | None = None) -> str:
    y = g.op("Mul", x, g.constant(d))
    return y if z is None else g.op("Add", z, y)


def _batch_norm(g: Graph, line: Line, x: str, gain: Array, mean: Array, bias: Array) -> str:
    centred = g.op("Sub", x, g.constant(mean))
    return g.op("Add", g.op("Mul", centred, g.constant(gain)), g.constant(bias))


def _rms_norm(g: Graph, line: Line, x: str, scale: Array | None) -> str:
    own = line.settings
    return rms_norm(g, x, np.asarray(own["gain"]) if scale is None else scale, own["eps"])


def _log_sigmoid(g: Graph, line: Line, x: str) -> str:
    return g.op("Neg", softplus(g, g.op("Neg", x)))


def _block_dense(g: Graph, line: Line, x: str, w: Array, b: Array | None = None) -> str:
    blocks = g.op("Reshape", x, g.axes(0, 0, len(w), 1, w.shape[2]))
    y = g.op("MatMul", blocks, g.constant(w.transpose(0, 2, 1)))
    y = g.op("Reshape", y, g.axes(0, 0, len(w) * w.shape[1]))
    return y if b is None else g.op("Add", y, g.constant(b))


def _decay_gain(g: Graph, line: Line, x: str) -> str:
    """At the first step tanh(-x) is taken as 1."""
    one = g.constant(1)
    shape = g.op("Concat", g.op("Shape", x, start=0, end=2), g.axes(1), axis=0)
    mark = g.op("Expand", g.constant(np.ones(1)), shape)
    later = g.op("Equal", g.previous(mark, (1,)), one)  # the mark before the first step is 0
    t = g.op("Where", later, g.op("Tanh", g.op("Neg", x)), one)
    return g.op("Sqrt", _lost(g, t))


def _lost(g: Graph, t: str) -> str:
    """1 - e^{-2x}, from t = tanh(x)."""
    return g.op("Div", g.op("Add", t, t), g.op("Add", t, g.constant(1)))


def _affine(g: Graph, line: Line, x: str) -> str:
    own = line.settings
    return g.op("Add", g.op("Mul", x, g.constant(own["scale"])), g.constant(own["shift"]))


def _decay_of(g: Graph, line: Line, x: str, r: Array | None = None) -> str:
    rates = line.settings["rate"] if r is None else r.reshape(-1, *[1] * (len(line.shapes[0]) - 1))
    return g.op("Exp", g.op("Mul", x, g.constant(rates)))


def _split(g: Graph, line: Line, x: str) -> tuple[str, ...]:
    own = line.settings
    cuts = pairwise([0, *np.cumsum(own["sizes"])])
    return tuple(g.op("Slice", x, g.axes(start), g.axes(end), g.axes(own["axis"])) for start, end in cuts)


def _reshape(g: Graph, line: Line, x: str) -> str:
    return g.op("Reshape", x, g.axes(0, 0, *line.settings["shape"]))  # 0 keeps B and T


def _conv(g: Graph, line: Line, x: str, w: Array | None, b: Array | None = None) -> str:
    return x if w is None else conv(g, x, w, b)


# ---- recurrences: the step of a loop ----


def _rotated(g: Graph, re: Array, im: Array, states: Names, inputs: Names) -> Names:
    """a h + u for complex numbers, each a pair of values; u may be real."""
    a, b = g.constant(re), g.constant(im)
    h_re = g.op("Sub", g.op("Mul", a, states[0]), g.op("Mul", b, states[1]))
    h_im = g.op("Add", g.op("Mul", a, states[1]), g.op("Mul", b, states[0]))
    return [g.op("Add", h, u) for h, u in zip((h_re, h_im), inputs, strict=False)] + [h_im] * (2 - len(inputs))


def _system(
    g: Graph,
    line: Line,
    x: str,
    a: Array,
    B_re: Array,
    B_im: Array,
    gain: Array | None,
    skip: Array,
    *readouts: Array,
) -> Any:
    """If states do not decay, rounding errors do not either: `exact` is the transition in float64."""
    _no_window(line)
    exact, N, weight = line.settings["exact"], a.shape[1], line.settings["weight"]
    re, im = a if exact is None else np.reshape(exact, (2, N))
    B = B_re + 1j * B_im if gain is None else (gain[0] + 1j * gain[1])[:, None] * (B_re + 1j * B_im)
    inputs = [g.dense(x, B.real), g.dense(x, B.imag)]

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        h = _rotated(body, re, im, states, now)
        return h, h

    y, h = g.op("Mul", x, g.constant(skip)), []
    for direction in range(len(readouts) // 2):
        C_re, C_im = readouts[2 * direction : 2 * direction + 2]
        h = g.scan(step, [(N,), (N,)], inputs, bool(direction), exact is not None)
        for one, part in zip(h, (weight * C_re, -weight * C_im), strict=True):
            y = g.op("Add", y, g.dense(one, part))
    return (y, _lanes(g, h, N)) if line.settings.get("hidden") else y


def _bank(g: Graph, line: Line, x: str, k: Array, skip: Array) -> str:
    _no_window(line)
    y = g.op("Mul", x, g.constant(skip))
    for reverse, direction in enumerate(k):

        def step(body: Graph, states: Names, now: Names, direction: Array = direction) -> tuple[Names, Names]:
            a_re, a_im, c_re, c_im = direction.transpose(1, 2, 0)  # (D, N) each
            h = _rotated(body, a_re, a_im, states, [body.op("Unsqueeze", now[0], body.axes(-1))])
            read = [body.op("Mul", body.constant(c), part) for c, part in zip((c_re, c_im), h, strict=True)]
            return h, [body.op("ReduceSum", body.op("Sub", *read), body.axes(-1), keepdims=0)]

        sizes = [(k.shape[3], k.shape[1])] * 2
        y = g.op("Add", y, g.scan(step, sizes, [x], bool(reverse))[0])
    return y


def _no_window(line: Line) -> None:
    if (window := line.settings["window"]) is not None:
        raise ValueError(f"save_onnx: {an(line.layer)} has a recurrence with window={window}, expected None")


def _parts(g: Graph, lanes: str, N: int) -> Names:
    """The real and the imaginary parts (N,) of complex numbers by pairs (2N,)."""
    return [g.op("Gather", lanes, g.constant(np.arange(at, 2 * N, 2), np.int64), axis=-1) for at in (0, 1)]


def _lanes(g: Graph, parts: Names, N: int) -> str:
    """The inverse of `_parts`."""
    pairs = g.op("Concat", *(g.op("Unsqueeze", one, g.axes(-1)) for one in parts), axis=-1)
    return g.op("Reshape", pairs, g.axes(0, 0, 2 * N))


def _product(g: Graph, z: Names, v: Names) -> Names:
    """z v, of complex numbers by their parts."""
    re = g.op("Sub", g.op("Mul", z[0], v[0]), g.op("Mul", z[1], v[1]))
    return [re, g.op("Add", g.op("Mul", z[0], v[1]), g.op("Mul", z[1], v[0]))]


def _turning_scan(
    g: Graph, line: Line, v: str, phi: str, a: Array, e: str | None, gamma_log: Array | None, scale: Array | None
) -> str:
    N = a.shape[1]
    x = _parts(g, v, N)
    transition = _product(g, [g.constant(part) for part in a], [g.op(kind, phi) for kind in ("Cos", "Sin")])
    if e is not None and gamma_log is not None:
        rate = g.op("Exp", g.op("Add", e, g.constant(gamma_log)))
        rate = g.op("Clip", rate, g.constant(SLOWEST), g.constant(FASTEST))
        bounded, of_plane = line.settings["bounded"], g.constant(np.arange(N) * len(gamma_log) // N, np.int64)
        lost = _lost(g, g.op("Tanh", g.op("Mul", rate, g.constant(0.5)) if bounded else rate))
        gain = g.op("Mul", lost if bounded else g.op("Sqrt", lost), g.constant(scale))
        modulus, gain = (g.op("Gather", one, of_plane, axis=-1) for one in (g.op("Exp", g.op("Neg", rate)), gain))
        transition = [g.op("Mul", one, modulus) for one in transition]
        x = [g.op("Mul", one, gain) for one in x]

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        h = [body.op("Add", *pair) for pair in zip(_product(body, now[:2], states), now[2:], strict=True)]
        return h, h

    return _lanes(g, g.scan(step, [(N,), (N,)], [*transition, *x]), N)


def _scan(g: Graph, line: Line, a: str, x: str) -> str:
    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        h = body.op("Add", body.op("Mul", now[0], states[0]), now[1])
        return [h], [h]

    return g.scan(step, _sizes(line), [a, x])[0]


def _oscillator_scan(g: Graph, line: Line, m: Array, f: Array, u: str) -> str:
    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        after = []
        for row, gain in zip(m, f, strict=True):
            z, x = (body.op("Mul", body.constant(one), state) for one, state in zip(row, states, strict=True))
            after.append(body.op("Add", z, body.op("Add", x, body.op("Mul", body.constant(gain), now[0]))))
        return after, after

    z, x = (g.op("Unsqueeze", one, g.axes(2)) for one in g.scan(step, [f.shape[1:]] * 2, [u]))
    return g.op("Concat", z, x, axis=2)


def _polar(g: Graph, line: Line, r: str, phi: str) -> str:
    axis = -1 if line.settings["pairs"] else -2
    parts = (g.op("Unsqueeze", g.op("Mul", r, g.op(kind, phi)), g.axes(axis)) for kind in ("Cos", "Sin"))
    return g.op("Concat", *parts, axis=axis)


def _unit_scan(g: Graph, line: Line, v: str, theta: str, w: Array) -> str:
    """Angles add up in float64."""
    (D,), (_, A) = line.shapes[:2]
    c = _angles(g, theta, (D, A))
    e = [g.cast(g.op(kind, c), g.dtype) for kind in ("Cos", "Sin")]
    v = g.op("Unsqueeze", v, g.axes(-1))
    q = [g.running(g.op("Mul", v, one), (D, A)) for one in e]
    re = g.op("Add", g.op("Mul", e[0], q[0]), g.op("Mul", e[1], q[1]))
    im = g.op("Sub", g.op("Mul", e[1], q[0]), g.op("Mul", e[0], q[1]))
    y = g.op("Sub", g.op("Mul", re, g.constant(w[0])), g.op("Mul", im, g.constant(w[1])))
    return g.op("ReduceSum", y, g.axes(-1), keepdims=0)


def _permuted_scan(g: Graph, line: Line, w: str, m: Array, d: str, x: str) -> str:
    """P is a matrix of zeros and ones, made of each step's rows: sums of one product and zeros are exact."""
    K, N = len(m), m.shape[1]

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        w_t, d_t, x_t = now
        mixed = body.op("Reshape", body.op("MatMul", w_t, body.constant(m.reshape(K, N * N))), body.axes(0, N, N))
        chosen = body.op("ArgMax", mixed, axis=1, keepdims=1)
        P = body.cast(body.op("Equal", chosen, body.constant(np.arange(N)[:, None], np.int64)), body.dtype)
        rows = body.axes(0), body.axes(1), body.axes(2)
        d_re, h_re, d_im, h_im = (
            body.op("Slice", one, rows[i], rows[i + 1], rows[1]) for i in (0, 1) for one in (d_t, states[0])
        )
        now_at = body.op("Concat", *_product(body, [d_re, d_im], [h_re, h_im]), axis=1)
        moved = body.op("MatMul", now_at, body.op("Transpose", P, perm=[0, 2, 1]))
        h = body.op("Add", moved, x_t)
        return [h], [h]

    return g.scan(step, _sizes(line), [w, d, x])[0]


def _elman(g: Graph, line: Line, x: str, A: Array) -> str:
    own = line.settings
    activation = {"identity": "Identity", "tanh": "Tanh", "relu": "Relu"}[own["activation"]]

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        h = body.op(activation, body.op("Add", body.dense(states[0], A), now[0]))
        return [h], [h]

    return g.scan(step, [A.shape[:1]], [x], own["reverse"])[0]


def _lstm(g: Graph, line: Line, x: str, w: Array) -> str:
    N = w.shape[1]

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        z = body.op("Add", body.dense(states[0], w), now[0])
        i, f, c, o = (body.op("Slice", z, body.axes(k * N), body.axes(k * N + N), body.axes(1)) for k in range(4))
        kept = body.op("Mul", body.op("Sigmoid", f), states[1])
        c = body.op("Add", kept, body.op("Mul", body.op("Sigmoid", i), body.op("Tanh", c)))
        h = body.op("Mul", body.op("Sigmoid", o), body.op("Tanh", c))
        return [h, c], [h]

    return g.scan(step, _sizes(line), [x])[0]


def _gru(g: Graph, line: Line, x: str, w: Array, bias: Array) -> str:
    N = w.shape[1]

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        def parts(z: str) -> Names:
            return [body.op("Slice", z, body.axes(k * N), body.axes(k * N + N), body.axes(1)) for k in range(3)]

        (x_r, x_z, x_n), (u_r, u_z, u_n) = parts(now[0]), parts(body.dense(states[0], w, bias))
        r, z = (body.op("Sigmoid", body.op("Add", *pair)) for pair in ((x_r, u_r), (x_z, u_z)))
        n = body.op("Tanh", body.op("Add", x_n, body.op("Mul", r, u_n)))
        h = body.op("Add", n, body.op("Mul", z, body.op("Sub", states[0], n)))
        return [h], [h]

    return g.scan(step, _sizes(line), [x])[0]


def _selective(g: Graph, line: Line, x: str, delta: str, A: Array, B: str, C: str, skip: Array) -> str:
    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        x_t, delta_t, B_t, C_t = now
        state, channel = body.axes(-1), body.axes(1)
        decay = _decay(
            body, body.op("Mul", body.op("Unsqueeze", delta_t, state), body.constant(A)), line.settings["negative"]
        )
        given = body.op("Unsqueeze", body.op("Mul", delta_t, x_t), state)
        given = body.op("Mul", given, body.op("Unsqueeze", B_t, channel))
        h = body.op("Add", body.op("Mul", decay, states[0]), given)
        return [h], [_sum(body, h, body.op("Unsqueeze", C_t, channel), -1)]

    (y,) = g.scan(step, _sizes(line), [x, delta, B, C])
    return g.op("Add", y, g.op("Mul", x, g.constant(skip)))


def _ssd(g: Graph, line: Line, x: str, delta: str, A: Array, B: str, C: str, skip: Array) -> str:
    """Heads (H,) are written as (G, H / G), so that the heads of a group share B and C."""
    (H, P), (G, N) = line.shapes[0], line.shapes[3]

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        x_t, delta_t, B_t, C_t = now
        by_head = body.op("Reshape", delta_t, body.axes(0, G, H // G, 1, 1))
        rates = body.constant(A.reshape(G, H // G, 1, 1))
        decay = _decay(body, body.op("Mul", by_head, rates), line.settings["negative"])
        given = body.op("Mul", body.op("Reshape", x_t, body.axes(0, G, H // G, P, 1)), by_head)
        B_t, C_t = (body.op("Reshape", one, body.axes(0, G, 1, 1, N)) for one in (B_t, C_t))
        h = body.op("Add", body.op("Mul", decay, states[0]), body.op("Mul", given, B_t))
        return [h], [body.op("Reshape", _sum(body, h, C_t, -1), body.axes(0, H, P))]

    (y,) = g.scan(step, [(G, H // G, P, N)], [x, delta, B, C])
    return g.op("Add", y, g.op("Mul", x, g.constant(skip[:, None])))


def _trapezoid(
    g: Graph,
    line: Line,
    x: str,
    delta: str,
    lam: str,
    log_a: str,
    B: str,
    C: str,
    skip: Array,
    gain: Array | None = None,
) -> str:
    """With axes of ranks: a head's inputs and outputs are products of matrices (P, R) and (R, N)."""
    (H, P), (*ranked, G, N) = line.shapes[0], line.shapes[4]
    R = math.prod(ranked)

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        x_t, delta_t, lam_t, log_t, B_t, C_t = now

        def of_heads(one: str) -> str:
            return body.op("Reshape", one, body.axes(0, G, H // G, 1, 1))

        def tap(share: str, x_of: str, B_of: str) -> str:
            wide = body.op("Reshape", x_of, body.axes(0, G, H // G, P, 1))
            if gain is not None:
                wide = body.op("Mul", wide, body.constant(gain.reshape(G, H // G, R, P).swapaxes(-1, -2)))
            return body.op("Mul", of_heads(share), body.op("MatMul", wide, of_groups(B_of)))

        def of_groups(one: str) -> str:
            by_rank = body.op("Reshape", one, body.axes(0, R, G, 1, N))
            return body.op("Transpose", by_rank, perm=[0, 2, 3, 1, 4])

        newer = body.op("Mul", lam_t, delta_t)
        older = tap(body.op("Sub", delta_t, newer), states[2], states[1])
        h = body.op("Mul", body.op("Exp", of_heads(log_t)), body.op("Add", states[0], older))
        h = body.op("Add", h, tap(newer, x_t, B_t))
        read = body.op("MatMul", of_groups(C_t), body.op("Transpose", h, perm=[0, 1, 2, 4, 3]))  # (G, H / G, R, P)
        by_rank = body.op("Transpose", body.op("Reshape", read, body.axes(0, H, R, P)), perm=[0, 2, 1, 3])
        return [h, B_t, x_t], [body.op("Reshape", by_rank, body.axes(0, *ranked, H, P))]

    (y,) = g.scan(step, [(G, H // G, P, N), (*ranked, G, N), (H, P)], [x, delta, lam, log_a, B, C])
    if gain is not None:
        x = g.op("Mul", g.op("Unsqueeze", x, g.axes(2)), g.constant(gain.swapaxes(0, 1)))
    return g.op("Add", y, g.op("Mul", x, g.constant(skip[:, None])))


def _log_radius(g: Graph, line: Line, x: str) -> str:
    """In float64: ONNX has neither expm1 nor log1p."""
    own = line.settings
    rate = g.op("Mul", g.cast(g.op("Sigmoid", x), np.float64), g.constant(-own["rate"], np.float64))
    share = g.op("Mul", g.op("Exp", rate), g.constant(1 - own["least"], np.float64))
    return g.cast(g.op("Log", g.op("Add", share, g.constant(own["least"], np.float64))), g.dtype)


def _signed_angles(g: Graph, line: Line, x: str, b: Array) -> str:
    own = line.settings
    sign = 1 - 2 * (np.arange(len(b)) % 2)
    share = g.op("Sigmoid", g.op("Add", g.op("Tanh", x), g.constant(b)))
    wide = g.op("Mul", share, g.constant(sign * (own["most"] - own["least"])))
    return g.op("Add", wide, g.constant(sign * own["least"]))


def _hold(
    g: Graph, line: Line, x: str, delta: str, log_a: str, theta: str, B: str, C: str, rule: Array
) -> str:  # fmt: skip
    """Taps and the sums of angles are in float64. The two inputs of a step, of x and of the x before it, are made in
    advance, with directions (H, N) whose lanes are all real parts and then all imaginary parts, turned by the sums."""
    (H, P), (_, N) = line.shapes[0], line.shapes[4]
    places, weights = rule.astype(np.float64)

    def wide(one: str) -> str:
        return g.op("Unsqueeze", g.cast(one, np.float64), g.axes(-1))

    def product(z: Names, v: Names) -> str:
        return g.op("Concat", *_product(g, z, v), axis=-1)

    size = g.op("Mul", wide(log_a), g.constant(places, np.float64))
    c = g.op("Unsqueeze", _angles(g, theta, line.shapes[3]), g.axes(-1))
    angle = g.op("Sub", g.op("Mul", wide(theta), g.constant(places, np.float64)), c)
    back = [g.cast(g.op(kind, g.op("Neg", c)), g.dtype) for kind in ("Cos", "Sin")]

    def tap(by: Array) -> Names:
        share = g.op("Mul", g.op("Mul", g.op("Exp", size), wide(delta)), g.constant(weights * by, np.float64))
        terms = (g.op("Mul", share, g.op(kind, angle)) for kind in ("Cos", "Sin"))
        return [g.cast(g.op("ReduceSum", one, g.axes(-1)), g.dtype) for one in terms]

    (B_re, B_im), (C_re, C_im) = (_parts(g, one, N // 2) for one in (B, C))
    newer, read = product(tap(1 - places), [B_re, B_im]), product(back, [C_re, C_im])
    older = product(tap(places), [g.previous(one, (H, N // 2)) for one in (B_re, B_im)])

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        x_t, x_before = (body.op("Unsqueeze", one, body.axes(-1)) for one in now[1:3])
        new, old, out = (body.op("Unsqueeze", one, body.axes(-2)) for one in now[3:])
        decay = body.op("Exp", body.op("Unsqueeze", now[0], body.axes(-1, -2)))
        added = body.op("Add", body.op("Mul", x_t, new), body.op("Mul", x_before, old))
        h = body.op("Add", body.op("Mul", decay, states[0]), added)
        return [h], [_sum(body, h, out, -1)]

    (y,) = g.scan(step, [(H, P, N)], [log_a, x, g.previous(x, (H, P)), newer, older, read])
    return y


def _turn(g: Graph, line: Line, theta: str, x: str, z: str | None = None) -> Any:
    """Angles add up in float64."""
    c = _angles(g, theta, line.shapes[0])
    cos, sin = (g.cast(g.op(kind, c), g.dtype) for kind in ("Cos", "Sin"))
    shapes, adjacent = line.shapes, line.settings["pairs"] == "adjacent"
    H, A = shapes[0]

    def turned(vectors: str, shape: tuple[int, ...]) -> str:
        *more, _, N = shape
        units = [g.op("Reshape", one, g.axes(0, 0, *[1] * len(more), H, A)) for one in (cos, sin)]
        places = np.arange(2 * A).reshape(A, 2).T if adjacent else np.arange(A) + np.array([[0], [N // 2]])
        return _turned(g, vectors, units, N, places)

    y = turned(x, shapes[1])
    return y if z is None else (y, turned(z, shapes[2]))


def _turned(g: Graph, vectors: str, units: Names, N: int, places: Array) -> str:
    """Vectors (..., N) whose lanes at `places` (2, A), pairs, are multiplied by complex units (..., A)."""
    pairs = [g.op("Gather", vectors, g.constant(one, np.int64), axis=-1) for one in places]
    rest = np.setdiff1d(np.arange(N), places)
    other = g.op("Gather", vectors, g.constant(rest, np.int64), axis=-1)
    order = np.argsort(np.concatenate([*places, rest]))
    turned = g.op("Concat", *_product(g, units, pairs), other, axis=-1)
    return g.op("Gather", turned, g.constant(order, np.int64), axis=-1)


def _angles(g: Graph, theta: str, size: tuple[int, ...]) -> str:
    """Returns the sums of angles, in float64."""
    return g.running(g.cast(theta, np.float64), size, np.float64, turn=2 * np.pi)


def _log_decay(g: Graph, line: Line, delta: str, x: str) -> str:
    rate = softplus(g, x)
    if line.settings["rate"] == "rational":
        one = g.constant(1)
        below = g.op("Div", one, g.op("Add", one, g.op("Abs", x)))
        rate = g.op("Where", g.op("Less", x, g.constant(0)), below, g.op("Add", one, x))
    return g.op("Mul", g.op("Neg", delta), g.op("Max", rate, g.constant(line.settings["least"])))


def _step_angles(g: Graph, line: Line, x: str, delta: str) -> str:
    angles = g.op("Mul", g.op("Tanh", x), g.constant(np.pi))
    return g.op("Mul", g.op("Unsqueeze", delta, g.axes(-1)), g.op("Unsqueeze", angles, g.axes(2)))


def _frequencies(g: Graph, line: Line, x: str) -> str:
    P = line.shapes[0][-1]
    return g.op("Mul", x, g.constant(line.settings["base"] ** (-np.arange(P) / P)))


def _of_heads(g: Graph, line: Line, x: str, b: Array) -> str:
    (G, N), H = line.shapes[0], len(b)
    y = g.op("Add", g.op("Unsqueeze", x, g.axes(3)), g.constant(b.reshape(G, H // G, N)))
    return g.op("Reshape", y, g.axes(0, 0, H, N))


def _delta(
    g: Graph, line: Line, q: str, k: str, v: str, beta: str | None = None, decay: str | None = None,
    read: str | None = None, erase: str | None = None,
) -> str:  # fmt: skip
    arrays = {"q": q, "k": k, "v": v, "beta": beta, "decay": decay, "read": read, "erase": erase}
    given = {name: value for name, value in arrays.items() if value is not None}
    axes = (-1,) if decay is not None and len(line.shapes[4]) == 2 else (-2, -1)

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        (h,), all_of = states, dict(zip(given, now, strict=True))
        for i in range(line.shapes[1][0]):
            at = {
                name: body.op("Gather", all_of[name], body.constant(i, np.int64), axis=1)
                for name in given
                if name not in ("q", "decay")
            }
            key, *own = (body.op("Unsqueeze", at[name], body.axes(-1)) for name in ("k", "read", "erase") if name in at)
            seen = _sum(body, h, own[0], -2) if read is not None else None
            if decay is not None and i == 0:
                h = body.op("Mul", h, body.op("Unsqueeze", all_of["decay"], body.axes(*axes)))
            seen = _sum(body, h, key, -2) if seen is None else seen
            added = at["v"] if erase is not None else body.op("Sub", at["v"], seen)
            if beta is not None:
                added = body.op("Mul", added, body.op("Unsqueeze", at["beta"], body.axes(-1)))
            h = body.op("Add", h, body.op("Mul", key, body.op("Unsqueeze", added, body.axes(-2))))
            if erase is not None:
                h = body.op("Sub", h, body.op("Mul", own[-1], body.op("Unsqueeze", seen, body.axes(-2))))
        return [h], [_sum(body, h, body.op("Unsqueeze", all_of["q"], body.axes(-1)), -2)]

    return g.scan(step, _sizes(line), [*given.values()])[0]


def _log_gate(g: Graph, x: str) -> str:
    """The logarithm of an exponential gate, bounded as by GATE_LARGEST in csrc/include/steps.h."""
    return g.op("Clip", x, g.constant(-(2**16) * np.log(2)), g.constant(2**16 * np.log(2)))


def _matrix_memory(g: Graph, line: Line, q: str, k: str, v: str, i: str, f: str) -> str:
    """The denominator is at least the root of the smallest number, against 0 / 0."""
    i, f, smallest = _log_gate(g, i), _log_gate(g, f), np.sqrt(np.finfo(g.dtype).tiny)

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        (c, n, m), (q_t, k_t, v_t, i_t, f_t) = states, now
        past = body.op("Add", f_t, m)
        m = body.op("Max", past, i_t)
        kept, taken = (
            body.op("Unsqueeze", body.op("Exp", body.op("Sub", one, m)), body.axes(-1)) for one in (past, i_t)
        )
        wide, key = body.axes(-1), body.op("Mul", taken, k_t)
        given = body.op("Mul", body.op("Unsqueeze", v_t, wide), body.op("Unsqueeze", key, body.axes(-2)))
        c = body.op("Add", body.op("Mul", body.op("Unsqueeze", kept, wide), c), given)
        n = body.op("Add", body.op("Mul", kept, n), key)
        least = body.op("Max", body.op("Exp", body.op("Neg", m)), body.constant(smallest))
        below = body.op("Max", body.op("Abs", _sum(body, n, q_t, -1)), least)
        read = _sum(body, c, body.op("Unsqueeze", q_t, body.axes(-2)), -1)
        return [c, n, m], [body.op("Div", read, body.op("Unsqueeze", below, wide))]

    return g.scan(step, _sizes(line), [q, k, v, i, f])[0]


def _scalar_memory(g: Graph, line: Line, x: str, w: Array) -> str:
    """n is 0 before the first step, where the level m has no effect."""
    forget = line.settings["forget"]

    def step(body: Graph, states: Names, now: Names) -> tuple[Names, Names]:
        (h, c, n, m), (x_t,) = states, now
        matrix = body.constant(w.reshape(len(w), 4, -1, w.shape[-1]).transpose(1, 0, 2, 3))  # (4, H, P, P)
        around = body.op("Unsqueeze", h, body.axes(1, -2))  # (B, 1, H, 1, P)
        z = body.op("Add", x_t, body.op("ReduceSum", body.op("Mul", matrix, around), body.axes(-1), keepdims=0))
        i, f, given, o = (body.op("Gather", z, body.constant(k, np.int64), axis=1) for k in range(4))
        i, f = _log_gate(body, i), _log_gate(body, f if forget == "exp" else _log_sigmoid(body, line, f))
        past = body.op("Add", f, m)
        past = body.op("Where", body.op("Equal", n, body.constant(0)), body.constant(-1e30), past)
        m = body.op("Max", past, i)
        kept, taken = (body.op("Exp", body.op("Sub", one, m)) for one in (past, i))
        c = body.op("Add", body.op("Mul", kept, c), body.op("Mul", taken, body.op("Tanh", given)))
        n = body.op("Add", body.op("Mul", kept, n), taken)
        h = body.op("Mul", body.op("Sigmoid", o), body.op("Div", c, n))
        return [h, c, n, m], [h]

    return g.scan(step, _sizes(line), [x])[0]


# ---- stored histories ----


def _units(g: Graph, line: Line, n: str) -> Names:
    """cos and sin of the angles (python/rotrnn/ops/memory.py) of ages n, which are in float64."""
    L, pi = (g.constant(one, np.float64) for one in (line.settings["length"], np.pi))
    form = line.settings["angles"]

    def share(above: str, below: str) -> str:
        return g.op("Mul", pi, g.op("Div", above, below))

    angle = share(n, L)
    if form == "uniform":
        angle = g.op("Add", angle, angle)
    elif form in ("warped", "reversed"):
        angle = share(g.op("Add", n, n), g.op("Add", n, L))
    else:
        later = share(g.op("Sub", n, L), g.op("Max", n, L))
        if form == "blend_printed":
            later = share(n, g.op("Add", n, g.constant(1, np.float64)))
        angle = g.op("Where", g.op("Less", n, L), angle, g.op("Add", pi, later))
    return [g.cast(g.op(kind, angle), g.dtype) for kind in ("Cos", "Sin")]


def _history(g: Graph, line: Line, h: str, w: Array | None = None, q: str | None = None) -> str:
    """Sums over states are products of matrices (T, R) of weights p with their rows; p e^{i Delta} has two parts."""
    own, N = line.settings, line.shapes[0][0] // 2
    heads, angles = own["heads"], own["angles"]
    if angles == "reversed":
        place = g.op("Add", g.op("Unsqueeze", g.places(h), g.axes(1)), g.range(h))
        turn = [g.op("Unsqueeze", one, g.axes(2)) for one in _units(g, line, g.cast(place, np.float64))]
        h = _lanes(g, _product(g, turn, _parts(g, h, N)), N)
    rows, age, seen = g.history(h, own["window"], 2 * N)
    age, seen = g.op("Max", age, g.constant(0, np.int64)), g.op("Unsqueeze", seen, g.axes(1))
    turn = [g.constant(1), g.constant(0)]
    if angles not in ("reversed", "none"):
        turn = _units(g, line, g.cast(age, np.float64))

    def of_heads(lanes: str) -> Names:
        parts = (g.op("Reshape", one, g.axes(0, 0, heads, N // heads)) for one in _parts(g, lanes, N))
        return [g.op("Transpose", one, perm=[0, 2, 1, 3]) for one in parts]

    re, im = of_heads(rows)
    if q is not None:
        q_re, q_im = of_heads(q)
        k_re, k_im = (g.op("Transpose", one, perm=[0, 1, 3, 2]) for one in (re, im))
        along = g.op("Add", g.op("MatMul", q_re, k_re), g.op("MatMul", q_im, k_im))
        across = g.op("Sub", g.op("MatMul", q_im, k_re), g.op("MatMul", q_re, k_im))
        score = g.op("Add", g.op("Mul", turn[0], along), g.op("Mul", turn[1], across))
        p = _softmax_of(g, score, seen, 2 * N // heads)
    else:
        p = g.cast(seen, g.dtype)
        if w is not None:
            known = g.op("Min", age, g.constant(w.shape[1] - 1, np.int64))
            p = g.op("Mul", p, g.op("Gather", g.constant(w), known, axis=1))
    by = [g.op("Mul", p, one) for one in turn]
    m_re = g.op("Sub", g.op("MatMul", by[0], re), g.op("MatMul", by[1], im))
    m_im = g.op("Add", g.op("MatMul", by[1], re), g.op("MatMul", by[0], im))
    back = (g.op("Transpose", one, perm=[0, 2, 1, 3]) for one in (m_re, m_im))
    return _lanes(g, [g.op("Reshape", one, g.axes(0, 0, N)) for one in back], N)


def _softmax_of(g: Graph, score: str, seen: str, width: int) -> str:
    scaled = g.op("Div", score, g.constant(np.sqrt(width)))
    return g.op("Softmax", g.op("Where", seen, scaled, g.constant(-np.inf)), axis=-1)


def _rotary(g: Graph, line: Line, x: str) -> str:
    """Angles are in float64."""
    own, (D,) = line.settings, line.shapes[0]
    heads, width = own["heads"], D // own["heads"]
    pairs = own.get("rotated", width) // 2
    place = g.op("Add", g.op("Unsqueeze", g.places(x), g.axes(1)), g.range(x))
    place = g.op("Unsqueeze", g.cast(place, np.float64), g.axes(2, 3))
    angle = g.op("Mul", place, g.constant(own["base"] ** (-np.arange(pairs) / pairs), np.float64))
    units = [g.cast(g.op(kind, angle), g.dtype) for kind in ("Cos", "Sin")]
    vectors = g.op("Reshape", x, g.axes(0, 0, heads, width))
    return g.op("Reshape", _turned(g, vectors, units, width, np.arange(2 * pairs).reshape(pairs, 2).T), g.axes(0, 0, D))


def _attention(g: Graph, line: Line, q: str, k: str, v: str) -> str:
    """Heads are (G, H / G), so that the heads of a group share keys and values."""
    (D,), (K,), _ = line.shapes
    H = line.settings["heads"]
    P = D // H
    G = K // P
    rows, _, seen = g.history(g.op("Concat", k, v, axis=-1), line.settings["window"], 2 * K)
    halves = (g.op("Slice", rows, g.axes(at), g.axes(at + K), g.axes(2)) for at in (0, K))
    keys, values = (g.op("Reshape", one, g.axes(0, 0, G, 1, P)) for one in halves)
    queries = g.op("Transpose", g.op("Reshape", q, g.axes(0, 0, G, H // G, P)), perm=[0, 2, 3, 1, 4])
    score = g.op("MatMul", queries, g.op("Transpose", keys, perm=[0, 2, 3, 4, 1]))
    p = _softmax_of(g, score, g.op("Unsqueeze", seen, g.axes(1, 2)), P)
    mixed = g.op("MatMul", p, g.op("Transpose", values, perm=[0, 2, 3, 1, 4]))
    return g.op("Reshape", g.op("Transpose", mixed, perm=[0, 3, 1, 2, 4]), g.axes(0, 0, D))


def _sizes(line: Line) -> list[tuple[int, ...]]:
    """Returns the sizes of a line's states; a state of a program has no free axes."""
    return [tuple(size or 0 for size in one) for one in line.states]


def _decay(g: Graph, exponent: str, negative: bool) -> str:
    decay = g.op("Exp", exponent)
    return g.op("Sub", g.op("Mul", decay, g.constant(2)), g.constant(1)) if negative else decay


def _sum(g: Graph, x: str, y: str, axis: int) -> str:
    return g.op("ReduceSum", g.op("Mul", x, y), g.axes(axis), keepdims=0)


RULES: dict[str, Callable[..., Any]] = {
    "Dense": lambda g, line, x, w, b=None: g.dense(x, w, b),
    "BlockDense": _block_dense,
    "Skip": _skip,
    "BatchNorm": _batch_norm,
    "RMSNorm": _rms_norm,
    "LayerNorm": _layer_norm,
    "SiLU": lambda g, line, x: silu(g, x),
    "GELU": lambda g, line, x: gelu(g, x),
    "Sigmoid": lambda g, line, x: g.op("Sigmoid", x),
    "LogSigmoid": _log_sigmoid,
    "Softplus": lambda g, line, x: softplus(g, x),
    "Affine": _affine,
    "Decay": _decay_of,
    "DecayGain": _decay_gain,
    "Product": lambda g, line, x, z: g.op("Mul", x, z),
    "Sum": lambda g, line, x, z: g.op("Add", x, z),
    "Bonus": lambda g, line, q, k, v: g.op("Mul", g.op("ReduceSum", g.op("Mul", q, k), g.axes(-1)), v),
    "GLU": lambda g, line, x, gate: g.op("Mul", x, g.op("Sigmoid", gate)),
    "GeGLU": lambda g, line, x, gate: g.op("Mul", x, gelu(g, gate)),
    "SwiGLU": lambda g, line, x, gate: g.op("Mul", x, silu(g, gate)),
    "Split": _split,
    "Concat": lambda g, line, *x: g.op("Concat", *x, axis=-1),
    "Reshape": _reshape,
    "Conv": _conv,
    "System": _system,
    "Bank": _bank,
    "TurningScan": _turning_scan,
    "History": _history,
    "Rotary": _rotary,
    "Attention": _attention,
    "Scan": _scan,
    "OscillatorScan": _oscillator_scan,
    "UnitScan": _unit_scan,
    "Softmax": lambda g, line, x: g.op("Softmax", x, axis=-1),
    "Polar": _polar,
    "PermutedScan": _permuted_scan,
    "Elman": _elman,
    "LSTMCells": _lstm,
    "GRUCells": _gru,
    "SelectiveScan": _selective,
    "SsdScan": _ssd,
    "TrapezoidScan": _trapezoid,
    "HoldScan": _hold,
    "Tanh": lambda g, line, x: g.op("Tanh", x),
    "LogRadius": _log_radius,
    "SignedAngles": _signed_angles,
    "Turn": _turn,
    "Frequencies": _frequencies,
    "LogDecay": _log_decay,
    "StepAngles": _step_angles,
    "OfHeads": _of_heads,
    "DeltaRule": _delta,
    "MatrixMemory": _matrix_memory,
    "ScalarMemory": _scalar_memory,
}
"""The rule of each instruction."""
