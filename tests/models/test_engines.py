"""A stream's engines: the C library in Python against the library itself and against the layers' functions."""

from __future__ import annotations

import copy
import itertools
import pickle
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import librotrnn
from rotrnn import LRU, ModelSettings, _cpu, build_model
from rotrnn._cpu import MOST_STEPS
from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn._support.json import to_json
from rotrnn.models.listing import ModelListing, listed
from rotrnn.nn.fixed_points.iteration import NotConverged
from rotrnn.nn.layer import Params, astype
from rotrnn.nn.layers.diagonal import DiagonalFolding
from rotrnn.nn.registry import LAYERS

OWN: dict[str, dict[str, Any]] = {
    "lru": {"d_state": 6, "window": 4},
    "rotrnn": {"d_state": 6, "heads": 2},
    "rope_memory": {"d_state": 4, "length": 20},
    "s4": {"d_state": 4},
    "liquid_s4": {"d_state": 4, "kernel": "kb"},
    "mamba": {"d_state": 3},
    "mamba2": {"d_state": 3, "d_head": 4, "groups": 2},
    "mamba3": {"d_state": 5, "d_head": 4, "groups": 2},
    "lstm": {"d_state": 5},
    "gru": {"d_state": 5},
    "rg_lru": {"heads": 2},
    "linoss": {"d_state": 5},
    "aussm": {"d_state": 3},
    "slinoss": {"d_state": 3, "d_head": 4},
    "pd_ssm": {"d_state": 5},
    "mlstm": {"d_state": 3, "heads": 2},
    "slstm": {"d_state": 6, "heads": 2},
    "bedouin": {"d_state": 3, "tol": 1e-4},
}
F, C, B, T = 3, 4, 3, 120
each_layer = pytest.mark.parametrize("layer", OWN)


def made(layer: str, head: str = "tagger", tokens: bool = False, dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    """A model, its parameters, and inputs for it."""
    reads = {"vocab": 7} if tokens else {"n_features": F}
    model = build_model(ModelSettings(layer, 8, 2), OWN[layer], head=head, n_classes=C, **reads)
    rng = np.random.default_rng(1)
    x = rng.integers(0, 7, (B, T)) if tokens else rng.standard_normal((B, T, F)).astype(dtype)
    return model, astype(model.init(rng), dtype), x


@pytest.mark.parametrize("engine", ["c", "python"])
@each_layer
def test_the_last_logits_alone(layer: str, engine: str) -> None:
    """Those of all steps at each sequence's last one; the rows of C's products are rounded one by one."""
    model, params, x = made(layer, dtype=np.float64)
    every, last = (model.stream(params, B, engine) for _ in range(2))
    rows = np.arange(B)
    assert last.push(x[:, :0], last=True).tolist() == np.zeros((B, C)).tolist()
    for chunk, lengths in ((x[:, :70], None), (x[:, 70:80], np.array([3, 0, 10])), (x[:, 80:], None)):
        steps = np.full(B, chunk.shape[1]) if lengths is None else lengths
        expected = every.push(chunk, lengths)[rows, steps - 1] * (steps > 0)[:, None]
        got = last.push(chunk, lengths, last=True)
        if engine == "c":
            assert np.array_equal(got, expected)
        np.testing.assert_allclose(got, expected, rtol=0, atol=4 * 8 * np.finfo(float).eps * np.abs(expected).max())
    assert np.array_equal(last.push(x[:, 0], last=True), every.push(x[:, 0]))
    assert last.tokens.tolist() == every.tokens.tolist()


def in_bfloat16(x: Any) -> Any:
    """x rounded to bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32)


def with_rounded_matrices(listing: ModelListing) -> ModelListing:
    """The listing with the matrices of its encoder, its dense maps and its head in bfloat16."""
    arrays, lines = dict(listing.arrays), []

    def rounded(name: str) -> str:
        arrays[f"rounded.{name}"] = in_bfloat16(listing.arrays[name])
        return f"rounded.{name}"

    for line in listing.lines:
        inputs = list(line.inputs)
        if line.op == "System":  # dense maps to planes and from them; the gain is in the first
            if inputs[4] is not None:
                re, im, (gain_re, gain_im) = (listing.arrays[str(inputs[i])].astype(float) for i in (2, 3, 4))
                by = (gain_re + 1j * gain_im)[:, None] * (re + 1j * im)
                arrays[f"{inputs[2]}.folded"], arrays[f"{inputs[3]}.folded"] = map(in_bfloat16, (by.real, by.imag))
                inputs[2:5] = f"{inputs[2]}.folded", f"{inputs[3]}.folded", None
            for i in (2, 3, 6, 7) if line.inputs[4] is None else (6, 7):
                inputs[i] = rounded(str(inputs[i]))
        if line.op in ("Dense", "BlockDense"):
            inputs[1] = rounded(str(inputs[1]))
        lines.append(line._replace(inputs=tuple(inputs)))
    encoder, head = ((rounded(w), bias) for w, bias in (listing.encoder, listing.head))
    return replace(listing, arrays=arrays, lines=lines, encoder=encoder, head=head)


def of_listing(listing: ModelListing, batch: int) -> Any:
    return _cpu.Stream(to_json({"program": listing.described()}), listing.arrays, batch, False)


@pytest.mark.parametrize("tokens", [False, True])
@each_layer
def test_matrices_in_bfloat16_are_rounded_and_nothing_else(layer: str, tokens: bool) -> None:
    model, params, x = made(layer, tokens=tokens)
    expected = np.empty((B, T, C), np.float32)
    of_listing(with_rounded_matrices(listed(model, params)), B).push(x, T, None, False, expected)
    stream = model.stream(params, B, weights="bf16")
    assert np.array_equal(stream.push(x[:, :70]), expected[:, :70])
    other = pickle.loads(pickle.dumps(stream))
    assert other.weights == "bf16"
    assert "weights='bf16', 70 tokens read" in repr(other)
    for t in range(70, T):
        assert np.array_equal(stream.push(x[:, t]), expected[:, t])
    assert np.array_equal(other.push(x[:, 70:]), expected[:, 70:])
    assert not np.array_equal(model.stream(params, B).push(x), expected)


@pytest.mark.parametrize("weights", ["exact", "bf16"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_row_of_wide_products_has_the_bits_of_many(dtype: Any, weights: str) -> None:
    """Several panels of columns are computed together for one row alone: up to 128 columns of float32."""
    model = build_model(ModelSettings("gru", 131, 1), {"d_state": 67}, head="tagger", n_classes=C, n_features=F)
    rng = np.random.default_rng(2)
    params, x = astype(model.init(rng), dtype), rng.standard_normal((1, 9, F)).astype(dtype)
    if weights == "bf16" and dtype == np.float64:
        with pytest.raises(ValueError, match="Stream: weights is 'bf16', but the numbers of the model are double"):
            model.stream(params, weights=weights)
        return
    whole = model.stream(params, weights=weights).push(x)
    stream = model.stream(params, weights=weights)
    assert np.array_equal(np.stack([stream.push(x[:, t]) for t in range(9)], 1), whole)
    if weights == "bf16":
        expected = np.empty_like(whole)
        of_listing(with_rounded_matrices(listed(model, params)), 1).push(x, 9, None, False, expected)
        assert np.array_equal(whole, expected)


def test_bfloat16_where_it_is_not_possible() -> None:
    model, params, _ = made("lru")
    with pytest.raises(ValueError, match="Stream: weights is 'bf16' with engine='python', expected engine='c' or"):
        model.stream(params, engine="python", weights="bf16")
    with pytest.raises(ValueError, match="Stream: weights is 'half', expected one of exact, bf16"):
        model.stream(params, weights="half")
    large = params | {"head": params["head"] | {"w": np.full_like(params["head"]["w"], 3.4e38)}}
    with pytest.raises(
        ValueError, match=r"but a matrix has the number 3\.4e\+38, which bfloat16 does not have: expected"
    ):
        model.stream(large, weights="bf16")
    keeping = build_model(ModelSettings("attention", 8, 1), {"heads": 2}, head="tagger", n_classes=C, n_features=F)
    with pytest.raises(ValueError, match=r"Stream: weights is 'bf16', but .*: expected 'exact'"):
        keeping.stream(keeping.init(np.random.default_rng(0)), weights="bf16")


@pytest.mark.parametrize("engine", ["c", "python"])
def test_a_stream_says_what_it_is_and_has_read(engine: str) -> None:
    model, params, x = made("lru")
    stream = model.stream(params, B, engine)
    known = f"<Stream of Tagger: batch={B}, engine='{engine}', "
    assert repr(stream) == f"{known}0 tokens read>"
    stream.push(x[:, :5], np.array([5, 2, 0]))
    assert repr(stream) == f"{known}0 to 5 tokens read>"


def test_the_last_logits_of_a_classifier() -> None:
    """They are all that it has."""
    model, params, x = made("lru", head="classifier")
    for engine in ("c", "python"):
        one, other = (model.stream(params, B, engine) for _ in range(2))
        assert np.array_equal(one.push(x, last=True), other.push(x))


@pytest.mark.skipif(not (librotrnn.ROOT / "csrc").exists(), reason="needs the sources")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@each_layer
def test_the_bits_of_the_library(layer: str, dtype: Any, tmp_path: Path) -> None:
    """One by one, in chunks and with lengths; and the state has the same bytes behind the library's header."""
    model, params, x = made(layer, dtype=dtype)
    path = tmp_path / "model.safetensors"
    model.save(path, params)
    with librotrnn.its_instructions(librotrnn.Model(path.read_bytes())):
        model.save(path, params)  # this computes the orthogonal matrices of RotRNN
        lib, stream = librotrnn.Model(path.read_bytes()).stream(B), model.stream(params, B)
        assert stream.engine == "c"
        for t in range(5):
            assert np.array_equal(stream.push(x[:, t]), lib.push(x[:, t : t + 1])[:, 0])
        assert np.array_equal(stream.push(x[:, 5:110]), lib.push(x[:, 5:110]))
        lengths = np.array([3, 0, 10])
        assert np.array_equal(stream.push(x[:, 110:], lengths), lib.push(x[:, 110:], lengths))
    assert stream.tokens.tolist() == [113, 110, 120]
    assert lib.save().endswith(stream.state.tobytes())


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("head", ["classifier", "tagger"])
def test_chunks_have_the_bits_of_single_tokens(head: str, tokens: bool) -> None:
    model, params, x = made("lru", head, tokens)
    one, chunks = model.stream(params, B), model.stream(params, B)
    for first, last in itertools.pairwise([0, 1, 7, 7, T]):
        steps = [one.push(x[:, t]) for t in range(first, last)]
        got = chunks.push(x[:, first:last])
        if steps:
            assert np.array_equal(got, np.stack(steps, 1) if head == "tagger" else steps[-1])
    assert np.array_equal(one.state, chunks.state)


@each_layer
def test_both_engines_say_the_same(layer: str) -> None:
    """In float64, where both do the same iterations; some thousand roundings of numbers of size one."""
    model, params, x = made(layer, dtype=np.float64)
    c, python = model.stream(params, B, "c"), model.stream(params, B, engine="python")
    assert (c.engine, python.engine) == ("c", "python")
    for t in range(40):
        np.testing.assert_allclose(c.push(x[:, t]), python.push(x[:, t]), rtol=0, atol=1e-11)
    assert c.tokens.tolist() == python.tokens.tolist()
    c.reset()
    assert not c.state.any()
    assert not c.tokens.any()


RESET = {
    **dict.fromkeys(OWN, ("c", "python")),
    **{"attention": ("python",), "wrope_memory": ("python",)},  # states that grow
}
SIZES = OWN | {"attention": {"heads": 2}, "wrope_memory": {"d_state": 4, "length": 9}}


@pytest.mark.parametrize(("layer", "engine"), [(layer, one) for layer, engines in RESET.items() for one in engines])
@pytest.mark.parametrize("head", ["tagger", "classifier"])
def test_some_sequences_are_reset_and_the_others_go_on(layer: str, engine: str, head: str) -> None:
    """In float64, of some thousand roundings of numbers of size one; C keeps the bits."""
    model = build_model(ModelSettings(layer, 8, 2), SIZES[layer], head=head, n_classes=C, n_features=F)
    rng = np.random.default_rng(1)
    params, x = astype(model.init(rng), np.float64), rng.standard_normal((B, 9, F))
    stream, other, fresh = (model.stream(params, B, engine) for _ in range(3))
    for one in (stream, other):
        one.push(x[:, :4])
        one.push(x[:, 4])
    which = np.array([False, True, False])
    stream.reset(which)
    assert stream.tokens.tolist() == [5, 0, 5]
    for t in (5, 6):
        got, expected, new = (one.push(x[:, t]) for one in (stream, other, fresh))
        expected[which] = new[which]
        np.testing.assert_allclose(got, expected, rtol=0, atol=0 if engine == "c" else 1e-11)
    got, expected, new = (one.push(x[:, 7:]) for one in (stream, other, fresh))
    expected[which] = new[which]
    np.testing.assert_allclose(got, expected, rtol=0, atol=0 if engine == "c" else 1e-11)
    assert stream.tokens.tolist() == [9, 4, 9]
    stream.reset(~which | which)
    assert stream.tokens.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(stream.push(x[:, 0]), model.stream(params, B, engine).push(x[:, 0]))


@pytest.mark.parametrize("engine", ["c", "python"])
@each_layer
def test_a_sequence_moves_to_another_place_and_stream(layer: str, engine: str) -> None:
    """It goes on with the bits that it would have had, and the others with theirs. Parameters are not in its bytes."""
    model, params, x = made(layer)
    stream, other, fresh = (model.stream(params, B, engine) for _ in range(3))
    single = model.stream(params, 1, engine)
    stream.push(x[:, :20])
    other.push(x[:, :7])
    state = stream.get_sequence(1)
    for one, place in ((other, 2), (fresh, 0), (single, 0)):
        one.set_sequence(place, state)
        assert one.get_sequence(place) == state
    assert other.tokens.tolist() == [7, 7, 20]
    assert fresh.tokens.tolist() == [20, 0, 0]
    after = np.stack([x[0, 7:12], x[1, 7:12], x[1, 20:25]])
    expected = [model.stream(params, B, engine) for _ in range(2)]
    for one, n in zip(expected, (7, 20), strict=True):
        one.push(x[:, :n])
    ends = [expected[0].push(x[:, 7:12]), expected[1].push(x[:, 20:25])]
    assert np.array_equal(other.push(after), np.stack([ends[0][0], ends[0][1], ends[1][1]]))
    new = model.stream(params, B, engine).push(x[:, :5])
    assert np.array_equal(fresh.push(np.stack([x[1, 20:25], x[1, :5], x[2, :5]]))[1:], new[1:])
    assert single.push(x[1:2, 20:25]).shape == (1, 5, C)
    stream.set_sequence(1, model.stream(params, B, engine).get_sequence(0))
    assert stream.tokens.tolist() == [20, 0, 20]


def test_the_bytes_of_a_sequence_are_a_file_of_a_stream_of_it(tmp_path: Path) -> None:
    for engine in ("c", "python"):
        model, params, x = made("lru")
        stream, single = model.stream(params, B, engine), model.stream(params, 1, engine)
        stream.push(x[:, :9])
        (tmp_path / "one").write_bytes(stream.get_sequence(2))
        single.load(tmp_path / "one")
        assert single.tokens.tolist() == [9]
        single.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == stream.get_sequence(2)


def test_sequences_that_are_refused() -> None:
    model, params, x = made("lru")
    stream, other = model.stream(params, B, "c"), model.stream(params, B, "python")
    stream.push(x[:, :5])
    other.push(x[:, :5])
    state, kept = stream.get_sequence(0), stream.get_sequence(1)
    foreign, its, _ = made("rotrnn")
    double = model.stream(astype(params, np.float64), B)
    for one, place, given, message in (
        (stream, B, state, "sequence is 3, expected an integer from 0 to 2"),
        (stream, 1, state[:-1], "state: is truncated"),
        (stream, 1, b"", "state: is truncated"),
        (stream, 1, state[:-1] + bytes([state[-1] ^ 1]), "state: its content does not match its checksum"),
        (stream, 1, foreign.stream(its, 1).get_sequence(0), "state: is from a model with other settings"),
        (stream, 1, other.get_sequence(0), "state: has .*, expected state, the bytes of a stream whose engine is 'c'"),
        (stream, 1, double.get_sequence(0), "state: has numbers of 'float64', expected float32"),
    ):
        with pytest.raises(ValueError, match=f"^Stream.set_sequence: {message}"):
            one.set_sequence(place, given)
    assert stream.get_sequence(1) == kept
    with pytest.raises(TypeError, match="set_sequence: state is a str, expected bytes"):
        stream.set_sequence(0, "state")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="get_sequence: sequence is -1, expected an integer from 0 to 2"):
        stream.get_sequence(-1)
    keeping = build_model(ModelSettings("attention", 8, 1), {"heads": 2}, head="tagger", n_classes=C, n_features=F)
    params = keeping.init(np.random.default_rng(0))
    long, short = (keeping.stream(params, B) for _ in range(2))
    long.push(x[:, :5])
    short.push(x[:, :4])
    with pytest.raises(ValueError, match="a layer that keeps every step has the same number of them in all sequences"):
        short.set_sequence(0, long.get_sequence(1))
    short.push(x[:, 4])
    short.set_sequence(0, long.get_sequence(1))
    assert np.array_equal(short.push(x[[1, 1, 2], 5])[:2], long.push(x[:, 5])[[1, 1]])


@pytest.mark.parametrize("engine", ["c", "python"])
def test_what_reset_refuses(engine: str) -> None:
    model, params, x = made("lru")
    stream = model.stream(params, B, engine)
    stream.push(x[:, :5])
    with pytest.raises(ValueError, match=r"^Stream.reset: which has shape \(2,\), expected \(B=3,\)"):
        stream.reset([True, False])
    with pytest.raises(TypeError, match=r"^Stream.reset: which has dtype int\d+, expected bool"):
        stream.reset([1, 0, 2])
    assert stream.tokens.tolist() == [5] * B


class Mine(LRU):
    """A parameterisation that the library cannot know, of a recurrence that it has."""

    def transition(self, params: Params) -> DiagonalFolding:
        folding = super().transition(params)
        return folding._replace(a=folding.a / 2)


def test_what_the_library_does_not_have_runs_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = build_model(ModelSettings("attention", 8, 1), {"heads": 2}, head="tagger", n_classes=C, n_features=F)
    params = attention.init(np.random.default_rng(0))
    assert attention.stream(params).engine == "python"
    with pytest.raises(ValueError, match="Stream: engine is 'c', but a layer keeps every step, so its state grows"):
        attention.stream(params, engine="c")
    model, params, x = made("lru")
    with pytest.raises(ValueError, match="Stream: engine is 'd', expected one of auto, c, python"):
        model.stream(params, engine="d")
    params["head"] = astype(params["head"], np.float64)
    with pytest.raises(ValueError, match="all of float32 or of float64: expected 'python'"):
        model.stream(params, engine="c")
    assert model.stream(params, B).push(x).dtype == np.float64
    monkeypatch.setitem(LAYERS, "lru", Mine)
    own = build_model(ModelSettings("lru", 8, 1), {"d_state": 3}, head="tagger", n_classes=C, n_features=F)
    params = own.init(np.random.default_rng(0))
    steps = own.stream(params, B, engine="python").push(x)
    tolerance = 1e-4 * np.abs(steps).max()  # of float32, with room for sums of ten terms in two layers
    np.testing.assert_allclose(own.stream(params, B, engine="c").push(x), steps, rtol=0, atol=tolerance)
    monkeypatch.setitem(LAYERS, "lru", LRU)
    lru = build_model(ModelSettings("lru", 8, 1), {"d_state": 3}, head="tagger", n_classes=C, n_features=F)
    assert np.abs(steps - lru.stream(params, B).push(x)).max() > 100 * tolerance


def test_inputs_of_another_dtype_or_layout() -> None:
    model, params, x = made("lru")
    expected = model.stream(params, B).push(x)
    assert expected.dtype == np.float32
    for other in (x.astype(np.float64), np.asfortranarray(x), x[::-1][::-1], x.tolist()):
        assert np.array_equal(model.stream(params, B).push(other), expected)
    tokens, params, ids = made("lru", tokens=True)
    expected = tokens.stream(params, B).push(ids)
    for other in (ids.astype(np.int16), ids.astype(np.uint32), ids.tolist()):
        assert np.array_equal(tokens.stream(params, B).push(other), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tokens", [False, True])
def test_a_step_of_another_dtype_or_layout(tokens: bool, dtype: Any) -> None:
    """An array as the library has it is read without a conversion; every other array to the same bits."""
    model, params, x = made("lru", tokens=tokens, dtype=dtype)
    expected = model.stream(params, B).push(x[:, :1])[:, 0]
    plain = np.ascontiguousarray(x[:, 0])
    locked = plain.copy()
    locked.flags.writeable = False
    others = [x[:, 0], np.asfortranarray(plain), locked, plain.astype(plain.dtype.newbyteorder()), plain.tolist()]
    others += [plain.astype("q"), plain.astype(np.int8)] if tokens else [plain.astype(np.float64)]
    for one in (plain, *others):
        stream = model.stream(params, B)
        got = stream.push(one)
        assert np.array_equal(got, expected)
        assert got.dtype == dtype
        assert stream.push(one) is not got
        assert stream.tokens.tolist() == [2] * B
    for wrong in (plain[:2], plain[None], np.zeros((0, *plain.shape[1:]), plain.dtype)):
        with pytest.raises(ValueError, match=r"^Stream.push: inputs has shape"):
            model.stream(params, B).push(wrong)


def test_what_is_wrong_is_said_and_changes_nothing() -> None:
    model, params, ids = made("lru", tokens=True)
    stream = model.stream(params, B)
    stream.push(ids[:, :9])
    before = stream.state
    for wrong in (7, -1, 2**32, 2**63 - 1):
        bad = ids[:, :4].copy()
        bad[2, 3] = wrong
        with pytest.raises(
            ValueError, match=rf"^Stream.push: inputs\[2, 3\] is {wrong}, expected an integer from 0 to 6"
        ):
            stream.push(bad)
        with pytest.raises(ValueError, match=rf"^Stream.push: inputs\[2, 0\] is {wrong}, expected"):
            stream.push(bad[:, 3].copy())
        stream_of_two = model.stream(params, B)
        assert np.isfinite(stream_of_two.push(bad, [4, 4, 3])).all()
    with pytest.raises(ValueError, match="lengths"):
        stream.push(ids[:, :4], [4, 5, 4])
    assert np.array_equal(stream.state, before)


def test_copies_go_on_by_themselves() -> None:
    for engine in ("c", "python"):
        model, params, x = made("rotrnn")
        stream = model.stream(params, B, engine)
        stream.push(x[:, :5])
        others = [copy.copy(stream), copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))]
        expected = stream.push(x[:, 5:])
        for other in others:
            assert other.engine == engine
            assert other.tokens.tolist() == [5] * B
            assert np.array_equal(other.push(x[:, 5:]), expected)


def test_a_change_of_the_parameters_does_not_reach_a_stream() -> None:
    model, params, x = made("lru")
    expected = model.stream(params, B).push(x)
    stream = model.stream(params, B)
    params["head"]["w"][:] = 0
    assert np.array_equal(stream.push(x), expected)


def test_states_of_files_are_checked(tmp_path: Path) -> None:
    """The checksum is right, the content is not; the stream stays as it was."""
    model, params, x = made("lru")
    stream, path = model.stream(params, B), tmp_path / "state.safetensors"
    stream.push(x[:, :5])
    stream.save(path)
    arrays, facts = read_checkpoint(path)
    state, kept = arrays["state"], stream.state
    counts = state[:, :8].copy()
    negative, late = state.copy(), state.copy()
    negative[1, 7] = 255
    late[1, :8] = 6, 0, 0, 0, 0, 0, 0, 0
    wrong = np.array([5, int(negative[1, :8].copy().view(np.int64)[0]), 5])
    assert counts.view(np.int64)[:, 0].tolist() == [5, 5, 5]
    for changed, message in (
        ({"state": state[:, 1:]}, "state has dtype uint8 and shape"),
        ({"state": state.astype(np.float32)}, "state has dtype float32"),
        ({"state": state, "other": state}, "has other, state, expected state, the bytes"),
        ({}, "has no array, expected state"),
        ({"state": late}, r"state is that after \[5, 6, 5\] steps, expected tokens, \[5, 5, 5\]"),
        ({"state": negative, "tokens": wrong}, "expected a number of steps from 0"),
    ):
        write_checkpoint(path, {"tokens": arrays["tokens"], **changed}, facts)
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{message}"):
            stream.load(path)
        assert np.array_equal(stream.state, kept)
    python = model.stream(params, B, "python")
    python.push(x[:, :5])
    python.save(path)
    with pytest.raises(ValueError, match=r"has state\.0\.0.*expected state, the bytes of a stream whose engine is 'c'"):
        stream.load(path)
    stream.save(path)
    with pytest.raises(ValueError, match="state is not a tuple"):
        python.load(path)


def test_a_state_of_other_numbers_is_refused(tmp_path: Path) -> None:
    """Its bytes may be as many, since what a layer keeps is padded to 64."""
    model = build_model(ModelSettings("lstm", 8, 1), {"d_state": 4}, head="tagger", n_classes=C, n_features=F)
    single, path = model.init(np.random.default_rng(0)), tmp_path / "state.safetensors"
    one, other = (model.stream(astype(single, dtype), B, "c") for dtype in (np.float32, np.float64))
    assert one.state.shape == other.state.shape
    one.save(path)
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(path))}: has numbers of 'float32', expected float64 as the stream's param"
    ):
        other.load(path)


@pytest.mark.parametrize("engine", ["c", "python"])
def test_a_state_of_parameters_of_another_dtype_is_refused(engine: str, tmp_path: Path) -> None:
    model, params, x = made("lru")
    path = tmp_path / "state.safetensors"
    stream = model.stream(params, B, engine)
    stream.push(x[:, :3])
    stream.save(path)
    other = model.stream(astype(params, np.float64), B, engine)
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(path))}: has numbers of 'float32', expected float64 as the stream's param"
    ):
        other.load(path)
    assert (other.tokens == 0).all()


@pytest.mark.parametrize("layers", [1, 2])
def test_steps_without_a_fixed_point_are_warned_of(layers: int) -> None:
    """Each layer has a fixed point of each step that is not padding."""
    own = {"d_state": 4, "max_iterations": 1, "tol": 1e-3}
    model = build_model(ModelSettings("fixed_point", 8, layers), own, head="tagger", n_classes=C, n_features=F)
    params, x = model.init(np.random.default_rng(0)), made("lru")[2]
    stream = model.stream(params, B, "c")
    for lengths, steps in ((None, 15 * layers), ([5, 0, 2], 7 * layers)):
        with pytest.warns(NotConverged, match=f"no fixed point for {steps} of {steps} steps of {layers} l"):
            stream.push(x[:, :5], lengths)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream.push(x[:, :0])


def test_threads_do_not_meet_in_a_stream() -> None:
    """Each push of many threads on one stream is either whole or refused; streams of their own do not meet."""
    own = {"d_state": 64}
    model = build_model(ModelSettings("lru", 64, 2), own, head="tagger", n_classes=C, n_features=F)
    params = model.init(np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((1, 4000, F)).astype(np.float32)
    shared = model.stream(params)
    expected = model.stream(params).push(x)

    refusals: list[str] = []

    def push(_: int) -> bool:
        assert np.array_equal(model.stream(params).push(x), expected)
        try:
            shared.push(x)
        except RuntimeError as error:
            refusals.append(str(error))
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        done = sum(pool.map(push, range(16)))
    assert shared.tokens.tolist() == [4000 * done]
    assert done
    assert set(refusals) <= {"Stream.push: the stream is in use by another thread, expected one call at a time"}


def test_the_module_names_what_it_refuses() -> None:
    """Python checks these before; this is what a wrong call of the module says."""
    model, params, x = made("lru", tokens=True)
    listing = listed(model, params)
    stream, y = of_listing(listing, B), np.empty((B, T, C), np.float32)
    state, n = stream.state(0), len(stream.state(0))
    big, steps = 2**70, (2**31 - 1) // B
    for call, text in (
        (lambda: of_listing(listing, big), f"Stream: batch is {big}, expected an integer from 1 to {2**47}"),
        (lambda: of_listing(listing, 0), f"Stream: batch is 0, expected an integer from 1 to {2**47}"),
        (lambda: stream.reset(B), f"Stream.reset: sequence is {B}, expected an integer from 0 to {B - 1}"),
        (lambda: stream.state(big), f"Stream.state: sequence is {big}, expected an integer from 0 to {B - 1}"),
        (lambda: stream.restore(state, -1), f"Stream.restore: sequence is -1, expected an integer from 0 to {B - 1}"),
        (lambda: stream.restore(b"1", 0), f"Stream.restore: state has 1 bytes, expected {n}"),
        (lambda: stream.restore(b"\xff" * n, 1), "Stream.restore: state of sequence 1 has a number of steps"),
        (lambda: stream.push(x, big, None, False, y), f"Stream.push: n is {big}, expected an integer from 0 to"),
        (lambda: stream.push(x, -1, None, False, y), f"Stream.push: n is -1, expected an integer from 0 to {steps}"),
        (lambda: stream.push(x[1:], T, None, False, y), "Stream.push: x does not have the dtype and size"),
        (lambda: stream.push(x, T, None, False, y[1:]), "Stream.push: y does not have the dtype and size"),
        (lambda: stream.push(x, T, y, False, y), "Stream.push: lengths does not have the dtype and size"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
            call()
    assert stream.steps() == [0] * B


def test_a_stream_ends_where_its_state_would_be_refused() -> None:
    model, params, x = made("lru", tokens=True)
    stream, y = of_listing(listed(model, params), B), np.empty((B, 1, C), np.float32)
    state = np.frombuffer(stream.state(None), np.uint8).reshape(B, -1).copy()
    state[:, :8] = np.array([MOST_STEPS - 1], np.int64).view(np.uint8)
    stream.restore(state.tobytes(), None)
    assert stream.push(np.ascontiguousarray(x[:, :1]), 1, None, False, y)
    last = stream.state(None)
    with pytest.raises(OverflowError, match=f"Stream.push: n is 1, but a stream reads at most {MOST_STEPS} steps"):
        stream.push(np.ascontiguousarray(x[:, 1:2]), 1, None, False, y)
    assert stream.steps() == [MOST_STEPS] * B
    stream.restore(last, None)
    assert stream.state(None) == last


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_of_several_panels(dtype: Any) -> None:
    """Products pack 64 rows of a weight together, or fewer. Here are whole panels and a rest, of the file's numbers as
    they are; a sum has up to 140 products, and some thousand roundings lie between a token and its logits."""
    settings, rng = ModelSettings("mamba", 70, 1, block="plain"), np.random.default_rng(2)
    model = build_model(settings, {"d_state": 3}, head="language", n_classes=150, vocab=150)
    params = astype(model.init(rng), np.float32)
    x = rng.integers(0, 150, (B, 9))
    expected = model.stream(astype(params, np.float64), B, "python").push(x)
    got = model.stream(astype(params, dtype), B, "c").push(x)
    np.testing.assert_allclose(got, expected, rtol=0, atol=4000 * np.finfo(dtype).eps * np.abs(expected).max())


def test_a_batch_that_no_memory_holds() -> None:
    """A state has 64 bytes or more, so that all have 2^53."""
    model, params, _ = made("lru")
    with pytest.raises(MemoryError, match=f"Stream: no memory for a stream of {2**47} sequences"):
        model.stream(params, 2**47)


def test_subnormal_numbers_are_zero_in_the_library_alone() -> None:
    settings = ModelSettings("lru", 4, 1, norm="rms", glu="gelu")
    model = build_model(settings, {"d_state": 3}, head="step_regressor", n_classes=2, n_features=F)
    params = model.init(np.random.default_rng(0))
    x = np.full((1, 5, F), 1e-41, np.float32)
    forward = model.forward(params, x)[0]
    assert 0 < np.abs(forward).max() < np.finfo(np.float32).tiny
    assert model.stream(params, engine="python").push(x).any()
    assert not model.stream(params, engine="c").push(x).any()
