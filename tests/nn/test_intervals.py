"""Samples at uneven times (`Context.dt`): S5, S4D and LinOSS, models, streams and training. The gradients of layers
and of the op are in the table of cases (cases/sampled.py)."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import rotrnn
from cases.table import normal
from rotrnn._support.checkpoint import read_checkpoint
from rotrnn.cli import main
from rotrnn.estimators import SequenceClassifier, SequenceRegressor
from rotrnn.models.files import TIMED
from rotrnn.models.model import NEEDS_DT
from rotrnn.nn.layer import Context, Recurrent, astype, form_leaves, state_leaves
from rotrnn.nn.packing import pack
from rotrnn.ops.optim import adamw
from rotrnn.tasks import describe
from rotrnn.tasks.arrays import Arrays, save_arrays
from rotrnn.training.evaluation import evaluate
from rotrnn.training.loop import train
from rotrnn.training.recipe import Recipe, Training

EPS = np.finfo(np.float64).eps
METHODS = ("bilinear", "first_order", "zoh")
LAYERS = [
    *(kind(3, 8, discretisation=method) for kind in (rotrnn.S4D, rotrnn.S5) for method in METHODS),
    rotrnn.LinOSS(3, 8, "im"),
]
layers = pytest.mark.parametrize("layer", LAYERS, ids=repr)
holds = pytest.mark.parametrize(
    "layer", [one for one in LAYERS if getattr(one, "discretisation", None) == "zoh"], ids=repr
)


def drawn(layer: Recurrent, B: int = 2, T: int = 11, seed: int = 0) -> tuple[Any, Any, Any, Any, Any]:
    """Parameters, input, intervals from 0 to some units, a state, and a generator."""
    rng = np.random.default_rng(seed)
    params = astype(layer.init(rng), np.float64)
    x, dt = normal(rng, (B, T, layer.d_model)), rng.exponential(size=(B, T))
    return params, x, dt, drawn_state(layer, B, rng), rng


def drawn_state(layer: Recurrent, B: int, rng: np.random.Generator) -> Any:
    leaves = [normal(rng, (B, *one.shape), one.kind == "complex") for one in form_leaves(layer.state_form)]
    return leaves[0] if len(leaves) == 1 else tuple(leaves)


def close(got: Any, expected: Any, what: str = "", terms: float = 400) -> None:
    """To the rounding of so many operations on numbers of the largest size."""
    size = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=terms * EPS * size, err_msg=what)


@layers
def test_ones_are_even_times(layer: Recurrent) -> None:
    params, x, _, state, rng = drawn(layer)
    ctx = Context(dt=np.ones(x.shape[:2]))
    (y, saved), (even, saved_even) = layer.forward(params, x, ctx, state), layer.forward(params, x, state=state)
    close(y, even)
    close(saved.state, saved_even.state)
    dy, dstate = normal(rng, y.shape), drawn_state(layer, len(x), rng)
    found, expected = layer.backward(params, saved, dy, dstate), layer.backward(params, saved_even, dy, dstate)
    close(found[0], expected[0], "dx")
    close(found[2], expected[2], "dstate")
    for name in params:  # sums over sequences and steps, through slopes of the discretisation
        close(found[1][name], expected[1][name], name, 400 * x.shape[0] * x.shape[1])


@holds
def test_zero_order_hold_is_the_exponential_of_the_continuous_system(layer: Any) -> None:
    """Over each interval the input is constant: the state follows the matrix exponential of the system and its
    input."""
    params, x, dt, _, _ = drawn(layer)
    y, _ = layer.forward(params, x, Context(dt=dt))
    expected = params["D"] * x
    if isinstance(layer, rotrnn.S5):
        lam, step = params["lambda_re"] + 1j * params["lambda_im"], np.exp(params["log_step"])
        groups = [(np.diag(lam * step), (params["B_re"] + 1j * params["B_im"]) * step[:, None], slice(None))]
        readouts = [params["C_re"] + 1j * params["C_im"]]
    else:
        A, step = -np.exp(params["log_A_re"]) + 1j * params["A_im"], np.exp(params["log_step"])
        B, C = params["B_re"] + 1j * params["B_im"], params["C_re"] + 1j * params["C_im"]
        groups = [(np.diag(A[d] * step[d]), B[d][:, None] * step[d], slice(d, d + 1)) for d in range(layer.d_model)]
        readouts = [C[d][None] for d in range(layer.d_model)]
    for (matrix, into, own), C in zip(groups, readouts, strict=True):
        N, M = into.shape
        whole = np.zeros((N + M, N + M), complex)  # of (h, u), whose u stays as it is
        whole[:N, :N], whole[:N, N:] = matrix, into
        for b in range(len(x)):
            h = np.zeros(N, complex)
            for t in range(x.shape[1]):
                h = (scipy.linalg.expm(whole * dt[b, t]) @ np.append(h, x[b, t, own]))[:N]
                expected[b, t, own] += 2 * (C @ h).real
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@holds
def test_an_interval_can_be_cut_in_two(layer: Recurrent) -> None:
    """A constant input over two intervals equals the input over their sum, whatever the cut: also without input."""
    params, x, _, state, _ = drawn(layer, T=1)
    for share in (0.0, 0.3, 1.0):
        for u in (0 * x, x):
            _, whole = layer.forward(params, u, Context(dt=np.full((2, 1), 3.7)), state)
            cut = np.tile([3.7 * share, 3.7 * (1 - share)], (2, 1))
            _, two = layer.forward(params, np.repeat(u, 2, 1), Context(dt=cut), state)
            close(two.state, whole.state)


@layers
def test_step_scale_is_a_factor_of_intervals(layer: Any) -> None:
    """And of the steps at even times, for layers in continuous time of every kind."""
    params, x, dt, _, _ = drawn(layer)
    scaled, ones = replace(layer, step_scale=2.5), np.ones_like(dt)
    close(scaled.forward(params, x, Context(dt=dt))[0], layer.forward(params, x, Context(dt=2.5 * dt))[0])
    close(scaled.forward(params, x)[0], layer.forward(params, x, Context(dt=2.5 * ones))[0])


@layers
def test_no_time_leaves_the_state(layer: Recurrent) -> None:
    params, x, _, state, _ = drawn(layer)
    _, saved = layer.forward(params, x, Context(dt=np.zeros(x.shape[:2])), state)
    close(saved.state, state)


@layers
def test_chunks_and_steps_are_the_whole(layer: Recurrent) -> None:
    params, x, dt, state, _ = drawn(layer, T=6)
    whole, saved = layer.forward(params, x, Context(dt=dt), state)
    for cuts in [[k] for k in range(7)] + [list(range(1, 6))]:
        parts, now = [], state
        for own in np.split(np.arange(6), cuts):
            y, one = layer.forward(params, x[:, own], Context(dt=dt[:, own]), now)
            parts.append(y)
            now = one.state
        close(np.concatenate(parts, 1), whole, str(cuts))
        close(now, saved.state, str(cuts))


@layers
def test_padding_packed_rows_and_resets_are_the_sequences(layer: Recurrent) -> None:
    params, x, dt, _, rng = drawn(layer, B=3, T=9)
    lengths = np.array([9, 0, 4])
    alone = [layer.forward(params, x[b : b + 1, :n], Context(dt=dt[b : b + 1, :n])) for b, n in enumerate(lengths)]
    ragged, spoiled = dt.copy(), x.copy()
    for b, n in enumerate(lengths):
        ragged[b, n:], spoiled[b, n:] = np.nan, np.nan
    y, saved = layer.forward(params, spoiled, Context(lengths, dt=ragged))
    for b, n in enumerate(lengths):
        close(y[b, :n], alone[b][0][0])
        assert not y[b, n:].any()
        close(*(np.stack(state_leaves(one))[:, at] for one, at in ((saved.state, b), (alone[b][1].state, 0))))
    row, bounds = pack([x[b, :n] for b, n in enumerate(lengths)])
    intervals = pack([dt[b, :n] for b, n in enumerate(lengths)]).x
    packed, saved_row = layer.forward(params, row, Context(cu_seqlens=bounds, dt=intervals))
    close(packed[0], np.concatenate([one[0][0] for one in alone]))
    reset = np.zeros(row.shape[:2], bool)
    reset[0, 9] = True
    close(layer.forward(params, row, Context(reset=reset, dt=intervals))[0], packed)
    dy = normal(rng, row.shape)
    dx, dparams, _ = layer.backward(params, saved_row, dy)
    each = [layer.backward(params, alone[b][1], dy[:, s:e]) for b, (s, e) in enumerate([(0, 9), (9, 9), (9, 13)])]
    close(dx, np.concatenate([one[0] for one in each], 1))
    for name in params:
        close(dparams[name], sum(one[1][name] for one in each), name, 4000)


# ---- refusals ----


@pytest.mark.parametrize(
    ("dt", "kind", "message"),
    [
        (
            np.full((2, 4), -1.0),
            ValueError,
            r"S5\.forward: dt is -1\.0 at \(0, 0\), expected intervals from 0 to 3\.4",
        ),
        (np.array([[1, 1, 1, 1], [1, np.nan, 1, 1]]), ValueError, r"dt is nan at \(1, 1\), expected intervals from 0"),
        (np.full((2, 4), np.inf), ValueError, r"S5\.forward: dt is inf at \(0, 0\), expected intervals from 0"),
        (np.full((2, 4), 1e39), ValueError, r"S5\.forward: dt is 1e\+39 at \(0, 0\), expected intervals from 0"),
        (np.ones((2, 3)), ValueError, r"S5\.forward: dt has shape \(2, 3\), expected \(B=2, T=4\)"),
        (np.ones((2, 4, 1)), ValueError, r"S5\.forward: dt has shape \(2, 4, 1\), expected \(B, T\)"),
        (np.ones(4), ValueError, r"S5\.forward: dt has shape \(4,\), expected \(B, T\)"),
        (np.ones((2, 4), bool), TypeError, r"S5\.forward: dt has dtype bool, expected floating-point numbers or int"),
        (np.ones((2, 4), complex), TypeError, r"S5\.forward: dt has dtype complex128, expected floating-point"),
        ([[1, None, 1, 1]] * 2, TypeError, r"S5\.forward: dt has dtype object, expected floating-point numbers"),
        (1.0, ValueError, r"S5\.forward: dt has shape \(\), expected \(B, T\)"),
    ],
)
def test_bad_intervals_are_refused(dt: Any, kind: type[Exception], message: str) -> None:
    layer = rotrnn.S5(3, 8)
    params = layer.init(np.random.default_rng(0))
    with pytest.raises(kind, match=message):
        layer.forward(params, np.zeros((2, 4, 3), np.float32), Context(dt=dt))


@pytest.mark.parametrize("bad", [-0.5, np.nan, np.inf])
def test_the_bank_refuses_intervals_out_of_range(bad: float) -> None:
    """Where they are read: beyond the lengths they may be anything. Two samples may be at one time."""
    system = np.full((1, 2), -1j), np.ones((1, 2), complex), np.ones(1), np.ones(1)
    dt = np.array([[1.0, 0.0, bad]])
    with pytest.raises(ValueError, match=rf"sampled_bank: dt is {bad} at \(0, 2\), expected intervals from 0 to 3\.4"):
        rotrnn.ops.sampled_bank(*system, dt, np.ones((1, 3, 1)))
    y, _, _ = rotrnn.ops.sampled_bank(*system, dt, np.ones((1, 3, 1)), lengths=np.array([2]))
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            rotrnn.LRU(3, 4),
            r"LRU\.forward: got dt, which LRU does not support, expected a layer in continuous time, S5, S4D ",
        ),
        (rotrnn.LinOSS(3, 4), r"got dt, which LinOSS does not support with method='imex', expected method='im'"),
        (rotrnn.LinOSS(3, 4, "damped"), r"LinOSS does not support with method='damped', expected method='im': prod"),
        (rotrnn.S4(3, 4), r"got dt, which S4 does not support"),
        (rotrnn.Mamba(4, 4), r"got dt, which Mamba does not support"),
        (rotrnn.S5(3, 4, window=2), r"got dt, which S5 does not support with window=2, expected window=None"),
        (rotrnn.S5(3, 4, bidirectional=True), r"got dt, which S5 does not support with bidirectional=True"),
        (rotrnn.S4D(3, 4, bidirectional=True), r"got dt, which S4D does not support with bidirectional=True"),
        (rotrnn.S4D(3, 4, tied=False), r"got dt, which S4D does not support with tied=False, expected tied=True"),
    ],
    ids=lambda one: repr(one)[:40],
)
def test_other_layers_refuse_intervals(layer: Recurrent, message: str, tmp_path: Path) -> None:
    """Also inside a block, and as what a model is saved for."""
    params = layer.init(np.random.default_rng(0))
    x, ctx = np.zeros((2, 4, layer.d_model), np.float32), Context(dt=np.ones((2, 4)))
    with pytest.raises(NotImplementedError, match=message):
        layer.forward(params, x, ctx)
    settings = rotrnn.ModelSettings(layer="s5", d_model=layer.d_model, n_layers=1)
    model = rotrnn.build_model(settings, layer, head="classifier", n_features=2, n_classes=2)
    with pytest.raises(
        NotImplementedError, match=rf"SequenceClassifier\.forward: got dt, which {type(layer).__name__}"
    ):
        model.forward(model.init(np.random.default_rng(0)), x[..., :2], ctx)
    message = rf"Classifier\.save: timed is True, for intervals dt, which {type(layer).__name__} does not support"
    with pytest.raises(NotImplementedError, match=message):
        model.save(tmp_path / "timed.safetensors", model.init(np.random.default_rng(0)), timed=True)
    assert not list(tmp_path.iterdir())


def test_pairs_refuse_intervals() -> None:
    settings = rotrnn.ModelSettings(layer="s5", d_model=4, n_layers=1)
    model = rotrnn.build_model(settings, {"d_state": 4}, head="retrieval", vocab=5, n_classes=2)
    with pytest.raises(NotImplementedError, match=r"Retrieval\.forward: got dt, which a model of pairs"):
        model.forward(model.init(np.random.default_rng(0)), np.zeros((2, 2, 4), int), Context(dt=np.ones((4, 4))))


# ---- models ----


def regressor(layer: str) -> tuple[Any, Any]:
    """A model of two blocks with an answer at each step, and float64 parameters."""
    settings = rotrnn.ModelSettings(layer=layer, d_model=6, n_layers=2, norm="layer", final_norm=True)
    own = {"d_state": 8} | ({"method": "im"} if layer == "linoss" else {})
    model = rotrnn.build_model(settings, own, head="step_regressor", n_features=2, n_classes=1)
    return model, astype(model.init(np.random.default_rng(0)), np.float64)


@pytest.mark.parametrize("name", ["linoss", "s4d", "s5"])
def test_a_stream_takes_intervals(name: str) -> None:
    """Token by token, and in chunks, it answers as forward does; without dt, as at even times."""
    model, params = regressor(name)
    rng = np.random.default_rng(1)
    x, dt = normal(rng, (3, 7, 2)), rng.exponential(size=(3, 7))
    whole, _ = model.forward(params, x, Context(dt=dt))
    stream = model.stream(params, batch=3, engine="python")
    steps = [stream.push(x[:, t], dt=dt[:, t])[:, None] for t in range(4)]
    lengths = np.array([3, 0, 2])
    rest = stream.push(x[:, 4:], lengths, dt=dt[:, 4:])
    close(np.concatenate(steps, 1), whole[:, :4], terms=4000)
    for b, n in enumerate(lengths):
        close(rest[b, :n], whole[b, 4 : 4 + n], terms=4000)
    assert stream.tokens.tolist() == [7, 4, 6]
    stream.reset()
    even, _ = model.forward(params, x)
    close(stream.push(x[:, 0], dt=np.ones(3)), even[:, 0], terms=4000)
    close(stream.push(x[:, 1]), even[:, 1], terms=4000)


def test_a_stream_refuses_intervals_that_do_not_fit() -> None:
    model, params = regressor("s5")
    with pytest.raises(NotImplementedError, match=r"Stream\.push: got dt, which the engine 'c' does not support"):
        model.stream(params, engine="c").push(np.zeros((1, 2)), dt=np.ones(1))
    stream = model.stream(params, batch=2, engine="python")
    with pytest.raises(ValueError, match=r"Stream\.push: dt has shape \(3,\), expected \(B=2,\)"):
        stream.push(np.zeros((2, 2)), dt=np.ones(3))
    with pytest.raises(ValueError, match=r"Stream\.push: dt is -1\.0 at \(0, 1\)"):
        stream.push(np.zeros((2, 3, 2)), dt=np.array([[1.0, -1, 1], [1, 1, 1]]))


@pytest.mark.parametrize("name", ["linoss", "s4d", "s5"])
def test_gradients_of_a_model(name: str) -> None:
    model, params = regressor(name)
    rng = np.random.default_rng(2)
    ctx = Context(np.array([5, 2]), dt=rng.exponential(size=(2, 5)))
    rotrnn.testing.gradcheck(model, params, normal(rng, (2, 5, 2)), ctx)


# ---- learning ----


def oscillations(rng: np.random.Generator, n: int, T: int) -> tuple[Any, Any, Any, complex]:
    """A damped oscillator that is pushed at random times: its pushes, held between the times, the intervals, and the
    positions at the times, by its own formula; and its eigenvalue."""
    eigenvalue = -0.2 + 1.3j
    u, dt = normal(rng, (n, T, 1)), rng.exponential(size=(n, T))
    h, y = np.zeros(n, complex), np.zeros((n, T, 1))
    for t in range(T):
        a = np.exp(eigenvalue * dt[:, t])
        h = a * h + (a - 1) / eigenvalue * u[:, t, 0]
        y[:, t, 0] = h.imag
    return u, dt, y, eigenvalue


def fitted(u: Any, dt: Any, y: Any) -> tuple[float, complex]:
    """Trains one S5 layer of one state from other values. Returns the share of the variance that it leaves, and its
    eigenvalue per unit of time."""
    layer, ctx = rotrnn.S5(1, 2), Context(dt=dt)
    params = astype(layer.init(np.random.default_rng(0)), np.float64)
    start = {"lambda_re": -0.4, "lambda_im": 1.0, "log_step": 0.1, "B_re": 0.7, "C_re": 0.1, "C_im": -0.4, "D": 0.0}
    params = {name: np.full_like(value, start.get(name, 0.0)) for name, value in params.items()}
    moments = {name: (np.zeros_like(one), np.zeros_like(one)) for name, one in params.items()}
    for step in range(1, 401):
        out, saved = layer.forward(params, u, ctx)
        dparams = layer.backward(params, saved, 2 * (out - y) / y.size)[1]
        for name, one in params.items():
            adamw(one, *moments[name], dparams[name], lr=0.02 * (1 - step / 401), step=step)
    lam = params["lambda_re"][0] + 1j * params["lambda_im"][0]
    return float(((out - y) ** 2).mean() / y.var()), complex(lam * np.exp(params["log_step"][0]))


def test_an_oscillator_is_found_from_irregular_samples() -> None:
    """With the intervals, training finds the oscillator's own eigenvalue, whose outputs are then right; without, no
    eigenvalue can be right for all steps."""
    u, dt, y, eigenvalue = oscillations(np.random.default_rng(3), 16, 50)
    left, found = fitted(u, dt, y)
    left_without, _ = fitted(u, None, y)
    assert left < 1e-3, left
    assert abs(found - eigenvalue) < 0.02, found
    assert left_without > 100 * left, left_without


def test_a_task_with_intervals_is_trained_and_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The task "arrays" reads intervals, for sequences of any lengths; padded and packed, training takes the same
    steps, and the scores are those of the model on the intervals."""
    u, dt, y, _ = oscillations(np.random.default_rng(4), 30, 12)
    lengths = np.random.default_rng(5).integers(6, 13, 30)
    cut = [[one[b, :n] for b, n in enumerate(lengths)] for one in (u, y, dt)]
    path = tmp_path / "pendulum.npz"
    save_arrays(path, cut[0], cut[1], per_step=True, dt=cut[2])
    task = Arrays(str(path), kind="regression", per_step=True, scale=False)
    loaded = task.load()
    index = np.arange(4)
    batch, intervals = loaded.train.batch(index, np.float64), loaded.train.intervals(index)
    assert intervals is not None
    assert intervals.shape == batch.inputs.shape[:2]
    settings = rotrnn.ModelSettings(layer="s5", d_model=8, n_layers=1, norm="layer", final_norm=True)
    layer = rotrnn.S5(8, 8)
    scores = []
    for packed in (False, True):
        training = Training(batch=8, steps=20, eval_every=20, packed=packed, dtype="float64")
        recipe = Recipe(task, settings, layer, rotrnn.AdamW(lr=1e-2), training)
        scores.append(train(recipe, tmp_path / f"packed {packed}", progress=False)["test"]["best"]["skill"])
    assert abs(scores[0] - scores[1]) < 1e-9
    assert "samples at uneven times: intervals dt from" in describe(loaded)
    for source, out in pairwise(["packed False", "m.safetensors", "again.safetensors", "d"]):  # a file knows it, too
        assert main(["export", str(tmp_path / source), "--out", str(tmp_path / out)]) == 0
        file = tmp_path / out / "model.safetensors" if out == "d" else tmp_path / out
        assert read_checkpoint(file)[1]["program"] == TIMED
    assert main(["export", str(tmp_path / "d"), "--out", str(tmp_path / "m.onnx")]) == 2
    assert "the model reads intervals dt, which ONNX does not have" in capsys.readouterr().err
    model = recipe.build(loaded)
    params = model.init(np.random.default_rng(0))
    of = {"batch": 4, "dtype": "float64"}
    padded, row = (evaluate(model, params, loaded, loaded.val, packed=one, **of) for one in (False, True))
    assert abs(padded["skill"] - row["skill"]) < 1e-9
    ones = replace(loaded.val, data=replace(loaded.val.data, dt=np.ones(len(loaded.val.data.values))))  # type: ignore
    assert evaluate(model, params, loaded, ones, **of)["skill"] != padded["skill"]


def test_estimators_take_intervals() -> None:
    """Predictions are those of the fitted model on the intervals; a sequence of weight 0 is left out with its own."""
    u, dt, y, _ = oscillations(np.random.default_rng(6), 24, 9)
    lengths = np.random.default_rng(7).integers(5, 10, 24)
    x, times = ([one[b, :n] for b, n in enumerate(lengths)] for one in (u, dt))
    last = y[np.arange(24), lengths - 1, 0]
    settings: dict[str, Any] = {"width": 4, "depth": 1, "epochs": 1}
    fitted = SequenceRegressor("s5", **settings).fit(x, last, dt=times)
    params, found = astype(fitted.params_, np.float64), fitted.predict(x, dt=times)
    for own, interval, value in zip(x, times, found, strict=True):
        expected, _ = fitted.model_.forward(params, own[None], Context(dt=interval[None]))
        np.testing.assert_allclose(value, expected[0, 0], rtol=1e-5, atol=1e-5)  # params_ are float32
    assert not np.allclose(found, fitted.predict(x, dt=[np.ones_like(one) for one in times]), rtol=1e-3)
    stream = fitted.model_.stream(fitted.params_)  # which takes intervals, because the model is known to read them
    for t in range(lengths[0]):
        value = stream.push(x[0][t : t + 1], dt=times[0][t : t + 1])
    np.testing.assert_allclose(value[0, 0], found[0], rtol=1e-5, atol=1e-5)
    assert fitted.score(x, last, dt=times) == fitted.score(x, last, np.ones(24), dt=times)
    weighted = SequenceRegressor("s5", **settings).fit(x, last, np.arange(24) < 16, dt=times)
    alone = SequenceRegressor("s5", **settings).fit(x[:16], last[:16], dt=times[:16])
    np.testing.assert_array_equal(weighted.predict(x, dt=times), alone.predict(x, dt=times))
    classes = SequenceClassifier("s4d", **settings).fit(u, last > 0, dt=dt)
    np.testing.assert_allclose(np.exp(classes.predict_log_proba(u, dt)), classes.predict_proba(u, dt=dt))
    with pytest.raises(ValueError, match=f"^SequenceRegressor.predict: {NEEDS_DT}$"):
        fitted.predict(x)
    with pytest.raises(ValueError, match=r"SequenceRegressor.predict: got dt, expected None: fit had no intervals"):
        SequenceRegressor("s5", **settings).fit(x, last).predict(x, dt=times)
    with pytest.raises(ValueError, match=r"SequenceRegressor.score: dt\[1\] has shape \(4,\), expected"):
        fitted.score(x, last, dt=[times[0], times[1][:4], *times[2:]])
    with pytest.raises(ValueError, match=r"SequenceRegressor.fit: dt has intervals of 23 sequences, expected 24"):
        SequenceRegressor("s5", **settings).fit(x, last, dt=times[1:])
    with pytest.raises(ValueError, match=r"SequenceRegressor.fit: dt, sequence 0, step 0: got -\d"):
        SequenceRegressor("s5", **settings).fit(x, last, dt=[-1 - one for one in times])
    with pytest.raises(TypeError, match=r"SequenceRegressor.fit: dt is a float, expected an array, or a list"):
        SequenceRegressor("s5", **settings).fit(x, last, dt=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"SequenceRegressor.fit: dt\[1\] has dtype bool, expected floating-point num"):
        SequenceRegressor("s5", **settings).fit(x, last, dt=[times[0], times[1] > 0, *times[2:]])
    with pytest.raises(NotImplementedError, match=r"got dt, which LRU does not support"):
        SequenceRegressor("lru", **settings).fit(x, last, dt=times)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, ">f8"])
def test_intervals_of_any_real_dtype_are_the_same_numbers(dtype: Any) -> None:
    """In a layer, a stream and an estimator, to the bit."""
    model, params = regressor("s5")
    rng = np.random.default_rng(8)
    x, dt = normal(rng, (3, 4, 2)), rng.integers(0, 4, (3, 4)).astype(np.float64)
    other = dt.astype(dtype)
    np.testing.assert_array_equal(*(model.forward(params, x, Context(dt=one))[0] for one in (other, dt)))
    for at in (np.s_[:, 0], np.s_[:, :]):
        pushed = [model.stream(params, 3, engine="python").push(x[at], dt=one[at]) for one in (other, dt)]
        np.testing.assert_array_equal(*pushed)
    settings: dict[str, Any] = {"width": 4, "depth": 1, "epochs": 1}
    found = [SequenceRegressor("s5", **settings).fit(x, dt[:, 0], dt=one).predict(x, dt=one) for one in (other, dt)]
    np.testing.assert_array_equal(*found)


def test_a_file_of_a_timed_model_is_saved_so_again(tmp_path: Path) -> None:
    """Its streams run in Python, and ONNX refuses it, until it is said to read even steps."""
    model, params = regressor("s5")
    assert not model.timed
    model.save(tmp_path / "timed", params, timed=True)
    model.save_pretrained(tmp_path / "folder", params, timed=True)
    for loaded, own in (rotrnn.load(tmp_path / "timed"), rotrnn.from_pretrained(tmp_path / "folder")):
        assert loaded == replace(model, timed=True)
        loaded.save(tmp_path / "again", own)
        assert (tmp_path / "again").read_bytes() == (tmp_path / "timed").read_bytes()
        assert loaded.stream(own).engine == "python"
        with pytest.raises(ValueError, match=r"engine is 'c', but the model reads intervals dt, which the library"):
            loaded.stream(own, engine="c")
        with pytest.raises(ValueError, match=r"save_onnx: the model reads intervals dt, which ONNX does not have"):
            loaded.save_onnx(tmp_path / "m.onnx", own)
        loaded.save(tmp_path / "even", own, timed=False)
        assert not rotrnn.load(tmp_path / "even").model.timed


def test_a_model_that_was_trained_with_intervals_needs_them(tmp_path: Path) -> None:
    """In every call; ones are even steps, and so says the error. What `replace` says of even steps is taken."""
    model, params = regressor("s5")
    model.save(tmp_path / "timed", params, timed=True)
    loaded, own = rotrnn.load(tmp_path / "timed")
    x, ones = normal(np.random.default_rng(9), (2, 5, 2)), np.ones((2, 5))
    even, _ = model.forward(params, x)
    close(loaded.forward(own, x, Context(dt=ones))[0], even, terms=4000)
    close(loaded.state_norms(own, x, Context(dt=ones)), model.state_norms(params, x), terms=4000)
    stream = loaded.stream(own, 2)
    for ctx in (Context(), Context(np.array([5, 2])), Context(reset=np.zeros((2, 5), bool))):
        with pytest.raises(ValueError, match=f"^StepRegressor.forward: {NEEDS_DT}$"):
            loaded.forward(own, x, ctx)
    with pytest.raises(ValueError, match=f"^StepRegressor.forward: {NEEDS_DT}$"):
        loaded.state_norms(own, x)
    for given in ((x[:, 0],), (x,), (x, np.array([5, 2]))):
        with pytest.raises(ValueError, match=f"^Stream.push: {NEEDS_DT}$"):
            stream.push(*given)
    assert not stream.tokens.any()
    close(stream.push(x[:, 0], dt=ones[:, 0]), even[:, 0], terms=4000)
    np.testing.assert_array_equal(replace(loaded, timed=False).forward(own, x)[0], even)


def test_the_model_of_a_recipe_needs_intervals_if_its_data_have_them(tmp_path: Path) -> None:
    x, dt = np.zeros((8, 4)), np.ones((8, 4))
    settings, training = rotrnn.ModelSettings(layer="s5", d_model=4, n_layers=1), Training(batch=2, steps=1)
    for times in (None, dt):
        save_arrays(tmp_path / "d.npz", x, np.arange(8) % 2, dt=times)
        task = Arrays(str(tmp_path / "d.npz"))
        loaded = task.load()
        model = Recipe(task, settings, rotrnn.S5(4, 4), rotrnn.AdamW(lr=1e-2), training).build(loaded)
        assert loaded.timed == model.timed == (times is not None)


@pytest.mark.parametrize(
    ("layer", "more", "message"),
    [
        (rotrnn.LRU(4, 4), {}, "model.layer is 'lru', but {} has intervals dt, which LRU does not support, expected"),
        (
            rotrnn.S5(4, 4, window=3),
            {},
            "model.layer is 's5', but {} has intervals dt, which S5 does not support",
        ),
        (rotrnn.LinOSS(4, 4, "imex"), {}, "model.layer is 'linoss', but {} has intervals dt, which LinOSS does not"),
        (
            rotrnn.S5(4, 4),
            {"n_layers": 2, "attention_every": 2},
            "model.layer is 's5', but {} has intervals dt, which Attention does not support, expected",
        ),
    ],
    ids=lambda one: "" if isinstance(one, str | dict) else repr(one),
)
def test_a_layer_that_takes_no_intervals_is_refused_before_a_run(
    layer: Recurrent, more: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By Python and the command line, and the folder is not made."""
    path = tmp_path / "d.npz"
    save_arrays(path, np.zeros((8, 4)), np.arange(8) % 2, dt=np.ones((8, 4)))
    name = type(layer).__name__.lower()
    settings = rotrnn.ModelSettings(**{"layer": name, "d_model": 4, "n_layers": 1} | more)
    training = Training(batch=2, steps=1)
    recipe = Recipe(Arrays(str(path)), settings, layer, rotrnn.AdamW(lr=1e-2), training)
    with pytest.raises(ValueError, match=re.escape(message.format(path))):
        train(recipe, tmp_path / "run", progress=False)
    (tmp_path / "r.toml").write_text(recipe.text(), encoding="utf-8")
    assert main(["train", str(tmp_path / "r.toml"), "--out", str(tmp_path / "run")]) == 2
    assert message.format(path) in capsys.readouterr().err
    assert {one.name for one in tmp_path.iterdir()} == {"d.npz", "r.toml"}


@pytest.mark.parametrize(
    ("dt", "message"),
    [
        (np.ones((3, 5)), r"dt\[0\] has shape \(5,\), expected \(4,\), one for each step"),
        (np.ones(3), r"dt\[0\] is a float, expected \(4,\)"),
        (np.ones((2, 4)), r"dt has intervals of 2 sequences, expected 3"),
        (np.float64(1), r"dt has shape \(\), expected a row for each sequence"),
        (
            np.array([[1.0, 1, 1, 1], [1, 1, -1, 1], [1, 1, 1, 1]]),
            r"dt, sequence 1, step 2: got -1\.0, expected",
        ),
        (np.full((3, 4), np.nan), r"dt, sequence 0, step 0: got nan"),
        (np.full((3, 4), 1e39), r"dt, sequence 0, step 0: got 1e\+39, expected intervals from 0 to 3\.403e\+38"),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_arrays_refuse_bad_intervals(tmp_path: Path, dt: Any, message: str, listed: bool) -> None:
    """Errors name the sequence that was given, whether x is an array or a list."""
    x = [*np.zeros((3, 4))] if listed else np.zeros((3, 4))
    with pytest.raises(ValueError, match=f"^save_arrays: {message}"):
        save_arrays(tmp_path / "a.npz", x, np.zeros(3), dt=dt)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("dt", "message"),
    [
        ([np.ones(5), np.ones(7, bool)], r"dt\[1\] has dtype bool, expected floating-point numbers or integers"),
        ([[True] * 5, [True] * 7], r"dt\[0\] has dtype bool"),
        ([["a"] * 5, ["b"] * 7], r"dt\[0\] has dtype <U1"),
        (
            [np.ones(5), np.ones(7, "m8[s]")],
            r"dt\[1\] has dtype timedelta64\[s\], .* dt / np\.timedelta64\(1, 's'\)",
        ),
        ("ab", r"dt is a str, expected an array, or a list of arrays"),
        (1.0, r"dt is a float, expected an array, or a list of arrays"),
    ],
)
def test_intervals_of_another_type_are_named_by_their_sequence(tmp_path: Path, dt: Any, message: str) -> None:
    x = [np.zeros(5), np.zeros(7)]
    with pytest.raises(TypeError, match=f"^save_arrays: {message}"):
        save_arrays(tmp_path / "a.npz", x, np.zeros(2), dt=dt)
    with pytest.raises(TypeError, match=f"^SequenceRegressor.fit: {message}"):
        SequenceRegressor("s5").fit(x, np.zeros(2), dt=dt)
    assert not list(tmp_path.iterdir())


def test_gradients_of_the_longest_intervals_are_finite() -> None:
    """In float32 the square of an interval overflows; the gradients are those of float64 to rounding."""
    rng = np.random.default_rng(0)
    layer = rotrnn.S5(3, 8, discretisation="bilinear")
    params, x = layer.init(rng), rng.standard_normal((1, 6, 3)).astype(np.float32)
    found = []
    for dtype in (np.float32, np.float64):
        own, dt = astype(params, dtype), np.full((1, 6), 1e21, dtype)
        y, saved = layer.forward(own, x.astype(dtype), Context(dt=dt))
        found.append(layer.backward(own, saved, np.ones_like(y))[1])
    for name, exact in found[1].items():
        np.testing.assert_allclose(found[0][name], exact, rtol=0, atol=1e-5 * np.abs(exact).max() + 1e-30, err_msg=name)
