"""Kernels for fixed-point iterations in depth: residual and damped update, alone or fused with the iteration step; and
fixed points of the vector-state Fixed-Point RNN, by tiles of time or directly."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.mixer import GRAM, KRONECKER, LOW_RANK, MATRIX, ROTATION, VECTORS, axes_of, checked_parts


def relax(
    y: Array, f: npt.ArrayLike, s: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None, each_step: bool = False
) -> Array:
    """One damped update ``y <- s_b f + (1 - s_b) y``, in place. Returns the residual of y before the update.

    Parameters
    ----------
    y : (B, T, D), C-contiguous, float32 or float64
        The iterate; overwritten.
    f : (B, T, D)
        Its image under the iterated map, in y's dtype.
    s : (B,)
        Step size of each sequence; 1 replaces y by f.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is neither read nor written.
    each_step : bool
        Compute a residual for each step, and return the largest one of each sequence.

    Returns
    -------
    residual : (B,)
        ``max |y - f| / max |f|`` with maxima over the steps and channels of a sequence ("Fixed-Point RNNs", section
        5.2). With `each_step`, ``max |y - f| / (max |f| + 1e-8)`` with maxima over the channels of a step, as in the
        authors' code. NaN if any number in it is NaN; 0 for a sequence without steps.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, or a `y` that cannot be written in place.
    """
    args = Boundary("relax")
    ay = args.array("y", y, "B T D")
    af = args.array("f", f, "B T D")
    step = args.array("s", s, "B")
    steps = args.lengths(lengths)
    each_step = args.flag("each_step", each_step)
    args.out("y", y, ay.shape, ay.dtype, f, s)
    residual = args.empty(ay.shape[:1], ay.dtype)
    af, step = args.layout(af, ay.dtype), args.layout(step, ay.dtype)
    args.kernels.relax(residual=residual, y=y, f=af, s=step, lengths=steps, **args.sizes("B T D"), each_step=each_step)
    return residual


class PreparedMixer(NamedTuple):
    """A mixer in the form that `depth_pass` takes; see `prepare_mixer`."""

    w: Array
    alpha: Array
    form: int
    rank: int


@functools.cache
def _prepared_sizes(form: int, rank: int, width: int) -> tuple[int, int]:
    """Returns the sizes of w and of alpha for one token of `width` channels."""
    if form in VECTORS:
        return rank * (width + 1), rank
    if form == MATRIX:
        return width * width, 0
    if form == ROTATION:
        return rank * width, 0
    columns = width // rank
    if form == KRONECKER:
        return 2 * (rank * (rank + 1) + columns * (columns + 1)), rank + columns
    return columns * (2 * rank * rank + 1), columns


def prepare_mixer(form: int, rank: int, u: Array, alpha: Array, width: int) -> PreparedMixer:
    """Prepares u and alpha of a mixer of `rotrnn.ops.mixer`, of form `form`, once for all iterations.

    `rank` is R, the number of vectors, or of factors of "rotation"; for the other mixers without vectors their `rows`,
    which equal `width` for "gram" and "matrix". u and alpha are as for the mixer's op, for tokens of `width` channels;
    each is constant or has (B, T) tokens; they are promoted to one dtype. For the form "matrix", u (width * width,) has
    the rows of Q; for "matrix" and "rotation", alpha is empty. The gains of "monarch" and "gram" are those of
    `mixer_gains`.

    Raises
    ------
    TypeError, ValueError
        An unknown form, wrong dtype, mismatched shapes, or another `rank` than these.
    """
    args = Boundary("prepare_mixer")
    args.integer("form", form, 0, ROTATION)
    args.bind("D", args.integer("width", width), "width")
    args.bind("R", args.integer("rank", rank), "rank")
    if form in (GRAM, MATRIX) and rank != width:
        raise ValueError(f"prepare_mixer: rank is {rank}, expected {width}")
    u, alpha = args.common(*checked_parts(args, form, u, alpha, rank))
    lead = u.shape[: u.ndim - axes_of(form)]
    w = args.out("w", None, (*lead, _prepared_sizes(form, rank, width)[0]), u.dtype)
    args.kernels.mixer_prepare(w=w, u=u, M=math.prod(lead), R=rank, D=width, form=form, normalised=True)
    return PreparedMixer(w, alpha, form, rank)


def _check_prepared(args: Boundary, mixer: PreparedMixer, shape: tuple[int, ...]) -> None:
    """Checks that a mixer is for y of this shape, (B, T, N)."""
    args.one_of("mixer", mixer, PreparedMixer)
    B, T, N = shape
    ready, gains = _prepared_sizes(mixer.form, mixer.rank, N)
    for name, array, size in (("w", mixer.w, ready), ("alpha", mixer.alpha, gains)):
        if array.shape != (size,) and array.shape != (B, T, size):
            expected = f"({size},) or {(B, T, size)} for N={N} from y"
            raise ValueError(f"{args.op}: mixer.{name} has shape {array.shape}, expected {expected}")


def depth_pass(
    y: Array,
    x: Array,
    lam: Array,
    mixer: PreparedMixer,
    h0: Array | None,
    s: Array,
    *,
    scaled: bool = True,
    adjoint: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> Array:
    """One damped update ``y <- s_b F(y) + (1 - s_b) y`` of the vector-state Fixed-Point RNN, in place, in one pass.

    ``F_t = lam_t F_{t-1} + gain_t [y_t + Q_t (x_t - y_t)]``, ``F_{-1} = h0``, where gain_t is ``1 - |lam_t|`` if
    `scaled` ("Fixed-Point RNNs", Theorem 3.2, which is for lam from 0 on), else 1 (eq. 7). With `adjoint`, the step
    whose fixed point is the implicit gradient of the input of F, where x is the gradient of h:
    ``F_t = lam_{t+1} F_{t+1} + x_t + (I - Q_t^T) gain_t y_t``, ``F_T = 0``, and h0 is ignored.

    Parameters
    ----------
    y : (B, T, N), C-contiguous, float32 or float64
        The iterate; overwritten. All arrays are converted to its dtype.
    x : (B, T, N)
    lam : (N,) or (B, T, N)
    mixer : PreparedMixer
    h0 : (B, N), optional
    s : (B,)
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is neither read nor written.

    Returns
    -------
    residual : (B,)
        As in `relax`.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, or a `y` that cannot be written in place.
    """
    args = Boundary("depth_pass")
    arrays = _depth_arguments(args, y, x, lam, mixer, h0, s=s)
    scaled, adjoint = args.flag("scaled", scaled), args.flag("adjoint", adjoint)
    steps = args.lengths(lengths)
    residual = args.empty((y.shape[0],), y.dtype)
    args.kernels.depth_pass(residual=residual, **arrays, scaled=scaled, adjoint=adjoint, lengths=steps)
    return residual


class DepthSolution(NamedTuple):
    """Result of `depth_solve`: h = F(y) (B, T, N), or None for the adjoint; and for each sequence the largest
    `iterations` of a tile, the iterations `applied`, summed over its tokens, and the largest `residual` of a tile."""

    h: Array | None
    iterations: Array
    applied: Array
    residual: Array


def depth_solve(
    y: Array,
    x: Array,
    lam: Array,
    mixer: PreparedMixer,
    h0: Array | None,
    *,
    tile: int | None,
    tol: float,
    limit: int,
    first: float = 1.0,
    shrink: float = 1.0,
    patience: int = 1,
    cycle: int = 1000,
    accelerate: bool = False,
    scaled: bool = True,
    adjoint: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> DepthSolution:
    """The fixed point ``y = F(y)`` of the vector-state Fixed-Point RNN, with the F of `depth_pass`, in one call.

    With a `tile`, F is iterated over the first `tile` steps of a sequence until ``max |y - F(y)| / max |F(y)|`` of
    these steps is below `tol`; then over the next steps, starting from F(y) at the end of the first, and so on. F of a
    step does not depend on later steps, so this is the fixed point of the whole sequence. With `adjoint`, steps go down
    in time.

    Without `tile`, the fixed point of each step is computed exactly, from the fixed point of the step before, by a
    linear system that is solved with partial pivoting (csrc/kernels/direct.h). For mixers of vectors, ``I - Q_t`` is a
    matrix of rank R, or for low rank a diagonal matrix plus a matrix of rank R, so by Woodbury's identity the system
    has R equations. For "monarch" there is a system of R equations for each block, and for the other mixers a system of
    N equations, which costs ``N^3 / 3`` multiplications a token. It is exact to rounding whether or not the iteration
    converges, unless a system is singular, or nearly so. Its solution is then huge and wrong, with a large residual, or
    not finite.

    Parameters
    ----------
    y : (B, T, N), C-contiguous, float32 or float64
        The first iterate; becomes the last one, or the solution. All arrays are converted to its dtype.
    x, lam, mixer, h0, scaled, adjoint, lengths
        As for `depth_pass`.
    tile : int or None
        Number of steps that are iterated together, at least 1; None to solve directly.
    tol, limit : float, int
        Where the iteration of a tile ends: the residual, and the number of iterations.
    first, shrink, patience, cycle : float, float, int, int
        The first step size s of ``y <- s F(y) + (1 - s) y`` in a tile, and its factor after `patience` iterations
        without a new lowest residual. After each `cycle` of iterations in which the lowest residual has not fallen to a
        tenth (in the first cycle, of 1), s is `first` again.
    accelerate : bool
        Anderson acceleration over the numbers of a tile (csrc/kernels/anderson.h) in place of damped steps; `residual`
        is then an estimate of ``max |y - y*| / max |y*|`` for the fixed point y*.

    Returns
    -------
    DepthSolution
        For a direct solution, one iteration is counted, and F is applied once. The residual of a token is then at least
        eps times the factor by which its system lets errors grow: its largest number, or 1, over the least pivot. That
        estimates what rounding does to y, up to some units, where a system is nearly singular.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, a `y` that cannot be written in place, a number out of its range; for a direct
        solution, a low-rank mixer without `scaled`.
    NotImplementedError
        On a GPU, a direct solution of a mixer without vectors.
    """
    args = Boundary("depth_solve")
    arrays = _depth_arguments(args, y, x, lam, mixer, h0)
    scaled, adjoint = args.flag("scaled", scaled), args.flag("adjoint", adjoint)
    accelerate = args.flag("accelerate", accelerate)
    if tile is None and mixer.form == LOW_RANK and not scaled:
        which = "a low-rank mixer without `scaled`"
        raise ValueError(f"depth_solve: tile is None with {which}, expected a mixer that has a direct solution")
    B, T = y.shape[:2]
    h = None if adjoint else args.out("h", None, y.shape, y.dtype)
    iterations, applied = args.empty((B,), np.int64), args.empty((B,), np.int64)
    residual = args.empty((B,), y.dtype)
    args.kernels.depth_solve(
        **arrays,
        h=h,
        iterations=iterations,
        applied=applied,
        residual=residual,
        lengths=args.lengths(lengths),
        tile=max(T, 1) if tile is None else args.integer("tile", tile, 1),
        limit=args.integer("limit", limit, 1),
        patience=args.integer("patience", patience, 1),
        cycle=args.integer("cycle", cycle, 1),
        tol=args.number("tol", tol, positive=True),
        first=args.number("first", first),
        shrink=args.number("shrink", shrink),
        scaled=scaled,
        adjoint=adjoint,
        direct=tile is None,
        accelerate=accelerate,
    )
    return DepthSolution(h, iterations, applied, residual)


def _depth_arguments(
    args: Boundary, y: Array, x: Array, lam: Array, mixer: PreparedMixer, h0: Array | None, **more: Array
) -> dict[str, Any]:
    """Returns the arguments that the kernels of a step in depth share, checked; `more` are of shape (B,)."""
    ay = args.array("y", y, "B T N")
    _check_prepared(args, mixer, ay.shape)
    given = {
        "x": args.array("x", x, "B T N"),
        "lam": args.array("lam", lam, "N", "B T N"),
        "w": mixer.w,
        "alpha": mixer.alpha,
        "h0": args.optional("h0", h0, "B N"),
        **{name: args.array(name, one, "B") for name, one in more.items()},
    }
    args.out("y", y, ay.shape, ay.dtype, x, lam, h0, *more.values())
    B, T, D = ay.shape
    arrays = {name: None if one is None else args.layout(one, ay.dtype) for name, one in given.items()}
    return {
        "y": y,
        **arrays,
        **{"B": B, "T": T, "R": mixer.rank, "D": D, "form": mixer.form},
        "varying": given["lam"].ndim == 3,  # type: ignore[union-attr]
        "w_varying": mixer.w.ndim == 3,
        "alpha_varying": mixer.alpha.ndim == 3,
    }
