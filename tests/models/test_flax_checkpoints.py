"""Checkpoints of S5 and of minimal-LRU against a transcription of the published modules in NumPy, one step at a time.

That the names of their arrays are those that Flax gives is in tests/hub."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotrnn
from rotrnn.nn.blocks.pool import LastPool
from rotrnn.nn.layer import flatten

T, B, F, D, P, C, LAYERS = 21, 2, 3, 6, 4, 5, 2
RNG = np.random.default_rng(0)
Array = Any


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def dense(d_in: int, d_out: int) -> dict[str, Array]:
    return {"kernel": normal(d_in, d_out) / np.sqrt(np.float32(d_in)), "bias": 0.1 * normal(d_out)}


def checkpoint(layer: Callable[[], dict[str, Array]], norm: str, outputs: tuple[str, ...], batch: bool) -> Array:
    """A tree of random arrays in the layout of the published classifiers."""
    blocks, statistics = {}, {}
    for i in range(LAYERS):
        norms = {"scale": 1 + 0.1 * normal(D), "bias": 0.1 * normal(D)}
        blocks[f"layers_{i}"] = {"seq": layer(), norm: norms, **{name: dense(D, D) for name in outputs}}
        statistics[f"layers_{i}"] = {norm: {"mean": 0.1 * normal(D), "var": 1 + 0.1 * np.abs(normal(D))}}
    params = {"encoder": {"encoder": dense(F, D), **blocks}, "decoder": dense(D, C)}
    return {"params": params, **({"batch_stats": {"encoder": statistics}} if batch else {})}


def of_lru() -> dict[str, Array]:
    size = {"theta_log": (P,), "nu_log": (P,), "gamma_log": (P,), "B_re": (P, D), "B_im": (P, D)}
    size |= {"C_re": (D, P), "C_im": (D, P), "D": (D,)}
    return {name: 0.4 * normal(*shape) for name, shape in size.items()}


def of_s5(bidirectional: bool = False, apart: bool = False) -> dict[str, Array]:
    own = {"Lambda_re": -np.abs(normal(P)) + 0.2, "Lambda_im": 3 * normal(P), "log_step": 0.5 * normal(P, 1) - 2}
    own |= {"B": 0.3 * normal(P, D, 2), "D": 0.5 * normal(D)}
    if apart:
        return own | {"C1": 0.3 * normal(D, P, 2), "C2": 0.3 * normal(D, P, 2)}
    return own | {"C": 0.3 * normal(D, P * (1 + bidirectional), 2)}


def complex_of(pair: Array) -> Array:
    return pair[..., 0].astype(np.complex128) + 1j * pair[..., 1]


def run_lru(p: dict[str, Array], u: Array) -> Array:
    p = {name: value.astype(np.float64) for name, value in p.items()}
    a = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    inputs, outputs = (p["B_re"] + 1j * p["B_im"]) * np.exp(p["gamma_log"])[:, None], p["C_re"] + 1j * p["C_im"]
    h, y = np.zeros(P, complex), []
    for u_t in u:
        h = a * h + inputs @ u_t
        y.append((outputs @ h).real + p["D"] * u_t)
    return np.array(y)


def run_s5(p: dict[str, Array], u: Array, conj_sym: bool, bilinear: bool, clip: bool, rescale: float) -> Array:
    real = p["Lambda_re"].astype(np.float64)
    lam = (np.clip(real, None, -1e-4) if clip else real) + 1j * p["Lambda_im"]
    step = rescale * np.exp(p["log_step"][:, 0].astype(np.float64))
    if bilinear:
        a = (1 + step / 2 * lam) / (1 - step / 2 * lam)
        gain = step / (1 - step / 2 * lam)
    else:
        a = np.exp(lam * step)
        gain = (a - 1) / lam
    inputs = gain[:, None] * complex_of(p["B"])
    outputs = np.concatenate([complex_of(p[name]) for name in ("C", "C1", "C2") if name in p], 1)

    def states(sequence: Array) -> Array:
        h, found = np.zeros(P, complex), []
        for u_t in sequence:
            h = a * h + inputs @ u_t
            found.append(h)
        return np.array(found)

    x = states(u)
    if outputs.shape[1] == 2 * P:
        x = np.concatenate([x, states(u[::-1])[::-1]], 1)
    return (1 + conj_sym) * (x @ outputs.T).real + p["D"] * u


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def published(tree: Array, run: Callable[..., Array], x: Array, norm: str, activation: str, prenorm: bool) -> Array:
    """The states before pooling (T, D) of one sequence (T, F), as the published modules compute them."""

    def apply(map_: dict[str, Array], z: Array) -> Array:
        return z @ map_["kernel"] + map_["bias"]

    def normalised(z: Array, own: Array, statistics: Array) -> Array:
        if statistics is None:
            mean, var, eps = z.mean(-1, keepdims=True), z.var(-1, keepdims=True), 1e-6
        else:
            mean, var, eps = statistics["mean"], statistics["var"], 1e-5
        return (z - mean) / np.sqrt(var + eps) * own["scale"] + own["bias"]

    encoder = tree["params"]["encoder"]
    z = apply(encoder["encoder"], x.astype(np.float64))
    for i in range(LAYERS):
        own = encoder[f"layers_{i}"]
        statistics = tree["batch_stats"]["encoder"][f"layers_{i}"][norm] if "batch_stats" in tree else None
        y = normalised(z, own[norm], statistics) if prenorm else z
        y = run(own["seq"], y)
        end = gelu(y)
        if activation != "gelu":
            gate = 1 / (1 + np.exp(-apply(own["out2"], end)))
            value = y if activation == "half_glu2" else end
            end = gate * (apply(own["out1"], value) if activation == "full_glu" else value)
        z = z + end
        z = z if prenorm else normalised(z, own[norm], statistics)
    return z


def check(loaded: Any, states: Array, tree: Array, x: Array, pool: str) -> None:
    """Logits in float32 to 1e-5: their size is some units, and each passes through some hundred roundings of 2^-24."""
    pooled = {"mean": lambda: states.mean(1), "last": lambda: states[:, -1], "none": lambda: states}[pool]()
    expected = pooled @ tree["params"]["decoder"]["kernel"] + tree["params"]["decoder"]["bias"]
    model, params = loaded
    logits, _ = model.forward(params, x)
    assert logits.dtype == np.float32
    assert np.ptp(expected) > 0.2
    assert np.abs(logits - expected).max() <= 1e-5


@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize(("batch", "pool"), [(True, "mean"), (False, "last"), (False, "none")])
def test_minimal_lru(batch: bool, prenorm: bool, pool: str, tmp_path: Path) -> None:
    tree, x = checkpoint(of_lru, "normalization", ("out1", "out2"), batch), normal(B, T, F)
    states = np.stack([published(tree, run_lru, one, "normalization", "full_glu", prenorm) for one in x])
    check(rotrnn.import_lru(tree, prenorm=prenorm, pool=pool), states, tree, x, pool)
    np.savez(tmp_path / "lru.npz", **named(tree))
    loaded = rotrnn.import_lru(tmp_path / "lru.npz", prenorm=prenorm, pool=pool)
    check(loaded, states, tree, x, pool)
    loaded.model.save(tmp_path / "lru.safetensors", loaded.params)
    check(rotrnn.load(tmp_path / "lru.safetensors"), states, tree, x, pool)


def named(tree: Any, path: str = "") -> dict[str, Array]:
    """The arrays of a tree by their names, "params/encoder/encoder/kernel"."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {name: one for key, part in tree.items() for name, one in named(part, f"{path}/{key}".strip("/")).items()}


S5_CASES: dict[str, dict[str, Any]] = {
    "full": {"activation": "full_glu"},
    "half1, bilinear": {"activation": "half_glu1", "discretization": "bilinear", "conj_sym": False},
    "half2, clipped": {"activation": "half_glu2", "clip_eigs": True, "step_rescale": 2.0},
    "gelu": {"activation": "gelu", "pool": "last"},
}


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("form", ["forward", "both", "both, apart"])
@pytest.mark.parametrize("name", S5_CASES)
def test_s5(name: str, form: str, batch: bool) -> None:
    case = S5_CASES[name]
    outputs = {"full_glu": ("out1", "out2"), "gelu": ()}.get(case["activation"], ("out2",))
    tree = checkpoint(lambda: of_s5(form == "both", form == "both, apart"), "norm", outputs, batch)
    x, prenorm = normal(B, T, F), name != "gelu"

    def run(p: dict[str, Array], u: Array) -> Array:
        bilinear = case.get("discretization") == "bilinear"
        return run_s5(p, u, case.get("conj_sym", True), bilinear, "clip_eigs" in case, case.get("step_rescale", 1.0))

    states = np.stack([published(tree, run, one, "norm", case["activation"], prenorm) for one in x])
    loaded = rotrnn.import_s5(tree, prenorm=prenorm, **case)
    check(loaded, states, tree, x, case.get("pool", "mean"))
    assert isinstance(loaded.model.pool, LastPool) == (case.get("pool") == "last")


def test_tokens_in_place_of_one_hot_vectors() -> None:
    tree, ids = checkpoint(of_lru, "normalization", ("out1", "out2"), True), RNG.integers(0, F, (B, T))
    features, tokens = (rotrnn.import_lru(tree, prenorm=True, tokens=tokens) for tokens in (False, True))
    expected, _ = features.model.forward(features.params, np.eye(F, dtype=np.float32)[ids])
    logits, _ = tokens.model.forward(tokens.params, ids)
    np.testing.assert_allclose(logits, expected, atol=1e-6)


def without(tree: Array, *path: str) -> None:
    for key in path[:-1]:
        tree = tree[key]
    del tree[path[-1]]


WRONG: dict[str, tuple[Callable[[Array], Any], str]] = {
    "no stack": (lambda t: without(t, "params", "encoder"), "has no encoder/layers_0"),
    "lacks": (lambda t: without(t, "params", "encoder", "layers_1", "seq", "D"), "lacks encoder/layers_1/seq/D"),
    "more": (
        lambda t: t["params"]["encoder"]["layers_1"].update(out3=dense(D, D)),
        "has encoder/layers_1/out3/bias, which is not expected",
    ),
    "besides": (
        lambda t: t.update(ema={"decoder": {"bias": normal(D)}}),
        "has ema/decoder/bias, which is not expected",
    ),
    "shape": (
        lambda t: t["params"]["encoder"]["layers_1"]["seq"].update(D=normal(D + 1)),
        r"encoder/layers_1/seq/D has shape \(7,\), expected \(6,\)",
    ),
    "dtype": (
        lambda t: t["params"]["encoder"]["layers_0"]["seq"].update(D=np.zeros(D, int)),
        r"encoder/layers_0/seq/D has dtype int64 and shape \(6,\), expected real numbers with 1 axes",
    ),
    "finite": (
        lambda t: t["params"]["decoder"]["bias"].fill(np.nan),
        "parameter bias of head is nan",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_arrays_that_do_not_fit_are_named(wrong: str, tmp_path: Path) -> None:
    change, message = WRONG[wrong]
    tree = checkpoint(of_lru, "normalization", ("out1", "out2"), True)
    change(tree)
    with pytest.raises(ValueError, match=f"^import_lru: source: .*{message}"):
        rotrnn.import_lru(tree, prenorm=True)
    path = tmp_path / "a.npz"
    np.savez(path, **named(tree))
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{message}"):
        rotrnn.import_lru(path, prenorm=True)


class Key:
    """Like ``jax.random.key(0)``."""

    shape = ()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("JAX array with PRNGKey dtype cannot be converted to a NumPy array")


def test_the_state_of_training_is_left_out() -> None:
    tree = checkpoint(of_lru, "normalization", ("out1", "out2"), True)
    _, expected = rotrnn.import_lru(tree, prenorm=True)
    tree |= {"opt_state": {"0": {"mu": normal(D), "key": Key()}}, "step": np.array(3), "rng": Key()}
    _, params = rotrnn.import_lru(tree, prenorm=True)
    assert all(np.array_equal(one, dict(flatten(expected))[name]) for name, one in flatten(params))


def test_files_and_settings_that_do_not_fit(tmp_path: Path) -> None:
    tree, path = checkpoint(of_lru, "normalization", ("out1", "out2"), True), tmp_path / "a.npz"
    np.savez(path, **named(tree))
    path.write_bytes(path.read_bytes()[:200] + b"PK\5\6" + 18 * b"\0")
    with pytest.raises(ValueError, match=r"a\.npz: "):
        rotrnn.import_lru(path, prenorm=True)
    with pytest.raises(FileNotFoundError):
        rotrnn.import_lru(tmp_path / "none", prenorm=True)
    with pytest.raises(IsADirectoryError, match=r"import_lru: source is a folder, .* of Orbax, the dict"):
        rotrnn.import_lru(tmp_path, prenorm=True)
    with pytest.raises(TypeError, match="import_lru: source is an int, expected a path or a dict of arrays"):
        rotrnn.import_lru(3, prenorm=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="import_lru: pool is 'max', expected one of mean, last, none"):
        rotrnn.import_lru(tree, prenorm=True, pool="max")
    with pytest.raises(ValueError, match="import_s5: activation is 'relu', expected one of full_glu"):
        rotrnn.import_s5(tree, prenorm=True, activation="relu")
    with pytest.raises(ValueError, match="import_s5: source: lacks encoder/layers_0/seq/B"):
        rotrnn.import_s5(tree, prenorm=True, activation="gelu")
    pickled = tmp_path / "p.npz"
    np.savez(pickled, **{"params/encoder/layers_0/x": np.array([object()])})
    with pytest.raises(ValueError, match=r"p\.npz: is not a file \.npz, or is damaged"):
        rotrnn.import_lru(pickled, prenorm=True)
