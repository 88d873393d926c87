"""Properties of the delta rule and of DeltaNet that the table of cases does not test: known answers, words of
reflections, initial values, errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from rotrnn.nn.layer import astype
from rotrnn.nn.layers.delta_net import DeltaNet
from rotrnn.ops.delta import delta_rule, delta_rule_backward
from rotrnn.ops.pointwise import softplus

EPS = np.finfo(np.float64).eps
B, T, R, H, K, V = 2, 37, 2, 2, 4, 3


def arguments(dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    n = rng.standard_normal
    args = {"q": n((B, T, H, K)), "k": n((B, T, R, H, K)) / K, "v": n((B, T, R, H, V))}
    args |= {"beta": rng.uniform(0, 1, (B, T, R, H)), "decay": rng.uniform(0.5, 1, (B, T, H)), "h0": n((B, H, K, V))}
    return {name: value.astype(dtype) for name, value in args.items()}


def reflected(keys: Any, h0: Any) -> Any:
    """The final state (K, V) of one head after tokens of `keys` (T, R, K), each a reflection: beta 2, no values."""
    tokens, steps, size = keys.shape
    none, twos = np.zeros((1, tokens, steps, 1, h0.shape[1])), np.full((1, tokens, steps, 1), 2.0)
    q = np.zeros((1, tokens, 1, size))
    result = delta_rule(q, keys[None, :, :, None], none, twos, None, h0[None, None], return_state=True)
    return result[1][0, 0]


# ------------------------------------------------------------------------------------------------------- the rule


def published(decay: bool, steps: int) -> tuple[dict[str, Any], float]:
    """Arguments with unit keys and beta in (0, 2), and how far a result may be from the papers': no transition
    lengthens a state, so its norm is at most that of h0 and all beta v, and each of T R steps rounds sums of K terms of
    that size a few times, each side; what is read is at most |q| times that."""
    args = arguments()
    k = args["k"][:, :, :steps]
    args |= {"k": k / np.linalg.norm(k, axis=-1, keepdims=True), "v": args["v"][:, :, :steps]}
    args["beta"] = 2 * args["beta"][:, :, :steps]
    if not decay:
        args["decay"] = None
    size = np.linalg.norm(args["h0"], axis=(2, 3)).max() + 2 * np.linalg.norm(args["v"], axis=-1).sum((1, 2)).max()
    return args, float(T * steps * 2 * (2 * K + 8) * EPS * size * np.linalg.norm(args["q"], axis=-1).max())


def test_one_step_is_deltanet() -> None:
    """Yang, Wang et al. 2024, section 2.2, as a step of gradient descent on |S k - v|^2 / 2:
    S_t = S_{t-1} - beta_t (S_{t-1} k_t - v_t) k_t^T, o_t = S_t q_t."""
    args, tolerance = published(decay=False, steps=1)
    y = delta_rule(**args)
    for b, head in itertools.product(range(B), range(H)):
        S = args["h0"][b, head].T
        for t in range(T):
            k, v = args["k"][b, t, 0, head], args["v"][b, t, 0, head]
            S = S - args["beta"][b, t, 0, head] * np.outer(S @ k - v, k)
            np.testing.assert_allclose(y[b, t, head], S @ args["q"][b, t, head], rtol=0, atol=tolerance)


def test_one_step_with_decay_is_gated_deltanet() -> None:
    """Yang, Kautz and Hatamizadeh 2024, eq. 10: S_t = S_{t-1} (alpha_t (I - beta_t k_t k_t^T)) + beta_t v_t k_t^T."""
    args, tolerance = published(decay=True, steps=1)
    y = delta_rule(**args)
    for b, head in itertools.product(range(B), range(H)):
        S = args["h0"][b, head].T
        for t in range(T):
            k, v, beta = args["k"][b, t, 0, head], args["v"][b, t, 0, head], args["beta"][b, t, 0, head]
            S = S @ (args["decay"][b, t, head] * (np.eye(K) - beta * np.outer(k, k))) + beta * np.outer(v, k)
            np.testing.assert_allclose(y[b, t, head], S @ args["q"][b, t, head], rtol=0, atol=tolerance)


@pytest.mark.parametrize("decay", [False, True])
def test_several_steps_are_deltaproduct(decay: bool) -> None:
    """Siems et al. 2025, section 3: H_t = A_t H_{t-1} + B_t with A_t = (I - beta_n k_n k_n^T) ... (I - beta_1 k_1
    k_1^T) and B_t the sum over j of (I - beta_n k_n k_n^T) ... (I - beta_{j+1} ...) beta_j k_j v_j^T; gated,
    alpha_t A_t."""
    args, tolerance = published(decay, R)
    y, hT = delta_rule(**args, return_state=True)
    for b, head in itertools.product(range(B), range(H)):
        h = args["h0"][b, head]
        for t in range(T):
            k, v, beta = (args[name][b, t, :, head] for name in ("k", "v", "beta"))
            A, added = np.eye(K), np.zeros((K, V))
            for j in reversed(range(R)):  # A holds the steps after j
                added += A @ (beta[j] * np.outer(k[j], v[j]))
                A = A @ (np.eye(K) - beta[j] * np.outer(k[j], k[j]))
            h = (args["decay"][b, t, head] if decay else 1) * A @ h + added
            np.testing.assert_allclose(y[b, t, head], args["q"][b, t, head] @ h, rtol=0, atol=tolerance)
        np.testing.assert_allclose(hT[b, head], h, rtol=0, atol=tolerance)


def test_a_unit_key_with_beta_one_stores_its_value() -> None:
    """What is read at the key is the value, and what was stored at an orthogonal key stays; exact in these numbers."""
    keys, values = np.eye(2)[[0, 1, 0]], np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    one_head = keys[None, :, None], keys[None, :, None, None], values[None, :, None, None], np.ones((1, 3, 1, 1))
    y, h = delta_rule(*one_head, return_state=True)
    np.testing.assert_array_equal(y[0, :, 0], values)
    np.testing.assert_array_equal(h[0, 0], values[[2, 1]])


def test_a_reflection_twice_is_the_identity() -> None:
    """beta = 2 at a unit key: I - 2 k k^T keeps lengths and is its own inverse; to roundings of 2 K products of each
    of two steps."""
    rng = np.random.default_rng(1)
    k, h0 = rng.standard_normal(6), rng.standard_normal((6, 5))
    k /= np.linalg.norm(k)
    once = reflected(k[None, None], h0)
    np.testing.assert_allclose(np.linalg.norm(once, axis=0), np.linalg.norm(h0, axis=0), rtol=32 * EPS)
    np.testing.assert_allclose(k @ once, -k @ h0, rtol=0, atol=64 * EPS)
    np.testing.assert_allclose(reflected(np.array([[k], [k]]), h0), h0, rtol=0, atol=128 * EPS)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_word_of_transpositions_composes(steps: int) -> None:
    """I - 2 k k^T with k = (e_i - e_j) / sqrt(2) swaps i and j: a word of S5, some letters a token, is the permutation
    of its product. Each letter rounds a number below one a few times."""
    rng = np.random.default_rng(steps)
    tokens, order = 240 // steps, np.arange(5)
    keys = np.zeros((tokens, steps, 5))
    for t, i in itertools.product(range(tokens), range(steps)):
        swapped = rng.choice(5, 2, replace=False)
        keys[t, i, swapped] = np.sqrt(0.5), -np.sqrt(0.5)
        order[swapped] = order[swapped[::-1]]
    np.testing.assert_allclose(reflected(keys, np.eye(5)), np.eye(5)[order], rtol=0, atol=240 * 16 * EPS)


def test_two_reflections_are_a_rotation_by_twice_their_angle() -> None:
    """A turn in 12 tokens of two steps: a quarter is a quarter, and all of it the identity. The first step of a token
    comes first, else it would turn the other way."""
    half = np.pi / 12  # the angle between both keys, half that of a token
    keys = np.tile([[1.0, 0.0], [np.cos(half), np.sin(half)]], (12, 1, 1))
    quarter = reflected(keys[:3], np.eye(2))
    np.testing.assert_allclose(quarter, [[0, -1], [1, 0]], rtol=0, atol=64 * EPS)
    np.testing.assert_allclose(reflected(keys, np.eye(2)), np.eye(2), rtol=0, atol=256 * EPS)


def test_without_steps_that_change_it_the_state_decays() -> None:
    """beta = 0: y_t is h0 times all decays so far, also one that is 0; exact for powers of two."""
    args = arguments() | {"beta": np.zeros((B, T, R, H))}
    args["decay"] = np.ones((B, T, H))
    args["decay"][:, 5], args["decay"][:, 9] = 0.25, 0
    y = delta_rule(**args)
    size = np.where(np.arange(T) < 5, 1, np.where(np.arange(T) < 9, 0.25, 0))
    expected = np.einsum("bhkv,bthk,t->bthv", args["h0"], args["q"], size)
    np.testing.assert_allclose(y, expected, rtol=0, atol=K * 8 * EPS)
    assert np.isfinite(delta_rule_backward(y, **args).ddecay).all()


def test_a_sequence_without_tokens_keeps_its_state() -> None:
    args = arguments()
    y, hT = delta_rule(**args, lengths=[0, T], return_state=True)
    assert not y[0].any()
    np.testing.assert_array_equal(hT[0], args["h0"][0])
    dhT = np.random.default_rng(1).standard_normal((B, H, K, V))
    grads = delta_rule_backward(np.ones_like(y), **args, dhT=dhT, lengths=[0, T])
    np.testing.assert_array_equal(grads.dh0[0], dhT[0])
    assert not any(one[0].any() for one in (grads.dq, grads.dk, grads.dv, grads.dbeta, grads.ddecay))


def test_carries_are_states_and_do_not_change_results() -> None:
    args = arguments(np.float32)
    y, carries = delta_rule(**args, return_carries=True)
    np.testing.assert_array_equal(y, delta_rule(**args))
    assert carries.shape == (B, H, 3, K, V)
    np.testing.assert_array_equal(carries[:, :, 0], args["h0"])
    head = {name: value if name == "h0" else value[:, :32] for name, value in args.items()}
    np.testing.assert_array_equal(carries[:, :, 2], delta_rule(**head, return_state=True)[1])
    for got, expected in zip(
        delta_rule_backward(y, **args, carries=carries), delta_rule_backward(y, **args), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_no_decay_is_a_decay_of_one() -> None:
    args = arguments() | {"decay": None}
    ones = args | {"decay": np.ones((B, T, H))}
    y = delta_rule(**args)
    np.testing.assert_array_equal(y, delta_rule(**ones))
    grads, of_ones = delta_rule_backward(y, **args), delta_rule_backward(y, **ones)
    assert grads.ddecay is None
    np.testing.assert_array_equal(grads.dk, of_ones.dk)


def test_dtypes_are_promoted() -> None:
    args = arguments(np.float32)
    assert delta_rule(**args).dtype == np.float32
    assert delta_rule(**(args | {"beta": args["beta"].astype(np.float64)})).dtype == np.float64


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k": np.ones((B, T, H, K))}, ValueError, r"k has shape .2, 37, 2, 4., expected .B, T, R, H, K."),
        ({"k": np.ones((B, T, R, H, 3))}, ValueError, "k has shape .*, expected .*K=4"),
        ({"v": np.ones((B, T, 1, H, V))}, ValueError, "v has shape .*, expected .*R=2"),
        ({"beta": np.ones((B, T, R, 3))}, ValueError, "beta has shape .*, expected .*H=2"),
        ({"decay": np.ones((B, T, R))[:, :3]}, ValueError, "decay has shape .*, expected .*T=37"),
        ({"h0": np.ones((B, H, V, K))}, ValueError, "h0 has shape .*, expected .*K=4, V=3"),
        ({"q": np.ones((B, T, H, K), int)}, TypeError, "q has dtype int64, expected float32 or float64"),
        ({"lengths": [0, 38]}, ValueError, r"lengths\[1\] is 38, expected .* to T=37"),
        (
            {"k": np.ones((B, T, 0, H, K)), "v": np.ones((B, T, 0, H, V)), "beta": np.ones((B, T, 0, H))},
            ValueError,
            "k has R=0 steps for each token, expected at least 1",
        ),
    ],
)
def test_bad_input_of_the_rule(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"delta_rule: {message}"):
        delta_rule(**(arguments() | change))
    with pytest.raises(error, match=f"delta_rule_backward: {message}"):
        delta_rule_backward(np.ones((B, T, H, V)), **(arguments() | change))


def test_bad_carries() -> None:
    with pytest.raises(ValueError, match=r"carries has shape .*, expected .*tiles=3.* dy in tiles of 16 steps"):
        delta_rule_backward(np.ones((B, T, H, V)), **arguments(), carries=np.ones((B, H, 2, K, V)))


# ------------------------------------------------------------------------------------------------------ the layer


def test_hand_set_weights_count_modulo_two() -> None:
    """Tokens start, 1 and 0 of width three, one head each, of which the first is used: start stores a value at the key
    1, a one reflects the state, a zero leaves it. With c = 50, keys and betas are 1, 0 or 2 to c^-2 1e-6 = 4e-10 and
    e^-50; after 999 steps that is 8e-7 of the state, which RMS norm takes back but for its eps, 1e-5 c^-2 = 4e-9."""
    layer = DeltaNet(3, heads=3, d_state=1, d_conv=0, negative=True)
    c, bits = 50.0, np.random.default_rng(0).integers(0, 2, (4, 999))
    params = {name: np.zeros(shape) for name, shape in layer.shapes.items()} | {"norm": np.ones(1)}
    params["qkv_proj"][[0, 3]] = c  # the first head's q and k, of every token
    params["qkv_proj"][6, 0] = c  # its v, of start
    params["beta_proj"][0] = 0, c, -c  # 2 s(.) = 1, 2, 0
    params["out_proj"][0, 0] = 1
    x = np.concatenate([np.tile(np.eye(3)[0], (4, 1, 1)), np.eye(3)[2 - bits]], 1)
    parity = np.concatenate([np.ones((4, 1)), 1 - 2.0 * (bits.cumsum(1) % 2)], 1)
    y, saved = layer.forward(params, x)
    np.testing.assert_allclose(y[..., 0], parity, rtol=0, atol=1e-8)
    again, _ = layer.forward(params, x[:, 1:], state=saved.state)
    np.testing.assert_allclose(again[..., 0], parity[:, 1:] * parity[:, -1:], rtol=0, atol=1e-8)


def test_queries_and_keys_are_unit_vectors_and_beta_is_in_range() -> None:
    """A length differs from one by 1e-6 / (2 |z|^2), where lengths |z| here are above 0.1."""
    layer = DeltaNet(8, heads=2, d_state=5, steps=3, negative=True, gate=True)
    params = astype(layer.init(np.random.default_rng(0)), np.float64)
    params["qkv_proj"] *= 40
    params["beta_proj"] *= 40
    found = layer.registers(params, np.random.default_rng(1).standard_normal((2, 30, 8)))
    for units in (found["q"], found["k"]):
        np.testing.assert_allclose(np.linalg.norm(units, axis=-1), 1, rtol=0, atol=1e-4)
    assert found["k"].shape == (2, 30, 3, 2, 5)
    assert 0 < found["beta"].min() < 0.4 < 1.6 < found["beta"].max() < 2
    decay = found["decay"]
    assert 0 < decay.min() < decay.max() < 1


def test_initial_values_are_the_released_ones() -> None:
    """Each projection in its own Xavier bound, whose ends a thousand draws come near; rates in (0, 16]; step sizes
    log-uniform, which float32 holds to 1e-5 of them."""
    layer = DeltaNet(64, heads=32, d_state=16, steps=2, gate=True, output_gate=True, dt_min=0.002, dt_max=0.05)
    params = layer.init(np.random.default_rng(0))
    ends = np.cumsum((0, *layer.parts))
    projections = [params["qkv_proj"][lo:hi] for lo, hi in itertools.pairwise(ends)]
    projections += [params[name] for name in ("beta_proj", "decay_proj", "gate_proj", "out_proj")]
    for one in projections:
        bound = 2**-2.5 * np.sqrt(6 / sum(one.shape))
        assert 0.99 * bound < np.abs(one).max() <= bound * (1 + 1e-6)
    assert 0.49 < np.abs(params["conv_w"]).max() <= 0.5
    rates, dt = np.exp(params["A_log"]), softplus(params["dt_bias"])
    assert 0 < rates.min() < 4 < 12 < rates.max() <= 16 * (1 + 1e-6)
    assert 0.002 * (1 - 1e-4) <= dt.min() < 0.004 < 0.03 < dt.max() <= 0.05 * (1 + 1e-4)


def test_parameter_count_is_the_released_layers() -> None:
    """Those of flash-linear-attention's GatedDeltaProduct: projections without bias, taps, beta, decay, gate, one scale
    for all heads, output."""
    layer = DeltaNet(64, heads=4, d_state=16, expand=2, steps=2, gate=True, negative=True, output_gate=True)
    count = sum(value.size for value in layer.init(np.random.default_rng(0)).values())
    q, k, v = 64, 2 * 64, 2 * 128
    assert count == (q + k + v) * (64 + 4) + 64 * (2 * 4 + 4 + 128) + 4 + 4 + 32 + 128 * 64


def test_lanes_of_the_state() -> None:
    layer = DeltaNet(6, heads=2, d_state=5, expand=3, steps=2, d_conv=4)
    assert layer.state_lanes == 3 * 6 * 5 + (4 - 1) * (2 * 5 * (2 + 1) + 2 * 3 * 6)  # the formula of `lanes`


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, r"heads=3, expected a divisor of expand \* d_model = 4"),
        ({"d_state": 0}, "d_state=0, expected a positive integer"),
        ({"steps": 0}, "steps=0, expected a positive integer"),
        ({"expand": 1.5}, "expand=1.5, expected"),
        ({"d_conv": -1}, "d_conv=-1, expected an integer from 0"),
        ({"gate": 1}, "gate=1, expected True or False"),
        ({"negative": "yes"}, "negative='yes', expected True or False"),
        ({"dt_min": 0.0}, "dt_min=0.0, dt_max=0.1, expected 0 < dt_min <= dt_max"),
        ({"norm_eps": -1.0}, "norm_eps=-1.0, expected a positive number"),
        ({"rope_bias": True}, "rope_bias=True, expected False without rope_base"),
        ({"rope_rank": 3}, "rope_rank=3, expected 16 without rope_base"),
        ({"rope_base": 0.5}, "rope_base=0.5, expected a number from 1, or None"),
        ({"rope_base": 10.0, "d_state": 5}, "d_state=5, expected an even number with rope_base"),
        ({"rope_base": 10.0, "heads": 8, "expand": 2}, "heads=8, expected a divisor of d_model=4 with rope_base"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"DeltaNet: {message}"):
        DeltaNet(4, **settings)
