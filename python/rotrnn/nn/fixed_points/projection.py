"""Projections of a matrix-state layer, which depend on its input only and not on the iteration, and their adjoint.

The effective weights of a layer (`MatrixFixedPoint.fold`) are stacked once per call (`stack`), so that each group of
maps needs a single product. With ``[x, z] = W_in u``, ``base = W x + b`` is the part of the maps that comes from x, for
maps that do not depend on y (known) and for maps that do (driven). Where weights are `composed`, W is multiplied with
W_in once per call, and base is computed from u, which has fewer channels than x: equal to rounding. With a short
convolution, ``[v, z] = W_in u`` and ``x = SiLU(conv(v))``; weights are then not composed.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from rotrnn.nn.fixed_points.convolution import Convolved, convolve, convolve_backward
from rotrnn.nn.fixed_points.iteration import Steps
from rotrnn.nn.fixed_points.maps import Maps
from rotrnn.nn.fixed_points.mixer import Mixer, Operands
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import Array, Params
from rotrnn.ops.dense import dense, dense_backward, matmul
from rotrnn.ops.device import contiguous


class Weights(NamedTuple):
    """Effective weights, folded from the parameters once, and stacked for the products: W_known and W_driven (K, E), or
    (K, D) if `composed`."""

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
    """Projections of u (B, T, D): x and z (B, T, E), and the bases (B, T, K) of the known maps and of the driven maps;
    and the convolution, if there is one."""

    x: Array
    z: Array
    known: Array
    driven: Array
    convolved: Convolved | None


def stack(folded: Folded[Params], known: Maps, driven: Maps, mixer: Mixer, composed: bool) -> Weights:
    """Stacks the weights of the maps by rows, with zeros for missing biases and for the V of a map that does not depend
    on y; also returns the operands of a constant mixer."""
    weights = folded.weights
    width, dtype = len(weights["W_in"]) // 2, weights["W_in"].dtype

    def biases(maps: Maps) -> Array:
        like = weights["W_in"]
        zero = {name: np.zeros(one.width, dtype, like=like) for name, one in maps.items()}
        given = [weights.get(f"b_{name}", zero[name]).ravel() for name in maps]
        return np.concatenate([np.zeros(0, dtype, like=like), *given])

    def of_input(maps: Maps) -> Array:
        W = _rows("W", maps, weights)
        return matmul(W, weights["W_in"][:width]) if composed else W

    V = _rows("V", driven, weights)
    constants = None if mixer.varying else mixer.operands({name: weights[name] for name in mixer.parts})
    stacked = of_input(known), biases(known), of_input(driven), biases(driven)
    return Weights(folded, composed, *stacked, V, contiguous(V.T), constants)


def _rows(kind: str, maps: Maps, weights: Params) -> Array:
    """Stacks the weights of this kind; zeros where a map has none."""
    like = weights["W_in"]
    width = len(like) // 2
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
    W_in = w.folded.weights["W_in"]
    E = len(W_in) // 2
    v, z = dense(u, W_in[:E]), dense(u, W_in[E:])
    convolved = convolve(v, w.folded.weights, tail, lengths)
    x = v if convolved is None else convolved.u
    source = u if w.composed else x
    return Projected(x, z, dense(source, w.W_known, w.b_known), dense(source, w.W_driven, w.b_driven), convolved)


def project_backward(
    d: ProjectedGrads, u: Array, saved: Projected, w: Weights, known: Maps, driven: Maps, lengths: Steps
) -> tuple[Array, Params, Array | None]:  # fmt: skip
    """Returns (du, gradients of W_in, the convolution, and each map's W and b, gradient of the convolution's `tail`)
    from the gradients d. d.x is modified in place."""
    weights = w.folded.weights
    W_in = weights["W_in"]
    E = len(W_in) // 2
    dweights: Params = {}
    to_u, dW_x = [], np.zeros_like(W_in[:E])
    for maps, dbase, W in ((known, d.known, w.W_known), (driven, d.driven, w.W_driven)):
        back = dense_backward(dbase, u if w.composed else saved.x, W)
        rows = back.dw
        if w.composed:
            to_u.append(back.dx)
            rows = matmul(back.dw, contiguous(W_in[:E].T))
            dW_x += matmul(contiguous(_rows("W", maps, weights).T), back.dw)
        else:
            np.add(d.x, back.dx, out=d.x)
        dweights |= unstack("W", maps, rows) | unstack("b", maps, back.dbias)
    dv, dtail = d.x, None
    if saved.convolved is not None:
        dv, dconv, dtail = convolve_backward(dv, saved.convolved, weights, d.after, lengths)
        dweights |= dconv
    of_x, of_z = dense_backward(dv, u, W_in[:E]), dense_backward(d.z, u, W_in[E:])
    dweights["W_in"] = np.concatenate([of_x.dw + dW_x, of_z.dw])
    for more in (of_z.dx, *to_u):
        np.add(of_x.dx, more, out=of_x.dx)
    return of_x.dx, dweights, dtail
