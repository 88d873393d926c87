"""A whole residual block in one pass over tiles of time (csrc/kernels/block.c).

``xn = norm(x)``, ``y = W_out scan(a, W_in xn) + D * xn``, ``z = m_0 GELU(y)`` and
``out = x + m_1 (W_v z + b_v) s(W_g z + b_g)``, with dropout masks m and the sigmoid s. Between x and out, only the
states before each tile are saved for backward, and the arrays that the caller names (`KEEPABLE`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import GATE, NORM
from rotrnn.devices.device import device_of, empty_like, is_array
from rotrnn.devices.recording import recording
from rotrnn.ops.boundary import COMPLEX, Array, Boundary
from rotrnn.ops.declared import complex_of, pairs
from rotrnn.ops.linear_layer import (
    BF16,
    NO_DROPOUT,
    NO_LATER,
    NO_WEIGHTS,
    System,
    block_arguments,
    carried,
    check_carries,
    check_precision,
    checked_system,
    exact_system,
    kept,
    layout_kept,
    new_states,
    rounds,
    system_gradients,
)
from rotrnn.ops.pointwise import check_dropout, count_steps

__all__ = ["BlockGrads", "BlockResult", "ChannelNorm", "Gating", "RowNorm", "residual_block", "residual_block_backward"]

GATE_KINDS = {name: kind for name, kind in GATE.items() if name != "none"}
WEIGHTS = tuple(NO_WEIGHTS)


class ChannelNorm(NamedTuple):
    """``gain (x - center) + offset`` for each channel, all (D,): batch norm with known statistics."""

    center: Array
    gain: Array
    offset: Array


class RowNorm(NamedTuple):
    """Layer norm ``scale (x - mean) / sqrt(var + eps) + bias`` over the channels of each step; scale, bias (D,)."""

    scale: Array
    bias: Array
    eps: float = 1e-5


class Gating(NamedTuple):
    """GELU, dropout, GLU, dropout, in one of the forms of `rotrnn.nn.Gate`: w (D, D), b (D,). Only the form "full" has
    `w_value` and `b_value`.

    The masks are the masks of `dropout` with site `site` and `site` + 1, for sequences at `places`.
    """

    form: str
    w_gate: Array
    b_gate: Array
    w_value: Array | None = None
    b_value: Array | None = None
    rate: float = 0.0
    over_time: bool = False
    seed: int = 0
    step: int = 0
    site: int = 0
    places: Array | None = None


KEEPABLE = ("layer", "states", "products", "gated", "normed")
"""Arrays that a block can keep for backward instead of recomputing them: the layer's output (B, T, D), its states (K,
B, T, 2N) and the gate's products before the sigmoid, W_g z + b_g and in the full form W_v z + b_v, (1 or 2, B, T,
D). On a GPU, which saves every state: the layer's output; z with the gate's products before their biases, (2 or 3, B,
T, D); and in the precision "bf16" the layer's input (B, T, D)."""


class BlockSaved(NamedTuple):
    """Saved for backward: the input, h0, lengths, the states before each tile, (K, B, tiles, N), and further kept
    arrays (`KEEPABLE`). In the precision "bf16" outputs and states are kept as bfloat16; so is, on a GPU, every state
    (`new_states`).
    """

    x: Array
    h0: Array | None
    lengths: npt.NDArray[np.int64] | None
    carries: Array
    layer: Array | None = None
    states: Array | None = None
    products: Array | None = None
    gated: Array | None = None
    normed: Array | None = None


class BlockResult(NamedTuple):
    """Output (B, T, D), final states (K, B, N), and the saved arrays for backward.

    `moments`, if requested, are the mean and biased variance of the output over valid steps, (D,).
    """

    y: Array
    hT: Array
    moments: tuple[Array, Array] | None
    saved: BlockSaved


class Later(NamedTuple):
    """A term of a gradient that is not yet added, ``slope (y - center) + shift`` for y (B, T, D) and the others (D,).

    It is the part of the gradient of a batch norm's input y that goes through the batch statistics. The backward pass
    of the block that computed y adds it in the same pass.
    """

    y: Array
    center: Array
    slope: Array
    shift: Array


class BlockGrads(NamedTuple):
    """Gradients of `residual_block`: of x, the system, the gating's arrays and h0, and two sums (D,) of the norm.

    With g the gradient of the norm's output, `norm_sum` is the sum of g over valid steps, which is the gradient of
    offset or bias. `norm_product` is the gradient of scale for a `RowNorm`; for a `ChannelNorm` it is the gradient of
    gain, the sum of g (x - center). Center is treated as a constant: dx is the gradient of the affine map only.
    """

    dx: Array
    system: System
    gating: Gating
    dh0: Array
    norm_sum: Array
    norm_product: Array


def residual_block(
    x: npt.ArrayLike,
    norm: ChannelNorm | RowNorm,
    system: System,
    gating: Gating,
    h0: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
    moments: bool = False,
    keep: Collection[str] = (),
    exact: Array | None = None,
) -> BlockResult:
    """``x + gate(linear_layer(norm(x)))`` (LRU, Orvieto et al. 2023, fig. 1; RotRNN, fig. 1). For the equations see
    `rotrnn.ops.block`.

    Parameters
    ----------
    x : (B, T, D), float32 or float64
    norm, system, gating
        Parts of the block, promoted with x to their common precision.
    h0 : (K, B, N) complex, optional
        Initial state of each direction.
    lengths : (B,), optional
        Number of valid steps of each sequence; beyond them x is never used and y is zero.
    moments : bool
        Also compute the mean and variance of the output, for a batch norm that follows. Needs at least one valid step.
    keep : collection of str
        Further arrays to keep for backward, from `keepable`; results are the same.
    exact : (N,), complex128, optional
        As in `linear_layer`.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, a length out of range, or an unknown form.
    """
    args = Boundary("residual_block")
    moments = args.flag("moments", moments)
    ax = args.array("x", x, "B T D")
    if not isinstance(keep, Collection) or isinstance(keep, str):
        raise TypeError(f"residual_block: keep is {keep!r:.80}, expected a collection of {', '.join(keepable(ax))}")
    for name in keep:
        args.choice("keep", name, keepable(ax))
    checked_system(args, system, ax)  # first, so that h0 is checked against its directions
    z0 = args.optional("h0", h0, "K B N", kinds=COMPLEX)
    norm, gating = _checked_norm(args, norm), _checked_gating(args, gating)
    ready, dtype, turn = exact_system(args, system, exact, z0, ax, *_arrays(norm), *_arrays(gating))
    ax = args.layout(ax, dtype)
    given, z0 = z0, None if z0 is None else args.layout(z0, complex_of(dtype))
    steps = args.lengths(lengths)
    if moments and recording() is None and not count_steps(ax.shape, steps):
        raise ValueError("residual_block: moments of an input without valid steps, expected at least one valid step")
    arguments = block_arguments(ax, ready, z0, steps, _norm(args, norm, dtype), _gate(args, gating, dtype), turn)
    y, (hT, carries) = empty_like(ax), new_states(ready, ax)
    mean, var = (args.empty(ax.shape[2:], dtype) if moments else None for _ in range(2))
    shapes = kept_shapes(ax.shape, ready, gating.form)
    others = {name: args.empty(shapes[name], kept_dtype(ax, name)) for name in keep}
    saved = BlockSaved(ax, z0, steps, carries, **others)
    args.kernels.block_forward(y=y, hT=pairs(hT), mean=mean, var=var, **kept(*saved[3:]), **arguments)
    hT = carried(hT, turn, given, z0, steps, ax.shape[1])
    gathered = None if mean is None or var is None else (mean, var)
    return BlockResult(y, hT, gathered, saved)


def keepable(x: Array) -> tuple[str, ...]:
    """Returns the names in `KEEPABLE` that the device of x can keep."""
    names = device_of(x).keepable()
    return names if rounds(x) else tuple(name for name in names if name != "normed")


def kept_shapes(shape: tuple[int, ...], system: System, form: str) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all arrays that a block can keep, for an x of shape (B, T, D)."""
    B, T, _ = shape
    K, _, L = system.w_out.shape
    gates = 2 if form == "full" else 1
    return {
        **{"layer": shape, "states": (K, B, T, L), "products": (gates, *shape)},
        **{"gated": (1 + gates, *shape), "normed": shape},
    }


def kept_dtype(x: Array, name: str) -> np.dtype[Any]:
    """Returns the dtype of the arrays that a block keeps for x, given the dtype of the call."""
    return BF16 if name != "products" and rounds(x) else x.dtype


def residual_block_backward(
    dy: npt.ArrayLike,
    norm: ChannelNorm | RowNorm,
    system: System,
    gating: Gating,
    saved: BlockSaved,
    dhT: npt.ArrayLike | None = None,
    later: Later | None = None,
) -> BlockGrads:
    """Adjoint of `residual_block`. All results are new arrays.

    Goes back through the residual, dropout, GLU, dropout and GELU to dz, the gradient of the layer's output; from
    there, like `linear_layer_backward`, to g, the gradient of the norm's output; ``dx = dy + gain g``, or the adjoint
    of `layer_norm`. Intermediate values that were not kept are recomputed tile by tile, from x and the states before
    each tile.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of y; never used beyond `lengths`.
    norm, system, gating, saved
        As given to and returned by `residual_block`.
    dhT : (K, B, N) complex, optional
        Gradient of the final states.
    later : Later, optional
        A term that has yet to be added to dy.

    Returns
    -------
    BlockGrads

    Raises
    ------
    TypeError, ValueError
        As `residual_block`.
    """
    args = Boundary("residual_block_backward")
    args.one_of("saved", saved, BlockSaved)
    x, z0, steps, carries, *others = saved
    ady = args.array("dy", dy, "B T D")
    carries = check_carries(args, carries)
    adhT = args.optional("dhT", dhT, "K B N", kinds=COMPLEX)
    x = args.array("saved.x", x, "B T D")
    z0 = args.optional("saved.h0", z0, "K B N", kinds=COMPLEX)
    steps = args.lengths(steps)
    norm, gating = _checked_norm(args, norm), _checked_gating(args, gating)
    ready, dtype = checked_system(args, system, x, *_arrays(norm), *_arrays(gating))
    check_precision(args, "saved.x", x, dtype)
    x, carries = args.layout(x, dtype), layout_kept(args, carries, ready.a.dtype)
    z0 = None if z0 is None else args.layout(z0, ready.a.dtype)
    shapes = kept_shapes(x.shape, ready, gating.form)
    others = [
        _checked_kept(args, name, one, shapes[name], kept_dtype(x, name))
        for name, one in zip(KEEPABLE, others, strict=True)
    ]
    adhT = None if adhT is None else pairs(args.layout(adhT, complex_of(dtype)))
    following: dict[str, Any] = NO_LATER
    if later is not None:
        following = dict(zip(NO_LATER, (args.layout(one, dtype) for one in _checked_later(args, later)), strict=True))
    gate = _gate(args, gating, dtype)
    dsystem, dx = System(*map(empty_like, ready)), empty_like(x)
    dweights: dict[str, Any] = {name: None if gate[name] is None else empty_like(gate[name]) for name in WEIGHTS}
    if gating.form == "full":  # side by side, a GPU computes them as one product
        dweights["w_value"], dweights["w_gate"] = args.empty((2, *gating.w_gate.shape), dtype)
    norm_sum, norm_product = args.empty(x.shape[2:], dtype), args.empty(x.shape[2:], dtype)
    dh0, _ = new_states(ready, x)
    args.kernels.block_backward(
        **system_gradients(dsystem, dx, dh0),
        d_norm_sum=norm_sum,
        d_norm_product=norm_product,
        **{f"d{name}": grad for name, grad in dweights.items()},
        dy=args.layout(ady, dtype),
        dhT=adhT,
        **kept(carries, *others),
        **following,
        **block_arguments(x, ready, z0, steps, _norm(args, norm, dtype), gate),
    )
    return BlockGrads(dx, dsystem, gating._replace(**dweights), dh0, norm_sum, norm_product)


def _checked_kept(
    args: Boundary, name: str, one: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array | None:
    """Returns a kept array in the form of the kernel, or None if it was not kept."""
    if one is None:
        return None
    array = args.any_array(f"saved.{name}", one)
    if array.shape != shape or array.dtype.newbyteorder("=") != dtype:
        got = f"shape {array.shape} and dtype {array.dtype}"
        raise ValueError(f"{args.op}: saved.{name} has {got}, expected {shape} and {dtype}")
    return args.layout(array, dtype)


def settle(dy: npt.ArrayLike, later: Later | None, *, lengths: npt.ArrayLike | None = None) -> Array:
    """Adds a pending term to dy: returns ``dy + slope (y - center) + shift``, or dy itself without `later`.

    Parameters
    ----------
    dy : (B, T, D)
    later : Later, optional
        Promoted with dy to their common precision.
    lengths : (B,), optional
        Number of valid steps of each sequence; padding beyond is not used, and is zero in the result.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, or a length out of range.
    """
    if later is None:
        return Boundary("settle").any_array("dy", dy)
    args = Boundary("settle")
    ady = args.array("dy", dy, "B T D")
    ady, y, center, slope, shift = args.common(ady, *_checked_later(args, later))
    full: Array = empty_like(ady)
    steps = args.lengths(lengths)
    given: dict[str, Any] = {"x": y, "center": center, "slope": slope, "offset": shift, "lengths": steps}
    args.kernels.channel_adjoint(dx=full, dy=ady, gain=np.ones_like(slope), **given, **args.sizes("B T D"))
    return full


def _checked_later(args: Boundary, later: Later) -> list[Array]:
    args.one_of("later", later, Later)
    y = args.array("later.y", later.y, "B T D")
    named = {"center": later.center, "slope": later.slope, "shift": later.shift}
    return [y, *(args.array(f"later.{name}", one, "D") for name, one in named.items())]


def _arrays(parts: ChannelNorm | RowNorm | Gating) -> list[Array]:
    """Returns the arrays of real numbers."""
    return [part for part in parts if is_array(part) and part.dtype.kind == "f"]


def _checked_norm(args: Boundary, norm: ChannelNorm | RowNorm) -> ChannelNorm | RowNorm:
    args.one_of("norm", norm, ChannelNorm, RowNorm)
    if isinstance(norm, RowNorm):
        scale, bias = args.array("norm.scale", norm.scale, "D"), args.array("norm.bias", norm.bias, "D")
        return RowNorm(scale, bias, args.number("norm.eps", norm.eps))
    return ChannelNorm(*(args.array(f"norm.{name}", one, "D") for name, one in norm._asdict().items()))


def _norm(args: Boundary, norm: ChannelNorm | RowNorm, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Returns the arguments of the norm for `block_arguments`."""
    arrays = [args.layout(one, dtype) for one in _arrays(norm)]
    if isinstance(norm, RowNorm):
        return {"norm": NORM["row"], "center": None, "gain": arrays[0], "offset": arrays[1], "eps": norm.eps}
    return {"norm": NORM["channel"], **dict(zip(norm._fields, arrays, strict=True)), "eps": 0.0}


def _checked_gating(args: Boundary, gating: Gating) -> Gating:
    args.one_of("gating", gating, Gating)
    args.choice("gating.form", gating.form, GATE_KINDS)
    checked: dict[str, Any] = dict.fromkeys(WEIGHTS)
    checked["over_time"] = args.flag("gating.over_time", gating.over_time)
    key = gating.seed, gating.step, gating.site
    checked["places"] = check_dropout(args, gating.rate, *key, gating.places)
    D = args.size["D"]
    for name in WEIGHTS if gating.form == "full" else WEIGHTS[2:]:
        value = getattr(gating, name)
        if value is None:
            raise ValueError(f"{args.op}: gating.{name} is None, expected an array for form '{gating.form}'")
        array = args.array(f"gating.{name}", value, "O D" if name.startswith("w") else "D")
        if array.shape[0] != D:
            raise ValueError(f"{args.op}: gating.{name} has shape {array.shape}, expected (D, D) with D={D}")
        checked[name] = array
    return gating._replace(**checked)


def _gate(args: Boundary, gating: Gating, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Returns the arguments of the gate for `block_arguments`."""
    weights = {name: getattr(gating, name) for name in WEIGHTS}
    arrays = {name: None if one is None else args.layout(one, dtype) for name, one in weights.items()}
    numbers = {name: getattr(gating, name) for name in NO_DROPOUT}
    return {"gate": GATE_KINDS[gating.form], **arrays, **numbers}
