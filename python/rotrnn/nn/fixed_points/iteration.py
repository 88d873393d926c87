"""Fixed points in depth, y = F(y), by damped iteration: the driver of all Fixed-Point RNN layers.

`solve` is for any F; `iterate` is for a kernel that computes F, the residual and the update in one pass. Both pass
`lengths` with zero for sequences that are done, which the ops then neither read nor compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import MOST_STEPS
from rotrnn._support.text import plural
from rotrnn._support.warn import warn
from rotrnn.devices.device import beside, full, to_host
from rotrnn.devices.recording import Again, NotRecordable, RecordedLengths, Recording, recording
from rotrnn.nn.layer import EVALUATION, Array, Context, Gather
from rotrnn.ops.boundary import CheckedLengths, only, rename
from rotrnn.ops.fixed_point import DepthSolution, relax
from rotrnn.ops.pointwise import LAST_PLACE, mask_padding
from rotrnn.ops.random import philox

Steps = npt.NDArray[np.int64]

POSITIVE = ("tol", "gamma_scale")
DRAWN = {"gamma": np.ceil, "rounded_gamma": np.rint}
"""How the limit of a training step becomes an integer, where it is drawn."""
STOPS = ("sequence", "quantile", "step_quantile")
DAMPINGS = ("adaptive", "none", "anderson")
SOLVERS = ("iteration", "direct", "auto")
FIRST_STEP, SHRINK, PATIENCE = 0.99, 0.9, 15
"""Adaptive damping: initial step size, and its factor after PATIENCE iterations without a new lowest residual."""
LOOK = 4
"""Iterations of recorded work between two looks of the host. A look takes as long as several launches, and an iteration
in which no sequence goes on takes its launches alone."""
LEAST_STEP = 1e-3
"""Step size at which the quantile rule stops."""
CYCLE = 1000
"""Iterations after which damping begins anew, unless the lowest residual has fallen to a tenth in them."""
QUANTILES = {"quantile": 0.75, "step_quantile": 0.9}
DEPTH, LEAST_REST = 5, {np.float32: 2.0**-20, np.float64: 2.0**-40}
"""Anderson acceleration: number of differences that it keeps, and the least square of what is new in a difference."""
FINEST = 32
"""Multiple of the machine epsilon below which residuals are noise. It is the smallest effective tolerance."""


class NotConverged(UserWarning):
    """A fixed point was not reached; the run continues."""


class ConvergenceError(RuntimeError):
    """A fixed point was not reached although the layer guarantees convergence."""


@dataclass(frozen=True)
class Iteration:
    """Settings of the iteration to a fixed point ("Fixed-Point RNNs", sections 3.1 and 5.2, and its authors' code).

    Each iteration computes ``y <- s F(y) + (1 - s) y`` and the residual ``r_b = |y - F(y)| / |F(y)|`` of every
    sequence, with maxima over its steps and channels.

    Parameters
    ----------
    tol : float
        A sequence has converged when its residual is below this tolerance.
    max_iterations : int
        Maximum number of iterations.
    train_iterations : int, "gamma", "rounded_gamma" or None
        Maximum number of iterations in training. None means `max_iterations`. The other two draw it for each training
        step, from its seed, its number and a site: "gamma" rounds Gamma(4, gamma_scale) up, as the authors' code does,
        which for a scale of 1 has mean 4.5 and mode 4; "rounded_gamma" rounds to the nearest integer from 1, which has
        the mean 4 and the mode 3 of the paper. Stopping at this limit is intended and gives no warning.
    damping : "adaptive", "none" or "anderson"
        "adaptive": s = 0.99, multiplied by 0.9 whenever 15 iterations gave no new lowest residual, as in the authors'
        code; where `stop` is "sequence", s is 0.99 again after each 1000 iterations in which the lowest residual has
        not fallen to a tenth. "none": s = 1, which takes fewer iterations where corrections travel through time step by
        step: with feedback of the output before, or not `accelerated`, on long sequences. "anderson": Anderson
        acceleration of depth 5 (`Anderson`), made for tiles of one or a few steps, where the iteration then also
        converges without contracting. The residual is multiplied by an estimate of ``|(I - J)^-1|``, at least 1, with
        the Jacobian J of F: so `tol` bounds the distance from the fixed point, as far as the estimate is right.
    stop : "sequence", "quantile" or "step_quantile"
        "sequence": each sequence ends by its own residual, and its result does not depend on other sequences.
        "quantile": all sequences end together, as in the authors' code, when the 75 % quantile of their lowest
        residuals so far (in evaluation, the largest one) is below `tol`, or no step size is above 0.001.
        "step_quantile": the same with the 90 % quantile, where the residual of a sequence is the largest residual of a
        single step; with damping "none" it is that of the authors' vector-state code. With all three, a sequence whose
        residual is NaN ends immediately, on its own.
    gamma_scale : float
        Scale of the gamma distribution: 1 in the paper, k/16 + 1 for sequences of k steps in the authors' code.
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
                self.train_iterations in (None, *DRAWN) or _is_count(self.train_iterations),
                f"{positive}, {', '.join(map(repr, DRAWN))} or None",
            ),
            ("damping", self.damping, self.damping in DAMPINGS, f"one of {', '.join(DAMPINGS)}"),
            ("stop", self.stop, self.stop in STOPS, f"one of {', '.join(STOPS)}"),
        ):
            if not good:
                raise ValueError(f"Iteration: {key}={value!r}, expected {expected}")

    @property
    def settings(self) -> dict[str, Any]:
        """Returns what streaming inference in the C library knows of it."""
        return {name: getattr(self, name) for name in ("tol", "max_iterations", "damping", "stop")}

    def least_tol(self, dtype: np.dtype[Any]) -> float:
        """Returns `tol`, or what residuals of this dtype can reach if that is larger."""
        return max(self.tol, FINEST * float(np.finfo(dtype).eps))

    @property
    def accelerates(self) -> bool:
        """Whether steps are those of Anderson acceleration."""
        return self.damping == "anderson"

    @property
    def ends_together(self) -> bool:
        """Whether the sequences of a batch end together, by a quantile."""
        return self.stop != "sequence"

    @property
    def each_step(self) -> bool:
        """Whether residuals are those of single steps, in any layer."""
        return self.stop == "step_quantile"

    @property
    def first_step(self) -> float:
        """The step size of the first iteration."""
        return FIRST_STEP if self.damping == "adaptive" else 1.0

    def limit(self, ctx: Context, site: int = 0) -> int:
        """Returns the maximum number of iterations for a call in this context."""
        if not ctx.train or self.train_iterations is None:
            return self.max_iterations
        if isinstance(self.train_iterations, str):
            return drawn_limit(ctx, site, self.gamma_scale, DRAWN[self.train_iterations])
        return self.train_iterations


def check_settings(layer: Any) -> None:
    """Raises ValueError, by the layer's name, unless its settings are good for its mixer and its iteration."""
    try:
        _ = layer._mixer, layer._iteration
    except ValueError as error:
        for part in ("Mixer:", "Iteration:"):
            rename(error, part, f"{type(layer).__name__}:")
        raise


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < np.inf


def drawn_limit(ctx: Context, site: int = 0, scale: float = 1.0, whole: Callable[[float], Any] = np.ceil) -> int:
    """Returns a random whole(Gamma(4, scale)), at least 1: the logarithm of the product of four uniform numbers."""
    counter = np.array([[2**32 - 1, LAST_PLACE, ctx.step, site]], np.int64)
    words = philox(counter, ctx.seed)
    return max(1, int(whole(-scale * np.log((words + 0.5) / 2**32).sum())))


def lengths_of(ctx: Context, y: Array) -> Steps:
    """Returns the number of valid steps of every sequence of y (B, T, D)."""
    B, T = y.shape[:2]
    if isinstance(ctx.lengths, CheckedLengths | RecordedLengths):
        return ctx.lengths
    if ctx.lengths is not None:
        return np.asarray(ctx.lengths, np.int64)
    full = np.full(B, T)
    return CheckedLengths.of(full, B, T) if recording() is None else RecordedLengths(beside(full, y), T)  # type: ignore[return-value]


class Report(NamedTuple):
    """For each sequence: number of iterations, residual of the last one (NaN if any number was NaN, or the layer's
    output is not finite), whether it was below `tol`, and the mean number of iterations that a step took part in.

    The residual is that of the iterate before the last update; the updated iterate is even closer. Where a sequence is
    solved by tiles of time, number and residual are the largest ones of its tiles, and the mean is over all steps;
    otherwise the mean is the number.
    """

    iterations: Steps
    residual: npt.NDArray[np.float64]
    converged: npt.NDArray[np.bool_]
    per_step: npt.NDArray[np.float64]

    @classmethod
    def of_tiles(cls, parts: Sequence[tuple[Report, Steps]], lengths: Steps) -> Report:
        """Returns the report of sequences from those of their tiles, each with the number of valid steps in it."""
        reports = [report for report, _ in parts]
        applied = sum(report.iterations * steps for report, steps in parts)
        return cls(
            np.max([one.iterations for one in reports], 0),
            np.max([one.residual for one in reports], 0),  # NaN if one is
            np.all([one.converged for one in reports], 0),
            applied / np.maximum(np.asarray(lengths), 1),
        )

    def numbers(self) -> dict[str, float]:
        """Returns numbers for the training log: mean of the number of iterations of a step; median and maximum of those
        of a sequence; and the largest residual (NaN if one is NaN)."""
        if not len(self.iterations):
            return {"iterations": 0.0, "median_iterations": 0.0, "max_iterations": 0.0, "residual": 0.0}
        return {
            "iterations": float(self.per_step.mean()),
            "median_iterations": float(np.median(self.iterations)),
            "max_iterations": float(self.iterations.max()),
            "residual": float(self.residual.max()),
        }


@dataclass
class Progress:
    """What an iteration knows of each sequence (B,), on the host or on a device, changed in place: step size, lowest
    residual so far and before the cycle, number of iterations since, last residual, number of iterations, and whether
    it goes on."""

    settings: Iteration
    train: bool
    tol: float
    s: Array
    lowest: Array
    before: Array
    waited: Array
    residual: Array
    iterations: Array
    running: Array

    @classmethod
    def at_start(cls, running: Array, dtype: np.dtype[Any], settings: Iteration, ctx: Context) -> Progress:
        """Returns the progress before the first iteration of the sequences that are `running`; it is there, too."""

        def all_of(value: float, kind: npt.DTypeLike) -> Array:
            return full(running.shape, value, kind, running)

        return cls(
            settings, ctx.train, settings.least_tol(dtype), s=all_of(settings.first_step, dtype),
            lowest=all_of(np.inf, float), before=all_of(1, float), waited=all_of(0, np.int64),
            residual=all_of(0, float), iterations=all_of(0, np.int64), running=running,
        )  # fmt: skip

    def add(self, found: Array, going: Array) -> None:
        """Adds the residuals that an iteration of the sequences `going` has found."""
        self.residual[...] = np.where(going, found, self.residual)
        self.iterations += going
        self.running &= ~np.isnan(self.residual)
        better = self.residual < self.lowest
        self.lowest[...] = np.where(better, self.residual, self.lowest)
        if self.settings.damping == "adaptive":
            self.waited[...] = np.where(better, 0, self.waited + 1)
            tired = self.waited == PATIENCE
            self.s[...] = np.where(tired, self.s * self.s.dtype.type(SHRINK), self.s)
            self.waited[...] = np.where(tired, 0, self.waited)
        if not self.settings.ends_together:
            self._begin_anew(going)
            self.running &= self.residual >= self.tol

    def _begin_anew(self, going: Array) -> None:
        """After a cycle that has brought little, sets the step size to the first one. Where it only shrinks, all
        iterations together may move no further than 149 undamped ones, which is too little for corrections that travel
        a step of time in each."""
        over = going & (self.iterations % CYCLE == 0)
        anew = over & (self.lowest > self.before / 10)
        self.s[...] = np.where(anew, self.s.dtype.type(self.settings.first_step), self.s)
        self.waited[...] = np.where(anew, 0, self.waited)
        self.before[...] = np.where(over, self.lowest, self.before)

    def all_end(self, together: Gather | None) -> bool:
        """Returns whether all sequences end by the quantile rule; `together` gathers those of all processes."""
        whole = np.stack([self.lowest, self.s], 1)[self.running]
        if together is not None:
            whole = np.concatenate(together(whole))
        if not len(whole):
            return True
        if np.quantile(whole[:, 0], QUANTILES[self.settings.stop] if self.train else 1.0) < self.tol:
            self.running[:] = False
            return True
        return bool(whole[:, 1].max() < LEAST_STEP)

    def numbers(self) -> Array:
        """Returns what the host looks at, (5, B) float64; `with_numbers` is the inverse, on the host."""
        given = self.s, self.lowest, self.residual, self.iterations, self.running
        return np.stack([one.astype(np.float64) for one in given])

    def with_numbers(self, numbers: npt.NDArray[np.float64]) -> Progress:
        s, lowest, residual, iterations, running = numbers
        return replace(
            self, s=s, lowest=lowest, residual=residual, iterations=iterations.astype(np.int64), running=running > 0
        )


class Anderson:
    """Anderson acceleration of ``y = F(y)`` for sequences (B, T, D), each on its own: instead of y <- f = F(y),

        y <- f - P Q^T r,     r = f - y

    where the columns of Q are the last DEPTH differences of residuals r, made orthonormal, and those of P the same
    combinations of differences of images f (Walker & Ni 2011; csrc/kernels/anderson.h is the same for a tile in C).

    For an affine F with the Jacobian J, the columns of ``P - Q`` are ``-(I - J)^-1 Q``, so that y is within
    ``|P - Q|_F |r|`` of the fixed point if r is in the span of Q. `step` returns the residual of `relax` times
    ``max(1, |P - Q|_F)``, unless it is rounding alone. This bounds the distance if I - J does not shrink vectors
    outside of the span.
    """

    def __init__(self, y: Array) -> None:
        self.shape, self.count = (len(y), y.shape[1] * y.shape[2]), 0
        self.r, self.f = (np.zeros(self.shape, y.dtype, like=y) for _ in range(2))
        self.Q, self.P = (np.zeros((DEPTH, *self.shape), y.dtype, like=y) for _ in range(2))
        self.square = np.zeros((DEPTH, len(y)), y.dtype, like=y)
        self.least, self.noise = LEAST_REST[y.dtype.type], FINEST * np.finfo(y.dtype).eps

    def step(self, y: Array, f: Array, lengths: Steps, each_step: bool) -> Array:
        """Updates y in place where `lengths` is not 0, and returns the residuals (B,)."""
        residual = relax(y, f, np.zeros(len(y), y.dtype, like=y), lengths=lengths, each_step=each_step)
        going = beside(np.asarray(lengths) > 0, y)[:, None]
        here = y.reshape(self.shape)
        f = np.where(going, mask_padding(f, lengths).reshape(self.shape), 0)
        r = np.where(going, f - here, 0)
        with np.errstate(invalid="ignore", over="ignore"):
            if self.count:
                self._keep(r - self.r, f - self.f)
            self.r, self.f, self.count = r, f, self.count + 1
            for q, p, square in zip(self.Q, self.P, self.square, strict=True):
                f = f - np.where(square > 0, (q * r).sum(1), 0)[:, None] * p
            here[...] = np.where(going, f, here)
            estimate = residual * np.sqrt(np.maximum(self.square.sum(0), 1))
        found: Array = np.where(residual > self.noise, estimate, residual)
        return found

    def _keep(self, q: Array, p: Array) -> None:
        """Replaces the oldest difference of residuals by q, and that of images by p."""
        slot = self.count % DEPTH
        self.square[slot] = 0
        whole = (q * q).sum(1)
        for other, image, square in zip(self.Q, self.P, self.square, strict=True):
            along = np.where(square > 0, (other * q).sum(1), 0)[:, None]
            q, p = q - along * other, p - along * image
        rest = (q * q).sum(1)
        good = (rest > self.least * whole) & (rest < np.inf)
        inverse = 1 / np.sqrt(np.where(good, rest, 1))
        self.Q[slot], self.P[slot] = (np.where(good[:, None], inverse[:, None] * one, 0) for one in (q, p))
        self.square[slot] = np.where(good, ((self.P[slot] - self.Q[slot]) ** 2).sum(1), 0)


class Solution(NamedTuple):
    """The last iterate (B, T, D), and the report of the iteration."""

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
    warn: bool = True,
) -> Solution:
    """Iterates to the fixed point ``y = F(y)``, starting from `y`.

    Parameters
    ----------
    function : callable
        ``F(y, lengths)`` returns (B, T, D) of y's dtype. `lengths` (B,) is the number of valid steps, and 0 for
        sequences that are done, whose result is ignored.
    y : (B, T, D), C-contiguous, float32 or float64
        The first iterate, zero beyond ``ctx.lengths``. Overwritten by the result.
    settings, ctx, site
        Tolerance and rules. With ``ctx.train`` the limit is that of training; if it is random, it is drawn for `site`.
    name, guaranteed
        Name of the caller for messages; whether an unreached fixed point is an error.
    each_step
        Use the residuals of single time steps, as in `rotrnn.ops.fixed_point.relax`.
    warn
        Whether a fixed point that is not reached is a warning or an error; if not, the caller complains.

    Returns
    -------
    Solution

    Warns
    -----
    NotConverged
        A sequence has not converged, or is not finite. There is no warning if ``settings.train_iterations`` was the
        limit.

    Raises
    ------
    ConvergenceError
        With `guaranteed`, instead of the warning, for finite sequences.
    """
    lengths, each_step = lengths_of(ctx, y), each_step or settings.each_step
    if settings.accelerates and recording() is not None:
        raise NotRecordable("damping='anderson' needs the host")
    anderson = Anderson(y) if settings.accelerates else None

    def step(s: Array, remaining: Steps) -> Array:
        f = function(y, remaining)
        if anderson is not None:
            return anderson.step(y, f, remaining, each_step)
        return relax(y, f, beside(s, y), lengths=remaining, each_step=each_step)

    asking: Any = {"site": site, "name": name, "guaranteed": guaranteed, "warn": warn}
    return Solution(y, iterate(step, lengths, y.dtype, settings, ctx, **asking))


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
    warn: bool = True,
) -> Report:
    """Like `solve`, with a function ``step(s, lengths)`` that updates y in place with step sizes s (B,) and returns the
    residuals (B,)."""
    B, there = lengths.shape[0], recording()
    together = ctx.gather if settings.ends_together else None
    running = np.asarray(lengths > 0) if there is None else lengths.there > 0  # type: ignore[attr-defined]
    progress = Progress.at_start(running, dtype, settings, ctx)
    report = Report(np.zeros(B, np.int64), np.zeros(B), np.zeros(B, bool), np.zeros(B))

    def after_one() -> Progress:
        progress.add(to_host(step(progress.s, only(lengths, progress.running))), progress.running)
        return progress

    def finish(last: Progress) -> None:
        ends = last.iterations, last.residual, last.residual < last.tol, last.iterations
        for to, value in zip(report, ends, strict=True):
            to[...] = value
        if warn:
            complain(report, last.running, settings, ctx, name, guaranteed)

    if there is not None:
        _record(there, step, progress, lengths, ctx, site, finish)
    elif running.any() or together is not None:
        finish(_until_the_end(after_one, settings.limit(ctx, site), 1, together))
    else:
        finish(progress)
    return report


def in_one_call(
    solved: DepthSolution,
    lengths: Steps,
    dtype: np.dtype[Any],
    settings: Iteration,
    ctx: Context = EVALUATION,
    *,
    name: str = "in_one_call",
    guaranteed: bool = False,
) -> Report:
    """Returns the report of a fixed point that a kernel has found by itself, and warns or raises as `solve` does."""
    iterations, applied, residual = (to_host(one) for one in (solved.iterations, solved.applied, solved.residual))
    residual = residual.astype(np.float64)
    converged = residual < settings.least_tol(dtype)
    report = Report(iterations, residual, converged, applied / np.maximum(np.asarray(lengths), 1))
    complain(report, residual >= settings.least_tol(dtype), settings, ctx, name, guaranteed)
    return report


def at_once(residual: Array, lengths: Steps) -> DepthSolution:
    """Returns what `in_one_call` reports of fixed points that were found directly, with this residual (B)."""
    if recording() is not None:
        raise NotRecordable("a direct fixed point needs the host")
    return DepthSolution(None, (lengths > 0).astype(np.int64), lengths, residual)


def check_output(out: Array, report: Report, name: str) -> None:
    """Says in the report, and in a warning, which sequences of the output (B, T, D) are not finite although their fixed
    points are, as a product of large numbers may be. A recorded pass does not: the host does not see its output."""
    if recording() is not None:
        return
    finite: Any = np.isfinite(out).all((1, 2))
    spoiled = ~to_host(finite) & ~np.isnan(report.residual)
    if not spoiled.any():
        return
    report.residual[spoiled], report.converged[spoiled] = np.nan, False
    found = f"{int(spoiled.sum())} of {plural(len(spoiled), 'sequence')}"
    warn(f"{name}: the output of {found} is not finite", NotConverged)


def _until_the_end(after: Callable[[], Progress], limit: int, each: int, together: Gather | None) -> Progress:
    """Returns the progress when no sequence goes on, or after at most `limit` iterations, of which `after` does
    `each`."""
    for _ in range(0, limit, each):
        last = after()
        if not last.running.any() and together is None:
            break
        if last.settings.ends_together and last.all_end(together):
            break
    return last


def _record(
    there: Recording,
    step: Callable[[Array, Steps], Array],
    progress: Progress,
    lengths: Steps,
    ctx: Context,
    site: int,
    finish: Callable[[Progress], None],
) -> None:
    """Records LOOK iterations, which are repeated until the host sees that no sequence goes on; one iteration where the
    host has a say in each: it weighs the sequences together, or draws the limit."""
    settings = progress.settings
    drawn = ctx.train and isinstance(settings.train_iterations, str)
    each = 1 if drawn or settings.ends_together else LOOK
    most = MOST_STEPS if each == 1 else settings.limit(ctx, site)

    def body() -> Array:
        for _ in range(each):
            going = progress.running & (progress.iterations < most)
            progress.add(step(progress.s, only(lengths, going)), going)
        return progress.numbers()

    def drive(again: Again, at: int) -> None:
        limit = settings.limit(replace(ctx, step=ctx.step + at), site)
        together = ctx.gather if settings.ends_together else None
        finish(_until_the_end(lambda: progress.with_numbers(again()), limit, each, together))

    there.loop(body, drive)


def complain(
    report: Report,
    running: npt.NDArray[np.bool_],
    settings: Iteration,
    ctx: Context,
    name: str,
    guaranteed: bool = False,
) -> None:
    """Warns of sequences that reached the limit or are not finite, unless the limit was that of training. Raises if a
    guaranteed fixed point was not reached."""
    spoiled = int(np.isnan(report.residual).sum())
    if (not running.any() and not spoiled) or (ctx.train and settings.train_iterations is not None):
        return
    message = f"{name}: no fixed point for {int(running.sum()) + spoiled} of {plural(len(running), 'sequence')}"
    if running.any():
        steps, residual = report.iterations[running].max(), report.residual[running].max()
        message += f": residual {residual:.2g} after {plural(steps, 'iteration')}"
    if spoiled:
        message += f" ({spoiled} not finite)"
    if guaranteed and running.any():
        raise ConvergenceError(f"{message}, though it is contractive: expected more iterations, or a larger tolerance")
    warn(message, NotConverged)
