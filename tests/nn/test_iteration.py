"""The driver of fixed points in depth: stopping and damping rules, reports, warnings and errors."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rotrnn.nn.fixed_points.iteration import (
    CYCLE,
    DAMPINGS,
    PATIENCE,
    SHRINK,
    STOPS,
    ConvergenceError,
    Iteration,
    NotConverged,
    drawn_limit,
    iterate,
    solve,
)
from rotrnn.nn.layer import EVALUATION, Context, astype
from rotrnn.nn.layers.bedouin import Bedouin
from rotrnn.nn.layers.fixed_point import FixedPointRNN
from rotrnn.nn.layers.fpmamba import FPMamba
from rotrnn.nn.scaling import exponents, times_power
from rotrnn.ops.fixed_point import relax

EPS = np.finfo(np.float64).eps


def affine(B: int = 4, T: int = 30, D: int = 5, norm: float = 0.8, seed: int = 0) -> tuple[Any, Any, Any]:
    """(F, c, the fixed point) of F(y) = A y + c, token by token, |A| = norm."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((D, D))
    A *= norm / np.linalg.norm(A, 2)
    c = rng.standard_normal((B, T, D))
    exact = np.linalg.solve(np.eye(D) - A, c[..., None])[..., 0]

    def F(y: Any, lengths: Any) -> Any:
        with np.errstate(invalid="ignore"):  # of sequences that are done
            return y @ A.T + c

    return F, c, exact


@pytest.mark.parametrize("damping", ["adaptive", "none"])
@pytest.mark.parametrize("stop", STOPS)
def test_the_fixed_point_is_found(stop: str, damping: str) -> None:
    """|y - y*| <= |y - F(y)| / (1 - |A|) in 2-norms; in maxima over D = 5 channels a factor sqrt(5) more. One more
    step, with s = 0.99, shrinks it."""
    F, c, exact = affine()
    y, report = solve(F, np.zeros_like(c), Iteration(1e-8, 1000, damping=damping, stop=stop))
    assert report.converged.all()
    bound = np.sqrt(5) * report.residual * np.abs(exact).max((1, 2)) / (1 - 0.8) * 1.01
    assert (np.abs(y - exact).max((1, 2)) <= bound).all()


@pytest.mark.parametrize("damping", DAMPINGS)
def test_a_sequence_does_not_depend_on_its_batch(damping: str) -> None:
    F, c, _ = affine()
    scale = np.array([1, 1e-3, 50, 1])[:, None, None]
    c *= scale
    settings = Iteration(1e-6, damping=damping)
    together = solve(F, np.zeros_like(c), settings)
    if damping != "anderson":  # which takes as many iterations as there are directions
        assert len(set(together.report.iterations)) > 1
    for b in range(4):
        alone = solve(lambda y, n, b=b: F(np.broadcast_to(y, c.shape), n)[b : b + 1], np.zeros((1, 30, 5)), settings)
        assert alone.y.tobytes() == together.y[b : b + 1].tobytes()
        assert [field[0] for field in alone.report] == [field[b] for field in together.report]


def test_the_quantile_rule_ignores_a_quarter_in_training_and_none_in_evaluation() -> None:
    """Sequence b is multiplied by its own factor; the slowest of four needs many more steps."""
    rates = np.array([0.1, 0.1, 0.1, 0.9])[:, None, None]
    c = np.ones((4, 2, 3))
    settings = Iteration(1e-3, stop="quantile", damping="none")
    training = solve(lambda y, _: rates * y + c, np.zeros_like(c), settings, Context(train=True)).report
    # residual_b = rate^k / (1 + ... + rate^k) after k + 1 steps; quantile 0.75 of four lies a quarter above the third
    assert training.converged.tolist() == [True, True, True, False]
    evaluation = solve(lambda y, _: rates * y + c, np.zeros_like(c), settings).report
    assert evaluation.converged.all()
    assert (evaluation.iterations == evaluation.iterations[0]).all()
    assert evaluation.iterations[0] > training.iterations[0]


def test_the_rule_of_steps_ignores_a_tenth_in_training() -> None:
    """Its residual is that of the worst step: in sequence 2 of 3, one of small numbers; and with damping "none" its
    steps are whole."""
    rates = np.array([0.1, 0.9, 0.1])[:, None, None]
    c = np.ones((3, 2, 3))
    c[2, 1] = 1e-6
    settings = Iteration(1e-3, stop="step_quantile", damping="none")
    assert settings.each_step
    assert settings.first_step == 1

    def slow_end(y: Any, _: Any) -> Any:
        out = rates * y + c
        out[2, 1] = 0.8 * y[2, 1] + c[2, 1]
        return out

    each = solve(slow_end, np.zeros_like(c), settings, each_step=False).report
    whole = solve(slow_end, np.zeros_like(c), Iteration(1e-3, stop="quantile", damping="none")).report
    assert each.converged.all()
    assert each.residual[2] > whole.residual[2]
    training = solve(slow_end, np.zeros_like(c), settings, Context(train=True)).report
    lowest = np.sort(training.residual)
    assert lowest[1] + 0.8 * (lowest[2] - lowest[1]) < 1e-3 <= lowest[2]  # the 0.9 quantile of three
    assert training.iterations[0] < each.iterations[0]


@pytest.mark.parametrize(("stop", "damping"), [*((stop, "adaptive") for stop in STOPS), ("sequence", "anderson")])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_ends_by_itself(stop: str, damping: str, train: bool, bad: float) -> None:
    F, c, _ = affine(seed=1)
    settings, ctx = Iteration(1e-6, stop=stop, damping=damping), Context(train=train)
    others = np.array([0, 2, 3])
    whole = solve(lambda y, n: F(y, n), np.zeros_like(c), settings, ctx)
    c[1, 7, 2] = bad
    with pytest.warns(NotConverged, match=r"no fixed point for 1 of 4 sequences \(1 not finite\)"):
        spoiled = solve(F, np.zeros_like(c), settings, ctx)
    assert np.isnan(spoiled.report.residual[1])
    assert not spoiled.report.converged[1]
    assert spoiled.report.iterations[1] <= 2
    if stop == "sequence":
        assert spoiled.y[others].tobytes() == whole.y[others].tobytes()
    else:
        assert spoiled.report.iterations[others].min() >= 10  # as many as it takes
        assert np.median(spoiled.report.residual[others]) < 1e-6


@pytest.mark.parametrize("damping", DAMPINGS)
def test_padding_is_not_read_and_empty_sequences_take_no_step(damping: str) -> None:
    F, c, exact = affine(B=3)
    lengths = np.array([30, 0, 11])
    for b, length in enumerate(lengths):
        c[b, length:] = np.nan
    y, report = solve(F, np.zeros_like(c), Iteration(1e-8, damping=damping), Context(lengths))
    assert report.converged.all()
    assert report.iterations[1] == 0
    assert report.residual[1] == 0
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(y[b, :length], exact[b, :length], rtol=0, atol=1e-6)
        assert not y[b, length:].any()


def test_a_start_at_the_fixed_point_takes_one_step() -> None:
    F, c, exact = affine()
    assert (solve(F, exact.copy(), Iteration(1e-10)).report.iterations == 1).all()
    assert solve(F, np.zeros_like(c), Iteration(1e-10)).report.iterations.min() > 20


def test_damping_follows_its_schedule() -> None:
    """A residual that never falls: the first is the lowest so far, then 15 in a row are not, and so on."""
    sizes: list[float] = []

    def step(s: Any, lengths: Any) -> Any:
        sizes.append(float(s[0]))
        return np.ones(1)

    with pytest.warns(NotConverged):
        iterate(step, np.array([3]), np.dtype(np.float64), Iteration(max_iterations=2 * PATIENCE + 3))
    expected = [0.99] * (1 + PATIENCE) + [0.99 * SHRINK] * PATIENCE + [0.99 * SHRINK * SHRINK] * 2
    np.testing.assert_allclose(sizes, expected, rtol=4 * EPS)


def test_damping_begins_anew_after_a_cycle_without_progress() -> None:
    sizes: list[float] = []

    def run(stop: str, residual: Callable[[int], float], limit: int) -> Any:
        def step(s: Any, lengths: Any) -> Any:
            sizes.append(float(s[0]))
            return np.array([residual(len(sizes))])

        sizes.clear()
        with pytest.warns(NotConverged):
            iterate(step, np.array([3]), np.dtype(np.float64), Iteration(1e-9, max_iterations=limit, stop=stop))
        return np.array(sizes)

    stuck = run("sequence", lambda i: 1.0, 2 * CYCLE)
    np.testing.assert_array_equal(stuck[1:CYCLE], stuck[CYCLE : 2 * CYCLE - 1])  # the first residual was the lowest
    assert stuck[CYCLE - 1] < 0.001
    slow = run("sequence", lambda i: 1 - i / 4 / CYCLE if i % 20 else 2.0, 2 * CYCLE)  # lower, but not to a tenth
    np.testing.assert_array_equal(slow, 0.99)
    halted = run("sequence", lambda i: 0.09 if i < 20 else 1.0, CYCLE + 1)
    assert halted[CYCLE] < 0.001
    together = run("quantile", lambda i: 1.0, 2 * CYCLE)
    assert len(together) < CYCLE  # where the quantile rule ends


def test_damping_is_no_hindrance_to_what_travels_step_by_step() -> None:
    """F(y)_t = g_t y_{t-1}, with gains that double ten times and halve ten times: an undamped iteration brings one more
    of T steps, and all step sizes of the schedule together are those of 149 iterations. The inverse of I - F has T
    entries of at most 2^10 in a row."""
    T, tol = 200, 1e-9
    gains = np.where(np.arange(T - 1) // 10 % 2 == 0, 2.0, 0.5)

    def F(y: Any, _: Any) -> Any:
        return np.concatenate([np.ones_like(y[:, :1]), gains[:, None] * y[:, :-1]], 1)

    y, report = solve(F, np.zeros((1, T, 1)), Iteration(tol, 10_000))
    assert report.converged.all()
    assert report.iterations[0] > CYCLE
    expected = np.cumprod(np.concatenate([[1], gains]))
    np.testing.assert_allclose(y[0, :, 0], expected, rtol=0, atol=2**10 * T * tol * 2**10)


def test_damping_reaches_what_the_plain_iteration_leaves() -> None:
    """F(y) = c - 2 y has the fixed point c / 3, from which plain steps lead away; 1 - 3 s shrinks below s = 2/3."""
    c = np.ones((1, 4, 2))
    y, report = solve(lambda y, _: c - 2 * y, np.zeros_like(c), Iteration(1e-10, 1000))
    assert report.converged.all()
    np.testing.assert_allclose(y, 1 / 3, rtol=0, atol=1e-9)
    with pytest.warns(NotConverged):
        away = solve(lambda y, _: c - 2 * y, np.zeros_like(c), Iteration(1e-10, 100, damping="none"))
    assert not away.report.converged.any()


def test_acceleration_ends_at_the_fixed_point_of_a_token() -> None:
    """F(y) = J y + c with |J| = 3 in 4 of 9 directions: the residuals of an affine F are in the space of r, J r, .. J^4
    r, of 5 dimensions, which 5 differences span: the 7th application finds the fixed point. Its error is that of
    residuals of rounding, which the inverse of I - J multiplies, and of 7 orthogonalisations, each of as many."""
    rng = np.random.default_rng(3)
    J = rng.standard_normal((9, 4)) @ rng.standard_normal((4, 9))
    J *= 3 / np.linalg.norm(J, 2)
    c, inverse = rng.standard_normal((5, 1, 9)), np.linalg.inv(np.eye(9) - J)
    y, report = solve(lambda y, _: y @ J.T + c, np.zeros_like(c), Iteration(1e-9, damping="anderson"))
    assert report.converged.all()
    assert report.iterations.max() <= 8  # one more to see it
    exact = c @ inverse.T
    bound = 8 * 7 * 9 * EPS * np.linalg.cond(np.eye(9) - J) ** 2
    np.testing.assert_allclose(y, exact, rtol=0, atol=bound * np.abs(exact).max())
    assert np.abs(np.linalg.eigvals(J)).max() > 1
    with pytest.warns(NotConverged):
        plain = solve(lambda y, _: y @ J.T + c, np.zeros_like(c), Iteration(1e-9, damping="none"))
    assert not plain.report.converged.any()


def test_the_residual_of_acceleration_bounds_the_distance() -> None:
    """I - J shrinks a direction to a thousandth: plain steps stop many tolerances away from the fixed point, as the
    last step of this direction is so much smaller than the rest of its way. In the residual it is a thousandth of the
    others, ten times the tolerance, so that all three directions are explored. The distance is then at most
    |(I - J)^-1|_F |r| in the 2-norm, a factor sqrt(3) more than in maxima."""
    rng = np.random.default_rng(0)
    slopes = np.array([0.999, 0.5, -0.5])
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    J = turn @ np.diag(slopes) @ turn.T
    exact = np.array(list(itertools.product((-1, 1), repeat=3)))[:, None] @ turn.T
    c = exact @ (np.eye(3) - J).T
    size = np.abs(exact).max((1, 2))

    def distance(damping: str) -> tuple[Any, Any]:
        y, report = solve(lambda y, _: y @ J.T + c, np.zeros_like(c), Iteration(1e-4, 5000, damping=damping))
        assert report.converged.all()
        return np.abs(y - exact).max((1, 2)) / size, report

    apart, report = distance("anderson")
    assert (apart <= np.sqrt(3) * report.residual).all()
    assert (distance("adaptive")[0] > 10 * 1e-4).all()


def test_unreached_fixed_points_give_one_warning() -> None:
    F, c, _ = affine()
    few = Iteration(1e-6, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = solve(F, np.zeros_like(c), few, name="layer").report
    (warning,) = caught
    assert warning.category is NotConverged
    expected = f"layer: no fixed point for 4 of 4 sequences: residual {report.residual.max():.2g} after 3 iterations"
    assert str(warning.message) == expected
    with pytest.raises(ConvergenceError, match=r"layer: .* residual .* after 3 iterations, though it is contractive"):
        solve(F, np.zeros_like(c), few, name="layer", guaranteed=True)


def test_the_limit_of_training_is_no_failure() -> None:
    F, c, _ = affine()
    settings = Iteration(1e-12, 500, train_iterations=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training = solve(F, np.zeros_like(c), settings, Context(train=True), guaranteed=True).report
        evaluation = solve(F, np.zeros_like(c), settings).report
    assert (training.iterations == 2).all()
    assert not training.converged.any()
    assert evaluation.converged.all()


def test_drawn_limits_are_gamma_and_keyed() -> None:
    """ceil(Gamma(4, 1)) has mean sum_{k >= 0} P(G > k) and P(G > k) = e^-k (1 + k + k^2/2 + k^3/6)."""
    draws = np.array([drawn_limit(Context(seed=3, step=step), site) for step in range(4000) for site in range(2)])
    k = np.arange(60)
    tail = np.exp(-k) * (1 + k + k**2 / 2 + k**3 / 6)
    mean = tail.sum()
    second = ((2 * k + 1) * tail).sum()
    assert draws.min() >= 1
    assert abs(draws.mean() - mean) < 4 * np.sqrt((second - mean**2) / len(draws))
    for limit in (1, 2, 4, 8):  # P(draw > limit), within four standard errors
        assert abs((draws > limit).mean() - tail[limit]) < 4 * np.sqrt(tail[limit] / len(draws))
    assert drawn_limit(Context(seed=3, step=7), 1) == draws[15]
    assert len({drawn_limit(Context(seed=seed, step=7)) for seed in range(40)}) > 3
    assert Iteration(train_iterations="gamma").limit(Context(train=True, seed=3, step=7), 1) == draws[15]
    assert Iteration(train_iterations="gamma").limit(EVALUATION) == 100


def test_rounded_limits_have_the_papers_mean_and_mode() -> None:
    """Rounded up the draw has mean 4.5 and mode 4; rounded to the nearest integer from 1 the draw has mean
    sum_{k >= 0} P(G > k + 1/2) + P(G < 1/2), which is 4.00, and mode 3 ("mean 4 and mode 3"). Both are of one draw."""
    settings = Iteration(train_iterations="rounded_gamma")
    up, near = (
        np.array([one.limit(Context(train=True, seed=5, step=step)) for step in range(8000)])
        for one in (Iteration(train_iterations="gamma"), settings)
    )
    k = np.arange(60) + 0.5
    tail = np.exp(-k) * (1 + k + k**2 / 2 + k**3 / 6)
    mean = tail.sum() + 1 - tail[0]
    assert abs(mean - 4) < 0.005
    # second moment: sum (2 n + 1) P(draw > n), and a draw exceeds 0 for certain; the error is four deviations
    second = ((2 * np.arange(60) + 1) * np.append(1, tail[1:])).sum()
    assert abs(near.mean() - mean) < 4 * np.sqrt((second - mean**2) / len(near))
    assert np.bincount(near).argmax() == 3
    assert near.min() >= 1
    assert set((up - near).tolist()) == {0, 1}
    assert settings.limit(EVALUATION) == 100


def test_a_tolerance_below_rounding_is_not_waited_for() -> None:
    F, c, _ = affine()
    y = np.zeros(c.shape, np.float32)
    report = solve(lambda y, n: F(y, n).astype(np.float32), y, Iteration(1e-13)).report
    assert report.converged.all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_relax(dtype: type) -> None:
    rng = np.random.default_rng(2)
    y, f = rng.standard_normal((2, 3, 37, 19)).astype(dtype)
    s, lengths = np.array([0.3, 1, 0.7], dtype), np.array([37, 36, 0])
    y[1, 36:], f[2] = np.nan, np.nan
    before = y.copy()
    residual = relax(y, f, s, lengths=lengths)
    for b, n in enumerate(lengths):
        expected = s[b] * f[b, :n] + (1 - s[b]) * before[b, :n]
        np.testing.assert_allclose(y[b, :n], expected, rtol=0, atol=4 * np.finfo(dtype).eps * 4)
        assert y[b, n:].tobytes() == before[b, n:].tobytes()
        if n:
            apart = np.abs(before[b, :n] - f[b, :n]).max() / np.abs(f[b, :n]).max()
            assert residual[b] == pytest.approx(apart, rel=4 * float(np.finfo(dtype).eps))
    assert residual[2] == 0
    assert y[1, :36].tobytes() == f[1, :36].tobytes()  # a whole step takes f itself


@pytest.mark.parametrize("place", ["y", "f"])
def test_relax_keeps_nan(place: str) -> None:
    """Wherever it is, and whatever comes after it."""
    for at in (0, 63, 500, 999):
        arrays = {"y": np.ones((1, 100, 10)), "f": np.full((1, 100, 10), 2.0)}
        arrays[place].flat[at] = np.nan
        assert np.isnan(relax(arrays["y"], arrays["f"], np.ones(1)))[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tol": 0}, "tol=0, expected a positive number"),
        ({"tol": np.nan}, "tol=nan"),
        ({"tol": True}, "tol=True"),
        ({"max_iterations": 0}, "max_iterations=0, expected a positive integer"),
        ({"max_iterations": 2.0}, "max_iterations=2.0"),
        (
            {"train_iterations": "beta"},
            "train_iterations='beta', expected a positive integer, 'gamma', 'rounded_gamma' or None",
        ),
        ({"train_iterations": True}, "train_iterations=True"),
        ({"damping": "some"}, "damping='some', expected one of adaptive, none, anderson"),
        ({"stop": "batch"}, "stop='batch', expected one of sequence, quantile"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"Iteration: {message}"):
        Iteration(**settings)


def test_relax_refuses_what_does_not_fit() -> None:
    y = np.zeros((2, 3, 4))
    for f, s, message in (
        (y[:, :2], np.ones(2), "f has shape"),
        (y + 1, np.ones(3), "s has shape"),
        (y, np.ones(2), "y overlaps"),
    ):
        with pytest.raises(ValueError, match=f"relax: {message}"):
            relax(y, f, s)


@pytest.mark.parametrize(
    "layer",
    [
        FixedPointRNN(3, 4, gradient="implicit", tol=1e-3),
        FixedPointRNN(3, 4, gradient="implicit", tol=1e-3, accelerated=False),
        Bedouin(3, d_state=2, gradient="implicit", tol=1e-3),
        FPMamba(3, d_state=2, gradient="implicit", tol=1e-3),
    ],
)
def test_the_exact_gradient_is_linear_however_small(layer: Any) -> None:
    """Of a long batch's mean loss it is small, and each sequence's has its own size; the residual's floor is not."""
    rng = np.random.default_rng(4)
    params = astype(layer.init(rng), np.float64)
    y, saved = layer.forward(params, rng.standard_normal((3, 12, 3)))
    dy = rng.standard_normal(y.shape)
    dstate = tree_like(saved.state, rng)
    whole = layer.backward(params, saved, dy, dstate)
    powers = 2.0 ** np.array([-40, 0, -100])
    part = layer.backward(params, saved, dy * powers[:, None, None], times(dstate, powers))
    np.testing.assert_array_equal(part[0], whole[0] * powers[:, None, None])
    none = layer.backward(params, saved, 0 * dy)
    assert not none[0].any()
    for got, expected in zip(leaves(part[2]), leaves(times(whole[2], powers)), strict=True):
        np.testing.assert_array_equal(got, expected)


def leaves(state: Any) -> tuple[Any, ...]:
    return state if isinstance(state, tuple) else (state,)


def tree_like(state: Any, rng: np.random.Generator) -> Any:
    """Random numbers in the place of a state's."""
    made = tuple(rng.standard_normal(one.shape) for one in leaves(state))
    return made if isinstance(state, tuple) else made[0]


def times(state: Any, factors: Any) -> Any:
    """A state whose sequences have been multiplied by a factor each."""
    made = tuple(one * factors.reshape(-1, *[1] * (one.ndim - 1)) for one in leaves(state))
    return made if isinstance(state, tuple) else made[0]


def test_exponents_of_what_has_no_size() -> None:
    y = np.array([[0.0, 0], [np.inf, 1], [1, np.nan], [3, -8]], np.float32)
    assert exponents(y, None).tolist() == [0, 0, 0, 4]
    assert exponents(np.zeros((2, 0, 3)), np.ones((2, 3))).tolist() == [1, 1]
    assert exponents(np.zeros((0, 2, 3))).shape == (0,)
    assert times_power(y, exponents(y)).dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("largest", [20, 126, 149])
def test_powers_of_two_have_the_bits_of_ldexp(dtype: type, largest: int) -> None:
    rng = np.random.default_rng(largest)
    x = (rng.standard_normal((64, 5, 7)) * np.exp2(rng.integers(-140, 120, (64, 5, 7)))).astype(dtype)
    x[0, 0, :3] = np.inf, -0.0, np.nan
    powers = rng.integers(-largest, largest + 1, 64).astype(np.int32)
    with np.errstate(over="ignore", under="ignore"):
        found, expected = times_power(x, powers), np.ldexp(x, powers[:, None, None])
    assert found.dtype == dtype
    assert found.tobytes() == expected.tobytes()
