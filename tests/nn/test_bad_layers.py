"""Errors of layers, parts, blocks, stacks and models for bad arguments. They name the outer call, which checks once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from cases import LAYER_ROWS
from rotrnn._support.text import an
from rotrnn.models.build import HEADS, ModelSettings, build_model
from rotrnn.nn import (
    GELU,
    LRU,
    LSTM,
    RNN,
    S5,
    SLSTM,
    Activation,
    Attention,
    BatchNorm,
    Bidirectional,
    DeltaNet,
    Dense,
    Dropout,
    Embedding,
    FeedForward,
    Gate,
    Griffin,
    LastPool,
    LayerNorm,
    LinOSS,
    Mamba3,
    MeanPool,
    ResidualBlock,
    ResidualStack,
    RMSNorm,
    StoredHistory,
)
from rotrnn.nn.layer import (
    EVALUATION,
    Context,
    Module,
    Recurrent,
    StateArray,
    flatten,
    flatten_state,
    form_leaves,
    unflatten,
)
from rotrnn.nn.module import _WRAPPERS
from rotrnn.nn.registry import LAYERS
from rotrnn.nn.saved import flatten_saved, unflatten_saved
from rotrnn.ops.boundary import Boundary, CheckedLengths
from small_models import sizes_of

B, T, D, V, C = 2, 6, 4, 5, 3


def small(name: str) -> Any:
    """Returns a layer of the registry with the sizes of its first row."""
    row = next(row for row in LAYER_ROWS if type(row.layer) is LAYERS[name])
    return row.layer


def model_of(head: str, layer: str = "lru", **settings: Any) -> Any:
    sizes = {"n_classes": V if head == "language" else C, "vocab": V}
    return build_model(
        ModelSettings(layer=layer, d_model=D, n_layers=2), settings or {"d_state": 3}, head=head, **sizes
    )


PARTS: dict[str, Module] = {
    "Dense": Dense(D, C),
    "Embedding": Embedding(V, D),
    "BatchNorm": BatchNorm(D),
    "LayerNorm": LayerNorm(D),
    "RMSNorm": RMSNorm(D),
    "GELU": GELU(),
    "Dropout": Dropout(0.5),
    "Activation": Activation(Dropout(0.5)),
    "Gate": Gate(D),
    "half Gate": Gate(D, "half1"),
    "FeedForward": FeedForward(D),
    "gated FeedForward": FeedForward(D, gated=True),
    "MeanPool": MeanPool(),
    "LastPool": LastPool(),
    "Bidirectional": Bidirectional(D, LSTM(D, 3)),
    "Griffin": Griffin(D, LRU(D, 3)),
    "StoredHistory": StoredHistory(D, LRU(D, 3), 3),
    "ResidualBlock": ResidualBlock(BatchNorm(D), LRU(D, 3), Gate(D)),
    "postnorm": ResidualBlock(LayerNorm(D), LRU(D, 3), Dropout(0.1), prenorm=False),
    "ResidualStack": ResidualStack(tuple(ResidualBlock(LayerNorm(D), LRU(D, 3), Gate(D)) for _ in range(2))),
}
MODULES: dict[str, Module] = {
    **{name: small(name) for name in LAYERS},
    **PARTS,
    **{f"{head} model": model_of(head) for head in HEADS},
}
every = pytest.mark.parametrize("name", MODULES)


class Tensor:
    """A stand-in for an array of another library."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.array


def inputs_of(module: Any) -> Any:
    """Returns a valid input."""
    encoder = getattr(module, "encoder", module)
    if isinstance(encoder, Embedding):
        pairs = (2,) if type(module).__name__ == "Retrieval" else ()
        return np.ones((B, *pairs, T), np.int64)
    width = getattr(module, "d_in", getattr(module, "d_model", D))
    return np.random.default_rng(0).standard_normal((B, T, width))


def made(module: Any) -> tuple[Any, Any]:
    return module.init(np.random.default_rng(0)), inputs_of(module)


def raised(call: Callable[[], Any], *errors: type[Exception]) -> str:
    with pytest.raises(errors or (TypeError, ValueError)) as caught:
        call()
    return str(caught.value)


def said(call: Callable[[], Any]) -> str:
    """Returns the message of a TypeError or ValueError, or nothing if there is none."""
    try:
        call()
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


@every
def test_init_needs_a_generator(name: str) -> None:
    module: Any = MODULES[name]
    kind = type(module).__name__
    expected = rf"{kind}\.init: rng is 0 \(int\), expected a numpy.random.Generator, as numpy.random.default_rng\(0\)"
    with pytest.raises(TypeError, match=expected):
        module.init(0)


@every
def test_every_parameter_is_there_fits_and_is_an_array(name: str) -> None:
    """Of each in turn: missing, another shape, a list, a foreign array, integers; named with its owner and its path."""
    module: Any = MODULES[name]
    params, x = made(module)
    flat = dict(flatten(params))
    for key, value in flat.items():
        leaf, path = key.rpartition(".")[::2][::-1]
        where = rf"parameter {leaf}" + (f" of {re.escape(path)}" if path else "")
        without = unflatten({other: one for other, one in flat.items() if other != key})
        assert "missing, expected" in raised(lambda without=without: module.forward(without, x), ValueError)
        for bad, message in (
            (np.zeros((7, *value.shape), value.dtype), rf"{where} has shape \(7, .*\), expected \("),
            (value.tolist(), rf"{where} has type list, expected an array of float32 or float64"),
            (Tensor(value), rf"{where} has type Tensor, expected an array of float32 or float64"),
            (value.astype(np.int64), rf"{where} has dtype int64, expected an array of float32 or float64"),
        ):
            broken = unflatten({**flat, key: bad})
            assert re.search(rf"^\w+: {message}", raised(lambda broken=broken: module.forward(broken, x))), (key, bad)
    if flat:
        assert re.search(r"params is a list, expected a dict", raised(lambda: module.forward([], x), TypeError))


@every
def test_a_parameter_that_is_not_finite_is_found_and_one_that_is_large_is_not(name: str) -> None:
    module: Any = MODULES[name]
    params, x = made(module)
    flat = {key: value for key, value in flatten(params) if "running" not in key}
    for key, value in flat.items():
        for bad in (np.nan, np.inf):
            broken = dict(flatten(params)) | {key: value.copy()}
            broken[key].flat[-1] = bad
            leaf = key.rpartition(".")[2]
            assert re.search(rf"parameter {leaf}( of .*)? is {bad} at \(", raised(
                lambda broken=broken: module.forward(unflatten(broken), x), ValueError
            ))  # fmt: skip
        # finite numbers whose sum is not: no error
        large = dict(flatten(params)) | {key: np.full_like(value, np.finfo(value.dtype).max)}
        module.check_params(unflatten(large))


@every
def test_inputs_that_do_not_fit(name: str) -> None:
    module: Any = MODULES[name]
    kind = type(module).__name__
    params, x = made(module)
    bad = [x.astype(np.complex128), np.zeros((1, *x.shape, 1), x.dtype)]
    if (
        x.dtype.kind == "f"
        and type(module).letters
        and not isinstance(module, GELU | Dropout | MeanPool | LastPool | Activation)
    ):
        bad.append(np.zeros((*x.shape[:-1], x.shape[-1] + 1)))
    argument = {"Embedding": "ids"}.get(kind, "inputs" if hasattr(module, "encoder") else "x")
    for one in bad:
        message = raised(lambda one=one: module.forward(params, one))
        assert message.startswith(f"{kind}.forward: {argument} has "), message
        assert "expected" in message
    for lengths, what in (
        ([T + 1] * B, rf"lengths\[0\] is {T + 1}"),
        ([1.0] * B, "lengths has dtype"),
        ([1], "lengths has shape"),
    ):
        given = np.array([[one] * 2 for one in lengths] if "retrieval" in name else lengths)
        message = raised(lambda given=given: module.forward(params, x, Context(given)))
        assert re.match(rf"{kind}\.forward: {what}", message), message
    assert f"{kind}.forward: ctx is an ndarray, expected a Context" in raised(
        lambda: module.forward(params, x, np.ones(B))
    )


@every
def test_backward_says_what_it_was_given(name: str) -> None:
    module: Any = MODULES[name]
    kind = type(module).__name__
    params, x = made(module)
    y, saved = module.forward(params, x, Context(train=True))
    assert re.match(rf"{kind}\.backward: saved is a str, expected the \w+( or \w+)* that forward returned", raised(
        lambda: module.backward(params, "nothing", y), TypeError
    ))  # fmt: skip
    gradient = "dlogits" if hasattr(module, "encoder") else "dy"
    assert f"{kind}.backward: {gradient} is None, expected the gradient" in raised(
        lambda: module.backward(params, saved, None), TypeError
    )
    for bad in (y[0, 0], y.astype(np.int64)):
        assert f"{kind}.backward: {gradient} has " in raised(lambda bad=bad: module.backward(params, saved, bad))
    flat = dict(flatten(params))
    if flat:
        key = list(flat)[-1]
        without = unflatten({other: one for other, one in flat.items() if other != key})
        assert "is missing, expected" in raised(lambda: module.backward(without, saved, y), ValueError)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "Dropout"])  # saves nothing in evaluation
def test_gradients_of_another_batch_or_length(name: str) -> None:
    """The pools took those of another batch."""
    module = MODULES[name]
    params, x = made(module)
    y, saved = module.forward(params, x)
    for bad in (y[:1], *([y[:, 1:]] if y.ndim == 3 else [])):
        message = raised(lambda bad=bad: module.backward(params, saved, bad), ValueError)
        assert re.match(rf"{type(module).__name__}\.backward: d(y|logits) has shape", message), message
        assert "from the forward call" in message


@pytest.mark.parametrize("name", LAYERS)
def test_steps_and_states(name: str) -> None:
    layer = small(name)
    kind = type(layer).__name__
    params, x = made(layer)
    _, saved = layer.forward(params, x)
    assert f"{kind}.step: x_t has shape" in raised(lambda: layer.step(params, None, x), ValueError)
    assert f"{kind}.step: x_t has shape" in raised(lambda: layer.step(params, None, x[:, 0, 1:]), ValueError)
    leaves = saved.state if isinstance(saved.state, tuple) else (saved.state,)
    other = [leaf[:1] for leaf in leaves]  # of another batch
    others = tuple(other) if isinstance(saved.state, tuple) else other[0]
    for bad in (others, "state", 3):
        for method, call in (
            ("forward", lambda bad=bad: layer.forward(params, x, state=bad)),
            ("step", lambda bad=bad: layer.step(params, bad, x[:, 0])),
        ):
            assert re.match(rf"{kind}\.{method}: state(\.\w+)? (is|has) ", raised(call)), raised(call)
    y, saved = layer.forward(params, x)
    assert re.match(rf"{kind}\.backward: dstate(\.\w+)? (is|has) ", raised(
        lambda: layer.backward(params, saved, y, others)
    ))  # fmt: skip


@pytest.mark.parametrize("row", LAYER_ROWS, ids=lambda row: row.title)
def test_a_state_is_what_its_form_says(row: Any) -> None:
    """So `state_lanes`, which is computed from the form, is right."""
    if row.bidirectional or not row.B or not row.T:
        return
    form, state = row.layer.state_form, row.template
    forms, leaves = ((form,), (state,)) if not isinstance(form, tuple) else (form, state)
    assert len(forms) == len(leaves)
    lanes = 0
    for one, leaf in zip(forms, leaves, strict=True):
        assert leaf.dtype.kind == {"real": "f", "complex": "c", "integer": "i"}[one.kind]
        assert all(size in (None, got) for size, got in zip(one.shape, leaf.shape[1:], strict=True))
        if one.kind != "integer":
            lanes += leaf[0].size * (1 + (one.kind == "complex"))
    if row.layer.state_lanes is not None:
        assert row.layer.state_lanes == lanes
    else:
        assert any(None in one.shape for one in forms)


@pytest.mark.parametrize("row", LAYER_ROWS, ids=lambda row: row.title)
def test_arrays_of_a_state_have_different_names(row: Any) -> None:
    names = [one.name for one in form_leaves(row.layer.state_form)]
    assert len({*names}) == len(names)


def test_names_of_states() -> None:
    """Errors name the part."""
    layer = LinOSS(D, 3)
    params, x = made(layer)
    _, saved = layer.forward(params, x)
    message = raised(lambda: layer.step(params, (saved.state[0], 3), x[:, 0]), TypeError)
    assert message == "LinOSS.step: state.h_im is an int, expected an array"
    names = [one.name for one in form_leaves(DeltaNet(D, rope_base=1.0).state_form)]
    assert names == ["inputs_1", "inputs_2", "c", "h"]


def test_a_normaliser_below_zero_is_refused() -> None:
    layer = SLSTM(D, 4)
    params, x = made(layer)
    h, c, n, m = layer.forward(params, x)[1].state
    for call, method in (
        (lambda state: layer.forward(params, x, state=state), "forward"),
        (lambda state: layer.step(params, state, x[:, 0]), "step"),
    ):
        message = raised(lambda call=call: call((h, c, -n, m)), ValueError)
        assert re.fullmatch(rf"SLSTM\.{method}: state\.n has the number -\S+, expected numbers of at least 0", message)
    y, saved = layer.forward(params, x)
    layer.backward(params, saved, y, (h, c, -n, m))  # gradients may be negative


def test_swapped_and_wrong_arguments_of_a_step() -> None:
    layer = Mamba3(8)
    params, x = made(layer)
    state = layer.forward(params, x)[1].state
    assert raised(lambda: layer.step(params, x[:, 0], state)) == "Mamba3.step: x_t is a tuple, expected an array"
    for wrong, got in ((3, "an int"), (params, "a dict"), (state, "a tuple")):
        message = raised(lambda wrong=wrong: layer.step(params, state, x[:, 0], wrong), TypeError)
        assert message == f"Mamba3.step: prepared is {got}, expected the result of prepare(params)"


@pytest.mark.parametrize("name", LAYERS)
def test_the_lanes_that_info_prints_are_those_of_the_state(name: str) -> None:
    """`lanes` is a formula: its value, with multiplication written out, is the size of a state."""
    layer = LAYERS[name](**sizes_of(name, d_state=6, heads=1), d_model=4)
    formula = re.sub(r"(?<=[\w)]) (?=[\w(])", "*", layer.lanes)
    settings = {field.name: getattr(layer, field.name) for field in fields(layer)}
    _, saved = layer.forward(layer.init(np.random.default_rng(0)), np.ones((1, T, 4), np.float32))
    leaves = [leaf for _, leaf in flatten_state(saved.state) if leaf.dtype.kind in "fc"]
    held = sum(leaf[0].size * (1 + (leaf.dtype.kind == "c")) for leaf in leaves)
    assert eval(formula, {}, settings | {"t": T}) == held
    assert layer.state_lanes == (None if layer.lanes.endswith(" t") else held)


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("backward", lambda self, params: None, "takes (self, params), expected (self, params, saved, dy, ...)"),
        ("forward", lambda self, **given: None, "takes (self, **given), expected (self, params, x, ...)"),
        ("forward", lambda self, params: None, "takes (self, params), expected (self, params, x, ...)"),
    ],
)
def test_methods_of_ones_own_that_cannot_be_checked(name: str, method: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        type("Mine", (Module,), {name: method})


def test_methods_of_ones_own_may_pass_on_what_they_are_given() -> None:
    class Passing(LRU):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

        def backward(self, *given: Any) -> Any:  # raised IndexError
            return super().backward(*given)

    params, x = made(layer := Passing(D, 3))
    y, saved = layer.forward(params, x)
    dx = layer.backward(params, saved, y)[0]
    np.testing.assert_array_equal(dx, LRU(D, 3).backward(params, LRU(D, 3).forward(params, x)[1], y)[0])
    message = raised(lambda: layer.backward(params, saved, y[:1]), ValueError)
    assert message.startswith("Passing.backward: dy has shape (1, 6, 4), expected (B=2, T=6, D=4)")


class Saved(NamedTuple):
    x: Any
    state: Any


@dataclass(frozen=True)
class Last(Recurrent):
    """y = a x with the last input as its state; `change` changes the results of one method."""

    about: ClassVar[str] = "a test"
    paper: ClassVar[str] = "none"
    method: str = ""
    change: ClassVar[Any] = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"a": (self.d_model,)}

    @property
    def state_form(self) -> StateArray:
        return StateArray("last", (self.d_model,))

    def init(self, rng: np.random.Generator) -> Any:
        return {"a": np.ones(self.d_model, np.float32)}

    def _result(self, method: str, *results: Any) -> Any:
        return type(self).change(*results) if self.method == method else results

    def forward(self, params: Any, x: Any, ctx: Context = EVALUATION, state: Any = None) -> Any:
        return self._result("forward", params["a"] * x, Saved(x, x[:, -1]))

    def backward(self, params: Any, saved: Any, dy: Any, dstate: Any = None) -> Any:
        da, dlast = {"a": (dy * saved.x).sum((0, 1))}, np.zeros_like(dy[:, 0])
        return self._result("backward", params["a"] * dy, da, dlast)

    def step(self, params: Any, state: Any, x_t: Any, prepared: Any = None) -> Any:
        return self._result("step", params["a"] * x_t, x_t)


X, XT = f"({B}, {T}, {D})", f"({B}, {D})"


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("forward", lambda y, saved: y, "returned an ndarray, expected (y, saved)"),
        ("forward", lambda y, saved: None, "returned None, expected (y, saved)"),
        ("forward", lambda y, saved: (y, saved, y), "returned a tuple of 3, expected (y, saved)"),
        ("forward", lambda y, saved: (1.5, saved), f"returned y as a float, expected an array of shape {X}"),
        ("forward", lambda y, saved: (y.tolist(), saved), f"returned y as a list, expected an array of shape {X}"),
        ("forward", lambda y, saved: (y[:, -1], saved), f"returned y of shape {XT}, expected {X}"),
        ("forward", lambda y, saved: (y.astype(float), saved), "returned y of dtype float64, expected float32"),
        ("forward", lambda y, saved: (y, saved._replace(state=y)), f"its result: state has shape {X}, expected (B={B}"),
        ("backward", lambda dx, da, dh: dx, "returned an ndarray, expected (dx, dparams, dstate)"),
        ("backward", lambda dx, da, dh: (dx, da), "returned a tuple of 2, expected (dx, dparams, dstate)"),
        ("backward", lambda dx, da, dh: (da, dx, dh), f"returned dx as a dict, expected an array of shape {X}"),
        ("backward", lambda dx, da, dh: (dx[:, :1], da, dh), f"returned dx of shape ({B}, 1, {D}), expected {X}"),
        ("backward", lambda dx, da, dh: (dx, [*da.values()], dh), "returned dparams as a list, expected a dict"),
        ("backward", lambda dx, da, dh: (dx, None, dh), "returned dparams as None, expected a dict of arrays"),
        ("backward", lambda dx, da, dh: (dx, {"A": dx}, dh), "returned dparams with 'A', which is not a parameter"),
        ("backward", lambda dx, da, dh: (dx, {"a": 1.5}, dh), "returned dparams['a'] as a float, expected an array"),
        ("backward", lambda dx, da, dh: (dx, {"a": dx}, dh), f"returned dparams['a'] of shape {X}, expected ({D},)"),
        ("backward", lambda dx, da, dh: (dx, da, dx), f"its result: dstate has shape {X}, expected (B={B}, {D})"),
        ("backward", lambda dx, da, dh: {}["z"], "its own code, or arguments that do not fit: KeyError: 'z'"),
        ("step", lambda y, h: y, "returned an ndarray, expected (y_t, state)"),
        ("step", lambda y, h: (y[:, None], h), f"returned y_t of shape ({B}, 1, {D}), expected {XT}"),
        ("step", lambda y, h: (y, None), "its result: state is a NoneType, expected an array"),
        ("step", lambda y, h: {}["z"], "its own code, or arguments that do not fit: KeyError: 'z'"),
    ],
)
def test_results_of_a_layer_of_ones_own_that_do_not_fit(method: str, change: Any, message: str) -> None:
    """In a model they were told as another part's input, as params or saved that do not match, or not at all: y alone
    of two sequences was taken as (y, saved), and a gradient that is no dict as none."""
    layer: Any = type("Wrong", (Last,), {"change": staticmethod(change)})(D, method=method)
    stack = ResidualStack((ResidualBlock(LayerNorm(D), layer, Dropout(0.0)),))
    params, x = stack.init(np.random.default_rng(0)), np.ones((B, T, D), np.float32)

    def call() -> None:
        if method == "step":
            stack.step(params, None, x[:, 0])
        else:
            stack.backward(params, stack.forward(params, x)[1], x)

    assert raised(call, TypeError, ValueError).startswith(f"Wrong.{method}: {message}")


def test_a_layer_of_ones_own_may_have_a_state_of_more_precision() -> None:
    """As every layer of the package: float64 beside a float64 state."""

    def change(y: Any, last: Any) -> Any:
        return y.astype(float), last

    layer: Any = type("Exact", (Last,), {"change": staticmethod(change)})(D, method="forward")
    params, x, state = layer.init(np.random.default_rng(0)), np.ones((B, T, D), np.float32), np.zeros((B, D))
    y, saved = layer.forward(params, x, state=state)
    assert y.dtype == np.float64
    assert layer.backward(params, saved._replace(x=y), y)[0].dtype == np.float64
    layer = replace(layer, method="step")
    assert layer.step(params, state, x[:, 0])[0].dtype == np.float64


@every
def test_methods_take_their_arguments_by_the_names_of_their_signatures(name: str) -> None:
    """Models and `Embedding` took theirs as x and dy, and backward of most layers dropped surplus arguments."""
    module: Any = MODULES[name]
    params, x = made(module)
    y, saved = module.forward(params, x, Context(train=True))
    values = dict.fromkeys(("x", "ids", "inputs"), x) | dict.fromkeys(("dy", "dlogits"), y)
    values |= {"params": params, "ctx": Context(train=True), "saved": saved, "rng": np.random.default_rng(0)}
    if isinstance(module, Recurrent):
        values["x_t"] = x[:, 0]
    for method in (getattr(module, one) for one in _WRAPPERS if hasattr(getattr(module, one, None), "__wrapped__")):
        named = {one: values.get(one) for one in inspect.signature(method).parameters}
        assert "argument" not in said(lambda method=method, named=named: method(**named))
        assert "argument" in said(lambda method=method, named=named: method(**named, surplus=None))
        assert "argument" in said(lambda method=method, named=named: method(*named.values(), None))
    np.testing.assert_array_equal(module.forward(params, x=x)[0], module.forward(params, x)[0])
    one, two = module.backward(params, saved, y), module.backward(params=params, saved=saved, dy=y)
    for left, right in zip(flatten_saved(one)[0].values(), flatten_saved(two)[0].values(), strict=True):
        np.testing.assert_array_equal(left, right)


def wrong_settings() -> Iterator[Any]:
    for name, module in PARTS.items():
        for field in fields(module):  # type: ignore[arg-type]
            for value in ("many" if field.type != "str" else 5, [1.5], None):
                fits = value is None and "None" in str(field.type)
                if fits or (field.name == "blocks" and value == [1.5]):
                    continue
                yield pytest.param(module, field.name, value, id=f"{name} {field.name}={value!r}")


@pytest.mark.parametrize(("module", "field", "value"), list(wrong_settings()))
def test_settings_of_another_type(module: Any, field: str, value: Any) -> None:
    kind = type(module).__name__
    with pytest.raises(ValueError, match=rf"^{kind}: {field}=.*, expected "):
        replace(module, **{field: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dense(0, 3), "Dense: d_in=0, expected a positive integer"),
        (lambda: Embedding(3, -1), "Embedding: d_model=-1, expected a positive integer"),
        (lambda: LayerNorm(4, eps=-1.0), "LayerNorm: eps=-1.0, expected a nonnegative number"),
        (lambda: BatchNorm(4, momentum=1.0), r"BatchNorm: momentum=1.0, expected a number in \[0, 1\)"),
        (lambda: Dropout(1.0), r"Dropout: rate=1.0, expected a number in \[0, 1\)"),
        (lambda: Gate(4, dropout=-0.1), r"Gate: dropout=-0.1, expected a number in \[0, 1\)"),
        (lambda: FeedForward(4, 0), "FeedForward: expand=0, expected a positive integer"),
        (
            lambda: ResidualBlock(LayerNorm(3), LRU(4, 2), Gate(4)),
            "ResidualBlock: norm has d_model=3, expected 4 as of its layer",
        ),
        (
            lambda: ResidualStack(tuple(ResidualBlock(LayerNorm(n), LRU(n, 2), Gate(n)) for n in (3, 4))),
            r"ResidualStack: blocks\[1\] has d_model=4, expected 3 as the first one",
        ),
    ],
)
def test_settings_out_of_range(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_states_of_stacks() -> None:
    stack: Any = MODULES["ResidualStack"]
    params, x = made(stack)
    y, saved = stack.forward(params, x)
    with pytest.raises(
        TypeError, match=r"ResidualStack\.forward: state is a list, expected a tuple, one state per block"
    ):
        stack.forward(params, x, state=[None, None])
    with pytest.raises(ValueError, match=r"ResidualStack.forward: state.1 has shape \(1, 3\), expected \(B=2, 3\)"):
        stack.forward(params, x, state=(None, saved.state[1][:1]))
    with pytest.raises(TypeError, match=r"ResidualStack.backward: dstate.0 has dtype float64, expected complex64"):
        stack.backward(params, saved, y, (saved.state[0].real, None))


@pytest.mark.parametrize("name", LAYERS)
def test_parts_of_a_state_are_arrays(name: str) -> None:
    layer = small(name)
    params, x = made(layer)
    state = layer.forward(params, x)[1].state
    if isinstance(state, tuple):
        message = raised(lambda: layer.step(params, (None, *state[1:]), x[:, 0]), TypeError)
        assert re.match(rf"{type(layer).__name__}\.step: state\.\w+ is a NoneType, expected an array", message), message


def test_places_of_attention_are_those_of_its_keys() -> None:
    layer = Attention(D)
    params, x = made(layer)
    y, saved = layer.forward(params, x)
    keys, values, places = saved.state
    for bad in (places + 1, -places):
        message = raised(lambda bad=bad: layer.forward(params, x, state=(keys, values, bad)), ValueError)
        assert "Attention.forward: state.places is [" in message
    message = raised(lambda: layer.backward(params, saved, y, (keys[:, 1:], values, places)), ValueError)
    assert message == "Attention.backward: dstate.keys has shape (2, 5, 4), expected (2, 6, 4)"


# ---- what another module saved or prepared ----


@every
def test_names_in_params_that_no_parameter_has(name: str) -> None:
    module: Any = MODULES[name]
    params, x = made(module)
    flat = dict(flatten(params))
    for key in flat:
        path, _, leaf = key.rpartition(".")
        mistyped = unflatten({**flat, f"{key}_": flat[key]})
        where = re.escape(f"params of {path}" if path else "params")
        message = raised(lambda mistyped=mistyped: module.forward(mistyped, x), ValueError)
        expected = rf"\w+: {where} has '{leaf}_', which is not a parameter; did you mean {leaf}\?"
        assert re.fullmatch(expected, message), message


def test_a_module_that_declares_no_parameters_may_have_any() -> None:
    class Own(Module):
        def forward(self, params: Any, x: Any, ctx: Context = EVALUATION) -> Any:
            return params["scale"] * x, None

    assert Own().forward({"scale": 2}, np.ones((B, T, D)))[0].max() == 2


FOREIGN: list[tuple[Any, Any, str]] = [
    (LRU(D, 3), LRU(D, 3, gamma=False), "LRU with gamma=False, expected True"),
    (LRU(D, 3), LRU(D, 3, form="exp"), "LRU with form='exp', expected 'log_phase'"),
    (LRU(D, 3), LRU(D, 3, window=2), "LRU with window=2, expected None"),
    (LRU(D, 3), LRU(D, 2), "LRU with d_state=2, expected 3"),
    (LRU(D, 4), S5(D, 4), "S5, expected from an LRU"),
    (RNN(D, 3), RNN(D, 3, activation="tanh"), "RNN with activation='tanh', expected 'identity'"),
    (MeanPool(), LastPool(), "LastPool, expected from a MeanPool"),
    (LayerNorm(D), LayerNorm(D, 0.5), "LayerNorm with eps=0.5, expected 1e-05"),
    (
        PARTS["ResidualBlock"],
        ResidualBlock(BatchNorm(D), LRU(D, 3, gamma=False), Gate(D)),
        "ResidualBlock with layer.gamma=False, expected True",
    ),
    (
        PARTS["ResidualStack"],
        ResidualStack(tuple(ResidualBlock(LayerNorm(D), LRU(D, n), Gate(D)) for n in (3, 2))),
        "ResidualStack with blocks[1].layer.d_state=2, expected 3",
    ),
    (
        model_of("classifier"),
        model_of("classifier", d_state=4),
        "SequenceClassifier with stack.blocks[0].layer.d_state=4, expected 3",
    ),
]


@pytest.mark.parametrize(("mine", "other", "message"), FOREIGN, ids=[message for *_, message in FOREIGN])
def test_what_a_module_with_other_settings_saved_or_prepared(mine: Any, other: Any, message: str) -> None:
    """It is refused by the outermost call, and stays so through a tree of arrays and back."""
    kind = type(mine).__name__
    params, x = made(mine)
    y, own = mine.forward(params, x)
    saved = other.forward(other.init(np.random.default_rng(0)), x)[1]
    arrays, structure = flatten_saved(saved)
    for one in (saved, unflatten_saved(structure, arrays)):
        assert f"{kind}.backward: saved is from {an(message)}" == raised(
            lambda one=one: mine.backward(params, one, y), ValueError
        )
    same = replace(mine)  # equal, and another object
    assert same is not mine
    same.backward(params, own, y)
    if isinstance(mine, LRU):
        prepared = other.prepare(other.init(np.random.default_rng(0)))
        assert f"LRU.step: prepared is from {an(message)}" == raised(
            lambda: mine.step(params, None, x[:, 0], prepared), ValueError
        )
        same.step(params, None, x[:, 0], mine.prepare(params))


@every
def test_saved_that_the_caller_has_changed(name: str) -> None:
    """With a part of an array, or with another one: an error of a call of a module that says so, or no error where
    backward does not need the array."""
    module: Any = MODULES[name]
    if hasattr(module, "gradient"):
        module = replace(module, gradient="one_step")  # the other one iterates
    params, x = made(module)
    y, saved = module.forward(params, x, Context(np.full((B, 2) if "retrieval" in name else B, T), train=True))
    arrays, structure = flatten_saved(saved)
    changed = [
        (key, unflatten_saved(structure, {**arrays, key: bad}))
        for key, array in arrays.items()
        for bad in (array[1:], np.zeros((7, 1)))
    ]
    changed += [(key, saved._replace(**{key: "nothing"})) for key in getattr(saved, "_fields", ())]
    for key, one in changed:
        message = said(lambda one=one: module.backward(params, one, y))
        assert re.match(r"[A-Z]\w*(\.backward)?: |$", message), f"{key}: {message}"
    if isinstance(module, Recurrent):
        assert re.match(
            rf"{type(module).__name__}\.backward: ", said(lambda: module.backward(params, changed[0][1], y))
        )


# ---- masked arrays ----


@every
def test_masked_arrays_are_refused(name: str) -> None:
    module: Any = MODULES[name]
    kind = type(module).__name__
    params, x = made(module)
    y, saved = module.forward(params, x)
    masked = np.ma.masked_array(x, mask=np.ones(x.shape, bool))
    assert re.match(
        rf"{kind}\.forward: \w+ is a masked array, expected", raised(lambda: module.forward(params, masked))
    )
    dy = np.ma.masked_array(y, mask=False)
    assert re.match(rf"{kind}\.backward: \w+ is a masked array", raised(lambda: module.backward(params, saved, dy)))
    lengths = np.ma.masked_array(np.full((B, 2) if "retrieval" in name else B, T), mask=False)
    message = raised(lambda: module.forward(params, x, Context(lengths)))
    assert message.startswith(f"{kind}.forward: lengths is a masked array"), message
    flat = dict(flatten(params))
    for key, value in flat.items():
        broken = unflatten({**flat, key: np.ma.masked_array(value, mask=False)})
        assert "has type MaskedArray, expected an array" in raised(lambda broken=broken: module.forward(broken, x))


# ---- models ----


def test_models_name_their_own_methods_and_arguments() -> None:
    classifier, tagger, retrieval = (model_of(head) for head in ("classifier", "tagger", "retrieval"))
    params, tokens = made(classifier)
    logits, saved = classifier.forward(params, tokens)
    pairs = made(retrieval)
    rows: list[tuple[Callable[[], Any], str]] = [
        (lambda: classifier.forward(params, tokens + V), r"SequenceClassifier.forward: inputs[0, 0] is 6, expected an"),
        (lambda: classifier.stream(params, B).push(tokens + V), "Stream.push: inputs[0, 0] is 6, expected an integer"),
        (lambda: classifier.stream(params, B).push(tokens[:, 0] - 9), "Stream.push: inputs[0, 0] is -8, expected an"),
        (lambda: classifier.loss(logits, [0, C]), f"SequenceClassifier.loss: labels[1] is {C}, expected an integer"),
        (lambda: classifier.loss(logits, [0]), "SequenceClassifier.loss: labels has shape (1,), expected (B=2,)"),
        (lambda: classifier.loss("x", [0]), "SequenceClassifier.loss: logits has dtype"),
        (
            lambda: classifier.backward(params, saved, logits[:1]),
            "SequenceClassifier.backward: dlogits has shape (1, 3)",
        ),
        (lambda: tagger.loss(np.zeros((B, T, C)), np.full((B, T), C)), "Tagger.loss: labels[0, 0] is 3, expected an"),
        (lambda: tagger.count(3), "Tagger.count: labels has shape ()"),
        (lambda: classifier.count(None), "SequenceClassifier.count: labels is None, expected an array of"),
        (lambda: classifier.eigenvalues({}), "SequenceClassifier: parameter encoder is missing"),
        (lambda: retrieval.forward(pairs[0], [[1]]), "Retrieval.forward: inputs has shape (1, 1), expected (B, 2, T)"),
        (lambda: retrieval.forward(*pairs, Context(places=[1, 2, 3])), "Retrieval.forward: places has shape (3,)"),
        (
            lambda: retrieval.forward(pairs[0], np.zeros((B, 2, 0), int), Context(np.ones((B, 2)))),
            "Retrieval.forward: l",
        ),
        (lambda: classifier.stream(params, "a"), "Stream: batch is 'a', expected an integer from 1 to"),  # type: ignore[arg-type]
        (lambda: classifier.stream(params).save(3), "Stream.save: path is an int, expected the path of a file"),  # type: ignore[arg-type]
        (lambda: classifier.stream(params).load(3), "Stream.load: path is an int, expected the path of a file"),  # type: ignore[arg-type]
    ]
    for call, message in rows:
        assert raised(call).startswith(message), raised(call)
    as_list, _ = retrieval.forward(pairs[0], pairs[1].tolist())
    np.testing.assert_array_equal(as_list, retrieval.forward(*pairs)[0])
    assert retrieval.forward(pairs[0], np.zeros((B, 2, 0), np.int64))[0].shape == (B, C)


# ---- once ----


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts checks of lengths, and walks over parameters from the top."""
    counts = {"lengths": 0, "params": 0}
    lengths, params = Boundary.check_lengths, Module.check_params

    def count_lengths(self: Boundary, array: Any) -> Any:
        counts["lengths"] += 1
        return lengths(self, array)

    def count_params(self: Module, given: Any) -> None:
        counts["params"] += 1
        params(self, given)

    monkeypatch.setattr(Boundary, "check_lengths", count_lengths)
    monkeypatch.setattr(Module, "check_params", count_params)
    return counts


@pytest.mark.filterwarnings("ignore:.*no fixed point")
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("block", ["gated", "transformer"])
def test_lengths_and_parameters_are_checked_once(checks: dict[str, int], block: str, name: str, fused: bool) -> None:
    """For a model of two blocks, forward and backward together."""
    chosen = ModelSettings(layer=name, d_model=D, n_layers=2, block=block, dropout=0.1, final_norm=True)
    model = build_model(chosen, sizes_of(name), n_classes=C, vocab=V)
    params = model.init(np.random.default_rng(0))
    ctx = Context(np.array([T, 2]), train=True, fused=fused)
    y, saved = model.forward(params, np.ones((B, T), np.int64), ctx)
    model.backward(params, saved, np.ones_like(y))
    assert checks == {"lengths": 1, "params": 1}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_alone_checks_once(checks: dict[str, int], name: str) -> None:
    module: Any = PARTS[name]
    params, x = made(module)
    y, saved = module.forward(params, x, Context(np.array([T, 2]), train=True))
    module.backward(params, saved, np.ones_like(y))
    assert checks == {"lengths": 1, "params": 1}


def test_a_stream_checks_parameters_when_it_is_made(checks: dict[str, int]) -> None:
    model = model_of("tagger")
    params = model.init(np.random.default_rng(0))
    stream = model.stream(params, B)
    for _ in range(3):
        stream.push(np.ones(B, np.int64))
    stream.push(np.ones((B, T), np.int64), np.array([T, 1]))
    assert checks == {"lengths": 1, "params": 1}
    params["head"]["w"][0, 0] = np.nan
    with pytest.raises(ValueError, match=r"Dense: parameter w of head is nan at \(0, 0\)"):
        model.stream(params, B)


def test_checked_lengths_are_taken_as_they_are_where_they_fit() -> None:
    args = Boundary("op")
    args.bind("B", 3, "x")
    args.bind("T", 5, "x")
    given = np.array([1, 5, 0], np.int32)
    checked = args.lengths(given)
    assert isinstance(checked, CheckedLengths)
    assert args.lengths(checked) is checked
    assert not np.shares_memory(checked, given)
    with pytest.raises(ValueError, match="read-only"):
        checked[0] = 9
    for derived in (checked[:2], checked.copy(), checked.view(), np.concatenate([checked, checked])):
        assert getattr(derived, "fits", None) is None
    assert type(checked + 1) is np.ndarray
    args.bind("T", 4, "x")
    with pytest.raises(ValueError, match=r"op: lengths\[1\] is 5, expected an integer from 0 to T=4"):
        args.lengths(checked)
