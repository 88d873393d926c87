"""What "Fixed-Point RNNs" proves, as numbers and pictures; `python examples/theory.py` draws them (docs/theory.md).

tests/package/test_theory.py proves the same statements with the functions of this file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rotrnn import FixedPointRNN
from rotrnn.nn.layer import Array, Params, astype
from rotrnn.plots.style import BLUE, GREEN, GREY, ORANGE, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Word = tuple[int, ...]

# ------------------------------------------------------------------------- theorem 3.3: the gradient of the last step


def step_jacobians(lam: Array, Q: Array, B: Array, T: int) -> tuple[Array, Array]:
    """Returns the Jacobians J_x (T N, T D) and J_h (T N, T N) of one step in depth, over T steps in time:
    ``f_t = lam f_{t-1} + (1 - lam) [Q B x_t + (I - Q) h_t]``."""
    lag = np.subtract.outer(np.arange(T), np.arange(T))[..., None]
    scan = np.where(lag >= 0, lam ** np.maximum(lag, 0), 0) * (1 - lam)
    J_x, J_h = (np.einsum("tsn,nm->tnsm", scan, M).reshape(T * len(lam), -1) for M in (Q @ B, np.eye(len(Q)) - Q))
    return J_x, J_h


def jacobian_of_B(lam: Array, Q: Array, x: Array) -> Array:
    """Returns the Jacobian (T N, N D) of that step by the parameter B, for an input x (T, D)."""
    T, N = len(x), len(lam)
    through_Q, _ = step_jacobians(lam, Q, np.eye(N), T)
    by_B: Array = np.einsum("asn,sd->and", through_Q.reshape(T * N, T, N), x).reshape(T * N, -1)
    return by_B


def gradients(J: Array, J_h: Array, delta: Array) -> tuple[Array, Array]:
    """Returns the gradient of one step at the fixed point, ``J^T delta``, and the exact one,
    ``J^T (I - J_h)^-T delta``, for a gradient delta of the loss by the fixed point."""
    return J.T @ delta, J.T @ np.linalg.solve((np.eye(len(J_h)) - J_h).T, delta)


def worst_direction(J: Array, J_h: Array) -> tuple[float, Array]:
    """Returns the least inner product of these two gradients over all delta of length 1, and its delta: the least
    eigenvalue of the symmetric part of ``(I - J_h)^-1 J J^T``."""
    M = np.linalg.solve(np.eye(len(J_h)) - J_h, J @ J.T)
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    return float(values[0]), vectors[:, 0]


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def contraction(rng: np.random.Generator, N: int, norm: float) -> Array:
    """Returns a random Q with ``|I - Q| = norm``, where I - Q has full rank."""
    M = rng.standard_normal((N, N))
    mixer: Array = np.eye(N) - norm * M / np.linalg.norm(M, 2)
    return mixer


def reflection(rng: np.random.Generator, N: int, alpha: float) -> Array:
    """Returns ``Q = I - 2 alpha u u^T`` for a random direction u; ``|I - Q| = 2 alpha``."""
    u = rng.standard_normal(N)
    mixer: Array = np.eye(N) - 2 * alpha * np.outer(u, u) / (u @ u)
    return mixer


@styled
def draw_descent(N: int = 5, T: int = 6) -> Figure:
    """Draws the cosine of both gradients, for random delta and for the worst one, against the norm of J_h."""
    figure, ((many, worst),) = new_figure(8.4, 3.2, 1, 2)
    rng = np.random.default_rng(0)
    kinds = {"x, where J$_x$ = J$_h$": BLUE, "x, with random B": ORANGE, "the parameter B": GREEN}
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    drawn: dict[str, list[float]] = {kind: [] for kind in kinds}
    for norm in np.linspace(0.04, 0.98, 24):
        lam, Q = rng.uniform(0.3, 0.95, N), contraction(rng, N, norm)
        J_meets, J_h = step_jacobians(lam, Q, np.linalg.inv(Q) - np.eye(N), T)
        J_x, _ = step_jacobians(lam, Q, rng.standard_normal((N, N)), T)
        for kind, J in zip(kinds, (J_meets, J_x, jacobian_of_B(lam, Q, rng.standard_normal((T, N)))), strict=True):
            _, delta = worst_direction(J, J_h)
            found[kind].append((float(np.linalg.norm(J_h, 2)), cosine(*gradients(J, J_h, delta))))
            random = rng.standard_normal((200, len(J_h)))
            drawn[kind] += [cosine(*gradients(J, J_h, one)) for one in random]
    for kind, colour in kinds.items():
        norms, cosines = np.array(found[kind]).T
        worst.plot(norms, cosines, "o", color=colour, markersize=3.5, label=None)
        many.hist(drawn[kind], np.linspace(0, 1, 51), color=colour, histtype="step", linewidth=1.4, label=kind)
    norm = np.linspace(0, 1, 200)
    worst.plot(norm, np.sqrt(1 - norm**2), color=GREY, linewidth=1, label=r"$\sqrt{1 - |J_h|^2}$")
    worst.axhline(0, color="black", linewidth=0.8)
    many.set(title="Random directions", xlabel="cosine with the exact gradient", ylabel="draws", yscale="log")
    worst.set(title="The worst direction", xlabel="|J$_h$|", ylabel="cosine", ylim=(-1.05, 1.05))
    worst.legend(loc="upper right", fontsize=7, bbox_to_anchor=(1, 0.5))
    many.legend(loc="upper left", fontsize=7)
    return figure


# --------------------------------------------------------------------- theorem 3.4 and proposition D.2: random low rank


def random_maps(rng: np.random.Generator, N: int, rank: int | None, letters: int) -> list[tuple[Array, Array]]:
    """Returns the factors (W, M) of random maps ``A = W M^T`` of the proposition: normal W, M (N, rank) over
    ``sqrt(N rank)``, or with rank None a dense A with normal entries over sqrt(N) (M is then the identity)."""
    if rank is None:
        return [(rng.standard_normal((N, N)) / math.sqrt(N), np.eye(N)) for _ in range(letters)]
    size = math.sqrt(N * rank)
    return [(rng.standard_normal((N, rank)) / size, rng.standard_normal((N, rank))) for _ in range(letters)]


def of_word(maps: Sequence[tuple[Array, Array]], word: Word, Y: Array) -> Array:
    """Returns A_I Y for a word I, whose last letter is applied first."""
    for letter in reversed(word):
        W, M = maps[letter]
        Y = W @ (M.T @ Y)
    return Y


def inner_products(rng: np.random.Generator, N: int, rank: int | None, pair: tuple[Word, Word], draws: int) -> Array:
    """Returns draws of ``<A_I Y_0, A_J Y_0> / N``, which the proposition needs near 1 if I = J and else near 0."""
    values = []
    for _ in range(draws):
        maps, Y = random_maps(rng, N, rank, 1 + max(map(max, pair))), rng.standard_normal(N)
        values.append(of_word(maps, pair[0], Y) @ of_word(maps, pair[1], Y) / N)
    return np.array(values)


def error_of_word(N: float, rank: float, letters: int) -> float:
    """Returns the exact error in L2 of ``|A_I Y_0|^2 / N`` from 1, for a word of different letters.

    ``|M^T Y|^2`` is ``|Y|^2`` times a chi-squared number of rank degrees, and ``|W z|^2`` is |z|^2 times one of N, all
    independent. ``rank = inf`` is the dense A, as N degrees of M then fall away with W's own.
    """
    return math.sqrt((1 + 2 / N) ** (letters + 1) * (1 + 2 / rank) ** letters - 1)


def mean_of_repeated(N: float, rank: float) -> float:
    """Returns the exact mean of ``<A_I Y_0, A_J Y_0> / N`` for I = 12, J = 1112 (the counterexample of remark D.4, by
    Isserlis' theorem). It tends to 1 / rank with N."""
    return (N * rank + 2 + (N + 1) * (N + rank + 1)) / (N**2 * rank)


def signed_areas(steps: Array) -> Array:
    """Returns the area (paths,) that each path of steps (paths, T, 2) sweeps: its words 12 minus 21."""
    before = np.cumsum(steps, 1) - steps
    areas: Array = (before[..., 0] * steps[..., 1] - before[..., 1] * steps[..., 0]).sum(1)
    return areas


def explained_area(rng: np.random.Generator, N: int, kind: str, paths: int = 2000, T: int = 12) -> float:
    """Returns R^2, on other paths, of the signed area fitted to the final states ``Y_t = Y_{t-1} + sum_i A^i Y_{t-1}
    dw^i_t`` of a random RNN with diagonal, dense, rank 1 or rank log N transitions."""
    steps = rng.standard_normal((2 * paths, T, 2)) / math.sqrt(T)
    if kind == "diagonal":
        maps = [(np.diag(rng.standard_normal(N)), np.eye(N)) for _ in range(2)]
    else:
        ranks = {"dense": None, "rank 1": 1, "rank log N": math.ceil(math.log(N))}
        maps = random_maps(rng, N, ranks[kind], 2)
    Y = np.broadcast_to(rng.standard_normal(N), (2 * paths, N))
    for t in range(T):
        Y = Y + sum((Y @ M @ W.T) * steps[:, t, i, None] for i, (W, M) in enumerate(maps))
    features, area = np.concatenate([Y, np.ones((2 * paths, 1))], 1), signed_areas(steps)
    weights = np.linalg.lstsq(features[:paths], area[:paths], rcond=1e-9)[0]
    left, held = area[paths:] - features[paths:] @ weights, area[paths:]
    return 1 - float(left @ left / ((held - held.mean()) @ (held - held.mean())))


@styled
def draw_low_rank() -> Figure:
    """Draws errors of the proposition against N for several ranks, and how much of a path's area random RNNs know."""
    figure, ((words, repeated, area),) = new_figure(11.2, 3.2, 1, 3)
    rng = np.random.default_rng(0)
    sizes = np.array([8, 16, 32, 64, 128, 256])
    wide = np.geomspace(8, 1e5, 400)
    ranks = {"1": (lambda N: 1, ORANGE), "log N": (lambda N: round(math.log(N)), GREEN)}
    ranks["√N"] = lambda N: round(math.sqrt(N)), BLUE
    for label, (rank, colour) in ranks.items():
        words.loglog(wide, [error_of_word(N, rank(N), 2) for N in wide], color=colour, label=f"rank {label}")
        repeated.loglog(wide, [mean_of_repeated(N, rank(N)) for N in wide], color=colour, label=f"rank {label}")
        for N in sizes:
            same = inner_products(rng, N, rank(N), ((0, 1), (0, 1)), 1000)
            words.plot(N, np.sqrt(np.mean((same - 1) ** 2)), "o", color=colour, markersize=3)
    words.loglog(wide, [error_of_word(N, math.inf, 2) for N in wide], color=GREY, label="dense")
    words.set(title="Words I = J = 12 (dots: 1000 draws)", xlabel="N", ylabel="error in L²")
    repeated.set(title="Words I = 12, J = 1112: should be 0", xlabel="N", ylabel="mean")
    for kind, colour in (("dense", GREY), ("rank log N", GREEN), ("rank 1", ORANGE), ("diagonal", "#CC79A7")):
        fitted = [np.mean([explained_area(rng, N, kind) for _ in range(3)]) for N in sizes[:-1]]
        area.semilogx(sizes[:-1], fitted, "o-", markersize=3, color=colour, label=kind)
    area.set(title="Signed area of a path, from the state", xlabel="N", ylabel="R² on other paths", ylim=(-0.3, 1.05))
    area.axhline(0, color="black", linewidth=0.8)
    area.legend(fontsize=7, ncols=2, loc="center right", bbox_to_anchor=(1, 0.57))
    for axes in (words, repeated):
        axes.legend(fontsize=7)
    return figure


# ------------------------------------------------------------------- theorem 3.5: orthogonal matrices are reflections


def reflections(Q: Array) -> Array:
    """Returns unit vectors u (k, N) with ``Q = (I - 2 u_1 u_1^T) ... (I - 2 u_k u_k^T)``, for an orthogonal Q (N, N):
    one for each dimension of what Q moves, ``k = rank(Q - I)``.

    The reflection that exchanges Q e and e, for a unit vector e that Q moves, leaves in place all that Q does; after
    it, e is in place too.
    """
    rest, found = np.array(Q, np.float64), []
    smallest = 64 * len(rest) * np.finfo(np.float64).eps
    while True:
        moved = rest - np.eye(len(rest))
        lengths = np.linalg.norm(moved, axis=0)
        most = int(np.argmax(lengths))
        if lengths[most] <= smallest:
            return np.array(found).reshape(-1, len(rest))
        u = moved[:, most] / lengths[most]
        found.append(u)
        rest -= 2 * np.outer(u, u @ rest)


def orthogonal_that_moves(rng: np.random.Generator, N: int, moved: int) -> Array:
    """Returns a random orthogonal matrix that leaves a space of N - moved dimensions in place."""
    basis, inner = (np.linalg.qr(rng.standard_normal((n, n)))[0] for n in (N, moved))
    if np.linalg.det(inner) * (-1) ** moved < 0:
        inner[:, 0] *= -1  # with the other determinant it would leave one more dimension in place
    Q = np.eye(N)
    Q[:moved, :moved] = inner
    return basis @ Q @ basis.T


def product_of(u: Array, alpha: Array) -> Array:
    """Returns ``Q = prod_i (I - 2 alpha_i u_i u_i^T)`` (eq. 6), for unit vectors u (r, N)."""
    Q = np.eye(u.shape[1])
    for one, gain in zip(u, alpha, strict=True):
        Q = Q @ (np.eye(len(Q)) - 2 * gain * np.outer(one, one))
    return Q


@styled
def draw_householder(N: int = 16) -> Figure:
    """Draws how many reflections an orthogonal matrix needs, and eigenvalues of products against |I - Q|."""
    figure, ((count, signs),) = new_figure(8.4, 3.2, 1, 2)
    rng = np.random.default_rng(0)
    for moved, colour in ((4, GREEN), (10, BLUE), (N, ORANGE)):
        Q = orthogonal_that_moves(rng, N, moved)
        u = reflections(Q)
        errors = [np.linalg.norm(Q - product_of(u[:k], np.ones(k)), 2) for k in range(len(u) + 1)]
        count.semilogy(errors, "o-", markersize=3, color=colour, label=f"{moved}")
    count.set(title=f"Orthogonal matrices of size {N}", xlabel="reflections", ylabel="|Q - product|")
    count.set_xticks(range(0, N + 1, 4))
    count.legend(title="rank(Q - I)", fontsize=7, title_fontsize=7, loc="center", bbox_to_anchor=(0.42, 0.5))
    for r, colour in ((4, GREEN), (2, BLUE), (1, ORANGE)):
        norms, least = [], []
        for _ in range(250):
            u = rng.standard_normal((r, N))
            Q = product_of(u / np.linalg.norm(u, axis=1, keepdims=True), rng.uniform(0, 1, r))
            norms.append(np.linalg.norm(np.eye(N) - Q, 2))
            least.append(np.linalg.eigvals(Q).real.min())
        signs.plot(norms, least, ".", markersize=3, color=colour, label=f"r = {r}")
    signs.plot([0, 2], [1, -1], color="black", linewidth=0.8, linestyle=":", label="1 - |I - Q|")
    signs.axvspan(0, 1, color=GREY, alpha=0.12, linewidth=0)
    signs.axhline(0, color="black", linewidth=0.8)
    signs.set(title="Contraction (grey) has no negative eigenvalue", xlabel="|I - Q|")
    signs.set_ylabel("least real part of eigenvalues of Q")
    signs.legend(fontsize=7, markerscale=2)
    return figure


# ----------------------------------------------------------------------------- section 4.4: encodings of a position


def positions(tokens: Array, delimiter: float) -> tuple[Array, Array]:
    """Returns ``p_t = C h_t`` and B_t of the linear attention ``h_t = h_{t-1} + B_t x_t`` for non-zero scalar tokens,
    with C = 1 and B_t = 1 / x_t, but ``B_t = (1 - h_{t-1}) / x_t`` at the delimiter: p counts positions from 1."""
    h, p, B = 0.0, np.empty(len(tokens)), np.empty(len(tokens))
    for t, x in enumerate(tokens):
        B[t] = (1 - h if x == delimiter else 1) / x
        h += B[t] * x
        p[t] = h
    return p, B


def mismatch_without_state(longest: int) -> float:
    """Returns the least root mean square of ``p_{t+d} - p_t`` over all lengths d up to the longest, in units of
    ``p_2 - p_1``, for B and C that depend on the token alone.

    For d equal tokens a, the delimiter, and a again, p grows by c(a) b(a) a = 1 with each a and by one free number at
    the delimiter, so that ``p_{t+d} - p_t`` is d - 1 and that number.
    """
    apart = np.arange(longest, dtype=np.float64)[:, None]
    number = np.linalg.lstsq(-np.ones_like(apart), apart, rcond=None)[0]
    return float(np.sqrt(np.mean((apart + number) ** 2)))


def mismatch_with_state(longest: int) -> float:
    """Returns the same of `positions`, whose steps are 1, over sequences of equal tokens of all these lengths."""
    apart = []
    for length in range(1, longest + 1):
        p, _ = positions(np.concatenate([np.ones(length), [3.0], np.ones(length - 1)]), 3.0)
        apart.append(p[length:] - p[:length])
    return float(np.sqrt(np.mean(np.concatenate(apart) ** 2)))


@styled
def draw_positions() -> Figure:
    """Draws the encodings with a state-dependent B, and what is out of reach without one."""
    figure, ((with_state, without),) = new_figure(8.4, 3.0, 1, 2)
    for length, colour in ((4, GREEN), (7, BLUE), (12, ORANGE)):
        tokens = np.concatenate([np.ones(length), [3.0], np.ones(length - 1)])
        p, _ = positions(tokens, 3.0)
        with_state.plot(np.arange(1, 2 * length + 1), p, "o-", markersize=3, color=colour, label=f"length {length}")
    with_state.set(title="B$_t$ from the token and h$_{t-1}$", xlabel="t", ylabel="position p$_t$")
    with_state.legend(fontsize=7)
    longest = range(1, 33)
    without.plot(longest, [mismatch_without_state(n) for n in longest], color=ORANGE, label="B, C from the token")
    without.plot(longest, [mismatch_with_state(n) for n in longest], color=BLUE, label="B from h$_{t-1}$ too")
    without.set(title="Mismatch of p$_{t+δ}$ and p$_t$", xlabel="longest sequence", ylabel="positions, rms")
    without.legend(fontsize=7)
    return figure


# -------------------------------------------------------------------------- theorem 4.1: how long a gate stays open

THRESHOLD = math.log(99)
"""sigmoid(log 99) = 0.99."""


def expected_run(omega: float, b: float) -> float:
    """Returns the expected number of steps up to the first with ``sigmoid(omega x_t + b) <= 0.99``, for normal x_t:
    ``1 / Phi((log 99 - b) / |omega|)``."""
    return 2 / math.erfc(-(THRESHOLD - b) / (abs(omega) * math.sqrt(2)))


def drawn_runs(rng: np.random.Generator, omega: float, b: float, runs: int) -> Array:
    """Returns the number of steps up to the first closed gate, of `runs` sequences."""
    lengths, going = np.zeros(runs), np.ones(runs, bool)
    while going.any():
        lengths[going] += 1
        going[going] = 1 / (1 + np.exp(-(omega * rng.standard_normal(int(going.sum())) + b))) > 0.99
    return lengths


@styled
def draw_memory() -> Figure:
    """Draws the expected run against the size of omega, for biases below and above log 99."""
    figure, ((axes,),) = new_figure(5.2, 3.4)
    omega = np.geomspace(0.3, 30, 200)
    rng = np.random.default_rng(0)
    for b, colour in ((2.0, GREEN), (4.0, BLUE), (6.0, ORANGE), (8.0, "#CC79A7")):
        axes.loglog(omega, [expected_run(one, b) for one in omega], color=colour, label=f"b = {b:g}")
        for one in (2.0, 5.0, 12.0):
            axes.plot(one, drawn_runs(rng, one, b, 4000).mean(), "o", color=colour, markersize=3.5)
    axes.loglog(omega, 100 * np.exp(-(omega**2)), color=GREY, linestyle="--", label="as printed, ∝ exp(-ω²)")
    axes.axhline(2, color="black", linewidth=0.8)
    axes.set(
        title="Steps until the gate closes (dots: 4000 draws)", xlabel="|ω|", ylabel="expected steps", ylim=(0.8, 1e4)
    )
    axes.legend(fontsize=7)
    return figure


# --------------------------------------------------------------------------------------- the dense A_t of a fixed point


def moved_eigenvalue(lam: float | Array, alpha: float | Array) -> float | Array:
    """Returns the eigenvalue of ``A = [I - (1 - lam)(I - Q)]^-1 lam`` along u for ``Q = I - 2 alpha u u^T``."""
    return lam / (1 - 2 * alpha * (1 - lam))


def layer_with_gains(rank: int, gain: float, N: int = 24) -> tuple[FixedPointRNN, Params]:
    """Returns a layer with small lam and gains of about `gain`, in float64."""
    layer = FixedPointRNN(4, N, rank=rank, lambda_init=(0.1, 0.3))
    params = astype(layer.init(np.random.default_rng(rank)), np.float64)
    params["W_alpha"] *= 0.3
    params["W_alpha"][..., 0] = math.log(gain / (1 - gain))  # the input's first channel is 1
    return layer, params


@styled
def draw_spectrum(T: int = 60) -> Figure:
    """Draws the eigenvalue that a reflection moves, and the spectra of A_t along a sequence."""
    figure, (row,) = new_figure(12.0, 3.2, 1, 4)
    alpha = np.linspace(0, 1, 500)
    for lam, colour in ((0.1, GREEN), (0.25, BLUE), (0.6, ORANGE), (0.9, "#CC79A7")):
        value = np.asarray(moved_eigenvalue(lam, alpha))
        value[np.abs(value) > 3] = np.nan  # the pole
        row[0].plot(alpha, value, color=colour, label=f"λ = {lam:g}")
    row[0].axhspan(-1, 1, color=GREY, alpha=0.12, linewidth=0)
    row[0].set(title="Eigenvalue along u (grey: stable)", xlabel=r"gain $\alpha$", ylim=(-2, 2))
    row[0].legend(fontsize=7)
    x = np.random.default_rng(0).standard_normal((1, T, 4))
    x[..., 0] = 1
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 361))
    for axes, (rank, gain) in zip(row[1:], ((1, 0.9), (2, 0.9), (4, 0.9)), strict=True):
        layer, params = layer_with_gains(rank, gain)
        values = layer.eigenvalues(params, x)[0]
        axes.plot(circle.real, circle.imag, color="black", linewidth=0.8)
        colours = np.broadcast_to(np.arange(T)[:, None], values.shape)
        axes.scatter(values.real, values.imag, s=4, c=colours, cmap="viridis", linewidths=0)
        axes.set(title=f"A$_t$ for t to {T} (dark to light), r = {rank}", aspect="equal", xlabel="real part")
        axes.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    row[1].set_ylabel("imaginary part")
    return figure


PICTURES = {
    "fp-descent": draw_descent,
    "fp-low-rank": draw_low_rank,
    "fp-householder": draw_householder,
    "fp-positions": draw_positions,
    "fp-memory": draw_memory,
    "fp-spectrum": draw_spectrum,
}
