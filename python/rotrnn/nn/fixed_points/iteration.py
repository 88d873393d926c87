"""Fixed points in depth, y = F(y), by damped iteration: the driver that every layer of Fixed-Point RNNs runs on.

`solve` is for any F; `iterate` for a kernel that does F, the residual and the update in one pass. Each is told which
sequences still run by `lengths`, zero for those that are done: every op takes that as "neither read nor computed".
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rotrnn._support.text import plural
from rotrnn.nn.layer import EVALUATION, Array, Context
from rotrnn.ops.boundary import CheckedLengths, only
from rotrnn.ops.device import beside, to_host
from rotrnn.ops.fixed_point import relax
from rotrnn.ops.pointwise import LAST_PLACE
from rotrnn.ops.random import philox

Steps = npt.NDArray[np.int64]

POSITIVE = ("tol", "gamma_scale")
STOPS = ("sequence", "quantile")
DAMPINGS = ("adaptive", "none")
FIRST_STEP, SHRINK, PATIENCE = 0.99, 0.9, 15
"""Adaptive damping: the first step size, and its factor after so many steps without a new lowest residual."""
LEAST_STEP = 1e-3
"""Step sizes at which the quantile rule gives up."""
QUANTILE = 0.75
FINEST = 32
"""Residuals below this many units of rounding are noise: no smaller tolerance is waited for."""


class NotConverged(UserWarning):
    """A fixed point that was not reached, in a run that goes on."""


class ConvergenceError(RuntimeError):
    """A fixed point that was not reached although its layer guarantees it."""


@dataclass(frozen=True)
class Iteration:
    """How a fixed point is sought ("Fixed-Point RNNs", sections 3.1 and 5.2, and its authors' code).

    Each step takes ``y <- s F(y) + (1 - s) y`` and the residual ``r_b = |y - F(y)| / |F(y)|`` of every sequence, in
    maxima over its steps and channels.

    Parameters
    ----------
    tol : float
        A sequence has converged once its residual is below.
    max_iterations : int
        The most steps.
    train_iterations : int, "gamma" or None
        The most steps in training: a number; or ceil(Gamma(4, gamma_scale)), drawn for each training step by its seed,
        its number and a site; or None, as `max_iterations`. To stop at this limit is meant, and no cause for a warning.
    damping : "adaptive" or "none"
        s = 0.99, times 0.9 whenever 15 steps have seen no new lowest residual; or s = 1.
    stop : "sequence" or "quantile"
        Each sequence ends by its own residual, and its result depends on no other sequence; or all end together, as in
        the authors' code, once the 75 % quantile of their lowest residuals so far (in evaluation, the largest) is below
        `tol`, or no step size is above 0.001. In either, a sequence whose residual is NaN ends at once, by itself.
    gamma_scale : float
        The scale of that draw: 1 in the paper, k/16 + 1 for sequences of k steps in its authors' code.
    """

    tol: float = 0.1
    max_iterations: int = 100
    train_iterations: int | str | None = None
    damping: str = "adaptive"
    stop: str = "sequence"
    gamma_scale: float = 1.0

    def __post_init__(self) -> None:
        positive = "a positive integer"
        for key, value, good, expected in (
            *((key, getattr(self, key), _is_positive(getattr(self, key)), "a positive number") for key in POSITIVE),
            ("max_iterations", self.max_iterations, _is_count(self.max_iterations), positive),
            (
                "train_iterations",
                self.train_iterations,
                self.train_iterations in (None, "gamma") or _is_count(self.train_iterations),
                f"{positive}, 'gamma' or None",
            ),
            ("damping", self.damping, self.damping in DAMPINGS, f"one of {', '.join(DAMPINGS)}"),
            ("stop", self.stop, self.stop in STOPS, f"one of {', '.join(STOPS)}"),
        ):
            if not good:
                raise ValueError(f"Iteration: {key}={value!r}, expected {expected}")

    def limit(self, ctx: Context, site: int = 0) -> int:
        """The most steps of a call in this context."""
        if not ctx.train or self.train_iterations is None:
            return self.max_iterations
        if isinstance(self.train_iterations, str):
            return drawn_limit(ctx, site, self.gamma_scale)
        return self.train_iterations


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < np.inf


def drawn_limit(ctx: Context, site: int = 0, scale: float = 1.0) -> int:
    """ceil(Gamma(4, scale)), at least 1: minus the logarithm of four uniform numbers' product."""
    counter = np.array([[2**32 - 1, LAST_PLACE, ctx.step, site]], np.int64)
    words = philox(counter, ctx.seed)
    return max(1, int(np.ceil(-scale * np.log((words + 0.5) / 2**32).sum())))


def lengths_of(ctx: Context, y: Array) -> Steps:
    """The valid steps of every sequence of y (B, T, D)."""
    B, T = y.shape[:2]
    if isinstance(ctx.lengths, CheckedLengths):
        return ctx.lengths
    return CheckedLengths.of(np.full(B, T), B, T) if ctx.lengths is None else np.asarray(ctx.lengths, np.int64)


def last_steps(y: Array, lengths: Steps, before: Array) -> Array:
    """The last valid step of y (B, T, D) of each sequence; `before` (B, D) where there is none."""
    if not y.shape[1]:
        return before
    places = beside(np.arange(len(y)), y), beside(np.asarray(lengths - 1), y)
    return np.where(beside(np.asarray(lengths > 0)[:, None], y), y[places], before)


def add_to_last_steps(dy: Array, lengths: Steps, dlast: Array) -> Array:
    """Adjoint of `last_steps`: adds to dy at the last valid steps; returns the gradient of `before`."""
    some = np.flatnonzero(lengths)
    rows, last = beside(some, dy), beside(np.asarray(lengths)[some] - 1, dy)
    dy[rows, last] += dlast[rows]
    return np.where(beside(np.asarray(lengths > 0)[:, None], dy), 0, dlast)


def exponents(*grads: Array | None) -> npt.NDArray[np.int32]:
    """Of each sequence the e with largest |number| in [2^(e-1), 2^e) over `grads` (B, ...); 0 for none, or not finite.

    An adjoint is linear, so it is solved for gradients times 2^-e, and its result is 2^e times too small: exactly, as
    long as nothing underflows. Without, the residual's floor would take the gradients of a long batch's mean for zero.
    """
    given = [np.abs(one).max(tuple(range(1, one.ndim)), initial=0) for one in grads if one is not None]
    largest = functools.reduce(np.maximum, given)
    return np.where(np.isfinite(largest), np.frexp(np.where(np.isfinite(largest), largest, 0))[1], 0).astype(np.int32)


def times_power(x: Array, exponents: npt.NDArray[np.int32]) -> Array:
    """x (B, ...) times 2^e of each sequence."""
    scaled: Array = np.ldexp(x, exponents.reshape(-1, *[1] * (x.ndim - 1)))
    return scaled


class Report(NamedTuple):
    """Of each sequence: steps taken, residual of the last step (NaN if anything was), whether it was below `tol`.

    The residual is of the iterate that the last step began from; what that step made of it is closer still.
    """

    iterations: Steps
    residual: npt.NDArray[np.float64]
    converged: npt.NDArray[np.bool_]

    def numbers(self) -> dict[str, float]:
        """What a training log keeps: mean, median and largest number of steps, largest residual (NaN if one is)."""
        if not len(self.iterations):
            return {"iterations": 0.0, "median_iterations": 0.0, "max_iterations": 0.0, "residual": 0.0}
        return {
            "iterations": float(self.iterations.mean()),
            "median_iterations": float(np.median(self.iterations)),
            "max_iterations": float(self.iterations.max()),
            "residual": float(self.residual.max()),
        }


class Iterated(Protocol):
    """What forward of every layer that iterates saves, under these names: of FixedPointRNN, Bedouin and FPMamba.

    `iterate` (B, T, N or E) is the fixed point that was found, one whole application after `before`, the iterate that
    the loop ended with, and zero beyond `lengths` (B,); given as `start` to another forward, it is the first iterate
    there. `report` says how it was reached, sequence by sequence. Their shapes do not depend on how many steps it took.
    """

    @property
    def iterate(self) -> Array: ...

    @property
    def before(self) -> Array: ...

    @property
    def lengths(self) -> Steps: ...

    @property
    def report(self) -> Report: ...


class Solution(NamedTuple):
    """The last iterate (B, T, D), and how it was reached."""

    y: Array
    report: Report


def solve(
    function: Callable[[Array, Steps], Array],
    y: Array,
    settings: Iteration,
    ctx: Context = EVALUATION,
    *,
    site: int = 0,
    name: str = "solve",
    guaranteed: bool = False,
    each_step: bool = False,
) -> Solution:
    """The fixed point ``y = F(y)`` from the iterate `y`.

    Parameters
    ----------
    function : callable
        ``F(y, lengths)``, (B, T, D) of y's dtype. `lengths` (B,) are the steps that count, 0 for sequences that are
        done: there F is not looked at.
    y : (B, T, D), C-contiguous, float32 or float64
        The first iterate, zero beyond ``ctx.lengths``. It is overwritten by the result.
    settings, ctx, site
        Tolerance and rules; with ``ctx.train`` the limit of steps in training, drawn for this `site` if it is drawn.
    name, guaranteed
        Who asks, for messages; whether an unreached fixed point is an error.
    each_step
        Residuals are those of single steps, as `rotrnn.ops.relax` has them.

    Returns
    -------
    Solution

    Warns
    -----
    NotConverged
        A sequence has not converged, or is not finite; not where ``settings.train_iterations`` was the limit.

    Raises
    ------
    ConvergenceError
        As the warning, with `guaranteed`, for finite sequences.
    """
    lengths = lengths_of(ctx, y)

    def step(s: Array, remaining: Steps) -> Array:
        return to_host(relax(y, function(y, remaining), beside(s, y), lengths=remaining, each_step=each_step))

    return Solution(y, iterate(step, lengths, y.dtype, settings, ctx, site=site, name=name, guaranteed=guaranteed))


def iterate(
    step: Callable[[Array, Steps], Array],
    lengths: Steps,
    dtype: np.dtype[Any],
    settings: Iteration,
    ctx: Context = EVALUATION,
    *,
    site: int = 0,
    name: str = "iterate",
    guaranteed: bool = False,
) -> Report:
    """As `solve`, where ``step(s, lengths)`` takes one step in place by sizes s (B,) and returns the residuals (B,)."""
    B = len(lengths)
    tol = max(settings.tol, FINEST * float(np.finfo(dtype).eps))
    limit = settings.limit(ctx, site)
    s = np.full(B, FIRST_STEP if settings.damping == "adaptive" else 1.0, dtype)
    lowest, waited = np.full(B, np.inf), np.zeros(B, np.int64)
    residual, iterations = np.zeros(B), np.zeros(B, np.int64)
    running = np.asarray(lengths > 0)
    together = ctx.gather if settings.stop == "quantile" else None
    for _ in range(limit):
        if not running.any() and together is None:
            break
        residual[running] = step(s, only(lengths, running))[running]
        iterations += running
        running &= ~np.isnan(residual)
        better = residual < lowest
        lowest = np.where(better, residual, lowest)
        if settings.damping == "adaptive":
            waited = np.where(better, 0, waited + 1)
            s[waited == PATIENCE] *= dtype.type(SHRINK)
            waited[waited == PATIENCE] = 0
        if settings.stop == "sequence":
            running &= residual >= tol
        else:
            whole = np.stack([lowest, s], 1)[running]
            if together is not None:
                whole = np.concatenate(together(whole))
            if not len(whole):
                break
            if np.quantile(whole[:, 0], QUANTILE if ctx.train else 1.0) < tol:
                running[:] = False
                break
            if whole[:, 1].max() < LEAST_STEP:
                break
    report = Report(iterations, residual, residual < tol)
    if not (ctx.train and settings.train_iterations is not None):
        _complain(report, running, name, guaranteed)
    return report


def _complain(report: Report, running: npt.NDArray[np.bool_], name: str, guaranteed: bool) -> None:
    """Warns of sequences that ran to the limit or are not finite; raises if the former was ruled out."""
    spoiled = int(np.isnan(report.residual).sum())
    if not running.any() and not spoiled:
        return
    message = f"{name}: no fixed point for {int(running.sum()) + spoiled} of {plural(len(running), 'sequence')}"
    if running.any():
        steps, residual = report.iterations[running].max(), report.residual[running].max()
        message += f": residual {residual:.2g} after {plural(steps, 'iteration')}"
    if spoiled:
        message += f" ({spoiled} not finite)"
    if guaranteed and running.any():
        raise ConvergenceError(f"{message}, though it contracts: expected more iterations, or a larger tolerance")
    warnings.warn(message, NotConverged, stacklevel=4)
