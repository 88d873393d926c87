"""Training with sequences that go on from batch to batch: what is fed, the state that is carried on, and resuming."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_parallel import among

from rotrnn.models.build import ModelSettings, build_model, make_layer
from rotrnn.nn import LAYERS
from rotrnn.nn.layer import astype, flatten, flatten_state, zero_state
from rotrnn.tasks import Language, Regular, WordProblem
from rotrnn.tasks.task import Carry
from rotrnn.tasks.word_problem import group
from rotrnn.training.loader import Loader
from rotrnn.training.loop import Trainer, train
from rotrnn.training.recipe import Recipe, Training, load_recipe
from rotrnn.training.run import Run
from rotrnn.training.step import Stepper
from small_models import sizes_of
from toy import contents

CLASSES = {
    "parity": lambda bits: sum(bits) % 2,
    "even_pairs": lambda bits: int(bits[0] != bits[-1]),
    "cycle": lambda moves: (sum(moves) - len(moves)) % 4,
}
EPS = np.finfo(np.float64).eps
TRAINING = Training(batch=7, steps=40)
WORDS = WordProblem("S3", length=4, samples=400, shorter="all", test_length=9, test=10, carry=0.7)
SMALL = (
    "model.d_model=8",
    "training.batch=6",
    "training.steps=8",
    "training.eval_every=4",
    "task.group=S3",
    "task.length=5",
    "task.samples=600",
    "task.val_fraction=0.02",
    "task.test_length=12",
    "task.test=40",
    "task.carry=0.8",
)


def small_recipe(layer: str = "lru", *more: str):
    own = {
        "lru": ("layer.d_state=4", "model.n_layers=2"),
        "lstm": ("layer.d_state=8",),
        "bedouin": ("layer.d_state=2",),
        "attention": ("layer.heads=2", "model.block=transformer"),
    }[layer]
    with warnings.catch_warnings(action="ignore"):  # the recipe's settings for its own layer are dropped
        return load_recipe("word-problem", [*SMALL, f"model.layer={layer}", "optimiser.no_decay=[]", *own, *more])


def steps_of(loader: Loader, steps: range):
    for step in steps:
        yield loader.parts(step)[0]


def test_a_word_goes_on_until_its_row_begins_anew() -> None:
    """The label of each element is the product of all elements since BOS."""
    G, loader = group("S3"), Loader(WORDS.load().train, TRAINING)
    table = np.array([[G.states(np.array([[a, b]]))[0, 1] for b in range(6)] for a in range(6)])
    products, begun, gone_on = [0] * 7, 0, 0
    for step, part in enumerate(steps_of(loader, range(60))):
        assert part.batch.lengths is not None
        for row in range(7):
            size = part.batch.lengths[row]
            tokens, labels = part.batch.inputs[row, :size], part.batch.labels[row, :size]
            assert (part.batch.labels[row, size:] == -1).all()
            if part.new[row]:
                begun += 1
                products[row] = 0
                assert tokens[0] == labels[0] == G.bos
                tokens, labels = tokens[1:], labels[1:]
            else:
                gone_on += 1
            assert 2 <= len(tokens) <= 4
            for token, label in zip(tokens, labels, strict=True):
                products[row] = table[products[row], token]
                assert label == products[row]
        assert step or part.new.all()
    # 59 steps of 7 rows go on with chance 0.7: four standard deviations
    assert abs(gone_on - 0.7 * 413) < 4 * np.sqrt(413 * 0.21)
    assert begun + gone_on == 420


@pytest.mark.parametrize("language", ["parity", "even_pairs", "cycle"])
def test_a_string_goes_on_until_its_row_begins_anew(language: str) -> None:
    split = Regular(language, modulus=4, max_length=6, carry=0.8).load().train
    strings: list[list[int]] = [[] for _ in range(7)]
    for part in steps_of(Loader(split, TRAINING), range(40)):
        for row, size in enumerate(part.batch.lengths):
            strings[row] = [*([] if part.new[row] else strings[row]), *part.batch.inputs[row, :size].tolist()]
            assert part.batch.labels[row, size - 1] == CLASSES[language](strings[row])
            assert (np.delete(part.batch.labels[row], size - 1) == -1).all()


def test_a_loader_that_starts_late_or_on_several_processes_feeds_the_same() -> None:
    split = WORDS.load().train
    straight = list(steps_of(Loader(split, TRAINING), range(70)))  # beyond the first epoch
    late = list(steps_of(Loader(split, TRAINING), range(63, 70)))
    for one, other in zip(straight[63:], late, strict=True):
        for a, b in zip(one.batch, other.batch, strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(one.new, other.new)

    def run(world):
        parts = Loader(split, Training(batch=7, steps=40, accumulate=2), world).parts(63)
        return [(part.rows, part.new, part.batch) for part in parts]

    whole = straight[63]
    for shares in among(2, run):
        for rows, new, batch in shares:
            T = batch.inputs.shape[1]
            np.testing.assert_array_equal(batch.inputs, whole.batch.inputs[rows, :T])
            np.testing.assert_array_equal(batch.labels, whole.batch.labels[rows, :T])
            np.testing.assert_array_equal(new, whole.new[rows])


def test_rows_go_on_after_so_many_steps() -> None:
    split = WordProblem("S3", length=4, samples=400, test_length=9, test=10, carry=0.9, carry_after=20).load().train
    new = [part.new for part in steps_of(Loader(split, TRAINING), range(40))]
    assert all(one.all() for one in new[:21])
    assert not any(one.all() for one in new[21:])


def test_the_mean_number_of_batches_of_a_sequence_rises_in_a_straight_line() -> None:
    carry = Carry(0.9, after=100, rise=400)
    assert [carry.chance_at(step) for step in (0, 100, 500, 10**6)] == [0, 0, 0.9, 0.9]
    means = [1 / (1 - carry.chance_at(step)) for step in range(100, 501)]
    np.testing.assert_allclose(means, 1 + 9 * np.arange(401) / 400, rtol=1e-12)
    assert Carry(0.9, after=100).chance_at(101) == 0.9


def test_rows_go_on_with_a_chance_that_rises() -> None:
    """Counts of rows that go on, within five standard deviations of a sum of independent draws."""
    settings = {"length": 4, "samples": 400, "test_length": 9, "test": 10}
    split = WordProblem("S3", **settings, carry=0.8, carry_after=5, carry_rise=60).load().train
    many = Training(batch=300, steps=80)
    loader = Loader(split, many)
    for step in (5, 6, 20, 40, 65, 79):
        chance = split.carry.chance_at(step)
        error = 5 * (300 * chance * (1 - chance)) ** 0.5
        assert abs(np.count_nonzero(~loader.new_rows(step)) - 300 * chance) <= error


@pytest.fixture
def text(tmp_path) -> Path:
    """A file of 200 bytes, so that chunks of 12 do not divide it."""
    path = tmp_path / "text.txt"
    path.write_bytes(np.random.default_rng(0).integers(97, 123, 200).astype(np.uint8).tobytes())
    return path


def test_a_text_is_read_on_until_its_row_begins_anew(text: Path) -> None:
    """A label is the next byte. At the end of the text, a row goes on at its beginning."""
    split = Language(str(text), 12, val_fraction=0, test_fraction=0, carry=0.9).load().train
    whole, places, wrapped = text.read_bytes(), [0] * 7, 0
    for part in steps_of(Loader(split, TRAINING), range(60)):
        inputs, labels, lengths = part.batch
        for row, size in enumerate(np.full(7, 12) if lengths is None else lengths):
            if part.new[row]:
                places[row] = whole.index(bytes(inputs[row, :size].tolist()))
                assert places[row] % 12 == 0
            at = places[row]
            assert bytes(inputs[row, :size].tolist()) == whole[at : at + size]
            assert bytes(labels[row, :size].tolist()) == whole[at + 1 : at + 1 + size]
            assert (labels[row, size:] == -1).all()
            assert size == min(12, 199 - at)
            places[row] = at + 12 if at + 12 < 199 else 0
            wrapped += places[row] == 0
    assert wrapped > 5


def language_recipe(text: Path, *more: str):
    """Griffin of RotRNN, whose attention to the last six bytes is carried on, too."""
    own = ("task.name=language", f"task.path={text}", "task.length=12", "task.carry=0.8", "task.val_fraction=0.2")
    few = ("training.batch=6", "training.steps=8", "training.eval_every=4", "training.dtype=float64")
    model = ("model.d_model=8", "model.n_layers=2", "model.attention_every=2", "model.attention_window=6")
    with warnings.catch_warnings(action="ignore"):
        return load_recipe("digits-griffin", [*own, *few, *model, "layer.d_state=8", "layer.heads=2", *more])


def test_a_text_that_is_read_on_is_read_as_if_it_were_never_cut(text: Path, tmp_path) -> None:
    """Without updates, the loss of each byte is that of one forward over all that its row has read since it began."""
    trainer = Trainer(language_recipe(text), Run(tmp_path), False)
    state = trainer.initial_state()
    read: list[list[int]] = [[] for _ in range(6)]
    for step in range(8):
        part = trainer.loader.parts(step)[0]
        inputs, labels, lengths = part.batch
        sizes = np.full(6, inputs.shape[1]) if lengths is None else lengths
        metrics, _, state.carried = trainer.stepper.gradients(state)
        losses = []
        for row, size in enumerate(sizes):
            read[row] = [*([] if part.new[row] else read[row]), *inputs[row, :size].tolist()]
            logits, _ = trainer.model.forward(state.params, np.array([read[row]]))
            losses.append(size * trainer.model.loss(logits[:, -size:], labels[row : row + 1, :size]).mean)
        assert abs(metrics["loss"] - sum(losses) / sizes.sum()) <= 1e4 * EPS * metrics["loss"]
        state.step += 1
    assert max(map(len, read)) > 36  # some row has gone on for several steps
    trainer.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"layer": "lstm", "block": "gated"},
        {"layer": "lru", "block": "griffin", "attention_every": 2, "attention_window": 5},
        {"layer": "min_gru", "block": "transformer"},
    ],
    ids=lambda settings: settings["layer"],
)
@pytest.mark.parametrize("chunks", [2, 3])
def test_a_gradient_through_chunks_is_that_of_one_long_chunk(settings: dict[str, Any], chunks: int) -> None:
    """From the same state: of the sum of the losses, each chunk's gradient of its first state handed to the one before.
    Gradients are sums of roundings of as many steps, in another order."""
    made = ModelSettings(d_model=8, n_layers=2, norm="layer", **settings)
    model = build_model(made, {"d_state": 6}, head="language", vocab=9, n_classes=9)
    rng = np.random.default_rng(0)
    params = astype(model.init(rng), np.float64)
    T = 7
    tokens = rng.integers(0, 9, (3, 5 + chunks * T + 1))
    start = model.forward(params, tokens[:, :5], state=model.zero_state(3, np.float64))[1].blocks.state
    inputs, labels = tokens[:, 5:-1], tokens[:, 6:]
    logits, saved = model.forward(params, inputs, state=start)
    _, whole, dstart = model.backward_all(params, saved, model.loss(logits, labels).dlogits)
    pieces, state = [], start
    for k in range(chunks):
        cut = slice(k * T, (k + 1) * T)
        logits, saved = model.forward(params, inputs[:, cut], state=state)
        pieces.append((saved, model.loss(logits, labels[:, cut]).dlogits / chunks))
        state = saved.blocks.state
    total: dict[str, Any] = {}
    dstate = None
    for saved, dlogits in reversed(pieces):
        _, grads, dstate = model.backward_all(params, saved, dlogits, dstate)
        total = {name: total.get(name, 0) + grad for name, grad in flatten(grads)}
    for name, grad in [*flatten(whole), *flatten_state(dstart)]:
        got = total[name] if name in total else dict(flatten_state(dstate))[name]
        np.testing.assert_allclose(got, grad, rtol=0, atol=1e4 * EPS * max(1.0, np.abs(grad).max()), err_msg=name)


def test_without_carry_nothing_changes() -> None:
    """The same examples in the same order, whole."""
    plain = Loader(WordProblem("S3", length=4, samples=400, test_length=9, test=10).load().train, TRAINING)
    carried = Loader(WordProblem("S3", length=4, samples=400, test_length=9, test=10, carry=0.5).load().train, TRAINING)
    for one, other in zip(steps_of(plain, range(5)), steps_of(carried, range(5)), strict=True):
        assert one.new is None
        for row in range(7):
            start = int(other.new[row])
            np.testing.assert_array_equal(one.batch.inputs[row, 1:], other.batch.inputs[row, start : start + 4])


@pytest.mark.filterwarnings("ignore::rotrnn.NotConverged")
@pytest.mark.parametrize("name", sorted(LAYERS))
def test_zeros_are_the_state_before_the_first_step(name: str) -> None:
    layer = make_layer(name, 4, sizes_of(name))
    if layer.state_lanes is None:
        with pytest.raises(ValueError, match=f"block 0: {type(layer).__name__} keeps every step, expected a layer"):
            zero_state("block 0", layer, 2, np.float64)
        return
    params = layer.init(np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((2, 5, 4)).astype(np.float32)
    y, saved = layer.forward(params, x)
    z, carried = layer.forward(params, x, state=zero_state("block 0", layer, 2, np.float32))
    np.testing.assert_array_equal(y, z)
    for (_, one), (_, other) in zip(flatten_state(saved.state), flatten_state(carried.state), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_state_that_is_carried_on_is_that_of_the_whole_sequences(tmp_path) -> None:
    """Without updates, the state after some steps is that of one forward over what each row has read since it began."""
    trainer = Trainer(small_recipe("lru", "training.dtype=float64"), Run(tmp_path), False)
    state = trainer.initial_state()
    read: list[list[int]] = [[] for _ in range(6)]
    for step in range(8):
        part = trainer.loader.parts(step)[0]
        for row, size in enumerate(part.batch.lengths):
            read[row] = [*([] if part.new[row] else read[row]), *part.batch.inputs[row, :size].tolist()]
        _, _, state.carried = trainer.stepper.gradients(state)
        state.step += 1
    assert max(map(len, read)) > 12  # some row has gone on for several steps
    for row, tokens in enumerate(read):
        _, saved = trainer.model.forward(state.params, np.array([tokens]))
        for (_, whole), (_, carried) in zip(
            flatten_state(saved.blocks.state), flatten_state(state.carried), strict=True
        ):
            # every step and product rounds by a few eps of numbers up to the largest
            atol = 64 * len(tokens) * EPS * np.abs(whole).max()
            np.testing.assert_allclose(carried[row], whole[0], rtol=0, atol=atol)
    trainer.close()


@pytest.mark.parametrize(
    ("layer", "dtype"), [("lru", "float32"), ("lru", "float64"), ("lstm", "float32"), ("bedouin", "float32")]
)
@pytest.mark.filterwarnings("ignore::rotrnn.NotConverged")
def test_a_run_resumes_to_the_same_bytes(layer: str, dtype: str, tmp_path) -> None:
    check_resuming(small_recipe(layer, "training.accumulate=2", f"training.dtype={dtype}"), tmp_path)


def test_a_run_that_reads_a_text_resumes_to_the_same_bytes(text: Path, tmp_path) -> None:
    check_resuming(language_recipe(text, "training.dtype=float32"), tmp_path)


def check_resuming(recipe: Recipe, tmp_path: Path) -> None:
    train(recipe, tmp_path / "straight", progress=False)
    original = Stepper.advance

    def advance(self, state):
        if state.step == 6:
            raise KeyboardInterrupt
        return original(self, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "advance", advance)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "run", progress=False)
    train(recipe, tmp_path / "run", resume=True, progress=False)
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")


def test_two_processes_train_as_one(tmp_path) -> None:
    recipe = small_recipe("lru", "training.dtype=float64")

    def run(world):
        trainer = Trainer(recipe, Run(tmp_path / str(world.rank)), False, world)
        state = trainer.initial_state()
        for _ in range(6):
            trainer.stepper.advance(state)
        trainer.close()
        return state

    (one,), (first, second) = among(1, run), among(2, run)
    for (name, a), (_, b) in zip(flatten_state(first.carried), flatten_state(second.carried), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    for wanted, found in ((one.params, first.params),):
        for (name, a), (_, b) in zip(flatten(wanted), flatten(found), strict=True):
            # AdamW divides by the root of the second moment, so a rounding of 1e-16 may grow to 1e-8 in six steps
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-8, err_msg=name)


def test_a_state_without_numbers_goes_between_processes() -> None:
    """Mamba without a convolution keeps nothing of past inputs, (B, 0, I)."""

    def run(world):
        layer = ("layer.d_state=2", "layer.d_conv=1", "layer.expand=2")
        with warnings.catch_warnings(action="ignore"):
            recipe = load_recipe("word-problem", [*SMALL, "model.layer=mamba", "optimiser.no_decay=[]", *layer])
        trainer = Trainer(recipe, Run(Path("unused")), False, world)
        state = trainer.initial_state()
        for _ in range(3):
            trainer.stepper.advance(state)
        trainer.close()
        return [leaf.shape for _, leaf in flatten_state(state.carried)]

    (one,), (first, second) = among(1, run), among(2, run)
    assert one == first == second
    assert (6, 0, 16) in one


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (("task.carry=1.0",), r"WordProblem: carry is 1\.0, expected a chance, at least 0 and below 1"),
        (("task.carry=-0.1",), r"carry is -0\.1"),
        (("task.carry_after=-1",), "carry_after is -1, expected a number of steps"),
        (("task.carry_rise=-1",), "carry_rise is -1, expected a number of steps"),
        (("task.carry=0", "task.carry_rise=5"), r"carry_rise is 5 with carry 0, expected a carry above 0"),
        (
            ("task.carry=0", "task.carry_after=5"),
            r"WordProblem: carry_after is 5 with carry 0, expected a carry above 0",
        ),
    ],
)
def test_wrong_chances(overrides: tuple[str, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        small_recipe("lru", *overrides)


def test_what_cannot_be_carried_on(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"Regular: carry is 0\.5, expected 0 with 'arithmetic'"):
        Regular("arithmetic", carry=0.5)
    keeps = "^task.carry: block 0: Attention keeps every step, expected a layer with a state of fixed"
    with pytest.raises(ValueError, match=keeps):
        train(small_recipe("attention"), tmp_path / "run", progress=False)
    message = r"^training\.skip is 3 with task\.carry 0\.8, expected one of them to be 0: after a step that is left out"
    with pytest.raises(ValueError, match=message):
        train(small_recipe("lru", "training.skip=3"), tmp_path / "run", progress=False)
    train(small_recipe("lru"), tmp_path / "run", progress=False)  # the folder is as free as it was


def test_a_run_too_short_for_any_sequence_to_go_on_says_so(tmp_path) -> None:
    """The first step in which one can is that after `carry_after`."""
    message = r"^task\.carry_after is 7, training\.steps is 8: no sequence goes on \(task\.carry is 0\.8\)$"
    with pytest.warns(UserWarning, match=message):
        train(small_recipe("lru", "task.carry_after=7"), tmp_path / "none", progress=False)
    with warnings.catch_warnings(action="error"):
        train(small_recipe("lru", "task.carry_after=6"), tmp_path / "last", progress=False)


def test_runs_without_carry_keep_their_digest() -> None:
    """A checkpoint from before there was this setting belongs to the same recipe: the digest of a run of then, whose
    file has no `tied` and no `scale_embedding` either."""
    digests = {}
    for carry in (0.0, 0.5):
        recipe = small_recipe("lru", f"task.carry={carry}")
        stated = recipe.tables()
        del stated["model"]["tied"], stated["model"]["scale_embedding"]
        digests[carry] = recipe.digest(stated)
    assert digests[0.0] == "6d857033947c54cf783fe25cff97794a730c53aa9866e71de8bcefb88502f1c3"
    assert digests[0.5] != digests[0.0]


def test_a_setting_of_ones_own_task_that_begins_alike_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, digests = small_recipe(), set()
    tables = recipe.tables()
    for bits in (1, 2):
        task = {"name": "sums", "carry_bits": bits}
        monkeypatch.setattr(type(recipe), "tables", lambda self, task=task: tables | {"task": task})
        digests.add(recipe.digest())
    assert len(digests) == 2
