"""The copy task: form of the examples, labelled positions, packed rows, distribution of lengths."""

import re
import string

import numpy as np
import pytest

from rotrnn.tasks import Copy

N = 20_000
CHARACTERS = string.ascii_lowercase + "$|."


def text(tokens):
    return "".join(CHARACTERS[token] for token in tokens)


def answers(labels):
    """Returns the labels as text, `_` where there is none."""
    return "".join("_" if label < 0 else CHARACTERS[label] for label in labels)


def rows(split, n):
    batch = split.batch(np.arange(n))
    lengths = [batch.inputs.shape[1]] * n if batch.lengths is None else batch.lengths.tolist()
    for x, y, length in zip(batch.inputs.tolist(), batch.labels.tolist(), lengths, strict=True):
        yield text(x[:length]), answers(y[:length])


# ---- examples, read from their text alone ----


def prompt_of(example, settings, variant=None):
    """Returns how many characters of a complete example precede its answer; AssertionError if it is not of the
    variant."""
    variant = variant or settings.variant
    g, a = settings.gram, settings.answer
    if variant in ("copy", "duplicate"):
        s, answer = re.fullmatch(r"\$([a-z]+)\|([a-z]+)\.", example).groups()
        assert answer == (s[:a] if a else s)
        return len(s) + 2
    if variant == "prefix":
        q, s, answer = re.fullmatch(r"\$([a-z]+)\|([a-z]+)\|([a-z]+)\.", example).groups()
        prompt = len(q) + len(s) + 3
    else:
        s, question = re.fullmatch(r"\$([a-z]+)\|([a-z]+)\.", example).groups()
        q, answer = question[:g], question[g:]
        prompt = len(s) + g + 2
    assert len(q) == g
    rest = s[s.index(q) + g :]
    assert answer == (rest[:a] if a else rest)
    assert answer
    return prompt


def labelled(example, prompt, *, whole):
    """Returns the text of the labels of an example at the beginning of a row."""
    answer = example[prompt:] if whole else example[prompt:-1]
    return ("_" * (prompt - 1) + answer).ljust(len(example), "_")


FORMS = [
    {},
    {"answer": 4},
    {"variant": "prefix"},
    {"variant": "prefix", "gram": 1, "letters": 3, "answer": 3},
    {"variant": "suffix"},
    {"variant": "suffix", "gram": 2, "answer": 1, "letters": 5},
    {"test_variant": "duplicate"},
    {"test_variant": "duplicate", "gram": 2, "letters": 4},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_packed_rows(form):
    """A row is whole examples, each with its answer and its `.` labelled, and the beginning of one more, with nothing
    labelled: the label of a place is the token after it."""
    settings = Copy(min_length=8, max_length=20, context=150, test_min_length=8, **form)
    kinds = set()
    letters = CHARACTERS[: settings.letters]
    table = str.maketrans(letters + CHARACTERS[26:], CHARACTERS[: settings.letters] + CHARACTERS[26:])
    names = (*letters, "$", "|", ".")
    batch = settings.load().train.batch(np.arange(200))
    assert batch.lengths is None
    assert batch.inputs.shape == (200, 150)
    for x, y in zip(batch.inputs.tolist(), batch.labels.tolist(), strict=True):
        row = "".join(names[token] for token in x).translate(table)
        expected = ""
        *examples, tail = row.split(".")
        for example in examples:
            example += "."
            prompt = prompt_of(example, settings)
            expected += labelled(example, prompt, whole=True)
            kinds.add(len(example))
        expected += "_" * len(tail)
        assert "".join("_" if label < 0 else names[label] for label in y) == expected
        assert re.match(r"\$|$", tail)
    assert len(kinds) > 5


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_evaluation_rows(form):
    settings = Copy(
        min_length=8, max_length=20, context=150, test_min_length=9, test_max_length=40, test_each=7, **form
    )
    task = settings.load()
    names = (*CHARACTERS[: settings.letters], "$", "|", ".")
    for split, low, high, variant in (
        (task.val, 8, 20, settings.variant),
        (task.test, 9, 40, settings.test_variant or settings.variant),
    ):
        batch = split.batch(np.arange(len(split)))
        lengths = split.curve_lengths(np.arange(len(split)), batch)
        np.testing.assert_array_equal(lengths, np.repeat(np.arange(low, high + 1), len(split) // (high + 1 - low)))
        for x, y, size, length in zip(batch.inputs, batch.labels, batch.lengths, lengths, strict=True):
            example = "".join(names[token] for token in x[:size])
            prompt = prompt_of(example, settings, variant)
            got = "".join("_" if label < 0 else names[label] for label in y[:size])
            assert got == labelled(example, prompt, whole=False)
            strings = re.findall("[a-z]+", example)
            assert length == len(strings[1 if variant == "prefix" else 0])


def test_rows_of_one_length():
    """Strings of 20 letters: 5 whole examples of 43 characters and 5 more in 220, and 21 labels each."""
    task = Copy(min_length=20, max_length=20, context=220).load()
    for row, labels in rows(task.train, 50):
        assert row.count(".") == 5
        assert [len(part) for part in row.split(".")] == [42] * 5 + [5]
        assert len(labels.replace("_", "")) == 5 * 21


def test_an_example_that_fits_exactly_is_whole():
    """Two examples of 43 tokens in a row of 86: there is no incomplete example."""
    for row, labels in rows(Copy(min_length=20, max_length=20, context=86).load().train, 5):
        assert row.endswith(".")
        assert labels.endswith("._")
        assert len(labels.replace("_", "")) == 2 * 21


def test_a_longer_context_continues_a_shorter_one():
    short, long = (Copy(context=context).load().train.batch(np.arange(20)) for context in (110, 300))
    np.testing.assert_array_equal(long.inputs[:, :110], short.inputs)
    assert (long.labels[:, :109][short.labels[:, :109] >= 0] == short.labels[short.labels >= 0]).all()


def test_lengths_and_letters_are_uniform():
    """Of the first example of each row: shares of lengths and letters within 5 deviations."""
    task = Copy(min_length=5, max_length=12, context=28).load()
    strings = [re.match(r"\$([a-z]+)\|", row)[1] for row, _ in rows(task.train, N)]
    lengths = np.bincount([len(s) for s in strings], minlength=13) / N
    expected = np.repeat([0, 1 / 8], [5, 8])
    assert (np.abs(lengths - expected) <= 5 * np.sqrt(expected * (1 - expected) / N)).all()
    joined = "".join(strings)
    shares = np.array([joined.count(letter) for letter in string.ascii_lowercase]) / len(joined)
    assert (np.abs(shares - 1 / 26) <= 5 * np.sqrt(1 / 26 * (25 / 26) / len(joined))).all()


@pytest.mark.parametrize(("answer", "places"), [(0, 12 - 3 - 2), (4, 12 - 3 - 4 - 2)])
def test_questions_are_asked_at_uniform_places(answer, places):
    """Strings of 12 letters, questions of 3 (published code leaves out the last two places where one could stand): each
    place within 5 deviations, where 250 letters make it improbable (12 / 250^3) that a stretch occurs twice."""
    lengths = {"min_length": 12, "max_length": 12, "context": 28, "val_each": N, "test_min_length": 12}
    settings = Copy(variant="suffix", letters=250, answer=answer, **lengths)
    batch = settings.load().val.batch(np.arange(N))
    strings, questions = batch.inputs[:, 1:13], batch.inputs[:, 14:17]
    windows = np.lib.stride_tricks.sliding_window_view(strings, 3, axis=1)
    where = (windows == questions[:, None]).all(2).argmax(1)
    share = np.bincount(where, minlength=places) / N
    assert len(share) == places
    assert (np.abs(share - 1 / places) <= 5 * np.sqrt(1 / places * (1 - 1 / places) / N)).all()


def test_a_repeated_stretch_replaces_another():
    """The strings of "duplicate" are those of "copy" with one part overwritten by another part."""
    of = {"letters": 26, "gram": 3, "test_min_length": 12, "test_max_length": 12, "test_each": 300}
    plain, twice = (
        Copy(**of, test_variant=variant).load().test.batch(np.arange(300)).inputs for variant in ("", "duplicate")
    )
    changed = 0
    for one, other in zip(plain.tolist(), twice.tolist(), strict=True):
        s, t = text(one[1:13]), text(other[1:13])
        stretches = [s[i : i + 3] for i in range(8)]
        assert t in {s.replace(old, new) for old in stretches for new in stretches}
        changed += s != t
    assert changed == 300  # two places, never the same one


def test_defaults():
    task = Copy().load()
    assert (task.vocab, task.n_classes, task.metric, task.curve) == (29, 29, "accuracy", "length")
    assert (len(task.val), len(task.test)) == (46 * 16, 96 * 64)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "duplicate"}, "variant is 'duplicate', expected copy, prefix, suffix"),
        ({"test_variant": "suffix"}, "test_variant is 'suffix' and variant is 'copy', expected"),
        ({"variant": "suffix", "test_variant": "duplicate"}, "test_variant is 'duplicate' and variant is 'suffix'"),
        ({"min_length": 0}, "min_length is 0, expected an integer from 1"),
        ({"answer": 6}, "min_length is 5, expected at least answer = 6 for variant copy"),
        ({"variant": "prefix"}, r"min_length is 5, expected at least gram \+ answer \+ 3 = 6 for variant prefix"),
        ({"max_length": 4}, "max_length is 4, expected an integer from 5 to 4096"),
        ({"context": 103}, "context is 103, expected an integer from 104"),
        ({"letters": 251}, "letters is 251"),
        ({"test_max_length": 4}, "test_max_length is 4"),
        ({"test_variant": "duplicate"}, "test_min_length is 5, expected at least .* = 6 for variant duplicate"),
        ({"gram": 0}, "gram is 0"),
        ({"train": 0}, "train is 0"),
        ({"seed": 2**63}, "seed is"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=f"Copy: {message}"):
        Copy(**settings)


def test_the_longest_strings_there_is_room_for():
    longest = 4096
    lengths = {"min_length": longest, "max_length": longest, "context": 2 * longest + 4, "val_each": 1}
    tests = {"test_min_length": longest, "test_max_length": longest, "test_each": 1}
    for variant in ("copy", "prefix", "suffix"):
        settings = Copy(variant=variant, gram=100, **lengths, **tests)
        task = settings.load()
        for split in (task.train, task.val):
            ((row, _),) = rows(split, 1)
            assert prompt_of(row[: row.index(".") + 1], settings) > longest
