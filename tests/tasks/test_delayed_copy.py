"""The delayed copy: layout, fair bits, answers that follow from the pattern, and a training run."""

import numpy as np
import pytest

from rotrnn import plots
from rotrnn.cli import main
from rotrnn.tasks import TASKS, DelayedCopy
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe, read_recipe

N = 4_000


def test_known_layout():
    """48 steps of 7 bits and a cue: 20 steps of pattern, 7 empty ones, the cue at step 27, the answer at 28 to 47."""
    task = TASKS["delayed_copy"]().load()
    assert (task.head, task.n_classes, task.n_values, task.n_features, task.vocab) == ("bits", 7, 2, 8, None)
    assert (task.metric, task.chance, task.selected_on) == ("accuracy", 0.5, "validation")
    assert [len(split) for split in (task.train, task.val, task.test)] == [20_000, 1_000, 1_000]
    assert not task.train.fresh
    for split in (task.train, task.val, task.test):
        x, y, lengths = split.batch(np.arange(300), np.float64)
        assert lengths is None
        assert x.dtype == np.float64
        assert (x.shape, y.shape) == ((300, 48, 8), (300, 48, 7))
        assert np.isin(x, (0, 1)).all()
        np.testing.assert_array_equal(x[..., 7], np.broadcast_to(np.arange(48) == 27, (300, 48)))
        assert not x[:, 20:, :7].any()
        assert (y[:, :28] == -1).all()
        np.testing.assert_array_equal(y[:, 28:], x[:, :20, :7])


@pytest.mark.parametrize(("bits", "length", "delay"), [(1, 1, 0), (32, 3, 0), (2, 1, 5), (5, 40, 1)])
def test_any_layout(bits, length, delay):
    x, y, _ = DelayedCopy(bits, length, delay).load().val.batch(np.arange(9))
    cue = length + delay
    assert (x.shape, y.shape) == ((9, cue + 1 + length, bits + 1), (9, cue + 1 + length, bits))
    assert np.argwhere(x[..., bits]).tolist() == [[row, cue] for row in range(9)]
    assert not x[:, length:, :bits].any()
    assert (y[:, : cue + 1] == -1).all()
    np.testing.assert_array_equal(y[:, cue + 1 :], x[:, :length, :bits])


@pytest.mark.parametrize("bits", [7, 32])
def test_bits_are_fair_and_independent(bits):
    """Each bit is a one, and differs from each other one of its pattern, in half of N patterns, within 6 deviations of
    sqrt(N)/2: of some 60,000 pairs none is beyond it but with probability 1e-4."""
    pattern = DelayedCopy(bits=bits, length=10).load().train.batch(np.arange(N)).inputs[:, :10, :bits]
    signs = 1 - 2 * pattern.reshape(N, -1)
    assert (np.abs(signs.sum(0)) <= 6 * np.sqrt(N)).all()
    products = np.abs(signs.T @ signs)
    assert (products[~np.eye(len(products), dtype=bool)] <= 6 * np.sqrt(N)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 0}, "bits is 0, expected an integer from 1 to 32"),
        ({"bits": 33}, "bits is 33"),
        ({"length": 0}, "length is 0"),
        ({"delay": -1}, "delay is -1, expected an integer from 0"),
        ({"val": 0}, "val is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=f"DelayedCopy: {message}"):
        DelayedCopy(**settings)


def test_written_rows(tmp_path):
    task = DelayedCopy(bits=2, length=3, delay=1, train=5, val=1, test=2).write(tmp_path)
    for name, split in (("train", task.train), ("val", task.val), ("test", task.test)):
        header, *rows = (tmp_path / f"delayed_copy_{name}.tsv").read_text(encoding="utf-8").splitlines()
        assert header == "inputs\tlabels"
        found = [
            [[[int(bit) for bit in step.split(",")] for step in part.split(" ")] for part in row.split("\t")]
            for row in rows
        ]
        batch = split.batch(np.arange(len(split)), np.int64)
        assert [x for x, _ in found] == batch.inputs.tolist()
        assert [y for _, y in found] == batch.labels.tolist()


def test_the_command_knows_it(tmp_path, capsys):
    assert main(["data", "delayed_copy", "--set", "train=40", "--set", "bits=3", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("delayed_copy: 3 bits per step, 4 feature(s) per step\n")
    assert "\nlabel           0      1\n" in out
    assert main(["info", "tasks"]) == 0
    assert "\ndelayed_copy " in capsys.readouterr().out
    assert main(["info", "delayed_copy"]) == 0
    assert "\n  delay = 7\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_learns_it_and_is_drawn(tmp_path):
    """With two bits over three steps, all are right in the end; the confusion matrix has the classes zero and one."""
    recipe = read_recipe(
        {
            "task": {"name": "delayed_copy", "bits": 2, "length": 3, "delay": 1, "train": 640, "val": 50, "test": 200},
            "model": {"layer": "lru", "d_model": 24, "n_layers": 1, "norm": "layer"},
            "layer": {"d_state": 16},
            "optimiser": {"lr": 0.01, "recurrent_factor": 0.5},
            "training": {"batch": 32, "steps": 300, "eval_every": 100},
        }
    )
    result = train(recipe, tmp_path, progress=False)
    best = result["test"]["best"]
    assert best["accuracy"] > 0.99
    assert best["sequence_accuracy"] > 0.95
    assert best["scaled_accuracy"] == 2 * best["accuracy"] - 1
    title = plots.run_figures(tmp_path)["confusion"].get_suptitle()
    assert f"{100 * best['accuracy']:.1f} % right" in title


def test_recipe():
    task = load_recipe("delayed-copy-minimal-lru").task
    assert task == load_recipe("delayed-copy-minimal-lru-small").task == DelayedCopy()
