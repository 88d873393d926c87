"""Optimiser, schedule and training loop: known answers, exact resume, and error handling."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest

import toy
from patience import PATIENCE
from rotrnn import _cpu
from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn._support.json import to_json
from rotrnn._support.progress import Bar, say
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.nn.layer import flatten
from rotrnn.nn.layers.lru import LRU
from rotrnn.ops.optim import adamw, norm
from rotrnn.tasks import TASKS, Copy, Split, Task
from rotrnn.tasks.task import Batch
from rotrnn.training import loop
from rotrnn.training.evaluation import evaluate
from rotrnn.training.graph import padded
from rotrnn.training.loader import Loader, batch_order
from rotrnn.training.log import add_report
from rotrnn.training.loop import Interrupted, Trainer, check_same, train
from rotrnn.training.optimiser import GROUPS, AdamW, NonFinite, describe_groups, table
from rotrnn.training.recipe import load_recipe
from rotrnn.training.run import Run
from rotrnn.training.schedule import learning_rate
from rotrnn.training.start import read_start
from rotrnn.training.state import Checkpoints, initial_state
from rotrnn.training.step import Stepper
from toy import contents, wait_for_step

TOY = Path(toy.__file__)
EPS = {np.float32: 2.0**-23, np.float64: 2.0**-52}
BLOCK = 16384  # csrc/kernels/optim.c


def toy_recipe(tmp_path, *overrides):
    path = tmp_path / "toy.toml"
    path.write_text(toy.RECIPE, encoding="utf-8")
    return load_recipe(path, overrides)


# ---- AdamW ----


def adamw_loop(p, m, v, g, lr, beta1, beta2, eps, decay, scale, step):
    """Compares with the definition, element by element in float64."""
    p, m, v = (x.astype(np.float64) for x in (p, m, v))
    for i in np.ndindex(p.shape):
        gi = scale * float(g[i])
        m[i] = beta1 * m[i] + (1 - beta1) * gi
        v[i] = beta2 * v[i] + (1 - beta2) * gi**2
        m_hat, v_hat = m[i] / (1 - beta1**step), v[i] / (1 - beta2**step)
        p[i] -= lr * (m_hat / (math.sqrt(v_hat) + eps) + decay * p[i])
    return p, m, v


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (17,), (3, 5, 7), (BLOCK + 3,)])
def test_adamw_equals_its_definition(dtype, shape):
    rng = np.random.default_rng(0)
    settings = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decay": 0.1, "scale": 0.5}
    p = rng.standard_normal(shape).astype(dtype)
    m, v = np.zeros_like(p), np.zeros_like(p)
    for step in range(1, 6):
        g = rng.standard_normal(shape).astype(dtype)
        expected = adamw_loop(p, m, v, g, **settings, step=step)
        assert adamw(p, m, v, g, **settings, step=step) == (norm(p), norm(v))
        # some ten roundings each, of numbers below 4; 1/sqrt(v) amplifies none of them, because v and m fall together
        for got, wanted in zip((p, m, v), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=20 * EPS[dtype], atol=20 * EPS[dtype])


def test_adamw_takes_gradients_of_any_layout():
    """Byte-swapped or not contiguous, as layers take what they are given."""
    gradient = np.arange(1.0, 7.0).reshape(2, 3)
    found = []
    for given in (gradient, gradient.astype(">f8"), np.asfortranarray(gradient)):
        params, optimiser = {"w": np.ones((2, 3))}, AdamW(lr=0.1)
        moments = optimiser.init(params)
        optimiser.update(params, {"w": given}, moments, optimiser.grouping(lambda name: False), 0, 3)
        found.append((params["w"].tobytes(), moments["v.w"].tobytes()))
    assert found[0] == found[1] == found[2]


def test_adamw_first_step_is_the_sign_of_the_gradient():
    """At step 1 m_hat / sqrt(v_hat) = g / |g|, so p moves by lr (sign(g) + decay p), for any size of g."""
    p = np.array([1.0, 1.0, -2.0, 5.0])
    adamw(p, np.zeros(4), np.zeros(4), np.array([0.5, -300.0, 1e-3, 0.0]), lr=0.1, step=1, eps=1e-30, decay=0.05)
    np.testing.assert_allclose(p, [0.895, 1.095, -2.09, 4.975], rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 15, 16, BLOCK, 3 * BLOCK + 5])
def test_norm(dtype, n):
    x = np.random.default_rng(n).standard_normal(n).astype(dtype)
    # n rounded sums in float64, then one rounding to the dtype
    assert norm(x) == pytest.approx(math.sqrt(math.fsum(float(one) ** 2 for one in x)), rel=EPS[dtype] + n * 2.0**-52)
    for many in (3, 35):  # squares are summed 16 at a time, and the rest one by one
        assert norm(np.full(many, 1e30, np.float32)) == pytest.approx(math.sqrt(many) * 1e30)
    assert not math.isfinite(norm(np.append(x, dtype(np.nan))))
    assert not math.isfinite(norm(np.append(x, dtype(np.inf))))


def test_optimiser_ops_give_the_same_bits_for_any_number_of_threads():
    rng = np.random.default_rng(0)
    g = rng.standard_normal(11 * BLOCK + 11).astype(np.float32)
    before, results = _cpu.threads(), []
    try:
        for threads in (1, 2, 7):
            _cpu.use_threads(threads)
            p, m, v = np.ones_like(g), np.zeros_like(g), np.zeros_like(g)
            for step in (1, 2, 3):
                norms = adamw(p, m, v, g, lr=0.1, step=step)
            results.append((p.tobytes(), m.tobytes(), v.tobytes(), norms, norm(g)))
    finally:
        _cpu.use_threads(before)
    assert results[0] == results[1] == results[2]


def ones(n=3, dtype=np.float64):
    return np.ones(n, dtype)


def read_only():
    array = ones()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("arrays", "step", "error", "message"),
    [
        ((ones(), ones(), ones(), np.ones(3, np.int64)), 1, TypeError, "adamw: grad has dtype int64"),
        ((ones(), ones(), ones(), np.ones(3, np.float16)), 1, TypeError, "adamw: grad has dtype float16"),
        ((ones(), ones(), ones(), ones(dtype=np.float32)), 1, TypeError, "adamw: param has dtype float64"),
        ((ones(), ones(4), ones(), ones()), 1, ValueError, r"adamw: m has shape \(4,\), expected \(3,\)"),
        ((read_only(), ones(), ones(), ones()), 1, ValueError, "adamw: param is read-only"),
        ((ones(), ones(), ones(6)[::2], ones()), 1, ValueError, "adamw: v is not C-contiguous"),
        ((ones(), ones(), ones(), ones()), 0, ValueError, "adamw: step is 0"),
    ],
)
def test_adamw_refuses(arrays, step, error, message):
    with pytest.raises(error, match=message):
        adamw(*arrays, lr=0.1, step=step)
    assert all((array == 1).all() for array in arrays)


# ---- schedule and groups ----


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 1e-7),
        (5, 1e-7 + (1e-2 - 1e-7) / 2),  # half way up
        (10, 1e-2),  # the end of the warm-up
        (55, 1e-7 + (1e-2 - 1e-7) / 2),  # half way down
        (85, 1e-7 + (1e-2 - 1e-7) * (1 - math.sqrt(0.75)) / 2),  # cos(150 degrees)
        (100, 1e-7),
    ],
)
def test_schedule_known_answers(step, expected):
    assert learning_rate(step, 100, 1e-2, 0.1) == pytest.approx(expected, rel=1e-14)
    assert learning_rate(step, 100, 1e-2, 10) == learning_rate(step, 100, 1e-2, 0.1)


def test_schedule_without_warmup_and_with_nothing_else():
    assert learning_rate(0, 10, 0.5, 0.0) == 0.5
    assert learning_rate(9, 10, 0.5, 50) == pytest.approx(0.45, rel=1e-6)


@pytest.mark.parametrize(
    ("schedule", "step", "height"),
    [
        ("linear", 5, 0.5),
        ("linear", 10, 1),
        ("linear", 55, 0.5),
        ("linear", 100, 0),
        ("constant", 5, 0.5),
        ("constant", 99, 1),
        ("s5", 0, 1),  # the schedule begins to act after the first update
        ("s5", 1, 0.1),
        ("s5", 10, 1),
        ("s5", 11, (1 + math.cos(math.pi * 10 / 90)) / 2),  # the cosine counts the steps of the warm-up too
        ("s5", 46, 0.5),
        ("s5", 91, 0),
        ("s5", 99, 0),  # and so is over before the last of them
    ],
)
def test_other_schedules(schedule, step, height):
    for floor in (0, 1e-3):
        expected = pytest.approx(floor + (1e-2 - floor) * height, rel=1e-14, abs=1e-17)
        assert learning_rate(step, 100, 1e-2, 10, schedule, floor) == expected


@pytest.mark.parametrize(("epochs", "warmup"), [(4, 1), (3, 0), (5, 2)])
def test_s5_schedule_is_that_of_its_loop_over_epochs(epochs, warmup):
    """The loop of the released code: a rate is used for an update, and after each update the epoch's function sets
    it."""
    each, peak = 7, 3e-3
    rate, step, seen = peak, 0, []
    for epoch in range(epochs):
        for _ in range(each):
            seen.append(rate)
            if epoch < warmup:
                rate = peak * (step + 1) / (each * warmup)
            else:
                end = each * epochs - each * warmup
                rate = peak * 0.5 * (1 + math.cos(math.pi * min(step, end) / end))
            step += 1
    ours = [learning_rate(i, each * epochs, peak, each * warmup, "s5", 0.0) for i in range(each * epochs)]
    np.testing.assert_allclose(ours, seen, rtol=1e-14, atol=0)


def test_groups():
    """Names, rates and decay of both groups at the three steps."""
    recipe = load_recipe("digits-rotrnn", ["optimiser.lr=1e-2", "optimiser.recurrent_factor=0.25"])
    model = recipe.build(recipe.task.load())
    params = initial_state(model, recipe).params
    rest, recurrent = describe_groups(recipe.optimiser, params, recipe.optimiser.grouping(model.is_recurrent), 1000)
    assert {name.rsplit(".", 1)[1] for name in recurrent.parameters} == {"theta", "gamma_log", "M", "B"}
    assert len(recurrent.parameters) == 4 * recipe.model.n_layers
    assert "blocks.0.layer.C" in rest.parameters
    assert not any("running" in name for name in rest.parameters)
    assert rest.steps == (0, 100, 999)
    assert rest.lr[:2] == (1e-7, 1e-2)
    assert 1e-7 < rest.lr[2] < 2e-7
    assert recurrent.lr == tuple(0.25 * lr for lr in rest.lr)
    assert rest.decay == tuple(0.05 * lr for lr in rest.lr)
    assert recurrent.decay == (0, 0, 0)
    text = table((rest, recurrent))
    assert "1.00e-02 / 5.00e-04" in text
    assert f"{rest.numbers:,}" in text


def test_groups_by_name():
    """Entries match parts of names, or patterns; `no_decay` has its own entries or follows `recurrent`."""
    names = ("encoder.w", "blocks.0.norm.bias", "blocks.0.layer.B_re", "blocks.0.layer.C_re")
    layer = lambda name: name.endswith("B_re")  # noqa: E731
    for settings, expected in (
        ({}, "global, global, recurrent, global"),
        ({"recurrent": ("*_re",)}, "global, global, recurrent, recurrent"),
        ({"recurrent": ()}, "global, global, global, global"),
        ({"no_decay": ()}, "global, global, recurrent+, global"),
        ({"no_decay": ("norm", "B_*")}, "global, global-, recurrent, global"),
        ({"no_decay": ("bias", "encoder"), "recurrent": ("C_re",)}, "global-, global-, global, recurrent+"),
    ):
        group_of = AdamW(**settings).grouping(layer)
        found = [group_of(name).replace(", no decay", "-").replace(", decay", "+") for name in names]
        assert ", ".join(found) == expected


def test_a_name_that_means_no_parameter():
    params = {"a": {"b": np.ones(1)}}
    for settings, message in (
        ({"recurrent": ("b", "c*")}, r"optimiser\.recurrent: 'c\*' matches no part of any parameter's name"),
        ({"no_decay": ("a.b",)}, r"optimiser\.no_decay: 'a\.b' matches no part"),
    ):
        optimiser = AdamW(**settings)
        with pytest.raises(ValueError, match=message):
            describe_groups(optimiser, params, optimiser.grouping(bool), 10)


def test_every_group_has_its_rate_and_decay():
    optimiser = AdamW(
        lr=0.1, recurrent_factor=0.5, weight_decay=0.5, warmup=0, schedule="constant", no_decay=("b", "d")
    )
    assert {group: (optimiser.rate(group, 3, 10), optimiser.decay(group)) for group in GROUPS} == {
        "global": (0.1, 0.5),
        "global, no decay": (0.1, 0),
        "recurrent": (0.05, 0),
        "recurrent, decay": (0.05, 0.5),
    }
    params = {name: np.full(2, 2.0) for name in "abcd"}
    grads = {name: np.full(2, 3.0) for name in "abcd"}
    group_of = optimiser.grouping(lambda name: name in "cd")
    optimiser.update(params, grads, optimiser.init(params), group_of, 0, 10)
    for name, step in {"a": 0.1 * (1 + 1), "b": 0.1, "c": 0.05 * (1 + 1), "d": 0.05}.items():
        np.testing.assert_allclose(params[name], 2 - step, rtol=1e-7)


def test_update_groups_buffers_and_clipping():
    params = {"a": np.full(3, 2.0), "b": {"running_mean": np.full(3, 2.0), "scale": np.full(4, 2.0)}}
    grads = {"a": np.full(3, 3.0), "b": {"scale": np.full(4, 0.75 * 4)}}
    size = math.sqrt(7 * 9)
    for clip, scale in ((0.0, 1.0), (1.0, 1 / size), (100.0, 1.0)):
        optimiser = AdamW(lr=0.1, recurrent_factor=0.5, weight_decay=0.5, clip=clip, warmup=0.0)
        here = {"a": params["a"].copy(), "b": {name: array.copy() for name, array in params["b"].items()}}
        moments = optimiser.init(here)
        assert moments.keys() == {"m.a", "v.a", "m.b.scale", "v.b.scale"}
        group_of = optimiser.grouping(lambda name: name == "b.scale")
        found = optimiser.update(here, grads, moments, group_of, 0, 10)
        assert found == pytest.approx(size)
        np.testing.assert_allclose(here["a"], 2 - 0.1 * (1 + 0.5 * 2), rtol=1e-7)
        np.testing.assert_allclose(here["b"]["scale"], 2 - 0.05, rtol=1e-7)
        np.testing.assert_array_equal(here["b"]["running_mean"], 2.0)
        np.testing.assert_allclose(moments["m.a"], 0.1 * 3 * scale, rtol=1e-14)


# ---- the loop ----


@pytest.mark.parametrize("minute", [0.0, math.inf])
def test_a_log_has_the_time_to_go(tmp_path, monkeypatch, capsys, minute):
    """Standard error is no terminal here. The first line does not wait for a minute; the last step has none to go."""
    monkeypatch.setattr(loop, "SOON", 0.0)
    monkeypatch.setattr(loop, "MINUTE", minute)
    recipe = toy_recipe(tmp_path, "training.steps=4", "training.eval_every=2")
    train(recipe, tmp_path / "run")
    lines = re.findall(r"^step (\d)/4: training loss \d\.\d{4}, about .+ to go$", capsys.readouterr().out, re.M)
    assert lines == (["1", "2", "3"] if minute == 0 else ["1"])
    train(recipe, tmp_path / "quiet", progress=False)
    assert capsys.readouterr().out == ""


def test_a_run_learns_and_leaves_what_it_promises(tmp_path):
    recipe = toy_recipe(tmp_path)
    result = train(recipe, tmp_path / "run", progress=False)
    assert train(recipe.tables(), tmp_path / "as a dict", progress=False)["test"] == result["test"]
    run = Run(tmp_path / "run")
    assert json.loads(run.result.read_text(encoding="utf-8")) == result
    assert result.keys() == {
        "steps",
        "metric",
        "selected_on",
        "best_step",
        "best_score",
        "test",
        "parameters",
    }
    assert {name: found.keys() for name, found in result["test"].items()} == {
        "last": {"loss", "accuracy", "sequence_accuracy", "n"},
        "best": {"loss", "accuracy", "sequence_accuracy", "n"},
    }
    assert result["test"]["last"]["accuracy"] > 0.5  # chance is 1/3
    assert run.load_recipe() == recipe
    records = run.records()
    steps = [record for record in records if "loss" in record]
    evaluations = [record for record in records if "val_loss" in record]
    assert [record["step"] for record in steps] == list(range(1, 41))
    assert [record["step"] for record in evaluations] == [7, 14, 21, 28, 35, 40]
    assert all({"loss", "accuracy", "lr", "grad_norm"} <= record.keys() for record in steps)
    assert all(
        len(record["state_norms"]) == 1 and record["elapsed"] >= 0 < record["peak_memory"] for record in evaluations
    )
    assert result["best_score"] == max(record["val_accuracy"] for record in evaluations)
    assert result["best_step"] == max(evaluations, key=lambda record: (record["val_accuracy"], record["step"]))["step"]

    task = recipe.task.load()
    model = recipe.build(task)
    for name, expected in result["test"].items():
        assert evaluate(model, run.load_params(name), task, task.test, batch=16, dtype="float32") == expected
    initial = dict(flatten(initial_state(model, recipe).params))
    for name, array in flatten(run.load_params("init")):
        np.testing.assert_array_equal(array, initial[name])


@dataclass(frozen=True)
class Parity:
    """Tag each bit with the parity of the bits before it and its own; every third tag does not count."""

    def load(self) -> Task:
        def split(seed: int, n: int) -> ParitySplit:
            return ParitySplit(np.random.default_rng(seed).integers(0, 2, (n, 6)))

        return Task("parity", split(0, 70), split(1, 20), split(2, 20), 2, 2, None, head="tagger")


@dataclass(frozen=True)
class ParitySplit(Split):
    bits: np.ndarray

    def __len__(self):
        return len(self.bits)

    def batch(self, index, dtype=np.float32):
        bits = self.bits[index]
        lengths = 6 - index % 3
        counted = (np.arange(6) < lengths[:, None]) & (np.arange(6) % 3 != 2)
        return Batch(bits, np.where(counted, np.cumsum(bits, 1) % 2, -1), lengths)


@pytest.mark.parametrize("layer", ["lru", "lru both ways"])
def test_a_tagger_trains_evaluates_and_accumulates(tmp_path, monkeypatch, layer):
    """Means are over the tags that count, for any number of parts."""
    monkeypatch.setitem(TASKS, "parity", Parity)
    text = toy.RECIPE.replace('"toy"', '"parity"')
    if layer == "lru both ways":
        text = text.replace("d_state = 4", "d_state = 4\nbidirectional = true")
    path = tmp_path / "parity.toml"
    path.write_text(text, encoding="utf-8")
    losses = []
    for parts in (1, 4):
        overrides = [f"training.accumulate={parts}", "model.norm=layer", "training.dtype=float64", "optimiser.lr=0.02"]
        recipe = load_recipe(path, overrides)
        result = train(recipe, tmp_path / str(parts), progress=False)
        losses.append([record["loss"] for record in Run(tmp_path / str(parts)).records() if "loss" in record])
        assert 0 <= result["test"]["best"]["accuracy"] <= 1
        assert losses[-1][-1] < losses[-1][0]
    # the same sums in another order, carried through 40 steps of AdamW
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)


def test_data_order_follows_from_the_step_alone(tmp_path):
    """70 examples in batches of 16: four batches per epoch, the rest is dropped, and each epoch has its own order."""
    recipe = toy_recipe(tmp_path)
    split = recipe.task.load().train
    seen = [Loader(split, recipe.training).index(step) for step in (7, 3, 0, 5, 1, 2, 4, 6)]
    by_step = dict(zip((7, 3, 0, 5, 1, 2, 4, 6), seen, strict=True))
    for epoch in (0, 1):
        order = np.concatenate([by_step[4 * epoch + i] for i in range(4)])
        np.testing.assert_array_equal(order, batch_order(70, 0, epoch)[:64])
        assert len(set(order.tolist())) == 64
    assert not np.array_equal(batch_order(70, 0, 0), batch_order(70, 0, 1))
    assert not np.array_equal(batch_order(70, 0, 0), batch_order(70, 1, 0))


def test_a_step_that_asks_for_its_batch_again_loads_nothing_again(tmp_path, monkeypatch):
    recipe, loaded = toy_recipe(tmp_path), []
    make = Loader._make
    monkeypatch.setattr(Loader, "_make", lambda self, step: (loaded.append(step), make(self, step))[1])
    loader = Loader(recipe.task.load().train, recipe.training)
    for step in (0, 1, 2):
        assert loader.parts(step) is loader.parts(step)
    loader.parts(3)  # a thread loads one step after the other
    assert loaded[:4] == [0, 1, 2, 3]
    loader.close()


def test_a_fresh_split_is_read_in_order_and_seeds_start_elsewhere(tmp_path):
    """With 2**40 strings, 1000 steps of 16 for each of 50 seeds repeat none. With 70 strings, they are read
    cyclically."""
    training = toy_recipe(tmp_path).training
    split = Copy().load().train
    starts = []
    for seed in range(50):
        loader = Loader(split, dataclasses.replace(training, seed=seed))
        first, last = loader.index(0), loader.index(999)
        np.testing.assert_array_equal(loader.index(1), first + 16)
        np.testing.assert_array_equal(last, first + 999 * 16)
        starts.append(first[0])
    assert starts[0] == 0
    assert np.diff(np.sort(starts)).min() >= 1000 * 16
    assert max(starts) + 1000 * 16 <= len(split)

    few = Loader(Copy(train=70).load().train, dataclasses.replace(training, seed=1))
    seen = np.concatenate([few.index(step) for step in range(8)])
    np.testing.assert_array_equal(seen, (seen[0] + np.arange(8 * 16)) % 64)


@pytest.mark.parametrize("parts", [2, 3, 16])
def test_accumulation_equals_the_whole_batch(tmp_path, parts):
    whole = toy_recipe(tmp_path, "training.dtype=float64")
    split = toy_recipe(tmp_path, "training.dtype=float64", f"training.accumulate={parts}")
    results = []
    for recipe in (whole, split):
        trainer = Trainer(recipe, Run(tmp_path), False)
        metrics, grads, _ = trainer.stepper.gradients(initial_state(trainer.model, recipe))
        results.append((metrics, dict(flatten(grads))))
    (expected, expected_grads), (metrics, grads) = results
    assert metrics == pytest.approx(expected, rel=1e-14)
    for name, grad in grads.items():
        # sums of 16 rounded terms in another order
        np.testing.assert_allclose(grad, expected_grads[name], rtol=0, atol=16 * EPS[np.float64])


def test_shares_of_a_batch_are_padded_alike_for_graphs():
    """Of two processes, whose shares are a ragged batch, a sequence alone, or whole sequences."""
    one = Batch(np.ones((2, 5, 1)), np.array([[0, 1, 1, 0, 1], [1, 1, 0, -1, -1]]), np.array([5, 3]))
    other = Batch(np.ones((1, 9, 1)), np.ones((1, 9), int), None)
    padding = [padded(batch, 1, True, [(5, True), (9, False)]) for batch in (one, other)]
    assert [batch.inputs.shape for batch in padding] == [(2, 10, 1), (1, 10, 1)]
    assert [batch.lengths.tolist() for batch in padding] == [[5, 3], [9]]
    assert [(batch.labels[:, -1] == -1).all() for batch in padding] == [True, True]
    assert padding[0].inputs.sum() == 10
    short = padded(other, 1, False, [(9, False), (10, False)])
    assert (short.inputs.shape, short.labels.shape, short.lengths.tolist()) == ((1, 10, 1), (1, 9), [9])
    assert padded(other, 1, True, [(9, False), (9, False)]) is other
    pairs = padded(Batch(np.ones((3, 2, 4)), np.ones(3, int), None), 2, False, [(4, False), (5, True)])
    assert (pairs.inputs.shape, pairs.lengths.tolist()) == ((3, 2, 5), [[4, 4]] * 3)


def test_a_batch_has_the_mean_of_its_parts_and_the_worst_sequence():
    total = {}
    add_report(total, {"0.iterations": 4.0, "0.residual": 0.5, "0.max_iterations_reverse": 3.0}, 0.25)
    add_report(total, {"0.iterations": 8.0, "0.residual": 0.1, "0.max_iterations_reverse": 7.0}, 0.75)
    assert total == {"0.iterations": 7.0, "0.residual": 0.5, "0.max_iterations_reverse": 7.0}
    add_report(total, {"0.residual": math.nan})
    assert math.isnan(total["0.residual"])


def test_a_layer_may_report_numbers_of_numpy(monkeypatch):
    monkeypatch.setattr(LRU, "report", lambda self, saved: {"share": np.float32(0.5), "steps": np.int64(3)})
    model = build_model(ModelSettings("lru", 4, 1, prenorm=False), {"d_state": 2}, n_classes=2, vocab=3)
    _, saved = model.forward(model.init(np.random.default_rng(0)), np.zeros((1, 3), int))
    assert to_json(model.report(saved)) == '{"0.share": 0.5, "0.steps": 3.0}'


def test_each_part_of_a_batch_has_dropout_of_its_own(tmp_path, monkeypatch):
    trainer = Trainer(toy_recipe(tmp_path, "training.accumulate=3"), Run(tmp_path), False)
    keys = []
    forward = toy.ToyModel.forward

    def spy(self, params, inputs, ctx):
        keys.append((ctx.train, ctx.seed, ctx.step))
        return forward(self, params, inputs, ctx)

    monkeypatch.setattr(toy.ToyModel, "forward", spy)
    state = initial_state(trainer.model, trainer.recipe)
    for _ in range(3):
        trainer.stepper.advance(state)
    assert keys == [(True, 0, k) for k in range(9)]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["digits-rotrnn", "digits-lru"])
def test_same_bits_for_any_number_of_threads(tmp_path, recipe):
    """Fifty steps of a real model that is large enough for its kernels to use threads."""
    sizes = ["model.n_layers=1", "model.dropout=0.1"]
    splits = ["task.test_fraction=0.02", "task.val_fraction=0.02"]
    small = load_recipe(recipe, ["training.steps=50", "training.eval_every=50", *sizes, *splits])
    before = _cpu.threads()
    try:
        for threads in (1, 2, 7):
            _cpu.use_threads(threads)
            train(small, tmp_path / str(threads), progress=False)
    finally:
        _cpu.use_threads(before)
    one, *others = (contents(tmp_path / str(threads)) for threads in (1, 2, 7))
    assert one == others[0]
    assert one == others[1]


# ---- stopped and resumed ----


def start(*arguments, hold=""):
    """`hold`: the step at which the run waits for a signal (toy.hold)."""
    return subprocess.Popen(
        [sys.executable, str(TOY), "train", *map(str, arguments)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"TOY_HOLD": str(hold)},
    )


@pytest.mark.slow
def test_killed_at_any_moment_a_run_resumes_to_the_same_bytes(tmp_path):
    """Three kills at random moments: in a step, an evaluation, or while writing a file."""
    recipe = toy_recipe(tmp_path, "task.delay=0.004", "training.eval_every=3", "training.steps=120")
    (tmp_path / "run.toml").write_text(recipe.text(), encoding="utf-8")
    train(recipe, tmp_path / "straight", progress=False)
    folder = tmp_path / "killed"
    arguments = (tmp_path / "run.toml", "--out", folder)
    delays = [random.uniform(0, 0.1) for _ in range(3)]
    print(f"delays before the kills: {delays}")  # pytest shows it where the test fails
    for kill, delay in enumerate(delays):
        process = start(*arguments, hold=29 + 25 * kill)
        wait_for_step(folder, 5 + 25 * kill)
        time.sleep(delay)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stderr.close()
        arguments = ("--resume", folder)
    train(recipe, folder, resume=True, progress=False)
    assert contents(folder) == contents(tmp_path / "straight")
    assert sorted(os.listdir(folder)) == sorted(os.listdir(tmp_path / "straight"))


@pytest.mark.slow
def test_a_real_model_killed_resumes_to_the_same_bytes(tmp_path):
    """Batch norm's buffers, dropout, accumulation, and a checkpoint every second step."""
    settings = ["model.dropout=0.1", "training.accumulate=2", "training.checkpoint_every=2", "training.steps=40"]
    small = ["model.d_model=16", "layer.d_state=16", "training.eval_every=15", "task.test_fraction=0.8"]
    recipe = load_recipe("digits-rotrnn", [*settings, *small])
    (tmp_path / "run.toml").write_text(recipe.text(), encoding="utf-8")
    train(recipe, tmp_path / "straight", progress=False)
    folder = tmp_path / "killed"
    process = start(tmp_path / "run.toml", "--out", folder, hold=30)
    wait_for_step(folder, 9)
    time.sleep(random.Random(7).uniform(0, 0.1))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.stderr.close()
    assert read_checkpoint(folder / "last.safetensors")[1]["step"] < 40
    train(recipe, folder, resume=True, progress=False)
    assert contents(folder) == contents(tmp_path / "straight")


def test_another_instruction_set_or_numpy_warns(tmp_path, monkeypatch):
    recipe = toy_recipe(tmp_path)
    train(recipe, tmp_path / "run", progress=False)
    last = Run(tmp_path / "run").checkpoint("last")
    arrays, facts = read_checkpoint(last)
    here = f"{_cpu.simd()} and NumPy {np.__version__}"
    assert facts["arithmetic"] == [here]
    write_checkpoint(last, arrays, {**facts, "arithmetic": ["other and NumPy 1.0"]})
    with pytest.warns(UserWarning, match="was trained with other and NumPy 1.0, and this is"):
        train(recipe, tmp_path / "run", resume=True, progress=False)


def test_ctrl_c_during_the_last_save(tmp_path, monkeypatch):
    def interrupted(self, state, log):
        if state.step == 40:
            signal.raise_signal(signal.SIGINT)
        save(self, state, log)

    save = Trainer.save
    monkeypatch.setattr(Trainer, "save", interrupted)
    with pytest.raises(Interrupted, match="stopped after step 40 of 40, all is saved"):
        train(toy_recipe(tmp_path), tmp_path / "run", progress=False)
    assert not Run(tmp_path / "run").result.exists()


def test_a_kill_before_the_first_checkpoint_resumes_too(tmp_path):
    recipe = toy_recipe(tmp_path)
    train(recipe, tmp_path / "straight", progress=False)
    folder = tmp_path / "run"
    shutil.copytree(tmp_path / "straight", folder)
    for name in ("last", "best", "init"):
        Run(folder).checkpoint(name).unlink()
    Run(folder).result.unlink()
    train(recipe, folder, resume=True, progress=False)
    assert contents(folder) == contents(tmp_path / "straight")


def test_a_log_line_cut_short_is_dropped(tmp_path):
    recipe = toy_recipe(tmp_path)
    train(recipe, tmp_path, progress=False)
    before = contents(tmp_path)
    with open(tmp_path / "log.jsonl", "a", encoding="utf-8") as log:
        log.write('{"step": 41, "loss": 1.0}\n{"step": 42, "lo')
    (tmp_path / ".last.safetensors.123.tmp").write_bytes(b"half")
    train(recipe, tmp_path, resume=True, progress=False)
    assert contents(tmp_path) == before
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.slow
def test_ctrl_c_saves_and_resumes(tmp_path):
    recipe = toy_recipe(tmp_path, "task.delay=0.02", "training.eval_every=1000")
    (tmp_path / "run.toml").write_text(recipe.text(), encoding="utf-8")
    folder = tmp_path / "run"
    process = start(tmp_path / "run.toml", "--out", folder, hold=20)
    wait_for_step(folder, 5)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    step = read_checkpoint(folder / "last.safetensors")[1]["step"]
    assert 5 <= step < 40
    assert f"stopped after step {step} of 40, all is saved" in error.decode()
    assert f"rotrnn train --resume {folder}" in error.decode()
    assert "Traceback" not in error.decode()
    train(recipe, folder, resume=True, progress=False)
    train(recipe, tmp_path / "straight", progress=False)
    assert contents(folder) == contents(tmp_path / "straight")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGHUP")
def test_a_closed_terminal_saves_but_not_under_nohup(tmp_path, monkeypatch):
    recipe, advance = toy_recipe(tmp_path, "training.eval_every=1000"), Stepper.advance

    def hanging_up(self, state):
        if state.step == 5:
            signal.raise_signal(signal.SIGHUP)
        return advance(self, state)

    monkeypatch.setattr(Stepper, "advance", hanging_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        with pytest.raises(Interrupted, match="stopped after step 6 of 40"):
            train(recipe, tmp_path / "run", progress=False)
        assert read_checkpoint(tmp_path / "run" / "last.safetensors")[1]["step"] == 6
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert train(recipe, tmp_path / "nohup", progress=False)["steps"] == 40
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_stays_in_its_folder_wherever_the_process_goes(tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here" / "run").mkdir()
    (tmp_path / "here" / "run" / ".recipe.toml.0123abcd.tmp").touch()  # of a process that was killed at its start
    recipe = toy_recipe(tmp_path, "training.steps=3")
    train(recipe, "run", progress=False, log=lambda record: os.chdir(tmp_path / "there"))
    assert os.listdir(tmp_path / "there") == []
    assert Run(tmp_path / "here" / "run").status() == "done"
    assert not list((tmp_path / "here" / "run").glob(".*.tmp"))


@pytest.mark.parametrize(("often", "steps"), [(math.inf, [1]), (-1, [1, 2, 3, 4, 5])])
def test_checkpoints_come_by_time_and_change_no_bit(tmp_path, monkeypatch, often, steps):
    assert max(loop.FIRST, loop.OFTEN) <= 600  # what a run may lose
    recipe = toy_recipe(tmp_path, "training.eval_every=1000", "training.steps=6")
    train(recipe, tmp_path / "straight", progress=False)
    written, write = [], Checkpoints.write

    def noted(self, name, state, **facts):
        written.append((name, state.step))
        write(self, name, state, **facts)

    monkeypatch.setattr(Checkpoints, "write", noted)
    monkeypatch.setattr(loop, "FIRST", -1)
    monkeypatch.setattr(loop, "OFTEN", often)
    train(recipe, tmp_path / "run", progress=False)
    assert written == [("init", 0), *(("last", step) for step in steps), ("best", 6), ("last", 6)]
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""An environment in which Python writes what was printed when it ends, too."""


@contextmanager
def display(kind):
    """A standard output that cannot be written: a pipe or terminal of which the other end is closed, a full disk."""
    if kind == "disk":
        with open("/dev/full", "wb") as file:
            yield file
        return
    if kind == "terminal":
        import pty

        other, mine = pty.openpty()
    else:
        other, mine = os.pipe()
    os.close(other)
    try:
        yield mine
    finally:
        os.close(mine)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full, and terminals as Linux has them")
@pytest.mark.parametrize("kind", ["pipe", "terminal", "disk"])
def test_a_display_that_is_gone_does_not_end_a_run(tmp_path, kind):
    recipe = toy_recipe(tmp_path, "training.steps=14")
    (tmp_path / "run.toml").write_text(recipe.text(), encoding="utf-8")
    command = [sys.executable, str(TOY), "train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    with display(kind) as gone:
        done = subprocess.run(command, stdout=gone, stderr=gone, env=BUFFERED)
    assert done.returncode == 0
    train(recipe, tmp_path / "straight", progress=False)
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full")
def test_an_error_without_a_display_has_its_own_exit_code(tmp_path):
    """Not 120, with which Python ends when it cannot write what was printed before the error."""
    recipe = toy_recipe(tmp_path, "training.steps=4", "task.nan_at=2")
    (tmp_path / "run.toml").write_text(recipe.text(), encoding="utf-8")
    command = [sys.executable, str(TOY), "train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    with display("disk") as gone:
        assert subprocess.run(command, stdout=gone, stderr=gone, env=BUFFERED).returncode == 2


def test_a_closed_output_is_told_once(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    for _ in range(2):  # another output is another warning
        monkeypatch.setattr(sys, "stdout", Gone())
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            say("one")
            say("two")
        assert len(told) == 1


@pytest.mark.parametrize("closed", [False, True])
def test_streams_that_are_none_or_closed_do_not_end_a_run(tmp_path, monkeypatch, closed):
    stream = io.StringIO() if closed else None
    if stream is not None:
        stream.close()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream)
    assert train(toy_recipe(tmp_path, "training.steps=7"), tmp_path / "run")["steps"] == 7


def test_a_bar_that_cannot_be_shown_disappears():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with Bar(total=2, file=Gone()) as bar:
        bar.update()
        bar.set_postfix(loss=1)
    assert bar.disable


@pytest.mark.slow
def test_a_second_ctrl_c_aborts(tmp_path):
    recipe = toy_recipe(tmp_path, "task.delay=3600")  # a step, in which both come however busy the machine is
    (tmp_path / "run.toml").write_text(recipe.text(), encoding="utf-8")
    folder = tmp_path / "run"
    process = start(tmp_path / "run.toml", "--out", folder)
    try:
        for answer in (b"asleep", b"Ctrl-C again aborts at once"):  # not by the clock: what it says tells where it is
            heard = b""
            while answer not in heard:
                more = os.read(process.stderr.fileno(), 4096)
                assert more, f"ended before it said {answer!r}: {heard.decode()}"
                heard += more
            process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "rotrnn: aborted" in error.decode()
    assert not (folder / "last.safetensors").exists()


def test_interrupted_within_python(tmp_path, monkeypatch):
    recipe = toy_recipe(tmp_path, "training.eval_every=1000")
    advance = Stepper.advance

    def interrupting(self, state):
        if state.step == 5:
            signal.raise_signal(signal.SIGINT)
        return advance(self, state)

    monkeypatch.setattr(Stepper, "advance", interrupting)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="stopped after step 6 of 40"):
        train(recipe, tmp_path / "run", progress=False)
    assert signal.getsignal(signal.SIGINT) is before


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.nan_at=9", r"the loss is nan, every parameter is finite; going backward, gradient head\.bias"),
        ("task.blow_up_at=9", r"gradient blocks\.0\.layer\.scale \(group recurrent\) is not finite"),
    ],
)
def test_what_is_not_finite_stops_with_its_name_and_keeps_the_checkpoint(tmp_path, override, message):
    recipe = toy_recipe(tmp_path, override, "optimiser.warmup=0", "training.eval_every=1")
    with pytest.raises(NonFinite, match=f"step 10: {message}") as caught, np.errstate(all="ignore"):
        train(recipe, tmp_path / "run", progress=False)
    last = Run(tmp_path / "run").checkpoint("last")
    assert f"the last good checkpoint is {last}" in str(caught.value)
    _, facts = read_checkpoint(last)
    assert facts["step"] == 9


@pytest.mark.parametrize("cause", ["nan_at", "blow_up_at"])
def test_steps_that_are_not_finite_may_be_left_out(tmp_path, monkeypatch, cause):
    """Such a step changes nothing but its number: no parameter, no moment, no running statistic."""
    seen, advance = {}, Stepper.advance

    def watched(self, state):
        found = advance(self, state)
        seen[state.step] = {name: array.copy() for name, array in state.arrays().items()}
        return found

    monkeypatch.setattr(Stepper, "advance", watched)
    spoilt = (f"task.{cause}=9", "task.spoilt=2")
    with np.errstate(all="ignore"):
        with pytest.warns(RuntimeWarning, match=r"step 1[01]: .* not finite.*; the step is left out") as told:
            train(toy_recipe(tmp_path, *spoilt, "training.skip=2"), tmp_path / "run", progress=False)
        assert sum("left out" in str(one.message) for one in told) == 2
        for name, array in seen[9].items():
            np.testing.assert_array_equal(array, seen[10][name])
            np.testing.assert_array_equal(array, seen[11][name])
            assert np.isfinite(seen[40][name]).all()
        assert any((seen[12][name] != array).any() for name, array in seen[9].items())
        losses = [one["loss"] for one in Run(tmp_path / "run").records() if "loss" in one]
        assert len(losses) == 40
        assert [step for step, loss in enumerate(losses, 1) if math.isnan(loss)] == [10, 11]

        message = r"step 11: .* not finite.*, after 1 step left out in a row \(training\.skip\); "
        with pytest.warns(RuntimeWarning, match="left out"), pytest.raises(NonFinite, match=message):
            train(toy_recipe(tmp_path, *spoilt, "training.skip=1"), tmp_path / "less", progress=False)
        # what ends the run is not left out: a parameter that is not finite
        overflow = ("optimiser.lr=1e38", "optimiser.warmup=0", "training.skip=9")
        with pytest.raises(NonFinite, match="step 1: parameter "):
            train(toy_recipe(tmp_path, *overflow), tmp_path / "lost", progress=False)


def test_a_validation_loss_that_is_not_finite(tmp_path, monkeypatch):
    """If the parameters are finite, it is reported and training continues: evaluation may read data that training does
    not."""
    whole = train(toy_recipe(tmp_path), tmp_path / "whole", progress=False)
    found = iter([{"loss": math.nan, "accuracy": 0.0}])
    evaluate = loop.evaluate
    monkeypatch.setattr(loop, "evaluate", lambda *args, **kwargs: next(found, None) or evaluate(*args, **kwargs))
    with pytest.warns(RuntimeWarning, match="step 7: the validation loss is nan, every parameter is finite"):
        result = train(toy_recipe(tmp_path), tmp_path / "run", progress=False)
    assert result["test"]["last"] == whole["test"]["last"]
    first = next(one for one in Run(tmp_path / "run").records() if "val_loss" in one)
    assert math.isnan(first["val_loss"])
    assert '"val_loss": null' in Run(tmp_path / "run").log.read_text(encoding="utf-8")


def spoil(monkeypatch, owner, method):
    """From step 5 on, before this method, one number of head.weight is NaN."""
    original = getattr(owner, method)

    def spoiling(self, state, *rest):
        if state.step >= 5:
            state.params["head"]["weight"][1, 2] = np.nan
        return original(self, state, *rest)

    monkeypatch.setattr(owner, method, spoiling)


@pytest.mark.parametrize(
    ("owner", "method", "message"),
    [
        (Stepper, "advance", r"step 6: the loss is nan; parameter head\.weight \(group global\) is not finite"),
        (
            Trainer,
            "evaluate",
            r"step 7: the validation loss is nan; parameter head\.weight \(group global\) is not finite",
        ),
        (Trainer, "save", r"step 7: parameter head\.weight \(group global\) is not finite"),
    ],
)
def test_the_parameter_to_blame_is_named(tmp_path, monkeypatch, owner, method, message):
    spoil(monkeypatch, owner, method)
    with pytest.raises(NonFinite, match=message):
        train(toy_recipe(tmp_path), tmp_path / "run", progress=False)


def test_what_a_layer_refuses_is_told_with_its_step(tmp_path, monkeypatch):
    def refusing(self, params, inputs, ctx):
        if ctx.step == 3:
            raise ValueError("Layer: M is too large")
        return forward(self, params, inputs, ctx)

    forward = toy.ToyModel.forward
    monkeypatch.setattr(toy.ToyModel, "forward", refusing)
    with pytest.raises(NonFinite, match="step 4: Layer: M is too large; there is no checkpoint yet"):
        train(toy_recipe(tmp_path), tmp_path / "run", progress=False)


def test_a_real_layer_with_a_parameter_that_is_nan(tmp_path):
    recipe = load_recipe("digits-rotrnn", ["model.n_layers=1"])
    trainer = Trainer(recipe, Run(tmp_path), False)
    state = initial_state(trainer.model, recipe)
    state.params["blocks"]["0"]["layer"]["B"].flat[7] = np.nan
    with pytest.raises(NonFinite, match=r"step 1: parameter blocks\.0\.layer\.B \(group recurrent\) is not finite"):
        trainer.stepper.advance(state)


def test_a_second_moment_that_overflows_is_found_at_the_update():
    """The gradient is finite in float32, but its square is not; the parameter would not change from then on."""
    params = {"a": np.ones(3, np.float32)}
    moments = AdamW().init(params)
    with pytest.raises(NonFinite, match=r"second moment of a \(group global\) is not finite"):
        AdamW().update(params, {"a": np.full(3, 1e21, np.float32)}, moments, lambda name: "global", 0, 10)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.nan_at=0", "step 1: the loss is nan"),
        ("optimiser.lr=1e38", r"step 1: parameter blocks\.0\.layer\.scale \(group recurrent\) is not finite"),
    ],
)
def test_what_is_not_finite_at_once(tmp_path, override, message):
    with pytest.raises(NonFinite, match=f"{message}.*; there is no checkpoint yet"):
        train(toy_recipe(tmp_path, override, "optimiser.warmup=0"), tmp_path / "run", progress=False)
    assert not Run(tmp_path / "run").checkpoint("last").exists()


def limited(kibibytes, *arguments):
    """A run that may write so much to a file, as on a full disk."""
    command = ["bash", "-c", f'ulimit -f {kibibytes}; exec "$@"', "bash", sys.executable, TOY, "train", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.slow
def test_a_full_disk_stops_with_one_line_and_keeps_the_checkpoint(tmp_path):
    """The limit on file sizes allows the first checkpoints; later the log or a checkpoint exceeds it."""
    recipe = toy_recipe(tmp_path, "training.steps=100", "training.eval_every=5")
    (tmp_path / "run.toml").write_text(recipe.text(), encoding="utf-8")
    folder = tmp_path / "run"
    run = limited(4, tmp_path / "run.toml", "--out", folder)
    assert run.returncode == 2
    assert "rotrnn: error: " in run.stderr
    assert "File too large" in run.stderr
    assert "Traceback" not in run.stderr
    _, facts = read_checkpoint(folder / "last.safetensors")
    assert facts["step"] >= 5
    train(recipe, tmp_path / "straight", progress=False)
    train(recipe, folder, resume=True, progress=False)
    assert contents(folder) == contents(tmp_path / "straight")


def test_a_log_that_cannot_be_written_is_named_and_the_state_saved(tmp_path):
    """The log exceeds 2 KiB long before the next checkpoint; a checkpoint fits."""
    recipe = toy_recipe(tmp_path, "training.steps=100", "training.eval_every=1000")
    (tmp_path / "run.toml").write_text(recipe.text(), encoding="utf-8")
    folder = tmp_path / "run"
    run = limited(2, tmp_path / "run.toml", "--out", folder)
    assert run.returncode == 2
    assert "log not written (File too large); " in run.stderr
    assert "is saved, to be resumed" in run.stderr
    assert str(folder / "log.jsonl") in run.stderr
    train(recipe, tmp_path / "straight", progress=False)
    train(recipe, folder, resume=True, progress=False)
    assert contents(folder) == contents(tmp_path / "straight")


def test_neither_log_nor_checkpoint_can_be_written(tmp_path):
    trainer = Trainer(toy_recipe(tmp_path), Run(tmp_path / "absent"), False)
    full = OSError(28, "No space left on device")
    error = trainer.without_log(initial_state(trainer.model, trainer.recipe), [], full)
    assert "log not written (No space left on device); nor could the state after step 0 be saved" in str(error)
    assert str(tmp_path / "absent" / "log.jsonl") in str(error)


@pytest.mark.parametrize("seed", ["training.seed=1", "model.d_model=8"])
def test_a_foreign_best_is_refused(tmp_path, seed):
    train(toy_recipe(tmp_path), tmp_path / "run", progress=False)
    train(toy_recipe(tmp_path, seed), tmp_path / "other", progress=False)
    shutil.copy(tmp_path / "other" / "best.safetensors", tmp_path / "run" / "best.safetensors")
    with pytest.raises(ValueError, match=r"best\.safetensors: was written with another recipe"):
        Run(tmp_path / "run").load_params("best")


def test_a_run_from_before_a_setting_existed_goes_on(tmp_path, monkeypatch):
    """A newer version has one more setting, whose default changes nothing."""
    train(toy_recipe(tmp_path), tmp_path / "straight", progress=False)
    run = Run(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "advance", _interrupting(Stepper.advance, 20))
        with pytest.raises(Interrupted):
            train(toy_recipe(tmp_path), run.folder, progress=False)
    before = run.recipe.read_text(encoding="utf-8")

    @dataclass(frozen=True)
    class Newer(toy.Toy):
        grown: int = 3

    monkeypatch.setitem(TASKS, "toy", Newer)
    run.load_params("best")
    train(toy_recipe(tmp_path, "training.memory=least"), run.folder, resume=True, progress=False)
    after = run.recipe.read_text(encoding="utf-8")
    assert after == before.replace('memory = "auto"', 'memory = "least"')
    for name, array in flatten(Run(tmp_path / "straight").load_params("best")):
        np.testing.assert_array_equal(array, dict(flatten(run.load_params("best")))[name])
    with pytest.raises(ValueError, match=r"task\.grown is 4, expected 3 as in the run's recipe"):
        train(toy_recipe(tmp_path, "task.grown=4"), run.folder, resume=True, progress=False)
    run.recipe.write_text(after.replace("[model]", "grown = 4\n\n[model]"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"best\.safetensors: was written with another recipe"):
        run.load_params("best")


def _interrupting(advance, step):
    """Returns `advance`, with Ctrl-C in that step."""

    def advance_or_stop(self, *args):
        found = advance(self, *args)
        advance_or_stop.step += 1
        if advance_or_stop.step == step:
            signal.raise_signal(signal.SIGINT)
        return found

    advance_or_stop.step = 0
    return advance_or_stop


def test_parameters_of_another_shape_are_refused(tmp_path):
    train(toy_recipe(tmp_path), tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    like = run.load_params("best")
    assert run.load_params("last", like).keys() == like.keys()
    like["head"]["bias"] = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match=r"best\.safetensors: head\.bias has shape \(3,\)"):
        run.load_params("best", like)


def test_a_damaged_log_is_named(tmp_path):
    train(toy_recipe(tmp_path), tmp_path / "run", progress=False)
    (tmp_path / "run" / "log.jsonl").write_text('{"step": 1}\n{"stop": 2}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2: is damaged"):
        train(toy_recipe(tmp_path), tmp_path / "run", resume=True, progress=False)


def test_a_run_that_failed_before_its_first_checkpoint_is_resumed_from_the_start(tmp_path, monkeypatch):
    recipe = toy_recipe(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "advance", lambda *_: (_ for _ in ()).throw(OSError("no data")))
        with pytest.raises(OSError, match="no data"):
            train(recipe, tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match="resume it \\(from the start if it has no checkpoint yet\\)"):
        train(recipe, tmp_path / "run", progress=False)
    train(recipe, tmp_path / "run", resume=True, progress=False)
    train(recipe, tmp_path / "straight", progress=False)
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")


@pytest.mark.parametrize("error", [AttributeError, IndexError, KeyError, NotImplementedError, TypeError, ValueError])
@pytest.mark.parametrize(("place", "name"), [(Stepper, "gradients"), (Trainer, "state_norms")])
def test_a_run_that_does_not_fit_leaves_nothing(tmp_path, monkeypatch, error, place, name):
    """Where a layer refuses the first batch, the folder is free for another recipe."""
    mine, new = tmp_path / "mine" / "a.txt", tmp_path / "new"
    mine.parent.mkdir()
    mine.write_text("mine", encoding="utf-8")
    for folder in (mine.parent, new):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, lambda *_: (_ for _ in ()).throw(error("of another form")))
            with pytest.raises(error, match="of another form"):
                train(toy_recipe(tmp_path), folder, progress=False)
    assert not new.exists()
    assert {one.name for one in mine.parent.iterdir()} == {".lock", "a.txt"}
    train(toy_recipe(tmp_path), new, progress=False)


def test_a_folder_with_a_run_is_refused(tmp_path):
    recipe = toy_recipe(tmp_path)
    train(recipe, tmp_path / "run", progress=False)
    before = contents(tmp_path / "run")
    with pytest.raises(ValueError, match=r"run: already holds a run that is finished; more training\.steps extend it"):
        train(recipe, tmp_path / "run", progress=False)
    assert contents(tmp_path / "run") == before
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(ValueError, match=r"run: already holds a run \(recipe\.toml\); resume it"):
        train(recipe, tmp_path / "run", progress=False)


def test_another_recipe_is_refused(tmp_path):
    train(toy_recipe(tmp_path), tmp_path / "run", progress=False)
    other = toy_recipe(tmp_path, "training.steps=30")
    with pytest.raises(ValueError, match=r"training\.steps is 30, expected 40 as in the run's recipe"):
        train(other, tmp_path / "run", resume=True, progress=False)
    Run(tmp_path / "run").recipe.write_text(other.text(), encoding="utf-8")
    with pytest.raises(ValueError, match=r"last\.safetensors: was written with another recipe"):
        train(other, tmp_path / "run", resume=True, progress=False)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("task.data_dir=''", "layer.window=3", "layer.window is 3, expected unset"),
        ("layer.window=3", "layer.window=4", "layer.window is 4, expected 3"),
        ("task.data_dir=''", "optimiser.recurrent=['norm']", r"optimiser.recurrent is \('norm',\), expected unset"),
        ("task.data_dir=''", "task.data_dir=x", "data are generated here and read from files there, or vice versa"),
    ],
)
def test_another_recipe_by_a_setting_that_may_be_unset(tmp_path, before, after, message):
    there, here = (load_recipe("listops-lru-small", [one]) for one in (before, after))
    run = Run(tmp_path)
    run.write(run.recipe, there.text())
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path))}: .*{message}"):
        train(here, tmp_path, resume=True, progress=False)
    check_same(there, there, run)


def test_a_finished_run_goes_on_to_more_steps(tmp_path, capsys):
    """Its last state, its optimiser's and its log stay. It ends on the bytes of a run that has the recipe it leaves:
    the learning rate is that of a schedule over 40 steps up to the 40th, and then of one over 60."""
    run = Run(tmp_path / "run")
    train(toy_recipe(tmp_path), run.folder, progress=False)
    before, (old,) = run.records(), {one["steps"] for one in [run.read_json(run.result)]}
    more = toy_recipe(tmp_path, "training.steps=60")
    with pytest.raises(
        ValueError, match=r"layer\.d_state is 6, expected 4 as in the run's recipe.*; use another folder"
    ):
        train(toy_recipe(tmp_path, "training.steps=60", "layer.d_state=6"), run.folder, progress=False)
    with pytest.raises(ValueError, match=r"training\.steps is 39, expected 40; training\.seed is 1, expected 0 as in"):
        train(toy_recipe(tmp_path, "training.steps=39", "training.seed=1"), run.folder, progress=False)
    found = train(more, run.folder)
    assert (old, found["steps"]) == (40, 60)
    assert run.records()[: len(before)] == before
    rates = {one["step"]: one["lr"] for one in run.records() if "lr" in one}
    for step in (1, 40, 41, 60):
        assert rates[step] == learning_rate(step - 1, 40 if step <= 40 else 60, 0.05)
    said = f"the learning rate was {rates[40]:.3g} at the last step; the schedule over 60 begins here with"
    assert f"goes on from step 40 to 60: {said} {rates[41]:.3g}" in capsys.readouterr().out
    train(run.load_recipe(), tmp_path / "straight", progress=False)
    assert run.load_recipe().training.extended == (40,)
    assert contents(run.folder) == contents(tmp_path / "straight") | {"init.safetensors": ANY, "recipe.toml": ANY}
    for name in ("init", "best", "last"):
        run.load_params(name)
    train(more, run.folder, resume=True, progress=False)
    with pytest.raises(ValueError, match="already holds a run"):
        train(more, run.folder, progress=False)
    train(toy_recipe(tmp_path, "training.steps=61"), run.folder, progress=False)
    assert run.load_recipe().training.extended == (40, 60)


def test_a_run_that_goes_on_to_more_steps_may_be_killed(tmp_path, monkeypatch):
    """Also at once, when every checkpoint is still that of the shorter run."""
    more, run = toy_recipe(tmp_path, "training.steps=60"), Run(tmp_path / "run")
    for folder in (run.folder, tmp_path / "straight"):
        train(toy_recipe(tmp_path), folder, progress=False)
    train(more, tmp_path / "straight", progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "advance", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            train(more, run.folder, progress=False)
    assert run.status() == "unfinished"
    train(more, run.folder, resume=True, progress=False)
    assert contents(run.folder) == contents(tmp_path / "straight")


def test_patience_ends_a_run_that_went_on_where_it_is_evaluated(tmp_path, monkeypatch):
    """Also if its best score is of the last step of the shorter run, between two evaluations of a longer one."""
    run, evaluate = Run(tmp_path / "run"), loop.evaluate

    def scored(model, params, task, split, **how):
        before = run.records()[-1]["step"]
        return evaluate(model, params, task, split, **how) | {"accuracy": before / 20 if before < 20 else 0.0}

    monkeypatch.setattr(loop, "evaluate", scored)
    train(toy_recipe(tmp_path, "training.steps=20", "training.patience=2"), run.folder, progress=False)
    found = train(toy_recipe(tmp_path, "training.steps=90", "training.patience=2"), run.folder, progress=False)
    assert found["best_step"] == 20
    _, facts = read_checkpoint(run.checkpoint("last"))
    assert found["steps"] == facts["step"] == run.records()[-1]["step"]
    assert "val_loss" in run.records()[-1]


def test_a_run_whose_patience_ended_has_no_more_to_take(tmp_path):
    settings = ["training.patience=1", "training.eval_every=1", "optimiser.lr=3"]
    found = train(toy_recipe(tmp_path, *settings), tmp_path / "run", progress=False)
    assert found["steps"] < 40
    with pytest.raises(ValueError, match=rf"ended by training\.patience after step {found['steps']}, and has no more"):
        train(toy_recipe(tmp_path, *settings, "training.steps=60"), tmp_path / "run", progress=False)
    run, settings = Run(tmp_path / "exact"), ["training.patience=40", "training.eval_every=1"]
    train(toy_recipe(tmp_path, *settings), run.folder, progress=False)
    arrays, facts = read_checkpoint(run.checkpoint("last"))
    write_checkpoint(run.checkpoint("last"), arrays, facts | {"waited": 40})  # as if nothing had been better
    with pytest.raises(ValueError, match=r"ended by training\.patience after step 40, and has no more"):
        train(toy_recipe(tmp_path, *settings, "training.steps=60"), run.folder, progress=False)


def test_an_equal_score_is_the_best_but_no_improvement(tmp_path, monkeypatch):
    """Patience counts from the first of equal scores, in a resumed run too, and the last of them is kept. A checkpoint
    from before this was so counts from the best step."""
    run, evaluate = Run(tmp_path / "run"), loop.evaluate
    recipe = toy_recipe(tmp_path, "training.patience=2", "training.checkpoint_every=10")
    monkeypatch.setattr(loop, "evaluate", lambda *args, **how: evaluate(*args, **how) | {"accuracy": 0.5})
    result = train(recipe, run.folder, progress=False)
    assert (result["steps"], result["best_step"], result["best_score"]) == (21, 21, 0.5)
    whole = contents(run.folder)
    assert train(recipe, run.folder, resume=True, progress=False) == result
    stopped, advance = Run(tmp_path / "stopped"), Stepper.advance

    def until(self, state):
        if state.step == 15:
            raise OSError("killed")
        return advance(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "advance", until)
        with pytest.raises(OSError, match="killed"):
            train(recipe, stopped.folder, progress=False)
    shutil.copytree(stopped.folder, tmp_path / "old")
    train(recipe, stopped.folder, resume=True, progress=False)
    assert contents(stopped.folder) == whole
    old = Run(tmp_path / "old").checkpoint("last")
    arrays, facts = read_checkpoint(old)
    assert facts.pop("waited") == 1
    write_checkpoint(old, arrays, facts)
    assert train(recipe, old.parent, resume=True, progress=False)["steps"] == 28


@pytest.mark.parametrize("name", ["last", "best"])
def test_a_run_whose_checkpoint_is_damaged_or_missing_stays_finished(tmp_path, name):
    """It goes on once the checkpoint is there again."""
    run, more = Run(tmp_path / "run"), toy_recipe(tmp_path, "training.steps=60")
    train(toy_recipe(tmp_path), run.folder, progress=False)
    path, before = run.checkpoint(name), contents(run.folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=rf"{name}\.safetensors: is truncated"):
        train(more, run.folder, progress=False)
    path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=r"is missing although|there is no such file"):
        train(more, run.folder, progress=False)
    path.write_bytes(whole)
    assert contents(run.folder) == before
    assert train(more, run.folder, progress=False)["steps"] == 60


def test_no_path_is_no_start(tmp_path):
    with pytest.raises(ValueError, match=r"section \[training\]: init is '', expected the path of a run or a model"):
        toy_recipe(tmp_path, "training.init=")


@pytest.mark.parametrize("extended", ["[0]", "[40]", "[9, 9]", "[9, 8]"])
def test_earlier_ends_of_a_run_rise(tmp_path, extended):
    with pytest.raises(ValueError, match=r"section \[training\]: extended is .*, expected rising numbers from 1 to 39"):
        toy_recipe(tmp_path, f"training.extended={extended}")


def test_a_run_begins_with_the_parameters_of_another(tmp_path, capsys):
    """Of its best ones, in its own dtype; the optimiser is new. A head of another shape is drawn, and told of."""
    source, run = Run(tmp_path / "source"), Run(tmp_path / "run")
    train(toy_recipe(tmp_path), source.folder, progress=False)
    best = dict(flatten(source.load_params("best")))
    recipe = toy_recipe(tmp_path, f"training.init={source.folder}", "training.dtype=float64")
    train(recipe, run.folder)
    for name, array in flatten(run.load_params("init")):
        assert array.dtype == np.float64
        np.testing.assert_array_equal(array, best[name])
    assert f"training.init: 4 of 4 arrays from {source.folder}\n" in capsys.readouterr().out
    (session,) = run.read_json(run.sessions)
    names = [name for name, _ in flatten(run.load_params("init"))]
    assert sorted(names) == sorted(session["init"].pop("taken")) == sorted(best)
    assert session["init"] == {"path": str(source.folder), "new": [], "left": []}
    shutil.rmtree(source.folder)  # which is needed at the start alone
    train(recipe, run.folder, resume=True)
    assert "training.init" not in capsys.readouterr().out
    assert "init" not in run.read_json(run.sessions)[1]
    with pytest.raises(FileNotFoundError, match=r"^training\.init: .*source: there is no such file or folder"):
        train(recipe, tmp_path / "anew", progress=False)
    assert not (tmp_path / "anew" / "recipe.toml").exists()


def test_the_model_that_a_run_began_with_may_move(tmp_path):
    """It is read once, and a run that is resumed, or goes on to more steps, needs it no more. Another is refused."""
    for seed in (1, 2):
        source = toy_recipe(tmp_path, "training.steps=7", f"training.seed={seed}")
        train(source, tmp_path / f"old{seed}", progress=False)
    old = tmp_path / "old1"

    def recipe(path, steps):
        return toy_recipe(tmp_path, f"training.steps={steps}", f"training.init={path}")

    train(recipe(old, 7), tmp_path / "run", progress=False)
    shutil.copytree(tmp_path / "run", tmp_path / "straight")
    train(recipe(old, 14), tmp_path / "straight", progress=False)
    old.rename(tmp_path / "moved")
    other = tmp_path / "old2"
    with pytest.raises(ValueError, match=f"training.init is '{other}', expected '{old}' as in the run's recipe"):
        train(recipe(other, 14), tmp_path / "run", progress=False)
    with pytest.raises(FileNotFoundError, match=r"training\.init: .*none: there is no such file or folder"):
        train(recipe(tmp_path / "none", 14), tmp_path / "run", progress=False)
    train(recipe(tmp_path / "moved", 7), tmp_path / "run", resume=True, progress=False)
    train(recipe(tmp_path / "moved", 14), tmp_path / "run", progress=False)
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")


def test_a_path_of_parameters_is_relative_to_the_recipe(tmp_path):
    file = tmp_path / "fine.toml"
    file.write_text('base = "digits-lru"\n[training]\ninit = "model.safetensors"\n', encoding="utf-8")
    assert load_recipe(file).training.init == str(tmp_path / "model.safetensors")
    assert load_recipe(file, ["training.init=x"]).training.init == os.path.abspath("x")
    assert load_recipe("digits-lru").digest() != load_recipe(file).digest()


def small_model(n_classes, d_model=4):
    model = build_model(
        ModelSettings(layer="lru", d_model=d_model, n_layers=1),
        {"d_state": 4},
        head="classifier",
        n_classes=n_classes,
        n_features=1,
    )
    return model, model.init(np.random.default_rng(n_classes))


@pytest.mark.parametrize("form", ["model.safetensors", "folder"])
def test_a_saved_model_of_other_classes_gives_all_but_its_head(tmp_path, form):
    source, there = small_model(3)
    (source.save if "." in form else source.save_pretrained)(tmp_path / form, there)
    _, params = small_model(10)
    start = read_start(str(tmp_path / form), params)
    n = len(dict(flatten(params)))
    told = f"training.init: {n - 2} of {n} arrays from {tmp_path / form}; new: head.w (10, 4), head.bias (10,)"
    assert str(start) == f"{told}; left over: head.bias (3,), head.w (3, 4)"
    before = dict(flatten(small_model(10)[1]))
    start.give(params)
    for name, array in flatten(params):
        np.testing.assert_array_equal(array, before[name] if "head" in name else dict(flatten(there))[name])


def test_parameters_of_which_nothing_fits_are_refused(tmp_path):
    model, params = small_model(4, d_model=5)
    model.save(tmp_path / "model.safetensors", params)
    has = r"model\.safetensors has blocks\.0\.gate\..* \(\d+,.*\), .* and \d+ more"
    expected = (
        r"expected at least one array with the name and shape of one of the model's: blocks\.0\.layer\.scale \(4,\)"
    )
    with pytest.raises(ValueError, match=rf"^training\.init: .*{has}; {expected}"):
        train(toy_recipe(tmp_path, f"training.init={tmp_path}/model.safetensors"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_files_may_have_moved(tmp_path):
    """A run does not depend on the location of its data; and its two seeds are one configuration."""
    old, new = tmp_path / "old", tmp_path / "new"
    settings = ["training.steps=2", "training.eval_every=1", "model.n_layers=1", "model.d_model=4", "training.batch=4"]
    recipe = load_recipe("image-lru", [*settings, f"task.data_dir={old}"])
    recipe.task.stand_in(old, 8)
    with pytest.warns(UserWarning, match="not the whole published data set"):
        train(recipe, tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    before = run.read_json(run.result)
    run.result.unlink()
    old.rename(new)
    with pytest.raises(FileNotFoundError, match="no data in"):
        train(recipe, run.folder, resume=True, progress=False)
    moved = run.load_recipe([f"task.data_dir={new}"])
    with pytest.warns(UserWarning, match="not the whole published data set"):
        assert train(moved, run.folder, resume=True, progress=False) == before
    assert run.load_recipe() == moved  # for the next time


def test_relative_paths_hold_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ["training.steps=1", "model.n_layers=1", "model.d_model=4", "training.batch=4", "task.data_dir=data"]
    recipe = load_recipe("image-lru", settings)
    recipe.task.stand_in("data", 8)
    with pytest.warns(UserWarning, match="not the whole published data set"):
        train(recipe, "run", progress=False)
    assert Run(tmp_path / "run").load_recipe().task.data_dir == str(tmp_path / "data")
    assert Run(tmp_path / "run").load_recipe().digest() == recipe.digest()


def test_an_ended_run_without_its_checkpoint_is_not_begun_anew(tmp_path):
    recipe = toy_recipe(tmp_path)
    train(recipe, tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    run.checkpoint("last").unlink()
    before = run.log.read_bytes()
    with pytest.raises(ValueError, match=r"last\.safetensors: is missing although the run has ended"):
        train(recipe, run.folder, resume=True, progress=False)
    assert run.log.read_bytes() == before
    run.result.unlink()
    train(recipe, run.folder, resume=True, progress=False)
    assert run.checkpoint("last").exists()


def test_a_log_with_missing_steps_is_reported(tmp_path):
    recipe = toy_recipe(tmp_path)
    train(recipe, tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    run.result.unlink()
    lines = run.log.read_text(encoding="utf-8").splitlines(keepends=True)
    run.log.write_text("".join(lines[4:]), encoding="utf-8")  # without the norms of step 0 and three steps
    with pytest.warns(UserWarning, match=r"log\.jsonl: tells 37 of 40 steps, the others are lost"):
        train(recipe, run.folder, resume=True, progress=False)


def test_nothing_to_resume(tmp_path):
    with pytest.raises(ValueError, match="is not the folder of a run"):
        train(toy_recipe(tmp_path), tmp_path / "empty", resume=True, progress=False)


def test_a_damaged_checkpoint_is_not_resumed(tmp_path):
    train(toy_recipe(tmp_path), tmp_path / "run", progress=False)
    last = Run(tmp_path / "run").checkpoint("last")
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"last\.safetensors: is truncated"):
        train(toy_recipe(tmp_path), tmp_path / "run", resume=True, progress=False)


def test_the_best_checkpoint_is_missed_at_once(tmp_path):
    recipe = toy_recipe(tmp_path)
    train(recipe, tmp_path / "run", progress=False)
    Run(tmp_path / "run").checkpoint("best").unlink()
    with pytest.raises(FileNotFoundError, match=r"no such file; .* --checkpoint last: .*best\.safetensors"):
        train(recipe, tmp_path / "run", resume=True, progress=False)


def test_two_processes_in_one_folder(tmp_path):
    recipe = toy_recipe(tmp_path, "task.delay=0.1")
    (tmp_path / "run.toml").write_text(recipe.text(), encoding="utf-8")
    process = start(tmp_path / "run.toml", "--out", tmp_path / "run", hold=20)
    wait_for_step(tmp_path / "run", 1)
    with pytest.raises(ValueError, match="another process is training here"):
        train(recipe, tmp_path / "run", resume=True, progress=False)
    process.kill()
    process.communicate()


def test_a_batch_larger_than_the_data(tmp_path):
    with pytest.raises(ValueError, match=r"training\.batch is 100, expected at most the 70 examples"):
        train(toy_recipe(tmp_path, "training.batch=100"), tmp_path / "run", progress=False)
    train(toy_recipe(tmp_path), tmp_path / "run", progress=False)  # nothing is in the way of the next try
