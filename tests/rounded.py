"""Blocks, recurrences, attention and their adjoints in NumPy, in double precision with explicit roundings: what
`rotrnn.precision` means.

Each rounding has a name, and can be left out: so a test can show that it would see a missing one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[Any]


def to_bf16(x: Floats) -> Floats:
    """Returns numbers rounded to bfloat16, ties to even, as float64."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def to_tf32(x: Floats) -> Floats:
    """Returns numbers rounded to TF32, ties away from zero, as float64."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32).astype(np.float64)


def widened(bits: Floats) -> Floats:
    """Returns the numbers whose bfloat16 bits an array has."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


UNIT = {"bf16": 2.0**-8, "tf32": 2.0**-11}
"""The largest relative error of a rounding."""


class Rounding(NamedTuple):
    """The roundings of a precision. `without`: the one that is left out. `results`: whether products of a block leave
    their results rounded in bf16, and `skip` reads the rounded input of the layer, as on a GPU."""

    precision: str = "float32"
    without: str = ""
    results: bool = False

    def operand(self, name: str, x: Floats) -> Floats:
        """Returns what a product sees of x."""
        function = {"bf16": to_bf16, "tf32": to_tf32}.get(self.precision)
        if function is None or name == self.without:
            return x
        if np.iscomplexobj(x):
            return function(x.real) + 1j * function(x.imag)
        return function(x)

    def stored(self, name: str, x: Floats) -> Floats:
        """Returns what an array of the block has of x."""
        return self.operand(name, x) if self.precision == "bf16" else x

    def result(self, name: str, x: Floats) -> Floats:
        """Returns what the array of a product's result has of x."""
        return self.stored(name, x) if self.results else x


BLOCK_ROUNDINGS = ("xn", "h", "layer", "z", "gates", "dlayer", "g", "w_in", "w_out", "w_gates")
RESULT_ROUNDINGS = ("v", "out", "skip", "product", "dz", "dvalue", "dh", "first", "r")


def sigmoid(x: Floats) -> Floats:
    return (1 + np.tanh(x / 2)) / 2


LINEAR, CUBIC = 2 * np.sqrt(2 / np.pi), 2 * np.sqrt(2 / np.pi) * 0.044715


def gelu(x: Floats) -> Floats:
    return x * sigmoid(x * (LINEAR + CUBIC * x * x))


def gelu_slope(x: Floats) -> Floats:
    s = sigmoid(x * (LINEAR + CUBIC * x * x))
    return s + x * s * (1 - s) * (LINEAR + 3 * CUBIC * x * x)


def pairs(z: Floats) -> Floats:
    """Views complex numbers (..., N) as (re, im) pairs, (..., 2N)."""
    return np.ascontiguousarray(z).view(np.float64)


def planes(x: Floats) -> Floats:
    return np.ascontiguousarray(x).view(np.complex128)


class Block(NamedTuple):
    """The inputs of a block. norm: "none", "channel" or "row"; form: "none" or a gate's. masks: of the two dropouts.

    The parts are those of `residual_block`, and the norm's (center, scale, bias); lengths are numbers of steps.
    """

    x: Floats
    h0: Floats
    system: Any
    norm_parts: Any
    gate: Any
    lengths: Any
    norm: str
    form: str
    masks: tuple[Any, Any] = (1.0, 1.0)
    eps: float = 1e-5


class Kept(NamedTuple):
    xn: Floats
    before: Floats  # (K,B,T,N) states before each step
    after: Floats
    layer: Floats
    z: Floats
    value: Floats
    gate: Floats
    y: Floats
    hT: Floats


def in_order(reverse: bool, steps: int) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def valid_rows(b: Block) -> Floats:
    return (np.arange(b.x.shape[1]) < np.asarray(b.lengths)[:, None])[:, :, None]


def normed(b: Block) -> tuple[Floats, Any]:
    """Returns the norm of x, and (xhat, rstd) of the row norm."""
    center, scale, bias = b.norm_parts
    if b.norm == "channel":
        return scale * (b.x - center) + bias, None
    if b.norm == "row":
        rstd = 1 / np.sqrt(b.x.var(-1, keepdims=True) + b.eps)
        xhat = (b.x - b.x.mean(-1, keepdims=True)) * rstd
        return scale * xhat + bias, (xhat, rstd)
    return b.x, None


def block_forward(b: Block, r: Rounding) -> Kept:
    w_in, a, w_out, skip = b.system
    (B, T, _), K, valid = b.x.shape, len(w_out), valid_rows(b)
    xn, _ = normed(b)
    v = planes(r.result("v", r.operand("xn", xn) @ r.operand("w_in", w_in).T))
    before, after = np.zeros((2, K, B, T, len(a)), np.complex128)
    hT = np.array(b.h0)
    for k in range(K):
        for n, steps in enumerate(b.lengths):
            for t in in_order(k == 1, steps):
                before[k, n, t] = hT[k, n]
                hT[k, n] = after[k, n, t] = a * hT[k, n] + v[n, t]
    out = sum(r.result("out", r.operand("h", pairs(after[k])) @ r.operand("w_out", w_out[k]).T) for k in range(K))
    whole = np.where(valid, out + skip * r.result("skip", xn), 0)
    layer = r.stored("layer", whole)
    if b.form == "none":
        nothing = np.zeros_like(whole)
        return Kept(xn, before, after, layer, nothing, nothing, nothing, whole, hT)
    z = np.where(valid, r.stored("z", b.masks[0] * gelu(layer)), 0)
    w_gate, b_gate = b.gate[:2]
    gate = r.result("product", r.operand("z", z) @ r.operand("w_gates", w_gate).T) + b_gate
    value = z if b.form == "half1" else layer
    if b.form == "full":
        value = r.result("product", r.operand("z", z) @ r.operand("w_gates", b.gate[2]).T) + b.gate[3]
    y = np.where(valid, b.x + b.masks[1] * value * sigmoid(gate), 0)
    return Kept(xn, before, after, layer, z, value, gate, y, hT)


def sum_rows(x: Floats) -> Floats:
    return x.sum((0, 1))


def block_backward(b: Block, r: Rounding, f: Kept, dy: Floats, dhT: Floats, later: Any = None) -> dict[str, Floats]:
    """Returns the gradients by name. The equations are those of csrc/kernels/block.c."""
    w_in, a, w_out, skip = b.system
    center, scale, _ = b.norm_parts
    valid, K, grads = valid_rows(b), len(w_out), {}
    if later is not None:
        y, middle, slope, shift = later
        dy = dy + slope * (y - middle) + shift
    dy = np.where(valid, dy, 0)
    dl = dy
    if b.form != "none":
        w_gate, d = b.gate[0], b.masks[1] * dy
        s = sigmoid(f.gate)
        dvalue, dgate = d * s, d * f.value * s * (1 - s)
        z = r.operand("z", f.z)
        dz = r.operand("gates", dgate) @ r.operand("w_gates", w_gate)
        grads["w_gate"] = np.einsum("bti,btj->ij", r.operand("gates", dgate), z)
        grads["b_gate"] = sum_rows(dgate)
        if b.form == "full":
            dz += r.operand("gates", dvalue) @ r.operand("w_gates", b.gate[2])
            grads["w_value"] = np.einsum("bti,btj->ij", r.operand("gates", dvalue), z)
            grads["b_value"] = sum_rows(dvalue)
        dz, dvalue = r.result("dz", dz), r.result("dvalue", dvalue)
        if b.form == "half1":
            dz += dvalue
        dl = b.masks[0] * dz * gelu_slope(f.layer)
        if b.form == "half2":
            dl = dl + dvalue
    dlayer = r.stored("dlayer", dl)
    grads["skip"] = sum_rows(dlayer * r.result("skip", f.xn))
    q, grads["a"] = np.array(dhT), np.zeros(len(a), np.complex128)
    g = np.zeros((*dy.shape[:2], len(a)), np.complex128)
    grads["w_out"] = np.zeros(w_out.shape)
    for k in range(K):
        g = r.result("first", g)  # of direction 0
        rows = r.operand("dlayer", dlayer)
        grads["w_out"][k] = np.einsum("bti,btj->ij", rows, r.operand("h", pairs(f.after[k])))
        dh = planes(r.result("dh", rows @ r.operand("w_out", w_out[k])))
        for n, steps in enumerate(b.lengths):
            for t in in_order(k == 0, steps):
                here = dh[n, t] + q[k, n]
                q[k, n] = np.conj(a) * here
                g[n, t] += here
                grads["a"] += here * np.conj(r.stored("h", f.before[k, n, t]))
    grads["h0"] = q
    rounded = r.operand("g", pairs(g))
    grads["w_in"] = np.einsum("bti,btj->ij", rounded, np.where(valid, r.operand("xn", f.xn), 0))
    dxn = np.where(valid, r.result("r", rounded @ r.operand("w_in", w_in)) + skip * dlayer, 0)
    if b.form == "none":
        grads["x"] = dxn
        return grads
    grads["norm_sum"] = sum_rows(dxn)
    if b.norm == "channel":
        grads["norm_product"] = sum_rows(dxn * (b.x - center))
        grads["x"] = np.where(valid, dy + scale * dxn, 0)
    else:
        xhat, rstd = normed(b)[1]
        grads["norm_product"] = sum_rows(dxn * xhat)
        e = dxn * scale
        mean = [one.mean(-1, keepdims=True) for one in (e, e * xhat)]
        grads["x"] = np.where(valid, dy + rstd * (e - mean[0] - xhat * mean[1]), 0)
    return grads


# ---- recurrences ----


class Recurrence(NamedTuple):
    """The inputs of `rnn_forward`; w (GN,N), x (B,T,GN); c0 for an LSTM."""

    w: Floats
    x: Floats
    h0: Floats
    c0: Floats
    lengths: Any
    reverse: bool
    cell: str


def rnn_forward(n: Recurrence, r: Rounding) -> dict[str, Floats]:
    """``z_t = x_t + w h_{t-1}``, and ``h_t = tanh(z_t)`` or the LSTM's step."""
    (B, T, GN), N = n.x.shape, n.h0.shape[1]
    out = {"h": np.zeros((B, T, N)), "hT": n.h0.copy()}
    if n.cell == "lstm":
        out |= {"c": np.zeros((B, T, N)), "cT": n.c0.copy(), "gates": np.zeros((B, T, GN))}
    w = r.operand("w", n.w)
    for b, steps in enumerate(n.lengths):
        for t in in_order(n.reverse, steps):
            z = n.x[b, t] + w @ r.operand("h", out["hT"][b])
            if n.cell == "lstm":
                i, f, g, o = z.reshape(4, N)
                i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
                out["c"][b, t] = out["cT"][b] = f * out["cT"][b] + i * g
                out["gates"][b, t] = np.concatenate((i, f, g, o))
                h = o * np.tanh(out["cT"][b])
            else:
                h = np.tanh(z)
            out["h"][b, t] = out["hT"][b] = h
    return out


def rnn_backward(n: Recurrence, r: Rounding, saved: dict[str, Floats], dh: Floats, dhT: Floats, dcT: Floats) -> Any:
    """Returns dx, dh0, and for an LSTM dc0: ``dh_{t-1} += w^T dz_t``."""
    N, w, dx, dh0, dc0 = n.h0.shape[1], r.operand("w", n.w), np.zeros(n.x.shape), dhT.copy(), dcT.copy()
    for b, steps in enumerate(n.lengths):
        order = in_order(n.reverse, steps)
        for k in reversed(range(steps)):
            t, g = order[k], dh0[b] + dh[b, order[k]]
            if n.cell == "lstm":
                i, f, u, o = saved["gates"][b, t].reshape(4, N)
                c, c_prev = saved["c"][b, t], saved["c"][b, order[k - 1]] if k else n.c0[b]
                dc = dc0[b] + g * o * (1 - np.tanh(c) ** 2)
                slopes = dc * u * i * (1 - i), dc * c_prev * f * (1 - f), dc * i * (1 - u * u)
                dz = np.concatenate((*slopes, g * np.tanh(c) * o * (1 - o)))
                dc0[b] = dc * f
            else:
                dz = g * (1 - saved["h"][b, t] ** 2)
            dx[b, t] = dz
            dh0[b] = w.T @ r.operand("dz", dz)
    return {"dx": dx, "dh0": dh0, **({"dc0": dc0} if n.cell == "lstm" else {})}


# ---- attention ----


def attention_forward(q: Floats, k: Floats, v: Floats, r: Rounding) -> tuple[Floats, Floats]:
    """Causal attention of one head, for x (B,T,D): returns y, and the log of the softmax's divisor (B,1,T). The
    probabilities are rounded before they are divided by their sum."""
    T, scale = q.shape[1], q.shape[2] ** -0.5
    score = scale * r.operand("q", q) @ r.operand("k", k).swapaxes(1, 2)
    score = np.where(np.tri(T, dtype=bool), score, -np.inf)
    top = score.max(-1, keepdims=True)
    e = np.exp(score - top)
    total = e.sum(-1, keepdims=True)
    return r.operand("p", e) @ r.operand("v", v) / total, (top + np.log(total)).swapaxes(1, 2)


def attention_backward(
    dy: Floats, q: Floats, k: Floats, v: Floats, y: Floats, norm: Floats, r: Rounding
) -> dict[str, Floats]:
    """The adjoint of `attention_forward`, from what it returned."""
    T, scale = q.shape[1], q.shape[2] ** -0.5
    score = scale * r.operand("q", q) @ r.operand("k", k).swapaxes(1, 2) - norm.swapaxes(1, 2)
    p = np.where(np.tri(T, dtype=bool), np.exp(score), 0)
    dp = r.operand("dy", dy) @ r.operand("v", v).swapaxes(1, 2)
    ds = r.operand("ds", p * (dp - (dy * y).sum(-1, keepdims=True)))
    return {
        "dq": scale * ds @ r.operand("k", k),
        "dk": scale * ds.swapaxes(1, 2) @ r.operand("q", q),
        "dv": r.operand("p", p).swapaxes(1, 2) @ r.operand("dy", dy),
    }


SUMS = 200 * 2.0**-24
"""The error of float32: sums of some hundred terms follow each other."""


def apart(got: dict[str, Any], want: dict[str, Any]) -> float:
    """The largest distance of two arrays of one name, relative to the second one's norm."""
    assert got.keys() == want.keys()
    distances = []
    for name, one in want.items():
        assert got[name].shape == one.shape, name
        distances.append(np.linalg.norm((got[name] - one).ravel()) / max(float(np.linalg.norm(one.ravel())), 1e-30))
    return float(max(distances))


def assert_near(distances: list[float], precision: str) -> None:
    """Holds results of several draws of the inputs against references with the same roundings.

    Where the errors of float32 carry a number across a tie between two neighbours, a rounding goes to the other one:
    two units (`UNIT`) of the number, and with the factors that follow it some units of a result. That is rare:
    a number of one size is within 2^-22 of a tie in one of 2^14 cases in bf16, in one of 2^11 in tf32, smaller ones
    more often, since errors are those of the largest; and a draw has some 2^11 that count. So some draw has none, and
    is as near as float32 allows. A rounding that is missing moves every draw.
    """
    assert max(distances) < 4 * UNIT[precision], distances
    assert min(distances) < SUMS, distances
