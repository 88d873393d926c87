"""Language models that draw tokens: nucleus, stop token, prompts of different lengths; tied heads."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotrnn
from rotrnn.models.build import HEADS, TYING, ModelSettings, build_model
from rotrnn.models.tagger import Choice, draw
from rotrnn.nn.blocks.dense import TiedDense
from rotrnn.nn.layer import astype, flatten

V, D, B, T = 7, 6, 3, 5
SETTINGS = ModelSettings("mamba", D, 2, norm="rms", block="plain", final_norm=True)
UNTIED: Any = build_model(SETTINGS, {"d_state": 3}, head="language", n_classes=V, vocab=V)
TIED: Any = build_model(replace(SETTINGS, tied=True), {"d_state": 3}, head="language", n_classes=V, vocab=V)
PROMPT = np.random.default_rng(0).integers(0, V, (B, T))


def params_of(model: Any) -> Any:
    """Parameters in float64 whose logits are some units apart."""
    params = astype(model.init(np.random.default_rng(1)), np.float64)
    params["encoder"]["table"] *= 4
    return params


def untied(params: Any) -> Any:
    """The parameters of the same model with a head of its own."""
    return params | {"head": {"w": params["encoder"]["table"].copy(), **params["head"]}}


def test_a_tied_head_is_the_table() -> None:
    params = params_of(TIED)
    assert params["head"].keys() == {"bias"}
    logits, saved = TIED.forward(params, PROMPT)
    expected, saved_apart = UNTIED.forward(untied(params), PROMPT)
    assert np.array_equal(logits, expected)
    dlogits = np.random.default_rng(2).standard_normal(logits.shape)
    _, whole, _ = TIED.backward_all(params, saved, dlogits)
    grads = dict(flatten(whole))
    apart = dict(flatten(UNTIED.backward(untied(params), saved_apart, dlogits)))
    assert grads.keys() == dict(flatten(params)).keys()
    for name, grad in grads.items():
        both = apart[name] + apart["head.w"] if name == "encoder.table" else apart[name]
        assert np.array_equal(grad, both), name
    for name, grad in flatten(TIED.backward(params, saved, dlogits)):
        assert np.array_equal(grad, grads[name]), name
    for engine in ("c", "python"):
        assert np.array_equal(
            TIED.stream(params, B, engine).push(PROMPT), UNTIED.stream(untied(params), B, engine).push(PROMPT)
        )


def test_a_tied_table_begins_as_a_matrix_of_the_head() -> None:
    """Its numbers have the variance 1 / D, to four standard errors of that of V D normal numbers."""
    settings = ModelSettings("min_gru", 50, 1, tied=True)
    model = build_model(settings, {"d_state": 2}, head="tagger", n_classes=200, vocab=200)
    table = model.init(np.random.default_rng(0))["encoder"]["table"]
    assert abs(50 * table.var() - 1) < 4 * (2 / table.size) ** 0.5


def test_a_tied_head_is_saved_once(tmp_path: Path) -> None:
    params = params_of(TIED)
    TIED.save(tmp_path / "m", params)
    model, loaded = rotrnn.load(tmp_path / "m")
    assert model == TIED
    assert "head.w" not in dict(flatten(loaded))


def test_a_tied_head_has_the_ids_as_classes() -> None:
    def tied(head: str, **sizes: int) -> None:
        build_model(replace(SETTINGS, tied=True), {"d_state": 3}, head=head, **sizes)

    for head in sorted(set(HEADS) - set(TYING)):
        with pytest.raises(ValueError, match=f"build_model: the settings are tied, expected tied=False .*'{head}'"):
            tied(head, n_classes=V, vocab=V)
    with pytest.raises(ValueError, match="build_model: n_classes is 6 and vocab 7, expected as many classes as token"):
        tied("tagger", n_classes=V - 1, vocab=V)
    with pytest.raises(
        ValueError, match="build_model: n_classes is 7 and vocab None, expected a model that reads token ids"
    ):
        tied("tagger", n_classes=V, n_features=V)


def test_a_tied_head_needs_the_table() -> None:
    with pytest.raises(ValueError, match=re.escape("Embedding(vocab=7, d_model=6), expected Embedding(8, 6)")):
        replace(UNTIED, head=TiedDense(D, V + 1))
    classifier: Any = build_model(SETTINGS, {"d_state": 3}, n_classes=V, vocab=V)
    with pytest.raises(ValueError, match="SequenceClassifier: head is a TiedDense, expected a Dense"):
        replace(classifier, head=TiedDense(D, V))
    tagger: Any = build_model(SETTINGS, {"d_state": 3}, head="tagger", n_classes=V, n_features=2)
    with pytest.raises(ValueError, match=r"Tagger: head is TiedDense\(.*but the encoder Dense"):
        replace(tagger, head=TiedDense(D, V))


def test_the_nucleus() -> None:
    """Shares 0.5, 0.3, 0.15 and 0.05 in another order: which are drawn at all, and how often."""
    p, n = np.array([0.15, 0.5, 0.05, 0.3]), 20_000
    logits = np.tile(np.log(p) + 2, (n, 1))
    for top_p, kept in ((0.3, [1]), (0.5, [1]), (0.51, [1, 3]), (0.8, [1, 3]), (0.9, [0, 1, 3]), (1.0, [0, 1, 2, 3])):
        share = np.bincount(draw(np.random.default_rng(0), logits, Choice(top_p=top_p)), minlength=4) / n
        expected = np.where(np.isin(np.arange(4), kept), p, 0) / p[kept].sum()
        assert np.all(np.abs(share - expected) <= 4 * np.sqrt(expected * (1 - expected) / n))  # four standard errors
    # at temperature 2 the shares are those of sqrt(p): 0.379 of the largest, so one is less than 0.5
    share = np.bincount(draw(np.random.default_rng(0), logits, Choice(2.0, top_p=0.5)), minlength=4)
    assert (share > 0).tolist() == [False, True, False, True]
    share = np.bincount(draw(np.random.default_rng(0), logits, Choice(top_k=2, top_p=0.6)), minlength=4)
    assert (share > 0).tolist() == [False, True, False, False]  # 0.5 / 0.8 is enough


def test_a_stop_token_ends_a_sequence() -> None:
    params = params_of(UNTIED)
    free = UNTIED.sample(params, PROMPT, 40, seed=3)
    stop = int(free[0, 2])
    tokens = UNTIED.sample(params, PROMPT, 40, seed=3, stop=stop)
    first = [row.tolist().index(stop) if stop in row else 40 for row in free]
    assert tokens.shape == (B, min(40, max(first) + 1))
    for row, whole, end in zip(tokens, free, first, strict=True):
        assert np.array_equal(row[: end + 1], whole[: end + 1][: len(row)])
        assert np.all(row[end + 1 :] == stop)
    alone = UNTIED.sample(
        params, PROMPT[:1], 40, temperature=0, stop=int(UNTIED.sample(params, PROMPT[:1], 1, temperature=0)[0, 0])
    )
    assert alone.shape == (1, 1)


def test_any_of_several_tokens_ends_a_sequence() -> None:
    """Each sequence repeats the one that ended it; a single one in a list is that token."""
    params = params_of(UNTIED)
    free = UNTIED.sample(params, PROMPT, 40, seed=3)
    stops = sorted({int(free[0, 2]), int(free[1, 4])})
    tokens = UNTIED.sample(params, PROMPT, 40, seed=3, stop=stops)
    first = [next((i for i, one in enumerate(row) if one in stops), 39) for row in free]
    assert tokens.shape == (B, max(first) + 1)
    for row, whole, end in zip(tokens, free, first, strict=True):
        assert np.array_equal(row[: end + 1], whole[: end + 1])
        assert np.all(row[end:] == row[end])
    one = UNTIED.sample(params, PROMPT, 40, seed=3, stop=stops[0])
    assert np.array_equal(one, UNTIED.sample(params, PROMPT, 40, seed=3, stop=np.array(stops[:1], np.int32)))
    assert np.array_equal(free, UNTIED.sample(params, PROMPT, 40, seed=3, stop=[]))


def test_min_p_and_the_repetition_penalty_are_those_of_transformers() -> None:
    """The definitions of MinPLogitsWarper and RepetitionPenaltyLogitsProcessor, token by token, on the logits of
    `forward` over all tokens so far. Draws are greedy, or by the same noise, so tokens are equal or not."""
    params, temperature, min_p, penalty, lengths = params_of(UNTIED), 0.8, 0.3, 8.0, np.array([5, 1, 3])
    drawn = UNTIED.sample(
        params, PROMPT, 12, seed=5, temperature=temperature, min_p=min_p, repetition_penalty=penalty, lengths=lengths
    )
    greedy = UNTIED.sample(params, PROMPT, 12, temperature=0, repetition_penalty=penalty, lengths=lengths)
    rng = np.random.default_rng(5)
    texts = [[list(prompt[:n]) for prompt, n in zip(PROMPT, lengths, strict=True)] for _ in range(2)]
    masked = 0
    for _ in range(12):
        noise = rng.gumbel(size=(B, V))
        for b in range(B):
            for which, text in enumerate(texts[i][b] for i in range(2)):
                scores = UNTIED.forward(params, np.array([text]))[0][0, -1].copy()
                for token in set(text):
                    scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
                if which == 1:
                    text.append(int(scores.argmax()))
                    continue
                p = np.exp(scores / temperature) / np.exp(scores / temperature).sum()
                masked += int((p < min_p * p.max()).sum())
                scores[p < min_p * p.max()] = -np.inf
                text.append(int((scores / temperature + noise[b]).argmax()))
    for tokens, every in ((drawn, texts[0]), (greedy, texts[1])):
        assert tokens.tolist() == [text[n:] for text, n in zip(every, lengths, strict=True)]
    assert masked
    assert not np.array_equal(greedy, UNTIED.sample(params, PROMPT, 12, temperature=0, lengths=lengths))
    plain = UNTIED.sample(params, PROMPT, 12, seed=5)
    assert np.array_equal(plain, UNTIED.sample(params, PROMPT, 12, seed=5, repetition_penalty=1, min_p=1e-300))


def test_prompts_of_different_lengths() -> None:
    """Greedy, so that a sequence's tokens do not depend on what is drawn for others."""
    params, lengths = params_of(UNTIED), np.array([5, 1, 3])
    tokens = UNTIED.sample(params, PROMPT, 9, temperature=0, lengths=lengths)
    for prompt, n, row in zip(PROMPT, lengths, tokens, strict=True):
        assert np.array_equal(UNTIED.sample(params, prompt[None, :n], 9, temperature=0)[0], row)


def test_tokens_come_one_by_one() -> None:
    params = params_of(UNTIED)
    drawn = UNTIED.generate(params, PROMPT, 10**9, seed=4, top_p=0.9)
    assert np.array_equal(
        np.stack([next(drawn) for _ in range(6)], 1), UNTIED.sample(params, PROMPT, 6, seed=4, top_p=0.9)
    )
    assert UNTIED.sample(params, PROMPT, 0).shape == (B, 0)


@pytest.mark.parametrize(("given", "message"), [
    ({"top_p": 0.0}, "top_p is 0.0, expected a number above 0, at most 1"),
    ({"top_p": 1.5}, "top_p is 1.5, expected a number above 0, at most 1"),
    ({"stop": V}, "stop is 7, expected"),
    ({"stop": -1}, "stop is -1, expected"),
    ({"stop": [0, V]}, r"stop\[1\] is 7, expected"),
    ({"min_p": 0.0}, "min_p is 0.0, expected a number above 0, at most 1"),
    ({"min_p": 1.5}, "min_p is 1.5, expected a number above 0, at most 1"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0, expected a positive number"),
    ({"lengths": np.array([1, 0, 2])}, "lengths has a 0, expected prompts of at least one token"),
    ({"lengths": np.array([1, 9, 2])}, "lengths"),
])  # fmt: skip
def test_what_does_not_fit_is_named(given: dict[str, Any], message: str) -> None:
    for name in ("sample", "generate"):
        with pytest.raises(ValueError, match=f"LanguageModel.{name}: {message}"):
            getattr(UNTIED, name)(params_of(UNTIED), PROMPT, 2, **given)
