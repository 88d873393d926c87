"""Calls in which the fuzzers found a fault that is mended: a good call runs, a bad one says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rotrnn
from fuzz.mutations import Tensor, unaligned
from rotrnn import ops
from rotrnn.nn.blocks.block import ResidualBlock
from rotrnn.nn.blocks.norm import LayerNorm
from rotrnn.nn.blocks.pool import MeanPool
from rotrnn.nn.fixed_points.mixer import Orthogonal
from rotrnn.nn.layer import Context, astype
from rotrnn.nn.layers.attention import Attention
from rotrnn.nn.saved import flatten_saved, unflatten_saved

UNFUSED = Context(fused=False)


class Found(NamedTuple):
    """A call, and a part of its error's message; None if it is a good call."""

    name: str
    call: Callable[[], object]
    message: str | None


def zeros(*shape: int) -> Any:
    return np.zeros(shape)


def windowed(position: int, dtype: Any = np.int64, a: Any = None, delay: Any = None) -> object:
    state = (zeros(1, 4, 4) if delay is None else delay, zeros(1, 2, 4), np.array([position], dtype))
    return rotrnn.ops.tiir_scan(zeros(4) if a is None else a, zeros(1, 9, 4), state, window=3)


def written_over_an_input(how: str) -> object:
    room = zeros(1, 4, 4)
    if how == "delay":
        return windowed(0, a=room[0, 0], delay=room)
    return rotrnn.ops.dplr_mix(zeros(2, 4), zeros(2), zeros(1, 4, 4), origin=Tensor(room), out=room)


def unaligned_weights() -> object:
    weights = unaligned(np.random.default_rng(0), zeros(2))
    return rotrnn.ops.cross_entropy(zeros(2, 3), [0, 1], sample_weights=weights)


def weighted(head: str, weights: Any) -> object:
    model = rotrnn.build_model(
        rotrnn.ModelSettings(layer="lru", d_model=4, n_layers=1), {"d_state": 2}, head=head, n_classes=3, vocab=3
    )
    lead = (2, 3) if head != "classifier" else (2,)
    labels = np.zeros(lead + (3,) * (head == "bits"), np.int64)
    return model.loss(zeros(*lead, 3), labels, weights=weights)


def soft_labels() -> object:
    """`cross_entropy` takes them, a model's loss has no place for them."""
    model = rotrnn.build_model(
        rotrnn.ModelSettings(layer="lru", d_model=4, n_layers=1), {"d_state": 2}, n_classes=3, vocab=3
    )
    return model.loss(zeros(2, 3), zeros(2, 3))


def immense_matrix() -> object:
    layer = rotrnn.RotRNN(4, 4)
    params = layer.init(np.random.default_rng(0))
    return layer.prepare(params | {"M": np.full_like(params["M"], 1e30)})


def immense_pieces() -> object:
    class Alone:
        rank, size = 0, 1

        def gather(self, array: Any) -> Any:
            return [array]

    return ops.split_lengths([1], 2**63, split=Alone())  # type: ignore[arg-type]


def banked(how: str) -> object:
    """The backward pass of a bank with something else in place of what forward saved."""
    a, u, window = np.full((2, 3), 0.5j), zeros(1, 4, 2), None if how in ("swapped", "foreign") else 3
    h0 = None if window is None else zeros(1, 2, 2)
    _, _, saved = ops.diagonal_bank(a, a, zeros(2), u, h0, window=window)
    if how == "swapped":
        saved = saved._replace(carries=saved.carries.astype(">f8"), u=saved.u.astype(">f8"))
    elif how == "foreign":
        saved = saved._replace(u=Tensor(saved.u))  # type: ignore[arg-type]
    else:
        saved = saved._replace(before=zeros(1, 2, 2).astype(object) if how == "objects" else zeros(1, 9, 2))
    return ops.diagonal_bank_backward(u, a, a, zeros(2), saved)


def unaligned_zeros(*shape: int) -> Any:
    return unaligned(np.random.default_rng(0), np.zeros(shape, np.int64))


def flipped(x: Any) -> Any:
    """The same numbers with negative strides."""
    return np.flip(np.ascontiguousarray(np.flip(x)))


def backwards() -> None:
    """RotRNN's weights do not depend on the layout of its parameters."""
    layer = rotrnn.RotRNN(33, 32, heads=2)
    params = layer.init(np.random.default_rng(0))
    changed = params | {"B": flipped(params["B"])}
    assert layer.prepare(changed)[0].w_in.tobytes() == layer.prepare(params)[0].w_in.tobytes()


def saved_backwards() -> None:
    """Backward does not depend on the layout of what forward saved, nor of parameters."""
    layer, rng = rotrnn.LRU(9, 33), np.random.default_rng(0)
    params, x = layer.init(rng), rng.standard_normal((3, 7, 9), np.float32)
    changed = {name: flipped(value) for name, value in params.items()}
    y, saved = layer.forward(params, x, UNFUSED)
    assert layer.forward(changed, x, UNFUSED)[0].tobytes() == y.tobytes()
    arrays, structure = flatten_saved(saved)
    other = unflatten_saved(structure, {name: flipped(one) for name, one in arrays.items()})
    dx, dparams, _ = layer.backward(params, saved, x)
    dx_other, dparams_other, _ = layer.backward(changed, other, x)
    assert dx_other.tobytes() == dx.tobytes()
    assert {name: one.tobytes() for name, one in dparams.items()} == {
        name: one.tobytes() for name, one in dparams_other.items()
    }


def uneven_backwards() -> None:
    """At uneven times a state is divided by the gain of its interval in NumPy; its layout changes no bit of results."""
    rng = np.random.default_rng(0)
    layer, dt, x = rotrnn.S4D(16, 8), rng.random((2, 5)), rng.standard_normal((2, 5, 16), np.float32)
    params = layer.init(rng)
    first = layer.forward(params, x, Context(dt=dt))[1].state
    kept, other = (layer.forward(params, x, Context(dt=dt), state=one) for one in (first, flipped(first)))
    assert kept[0].tobytes() == other[0].tobytes()
    of_kept, of_other = (layer.backward(params, kept[1], x, one) for one in (first, flipped(first)))
    assert of_kept[2].tobytes() == of_other[2].tobytes()


def states_backwards() -> None:
    """The op's backward takes states of any layout."""
    system = ops.System(zeros(6, 4), np.zeros(3, complex), zeros(1, 4, 6), zeros(4))
    y, _, saved = rotrnn.ops.linear_layer(system, zeros(1, 5, 4), fused=False)
    ops.linear_layer_backward(y, system, saved._replace(h=np.asfortranarray(saved.h)))


def mixed_precision() -> None:
    """One parameter or the state in double precision: SelectiveRotRNN computes the lines that read it in double; angles
    and decays then enter a scan in single precision."""
    layer, rng = rotrnn.SelectiveRotRNN(3, 6, heads=2, gamma="input"), np.random.default_rng(0)
    params, x = layer.init(rng), rng.standard_normal((2, 7, 3), np.float32)
    start = layer.forward(params, x)[1].state
    whole, _ = layer.forward(astype(params, np.float64), x, state=start.astype(np.complex128))
    for mixed, state in [
        *[(params | {name: one.astype(np.float64)}, start) for name, one in params.items()],
        (params, start.astype(np.complex128)),
    ]:
        y, saved = layer.forward(mixed, x, state=state)
        dx, _, _ = layer.backward(mixed, saved, y)
        of_gates = mixed["W_theta"].dtype == np.float64 or mixed["W_gamma"].dtype == np.float64
        assert dx.dtype == np.float64
        assert y.dtype == (np.float32 if of_gates else np.float64)
        # what is computed from single precision passes through fewer than 100 roundings, of numbers near 1
        assert np.allclose(y, whole, rtol=0, atol=100 * 2.0**-24)


def states_of_a_tensor() -> None:
    """The op's backward takes a foreign initial state."""
    system = ops.System(zeros(6, 4), np.zeros(3, complex), zeros(1, 4, 6), zeros(4))
    y, _, saved = rotrnn.ops.linear_layer(system, zeros(1, 5, 4), np.zeros((1, 1, 3), complex), fused=False)
    ops.linear_layer_backward(y, system, saved._replace(h0=Tensor(saved.h0)))  # type: ignore[arg-type]


def unsigned_places() -> object:
    """NumPy adds such numbers to int64 in float64."""
    layer, x = Attention(4, heads=2), zeros(1, 2, 4)
    params = layer.init(np.random.default_rng(0))
    _, saved = layer.forward(params, x)
    return layer.forward(params, x, state=(*saved.state[:2], saved.state[2].astype(np.uint64)))


def prepared_of_objects() -> object:
    layer = rotrnn.SelectiveRotRNN(4, 6)
    params = layer.init(np.random.default_rng(0))
    prepared = layer.prepare({name: one.astype(object) if name == "D" else one for name, one in params.items()})
    return layer.step(params, None, zeros(1, 4), prepared)


def language_model() -> Any:
    settings = rotrnn.ModelSettings("lru", d_model=4, n_layers=1, norm="layer")
    model = rotrnn.build_model(settings, {"d_state": 3}, head="language", n_classes=5, vocab=5)
    return model, model.init(np.random.default_rng(0))


def sampled(steps: int) -> object:
    model, params = language_model()
    return model.sample(params, np.zeros((1, 2), np.int64), steps)


def sampled_from_a_tensor() -> object:
    model, params = language_model()
    return model.sample(params, Tensor(np.zeros((1, 2), np.int64)), 2)  # type: ignore[arg-type]


def half_precision() -> object:
    params = {"w": zeros(2)}
    optimiser = rotrnn.AdamW()
    moments = optimiser.init(params)
    return optimiser.update(params, {"w": zeros(2).astype(np.float16)}, moments, lambda name: "other", 1, 10)


def stream_of_features(x: Any) -> object:
    settings = rotrnn.ModelSettings("lru", d_model=4, n_layers=1, norm="layer")
    model = rotrnn.build_model(settings, {"d_state": 3}, n_classes=5, n_features=3)
    return model.stream(model.init(np.random.default_rng(0))).push(x)


def stream_with(**parts: Any) -> object:
    """Pushes a token after changing what the stream has."""
    model, params = language_model()
    stream = model.stream(params, engine="python")
    vars(stream._engine).update(parts)
    return stream.push(np.zeros(1, np.int64))


def missing_length() -> object:
    settings = rotrnn.ModelSettings("wrope_memory", d_model=4, n_layers=1, norm="layer")
    return rotrnn.build_model(settings, {"d_state": 3}, n_classes=5, vocab=5)


def stream_of_attention(place: int) -> object:
    """Pushes a token after one array of the state has become texts."""
    settings = rotrnn.ModelSettings("attention", d_model=4, n_layers=1, norm="layer")
    model = rotrnn.build_model(settings, {"heads": 2}, head="language", n_classes=5, vocab=5)
    stream, tokens = model.stream(model.init(np.random.default_rng(0))), np.zeros(1, np.int64)
    stream.push(tokens)
    (state,), head = stream.state
    stream._engine.state = ((*state[:place], state[place].astype("U3"), *state[place + 1 :]),), head
    return stream.push(tokens)


def norms_of_retrieval(ctx: Any) -> object:
    settings = rotrnn.ModelSettings("lru", d_model=4, n_layers=1, norm="layer")
    model = rotrnn.build_model(settings, {"d_state": 3}, head="retrieval", n_classes=2, vocab=5)
    return model.state_norms(model.init(np.random.default_rng(0)), np.zeros((1, 2, 3), np.int64), ctx)


def ragged() -> object:
    model, params = language_model()
    return model.state_norms(params, [[1, [2]]])


def pooling_gate() -> object:
    return ResidualBlock(LayerNorm(4), rotrnn.LRU(4, 3), MeanPool())


FOUND = [
    Found("tiir_scan, last position", lambda: windowed(2**63 - 1), "tiir_scan: state.position[0] is"),
    Found("tiir_scan, uint64", lambda: windowed(2**64 - 3, np.uint64), "tiir_scan: state.position[0] is"),
    Found("tiir_scan, a in the delay line", lambda: written_over_an_input("delay"), "overlaps a"),
    Found("dplr_mix, a foreign array over out", lambda: written_over_an_input("out"), "overlaps"),
    Found(
        "attention, last position",
        lambda: rotrnn.ops.attention(*[zeros(1, 2, 4)] * 3, heads=2, past=np.array([2**63 - 1])),
        "past",
    ),
    Found("rotary, many heads of nothing", lambda: ops.rotary(zeros(1, 2, 0), heads=2**63 - 1), "rotary: heads is"),
    Found(
        "rotary, heads of NumPy that wrap",
        lambda: ops.rotary(zeros(1, 2, 4), heads=np.int64(2**63 - 1)),  # type: ignore[arg-type]
        "rotary: heads is",
    ),
    Found(
        "rotation_mix, ragged",
        lambda: ops.rotation_mix([[[1.0], [1.0, 2.0]]], zeros(1, 2, 4)),  # type: ignore[list-item]
        "rotation_mix: u",
    ),
    Found("Attention, unsigned places", unsigned_places, "Attention.forward: state.places has dtype uint64, expected"),
    Found("embedding, unaligned ids", lambda: rotrnn.ops.embedding(unaligned_zeros(1, 2), zeros(3, 2)), None),
    Found("cross_entropy, unaligned weights of samples", unaligned_weights, None),
    Found(
        "mean_squared_error, ragged",
        lambda: rotrnn.ops.mean_squared_error([[1.0], [1.0, 2.0]], zeros(2)),  # type: ignore[list-item]
        "mean_squared_error: predictions",
    ),
    Found("norm, ragged", lambda: rotrnn.ops.optim.norm([[1.0], [1.0, 2.0]]), "norm: x"),  # type: ignore[list-item]
    Found("split_lengths, immense", immense_pieces, "split_lengths: seq_len is 9223372036854775808, expected"),
    Found(
        "diagonal_bank_backward, state of objects", lambda: banked("objects"), "diagonal_bank_backward: saved.before"
    ),
    Found(
        "diagonal_bank_backward, state of another shape", lambda: banked("long"), "diagonal_bank_backward: saved.before"
    ),
    Found("diagonal_bank_backward, byte-swapped saved", lambda: banked("swapped"), None),
    Found("diagonal_bank_backward, foreign saved", lambda: banked("foreign"), None),
    Found("cross_entropy, unaligned labels", lambda: rotrnn.ops.cross_entropy(zeros(2, 3), unaligned_zeros(2)), None),
    Found("RotRNN, parameters backwards", backwards, None),
    Found("LRU, saved backwards", saved_backwards, None),
    Found("S4D at uneven times, a state backwards", uneven_backwards, None),
    Found("linear_layer_backward, states in Fortran order", states_backwards, None),
    Found("linear_layer_backward, a foreign initial state", states_of_a_tensor, None),
    Found("SelectiveRotRNN.prepare, objects", prepared_of_objects, "SelectiveRotRNN: parameter D has dtype object"),
    Found("LRU, a phase below float32", lambda: rotrnn.LRU(4, 3, max_phase=1e-40), "LRU: max_phase=1e-40, expected"),
    Found("RotRNN, no angle", lambda: rotrnn.RotRNN(4, 4, theta_max=-0.0).init(np.random.default_rng(0)), None),
    Found("RotRNN.prepare, an immense M", immense_matrix, "RotRNN.prepare: orthogonal: M has the number"),
    Found(
        "Tagger.loss, weights of steps",
        lambda: weighted("tagger", zeros(2, 3)),
        "Tagger.loss: weights has shape (2, 3)",
    ),
    Found("Tagger.loss, a type as weights", lambda: weighted("tagger", int), "Tagger.loss: weights is a type"),
    Found("BitTagger.loss, weights", lambda: weighted("bits", {}), "BitTagger.loss: weights is a dict"),
    Found(
        "Classifier.loss, weights", lambda: weighted("classifier", zeros(3)), "Classifier.loss: weights has shape (3,)"
    ),
    Found(
        "Classifier.loss, soft labels", soft_labels, "SequenceClassifier.loss: labels has dtype float64, expected int64"
    ),
    Found("Mixer, width", lambda: Orthogonal({}), "width={}, expected an integer"),  # type: ignore[arg-type]
    Found("AdamW.update, half precision", half_precision, "AdamW.update: grads has w of dtype float16"),
    Found("LanguageModel.sample, steps", lambda: sampled(2**62), "LanguageModel.sample: steps is 4611686018427387904"),
    Found("LanguageModel.sample, a foreign prompt", sampled_from_a_tensor, None),
    Found(
        "FixedPointRNN, rotations of an odd width",
        lambda: rotrnn.FixedPointRNN(4, 5, mixer="rotation"),
        "FixedPointRNN: mixer='rotation' with a width of 5, expected an even width",
    ),
    Found("Stream.push, another state", lambda: stream_with(state=(1, 2, 3)), "Stream.push: inputs, or the"),
    Found(
        "Stream.push, integers", lambda: stream_of_features(np.zeros((1, 3), np.int32)), "Stream.push: inputs has dtype"
    ),
    Found("Stream.push, texts for keys", lambda: stream_of_attention(0), "do not fit: attention: k has dtype <U3"),
    Found("Stream.push, texts for positions", lambda: stream_of_attention(2), "do not fit: rotary: past has dtype <U3"),
    Found(
        "Retrieval.state_norms, foreign lengths",
        lambda: norms_of_retrieval(Context(Tensor(np.array([[2, 1]])))),  # type: ignore[arg-type]
        None,
    ),
    Found(
        "Retrieval.state_norms, context", lambda: norms_of_retrieval(None), "Retrieval.state_norms: ctx is a NoneType"
    ),
    Found("LanguageModel.state_norms, ragged", ragged, "LanguageModel.state_norms: inputs is a list that is no array"),
    Found("ResidualBlock, pool as gate", pooling_gate, "ResidualBlock: gate is a MeanPool, expected a layer from"),
    Found(
        "learning_rate, infinite in float32",
        lambda: rotrnn.learning_rate(3, 10, 1.0, np.float32(np.inf)),  # type: ignore[arg-type]
        "learning_rate: warmup is",
    ),
    Found("SelectiveRotRNN, mixed precision", mixed_precision, None),
    Found("build_model, no length", missing_length, "WropeMemory: setting 'length' (int) is missing"),
    Found("Stream.push, prepared of no block", lambda: stream_with(prepared=((),)), "Stream.push: inputs, or the"),
]
