"""Models with each head and block: gradients, ignored labels, sampling, and streaming inference."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn.models.build import HEADS, ModelSettings, build_model
from rotrnn.models.files import load
from rotrnn.models.model import IGNORED, SequenceModel
from rotrnn.models.tagger import Choice, LanguageModel, draw
from rotrnn.nn.layer import Context, Params, astype
from rotrnn.nn.layers.bidirectional import Bidirectional
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.module import spelled_out
from rotrnn.ops.pointwise import flip
from small_models import check_loss

EPS = np.finfo(np.float64).eps
LENGTHS = np.array([9, 4, 1, 6])
V, F, C, B, T = 7, 2, 3, 4, 9


def model_of(head: str, *, features: bool = False, layer: str = "lru", **settings: Any) -> SequenceModel:
    chosen = ModelSettings(layer=layer, d_model=5, n_layers=2, **settings)
    source = {"n_features": F} if features else {"vocab": V}
    own = {"lru": {"d_state": 3}, "rotrnn": {"d_state": 6, "heads": 2}}[layer]
    return build_model(chosen, own, head=head, n_classes=V if chosen.tied or head == "language" else C, **source)


def data_of(head: str, features: bool = False) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    shape = (B, 2, T) if head == "retrieval" else (B, T)
    inputs = rng.standard_normal((*shape, F)) if features else rng.integers(0, V, shape)
    if head == "tagger":
        labels = rng.integers(0, C, (B, T))
        labels[0, 3:5] = IGNORED
    elif head == "bits":
        labels = rng.integers(0, 2, (B, T, C))
        labels[0, 3:5] = labels[1, 2, 1] = IGNORED
    elif head == "language":
        labels = LanguageModel.targets(inputs, LENGTHS)
    else:
        labels = rng.integers(0, C, B)
    return inputs, labels


def lengths_of(head: str) -> Any:
    return np.stack([LENGTHS, LENGTHS[::-1]], 1) if head == "retrieval" else LENGTHS


def prepared(model: SequenceModel) -> Params:
    return astype(model.init(np.random.default_rng(0)), np.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "features", "settings"),
    [
        ("tagger", False, {"norm": "layer"}),
        ("tagger", True, {"glu": "gelu", "dropout": 0.3}),
        ("bits", True, {"norm": "layer", "final_norm": True}),
        ("bits", False, {"dropout": 0.3}),
        ("language", False, {"block": "plain", "norm": "layer", "final_norm": True, "dropout": 0.3}),
        ("language", False, {"block": "plain", "norm": "rms", "final_norm": True, "tied": True}),
        ("tagger", False, {"norm": "layer", "tied": True}),
        ("retrieval", False, {"norm": "layer", "glu": "half1"}),
        ("retrieval", True, {"pool": "last"}),
        ("classifier", True, {"prenorm": False}),
        ("classifier", False, {"prenorm": False, "norm": "layer", "final_norm": True}),
        ("classifier", False, {"block": "transformer", "dropout": 0.3}),
        ("tagger", False, {"block": "transformer", "norm": "layer", "layer": "rotrnn", "final_norm": True}),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value),
)
def test_gradient_of_the_whole_model(head: str, features: bool, settings: dict[str, Any]) -> None:
    model = model_of(head, features=features, **settings)
    ctx = Context(lengths=lengths_of(head), train=True, seed=5, step=3)
    check_loss(model, prepared(model), *data_of(head, features), ctx)


def test_loss_of_a_tagger_is_the_mean_over_labels_that_count() -> None:
    model = model_of("tagger")
    inputs, labels = data_of("tagger")
    logits, _ = model.forward(prepared(model), inputs, Context(lengths=LENGTHS))
    rows = [(b, t) for b in range(B) for t in range(LENGTHS[b]) if labels[b, t] != IGNORED]
    z = np.stack([logits[b, t] for b, t in rows])
    picked = np.array([labels[b, t] for b, t in rows])
    expected = float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), picked]))
    loss = model.loss(logits, labels, LENGTHS)
    assert loss.total == model.count(labels, LENGTHS) == len(rows)
    assert loss.right.sum() == int((z.argmax(1) == picked).sum())
    assert abs(loss.mean - expected) <= 50 * EPS
    counted = np.zeros((B, T), bool)
    counted[tuple(np.array(rows).T)] = True
    assert not loss.dlogits[~counted].any()


def test_loss_of_bits_is_the_mean_over_those_that_count() -> None:
    """Compares with minus the logarithms of probabilities, one bit at a time, and with a tagger of the classes 0 and
    1."""
    model, classes = model_of("bits"), model_of("tagger")
    _, labels = data_of("bits")
    logits = np.random.default_rng(3).standard_normal((B, T, C))
    places = [
        (b, t, k) for b, t, k in np.ndindex(B, T, C) if t < LENGTHS[b] and labels[b, t, k] != IGNORED
    ]  # fmt: skip
    one = 1 / (1 + np.exp(-logits))
    expected = -np.mean([np.log(one[at] if labels[at] else 1 - one[at]) for at in places])
    loss = model.loss(logits, labels, LENGTHS)
    assert loss.total == model.count(labels, LENGTHS) == len(places)
    assert abs(loss.mean - expected) <= 50 * EPS
    assert loss.counted.shape == loss.right.shape == (B, T, C)
    assert sorted(map(tuple, np.argwhere(loss.counted))) == places
    assert sorted(map(tuple, np.argwhere(loss.right))) == [at for at in places if (one[at] > 0.5) == labels[at]]
    wanted = np.zeros_like(logits)
    for at in places:
        wanted[at] = (one[at] - labels[at]) / len(places)
    np.testing.assert_allclose(loss.dlogits, wanted, rtol=0, atol=4 * EPS / len(places))

    # a softmax over two logits, as minimal-LRU has it: their difference alone counts
    shift = np.random.default_rng(4).standard_normal((B, T, C))
    both = np.stack([shift, shift + logits], -1).reshape(B, T * C, 2)
    flat = labels.copy()
    flat[np.arange(T) >= LENGTHS[:, None]] = IGNORED
    other = classes.loss(both, flat.reshape(B, T * C))
    assert abs(loss.mean - other.mean) <= 50 * EPS
    np.testing.assert_allclose(loss.dlogits.ravel(), other.dlogits[..., 1].ravel(), rtol=0, atol=8 * EPS / len(places))
    np.testing.assert_array_equal(model.answers(logits).ravel(), classes.answers(both).ravel())


def test_labels_are_checked() -> None:
    model = model_of("tagger")
    logits, labels = np.zeros((2, 3, C)), np.zeros((2, 3), np.int64)
    for bad, message in (
        ((logits, labels, [3, 4]), r"Tagger.loss: lengths\[1\] is 4, expected an integer from 0 to T=3"),
        ((logits, labels[:, 0]), r"Tagger.loss: labels has shape \(2,\), expected \(B, T\)"),
        ((logits, labels[:1]), r"Tagger.loss: logits has shape \(2, 3, 3\), expected \(B=1, T=3, C\)"),
        ((logits, labels - 1), "Tagger.loss: labels has none that counts"),
    ):
        with pytest.raises(ValueError, match=message):
            model.loss(*bad)
    bits, ones = model_of("bits"), np.ones_like(logits, np.int64)
    for bad, message in (
        ((logits, ones, [3, 4]), r"BitTagger.loss: lengths\[1\] is 4, expected an integer from 0 to T=3"),
        ((logits, labels), r"BitTagger.loss: labels has shape \(2, 3\), expected \(B, T, K\)"),
        ((logits, ones[..., :1]), r"BitTagger.loss: logits has shape \(2, 3, 3\), expected \(B=2, T=3, K=1\)"),
        ((logits, ones, [0, 0]), "BitTagger.loss: labels has none that counts"),
        ((logits, 2 * ones), r"BitTagger.loss: labels\[0, 0, 0\] is 2, expected an integer from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            bits.loss(*bad)
    with pytest.raises(TypeError, match=r"LanguageModel.targets: tokens has dtype float64"):
        LanguageModel.targets(np.zeros((1, 2)))
    settings = ModelSettings(layer="lru", d_model=5, n_layers=1)
    for sizes in ({"vocab": 0, "n_classes": 2}, {"n_features": 0, "n_classes": 2}, {"vocab": 2, "n_classes": 0}):
        with pytest.raises(ValueError, match=r"build_model: (vocab|n_features|n_classes) is 0, expected a positive"):
            build_model(settings, {"d_state": 3}, **sizes)
    with pytest.raises(ValueError, match="build_model: n_classes is 3, expected vocab=2"):
        build_model(settings, {"d_state": 3}, head="language", vocab=2, n_classes=3)
    with pytest.raises(ValueError, match="build_model: layer has d_model=4, expected 5"):
        build_model(settings, LRU(4, 3), vocab=2, n_classes=3)
    with pytest.raises(ValueError, match=r"Bidirectional: layer=LRU\(.*expected a layer with a single direction"):
        Bidirectional(5, LRU(5, 3, bidirectional=True))


def test_targets_are_the_next_tokens() -> None:
    tokens = np.array([[1, 2, 3, 4], [5, 6, 0, 0]])
    assert LanguageModel.targets(tokens).tolist() == [[2, 3, 4, -1], [6, 0, 0, -1]]
    assert LanguageModel.targets(tokens, np.array([4, 2])).tolist() == [[2, 3, 4, -1], [6, -1, -1, -1]]


def test_two_towers_share_everything() -> None:
    """Swapping the documents exchanges u and v and flips the sign of u - v, nothing else."""
    model = model_of("retrieval", norm="layer")
    params = prepared(model)
    inputs, _ = data_of("retrieval")
    logits, _ = model.forward(params, inputs, Context(lengths=lengths_of("retrieval")))
    w = params["hidden"]["w"].reshape(5, 4, 5)
    swapped = np.stack([w[:, 1], w[:, 0], -w[:, 2], w[:, 3]], 1).reshape(5, 20)
    other = {**params, "hidden": {**params["hidden"], "w": swapped}}
    again, _ = model.forward(other, inputs[:, ::-1], Context(lengths=lengths_of("retrieval")[:, ::-1]))
    np.testing.assert_allclose(again, logits, rtol=0, atol=100 * EPS)
    with pytest.raises(ValueError, match=r"Retrieval.forward: inputs has shape \(4, 9\), expected"):
        model.forward(params, inputs[:, 0])


SETTINGS: list[dict[str, Any]] = [
    {"norm": "batch"},
    {"norm": "layer", "pool": "last", "glu": "half2"},
    {"block": "transformer", "layer": "rotrnn", "final_norm": True},
    {"prenorm": False, "glu": "gelu"},
]


@pytest.mark.parametrize("features", [False, True], ids=["tokens", "features"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("head", ["classifier", "tagger", "bits"])
@pytest.mark.parametrize("engine", ["c", "python"])
def test_a_stream_says_what_forward_says(
    engine: str, head: str, settings: dict[str, Any], features: bool, tmp_path: Path
) -> None:
    """Token by token, in chunks, both mixed, ragged, and over a save and load in between."""
    model = model_of(head, features=features, **settings)
    stream_of = functools.partial(model.stream, batch=B, engine=engine)
    params = prepared(model)
    inputs, _ = data_of(head, features)
    full, _ = model.forward(params, inputs)
    close = {"rtol": 0, "atol": 1e4 * EPS}  # a few hundred operations on numbers of size one, in another order
    stream = stream_of(params)
    assert stream.engine == engine
    for cuts in ([*range(T + 1)], [0, 4, 9], [0, 1, 5, 6, 9]):
        stream.reset()
        pieces = []
        for first, last in itertools.pairwise(cuts):
            piece = inputs[:, first] if last - first == 1 else inputs[:, first:last]
            logits = stream.push(piece)
            pieces.append(logits[:, None] if last - first == 1 else logits)
            if first == 4:
                stream.save(tmp_path / "state.safetensors")
                stream = stream_of(params)
                stream.load(tmp_path / "state.safetensors")
        assert stream.tokens.tolist() == [T] * B
        if head == "classifier":
            np.testing.assert_allclose(np.squeeze(pieces[-1]), full, **close)
        else:
            np.testing.assert_allclose(np.concatenate(pieces, 1), full, **close)
    ragged = stream_of(params)
    ragged.push(inputs[:, :3], lengths=np.minimum(LENGTHS, 3))
    logits = ragged.push(inputs[:, 3:], lengths=np.maximum(LENGTHS - 3, 0))
    expected, _ = model.forward(params, inputs, Context(LENGTHS))
    assert ragged.tokens.tolist() == LENGTHS.tolist()
    np.testing.assert_allclose(logits, expected if head == "classifier" else expected[:, 3:], **close)


@pytest.mark.parametrize("first", [1, 6])
def test_a_stream_of_a_window_is_saved_and_loaded(first: int, tmp_path: Path) -> None:
    """After a load the state is a plain tuple of arrays. A single token and a chunk continue from it with the same
    bits."""
    model = build_model(ModelSettings("lru", 5, 2), {"d_state": 3, "window": 4}, head="tagger", n_classes=C, vocab=V)
    params = prepared(model)
    inputs, _ = data_of("tagger")
    stream = model.stream(params, B)
    stream.push(inputs[:, 0] if first == 1 else inputs[:, :first])
    stream.save(tmp_path / "state.safetensors")
    for rest in (inputs[:, first], inputs[:, first:]):
        answers = []
        for _ in range(2):
            loaded = model.stream(params, B)
            loaded.load(tmp_path / "state.safetensors")
            answers.append(loaded.push(rest))
        np.testing.assert_array_equal(*answers)
        expected = model.forward(params, inputs)[0][:, first:]
        found = answers[0][:, None] if rest.ndim == 1 else answers[0]
        np.testing.assert_allclose(found, expected[:, : found.shape[1]], rtol=0, atol=1e4 * EPS)


def _set(name: str, value: Any) -> Any:
    def change(arrays: dict[str, Any], facts: dict[str, Any]) -> None:
        arrays[name][...] = value

    return change


def _replace(name: str, array: Any) -> Any:
    def change(arrays: dict[str, Any], facts: dict[str, Any]) -> None:
        if array is None:
            del arrays[name], facts["dtypes"][name]
        else:
            arrays[name] = array
            facts["dtypes"][name] = array.dtype.name

    return change


def _say(**said: Any) -> Any:
    def change(arrays: dict[str, Any], facts: dict[str, Any]) -> None:
        facts |= said

    return change


def _say_dtype(name: str, dtype: Any) -> Any:
    def change(arrays: dict[str, Any], facts: dict[str, Any]) -> None:
        facts["dtypes"][name] = dtype

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _set("state.0.0.2", 2**63 - 1),
            "state.0.0.2 is 9223372036854775807, expected a number of steps from 0 to 9007",
        ),
        (_set("state.0.1.2", -1), "state.0.1.2 is -1, expected a number of steps from 0"),
        (_set("state.1.1", 2**53 + 1), "state.1.1 is 9007199254740993, expected"),
        (_set("tokens", -1), "tokens is -1, expected a number of steps from 0"),
        (_replace("tokens", np.zeros(B)), "has no tokens, expected the number of tokens"),
        (_replace("tokens", np.zeros((B, 1), np.int64)), "has no tokens"),
        (_replace("state.0.0.2", np.full(B, 2**64 - 1, np.uint64)), "state.0.0.position has dtype uint64, expected"),
        (_replace("state.0.0.2", np.zeros(B)), "state.0.0.position has dtype float64, expected an integer dtype"),
        (_replace("state.0.0.2", np.zeros(B - 1, np.int64)), r"state.0.0.position has shape \(3,\), expected \(B=4,\)"),
        (_replace("state.0.0.0", np.zeros((B, 5, 3))), "state.0.0.delay has dtype float64, expected complex64 or"),
        (_replace("state.0.1.0", None), "a state has the parts 1, 2, expected 0 to 1"),
        (_replace("state.0.0.2", None), "state.0.0 is a tuple of 2, expected a tuple of 3"),
        (_replace("state.0.2", np.zeros(2)), "state.0 has 3 states, expected one for each of 2 blocks"),
        (_replace("state.0.0", np.zeros(2)), "state.0.0.0: is inside another array"),
        (_replace("state.2", np.zeros(2)), "is not a tuple of the states of the stack and of the head"),
        (_replace("zzz", np.zeros(2)), "has zzz, which is not expected"),
        (_replace("state" + ".0" * 40, np.zeros(2)), "a state is nested at most 32 deep"),
        (_replace("state.1.0", np.zeros((B, 6))), r"state.1.mean has shape \(4, 6\), expected \(B=4, 5\)"),
        (_say(dtypes=None), "does not list the dtypes of its arrays"),
        (_say(dtypes={}), "does not list the dtypes of its arrays"),
        (_say_dtype("state.0.0.0", "complex64"), "state.0.0.0 has dtype float64 .* which does not hold 'complex64'"),
        (_say_dtype("state.0.0.0", 3), "state.0.0.0 has dtype float64 .* which does not hold 3"),
        (_say_dtype("state.1.0", "complex128"), "state.1.0 has dtype float64 .* which does not hold 'complex128'"),
        (_say(stream=3), "is from a model with other settings"),
    ],
)
def test_a_crafted_state_is_refused_with_the_name_of_its_array(change: Any, message: str, tmp_path: Path) -> None:
    """The checksum is right. What is refused leaves the stream as it was."""
    model = build_model(ModelSettings("lru", 5, 2), {"d_state": 3, "window": 4}, n_classes=C, vocab=V)
    stream = model.stream(prepared(model), B, engine="python")
    inputs, _ = data_of("classifier")
    stream.push(inputs[:, :3])
    path = tmp_path / "state.safetensors"
    stream.save(path)
    arrays, facts = read_checkpoint(path)
    change(arrays, facts)
    write_checkpoint(path, arrays, facts)
    before = stream.state, stream.tokens
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{message}"):
        stream.load(path)
    assert (stream.state, stream.tokens) == before


@pytest.mark.parametrize(("window", "places"), [(None, 2), (3, -1)])
def test_places_of_attention_lie_among_its_keys(window: int | None, places: int, tmp_path: Path) -> None:
    """With a window there are window - 1 keys from the beginning, so that only a negative number is wrong."""
    model = build_model(ModelSettings("attention", 4, 1), {"window": window}, head="tagger", n_classes=C, vocab=V)
    stream = model.stream(prepared(model), B, engine="python")
    stream.push(data_of("tagger")[0][:, :1])
    path = tmp_path / "state.safetensors"
    stream.save(path)
    arrays, facts = read_checkpoint(path)
    arrays["state.0.0.2"][1] = places
    write_checkpoint(path, arrays, facts)
    message = rf"state.0.0.places is \[ ?1 +{places} +1 +1\], expected the number of steps so far"
    with pytest.raises(ValueError, match=message):
        stream.load(path)


def test_a_stream_says_what_is_wrong(tmp_path: Path) -> None:
    model = model_of("tagger")
    params = prepared(model)
    stream = model.stream(params, B)
    inputs, _ = data_of("tagger")
    with pytest.raises(ValueError, match=r"Stream.push: inputs has shape \(3,\), expected \(B,\) or \(B, T\) with B=4"):
        stream.push(inputs[:3, 0])
    with pytest.raises(ValueError, match="got lengths with a single step"):
        stream.push(inputs[:, 0], lengths=[1, 1, 1, 1])
    for batch in (0, 2**47 + 1, 10**18, 2**70):
        with pytest.raises(ValueError, match=f"Stream: batch is {batch}, expected an integer from 1 to {2**47}"):
            model.stream(params, batch)
    stream.push(inputs)
    path = tmp_path / "state.safetensors"
    stream.save(path)
    with pytest.raises(ValueError, match="holds 4 sequences, expected 1"):
        model.stream(params).load(path)
    other = model_of("tagger", norm="layer")
    with pytest.raises(ValueError, match="model with other settings"):
        other.stream(prepared(other), B).load(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="is truncated"):
        stream.load(path)
    with pytest.raises(FileNotFoundError):
        stream.load(tmp_path / "nothing")
    chosen = ModelSettings(layer="lru", d_model=5, n_layers=1)
    both = build_model(chosen, {"d_state": 3, "bidirectional": True}, n_classes=C, vocab=V)
    for engine in ("auto", "c", "python"):
        with pytest.raises(ValueError, match=r"^Stream: a bidirectional layer cannot run step by step, exp"):
            both.stream(prepared(both), B, engine)
    pairs = model_of("retrieval")
    with pytest.raises(ValueError, match="pairs does not support streaming inference"):
        pairs.stream(prepared(pairs), B).push(inputs)
    with pytest.raises(ValueError, match="bidirectional layer, expected a layer that runs forward"):
        build_model(chosen, {"d_state": 3, "bidirectional": True}, head="language", n_classes=V, vocab=V)
    with pytest.raises(ValueError, match=f"head is 'poet', expected one of {', '.join(HEADS)}"):
        build_model(chosen, {"d_state": 3}, head="poet", n_classes=V, vocab=V)


def test_files_and_states_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)  # a long path would be cut
    model = model_of("tagger")
    params = prepared(model)
    stream = model.stream(params, B, "python")
    bad = {"": "''", "f/\0x": r"'f/\\x00x'", "folder": "'folder', a folder"}
    calls: dict[str, Any] = {
        "Tagger.save": lambda path: model.save(path, params),
        "load": load,
        "Stream.save": stream.save,
        "Stream.load": stream.load,
    }
    for (name, call), (path, got) in itertools.product(calls.items(), bad.items()):
        with pytest.raises(ValueError, match=f"^{name}: path is {got}, expected the path of a file$"):
            call(path)
    dtypes: tuple[Any, ...] = ("x", "int32", "float16", "complex64", None)
    for dtype in dtypes:
        with pytest.raises(TypeError, match=f"^zero_state: dtype is {dtype!r}, expected float32 or float64$"):
            model.zero_state(2, dtype)


def test_features_that_do_not_fit_are_named_as_they_were_passed() -> None:
    model = build_model(ModelSettings("lru", 4, 1), {"d_state": 3}, head="tagger", n_classes=C, n_features=3)
    for engine, shape in itertools.product(("c", "python"), ((2, 4), (2, 5, 4), (2, 3, 1))):
        message = re.escape(f"Stream.push: inputs has shape {shape}, expected (B, F) or (B, T, F) with B=2, F=3")
        with pytest.raises(ValueError, match=f"^{message}$"):
            model.stream(prepared(model), 2, engine).push(np.zeros(shape))


def test_samples_follow_the_models_probabilities() -> None:
    """Greedy tokens are those of forward on the tokens sampled so far; samples depend on the seed; their frequencies
    are the softmax."""
    model = model_of("language", norm="layer")
    assert isinstance(model, LanguageModel)
    params = prepared(model)
    prompt, _ = data_of("language")
    tokens = model.sample(params, prompt, 6, temperature=0)
    text = np.concatenate([prompt, tokens], 1)
    logits, _ = model.forward(params, text)
    np.testing.assert_array_equal(logits[:, T - 1 : -1].argmax(2), tokens)
    drawn = model.sample(params, prompt, 6, seed=1)
    np.testing.assert_array_equal(drawn, model.sample(params, prompt, 6, seed=1))
    assert np.any(drawn != model.sample(params, prompt, 6, seed=2))
    np.testing.assert_array_equal(model.sample(params, prompt, 6, top_k=1), tokens)

    n = 20_000
    z = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    share = np.bincount(draw(np.random.default_rng(0), np.tile(z, (n, 1)), Choice()), minlength=4) / n
    p = np.exp(z)
    assert np.all(np.abs(share - p) <= 4 * np.sqrt(p * (1 - p) / n))  # four standard errors
    two = np.bincount(draw(np.random.default_rng(0), np.tile(z, (n, 1)), Choice(top_k=2)), minlength=4) / n
    assert two[2:].sum() == 0
    for bad in ({"temperature": -1.0}, {"temperature": np.inf}, {"temperature": np.nan}, {"top_k": 0}):
        with pytest.raises(ValueError, match=r"LanguageModel.sample: (temperature|top_k)"):
            model.sample(params, prompt, 1, **bad)
    with pytest.raises(ValueError, match="prompt has shape"):
        model.sample(params, prompt[0], 1)


def test_dropout_over_time_reaches_every_dropout_of_a_block() -> None:
    for block in ("gated", "plain", "transformer"):
        settings = spelled_out(model_of("tagger", block=block, dropout=0.5, dropout_over_time=True).stack)
        assert "over_time=True" in settings
        assert "over_time=False" not in settings


def test_a_flip_reverses_what_is_valid() -> None:
    x = np.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_array_equal(flip(x), x[:, ::-1])
    for lengths in (np.array([2, 0]), [2, 0]):
        ragged = flip(x, lengths)
        np.testing.assert_array_equal(ragged[0], x[0, [1, 0, 2]])
        np.testing.assert_array_equal(ragged[1], x[1])
    with pytest.raises(ValueError, match="Bidirectional: d_model=4, expected 3"):
        Bidirectional(4, LRU(3, 2))


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_the_eps_of_norms_can_be_set(norm: str) -> None:
    def norms(**settings: Any) -> set[float]:
        chosen = ModelSettings(layer="lru", d_model=4, n_layers=1, norm=norm, final_norm=True, **settings)
        model = build_model(chosen, {"d_state": 3}, n_classes=C, vocab=V)
        return {one.eps for one in (model.norm, model.stack.blocks[0].norm)}  # type: ignore[attr-defined]

    assert norms() == {1e-5}
    assert norms(norm_eps=1e-6) == {1e-6}
    with pytest.raises(ValueError, match=r"model\.norm_eps: got 0\.0, expected a positive number"):
        norms(norm_eps=0.0)
