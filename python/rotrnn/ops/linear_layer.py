"""Linear layer: in-projection, scan and out-projection; fused over tiles of time (csrc/kernels/block.c), or unfused.

``y = sum_k W_out[k] . scan_k(a, W_in u) + D * u``. All products are real: lanes (2i, 2i+1) of ``W_in u`` are the real
and imaginary part of a complex number with transition a_i. Direction 0 runs forward in time; direction 1, if present,
runs backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import GATE, NORM
from rotrnn._support.text import an
from rotrnn.devices.device import beside, device_of, einsum, empty, empty_like, is_array
from rotrnn.ops.boundary import COMPLEX, Array, Boundary
from rotrnn.ops.declared import complex_of as complex_of
from rotrnn.ops.declared import pairs
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.pointwise import mask_padding
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward
from rotrnn.ops.split import Inputs, Ranks, check_split, map_of, on_this_host, pass_on
from rotrnn.ops.window import aged, aged_backward, checked_state, latest, latest_backward, tiir_scan

__all__ = ["LinearLayerGrads", "System", "linear_layer", "linear_layer_backward"]

BF16 = np.dtype(np.uint16)
"""Dtype of arrays that hold the bits of bfloat16 numbers."""


class System(NamedTuple):
    """Folded parameters of a linear recurrence, or their gradients.

    w_in (2N, D) real, a (N,) complex, w_out (K, D, 2N) real for K = 1 or 2 directions, skip (D,) real.
    """

    w_in: Array
    a: Array
    w_out: Array
    skip: Array


class LinearLayerSaved(NamedTuple):
    """Saved for backward by the fused forward: input, the state that it starts from, lengths, states (`new_states`),
    and whether sequences are split over processes."""

    u: Array
    h0: Array | None
    lengths: npt.NDArray[np.int64] | None
    carries: Array
    split: bool = False


class LinearLayerStates(NamedTuple):
    """Saved for backward by the unfused forward: input (padding zeroed), h0, lengths, and all states, (K, B, T, N).

    With a window also the input of the scan, W_in u (B, T, N). `split` is as in `LinearLayerSaved`.
    """

    u: Array
    h0: Array | None
    lengths: npt.NDArray[np.int64] | None
    h: Array
    window: int | None = None
    v: Array | None = None
    split: bool = False


class LinearLayerGrads(NamedTuple):
    """Gradients of `linear_layer`: of the system, u (B, T, D) and h0 (K, B, N)."""

    system: System
    du: Array
    dh0: Array


def linear_layer(
    system: System,
    u: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
    window: int | None = None,
    exact: Array | None = None,
    fused: bool = True,
    split: Ranks | None = None,
) -> tuple[Array, Array, LinearLayerSaved | LinearLayerStates]:
    """Linear recurrent layer with a constant diagonal transition.

    ``h_t = a * h_{t-1} + W_in u_t``, ``y_t = W_out h_t + D * u_t`` (LRU, Orvieto et al. 2023, eqs. 5-6 and fig. 1;
    RotRNN eq. 12-13 after folding P and xi into the projections; S5). If `system` has two directions, the same
    recurrence backward in time is added.

    Parameters
    ----------
    system : System
        Folded parameters; promoted with u to their common precision.
    u : (B, T, D), float32 or float64
        Input.
    h0 : (K, B, N) complex, optional
        Initial state of each direction; for the backward direction it enters at the last valid step. With a window,
        (K, B, L+1, N): the last L+1 inputs W_in u of the scan in each direction, oldest first (`tiir_scan` needs all of
        them, the windowed scan L-1).
    lengths : (B,), optional
        Number of valid steps of each sequence; beyond them u is never used and y is zero.
    window : int, optional
        L: ``h_t`` is the sum over the last L inputs only, as in `diagonal_scan`.
    exact : (N,), complex128, optional
        The transition a before it was rounded to float32, for states that do not decay, whose rounding errors would add
        up. In float32 without a window, states are then carried from tile to tile, and from call to call, in double
        precision, and hT is complex128. h0 may be so too, and does not raise the precision of the call.
    fused : bool
        If true, one pass over tiles of time: states are not stored, and backward recomputes them from the states before
        each tile. If false, products and scans run one after the other and every state is stored. The results agree up
        to rounding. With a window the layer always runs unfused.
    split : Ranks, optional
        The processes that share each sequence. Then u is this process's piece of time, as in `split_start`, and so are
        `lengths` and y; h0 is for the first piece of each direction only, and hT is the state after this piece. A state
        is passed on once for each direction, after a pass over u that computes only the last state; if fused, this
        repeats the product with W_in. Not with a window.

    Returns
    -------
    y : (B, T, D)
    hT : (K, B, N) complex, or (K, B, L+1, N) with a window
        Final state of each direction.
    saved : LinearLayerSaved, or LinearLayerStates if not `fused`
        For `linear_layer_backward`.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, or a length out of range.
    """
    args = Boundary("linear_layer")
    fused = args.flag("fused", fused)
    au = args.array("u", u, "B T D")
    checked_system(args, system, au)  # first, so that h0 is checked against its directions
    L = args.window(window)
    rows = 0 if L is None else L + 1
    if split is not None and L is not None:
        raise ValueError(f"linear_layer: window={window}, expected None: windows of split sequences are not supported")
    if L is not None:
        args.check_size("the window's state", (rows, len(au), args.size["N"]), au.dtype)
    args.bind("rows", rows, f"window={window}")
    z0 = args.optional("h0", h0, "K B N" if L is None else "K B rows N", kinds=COMPLEX)
    ready, dtype, turn = exact_system(args, system, exact if L is None else None, z0, au)
    w_in, a, w_out, skip = ready
    steps = args.lengths(lengths)
    au = args.layout(au, dtype)
    if split is not None and fused:
        inputs = [_projected(au, w_in, dtype)] * len(w_out)
        z0 = starts(args, split, dtype, a if turn is None else turn, inputs, z0, steps)
    given, z0 = z0, None if z0 is None else args.layout(z0, complex_of(dtype))
    if fused and L is None:
        y = empty_like(au)
        hT, carries = new_states(ready, au)
        arguments = block_arguments(au, ready, z0, steps, exact=turn)
        args.kernels.block_forward(y=y, hT=pairs(hT), mean=None, var=None, **kept(carries), **arguments)
        hT = carried(hT, turn, given, z0, steps, au.shape[1])
        return y, hT, LinearLayerSaved(au, z0, steps, carries, split is not None)
    au = mask_padding(au, steps)
    v = dense(au, w_in).view(complex_of(dtype))
    if split is not None:
        inputs = [lambda part: v[:, part]] * len(w_out)
        given = starts(args, split, dtype, a if turn is None else turn, inputs, given, steps)
        z0 = args.layout(given, v.dtype)
    h = args.empty((len(w_out), *v.shape), v.dtype)
    hT = args.empty((len(w_out), v.shape[0], *([] if L is None else [rows]), v.shape[2]), v.dtype)
    y = skip * au
    for k, out in enumerate(w_out):
        start = None if z0 is None else z0[k]
        if L is None:
            _, hT[k] = diagonal_scan(a, v, start, reverse=k == 1, lengths=steps, return_state=True, out=h[k])
        else:
            past = None if start is None else aged(a, start[:, 2:])
            diagonal_scan(a, v, past, window=L, reverse=k == 1, lengths=steps, out=h[k])
            hT[k] = latest(start, v, rows, steps, reverse=k == 1)
        y += dense(h[k].view(dtype), out)
    hT = carried(hT, turn, given, z0, steps, au.shape[1])
    return y, hT, LinearLayerStates(au, z0, steps, h, L, None if L is None else v, split is not None)


def new_states(system: System, u: Array) -> tuple[Array, Array]:
    """Returns uninitialised arrays for the fused kernel: hT (K, B, N), and the states that it saves, `carries`.

    These are complex, (K, B, tiles, N), before each tile. Where the device saves every state and rounds it, they are
    the bits of bfloat16 numbers, (K, B * (T + 1), 2N) uint16: for each direction the states before each step, (B, T, N)
    as (re, im) pairs, and then the final states, (B, N).
    """
    (B, T, _), (K, _, _), N, device = u.shape, system.w_out.shape, len(system.a), device_of(u)
    hT = empty((K, B, N), system.a.dtype, like=u)
    if device.tile == 1 and rounds(u):
        return hT, empty((K, B * (T + 1), 2 * N), BF16, like=u)
    return hT, empty((K, B, -(-T // device.tile), N), hT.dtype, like=u)


def rounds(x: Array) -> bool:
    """Returns whether calls with x save activations in bfloat16."""
    return bool(x.dtype == np.float32) and device_of(x).rounds()


def kept(
    carries: Array,
    layer: Array | None = None,
    states: Array | None = None,
    products: Array | None = None,
    gated: Array | None = None,
    normed: Array | None = None,
) -> dict[str, Any]:
    """Returns the saved arrays as arguments of the fused kernels by name: the states before each tile, and further kept
    arrays (`rotrnn.ops.residual_block`)."""
    given = {"layer": layer, "states": states, "gated": gated}
    exact = {name: None if one is None or one.dtype == BF16 else one for name, one in given.items()}
    rounded = {f"{name}_bf16": one if exact[name] is None else None for name, one in given.items()}
    others = {"products": products, "normed_bf16": normed}
    if carries.dtype == BF16:
        return {"carries": None, "every_bf16": carries, **others, **exact, **rounded}
    return {"carries": pairs(carries), "every_bf16": None, **others, **exact, **rounded}


def check_carries(args: Boundary, carries: Array) -> Array:
    """Checks that forward saved a state for every tile of dy, and returns these states."""
    if is_array(carries) and carries.dtype == BF16:
        args.bind("rows", args.size["B"] * (args.size["T"] + 1), "every state of dy")
        return args.array("saved.carries", carries, "K rows L", kinds=(BF16,))
    tile = args.device.tile
    args.bind("tiles", -(-args.size["T"] // tile), f"dy in tiles of {tile} steps")
    return args.array("saved.carries", carries, "K B tiles N", kinds=COMPLEX)


def layout_kept(args: Boundary, array: Array, dtype: np.dtype[Any]) -> Array:
    """Returns a saved array as the fused kernels take it: in a dtype, or unchanged in bfloat16."""
    return args.layout(array, BF16 if array.dtype == BF16 else dtype)


def check_precision(args: Boundary, name: str, saved: npt.ArrayLike, dtype: np.dtype[Any]) -> None:
    """Checks that an array saved by forward has the precision of the arguments of backward, in any byte order."""
    given = args.any_array(name, saved).dtype
    if np.empty(0, given).real.dtype.newbyteorder("=") != dtype:
        raise TypeError(f"{args.op}: {name} has dtype {given}, expected the precision of the others, {dtype}")


NO_NORM = {"norm": NORM["none"], "center": None, "gain": None, "offset": None, "eps": 0.0}
NO_WEIGHTS: dict[str, Any] = dict.fromkeys(("w_value", "b_value", "w_gate", "b_gate"))
NO_DROPOUT = {"places": None, "rate": 0.0, "seed": 0, "step": 0, "site": 0, "over_time": False}
NO_GATE = {"gate": GATE["none"], **NO_WEIGHTS, **NO_DROPOUT}
NO_LATER: dict[str, Any] = dict.fromkeys(("later_y", "later_center", "later_slope", "later_shift"))


def block_arguments(
    x: Array,
    system: System,
    h0: Array | None,
    lengths: Array | None,
    norm: Mapping[str, Any] = NO_NORM,
    gate: Mapping[str, Any] = NO_GATE,
    exact: Array | None = None,
) -> dict[str, Any]:
    """Returns the inputs of the fused kernels by name (block_in of csrc/kernels.list). They must be checked already."""
    (B, T, D), (w_in, a, w_out, skip) = x.shape, system
    start = None if h0 is None else pairs(h0)
    return {
        **{"x": x, "w_in": w_in, "a": pairs(a), "w_out": w_out, "skip": skip, "h0": start, "lengths": lengths},
        "exact": None if exact is None else pairs(exact),
        **{"B": B, "T": T, "D": D, "L": len(w_in), "directions": len(w_out), "tile": device_of(x).tile},
        **norm,
        **gate,
    }


def system_gradients(dsystem: System, dx: Array, dh0: Array) -> dict[str, Any]:
    """Returns the arrays into which block_backward writes the gradients of a system, by name."""
    dw_in, da, dw_out, dskip = dsystem
    return {"dx": dx, "dw_in": dw_in, "da": pairs(da), "dw_out": dw_out, "dskip": dskip, "dh0": pairs(dh0)}


def checked_system(args: Boundary, system: System, *others: Array | None) -> tuple[System, np.dtype[Any]]:
    """Checks a system. Returns it in the common precision of it and `others`, and this precision as a real dtype."""
    if not isinstance(system, System):
        raise TypeError(f"{args.op}: system is {an(type(system).__name__)}, expected a System")
    w_in = args.array("w_in", system.w_in, "L D")
    a = args.array("a", system.a, "N", kinds=COMPLEX)
    w_out = args.array("w_out", system.w_out, "K D L")
    skip = args.array("skip", system.skip, "D")
    if w_in.shape[0] != 2 * len(a) or len(w_out) not in (1, 2):
        raise ValueError(
            f"{args.op}: w_in has shape {w_in.shape} and w_out {w_out.shape}, expected (2N, D) and (K, D, 2N) "
            f"with N={len(a)} from a and K=1 or 2"
        )
    given = [one.real.dtype for one in (w_in, a, w_out, skip, *others) if one is not None]
    dtype = np.result_type(*given)
    w_in, w_out, skip = (args.layout(one, dtype) for one in (w_in, w_out, skip))
    return System(w_in, args.layout(a, complex_of(dtype)), w_out, skip), dtype


def exact_system(
    args: Boundary, system: System, exact: Array | None, h0: Array | None, *others: Array | None
) -> tuple[System, np.dtype[Any], Array | None]:
    """Like `checked_system`, for forward: also returns the exact transition, or None where the call is in double
    precision anyway. With one, h0 does not count towards the common precision."""
    if exact is not None:
        turn = args.array("exact", beside(exact, system.a) if is_array(exact) else exact, "N", kinds=COMPLEX)
        ready, dtype = checked_system(args, system, *others)
        if dtype == np.float32:
            return ready, dtype, args.layout(turn, np.dtype(np.complex128))
    return *checked_system(args, system, *others, h0), None


def _projected(u: Array, w: Array, dtype: np.dtype[Any]) -> Inputs:
    """Returns the inputs ``w u`` of a scan as complex numbers, for any steps."""
    return lambda part: dense(u[:, part], w).view(complex_of(dtype))


def starts(
    args: Boundary, split: Ranks, dtype: np.dtype[Any], a: Array, inputs: list[Inputs], given: Array | None,
    lengths: Array | None, *, adjoint: bool = False,
) -> Array:  # fmt: skip
    """Returns the states (K, B, N) in double precision that this process's piece starts from, with the `inputs` of the
    scan of each direction; or, if `adjoint`, the gradients of its final states. `given` are the states or gradients of
    the whole sequence, and `dtype` is the precision of the call."""
    on_this_host(args)
    check_split(args, split)
    B, T, N = args.size["B"], args.size["T"], len(a)
    found = np.zeros((len(inputs), B, N), np.complex128)
    for k, one in enumerate(inputs):
        own = map_of(a, one, (B, T), lengths, reverse=k == 1, adjoint=adjoint)
        first = None if given is None else given[k]
        state = pass_on(args.op, "dhT" if adjoint else "h0", split, own, first, dtype, reverse=(k == 1) != adjoint)
        found[k] = 0 if state is None else state
    return found


def carried(
    hT: Array, exact: Array | None, given: Array | None, h0: Array | None, lengths: Array | None, T: int
) -> Array:
    """Returns the final states in double precision, with the rounding error of the `given` initial states in h0 added
    back: ``hT + exact^T (given - h0)``. Without an exact transition, returns hT."""
    if exact is None:
        return hT
    hT = hT.astype(exact.dtype)
    if given is not None and h0 is not None and given.dtype != h0.dtype:
        steps = T if lengths is None else beside(lengths[:, None], exact)
        hT += exact**steps * (given - h0)
    return hT


def linear_layer_backward(
    dy: npt.ArrayLike,
    system: System,
    saved: LinearLayerSaved | LinearLayerStates,
    dhT: npt.ArrayLike | None = None,
    *,
    dh: npt.ArrayLike | None = None,
    split: Ranks | None = None,
) -> LinearLayerGrads:
    """Adjoint of `linear_layer`, by the adjoints of its products and scans. All results are new arrays.

    With ``dh = W_out^T dy`` and g the adjoint scan of dh: ``du = D * dy + W_in^T g``, ``dW_in = sum g u^T``,
    ``dW_out = sum dy h^T``, ``dD = sum dy * u``.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of y; never used beyond `lengths`.
    system, saved
        As given to and returned by `linear_layer`.
    dhT : (K, B, N) complex, or (K, B, L+1, N) with a window, optional
        Gradient of the final states.
    dh : (B, T, N) complex, optional
        Gradient of the states of direction 0, if they are used other than for y; never used beyond `lengths`. Only for
        an unfused forward, which has the states.
    split : Ranks, optional
        As given to `linear_layer`. Then dy, du and dh0 belong to this process's piece, `dhT` is for the last piece of
        each direction only, and the gradients of the system over all processes add up to the gradients of the whole.

    Raises
    ------
    TypeError, ValueError
        As `linear_layer`.
    """
    args = Boundary("linear_layer_backward")
    args.one_of("saved", saved, LinearLayerSaved, LinearLayerStates)
    dy = args.array("dy", dy, "B T D")
    L = args.window(saved.window) if isinstance(saved, LinearLayerStates) else None
    args.bind("rows", 0 if L is None else L + 1, f"window={L}")
    states = "K B N" if L is None else "K B rows N"
    dhT = args.optional("dhT", dhT, states, kinds=COMPLEX)
    if dh is not None and (saved.split or not isinstance(saved, LinearLayerStates)):
        raise ValueError(f"{args.op}: dh is given, expected None after a fused forward, or one of split sequences")
    dh = args.optional("dh", dh, "B T N", kinds=COMPLEX)
    z0 = args.optional("saved.h0", saved.h0, states, kinds=COMPLEX)
    saved = saved._replace(u=args.array("saved.u", saved.u, "B T D"))
    ready, dtype = checked_system(args, system, saved.u)
    dy = args.layout(dy, dtype)
    steps = args.lengths(saved.lengths)
    if saved.split != (split is not None):
        raise ValueError(f"{args.op}: split is {split!r}, expected forward's split")
    if split is not None:
        ends = [_projected(dy, np.ascontiguousarray(out.T), dtype) for out in ready.w_out]
        dhT = starts(args, split, dtype, ready.a, ends, dhT, steps, adjoint=True)
    dhT = None if dhT is None else args.layout(dhT, complex_of(dtype))
    if isinstance(saved, LinearLayerStates):
        whole = complex_of(dtype)
        saved = saved._replace(
            u=args.layout(saved.u, dtype),
            h0=None if z0 is None else args.layout(z0, whole),
            lengths=steps,
            h=args.layout(args.array("saved.h", saved.h, "K B T N", kinds=COMPLEX), whole),
            v=None if L is None else args.layout(args.array("saved.v", saved.v, "B T N", kinds=COMPLEX), whole),  # type: ignore[arg-type]  # not None here
        )
        return _backward_from_states(dy, ready, saved, dhT, None if dh is None else args.layout(dh, whole))
    check_precision(args, "saved.u", saved.u, dtype)
    u, carries = args.layout(saved.u, dtype), layout_kept(args, check_carries(args, saved.carries), ready.a.dtype)
    z0 = None if z0 is None else args.layout(z0, ready.a.dtype)
    dsystem, du = System(*map(empty_like, ready)), empty_like(u)
    dh0, _ = new_states(ready, u)
    nothing: dict[str, Any] = dict.fromkeys(("d_norm_sum", "d_norm_product", *(f"d{name}" for name in NO_WEIGHTS)))
    grads, inputs = system_gradients(dsystem, du, dh0), block_arguments(u, ready, z0, steps)
    args.kernels.block_backward(**grads, **nothing, **NO_LATER, dy=dy, **kept(carries), dhT=pairs(dhT), **inputs)
    return LinearLayerGrads(dsystem, du, dh0)


def _backward_from_states(
    dy: Array, system: System, saved: LinearLayerStates, dhT: Array | None, dstates: Array | None
) -> LinearLayerGrads:
    (w_in, a, w_out, skip), (u, z0, steps, h, L, v, _) = system, saved
    dy = mask_padding(dy, steps)
    rows = () if L is None else (L + 1,)
    dw_out, dh0 = empty_like(w_out), np.zeros((len(h), len(u), *rows, len(a)), h.dtype, like=h)
    da, dv = np.zeros_like(a), np.zeros(h.shape[1:], h.dtype, like=h)
    for k, out in enumerate(w_out):
        dh, dw_out[k], _ = dense_backward(dy, h[k].view(dy.dtype), out)
        if dstates is not None and k == 0:
            dh += dstates.view(dy.dtype)
        start, dend = (None if one is None else one[k] for one in (z0, dhT))
        how: dict[str, Any] = {"reverse": k == 1, "lengths": steps}
        if L is None:
            scan = diagonal_scan_backward(dh.view(h.dtype), a, h[k], start, dhT=dend, **how)
            dh0[k] = scan.dh0
        else:
            past = None if start is None else aged(a, start[:, 2:])
            scan = diagonal_scan_backward(dh.view(h.dtype), a, None, past, x=v, window=L, **how)
            if dend is not None:
                dh0[k] += latest_backward(dend, scan.dx, steps, reverse=k == 1)
            before = np.zeros_like(scan.dh0) if start is None else start[:, 2:]
            da_past, dpast = aged_backward(scan.dh0, a, before)
            da += da_past
            dh0[k, :, 2:] += dpast
        da += scan.da
        dv += scan.dx
    du, dw_in, _ = dense_backward(dv.view(dy.dtype), u, w_in)
    du += skip * dy
    dskip = einsum("btd,btd->d", dy, u)
    return LinearLayerGrads(System(dw_in, da, dw_out, dskip), du, dh0)


def linear_step(
    system: System,
    state: Any,
    u_t: npt.ArrayLike,
    *,
    window: int | None = None,
    power: npt.ArrayLike | None = None,
    exact: Array | None = None,
) -> tuple[Array, Any]:
    """One step of `linear_layer` for streaming inference, in one direction.

    Parameters
    ----------
    system : System
        Folded parameters with K = 1.
    state : (B, N) complex, or a state of `tiir_scan` with a window, or None
        State before the step; None means zero.
    u_t : (B, D)
        Input of the step.
    window, power
        As in `tiir_scan`.
    exact
        As in `linear_layer`.

    Returns
    -------
    y_t : (B, D)
    state : (B, N) complex, or WindowState
        State after the step; complex128 with `exact`.

    Raises
    ------
    TypeError, ValueError
        As `linear_layer`.
    """
    args = Boundary("linear_step")
    au = args.array("u_t", u_t, "B D")
    steps = args.window(window)
    if steps is None:
        z = args.optional("state", state, "B N", kinds=COMPLEX)
        held = z
    else:
        state = None if state is None else checked_state(args, state, steps)
        z, held = None, None if state is None else state.sums
    (w_in, a, w_out, skip), dtype, turn = exact_system(args, system, exact if window is None else None, held, au)
    if len(w_out) != 1:
        raise ValueError("linear_step: w_out has two directions, expected K=1: a bidirectional layer has no steps")
    z_next = dense(args.layout(au, dtype), w_in).view(complex_of(dtype))
    if window is None:
        turn = a if turn is None else turn
        state = z_next.astype(turn.dtype, copy=False) if z is None else turn * z + z_next
        z_next = state.astype(z_next.dtype, copy=False)
    else:
        z_next, state = tiir_scan(a, z_next[:, None], state, window=window, power=power)
        z_next = z_next[:, 0]
    return dense(z_next.view(dtype), w_out[0]) + skip * au, state
