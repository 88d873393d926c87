"""Recipes of published runs have the settings of the papers' tables and the released scripts."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import numpy as np
import pytest

from rotrnn.nn.layer import flatten, is_parameter, unflatten
from rotrnn.tasks import AAN, CIFAR, IMDB, ListOps, Pathfinder, Settings, SpeechCommands
from rotrnn.training.optimiser import describe_groups
from rotrnn.training.recipe import load_recipe, recipe_names
from rotrnn.training.sweep import plan

PI = math.pi
TASKS: dict[str, Settings] = {
    "listops": ListOps(),
    "text": IMDB(),
    "retrieval": AAN(),
    "image": CIFAR(),
    "scifar": CIFAR(colour=True),
    "pathfinder": Pathfinder(),
    "pathx": Pathfinder(resolution=128),
    "speech": SpeechCommands(),
}
SIZES = {"listops": 96_000, "text": 25_000, "retrieval": 147_086, "image": 45_000, "pathfinder": 160_000,
         "pathx": 160_000, "speech": 84_843}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.split("-")[0] in TASKS])
def test_tasks_are_those_of_the_names(name):
    if not name.endswith("-small"):
        task = load_recipe(name).task
        expected = TASKS[name.split("-")[0]]
        assert type(task) is type(expected)
        assert task.shape == expected.shape
        assert getattr(task, "resolution", None) == getattr(expected, "resolution", None)


ROTRNN = {  # D, N, rates in units of 1e-3, batch, decay, dropout, thousands of steps, gamma, theta
    "listops": (128, 256, 1, 1, 32, 0.05, 0, 80, (0.5, 0.999), PI / 100),
    "text": (256, 192, 1, 1, 32, 0.05, 0.1, 50, (0.5, 0.8), PI / 10),
    "retrieval": (128, 256, 0.1, 0.01, 32, 0.01, 0.1, 50, (0.5, 0.999), 2 * PI),
    "image": (512, 384, 4.5, 1, 50, 0.05, 0.1, 250, (0.99, 0.999), 2 * PI),
    "pathfinder": (192, 256, 4.5, 1, 64, 0.03, 0.05, 500, (0.1, 0.9999), PI / 10),
    "pathx": (192, 256, 4.5, 1, 32, 0.03, 0.2, 250, (0.999, 0.9999), PI / 10),
    "speech": (96, 128, 8, 1, 16, 0.04, 0.1, 212, (0.1, 0.9999), PI / 10),
}


@pytest.mark.parametrize("task", ROTRNN)
def test_rotrnn(task):
    """Table 3; appendix B.2 for all: 6 layers, 32 heads, batch norm, both directions on Pathfinder and Path-X."""
    D, N, lr, recurrent, batch, decay, dropout, steps, gamma, theta = ROTRNN[task]
    recipe = load_recipe(f"{task}-rotrnn")
    model, layer, optimiser, training = recipe.model, recipe.layer, recipe.optimiser, recipe.training
    assert (model.layer, model.d_model, model.n_layers, model.norm) == ("rotrnn", D, 6, "batch")
    assert (layer.d_state, layer.heads, layer.gamma_init) == (N, 32, gamma)
    assert layer.theta_max == pytest.approx(theta)
    assert layer.bidirectional == (task in ("pathfinder", "pathx", "speech"))  # speech by its count of parameters
    assert model.glu == ("half1" if task == "speech" else "full")
    assert optimiser.lr == pytest.approx(lr / 1000)
    assert optimiser.lr * optimiser.recurrent_factor == pytest.approx(recurrent / 1000)
    assert (optimiser.weight_decay, model.dropout) == (decay, dropout)
    assert (training.batch, training.steps) == (batch, 1000 * steps)
    assert (optimiser.schedule, optimiser.floor, optimiser.warmup) == ("cosine", 1e-7, 0.1)


LRU = {  # H, N, thousands of steps, batch, factor, dropout, ring, phase, base rate in units of 1e-3
    "scifar": (512, 384, 180, 50, 0.25, 0.1, (0.9, 0.999), 2 * PI, 5),
    "listops": (128, 256, 80, 32, 0.5, 0, (0, 0.99), 2 * PI, 3),
    "text": (256, 192, 50, 32, 0.1, 0.1, (0.5, 0.9), 2 * PI, 4),
    "retrieval": (128, 256, 100, 64, 0.5, 0.1, (0.5, 0.9), 2 * PI, 2),
    "pathfinder": (192, 256, 500, 64, 0.25, 0, (0.9, 0.999), 2 * PI, 4),
    "pathx": (128, 256, 250, 32, 0.25, 0, (0.999, 0.9999), PI / 10, 2),
}


@pytest.mark.parametrize("task", LRU)
def test_lru(task):
    """Tables 8 and 9 and appendix D; the paper does not print base learning rates."""
    H, N, steps, batch, factor, dropout, ring, phase, lr = LRU[task]
    recipe = load_recipe(f"{task}-lru")
    model, layer, optimiser, training = recipe.model, recipe.layer, recipe.optimiser, recipe.training
    assert (model.layer, model.d_model, model.n_layers, model.norm) == ("lru", H, 6, "batch")
    assert model.glu == ("half1" if task == "pathx" else "full")
    assert (layer.d_state, (layer.r_min, layer.r_max)) == (N, ring)
    assert layer.max_phase == pytest.approx(phase)
    assert (layer.form, layer.gamma) == ("log_phase", True)
    assert layer.bidirectional == (task in ("pathfinder", "pathx"))
    assert optimiser.lr == pytest.approx(lr / 1000)
    assert (optimiser.recurrent_factor, optimiser.weight_decay, model.dropout) == (factor, 0.05, dropout)
    assert (training.batch, training.steps) == (batch, 1000 * steps)
    assert (optimiser.schedule, optimiser.floor, optimiser.warmup) == ("cosine", 1e-7, 0.1)


@cache
def parameters(name):
    """Returns the flattened parameters of a recipe's model."""
    recipe = load_recipe(name)
    params = recipe.build(recipe.task.shape).init(np.random.default_rng(0))
    return {name: array for name, array in flatten(params) if is_parameter(name)}


def test_published_counts_of_parameters():
    """RotRNN, table 2: 284K, with each rotation's skew matrix counted by its free entries, and 283K for LRU."""
    rotrnn = parameters("speech-rotrnn")
    surplus = sum(a.size - a.shape[0] * math.comb(a.shape[1], 2) for name, a in rotrnn.items() if name.endswith(".M"))
    assert sum(a.size for a in rotrnn.values()) - surplus == 284_099
    assert sum(a.size for a in parameters("speech-lru").values()) == 283_523
    assert sum(a.size for a in parameters("speech-s5").values()) == 283_523  # "280K"


S5 = {  # layers, H, states, blocks, C, GLU, dt_min, batch, epochs, warm-up epochs, SSM rate, factor, decay, dropout
    "listops": (8, 128, 16, 8, "lecun", "half2", 1e-3, 50, 40, 1, 1e-3, 3, 0.04, 0),
    "text": (6, 256, 192, 12, "lecun", "half2", 1e-3, 50, 35, 0, 1e-3, 4, 0.07, 0.1),
    "retrieval": (6, 128, 256, 16, "trunc", "half1", 1e-3, 32, 20, 1, 1e-3, 2, 0.05, 0),
    "image": (6, 512, 384, 3, "lecun", "half1", 1e-3, 50, 250, 1, 1e-3, 4.5, 0.07, 0.1),
    "pathfinder": (6, 192, 256, 8, "trunc", "half1", 1e-3, 64, 200, 1, 9e-4, 5, 0.03, 0.05),
    "pathx": (6, 128, 256, 16, "complex", "half1", 1e-4, 32, 75, 1, 6e-4, 3, 0.06, 0),
    "speech": (6, 96, 128, 16, "lecun", "half1", 1e-3, 16, 40, 1, 2e-3, 4, 0.04, 0.1),
}
MOMENTUM = {"pathfinder": 0.9, "pathx": 0.9}
SEEDS = {"listops": 6554595, "text": 8825365, "retrieval": 5464368, "image": 16416, "pathfinder": 8180844,
         "pathx": 6429262, "speech": 4062966}  # fmt: skip
CONFIGURATIONS = {  # of the released code, and whether dt is global
    "listops": ("BfastandCdecay", False),
    "text": ("standard", True),
    "retrieval": ("standard", True),
    "image": ("BfastandCdecay", False),
    "pathfinder": ("standard", False),
    "pathx": ("BandCdecay", False),
    "speech": ("noBCdecay", False),
}
EIGENVALUES = {"lambda_re", "lambda_im"}
B, C = {"B_re", "B_im"}, {"C_re", "C_im", "C_re_reverse", "C_im_reverse"}


@pytest.mark.parametrize("task", S5)
def test_s5(task):
    """The settings of the released scripts."""
    layers, H, states, blocks, c, glu, dt_min, batch, epochs, warm, ssm, factor, decay, dropout = S5[task]
    recipe = load_recipe(f"{task}-s5")
    model, layer, optimiser, training = recipe.model, recipe.layer, recipe.optimiser, recipe.training
    assert (model.layer, model.n_layers, model.d_model, model.norm, model.pool) == ("s5", layers, H, "batch", "mean")
    assert (layer.d_state, layer.blocks, layer.dt_min, layer.dt_max) == (states, blocks, dt_min, 0.1)
    assert layer.c_init.startswith(c)
    assert (layer.bidirectional, layer.conjugate, layer.discretisation) == (True, True, "zoh")
    assert layer.clip_eigs == (task == "image")
    assert (model.glu, model.dropout, model.dropout_over_time, model.prenorm) == (glu, dropout, True, True)
    assert model.norm_momentum == MOMENTUM.get(task, 0.95)
    each = SIZES[task] // batch
    assert (training.batch, training.steps, training.eval_every) == (batch, epochs * each, each)
    assert training.seed == SEEDS[task]
    assert (optimiser.schedule, optimiser.floor, optimiser.clip, optimiser.warmup) == ("s5", 0, 0, warm * each)
    assert optimiser.lr == pytest.approx(ssm * factor)
    assert optimiser.lr * optimiser.recurrent_factor == pytest.approx(ssm)
    assert optimiser.weight_decay == decay
    assert (optimiser.betas, optimiser.eps) == ((0.9, 0.999), 1e-8)


@pytest.mark.parametrize("task", S5)
def test_s5_groups(task):
    """Its four configurations: which leaves are "ssm" (Adam), "none" (AdamW at the SSM rate) or "regular" (AdamW)."""
    configuration, dt_global = CONFIGURATIONS[task]
    recipe = load_recipe(f"{task}-s5")
    ssm = EIGENVALUES | (set() if dt_global else {"log_step"})
    ssm |= {"standard": B, "noBCdecay": B | C | {"D"}}.get(configuration, set())
    none = B if configuration == "BandCdecay" else set()
    arrays = parameters(f"{task}-s5")
    model = recipe.build(recipe.task.shape)
    steps, optimiser = recipe.training.steps, recipe.optimiser
    params = unflatten(arrays)
    groups = {
        one.name: one for one in describe_groups(optimiser, params, optimiser.grouping(model.is_recurrent), steps)
    }

    def leaves(group):
        return set(groups[group].parameters) if group in groups else set()

    in_layer = {name for name in arrays if ".layer." in name}
    assert leaves("recurrent") == {name for name in in_layer if name.split(".")[-1] in ssm}
    assert leaves("recurrent, decay") == {name for name in in_layer if name.split(".")[-1] in none}
    assert leaves("global") == arrays.keys() - leaves("recurrent") - leaves("recurrent, decay")
    assert {
        "encoder.bias",
        "blocks.0.norm.scale",
        "blocks.0.norm.bias",
        "blocks.0.gate.gate.bias",
    } <= leaves("global")  # norms and biases decay: the rule that was to exempt them tests other names
    warm, ssm_rate, factor, decay = S5[task][9:13]
    peak = ssm_rate * factor
    for name, rate, share in (
        ("global", peak, decay),
        ("recurrent", ssm_rate, 0),
        ("recurrent, decay", ssm_rate, decay),
    ):
        if name in groups:
            last = 0.0 if warm else rate * (1 + math.cos(PI * (steps - 2) / steps)) / 2
            assert groups[name].lr == pytest.approx((rate, rate, last), abs=1e-18)
            assert groups[name].decay == pytest.approx((rate * share, rate * share, last * share), abs=1e-18)


@pytest.mark.parametrize(
    ("task", "each", "epochs"),
    [("scifar", 773, 180), ("listops", 1500, 40), ("text", 390, 35), ("delayed-copy", 312, 4)],
)
def test_minimal_lru(task, each, epochs):
    recipe = load_recipe(f"{task}-minimal-lru")
    model, layer, optimiser, training = recipe.model, recipe.layer, recipe.optimiser, recipe.training
    assert (model.d_model, model.n_layers, model.norm_momentum, model.glu) == (256, 4, 0.99, "full")
    assert (model.dropout, model.dropout_over_time) == (0.1, True)
    assert (layer.d_state, layer.r_min, layer.r_max, layer.max_phase) == (128, 0, 1, 6.28)
    assert (layer.bidirectional, layer.gamma, layer.form) == (False, True, "log_phase")
    assert (optimiser.lr, optimiser.recurrent_factor, optimiser.weight_decay) == (1e-3, 0.5, 0.05)
    assert (optimiser.warmup, optimiser.schedule, optimiser.floor) == (0, "s5", 1e-7)
    assert (training.batch, training.steps, training.seed) == (64, each * epochs, 1919)
    groups = optimiser.grouping(recipe.build(recipe.task.shape).is_recurrent)
    assert {name.split(".")[-1] for name in parameters(f"{task}-minimal-lru") if groups(name) == "recurrent"} == {
        "nu_log", "theta_log", "gamma_log", "B_re", "B_im",
    }  # fmt: skip


S4 = {  # H, N, pre-norm, dropout, rate, batch, thousands of steps, warm-up, dt_min, rate of dt
    "listops": (256, 4, False, 0, 0.01, 32, 120, 12_000, 1e-3, 0.01),
    "text": (256, 4, True, 0, 0.01, 16, 50, 5_000, 1e-3, 0.01),
    "retrieval": (256, 4, True, 0, 0.01, 64, 50, 5_000, 1e-3, 0.01),
    "image": (512, 64, False, 0.1, 0.01, 50, 180, 18_000, 1e-3, 1e-3),
    "pathfinder": (256, 64, True, 0, 0.004, 64, 500, 50_000, 1e-3, 1e-3),
    "pathx": (256, 64, True, 0, 0.001, 16, 500, 50_000, 1e-4, 1e-3),
    "speech": (128, 64, True, 0, 0.01, 16, 200, 1_000, 1e-3, 1e-3),
    "scifar": (512, 64, False, 0.1, 0.01, 50, 180, 900, 1e-3, 1e-3),
}


@pytest.mark.parametrize("task", S4)
def test_s4d(task):
    """Configurations of S4: norms, biases and embeddings do not decay, nor A, B and dt, whose rate is 1e-3."""
    H, N, prenorm, dropout, lr, batch, steps, warm, dt_min, dt_rate = S4[task]
    recipe = load_recipe(f"{task}-s4d")
    model, layer, optimiser, training = recipe.model, recipe.layer, recipe.optimiser, recipe.training
    assert (model.d_model, model.n_layers, model.prenorm, model.dropout) == (H, 6, prenorm, dropout)
    assert (layer.d_state, layer.dt_min, layer.frequencies, layer.bidirectional) == (N, dt_min, "legs", True)
    assert (training.batch, training.steps) == (batch, 1000 * steps)
    assert (optimiser.lr, optimiser.weight_decay, optimiser.warmup, optimiser.floor) == (lr, 0.05, warm, 0)
    group_of = optimiser.grouping(recipe.build(recipe.task.shape).is_recurrent)
    for name in parameters(f"{task}-s4d"):
        leaf = name.split(".")[-1]
        kernel = leaf in ("log_A_re", "A_im", "B_re", "B_im", "log_step")
        spared = kernel or "norm" in name or leaf in ("bias", "table")
        rate = (dt_rate if leaf == "log_step" else 1e-3) if kernel else lr
        assert optimiser.rate(group_of(name), warm, training.steps) == pytest.approx(rate), name
        assert optimiser.decay(group_of(name)) == (0 if spared else 0.05), name


ALL_OF_THEM = {"bedouin-1", "bedouin-2", "bedouin-4", "lstm", "transformer", "mamba"}


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("copy", ALL_OF_THEM),
        ("brackets", ALL_OF_THEM - {"bedouin-1", "bedouin-2"} | {"fpmamba-kronecker", "fpmamba-heads-4"}),
        ("word-problem", ALL_OF_THEM | {"lru", "rotrnn"}),
    ],
)
def test_what_does_not_decay_in_the_fixed_point_paper(name, variants):
    """Its code exempts nothing from decay in copying, A_log and D (Bedouin's omega, D; of the form of Mamba-2
    also b_dt) in arithmetic, and norms and biases too in word problems."""
    runs = {run.split(",")[0]: recipe for run, recipe in plan(name).items() if run.endswith("seed=0")}
    assert runs.keys() == variants
    for variant, recipe in runs.items():
        model = recipe.build(recipe.task.shape)
        group_of = recipe.optimiser.grouping(model.is_recurrent)
        flagged = {"omega", "A_log", "D"} | ({"b_dt"} if variant == "fpmamba-heads-4" else set())
        if variant in ("lru", "rotrnn"):  # not in the paper: what their own papers spare
            flagged = set(type(recipe.layer).recurrent)
        for parameter, _ in flatten(model.init(np.random.default_rng(0))):
            if is_parameter(parameter):
                leaf = parameter.split(".")[-1]
                spared = name != "copy" and leaf in flagged
                if name == "word-problem":
                    spared |= leaf.endswith("bias") or leaf == "b_delta" or "norm" in parameter
                assert (recipe.optimiser.decay(group_of(parameter)) == 0) == spared, (variant, parameter)


@pytest.mark.parametrize(
    ("name", "rates", "training", "task", "clip"),
    [  # appendix E; lr, decay, warm-up, floor; batch, steps; shortest and longest in training and test
        ("word-problem", (1e-4, 0.01, 0, 0), (128, 50_000), {"length": 16, "samples": 1_600_000, "test_length": 50}, 1),
        (
            "copy",
            (1e-5, 0.1, 300, 0),
            (128, 10_000),
            {"min_length": 5, "max_length": 50, "test_min_length": 5, "test_max_length": 100, "context": 256},
            1,
        ),
        (
            "brackets",
            (1e-3, 0.1, 10_000, 1e-6),
            (256, 100_000),
            {"min_length": 3, "max_length": 40, "test_min_length": 40, "test_max_length": 256, "operators": "+-*"},
            0,
        ),
    ],
)
def test_fixed_point_paper(name, rates, training, task, clip):
    recipe = load_recipe(name)
    optimiser = recipe.optimiser
    assert (optimiser.lr, optimiser.weight_decay, optimiser.warmup, optimiser.floor) == rates
    assert optimiser.clip == clip
    assert optimiser.recurrent_factor == 1
    assert optimiser.schedule == ("linear" if name == "copy" else "cosine")
    assert (recipe.training.batch, recipe.training.steps) == training
    assert {key: getattr(recipe.task, key) for key in task} == task
    assert recipe.model.n_layers == (2 if name == "brackets" else 1)
    assert recipe.task.shape.vocab == {"word-problem": 67, "copy": 29, "brackets": 12}[name]
    assert len({one.training.seed for one in plan(name).values()}) == 3
    ranks = {run.split(",")[0]: one.layer.rank for run, one in plan(name).items() if run.startswith("bedouin")}
    assert set(ranks.values()) == ({4} if name == "brackets" else {1, 2, 4})
    assert all(run == f"bedouin-{rank}" for run, rank in ranks.items())


def test_table_1_of_the_fixed_point_paper():
    """Eight rows differ in the parts of the recurrence that read the output; the row with all four has a published
    figure."""
    rows = {name.partition(",")[0]: recipe for name, recipe in plan("copy-ablations").items()}
    reads = {name: set(recipe.layer.feedback) for name, recipe in rows.items()}
    assert len({frozenset(one) for one in reads.values()}) == 8
    assert all("gate" in one for one in reads.values())
    assert reads["all"] == {"lambda", "mixer", "B", "C", "gate"}
    assert {name: recipe.source.accuracy for name, recipe in rows.items()} == dict.fromkeys(rows, "") | {
        "all": "0.94 +- 0.03"
    }


def test_figures_of_the_fixed_point_paper():
    """It does not state the number of reflections of Table 1; arithmetic accuracies are scaled and not percentages."""
    copying = {name.partition(",")[0]: recipe.source.accuracy for name, recipe in plan("copy-small").items()}
    assert {name for name, figure in copying.items() if figure.startswith("0.94 +- 0.03")} == {
        "bedouin-1",
        "bedouin-2",
        "bedouin-4",
    }
    assert {copying[name] for name in ("lstm", "transformer", "mamba")} == {""}
    words = {name.partition(",")[0]: recipe.source.accuracy for name, recipe in plan("word-problem").items()}
    assert words["bedouin-4"] == words["lstm"] == "solved at length 16 (curves alone)"
    assert words["mamba"] == "not solved at length 16 (curves alone)"
    assert words["transformer"] == words["lru"] == words["rotrnn"] == ""
    figures = {name.partition(",")[0]: recipe.source.accuracy for name, recipe in plan("brackets-small").items()}
    scaled = {"bedouin-4": "0.280 scaled", "transformer": "0.025 scaled", "mamba": "0.136 scaled"}
    layers = {name.partition(",")[0]: recipe.layer for name, recipe in plan("brackets").items()}
    assert layers["bedouin-4"].rank == layers["fpmamba-heads-4"].rank == 4
    assert figures == scaled | {"lstm": "", "fpmamba-kronecker": "", "fpmamba-heads-4": ""}


LADDER = ["rnn-relu", "rnn-tanh", "rnn-linear", "real-imag", "exp", "stable-exp", "ring", "lru"]


@pytest.mark.parametrize("task", ["scifar", "listops", "text", "retrieval", "pathfinder"])
def test_lru_ladder(task):
    """Tables 6 to 8: each row adds one change to the previous row."""
    rows = [row for row in LADDER if (task, row) != ("listops", "ring")]
    runs = plan(f"{task}-ladder")
    assert list(runs) == [f"{row},seed={seed}" for row in rows for seed in (0, 1, 2)]
    last = runs["lru,seed=0"]
    assert last.layer == load_recipe(f"{task}-lru").layer
    for row in rows:
        recipe = runs[f"{row},seed=0"]
        assert (recipe.task, recipe.model.d_model) == (last.task, last.model.d_model)
        assert recipe.layer.bidirectional == last.layer.bidirectional
        if row.startswith("rnn"):
            assert recipe.layer.activation == {"relu": "relu", "tanh": "tanh", "linear": "identity"}[row[4:]]
            assert recipe.layer.initialisation == "glorot"
        elif row != "lru":
            assert (recipe.layer.form, recipe.layer.gamma) == (
                {"ring": "stable_exp"}.get(row, row.replace("-", "_")),
                False,
            )
            ring = {"scifar": (0.9, 0.99), "text": (0, 0.9), "retrieval": (0.5, 0.9), "pathfinder": (0.9, 0.999)}
            assert (recipe.layer.r_min, recipe.layer.r_max) == (ring[task] if row == "ring" else (0, 1))


def test_lru_rings():
    """Table 5: 3 x 3 rings, without stability, with it, and with gamma."""
    runs = plan("scifar-rings")
    assert len(runs) == 81
    best = runs["gamma,r_min=0.9,r_max=0.999,seed=0"]
    assert best.source.accuracy == "89.0 (0.1)"
    assert (best.optimiser.lr, best.layer.form, best.layer.gamma) == (4e-3, "stable_exp", True)
    assert runs["no-stability,r_min=0.5,r_max=0.99,seed=0"].source.accuracy == "85.8 (1.2)"
    assert runs["stability,r_min=0.9,r_max=0.9,seed=2"].source.accuracy == "87.3 (0.1)"
    assert {recipe.layer.form for name, recipe in runs.items() if name.startswith("no-")} == {"exp"}


def test_lru_path_x():
    """Figure 5, and section 3.4: gamma and small phases, each alone and together."""
    runs = {name.partition(",")[0]: recipe for name, recipe in plan("pathx-ladder").items()}
    assert {name: (one.layer.gamma, one.layer.max_phase < 1) for name, one in runs.items()} == {
        "ring": (False, False), "gamma": (True, False), "small-phase": (False, True), "lru": (True, True),
    }  # fmt: skip
    assert runs["small-phase"].source.accuracy == "not learnt"


LADDERS = [f"{task}-ladder" for task in ("scifar", "listops", "text", "retrieval", "pathfinder")]


@pytest.mark.parametrize("name", [*LADDERS, "listops-norms"])
@pytest.mark.parametrize("small", ["", "-small"])
def test_a_table_compares_layers_of_one_size(name, small):
    """Rows have the same width and number of states, as the paper counts them, and the same directions."""
    whole = [recipe.layer for recipe in plan(name).values()]
    runs = list(plan(name + small).values())
    assert len({(one.model.d_model, one.layer.d_state, one.layer.bidirectional) for one in runs}) == 1
    assert {one.layer.bidirectional for one in runs} == {one.bidirectional for one in whole}
    assert len({type(one.layer) for one in runs}) == 2
    base = "rotrnn" if name == "listops-norms" else "lru"
    assert runs[0].layer.d_state == load_recipe(f"{name.split('-')[0]}-{base}{small}").layer.d_state
    for one in runs:
        if name == "listops-norms" and one.model.layer == "lru":
            alone = load_recipe(f"listops-lru{small}")
            rates = [(recipe.optimiser.lr, recipe.optimiser.recurrent_factor) for recipe in (one, alone)]
            assert rates[0] == rates[1]


TABLE_4 = {  # tanh units, accuracy of Table 6, training steps per second on an A100
    "scifar": (384, "69.9", 2.0), "listops": (256, "43.9", 1.1), "text": (192, "87.2", 0.5),
    "retrieval": (256, "88.9", 0.5), "pathfinder": (256, "chance", 2.1), "pathx": (256, "chance", 0.14),
}  # fmt: skip


@pytest.mark.parametrize("task", TABLE_4)
def test_lru_table_4(task):
    """The tanh RNN in LRU's place; all else is LRU's."""
    units, accuracy, speed = TABLE_4[task]
    rnn, lru = load_recipe(f"{task}-rnn"), load_recipe(f"{task}-lru")
    assert (rnn.model.layer, rnn.layer.activation, rnn.layer.d_state) == ("rnn", "tanh", units)
    assert rnn.layer.bidirectional == lru.layer.bidirectional
    assert rnn.task == lru.task
    assert dataclasses.replace(rnn.model, layer="lru") == lru.model
    assert (rnn.optimiser, rnn.training) == (lru.optimiser, lru.training)
    assert rnn.source.accuracy.startswith(accuracy)
    assert f" {speed} steps/s " in rnn.source.table


@pytest.mark.parametrize("task", ["listops", "scifar"])
def test_s4d_ablations(task):
    """LRU paper, section 4: the first-order multiplier, and separate parameters for A's and B's step, which train and
    decay like the one."""
    runs = {name.partition(",")[0]: recipe for name, recipe in plan(f"{task}-s4d-ablations").items()}
    base = load_recipe(f"{task}-s4d")
    assert {name: (one.layer.discretisation, one.layer.tied) for name, one in runs.items()} == {
        "zoh": ("zoh", True), "first-order": ("first_order", True), "untied": ("zoh", False),
        "first-order-untied": ("first_order", False),
    }  # fmt: skip
    for one in runs.values():
        assert (one.task, one.model, one.training.steps) == (base.task, base.model, base.training.steps)
        model = one.build(one.task.shape)
        group_of, before = (recipe.optimiser.grouping(model.is_recurrent) for recipe in (one, base))
        for parameter, _ in flatten(model.init(np.random.default_rng(0))):
            if is_parameter(parameter):
                assert group_of(parameter) == before(parameter.replace("log_step_input", "log_step")), parameter


def test_s5_in_colour():
    """The settings of grey images; Table 3 of the LRU paper."""
    colour, grey = load_recipe("scifar-s5"), load_recipe("image-s5")
    assert (colour.model, colour.layer, colour.optimiser, colour.training) == (
        grey.model, grey.layer, grey.optimiser, grey.training,
    )  # fmt: skip
    assert colour.task == CIFAR(colour=True)
    assert colour.source.accuracy.startswith("90.1 % test; 88.8 %")


@pytest.mark.parametrize("name", ["word-problem-depth", "copy-depth"])
def test_depths_of_figure_2(name):
    """Fixed-point paper, Fig. 2: baselines of 1 to 8 layers, otherwise those of Fig. 3 and 4."""
    runs, base = plan(name), plan(name.removesuffix("-depth"))
    assert {one.model.n_layers for one in runs.values()} == {1, 2, 4, 6, 8}
    assert len(runs) == 3 * 5 * 3
    for label, one in runs.items():
        kind = label.partition(",")[0]
        other = next(recipe for run, recipe in base.items() if run.split(",")[0] == kind)
        assert (one.layer, one.optimiser) == (other.layer, other.optimiser)
        assert dataclasses.replace(one.model, n_layers=1) == dataclasses.replace(other.model, n_layers=1)


def test_iterations_of_figure_1():
    """Fixed-point paper, Fig. 1: "sampled from Gamma(4, 1) with mean 4" (and mode 3)."""
    limits = [one.layer.train_iterations for one in plan("word-problem-iterations", seeds=[0]).values()]
    assert limits == [2, 4, 8, 16, "rounded_gamma"]


def test_carried_states():
    """Plain and carried training see as many tokens as that at twice the length, and all are tested at 200."""
    for small in ("", "-small"):
        runs = {name.partition(",")[0]: one for name, one in plan(f"word-problem-carry{small}", seeds=[0]).items()}
        assert {name: (one.task.carry, one.task.length) for name, one in runs.items()} == {
            "plain": (0, 16), "carried": (0.8, 16), "length-32": (0, 32),
        }  # fmt: skip
        assert len({one.task.length * one.training.steps for one in runs.values()}) == 1
        assert {one.task.test_length for one in runs.values()} == {200}
        assert len({(one.layer, one.model, one.optimiser, one.training.batch) for one in runs.values()}) == 1
        carried = runs["carried"]
        assert (
            0 < carried.task.carry_after < carried.task.carry_after + carried.task.carry_rise < carried.training.steps
        )
    layer = runs["carried"].layer
    assert (layer.rank, layer.d_state, layer.expand, runs["carried"].model.d_model) == (4, 8, 2, 64)
    assert (runs["carried"].training.batch, runs["carried"].training.steps) == (64, 4500)
    assert (carried.task.carry_after, carried.task.carry_rise) == (1500, 2000)


@pytest.mark.parametrize(("name", "groups"), [("delta", (",group=A5", ",group=S5")), ("s5", ("",))])
def test_carried_states_of_delta_product(name, groups):
    """Each way to train sees as many tokens, with the same layer, and is tested at 200."""
    ways = {"plain": (0, 16), "length-32": (0, 32), "carried": (0.8, 16)}
    for small in ("", "-small"):
        runs = plan(f"word-problem-carry-{name}{small}", seeds=[0])
        for group in groups:
            for kind, known in (("delta-2", ways), ("delta-4", ways), ("lstm", {"plain", "carried"})):
                of_kind = {way: runs[f"{kind}-{way}{group},seed=0"] for way in known}
                for way, run in of_kind.items():
                    assert (run.task.carry, run.task.length, run.task.test_length) == (*ways[way], 200)
                    assert run.task.group == (group[-2:] or "S5")
                assert len({(run.layer, run.model, run.optimiser, run.training.batch) for run in of_kind.values()}) == 1
                assert len({run.task.length * run.training.steps for run in of_kind.values()}) == 1


def test_word_problems_by_the_fixed_point_code():
    """Its script and its defaults (dr-faustus/fp-rnn, 4c28602), with the sizes of the paper's appendix E."""
    paper = load_recipe("word-problem")
    runs = {name.partition(",")[0]: one for name, one in plan("word-problem-fpmamba", seeds=[0]).items()}
    whole, masked, alone = (runs[f"householder-4{one}"] for one in ("", "-masked", "-length-16"))
    for run in runs.values():
        assert run.training == whole.training
        assert (run.training.batch, run.training.steps) == (paper.training.batch, paper.training.steps)
        assert dataclasses.replace(run.optimiser, no_decay=paper.optimiser.no_decay) == paper.optimiser
        assert (run.model.d_model, run.model.n_layers, run.model.norm, run.model.norm_eps) == (512, 1, "rms", None)
        assert run.model.tied
        assert run.model.final_norm
        layer = run.layer
        assert (layer.tol, layer.max_iterations, layer.unit_eps, layer.d_conv) == (0.1, 1000, 1e-6, 0)
        assert "mixer" in layer.feedback
    assert {(run.layer.mixer, run.layer.rank) for name, run in runs.items() if name[-1] in "124"} == {
        (mixer, rank) for mixer in ("householder", "dplr") for rank in (1, 2, 4)
    }
    layer = whole.layer
    assert (layer.d_state, layer.expand, layer.norm_eps, layer.train_iterations) == (16, 2, 1e-6, 16)
    assert (layer.stop, layer.damping, layer.mixer_silu, layer.gate_in_loop) == ("quantile", "adaptive", True, False)
    vector = runs["vector-4"].layer
    assert vector.d_state == layer.width == 1024
    assert (vector.stop, vector.damping) == ("step_quantile", "none")
    for name in ("householder-4", "vector-4"):
        drawn, limited = runs[f"{name}-drawn"].layer, runs[name].layer
        assert drawn == dataclasses.replace(limited, train_iterations="gamma", gamma_scale=16 / 16 + 1)
    words = dataclasses.replace(paper.task, group=whole.task.group, shorter="all", count_padding=True)
    assert whole.task == words
    assert masked.task == dataclasses.replace(words, count_padding=False)
    assert alone.task == dataclasses.replace(words, shorter="none")


SPARED = [
    ("word-problem-carry", {"A_log", "D"}),
    ("word-problem-fpmamba", {"A_log", "D"}),
    ("word-problem-fixed_point", {"D"}),
]


@pytest.mark.parametrize(("name", "spared"), SPARED)
def test_what_does_not_decay_in_recipes_like_those_of_the_fixed_point_paper(name, spared):
    """Norms, biases, and what the authors' code flags."""
    recipe = next(iter(plan(name).values()))
    model = recipe.build(recipe.task.shape)
    group_of = recipe.optimiser.grouping(model.is_recurrent)
    for parameter, _ in flatten(model.init(np.random.default_rng(0))):
        if is_parameter(parameter):
            leaf = parameter.split(".")[-1]
            expected = leaf in spared | {"scale"} or "norm" in parameter or leaf.startswith("b_") or leaf == "bias"
            assert (recipe.optimiser.decay(group_of(parameter)) == 0) == expected, parameter


def test_every_published_run_has_a_small_variant():
    names = recipe_names()
    for name in names:
        if name.split("-")[0] in TASKS and not name.endswith("-small"):
            assert f"{name}-small" in names
            small = load_recipe(f"{name}-small")
            assert small.model.d_model <= 64
            assert small.training.steps * small.training.batch <= 2000 * 64
