"""Layers that are programs: what follows from the lines (rotrnn.nn.program)."""

from __future__ import annotations

import inspect
import pickle
import re
from collections import namedtuple
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from rotrnn.models.build import make_layer
from rotrnn.nn.instructions import (
    Affine,
    Concat,
    Conv,
    Dense,
    LSTMCells,
    MatMul,
    Oscillators,
    Product,
    Rates,
    Rows,
    Scan,
    Sigmoid,
    SiLU,
    Skip,
    Split,
    Sum,
)
from rotrnn.nn.instructions.recurrence import Recurrence
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, astype, state_leaves
from rotrnn.nn.layers.mamba import Mamba
from rotrnn.nn.layers.min_gru import MinGRU
from rotrnn.nn.listing import Listing
from rotrnn.nn.program import Builder, Call, Instruction, Program, Programmed, ProgramSaved
from rotrnn.nn.registry import LAYERS
from rotrnn.ops.pointwise import silu_backward
from rotrnn.testing import gradcheck
from small_models import Cube, exact

B, T, D, N = 2, 6, 3, 4


@dataclass(frozen=True)
class Own(Programmed):
    """A layer of the user's own: h = scan(s(-e^r u), silu(conv(u))), y = W (h + h * u^3) + 2 u, with u = W_in x."""

    about: ClassVar[str] = "a test"
    paper: ClassVar[str] = "none"
    d_state: int = N

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        n = self.d_state
        return {"W_in": (n + 1, D), "taps": (n, 3), "r": (n, n), "W": (D, n)}

    def init(self, rng: np.random.Generator) -> Params:
        return astype({name: rng.standard_normal(shape) for name, shape in self.shapes.items()}, np.float32)

    def program(self) -> Program:
        p = Builder(self)
        u, _ = p(Split((self.d_state, 1)), p(Dense(), p.x, "W_in", "no such bias"))
        a = p(Sigmoid(), p(Dense(), u, p(Rates(), "r")))
        h = p(Scan(), a, p(SiLU(), p(Conv(), u, "taps")))
        read = p(Sum(), h, p(Product(), h, p(Cube(), u)))
        return p.returns(p(Sum(), p(Dense(), read, "W"), p(Affine(2), p.x)), h=h, a=a)


def drawn(dtype: Any = np.float64) -> tuple[Own, Params, Array]:
    layer, rng = Own(D), np.random.default_rng(0)
    return layer, astype(layer.init(rng), dtype), rng.standard_normal((B, T, D)).astype(dtype)


def test_a_layer_of_the_users_own_has_right_gradients() -> None:
    """With a state, lengths, and parts of a split that nothing reads."""
    layer, params, x = drawn()
    assert set(gradcheck(layer)) >= {"x", "W_in", "taps", "r", "W", "state.0", "state.1"}
    y, saved = layer.forward(params, x, Context(np.array([T, 2])))
    dx, dparams, _ = layer.backward(params, saved, np.ones_like(y))
    assert not y[1, 2:].any()
    assert not dx[1, 2:].any()
    assert list(dparams) == list(params)


def test_forward_equals_the_equation() -> None:
    layer, params, x = drawn()
    u = (x @ params["W_in"].T)[..., :N]
    a = 1 / (1 + np.exp(u @ np.exp(params["r"]).T))
    padded = np.concatenate([np.zeros((B, 2, N)), u], 1)
    v = sum(padded[:, k : k + T] * params["taps"][:, k] for k in range(3))
    v = v / (1 + np.exp(-v))
    h, hs = np.zeros((B, N)), []
    for t in range(T):
        h = a[:, t] * h + v[:, t]
        hs.append(h)
    states = np.stack(hs, 1)
    y, saved = layer.forward(params, x)
    # sums of at most 3 T products of numbers of size 100
    np.testing.assert_allclose(y, (states + states * u**3) @ params["W"].T + 2 * x, rtol=0, atol=1e-11)
    np.testing.assert_allclose(layer.hidden_states(saved), states, rtol=0, atol=1e-12)
    np.testing.assert_allclose(layer.registers(params, x)["a"], a, rtol=0, atol=1e-14)


def test_steps_go_on_where_forward_ends_and_take_what_was_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, params, x = drawn()
    y, saved = layer.forward(params, x)
    prepared = layer.prepare(params)
    monkeypatch.setattr(Rates, "forward", None)  # a step with `prepared` does not run it again
    _, state = None, None
    rows = []
    for t in range(T):
        y_t, state = layer.step(params, state, x[:, t], prepared)
        rows.append(y_t)
    # the same operations on rows, whose sums of N products may be in another order
    np.testing.assert_allclose(np.stack(rows, 1), y, rtol=0, atol=1e-12 * np.abs(y).max())
    for one, other in zip(state_leaves(state), state_leaves(saved.state), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * np.abs(other).max())


def test_the_state_is_the_states_of_the_lines_in_order() -> None:
    form = Own(D).state_form
    assert isinstance(form, tuple)
    assert [(one.name, one.shape) for one in form] == [("inputs", (2, N)), ("h", (N,))]
    assert MinGRU(D, N).state_form == Own(D).state_form[1]  # type: ignore[index]  # one array alone is no tuple


def test_forward_saves_what_adjoints_read_and_no_more() -> None:
    """Of minGRU: x for both maps; z, of which the transition 1 - z and the product z c are computed again; c; h. Of a
    projection that is split, the part that is read."""
    layer = MinGRU(D, N)
    _, saved = layer.forward(layer.init(np.random.default_rng(0)), np.ones((B, T, D), np.float32))
    assert {name: one.shape[2] for name, one in saved.registers.items()} == {
        "x": D,
        "Sigmoid": N,
        "Dense2": N,
        "Scan": N,
    }
    own, params, x = drawn()
    registers = own.forward(params, x)[1].registers
    assert registers["Split_0"].shape[2] == N
    assert "Dense" not in registers
    mamba = Mamba(D, d_state=2, expand=1)
    _, saved = mamba.forward(mamba.init(np.random.default_rng(0)), np.ones((B, T, D), np.float32))
    fixed = {name: saved.registers.pop(name).shape for name in ("Split_0", "Split_1", "Rates")}
    assert fixed == {"Split_0": (D, D), "Split_1": (D, D), "Rates": (D, 2)}  # of parameters alone
    numbers = sum(one.shape[2] for one in saved.registers.values())
    # x, value, gate, conv(value) and its SiLU, d B C, Delta before and after its softplus, h, h * SiLU(gate)
    assert numbers == D + 4 * D + (1 + 2 + 2) + 2 * D + 2 * D


@pytest.mark.parametrize("T", [0, 1, 21, 32, 65])
def test_sums_over_steps_are_of_all_sequences(T: int) -> None:
    """Of 0, 3, 63, 96 and 195 products, by partial sums of 64, whose products and sums round 65 times."""
    layer, rng = Skips(5), np.random.default_rng(T)
    params = layer.init(rng)
    x, dy = rng.standard_normal((2, 3, T, 5)).astype(np.float32)
    _, saved = layer.forward(params, x)
    dx, dparams, _ = layer.backward(params, saved, dy)
    products = dy.astype(float) * x
    assert (abs(dparams["d"] - products.sum((0, 1))) <= 66 * 2.0**-24 * abs(products).sum((0, 1))).all()
    np.testing.assert_array_equal(dparams["b"], dy.sum((0, 1), dtype=float).astype(np.float32))
    np.testing.assert_array_equal(dx, params["d"] * dy + dy)


@dataclass(frozen=True)
class Skips(Programmed):
    """``y = d x + b + x``."""

    about: ClassVar[str] = "a test"
    paper: ClassVar[str] = "none"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"d": (self.d_model,), "b": (self.d_model,)}

    def init(self, rng: np.random.Generator) -> Any:
        return astype({name: rng.standard_normal(shape) for name, shape in self.shapes.items()}, np.float32)

    def program(self) -> Program:
        p = Builder(self)
        return p.returns(p(Skip(), p.x, "d", "b", p.x))


def test_layers_with_programs_are_values() -> None:
    layer, params, x = drawn()
    y, saved = layer.forward(params, x)
    again = pickle.loads(pickle.dumps(layer))
    assert again == layer == Own(D)
    assert hash(again) == hash(layer)
    dx, _, _ = again.backward(params, pickle.loads(pickle.dumps(saved)), y)
    assert dx.tobytes() == layer.backward(params, saved, y)[0].tobytes()
    assert replace(layer, d_state=N + 1).state_form != layer.state_form  # a program of its own


@dataclass(frozen=True)
class Given(Own):
    """A layer whose program is given."""

    write: object = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"W": (N, D), "b": (N,), "C": (D, N)}

    def program(self) -> Program:
        write: Any = self.write
        found: Program = write(Builder(self))
        return found


def whole(p: Builder, v: Any) -> Any:
    return p.returns(p(Dense(), v, "C"))


FORM = r"Dense: got shapes \(3,\), \(3, 4\), None: expected x \(I\); w \(O, I\); b \(O\)"
ELSEWHERE = "expected one that depends on"


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda p: p(Dense(), p.x, "C"), FORM),
        (lambda p: p(Dense(), p.x, "w"), "Dense: w is 'w', expected a register, or a parameter of the layer"),
        (lambda p: p(Dense(), p.x), "Dense: w is None, expected a register, or a parameter of the layer"),
        (lambda p: p(Dense(), p.x, p.x), f"Dense: w depends on x, {ELSEWHERE} parameters alone"),
        (lambda p: p(Sum(), p.x, "b"), f"Sum: z depends on parameters alone, {ELSEWHERE} x"),
        (lambda p: p(SiLU(), "b"), f"SiLU: x depends on parameters alone, {ELSEWHERE} x"),
        (
            lambda p: p(Product(), p.x, p(Dense(), p.x, "W")),
            r"Product: got shapes \(3,\), \(4,\): expected x \(\.\.\.\); z",
        ),
        (lambda p: p(Product(), p.x, None), "Product: z is None, expected a register"),
        (lambda p: p(Sigmoid(), p.x, p.x), "Sigmoid: got 2 inputs, expected x"),
        (lambda p: p(Split((2, 3)), p.x), r"Split: got shapes \(3,\): expected sizes \(2, 3\) that add up to axis -1"),
        (lambda p: p(Split((2, -1, 2)), p.x), "Split: .*expected sizes"),
        (lambda p: p(Dense, p.x, "W"), "got <class .*Dense'>, expected an instruction, as Dense()"),
        (lambda p: p(Affine(2), p(Split((1, 2)), p.x)), "Affine: x is a tuple, expected a register, or the name of"),
        (lambda p: p(Affine(2), Builder(Own(D)).x), "Affine: x is a register of another program"),
        (lambda p: p.returns("C"), "returns: y is 'C', expected a register"),
        (lambda p: p.returns(None), "returns: y is None, expected a register"),
        (lambda p: p.returns(p(Dense(), p.x, "W")), r"returns: y has shape \(4,\), expected shape \(3,\), as of x"),
        (lambda p: whole(p, p(Dense(), p.x, "W")), "returns: no line reads the parameter 'b'$"),
        (
            lambda p: whole(p, p(Dense(), p.x, "W", "bb")),
            "returns: no line reads the parameter 'b'; 'bb' is no parameter",
        ),
        (lambda p: (p(Affine(3), p.x), whole(p, p(Dense(), p.x, "W", "b"))), "no line reads the output of Affine, and"),
        (lambda p: p(Dense(), p.x, "W", "b"), "returned a Register, expected the result of Builder.returns"),
    ],
)
def test_wrong_programs_say_what_is_wrong(write: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^Given\.program: (.*: )?{message}"):
        _ = Given(D, write=write).state_form


@dataclass(frozen=True)
class Power(Instruction):
    """A cube, or with `reads` left out one whose adjoint fails in this way."""

    adjoint: Any
    form: ClassVar[str] = "...; ... -> ..."

    def forward(self, call: Call, x: Array, z: Array) -> Array:
        return x**2 * z

    def backward(self, call: Call, dy: Array, x: Array, z: Array) -> Any:
        return self.adjoint(call, dy, x, z), dy


@dataclass(frozen=True)
class PowerOfX(Power):
    """Without z."""

    reads = ("x",)


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (
            Power(lambda call, dy, x, z: dy * 2 * x),
            r"Power: unsupported .*NoneType'; .* x, z, y, which reads=\(\) does",
        ),
        (Power(lambda call, dy, x, z: dy * x.ndim), "Power: 'NoneType' object has no attribute 'ndim'; .* x, z, y, "),
        (
            Power(lambda call, dy, x, z: dy * call.y),
            "Power: unsupported .*; backward gets None for x, z, y, which reads",
        ),
        (
            Power(lambda call, dy, x, z: silu_backward(dy, x)),
            "Power: silu_backward: x .*; backward gets None for x, z, y",
        ),
        (
            PowerOfX(lambda call, dy, x, z: 2 * x * z),
            r"PowerOfX: .*; backward gets None for z, y, which reads=\('x',\)",
        ),
        (PowerOfX(lambda call, dy, x, z: x.nothing), "PowerOfX: AttributeError: 'numpy.ndarray' .* 'nothing'"),
    ],
)
def test_an_adjoint_that_reads_what_reads_does_not_name_is_told(instruction: Power, message: str) -> None:
    def write(p: Builder) -> Program:
        u = p(Dense(), p.x, "W", "b")
        return whole(p, p(instruction, u, u))  # type: ignore[no-any-return]

    layer = Given(D, write=write)
    params = {name: np.ones(shape) for name, shape in layer.shapes.items()}
    y, saved = layer.forward(params, np.ones((B, T, D)))
    with pytest.raises((TypeError, ValueError), match=rf"^Given\.backward: {message}"):
        layer.backward(params, saved, y)


@dataclass(frozen=True)
class Named(Own):
    """A layer whose parameter has the name of the input."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"x": (D, D)}

    def program(self) -> Program:
        p = Builder(self)
        return p.returns(p(Dense(), p.x, "x"))


def test_a_parameter_may_have_the_name_of_the_input() -> None:
    params = {"x": np.arange(9.0).reshape(D, D)}
    y, _ = Named(D).forward(params, np.ones((1, 1, D)))
    np.testing.assert_array_equal(y, [[[3, 12, 21]]])


def test_a_layer_is_pickled_without_its_program() -> None:
    """Another version of the code may write another one."""
    layer, params, x = drawn()
    layer.forward(params, x)
    assert b"Scan" not in pickle.dumps(layer)


class Add(Instruction):
    """``y = x + more``."""

    def forward(self, call: Call, x: Array, more: Array | None) -> Array:
        return x if more is None else x + more

    def backward(self, call: Call, dy: Array, x: None, more: None) -> tuple[Array, None]:
        return dy, None

    def shapes(self, x: Any, more: Any) -> tuple[Any, ...]:
        return (x,)


@dataclass(frozen=True)
class Further(Programmed):
    """A layer whose forward takes a further input."""

    about: ClassVar[str] = "adds a further input"
    paper: ClassVar[str] = "none"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"W": (self.d_model, self.d_model)}

    def init(self, rng: np.random.Generator) -> Params:
        return {"W": rng.standard_normal((self.d_model, self.d_model)).astype(np.float32)}

    def program(self) -> Program:
        p = Builder(self)
        return p.returns(p(Add(), p(Dense(), p.x, "W"), p.given("more", self.d_model)))

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: Any = None, more: Array | None = None
    ) -> tuple[Array, ProgramSaved]:
        return self._forward(params, x, ctx, state, {"more": more})


def test_a_further_input_of_forward() -> None:
    """Without a gradient, never read beyond the lengths, in packed rows, too; none in steps."""
    layer, rng = Further(D), np.random.default_rng(0)
    params, x, more = astype(layer.init(rng), np.float64), *rng.standard_normal((2, B, T, D))
    ctx, plain = Context(np.array([T, 2])), x @ params["W"].T
    more[1, 2:] = np.nan
    y, saved = layer.forward(params, x, ctx, more=more)
    np.testing.assert_array_equal(y[0], layer.forward(params, x)[0][0] + more[0])
    assert not y[1, 2:].any()
    dx, dparams, _ = layer.backward(params, saved, np.ones_like(y))
    bare = layer.backward(params, layer.forward(params, x, ctx)[1], np.ones_like(y))
    np.testing.assert_array_equal(dx, bare[0])
    np.testing.assert_array_equal(dparams["W"], bare[1]["W"])
    packed, _ = layer.forward(params, x[:1], Context(cu_seqlens=np.array([0, 3, T])), more=more[:1])
    np.testing.assert_array_equal(packed, y[:1])
    np.testing.assert_allclose(layer.step(params, None, x[:, 0])[0], plain[:, 0], rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match=rf"Further.forward: more has shape \({B}, {T}, 1\), expected"):
        layer.forward(params, x, more=more[..., :1])


def test_registers_run_the_lines_that_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, params, x = drawn()
    expected = layer.registers(params, x)
    assert set(expected) == {"h", "a"}
    monkeypatch.setattr(Scan, "forward", None)
    (found,) = layer.registers(params, x, names=("a",)).items()
    assert found[0] == "a"
    np.testing.assert_array_equal(found[1], expected["a"])


SHOWING = sorted(name for name in LAYERS if getattr(make_layer(name, 4, exact(name)), "shown", ()))


@pytest.mark.parametrize("name", SHOWING)
def test_registers_are_zero_in_padding(name: str) -> None:
    """Whatever is there in x; registers of parameters alone stay whole."""
    rng = np.random.default_rng(0)
    layer: Any = make_layer(name, 4, exact(name))
    params, x = astype(layer.init(rng), np.float64), rng.standard_normal((2, 7, 4))
    whole, x[0, 3:] = layer.registers(params, x[:1, :3]), np.nan
    found = layer.registers(params, x, Context(np.array([3, 7])))
    assert found.keys() == whole.keys()
    steps = {key for key, one in whole.items() if one.shape[:2] == (1, 3)}
    assert steps
    for key, one in found.items():
        if key in steps:
            np.testing.assert_allclose(one[:1, :3], whole[key], rtol=1e-9, atol=1e-9, err_msg=key)
            assert not one[0, 3:].any(), key
        else:
            np.testing.assert_array_equal(one, whole[key], err_msg=key)


def test_forms_have_multiples_of_sizes_numbers_and_several_outputs() -> None:
    cells, oscillators = LSTMCells(), Oscillators("im")
    assert cells.shapes((12,), (12, 3)) == ((3,),)
    assert [(one.name, one.shape) for one in cells.state((12,), (12, 3))] == [("h", (3,)), ("c", (3,))]
    assert oscillators.shapes((5,), (5,), None) == ((2, 2, 5), (2, 5))
    for wrong in [((13,), (13, 3)), ((12,), (12, 4)), ((12,), (8, 2)), ((12, 1), (12, 3))]:
        with pytest.raises(ValueError, match=r"^expected x \(4N\); w \(4N, N\), one size for each letter$"):
            cells.shapes(*wrong)


def test_an_unknown_register_is_refused_with_the_known_names() -> None:
    layer, params, x = drawn()
    assert layer.shown == ("h", "a")
    with pytest.raises(
        ValueError, match=r"^Own.registers: names has 'decay', which .* not show; expected one of h, a$"
    ):
        layer.registers(params, x, names=("h", "decay"))
    for wrong in ("a", None, (name for name in "ah")):
        with pytest.raises(TypeError, match=r"^Own.registers: names is .*, expected a list or tuple of names$"):
            layer.registers(params, x, names=wrong)


class Found(NamedTuple):
    """Results of `ema`."""

    y: Array
    hT: Array


class Grads(NamedTuple):
    """Results of `ema_backward`."""

    da: Array
    dx: Array
    dh0: Array


def ema(a: Array, x: Array, h0: Any = None, lengths: Any = None, slope: float = 1) -> Found:
    """``h_t = slope a_t h_{t-1} + x_t``, an op of the user's own."""
    h, y = np.zeros_like(x[:, 0]) if h0 is None else h0, np.empty_like(x)
    for t in range(x.shape[1]):
        y[:, t] = slope * a[:, t] * h + x[:, t]
        h = y[:, t] if lengths is None else np.where((t < lengths)[:, None], y[:, t], h)
    return Found(y, h)


def ema_backward(
    dy: Array, a: Array, y: Array, h0: Any = None, dhT: Any = None, lengths: Any = None, slope: float = 1
) -> Grads:
    da, dx = np.zeros_like(a), np.zeros_like(dy)
    dh = np.zeros_like(dy[:, 0]) if dhT is None else dhT
    for t in reversed(range(dy.shape[1])):
        valid = np.full((len(dy), 1), True) if lengths is None else (t < lengths)[:, None]
        dx[:, t] = np.where(valid, dy[:, t] + dh, 0)
        before = y[:, t - 1] if t else np.zeros_like(dh) if h0 is None else h0
        da[:, t], dh = slope * dx[:, t] * before, np.where(valid, slope * a[:, t] * dx[:, t], dh)
    return Grads(da, dx, dh)


@dataclass(frozen=True)
class Ema(Recurrence):
    """An instruction of the user's own, of an op and its adjoint."""

    slope: float = 1
    of = ema, ema_backward
    takes = "a x"
    form = "N; N -> N"
    states = "h N"
    reads = ("a", "y")


def between(recurrence: Any, **settings: Any) -> Given:
    """A layer with the recurrence between two maps."""

    def write(p: Builder) -> Program:
        u = p(Dense(), p.x, "W", "b")
        return whole(p, p(recurrence(**settings), p(Sigmoid(), u), u))  # type: ignore[no-any-return]

    return Given(D, write=write)


def test_a_recurrence_of_the_users_own_has_right_gradients_and_steps() -> None:
    """Its setting reaches op and adjoint; ragged, packed and step by step, it is the package's scan."""
    layer, rng = between(Ema, slope=0.5), np.random.default_rng(0)
    params = {name: rng.standard_normal(shape) for name, shape in layer.shapes.items()}
    x, state = rng.standard_normal((B, T, D)), rng.standard_normal((B, N))
    lengths = np.array([T, 2])
    for ctx in (EVALUATION, Context(lengths)):
        assert {"W", "b", "C", "x", "state"} == set(gradcheck(layer, params, x, ctx, state))

    def write(p: Builder) -> Program:
        u = p(Dense(), p.x, "W", "b")
        return whole(p, p(Scan(), p(Affine(0.5), p(Sigmoid(), u)), u))  # type: ignore[no-any-return]

    scan = Given(D, write=write)
    # sums and products of the same numbers, of size ten, in another order
    close: Any = {"rtol": 0, "atol": 1e-12}
    for ctx in (EVALUATION, Context(lengths)):
        (y, saved), (expected, known) = (one.forward(params, x, ctx, state) for one in (layer, scan))
        np.testing.assert_allclose(y, expected, **close)
        np.testing.assert_allclose(saved.state, known.state, **close)
    packed = Context(cu_seqlens=np.array([0, 0, 4, T]))
    y, expected = (one.forward(params, x[:1], packed)[0] for one in (layer, scan))
    np.testing.assert_allclose(y, expected, **close)
    y_t, after = layer.step(params, state, x[:, 0])
    np.testing.assert_allclose(y_t, layer.forward(params, x[:, :1], EVALUATION, state)[0][:, 0], **close)
    assert after.shape == (B, N)  # type: ignore[union-attr]


def test_arguments_of_a_recurrence_need_no_defaults() -> None:
    """Without a state h0 is None, without a gradient of the state after x dhT is None."""
    op, adjoint = (
        with_default(one, "h0", "dhT", "lengths", default=inspect.Parameter.empty) for one in (ema, ema_backward)
    )
    layer = between(type("Bare", (Ema,), {"of": (op, adjoint)}))
    params = {name: np.ones(shape) for name, shape in layer.shapes.items()}
    y, saved = layer.forward(params, np.ones((B, T, D)))
    (dx, _, dstate), expected = (
        one.backward(params, one.forward(params, np.ones((B, T, D)))[1], y) for one in (layer, between(Ema))
    )
    np.testing.assert_array_equal(dx, expected[0])
    np.testing.assert_array_equal(dstate, expected[2])
    assert saved.state.shape == (B, N)


def without(function: Any, *names: str) -> Any:
    """A function of the same name whose signature lacks some arguments."""

    def given(*values: Any, **named: Any) -> Any:
        return function(*values, **named)

    signature = inspect.signature(function)
    kept = [one for name, one in signature.parameters.items() if name not in names]
    given.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    given.__name__ = function.__name__
    return given


def with_default(function: Any, *names: str, default: Any = 0.5) -> Any:
    """A function of the same name whose arguments have another default."""

    def given(*values: Any, **named: Any) -> Any:
        return function(*values, **named)

    arguments = [
        one.replace(default=default, kind=one.KEYWORD_ONLY) if name in names else one.replace(kind=one.KEYWORD_ONLY)
        for name, one in inspect.signature(function).parameters.items()
    ]
    given.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    given.__name__ = function.__name__
    return given


TAKES = "the op ema takes a, x, h0, lengths, slope, expected"


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"of": ema}, r"of is <function ema .*>, expected two functions, \(op, adjoint\)"),
        ({"of": None}, r"of is None, expected two functions, \(op, adjoint\)"),
        ({"takes": ""}, "takes is '', expected the names of the op's inputs, as 'a x'"),
        ({"takes": ("a", "x")}, r"takes is \('a', 'x'\), expected a string"),
        ({"takes": "a, x"}, "takes is 'a, x', expected names with spaces between, as 'a x'"),
        ({"takes": "a z"}, f"{TAKES} z among them"),
        ({"takes": "a", "form": "N -> N"}, "the op ema takes x, expected it in takes='a', or as a setting"),
        ({"states": "s N"}, f"{TAKES} s0 among them"),
        ({"states": ""}, "the op ema takes h0, expected h in states=''"),
        ({"states": "h M"}, "states 'h M' has the size 'M', expected sizes of the inputs, N, N"),
        ({"form": "N -> N"}, "form 'N -> N' has 1 input, expected 2, one each for a, x"),
        ({"form": "N; N -> M"}, "form 'N; N -> M' has the size 'M', expected sizes of the inputs, N, N"),
        ({"form": "N; N"}, "form is 'N; N', expected inputs and outputs, as 'N; N -> N'"),
        ({"form": "N; N -> N; N"}, "form 'N; N -> N; N' has 2 outputs, expected one, the op's first result"),
        ({"states": "h 2 N; h N"}, "states is 'h 2 N; h N', expected each name once, as 'h N; c N'"),
        ({"results": ("y", "hT")}, r"results is \('y', 'hT'\), expected names with spaces between, as 'y hT'"),
        ({"results": "y, hT"}, "results is 'y, hT', expected names with spaces between, as 'y hT'"),
        ({"form": ["N", "N"]}, r"form is \['N', 'N'\], expected a string"),
        ({"reads": ("a", "yy")}, "reads has 'yy', expected names among a, x, y"),
        ({"reads": "y"}, r"reads is 'y', expected a tuple of names, as \('a',\)"),
        ({"parameters": ("W",)}, "parameters has 'W', expected names among a, x"),
        *(
            ({"of": (without(ema, name), ema_backward)}, f"the op ema takes [^:]*, expected {name} among them")
            for name in ("a", "lengths", "h0")
        ),
        *(
            ({"of": (ema, without(ema_backward, name))}, f"the adjoint ema_backward takes .*, expected {name} among")
            for name in ("lengths", "dhT")
        ),
        (
            {"of": (ema, without(ema_backward, "dy"))},
            "the adjoint ema_backward takes a first, expected dy, the gradient",
        ),
        ({"emit": lambda self, to, a, x: x}, r"emit has other arguments \(.*\), expected self, to, line, a, x"),
        *(
            ({"of": (with_default(ema, name), ema_backward)}, f"the op ema has {name}=0.5, expected None or no default")
            for name in ("x", "h0", "lengths")
        ),
        *(
            ({"of": (ema, with_default(ema_backward, name))}, f"the adjoint ema_backward has {name}=0.5, expected None")
            for name in ("h0", "dhT", "lengths")
        ),
    ],
)
def test_a_recurrence_whose_declarations_do_not_fit_is_refused(declared: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^Wrong: {message}"):
        type("Wrong", (Ema,), declared)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (lambda y, h: (y, h), r"a tuple of 2, expected a NamedTuple of y, hT, or their names in results"),
        (lambda y, h: y, r"an ndarray, expected a NamedTuple of y, hT, or their names in results"),
        (lambda y, h: Found(h, y)._asdict(), r"a dict, expected a NamedTuple of y, hT, or their names in results"),
        (lambda y, h: namedtuple("Found", "y")(y), "y, expected the output first, and hT, as states='h N'"),
        (lambda y, h: namedtuple("Found", "hT y")(h, y), "hT, y, expected the output first, and hT, as states='h N'"),
        (lambda y, h: Found(h, h), rf"y of shape \({B}, {N}\), expected \({B}, {T}, {N}\)"),
        (lambda y, h: Found(y, y), rf"hT of shape \({B}, {T}, {N}\), expected \({B}, {N}\)"),
        (lambda y, h: Found(y.astype(np.float32), h), "y of dtype float32, expected float64"),
        (lambda y, h: Found(y, h.astype(np.float32)), "hT of dtype float32, expected float64"),
        (lambda y, h: Found(y, None), rf"hT as None, expected an array of shape \({B}, {N}\)"),
        (lambda y, h: Found(y.tolist(), h), rf"y as a list, expected an array of shape \({B}, {T}, {N}\)"),
    ],
)
def test_an_op_that_returns_something_else_is_told(op: Any, message: str) -> None:
    def wrong(a: Array, x: Array, h0: Any = None, lengths: Any = None) -> Any:
        return op(*ema(a, x, h0, lengths))

    layer = between(type("Wrong", (Ema,), {"of": (wrong, ema_backward)}))
    params = {name: np.ones(shape) for name, shape in layer.shapes.items()}
    with pytest.raises((TypeError, ValueError), match=f"^Wrong: the op wrong returned {message}$"):
        layer.forward(params, np.ones((B, T, D)))


def test_an_op_may_return_a_tuple_whose_names_are_results() -> None:
    def plain(a: Array, x: Array, h0: Any = None, lengths: Any = None) -> Any:
        return tuple(ema(a, x, h0, lengths))

    layer = between(type("Plain", (Ema,), {"of": (plain, ema_backward), "results": "y hT"}))
    assert set(gradcheck(layer)) == {"W", "b", "C", "x", "state"}
    wrong = between(type("Plain", (Ema,), {"of": (plain, ema_backward), "results": "y hT gates"}))
    with pytest.raises(TypeError, match=r"^Plain: the op plain returned a tuple of 2, expected results='y hT gates'$"):
        gradcheck(wrong)


GRADS = "expected a NamedTuple of da, dx, dh0"


@pytest.mark.parametrize(
    ("adjoint", "message"),
    [
        (lambda grads: tuple(grads), f"returned a tuple, {GRADS}"),
        (lambda grads: grads._asdict(), f"returned a dict, {GRADS}"),
        (lambda grads: None, f"returned a NoneType, {GRADS}"),
        (lambda grads: namedtuple("Grads", "da dx")(*grads[:2]), f"returned da, dx, {GRADS}"),
    ],
)
def test_an_adjoint_that_returns_something_else_is_told(adjoint: Any, message: str) -> None:
    def wrong(dy: Array, a: Array, y: Array, h0: Any = None, dhT: Any = None, lengths: Any = None) -> Any:
        return adjoint(ema_backward(dy, a, y, h0, dhT, lengths))

    refused_in_backward(type("Wrong", (Ema,), {"of": (ema, wrong)}), f"Wrong: the adjoint wrong {message}$")


def refused_in_backward(recurrence: Any, message: str, dtype: Any = np.float64) -> None:
    layer = between(recurrence)
    params = {name: np.ones(shape, dtype) for name, shape in layer.shapes.items()}
    y, saved = layer.forward(params, np.ones((B, T, D), dtype))
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        layer.backward(params, saved, y)


@pytest.mark.parametrize("name", ["da", "dx", "dh0"])
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda d: None, "as None, expected an array of shape {shape}"),
        (lambda d: d[..., :1], "of shape {short}, expected {shape}"),
        (lambda d: d.astype(np.float64), "of dtype float64, expected float32"),
    ],
)
def test_a_gradient_of_another_form_is_named(name: str, result: Any, message: str) -> None:
    def wrong(dy: Array, a: Array, y: Array, h0: Any = None, dhT: Any = None, lengths: Any = None) -> Any:
        grads = ema_backward(dy, a, y, h0, dhT, lengths)
        return grads._replace(**{name: result(getattr(grads, name))})

    shape = (B, N) if name == "dh0" else (B, T, N)
    what = re.escape(message.format(shape=shape, short=(*shape[:-1], 1)))
    message = f"Wrong: the adjoint wrong returned {name} {what}$"
    refused_in_backward(type("Wrong", (Ema,), {"of": (ema, wrong)}), message, np.float32)


def test_a_state_or_a_parameter_may_be_wider_than_the_input() -> None:
    """Results then have one dtype or the other."""
    layer, rng = between(Ema), np.random.default_rng(0)
    params = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in layer.shapes.items()}
    x, state = rng.standard_normal((B, T, D)).astype(np.float32), rng.standard_normal((B, N))
    y, saved = layer.forward(params, x, EVALUATION, state)
    dx, _, dstate = layer.backward(params, saved, y, state)
    assert (y.dtype, saved.state.dtype, dx.dtype, dstate.dtype) == (*(np.float32,) * 3, np.float64)


@pytest.mark.parametrize("name", ["a", "x", "h0"])
def test_an_op_cannot_write_to_its_arguments(name: str) -> None:
    def wrong(a: Array, x: Array, h0: Any, lengths: Any) -> Any:
        given = {"a": a, "x": x, "h0": h0}[name]
        given *= 2
        return ema(a, x, h0, lengths)

    layer = between(type("Wrong", (Ema,), {"of": (wrong, ema_backward)}))
    params = {key: np.ones(shape) for key, shape in layer.shapes.items()}
    state = np.ones((B, N))
    message = "^Wrong: the op wrong: output array is read-only; it may not write to its arguments, expected a copy$"
    with pytest.raises(ValueError, match=message):
        layer.forward(params, np.ones((B, T, D)), EVALUATION, state)
    with pytest.raises(ValueError, match=message):
        layer.step(params, state, np.ones((B, D)))
    assert (state == 1).all()


@pytest.mark.parametrize("name", ["dy", "a", "y", "h0", "dhT"])
def test_an_adjoint_cannot_write_to_its_arguments(name: str) -> None:
    def wrong(dy: Array, a: Array, y: Array, h0: Any, dhT: Any, lengths: Any) -> Any:
        given = {"dy": dy, "a": a, "y": y, "h0": h0, "dhT": dhT}[name]
        given[:] = 0
        return ema_backward(dy, a, y, h0, dhT, lengths)

    layer = between(type("Wrong", (Ema,), {"of": (ema, wrong)}))
    params, state = {key: np.ones(shape) for key, shape in layer.shapes.items()}, np.ones((B, N))
    y, saved = layer.forward(params, np.ones((B, T, D)), EVALUATION, state)
    with pytest.raises(ValueError, match=r"^Wrong: the adjoint wrong: assignment destination is read-only; it may"):
        layer.backward(params, saved, y, state)


def test_results_that_are_arguments_may_be_written_to() -> None:
    """The state after no steps is the state before, and so are the gradients."""

    def same(a: Array, x: Array, h0: Any, lengths: Any) -> Any:
        return Found(x, h0)

    def same_backward(dy: Array, a: Array, dhT: Any, lengths: Any) -> Any:
        return Grads(np.zeros_like(a), dy, dhT)

    layer = between(type("Same", (Ema,), {"of": (same, same_backward)}))
    params, state = {key: np.ones(shape) for key, shape in layer.shapes.items()}, np.ones((B, N))
    y, saved = layer.forward(params, np.ones((B, T, D)), EVALUATION, state)
    dx, _, dstate = layer.backward(params, saved, y, state)
    for one in (saved.state, dx, dstate):
        assert one.flags.writeable
        assert not np.shares_memory(one, state)


def test_an_adjoint_that_takes_what_there_is_not_is_told() -> None:
    def gated(dy: Array, gates: Array, dhT: Any = None, lengths: Any = None) -> Any:
        return None

    message = "Wrong: the adjoint gated takes gates, expected an argument or a result of the op$"
    refused_in_backward(type("Wrong", (Ema,), {"of": (ema, gated)}), message)
    for reads, missing in ((("a",), "x, y"), (("y",), "a, x")):
        what = rf"; backward gets None for {missing}, which reads=\({reads[0]!r},\) does not name"
        refused_in_backward(type("Wrong", (Ema,), {"reads": reads}), f"Given.backward: Wrong: .*{what}")


def test_settings_of_a_class_that_is_no_dataclass_are_told() -> None:
    """The op would get its own default."""
    plain = type("Plain", (Ema,), {"__annotations__": {"slope": float}, "slope": 0.5})
    message = r"^Given.program: Plain: has the setting slope and is no dataclass, expected @dataclass\(frozen=True\)$"
    with pytest.raises(TypeError, match=message):
        _ = between(plain).state_form


class Steps(Instruction):
    """A product of each step with a parameter."""

    form = "N; N -> N"
    parameters = ("a",)
    reads = ("x",)

    def forward(self, call: Call, a: Array, x: Array) -> Any:
        return a * x

    def backward(self, call: Call, dy: Array, a: Array, x: Array) -> Any:
        return (dy * x).sum((0, 1)), dy * a


def steps(instruction: Any) -> Given:
    """A layer with the instruction between two maps, and the bias as its parameter."""
    return Given(D, write=lambda p: whole(p, p(instruction(), "b", p(Dense(), p.x, "W"))))


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"forward": lambda self, call, x, z: x, "backward": print}, "form '... -> ...' has 1 input, expected 2"),
        ({"forward": lambda self, x: x}, r"forward has no input, expected forward\(self, call, x\)"),
        ({"backward": lambda self, call, dy: dy}, r"backward has other arguments \(.*\), expected self, call, dy, x"),
        ({"emit": lambda self, to, x: x}, r"emit has other arguments \(.*\), expected self, to, line, x"),
    ],
)
def test_an_instruction_whose_methods_do_not_fit_is_refused(methods: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^Wrong: {message}"):
        type("Wrong", (Cube,), methods)


def test_other_numbers_of_arrays_than_declared_are_told() -> None:
    layer, params, x = drawn()
    y, saved = layer.forward(params, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cube, "backward", lambda self, call, dy, x: (dy, dy))
        with pytest.raises(TypeError, match=r"^Cube.backward: returned 2 arrays, expected 1$"):
            layer.backward(params, saved, y)
        patch.setattr(Cube, "forward", lambda self, call, x: (x, x))
        with pytest.raises(TypeError, match=r"^Cube.forward: returned 2 arrays, expected 1$"):
            layer.forward(params, x)


OUTPUT = rf"\({B}, {T}, {N}\)"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda y: 1.5, f"an output as a float, expected an array of shape {OUTPUT}"),
        (lambda y: None, f"an output as None, expected an array of shape {OUTPUT}"),
        (lambda y: {"y": y}, f"an output as a dict, expected an array of shape {OUTPUT}"),
        (lambda y: y.swapaxes(0, 1), rf"an output of shape \({T}, {B}, {N}\), expected {OUTPUT}"),
        (lambda y: y[:, -1:], rf"an output of shape \({B}, 1, {N}\), expected {OUTPUT}"),
        (lambda y: y.astype(np.float64), "an output of dtype float64, expected float32 or complex64"),
        (lambda y: y.astype(">f4"), "an output of dtype >f4, expected float32 or complex64"),
        (lambda y: y.astype(int), "an output of dtype int64, expected float32 or complex64"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_an_instruction_whose_forward_returns_something_else_is_told(result: Any, message: str, packed: bool) -> None:
    """A transposed output gave a transposed result without a word; others were blamed on the line that read them."""
    layer = steps(type("Wrong", (Steps,), {"forward": lambda self, call, a, x: result(a * x), "along": packed}))
    ctx = Context(reset=np.zeros((B, T), bool)) if packed else EVALUATION
    with pytest.raises((TypeError, ValueError), match=f"^Wrong.forward: returned {message}$"):
        layer.forward(layer.init(np.random.default_rng(0)), np.ones((B, T, D), np.float32), ctx)


@pytest.mark.parametrize(
    ("adjoint", "message"),
    [
        (lambda da, dx: 1.5, "a float, expected 2"),
        (lambda da, dx: None, "None, expected 2"),
        (lambda da, dx: {"a": da, "x": dx}, "a dict, expected 2"),
        (lambda da, dx: dx, "1 array, expected 2"),
        (lambda da, dx: (2.5, dx), rf"the gradient of a as a float, expected an array of shape \({N},\)"),
        (lambda da, dx: (da.tolist(), dx), rf"the gradient of a as a list, expected an array of shape \({N},\)"),
        (lambda da, dx: (dx, dx), rf"the gradient of a of shape {OUTPUT}, expected \({N},\)"),
        (lambda da, dx: (da, dx.tolist()), f"the gradient of x as a list, expected an array of shape {OUTPUT}"),
        (lambda da, dx: (da, dx.swapaxes(0, 1)), rf"the gradient of x of shape \({T}, {B}, {N}\), expected {OUTPUT}"),
        (lambda da, dx: (da, dx.astype(np.float64)), "the gradient of x of dtype float64, expected float32"),
        (lambda da, dx: (da, dx + 1j), "the gradient of x of dtype complex64, expected float32"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_an_instruction_whose_adjoint_returns_something_else_is_told(adjoint: Any, message: str, packed: bool) -> None:
    """A transposed gradient of x gave a wrong gradient of the line before without a word, a list one in float64; others
    were told as params or saved that do not match the forward call."""

    def backward(self: Any, call: Call, dy: Array, a: Array, x: Array) -> Any:
        return adjoint((dy * x).sum((0, 1)), dy * a)

    layer = steps(type("Wrong", (Steps,), {"backward": backward, "along": packed}))
    params, ctx = layer.init(np.random.default_rng(0)), Context(reset=np.zeros((B, T), bool)) if packed else EVALUATION
    y, saved = layer.forward(params, np.ones((B, T, D), np.float32), ctx)
    with pytest.raises((TypeError, ValueError), match=f"^Wrong.backward: returned {message}$"):
        layer.backward(params, saved, y)


@pytest.mark.parametrize("method", ["forward", "backward"])
def test_a_state_of_another_shape_is_told(method: str) -> None:
    """It was met in the next call, or not at all."""

    def forward(self: Any, call: Call, a: Array, x: Array) -> Array:
        call.after = (x[:1, -1] if method == "forward" else x[:, -1],)
        return a * x

    def backward(self: Any, call: Call, dy: Array, a: Array, x: Array) -> Any:
        call.dbefore = (dy[:1, 0],)
        return (dy * x).sum((0, 1)), dy * a

    layer = steps(type("Wrong", (Steps,), {"forward": forward, "backward": backward, "states": "last N"}))
    params = layer.init(np.random.default_rng(0))
    name = {"forward": "call.after", "backward": "call.dbefore"}[method]
    message = rf"^Wrong.{method}: set {name} of last of shape \(1, {N}\), expected \({B}, {N}\)$"
    with pytest.raises(ValueError, match=message):
        layer.backward(params, layer.forward(params, np.ones((B, T, D), np.float32))[1], np.ones((B, T, D), np.float32))


def test_an_instruction_gets_arrays_that_it_cannot_write_to_and_its_results_can_be_written_to() -> None:
    """Writing to dy wrote to the array of whoever called backward."""
    seen = []

    def forward(self: Any, call: Call, a: Array, x: Array) -> Array:
        seen.extend([a, x])
        return x

    def backward(self: Any, call: Call, dy: Array, a: Array, x: Array) -> Any:
        seen.extend([dy, a, x])
        return np.broadcast_to(dy[0, 0], a.shape), dy

    layer = steps(type("Same", (Steps,), {"forward": forward, "backward": backward}))
    params = layer.init(np.random.default_rng(0))
    y, saved = layer.forward(params, np.ones((B, T, D), np.float32))
    dx, dparams, _ = layer.backward(params, saved, y)
    assert not any(one.flags.writeable for one in seen)
    assert all(one.flags.writeable for one in (y, dx, *dparams.values()))


def test_an_error_of_an_instruction_in_a_step_is_told_as_its_own() -> None:
    """It was told as params, state or prepared that do not fit."""
    layer = steps(type("Wrong", (Steps,), {"forward": lambda self, call, a, x: {}["z"]}))
    with pytest.raises(ValueError, match=r"^Given.step: Wrong: KeyError: 'z'$"):
        layer.step(layer.init(np.random.default_rng(0)), None, np.ones((B, D), np.float32))


def test_other_numbers_of_states_than_declared_are_told() -> None:
    layer, params, x = drawn()
    y, saved = layer.forward(params, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Conv, "forward", lambda self, call, x, w, b: x)
        message = r"^Conv.forward: call.after is 0 arrays, expected a tuple of one for each state: inputs$"
        for call in (lambda: layer.forward(params, x), lambda: layer.step(params, None, x[:, 0])):
            with pytest.raises(TypeError, match=message):
                call()
        patch.setattr(Scan, "backward", lambda self, call, dy, a, x: setattr(call, "dbefore", dy) or (dy, dy))
        message = r"^Scan.backward: call.dbefore is an ndarray, expected a tuple of one for each state: h$"
        with pytest.raises(TypeError, match=message):
            layer.backward(params, saved, y)


def test_an_instruction_without_an_adjoint_is_told() -> None:
    kind = type("Half", (Instruction,), {"forward": lambda self, call, x: x})
    with pytest.raises(
        TypeError, match=r"^Given.program: Half: has no method backward, expected forward and backward$"
    ):
        _ = Given(D, write=lambda p: whole(p, p(kind(), p(Dense(), p.x, "W", "b")))).state_form


def listed(emit: Any) -> Listing:
    """The lines of a layer with a Cube that writes its lines so."""
    layer, params, _ = drawn()
    to = Listing(dict(params))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cube, "emit", emit)
        layer.emit(to, params, 0)
    return to


def test_lines_that_an_emit_writes_get_shapes_states_and_defaults() -> None:
    """The parts of a split; a scan's state; the shift of an affine map."""

    def emit(self: Any, to: Listing, line: Any, x: int) -> int:
        left, right = to("Split", x, sizes=(1, N - 1))
        return to("Concat", to("Previous", to("Affine", left, scale=2)), to("Scan", right, right))  # type: ignore[no-any-return]

    lines = listed(emit).lines
    at = next(i for i, one in enumerate(lines) if one.op == "Concat")
    split, affine, previous, scan = lines[at - 4 : at]
    assert (split.shapes, split.settings) == (((N,),), {"sizes": (1, N - 1), "axis": -1})
    assert (affine.shapes, affine.settings) == (((1,),), {"scale": 2, "shift": 0})
    assert (previous.op, previous.shapes) == ("Conv", ((1,), (1, 2), None))  # which writes its lines itself
    assert (scan.shapes, scan.states) == (((N - 1,), (N - 1,)), ((N - 1,),))


W = np.ones((N, N + 1))


@pytest.mark.parametrize(
    ("emit", "message"),
    [
        (lambda to, x: to("Tahn", x), "got the line 'Tahn', expected the name of .*; did you mean Tanh?"),
        (lambda to, x: to(SiLU(), x), r"got the line SiLU\(\), expected the name of an instruction, as 'Tanh'"),
        (lambda to, x: to("Tanh", x + 99), r"Tanh: an input is \d+, expected a register, an array or None"),
        (lambda to, x: to("Dense", x, "W"), "Dense: an input is 'W', expected a register, an array or None"),
        (lambda to, x: to("Product", x, 2.0), "Product: an input is a float, expected a register, an array or None"),
        (lambda to, x: to("Product", x), "Product: z is None, expected a register"),
        (lambda to, x: to("Product", x, W), "Product: z is an ndarray, expected a register"),
        (lambda to, x: to("Dense", x, x), "Dense: w is a register, expected an array"),
        (lambda to, x: to("Tanh", x, x), "Tanh: got 2 inputs, expected x"),
        (lambda to, x: to("Affine", x, scales=2), "Affine: settings do not fit: .*'scales'"),
        (lambda to, x: to("Dense", x, W), r"Dense: got shapes \(4,\), \(4, 5\), None: expected x \(I\); w \(O, I\)"),
        (lambda to, x: to("Dense", x, W.T), r"returned a register of shape \(5,\), expected \(4,\)"),
        (lambda to, x: None, "returned None, expected the register of its output"),
        (lambda to, x: (x, x), r"returned \(\d, \d\), expected the register of its output"),
    ],
)
def test_lines_that_do_not_fit_are_refused(emit: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^Cube.emit: {message}"):
        listed(lambda self, to, line, x: emit(to, x))


@dataclass(frozen=True)
class Joined(Own):
    """``y = P Q x``, with rows of two parameters and a row of zeros in P, by two products whose outputs are joined."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"P": (2, 2, 2), "r": (2,), "Q": (2, 6), "b": (1,)}

    def program(self) -> Program:
        p = Builder(self)
        w, last = p(Split((4, 2), axis=-2), p(MatMul(), p(Rows((4, 1, 1), 2), "P", "r", None), "Q"))
        return p.returns(p(Concat(), p(Dense(), p.x, w), p(Dense(), p.x, last, p(Rows((1, 1)), None, "b"))))


def test_rows_of_several_parameters() -> None:
    layer, rng = Joined(6), np.random.default_rng(0)
    assert set(gradcheck(layer)) == {"x", *layer.shapes}
    params, x = astype(layer.init(rng), np.float64), rng.standard_normal((B, T, 6))
    rows = np.concatenate([params["P"].reshape(4, 2), params["r"][None], np.zeros((1, 2))]) @ params["Q"]
    expected = x @ rows.T + np.concatenate([np.zeros(5), params["b"]])
    np.testing.assert_allclose(layer.forward(params, x)[0], expected, rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match=r"Rows: got shapes \(2, 2, 2\), None: expected arrays of \(5, 1\) rows"):
        Builder(layer)(Rows((5, 1), 2), "P", None)
