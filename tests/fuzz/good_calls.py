"""Good calls of everything public, from which the fuzzer makes bad ones.

They are not written down, but recorded while the tests' table of cases runs: a new op or layer is fuzzed as soon as it
has a row there. Parts of blocks, models, streams and the optimiser have no rows, and get theirs here.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache, partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

import rotrnn
from cases import CASES, LAYER_ROWS
from cases.layer_row import LayerRow
from cases.table import Case
from fuzz.tree import copied
from rotrnn import nn, ops
from rotrnn.models.model import SequenceModel
from rotrnn.nn.layer import Context, Module, astype
from rotrnn.training.parallel import ALONE

METHODS = ("init", "forward", "backward", "prepare", "step", "fold", "fold_backward")
OF_MODELS = ("loss", "count", "sample", "state_norms", "eigenvalues")


class Call(NamedTuple):
    """A call by name ("mean_pool", "LRU.forward"), with its arguments by name; `self` is one of them."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]


class Scenario(NamedTuple):
    """A program that makes calls; those of one family are alternatives."""

    family: str
    name: str
    run: Callable[[], None]


# ---- recording ----


def _subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


@cache
def _targets() -> dict[CodeType, str]:
    """Returns the code of every public function and method, with its name. Wrapped methods share the code of their
    wrapper, whatever their name: `_name` asks the wrapper."""
    functions = [getattr(ops, name) for name in ops.__all__ if name[0].islower()]
    functions += [rotrnn.learning_rate, rotrnn.build_model]
    found = {one.__code__: one.__name__ for one in functions}
    for kind in {Module, *_subclasses(Module)}:
        for name in METHODS + OF_MODELS if issubclass(kind, SequenceModel) else METHODS:
            method = vars(kind).get(name)
            if inspect.isfunction(method) and not getattr(method, "__isabstractmethod__", False):
                found[method.__code__] = f".{name}"
    for method in (rotrnn.Stream.push, rotrnn.AdamW.init, rotrnn.AdamW.update):
        found[method.__code__] = f".{method.__name__}"
    return found


def _name(frame: FrameType) -> str | None:
    """Returns the name of the public function or method that this frame runs; None if it runs none."""
    name = _targets().get(frame.f_code)
    return f".{frame.f_locals['method'].__name__}" if name and "method" in frame.f_code.co_freevars else name


def _call(name: str, frame: FrameType) -> Call:
    """Returns the call that entered this frame."""
    code, values = frame.f_code, frame.f_locals
    given = {one: values[one] for one in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
    places = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:  # a state, passed on by the wrappers of forward and backward
        names = list(inspect.signature(getattr(type(values["self"]), name[1:])).parameters)
        given |= dict(zip(names[places:], values[code.co_varnames[places]], strict=False))
        places += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        given |= values[code.co_varnames[places]]
    if not name.startswith("."):
        return Call(name, getattr(ops, name, None) or getattr(rotrnn, name), given)
    kind = type(given["self"])
    return Call(f"{kind.__name__}{name}", getattr(kind, name[1:]), given)


@contextmanager
def recording() -> Iterator[list[Call]]:
    """Yields the list of all public calls that are made from outside the package, with copies of their arguments.

    (And of those of `fold_backward`, whose gradients come from a backward.)
    """
    calls: list[Call] = []
    _targets()  # before anything is watched
    inside: list[FrameType] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and inside and frame is inside[0]:
            inside.clear()
        name = _name(frame) if event == "call" else None
        if name and (not inside or name == ".fold_backward"):
            call = _call(name, frame)
            calls.append(call._replace(arguments=copied(call.arguments)))
            if not inside:
                inside.append(frame)

    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(None)


# ---- scenarios ----


def _of_case(case: Case) -> None:
    args = case.make(np.random.default_rng(0))
    outputs = case.forward(args)
    case.backward(args, outputs, tuple(np.ones_like(one) for one in outputs))


def _of_layer(row: LayerRow) -> None:
    layer: Any = row.layer
    params = layer.init(np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((row.B, row.T, layer.d_model), np.float32)
    y, saved = layer.forward(params, x, replace(row.ctx, fused=False))
    layer.backward(params, saved, np.ones_like(y))
    if hasattr(layer, "fold"):
        layer.fold(params)
    if not row.bidirectional:
        prepared, x_t = layer.prepare(params), np.ones((row.B, layer.d_model), np.float32)
        _, state = layer.step(params, None, x_t)
        layer.step(params, state, x_t, prepared)


D, V = 4, 5
LRU = nn.LRU(D, 3)
ATTENTION = nn.ResidualBlock(nn.LayerNorm(D), nn.Attention(D, 2), nn.Dropout(0.1))
PARTS: list[Any] = [
    nn.Dense(D, 3),
    nn.Embedding(V, D),
    nn.BatchNorm(D),
    nn.LayerNorm(D),
    nn.GELU(),
    nn.Dropout(0.5),
    nn.Activation(nn.Dropout(0.5)),
    *(nn.Gate(D, form, dropout=0.25) for form in ("full", "half1", "half2")),
    nn.FeedForward(D, dropout=0.25),
    nn.FeedForward(D, 2, dropout=0.25, gated=True),
    nn.MeanPool(),
    nn.LastPool(),
    nn.ResidualBlock(nn.BatchNorm(D), LRU, nn.Gate(D)),
    nn.ResidualBlock(nn.LayerNorm(D), nn.Mamba(D, 2), nn.Dropout(0.1), prenorm=False),
    nn.ResidualStack(tuple(nn.ResidualBlock(nn.BatchNorm(D), LRU, nn.Gate(D)) for _ in range(2))),
    nn.ResidualStack((nn.FeedForwardBlock(ATTENTION, nn.LayerNorm(D), nn.FeedForward(D)),)),
]


def _of_part(part: Any) -> None:
    params = part.init(np.random.default_rng(0))
    x = np.ones((2, 6), np.int64) if isinstance(part, nn.Embedding) else np.random.default_rng(1).random((2, 6, D))
    for ctx in (Context(), Context(np.array([6, 2]), train=True, seed=3, places=np.array([4, 5]), fused=False)):
        y, saved = part.forward(astype(params, np.float64), x, ctx)
        part.backward(astype(params, np.float64), saved, np.ones_like(y))
    if hasattr(part, "step") and hasattr(part, "prepare"):
        prepared = part.prepare(params)
        _, state = part.step(params, None, np.ones((2, D), np.float32))
        part.step(params, state, np.ones((2, D), np.float32), prepared)


def _of_model(head: str, features: bool, layer: str, own: dict[str, Any], **settings: Any) -> None:
    chosen = rotrnn.ModelSettings(layer, d_model=D, n_layers=2, **settings)
    source: Any = {"n_features": 3} if features else {"vocab": V}
    model: Any = rotrnn.build_model(chosen, own, head=head, n_classes=V if head == "language" else 3, **source)
    rng = np.random.default_rng(0)
    params, pairs, lengths = model.init(rng), (2,) if head == "retrieval" else (), np.array([6, 2])
    inputs = rng.random((2, *pairs, 6, 3), np.float32) if features else rng.integers(0, V, (2, *pairs, 6))
    if pairs:
        lengths = np.stack([lengths, lengths], 1)
    shape = {"tagger": (2, 6), "bits": (2, 6, 3), "language": (2, 6)}.get(head, (2,))
    labels = rng.integers(0, 2, shape)
    ctx = Context(lengths, train=True, seed=7)
    logits, saved = model.forward(params, inputs, ctx)
    loss = model.loss(logits, labels, lengths)
    model.count(labels, lengths)
    grads = model.backward(params, saved, loss.dlogits)
    optimiser = rotrnn.AdamW(clip=0.5)
    moments = optimiser.init(params)
    optimiser.update(params, grads, moments, optimiser.grouping(model.is_recurrent), 1, 10)
    model.state_norms(params, inputs, Context(lengths))
    model.eigenvalues(params)
    if head == "language":
        model.sample(params, inputs, 2, seed=0)
    if not pairs and settings.get("norm") != "batch":
        stream = model.stream(params, 2)
        stream.push(inputs[:, 0])
        stream.push(inputs, lengths)
        stream.push(inputs[:, 1])


MODELS: list[tuple[str, bool, str, dict[str, Any], dict[str, Any]]] = [
    ("classifier", False, "lru", {"d_state": 3}, {"norm": "layer", "dropout": 0.3}),
    ("classifier", True, "rotrnn", {"d_state": 4, "heads": 2}, {"pool": "last", "prenorm": False, "norm": "layer"}),
    ("tagger", True, "lru", {"d_state": 3}, {"glu": "half1", "final_norm": True}),
    ("tagger", False, "wrope_memory", {"d_state": 2, "length": 4}, {"norm": "layer"}),
    ("bits", True, "lstm", {"d_state": 3}, {"norm": "layer", "glu": "gelu"}),
    ("language", False, "attention", {"heads": 2}, {"norm": "rms", "block": "transformer"}),
    ("retrieval", False, "s4d", {"d_state": 4}, {"norm": "layer"}),
    ("retrieval", True, "lru", {"d_state": 3}, {"pool": "last"}),
]


X = np.random.default_rng(0).standard_normal((2, 9, D))
TURN = 0.9 * np.exp(1j * np.arange(12.0).reshape(D, 3))


def _of_windows() -> None:
    for a in (np.full(D, 0.9), TURN[:, 1]):
        _, state = rotrnn.ops.tiir_scan(a, X.astype(a.dtype), window=3)
        rotrnn.ops.tiir_scan(a, X.astype(a.dtype), state, window=3, power=a**3)


def _of_split() -> None:
    """One process with whole sequences."""
    turn, x = np.full(D // 2, 0.9 + 0.1j), X[..., : D // 2 * 2].view(np.complex128)
    lengths = rotrnn.ops.split_lengths(np.array([9, 3]), X.shape[1], split=ALONE)
    rotrnn.ops.split_start(turn, x, split=ALONE, lengths=lengths)
    rotrnn.ops.split_end(x, turn, split=ALONE, lengths=lengths)


WITHOUT_ROWS: dict[str, Callable[[], Any]] = {
    "bank_step": lambda: rotrnn.ops.bank_step(TURN, TURN, np.ones(D), np.zeros((2, D, 3), complex), X[:, 0]),
    "batch_norm_statistics": lambda: rotrnn.ops.batch_norm_statistics(X, lengths=np.array([9, 3])),
    "dplr_bank_step": lambda: rotrnn.ops.dplr_bank_step(
        rotrnn.ops.DplrSystem(*[TURN] * 5, np.ones(D)), np.zeros((2, D, 3), complex), X[:, 0]
    ),
    "learning_rate": lambda: rotrnn.learning_rate(3, 10, 1e-3),
    "split": _of_split,
    "tiir_scan": _of_windows,
    "wrope_angle": lambda: rotrnn.ops.wrope_angle(np.arange(5), 8),
}


def made(kind: Any, **settings: Any) -> Any:
    """Makes a layer and its first parameters: a call of the fuzzer, whose arguments are the settings."""
    layer = kind(**settings)
    return layer.init(np.random.default_rng(0)), layer.shapes


def _constructors() -> list[Call]:
    layers = [row.layer for row in LAYER_ROWS] + PARTS
    return [
        Call(
            type(one).__name__, partial(made, type(one)), {f.name: getattr(one, f.name) for f in fields(one) if f.init}
        )
        for one in layers
    ]


@cache
def scenarios() -> dict[str, list[Scenario]]:
    """Returns all scenarios by family."""
    every = [Scenario(case.name.split()[0], case.name, partial(_of_case, case)) for case in CASES]
    for row in LAYER_ROWS:
        every.append(Scenario(type(row.layer).__name__, f"{row.title} step by step", partial(_of_layer, row)))
    for part in PARTS:
        every.append(Scenario(type(part).__name__, repr(part), partial(_of_part, part)))
    for head, features, layer, own, settings in MODELS:
        run = partial(_of_model, head, features, layer, own, **settings)
        every.append(Scenario(f"model {head}", f"{head} of {layer}", run))
    every += [Scenario(name, name, run) for name, run in WITHOUT_ROWS.items()]
    every.append(Scenario("constructors", "constructors", lambda: None))
    found: dict[str, list[Scenario]] = {}
    for one in every:
        found.setdefault(one.family, []).append(one)
    return found


@cache
def recorded(family: str, place: int) -> dict[str, list[Call]]:
    """Returns the calls of a scenario, by name."""
    scenario = scenarios()[family][place]
    with recording() as calls, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        scenario.run()
    if family == "constructors":
        calls += _constructors()
    found: dict[str, list[Call]] = {}
    for call in calls:
        found.setdefault(call.name, []).append(call)
    return found
