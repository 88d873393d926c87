"""The statements of docs/theory.md, each proved with the functions that draw its picture (examples/theory.py)."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import theory
import theory_of_fixed_points as fp
import theory_of_lru as lru
import theory_of_rotrnn as rot
from lru_figures import adam, learn_power, power_loss
from rotrnn import LRU, RNN, FixedPointRNN, NotConverged
from rotrnn.nn.layer import astype
from rotrnn.ops import householder_mix

ROOT = Path(__file__).parents[2]
EPS = np.finfo(np.float64).eps

# ------------------------------------------------------------------------------- Fixed-Point RNNs, theorem 3.3


def layer_of(Q_alpha: float, B: np.ndarray | None, gradient: str, T: int = 6, N: int = 5):
    """Returns a layer with constant Q of one reflection, C = I and D = 0, its parameters, lam and Q. Without a B it is
    that for which both Jacobians are one."""
    layer = FixedPointRNN(N, N, selective=(), gradient=gradient, tol=1e-14, max_iterations=5000)
    rng = np.random.default_rng(1)
    params = astype(layer.init(rng), np.float64)
    params |= {"b_lambda": rng.uniform(-1, 3, N), "alpha": np.log([Q_alpha / (1 - Q_alpha)])}
    u = params["u"][0] / np.linalg.norm(params["u"])
    Q = np.eye(N) - 2 * Q_alpha * np.outer(u, u)
    params |= {"B": np.linalg.inv(Q) - np.eye(N) if B is None else B, "C": np.eye(N), "D": np.zeros(N)}
    return layer, params, 1 / (1 + np.exp(-params["b_lambda"])), Q


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.49])
def test_theorem_3_3_holds_for_x_in_a_layer_whose_jacobians_are_one(alpha: float) -> None:
    """B = Q^-1 - I makes J_x = J_h = J. Then one step's gradient is (I - J)^T of the exact one, so that the angle
    between them is at most arcsin |J|; both are those of the layer, which iterates to rounding over 1 - |J|."""
    T, N = 6, 5
    rng = np.random.default_rng(0)
    grads = {}
    x, deltas = rng.standard_normal((1, T, N)), rng.standard_normal((9, T, N))
    for gradient in ("one_step", "implicit"):
        layer, params, lam, Q = layer_of(alpha, None, gradient)
        _, saved = layer.forward(params, x)
        grads[gradient] = [layer.backward(params, saved, one[None])[0].ravel() for one in deltas]
    J_x, J_h = fp.step_jacobians(lam, Q, params["B"], T)
    norm = np.linalg.norm(J_h, 2)
    assert norm <= 2 * alpha  # theorem 3.2: |J_h| <= |I - Q|
    np.testing.assert_allclose(J_x, J_h, rtol=0, atol=16 * N * EPS / (1 - 2 * alpha))  # the condition of Q
    atol = 256 * T * N * EPS / (1 - norm) ** 2
    for one_step, exact, delta in zip(grads["one_step"], grads["implicit"], deltas, strict=True):
        expected = fp.gradients(J_x, J_h, delta.ravel())
        np.testing.assert_allclose(one_step, expected[0], rtol=0, atol=atol)
        np.testing.assert_allclose(exact, expected[1], rtol=0, atol=atol)
        np.testing.assert_allclose(one_step, exact - J_h.T @ exact, rtol=0, atol=atol)
        assert fp.cosine(one_step, exact) >= math.sqrt(1 - norm**2) - atol
    least, delta = fp.worst_direction(J_x, J_h)
    assert least >= -64 * T * N * EPS
    assert fp.cosine(*fp.gradients(J_x, J_h, rng.standard_normal(T * N))) >= math.sqrt(1 - norm**2)


def test_theorem_3_3_holds_neither_without_that_nor_for_parameters() -> None:
    """With a random B, and for B itself in the layer that meets the condition, there are losses that rise along the
    gradient of the last step: its inner product with the exact one is far below rounding."""
    T, N = 6, 5
    rng = np.random.default_rng(0)
    x = rng.standard_normal((T, N))
    for B, name in ((rng.standard_normal((N, N)), "x"), (None, "B")):
        grads = []
        for gradient in ("one_step", "implicit"):
            layer, params, lam, Q = layer_of(0.45, B, gradient)
            J_x, J_h = fp.step_jacobians(lam, Q, params["B"], T)
            J = J_x if name == "x" else fp.jacobian_of_B(lam, Q, x)
            least, delta = fp.worst_direction(J, J_h)
            _, saved = layer.forward(params, x[None])
            dx, dparams, _ = layer.backward(params, saved, delta.reshape(1, T, N))
            grads.append((dx if name == "x" else dparams["B"]).ravel())
        assert least < -1e-6
        assert grads[0] @ grads[1] == pytest.approx(least, abs=1e-10)


# ---------------------------------------------------------------------- theorem 3.4 and proposition D.2


@pytest.mark.parametrize(("N", "rank"), [(32, 4), (32, 32), (48, 1), (40, None)])
def test_proposition_d_2_for_one_word_twice(N: int, rank: int | None) -> None:
    """Mean 1, and variance exactly (1 + 2/N)^(n+1) (1 + 2/r)^n - 1: within five standard errors of the sample."""
    values = fp.inner_products(np.random.default_rng(0), N, rank, ((0, 1), (0, 1)), 2000)
    variance = fp.error_of_word(N, math.inf if rank is None else rank, 2) ** 2
    squares = (values - 1) ** 2
    assert abs(values.mean() - 1) < 5 * values.std() / math.sqrt(len(values))
    assert abs(squares.mean() - variance) < 5 * squares.std() / math.sqrt(len(values))


@pytest.mark.parametrize(("N", "rank"), [(32, 1), (48, 4), (32, 16)])
def test_proposition_d_2_and_remark_d_4_for_two_words(N: int, rank: int) -> None:
    """12 and 21 have mean 0 at any rank; 12 and 1112 the exact mean, near 1 / rank, which bounded ranks never lose."""
    rng = np.random.default_rng(1)
    apart = fp.inner_products(rng, N, rank, ((0, 1), (1, 0)), 2000)
    assert abs(apart.mean()) < 5 * apart.std() / math.sqrt(len(apart))
    repeated = fp.inner_products(rng, N, rank, ((0, 1), (0, 0, 0, 1)), 2000)
    assert abs(repeated.mean() - fp.mean_of_repeated(N, rank)) < 5 * repeated.std() / math.sqrt(len(repeated))
    assert fp.mean_of_repeated(1e9, rank) == pytest.approx(1 / rank, rel=1e-6)


def test_any_growing_rank_will_do_and_the_logarithm_is_slow() -> None:
    errors = {
        r: [fp.error_of_word(10.0**k, rank(10.0**k), 1) for k in (2, 4, 6)]
        for r, rank in {"1": lambda N: 1.0, "log": math.log, "root": math.sqrt}.items()
    }
    assert errors["1"][2] > 1.4  # sqrt(2)
    assert errors["log"][0] > errors["log"][1] > errors["log"][2] > 0.35  # sqrt(2 / log N)
    assert errors["root"][2] < 0.05


def test_a_diagonal_transition_does_not_know_the_order_and_low_rank_does() -> None:
    """For a word and its reverse, diagonal maps give one vector. So a diagonal RNN ends in the same state for any order
    of the steps, and says nothing of the signed area, whose sign changes with the reverse."""
    rng = np.random.default_rng(0)
    diagonal = [(np.diag(rng.standard_normal(6)), np.eye(6)) for _ in range(2)]
    Y = rng.standard_normal(6)
    one, other = (fp.of_word(diagonal, word, Y) for word in ((0, 1), (1, 0)))
    np.testing.assert_allclose(one, other, rtol=4 * EPS)
    steps = rng.standard_normal((50, 9, 2))
    np.testing.assert_allclose(fp.signed_areas(steps), -fp.signed_areas(steps[:, ::-1]), rtol=0, atol=1e3 * EPS)
    square = np.array([[[1.0, 0], [0, 1], [-1, 0], [0, -1]]])
    assert fp.signed_areas(square)[0] == 2  # twice the enclosed area
    assert fp.explained_area(np.random.default_rng(0), 16, "diagonal") < 0.1
    assert fp.explained_area(np.random.default_rng(0), 64, "dense") > 0.9
    assert fp.explained_area(np.random.default_rng(0), 64, "rank log N") > 0.4


# ----------------------------------------------------------------------------------------------- theorem 3.5


@pytest.mark.parametrize(("N", "moved"), [(1, 0), (1, 1), (5, 0), (8, 3), (8, 8), (16, 10)])
def test_theorem_3_5_an_orthogonal_matrix_is_as_many_reflections_as_it_moves_dimensions(N: int, moved: int) -> None:
    """Each reflection rounds a matrix of norm 1 by a few N eps, with a direction known to eps over the length that it
    moves by, here more than 1e-2."""
    rng = np.random.default_rng(N + moved)
    Q = fp.orthogonal_that_moves(rng, N, moved)
    u = fp.reflections(Q)
    assert len(u) == moved
    assert np.sign(np.linalg.det(Q)) == (-1) ** moved
    np.testing.assert_allclose(fp.product_of(u, np.ones(moved)), Q, rtol=0, atol=1e3 * N * EPS)
    x = rng.standard_normal((1, 3, N))
    mixed = householder_mix(u, np.ones(moved), x)  # the mixer of eq. 6 at alpha = 1
    np.testing.assert_allclose(mixed, x @ Q.T, rtol=0, atol=1e3 * N * EPS * np.abs(x).max())


def test_theorem_3_5_as_printed_one_reflection_does_for_each_vector() -> None:
    """|U y| = |y|, and one reflection exchanges two vectors of one length."""
    rng = np.random.default_rng(0)
    Q, y = fp.orthogonal_that_moves(rng, 9, 9), rng.standard_normal(9)
    w = Q @ y - y
    np.testing.assert_allclose(y - 2 * w * (w @ y) / (w @ w), Q @ y, rtol=0, atol=64 * EPS * np.linalg.norm(y))


def test_what_contracts_has_no_negative_eigenvalue() -> None:
    """|mu - 1| <= |I - Q|. One generalised reflection: 1 - 2 alpha < 0 just where |I - Q| = 2 alpha > 1."""
    rng = np.random.default_rng(0)
    for r in (1, 2, 4):
        for _ in range(50):
            u = rng.standard_normal((r, 7))
            Q = fp.product_of(u / np.linalg.norm(u, axis=1, keepdims=True), rng.uniform(0, 1, r))
            norm = np.linalg.norm(np.eye(7) - Q, 2)
            assert np.abs(np.linalg.eigvals(Q) - 1).max() <= norm + 1e-12
    for alpha in (0.3, 0.5, 0.7):
        Q = fp.reflection(rng, 7, alpha)
        assert np.linalg.norm(np.eye(7) - Q, 2) == pytest.approx(2 * alpha, rel=1e-12)
        assert np.linalg.eigvalsh(Q)[0] == pytest.approx(1 - 2 * alpha, abs=1e-12)


# ---------------------------------------------------------------------------------------------- section 4.4


@pytest.mark.parametrize("length", [1, 2, 5, 30])
def test_section_4_4_positions_come_again_with_a_state_in_b(length: int) -> None:
    """Both printed conditions hold with C = 1, in whole numbers, for tokens 1 and 2 and a delimiter 4."""
    rng = np.random.default_rng(length)
    word = rng.choice([1.0, 2.0], length)
    tokens = np.concatenate([word, [4.0], word[:-1]])
    p, B = fp.positions(tokens, 4.0)
    np.testing.assert_array_equal(p, np.tile(np.arange(1, length + 1), 2))
    for t in range(length, 2 * length):
        assert np.sum((B * tokens)[t - length + 1 : t]) == -B[t] * tokens[t]


@pytest.mark.parametrize("longest", [1, 2, 10, 64])
def test_section_4_4_functions_of_the_token_alone_do_not(longest: int) -> None:
    """The variance of 0 .. L-1 is (L^2 - 1) / 12; the system is of one column, of condition 1."""
    expected = math.sqrt((longest**2 - 1) / 12)
    assert fp.mismatch_without_state(longest) == pytest.approx(expected, abs=16 * longest * EPS)
    assert fp.mismatch_with_state(longest) == 0


# ---------------------------------------------------------------------------------------------- theorem 4.1


@pytest.mark.parametrize(("omega", "b"), [(1.0, 4.0), (2.0, 6.0), (3.0, 2.0), (0.5, 5.0)])
def test_theorem_4_1_the_expected_run_has_omega_and_not_its_square(omega: float, b: float) -> None:
    """A run is geometric, of standard deviation sqrt(1 - p) / p; five standard errors."""
    runs = fp.drawn_runs(np.random.default_rng(0), omega, b, 20_000)
    expected = fp.expected_run(omega, b)
    error = math.sqrt(expected * (expected - 1)) / math.sqrt(len(runs))
    assert abs(runs.mean() - expected) < 5 * error
    if omega != 1:
        assert abs(runs.mean() - fp.expected_run(omega**2, b)) > 5 * error


def test_theorem_4_1_memory_falls_with_omega_only_above_log_99_and_to_2() -> None:
    omega = np.geomspace(0.5, 1e4, 60)
    for b, falls in ((1.0, False), (4.5, False), (4.7, True), (9.0, True)):
        runs = np.array([fp.expected_run(one, b) for one in omega])
        assert np.all(np.diff(runs) < 0) if falls else np.all(np.diff(runs) > 0)
        # Phi(z) = 1/2 + z / sqrt(2 pi) + ..., with z below 5e-4
        assert runs[-1] == pytest.approx(2, abs=1e-2)
        assert runs.min() >= 1
    assert fp.expected_run(1e-3, 4.0) == 1  # for small omega it grows only where b > log 99
    np.testing.assert_allclose([fp.expected_run(one, fp.THRESHOLD) for one in omega], 2, rtol=8 * EPS)


# ------------------------------------------------------------------------------------- the spectrum of A_t


def test_a_reflection_moves_one_eigenvalue_of_a_fixed_point() -> None:
    """lam N - 1 times, and lam / (1 - 2 alpha (1 - lam)): negative just where 2 alpha (1 - lam) > 1, so that
    |I - Q| > 1. Its system has the condition max(1, 1/|d|) with d = 1 - 2 alpha (1 - lam) at most 1."""
    for lam, alpha in ((0.2, 0.3), (0.2, 0.95), (0.4, 0.9), (0.9, 0.99)):
        layer = FixedPointRNN(3, 6, selective=())
        params = astype(layer.init(np.random.default_rng(0)), np.float64)
        params |= {"b_lambda": np.full(6, np.log(lam / (1 - lam))), "alpha": np.log([alpha / (1 - alpha)])}
        found = layer.eigenvalues(params, np.zeros((1, 1, 3)))[0, 0]
        moved = fp.moved_eigenvalue(lam, alpha)
        expected = np.sort([moved] + [lam] * 5)
        np.testing.assert_allclose(np.sort(found.real), expected, rtol=0, atol=256 * EPS * max(1, abs(moved / lam)))
        assert (moved < 0) == (2 * alpha * (1 - lam) > 1)


@pytest.mark.parametrize("alpha", [0.6, 0.7])
def test_where_that_eigenvalue_is_negative_the_iteration_does_not_converge(alpha: float) -> None:
    """Along u, an application multiplies an error by 2 alpha (1 - lam): by 0.96 and by 1.12 for lam = 0.2."""
    rng = np.random.default_rng(0)
    x, found = rng.standard_normal((1, 3, 3)), {}
    for solver in ("iteration", "direct"):
        layer = FixedPointRNN(3, 6, selective=(), solver=solver, tol=1e-10, max_iterations=1500, gradient="implicit")
        params = astype(layer.init(np.random.default_rng(0)), np.float64)
        params |= {"b_lambda": np.full(6, np.log(0.2 / 0.8)), "alpha": np.log([alpha / (1 - alpha)])}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConverged)
            found[solver], saved = layer.forward(params, x)
        negative = layer.eigenvalues(params, x).real.min() < 0
        assert (layer.report(saved)["residual"] < 1e-9) == (solver == "direct" or not negative)
    assert negative == (alpha > 0.625)
    if not negative:
        np.testing.assert_allclose(found["iteration"], found["direct"], rtol=0, atol=1e-7)


def test_what_contracts_has_spectra_in_the_right_half_plane() -> None:
    """If |(I - Lambda)(I - Q)| < 1, the symmetric part of K = I - (I - Lambda)(I - Q) is positive, hence that of
    Lambda^1/2 K^-1 Lambda^1/2, which is similar to A = K^-1 Lambda. Eigenvalues of A are known to the rounding of a
    system of condition 2 / (1 - norm)."""
    rng = np.random.default_rng(0)
    for norm in (0.5, 0.9, 0.99):
        for _ in range(100):
            lam, P = rng.uniform(0.01, 1, 6), rng.standard_normal((6, 6))
            P *= norm / np.linalg.norm((1 - lam)[:, None] * P, 2)
            A = np.linalg.solve(np.eye(6) - (1 - lam)[:, None] * P, np.diag(lam))
            assert np.linalg.eigvals(A).real.min() > -64 * EPS * 2 / (1 - norm)
    free, params = fp.layer_with_gains(4, 0.9)
    x = rng.standard_normal((3, 20, 4))
    assert replace(free, contractive=True).eigenvalues(params, x).real.min() > 0
    assert free.eigenvalues(params, x).real.min() < 0
    flips = replace(free, contractive=True, negative=True, lambda_init=(-0.9, -0.3))  # not from 0 to 1
    assert flips.eigenvalues(astype(flips.init(rng), np.float64), x).real.min() < 0


# ----------------------------------------------------------------------------------------- LRU, proposition E.1


def test_proposition_e_1_lacks_a_factor_of_2_pi() -> None:
    """Quadrature over the regions, and the printed convolution over 2 pi, agree to rounding: sums of some hundred terms
    of size 3. (A product in time is 1 / 2 pi of a convolution, if F u is the integral of u e^{-i omega t}.)"""
    omega = np.linspace(-12, 12, 49)
    direct, printed = lru.rectified_spectrum(omega), lru.convolved_spectrum(omega)
    np.testing.assert_allclose(printed / (2 * np.pi), direct, rtol=0, atol=1e3 * EPS)
    assert np.abs(direct).max() > 0.1


def test_proposition_e_1_on_a_cycle() -> None:
    """The same for sampled signals: the DFT of the rectified is 1/n of a cyclic convolution with that of the sign."""
    wave = lru.stationary_wave(5, 96)
    signs = np.fft.fft(wave > 0)
    convolved = [np.sum(np.fft.fft(wave) * signs[(k - np.arange(96)) % 96]) / 96 for k in range(96)]
    atol = 96 * 16 * EPS * np.abs(signs).max() * np.abs(wave).max()
    np.testing.assert_allclose(np.fft.fft(np.maximum(wave, 0)), convolved, rtol=0, atol=atol)


def test_a_linear_rnn_adds_no_frequency_and_a_relu_does() -> None:
    """After 512 steps at |lambda| <= 0.9 the start is forgotten to 1e-23."""
    wave = lru.stationary_wave(8, 256)
    linear, rectified = np.abs(np.fft.rfft(wave)), np.abs(np.fft.rfft(np.maximum(wave, 0)))
    others = np.arange(129) != 8
    assert linear[others].max() <= 256 * 64 * EPS * np.abs(wave).max()
    assert rectified[16] > 0.1 * rectified[8]


# ----------------------------------------------------------------------------------------- LRU, appendix E.1.2


@pytest.mark.parametrize("x0", [(1.0, -0.5), (-1.2, 0.8)])
def test_an_lru_of_three_states_is_a_nonlinear_system(x0: tuple[float, float]) -> None:
    """In the eigenvectors of the lifted system, whose condition multiplies the roundings of T steps."""
    rnn_A = np.array([[lru.A_SLOW, 0, 0], [0, lru.A_FAST, lru.PUSH], [0, 0, lru.A_SLOW**2]])
    condition = np.linalg.cond(np.linalg.eig(rnn_A)[1])
    start = np.array(x0)
    wanted, found = lru.nonlinear_states(start, 60), lru.linear_states(start, 60)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=64 * 60 * EPS * condition * np.abs(wanted).max())
    assert lru.lifted_lru().error == 0


@pytest.mark.parametrize("degree", [1, 4, 16, 50])
def test_no_linear_rnn_is_the_logistic_map(degree: int) -> None:
    """Forecasts are exact while 2^k <= degree, up to the rounding of the map, which doubles with each step, and then no
    better than the mean."""
    for k in range(8):
        expected = 1 if 2**k <= degree else 0
        assert lru.explained_by_polynomials(degree, k) == pytest.approx(expected, abs=1e-10)


def test_no_lift_makes_the_logistic_map_a_linear_rnn() -> None:
    """x_0, ..., x_8 have no correlation and one variance, 1/8. What V Lambda^k Phi(x_0) can be of N observables spans N
    dimensions, whatever Phi is, and so holds no more than N of the variances of any K steps."""
    _, states = lru.logistic_states(8)
    moments = np.cov(states, bias=True)
    np.testing.assert_allclose(moments, np.eye(9) / 8, rtol=0, atol=1e-11)


# ------------------------------------------------------------------------------------------------ LRU, figure 8


def test_figure_8_adam_takes_one_path_at_phases_a_quarter_turn_apart() -> None:
    """Multiplication by i exchanges Re and Im and changes a sign, exactly; Adam treats all numbers alike and is odd,
    and i^100 = 1. So its path to i lambda* from i lambda is i times that to lambda* from lambda, bit for bit."""
    solution = np.exp(complex(-0.01, 0.3))
    target, start = complex(solution) ** 100, complex(np.exp(complex(-0.01, 0.33)))
    turned = 1j * start
    here, there = (lru.adam_path("real_imag", (one.real, one.imag), target, 100, 1e-3, 300) for one in (start, turned))
    np.testing.assert_array_equal(there, np.stack([-here[:, 1], here[:, 0]], 1))
    assert np.ptp(here, 0).min() > 1e-3  # it went somewhere


@pytest.mark.parametrize("form", ["real_imag", "exp"])
def test_figure_8_the_hessian_at_a_solution_is_a_multiple_of_the_identity(form: str) -> None:
    """lambda^k is holomorphic in either pair, so |lambda^k - target|^2 / 2 is |k lambda^(k-1) dlambda|^2 / 2 near the
    solution. Central differences of step h err by k^4 h^2 / 6 < 2e-5 of k^2, and by eps k / h of it."""
    k, at = 100, np.array([0.01, 0.8])
    solution = np.exp(complex(-at[0], at[1]))
    first = at if form == "exp" else np.array([solution.real, solution.imag])
    loss, h, H = power_loss(form, solution**k, k), 1e-6, np.empty((2, 2))
    for i in range(2):
        ends = []
        for sign in (1, -1):
            a, b = first + sign * h * np.eye(2)[i]
            _, grads = loss({"first": np.array([a]), "second": np.array([b])})
            ends.append(np.concatenate([grads["first"], grads["second"]]))
        H[i] = (ends[0] - ends[1]) / (2 * h)
    size = k**2 * abs(solution) ** (2 * k if form == "exp" else 2 * k - 2)
    np.testing.assert_allclose(H, size * np.eye(2), rtol=0, atol=1e-4 * size)


def test_figure_8_exponential_losses_do_not_depend_on_the_phase() -> None:
    """With (nu, theta), a turn of the solution is a translation; phases that are sums of powers of 2 round alike."""
    losses = []
    for phase in (0.25, 1.25):
        target = np.exp(100 * complex(-0.01, phase))
        path = adam(
            {"first": np.array([0.01]), "second": np.array([phase + 0.03125])}, power_loss("exp", target, 100), 1e-3, 60
        )
        losses.append([value for value, _ in path])
    # phases up to 125 are rounded by 1e-14, and Adam's first steps are of one size for any gradient
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-9)


def test_figure_8_from_the_far_side_adam_steps_along_the_radius_at_a_quarter_of_pi() -> None:
    """From 3 radians off in lambda^100, the gradient by log |lambda| is to that by the phase as 1 - cos 3 to sin 3, or
    tan 1.5 = 14. Adam's first step has one size in each parameter. At phase 0, and for (nu, theta), one is the radius
    and one the phase; at pi / 4, Re and Im have one sign, and the step goes to smaller |lambda| alone."""
    of = lru.settings("figure8")
    target = np.exp(of["power"] * complex(-of["nu"], np.pi / 4))
    first = {"first": np.array([of["nu"]]), "second": np.array([np.pi / 4 + of["start"]])}
    _, grads = power_loss("exp", target, of["power"])(first)
    assert -grads["first"][0] / grads["second"][0] == pytest.approx(math.tan(1.5), rel=1e-9)
    for form, phase, turned in (("real_imag", 0.0, True), ("real_imag", np.pi / 4, False), ("exp", np.pi / 4, True)):
        losses, path = learn_power(of, form, phase)
        step = np.log(path[1] / path[0])
        assert step.real == pytest.approx(-of["rate"] * (1 if turned else math.sqrt(2)), rel=0.05)
        assert abs(step.imag) == pytest.approx(of["rate"] if turned else 0, abs=0.05 * of["rate"])
        assert (losses[-1] < 1e-12) == turned
        assert (min(abs(value) for value in path) ** of["power"] < 1e-2) != turned  # where the loss is flat


def test_figure_8_from_nearby_both_forms_learn_alike_at_any_phase() -> None:
    """From 1 radian off in lambda^100."""
    of = lru.settings("figure8") | {"start": 0.01, "steps": 100}
    for phase in np.linspace(0, np.pi / 2, 9):
        needed = [lru.steps_to(learn_power(of, form, float(phase))[0], 1e-3) for form in ("real_imag", "exp")]
        assert max(needed) < 1.2 * min(needed)


# ------------------------------------------------------------------------------------------------ LRU, figure 9


@pytest.mark.parametrize("noise", [True, False])
def test_figure_9_the_simulation_is_near_proposition_3_3(noise: bool) -> None:
    """A run is a mean over N states: the mean of 40 runs, within five of its own standard errors."""
    rng = np.random.default_rng(0)
    values = np.array([lru.simulated_gain(rng, 0.9, noise, N=200, L=400) for _ in range(40)])
    assert abs(values.mean() - lru.predicted_gain(0.0, 0.9)) < 5 * values.std() / math.sqrt(len(values))


def test_figure_9_a_sum_from_1_as_in_the_printed_proof_gives_another_number() -> None:
    """The sum of r^n from n = 1 is r / (1 - r), of mean predicted - 1 over the ring; from n = 0 it is as stated."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    low, high = 0.3**2, 0.95**2
    r, w = (high + low) / 2 + (high - low) / 2 * nodes, weights / 2
    assert w @ (1 / (1 - r)) == pytest.approx(lru.predicted_gain(0.3, 0.95), rel=1e-12)
    assert w @ (r / (1 - r)) == pytest.approx(lru.predicted_gain(0.3, 0.95) - 1, rel=1e-12)


def test_figure_2_real_eigenvalues_and_some_beyond_the_circle() -> None:
    """A real Ginibre matrix has sqrt(2 N / pi) + 1/2 + O(1/N) real eigenvalues on average (Edelman, Kostlan and Shub
    1994). The mean of 100 matrices, within five of its own standard errors."""
    N, real, beyond = 100, [], []
    rnn, rng = RNN(1, 100), np.random.default_rng(0)
    for _ in range(100):
        values = rnn.eigenvalues(astype(rnn.init(rng), np.float64))
        real.append(np.sum(values.imag == 0))
        beyond.append(np.sum(np.abs(values) > 1))
    assert abs(np.mean(real) - math.sqrt(2 * N / math.pi) - 0.5) < 5 * np.std(real) / math.sqrt(100)
    assert np.mean(beyond) > 1


def test_figures_2_and_3_are_of_the_layers() -> None:
    """Distributions are tested in test_ladder.py; here, that a draw lies on the ring that the picture names."""
    layer = LRU(1, 512, r_min=0.5, r_max=1.0)
    moduli = np.abs(layer.eigenvalues(layer.init(np.random.default_rng(0))))
    assert 0.5 - 1e-6 <= moduli.min() < 0.55
    assert 0.99 < moduli.max() <= 1


# --------------------------------------------------------------------------------------------- RotRNN, eqs. 6 to 11


@pytest.mark.parametrize("c", [0.25, 1.0, 1.2])
@pytest.mark.parametrize("normalise", ["alpha", "input"])
def test_printed_constants_keep_the_norm_only_for_c_1(normalise: str, c: float) -> None:
    """E|x_2|^2 = 1 from E|x_1|^2 = c as printed, whatever c is; ours stays c. A step rounds by a few eps, and errors
    shrink with gamma^2."""
    steps, gamma = 400, 0.9
    ours = rot.expected_norms(normalise, c, gamma, False, steps)
    np.testing.assert_allclose(ours, c, rtol=64 * EPS / (1 - gamma**2))
    printed = rot.expected_norms(normalise, c, gamma, True, steps)
    assert printed[0] == pytest.approx(c, rel=8 * EPS)
    assert printed[1] == pytest.approx(1, rel=64 * EPS)
    assert printed[-1] == pytest.approx(rot.printed_limit(normalise, c, gamma), rel=64 * EPS / (1 - gamma**2))
    assert (abs(printed[-1] - c) < 1e-9) == (c == 1)


def test_eq_11_is_the_root_of_a_negative_number_for_large_c() -> None:
    assert math.isnan(rot.as_printed("input", 1.3, 0.9)[1])  # 1.3 * 0.81 > 1
    assert not math.isnan(rot.as_printed("input", 1.2, 0.9)[1])


def test_from_a_zero_state_the_norm_is_reached_later() -> None:
    """E|x_t|^2 = c (1 - gamma^(2 t)), as lemma 3's E|x_1|^2 = c does not hold there."""
    t = np.arange(50)
    found = rot.expected_norms("input", 2.0, 0.9, False, 50, 0.0)
    np.testing.assert_allclose(found, 2 * (1 - 0.9 ** (2 * t)), rtol=0, atol=64 * 50 * EPS)


# ------------------------------------------------------------------------------------------------ pictures and page


def test_the_page_has_every_picture_and_names_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    for name in theory.PICTURES:
        assert f"../benchmarks/results/theory/{name}.png" in text
        assert (ROOT / "benchmarks" / "results" / "theory" / f"{name}.png").exists()
    named = set(re.findall(r"`(test_\w+)`", text))
    there = {
        name
        for path in ROOT.glob("tests/*/test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    assert named
    assert not named - there


@pytest.mark.whole
@pytest.mark.parametrize("name", theory.PICTURES)
def test_every_picture_is_drawn(name: str, tmp_path: Path) -> None:
    theory.PICTURES[name]().savefig(tmp_path / "picture.png", dpi=50)
    assert (tmp_path / "picture.png").stat().st_size > 5000


@pytest.mark.whole
def test_the_command_draws_what_it_is_asked_for(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "theory.py"), "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, "rotrnn-norms"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "out" / "rotrnn-norms.png")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rotrnn-norms.png"]
    wrong = subprocess.run([*command, "figure"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "no picture figure, expected some of fp-descent" in wrong.stderr
