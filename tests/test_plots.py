"""The figures of a run: what they show, and that they come from a run's folder alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rotrnn import plots
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe, read_recipe


def lines(axes: object) -> dict[str, np.ndarray]:
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def test_smooth_is_the_mean_of_what_there_is() -> None:
    x = np.arange(7.0)
    np.testing.assert_allclose(plots.smooth(x, 1), x)
    np.testing.assert_allclose(plots.smooth(x, 3), [0.5, 1, 2, 3, 4, 5, 5.5])
    np.testing.assert_allclose(plots.smooth(np.ones(2), 101), 1)


def test_learning_curves_show_percent_baseline_and_test() -> None:
    steps = np.arange(1, 101)
    train_series = {"loss": (steps, 1 / steps), "accuracy": (steps, steps / 100)}
    validation = {"loss": (steps[9::10], 2 / steps[9::10]), "accuracy": (steps[9::10], steps[9::10] / 200)}
    figure = plots.learning_curves(train_series, validation, baseline=0.1, test=(90, 0.45))
    loss, accuracy = figure.axes
    np.testing.assert_allclose(lines(loss)["validation"], np.stack([steps[9::10], 2 / steps[9::10]], 1))
    np.testing.assert_allclose(lines(accuracy)["validation"][-1], [100, 50])
    np.testing.assert_allclose(lines(accuracy)["test (45.0 %)"], [[90, 45]])
    np.testing.assert_allclose(lines(accuracy)["most frequent class (10.0 %)"][:, 1], 10)
    assert plots.learning_curves({}, {}).axes  # a run that has logged nothing yet


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_unit_disc_has_a_panel_for_each_layer(layers: int) -> None:
    rng = np.random.default_rng(0)
    before, after = np.exp(1j * rng.uniform(0, 6, (2, layers, 100))) * 0.9
    figure = plots.unit_disc(list(before), list(after))
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == [f"layer {i + 1}" for i in range(layers)]
    for layer, axes in enumerate(panels):
        points = [collection.get_offsets() for collection in axes.collections]
        np.testing.assert_allclose(points[0], np.stack([before[layer].real, before[layer].imag], 1))
        np.testing.assert_allclose(points[1], np.stack([after[layer].real, after[layer].imag], 1))


def test_norms() -> None:
    norms = np.random.default_rng(1).uniform(1, 2, (3, 50))
    (axes,) = plots.norms_along_sequence(norms).axes
    np.testing.assert_allclose(lines(axes)["layer 2"][:, 1], norms[1])
    (axes,) = plots.norms_over_training((np.arange(50), norms.T)).axes
    np.testing.assert_allclose(lines(axes)["layer 3"], np.stack([np.arange(50), norms[2]], 1))
    assert plots.norms_along_sequence(np.ones((1, 1))).axes


def test_series_of_a_log() -> None:
    records = [{"step": 1, "loss": 2.0}, {"step": 2, "val_loss": 3.0, "state_norms": [1.0, 2.0]}]
    steps, values = plots.series_of(records, "state_norms")
    assert steps.tolist() == [2]
    assert values.tolist() == [[1.0, 2.0]]
    assert plots.series_of(records, "accuracy") is None


def test_a_run_is_drawn_from_its_folder(tmp_path: Path) -> None:
    recipe = load_recipe("digits-rotrnn", ["training.steps=4", "training.eval_every=2", "model.d_model=8"])
    train(recipe, tmp_path / "run", progress=False)
    paths = plots.plot(tmp_path / "run")
    names = ["learning", "eigenvalues", "norms", "norms_over_training"]
    assert paths == [tmp_path / "run" / "plots" / f"{name}.png" for name in names]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
    assert plots.plot(tmp_path / "run") == paths  # again, over what is there


@pytest.mark.parametrize(
    ("layer", "names"), [("mamba", ["learning"]), ("lstm", ["learning", "norms", "norms_over_training"])]
)
def test_a_run_of_a_layer_without_eigenvalues(layer: str, names: list[str], tmp_path: Path) -> None:
    tables = load_recipe("digits-rotrnn", ["training.steps=2", "model.d_model=8"]).tables()
    tables["model"]["layer"], tables["layer"] = layer, {"d_state": 4}
    train(read_recipe(tables), tmp_path / "run", progress=False)
    assert [path.stem for path in plots.plot(tmp_path / "run")] == names


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run is here"):
        plots.plot(tmp_path)


def test_matplotlib_is_optional() -> None:
    code = (
        "import sys, numpy as np\n"
        "sys.modules['matplotlib'] = None\n"
        "from rotrnn import plots\n"
        "try:\n    plots.norms_along_sequence(np.ones((1, 2)))\n"
        "except ImportError as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "plots need matplotlib, an optional extra: pip install rotrnn[plot]"
