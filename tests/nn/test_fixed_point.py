"""Properties of the Fixed-Point RNN: dense recurrences as known answers, contraction, and gradients."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from cases.fixed_point import dense_recurrence, fixed_point_loop, mixer_matrix, sigmoid
from rotrnn import _cpu
from rotrnn.nn.fixed_points.iteration import ConvergenceError, NotConverged
from rotrnn.nn.fixed_points.mixer import CONTRACTION, MIXERS
from rotrnn.nn.layer import Context, astype
from rotrnn.nn.layers.fixed_point import Depth, FixedPointRNN
from rotrnn.nn.layers.fpmamba import unit_rows
from rotrnn.ops.scan import diagonal_scan

EPS = np.finfo(np.float64).eps
CONTRACTING = [name for name, mixer in MIXERS.items() if mixer.can_contract]


def made(layer: FixedPointRNN, seed: int = 0, noise: float = 0.2) -> tuple[np.random.Generator, Any]:
    """(rng, float64 parameters, a little off their initial values)."""
    rng = np.random.default_rng(seed)
    params = astype(layer.init(rng), np.float64)
    return rng, {name: value + noise * rng.standard_normal(value.shape) for name, value in params.items()}


def relative(got: Any, expected: Any) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


# ------------------------------------------------------------------------------------------------- known answers


def test_unscaled_it_is_the_dense_recurrence_of_equation_2() -> None:
    """h_t = Q_t^-1 lam_t h_{t-1} + B_t x_t, where Q_t has an inverse, |I - Q_t| < 1 and |Q_t^-1 lam_t| < 1."""
    layer = FixedPointRNN(5, 12, rank=2, scaled=False, tol=1e-13, max_iterations=3000)
    rng, params = made(layer)
    x = rng.standard_normal((2, 40, 5))
    x[..., 0] = 1  # a channel that stands for a bias
    params["W_alpha"][:, 0], params["b_lambda"] = -4, rng.uniform(-1, 1, 12)
    y, saved = layer.forward(params, x)
    assert saved.report.converged.all()
    for b in range(2):
        h = np.zeros(12)
        for t in range(40):
            lam = sigmoid(params["W_lambda"] @ x[b, t] + params["b_lambda"])
            u, alpha = params["W_u"] @ x[b, t], params["W_alpha"] @ x[b, t]
            Q = mixer_matrix(layer, {"u": u, "alpha": alpha})
            A = np.linalg.solve(Q, np.diag(lam))
            assert np.linalg.norm(np.eye(12) - Q, 2) < 1
            assert np.linalg.norm(A, 2) < 1
            h = A @ h + sigmoid(params["W_B"] @ x[b, t] + params["b_B"]) * (params["B"] @ x[b, t])
            assert relative(saved.iterate[b, t], h) <= 1e-10
            assert relative(y[b, t], params["C"] @ h + params["D"] * x[b, t]) <= 1e-10


@pytest.mark.parametrize("mixer", MIXERS)
def test_scaled_it_is_k_times_the_recurrence(mixer: str) -> None:
    """Theorem 3.2's form: h = K [lam h + (1 - lam) Q v]; low rank too, whose Q has no inverse."""
    layer = FixedPointRNN(5, 12, mixer=mixer, rank=3, tol=1e-13, max_iterations=500)
    rng, params = made(layer)
    x = rng.standard_normal((2, 50, 5))
    state = rng.standard_normal((2, 12))
    y, saved = layer.forward(params, x, state=state)
    expected, final = fixed_point_loop(layer, params, x, state, None)
    assert relative(y, expected) <= 1e-10
    assert relative(saved.state, final) <= 1e-10
    if mixer == "low_rank":
        A, _ = dense_recurrence(layer, params, x[0, 0])
        Q = mixer_matrix(layer, {name: params[f"W_{name}"] @ x[0, 0] for name in ("u", "alpha")})
        assert np.linalg.matrix_rank(Q) == 3
        assert np.linalg.matrix_rank(A) == 12  # dense, and invertible, all the same


def test_with_q_the_identity_one_iteration_is_the_diagonal_scan() -> None:
    layer = FixedPointRNN(4, 6, train_iterations=1, damping="none")
    rng, params = made(layer)
    x = rng.standard_normal((2, 30, 4))
    x[..., 0] = 1
    params["W_alpha"][:] = 0
    params["W_alpha"][:, 0] = -1000
    for fused in (True, False):
        _, saved = layer.forward(params, x, Context(train=True, fused=fused))
        assert (saved.iterations == 1).all()
        depth = saved.depth
        expected = diagonal_scan(depth.lam, (1 - depth.lam) * depth.v)
        # each token's v comes as (v - y) + y: two roundings of numbers up to |v| + |y|, which the scan averages
        np.testing.assert_allclose(saved.iterate, expected, rtol=0, atol=8 * EPS * np.abs(depth.v).max())


def test_unaccelerated_it_finds_the_same_in_as_many_iterations_as_steps() -> None:
    """Section 4.1: with Q = I, eq. 7 has it at once; eq. 4 hands on the state one step an iteration."""
    settings = {"selective": (), "damping": "none", "tol": 1e-12}
    fast, slow = FixedPointRNN(3, 4, **settings), FixedPointRNN(3, 4, accelerated=False, **settings)
    rng, params = made(fast)
    params["alpha"][:] = -1000
    x = rng.standard_normal((1, 25, 3))
    expected, quick = fast.forward(params, x)
    got, steps = slow.forward(params, x)
    assert quick.iterations[0] == 2  # the second sees that nothing changes
    assert steps.iterations[0] == 26
    assert relative(got, expected) <= 1e-11
    params["alpha"][:] = -1
    assert relative(slow.forward(params, x)[0], fast.forward(params, x)[0]) <= 1e-9


# --------------------------------------------------------------------------------------------------- contraction


def jacobian(depth: Any, T: int) -> Any:
    """J of y -> F(y) over one sequence of T steps, (T N, T N), column by column."""
    N, lengths = depth.v.shape[-1], np.array([T])
    zero = depth(np.zeros((1, T, N)), lengths)
    units = np.eye(T * N).reshape(T * N, 1, T, N)
    return np.stack([(depth(unit, lengths) - zero).ravel() for unit in units], 1)


@pytest.mark.parametrize("least", [0.9, -0.999])
@pytest.mark.parametrize("mixer", CONTRACTING)
def test_where_it_is_guaranteed_each_step_contracts(mixer: str, least: float) -> None:
    """Theorem 3.2, for a constant lam: the operator norm of J is at most |I - Q| <= 0.95, for any parameters; also with
    negative lam, where a scan multiplies by 1 / (1 - |lam|) at most, and by as much for alternating inputs."""
    own = {"lambda_init": (least, 0.999), "negative": least < 0}
    layer = FixedPointRNN(3, 6, mixer=mixer, rank=3, contractive=True, selective=("mixer", "B"), **own)
    norms = []
    for size in (0, 1, 30):
        rng, params = made(layer, seed=size, noise=size)
        _, saved = layer.forward(params, rng.standard_normal((1, 7, 3)))
        norms.append(np.linalg.norm(jacobian(saved.depth, 7), 2))
    assert max(norms) <= CONTRACTION * (1 + 1e-12)
    assert max(norms) > 0.1  # the bound is not vacuous


def test_with_a_varying_lam_each_token_contracts() -> None:
    """J is lower triangular in time; its diagonal blocks (1 - lam_t)(I - Q_t) are contractions, so powers of J vanish
    and every start leads to the one fixed point."""
    layer = FixedPointRNN(3, 5, rank=2, contractive=True, tol=1e-12, max_iterations=2000)
    rng, params = made(layer, noise=2.0)
    x = rng.standard_normal((1, 8, 3))
    y, saved = layer.forward(params, x)
    J = jacobian(saved.depth, 8).reshape(8, 5, 8, 5)
    for t in range(8):
        assert np.linalg.norm(J[t, :, t], 2) <= CONTRACTION
        assert not J[t, :, t + 1 :].any()
    for _ in range(3):
        again, other = layer.forward(params, x, start=100 * rng.standard_normal((1, 8, 5)))
        assert relative(again, y) <= 1e-9
        assert other.iterations[0] >= saved.iterations[0]
    assert layer.forward(params, x, start=saved.iterate)[1].iterations[0] == 1


def test_without_a_guarantee_the_norm_may_exceed_one() -> None:
    """One reflection with alpha near 1 has |I - Q| near 2: what the contractive mixer rules out."""
    layer = FixedPointRNN(3, 4, selective=())
    rng, params = made(layer)
    params["alpha"][:], params["b_lambda"][:] = 10, -10
    x = rng.standard_normal((1, 5, 3))
    with pytest.warns(NotConverged, match="FixedPointRNN: no fixed point for 1 of 1 sequence: residual"):
        _, saved = layer.forward(params, x)
    assert np.linalg.norm(jacobian(saved.depth, 5), 2) > 1.9
    contractive = FixedPointRNN(3, 4, selective=(), contractive=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert contractive.forward(params, x)[1].report.converged.all()
    with pytest.raises(ConvergenceError, match=r"FixedPointRNN: no fixed point .* though it is contractive"):
        FixedPointRNN(3, 4, selective=(), contractive=True, tol=1e-9, max_iterations=3).forward(params, x)


# ----------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"mixer_silu": True},
        {"feedback": ("mixer", "output")},
        {"feedback": ("mixer",), "mixer_silu": True, "symmetric": True},
    ],
)
def test_the_one_step_gradient_is_that_of_the_last_application(
    own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its argument y held; central differences of step 1e-5 err by 1e-10 and by eps / 1e-5 of the loss."""
    layer = FixedPointRNN(4, 4, rank=2, contractive=True, **own)
    rng, params = made(layer)
    x, dy = rng.standard_normal((2, 2, 9, 4))
    state, dstate = rng.standard_normal((2, 2, 4))
    _, saved = layer.forward(params, x, state=state)
    dx, dparams, dstate0 = layer.backward(params, saved, dy, dstate)

    def loss(**changed: Any) -> float:
        p = {name: changed.get(name, params[name]) for name in params}
        y, once = layer.forward(p, changed.get("x", x), state=changed.get("state", state))
        return float(np.sum(dy * y) + np.sum(dstate * once.state))

    def applied(depth: Depth, *_: Any, **asking: Any) -> tuple[Any, Any]:
        return depth(saved.before, np.array([9, 9])), saved.report

    monkeypatch.setattr(Depth, "solve", applied)
    for name, grad in {**dparams, "x": dx, "state": dstate0}.items():
        value = {**params, "x": x, "state": state}[name]
        v = rng.standard_normal(value.shape)
        numeric = (loss(**{name: value + 1e-5 * v}) - loss(**{name: value - 1e-5 * v})) / 2e-5
        assert abs(numeric - np.sum(grad * v)) <= 1e-7 * np.linalg.norm(grad) * np.linalg.norm(v) + 1e-9, name


def test_the_one_step_gradient_points_where_the_exact_one_does(record_property: Any) -> None:
    """Theorem 3.3's claim is a descent direction, a cosine above zero; 1 - lam in [0.001, 0.1] makes it close to 1."""
    cosines = []
    for seed in range(8):
        grads = []
        for gradient in ("one_step", "implicit"):
            layer = FixedPointRNN(6, 8, rank=2, gradient=gradient, tol=1e-10)
            rng, params = made(layer, seed)
            x, target = rng.standard_normal((2, 3, 20, 6))
            y, saved = layer.forward(params, x)
            dparams = layer.backward(params, saved, (y - target) / y.size)[1]
            inner = ("W_lambda", "b_lambda", "B", "W_B", "b_B", "W_u", "W_alpha")  # C and D have the same in both
            grads.append(np.concatenate([dparams[name].ravel() for name in inner]))
        cosines.append(float(grads[0] @ grads[1] / np.linalg.norm(grads[0]) / np.linalg.norm(grads[1])))
    record_property("cosine of one-step and exact gradient", f"{min(cosines):.3f} to {max(cosines):.3f}")
    assert min(cosines) > 0.8
    assert min(cosines) < 1 - 1e-6  # they are two gradients


def test_the_backward_iteration_warns_too() -> None:
    layer = FixedPointRNN(3, 4, gradient="implicit", tol=1e-12, max_iterations=3, train_iterations=2)
    rng, params = made(layer)
    y, saved = layer.forward(params, rng.standard_normal((2, 5, 3)), Context(train=True))
    with pytest.warns(NotConverged, match="FixedPointRNN.backward: no fixed point for 2 of 2 .* after 3 iterations"):
        layer.backward(params, saved, y)


# ------------------------------------------------------------------------------------------------ batch and time


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("scaled", [True, False])
def test_one_pass_is_the_parts(mixer: str, scaled: bool) -> None:
    """The fused iteration against mixer, scan and update one after the other: rounding apart, iterate by iterate."""
    limit = {} if scaled else {"train_iterations": 4}  # unscaled it may diverge
    settings = {"mixer": mixer, "rank": 2, "scaled": scaled, "gradient": "implicit", "tol": 1e-12, **limit}
    layer = FixedPointRNN(5, 6, max_iterations=300 if scaled else 4, **settings)
    rng, params = made(layer)
    x, dy = rng.standard_normal((2, 3, 20, 5))
    lengths, results = np.array([20, 0, 13]), []
    for fused in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("error" if scaled else "ignore", NotConverged)
            y, saved = layer.forward(params, x, Context(lengths, train=True, fused=fused))
            dx, dparams, dstate = layer.backward(params, saved, dy, np.ones((3, 6)))
        results.append([y, saved.iterate, dx, dstate, *dparams.values(), saved.iterations])
    # dozens of iterations, each of some dozen rounded operations on numbers that grow with the iterate
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11 * max(1, np.abs(other).max()))


@pytest.mark.parametrize("fused", [True, False])
def test_a_sequence_does_not_depend_on_its_batch(fused: bool) -> None:
    """Bit for bit, NaN in another included: forward, report and gradient."""
    layer = FixedPointRNN(4, 6, rank=2, gradient="implicit", tol=1e-6)
    rng, params = made(layer)
    x, dy = rng.standard_normal((2, 4, 30, 4))
    x *= np.array([1, 1e-3, 3, 1])[:, None, None]
    x[3, 11, 2] = np.nan
    lengths = np.array([30, 17, 30, 30])
    with pytest.warns(NotConverged, match=r"1 of 4 sequences \(1 not finite\)"):
        y, saved = layer.forward(params, x, Context(lengths, fused=fused))
    with pytest.warns(NotConverged, match=r"backward: .* 1 of 4 sequences \(1 not finite\)"):
        dx = layer.backward(params, saved, dy)[0]
    assert len(set(saved.iterations[:3])) > 1
    assert np.isnan(y[3, 11:]).all()
    for b in range(3):
        alone, own = layer.forward(params, x[b : b + 1], Context(lengths[b : b + 1], fused=fused))
        assert alone.tobytes() == y[b : b + 1].tobytes()
        assert own.iterations[0] == saved.iterations[b]
        assert layer.backward(params, own, dy[b : b + 1])[0].tobytes() == dx[b : b + 1].tobytes()


def test_one_nan_sequence_does_not_stop_a_batch_in_the_quantile_rule() -> None:
    layer = FixedPointRNN(4, 6, stop="quantile", tol=1e-8)
    rng, params = made(layer)
    x = rng.standard_normal((4, 30, 4))
    x[2] = np.nan
    for train in (True, False):
        with pytest.warns(NotConverged):
            _, saved = layer.forward(params, x, Context(train=train))
        assert saved.iterations[2] == 1
        others = np.array([0, 1, 3])
        assert (saved.iterations[others] > 5).all()
        assert (saved.report.converged[others].sum()) >= (2 if train else 3)


def test_streaming_differs_from_the_whole_by_the_tolerance(record_property: Any) -> None:
    """Both stop where a step changes them by `tol` of their size at most, one token at a time or all at once. The map
    from there to the fixed point and on through time stays within a factor of order one here."""
    for tol in (0.1, 1e-3, 1e-12):
        layer = FixedPointRNN(4, 8, rank=2, contractive=True, tol=tol, max_iterations=300, lambda_init=(0.3, 0.9))
        rng, params = made(layer)
        x = rng.standard_normal((2, 60, 4))
        y, saved = layer.forward(params, x)
        state, rows = None, []
        prepared = layer.prepare(params)
        for t in range(60):
            y_t, state = layer.step(params, state, x[:, t], prepared)
            rows.append(y_t)
        gap = relative(np.stack(rows, 1), y)
        record_property(f"gap of sequential and parallel inference at tolerance {tol:g}", f"{gap:.2g}")
        assert 0 < gap < 3 * tol
        assert layer.report(saved) == saved.report.numbers()
        assert layer.report(saved)["residual"] == saved.residual.max() < tol


# -------------------------------------------------------------------------------------------------------- mixers


def test_an_epsilon_is_the_division_by_the_larger_of_both() -> None:
    """Vectors far above it are as without one, and far below, the mixer tends to the identity."""
    plain, eased = (MIXERS["householder"](6, 2, eps=eps) for eps in (0.0, 1e-3))
    rng = np.random.default_rng(6)
    parts = {name: rng.standard_normal(shape) for name, shape in plain.parts.items()}
    for one, other in zip(plain.operands(parts), eased.operands(parts), strict=True):
        np.testing.assert_array_equal(one, other)
    parts["u"] *= 1e-6
    Q = eased.mix(eased.operands(parts), np.eye(6)[None], np.zeros((1, 6, 6)), None)[0].T
    assert 0 < np.abs(Q - np.eye(6)).max() < 2 * 2 * 1e-5  # (1e-6 |u| / 1e-3)^2, with |u| up to 3
    zero = {name: np.zeros(shape) for name, shape in plain.parts.items()}
    assert not eased.operands(zero)[1].any()


def test_a_spectral_kronecker_mixer_has_eigenvalues_up_to_its_gains() -> None:
    """Sixteen steps are many where the largest eigenvalue is well apart: the factors then have the largest one 1."""
    one = MIXERS["kronecker"](9, spectral=True)
    parts = {"u": np.ones(12), "alpha": np.full(6, 1000.0)}  # gains of 1
    Q = one.mix(one.operands(parts), np.eye(9)[None], np.zeros((1, 9, 9)), None)[0].T
    largest = np.abs(np.linalg.eigvals((np.eye(9) - Q) / 2)).max()
    assert largest == pytest.approx(1, abs=1e-6)
    assert (
        np.abs(np.linalg.eigvals(np.eye(9) - mixer_matrix(FixedPointRNN(3, 9, mixer="kronecker"), parts))).max() > 2.1
    )


def test_a_mixture_applies_its_reflections_and_products_in_turn() -> None:
    one = MIXERS["mixture"](6, 3)
    rng = np.random.default_rng(7)
    parts = {name: rng.standard_normal(shape) for name, shape in one.parts.items()}
    Q = one.mix(one.operands(parts), np.eye(6)[None], np.zeros((1, 6, 6)), None)[0].T
    layer = FixedPointRNN(3, 6, mixer="mixture", rank=3)
    np.testing.assert_allclose(Q, mixer_matrix(layer, parts), rtol=0, atol=1e-13)


@pytest.mark.parametrize("mixer", CONTRACTING)
def test_contractive_mixers_stay_within_their_bound(mixer: str) -> None:
    rng = np.random.default_rng(4)
    for size in (0.1, 3.0, 100.0):
        one = MIXERS[mixer](6, 3, contractive=True)
        parts = {name: size * rng.standard_normal(shape) for name, shape in one.parts.items()}
        Q = one.mix(one.operands(parts), np.eye(6)[None], np.zeros((1, 6, 6)), None)[0].T
        layer = FixedPointRNN(3, 6, mixer=mixer, rank=3, contractive=True)
        np.testing.assert_allclose(Q, mixer_matrix(layer, parts), rtol=0, atol=1e-12)
        assert np.linalg.norm(np.eye(6) - Q, 2) <= CONTRACTION * (1 + 1e-12)


def test_unscaled_rotations_need_the_direct_solver_at_initial_values() -> None:
    """docs/layers/fixed_point.md."""
    layer, rng = FixedPointRNN(4, 16, mixer="rotation", rank=4), np.random.default_rng(0)
    params, x = layer.init(rng), rng.standard_normal((2, 8, 4), np.float32)
    for how in ({}, {"scaled": False, "solver": "direct"}):
        assert replace(layer, **how).forward(params, x)[1].report.converged.all()
    with pytest.warns(NotConverged, match="no fixed point for 2 of 2 sequences"):
        replace(layer, scaled=False).forward(params, x)


def test_silu_makes_the_angles_of_rotations_one_sided() -> None:
    """docs/layers/fixed_point.md: the least of SiLU is -0.2785, of pi tanh(u / pi) -0.2777."""
    layer = FixedPointRNN(1, 2, mixer="rotation", mixer_silu=True)
    u = np.linspace(-50, 50, 10001).reshape(1, -1, 1, 1)
    angles = layer._mixer.operands({"u": u * sigmoid(u)})[0]
    assert angles.min() == pytest.approx(-0.27774, abs=1e-5)
    assert angles.max() == pytest.approx(np.pi)


def test_what_rank_counts() -> None:
    """As the docstring of FixedPointRNN says."""
    shapes = {mixer: FixedPointRNN(2, 6, mixer=mixer, rank=3, selective=()).shapes for mixer in MIXERS}
    vectors = {mixer: shapes[mixer]["u"][0] for mixer in ("householder", "dplr", "low_rank", "rotation")}
    assert set(vectors.values()) == {3}
    assert shapes["monarch"]["alpha"] == (2,)  # two blocks of three channels
    assert shapes["mixture"]["alpha"] == (2,)  # two reflections around one product
    assert shapes["mixture"]["gains"][0] == 1
    for mixer in ("kronecker", "dense", "orthogonal"):
        assert shapes[mixer] == FixedPointRNN(2, 6, mixer=mixer, selective=()).shapes


def test_contractive_rotations_have_angles_below_60_degrees() -> None:
    rng = np.random.default_rng(5)
    one = MIXERS["orthogonal"](5, contractive=True)
    (Q,) = one.operands({"M": 1000 * rng.standard_normal((5, 5))})
    angles = np.abs(np.angle(scipy.linalg.eigvals(Q)))
    np.testing.assert_allclose(Q @ Q.T, np.eye(5), rtol=0, atol=1e-13)
    assert 0.5 < angles.max() < np.pi / 3
    (identity,) = one.operands({"M": np.zeros((5, 5))})
    np.testing.assert_array_equal(identity, np.eye(5))
    assert np.isfinite(one.operands_backward({"M": np.zeros((5, 5))}, (identity,), (Q,))["M"]).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_norms_whose_squares_float32_does_not_have(scale: float) -> None:
    """The mixer was the identity where they overflow, and rows were zero, with a warning of NumPy. Up to there, a power
    of two changes no bit."""
    M = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
    unit, size = unit_rows(M)
    there, larger = unit_rows(M * np.float32(scale))
    np.testing.assert_array_equal(there, unit)
    np.testing.assert_array_equal(larger, size * np.float32(scale))
    one = MIXERS["orthogonal"](5, contractive=True)
    (Q,) = one.operands({"M": M * np.float32(scale)})
    (exact,) = one.operands({"M": M.astype(np.float64) * scale})
    np.testing.assert_allclose(Q, exact, rtol=0, atol=5 * 8 * np.finfo(np.float32).eps)  # products of five, some eight


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"mixer": "magic"},
            "mixer='magic', expected one of householder, dplr, low_rank, kronecker, monarch, orthogonal",
        ),
        ({"gradient": "exact"}, "gradient='exact', expected one of one_step, implicit"),
        ({"selective": ("C",)}, r"selective=\('C',\), expected some of lambda, mixer, B"),
        ({"selective": "Blambda"}, r"selective=\('Blambda',\), expected some of"),
        ({"d_conv": -1}, "FixedPointRNN: d_conv=-1, expected an integer from 0"),
        ({"separate_convs": True}, "separate_convs=True with d_conv=0, expected d_conv to be 1 or more"),
        ({"feedback": ("lambda",)}, r"FixedPointRNN: feedback=\('lambda',\), expected some of mixer, output"),
        (
            {"feedback": ("mixer",), "solver": "direct"},
            r"feedback=\('mixer',\) with solver='direct', expected solver to be 'iteration'",
        ),
        ({"feedback": ("mixer",), "tile": 2}, r"feedback=\('mixer',\) with tile=2, expected tile to be None"),
        (
            {"feedback": ("mixer",), "mixer": "orthogonal"},
            r"feedback=\('mixer',\) with mixer='orthogonal', expected mixer to be one that can vary",
        ),
        ({"feedback": ("mixer",), "selective": ()}, r"with selective=\(\), expected selective to be with 'mixer'"),
        ({"mixer_silu": True, "selective": ("B",)}, "mixer_silu=True with .* expected selective to be with 'mixer'"),
        (
            {"mixer_silu": True, "mixer": "orthogonal"},
            "mixer_silu=True with mixer='orthogonal', expected mixer to be one that can vary",
        ),
        ({"symmetric": True}, r"symmetric=True with feedback=\(\), expected feedback to be with 'mixer'"),
        (
            {"symmetric": True, "feedback": ("mixer",)},
            "FixedPointRNN: symmetric=True with d_state=4, expected d_state to be d_model, 3",
        ),
        ({"unit_eps": -1.0}, "FixedPointRNN: unit_eps=-1.0, expected a nonnegative number"),
        (
            {"unit_eps": 1.0, "mixer": "orthogonal"},
            "unit_eps=1.0, expected 0 with 'orthogonal', which has no vectors",
        ),
        ({"spectral": True}, "spectral=True with 'householder' and contractive=False, expected a Kronecker product"),
        (
            {"spectral": True, "mixer": "kronecker", "contractive": True},
            "spectral=True with 'kronecker' and contractive=True, expected contractive=False, as the norm",
        ),
        ({"mixer": "monarch", "rank": 3}, "FixedPointRNN: rank=3, expected a divisor of the width, 4"),
        (
            {"mixer": "rotation", "d_state": 5},
            "mixer='rotation' with a width of 5, expected an even width",
        ),
        ({"mixer": "rotation", "unit_eps": 1.0}, "unit_eps=1.0, expected 0 with 'rotation', which has no vectors"),
        ({"mixer": "mixture"}, "FixedPointRNN: rank=1, expected at least 2 for 'mixture'"),
        ({"mixer": "mixture", "rank": 2, "tile": 2}, "tile=2 with mixer='mixture', expected mixer to be one of"),
        ({"mixer": "dense", "contractive": True}, "contractive=True with 'dense', .* expected another mixer"),
        ({"lambda_init": (-0.5, 0.5)}, "expected 0 < low <= high < 1"),
        ({"lambda_init": (-1.0, 0.5), "negative": True}, "expected -1 < low <= high < 1"),
        ({"contractive": True, "scaled": False}, "contractive=True with scaled=False, expected the scaled form"),
        ({"contractive": True, "mixer": "low_rank"}, "contractive=True with 'low_rank', .* expected another mixer"),
        ({"rank": 5}, "rank=5, expected an integer from 1 to the width, 4"),
        ({"rank": 0}, "rank=0, expected a positive integer"),
        ({"d_state": 2.0}, r"d_state=2.0, expected an integer"),
        ({"lambda_init": (0.9, 1.0)}, r"lambda_init=\(0.9, 1.0\), expected 0 < low <= high < 1"),
        ({"scaled": 1}, "scaled=1, expected True or False"),
        ({"site": -1}, "site=-1, expected an integer from 0"),
        ({"tol": -1.0}, "tol=-1.0, expected a positive number"),
        ({"gamma_scale": 0}, "gamma_scale=0.0, expected a positive number"),
        ({"max_iterations": 0}, "max_iterations=0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FixedPointRNN(**{"d_model": 3, "d_state": 4, **settings})


def test_bad_arguments() -> None:
    layer = FixedPointRNN(3, 4)
    rng, params = made(layer)
    x = rng.standard_normal((2, 5, 3))
    y, saved = layer.forward(params, x)
    for call, message in (
        (lambda: layer.forward(params, x[..., :2]), r"forward: x has shape \(2, 5, 2\), expected .* D=3"),
        (lambda: layer.forward(params, x, state=np.zeros((2, 3))), r"forward: state has shape \(2, 3\), expected"),
        (lambda: layer.forward(params, x, start=np.zeros((2, 5, 3))), r"forward: start has shape \(2, 5, 3\)"),
        (lambda: layer.forward(params, x, Context(np.array([6, 1]))), r"lengths\[0\] is 6"),
        (lambda: layer.step(params, None, x), r"step: x_t has shape \(2, 5, 3\), expected \(B, D\)"),
        (lambda: layer.backward(params, saved, y[:, :4]), r"backward: dy has shape \(2, 4, 3\)"),
        (lambda: layer.backward(params, saved, y, np.zeros((1, 4))), r"backward: dstate has shape \(1, 4\)"),
        (lambda: layer.forward({**params, "B": params["B"] * np.nan}, x), "parameter B is nan"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="forward: x has dtype int64"):
        layer.forward(params, x.astype(int))


def test_float32_parameters_and_threads() -> None:
    """In float32 throughout, down to rounding, the same bits for any number of threads: in parallel over sequences."""
    layer = FixedPointRNN(8, 40, rank=2, gradient="implicit", tol=1e-9)
    rng = np.random.default_rng(6)
    params = layer.init(rng)
    x, dy = rng.standard_normal((2, 4, 300, 8), dtype=np.float32)
    results, before = [], _cpu.threads()
    try:
        for threads in (1, 2, 5):
            _cpu.use_threads(threads)
            y, saved = layer.forward(params, x)
            assert saved.report.converged.all()
            dx, dparams, _ = layer.backward(params, saved, dy)
            assert {one.dtype for one in (y, dx, saved.state, *dparams.values())} == {np.dtype(np.float32)}
            results.append([one.tobytes() for one in (y, dx, *dparams.values())])
    finally:
        _cpu.use_threads(before)
    assert results[0] == results[1] == results[2]
