"""catbAbI: stories of bAbI one after the other, their words, and the answers that count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rotrnn.tasks import TASKS, CatBabi
from rotrnn.tasks.catbabi import read_stories
from rotrnn.training.estimate import estimate
from rotrnn.training.sweep import plan

STORIES = """1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 What is the way?\tn,w\t1 2
1 Sandra is hungry.
2 Where is Sandra? \tKitchen\t1
1 This one is left out.
"""
TEXTS = (
    "mary moved to the bathroom . john went to the hallway . where is mary ? bathroom what is the way ? n,w",
    "sandra is hungry . where is sandra ? kitchen",
)
WORDS = [text.split(" ") for text in TEXTS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("train", "valid", "test"):
        for number in (1, 15):
            (tmp_path / f"qa{number}_{part}.txt").write_text(STORIES, encoding="utf-8")
    return tmp_path


def test_words_of_stories(folder: Path) -> None:
    assert read_stories(folder / "qa1_train.txt") == WORDS
    (folder / "marked.txt").write_bytes(b"\xef\xbb\xbf" + STORIES.replace("\n", "\r\n").encode() + b"\r\n \n")
    assert read_stories(folder / "marked.txt") == WORDS


@pytest.mark.parametrize("answers", [True, False])
def test_stories_follow_each_other_and_answers_count(folder: Path, answers: bool) -> None:
    task = CatBabi(str(folder), answers=answers, length=11, test_length=99).load()
    assert task.labels is not None
    assert task.labels[:3] == ("<pad>", "<eos>", "?")
    assert len(task.labels) == task.n_classes == task.vocab == 2 + len({word for story in WORDS for word in story})
    for split in (task.train, task.val, task.test):
        x, y, lengths = split.batch(np.arange(len(split)))
        valid = np.full(x.shape, True) if lengths is None else np.arange(x.shape[1]) < lengths[:, None]
        text = " ".join(task.labels[i] for i in x[valid])
        stories = [one.strip().split(" ") for one in text.split("<eos>")[1:]]
        assert sorted(stories) == sorted(2 * WORDS)
        follows = [*x[valid][1:].tolist(), 1]
        alone = answers or split is not task.train
        expected = [after if not alone or i == 2 else -1 for i, after in zip(x[valid], follows, strict=True)]
        assert y[valid].tolist() == expected
        assert (y[~valid] == -1).all()
        assert np.count_nonzero(y[valid] >= 0) == (6 if alone else 2 * (len(WORDS[0]) + len(WORDS[1]) + 2))
    assert CatBabi(str(folder), seed=3).load().train.batch(np.arange(1))[0].tolist() != []


def test_rows_read_on(folder: Path) -> None:
    split = CatBabi(str(folder), length=7, carry=0.9).load().train
    first, place = split.continued(np.array([0]), np.array([-1]))
    second, _ = split.continued(np.array([5]), place)
    whole = split.batch(np.arange(2))
    np.testing.assert_array_equal(np.concatenate([first.inputs, second.inputs]), whole.inputs)


@pytest.mark.parametrize("variant", ["lstm", "delta_net"])
def test_its_recipe_trains(folder: Path, variant: str) -> None:
    few = ("training.steps=2", "training.eval_every=1", "training.batch=2", "task.length=11", f"task.path={folder}")
    (recipe,) = plan("catbabi-small", seeds=[0], variants=[variant], overrides=few).values()
    assert estimate(recipe, 2).steps_run == 2
    assert TASKS["catbabi"] is CatBabi


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Mary went home.\n", r"line 1: begins with 'mary', expected the number of a line of a story"),
        ("2 Mary went home.\n", r"line 1: begins with '2', expected the number of a line of a story"),
        ("1 Mary went home\n", r"line 1: is 'mary went home', expected 'statement.', or 'question\?'"),
        ("1 A b.\n2 Where is it?\n", r"line 2: is 'where is it\?', expected 'statement.', or"),
        ("1 Where is it?\thome\n", r"line 1: is 'where is it\?\\thome', expected 'statement.', or"),
        ("1 Where is it?\t\t1\n", r"line 1: is 'where is it\?\\t\\t1', expected 'statement.', or"),
        ("1 " + "a" * 2**16, r"line 1: has more than 65536 characters, expected a line of a story"),
    ],
)
def test_what_is_no_such_file(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "qa1_train.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"qa1_train.txt, {message}"):
        read_stories(tmp_path / "qa1_train.txt")


def test_what_a_folder_must_have(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"CatBabi: path is '', expected a folder with qa1_train.txt"):
        CatBabi().load()
    with pytest.raises(FileNotFoundError, match=r"which has no qa1_train.txt; expected a folder with qa1_train.txt"):
        CatBabi(str(tmp_path)).load()
    (tmp_path / "qa1_train.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"^CatBabi: .*qa1_valid.txt is no file, expected a folder with qa1_"):
        CatBabi(str(tmp_path)).load()
    for part in ("valid", "test"):
        (tmp_path / f"qa1_{part}.txt").write_text(STORIES, encoding="utf-8")
    (tmp_path / "qa1_train.txt").write_bytes(b"1 \xff.\n")
    with pytest.raises(ValueError, match=r"qa1_train.txt: is not text in UTF-8"):
        CatBabi(str(tmp_path)).load()
    (tmp_path / "qa1_train.txt").write_text(STORIES, encoding="utf-8")
    for part in ("valid", "test"):
        (tmp_path / f"qa1_{part}.txt").write_text("1 A b.\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"has no story for val, expected two or more in qa1_valid.txt"):
        CatBabi(str(tmp_path)).load()
