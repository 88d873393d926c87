"""Recipes: all recipes of the package can be built, and errors name every mistake in a recipe."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest

import toy
from rotrnn._support.toml import from_toml
from rotrnn.models.build import make_layer
from rotrnn.nn.layer import flatten, is_parameter
from rotrnn.nn.registry import LAYERS
from rotrnn.tasks import TASKS, Digits, ListOps
from rotrnn.training.optimiser import describe_groups
from rotrnn.training.recipe import (
    Training,
    change,
    load_recipe,
    parse_value,
    read_recipe,
    recipe_names,
    recipe_tables,
    write_toml,
)


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_builds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en-valid-10k").mkdir()  # catbAbI counts the words of its files
    for part in ("train", "valid", "test"):
        (tmp_path / "en-valid-10k" / f"qa1_{part}.txt").write_text(2 * "1 Where?\there\t1\n", encoding="utf-8")
    recipe = load_recipe(name)
    model = recipe.build(recipe.task.shape)
    params = model.init(np.random.default_rng(0))
    assert len(params["blocks"]) == recipe.model.n_layers
    assert any(text for text in vars(recipe.source).values())
    optimiser = recipe.optimiser
    groups = describe_groups(optimiser, params, optimiser.grouping(model.is_recurrent), recipe.training.steps)
    names = [name for group in groups for name in group.parameters]
    assert sorted(names) == sorted(name for name, _ in flatten(params) if is_parameter(name))
    assert max(max(group.lr) for group in groups) == optimiser.lr  # no warm-up is longer than the training
    assert recipe.training.eval_every <= recipe.training.steps


def written(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder


BASE = """
[task]
name = "digits"
[model]
layer = "lru"
d_model = 8
n_layers = 1
[layer]
d_state = 4
[training]
batch = 4
steps = 7
[small]
"training.steps" = 2
"layer.d_state" = 2
"sweep.seeds" = [5]
[sweep]
seeds = [0, 1]
"""


def test_a_base_is_changed_key_by_key(tmp_path):
    written(tmp_path, a=BASE, b='base = "a.toml"\n[training]\nsteps = 9\n[layer]\nr_max = 0.5')
    recipe = load_recipe(tmp_path / "b.toml")
    assert (recipe.training.steps, recipe.training.batch) == (9, 4)
    assert (recipe.layer.d_state, recipe.layer.r_max) == (4, 0.5)
    assert "sweep" not in recipe_tables(tmp_path / "b.toml")
    assert recipe_tables(tmp_path / "b.toml")["small"] == {"training.steps": 2, "layer.d_state": 2}


def test_another_layer_or_task_starts_its_section_anew(tmp_path):
    written(
        tmp_path,
        a=BASE,
        b='base = "a.toml"\n[layer]\nd_state = 6\nheads = 3\n[model]\nlayer = "rotrnn"',
        c='base = "b.toml"\n[task]\nname = "listops"\ntrain = 5\n',
    )
    recipe = load_recipe(tmp_path / "b.toml")
    assert (recipe.layer.d_state, recipe.layer.heads, recipe.model.d_model) == (6, 3, 8)
    assert recipe_tables(tmp_path / "b.toml")["small"] == {"training.steps": 2}
    assert load_recipe(tmp_path / "c.toml").task == ListOps(train=5)
    changed = load_recipe(tmp_path / "a.toml", ["layer.d_state=8", "layer.heads=2", "model.layer=rotrnn"])
    assert (changed.layer.d_state, changed.layer.heads) == (8, 2)
    with pytest.warns(UserWarning, match=r"b.toml: another model.layer drops .* the old one: layer.heads$"):
        load_recipe(tmp_path / "b.toml", ["model.layer=lru", "layer.d_state=2"])
    with pytest.warns(UserWarning, match=r"c.toml: another task.name drops .* the old one: task.train$"):
        load_recipe(tmp_path / "c.toml", ["task.name=digits"])
    assert load_recipe(tmp_path / "a.toml", ["model.layer=lru"]).layer.d_state == 4  # the same one keeps its settings


def test_a_file_that_names_another_layer_and_does_not_describe_it_is_warned(tmp_path, recwarn):
    """In the recipe itself, and in its small variant, whose settings of the layer were the base's."""
    base = 'base = "a.toml"\n[model]\nlayer = "attention"\n'
    written(tmp_path, a=BASE, b=base, c=base + "[layer]\nheads = 2\n")
    with pytest.warns(UserWarning, match=r"b.toml: another model.layer drops .*: layer.d_state, small.layer.d_state$"):
        load_recipe(tmp_path / "b.toml")
    with pytest.warns(UserWarning, match=r"c.toml: another model.layer drops .*: small.layer.d_state$"):
        load_recipe(tmp_path / "c.toml")
    written(tmp_path, f='base = "a.toml"\n[model]\nlayer = "mamba2"\n')
    with pytest.raises(ValueError, match=r"f.toml: another model.layer drops layer.d_state, which the new one has as"):
        load_recipe(tmp_path / "f.toml")
    recwarn.clear()
    described = "[layer]\nheads = 2\n"
    written(tmp_path, d=base + described + '[small]\n"layer.heads" = 1\n')
    written(tmp_path, e=base.replace("a.toml", "a-small.toml") + described)
    for name in ("d", "d-small", "e", "e-small"):
        assert load_recipe(tmp_path / f"{name}.toml").layer.heads == (1 if name == "d-small" else 2)
    assert not recwarn


@pytest.mark.parametrize("name", recipe_names())
def test_no_recipe_of_the_package_drops_settings_in_silence(name, recwarn):
    recipe_tables(name)
    assert not recwarn


def test_a_file_has_a_small_variant_too(tmp_path):
    written(tmp_path, a=BASE, b='base = "a-small.toml"')
    assert load_recipe(tmp_path / "a-small.toml").training.steps == 2
    assert load_recipe(tmp_path / "b.toml").training.steps == 2
    assert load_recipe(tmp_path / "b-small.toml").layer.d_state == 2
    with pytest.raises(FileNotFoundError):
        load_recipe(tmp_path / "c-small.toml")


def test_small_is_the_same_with_changes():
    whole, small = load_recipe("listops-rotrnn"), load_recipe("listops-rotrnn-small")
    assert (whole.model.d_model, small.model.d_model) == (128, 64)
    assert small.source == dataclasses.replace(whole.source, small=True)
    assert "listops-rotrnn-small" in recipe_names()
    with pytest.raises(ValueError, match=r"recipe is 'digits-lru-small', .*did you mean digits-lru\?"):
        load_recipe("digits-lru-small")


@pytest.mark.parametrize(
    ("a", "b"), [("a.toml", BASE), ("b.toml", 'base = "a.toml"'), ("../x/a.toml", BASE), ("a-small.toml", BASE)]
)
def test_no_recipe_is_its_own_base(tmp_path, a, b):
    (tmp_path / "x").mkdir()
    written(tmp_path / "x", a=f'base = "{a}"', b=b)
    with pytest.raises(ValueError, match=r"a\.toml: .*base is '.*a\.toml', which is based on this recipe"):
        load_recipe(tmp_path / "x" / "a.toml")


def test_a_base_that_is_not_there_is_named_with_its_recipe(tmp_path):
    written(tmp_path, a='base = "none.toml"')
    with pytest.raises(ValueError, match=r"a\.toml: base is 'none\.toml', which cannot be read: .*No such file"):
        load_recipe(tmp_path / "a.toml")


@pytest.mark.parametrize("small", ["", "-small"])
def test_a_chain_of_bases_is_short(tmp_path, small):
    """Each file is read once, whether whole or small: the chain of 1,499 is refused at once."""
    chain = {f"c{i}": f'base = "c{i + 1}{small}.toml"\n[small]\n"training.steps" = {i + 1}' for i in range(1499)}
    written(tmp_path, **chain)
    with pytest.raises(
        ValueError, match=r"c0\.toml: .*base is '.*c9.*toml', after 8 others; expected a chain of at most 8"
    ):
        load_recipe(tmp_path / f"c0{small}.toml")
    written(tmp_path, c8=BASE)
    assert load_recipe(tmp_path / f"c0{small}.toml").training.steps == (1 if small else 7)


def test_limits_of_toml():
    assert from_toml("a." * 30 + "a = [1]")  # 32 with the table of the whole text
    assert from_toml("a = [" + "0.5, " * 256 + "]")
    for text, message in (
        ("a." * 31 + "a = [1]", "nested more than 32 deep"),
        ("a = " + "{a = " * 2000 + "1" + "}" * 2000, "nested more than 32 deep"),
        ("[[" + "a." * 40 + "b]]", "nested more than 32 deep"),
        ("a = 1\nb = [" + "0.5, " * 257 + "]", "line 2 has 257 dots, expected at most 256"),
        ("#" * (2**18 + 1), "has 262145 characters, expected at most 262144"),
        ("a = " + "1" * 5000, "Exceeds the limit"),
    ):
        with pytest.raises(ValueError, match=f"not valid TOML: .*{message}"):
            from_toml(text)
    with pytest.raises(ValueError, match="is nested more than 32 deep"):
        load_recipe("digits-rotrnn", ["layer." + "a." * 40 + "b=1"])


def test_a_published_figure_is_not_that_of_another_layer_or_task(tmp_path):
    base = 'base = "listops-lru-small"\n'
    written(
        tmp_path,
        same=base + '[layer]\nr_max = 0.5\n[task]\nname = "listops"\n',
        layer=base + '[model]\nlayer = "rnn"\n[layer]\nd_state = 8\n',
        task=base + '[task]\nname = "digits"\n',
        own=base + '[source]\naccuracy = "9 %"\n[task]\nname = "digits"\n',
    )
    published = load_recipe("listops-lru").source.accuracy
    sources = {name: load_recipe(tmp_path / f"{name}.toml").source for name in ("same", "layer", "task", "own")}
    assert {name: source.accuracy for name, source in sources.items()} == {
        "same": published, "layer": "", "task": "", "own": "9 %",
    }  # fmt: skip
    assert published.startswith("60.2 %")
    assert sources["same"].small
    assert load_recipe("listops-lru", ["layer.r_max=0.5"]).source.accuracy == published
    for changes in (["model.layer=s4d", "layer.d_state=8"], ["task.name=digits"]):
        assert load_recipe("listops-lru", changes).source.accuracy == ""


def test_another_layer_or_task_drops_nothing_that_it_has_as_well():
    """It would run at the default's size, in a table beside those of the recipe's."""
    lost = "another model.layer drops layer.d_state, layer.dt_min, layer.dt_max, which the new one has as well"
    with pytest.raises(
        ValueError, match=f"digits-mamba: {lost}; expected 3 values for it, layer.d_state=..., layer.dt"
    ):
        load_recipe("digits-mamba", ["model.layer=mamba2"])
    with pytest.raises(ValueError, match=r"layer.d_state is missing, .*; another model.layer drops layer.d_state$"):
        load_recipe("digits-lru", ["model.layer=s5"])
    named = ["layer.d_state=8", "layer.dt_min=0.01", "layer.dt_max=0.1"]
    assert load_recipe("digits-mamba", ["model.layer=mamba2", *named]).layer.d_state == 8
    with pytest.raises(ValueError, match=r"word-problem: another task.name drops task.length, which the new one has"):
        load_recipe("word-problem", ["task.name=delayed_copy"])
    with pytest.warns(UserWarning, match="word-problem: another task.name drops settings of the old one: task.gr"):
        assert load_recipe("word-problem", ["task.name=delayed_copy", "task.length=9"]).task.length == 9


def test_what_there_is_is_listed_once():
    with pytest.raises(ValueError, match=r"recipe is 'xyz', .*; expected one of") as caught:
        load_recipe("xyz")
    assert str(caught.value).count("digits-lru,") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = 3\n[model]\nlayer = "lru"', "base is 3, expected the name of a recipe"),
        ('base = "nothing"', "recipe is 'nothing', .*; expected one of"),
        ("model = 3", r"model is 3, expected a section \[model\]"),
    ],
)
def test_mistakes_in_files(tmp_path, text, message):
    written(tmp_path, a=text)
    with pytest.raises(ValueError, match=rf"a\.toml: .*{message}"):
        load_recipe(tmp_path / "a.toml")


def test_an_override_may_lead_into_a_table():
    tables = {"layer": {"inner": {"tol": 1.0}}}
    change(tables, [("layer.inner.tol", 0.5), ("layer.inner.more.key", 2), ("task.seed", 3)])
    assert tables == {"layer": {"inner": {"tol": 0.5, "more": {"key": 2}}}, "task": {"seed": 3}}
    with pytest.raises(ValueError, match=r"'layer\.d_state\.x': layer\.d_state is not a section"):
        load_recipe("digits-lru", ["layer.d_state.x=1"])


def test_published_settings():
    """RotRNN, table 3, and LRU, tables 8 and 9, columns ListOps."""
    rotrnn, lru = load_recipe("listops-rotrnn"), load_recipe("listops-lru")
    for recipe in (rotrnn, lru):
        assert recipe.task == ListOps()
        assert (recipe.model.d_model, recipe.model.n_layers, recipe.layer.d_state) == (128, 6, 256)
        assert (recipe.model.norm, recipe.model.glu, recipe.model.dropout, recipe.model.pool) == (
            "batch", "full", 0.0, "mean",
        )  # fmt: skip
        assert (recipe.training.batch, recipe.training.steps) == (32, 80_000)
        assert (recipe.optimiser.weight_decay, recipe.optimiser.warmup) == (0.05, 0.1)
    assert (rotrnn.optimiser.lr, rotrnn.optimiser.recurrent_factor) == (1e-3, 1.0)
    assert rotrnn.layer.heads == 32
    assert rotrnn.layer.gamma_init == (0.5, 0.999)
    assert rotrnn.layer.theta_max == math.pi / 100
    assert (lru.optimiser.lr, lru.optimiser.recurrent_factor) == (3e-3, 0.5)
    assert (lru.layer.r_min, lru.layer.r_max, lru.layer.max_phase) == (0.0, 0.99, 2 * math.pi)


@pytest.mark.parametrize("name", recipe_names())
def test_a_resolved_recipe_reads_back_as_itself(name):
    recipe = load_recipe(name)
    again = read_recipe(tomllib.loads(recipe.text()))
    assert again == recipe
    assert again.text() == recipe.text()
    assert again.digest() == recipe.digest()


def test_the_digest_is_of_all_that_matters():
    recipe = load_recipe("digits-rotrnn")
    assert load_recipe("digits-rotrnn", ["source.note=other"]).digest() == recipe.digest()
    for override in ("training.seed=1", "layer.heads=4", "task.seed=1", "optimiser.eps=1e-9", "model.glu=half1"):
        assert load_recipe("digits-rotrnn", [override]).digest() != recipe.digest()


def test_toml_writer_round_trip():
    tables = {
        "plain": {"int": -3, "big": 2**62, "yes": True, "no": False, "list": [1, 2], "floats": [0.1, 1e-7, 2.0]},
        "floats": {"tiny": 1e-300, "huge": 1e300, "third": 1 / 3, "whole": 5.0, "zero": -0.0},
        "texts": {"empty": "", "odd": '"quoted", a \\, a\nline\tand \x7f \x01 π 🎲', "toml": "x = [1]  # text"},
    }
    again = tomllib.loads(write_toml(tables))
    assert again == tables
    assert type(again["floats"]["whole"]) is float


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),
        ("true", True),
        ("[0.5, 0.9]", [0.5, 0.9]),
        ('"a b"', "a b"),
        ("float64", "float64"),
        ("data/my files", "data/my files"),
        ("1 # one", 1),
        ("1\nother = 2", "1\nother = 2"),
        ("", ""),
    ],
)
def test_values_of_overrides(text, value):
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_recipes_and_overrides_as_dicts(tmp_path, monkeypatch):
    """What a file in the working directory would be, with numbers of NumPy as well; the dict stays as it is."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, base='base = "digits-lru"\n[optimiser]\nclip = 2.0')
    tables = {"base": "base.toml", "training": {"steps": np.int64(7)}, "layer": {"r_min": np.float32(0.5)}}
    recipe = load_recipe(tables, {"training.seed": 3, "layer.d_state": 8})
    assert tables == {"base": "base.toml", "training": {"steps": 7}, "layer": {"r_min": 0.5}}
    assert (recipe.training.steps, recipe.training.seed, recipe.layer.d_state, recipe.layer.r_min) == (7, 3, 8, 0.5)
    assert recipe.optimiser.clip == 2.0
    assert load_recipe(recipe.tables()) == recipe
    (tmp_path / "mine.toml").write_text(recipe.text(), encoding="utf-8")
    assert load_recipe("mine.toml") == recipe
    assert load_recipe("digits-lru", {"training.steps": 7}) == load_recipe("digits-lru", ["training.steps=7"])


DEEP: dict = {}
DEEP["layer"] = DEEP


@pytest.mark.parametrize(
    ("tables", "overrides", "message"),
    [
        ({}, (), "recipe: task.name is missing, expected one of"),
        ({"base": 3}, (), "recipe: base is 3, expected the name of a recipe"),
        ({"base": "digits-lru", "training": {"stepps": 7}}, (), "recipe: unknown key training.stepps; did you mean st"),
        (
            {"base": "digits-lru", "training": {"steps": None}},
            (),
            "recipe: training.steps is None, expected an int",
        ),
        ({"base": "digits-lru", "training": {3: 7}}, (), "recipe: key 3 is an int, expected a text"),
        ({"base": "digits-lru"}, {"steps": 7}, "recipe: 'steps': expected section.key, such as training.steps"),
        ("digits-lru", {"training.steps": "7"}, "digits-lru: training.steps is '7', expected an integer"),
        (DEEP, (), "recipe: nested more than 32 deep"),
    ],
    ids=str,
)
def test_mistakes_in_dicts(tables, overrides, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        load_recipe(tables, overrides)


def test_overrides(tmp_path):
    recipe = load_recipe(
        "digits-rotrnn",
        [
            "training.steps=7",
            "layer.gamma_init=[0.1, 0.2]",
            "training.dtype=float64",
            "task.seed=3",
            "optimiser.clip=1",
        ],
    )
    assert (recipe.training.steps, recipe.training.dtype, recipe.optimiser.clip) == (7, "float64", 1.0)
    assert type(recipe.optimiser.clip) is float
    assert recipe.layer.gamma_init == (0.1, 0.2)
    assert recipe.task == Digits(seed=3)
    path = tmp_path / "mine.toml"
    path.write_text(recipe.text(), encoding="utf-8")
    assert load_recipe(path) == recipe


def test_a_history_of_both_directions_names_the_two_settings():
    message = r"section \[layer\]: StoredHistory: LRU has bidirectional=True, expected False: StoredHistory"
    with pytest.raises(ValueError, match=message):
        load_recipe("digits-lru", ["layer.bidirectional=true", "layer.history.length=3"])


@pytest.mark.parametrize("none", ["none", "None"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.class_weights", "balanced"),
        ("training.patience", 3),
        ("training.init", "model.safetensors"),
        ("layer.window", 8),
        ("layer.history", {"length": 3}),
        ("layer.history.window", 8),
        ("model.norm_eps", 1e-3),
    ],
)
def test_none_unsets_a_key(tmp_path, key, value, none):
    """TOML has no None, and a key of a base cannot be left out."""
    around = {"layer.history.length": 3} if key == "layer.history.window" else {}
    without, base = load_recipe("digits-lru", around), load_recipe("digits-lru", {**around, key: value})
    assert base != without
    (tmp_path / "base.toml").write_text(base.text(), encoding="utf-8")
    assert load_recipe(tmp_path / "base.toml", [f"{key}={none}"]) == without
    section, name = key.split(".", 1)
    if not around:
        (tmp_path / "own.toml").write_text(f'base = "base.toml"\n[{section}]\n{name} = "{none}"\n', encoding="utf-8")
        assert load_recipe(tmp_path / "own.toml") == without


@pytest.mark.parametrize("text", ["True", "False", "true", "false"])
@pytest.mark.parametrize("name", ["digits-lru", "digits-mamba"])  # its own setting, and two layers around it
def test_truth_values_as_python_and_toml_write_them(name, text):
    """`rotrnn info` prints the defaults of settings as Python does."""
    keys = ("training.packed", "layer.bidirectional")
    expected = load_recipe(name, dict.fromkeys(keys, text.lower() == "true"))
    assert load_recipe(name, [f"{key}={text}" for key in keys]) == expected


MISTAKES = [
    # sections and keys
    ("trainig.steps=3", r"unknown section \[trainig\]; did you mean training\?"),
    ("sweep.seeds=3", r"unknown section \[sweep\]"),
    ("small.x=1", r"unknown section \[small\]"),
    ("base.x=1", r"unknown section \[base\]"),
    ("xyz.steps=3", r"unknown section \[xyz\]; expected one of task, model, layer, optimiser, training, source"),
    ("training.stepz=3", r"unknown key training\.stepz; did you mean steps\?"),
    ("optimiser.learning_rate=3", r"unknown key optimiser\.learning_rate; expected one of lr, "),
    ("optimiser.weight_decy=3", r"did you mean weight_decay\?"),
    ("layer.head=3", r"unknown key layer\.head; did you mean heads\?"),
    ("layer.r_max=0.9", r"unknown key layer\.r_max"),
    ("layer.bidirectional=maybe", r"layer\.bidirectional is 'maybe', expected true or false"),
    ("layer.history=3", r"section \[layer\]: RotRNN: history=3, expected a dict of settings of StoredHistory"),
    ("layer.history.read=sum", r"layer\.history\.length is missing, expected an integer"),
    ("layer.history.lenght=3", r"unknown key layer\.history\.lenght; did you mean length\?"),
    ("layer.history={length=3, heads=9}", r"section \[layer\]: StoredHistory: heads=9, expected a divisor"),
    (
        "layer.history={length=3, window='some'}",
        r"layer\.history\.window is 'some', expected an integer or none$",
    ),
    ("layer.d_model=3", r"layer\.d_model cannot be set: the layer's width is model\.d_model"),
    ("task.sede=3", r"unknown key task\.sede; did you mean seed\?"),
    ("task.name=digit", r"task\.name is 'digit', expected one of listops, digits.*; did you mean digits\?"),
    ("task.name=3", r"task\.name is 3, expected one of"),
    ("model.layer=lrru", r"model.*layer.*lrru.*expected one of rotrnn, lru"),
    # types
    ('training.steps="many"', r"training\.steps is 'many', expected an integer"),
    ("training.steps=3.0", r"training\.steps is 3\.0, expected an integer"),
    ("training.steps=true", r"training\.steps is True, expected an integer"),
    ("optimiser.lr=fast", r"optimiser\.lr is 'fast', expected a finite number"),
    ("optimiser.lr=nan", r"optimiser\.lr is nan, expected a finite number"),
    ("optimiser.lr=inf", r"optimiser\.lr is inf, expected a finite number"),
    (f"optimiser.lr=1{400 * '0'}", r"optimiser\.lr is 10+, expected a finite number"),
    ("optimiser.lr=true", r"optimiser\.lr is True, expected a finite number"),
    ("optimiser.betas=0.9", r"optimiser\.betas is 0\.9, expected a list of 2, each of it a finite number$"),
    ("optimiser.betas=[0.9]", r"optimiser\.betas is \[0\.9\], expected a list"),
    ("optimiser.betas=[0.9, 'x']", r"optimiser\.betas\[1\] is 'x', expected a finite number"),
    ("model.dropout_over_time=1", r"model\.dropout_over_time is 1, expected true or false"),
    ("model.norm=1", r"model\.norm is 1, expected a text"),
    ("layer.heads=[1]", r"layer\.heads is \[1\], expected an integer"),
    # ranges
    ("training.steps=-3", r"section \[training\]: steps is -3, expected an integer from 1"),
    ("training.batch=0", r"section \[training\]: batch is 0, expected an integer from 1"),
    ("training.accumulate=33", r"section \[training\]: accumulate is 33, expected an integer from 1 to 32"),
    ("training.seed=-1", r"section \[training\]: seed is -1"),
    ("training.dtype=float16", r"section \[training\]: dtype is 'float16', expected 'float32' or 'float64'"),
    ("model.dropout=1.0", r"section \[model\]: .*dropout.*1\.0"),
    ("model.n_layers=0", r"section \[model\]: .*n_layers.*0"),
    ("model.norm=bach", r"section \[model\]: .*norm.*bach.*expected one of"),
    ("layer.heads=7", r"section \[layer\]: .*heads=7"),
    ("layer.d_state=-8", r"section \[layer\]: RotRNN: d_state=-8, expected a positive integer"),
    ("layer.d_state=0", r"section \[layer\]: RotRNN: d_state=0"),
    ("layer.theta_max=-1", r"section \[layer\]: RotRNN: theta_max=-1\.0"),
    ("layer.gamma_init=[0.9, 0.1]", r"section \[layer\]: .*gamma_init"),
    ("optimiser.lr=0", r"section \[optimiser\]: AdamW: lr is 0\.0, expected a positive number"),
    ("optimiser.clip=-1", r"section \[optimiser\]: AdamW: clip is -1\.0"),
    ("optimiser.warmup=-0.1", r"section \[optimiser\]: AdamW: warmup is -0\.1"),
    ("optimiser.betas=[0.9, 1.0]", r"section \[optimiser\]: AdamW: betas is \(0\.9, 1\.0\)"),
    ("task.test_fraction=2", r"section \[task\]: .*test_fraction"),
    # the form of an override
    ("steps=3", r"overrides steps=3: expected section\.key=value"),
    ("training.steps", r"overrides training\.steps: expected section\.key=value"),
]


@pytest.mark.parametrize(("override", "message"), MISTAKES)
def test_mistakes(override, message):
    with pytest.raises(ValueError, match=message):
        load_recipe("digits-rotrnn", [override])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"task\.name is missing, expected one of"),
        ("[task", "not valid TOML: "),
        ("task = 3", r"task is 3, expected a section \[task\]"),
        (toy.RECIPE.replace("steps = 40\n", ""), r"training\.steps is missing, expected an integer"),
        (toy.RECIPE.replace("d_model = 4\n", ""), r"model\.d_model is missing, expected an integer"),
        (toy.RECIPE.replace("[training]", "[train]"), r"unknown section \[train\]; did you mean training\?"),
    ],
)
def test_mistakes_in_a_file(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"mine\.toml: {message}"):
        load_recipe(path)


def test_no_such_recipe(tmp_path):
    with pytest.raises(ValueError, match=r"recipe is 'listops-lur', .*\.toml file; did you mean listops-lru\?"):
        load_recipe("listops-lur")
    with pytest.raises(FileNotFoundError):
        load_recipe(tmp_path / "absent.toml")
    for folder in (tmp_path, "/"):
        with pytest.raises(
            ValueError, match=rf"^recipe is '{re.escape(str(folder))}', a folder, expected a name or a \.toml file$"
        ):
            load_recipe(folder)


@dataclasses.dataclass(frozen=True)
class Filed:
    path: str = "x.npy"


def test_the_default_path_of_a_task_is_the_same_file_in_the_folder_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "filed", Filed)
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("digits-lru", ["task.name=filed"])
    assert recipe.task.path == str(tmp_path / "x.npy")
    (tmp_path / "run").mkdir()
    written(tmp_path / "run", recipe=recipe.text())
    again = load_recipe(tmp_path / "run" / "recipe.toml")
    assert again.task == recipe.task
    assert again.digest() == recipe.digest()


def test_a_run_is_read_whatever_the_locale_takes_text_for(tmp_path):
    (tmp_path / "recipe.toml").write_bytes(load_recipe("listops-lru", ["task.data_dir=d\u00e2ta"]).text().encode())
    code = "import sys; from pathlib import Path; from rotrnn.training.run import Run; run = Run(Path(sys.argv[1])); "
    code += "print(ascii(run.load_recipe().task.data_dir), ascii(run._stated()['task']['data_dir']))"
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # ASCII
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=env)
    assert done.stdout == "'d\\xe2ta' 'd\\xe2ta'\n", done.stderr


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b'\xef\xbb\xbfbase = "digits-lru"\n[training]\nsteps = 3\n')
    assert load_recipe(path).training.steps == 3


def removed(layer, **settings):
    """The sections of a run from before settings were removed, as its file has them, where it has them all."""
    tables = load_recipe({"base": "digits-" + layer}).tables()
    kept = {key: value for key, value in tables["layer"].items() if value is not None}
    return tables | {"layer": kept | settings}


def test_files_from_before_a_setting_was_removed():
    """They are read where they have what is left, and keep their digest: the setting is written again, in its place."""
    stated = removed("selective_rotrnn", gamma_spread=0.5, site=3)
    recipe = read_recipe(stated)
    assert recipe == load_recipe("digits-selective_rotrnn")
    assert recipe.text(stated) == write_toml(stated)
    assert recipe.digest(stated) != recipe.digest()
    for layer, settings, message in (
        ("selective_rotrnn", {"window": 3}, "unknown key layer.window"),
        ("selective_rotrnn", {"gamma": "random"}, "gamma='random', expected one of constant, input"),
        ("mamba", {"window": 3}, "unknown key layer.window"),
    ):
        with pytest.raises(ValueError, match=message):
            read_recipe(removed(layer, **settings))
    # build_model refused what recipes and files take
    assert make_layer("mamba", 8, {"d_state": 4, "window": None}) == LAYERS["mamba"](8, 4)
    with pytest.raises(ValueError, match="Mamba: unknown setting 'window'"):
        make_layer("mamba", 8, {"d_state": 4, "window": 3})


def test_settings_of_training_are_held_to_their_types():
    """Others raised a TypeError of a comparison, or were taken."""
    given = Training(batch=np.int64(2), steps=3, label_smoothing=0, class_weights=[1, 2.5])
    assert repr(given) == repr(Training(2, 3, label_smoothing=0.0, class_weights=(1.0, 2.5)))
    for name, value in (("batch", 2.5), ("batch", "a"), ("packed", "no"), ("memory", True), ("extended", 3)):
        with pytest.raises(ValueError, match=f"^Training: {name}={value!r}, expected "):
            Training(**{"batch": 1, "steps": 3, name: value})
