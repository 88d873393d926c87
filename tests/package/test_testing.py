"""rotrnn.testing: right gradients of every kind of function pass, and what is wrong with another is named."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import rotrnn
from rotrnn.models.build import make_layer
from rotrnn.nn.instructions import Affine, Dense, Scan
from rotrnn.nn.instructions.recurrence import Recurrence
from rotrnn.nn.layer import Params
from rotrnn.nn.listing import Listing, Unlisted
from rotrnn.nn.module import Module
from rotrnn.nn.program import Builder, Line, Program, Programmed
from rotrnn.testing import adjoint_identity, gradcheck, streamcheck
from small_models import sizes_of

FIXED = {"gradient": "implicit", "tol": 1e-13, "max_iterations": 2000}
LAYERS = {
    name: {**sizes_of(name), **(FIXED if hasattr(kind, "tol") else {})}
    for name, kind in rotrnn.LAYERS.items()
    if name != "fpmamba"  # its fixed point is not unique
}
B, T, D, S = 2, 5, 4, 3


def normal(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape)


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer(name: str) -> None:
    layer = make_layer(name, D, LAYERS[name])
    errors = gradcheck(layer)
    expected = {*layer.shapes, "x", *(["state"] if name == "lru" else [])}
    assert expected - layer.estimated <= errors.keys()
    assert layer.estimated.isdisjoint(errors)
    assert max(errors.values()) <= 1e-6


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_streams(name: str) -> None:
    layer = make_layer(name, D, LAYERS[name])
    if name in ("attention", "wrope_memory"):
        kind = type(layer).__name__
        with pytest.raises(NotImplementedError, match=f"^streamcheck: {kind}: a layer keeps .* state grows with time"):
            streamcheck(layer)
    elif type(layer).emit is Module.emit:  # a layer of functions, as docs/own-layers.md has one
        with pytest.raises(Unlisted, match="has no program"):
            streamcheck(layer)
    else:
        assert streamcheck(layer) <= 1e-11  # the roundings of seven steps, or a fixed point's tol beside a gain of 100


@dataclass(frozen=True)
class Own(Programmed):
    """A scan of an instruction of the user's own."""

    about: ClassVar[str] = "a test"
    paper: ClassVar[str] = "none"
    instruction: object = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"W": (self.d_model, self.d_model)}

    def init(self, rng: np.random.Generator) -> Params:
        return {"W": np.eye(self.d_model, dtype=np.float32)}

    def program(self) -> Program:
        p = Builder(self)
        instruction: Any = self.instruction
        return p.returns(p(Scan(), p(instruction, p.x), p(Dense(), p.x, "W")))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Doubled(Affine):
    """An instruction whose lines are given."""

    lines: Any = None

    def forward(self, call: Any, x: Any) -> Any:
        return 2 * x

    def emit(self, to: Listing, line: Line, x: int) -> Any:
        return self.lines(to, x)


def test_a_constant_is_a_line() -> None:
    """An affine map of the scale 0, as docs/own-layers.md says."""

    def emit(self: Any, to: Listing, line: Line, x: int) -> Any:
        return to("Scan", to("Affine", x, scale=0.0, shift=0.5), x)

    assert streamcheck(Own(D, instruction=type("Listed", (Summing,), {"emit": emit})())) < 1e-12


def test_lines_that_are_not_forward_are_noticed() -> None:
    def layer(lines: Any) -> Own:
        return Own(3, instruction=Doubled(2.0, lines=lines))

    assert streamcheck(layer(lambda to, x: to("Sum", x, x))) < 1e-12
    message = (
        r"^Own: the stream of its lines has -?[\d.]+ in sequence 0, step 1, channel 0, expected -?[\d.]+ by forward"
    )
    taps = np.array([[1.0, 1.0]] * 3)  # adds the step before
    for wrong in (lambda to, x: to("Product", x, x), lambda to, x: to("Conv", x, taps, None)):
        with pytest.raises(AssertionError, match=message):
            streamcheck(layer(wrong))
    with pytest.raises(TypeError, match="streamcheck: layer is a Gate, expected a layer"):
        streamcheck(rotrnn.Gate(D))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^Doubled\.emit: returned None"):
        streamcheck(layer(lambda to, x: None))


def test_parts_models_and_what_is_given() -> None:
    assert gradcheck(rotrnn.Gate(D)).keys() == {"value.w", "value.bias", "gate.w", "gate.bias", "x"}
    layer = rotrnn.LRU(D, S)
    x = np.where(np.arange(T)[:, None] < 3, normal(B, T, D), np.nan).astype(np.float32)
    given = layer.init(np.random.default_rng(0)), x, rotrnn.Context(lengths=np.array([3, 0]))
    assert "state" in gradcheck(layer, *given)
    settings = rotrnn.ModelSettings("lru", D, 1, dropout=0.2)
    model = rotrnn.build_model(settings, layer, head="language", vocab=5, n_classes=5)
    errors = gradcheck(model, None, np.arange(B * T).reshape(B, T) % 5, rotrnn.Context(train=True, step=3))
    assert "blocks.0.layer.nu_log" in errors
    assert "x" not in errors  # token ids
    assert not [name for name in errors if "running" in name]


a = np.full(D, 0.9) * np.exp(0.3j)
OPS: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (rotrnn.ops.diagonal_scan, (a, normal(B, T, D), normal(B, D) + 0j), {"lengths": [T, 3]}, "a x h0"),
    (rotrnn.ops.diagonal_scan, (a, normal(B, T, D) + 0j), {"window": 3, "reverse": True}, "a x"),
    (rotrnn.ops.rotation_scan, (normal(2), np.array(0.9), normal(B, T, D)), {}, "theta gamma x"),
    (rotrnn.ops.causal_conv, (normal(B, T, D), normal(D, 3)), {"state": normal(B, 2, D)}, "x w state"),
    (rotrnn.ops.dense, ([[1.0, 2.0]], normal(3, 2)), {"bias": normal(3)}, "x w bias"),
    (rotrnn.ops.layer_norm, (normal(B, T, D), normal(D), normal(D)), {"eps": 1e-3}, "x scale bias"),
    (rotrnn.ops.batch_norm, (normal(B, T, D), normal(D), normal(D)), {}, "x scale bias"),
    (rotrnn.ops.attention, (normal(B, T, D), normal(B, T, D), normal(B, T, D)), {"heads": 2}, "q k v"),
    (rotrnn.ops.diagonal_bank, (0.5 * np.exp(1j * normal(D, S)), normal(D, S) + 0j, normal(D), normal(B, T, D)), {},
     "a c skip u"),
    (rotrnn.ops.lstm, (normal(4 * D, D), normal(B, T, 4 * D)), {}, "w x"),
    (rotrnn.ops.sigmoid, (normal(B, T, D),), {}, "x"),
    (rotrnn.ops.turn, (normal(B, T, 2, 1), normal(B, T, 1, 2, D), normal(B, T, 3, 2, D)), {}, "theta x z"),
    (rotrnn.ops.permuted_scan, (normal(B, T, 2), normal(2, D, D), normal(B, T, 2, D), normal(B, T, 2, D)), {}, "d x"),
    (rotrnn.ops.mean_pool, (normal(B, T, D),), {"seq_len": T}, "x"),
    (rotrnn.ops.embedding, (np.array([[0, 2]]), normal(3, D)), {"vocab": 3}, "table"),
    (rotrnn.ops.cross_entropy, (normal(B, D), np.array([1, 3])), {}, "logits"),
    (rotrnn.ops.mean_squared_error, (normal(B, D), normal(B, D)), {}, "predictions"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arguments", "settings", "names"), OPS, ids=lambda one: getattr(one, "__name__", ""))
def test_ops(op: Callable[..., Any], arguments: tuple[Any, ...], settings: dict[str, Any], names: str) -> None:
    assert gradcheck(op, *arguments, **settings).keys() == {*names.split()}


def product(x: Any, w: Any) -> Any:
    return x @ w


def half(op: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a backward with half of a gradient."""

    @functools.wraps(op)
    def wrong(*given: Any, **more: Any) -> Any:
        grads = op(*given, **more)
        return grads._replace(**{name: getattr(grads, name) / 2})

    return wrong


def test_a_wrong_gradient_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal(3, D), normal(D, S)
    gradcheck((product, lambda dy, x, w: (dy @ w.T, x.T @ dy)), x, w)
    for wrong, message in (
        (lambda dy, x, w: (dy @ w.T, 1.00001 * x.T @ dy), "product: the gradient of w is .* along a random direction,"),
        (lambda dy, x, w: (np.nan * x, x.T @ dy), "product: the gradient of x is nan along .* by central differences"),
        (lambda dy, x, w: (dy @ w.T, w.T), r"product: the gradient of w has shape \(3, 4\), expected \(4, 3\)"),
        (lambda dy, x, w: (x.astype("f4"), w), "product: the gradient of x has dtype float32, expected float64"),
    ):
        with pytest.raises(AssertionError, match=message):
            gradcheck((product, wrong), x, w)
    backward = half(rotrnn.ops.diagonal_scan_backward, "da")
    monkeypatch.setattr("rotrnn.ops.scan.diagonal_scan_backward", backward)
    with pytest.raises(AssertionError, match="diagonal_scan: the gradient of a is"):
        gradcheck(rotrnn.ops.diagonal_scan, np.full(D, 0.9), normal(B, T, D))
    monkeypatch.setattr(Scan, "of", (rotrnn.ops.diagonal_scan, backward))
    with pytest.raises(AssertionError, match="MinGRU: the gradient of W_z is"):
        gradcheck(rotrnn.MinGRU(D, S))

    class Forgetful(rotrnn.LRU):
        def backward(self, params: Any, saved: Any, dy: Any, dstate: Any = None) -> Any:
            dx, dparams, dstate = super().backward(params, saved, dy, dstate)
            return dx, {name: one for name, one in dparams.items() if name != "D"}, dstate

    with pytest.raises(AssertionError, match=r"Forgetful: backward returned gradients of nu_log, .*, state, expected"):
        gradcheck(Forgetful(D, S))


def test_the_adjoint_identity_sees_what_differences_cannot() -> None:
    """An error of 1e-9 is below what central differences promise."""
    x, w = normal(3, D), normal(D, S)
    with pytest.raises(AssertionError, match=r"product: <J v, w> is .* for x, and <v, J\^T w> by backward"):
        gradcheck((product, lambda dy, x, w: ((1 + 1e-9) * dy @ w.T, x.T @ dy)), x, w)
    forward, backward = lambda args: (args["x"] ** 2,), lambda args, y, dy: {"x": 2 * args["x"] * dy[0]}
    with pytest.raises(AssertionError, match="<J v, w>"):  # not linear
        adjoint_identity(forward, backward, {"x": x}, ["x"], np.random.default_rng(0))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (("lru",), TypeError, r"gradcheck: function is a str, expected a module, an op, or \(forward, backward\)"),
        ((np.square, normal(3)), TypeError, "gradcheck: square has no square_backward, expected a function beside it"),
        ((rotrnn.Dense(3, 2),), TypeError, "gradcheck: x is missing, expected the input of a Dense"),
        ((rotrnn.FixedPointRNN(4, 4),), ValueError, "FixedPointRNN has gradient='one_step', .*, expected 'implicit'"),
        ((rotrnn.ops.mean_pool, np.zeros((2, 3))), ValueError, r"mean_pool: x has shape \(2, 3\), expected \(B, T,"),
    ],
)  # fmt: skip
def test_what_cannot_be_checked(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gradcheck(*given)


def summed(x: Any, h0: Any = None, lengths: Any = None) -> Any:
    """``h_t = h_{t-1} / 2 + x_t``."""
    return Sums(*rotrnn.ops.diagonal_scan(np.full(x.shape[2], 0.5, x.dtype), x, h0, lengths=lengths, return_state=True))


def summed_backward(dy: Any, y: Any, h0: Any = None, dhT: Any = None, lengths: Any = None) -> Any:
    grads = rotrnn.ops.diagonal_scan_backward(dy, np.full(y.shape[2], 0.5, y.dtype), y, h0, dhT=dhT, lengths=lengths)
    return SumGrads(grads.dx, grads.dh0)


class Sums(NamedTuple):
    """Results of `summed`."""

    y: Any
    hT: Any


class SumGrads(NamedTuple):
    """Results of `summed_backward`."""

    dx: Any
    dh0: Any


@dataclass(frozen=True)
class Summing(Recurrence):
    """A recurrence of the user's own."""

    of = summed, summed_backward
    takes = "x"
    form = "N -> N"
    states = "h N"
    reads = ("y",)


def ignoring(function: Any) -> Any:
    """Returns a function that ignores `lengths`."""

    @functools.wraps(function)
    def deaf(*given: Any, lengths: Any = None, **more: Any) -> Any:
        return function(*given, **more)

    return deaf


ALONE = "the output {state} is .*, expected .* as of the sequence alone"


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ((ignoring(summed), ignoring(summed_backward)), ALONE),
        ((ignoring(summed), summed_backward), ALONE),
        ((summed, ignoring(summed_backward)), r"the gradient of .* is .*, expected .*"),
    ],
)
def test_lengths_that_are_ignored_are_noticed(of: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a recurrence of a layer, and in an op, though all gradients are right without lengths."""
    x, h0 = normal(B, 7, D), normal(B, D)
    layer = Own(D, instruction=type("Deaf", (Summing,), {"of": of})())
    for given in ((), (layer.init(np.random.default_rng(0)), x)):
        with pytest.raises(AssertionError, match=rf"^Own: with lengths=\[4, 5\], {message.format(state='state.0')}"):
            gradcheck(layer, *given)
    for name, one in zip(("summed", "summed_backward"), of, strict=True):
        monkeypatch.setitem(globals(), name, one)
    with pytest.raises(AssertionError, match=rf"^summed: with lengths=\[4, 5\], {message.format(state='hT')}"):
        gradcheck(of[0], x, h0)


def starting(x: Any, h0: Any = None, lengths: Any = None) -> Any:
    return summed(x, None, lengths)


def starting_backward(dy: Any, y: Any, h0: Any = None, dhT: Any = None, lengths: Any = None) -> Any:
    grads = summed_backward(dy, y, None, dhT, lengths)
    return grads._replace(dh0=np.zeros_like(grads.dh0))


def shortened(x: Any, h0: Any = None, lengths: Any = None) -> Any:
    found = summed(x, h0, lengths)
    return found._replace(hT=found.hT / 2)


def shortened_backward(dy: Any, y: Any, h0: Any = None, dhT: Any = None, lengths: Any = None) -> Any:
    return summed_backward(dy, y, h0, None if dhT is None else dhT / 2, lengths)


@pytest.mark.parametrize("of", [(starting, starting_backward), (shortened, shortened_backward)])
def test_a_state_that_is_not_handed_on_is_noticed(of: Any) -> None:
    """Op and adjoint fit each other: they begin with zeros whatever h0 is, or return another hT."""
    layer = Own(D, instruction=type("Restarting", (Summing,), {"of": of})())
    message = (
        r"^Own: of two pieces, the state handed on, the output y is .* at \(0, 3, 0\), expected .* as of the whole$"
    )
    with pytest.raises(AssertionError, match=message):
        gradcheck(layer)


def test_pieces_have_their_intervals() -> None:
    assert "state" in gradcheck(rotrnn.S5(D, 4), None, normal(B, 7, D), rotrnn.Context(dt=1 + normal(B, 7) ** 2))


def test_a_recurrence_that_cannot_run_in_float32_is_noticed() -> None:
    def wide(x: Any, h0: Any = None, lengths: Any = None) -> Any:
        found = summed(x, h0, lengths)
        return found._replace(hT=found.hT.astype(np.float64))  # as of an np.zeros without a dtype

    def wide_backward(dy: Any, y: Any, h0: Any = None, dhT: Any = None, lengths: Any = None) -> Any:
        grads = summed_backward(dy, y, h0, dhT, lengths)
        return grads._replace(dh0=grads.dh0.astype(np.float64))

    for of, name in (
        ((wide, summed_backward), "op wide returned hT"),
        ((summed, wide_backward), "adjoint wide_backward returned dh0"),
    ):
        layer = Own(D, instruction=type("Wide", (Summing,), {"of": of})())
        with pytest.raises(TypeError, match=f"^Wide: the {name} of dtype float64, expected float32$"):
            gradcheck(layer)


def test_gradients_of_padding_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = summed_backward

    def leaking(dy: Any, y: Any, h0: Any = None, dhT: Any = None, lengths: Any = None) -> Any:
        grads = right(dy, y, h0, dhT, lengths)
        beyond = 0 if lengths is None else np.arange(y.shape[1])[:, None] >= lengths[:, None, None]
        return grads._replace(dx=grads.dx + beyond)

    monkeypatch.setitem(globals(), "summed_backward", leaking)
    message = r"^summed: with lengths=\[4, 5\], the gradient of x is 1 at \(0, 4, 0\), expected 0 beyond the length$"
    with pytest.raises(AssertionError, match=message):
        gradcheck(summed, normal(B, 7, D))


def test_lengths_that_are_given_are_compared_too() -> None:
    """A pair that ignores them has right gradients, but of another function."""

    def mean(x: Any, lengths: Any) -> Any:
        return x.mean(1)

    def mean_backward(dy: Any, x: Any, lengths: Any) -> Any:
        return np.repeat(dy[:, None], x.shape[1], 1) / x.shape[1], None

    message = r"^mean: with lengths=\[1, 7\], the output 0 is .* at \(0, 0\), expected .* as of the sequence alone$"
    with pytest.raises(AssertionError, match=message):
        gradcheck((mean, mean_backward), normal(B, 7, D), np.array([1, 7]))


def test_lengths_that_are_respected() -> None:
    """Also where sizes are equal, and for poolings, whose outputs have no steps."""
    assert gradcheck(Own(D, instruction=Summing())).keys() == {"W", "x", "state.0", "state.1"}
    assert gradcheck(summed, normal(B, D, D), normal(B, D)).keys() == {"x", "h0"}
    assert gradcheck(summed, normal(B, T, D), normal(B, D), lengths=[0, 2]).keys() == {"x", "h0"}
    assert gradcheck(rotrnn.ops.mean_pool, normal(B, T, T), seq_len=T).keys() == {"x"}
    assert gradcheck(rotrnn.ops.rnn, normal(3, 3), normal(3, 3, 3)).keys() == {"A", "x"}  # a parameter (B, T)


def test_no_test_runner_is_needed() -> None:
    code = (
        "import sys, rotrnn; rotrnn.testing.gradcheck(rotrnn.ops.tanh, [0.5, 1.0]); assert 'pytest' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("of_x", "of_y"), [(1, 1e-10), (1, 1e-5), (1, 1), (1, 1e6), (1e3, 1), (1e6, 1)])
def test_wrong_gradients_of_any_size_are_found(of_x: float, of_y: float) -> None:
    """The bound follows the size of what forward returns, and the step that of large arguments."""
    x = of_x * np.random.default_rng(0).standard_normal(5)

    def square(x: Any) -> Any:
        return of_y * x**2

    assert gradcheck((square, lambda dy, x: dy * 2 * of_y * x), x)["x"] < 1e-6
    with pytest.raises(AssertionError, match="square: the gradient of x is"):
        gradcheck((square, lambda dy, x: dy * 2.001 * of_y * x), x)


def test_what_a_pair_may_return() -> None:
    x, w = np.random.default_rng(0).standard_normal((2, 3, 3))
    power = (lambda x, n: np.sin(x) ** n, lambda dy, x, n: (dy * n * np.sin(x) ** (n - 1) * np.cos(x), None))
    assert gradcheck(power, x, 2)["x"] < 1e-6
    with pytest.raises(AssertionError, match=r"returned 1 value\(s\), expected 2: those of x, w"):
        gradcheck((lambda x, w: x @ w.T, lambda dy, x, w: dy @ w), x, w)
    with pytest.raises(AssertionError, match="backward returned gradients of w, expected x, w"):
        gradcheck((lambda x, w: x @ w.T, lambda dy, x, w: (None, dy.T @ x)), x, w)
    with pytest.raises(TypeError, match="gradcheck: none of x has floats, expected one that has"):
        gradcheck((lambda x: x**2, lambda dy, x: 2 * dy * x), np.arange(3))
    with pytest.raises(TypeError, match=r"function is the class LRU, expected an object of it, LRU\(\.\.\.\)"):
        gradcheck(rotrnn.LRU)
    with pytest.raises(TypeError, match="has no argument 'stat' for a module, expected params, x, ctx or state"):
        gradcheck(rotrnn.LRU(d_model=2, d_state=2), stat=3)
    with pytest.raises(TypeError, match="gradcheck: dense: missing a required argument: 'x'"):
        gradcheck(rotrnn.ops.dense)


def test_a_gradient_that_is_zero_has_a_small_error() -> None:
    """The slope of what does not depend on x is rounding alone: a few roundings of size one over a step of 1e-4."""
    x, y = np.linspace(0.1, 1, 7), np.linspace(-1, 1, 7)
    errors = gradcheck((lambda x, y: y * y + (x - x), lambda dy, x, y: (np.zeros_like(x), 2 * y * dy)), x, y)
    assert errors["x"] < 1e-6


def test_a_sharp_bend_is_not_a_wrong_gradient() -> None:
    """The direction of a vector of length 1e-3 turns by a tenth within a step of 1e-4."""

    def forward(x: Any) -> Any:
        return x / max(np.linalg.norm(x), 1e-300)

    def backward(dy: Any, x: Any) -> Any:
        y, size = forward(x), np.linalg.norm(x)
        return (dy - np.sum(dy * y) * y) / size

    x = 1e-3 * forward(normal(6))
    assert gradcheck((forward, backward), x)["x"] <= 1e-6
    with pytest.raises(AssertionError, match="the gradient of x is"):
        gradcheck((forward, lambda dy, x: (1 + 1e-5) * backward(dy, x)), x)


def test_a_packed_row_has_a_state_for_each_sequence() -> None:
    layer = rotrnn.RGLRU(4)
    ctx = rotrnn.Context(cu_seqlens=np.array([0, 4, 4, 9]))
    errors = gradcheck(layer, layer.init(np.random.default_rng(0)), normal(1, 9, 4), ctx)
    assert {"x", "state.1"} <= errors.keys()


@pytest.mark.filterwarnings("ignore::rotrnn.nn.fixed_points.iteration.NotConverged")
def test_a_gradient_is_not_held_closer_than_its_tolerance() -> None:
    with pytest.raises(ValueError, match=r"gradcheck: Bedouin has tol=0.1, expected at most 1e-12"):
        gradcheck(rotrnn.Bedouin(4, d_state=2, gradient="implicit"))


def test_a_stream_is_not_held_closer_than_its_tolerance() -> None:
    with pytest.raises(
        ValueError, match=r"streamcheck: Bedouin has tol=0.1, up to which they differ, expected at most"
    ):
        streamcheck(rotrnn.Bedouin(4, d_state=2))
