"""Files .ts of the UEA archive: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rotrnn.tasks import TASKS, UEA
from rotrnn.tasks.uea import PUBLISHED, read_ts
from rotrnn.training.estimate import estimate
from rotrnn.training.recipe import load_recipe

HEAD = """# a comment
@problemName Toy
@timeStamps false
@missing false
@univariate false
@dimensions 2
@equalLength true
@seriesLength 3
@classLabel true left right
@data
"""
RAGGED = HEAD.replace("@seriesLength 3\n", "").replace("@equalLength true", "@equalLength false")
TARGETS = HEAD.replace("@classLabel true left right", "@targetLabel true")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_sequences_are_read_as_they_are(tmp_path: Path) -> None:
    text = "1,2.5,-3:4, 5e-1 ,6:right\n\n# between\n% as in older files\n7,8,9:0,0,1:left\n"
    found = read_ts(write(tmp_path / "toy.ts", HEAD + text))
    assert [one.tolist() for one in found.values] == [[[1, 4], [2.5, 0.5], [-3, 6]], [[7, 0], [8, 0], [9, 1]]]
    assert found.labels == ["right", "left"]
    assert found.header.classes == ("left", "right")
    ragged = read_ts(write(tmp_path / "ragged.ts", RAGGED.replace("\n", "\r\n") + "1:2:left\r\n1,2:3,4:left"))
    assert [len(one) for one in ragged.values] == [1, 2]


def test_a_folder_has_the_sequences_of_both_files(tmp_path: Path) -> None:
    folder = tmp_path / "Toy"
    folder.mkdir()
    lines = [f"{i},{i},{i}:{i},0,{i % 2}:{('left', 'right')[i % 2]}\n" for i in range(20)]
    write(folder / "Toy_TRAIN.ts", HEAD + "".join(lines[:8]))
    write(folder / "Toy_TEST.ts", HEAD + "".join(lines[8:]))
    task = UEA(str(folder), scale=False, time=True).load()
    assert [len(split) for split in (task.train, task.val, task.test)] == [14, 3, 3]
    assert (task.labels, task.n_features, task.head) == (("left", "right"), 3, "classifier")
    seen = []
    for split in (task.train, task.val, task.test):
        x, labels, lengths = split.batch(np.arange(len(split)), np.float64)
        assert lengths is None
        np.testing.assert_allclose(x[:, :, 2], np.broadcast_to(np.arange(3) / 3, x.shape[:2]), rtol=1e-7)
        np.testing.assert_array_equal(x[:, 2, 1], labels)
        seen += x[:, 0, 0].tolist()
    assert sorted(seen) == list(range(20))
    assert UEA(str(folder)).shape == (2, None, 2, "classifier")


def test_targets_are_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "toy.ts", TARGETS + "".join(f"1,2,3:4,5,6:{i}.5\n" for i in range(10)))
    task = UEA(str(path), kind="regression", scale=False).load()
    assert sorted(task.train.batch(np.arange(6))[1].ravel().tolist())[0] % 1 == 0.5
    with pytest.raises(ValueError, match=r"toy.ts: has @targetLabel, for which kind is 'regression', not"):
        UEA(str(path)).load()
    write(tmp_path / "toy.ts", TARGETS + "1,2,3:4,5,6:high\n")
    with pytest.raises(ValueError, match=r"toy.ts: a target is 'high', expected a finite number"):
        UEA(str(path), kind="regression").load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"toy.ts: has no @data"),
        ("1:2:left\n", r"toy.ts, line 1: is '1:2:left', expected @data before the sequences"),
        (HEAD, r"toy.ts: has no sequence after @data"),
        ("@data\n1:a\n", r"toy.ts, line 1: there is no @classLabel true and no @targetLabel true"),
        ("@classLabel false\n@data\n1:a\n", r"toy.ts, line 2: there is no @classLabel true"),
        ("@classLabel true\n", r"line 1: @classLabel is 'true', expected true and the names of different classes"),
        ("@classLabel true a a\n", r"line 1: @classLabel is 'true a a', expected true and the names of different"),
        ("@\n", r"toy.ts: has no @data"),
        ("@timeStamps true\n", r"line 1: @timeStamps is true, expected false: values with times of their own"),
        ("@missing true\n", r"line 1: @missing is true, expected false: values with missing values"),
        ("@dimensions many\n", r"line 1: @dimensions is 'many', expected a positive integer"),
        ("@seriesLength 0\n", r"line 1: @seriesLength is '0', expected a positive integer"),
        (f"@dimensions {10**30}\n", r"line 1: @dimensions is '10+', expected a positive integer"),
        (HEAD + "1,2,3:left\n", r"line 11: has 1 dimensions before the label, expected 2 and a label"),
        (HEAD + "1,2,3:4,5,6\n", r"line 11: has 1 dimensions before the label, expected 2 and a label"),
        (HEAD + "left\n", r"line 11: has 0 dimensions before the label, expected 2 and a label"),
        (HEAD + "1,2,3:4,5,6:up\n", r"line 11: the label is 'up', expected one of left, right"),
        (HEAD + "1,2,3:4,5:left\n", r"line 11: dimension 1 has 2 steps, expected 3 as @seriesLength"),
        (RAGGED + "1,2:4,5,6:left\n", r"line 10: dimension 1 has 3 steps, expected 2 as dimension 0"),
        (HEAD + "1,?,3:4,5,6:left\n", r"line 11: dimension 0, step 1 is '\?', expected a finite number"),
        (HEAD + "1,2,3:4,,6:left\n", r"line 11: dimension 1, step 1 is '', expected a finite number"),
        (HEAD + "1,2_0,3:4,5,6:left\n", r"line 11: dimension 0, step 1 is '2_0', expected a finite number"),
        (HEAD + "1,２,3:4,5,6:left\n", r"line 11: dimension 0, step 1 is '２', expected a finite number"),  # noqa: RUF001
        (HEAD + "1,2,nan:4,5,6:left\n", r"line 11: dimension 0, step 2 is 'nan', expected a finite number"),
        (HEAD + "1,2,1e39:4,5,6:left\n", r"line 11: dimension 0, step 2 is '1e39', expected a finite number"),
    ],
)
def test_what_is_no_such_file(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_ts(write(tmp_path / "toy.ts", text))


def test_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rotrnn.tasks.uea.MOST_LINE", 40)
    with pytest.raises(ValueError, match=r"toy.ts, line 11: has more than 40 characters, expected a sequence"):
        read_ts(write(tmp_path / "toy.ts", HEAD + "1," * 40))


def test_classes_in_another_order(tmp_path: Path) -> None:
    for name, classes, label in (("TRAIN", "left right", "right"), ("TEST", "right left", "left")):
        text = HEAD.replace("left right", classes) + f"1,2,3:4,5,6:{label}\n"
        write(tmp_path / f"Toy_{name}.ts", text)
    data = UEA(str(tmp_path)).read()
    assert data.classes == ("left", "right")
    assert data.labels.tolist() == [1, 0]


def test_what_a_folder_must_have(tmp_path: Path) -> None:
    folder = tmp_path / "Toy"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"Toy: has neither, expected NAME_TRAIN.ts and NAME_TEST.ts"):
        UEA(str(folder)).load()
    write(folder / "Toy_TRAIN.ts", HEAD + "1,2,3:4,5,6:left\n")
    write(folder / "Toy_TEST.ts", HEAD.replace("left right", "left up") + "1,2,3:4,5,6:up\n")
    with pytest.raises(ValueError, match=r"TEST.ts: has classes \('left', 'up'\), expected \('left', 'right'\) as "):
        UEA(str(folder)).load()
    write(folder / "Toy_TEST.ts", HEAD.replace("@dimensions 2", "@dimensions 1") + "1,2,3:left\n")
    with pytest.raises(ValueError, match=r"TEST.ts: has dimensions 1, expected 2 as "):
        UEA(str(folder)).load()
    with pytest.raises(ValueError, match=r"UEA: kind is 'multilabel' and per_step False, expected 'classification' or"):
        UEA(str(folder), kind="multilabel")


def test_the_recipe_trains_on_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "EigenWorms"
    assert load_recipe("uea", [f"task.path={folder}"]).task.shape == (5, None, 6, "classifier")
    assert load_recipe("uea", [f"task.path={folder}", "task.time=true"]).task.shape.n_features == 7
    assert len(PUBLISHED) == 6
    assert TASKS["uea"] is UEA
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part in ("TRAIN", "TEST"):
        rows = [[",".join(f"{x:.3f}" for x in rng.standard_normal(3)) for _ in "ab"] for _ in range(9)]
        lines = [":".join([*row, "left"]) for row in rows]
        write(folder / f"EigenWorms_{part}.ts", HEAD + "\n".join(lines) + "\n")
    few = ("training.steps=2", "training.eval_every=1", "model.d_model=4")
    recipe = load_recipe("uea", [f"task.path={folder}", *few])
    assert estimate(recipe, 2).steps_run == 2
