"""Language modelling on a text of one's own: its parts, chunks and labels, and a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rotrnn.tasks import TASKS, Language, describe
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Bytes 0 to 99, so that each byte is its own place."""
    file = tmp_path / "text"
    file.write_bytes(bytes(range(100)))
    return file


def test_parts_are_consecutive_and_labels_are_the_next_bytes(path: Path) -> None:
    task = Language(str(path), 16, 7, val_fraction=0.1, test_fraction=0.2).load()
    assert TASKS["language"] is Language
    assert (task.vocab, task.n_classes, task.head, task.selected_on) == (256, 256, "language", "validation")
    for split, first, last, length in ((task.train, 0, 70, 16), (task.val, 70, 80, 7), (task.test, 80, 100, 7)):
        seen = []
        for i in range(len(split)):
            inputs, labels, lengths = split.batch(np.array([i]))
            size = inputs.shape[1] if lengths is None else int(lengths[0])
            assert size <= length
            np.testing.assert_array_equal(labels[0, :size], inputs[0, :size] + 1)
            seen += inputs[0, :size].tolist()
        assert seen == list(range(first, last - 1))  # the last byte is a label alone


def test_a_short_last_chunk_is_padded(path: Path) -> None:
    split = Language(str(path), 40, val_fraction=0, test_fraction=0).load().train
    inputs, labels, lengths = split.batch(np.array([1, 2]))
    assert lengths is not None
    assert lengths.tolist() == [40, 19]
    np.testing.assert_array_equal(inputs[1], [*range(80, 99), *[0] * 21])
    np.testing.assert_array_equal(labels[1], [*range(81, 100), *[-1] * 21])


def test_a_text_without_parts_serves_for_all(path: Path) -> None:
    task = Language(str(path), val_fraction=0, test_fraction=0).load()
    assert task.train is task.val is task.test
    task = Language(str(path), val_fraction=0.1, test_fraction=0).load()
    assert task.val is task.test
    assert "256 classes, 256 token ids, language" in describe(task)


def test_it_is_written_as_rows(path: Path, tmp_path: Path) -> None:
    Language(str(path), 5, val_fraction=0.1, test_fraction=0.1).write(tmp_path / "rows")
    lines = (tmp_path / "rows" / "language_val.tsv").read_text(encoding="utf-8").splitlines()
    assert lines == ["inputs\tlabels", "80 81 82 83 84\t81 82 83 84 85", "85 86 87 88\t86 87 88 89"]


def test_a_model_learns_to_count(tmp_path: Path) -> None:
    """The next of ten letters, in turn: a model that looks at the last letter alone knows it."""
    file = tmp_path / "text.txt"
    file.write_text("abcdefghij" * 100, encoding="utf-8")
    own = [f"task.path={file}", "task.length=20", "task.carry=0.5", "training.steps=60", "training.eval_every=30"]
    own += ["model.n_layers=1", "model.d_model=16", "layer.d_state=8", "training.batch=8", "optimiser.lr=0.01"]
    result = train(load_recipe("digits-lru", ["task.name=language", *own]), tmp_path / "run", progress=False)
    assert result["test"]["last"]["accuracy"] == 1


def test_one_text_for_all_is_tested_at_the_test_length(path: Path) -> None:
    task = Language(str(path), length=10, test_length=25, val_fraction=0, test_fraction=0).load()
    assert task.train.batch(np.arange(1)).inputs.shape == (1, 10)
    assert task.val.batch(np.arange(1)).inputs.shape == task.test.batch(np.arange(1)).inputs.shape == (1, 25)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "Language: length is 0, expected an integer from 1 to 1048576"),
        ({"test_length": -1}, "Language: test_length is -1, expected an integer from 0"),
        ({"val_fraction": 0.5, "test_fraction": 0.5}, "Language: val_fraction is 0.5 and test_fraction is 0.5"),
        ({"val_fraction": -0.1}, "Language: val_fraction is -0.1"),
        ({"carry": 1.0}, "Language: carry is 1.0, expected a chance, at least 0 and below 1"),
        ({"carry_after": 3}, "Language: carry_after is 3 with carry 0"),
        ({"path": ""}, "Language: path is '', expected a file of text"),
        ({"val_fraction": 0.01}, "text: has 100 bytes, 1 of them for validation, expected at least 2"),
        ({"val_fraction": 0.5, "test_fraction": 0.49}, "text: has 100 bytes, 1 of them for training, expected"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str, path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        Language(**({"path": str(path)} | settings)).load()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Language: path is .*none\.txt, which is no file; expected a file"):
        Language(str(tmp_path / "none.txt")).load()
