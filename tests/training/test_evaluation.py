"""Accuracies of whole splits and curves over length, compared with loops over the sequences."""

from __future__ import annotations

import numpy as np
import pytest

from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.model import Loss, SequenceModel
from rotrnn.models.tagger import BitTagger
from rotrnn.nn.blocks.block import ResidualStack
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.layer import astype
from rotrnn.tasks.digits import Digits
from rotrnn.tasks.task import Batch, Split, Task
from rotrnn.training.evaluation import confusion, contraction, evaluate, inference_gap

N, T, CLASSES = 23, 6, 3


class Tagged(Split):
    """Random tags for sequences of 1 to T tokens; some do not count. The tokens are the answers of the model."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.answers = rng.integers(0, CLASSES, (N, T))
        self.lengths = rng.integers(1, T + 1, N)
        self.labels = np.where(rng.random((N, T)) < 0.7, self.answers, (self.answers + 1) % CLASSES)
        self.labels[rng.random((N, T)) < 0.2] = -1
        self.labels[np.arange(T) >= self.lengths[:, None]] = -1
        self.labels[:, 0] = self.answers[:, 0]  # at least one counts
        self.labels[3] = -1  # but here none

    def __len__(self):
        return N

    def batch(self, index, dtype=np.float32):
        return Batch(self.answers[index], self.labels[index], self.lengths[index])


class Echo:
    """A model that answers with its inputs; the loss of a label that counts is its class."""

    def forward(self, params, inputs, ctx):
        return inputs, None

    def count(self, labels, lengths):
        return np.count_nonzero(labels >= 0)

    def loss(self, logits, labels, lengths, weights):
        counted = labels >= 0
        return Loss(float(labels[counted].mean()), np.zeros(0), counted, counted & (logits == labels))


def task_of(split, **settings):
    return Task("tagged", split, split, split, CLASSES, CLASSES, None, head="tagger", **settings)


@pytest.mark.parametrize("batch", [1, 4, 100])
@pytest.mark.parametrize("curve", [None, "length", "prefix"])
@pytest.mark.parametrize("bos", [False, True])
def test_accuracies_and_curves_are_those_of_a_loop(batch, curve, bos):
    split = Tagged()
    found = evaluate(
        Echo(), {}, task_of(split, curve=curve, bos=bos, chance=1 / 3), split, batch=batch, dtype="float64"
    )
    rows = [
        [(t, split.labels[i, t] == split.answers[i, t]) for t in range(T) if split.labels[i, t] >= 0] for i in range(N)
    ]
    right = [ok for row in rows for _, ok in row]
    whole = [all(ok for _, ok in row) for row in rows]
    counted = split.labels[split.labels >= 0]
    assert found["accuracy"] == np.mean(right)
    assert found["sequence_accuracy"] == np.mean(whole)
    assert found["n"] == N
    assert found["scaled_accuracy"] == pytest.approx((np.mean(right) - 1 / 3) / (2 / 3), rel=1e-12)
    assert found["loss"] == pytest.approx(counted.mean(), rel=1e-12)
    if curve is None:
        assert "curve" not in found
        return
    table = {row[0]: row[1:] for row in zip(*found["curve"].values(), strict=True)}
    assert list(found["curve"]) == ["length", "n", "accuracy", "sequence_accuracy"]
    if curve == "length":
        assert set(table) == set(split.lengths)
        for length, (n, accuracy, sequence_accuracy) in table.items():
            there = np.flatnonzero(split.lengths == length)
            assert n == len(there)
            assert accuracy == np.mean([ok for i in there for _, ok in rows[i]])
            assert sequence_accuracy == np.mean([whole[i] for i in there])
    else:
        assert list(table) == list(range(1, T if bos else T + 1))
        for length, (n, accuracy, sequence_accuracy) in table.items():
            t = length if bos else length - 1
            there = [i for i in range(N) if split.labels[i, t] >= 0]
            assert n == len(there)
            assert accuracy == np.mean([split.labels[i, t] == split.answers[i, t] for i in there])
            assert sequence_accuracy == np.mean([all(ok for s, ok in rows[i] if s <= t) for i in there])


def test_scaled_accuracy_is_of_sequences_beyond_those_of_training():
    split = Tagged()
    above = int(np.median(split.lengths))

    def found(limit):
        settings = {"curve": "length", "chance": 1 / 3, "scaled_above": limit}
        return evaluate(Echo(), {}, task_of(split, **settings), split, batch=4, dtype="float64")

    longer = split.lengths > above
    assert 0 < longer.sum() < N
    counted = (split.labels >= 0) & longer[:, None]
    accuracy = np.mean((split.labels == split.answers)[counted])
    assert found(above)["scaled_accuracy"] == pytest.approx((accuracy - 1 / 3) / (2 / 3), rel=1e-12)
    assert found(above)["scaled_above"] == above
    assert found(above)["accuracy"] == found(None)["accuracy"]
    assert found(0)["scaled_accuracy"] == found(None)["scaled_accuracy"] != found(above)["scaled_accuracy"]
    assert "scaled_accuracy" not in found(int(split.lengths.max()))
    assert "scaled_above" not in found(None)


def test_a_missing_validation_split_is_reported():
    split, other = Tagged(), Tagged()
    assert task_of(split).selected_on == "training"
    assert Task("tagged", other, split, split, CLASSES, CLASSES, None).selected_on == "test"
    task = Task("tagged", split, other, split, CLASSES, CLASSES, None)
    assert task.selected_on == "validation"


class Sure(Echo):
    """As `Echo`, with logits (B, T, C)."""

    of_classes = True

    def forward(self, params, inputs, ctx):
        return np.eye(CLASSES)[inputs], None

    answers = SequenceModel.answers

    def loss(self, logits, labels, lengths, weights):
        return super().loss(self.answers(logits), labels, lengths, weights)


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_confusion_counts_every_label_that_counts(batch):
    split = Tagged()
    expected = np.zeros((CLASSES, CLASSES), int)
    for i in range(N):
        for t in range(T):
            if split.labels[i, t] >= 0:
                expected[split.labels[i, t], split.answers[i, t]] += 1
    found = confusion(Sure(), {}, task_of(split), split, batch=batch, dtype="float64")
    np.testing.assert_array_equal(found, expected)


def test_what_is_answered_by_nan_is_wrong_and_no_class():
    """argmax of NaN would be class 0: NaN must not count as this class."""

    class Partly(Sure):
        def forward(self, params, inputs, ctx):
            logits, saved = super().forward(params, inputs, ctx)
            logits[inputs == 0] = np.nan
            return logits, saved

    split = Tagged()
    sure = confusion(Sure(), {}, task_of(split), split, batch=4, dtype="float64")
    found = confusion(Partly(), {}, task_of(split), split, batch=4, dtype="float64")
    assert sure[:, 0].sum() > 0
    np.testing.assert_array_equal(found[:, 0], 0)
    np.testing.assert_array_equal(found[:, 1:], sure[:, 1:])


@pytest.mark.parametrize("head", ["classifier", "tagger", "bits"])
def test_nan_is_not_a_right_answer(head):
    model = build_model(
        ModelSettings(layer="lru", d_model=2, n_layers=1), {"d_state": 2}, head=head, n_classes=3, vocab=2
    )
    logits, labels = {
        "classifier": (np.full((2, 3), np.nan), np.zeros(2, int)),
        "tagger": (np.full((2, 4, 3), np.nan), np.zeros((2, 4), int)),
        "bits": (np.full((2, 4, 3), np.nan), np.zeros((2, 4, 3), int)),
    }[head]
    found = model.loss(logits, labels)
    assert np.isnan(found.mean)
    assert not found.right.any()


class Bits(Split):
    """Random bits for sequences of 1 to T steps, some of which do not count; the features are the logits of the
    answers."""

    def __init__(self):
        rng = np.random.default_rng(1)
        self.logits = rng.standard_normal((N, T, CLASSES))
        self.lengths = rng.integers(1, T + 1, N)
        self.labels = np.where(rng.random((N, T, CLASSES)) < 0.8, self.logits > 0, self.logits <= 0).astype(int)
        self.labels[rng.random((N, T, CLASSES)) < 0.2] = -1
        self.labels[rng.random((N, T)) < 0.3] = -1
        self.labels[np.arange(T) >= self.lengths[:, None]] = -1
        self.labels[0] = -1  # a sequence where none counts
        self.lengths[0] = T

    def __len__(self):
        return N

    def batch(self, index, dtype=np.float32):
        return Batch(self.logits[index].astype(dtype), self.labels[index], self.lengths[index])


class Passing(BitTagger):
    """A head for bits whose inputs are its logits."""

    @property
    def modules(self):
        return {}

    def forward(self, params, inputs, ctx):
        return inputs, None


@pytest.mark.parametrize("batch", [1, 5, 100])
@pytest.mark.parametrize("curve", ["length", "prefix"])
def test_bits_are_those_of_a_loop(batch, curve):
    """A step is right if all of its bits that count are right; a step without such bits is ignored."""
    split, model = Bits(), Passing(Dense(CLASSES, 1), ResidualStack(()), Dense(1, CLASSES))
    task = Task("bits", split, split, split, CLASSES, None, CLASSES, head="bits", curve=curve)
    found = evaluate(model, {}, task, split, batch=batch, dtype="float64")
    places = [place for place in np.ndindex(N, T, CLASSES) if split.labels[place] >= 0]
    right = {place: (split.logits[place] > 0) == split.labels[place] for place in places}
    whole = [all(ok for place, ok in right.items() if place[0] == i) for i in range(N)]
    assert found["accuracy"] == np.mean(list(right.values()))
    assert found["sequence_accuracy"] == np.mean(whole)
    assert found["n"] == N
    table = {row[0]: row[1:] for row in zip(*found["curve"].values(), strict=True)}
    if curve == "length":
        assert set(table) == set(split.lengths)
        for length, (n, accuracy, sequence_accuracy) in table.items():
            there = np.flatnonzero(split.lengths == length)
            oks = [ok for place, ok in right.items() if place[0] in there]
            assert (n, accuracy) == (len(there), np.mean(oks) if oks else 0)
            assert sequence_accuracy == np.mean([whole[i] for i in there])
    else:
        for length, (n, accuracy, sequence_accuracy) in table.items():
            t = length - 1
            there = sorted({i for i, s, _ in places if s == t})
            assert (n, accuracy) == (len(there), np.mean([ok for place, ok in right.items() if place[1] == t]))
            so_far = [all(ok for (j, s, _), ok in right.items() if j == i and s <= t) for i in there]
            assert sequence_accuracy == np.mean(so_far)
    counts = np.zeros((2, 2), int)
    for place in places:
        counts[split.labels[place], int(split.logits[place] > 0)] += 1
    np.testing.assert_array_equal(confusion(model, {}, task, split, batch=batch, dtype="float64"), counts)


def test_confusion_of_a_classifier_is_its_accuracy():
    task = Digits().load()
    model = model_of("lru", {})
    params = model.init(np.random.default_rng(0))
    counts = confusion(model, params, task, task.val, batch=50, dtype="float32")
    assert counts.sum(1).tolist() == np.bincount(task.val.labels, minlength=10).tolist()
    found = evaluate(model, params, task, task.val, batch=50, dtype="float32")
    assert counts.trace() / counts.sum() == pytest.approx(found["accuracy"])


def model_of(layer, settings):
    return build_model(
        ModelSettings(layer=layer, d_model=8, n_layers=2, norm="layer"),
        {"d_state": 4, **settings},
        n_classes=10,
        n_features=1,
    )


class Waves(Split):
    """Sequences of one feature, of 4 or 9 steps."""

    def __init__(self) -> None:
        self.inputs = np.random.default_rng(0).standard_normal((N, 9, 1))

    def __len__(self):
        return N

    def batch(self, index, dtype=np.float32):
        return Batch(self.inputs[index].astype(dtype), np.zeros(len(index), int), np.where(index % 2, 4, 9))


def test_contraction_counts_the_norms_of_the_maps_of_tokens():
    model = model_of("fixed_point", {"contractive": True, "tol": 1e-3})
    params = model.init(np.random.default_rng(0))
    found = contraction(model, params, Waves(), batch=8, dtype="float32")
    assert [one["block"] for one in found] == list(range(len(found)))
    for one in found:
        assert one["tokens"] == 4 * (4 + 9)
        assert sum(one["shares"]) == pytest.approx(1)
        assert one["above"] == 0
        assert 0 < one["median"] <= one["largest"] <= 0.95  # |1 - lam| |I - Q|
        assert 1 < one["iterations"] <= one["most"]
        assert one["residual"] < 1e-3
    model = model_of("lru", {})
    params = model.init(np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"contraction: \w+ has no fixed points, expected a layer that iterates"):
        contraction(model, params, Waves(), batch=8, dtype="float32")


def test_one_step_after_the_other_is_the_whole_but_for_the_tolerance():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 12, 1))
    model = model_of("lru", {})
    params = astype(model.init(rng), "float64")
    gap = inference_gap(model, params, x)
    assert gap.shape == (12,)
    assert gap.max() < 1e-13  # float64: some hundred roundings of numbers below the largest
    gaps = {}
    for tol in (1e-1, 1e-6):
        model = model_of("fixed_point", {"tol": tol})
        params = astype(model.init(np.random.default_rng(2)), "float64")
        gaps[tol] = inference_gap(model, params, x).max()
    assert 0 < gaps[1e-6] < 1e-3 * gaps[1e-1]
