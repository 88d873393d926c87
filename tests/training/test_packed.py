"""Training by packed rows (`training.packed`): losses, accuracies and gradients equal those of padded batches."""

from __future__ import annotations

import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rotrnn import Context, ModelSettings, build_model
from rotrnn.nn.layer import astype, flatten
from rotrnn.tasks import Batch, Split, Task, WordProblem
from rotrnn.training.loader import Loader
from rotrnn.training.loop import Trainer, train
from rotrnn.training.recipe import Recipe, Training, load_recipe
from rotrnn.training.reevaluation import reevaluate
from rotrnn.training.run import Run
from worlds import Threads

EPS = 2.0**-52
LENGTHS = 9, 2, 5, 1, 3, 7
N, T = len(LENGTHS), max(LENGTHS)
TERMS = 100 * N * T
"""A number is a sum over at most N T steps, and each has gone through about 100 rounded operations."""
SETTINGS = ("training.batch=6", "training.dtype=float64", "optimiser.no_decay=[]")


def close(got: Any, expected: Any, what: str) -> None:
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=TERMS * EPS * scale, err_msg=what)


@dataclass(frozen=True)
class Ragged(Split):
    """Random sequences with labels for a head, of the lengths above; padding holds numbers that must not count."""

    head: str

    def __len__(self) -> int:
        return N

    def batch(self, index: Any, dtype: npt.DTypeLike = np.float32) -> Batch:
        rng, n = np.random.default_rng(3), len(index)
        pairs = (2,) if self.head == "retrieval" else ()
        lengths = np.array(LENGTHS)[index]
        if pairs:
            lengths = np.stack([lengths, lengths[::-1]], 1)
        longest = int(lengths.max())
        ids = rng.integers(0, 4, (n, *pairs, longest))
        inputs = rng.standard_normal((n, longest, 2)).astype(dtype) if self.head.endswith("regressor") else ids
        labels = {
            "classifier": lambda: rng.integers(0, 4, n),
            "retrieval": lambda: rng.integers(0, 4, n),
            "autoencoder": lambda: rng.integers(-1, 4, (n, longest)),
            "tagger": lambda: rng.integers(-1, 4, (n, longest)),
            "language": lambda: rng.integers(-1, 4, (n, longest)),
            "bits": lambda: rng.integers(-1, 2, (n, longest, 4)),
            "multilabel": lambda: rng.integers(0, 2, (n, 4)),
            "regressor": lambda: rng.standard_normal((n, 4)),
            "step_regressor": lambda: rng.standard_normal((n, longest, 4)),
        }[self.head]()
        return Batch(inputs, labels, lengths)


def of_head(head: str) -> Task:
    split, numbers = Ragged(head), head.endswith("regressor")
    metric = "skill" if numbers else "accuracy"
    curve = "prefix" if head in ("tagger", "language") else None
    sizes = (4, None, 2) if numbers else (4, 4, None)
    return Task(head, split, split, split, *sizes, head=head, metric=metric, curve=curve)


class Given:
    """Settings of a task that is there."""

    def __init__(self, task: Task) -> None:
        self.task, self.shape = task, task

    def load(self) -> Task:
        return self.task


def recipe_of(*settings: str, packed: bool = False, task: Any = None, base: str = "listops-lru-small") -> Recipe:
    few = ("model.d_model=8", "layer.d_state=6", f"training.packed={str(packed).lower()}")
    with warnings.catch_warnings(action="ignore"):  # the recipe's settings for its own task are dropped
        recipe = load_recipe(base, [*SETTINGS, *few, *settings])
    if task is not None:
        object.__setattr__(recipe, "task", Given(task))
    return recipe


def step_and_score(recipe: Recipe, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The metrics of a step and those of an evaluation, and the gradients with the buffers after the step."""
    trainer = Trainer(recipe, Run(folder), False)
    with closing(trainer):
        state = trainer.initial_state()
        metrics, grads, _ = trainer.stepper.gradients(state)
        found = trainer.look(state.params, trainer.task.test)
        buffers = {name: array for name, array in flatten(state.params) if f"m.{name}" not in state.moments}
    return (metrics, found), dict(flatten(grads)) | buffers


def assert_same(packed: Recipe, padded: Recipe, folder: Path) -> None:
    (scores, arrays), (expected, wanted) = (step_and_score(one, folder) for one in (packed, padded))
    for got, want in zip(scores, expected, strict=True):
        assert got.keys() == want.keys()
        for key, value in want.items():
            if key == "curve":
                assert got[key] == value
            else:
                close(got[key], value, key)
    assert arrays.keys() == wanted.keys()
    for name, array in wanted.items():
        close(arrays[name], array, name)


HEADS = (
    *("classifier", "retrieval", "tagger", "language", "bits", "multilabel", "regressor", "step_regressor"),
    "autoencoder",
)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("more", ["model.norm=batch", "model.norm=layer", "model.dropout=0.3"])
def test_a_step_of_every_head_equals_the_padded_one(head: str, more: str, tmp_path: Path) -> None:
    both = (recipe_of(more, packed=packed, task=of_head(head)) for packed in (True, False))
    assert_same(*both, tmp_path)


RAGGED = {
    "listops": ("train=60", "val=6", "test=12", "max_depth=3", "min_length=3", "max_length=30"),
    "word_problem": (
        *("group=S3", "length=5", "shorter=all", "count_padding=false", "samples=60", "test_length=9", "test=12"),
    ),
    "brackets": ("train=60", "min_length=3", "max_length=9", "val=6", "test=12", "test_max_length=15"),
    "regular": (
        "train=60",
        "min_length=1",
        "max_length=9",
        "val_each=1",
        "test_min_length=3",
        "test_max_length=14",
        "test_each=1",
    ),
    "language": ("length=40", "val_fraction=0.3", "test_fraction=0.3"),
}


@pytest.mark.parametrize("name", RAGGED)
def test_a_step_of_a_ragged_task_equals_the_padded_one(name: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(np.random.default_rng(0).integers(97, 123, 700).astype(np.uint8).tobytes())
    task = [f"task.name={name}", *(f"task.{one}" for one in RAGGED[name])]
    task += [f"task.path={tmp_path / 'text'}"] * (name == "language")
    both = [recipe_of(*task, packed=packed) for packed in (True, False)]
    data = both[0].task.load()
    ragged = [one.batch(np.linspace(0, len(one) - 1, 6).astype(int)).lengths for one in (data.train, data.test)]
    assert any(one is not None and one.min() < one.max() for one in ragged)
    assert_same(*both, tmp_path)


@pytest.mark.parametrize("more", [("training.accumulate=2",), ("layer.bidirectional=true",)])
def test_steps_equal_the_padded_ones(more: tuple[str, ...], tmp_path: Path) -> None:
    """AdamW divides by at least `eps`: a step moves a parameter by at most its gradient's rounding times lr / eps more,
    and the gradients of later steps, of numbers below one, by about as much again."""
    states = []
    for packed in (True, False):
        recipe = recipe_of(*more, "optimiser.eps=1e-3", packed=packed, task=of_head("classifier"))
        with closing(Trainer(recipe, Run(tmp_path), False)) as trainer:
            state = trainer.initial_state()
            for _ in range(5):
                (record,) = trainer.stepper.advance(state)
            states.append((record, dict(flatten(state.params))))
    (one, got), (other, expected) = states
    off = 2**5 * TERMS * EPS * recipe.optimiser.lr / recipe.optimiser.eps
    assert abs(one["loss"] - other["loss"]) <= off
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=0, atol=off, err_msg=name)


@pytest.mark.slow
def test_a_packed_run_learns_ends_and_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = ["task.train=600", "task.val=30", "task.test=30", "task.max_length=20"]
    recipe = recipe_of(*task, "training.steps=12", "training.eval_every=6", packed=True)
    found = train(recipe, tmp_path / "run", progress=False)
    assert found["steps"] == 12
    calls, packed = [], Batch.packed
    monkeypatch.setattr(Batch, "packed", lambda batch, *how: calls.append(batch) or packed(batch, *how))
    ((_, again),) = reevaluate(Run(tmp_path / "run"), split="test", checkpoint="last")
    assert again == found["test"]["last"]
    assert len(calls) == 5  # of 30 sequences, 6 at a time
    assert train(recipe, tmp_path / "run", resume=True, progress=False) == found
    with pytest.raises(ValueError, match=r"training.packed is False, expected True as in the run's recipe"):
        train(recipe_of(*task, "training.steps=12", "training.eval_every=6"), tmp_path / "run", resume=True)


def test_runs_from_before_the_setting_have_their_digest() -> None:
    padded = recipe_of()
    before = {name: dict(table) for name, table in padded.tables().items()}
    del before["training"]["packed"]
    assert padded.digest() == padded.digest(before) != recipe_of(packed=True).digest()


def test_sequences_of_one_length_are_left_as_they_are() -> None:
    batch = Batch(np.zeros((2, 3), int), np.zeros(2, int), None)
    assert batch.packed(False) == (*batch, None, None)


def test_a_row_has_the_sequences_in_order() -> None:
    batch = Batch(np.arange(10).reshape(2, 5), -np.arange(10).reshape(2, 5), np.array([2, 4]))
    inputs, labels, lengths, cu_seqlens, dt = batch.packed(True, np.arange(10).reshape(2, 5))
    assert inputs.tolist() == [[0, 1, 5, 6, 7, 8]] == (-labels).tolist()
    assert lengths is None
    assert dt is not None
    assert dt.tolist() == inputs.tolist()
    assert cu_seqlens is not None
    assert cu_seqlens.tolist() == [0, 2, 6]
    pairs = Batch(np.arange(8).reshape(2, 2, 2), np.zeros(2, int), np.array([[2, 1], [0, 2]]))
    assert pairs.packed(False).inputs.tolist() == [[0, 1, 2, 6, 7]]
    assert pairs.packed(False).cu_seqlens.tolist() == [0, 2, 3, 3, 5]


def test_rows_are_refused_where_they_cannot_be() -> None:
    training = Training(batch=6, steps=1, packed=True)
    with pytest.raises(ValueError, match=r"^training.packed is true with 2 processes, expected false"):
        Loader(Ragged("tagger"), training, Threads(0, [None, None], None))
    carried = WordProblem("S3", length=4, samples=40, test_length=9, test=10, carry=0.5).load().train
    with pytest.raises(ValueError, match=r"^training.packed is true with task.carry above 0, expected false"):
        Loader(carried, training)


def test_a_row_of_pairs() -> None:
    """Retrieval takes a row of pair after pair, and returns gradients of it."""
    model = build_model(ModelSettings("lru", 8, 1), {"d_state": 4}, head="retrieval", n_classes=3, n_features=2)
    params, rng = astype(model.init(np.random.default_rng(0)), np.float64), np.random.default_rng(1)
    x, lengths = rng.standard_normal((2, 2, 5, 2)), np.array([[5, 1], [2, 4]])
    dlogits = rng.standard_normal((2, 3))
    row = Batch(x, np.zeros(2, int), lengths).packed(False)
    found = []
    for inputs, ctx in ((row.inputs, Context(cu_seqlens=row.cu_seqlens)), (x, Context(lengths))):
        logits, saved = model.forward(params, inputs, ctx)
        found.append((logits, *model.backward_all(params, saved, dlogits)[:2]))
    (logits, dx, grads), (padded, dpairs, expected) = found
    close(logits, padded, "logits")
    close(dx, Batch(dpairs, np.zeros(2, int), lengths).packed(False).inputs, "dx")
    for name, grad in flatten(expected):
        close(dict(flatten(grads))[name], grad, name)
    for wrong, ctx, message in (
        (
            row.inputs,
            Context(),
            r"inputs has shape \(1, 12, 2\), expected \(B, 2, T, F\), or \(1, T, F\) with cu_seqlens",
        ),
        (row.inputs, Context(cu_seqlens=[0, 2, 5, 12]), "cu_seqlens has 3 sequences, expected pairs, an even number"),
        (x, Context(cu_seqlens=[0, 2, 5]), "got cu_seqlens with B=4, expected one packed row, B=1"),
        (x, Context(reset=np.zeros((2, 5), bool)), r"got reset, expected lengths \(B, 2\), or cu_seqlens"),
    ):
        with pytest.raises(ValueError, match=f"^Retrieval.forward: {message}"):
            model.forward(params, wrong, ctx)
