"""Gradient descent with momentum: the op, the optimiser, and runs that train by it."""

from __future__ import annotations

import math
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rotrnn import SGD, AdamW, _cpu
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.nn.layer import flatten
from rotrnn.ops.optim import norm, sgd
from rotrnn.tasks import save_arrays
from rotrnn.training.loop import Interrupted, train
from rotrnn.training.optimiser import NonFinite
from rotrnn.training.recipe import Recipe, load_recipe
from rotrnn.training.run import Run

BLOCK = 16384
"""Numbers of a block of the kernel."""


def as_torch(p: Any, gradients: Any, lr: float, momentum: float, decay: float) -> Any:
    """The algorithm on the page of torch.optim.SGD, number by number, whose first buffer is the gradient itself."""
    p, buffer = p.astype(np.float64), np.zeros(p.shape)
    for t, gradient in enumerate(gradients):
        for i in np.ndindex(p.shape):
            g = float(gradient[i])
            if decay != 0:
                g = g + decay * p[i]
            if momentum != 0:
                buffer[i] = momentum * buffer[i] + g if t > 0 else g
                g = buffer[i]
            p[i] = p[i] - lr * g
    return p, buffer


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0,), (17,), (3, 5, 7), (BLOCK + 3,)])
def test_an_update_is_that_of_torch(shape: tuple[int, ...], dtype: Any, momentum: float) -> None:
    rng = np.random.default_rng(0)
    p = rng.standard_normal(shape).astype(dtype)
    gradients = [rng.standard_normal(shape).astype(dtype) for _ in range(4)]
    settings = {"lr": 0.05, "momentum": momentum, "decay": 0.1}
    wanted, buffer = as_torch(p, gradients, **settings)
    m = np.zeros_like(p)
    for gradient in gradients:
        assert sgd(p, m, 2 * gradient, **settings, scale=0.5) == (norm(p), norm(m))
    # four updates of four roundings each, of numbers below 16 and 5
    np.testing.assert_allclose(p, wanted, rtol=0, atol=16 * 5 * np.finfo(dtype).eps)
    if momentum:
        np.testing.assert_allclose(m, buffer, rtol=0, atol=16 * 16 * np.finfo(dtype).eps)


def test_momentum_sums_a_constant_gradient() -> None:
    """After k steps the buffer is (1 - 0.9^k) / 0.1: 1, 1.9, 2.71."""
    p, m = np.zeros(1), np.zeros(1)
    for wanted in (-0.1, -0.29, -0.561):
        sgd(p, m, np.ones(1), lr=0.1, momentum=0.9)
        assert p[0] == pytest.approx(wanted, rel=1e-14)


def test_the_same_bits_for_any_number_of_threads() -> None:
    g = np.random.default_rng(0).standard_normal(11 * BLOCK + 11).astype(np.float32)
    before, found = _cpu.threads(), []
    try:
        for threads in (1, 2, 7):
            _cpu.use_threads(threads)
            p, m = np.ones_like(g), np.zeros_like(g)
            norms = [sgd(p, m, g, lr=0.1, momentum=0.9) for _ in range(3)]
            found.append((p.tobytes(), m.tobytes(), norms))
    finally:
        _cpu.use_threads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ((np.ones(3), np.ones(4), np.ones(3)), ValueError, r"sgd: m has shape \(4,\), expected \(3,\)"),
        ((np.ones(3), np.ones(3), np.ones(3, np.float32)), TypeError, "sgd: param has dtype float64"),
        ((np.ones(6)[::2], np.ones(3), np.ones(3)), ValueError, "sgd: param is not C-contiguous"),
    ],
)
def test_arrays_that_are_refused(arrays: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        sgd(*arrays, lr=0.1, momentum=0.9)
    shared = np.ones(3)
    with pytest.raises(ValueError, match="sgd: param overlaps m, expected separate memory"):
        sgd(shared, shared, np.ones(3), lr=0.1, momentum=0.9)


def test_groups_have_their_rates_and_decays_and_gradients_are_clipped() -> None:
    """By the definition, in two steps of a linear schedule: rates 0.2 and 0.1, times 0.5 of recurrent parameters."""
    rng = np.random.default_rng(1)
    params: Any = {"w": rng.standard_normal(5), "a": rng.standard_normal(3)}
    start = {name: array.copy() for name, array in params.items()}
    optimiser = SGD(0.2, 0.5, 0.5, 0.3, clip=1.0, warmup=0.0, schedule="linear", floor=0.0)
    moments = optimiser.init(params)
    assert sorted(moments) == ["m.a", "m.w"]
    group_of = optimiser.grouping(lambda name: name == "a")
    wanted, buffers = dict(start), {name: np.zeros_like(array) for name, array in start.items()}
    for step in range(2):
        grads = {name: rng.standard_normal(array.shape) for name, array in start.items()}
        size = math.sqrt(sum(float((g**2).sum()) for g in grads.values()))
        assert optimiser.update(params, grads, moments, group_of, step, 2) == pytest.approx(size)
        for name, g in grads.items():
            rate, decay = (0.2, 0.1)[step] * (0.5 if name == "a" else 1.0), 0.0 if name == "a" else 0.3
            buffers[name] = 0.5 * buffers[name] + g * min(1, 1 / size) + decay * wanted[name]
            wanted[name] = wanted[name] - rate * buffers[name]
    for name, array in wanted.items():
        np.testing.assert_allclose(params[name], array, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(moments[f"m.{name}"], buffers[name], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, r"SGD: momentum is 1.0, expected a number in \[0, 1\)"),
        ({"lr": 0.0}, "SGD: lr is 0.0, expected a positive number"),
        ({"schedule": "cosin"}, "SGD: schedule is 'cosin', expected one of .*did you mean cosine"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SGD(**settings)


def test_errors_of_an_update_name_it() -> None:
    params, optimiser = {"w": np.ones(3)}, SGD()
    moments, group_of = optimiser.init(params), optimiser.grouping(lambda name: False)
    with pytest.raises(ValueError, match=r"SGD.update: w has shapes params \(3,\), moments \(3,\), grads \(4,\)"):
        optimiser.update(params, {"w": np.ones(4)}, moments, group_of, 0, 2)
    with pytest.raises(NonFinite, match="gradient w"):
        optimiser.update(params, {"w": np.full(3, np.nan)}, moments, group_of, 0, 2)
    moments["m.w"][:] = 1e200  # whose squares float64 does not hold
    with pytest.raises(NonFinite, match="the optimiser's momentum of w"):
        SGD(lr=1e-100, floor=0.0).update(params, {"w": np.ones(3)}, moments, group_of, 1, 2)


def swapped(array: Any) -> Any:
    return array.astype(array.dtype.newbyteorder())


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("optimiser", [SGD(), AdamW()])
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (
            lambda p, g, m: p["in"].update(w=p["w"]),
            ValueError,
            r"params (in\.)?w shares memory with params (in\.)?w, expected an",
        ),
        (
            lambda p, g, m: p["in"].update(w=p["w"][:]),
            ValueError,
            r"params (in\.)?w shares memory with params (in\.)?w, expected an",
        ),
        (
            lambda p, g, m: m.update({"m.w": m["m.in.w"]}),
            ValueError,
            r"m\.(in\.)?w shares memory with moments m\.(in)?",
        ),
        (lambda p, g, m: m.update({"m.w": p["in"]["w"]}), ValueError, r"(params in|m)\.w shares memory with"),
        (
            lambda p, g, m: g.update(w=p["in"]["w"]),
            ValueError,
            r"(params in\.|grads )w shares memory with (params|grads)",
        ),
        (lambda p, g, m: p.update(w=swapped(p["w"])), TypeError, "params w has dtype [<>]f8, expected float64, in the"),
        (
            lambda p, g, m: m.update({"m.w": swapped(p["w"])}),
            TypeError,
            r"moments m\.w has dtype [<>]f8, expected float64",
        ),
        (lambda p, g, m: frozen(p["w"]), ValueError, "params w is read-only, expected an array to update"),
        (lambda p, g, m: frozen(m["m.w"]), ValueError, r"moments m\.w is read-only, expected an array to update"),
    ],
)
def test_arrays_that_cannot_be_updated_are_named(optimiser: Any, changed: Any, error: Any, message: str) -> None:
    """An array under two names was updated twice without a word; other messages named several arrays, or the gradient's
    dtype as the wrong one."""
    params: Any = {"w": np.ones(3), "in": {"w": np.ones(3)}}
    grads, moments = {"w": np.ones(3), "in": {"w": np.ones(3)}}, optimiser.init(params)
    changed(params, grads, moments)
    group_of = optimiser.grouping(lambda name: False)
    with pytest.raises(error, match=rf"^{type(optimiser).__name__}\.update: (moments )?{message}"):
        optimiser.update(params, grads, moments, group_of, 1, 2)
    assert (params["w"] == 1).all()


def test_neighbours_in_memory_one_gradient_of_two_and_frozen_arrays_may_be_updated() -> None:
    whole, same = np.ones(6), np.ones(3)
    params = {"a": whole[:3], "b": whole[3:], "none": np.ones(0), "empty": whole[1:1], "frozen": whole}
    optimiser, grads = SGD(1.0, 0.0, schedule="constant", warmup=0.0), {"a": same, "b": same, "empty": np.ones(0)}
    optimiser.update(params, grads, optimiser.init(params), optimiser.grouping(lambda name: False), 0, 1)
    assert (whole == 0).all()


def test_a_grouping_is_pickled() -> None:
    model = build_model(ModelSettings("lru", 4, 1), {"d_state": 2}, n_features=2, n_classes=2)
    group_of = AdamW(no_decay=("bias", "recurrent")).grouping(model.is_recurrent)
    again = pickle.loads(pickle.dumps(group_of))
    names = [name for name, _ in flatten(model.init(np.random.default_rng(0)))]
    assert [again(name) for name in names] == [group_of(name) for name in names]
    assert {group_of(name) for name in names} == {"global", "global, no decay", "recurrent"}


def test_moments_of_another_optimiser_are_refused() -> None:
    params, grads = {"w": np.ones(3), "frozen": np.ones(2)}, {"w": np.ones(3)}
    adam, plain = AdamW(), SGD()
    group_of = plain.grouping(lambda name: False)
    expected = r"SGD\.update: moments has v\.w, expected m\.<name>, as from SGD\.init"
    with pytest.raises(ValueError, match=expected):
        plain.update(params, grads, adam.init(params), group_of, 0, 2)
    with pytest.raises(ValueError, match=r"AdamW\.update: grads has w, expected only names that moments has too"):
        adam.update(params, grads, plain.init(params), group_of, 0, 2)
    assert (params["w"] == 1).all()
    for optimiser in (adam, plain):  # moments of frozen parts stay as they are
        moments = optimiser.init(params)
        optimiser.update(params, grads, moments, group_of, 0, 2)
        assert not moments["m.frozen"].any()
        assert moments["m.w"].all()


def recipe(folder: Path, **changes: Any) -> Recipe:
    """A small run on arrays of two classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    save_arrays(folder / "data.npz", rng.standard_normal((60, 6, 2)) + y[:, None, None], y)
    tables = {
        "task": {"name": "arrays", "path": str(folder / "data.npz")},
        "model": {"layer": "lru", "d_model": 4, "n_layers": 1, "norm": "layer"},
        "layer": {"d_state": 4},
        "optimiser": {"name": "sgd", "lr": 0.3},
        "training": {"batch": 8, "steps": 12, "eval_every": 4},
    }
    return load_recipe(tables, changes)


def test_a_run_learns_and_goes_on_after_a_stop_to_the_same_bytes(tmp_path: Path) -> None:
    """Stopped after six of twelve steps. Its recipe, its checkpoint and its groups are those of SGD."""
    by = recipe(tmp_path)
    whole, stopped = Run(tmp_path / "whole"), Run(tmp_path / "stopped")
    records: list[dict[str, Any]] = []
    train(by, whole.folder, progress=False, log=records.append)
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < 0.5 * losses[0]

    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 6 and "loss" in record:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(by, stopped.folder, progress=False, log=stop)
    train(by, stopped.folder, resume=True, progress=False)
    for name in ("last", "best"):
        assert stopped.checkpoint(name).read_bytes() == whole.checkpoint(name).read_bytes()
    arrays, _ = whole.read("last", by)
    assert {name[:2] for name in arrays} == {"m.", "pa"}
    assert whole.load_recipe() == by
    assert isinstance(by.optimiser, SGD)


def test_a_run_goes_on_to_more_steps_with_its_momentum(tmp_path: Path) -> None:
    """With a constant rate, five steps and then five are ten."""
    constant = {"optimiser.schedule": "constant", "optimiser.warmup": 0.0}
    for steps, folder in ((5, "a"), (10, "a"), (10, "b")):
        train(recipe(tmp_path, **constant, **{"training.steps": steps}), tmp_path / folder, progress=False)
    (one, _), (other, _) = (Run(tmp_path / name).read("last", Run(tmp_path / name).load_recipe()) for name in "ab")
    assert {name: array.tobytes() for name, array in one.items()} == {
        name: array.tobytes() for name, array in other.items()
    }


def test_recipes_name_the_optimiser(tmp_path: Path) -> None:
    """AdamW's sections are as they were before there was another."""
    by = recipe(tmp_path, **{"optimiser.name": "adamw"})
    assert isinstance(by.optimiser, AdamW)
    assert "name" not in by.tables()["optimiser"]
    assert recipe(tmp_path).tables()["optimiser"]["name"] == "sgd"
    with pytest.raises(ValueError, match=r"optimiser\.name is 'sdg', expected one of adamw, sgd; did you mean sgd"):
        recipe(tmp_path, **{"optimiser.name": "sdg"})
    with pytest.raises(ValueError, match=r"unknown key optimiser\.betas"):
        recipe(tmp_path, **{"optimiser.betas": [0.9, 0.99]})
