"""rotrnn.jax: functions of every layer, block and model have the bits of the module's own forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import rotrnn
import rotrnn.jax
from cores import CORES as EVERY
from cores import OF_THE_REGISTRY, SETTINGS, D
from rotrnn import Context
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.model import NEEDS_DT, SequenceModel
from rotrnn.nn.blocks.dense import Embedding
from rotrnn.nn.layer import astype, flatten, flatten_state, is_parameter, zero_state
from rotrnn.nn.registry import LRU

B, T = 2, 5
LENGTHS = np.array([5, 3])
CORES = {
    name: core for name, core in EVERY.items() if not name.endswith("of features") or name == "classifier of features"
}
FIXED_STATE = [name for name in OF_THE_REGISTRY if name != "attention"]
"""Layers whose state does not grow; `test_a_state_that_grows_is_refused` has the others."""
every_core = pytest.mark.parametrize("core", CORES.values(), ids=CORES)


@pytest.fixture(autouse=True)
def _x64() -> Iterator[None]:
    """Sets JAX to 64 bits; `narrow` sets it to 32."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.fixture
def narrow(_x64: None) -> None:
    jax.config.update("jax_enable_x64", False)


def input_of(core: Any, rng: np.random.Generator) -> Any:
    """Token ids or numbers."""
    shape = (B, 2, T) if getattr(core, "time_axis", 1) == 2 else (B, T)
    if isinstance(getattr(core, "encoder", core), Embedding):
        return rng.integers(0, 6, shape)
    return rng.standard_normal((*shape, core.encoder.d_in if isinstance(core, SequenceModel) else D))


def params_of(core: Any, rng: np.random.Generator) -> Any:
    """Parameters in float64, moved from their initial values, because zeros would hide gradients."""
    if not core.has_parameters:
        return {}

    def moved(params: Any) -> Any:
        return {
            name: moved(one) if isinstance(one, dict) else one + 0.05 * np.abs(rng.standard_normal(one.shape))
            for name, one in params.items()
        }

    return moved(astype(core.init(rng), np.float64))


def assert_same(got: Any, expected: Any) -> None:
    """Same structure and bits."""
    got, expected = jax.tree.flatten(got), jax.tree.flatten(expected)
    assert got[1] == expected[1]
    for one, other in zip(got[0], expected[0], strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def numbers(params: Any) -> Any:
    """The parameters without buffers, which have no gradient."""
    return {name: one for name, one in flatten(params) if is_parameter(name)}


def gradient(f: Any, dy: Any, params: Any, x: Any, **more: Any) -> Any:
    """The gradients of sum(dy y) in params, by name, and x (None for token ids)."""

    def loss(params: Any, x: Any) -> Any:
        y = f(params, x, **more)
        return (dy * (y[0] if isinstance(y, tuple) else y)).sum()

    if x.dtype.kind == "i":
        return numbers(jax.grad(loss)(params, x)), None
    dparams, dx = jax.grad(loss, (0, 1))(params, x)
    return numbers(dparams), dx


def own(core: Any, dy: Any, params: Any, x: Any, ctx: Context) -> Any:
    """y and the same gradients by the module itself."""
    y, saved = core.forward(params, x, ctx)
    backward = core.backward_all if isinstance(core, SequenceModel) else core.backward
    dx, dparams, *_ = backward(params, saved, dy(y) if callable(dy) else dy)
    return y, (dict(flatten(dparams)), dx)


# ---- bits ----


@every_core
def test_compiled_or_not_it_has_the_bits_of_the_module(core: Any) -> None:
    rng = np.random.default_rng(0)
    params, x = params_of(core, rng), input_of(core, rng)
    f = rotrnn.jax.function(core)
    dy = rng.standard_normal(core.forward(params, x)[0].shape)
    y, grads = own(core, dy, params, x, Context())
    for call in (f, jax.jit(f)):
        assert_same(np.asarray(call(params, x)), y)
        assert_same(jax.tree.map(np.asarray, gradient(call, dy, params, x)), grads)


@pytest.mark.parametrize("name", ["lru", "mamba", "attention", "bedouin", "block", "stack", "classifier of tokens"])
def test_ragged_training(name: str) -> None:
    """With lengths, and traced seed and step; padding holds NaN."""
    core, rng = CORES[name], np.random.default_rng(1)
    params, x = params_of(core, rng), input_of(core, rng)
    if x.dtype.kind == "f":
        x[1, 3:] = np.nan
    has_buffers = any(not is_parameter(one) for one, _ in flatten(params))
    f = jax.jit(rotrnn.jax.function(core, train=True, return_buffers=has_buffers))
    more = {"lengths": LENGTHS, "seed": 3, "step": np.int32(7)}
    mine = jax.tree.map(np.copy, params)  # forward updates its buffers
    dy = rng.standard_normal(core.forward(params, x, Context(LENGTHS))[0].shape)
    y, grads = own(core, dy, mine, x, Context(LENGTHS, True, 3, 7))
    made = f(params, x, **more)
    assert_same(np.asarray(made[0] if has_buffers else made), y)
    assert_same(jax.tree.map(np.asarray, gradient(f, dy, params, x, **more)), grads)
    if has_buffers:
        after = jax.tree.map(np.asarray, rotrnn.jax.with_buffers(params, made[1]))
        assert_same(after, mine)
        assert any((a != b).any() for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(params), strict=True))


@pytest.mark.parametrize("name", [*FIXED_STATE, "stack", "language of tokens"])
def test_sequences_in_pieces(name: str) -> None:
    """The state after one piece goes into the next, within one compiled program; gradients go back through it."""
    core, rng = CORES[name], np.random.default_rng(2)
    params, x = params_of(core, rng), input_of(core, rng)
    f = rotrnn.jax.function(core, return_state=True)

    def run(params: Any, a: Any, b: Any) -> Any:
        y, state = f(params, a)
        z, state = f(params, b, state)
        return y, z, state

    first, last = x[:, :3], x[:, 3:]
    y, saved = core.forward(params, first)
    state = saved.blocks.state if isinstance(core, SequenceModel) else saved.state
    z, saved2 = core.forward(params, last, Context(), state)
    made = jax.jit(run)(params, first, last)
    assert_same([np.asarray(one) for one in made[:2]], [y, z])
    state2 = saved2.blocks.state if isinstance(core, SequenceModel) else saved2.state
    leaves = [np.asarray(one) for one in jax.tree.leaves(made[2])]
    assert_same(leaves, [one for _, one in flatten_state(state2)])

    dz = rng.standard_normal(z.shape)
    backward = core.backward_all if isinstance(core, SequenceModel) else core.backward
    _, dparams2, dstate = backward(params, saved2, dz)
    _, dparams, _ = backward(params, saved, np.zeros(y.shape), dstate)
    expected = {key: one + dict(flatten(dparams))[key] for key, one in flatten(dparams2)}
    got = numbers(jax.jit(jax.grad(lambda params: (run(params, first, last)[1] * dz).sum()))(params))
    assert got.keys() == expected.keys()
    for key in expected:  # one addition, by XLA and by NumPy
        np.testing.assert_allclose(got[key], expected[key], rtol=1e-15, atol=0, err_msg=key)


@pytest.mark.parametrize("name", ["lru", "s4d", "fixed_point", "attention"])
def test_single_precision_with_jax_in_32_bits(narrow: None, name: str) -> None:
    """What forward keeps may have 64 bits all the same (lengths, positions, sums)."""
    core, rng = OF_THE_REGISTRY[name], np.random.default_rng(3)
    params, x = astype(params_of(core, rng), np.float32), input_of(core, rng).astype(np.float32)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    f = jax.jit(rotrnn.jax.function(core))
    y, grads = own(core, dy, params, x, Context(LENGTHS))
    assert_same(np.asarray(f(params, x, lengths=LENGTHS)), y)
    assert_same(jax.tree.map(np.asarray, gradient(f, dy, params, x, lengths=LENGTHS)), grads)


def test_positions_of_a_state_in_32_bits(narrow: None) -> None:
    core, rng = OF_THE_REGISTRY["wrope_memory"], np.random.default_rng(4)
    params, x = core.init(rng), input_of(core, rng).astype(np.float32)
    f = rotrnn.jax.function(core, return_state=True)
    _, state = f(params, x)
    _, saved = core.forward(params, x)
    again, _ = f(params, x, state)
    np.testing.assert_array_equal(again, core.forward(params, x, Context(), saved.state)[0])


def test_subnormal_numbers_are_not_flushed() -> None:
    """XLA's threads count them as zero; the parts of a layer that NumPy computes must not."""
    core = OF_THE_REGISTRY["lru"]
    params = astype(core.init(np.random.default_rng(0)), np.float64)
    params = {**params, "B_re": np.full_like(params["B_re"], 1e-310), "B_im": np.full_like(params["B_im"], 2e-310)}
    x = np.ones((1, 3, D))
    dy = np.full((1, 3, D), 1e-3)
    y, grads = own(core, dy, params, x, Context())
    f = jax.jit(rotrnn.jax.function(core))
    assert_same(np.asarray(f(params, x)), y)
    assert_same(jax.tree.map(np.asarray, gradient(f, dy, params, x)), grads)


def test_a_function_has_the_precision_in_which_it_was_made() -> None:
    core, rng = LRU(64, 64), np.random.default_rng(5)
    params, x = core.init(rng), rng.standard_normal((2, 9, 64), dtype=np.float32)
    with rotrnn.precision("bf16"):
        f = rotrnn.jax.function(core)
        y, grads = own(core, x, params, x, Context())
    assert (core.forward(params, x)[0] != y).any()
    assert_same(np.asarray(jax.jit(f)(params, x)), y)
    assert_same(jax.tree.map(np.asarray, gradient(f, x, params, x)), grads)


# ---- gradients and transformations ----


@pytest.mark.parametrize("name", [name for name in CORES if name != "embedding"])
def test_gradients_by_differences(name: str) -> None:
    """Differences over 2e-5 err by 1e-10 of third derivatives (1e6 for FPMamba, with its norm in the loop), and by some
    1e-13 of rounding or of a fixed point's tolerance, divided by 1e-5. The gradient of an embedding is that of the
    models that have one. What a layer names as `estimated` is held: its gradient goes straight through a choice."""
    core, rng = CORES[name], np.random.default_rng(6)
    params, x = params_of(core, rng), input_of(core, rng)
    held = getattr(core, "estimated", frozenset())
    buffers = {key: one for key, one in flatten(params) if not is_parameter(key) or key in held}
    trained = {key: one for key, one in numbers(params).items() if key not in held}

    def f(trained: Any, *x_or_none: Any) -> Any:
        y = rotrnn.jax.function(core)(rotrnn.unflatten({**trained, **buffers}), *(x_or_none or (x,)))
        return y

    alone = x.dtype.kind == "i" or "x" in held
    check_grads(f, (trained,) if alone else (trained, x), 1, ["rev"], atol=1e-5, rtol=1e-5, eps=1e-5)


@pytest.mark.parametrize("name", FIXED_STATE)
def test_gradients_of_states_by_differences(name: str) -> None:
    """In the state before x, of y and of the state after it; complex states too."""
    core, rng = OF_THE_REGISTRY[name], np.random.default_rng(7)
    params, x = params_of(core, rng), input_of(core, rng)
    f = rotrnn.jax.function(core, return_state=True)
    _, state = f(params, x)
    leaves, tree = jax.tree.flatten(state)
    real = [i for i, one in enumerate(leaves) if one.dtype.kind in "fc"]
    rest = {i: one for i, one in enumerate(leaves) if i not in real}

    def g(given: Any, x: Any = x) -> Any:
        every = dict(zip(real, given, strict=True)) | rest
        y, after = f(params, x, tree.unflatten([every[i] for i in range(len(leaves))]))
        return y, [one for one in jax.tree.leaves(after) if one.dtype.kind in "fc"]

    states, held = [leaves[i] for i in real], getattr(core, "estimated", ())
    check_grads(g, (states,) if "x" in held else (states, x), 1, ["rev"], atol=1e-5, rtol=1e-5, eps=1e-5)


@pytest.mark.parametrize("name", ["lru", "attention", "embedding", "block", "classifier of tokens"])
def test_vmap_is_one_call_after_the_other(name: str) -> None:
    """Of x, of params, of both, and nested; with and without gradients."""
    core, rng = CORES[name], np.random.default_rng(8)
    several = [params_of(core, rng) for _ in range(2)]
    xs = np.stack([input_of(core, rng) for _ in range(3)])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *several)
    f = rotrnn.jax.function(core)
    each = [[np.asarray(f(params, x)) for x in xs] for params in several]
    dy = rng.standard_normal(each[0][0].shape)
    g = partial(gradient, f, dy)
    grads = [[jax.tree.map(np.asarray, g(params, x)) for x in xs] for params in several]
    for one, result in ((f, each), (g, grads)):
        over_x = jax.vmap(one, (None, 0))
        nested = jax.jit(jax.vmap(over_x, (0, None)))(stacked, xs)
        for i, params in enumerate(several):
            along = over_x(params, xs)
            for j in range(3):
                assert_same(jax.tree.map(lambda a, j=j: np.asarray(a[j]), along), result[i][j])
                assert_same(jax.tree.map(lambda a, i=i, j=j: np.asarray(a[i, j]), nested), result[i][j])
        both = jax.vmap(one)(stacked, xs[:2])
        for i in range(2):
            assert_same(jax.tree.map(lambda a, i=i: np.asarray(a[i]), both), result[i][i])
    total = jax.grad(lambda params: (jax.vmap(f, (None, 0))(params, xs) * dy).sum())(several[0])
    for name, value in numbers(total).items():  # the sum of three, in any order
        parts = np.stack([one[0][name] for one in grads[0]])
        np.testing.assert_allclose(value, parts.sum(0), rtol=1e-14, atol=1e-14 * np.abs(parts).max())


def test_other_transformations() -> None:
    """scan over pieces, remat, and a second function around it."""
    core, rng = OF_THE_REGISTRY["lru"], np.random.default_rng(9)
    params, x = params_of(core, rng), input_of(core, rng)
    f = rotrnn.jax.function(core, return_state=True)
    _, zero = f(params, x[:, :0])

    def by_steps(params: Any, x: Any) -> Any:
        def step(state: Any, x_t: Any) -> Any:
            y, state = f(params, x_t[:, None], state)
            return state, y[:, 0]

        return jax.lax.scan(step, zero, x.swapaxes(0, 1))[1].swapaxes(0, 1)

    whole = rotrnn.jax.function(core)
    np.testing.assert_allclose(by_steps(params, x), whole(params, x), atol=1e-13)
    loss = {
        name: jax.jit(jax.grad(lambda params, h=h: jnp.tanh(h(params, x)).sum()))(params)
        for name, h in {"scan": by_steps, "remat": jax.checkpoint(whole), "whole": whole}.items()
    }
    for name, value in loss["whole"].items():
        np.testing.assert_array_equal(loss["remat"][name], value)
        np.testing.assert_allclose(loss["scan"][name], value, atol=1e-12)


@dataclass(frozen=True)
class Counted(LRU):
    """LRU that counts its calls."""

    calls: ClassVar[dict[str, int]] = {"forward": 0, "backward": 0}

    def forward(self, params: Any, x: Any, ctx: Any = None, state: Any = None) -> Any:
        self.calls["forward"] += 1
        return super().forward(params, x, ctx, state)

    def backward(self, params: Any, saved: Any, dy: Any, dstate: Any = None) -> Any:
        self.calls["backward"] += 1
        return super().backward(params, saved, dy, dstate)


def test_forward_runs_once_and_a_loss_goes_down() -> None:
    """value_and_grad within a compiled training step. The first call also runs forward on zeros."""
    core, rng = Counted(D, 4), np.random.default_rng(10)
    params = core.init(rng)
    x = rng.standard_normal((8, 20, D), dtype=np.float32)
    target = np.cumsum(x, 1) / 4
    f = rotrnn.jax.function(core)

    @jax.jit
    def step(params: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda params: ((f(params, x) - target) ** 2).mean())(params)
        return loss, jax.tree.map(lambda a, g: a - 0.05 * g, params, grads)

    losses = []
    for i in range(30):
        loss, params = step(params)
        losses.append(float(loss))
        assert Counted.calls == {"forward": i + 2, "backward": i + 1}
    assert losses[-1] < 0.8 * losses[0]


def test_many_calls_at_once() -> None:
    """Independent layers in one program, programs that are not waited for, and several Python threads."""
    core, rng = LRU(32, 32), np.random.default_rng(11)
    params, x = core.init(rng), rng.standard_normal((4, 64, 32), dtype=np.float32)
    f = rotrnn.jax.function(core)
    wide = jax.jit(lambda x: sum(f(params, jnp.tanh(x @ x.swapaxes(1, 2)) @ x * i) for i in range(8)))
    grad = jax.jit(jax.grad(lambda x: (wide(x) ** 2).sum()))
    expected = np.asarray(wide(x)), np.asarray(grad(x))
    with ThreadPoolExecutor(4) as pool:
        flying = [pool.submit(lambda: (wide(x), grad(x))) for _ in range(12)]
        made = [one.result(timeout=300) for one in flying]
    for y, dx in [*made, *[(wide(x), grad(x)) for _ in range(12)]]:
        np.testing.assert_array_equal(y, expected[0])
        np.testing.assert_array_equal(dx, expected[1])


# ---- errors ----

LAYER = OF_THE_REGISTRY["lru"]
PARAMS = astype(LAYER.init(np.random.default_rng(0)), np.float64)
X = np.ones((B, T, D))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda f: f(X, PARAMS), TypeError, r"rotrnn.jax: LRU: params is an? .*, expected a dict of arrays"),
        (lambda f: f(PARAMS, X.astype(np.float16)), TypeError, "LRU.forward: x has dtype float16, expected float32 or"),
        (lambda f: f(PARAMS, X[0]), ValueError, r"LRU.forward: x has shape \(5, 4\), expected \(B, T, D\)"),
        (lambda f: f({**PARAMS, "nu": X}, X), ValueError, "LRU: params has 'nu', which is not a parameter"),
        (lambda f: f({"nu_log": X}, X), ValueError, "LRU: parameter nu_log has shape|LRU: parameter .* is missing"),
        (lambda f: f({**PARAMS, "D": X}, X), ValueError, r"LRU: parameter D has shape \(2, 5, 4\), expected \(4,\)"),
        (lambda f: f(PARAMS, X, (X,)), TypeError, "rotrnn.jax: LRU: state has the structure .*, expected PyTreeDef"),
        *(
            (
                lambda f, one=one: f(PARAMS, X, lengths=one),
                TypeError,
                f"LRU.forward: lengths has dtype {one.dtype}, exp",
            )
            for one in (np.array([0.65, 1]), np.array([True, False]))
        ),
        (
            lambda f: f(PARAMS, X, X),
            TypeError,
            "LRU.forward: state has dtype float64, expected complex64 or complex128",
        ),
    ],
)
def test_wrong_arguments(call: Any, kind: type[Exception], message: str, compiled: bool) -> None:
    f = rotrnn.jax.function(LAYER)
    with pytest.raises(kind, match=message):
        call(jax.jit(f) if compiled else f)


@pytest.mark.parametrize("train", [False, True])
def test_seed_and_step_are_integers(train: bool) -> None:
    f = rotrnn.jax.function(LAYER, train=train)
    with pytest.raises(ValueError, match=r"Context: seed is 0.65, expected an integer from 0"):
        f(PARAMS, X, seed=0.65)
    with pytest.raises(TypeError, match=r"rotrnn.jax: LRU: step has dtype float32, expected an integer dtype"):
        f(PARAMS, X, step=np.float32(1.7))
    with pytest.raises(TypeError, match=r"rotrnn.jax: LRU: seed has dtype bool, expected an integer dtype"):
        f(PARAMS, X, seed=jax.numpy.array(True))
    with pytest.raises(ValueError, match=r"rotrnn.jax: LRU: step has shape \(2,\), expected \(\)"):
        f(PARAMS, X, step=jax.numpy.array([1, 2]))


@pytest.mark.parametrize("train", [False, True])
def test_a_key_of_jax_gives_a_seed_by_its_bits(train: bool) -> None:
    f, key = rotrnn.jax.function(LAYER, train=train), jax.random.key(0)
    with pytest.raises(TypeError, match=r"LRU: seed is a key of JAX \(key<.*>\), expected an integer: jax.random.bits"):
        f(PARAMS, X, seed=key)
    f(PARAMS, X, seed=jax.random.bits(key))


def test_lengths_in_a_list() -> None:
    f = rotrnn.jax.function(LAYER)
    for call in (f, jax.jit(f)):
        np.testing.assert_array_equal(call(PARAMS, X, lengths=[5, 3]), f(PARAMS, X, lengths=LENGTHS))
    with pytest.raises(TypeError, match=r"LRU\.forward: lengths has dtype float.., expected an"):
        f(PARAMS, X, lengths=[5, 3.5])
    for wrong in (["a", "b"], [[5], [3, 1]], [2**70, 1], [None, 3]):
        with pytest.raises(TypeError, match=r"^rotrnn.jax: LRU: lengths is \[.*, expected integers"):
            f(PARAMS, X, lengths=wrong)


def test_trained_parameters_and_running_statistics() -> None:
    model = rotrnn.build_model(ModelSettings("rotrnn", D, 1, norm="batch"), SETTINGS["rotrnn"], vocab=5, n_classes=2)
    params = model.init(np.random.default_rng(0))
    found = rotrnn.jax.trained(params)
    assert jax.tree.structure(found) == jax.tree.structure(params)
    statistics = {name for name, one in flatten(found) if not one}
    assert {"blocks.0.norm.running_mean", "blocks.0.norm.running_var"} <= statistics
    assert statistics == {name for name, _ in flatten(params) if not is_parameter(name)}
    with pytest.raises(TypeError, match=r"^rotrnn.jax.trained: params is a NoneType, expected a dict of arrays"):
        rotrnn.jax.trained(None)


def test_buffers_that_the_parameters_lack() -> None:
    with pytest.raises(TypeError, match=r"^rotrnn.jax.with_buffers: buffers is a NoneType, expected a dict"):
        rotrnn.jax.with_buffers(PARAMS, None)
    with pytest.raises(ValueError, match=r"^rotrnn.jax.with_buffers: buffers has 'other', expected names of params"):
        rotrnn.jax.with_buffers(PARAMS, {"other": X})
    with pytest.raises(TypeError, match=r"^rotrnn.jax.with_buffers: params is a list, expected a dict of arrays"):
        rotrnn.jax.with_buffers([1], {"other": X})
    with pytest.raises(ValueError, match=r"^rotrnn.jax.with_buffers: D of buffers has a dict, expected shape \(\d,\)"):
        rotrnn.jax.with_buffers(PARAMS, {"D": {"x": X}})


@pytest.mark.usefixtures("narrow")
def test_a_seed_of_python_that_jax_would_refuse() -> None:
    with pytest.raises(ValueError, match=r"rotrnn.jax: LRU: seed has 1099511627776, expected numbers of int32"):
        rotrnn.jax.function(LAYER, train=True)(astype(PARAMS, np.float32), X.astype(np.float32), seed=2**40)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", ["lengths", "seed", "x"])
def test_integers_that_jax_would_cut_to_32_bits(name: str) -> None:
    model = rotrnn.build_model(rotrnn.ModelSettings("lru", 4, 1, norm="rms"), {"d_state": 3}, vocab=5, n_classes=2)
    params = model.init(np.random.default_rng(0))
    given: dict[str, Any] = {"x": np.ones((2, 3), np.int64), "lengths": np.array([3, 2]), "seed": np.int64(1)}
    f = rotrnn.jax.function(model, train=True)
    f(params, **given)
    with pytest.raises(ValueError, match=f": {name} has 42949672.., expected numbers of int32, or jax.config"):
        f(params, **{**given, name: given[name] + 2**32})


def test_what_is_no_array() -> None:
    f = rotrnn.jax.function(LAYER)
    with pytest.raises(TypeError, match=r"rotrnn.jax: LRU: lengths is a set, expected an array"):
        f(PARAMS, X, lengths={3, 1})
    with pytest.raises(TypeError, match=r"rotrnn.jax: LRU: x is a list, expected an array"):
        f(PARAMS, X.tolist())
    with pytest.raises(TypeError, match=r"rotrnn.jax: LRU: params.D is a float, expected an array"):
        f({**PARAMS, "D": 1.0}, X)


@pytest.mark.parametrize("name", ["x", "params.D", "state", "lengths", "dt"])
def test_arrays_in_another_byte_order_are_refused(name: str) -> None:
    layer = OF_THE_REGISTRY["s5" if name == "dt" else "lru"]
    params, given = astype(layer.init(np.random.default_rng(0)), np.float64), {"x": X}
    if name == "state":
        given["state"] = zero_state("lru", layer, B, np.float64)
    if name in ("lengths", "dt"):
        given[name] = np.full(B, T) if name == "lengths" else np.ones((B, T))
    f = rotrnn.jax.function(layer)
    f(params, **given)
    arrays = params if name.startswith("params") else given
    key = name.removeprefix("params.")
    arrays[key] = jax.tree.map(lambda one: one.astype(one.dtype.newbyteorder()), arrays[key])
    with pytest.raises(TypeError, match=rf"rotrnn.jax: \w+: {name} has dtype [<>]\w+, expected the byte order of this"):
        f(params, **given)


def test_wrong_values_are_found_when_the_program_runs() -> None:
    f = rotrnn.jax.function(LAYER)
    with pytest.raises(
        (ValueError, jax.errors.JaxRuntimeError), match=r"lengths\[0\] is 9, expected an integer from 0"
    ):
        f(PARAMS, X, lengths=np.array([9, 1])).block_until_ready()
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=r"LRU: parameter D is nan at \(0,\), expected"):
        f({**PARAMS, "D": np.full(D, np.nan)}, X).block_until_ready()


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"train": 1}, TypeError, "rotrnn.jax.function: train is 1, expected True or False"),
        ({"train": True}, ValueError, "return_buffers is False, expected True.*norm.running_mean"),
        ({"return_buffers": True}, ValueError, "return_buffers is True, expected False"),
    ],
)
def test_wrong_settings(settings: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        rotrnn.jax.function(CORES["block"], **settings)


def test_what_is_no_module_or_has_no_state() -> None:
    with pytest.raises(
        TypeError, match=r"rotrnn.jax.function: module is a dict, expected a layer, block, stack or model"
    ):
        rotrnn.jax.function(PARAMS)
    with pytest.raises(ValueError, match=r"rotrnn.jax: Bidirectional: a state is asked for or given, expected none"):
        rotrnn.jax.function(CORES["bidirectional"], return_state=True)


@pytest.mark.parametrize("name", ["attention", "stored history"])
def test_a_state_that_grows_is_refused(name: str) -> None:
    core = CORES[name]
    with pytest.raises(
        ValueError, match=r"its state grows with every step, expected one of fixed size, as in a window"
    ):
        rotrnn.jax.function(core, return_state=True)
    params = astype(core.init(np.random.default_rng(0)), np.float64)
    with pytest.raises(
        ValueError, match=r"its state grows with every step, expected one of fixed size, as in a window"
    ):
        rotrnn.jax.function(core)(params, X, core.forward(params, X)[1].state)


@pytest.mark.parametrize("name", ["x", "params.nu_log"])
def test_double_precision_needs_jax_in_64_bits(narrow: None, name: str) -> None:
    """JAX would round to single precision in silence."""
    params = PARAMS if name != "x" else astype(PARAMS, np.float32)
    x = X if name == "x" else X.astype(np.float32)
    with pytest.raises(
        TypeError, match=f"LRU: {name} has dtype float64, but JAX is set to 32 bits, expected jax.config"
    ):
        rotrnn.jax.function(LAYER)(params, x)


def test_a_state_in_double_precision_needs_jax_in_64_bits(narrow: None) -> None:
    core = OF_THE_REGISTRY["rope_memory"]
    params = core.init(np.random.default_rng(0))
    with pytest.raises(TypeError, match=r"RopeMemory: the state after x has dtype .*, but JAX is set to 32 bits"):
        rotrnn.jax.function(core, return_state=True)(params, X.astype(np.float32))


def test_second_derivatives_are_refused() -> None:
    f = rotrnn.jax.function(LAYER)

    def loss(x: Any) -> Any:
        return (f(PARAMS, x) ** 2).sum()

    for second in (jax.hessian(loss), jax.grad(lambda x: (jax.grad(loss)(x) ** 2).sum())):
        with pytest.raises(
            NotImplementedError, match=r"rotrnn.jax: LRU: a second derivative is asked for, expected first"
        ):
            second(X)
    with pytest.raises(TypeError, match=r"forward-mode"):  # JAX's own words
        jax.jvp(loss, (X,), (X,))


def test_open_sizes_are_refused() -> None:
    """As jax.export has them."""
    b, t = jax.export.symbolic_shape("b, t")
    form = jax.ShapeDtypeStruct((b, t, 4), X.dtype)
    with pytest.raises(TypeError, match=r"rotrnn.jax: LRU: x has shape \(b, t, 4\), expected sizes that are numbers"):
        jax.export.export(jax.jit(rotrnn.jax.function(LAYER)))(PARAMS, form)


def test_exported_programs_are_refused_by_jax() -> None:
    """In its own words, which the page quotes: a program that calls Python cannot be written."""
    with pytest.raises(NotImplementedError, match=r"serialization of host_callbacks is not yet implemented"):
        jax.export.export(jax.jit(rotrnn.jax.function(LAYER)))(PARAMS, X)


def test_several_devices_are_refused() -> None:
    f = rotrnn.jax.function(LAYER)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    sharded = jax.device_put(X, sharding)
    expected = "rotrnn.jax: LRU: the arrays are sharded or replicated over 2 devices, expected one"
    for call in (
        lambda: f(PARAMS, sharded),
        lambda: jax.jit(f)(PARAMS, sharded),
        lambda: jax.jit(lambda x: f(PARAMS, jax.lax.with_sharding_constraint(x, sharding)))(X),
        lambda: jax.grad(lambda x: f(PARAMS, x).sum())(sharded),
        lambda: jax.pmap(lambda x: f(PARAMS, x[None]))(X),
    ):
        with pytest.raises(NotImplementedError, match=expected):
            call()


def test_a_gradient_within_shard_map() -> None:
    """JAX would refuse the types of gradients, in words of its own; without its check one device computes."""
    f, axes = rotrnn.jax.function(LAYER), jax.sharding.PartitionSpec("batch")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("batch",))

    def gradient(**settings: Any) -> Any:
        one = jax.grad(lambda params, x: (f(params, x) ** 2).sum())
        everywhere = jax.sharding.PartitionSpec()
        return jax.shard_map(one, mesh=mesh, in_specs=(everywhere, axes), out_specs=everywhere, **settings)(PARAMS, X)

    with pytest.raises(NotImplementedError, match=r"rotrnn.jax: LRU: a gradient within shard_map, expected one device"):
        gradient()
    expected = jax.grad(lambda params: (f(params, X) ** 2).sum())(PARAMS)
    for got, one in zip(jax.tree.leaves(gradient(check_vma=False)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(got, one)


def test_dt_has_no_gradient() -> None:
    layer = rotrnn.S5(3, 4)
    f, params, x = rotrnn.jax.function(layer), layer.init(np.random.default_rng(0)), np.ones((2, 5, 3), np.float32)
    dt = jnp.ones((2, 5), jnp.float32)
    with pytest.raises(
        NotImplementedError, match=r"rotrnn.jax: S5: dt requires a gradient, expected jax.lax.stop_grad"
    ):
        jax.grad(lambda s: f(params, x, dt=s * dt).sum())(jnp.float32(1))
    found = jax.grad(lambda params, dt: f(params, x, dt=jax.lax.stop_gradient(dt)).sum())(params, dt)
    assert all(np.abs(one).max() > 0 for one in jax.tree.leaves(found))


def test_other_platforms_are_refused() -> None:
    """Seen when the program is lowered, which needs no device of that platform."""
    f = jax.jit(rotrnn.jax.function(LAYER))
    with pytest.raises(NotImplementedError, match=r"rotrnn.jax: LRU: the arrays are on cuda, expected jax.device_put"):
        f.trace(PARAMS, X).lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize("name", ["mamba2", "lru"])
def test_a_packed_row_has_the_results_of_its_sequences(name: str) -> None:
    layer, rng = OF_THE_REGISTRY[name], np.random.default_rng(0)
    f = rotrnn.jax.function(layer, return_state=True)
    params, x = layer.init(rng), rng.standard_normal((1, 9, D)).astype(np.float32)
    bounds = np.array([0, 4, 4, 9])
    expected, saved = layer.forward(params, x, Context(cu_seqlens=bounds))
    y, state = f(params, x, cu_seqlens=bounds)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    for (_, one), (_, other) in zip(flatten_state(state), flatten_state(saved.state), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    weights = rng.standard_normal(y.shape).astype(np.float32)
    grads = jax.grad(lambda p, x: (weights * f(p, x, cu_seqlens=bounds)[0]).sum(), (0, 1))(params, x)
    dx, dparams, _ = layer.backward(params, saved, weights)
    np.testing.assert_allclose(grads[1], dx, rtol=1e-4, atol=1e-4)
    for key, value in dparams.items():
        np.testing.assert_allclose(grads[0][key], value, rtol=1e-4, atol=1e-4, err_msg=key)
    traced = jax.jit(lambda bounds: f(params, x, cu_seqlens=bounds)[0])
    with pytest.raises(TypeError, match=r"cu_seqlens is traced, expected a NumPy array: shapes follow from it"):
        traced(bounds)


@pytest.mark.parametrize("name", ["s4d", "s5"])
def test_intervals_are_those_of_the_context(name: str) -> None:
    """Outputs and gradients have the bits of forward and backward, also where intervals are traced; a packed row has
    the results of its sequences."""
    layer, rng = OF_THE_REGISTRY[name], np.random.default_rng(0)
    f = rotrnn.jax.function(layer)
    params, x = layer.init(rng), rng.standard_normal((2, 6, D)).astype(np.float32)
    dt = rng.exponential(size=(2, 6)).astype(np.float32)
    expected, saved = layer.forward(params, x, Context(dt=dt))
    np.testing.assert_array_equal(jax.jit(lambda dt: f(params, x, dt=dt))(dt), expected)
    weights = rng.standard_normal(expected.shape).astype(np.float32)
    grads = jax.grad(lambda p, x: (weights * f(p, x, dt=dt)).sum(), (0, 1))(params, x)
    dx, dparams, _ = layer.backward(params, saved, weights)
    np.testing.assert_array_equal(grads[1], dx)
    for key, value in dparams.items():
        np.testing.assert_array_equal(grads[0][key], value, err_msg=key)
    row = f(params, x.reshape(1, 12, D), cu_seqlens=np.array([0, 6, 12]), dt=dt.reshape(1, 12))
    np.testing.assert_allclose(row.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"dt has shape \(2, 6\), expected \(1, 12\)"):
        f(params, x.reshape(1, 12, D), cu_seqlens=np.array([0, 6, 12]), dt=dt)
    with pytest.raises(NotImplementedError, match=r"got dt, which LRU does not support"):
        rotrnn.jax.function(LAYER)(PARAMS, X, dt=jax.numpy.ones(X.shape[:2]))


def test_a_model_that_was_trained_with_intervals_needs_them() -> None:
    """Ones are even steps."""
    settings, rng = ModelSettings(layer="s5", d_model=D, n_layers=1), np.random.default_rng(0)
    even = build_model(settings, {"d_state": 4}, head="step_regressor", n_features=2, n_classes=1)
    f = rotrnn.jax.function(replace(even, timed=True))
    params, x = even.init(rng), rng.standard_normal((2, 6, 2)).astype(np.float32)
    expected = rotrnn.jax.function(even)(params, x)
    np.testing.assert_allclose(f(params, x, dt=np.ones((2, 6), np.float32)), expected, rtol=1e-4, atol=1e-4)
    for more in ({}, {"lengths": np.array([6, 2], np.int32)}, {"reset": np.zeros((2, 6), bool)}):
        with pytest.raises(ValueError, match=f"^rotrnn.jax: StepRegressor: {NEEDS_DT}$"):
            f(params, x, **more)


@pytest.mark.parametrize("name", ["mamba2", "lru"])
def test_rows_with_resets_have_the_results_of_forward(name: str) -> None:
    layer, rng = OF_THE_REGISTRY[name], np.random.default_rng(0)
    f = rotrnn.jax.function(layer, return_state=True)
    params, x = layer.init(rng), rng.standard_normal((2, 6, D)).astype(np.float32)
    state = layer.forward(params, x[:, ::-1])[1].state
    reset = np.zeros((2, 6), bool)
    reset[0, 4] = reset[1, 0] = True
    expected, saved = layer.forward(params, x, Context(reset=reset), state)
    y, after = f(params, x, state, reset=reset)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    for (_, one), (_, other) in zip(flatten_state(after), flatten_state(saved.state), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    weights = rng.standard_normal(y.shape).astype(np.float32)
    grads = jax.grad(lambda p, x: (weights * f(p, x, state, reset=reset)[0]).sum(), (0, 1))(params, x)
    dx, dparams, _ = layer.backward(params, saved, weights)
    np.testing.assert_allclose(grads[1], dx, rtol=1e-4, atol=1e-4)
    for key, value in dparams.items():
        np.testing.assert_allclose(grads[0][key], value, rtol=1e-4, atol=1e-4, err_msg=key)
    with pytest.raises(TypeError, match=r"reset is traced, expected a NumPy array: shapes follow from it"):
        jax.jit(lambda reset: f(params, x, reset=reset)[0])(reset)
    with pytest.raises(ValueError, match=r"got reset and lengths, expected one of them"):
        f(params, x, reset=reset, lengths=np.array([6, 6]))
    with pytest.raises(ValueError, match=r"state has an array of shape \(2, .*\), expected \(B=1, \.\.\.\)"):
        f(params, x[:1], state, reset=reset[:1])


def test_arrays_of_jax_are_told_how_numpy_takes_them() -> None:
    model = build_model(ModelSettings("lru", D, 1), {"d_state": 2}, head="tagger", n_features=3, n_classes=2)
    params = model.init(np.random.default_rng(0))
    own, x = jax.tree.map(jnp.asarray, params), np.ones((B, T, 3), np.float32)
    message = r"type ArrayImpl, expected an array of float32 or float64 of NumPy: jax\.tree\.map\(np\.asarray, params\)"
    for call in (lambda: model.forward(own, x), lambda: model.stream(own), lambda: model.save("m", own)):
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(TypeError, match=r"or rotrnn\.jax\.function for programs of JAX"):
        jax.jit(lambda params: model.forward(params, x)[0])(params)
    again = jax.tree.map(np.asarray, own)
    np.testing.assert_array_equal(model.stream(again, B).push(x), model.stream(params, B).push(x))
