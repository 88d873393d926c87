"""Optimiser kernels: updates in place by AdamW, also of groups, and by SGD; Euclidean norm (csrc/kernels/optim.c)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import PART_ALIGNMENT, PARTS_AT_ONCE
from rotrnn.devices.device import empty, to_host
from rotrnn.ops.boundary import Array, Boundary


def adamw(
    param: Array,
    m: Array,
    v: Array,
    grad: npt.ArrayLike,
    *,
    lr: float,
    step: int,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.0,
    scale: float = 1.0,
) -> tuple[float, float]:
    """One AdamW update in place (Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2).

    With ``g = scale * grad`` and t = `step`::

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        param <- param - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay param)

    Parameters
    ----------
    param, m, v : arrays of one shape and dtype (float32 or float64), C-contiguous and writeable
        The parameter and its two moments, which are zero before the first step. Updated in place.
    grad : array of that shape and dtype
        Gradient; not changed.
    lr : float
        Learning rate of this step; it also multiplies the decay.
    step : int
        Number of the update, starting at 1.
    beta1, beta2, eps, decay, scale : float
        As in the equations.

    Returns
    -------
    param_norm, v_norm : float
        `norm` of `param` and of `v` after the update. A norm is not finite if an element of the array is not.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, an array that cannot be written in place, overlapping arrays, or `step` below 1.
    """
    ready = adamw_ready(param, m, v, grad)
    if step < 1:
        raise ValueError(f"adamw: step is {step}, expected an integer from 1")
    norms = empty((2,), np.float64, like=param)
    ready(norms=norms, lr=lr, step=step, beta1=beta1, beta2=beta2, eps=eps, decay=decay, scale=scale)
    after = to_host(norms)
    return float(after[0]), float(after[1])


def adamw_ready(param: Array, m: Array, v: Array, grad: npt.ArrayLike) -> Callable[..., None]:
    """Returns the kernel of `adamw` with its arrays, which are checked: it takes the other arguments of the step by
    name, and `norms` (2,) float64 on the device, to which it writes the two norms, so that nothing waits for it."""
    args = Boundary("adamw")
    g = _checked(args, {"param": param, "m": m, "v": v}, grad)
    return partial(args.kernels.adamw, p=param, m=m, v=v, grad=g, n=g.size)


def sgd(
    param: Array, m: Array, grad: npt.ArrayLike, *, lr: float, momentum: float, decay: float = 0.0, scale: float = 1.0
) -> tuple[float, float]:
    """One update in place of gradient descent with momentum, as torch.optim.SGD defines it, with dampening 0.

    With ``g = scale * grad``::

        m <- momentum m + g + decay param
        param <- param - lr m

    Parameters
    ----------
    param, m : arrays of one shape and dtype (float32 or float64), C-contiguous and writeable
        The parameter and its momentum buffer, which is zero before the first step. Updated in place.
    grad : array of that shape and dtype
        Gradient; not changed.
    lr, momentum, decay, scale : float
        As in the equations.

    Returns
    -------
    param_norm, m_norm : float
        `norm` of `param` and of `m` after the update.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, an array that cannot be written in place, or overlapping arrays.
    """
    ready = sgd_ready(param, m, grad)
    norms = empty((2,), np.float64, like=param)
    ready(norms=norms, lr=lr, momentum=momentum, decay=decay, scale=scale)
    after = to_host(norms)
    return float(after[0]), float(after[1])


def sgd_ready(param: Array, m: Array, grad: npt.ArrayLike) -> Callable[..., None]:
    """Returns the kernel of `sgd` with its arrays, as `adamw_ready`."""
    args = Boundary("sgd")
    g = _checked(args, {"param": param, "m": m}, grad)
    return partial(args.kernels.sgd, p=param, m=m, grad=g, n=g.size)


def _checked(args: Boundary, updated: dict[str, Array], grad: npt.ArrayLike) -> Array:
    """Returns the gradient as the kernels take it. TypeError or ValueError if the arrays that are updated in place, by
    name, do not fit it or overlap."""
    given = args.any_array("grad", grad)
    g = args.array("grad", given.reshape(-1), "N")
    for name, array in updated.items():
        args.out(name, array, given.shape, g.dtype)
    arrays = {**updated, "grad": g}
    for one, other in itertools.combinations(arrays, 2):
        if np.may_share_memory(arrays[one], arrays[other]):
            raise ValueError(f"{args.op}: {one} overlaps {other}, expected separate memory")
    return args.layout(g, g.dtype)


def place_parts(flat: Array, parts: Sequence[Array]) -> None:
    """Writes arrays one after another into the vector `flat` (n,) of their dtype, each from a multiple of
    `PART_ALIGNMENT` on; numbers between them stay."""
    args, at = Boundary("place_parts"), 0
    args.common(args.array("flat", flat, "n"))
    for first in range(0, len(parts), PARTS_AT_ONCE):
        few: list[Array | None] = [part.reshape(-1) for part in parts[first : first + PARTS_AT_ONCE]]
        few += [None] * (PARTS_AT_ONCE - len(few))
        sizes = [0 if one is None else one.size for one in few]
        given: dict[str, Any] = {f"x{k}": one for k, one in enumerate(few)}
        given |= {f"n{k}": size for k, size in enumerate(sizes)}
        args.kernels.place_parts(flat=flat, n=flat.size, at=at, **given)
        at += sum(map(part_size, sizes))


def part_size(size: int) -> int:
    """Returns how many numbers of a vector a part of `size` numbers takes (`place_parts`)."""
    return -(-size // PART_ALIGNMENT) * PART_ALIGNMENT


def adamw_groups(
    norms: Array,
    param: Array,
    m: Array,
    v: Array,
    grad: Array,
    ends: Array,
    rules: Array,
    loss: Array,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    clip: float,
) -> None:
    """`adamw` of groups that lie in one vector, with the gradients clipped to a norm. Nothing waits for the device.

    Group g is ``param[ends[g - 1]:ends[g]]``, the first from 0. The step is scaled by ``clip / |grad|`` where that is
    below 1 and `clip` is positive. If the loss, the norm of `grad`, or an earlier number in `norms`, is not finite,
    nothing is updated, and ``norms[0]`` becomes NaN or infinite, so all calls after a failed call do nothing.

    Parameters
    ----------
    norms : array (1 + 2 G,) float64
        Written: the norm of `grad`; of `param` and of `v` in each group, after the update. Finite before the first
        call.
    param, m, v, grad : arrays (n,) of one dtype (float32 or float64)
        As for `adamw`; the first three are updated in place.
    ends : array (G,) int64
        Where the groups end, from 0 to n in order.
    rules : array (G, 4) float64
        For each group: learning rate, ``1 - beta1^step``, ``1 - beta2^step`` and decay, at this step.
    loss : array (1,) float64
    beta1, beta2, eps, clip : float

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, shape or device, an end that is not from 0 to n, or overlapping arrays.
    """
    args = Boundary("adamw_groups")
    g = args.array("grad", grad, "N")
    for name, array in (("param", param), ("m", m), ("v", v)):
        args.array(name, array, "N")
        args.out(name, array, g.shape, g.dtype)
    arrays: dict[str, Any] = {"p": param, "m": m, "v": v, "grad": g, "ends": ends, "rules": rules, "loss": loss}
    how: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "eps": eps, "clip": clip}
    args.kernels.adamw_groups(norms=norms, **arrays, **how, n=g.size, groups=ends.size)


def norms_of(arrays: Sequence[Array]) -> list[float]:
    """Returns the `norm` of each array, all on one device, which is waited for once."""
    if not arrays:
        return []
    room = empty((len(arrays),), np.float64, like=arrays[0])
    for i, x in enumerate(arrays):
        norm_into(room[i : i + 1], x)
    return [float(one) for one in to_host(room)]


def norm_into(room: Array, x: npt.ArrayLike) -> None:
    """Writes the `norm` of x to `room` (1,) float64 on its device, so that nothing waits for it."""
    args = Boundary("norm")
    array = args.array("x", args.any_array("x", x).reshape(-1), "N")
    args.kernels.norm(norm=room, x=args.layout(array, array.dtype), n=array.size)


def norm(x: npt.ArrayLike) -> float:
    """Euclidean norm of all elements of `x` (float32 or float64, any shape), summed in float64 in a fixed order.

    The norm of a float32 `x` is finite if all elements are. The norm of a float64 `x` is finite if all squares are.
    Raises TypeError for another dtype.
    """
    return norms_of([Boundary("norm").any_array("x", x)])[0]
