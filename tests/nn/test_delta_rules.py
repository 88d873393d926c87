"""The published rules that `delta_rule` contains: recurrent forms as printed, bounds of transitions, long sequences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rotrnn.nn.instructions import DeltaRule, Reshape
from rotrnn.nn.layer import astype
from rotrnn.nn.layers.comba import Comba
from rotrnn.nn.layers.delta_heads import DeltaHeads
from rotrnn.nn.layers.delta_net import DeltaNet
from rotrnn.nn.layers.kda import KDA, GatedDeltaNet2
from rotrnn.nn.layers.rwkv7 import RWKV7
from rotrnn.nn.program import Builder
from rotrnn.ops.delta import delta_rule, delta_rule_backward

EPS = np.finfo(np.float64).eps
B, T, H, K, V = 2, 37, 2, 5, 4
Tokens = dict[str, Any]


def tokens() -> Tokens:
    """What the layers give each head: unit keys, decays and gates in (0, 1), as RWKV-7 has them."""
    rng = np.random.default_rng(0)
    n, u = rng.standard_normal, rng.uniform

    def unit() -> Any:
        k = n((B, T, H, K))
        return k / np.linalg.norm(k, axis=-1, keepdims=True)

    found = {"q": n((B, T, H, K)), "k": unit(), "v": n((B, T, H, V)), "kappa": unit(), "alpha": u(0.5, 1, (B, T, H))}
    found |= {"d": u(0.55, 1, (B, T, H, K)), "beta": u(0, 1, (B, T, H)), "a": u(0, 1, (B, T, H, K))}
    return found | {"b": u(0, 1, (B, T, H, K)), "w": u(0, 1, (B, T, H, V)), "h0": n((B, H, K, V))}


def kda(S: Any, t: Tokens) -> Any:
    """Kimi Linear (2510.26692), eq. 1: S = (I - beta k k^T) Diag(alpha) S + beta k v^T."""
    return (np.eye(K) - t["beta"] * np.outer(t["k"], t["k"])) @ np.diag(t["d"]) @ S + t["beta"] * np.outer(
        t["k"], t["v"]
    )


def gated_delta_net_2(S: Any, t: Tokens) -> Any:
    """S = Diag(d) S, then S + k (w * v - S^T (b * k))^T: an erase gate by keys, a write gate by values."""
    S = t["d"][:, None] * S
    return S + np.outer(t["k"], t["w"] * t["v"] - S.T @ (t["b"] * t["k"]))


def comba(S: Any, t: Tokens) -> Any:
    """Comba (2506.02475): the error is that of the state before its decay, read at p = 0.7 k."""
    error = t["v"] - S.T @ (0.7 * t["k"])
    return t["alpha"] * S + t["beta"] * np.outer(t["k"], error)


def rwkv_7(S: Any, t: Tokens) -> Any:
    """RWKV-7 (2503.14456), eq. 16-17, of its state S^T (V, K):
    S^T (Diag(w) - kappa^T (a * kappa)) + v^T k."""
    return (S.T @ (np.diag(t["d"]) - np.outer(t["kappa"], t["a"] * t["kappa"])) + np.outer(t["v"], t["k"])).T


def dplr(S: Any, t: Tokens) -> Any:
    """flash-linear-attention's form, with any vectors alpha and beta: (Diag(d) + beta alpha^T) S + k v^T."""
    return (np.diag(t["d"]) + np.outer(-t["a"] * t["b"] / 2, t["kappa"])) @ S + np.outer(t["k"], t["v"])


def gated_linear_attention(S: Any, t: Tokens) -> Any:
    """Nothing is erased."""
    return t["d"][:, None] * S + np.outer(t["k"], t["v"])


RULES: dict[Callable[..., Any], Callable[[Tokens], Tokens]] = {
    kda: lambda t: {"beta": t["beta"], "decay": t["d"]},
    gated_delta_net_2: lambda t: {"decay": t["d"], "read": t["d"] * t["b"] * t["k"], "v": t["w"] * t["v"]},
    comba: lambda t: {"beta": t["beta"], "decay": t["alpha"], "read": 0.7 * t["k"]},
    rwkv_7: lambda t: {"decay": t["d"], "read": t["kappa"], "erase": t["a"] * t["kappa"]},
    dplr: lambda t: {"decay": t["d"], "read": t["kappa"], "erase": t["a"] * t["b"] / 2},
    gated_linear_attention: lambda t: {"decay": t["d"], "erase": 0 * t["k"]},
}


def with_steps(args: Tokens) -> Tokens:
    """One Householder step a token."""
    return {name: x[:, :, None] if name in ("k", "v", "beta", "read", "erase") else x for name, x in args.items()}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_published_rule_is_a_case(rule: Callable[..., Any]) -> None:
    """A decay of 3/4 on the mean remembers some 4 tokens, whose states have a norm below 15; each rounds 2 K + 8 times
    on both sides, and is read by |q| < 5: 4 * 2 * 18 * 15 * 5 EPS = 2.4e-12."""
    t = tokens()
    args = with_steps({name: t[name] for name in ("q", "k", "v", "h0")} | RULES[rule](t))
    y, hT = delta_rule(**args, return_state=True)
    for b, head in itertools.product(range(B), range(H)):
        S = t["h0"][b, head]
        for i in range(T):
            S = rule(S, {name: x[b, i, head] for name, x in t.items() if name != "h0"})
            np.testing.assert_allclose(y[b, i, head], S.T @ t["q"][b, i, head], rtol=0, atol=2.4e-12)
        np.testing.assert_allclose(hT[b, head], S, rtol=0, atol=2.4e-12)


def test_defaults_are_what_they_stand_for() -> None:
    """`read` = decay k and `erase` = beta k change roundings alone, in results and gradients, by whatever way."""
    t = tokens()
    args = with_steps({name: t[name] for name in ("q", "k", "v", "h0", "beta")} | {"decay": t["d"]})
    explicit = args | {"read": t["d"][:, :, None] * args["k"], "erase": args["beta"][..., None] * args["k"]}
    dy = np.random.default_rng(1).standard_normal((B, T, H, V))
    found = delta_rule_backward(dy, **explicit)
    expected = delta_rule_backward(dy, **args)
    read, erase = found.dread, found.derase
    whole = {
        "dk": found.dk + t["d"][:, :, None] * read + args["beta"][..., None] * erase,
        "dbeta": found.dbeta + (erase * args["k"]).sum(-1),
        "ddecay": found.ddecay + (read * args["k"])[:, :, 0],
    }
    for name in expected._fields[:6]:
        got = whole.get(name, getattr(found, name))
        np.testing.assert_allclose(got, getattr(expected, name), rtol=0, atol=1e-12 * np.abs(got).max())


def test_a_decay_by_keys_that_are_alike_is_that_of_the_head() -> None:
    t = tokens()
    args = with_steps({name: t[name] for name in ("q", "k", "v", "h0", "beta")})
    of_head = delta_rule_backward(t["v"], **args, decay=t["alpha"])
    of_keys = delta_rule_backward(t["v"], **args, decay=np.repeat(t["alpha"][..., None], K, -1))
    np.testing.assert_allclose(of_keys.ddecay.sum(-1), of_head.ddecay, rtol=0, atol=1e-12)
    np.testing.assert_allclose(of_keys.dk, of_head.dk, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------------------- bounds, long sequences


def draws(rng: np.random.Generator) -> Any:
    """Vectors of unit length, and numbers from 0 to 1 at whose ends bounds are attained."""
    k = rng.standard_normal(K)
    return k / np.linalg.norm(k), np.clip(rng.uniform(-0.5, 1.5, K), 0, 1), rng.uniform(0, 1)


def test_transitions_of_kda_and_comba_lengthen_no_state() -> None:
    """diag(d) (I - beta k k^T), beta from 0 to 2, and alpha I - beta kappa k k^T, all from 0 to 1, in both orders."""
    rng = np.random.default_rng(0)
    for _ in range(2000):
        k, d, kappa = draws(rng)
        reflected = np.eye(K) - 2 * rng.uniform() * np.outer(k, k)
        assert np.linalg.norm(np.diag(d) @ reflected, 2) <= 1 + 16 * EPS
        assert np.linalg.norm(d[0] * np.eye(K) - d[1] * kappa * np.outer(k, k), 2) <= 1 + 16 * EPS


def test_the_erase_gate_of_gated_delta_net_2_may_lengthen_a_state_by_a_seventh() -> None:
    """I - k (b * k)^T with b from 0 to 1 has a norm of at most sqrt(4/3), at b of 0 and 1 with sum b k^2 = 1/3; its
    eigenvalues are 1 and 1 - sum b k^2, from 0 to 1."""
    rng = np.random.default_rng(0)
    for _ in range(2000):
        k, b, _ = draws(rng)
        A = np.eye(K) - np.outer(k, b * k)
        assert np.linalg.norm(A, 2) <= np.sqrt(4 / 3) * (1 + 16 * EPS)
    k, b = np.sqrt(np.array([1, 1, 1, 0, 0]) / 3), np.array([1.0, 0, 0, 0, 0])
    np.testing.assert_allclose(np.linalg.norm(np.eye(K) - np.outer(k, b * k), 2), np.sqrt(4 / 3), rtol=16 * EPS)


@pytest.mark.parametrize("form", ["keys", "read", "erase"])
def test_reflections_keep_a_state_for_20000_tokens_in_float32(form: str) -> None:
    """beta = 2, no decay, no values: each step keeps the length up to a rounding of 2 K + 8 numbers and the key's
    length, so the relative change is below 20000 (2 K + 10) 2^-24 = 3 %."""
    rng, steps = np.random.default_rng(0), 20_000
    k = rng.standard_normal((1, steps, 1, 1, K))
    k = (k / np.linalg.norm(k, axis=-1, keepdims=True)).astype(np.float32)
    h0 = np.eye(K, dtype=np.float32)[None, None]
    args = {"q": k[:, :, 0], "k": k, "v": np.zeros((1, steps, 1, 1, K), np.float32)}
    args |= {"beta": np.full((1, steps, 1, 1), 2, np.float32), "decay": np.ones((1, steps, 1, K), np.float32)}
    args |= {"read": k} if form != "keys" else {}
    args |= {"erase": 2 * k} if form == "erase" else {}
    y, hT = delta_rule(**args, h0=h0, return_state=True)
    lengths = np.linalg.norm(y[0, :, 0], axis=-1)
    assert 0.97 < lengths.min() <= lengths.max() < 1.03
    assert np.linalg.norm(hT[0, 0].T @ hT[0, 0] - np.eye(K), 2) < 0.06
    grads = delta_rule_backward(np.zeros_like(y), **args, h0=h0, dhT=h0)
    assert 0.97 < np.linalg.norm(grads.dh0) / np.sqrt(K) < 1.03


def test_a_program_checks_the_decay() -> None:
    p = Builder(DeltaNet(6))
    q, k, v = (p(Reshape(shape), p.x) for shape in ((2, 3), (1, 2, 3), (1, 2, 3)))
    with pytest.raises(ValueError, match=r"DeltaRule: .*expected decay \(H\) or \(H, K\)"):
        p(DeltaRule(), q, k, v, None, p(Reshape((3, 2)), p.x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decay": np.ones((B, T, H, K + 1))}, r"decay has shape .2, 37, 2, 6., expected .*K=5"),
        ({"decay": np.ones((B, T))}, r"decay has shape .2, 37., expected .*B, T, H.* or .*B, T, H, K"),
        ({"read": np.ones((B, T, H, K))}, "read has shape .*, expected .B, T, R, H, K."),
        ({"erase": np.ones((B, T, 1, H, K - 1))}, "erase has shape .*, expected .*K=5"),
    ],
)
def test_bad_arrays(change: Tokens, message: str) -> None:
    t = tokens()
    args = with_steps({name: t[name] for name in ("q", "k", "v", "beta")}) | change
    with pytest.raises(ValueError, match=f"delta_rule: {message}"):
        delta_rule(**args)
    with pytest.raises(ValueError, match=f"delta_rule_backward: {message}"):
        delta_rule_backward(t["v"], **args)


# ------------------------------------------------------------------------------------------------------------ layers


def test_a_saved_register_of_another_batch_is_refused() -> None:
    layer = RWKV7(4, rank=2, gate_rank=2)
    params, x = layer.init(np.random.default_rng(0)), np.ones((2, 3, 4), np.float32)
    y, saved = layer.forward(params, x)
    name = next(iter(saved.registers))
    saved = saved._replace(registers={**saved.registers, name: saved.registers[name][1:]})
    with pytest.raises(ValueError, match=rf"RWKV7.backward: .*: {name} has shape .1, 3, .*expected .B, T. of dy="):
        layer.backward(params, saved, y)


def test_transitions_of_rwkv_7_move_the_state() -> None:
    """Decays are between exp(-e^{-1/2}) and 1; a state moves by `transitions`, up to roundings of T products."""
    layer = RWKV7(6, heads=2, rank=3)
    rng = np.random.default_rng(0)
    params = astype(layer.init(rng), np.float64)
    params = {name: x + 0.3 * rng.standard_normal(x.shape) for name, x in params.items()}
    x, h0, zero = rng.standard_normal((2, 9, 6)), rng.standard_normal((2, 2, 3, 3)), np.zeros((2, 1, 6))
    A = layer.transitions(params, x)
    found = layer.registers(params, x)
    assert np.exp(-np.exp(-0.5)) < found["decay"].min() < found["decay"].max() < 1
    np.testing.assert_allclose(np.linalg.norm(found["kappa"], axis=-1), 1, rtol=0, atol=1e-6)
    moved, still = (layer.forward(params, x, state=(zero, h))[1].state[1] for h in (h0, 0 * h0))
    for t in range(9):
        h0 = A[:, t] @ h0
    np.testing.assert_allclose(moved - still, h0, rtol=0, atol=9 * 24 * EPS * max(10, np.abs(moved).max()))
    assert np.abs(layer.eigenvalues(params, x)).max() <= np.linalg.norm(A, 2, axis=(-2, -1)).max() * (1 + 64 * EPS)


def test_initial_values_of_rwkv_7() -> None:
    """Those of flash-linear-attention for one block, at D = 8 and heads of 4; W_o is zero, so y is."""
    layer = RWKV7(8, heads=2, rank=4, gate_rank=12)
    params = layer.init(np.random.default_rng(0))
    np.testing.assert_allclose(params["mu_w"], 1 - (np.arange(8) / 8) ** 0.9, rtol=1e-6)
    np.testing.assert_allclose(params["w_bias"][[0, 3, 4, 7]], [-8, 6 * 3 / 7 - 3, 6 * 4 / 7 - 8, 3], rtol=1e-5)
    np.testing.assert_allclose(params["k_k"][[0, 7]], [0.76, 0.66], rtol=1e-6)
    for name, gain, axis in (("W_r", 1, 0), ("W_k", 0.1, 0), ("w_out", 0.1, 0), ("g_out", 0.1 * np.sqrt(1.5), 1)):
        np.testing.assert_allclose(np.linalg.norm(params[name], axis=axis), gain, rtol=1e-5)
    assert not layer.forward(params, np.ones((1, 3, 8), np.float32))[0].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "heads=3, expected a divisor of d_model = 4"),
        ({"rank": 0}, "rank=0, expected a positive integer"),
        ({"norm_eps": 0.0}, "norm_eps=0.0, expected a positive number"),
    ],
)
def test_bad_settings_of_rwkv_7(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"RWKV7: {message}"):
        RWKV7(4, **settings)


@pytest.mark.parametrize(
    ("kind", "negative"),
    [(KDA, False), (KDA, True), (GatedDeltaNet2, False), (GatedDeltaNet2, True), (Comba, False)],
)
def test_transitions_move_the_state_and_keep_their_bounds(kind: type[DeltaHeads], negative: bool) -> None:
    """A state without what is added moves by `transitions`: the difference of two sequences that differ in h0 alone. To
    roundings of T products of K terms. Norms: those of the rules above, times 2 of b where GatedDeltaNet2 doubles it;
    unit keys are shorter by 1e-6 / (2 |z|^2)."""
    layer = kind(6, heads=2, d_state=4, **({"negative": True} if negative else {}))
    params = astype(layer.init(np.random.default_rng(0)), np.float64)
    params = {name: 4 * x if name.endswith("_proj") else x for name, x in params.items()}
    x, h0 = np.random.default_rng(1).standard_normal((2, 9, 6)), np.random.default_rng(2).standard_normal((2, 2, 4, 3))
    A = layer.transitions(params, x)
    _, saved = layer.forward(params, x)
    _, moved = layer.forward(params, x, state=(np.zeros((2, 3, 22)), h0))
    for t in range(9):
        h0 = A[:, t] @ h0
    np.testing.assert_allclose(moved.state[1] - saved.state[1], h0, rtol=0, atol=9 * 24 * EPS * 10)
    norms, sizes = np.linalg.norm(A, 2, axis=(-2, -1)), np.abs(layer.eigenvalues(params, x))
    if kind is not GatedDeltaNet2:
        assert norms.max() <= 1 + 16 * EPS
    elif not negative:
        assert norms.max() <= np.sqrt(4 / 3) * (1 + 16 * EPS)
    assert sizes.max() <= norms.max() * (1 + 64 * EPS)
    found = layer.registers(params, x)
    gates = found["b" if kind is GatedDeltaNet2 else "beta"]
    assert 0 < gates.min() < 0.5 < gates.max() < 1 + negative
    assert gates.max() > 1 or not negative


def test_gated_delta_net_2_with_gates_that_are_beta_is_kda() -> None:
    """Rows of W_b and W_w that are w_beta of their head."""
    settings: Any = {"heads": 2, "d_state": 3, "expand": 2, "negative": False}
    one, other = KDA(4, **settings), GatedDeltaNet2(4, **settings)
    params = astype(one.init(np.random.default_rng(0)), np.float64)
    beta = params["beta_proj"]
    both = {name: x for name, x in params.items() if name != "beta_proj"}
    both |= {"erase_proj": np.repeat(beta, 3, 0), "write_proj": np.repeat(beta, 4, 0)}
    x = np.random.default_rng(1).standard_normal((2, 9, 4))
    expected, got = one.forward(params, x)[0], other.forward(both, x)[0]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_initial_values_are_the_released_ones() -> None:
    """Bounds of which some thousand draws come near; rates log-uniform steps, which float32 holds to 1e-5 of them."""
    layer = KDA(64, heads=8, d_state=16, dt_min=0.002, dt_max=0.05)
    params = layer.init(np.random.default_rng(0))
    for name, fan_in in (("qkv_proj", 64), ("decay_in", 64), ("decay_out", 8), ("gate_bias", 8), ("out_proj", 64)):
        most = np.abs(params[name]).max() * np.sqrt(fan_in)
        assert (0.9 if name == "gate_bias" else 0.99) < most <= 1 + 1e-6
    dt, rates = np.log1p(np.exp(params["dt_bias"])), np.exp(params["A_log"])
    assert 0.002 * (1 - 1e-4) <= dt.min() < 0.004 < 0.03 < dt.max() <= 0.05 * (1 + 1e-4)
    assert 1 - 1e-6 <= rates.min() < 6 < 10 < rates.max() <= 16 * (1 + 1e-6)


BAD: Any = [
    ({"heads": 3}, r"heads=3, expected a divisor of expand \* d_model = 4"),
    ({"d_state": 0}, "d_state=0, expected a positive integer"),
    ({"negative": "yes"}, "negative='yes', expected True or False"),
    ({"dt_min": 0.0}, "dt_min=0.0, dt_max=0.1, expected 0 < dt_min <= dt_max"),
    ({"norm_eps": -1.0}, "norm_eps=-1.0, expected a positive number"),
]


def test_the_feedback_of_comba_has_a_gradient_by_what_it_reads() -> None:
    """Also where the query is not corrected: p is not normalised."""
    layer = Comba(4, heads=2, d_state=3, correction=0)
    params = layer.init(np.random.default_rng(0))
    y, saved = layer.forward(params, np.random.default_rng(1).standard_normal((1, 9, 4)).astype(np.float32))
    assert layer.backward(params, saved, y)[1]["feedback"].all()
    assert layer.registers(params, np.ones((1, 2, 4), np.float32))["read"].shape == (1, 2, 1, 2, 3)


def test_a_lower_bound_of_decays_begins_without_rates() -> None:
    """A_log = 0, as in the released code, and no decay is below exp(lower_bound)."""
    layer = KDA(8, heads=2, d_state=3, lower_bound=-0.5)
    params = layer.init(np.random.default_rng(0))
    assert not params["A_log"].any()
    decay = layer.registers(params, 100 * np.random.default_rng(1).standard_normal((2, 50, 8)).astype(np.float32))
    assert np.exp(-0.5) * (1 - 1e-6) <= decay["decay"].min() < 0.7


@pytest.mark.parametrize("bound", [None, -5.0])
def test_decays_and_erase_gates_of_gated_delta_net_2_belong_to_heads_of_keys(bound: float | None) -> None:
    """The shapes and initial values of the released layer, with four heads of values for two of queries and keys."""
    layer = GatedDeltaNet2(8, heads=4, d_state=3, key_heads=2, lower_bound=bound)
    params = layer.init(np.random.default_rng(0))
    wanted = {"A_log": (2,), "dt_bias": (6,), "decay_in": (2, 8), "decay_out": (6, 2), "erase_proj": (6, 8)}
    assert {name: params[name].shape for name in wanted} == wanted
    assert params["write_proj"].shape == (8, 8)
    rates = np.exp(GatedDeltaNet2(200, heads=200, lower_bound=bound).init(np.random.default_rng(0))["A_log"])
    assert 1 - 1e-6 <= rates.min() < 2 < 15 < rates.max() <= 16 * (1 + 1e-6)
    found = layer.registers(params, np.random.default_rng(1).standard_normal((2, 5, 8)).astype(np.float32))
    for name, heads in (("b", found["b"][:, :, 0]), ("decay", found["decay"])):
        assert heads.shape == (2, 5, 4, 3), name
        np.testing.assert_array_equal(heads[:, :, ::2], heads[:, :, 1::2])


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [(Comba, {"correction": np.nan}, "correction=nan, expected a finite number")]
    + [(kind, *bad) for kind in (KDA, GatedDeltaNet2) for bad in BAD]
    + [
        (KDA, {"heads": 4, "key_heads": 3}, "key_heads=3, expected a divisor of heads=4"),
        (KDA, {"key_heads": 0}, "key_heads=0, expected a positive integer"),
        (KDA, {"lower_bound": 0.0}, "lower_bound=0.0, expected a negative number, or None"),
    ]
    + [(Comba, *bad) for bad in BAD if "negative" not in bad[0]],
)
def test_bad_settings(kind: type[DeltaHeads], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__}: {message}"):
        kind(4, **settings)
