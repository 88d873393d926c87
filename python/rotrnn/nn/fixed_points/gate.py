"""The gate of a matrix-state layer, which may depend on the previous output, and its adjoint.

    g_t = z_t + V_gate y_{t-1},     out = g * SiLU(y + D * x)     (Bedouin)
                                    out = y * SiLU(g)             (FPMamba; skip and norm are in the step)

`skip` is D in the first form and None in the second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rotrnn.devices.device import contiguous
from rotrnn.nn.fixed_points.iteration import Steps
from rotrnn.nn.fixed_points.maps import Lagged, Map, lagged
from rotrnn.nn.layer import Array
from rotrnn.ops.dense import dense
from rotrnn.ops.pointwise import swiglu, swiglu_backward


class GateSaved(NamedTuple):
    """The map from z and the previous output to g; and V_gate y, v and w of the gated output ``v * SiLU(w)``, and this
    output, (B, T, E) each."""

    map: Lagged
    late: Array | None
    value: Array
    through: Array
    out: Array


class GateGrads(NamedTuple):
    """Gradients of y, x and z (B, T, E), of y0 (B, E), and of skip (E,) and V_gate (E, E) if present."""

    dy: Array
    dx: Array
    dz: Array
    dy0: Array
    dskip: Array | None
    dV: Array | None


def gate(
    y: Array, x: Array, z: Array, y0: Array, skip: Array | None, V: Array | None, lengths: Steps
) -> GateSaved:  # fmt: skip
    """Returns the gated output, `GateSaved.out`, with what is saved for the adjoint."""
    through_map = lagged({"gate": Map((y.shape[2],), "linear")}, z, V, y0)
    late = through_map.late(y)
    values = through_map(late, lengths)["gate"]
    value, through = (y, values) if skip is None else (values, _with_skip(y, x, skip))
    return GateSaved(through_map, late, value, through, swiglu(value, through))


def gate_backward(dout: Array, saved: GateSaved, y: Array, x: Array, skip: Array | None, lengths: Steps) -> GateGrads:
    """Adjoint of `gate`."""
    dvalue, dthrough = swiglu_backward(dout, saved.value, saved.through)
    if skip is None:
        dy, dgate, dx, dskip = dvalue, dthrough, np.zeros_like(x), None
    else:
        product = dthrough * x
        dskip = product.sum((0, 1))
        dy, dgate, dx = dthrough, dvalue, np.multiply(dthrough, skip, out=product)
    of_map = saved.map.backward({"gate": dgate}, saved.late, lengths)
    if saved.map.V is None:
        return GateGrads(dy, dx, of_map.dbase, np.zeros((len(x), x.shape[2]), x.dtype, like=x), dskip, None)
    dV, dy0 = saved.map.weights_backward(of_map, y)
    if of_map.dlate is not None:
        dy += dense(of_map.dlate, contiguous(saved.map.V.T))
    return GateGrads(dy, dx, of_map.dbase, dy0, dskip, dV)


def _with_skip(y: Array, x: Array, skip: Array) -> Array:
    """Returns y + skip * x."""
    product: Array = skip * x
    product += y
    return product
