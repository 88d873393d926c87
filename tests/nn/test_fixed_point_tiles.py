"""Fixed points of FixedPointRNN by tiles of time, and directly: against dense systems and the iteration's rules."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cases.fixed_point import dense_recurrence
from rotrnn import _cpu
from rotrnn.devices.recording import NotRecordable, Recording, recorded
from rotrnn.nn.fixed_points import iteration
from rotrnn.nn.fixed_points.iteration import CYCLE, ConvergenceError, NotConverged, iterate
from rotrnn.nn.fixed_points.mixer import CONTRACTION
from rotrnn.nn.layer import Context, astype
from rotrnn.nn.layers import fixed_point
from rotrnn.nn.layers.fixed_point import FixedPointRNN
from rotrnn.ops.boundary import CheckedLengths
from rotrnn.ops.fixed_point import depth_pass, depth_solve, prepare_mixer
from rotrnn.ops.mixer import DPLR, HOUSEHOLDER, LOW_RANK, MATRIX, mixer_gains

EPS = np.finfo(np.float64).eps
D, N, T = 5, 12, 50
DIRECT_FORMS = [
    *((mixer, scaled) for mixer in ("householder", "dplr", "orthogonal", "rotation") for scaled in (True, False)),
    *((mixer, True) for mixer in ("low_rank", "kronecker", "monarch", "dense", "mixture")),
]
LARGEST = {mixer: 150 if mixer in ("kronecker", "monarch", "mixture") else 50 for mixer, _ in DIRECT_FORMS}
"""Bounds of the |A_t| of the adverse weights, asserted below."""


def made(layer: FixedPointRNN, seed: int = 0) -> tuple[np.random.Generator, Any]:
    rng = np.random.default_rng(seed)
    params = astype(layer.init(rng), np.float64)
    return rng, {name: value + 0.2 * rng.standard_normal(value.shape) for name, value in params.items()}


def adverse(scaled: bool = True, **settings: Any) -> tuple[Any, Any, Any]:
    """(layer, params, x) with gains alpha of about 0.9 and lam of about 0.1 at every token: there (1 - lam)(I - Q) has
    an eigenvalue near 0.9 * 2 * 0.9 > 1, so that no iteration contracts, and Q has a negative one. Unscaled, lam of
    about 0.1 keeps Q^-1 lam small."""
    layer = FixedPointRNN(D, N, rank=2, scaled=scaled, **{"gradient": "implicit"} | settings)
    rng, params = made(layer)
    x = rng.standard_normal((2, T, D))
    x[..., 0] = 1  # a channel that stands for a bias
    for gains in {"W_alpha", "W_gains"} & set(params):
        params[gains] *= 0.1
        params[gains][..., 0] = 2.2
    if "M" in params:
        params["M"] *= 4  # angles beyond 60 degrees
    params["b_lambda"] = params["b_lambda"] * 0.1 - 2.5
    return layer, params, x


def relative(got: Any, expected: Any) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


# ---------------------------------------------------------------------------------------------------------- tiles


@pytest.mark.parametrize("tile", [1, 2, 7, T, T + 1])
def test_tiles_reach_the_dense_recurrence_within_their_tolerance(tile: int) -> None:
    """With one constant lam for all lanes, F over a tile has |J|_2 <= c = 0.95 (Theorem 3.2), and a token hands its
    error on times |K lam| <= lam / (1 - c (1 - lam)) <= 1. A tile ends with |y - F|_inf <= tol |F|_inf, so |y - F|_2 <=
    sqrt(n) tol |F|_inf for its n numbers, and y is within 1 / (1 - c) of that of its fixed point; damped steps and the
    last application bring it no farther off. Its error adds to those of the tiles before."""
    tol = 1e-9
    layer = FixedPointRNN(
        D, N, rank=2, contractive=True, selective=("mixer", "B"), tol=tol, max_iterations=1000, tile=tile
    )
    rng, params = made(layer)
    params["b_lambda"][:] = 0.3
    x, state = rng.standard_normal((2, T, D)), rng.standard_normal((2, N))
    _, saved = layer.forward(params, x, state=state)
    exact = dense_states(layer, params, x, state)
    bound = -(-T // tile) * np.sqrt(min(tile, T) * N) * tol / (1 - CONTRACTION) * np.abs(exact).max() * (1 + tol)
    assert np.linalg.norm(saved.iterate - exact, axis=-1).max() <= bound
    assert saved.report.converged.all()
    assert (saved.report.per_step > 5).all()
    assert (saved.report.per_step <= saved.iterations).all()
    assert (saved.report.per_step < saved.iterations).all() == (tile < T)


@pytest.mark.parametrize(("damping", "cycle"), [("adaptive", CYCLE), ("none", CYCLE), ("adaptive", 35)])
@pytest.mark.parametrize("tile", [1, 7, T + 1])
def test_a_tile_follows_the_rules_of_the_iteration(
    tile: int, damping: str, cycle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same iterates, to the bit, as `iterate` over the same tiles: step sizes that shrink, and begin anew after a
    cycle, limits, and all."""
    monkeypatch.setattr(iteration, "CYCLE", cycle)
    monkeypatch.setattr(fixed_point, "CYCLE", cycle)
    layer, params, x = adverse(tol=1e-3, max_iterations=40, damping=damping, tile=tile)
    params["W_alpha"][:, 0] = 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        _, saved = layer.forward(params, x)
    assert np.isfinite(saved.before).all()
    assert (saved.iterations > 16).all()  # the step size has shrunk
    assert saved.iterations.max() == 40

    depth, settings = saved.depth, layer._iteration
    u, alpha = depth.operands
    for b in range(len(x)):
        carry, applied, most = np.zeros((1, N)), 0, 0
        for lo in range(0, T, tile):
            one = slice(b, b + 1), slice(lo, lo + tile)
            v, lam = (np.ascontiguousarray(array[one]) for array in (depth.v, depth.lam))
            mixer = prepare_mixer(HOUSEHOLDER, 2, u[one], alpha[one], N)
            y = np.zeros_like(v)

            def step(s: Any, left: Any, y: Any = y, v: Any = v, lam: Any = lam, mixer: Any = mixer) -> Any:
                return depth_pass(y, v, lam, mixer, carry, s, lengths=left)  # noqa: B023

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConverged)
                steps = CheckedLengths.of(np.array([y.shape[1]]), 1, y.shape[1])
                report = iterate(step, steps, y.dtype, settings)
            assert y.tobytes() == saved.before[one].tobytes()
            applied += report.iterations[0] * y.shape[1]
            most = max(most, report.iterations[0])
            carry = saved.iterate[b : b + 1, min(lo + tile, T) - 1]
        assert (applied / T, most) == (saved.report.per_step[b], saved.iterations[b])


@pytest.mark.parametrize("tile", [1, 7, T + 1])
def test_accelerated_tiles_are_those_of_the_unfused_iteration(tile: int) -> None:
    """Forward and adjoint; with tiles of one step, where no iteration contracts. The kernel adds up dot products in
    another order, so iterates differ by roundings, which the inverse of a tile's I - J multiplies, up to LARGEST for
    each step and some more for the maps around it; both stop within an iteration of each other, at distances below
    tol."""
    tol = 1e-9
    layer, params, x = adverse(tol=tol, max_iterations=400, damping="anderson", tile=tile)
    layer = replace(layer, contractive=tile > 1)
    y, saved = layer.forward(params, x)
    assert saved.report.converged.all()
    exact = replace(layer, solver="direct", tile=None).forward(params, x)
    slack = 1e3 * LARGEST["householder"] * tol
    assert relative(saved.iterate, exact[1].iterate) <= slack
    dy = np.random.default_rng(1).standard_normal(y.shape)
    got = layer.backward(params, saved, dy)
    expected = replace(layer, solver="direct", tile=None).backward(params, exact[1], dy)
    assert relative(got[0], expected[0]) <= slack

    depth, settings = saved.depth, layer._iteration
    assert depth.operands is not None
    first = slice(0, tile)
    lam, v, *operands = (np.ascontiguousarray(one[:, first]) for one in (depth.lam, depth.v, *depth.operands))
    part = replace(depth, tile=None, lam=lam, v=v, operands=tuple(operands))
    z = np.zeros_like(part.v)
    report = part.solve(z, settings, Context(), site=0, name="part")[1]
    assert np.abs(report.iterations - layer.forward(params, x[:, first])[1].iterations).max() <= 1
    assert relative(z, saved.before[:, first]) <= slack


def test_tiles_of_one_step_are_the_stream() -> None:
    """Step by step, the same iterates; only the products before it, of one row or of many, may round differently, and a
    difference of rounding is one of the fixed point times (1 + c) / (1 - c) at most, from T steps, or an iteration
    more, of tol."""
    tol = 1e-13
    layer = FixedPointRNN(D, N, rank=2, contractive=True, tol=tol, max_iterations=2000, tile=1)
    rng, params = made(layer)
    x = rng.standard_normal((2, T, D))
    y, saved = layer.forward(params, x)
    state, rows, prepared = None, [], layer.prepare(params)
    for t in range(T):
        y_t, state = layer.step(params, state, x[:, t], prepared)
        rows.append(y_t)
    assert relative(np.stack(rows, 1), y) <= T * (1 + CONTRACTION) / (1 - CONTRACTION) * (4 * N * EPS + tol)
    assert saved.report.converged.all()


def test_a_tile_that_fails_does_not_end_the_sequence_but_is_reported() -> None:
    """A token whose iteration cannot contract, in the middle: the rest is solved from where it ended; NaN goes on."""
    layer = FixedPointRNN(D, N, tile=1, tol=1e-6, max_iterations=20, damping="none", selective=("mixer",))
    rng, params = made(layer)
    params["b_lambda"][:], params["W_alpha"][:], params["W_alpha"][:, 0] = -3, 0, 1
    x = rng.standard_normal((2, 9, D))
    x[..., 0] = -3
    x[0, 4, 0] = 5  # alpha near 1, where |I - Q| (1 - lam) is 1.9
    with pytest.warns(NotConverged, match="no fixed point for 1 of 2 sequences: residual .* after 20 iterations"):
        _, saved = layer.forward(params, x)
    np.testing.assert_array_equal(saved.report.converged, [False, True])
    assert saved.iterations[0] == 20
    assert saved.iterations[1] < 20
    assert np.isfinite(saved.iterate).all()
    v = saved.depth.v.copy()
    v[0, 4] = np.nan
    depth = replace(saved.depth, v=v)
    with pytest.warns(NotConverged, match="1 not finite"):
        h, report = depth.solve(np.zeros_like(v), layer._iteration, Context(), site=0)
    assert np.isnan(report.residual[0])
    assert np.isnan(h[0, 4:]).all()
    assert np.isfinite(h[0, :4]).all()
    assert h[1].tobytes() == saved.iterate[1].tobytes()
    layer = replace(layer, contractive=True, max_iterations=2)
    with pytest.raises(ConvergenceError, match=r"FixedPointRNN: no fixed point .* though it is contractive"):
        layer.forward(params, x)


# --------------------------------------------------------------------------------------------------------- direct


def dense_states(layer: FixedPointRNN, params: Any, x: Any, state: Any) -> Any:
    """The states of the dense recurrence, (B, T, N)."""
    states = np.zeros((*x.shape[:2], layer.d_state))
    for b, t in np.ndindex(*x.shape[:2]):
        A, drive = dense_recurrence(layer, params, x[b, t])
        states[b, t] = A @ (states[b, t - 1] if t else state[b]) + drive
    return states


@pytest.mark.parametrize(("mixer", "scaled"), DIRECT_FORMS)
def test_a_direct_solution_is_the_dense_one_where_no_iteration_converges(mixer: str, scaled: bool) -> None:
    """To rounding: over T steps that do not grow, each with systems of condition below LARGEST, asserted, and some 4 N
    roundings each in both."""
    layer, params, x = adverse(scaled, mixer=mixer, solver="direct")
    state = np.random.default_rng(1).standard_normal((2, N))
    _, saved = layer.forward(params, x, state=state)
    exact = dense_states(layer, params, x, state)
    transitions = [dense_recurrence(layer, params, x_t)[0] for x_t in x.reshape(-1, D)]
    largest = max(np.linalg.norm(A, 2) for A in transitions)
    assert relative(saved.iterate, exact) <= T * LARGEST[mixer] * 4 * N * EPS
    assert largest < LARGEST[mixer]
    assert saved.report.converged.all()
    assert saved.residual.max() <= LARGEST[mixer] * 4 * N * EPS
    assert (saved.iterations == 1).all()
    if mixer not in ("low_rank", "dense", "monarch"):  # whose |I - Q| (1 - lam) is below 1
        with pytest.warns(NotConverged):
            replace(layer, solver="iteration", damping="none", max_iterations=300).forward(params, x, state=state)


@pytest.mark.parametrize(("mixer", "scaled"), DIRECT_FORMS)
def test_its_gradient_is_exact_where_no_iteration_converges(mixer: str, scaled: bool) -> None:
    """Central differences of step 1e-6 err by its square, and by eps / 1e-6 of the loss: 1e-6 in all."""
    layer, params, x = adverse(scaled, mixer=mixer, solver="direct")
    rng = np.random.default_rng(1)
    state, dstate = rng.standard_normal((2, 2, N))
    dy = rng.standard_normal(x.shape)
    _, saved = layer.forward(params, x, state=state)
    dx, dparams, dstate0 = layer.backward(params, saved, dy, dstate)

    def loss(**changed: Any) -> float:
        p = {name: changed.get(name, params[name]) for name in params}
        y, after = layer.forward(p, changed.get("x", x), state=changed.get("state", state))
        return float(np.sum(dy * y) + np.sum(dstate * after.state))

    for name, grad in {**dparams, "x": dx, "state": dstate0}.items():
        value = {**params, "x": x, "state": state}[name]
        v = rng.standard_normal(value.shape)
        numeric = (loss(**{name: value + 1e-6 * v}) - loss(**{name: value - 1e-6 * v})) / 2e-6
        assert abs(numeric - np.sum(grad * v)) <= 1e-6 * np.linalg.norm(grad) * np.linalg.norm(v) + 1e-6, name


@pytest.mark.parametrize(("mixer", "scaled"), DIRECT_FORMS)
def test_both_directions_are_adjoint(mixer: str, scaled: bool) -> None:
    """<(I - J)^-1 f, g> = <f, (I - J)^-T g>: with x = 0 and h0 the only source, y = (I - J)^-1 f for f the decay of h0
    in F(0), and the adjoint's y = w is the scan of (I - J)^-T g, so <y, g> = <h0, lam_0 w_0>."""
    layer, params, x = adverse(scaled, mixer=mixer, solver="direct")
    rng = np.random.default_rng(1)
    depth = layer.forward(params, x)[1].depth
    mixing = depth.mixer.prepared(depth.operands) or depth.mixer.as_matrices(depth.operands, depth.v)
    h0, g = rng.standard_normal((2, N)), rng.standard_normal((2, T, N))
    how: dict[str, Any] = {"tile": None, "tol": 0.1, "limit": 1, "scaled": scaled}
    y, w = np.zeros((2, 2, T, N))
    depth_solve(y, np.zeros_like(y), depth.lam, mixing, h0, **how)
    depth_solve(w, g, depth.lam, mixing, None, adjoint=True, **how)
    left, right = np.sum(y * g), np.sum(h0 * depth.lam[:, 0] * w[:, 0])
    assert abs(left - right) <= T * LARGEST[mixer] * 4 * N * EPS * np.linalg.norm(y) * np.linalg.norm(g)
    assert abs(left) > 1e-3 * np.linalg.norm(y[:, 0])


@pytest.mark.parametrize("varying", [True, False])
def test_matrices_of_pieces_of_time_are_those_of_the_whole(varying: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of three steps hand on the state, and for the adjoint what comes from the step behind them. The sum of two
    numbers before a system, of condition below LARGEST, may round otherwise, in each of T steps."""
    how: dict[str, Any] = {} if varying else {"selective": ("mixer",)}
    layer, params, x = adverse(mixer="mixture", solver="direct", **how)
    state, dy = np.random.default_rng(1).standard_normal((2, N)), np.random.default_rng(2).standard_normal(x.shape)
    ctx = Context(np.array([T, T - 7]))
    results = []
    for most in (2 * 3 * N * N, fixed_point.MOST_IN_MATRICES):
        monkeypatch.setattr(fixed_point, "MOST_IN_MATRICES", most)
        _, saved = layer.forward(params, x, ctx, state)
        dx, dparams, dstate = layer.backward(params, saved, dy)
        results.append([saved.iterate, saved.residual, dx, dstate, *dparams.values()])
        assert (saved.iterations == 1).all()
        assert (saved.report.per_step == 1).all()
    for got, expected in zip(*results, strict=True):
        assert np.abs(got - expected).max() <= T * LARGEST["mixture"] * 4 * N * EPS * max(np.abs(expected).max(), 1)


def test_it_needs_no_gain_and_says_where_there_is_no_solution() -> None:
    """alpha = 0 leaves the diagonal recurrence, and u = 0 too; unscaled and with alpha = 1/2, Q is singular."""
    layer = FixedPointRNN(D, N, selective=(), scaled=False, solver="direct")
    rng, params = made(layer)
    x = rng.standard_normal((1, T, D))
    zero = {**params, "u": 0 * params["u"]}
    got = layer.forward(zero, x)[1]
    expected = replace(layer, solver="iteration", tol=1e-13, damping="none").forward(zero, x)[1]
    assert relative(got.iterate, expected.iterate) <= 4 * T * EPS
    none = layer.forward({**params, "alpha": np.full(1, -1000.0)}, x)[1]
    assert relative(none.iterate, expected.iterate) <= 4 * T * EPS
    with pytest.warns(NotConverged, match="FixedPointRNN: no fixed point for 1 of 1 sequence"):
        layer.forward({**params, "alpha": np.zeros(1)}, x)


NEARLY_SINGULAR: list[tuple[dict[str, Any], dict[str, float]]] = [
    ({"mixer": "householder", "scaled": False}, {"alpha": 3e-6}),  # gains near 1/2
    ({"mixer": "dplr", "scaled": False}, {"alpha": 3e-6}),
    ({"mixer": "monarch", "scaled": False}, {"alpha": 15}),  # near 1
    ({"mixer": "rotation"}, {"u": 20, "b_lambda": 0}),  # nearly half a turn, lam = 1/2
]


@pytest.mark.parametrize(("settings", "parts"), NEARLY_SINGULAR, ids=str)
def test_the_residual_shows_how_wrong_the_solution_of_a_nearly_singular_system_is(
    settings: dict[str, Any], parts: dict[str, float]
) -> None:
    """Each of the N x N entries of a system is rounded a few times; the residual counts one of these roundings."""
    layer = FixedPointRNN(3, 4, selective=(), solver="direct", tol=1e-3, **settings)
    params = layer.init(np.random.default_rng(0))
    params |= {name: np.full_like(params[name], value) for name, value in parts.items()}
    x, state = np.ones((1, 1, 3), np.float32), np.ones((1, 4), np.float32)
    with pytest.warns(NotConverged, match="FixedPointRNN: no fixed point for 1 of 1 sequence"):
        _, saved = layer.forward(params, x, state=state)
    exact = layer.forward(astype(params, np.float64), x.astype(np.float64), state=state)[1]
    assert not saved.report.converged.any()
    assert exact.report.converged.all()
    assert relative(saved.iterate, exact.iterate) <= 4 * N * saved.residual.max()
    assert saved.residual.max() <= 0.5
    assert np.abs(exact.iterate).max() > 1e4


@pytest.mark.parametrize("adjoint", [False, True])
def test_the_residual_is_what_rounding_does_to_a_solution(adjoint: bool) -> None:
    """One channel with Q = q, formed from numbers of size 1 or q: y is 1 / q, for lam h_0 of 1, and for the adjoint for
    a gradient of 1. The residual counts the distance of neighbours of 1 by how much 1 / q lets it grow."""
    x, lam, h0 = (np.full((1, 1, 1), value, np.float32) for value in (adjoint, 1, 1))
    for q, growth in ((2.0**-20, 2**20), (1, 1), (2, 1)):
        mixer = prepare_mixer(HOUSEHOLDER, 1, np.ones((1, 1), np.float32), np.full(1, (1 - q) / 2, np.float32), 1)
        y = np.zeros((1, 1, 1), np.float32)
        how: dict[str, Any] = {"tile": None, "tol": 0.1, "limit": 1, "scaled": False, "adjoint": adjoint}
        found = depth_solve(y, x, lam, mixer, None if adjoint else h0[0], **how)
        assert y.item() == 1 / q
        assert found.residual.item() == growth * np.finfo(np.float32).eps


def test_a_solution_that_is_wrong_comes_with_a_warning() -> None:
    """A gain alpha near the 1/2 at which Q is singular, of a logit that is a sum of numbers that cancel."""
    wrong = 0
    for seed in range(20):
        layer, rng = FixedPointRNN(4, 6, solver="direct", scaled=False), np.random.default_rng(seed)
        params, x = layer.init(rng), rng.standard_normal((1, 2, 4)).astype(np.float32)
        last, W = x[0, 1].astype(np.float64), params["W_alpha"].astype(np.float64)
        params["W_alpha"] = (W - np.outer(W @ last - 10.0 ** -rng.uniform(6, 7.5), last) / (last @ last)).astype(
            np.float32
        )
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            y = layer.forward(params, x)[1].iterate
        exact = layer.forward(astype(params, np.float64), x.astype(np.float64))[1].iterate
        if not relative(y, exact) <= 0.3:
            wrong += 1
            assert any(one.category is NotConverged for one in warned)
    assert wrong > 5


@pytest.mark.parametrize(("mixer", "alpha"), [("householder", 0), ("dplr", 0), ("monarch", 20)])
def test_transitions_refuse_an_unscaled_system_that_is_singular(mixer: str, alpha: float) -> None:
    layer = FixedPointRNN(3, 4, mixer=mixer, selective=(), solver="direct", scaled=False)
    params = layer.init(np.random.default_rng(0))
    params["alpha"] = np.full_like(params["alpha"], alpha)
    with pytest.raises(ValueError, match=r"FixedPointRNN\.transitions: a Q_t has no inverse"):
        layer.transitions(params, np.ones((1, 1, 3), np.float32))


# ----------------------------------------------------------------------------------------------------------- both


@pytest.mark.parametrize("how", [{"tile": 3}, {"tile": 1}, {"solver": "direct"}], ids=str)
def test_sequences_alone_and_padding_and_threads_change_no_bit(how: dict[str, Any]) -> None:
    layer = FixedPointRNN(4, 40, rank=2, gradient="implicit", tol=1e-5, **how)
    rng = np.random.default_rng(2)
    params = layer.init(rng)
    lengths = np.array([200, 0, 3, 177])
    x, dy = rng.standard_normal((2, 4, 200, 4), dtype=np.float32)
    results, before = [], _cpu.threads()
    for b, steps in enumerate(lengths):
        x[b, steps:] = dy[b, steps:] = np.nan
    try:
        for threads in (1, 2, 5):
            _cpu.use_threads(threads)
            y, saved = layer.forward(params, x, Context(lengths))
            dx, dparams, _ = layer.backward(params, saved, dy)
            results.append([one.tobytes() for one in (y, saved.iterate, dx, *dparams.values())])
    finally:
        _cpu.use_threads(before)
    assert results[0] == results[1] == results[2]
    assert saved.report.converged.all()
    assert saved.iterations[1] == saved.report.per_step[1] == 0
    for b, steps in enumerate(lengths):
        assert not saved.iterate[b, steps:].any()
        if steps:
            alone, own = layer.forward(params, x[b : b + 1, :steps])
            assert own.report.per_step[0] == saved.report.per_step[b]
            # the products before, of other numbers of rows, may round differently
            np.testing.assert_allclose(alone[0], y[b, :steps], rtol=0, atol=1e-4)


@pytest.mark.parametrize("how", [{"tile": 3}, {"solver": "direct"}], ids=str)
def test_neither_is_recorded_as_a_graph(how: dict[str, Any]) -> None:
    layer = FixedPointRNN(D, N, **how)
    rng, params = made(layer)
    x = rng.standard_normal((2, 9, D))
    with recorded(Recording()), pytest.raises(NotRecordable, match="a fixed point by tiles, or a direct one"):
        layer.forward(params, x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver": "exact"}, "solver='exact', expected one of iteration, direct"),
        *(
            (
                {key: value, "mixer": mixer, "scaled": False},
                f"{key}='{value}' with scaled=False, expected scaled to be True for '{mixer}'",
            )
            for mixer in ("low_rank", "dense")
            for key, value in (("solver", "direct"), ("damping", "anderson"))
        ),
        ({"solver": "direct", "tile": 3}, "tile=3 with solver='direct', expected solver to be 'iteration'"),
        ({"rank": 99}, "rank=99, expected an integer from 1 to the width"),
        ({"tol": 0}, "tol=0.0, expected a positive number"),
        ({"tile": 0}, "tile=0, expected a positive integer"),
        ({"tile": 2.5}, "tile=2.5, expected"),
        *(
            ({"tile": 3, "mixer": mixer, "rank": 2}, f"tile=3 with mixer='{mixer}', expected mixer to be one of househ")
            for mixer in ("orthogonal", "mixture")
        ),
        ({"tile": 3, "accelerated": False}, "tile=3 with accelerated=False, expected accelerated to be True"),
        ({"tile": 3, "stop": "quantile"}, "tile=3 with stop='quantile', expected stop to be 'sequence'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"FixedPointRNN: {message}"):
        FixedPointRNN(**{"d_model": 3, "d_state": 4, **settings})


def test_bad_arguments() -> None:
    x, lam = np.ones((2, 3, 4)), np.ones(4)

    def call(**changed: Any) -> None:
        given = {"y": x.copy(), "x": x, "lam": lam, "mixer": mixer(HOUSEHOLDER), "h0": None, "tile": 2, "tol": 0.1}
        depth_solve(**given | {"limit": 3} | changed)

    def mixer(form: int) -> Any:
        return prepare_mixer(form, 1, np.ones((1, 4)), np.ones(1), 4)

    read_only = x.copy()
    read_only.flags.writeable = False
    for changed, message in (
        ({"tile": 0}, "tile is 0, expected a positive integer"),
        ({"tol": 0.0}, "tol is 0.0, expected a positive number"),
        ({"limit": 0}, "limit is 0, expected a positive integer"),
        ({"patience": 0}, "patience is 0, expected a positive integer"),
        ({"shrink": -1.0}, "shrink is -1.0, expected a nonnegative number"),
        ({"x": x[:, :2]}, r"x has shape \(2, 2, 4\), expected"),
        ({"y": read_only}, "y is read-only"),
        ({"y": x}, "y overlaps an input"),
        ({"adjoint": 1}, "adjoint is 1, expected True or False"),
        ({"tile": None, "mixer": mixer(LOW_RANK), "scaled": False}, "tile is None with a low-rank mixer without"),
    ):
        with pytest.raises(ValueError, match=f"depth_solve: {message}"):
            call(**changed)
    with pytest.raises(ValueError, match=r"prepare_mixer: u has shape \(15,\), expected \(N=16,\)"):
        prepare_mixer(MATRIX, 4, np.ones(15), np.ones(0), 4)
    with pytest.raises(ValueError, match=f"mixer_gains: form is {MATRIX}, expected an integer from 0 to"):
        mixer_gains(MATRIX, np.ones(16), np.ones(0), 4, 4)
    with pytest.raises(TypeError, match="depth_solve: mixer is a NoneType, expected a PreparedMixer"):
        call(mixer=None)
    whole, larger = x.copy(), x.copy()
    call(mixer=mixer(DPLR), y=whole, tile=3)
    for tile in (2**62, 2**63 - 1):
        call(mixer=mixer(DPLR), y=larger, tile=tile)
        assert np.array_equal(larger, whole)
        larger[:] = 1
    assert not np.array_equal(larger, whole)
