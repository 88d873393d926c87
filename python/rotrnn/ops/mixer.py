"""Channel mixers: apply a structured matrix Q_t to each token about an origin, ``o_t + Q_t (x_t - o_t)``. The matrix is
never formed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import MIXER, MIXER_MOST_STEPS
from rotrnn.devices.device import empty_like
from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import Declared

if TYPE_CHECKING:
    from rotrnn._cpu import Kernels

__all__ = [
    "MixGrads",
    "dplr_mix",
    "dplr_mix_backward",
    "gram_mix",
    "gram_mix_backward",
    "householder_mix",
    "householder_mix_backward",
    "kronecker_mix",
    "kronecker_mix_backward",
    "low_rank_mix",
    "low_rank_mix_backward",
    "monarch_mix",
    "monarch_mix_backward",
    "rotation_mix",
    "rotation_mix_backward",
]

HOUSEHOLDER, DPLR, LOW_RANK = (MIXER[name] for name in ("householder", "dplr", "low_rank"))
KRONECKER, MONARCH, GRAM = (MIXER[name] for name in ("kronecker", "monarch", "gram"))
MATRIX, ROTATION, MIXTURE = (MIXER[name] for name in ("matrix", "rotation", "mixture"))
VECTORS = (HOUSEHOLDER, DPLR, LOW_RANK)
"""Forms with vectors u (R, D) and a gain for each; other forms consist of triangles, a matrix, or angles."""
U, ALPHA = "mixer_vectors(form, R, D)", "mixer_gains(form, R, D)"
OF_VECTORS = Declared("mix_forward", "mix_backward", **{U: "R, D", ALPHA: "R"})
OF_TRIANGLES = Declared("mix_forward", "mix_backward", **{U: "N", ALPHA: "G"})
OF_ANGLES = Declared("mix_forward", "mix_backward", **{U: "R, H", ALPHA: "G"})


class MixGrads(NamedTuple):
    """Gradients of a mixer: of u and alpha (in their shapes), of x and of origin (B, T, D); dorigin is None without
    origin."""

    du: Array
    dalpha: Array
    dx: Array
    dorigin: Array | None


def householder_mix(
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Product of R generalised Householder reflections, applied to every token in O(D R).

    ``y_t = Q_t x_t`` with ``Q_t = prod_{i=1..R} (I - 2 alpha_i w_i w_i^T)``, ``w_i = u_i / |u_i|`` ("Fixed-Point RNNs",
    eq. 6). In this product, reflection 1 is leftmost and reflection R is applied first. Gain 1 is a reflection
    (Q orthogonal), 1/2 the projection that removes w, and 0 the identity; any gain is allowed.

    Parameters
    ----------
    u : (R, D), or time-varying (B, T, R, D)
        Directions of any length; they are normalised. A zero vector is ignored, and its gradient is zero.
    alpha : (R,), or time-varying (B, T, R)
        Gains. Either of `u` and `alpha` may be time-varying while the other is constant.
    x : (B, T, D)
        Tokens, float32 or float64; all arrays are promoted to their common dtype. R and T may be 0.
    origin : (B, T, D), optional
        Fixed point of the map: ``y_t = o_t + Q_t (x_t - o_t)``, as used by fixed points in depth. Default: zero.
    lengths : (B,) integers in [0, T], optional
        Number of valid tokens of each sequence. Padding beyond is never read (it may be NaN) and is zero in `y`.
    out : (B, T, D), optional
        Array for the result `y`: writeable, C-contiguous, of the common dtype, and not overlapping an input.

    Returns
    -------
    y : (B, T, D)

    Raises
    ------
    TypeError
        An array has another dtype (integers and float16 are not supported).
    ValueError
        Shapes disagree, a length is out of range, `out` does not fit, or a size product overflows.
    """
    return _mix("householder_mix", HOUSEHOLDER, u, alpha, x, origin, lengths, out)


def householder_mix_backward(
    dy: npt.ArrayLike,
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> MixGrads:
    """Adjoint of `householder_mix`. Recomputes the input of each reflection, token by token.

    For one reflection ``y = v - 2 alpha s w``, ``s = w.v``, with g the gradient of y and ``q = w.g``:
    ``dv = g - 2 alpha q w``, ``dalpha = -2 s q``, ``dw = -2 alpha (s g + q v)``, ``du = (dw - w (w.dw)) / |u|``. The
    gradients of constant `u` and `alpha` are summed over all tokens in a fixed order; ``dorigin = dy - dx``.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of `y`; padding beyond `lengths` is never read.
    u, alpha, x, origin, lengths
        As given to `householder_mix`.
    out : (B, T, D), optional
        Array for the result `dx`, as in `householder_mix`.

    Returns
    -------
    MixGrads
        ``(du, dalpha, dx, dorigin)``, nothing is accumulated; zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `householder_mix`.
    """
    return _mix_backward("householder_mix_backward", HOUSEHOLDER, dy, u, alpha, x, origin, lengths, out)


def dplr_mix(
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Identity minus a matrix of rank R: ``Q_t = I - 2 sum_i alpha_i w_i w_i^T``, ``w_i = u_i / |u_i|``, in O(D R).

    The diagonal-plus-low-rank mixer of the code of "Fixed-Point RNNs". All terms are applied to the same token, while
    the reflections of `householder_mix` are applied one after the other. Arguments, result and errors as in
    `householder_mix`.
    """
    return _mix("dplr_mix", DPLR, u, alpha, x, origin, lengths, out)


def dplr_mix_backward(
    dy: npt.ArrayLike,
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> MixGrads:
    """Adjoint of `dplr_mix`. Q is symmetric, so ``dx = Q dy``; du, dalpha, arguments, result and errors as in
    `householder_mix_backward`."""
    return _mix_backward("dplr_mix_backward", DPLR, dy, u, alpha, x, origin, lengths, out)


def low_rank_mix(
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Matrix of rank R: ``Q_t = sum_i alpha_i w_i w_i^T``, ``w_i = u_i / |u_i|``, in O(D R).

    The first mixer of "Fixed-Point RNNs", section 3.3. The paper requires that the gains sum to at most 1, so that
    ``|Q| <= 1``; here any gains are allowed. With R < D, Q is singular. Arguments, result and errors as in
    `householder_mix`.
    """
    return _mix("low_rank_mix", LOW_RANK, u, alpha, x, origin, lengths, out)


def low_rank_mix_backward(
    dy: npt.ArrayLike,
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> MixGrads:
    """Adjoint of `low_rank_mix`: ``dx = Q dy``, ``dalpha = s q``, ``dw = alpha (s dy + q x)``, s = w.x, q = w.dy.
    Arguments, result and errors as in `householder_mix_backward`."""
    return _mix_backward("low_rank_mix_backward", LOW_RANK, dy, u, alpha, x, origin, lengths, out)


def kronecker_mix(
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    rows: int,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Identity minus twice a Kronecker product, applied to every token in O(D (a + b)).

    A token of D = a b channels is reshaped (row-major) to a matrix M (a, b), and ``Q M = M - 2 L^T M K^T``, where
    ``L = diag(alpha_left) rownormalise(U U^T)`` with an upper triangular U, and K likewise from the right U. This is
    the mixer of the code of "Fixed-Point RNNs", published after the paper.

    Parameters
    ----------
    u : (N,), or time-varying (B, T, N), N = a (a + 1) / 2 + b (b + 1) / 2
        The upper triangle of the left U by rows, then of the right U. A zero row of U U^T stays zero.
    alpha : (a + b,), or time-varying (B, T, a + b)
        Gains of the rows of the left factor, then of the right factor.
    x : (B, T, D)
    rows : int
        a, which must divide D.
    origin, lengths, out
        As in `householder_mix`.

    Returns
    -------
    y : (B, T, D)

    Raises
    ------
    TypeError, ValueError
        As `householder_mix`, or `rows` does not divide D.
    """
    return _mix("kronecker_mix", KRONECKER, u, alpha, x, origin, lengths, out, rows)


def kronecker_mix_backward(
    dy: npt.ArrayLike,
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    rows: int,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> MixGrads:
    """Adjoint of `kronecker_mix`.

    With ``N = L^T M K^T`` and dN = -2 dy: ``dM = dy + L dN K``, ``dL = M K^T dN^T``, ``dK = dN^T L^T M``. For a factor
    ``diag(s) W``, where W has the normalised rows of ``G = U U^T``: ``dG_i = (dW_i - W_i (W_i.dW_i)) / |G_i|``,
    ``dU = (dG + dG^T) U``. Arguments, result and errors as in `householder_mix_backward`.
    """
    return _mix_backward("kronecker_mix_backward", KRONECKER, dy, u, alpha, x, origin, lengths, out, rows)


def monarch_mix(
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    rows: int,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Identity minus a block-diagonal matrix, applied to every token in O(D rows).

    ``Q = I - blockdiag(alpha_k U_k U_k^T)`` with upper triangular U_k (rows, rows), for D / rows blocks of adjacent
    channels: one factor of a Monarch matrix. With gains divided by the largest length of a column of each ``U_k U_k^T``
    it is the mixer of this name in the code of "Fixed-Point RNNs".

    Parameters
    ----------
    u : (N,), or time-varying (B, T, N), N = D (rows + 1) / 2
        The upper triangles of the U_k by rows, one after the other.
    alpha : (D / rows,), or time-varying (B, T, D / rows)
        Gains of the blocks.
    x : (B, T, D)
    rows : int
        Channels of a block, which must divide D.
    origin, lengths, out
        As in `householder_mix`.

    Returns
    -------
    y : (B, T, D)

    Raises
    ------
    TypeError, ValueError
        As `householder_mix`, or `rows` does not divide D.
    """
    return _mix("monarch_mix", MONARCH, u, alpha, x, origin, lengths, out, rows)


def monarch_mix_backward(
    dy: npt.ArrayLike,
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    rows: int,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> MixGrads:
    """Adjoint of `monarch_mix`. Q is symmetric, so ``dx = Q dy``; with ``G = U U^T`` of a block,
    ``dalpha = -dy . G x``, ``dG = -alpha dy x^T``, ``dU = (dG + dG^T) U``. Arguments, result and errors as in
    `householder_mix_backward`."""
    return _mix_backward("monarch_mix_backward", MONARCH, dy, u, alpha, x, origin, lengths, out, rows)


def gram_mix(
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Dense matrix ``Q = alpha U U^T`` with an upper triangular U (D, D), applied to every token in O(D^2).

    With the gain ``1 / (lambda_max + eps)``, where lambda_max is the largest eigenvalue of ``U U^T``, it is the dense
    input-dependent mixer of the code of "Fixed-Point RNNs". u is (D (D + 1) / 2,) or (B, T, D (D + 1) / 2), the upper
    triangle of U by rows, and alpha (1,) or (B, T, 1). The other arguments, result and errors are as in
    `householder_mix`; D is 1 or more.
    """
    return _mix("gram_mix", GRAM, u, alpha, x, origin, lengths, out)


def gram_mix_backward(
    dy: npt.ArrayLike,
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> MixGrads:
    """Adjoint of `gram_mix`: ``dx = Q dy``, ``dalpha = dy . G x``, ``dG = alpha dy x^T``, ``dU = (dG + dG^T) U``.
    Arguments, result and errors as in `householder_mix_backward`."""
    return _mix_backward("gram_mix_backward", GRAM, dy, u, alpha, x, origin, lengths, out)


def rotation_mix(
    u: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Product of R rotations, each of D / 2 planes of two channels, applied to every token in O(D R).

    ``y_t = Q_t x_t`` with ``Q_t = R_1 .. R_R``; R_R is applied first. Factor k turns plane i, of the channels
    i and ``j = D / 2 + (i + s_k) mod D / 2``, by the angle u_ki:

        y_i = cos(u_ki) x_i - sin(u_ki) x_j,     y_j = sin(u_ki) x_i + cos(u_ki) x_j

    The shifts s_k are 0, 1, 3, 7, ..., and from factor ``m = ceil(log2 D) + 1`` on again 0, 1, ...: the first k
    factors reach min(2^k, D) channels from each channel, for any even D. Q is orthogonal for any angles. It turns by u
    from -1e16 to 1e16; an angle beyond may be half a turn instead, in either dtype, since it is not reduced.

    Parameters
    ----------
    u : (R, D / 2), or time-varying (B, T, R, D / 2)
        Angles in radians.
    x : (B, T, D)
        Tokens, float32 or float64, with an even D; all arrays are promoted to their common dtype.
    origin, lengths, out
        As in `householder_mix`.

    Returns
    -------
    y : (B, T, D)

    Raises
    ------
    TypeError, ValueError
        As `householder_mix`, or D is odd.
    """
    return _mix("rotation_mix", ROTATION, u, no_gains(u), x, origin, lengths, out)


def rotation_mix_backward(
    dy: npt.ArrayLike,
    u: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    origin: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> MixGrads:
    """Adjoint of `rotation_mix`. In a plane with the gradient (g_i, g_j) of its turned pair (y_i, y_j), the angle has
    the gradient ``y_i g_j - y_j g_i``; pairs and gradients are turned back factor by factor. dalpha is empty.
    Arguments, result and errors as in `householder_mix_backward`."""
    return _mix_backward("rotation_mix_backward", ROTATION, dy, u, no_gains(u), x, origin, lengths, out)


def no_gains(like: Any) -> Any:
    """Returns the empty alpha of a mixer without gains, beside an array `like` of it."""
    try:
        return np.zeros_like(like, shape=(0,))
    except (TypeError, ValueError):  # no array, which the call refuses by its name
        return np.zeros(0)


def normalised_mix(
    form: int, u: Array, alpha: Array, x: Array, rows: int, *, origin: Array | None = None, lengths: Any = None
) -> Array:
    """The op of a mixer `form` with gains of `mixer_gains`; `rows` is for a form without vectors."""
    return _mix("normalised_mix", form, u, alpha, x, origin, lengths, None, rows, True)


def normalised_mix_backward(
    dy: Array,
    form: int,
    u: Array,
    alpha: Array,
    x: Array,
    rows: int,
    *,
    origin: Array | None = None,
    lengths: Any = None,
) -> MixGrads:
    """Adjoint of `normalised_mix`."""
    return _mix_backward("normalised_mix_backward", form, dy, u, alpha, x, origin, lengths, None, rows, True)


class GainsGrads(NamedTuple):
    """Gradients of `mixer_gains`, in the shapes of u and alpha."""

    du: Array
    dalpha: Array


def mixer_gains(
    form: int, u: npt.ArrayLike, alpha: npt.ArrayLike, rank: int, width: int, *, eps: float = 0.0, steps: int = 0
) -> Array:
    """The gains of a mixer whose vectors are normalised as v / max(|v|, eps), for `normalised_mix`.

    It normalises vectors of any length, so an epsilon is a change of the gains: with ``c(r) = min(1, r / eps)``,
    ``gain_i = alpha_i c(|u_i|)^2``. For Kronecker, ``gain_i = alpha_i c(|G_i|)`` for each row of ``G = U U^T``, left
    and right, and with `steps` its two factors ``W = diag(c) rownormalise(G)`` are also divided by sigma + eps: sigma
    is an estimate of the largest eigenvalue of W, ``|W x|`` after `steps` - 1 steps of ``x <- W x / |W x|`` from
    ``(1, .., 1) / sqrt(n)``, as in the code of "Fixed-Point RNNs" (spectral normalisation).

    The gains of Monarch, ``alpha_k / (largest |column| of U_k U_k^T + eps)``, and Gram, ``alpha / (sigma + eps)`` with
    sigma of ``U U^T``, are returned times p^2, where p is the power of two with the largest number of U in [p, 2p),
    or 1 if U is zero: they belong to U / p, whose squares neither overflow nor vanish.

    Parameters
    ----------
    form : int
        Of the mixer: HOUSEHOLDER, DPLR, LOW_RANK, KRONECKER, MONARCH or GRAM.
    u, alpha
        As for the mixer's op, both constant or both (B, T, ...).
    rank, width : int
        R, or `rows` of a mixer without vectors; and the number D of channels.
    eps : float
    steps : int
        Of the power iteration: for a Kronecker mixer, where 0 is none, and for Gram, which needs one.

    Returns
    -------
    gains : as alpha

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, a number out of its range, or `steps` with another mixer or missing.
    """
    kernels, inputs = _gains_arguments("mixer_gains", form, rank, width, eps, steps, u, alpha)
    gains = empty_like(inputs["alpha"])
    kernels.mixer_gains_forward(gains=gains, **inputs)
    return gains


def mixer_gains_backward(
    dgains: npt.ArrayLike,
    form: int,
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    rank: int,
    width: int,
    *,
    eps: float = 0.0,
    steps: int = 0,
) -> GainsGrads:
    """Adjoint of `mixer_gains`, through each step of the power iteration.

    ``dalpha_i = dgain_i c^2``, and where ``|u_i| < eps``, ``du_i = 2 dgain_i alpha_i c / eps u_i / |u_i|``;
    csrc/kernels/mixer_gains.h has the adjoint of the other forms. Arguments are as in `mixer_gains`, and dgains is as
    its result.
    """
    op = "mixer_gains_backward"
    if dgains is None:
        raise TypeError(f"{op}: dgains is None, expected the gradient of the gains")
    kernels, inputs = _gains_arguments(op, form, rank, width, eps, steps, u, alpha, dgains)
    grads = GainsGrads(empty_like(inputs["u"]), empty_like(inputs["alpha"]))
    kernels.mixer_gains_backward(**grads._asdict(), **inputs)
    return grads


def _gains_arguments(
    op: str, form: int, rank: int, width: int, eps: float, steps: int, u: Any, alpha: Any, dgains: Any = None
) -> tuple[Kernels, dict[str, Any]]:
    args = Boundary(op)
    args.integer("form", form, 0, GRAM)
    args.bind("D", args.integer("width", width), "width")
    args.bind("R", args.integer("rank", rank), "rank")
    au, aalpha = checked_parts(args, form, u, alpha, rank)
    given = {"u": au, "alpha": aalpha}
    lead = au.shape[: au.ndim - axes_of(form)]
    if dgains is not None:
        letter = "R" if form in VECTORS else "G"
        given["dgains"] = args.array("dgains", dgains, letter, f"B T {letter}")
    for name, array in given.items():
        if name != "u" and array.shape[:-1] != lead:
            raise ValueError(f"{op}: {name} has shape {array.shape}, expected {(*lead, array.shape[-1])} as u")
    if bool(args.integer("steps", steps, 0, MIXER_MOST_STEPS)) != (form == GRAM) and form != KRONECKER:
        raise ValueError(f"{op}: steps={steps}, expected {'1 or more' if form == GRAM else 0} with this form")
    inputs = dict(zip(given, args.common(*given.values()), strict=True))
    numbers = {"M": math.prod(lead), "R": args.size["R"], "D": width, "form": form, "steps": steps}
    return args.kernels, {**inputs, **numbers, "eps": args.number("eps", eps)}


def checked_parts(
    args: Boundary, form: int, u: npt.ArrayLike, alpha: npt.ArrayLike, rows: int | None = None
) -> tuple[Array, Array]:
    """Checks u and alpha of a mixer for tokens of D channels, bound in `args`; `rows` belongs to a form without
    vectors. Binds R."""
    if form in VECTORS:
        return args.array("u", u, "R D", "B T R D"), args.array("alpha", alpha, "R", "B T R")
    _bind_sizes(args, form, rows)
    if form == ROTATION:
        return args.array("u", u, "R H", "B T R H"), args.array("alpha", alpha, "G", "B T G")
    return args.array("u", u, "N", "B T N"), args.array("alpha", alpha, "G", "B T G")


def axes_of(form: int) -> int:
    """Returns the number of axes of u of one token."""
    return 2 if form in VECTORS or form == ROTATION else 1


def rows_of_product(width: int) -> int:
    """Returns the rows of a Kronecker mixer's left factor: the largest divisor of `width` up to its root."""
    return max(rows for rows in range(1, math.isqrt(width) + 1) if width % rows == 0)


def columns_of(args: Boundary, form: int, rank: int, width: int) -> tuple[int, int]:
    """Returns how many numbers of u and of alpha a token of `width` channels has, also of a mixture. A matrix is the
    same for all tokens; neither has it gains, nor has GRAM, whose gain is 1."""
    args.integer("form", form, 0, MIXTURE)
    least = 2 if form == MIXTURE else 0 if form in VECTORS or form == ROTATION else 1
    most = None if least == 0 else width
    rank = args.integer("rank", rank, least, most)
    if form == MIXTURE:
        (u, alpha), products = columns_of(args, KRONECKER, rows_of_product(width), width), rank // 2
        return (rank - products) * width + products * u, rank - products + products * alpha
    if form in VECTORS:
        return rank * width, rank
    if form == ROTATION and width % 2:
        raise ValueError(f"{args.op}: a rotation with E={width}, expected an even number of channels")
    if (form in (GRAM, MATRIX) and rank != width) or (form in (KRONECKER, MONARCH) and width % rank):
        expected = "E" if form in (GRAM, MATRIX) else "a divisor of E"
        raise ValueError(f"{args.op}: rank={rank!r}, expected {expected}={width} with form={form}")
    if form == ROTATION:
        return rank * (width // 2), 0
    columns = width // rank
    triangles = rank * (rank + 1) // 2
    if form == KRONECKER:
        return triangles + columns * (columns + 1) // 2, rank + columns
    return {MONARCH: (columns * triangles, columns), GRAM: (triangles, 0), MATRIX: (0, 0)}[form]


def _bind_sizes(args: Boundary, form: int, rows: int | None) -> None:
    """Binds the sizes of a mixer without vectors for tokens of D channels."""
    D = args.size["D"]
    if form == ROTATION:
        if D % 2:
            raise ValueError(f"{args.op}: D={D}, expected an even number of channels for a rotation")
        args.bind("H", D // 2, "half of the channels")
        args.bind("G", 0, "a rotation, which has no gains")
        return
    a = D if form in (GRAM, MATRIX) else args.integer("rows", 0 if rows is None else rows, 1)
    if not a or D % a:
        raise ValueError(f"{args.op}: rows={a!r}, expected a divisor of D={D}")
    b = D // a
    args.bind("R", a, "rows")
    if form == KRONECKER:
        args.bind("N", (a * (a + 1) + b * (b + 1)) // 2, f"two triangles of {a} and {b} rows")
        args.bind("G", a + b, "rows and columns")
    elif form == MATRIX:
        args.bind("N", a * a, f"a matrix of {a} rows")
        args.bind("G", 0, "a matrix, which has no gains")
    else:
        args.bind("N", b * a * (a + 1) // 2, f"{b} triangles of {a} rows")
        args.bind("G", b, "blocks")


def _mix(
    op: str,
    form: int,
    u: Any,
    alpha: Any,
    x: Any,
    origin: Any,
    lengths: Any,
    out: Array | None,
    rows: int | None = None,
    normalised: bool = False,
) -> Array:
    arrays = {"x": x, "origin": origin, "u": u, "alpha": alpha, "lengths": lengths}
    return _call(op, "y", form, out, rows, normalised, **arrays)["y"]


def _mix_backward(
    op: str,
    form: int,
    dy: Any,
    u: Any,
    alpha: Any,
    x: Any,
    origin: Any,
    lengths: Any,
    out: Any,
    rows: Any = None,
    normalised: bool = False,
) -> MixGrads:
    arrays = {"dy": dy, "x": x, "origin": origin, "u": u, "alpha": alpha, "lengths": lengths}
    return MixGrads(**_call(op, "dx", form, out, rows, normalised, **arrays))


def _call(
    op: str, result: str, form: int, out: Array | None, rows: int | None, normalised: bool, **arrays: Any
) -> dict[str, Any]:
    """Calls the kernel of a mixer or its adjoint, whose `result` goes to `out`. Returns all results."""
    args = Boundary(op)
    if form not in VECTORS:
        args.array("x", arrays["x"], "B T D")
        _bind_sizes(args, form, rows)
    args.take(OF_VECTORS if form in VECTORS else OF_ANGLES if form == ROTATION else OF_TRIANGLES, **arrays)
    kernel = "mix_forward" if result == "y" else "mix_backward"
    where = out is None or args.into(out, "x", *arrays.values())
    return args.run(kernel, **{result: where}, form=form, normalised=normalised)
