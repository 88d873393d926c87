"""What surrounds the iteration of a matrix-state layer, in x alone: its projections, and their adjoint.

A layer's effective weights (`MatrixFixedPoint.fold`) are stacked once per call (`stack`), for one product each. With
``[x, z] = W_in u``, the maps start from what x adds to them, ``base = W x + b``, those that y does not drive (known)
and those that it does (driven).
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from rotrnn.nn.fixed_points.maps import Maps
from rotrnn.nn.fixed_points.mixer import Mixer, Operands
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import Array, Params
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.device import contiguous


class Weights(NamedTuple):
    """Effective weights, folded from the parameters once, and stacked as the products take them."""

    folded: Folded[Params]
    W_known: Array
    b_known: Array
    W_driven: Array
    b_driven: Array
    V: Array
    V_transposed: Array
    constants: Operands | None


class Projected(NamedTuple):
    """Of u (B, T, D): x and z (B, T, E), and the bases (B, T, K) of the known maps and of the driven ones."""

    x: Array
    z: Array
    known: Array
    driven: Array


def stack(folded: Folded[Params], known: Maps, driven: Maps, mixer: Mixer) -> Weights:
    """The maps' weights one below the other, zeros for a bias that is not there; a constant mixer's operands."""
    weights = folded.weights
    width, dtype = len(weights["W_in"]) // 2, weights["W_in"].dtype

    def rows(kind: str, maps: Maps) -> Array:
        parts = [weights[f"{kind}_{name}"].reshape(one.width, width) for name, one in maps.items()]
        return np.concatenate([np.zeros((0, width), dtype, like=weights["W_in"]), *parts])

    def biases(maps: Maps) -> Array:
        like = weights["W_in"]
        zero = {name: np.zeros(one.width, dtype, like=like) for name, one in maps.items()}
        given = [weights.get(f"b_{name}", zero[name]).ravel() for name in maps]
        return np.concatenate([np.zeros(0, dtype, like=like), *given])

    V = rows("V", driven)
    constants = None if mixer.varying else mixer.operands({name: weights[name] for name in mixer.parts})
    stacked = rows("W", known), biases(known), rows("W", driven), biases(driven)
    return Weights(folded, *stacked, V, contiguous(V.T), constants)


def unstack(kind: str, maps: Maps, rows: Array) -> Params:
    """Rows of stacked weights, or of their gradients, by the names of their maps, ``kind_name``."""
    ends = list(itertools.accumulate(one.width for one in maps.values()))
    return {f"{kind}_{name}": part for name, part in zip(maps, np.split(rows, ends[:-1]), strict=False)}


def project(u: Array, w: Weights) -> Projected:
    """What is made of u before the iteration."""
    W_in = w.folded.weights["W_in"]
    E = len(W_in) // 2
    x, z = dense(u, W_in[:E]), dense(u, W_in[E:])
    return Projected(x, z, dense(x, w.W_known, w.b_known), dense(x, w.W_driven, w.b_driven))


def project_backward(
    d: Projected, u: Array, x: Array, w: Weights, known: Maps, driven: Maps
) -> tuple[Array, Params]:  # fmt: skip
    """(du, gradients of W_in and of each map's W and b) from the gradients d, of which d.x is added to in place."""
    W_in = w.folded.weights["W_in"]
    E = len(W_in) // 2
    dweights: Params = {}
    for maps, dbase, W in ((known, d.known, w.W_known), (driven, d.driven, w.W_driven)):
        back = dense_backward(dbase, x, W)
        np.add(d.x, back.dx, out=d.x)
        dweights |= unstack("W", maps, back.dw) | unstack("b", maps, back.dbias)
    of_x, of_z = dense_backward(d.x, u, W_in[:E]), dense_backward(d.z, u, W_in[E:])
    dweights["W_in"] = np.concatenate([of_x.dw, of_z.dw])
    return of_x.dx + of_z.dx, dweights
