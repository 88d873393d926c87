"""Projections of a matrix-state layer, which depend on its input only and not on the iteration, and their adjoint.

The effective weights of a layer (`MatrixFixedPoint.fold`) are stacked once per call (`stack`), so that each group of
maps needs a single product. With ``[s, z] = W_in u``, ``base = W s + b`` is the part of the maps that comes from u, for
maps that do not depend on y (known) and for maps that do (driven). x is the first E channels of the source s, which in
most layers has no others. Where weights are `composed`, W is multiplied with W_in once per call, and base is computed
from u, which has fewer channels than s: equal to rounding. With a short convolution, ``[v, z] = W_in u`` and
``s = SiLU(conv(v))`` for the first channels of v, and v for the rest; weights are then not composed.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from rotrnn.devices.device import contiguous
from rotrnn.nn.fixed_points.convolution import Convolved, convolve, convolve_backward
from rotrnn.nn.fixed_points.iteration import Steps
from rotrnn.nn.fixed_points.maps import Maps
from rotrnn.nn.fixed_points.mixer import Mixer, Operands
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import Array, Params
from rotrnn.ops.dense import dense, dense_backward, matmul


class Weights(NamedTuple):
    """Effective weights, folded from the parameters once, and stacked for the products: W_known and W_driven (K, S) for
    a source of S channels, or (K, D) if `composed`."""

    folded: Folded[Params]
    composed: bool
    W_known: Array
    b_known: Array
    W_driven: Array
    b_driven: Array
    V: Array
    V_transposed: Array
    constants: Operands | None


class Projected(NamedTuple):
    """Projections of u (B, T, D): x and z (B, T, E), what the maps are computed from, and the bases (B, T, K) of the
    known maps and of the driven maps; and the convolution, if there is one."""

    x: Array
    z: Array
    source: Array
    known: Array
    driven: Array
    convolved: Convolved | None


def stack(folded: Folded[Params], known: Maps, driven: Maps, mixer: Mixer, composed: bool) -> Weights:
    """Stacks the weights of the maps by rows, with zeros for missing biases and for the V of a map that does not depend
    on y; also returns the operands of a constant mixer."""
    weights = folded.weights
    width, dtype = _source_width(weights), weights["W_in"].dtype

    def biases(maps: Maps) -> Array:
        like = weights["W_in"]
        zero = {name: np.zeros(one.width, dtype, like=like) for name, one in maps.items()}
        given = [weights.get(f"b_{name}", zero[name]).ravel() for name in maps]
        return np.concatenate([np.zeros(0, dtype, like=like), *given])

    def of_input(maps: Maps) -> Array:
        W = _rows("W", maps, weights, width)
        return matmul(W, weights["W_in"][:width]) if composed else W

    V = _rows("V", driven, weights, _channels(weights))
    constants = None if mixer.varying else mixer.operands({name: weights[name] for name in mixer.parts})
    stacked = of_input(known), biases(known), of_input(driven), biases(driven)
    return Weights(folded, composed, *stacked, V, contiguous(V.T), constants)


def _channels(weights: Params) -> int:
    """Returns E."""
    return int(weights["W_out"].shape[1])


def _source_width(weights: Params) -> int:
    """Returns the number of channels of the source."""
    return len(weights["W_in"]) - _channels(weights)


def _rows(kind: str, maps: Maps, weights: Params, width: int) -> Array:
    """Stacks the weights of this kind, which have `width` columns; zeros where a map has none."""
    like = weights["W_in"]
    zero = {name: np.zeros((one.width, width), like.dtype, like=like) for name, one in maps.items()}
    parts = [weights.get(f"{kind}_{name}", zero[name]).reshape(one.width, width) for name, one in maps.items()]
    return np.concatenate([np.zeros((0, width), like.dtype, like=like), *parts])


def unstack(kind: str, maps: Maps, rows: Array) -> Params:
    """Splits rows of stacked weights, or of their gradients, into a dict with names ``kind_name`` of the maps."""
    ends = list(itertools.accumulate(one.width for one in maps.values()))
    return {f"{kind}_{name}": part for name, part in zip(maps, np.split(rows, ends[:-1]), strict=False)}


class ProjectedGrads(NamedTuple):
    """Gradients of x, z and the bases, as in `Projected`, and of the last inputs of the convolution."""

    x: Array
    z: Array
    known: Array
    driven: Array
    after: Array | None


def project(u: Array, w: Weights, tail: Array | None, lengths: Steps) -> Projected:
    """Computes the projections of u before the iteration; `tail` are the inputs of the convolution before them."""
    weights = w.folded.weights
    W_in, width = weights["W_in"], _source_width(weights)
    s, z = dense(u, W_in[:width]), dense(u, W_in[width:])
    convolved = convolve(_first(s, _convolved(weights)), weights, tail, lengths)
    if convolved is not None:
        s = _before(convolved.u, s)
    source = u if w.composed else s
    bases = dense(source, w.W_known, w.b_known), dense(source, w.W_driven, w.b_driven)
    return Projected(_first(s, _channels(weights)), z, source, *bases, convolved)


def _convolved(weights: Params) -> int:
    """Returns the number of channels that are convolved, if any are."""
    return len(weights["conv_w"]) if "conv_w" in weights else 0


def _first(x: Array, channels: int) -> Array:
    return contiguous(x[..., :channels])


def _before(first: Array, rest: Array) -> Array:
    """Returns `rest` with `first` in place of its first channels."""
    channels = first.shape[-1]
    return first if channels == rest.shape[-1] else np.concatenate([first, rest[..., channels:]], -1)


def project_backward(
    d: ProjectedGrads, u: Array, saved: Projected, w: Weights, known: Maps, driven: Maps, lengths: Steps
) -> tuple[Array, Params, Array | None]:  # fmt: skip
    """Returns (du, gradients of W_in, the convolution, and each map's W and b, gradient of the convolution's `tail`)
    from the gradients d. d.x is modified in place."""
    weights = w.folded.weights
    W_in, width = weights["W_in"], _source_width(weights)
    dweights: Params = {}
    to_u, dW_s = [], np.zeros_like(W_in[:width])
    ds = d.x
    if width > _channels(weights):
        ds = _before(ds, np.zeros_like(saved.source))
    for maps, dbase, W in ((known, d.known, w.W_known), (driven, d.driven, w.W_driven)):
        back = dense_backward(dbase, saved.source, W)
        rows = back.dw
        if w.composed:
            to_u.append(back.dx)
            rows = matmul(back.dw, contiguous(W_in[:width].T))
            dW_s += matmul(contiguous(_rows("W", maps, weights, width).T), back.dw)
        else:
            np.add(ds, back.dx, out=ds)
        dweights |= unstack("W", maps, rows) | unstack("b", maps, back.dbias)
    dtail = None
    if saved.convolved is not None:
        part = _first(ds, _convolved(weights))
        dv, dconv, dtail = convolve_backward(part, saved.convolved, weights, d.after, lengths)
        ds = _before(dv, ds)
        dweights |= dconv
    of_s, of_z = dense_backward(ds, u, W_in[:width]), dense_backward(d.z, u, W_in[width:])
    dweights["W_in"] = np.concatenate([of_s.dw + dW_s, of_z.dw])
    for more in (of_z.dx, *to_u):
        np.add(of_s.dx, more, out=of_s.dx)
    return of_s.dx, dweights, dtail
