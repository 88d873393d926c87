"""Causal tasks refuse layers that see later steps, and no other part of a model sees one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cases import LAYER_ROWS
from rotrnn.estimators import Forecaster
from rotrnn.models.build import BLOCKS, NORMS, ModelSettings, build_model
from rotrnn.models.tagger import LanguageModel
from rotrnn.nn.layer import astype
from rotrnn.nn.layers.bidirectional import Bidirectional
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.registry import LAYERS, LSTM
from rotrnn.tasks import TASKS
from rotrnn.tasks.own import OwnData
from rotrnn.training.recipe import Recipe, load_recipe
from rotrnn.training.run import Run

CAUSAL = ("catbabi", "copy", "flip_flop", "language", "mad", "mqar", "recall", "series", "word_problem")
BOTH = "layer.bidirectional=true"
REFUSED = "layer.bidirectional is True, expected False: the task '{}' is causal"
OWN = tuple(name for name, kind in TASKS.items() if issubclass(kind, OwnData))


def test_the_tasks_that_are_causal() -> None:
    assert {name for name, kind in TASKS.items() if getattr(kind, "causal", False)} == set(CAUSAL)


@pytest.mark.parametrize("layer", ["lru", "lstm"])  # with a setting of its own, and in `Bidirectional`
@pytest.mark.parametrize("task", CAUSAL)
def test_a_causal_task_refuses_a_layer_in_both_directions(task: str, layer: str) -> None:
    changes = [f"task.name={task}", BOTH]
    with pytest.raises(ValueError, match=f"digits-{layer}: {REFUSED.format(task)}"):
        load_recipe(f"digits-{layer}", changes)


@pytest.mark.parametrize("task", ["digits", "brackets", "delayed_copy", "regular", *OWN])
def test_other_tasks_take_it(task: str) -> None:
    assert load_recipe("digits-lru", [f"task.name={task}", BOTH]).layer.bidirectional  # type: ignore[attr-defined]


@pytest.mark.parametrize("task", ["arrays", "table"])
def test_data_of_ones_own_are_causal_where_they_say_so(task: str) -> None:
    changes = ["task.causal=true", f"task.name={task}", *(["task.sequence=run"] if task == "table" else [])]
    with pytest.raises(ValueError, match="causal is True, expected False without per_step"):
        load_recipe("digits-lru", changes)
    with pytest.raises(ValueError, match=REFUSED.format(task)):
        load_recipe("digits-lru", [*changes, "task.per_step=true", BOTH])
    assert load_recipe("digits-lru", [*changes, "task.per_step=true"]).task.causal  # type: ignore[attr-defined]


def test_a_recipe_made_of_objects_is_refused_and_so_is_a_run(tmp_path: Path) -> None:
    one = load_recipe("digits-lru", ["task.name=recall"])
    layer = Bidirectional(one.model.d_model, LSTM(one.model.d_model, 3))
    with pytest.raises(ValueError, match=REFUSED.format("recall")):
        Recipe(one.task, one.model, layer, one.optimiser, one.training)
    (tmp_path / "recipe.toml").write_text(one.text(), "utf-8")
    with pytest.raises(ValueError, match=REFUSED.format("recall")):
        Run(tmp_path).load_recipe([BOTH])


@pytest.mark.parametrize("layer", ["lru", Bidirectional(8, LRU(8, 4))])
def test_a_forecaster_refuses_it(layer: str | Bidirectional) -> None:
    settings = {"d_state": 4, "bidirectional": True} if layer == "lru" else None
    with pytest.raises(ValueError, match=f"Forecaster.fit: {REFUSED.format('series')}"):
        Forecaster(layer, layer_settings=settings, width=8).fit(np.arange(30.0))


def test_a_language_model_refuses_it_in_any_block() -> None:
    D = 4
    layers = (LRU(D, 3, bidirectional=both) for both in (False, True))
    parts = [build_model(ModelSettings("lru", D, 1), one, head="tagger", vocab=5, n_classes=5) for one in layers]
    blocks = tuple(one.stack.blocks[0] for one in parts)
    with pytest.raises(ValueError, match="LanguageModel: block 1 has a bidirectional layer, expected a layer that"):
        LanguageModel(parts[0].encoder, type(parts[0].stack)(blocks), parts[0].heads["head"])


MODELS = [
    *((name, {"norm": "rms"}) for name in LAYERS),
    *(("lru", {"norm": norm, "block": block, "final_norm": True}) for norm in NORMS for block in BLOCKS),
    *(("lru", {"norm": norm, "prenorm": False}) for norm in NORMS),
    ("lru", {"attention_every": 2}),
    ("lru", {"attention_every": 2, "attention_window": 3}),
]


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=str)
def test_no_part_of_a_model_sees_a_later_step(name: str, settings: dict[str, str]) -> None:
    """The answers of a trained model are the same up to rounding, whatever the last step is. (Products of 40 numbers
    near 1 in float64; layers that iterate are in rows whose `tol` is rounding.)"""
    layer = next(row.layer for row in LAYER_ROWS if type(row.layer) is LAYERS[name] and not row.bidirectional)
    D = layer.d_model
    model = build_model(ModelSettings(name, D, 2, **settings), layer, head="tagger", n_classes=3, n_features=3)  # type: ignore[arg-type]
    params = astype(model.init(np.random.default_rng(1)), np.float64)
    x = np.random.default_rng(2).standard_normal((2, 20, 3))
    later = x.copy()
    later[:, -1] += 100
    before, after = (model.forward(params, one)[0] for one in (x, later))
    np.testing.assert_allclose(after[:, :-1], before[:, :-1], rtol=0, atol=1e-12)
    assert np.abs(after[:, -1] - before[:, -1]).max() > 1e-3
