"""Bedouin and FPMamba: known answers, both modes of inference, ablations, and failures."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cases.bedouin import bedouin_loop, printed_loop
from cases.table import normal
from rotrnn.nn.fixed_points.iteration import NotConverged
from rotrnn.nn.fixed_points.matrix_fixed_point import MatrixFixedPoint
from rotrnn.nn.fixed_points.mixer import MIXERS
from rotrnn.nn.layer import Context, astype
from rotrnn.nn.layers.bedouin import Bedouin
from rotrnn.nn.layers.fpmamba import FPMamba
from rotrnn.ops.dense import dense
from rotrnn.ops.mixer import GRAM, HOUSEHOLDER, KRONECKER, MATRIX, MIXTURE
from rotrnn.ops.pointwise import sigmoid, softplus
from rotrnn.ops.selective import selective_scan, selective_solve

EPS = np.finfo(np.float64).eps
ALL: tuple[str, ...] = ("lambda", "mixer", "B", "C", "gate")
EXACT = {"tol": 1e-13, "max_iterations": 1000}


def made(layer: MatrixFixedPoint, seed: int = 0, B: int = 3, T: int = 12) -> tuple[Any, Any]:
    """Returns parameters slightly changed from their initial values, and an input."""
    rng = np.random.default_rng(seed)
    params = astype(layer.init(rng), np.float64)
    return {name: p + 0.05 * normal(rng, p.shape) for name, p in params.items()}, normal(rng, (B, T, layer.d_model))


def test_without_mixing_it_is_the_selective_scan() -> None:
    """Q = I, one iteration, nothing fed back: the step is Mamba's scan of x. Both are made of the same ops but for how
    products are stacked, so a handful of roundings apart over 40 decaying steps."""
    layer = Bedouin(4, feedback=(), mixer="orthogonal", max_iterations=1, tol=0.1)
    params, u = made(layer, T=40)
    params["M"] = np.zeros_like(params["M"])
    with pytest.warns(NotConverged, match="Bedouin: no fixed point"):  # one step from zero cannot know
        _, saved = layer.forward(params, u)
    x = dense(u, params["W_in"][: layer.width])
    B, C = (dense(x, params[name]) for name in ("W_B", "W_C"))
    y, h = selective_scan(
        x,
        sigmoid(dense(x, params["W_delta"], params["b_delta"])),
        -8 * softplus(params["omega"]),
        B / np.linalg.norm(B, axis=-1, keepdims=True),
        C / np.linalg.norm(C, axis=-1, keepdims=True),
        return_state=True,
    )
    np.testing.assert_allclose(saved.iterate, y, rtol=0, atol=1e3 * EPS * np.abs(y).max())
    np.testing.assert_allclose(saved.state[0], h, rtol=0, atol=1e3 * EPS * np.abs(h).max())


@pytest.mark.parametrize("solver", ["iteration", "direct"])
def test_directions_of_any_length(solver: str) -> None:
    """normalise=False against the linear system of each token, for inputs so small that B.C contracts."""
    layer = Bedouin(3, d_state=2, normalise=False, solver=solver, **EXACT)
    params, u = made(layer)
    y, _ = layer.forward(params, 0.3 * u)
    expected, _ = bedouin_loop(layer, params, 0.3 * u, None, None)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-11 * np.abs(expected).max())
    normalised, _ = Bedouin(3, d_state=2, **EXACT).forward(params, 0.3 * u)
    assert np.abs(normalised - expected).max() > 1e-3


@pytest.mark.parametrize("mixer", ["householder", "dplr", "low_rank", "kronecker", "orthogonal"])
@pytest.mark.parametrize("stop", ["sequence", "quantile"])
def test_fpmamba_follows_the_published_loop(mixer: str, stop: str) -> None:
    """Six steps, whether they converge or not: the path is what counts. A step may pull two iterates apart, by a factor
    of some ten at these sizes, so 10^7 roundings at most."""
    layer = FPMamba(3, d_state=2, mixer=mixer, stop=stop, tol=0.1, max_iterations=6)
    params, u = made(layer, T=7)
    lengths = np.array([7, 0, 4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        y, saved = layer.forward(params, u, Context(lengths))
    expected, state = printed_loop(layer, params, u, None, [7, 0, 4])
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e7 * EPS * np.abs(expected).max())
    for got, one in zip(saved.state, state, strict=True):
        np.testing.assert_allclose(got, one, rtol=0, atol=1e7 * EPS * np.abs(one).max())


def test_fpmamba_shrinks_its_steps_as_printed() -> None:
    """Iterations that go round in circles: 40 steps without an end, in which sizes shrink, and matter."""
    settings = {"d_state": 1, "mixer": "orthogonal", "feedback": (), "tol": 1e-9, "dt_min": 1.0, "dt_max": 2.0}
    layer = FPMamba(2, max_iterations=40, **settings)
    rng = np.random.default_rng(2)
    params = astype(layer.init(rng), np.float64)
    params["M"] *= 20
    u = rng.standard_normal((2, 3, 2))
    with pytest.warns(NotConverged):
        y, saved = layer.forward(params, u)
    assert (saved.iterations == 40).all()
    expected, _ = printed_loop(layer, params, u, None, None)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-9)  # circles neither grow nor shrink what roundings leave
    with pytest.warns(NotConverged):
        whole_steps, _ = FPMamba(2, max_iterations=40, damping="none", **settings).forward(params, u)
    assert np.abs(y - whole_steps).max() > 0.1


def test_fpmamba_in_training_ends_when_three_quarters_have_converged() -> None:
    """Four sequences, of which one is far slower: 75 % of lowest residuals below the tolerance end the loop."""
    layer = FPMamba(4, tol=1e-3, train_iterations=None)
    params, u = made(layer, B=4)
    alone = [layer.forward(params, u[b : b + 1])[1].iterations[0] for b in range(4)]
    training = layer.forward(params, u, Context(train=True))[1].iterations
    evaluation = layer.forward(params, u)[1].iterations
    assert len(set(training)) == len(set(evaluation)) == 1
    assert evaluation[0] == max(alone)
    assert sorted(alone)[2] <= training[0] <= sorted(alone)[3]


def test_rows_of_fpmambas_maps_have_no_length() -> None:
    layer = FPMamba(3, d_state=2)
    params, u = made(layer)
    y, _ = layer.forward(params, u)
    longer = {name: 4 * p if name in layer.normed_rows else p for name, p in params.items()}
    np.testing.assert_array_equal(layer.forward(longer, u)[0], y)  # by a power of two: exact


@pytest.mark.parametrize("layer", [Bedouin(3, d_state=4, **EXACT), Bedouin(3, d_state=4, rank=2, **EXACT)])
def test_both_modes_of_inference_agree_at_convergence(layer: Bedouin) -> None:
    params, u = made(layer)
    assert layer.inference_gap(params, u) < 1e-10
    assert (
        Bedouin(3, d_state=4, rank=layer.rank).inference_gap(params, u) < 1
    )  # reported at the paper's tolerance of 0.1
    assert Bedouin(3, d_state=4, rank=layer.rank).inference_gap(params, u) > 1e-6


def test_inference_gap_of_fpmamba_is_reported() -> None:
    """Layer norm in the loop: tokens by themselves find other fixed points, however small the tolerance."""
    layer = FPMamba(3, d_state=4, tol=1e-9)
    params, u = made(layer, seed=3)
    assert 1e-9 < layer.inference_gap(params, u) < 100
    assert layer.inference_gap(params, u[:, :0]) == 0


@pytest.mark.parametrize("name", Bedouin.feedbacks)
def test_feedback_uses_the_previous_output(name: str) -> None:
    """Weights of zero feed nothing back; others change the output, from the second token on."""
    plain, fed = Bedouin(3, d_state=2, feedback=(), **EXACT), Bedouin(3, d_state=2, feedback=(name,), **EXACT)
    params, u = made(fed)
    own = {"lambda": ["V_delta"], "mixer": ["V_alpha", "V_u"]}.get(name, [f"V_{name}"])
    assert sorted(set(fed.shapes) - set(plain.shapes)) == own
    expected, _ = plain.forward({one: params[one] for one in plain.shapes}, u)
    with_zeros, _ = fed.forward({**params, **{one: np.zeros_like(params[one]) for one in own}}, u)
    np.testing.assert_allclose(with_zeros, expected, rtol=0, atol=1e-11)
    y, _ = fed.forward(params, u)
    np.testing.assert_allclose(y[:, 0], expected[:, 0], rtol=0, atol=1e-11)
    assert (np.abs(y - expected)[:, 1:].max((1, 2)) > 1e-4).all()


@pytest.mark.parametrize("limit", [2, 4, 8, 16, "gamma"])
def test_iterations_in_training(limit: int | str) -> None:
    """The limit is that of training alone, is kept without a warning, and is drawn for each step if it is drawn."""
    layer = Bedouin(3, tol=1e-12, max_iterations=400, train_iterations=limit)
    params, u = made(layer)
    params["b_delta"] += 3  # larger steps, and slower convergence: all that is drawn is needed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        taken = [layer.forward(params, u, Context(train=True, step=step))[1].iterations for step in range(6)]
        again = layer.forward(params, u, Context(train=True, step=5))[1].iterations
        assert layer.forward(params, u)[1].iterations.max() > 16
    assert all((one == one[0]).all() for one in taken)
    assert again[0] == taken[5][0]
    if limit == "gamma":
        assert len({int(one[0]) for one in taken}) > 1
    else:
        assert {int(one[0]) for one in taken} == {limit}


@pytest.mark.parametrize("make", [Bedouin, FPMamba])
def test_one_step_and_exact_gradients_point_alike(make: type[MatrixFixedPoint]) -> None:
    """Theorem 3.3 asks for equal Jacobians, which neither layer has: the cosine is measured (0.41 to 0.97 are known of
    FPMamba), and a descent direction is all that can be asked."""
    cosines = []
    for seed in range(3):
        exact = make(4, gradient="implicit", tol=1e-10, max_iterations=3000, stop="sequence")
        cheap = make(4, tol=1e-10, max_iterations=3000, stop="sequence")
        params, u = made(exact, seed)
        grads = []
        for layer in (exact, cheap):
            y, saved = layer.forward(params, u)
            grads.append(np.concatenate([d.ravel() for d in layer.backward(params, saved, y)[1].values()]))
        cosines.append(float(grads[0] @ grads[1] / np.linalg.norm(grads[0]) / np.linalg.norm(grads[1])))
    assert all(0.2 < cosine < 1 - 1e-6 for cosine in cosines), cosines


def test_gradients_are_one_where_nothing_depends_on_the_iterate() -> None:
    """Q = I and nothing fed back to the step: J = 0."""
    layers = [Bedouin(3, feedback=("gate",), mixer="orthogonal", gradient=kind) for kind in ("one_step", "implicit")]
    params, u = made(layers[0])
    params["M"] = np.zeros_like(params["M"])
    grads = []
    for layer in layers:
        y, saved = layer.forward(params, u)
        grads.append(layer.backward(params, saved, y)[1].values())
    for cheap, exact in zip(*grads, strict=True):
        np.testing.assert_allclose(cheap, exact, rtol=0, atol=1e-12 * max(1, np.abs(exact).max()))


@pytest.mark.parametrize("layer", [Bedouin(3), Bedouin(3, tile=5), FPMamba(3, stop="sequence")])
def test_a_sequence_does_not_depend_on_its_batch(layer: MatrixFixedPoint) -> None:
    """To the bit; with tiles up to roundings, as the product of the output before a tile then has a row a sequence, and
    a product of one row rounds differently. 12 tokens hand on some hundred roundings each."""
    bound = 0 if layer.tile is None else 12 * 100 * EPS
    params, u = made(layer, B=4)
    u *= np.array([0.1, 1, 3, 10])[:, None, None]
    y, saved = layer.forward(params, u)
    for b in range(4):
        alone, own = layer.forward(params, u[b : b + 1])
        np.testing.assert_allclose(alone[0], y[b], rtol=0, atol=bound * np.abs(y[b]).max())
        assert own.iterations[0] == saved.iterations[b]
        assert own.residual[0] == pytest.approx(saved.residual[b], rel=0, abs=bound)
    assert len(set(saved.iterations)) > 1


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    "layer",
    [
        Bedouin(3, tol=1e-6),
        Bedouin(3, tol=1e-6, tile=5),
        FPMamba(3, tol=1e-6),
        FPMamba(3, tol=1e-6, tile=4),
        FPMamba(3, tol=1e-6, mixer="kronecker"),
    ],
)
def test_a_sequence_that_is_not_finite_ends_by_itself(layer: MatrixFixedPoint, train: bool) -> None:
    params, u = made(layer, B=4)
    ctx = Context(train=train)
    expected, whole = layer.forward(params, u[[0, 2, 3]], ctx)
    u[1, 5, 0] = np.nan
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y, saved = layer.forward(params, u, ctx)
    assert [one.category for one in caught] == ([] if train and layer.train_iterations else [NotConverged])
    assert y[[0, 2, 3]].tobytes() == expected.tobytes()
    assert (saved.iterations[[0, 2, 3]] == whole.iterations).all()
    assert np.isnan(saved.residual[1])
    assert np.isnan(y[1]).any()


@pytest.mark.parametrize("settings", [{}, {"feedback": ("mixer", "gate"), "d_conv": 2}, {"feedback": ()}])
def test_a_fixed_point_by_tiles_is_one_of_the_whole(settings: dict[str, Any]) -> None:
    """There may be several; the one that the tiles end at ends the iteration of the whole at once."""
    tiled = FPMamba(3, d_state=4, tol=1e-9, tile=5, **settings)
    whole = FPMamba(3, d_state=4, tol=1e-9, **settings)
    params, u = made(tiled, T=13)
    ctx = Context(np.array([13, 0, 7]))
    y, saved = tiled.forward(params, u, ctx)
    assert saved.report.converged.all()
    assert saved.report.iterations.max() > 1
    assert (saved.report.per_step[[0, 2]] <= saved.report.iterations[[0, 2]]).all()
    again, found = whole.forward(params, u, ctx, start=saved.iterate)
    assert found.report.iterations.tolist() == [1, 0, 1]
    # the two differ by one step of the iteration, and the maps out of it multiply that by some ten
    np.testing.assert_allclose(again, y, rtol=0, atol=1e3 * tiled.tol * np.abs(y).max())


def test_one_tile_is_the_whole() -> None:
    for make in (Bedouin, FPMamba):
        params, u = made(make(3))
        one, none = (make(3, tile=tile).forward(params, u)[0].tobytes() for tile in (12, None))
        assert one == none


@pytest.mark.parametrize("tile", [None, 5])
def test_a_fixed_point_that_is_not_reached_gives_one_warning(tile: int | None) -> None:
    layer = Bedouin(3, tol=1e-12, max_iterations=3, tile=tile)
    params, u = made(layer)
    with pytest.warns(
        NotConverged, match=r"Bedouin: no fixed point for 3 of 3 sequences: residual 0\.\d+ after 3 iter"
    ) as caught:
        _, saved = layer.forward(params, u)
    assert len(caught) == 1
    assert layer.report(saved) == {
        "iterations": 3.0,
        "median_iterations": 3.0,
        "max_iterations": 3.0,
        "residual": pytest.approx(saved.residual.max()),
    }


def test_layers_of_the_paper_converge_as_they_start() -> None:
    """r = 1, 2, 4 at initial values and the paper's tolerance: a few iterations."""
    for rank in (1, 2, 4):
        layer = Bedouin(16, rank=rank)
        rng = np.random.default_rng(rank)
        params = layer.init(rng)
        _, saved = layer.forward(params, rng.standard_normal((4, 64, 16), dtype=np.float32))
        assert saved.report.converged.all()
        assert saved.iterations.max() < 50


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (Bedouin, {"rank": 7}, r"rank=7, expected an integer from 1 to the width, 6"),
        (Bedouin, {"mixer": "magic"}, "Bedouin: mixer='magic', expected one of householder, dplr, low_rank, kronecker"),
        (Bedouin, {"gradient": "bptt"}, "Bedouin: gradient='bptt', expected one of one_step, implicit"),
        (Bedouin, {"feedback": ("Q",)}, r"Bedouin: feedback=\('Q',\), expected some of lambda, mixer, B, C, gate"),
        (Bedouin, {"feedback": "BC"}, r"Bedouin: feedback=\('BC',\), expected some of"),
        (FPMamba, {"feedback": ("lambda",)}, "FPMamba: feedback=.*expected some of mixer, B, C, gate"),
        (Bedouin, {"normalise": 1}, "Bedouin: normalise=1, expected True or False"),
        (Bedouin, {"expand": 0}, "Bedouin: expand=0, expected a positive integer"),
        (Bedouin, {"d_state": 2.0}, "Bedouin: d_state=2.0, expected an integer"),
        (Bedouin, {"tol": -1.0}, "tol=-1.0, expected a positive number"),
        (Bedouin, {"gamma_scale": 0}, "gamma_scale=0.0, expected a positive number"),
        (
            Bedouin,
            {"train_iterations": "beta"},
            "train_iterations='beta', expected a positive integer, 'gamma', 'rounded_gamma' or None",
        ),
        (FPMamba, {"dt_min": 0.2}, "FPMamba: dt_min=0.2, dt_max=0.1, expected 0 < dt_min <= dt_max"),
        (Bedouin, {"solver": "newton"}, "Bedouin: solver='newton', expected one of iteration, direct, auto"),
        (Bedouin, {"solver": "auto", "tile": 4}, "Bedouin: tile=4, expected None with solver='auto'"),
        (FPMamba, {"solver": "direct"}, "FPMamba: solver='direct', expected one of iteration, auto"),
        (FPMamba, {"damping": "anderson"}, "FPMamba: damping='anderson', expected another one"),
        (Bedouin, {"spectral": True}, "Bedouin: spectral=True with 'householder' .* expected a Kronecker product"),
        (FPMamba, {"mixer": "monarch", "rank": 4}, "FPMamba: rank=4, expected a divisor of the width, 6"),
        (FPMamba, {"mixer": "mixture"}, "FPMamba: rank=1, expected at least 2 for 'mixture'"),
        (FPMamba, {"d_head": 4}, r"FPMamba: d_head=4, expected a divisor of expand \* d_model=6"),
        (FPMamba, {"d_head": -1}, "FPMamba: d_head=-1, expected"),
        (FPMamba, {"tile": 0}, "FPMamba: tile=0, expected a positive integer"),
        (Bedouin, {"tile": 4, "solver": "direct"}, "Bedouin: tile=4, expected None with solver='direct'"),
        (Bedouin, {"rank": 99}, "^Bedouin: rank=99, expected an integer from 1 to the width, 6$"),
        (FPMamba, {"tol": 0}, "^FPMamba: tol=0.0, expected a positive number$"),
        (FPMamba, {"norm_eps": 0.0}, "FPMamba: norm_eps=0.0, expected a positive number"),
        (Bedouin, {"d_conv": -1}, "Bedouin: d_conv=-1, expected an integer from 0"),
        (
            Bedouin,
            {"symmetric": True, "feedback": ("B",)},
            r"Bedouin: symmetric=True with mixer='householder' and feedback=\('B',\), expected feedback to a mixer",
        ),
        (FPMamba, {"symmetric": True, "mixer": "orthogonal"}, "FPMamba: symmetric=True with mixer='orthogonal'"),
        (FPMamba, {"gate_in_loop": True}, "FPMamba: feedback=.*expected none to the gate with gate_in_loop=True"),
    ],
)
def test_bad_settings(make: type[MatrixFixedPoint], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(3, **settings)


def test_bad_input() -> None:
    layer = Bedouin(3, d_state=2)
    params, u = made(layer)
    for x, state, message in (
        (
            u[..., :2],
            None,
            r"Bedouin.forward: x has shape \(3, 12, 2\), expected \(B, T, D=3\), with D from d_model",
        ),
        (u, (np.zeros((3, 6, 5)), np.zeros((3, 6))), r"Bedouin.forward: state.h has shape \(3, 6, 5\)"),
        (u, (np.zeros((3, 6, 2)), np.zeros((2, 6))), r"Bedouin.forward: state.y has shape \(2, 6\)"),
        (u, np.zeros((3, 6, 2)), r"Bedouin.forward: state is an ndarray, expected a tuple of 2: \(h, y\)"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            layer.forward(params, x, state=state)
    with pytest.raises(ValueError, match="Bedouin: parameter omega is nan"):
        layer.forward({**params, "omega": np.full_like(params["omega"], np.nan)}, u)
    _, saved = layer.forward(params, u)
    with pytest.raises(ValueError, match=r"Bedouin.backward: dy has shape \(3, 12, 2\)"):
        layer.backward(params, saved, u[..., :2])


@pytest.mark.parametrize("make", [Bedouin, FPMamba])
def test_it_starts_from_the_iterate_that_it_is_given(make: type[MatrixFixedPoint]) -> None:
    """From its own result, a step to see that it is one; Bedouin's, without a norm, is the same from any start."""
    layer = make(3, d_state=2, tol=1e-10, max_iterations=2000)
    params, u = made(layer)
    ctx = Context(np.array([12, 0, 7]))
    y, saved = layer.forward(params, u, ctx)
    start = saved.iterate.copy()
    start[1], start[2, 7:] = np.nan, np.nan
    given = start.copy()
    again, warm = layer.forward(params, u, ctx, start=start)
    assert warm.iterations.tolist() == [1, 0, 1]
    np.testing.assert_allclose(again, y, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(start, given)  # it is not overwritten
    if make is Bedouin:
        elsewhere, _ = layer.forward(params, u, ctx, start=normal(np.random.default_rng(5), start.shape))
        np.testing.assert_allclose(elsewhere, y, rtol=0, atol=1e-8)
    with pytest.raises(ValueError, match=r"forward: start has shape \(3, 12, 3\), expected \(B=\d+, T=12, N=\d+\)$"):
        layer.forward(params, u, start=u)


@pytest.mark.parametrize("mixer", sorted(MIXERS))
@pytest.mark.parametrize("feedback", [("lambda", "mixer", "B", "C", "gate"), ("C",)])
@pytest.mark.parametrize("gradient", ["one_step", "implicit"])
def test_the_direct_solution_is_that_of_the_iteration(mixer: str, feedback: tuple[str, ...], gradient: str) -> None:
    """Over two tiles of the scan, in and out of a state, with more sequences than go through time together. A step
    pulls an iterate closer by a half or more here, and a handful of steps hold a rounding: 10^4 roundings."""
    how: dict[str, Any] = {"d_state": 5, "mixer": mixer, "rank": 2, "feedback": feedback, "gradient": gradient}
    iterated, direct = Bedouin(3, **how, **EXACT), Bedouin(3, solver="direct", **how, **EXACT)
    params, u = made(iterated, B=6, T=37)
    rng = np.random.default_rng(1)
    ctx, state = Context(np.array([37, 20, 0, 1, 36, 33])), (normal(rng, (6, 6, 5)), normal(rng, (6, 6)))
    (y, saved), (z, solved) = (layer.forward(params, u, ctx, state) for layer in (iterated, direct))
    dy = normal(rng, y.shape)
    expected, got = iterated.backward(params, saved, dy, state), direct.backward(params, solved, dy, state)
    assert solved.iterations.tolist() == [1, 1, 0, 1, 1, 1]
    assert solved.report.converged.all()
    assert saved.iterations.max() > 5  # it was not there from the start
    pairs = [(y, z), *zip(saved.state, solved.state, strict=True), (expected[0], got[0])]
    pairs += [*((expected[1][name], got[1][name]) for name in expected[1]), *zip(expected[2], got[2], strict=True)]
    for one, other in pairs:
        np.testing.assert_allclose(other, one, rtol=0, atol=1e4 * EPS * max(1, np.abs(one).max()))


@pytest.mark.parametrize("mixer", ["householder", "kronecker", "monarch", "orthogonal", "mixture", "rotation"])
def test_a_direct_solution_reaches_what_iteration_does_not(mixer: str) -> None:
    """Reflections of gain 1, large angles, and steps so large that the iteration runs away, against the system of each
    token."""
    layer = Bedouin(3, d_state=2, rank=2, mixer=mixer, solver="direct")
    params, u = made(layer)
    params["b_delta"] += 6.0
    for name in {"W_alpha", "W_gains", "M", "W_u" if mixer == "rotation" else "M"} & set(params):
        params[name] *= 30.0
    with pytest.warns(NotConverged):
        replace(layer, solver="iteration", max_iterations=300, tol=1e-6).forward(params, u)
    y, _ = layer.forward(params, u)
    expected, _ = bedouin_loop(layer, params, u, None, None)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    assert layer.inference_gap(params, u) < 1e-9


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_the_direct_gradient_is_exact_where_maps_do_not_contract(mixer: str) -> None:
    """Steps so large that the maps of tokens have norms near 1 and above, ragged, in and out of a state; slopes along a
    random direction of all parameters, the input and the state, against central differences, whose error is h^2 and
    EPS / h of the loss."""
    layer = Bedouin(3, d_state=2, rank=2, mixer=mixer, solver="direct", gradient="implicit", feedback=ALL)
    params, u = made(layer, B=5, T=6)
    params["b_delta"] += 2.0
    for name in {"W_alpha", "W_gains"} & set(params):
        params[name] *= 4.0
    rng, ctx = np.random.default_rng(1), Context(np.array([6, 3, 0, 1, 5]))
    state = normal(rng, (5, 6, 2)), normal(rng, (5, 6))
    y, saved = layer.forward(params, u, ctx, state)
    dy, dstate = normal(rng, y.shape), tuple(normal(rng, one.shape) for one in state)
    du, dparams, dbefore = layer.backward(params, saved, dy, dstate)
    grads = [*dparams.values(), du, *dbefore]
    ways = [normal(rng, one.shape) * np.linalg.norm(one) ** -1 for one in grads]

    def loss(h: float) -> float:
        moved = [one + h * way for one, way in zip([*params.values(), u, *state], ways, strict=True)]
        changed = dict(zip(params, moved, strict=False))
        out, after = layer.forward(changed, moved[len(params)], ctx, tuple(moved[-2:]))
        return float((dy * out).sum() + sum((d * s).sum() for d, s in zip(dstate, after.state, strict=True)))

    slope, h = sum(float((grad * way).sum()) for grad, way in zip(grads, ways, strict=True)), 1e-6
    np.testing.assert_allclose((loss(h) - loss(-h)) / (2 * h), slope, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "size"),
    [({"rank": 2}, 0.05), ({"mixer": "kronecker"}, 0.3), ({"mixer": "orthogonal"}, 0.3), ({"feedback": ALL}, 0.3)],
)
def test_the_solver_auto_has_one_answer(settings: dict[str, Any], size: float) -> None:
    """Whole sequences, chunks and streams do the same to each token; products of one row or of many round differently,
    which may change the number of iterations, by tol: 12 tokens hand on some hundred roundings and this each."""
    layer = Bedouin(4, d_state=3, solver="auto", tol=1e-10, **settings)
    rng, (params, u) = np.random.default_rng(2), made(layer)
    params = {name: p + size * normal(rng, p.shape) for name, p in params.items()}
    y, saved = layer.forward(params, u)
    assert saved.report.converged.all()
    bound = 12 * (100 * EPS + (0 if layer.direct else layer.tol)) * np.abs(y).max()
    first, state = layer.forward(params, u[:, :5])
    second, _ = layer.forward(params, u[:, 5:], state=state.state)
    np.testing.assert_allclose(np.concatenate([first, second], 1), y, rtol=0, atol=bound)
    assert layer.inference_gap(params, u) * np.abs(y).max() <= bound
    expected, _ = bedouin_loop(layer, params, u, None, None)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e3 * layer.tol * np.abs(expected).max())


@pytest.mark.parametrize(
    ("layer", "tol"),
    [
        *((FPMamba(4, d_state=3, rank=2, mixer=mixer), 0.1) for mixer in ("dense", "householder", "low_rank")),
        *((FPMamba(4, d_state=3, rank=2, mixer=mixer), tol) for mixer in ("dplr", "monarch") for tol in (0.1, 1e-8)),
        (FPMamba(4, d_state=3, mixer="kronecker", d_conv=2), 0.1),
        (Bedouin(4, d_state=3, mixer="kronecker", d_conv=2), 0.1),
        (Bedouin(4, d_state=3, feedback=ALL), 0.1),
    ],
)
def test_the_solver_auto_takes_one_path(layer: MatrixFixedPoint, tol: float) -> None:
    """However far from the fixed point it ends, a token begins with the same state in a whole sequence, in chunks and
    in a stream: they differ by some hundred roundings for each iteration of 6 tokens."""
    layer = replace(layer, solver="auto", tol=tol)
    params, u = made(layer, seed=1, B=2, T=6)
    y, saved = layer.forward(params, u)
    assert saved.report.converged.all()
    bound = 6 * 100 * EPS * saved.iterations.max()
    first, state = layer.forward(params, u[:, :2])
    second, _ = layer.forward(params, u[:, 2:], state=state.state)
    np.testing.assert_allclose(np.concatenate([first, second], 1), y, rtol=0, atol=bound * np.abs(y).max())
    assert layer.inference_gap(params, u) <= bound


def test_the_authors_loop_of_fpmamba_has_several_fixed_points() -> None:
    layer = FPMamba(4, d_state=3, tol=1e-9, train_iterations=None)
    assert layer.inference_gap(*made(layer)) > 1e3 * layer.tol


@pytest.mark.parametrize("tile", [3, 4])
def test_chunks_of_whole_tiles_take_the_same_path(tile: int) -> None:
    layer = Bedouin(4, d_state=3, tile=tile)
    params, u = made(layer)
    lengths = np.array([12, 7, 3])
    y, saved = layer.forward(params, u, Context(lengths))
    first, state = layer.forward(params, u[:, :tile], Context(np.minimum(lengths, tile)))
    second, after = layer.forward(params, u[:, tile:], Context(np.maximum(lengths - tile, 0)), state.state)
    bound = 12 * 100 * EPS * saved.iterations.max()
    np.testing.assert_allclose(np.concatenate([first, second], 1), y, rtol=0, atol=bound * np.abs(y).max())
    for got, expected in zip(after.state, saved.state, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=bound * np.abs(expected).max())


def test_gradients_of_the_solver_auto_with_the_gate_in_the_loop() -> None:
    """The slope along a random direction of all parameters and the input, at a tolerance that all tokens reach: an
    error tol in both ends is one of tol / h in the central difference, and those of 2 tokens' states come with it."""
    tol, h = 1e-10, 1e-5
    layer = FPMamba(2, d_state=2, solver="auto", gradient="implicit", tol=tol, gate_in_loop=True,
                    feedback=("mixer", "B"), mixer="monarch")  # fmt: skip
    params, u = made(layer, B=1, T=2)
    y, saved = layer.forward(params, u)
    assert saved.report.converged.all()
    rng = np.random.default_rng(5)
    dy, along = normal(rng, y.shape), normal(rng, u.shape)
    du, dparams, _ = layer.backward(params, saved, dy)
    ways = {name: normal(rng, one.shape) for name, one in params.items()}
    ends = [layer.forward({n: p + e * ways[n] for n, p in params.items()}, u + e * along)[0] for e in (h, -h)]
    slope = (du * along).sum() + sum((dparams[name] * way).sum() for name, way in ways.items())
    expected = ((ends[0] - ends[1]) * dy).sum() / (2 * h)
    np.testing.assert_allclose(slope, expected, rtol=0, atol=10 * tol / h)
    assert abs(expected) > 1e3 * tol / h


@pytest.mark.parametrize(
    "layer",
    [
        Bedouin(3, d_state=2, rank=2, solver="direct"),
        Bedouin(3, d_state=2, mixer="kronecker", solver="auto", tol=1e-12, max_iterations=1000),
        FPMamba(3, d_state=2, gate_in_loop=True, feedback=("mixer",), tol=1e-12, stop="sequence"),
        FPMamba(3, d_state=2, d_head=2, tol=1e-12, stop="sequence"),
    ],
)
def test_norms_of_the_maps_of_tokens(layer: MatrixFixedPoint) -> None:
    """Against central differences of F of a single token, which are exact to h^2 and to EPS / h."""
    params, u = made(layer, T=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        _, saved = layer.forward(params, u[:, :1])
    norms, h = layer.token_norms(saved), 1e-5
    assert norms.shape == (3, 1)
    columns = []
    for i in range(layer.width):
        step = np.zeros_like(saved.before)
        step[..., i] = h
        ends = [saved.depth(saved.before + sign * step, saved.lengths) for sign in (1, -1)]
        columns.append((ends[0] - ends[1]) / (2 * h))
    expected = np.linalg.norm(np.stack(columns, -1), 2, (-2, -1))
    np.testing.assert_allclose(norms, expected, rtol=1e-6)


def test_contracting_and_other_maps_of_tokens() -> None:
    """|J| = k delta |I - Q| is at most 2 delta with one reflection, so 0.2 at first; with steps of delta near 1, gains
    near 1 and normalised B and C that are the same, it is near 2."""
    layer = Bedouin(3, d_state=1, solver="direct")
    params, u = made(layer)
    lengths = np.array([12, 0, 7])
    norms = layer.token_norms(layer.forward(params, u, Context(lengths))[1])
    assert (norms[0] > 0).all()
    assert not norms[1].any()
    assert not norms[2, 7:].any()
    assert norms.max() < 0.5
    with pytest.raises(TypeError, match=r"Bedouin.token_norms: saved is None, expected what forward returns beside"):
        layer.token_norms(None)
    params["b_delta"] += 8.0
    params["W_alpha"] *= 30.0
    largest = layer.token_norms(layer.forward(params, u)[1]).max()
    assert 1.5 < largest <= 2


def test_a_direct_solution_that_is_not_finite_is_reported() -> None:
    layer = Bedouin(3, d_state=2, solver="direct")
    params, u = made(layer)
    u[1, 3] = np.nan
    with pytest.warns(NotConverged, match=r"Bedouin: no fixed point for 1 of 3 sequences \(1 not finite\)"):
        y, saved = layer.forward(params, u)
    assert np.isnan(saved.report.residual).tolist() == [False, True, False]
    assert np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("solver", ["direct", "iteration"])
def test_an_output_that_is_not_finite_is_reported(solver: str) -> None:
    """The fixed point of large inputs is finite, but not the product of it and the gate: 1e30^2 > 3.4e38."""
    layer = Bedouin(3, d_state=2, solver=solver)
    params, u = layer.init(np.random.default_rng(0)), made(layer)[1].astype(np.float32)
    u[1] *= 1e30
    with np.errstate(all="ignore"), pytest.warns(NotConverged) as caught:
        y, saved = layer.forward(params, u)
    assert [str(one.message) for one in caught] == ["Bedouin: the output of 1 of 3 sequences is not finite"]
    assert np.isfinite(saved.iterate).all()
    assert np.isfinite(y).all((1, 2)).tolist() == [True, False, True]
    assert np.isnan(saved.report.residual).tolist() == [False, True, False]
    assert saved.report.converged.tolist() == [True, False, True]
    assert np.isnan(layer.report(saved)["residual"])


def test_the_residual_of_the_direct_solver_shows_a_nearly_singular_system() -> None:
    """One channel and state with Q = 0 and h_0 = 1: y = 1 + gain y, which a gain near 1 makes large."""
    one, none = np.ones((2, 1, 1), np.float32), np.zeros((2, 1, 4), np.float32)
    base = np.array([1, 0, 1, 1], np.float32) + none  # u, alpha, B, C: a gain of alpha of 1/2
    gain = np.array([0.5, 1 - 2.0**-20], np.float32)[:, None, None]
    found = selective_solve(
        0 * one, gain, base, np.zeros((4, 1), np.float32), none[:, 0], 0 * one[0], one, form=HOUSEHOLDER, rank=1
    )
    assert found.y.ravel().tolist() == [2, 2.0**20]
    assert found.residual.tolist() == [2 * 2.0**-23, 2.0**20 * 2.0**-23]  # 1 - gain lets errors grow so


def test_bad_input_of_the_direct_solver() -> None:
    B, T, E, S, R = 2, 3, 4, 2, 1
    K = R * E + R + 2 * S
    shapes = {"x": (B, T, E), "delta": (B, T, E), "base": (B, T, K), "v": (K, E), "first": (B, K), "A": (E, S)}
    given: dict[str, Any] = {name: np.zeros(shape) for name, shape in {**shapes, "h0": (B, E, S)}.items()}
    how: dict[str, Any] = {"form": HOUSEHOLDER, "rank": R}
    selective_solve(**given, **how)
    for changed, error, message in (
        ({"v": given["v"][1:]}, ValueError, r"selective_solve: v has shape \(8, 4\)"),
        ({"rank": 2}, ValueError, "selective_solve: base has 9 columns, expected 14 for R=2, E=4, S=2"),
        ({"form": KRONECKER, "rank": 3}, ValueError, "selective_solve: rank=3, expected a divisor of E=4 with form=3"),
        ({"form": GRAM}, ValueError, "selective_solve: rank=1, expected E=4 with form=5"),
        ({"form": GRAM, "rank": 0}, ValueError, "selective_solve: rank is 0, expected an integer from 1 to 4"),
        ({"form": MIXTURE}, ValueError, "selective_solve: rank is 1"),
        ({"form": MATRIX, "rank": E}, ValueError, "selective_solve: matrix is None with form=6"),
        ({"matrix": np.eye(E)}, ValueError, "selective_solve: matrix is not None with form=0"),
        ({"delta": None}, ValueError, "selective_solve: base has 9 columns, expected 13 for R=1, E=4, S=2"),
        ({"eps": -1.0}, ValueError, "selective_solve: eps"),
        ({"steps": 4}, ValueError, "selective_solve: steps is 4, expected an integer from 0 to 0"),
        ({"largest": np.inf}, ValueError, "selective_solve: largest is inf, expected a positive number"),
        ({"form": 9}, ValueError, "selective_solve: form is 9"),
        ({"x": given["x"].astype(int)}, TypeError, "selective_solve: x has dtype int64"),
        ({"lengths": [3, 4]}, ValueError, "selective_solve: lengths"),
    ):
        with pytest.raises(error, match=message):
            selective_solve(**given | how | changed)
