"""Properties of Mamba-2 and its scan that the table of cases does not test: known answers, large decays, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases.ssd import ssd_loop
from rotrnn._cpu import SSD_CHUNK as CHUNK
from rotrnn.nn.layer import astype
from rotrnn.nn.layers.mamba2 import Mamba2
from rotrnn.ops.pointwise import softplus
from rotrnn.ops.selective import selective_scan, selective_scan_backward
from rotrnn.ops.ssd import ssd_scan, ssd_scan_backward

EPS, EPS32 = np.finfo(np.float64).eps, float(np.finfo(np.float32).eps)
B, T, H, P, G, N = 2, 2 * CHUNK + 9, 4, 3, 2, 5


def arguments(dtype: Any = np.float64, steps: int = T) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    n = rng.standard_normal
    args = {"x": n((B, steps, H, P)), "delta": rng.uniform(0, 0.4, (B, steps, H)), "A": rng.uniform(-2, 0, H)}
    args |= {"B": n((B, steps, G, N)), "C": n((B, steps, G, N)), "skip": n(H), "h0": n((B, H, P, N))}
    return {name: value.astype(dtype) for name, value in args.items()}


# ---------------------------------------------------------------------------------------------------------- scan


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_heads_of_one_channel_are_the_selective_scan(reverse: bool, negative: bool) -> None:
    """With the same rate for all states of a channel, and one group: the scan and all its gradients. Both are made of
    some roundings for each step and state, in another order."""
    rng = np.random.default_rng(0)
    args = arguments() | {"x": rng.standard_normal((B, T, H, 1)), "h0": rng.standard_normal((B, H, 1, N))}
    args |= {name: args[name][:, :, :1] for name in "BC"}
    flat = args | {"x": args["x"][..., 0], "h0": args["h0"][:, :, 0], "A": np.tile(args["A"][:, None], N)}
    flat |= {name: args[name][:, :, 0] for name in "BC"}
    how = {"reverse": reverse, "negative": negative}
    y, hT = ssd_scan(**args, **how, return_state=True)
    expected, last = selective_scan(**flat, **how, return_state=True)
    dhT = rng.standard_normal(hT.shape)
    grads = ssd_scan_backward(np.cos(y), **args, dhT=dhT, **how)
    theirs = selective_scan_backward(np.cos(expected), **flat, dhT=dhT[:, :, 0], **how)
    pairs = [(y, expected), (hT, last), *zip(grads[:7], theirs._replace(dA=theirs.dA.sum(1)), strict=True)]
    for got, wanted in pairs:
        bound = 8 * (T + N) * EPS * max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("A", [0.0, -1000.0])
@pytest.mark.parametrize("scan", [ssd_scan, selective_scan])
def test_negative_transitions_at_both_ends_are_exact(scan: Any, A: float) -> None:
    """2 exp(0) - 1 = 1 sums, and 2 exp(-1000) - 1 = -1 changes the sign at every step: with it one number tells the
    parity of a string."""
    x, T = np.arange(1.0, 71)[None, :, None], 70
    ones = np.ones((1, T, 1))
    args = [x, ones, np.array([[A]]), ones, ones]
    if scan is ssd_scan:
        args = [x[..., None], ones, np.array([A]), ones[..., None], ones[..., None]]
    signs = (-1.0 if A else 1.0) ** np.arange(T)
    expected = signs * np.cumsum(signs * x[0, :, 0])
    np.testing.assert_array_equal(scan(*args, negative=True).ravel(), expected)


def test_the_gradient_of_a_transition_of_zero_is_finite() -> None:
    """2 exp(delta A) - 1 = 0 for the step in the middle, at which its logarithm has no derivative. The gradient is that
    of the selective scan, to the rounding of T steps."""
    rng, T = np.random.default_rng(0), 5
    x, B, C, dy = rng.standard_normal((4, 1, T, 1))
    delta, A = np.full((1, T, 1), 0.3), np.array([-1.0])
    delta[0, 2] = np.log(2)
    grads = ssd_scan_backward(dy[..., None], x[..., None], delta, A, B[..., None], C[..., None], negative=True)
    theirs = selective_scan_backward(dy, x, delta, A[:, None], B, C, negative=True)
    np.testing.assert_allclose(grads.ddelta, theirs.ddelta, rtol=0, atol=64 * T * EPS)
    np.testing.assert_allclose(grads.dx[..., 0], theirs.dx, rtol=0, atol=64 * T * EPS)


@pytest.mark.parametrize("reverse", [False, True])
def test_without_decay_it_is_causal_linear_attention(reverse: bool) -> None:
    """A = 0, delta = 1, of small integers: y_t = sum_{s <= t} (C_t . B_s) x_s, exact in any order of sums."""
    rng = np.random.default_rng(0)
    x, keys, queries = (rng.integers(-3, 4, (B, T, H, width)).astype(np.float32) for width in (P, N, N))
    ones = np.ones((B, T, H), np.float32)
    scores = np.einsum("bthn,bshn->bhts", queries, keys)
    seen = np.triu(scores) if reverse else np.tril(scores)
    expected = np.einsum("bhts,bshp->bthp", seen, x)
    got = ssd_scan(x, ones, np.zeros(H, np.float32), keys, queries, reverse=reverse)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("steps", [1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK])
def test_the_chunked_form_is_the_loop(steps: int) -> None:
    """At every cut of chunks, with decays near one; each output is `steps` products, and sums over N."""
    args = arguments(steps=steps) | {"delta": np.full((B, steps, H), 1e-3)}
    y, hT = ssd_scan(**args, return_state=True)
    expected, last = ssd_loop(**args)
    for got, wanted in ((y, expected), (hT, last)):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=4 * (steps + N) * EPS * np.abs(wanted).max())


def test_pieces_of_a_sequence_are_the_whole() -> None:
    """Cut where no chunk ends, so that the pieces' chunks are others; to roundings of each step."""
    args = arguments()
    y, hT = ssd_scan(**args, return_state=True)
    state, parts = args["h0"], []
    for first, last in ((0, 17), (17, 17), (17, CHUNK + 20), (CHUNK + 20, T)):
        piece = {key: one[:, first:last] if key in ("x", "delta", "B", "C") else one for key, one in args.items()}
        part, state = ssd_scan(**piece | {"h0": state}, return_state=True)
        parts.append(part)
    np.testing.assert_allclose(np.concatenate(parts, 1), y, rtol=0, atol=8 * (T + N) * EPS * np.abs(y).max())
    np.testing.assert_allclose(state, hT, rtol=0, atol=8 * (T + N) * EPS * np.abs(hT).max())


def test_weak_decays_beside_strong_ones_are_not_lost() -> None:
    """Every eighth step decays by e^{-1000}, the others by e^{-0.01}: a chunk's sums reach thousands, of which one unit
    in the last place is 5e-4 in float32. The result is that of the loop in double, to float32's roundings of 8 steps
    that are remembered and N states."""
    args = arguments(np.float32) | {"A": np.full(H, -1.0, np.float32), "h0": None}
    args["delta"] = np.full((B, T, H), 0.01, np.float32)
    args["delta"][:, ::8] = 1000
    args["x"][:, ::8] /= 1000
    wide = {key: one.astype(np.float64) for key, one in args.items() if one is not None}
    expected, _ = ssd_loop(**wide, h0=np.zeros((B, H, P, N)))
    np.testing.assert_allclose(ssd_scan(**args), expected, rtol=0, atol=4 * (8 + N) * EPS32 * np.abs(expected).max())


def test_gradients_of_steps_that_forget_do_not_cancel() -> None:
    """exp(delta A) = e^{-1000} = 0: ddelta_t = x_t . dy_t (B_t . C_t) alone. As a difference of two sums, the gradient
    of the exponent would be rounding errors instead of zero, and 1000 times those would be added."""
    args = arguments(np.float32) | {"A": np.full(H, -1000.0, np.float32), "h0": None, "skip": None}
    args["delta"] = np.ones((B, T, H), np.float32)
    dy = np.random.default_rng(1).standard_normal(args["x"].shape).astype(np.float32)
    grads = ssd_scan_backward(dy, **args)
    scores = np.repeat(np.sum(args["B"] * args["C"], -1, dtype=np.float64), H // G, -1)
    expected = np.sum(args["x"] * dy, -1, dtype=np.float64) * scores
    np.testing.assert_allclose(grads.ddelta, expected, rtol=0, atol=4 * (N + P) * EPS32 * np.abs(expected).max())
    assert not grads.dA.any()


def test_a_negative_infinite_rate_forgets() -> None:
    """e^{-inf} = 0: y_t = delta_t x_t (B_t . C_t), no NaN."""
    args = arguments() | {"A": np.full(H, -np.inf), "skip": None, "h0": None, "delta": np.full((B, T, H), 0.5)}
    scores = np.repeat(np.sum(args["B"] * args["C"], -1), H // G, -1)[..., None]
    expected = 0.5 * args["x"] * scores
    np.testing.assert_allclose(ssd_scan(**args), expected, rtol=0, atol=4 * N * EPS * np.abs(expected).max())


def test_state_passes_through_where_there_are_no_steps() -> None:
    args = arguments()
    y, hT = ssd_scan(**args, lengths=[0, T], return_state=True)
    np.testing.assert_array_equal(hT[0], args["h0"][0])
    dhT = np.random.default_rng(1).standard_normal(hT.shape)
    grads = ssd_scan_backward(np.ones_like(y), **args, dhT=dhT, lengths=[0, T])
    np.testing.assert_array_equal(grads.dh0[0], dhT[0])


def test_carries_save_a_second_run_and_do_not_change_results() -> None:
    args = arguments(np.float32)
    y, carries = ssd_scan(**args, return_carries=True)
    np.testing.assert_array_equal(y, ssd_scan(**args))
    assert carries.shape == (B, 3, H, P, N)
    np.testing.assert_array_equal(carries[:, 0], args["h0"])
    before = {key: one[:, :CHUNK] if key in ("x", "delta", "B", "C") else one for key, one in args.items()}
    np.testing.assert_array_equal(carries[:, 1], ssd_scan(**before, return_state=True)[1])
    kept, anew = ssd_scan_backward(y, **args, carries=carries), ssd_scan_backward(y, **args)
    for got, expected in zip(kept, anew, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_skip_is_optional() -> None:
    args = arguments() | {"skip": None}
    y = ssd_scan(**args)
    np.testing.assert_array_equal(y, ssd_scan(**(args | {"skip": np.zeros(H)})))
    assert ssd_scan_backward(y, **args).dskip is None


def test_dtypes_are_promoted() -> None:
    args = arguments(np.float32)
    assert ssd_scan(**args).dtype == np.float32
    assert ssd_scan(**(args | {"A": args["A"].astype(np.float64)})).dtype == np.float64


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda a: ssd_scan(**(a | {"x": a["x"][..., 0]})),
            ValueError,
            r"^ssd_scan: x has shape .*, expected \(B, T, ",
        ),
        (lambda a: ssd_scan(**(a | {"delta": a["delta"][:, :3]})), ValueError, "delta has shape .*, expected .B=2"),
        (lambda a: ssd_scan(**(a | {"C": a["C"][..., :1]})), ValueError, "C has shape .*, expected .*N=5"),
        (lambda a: ssd_scan(**(a | {"h0": a["h0"][:, :1]})), ValueError, "h0 has shape .*, expected .*H=4"),
        (
            lambda a: ssd_scan(**(a | {name: np.ones((B, T, 3, N)) for name in "BC"})),
            ValueError,
            "^ssd_scan: B has 3 groups, expected a divisor of the 4 heads of x",
        ),
        (lambda a: ssd_scan(**(a | {name: a[name][:, :, :0] for name in "BC"})), ValueError, "B has 0 groups"),
        (lambda a: ssd_scan(**(a | {"A": a["A"] * 1j})), TypeError, "A has dtype complex128, expected float32"),
        (lambda a: ssd_scan(**a, lengths=[0, T + 1]), ValueError, rf"lengths\[1\] is {T + 1}, expected .* to T={T}"),
        (lambda a: ssd_scan(**a, reverse=1), ValueError, "reverse is 1, expected True or False"),
        (
            lambda a: ssd_scan_backward(a["x"], **a, carries=np.ones((B, 2, H, P, N))),
            ValueError,
            "^ssd_scan_backward: carries has shape .*, expected .*chunks=3",
        ),
        (lambda a: ssd_scan_backward(a["x"][:1], **a), ValueError, "x has shape .*B=1"),
        (lambda a: ssd_scan_backward(a["x"], **a, dhT=a["h0"][:1]), ValueError, "dhT has shape .*B=2"),
    ],
)
def test_bad_input_of_the_scan(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(arguments())


# --------------------------------------------------------------------------------------------------------- paper


def dual_form(p: Any, u: Any, G: int, N: int, eps: float) -> Any:
    """The layer by the matrix transformation of the paper, ``y = M x`` with ``M_ij = C_i^T A_i ... A_{j+1} B_j``
    (equation 3), of all pairs of steps: no state, no chunks, and none of the package's functions. All of it is analytic
    in the parameters and u, so that they may be complex. The in-projection's rows are z, x, B, C, Delta, and the norm
    comes after the gate, as in the released code (modules/mamba2.py, `norm_before_gate=False`)."""
    (batch, T, _), H, inner, K = u.shape, len(p["D"]), len(p["norm"]), len(p["conv_w"])
    P, taps = inner // H, p["conv_w"].shape[1]
    z, v, d = np.split(u @ p["in_proj"].T, [inner, inner + K], -1)
    late = np.concatenate([np.zeros((batch, taps - 1, K)), v], 1)
    v = sum(late[:, k : k + T] * p["conv_w"][:, k] for k in range(taps)) + p["conv_bias"]
    x, B, C = np.split(v / (1 + np.exp(-v)), [inner, inner + G * N], -1)
    x = x.reshape(batch, T, H, P)
    B, C = (np.repeat(one.reshape(batch, T, G, N), H // G, axis=2) for one in (B, C))
    delta = np.log(1 + np.exp(d + p["dt_bias"]))
    a = np.exp(-delta * np.exp(p["A_log"]))
    decay = np.zeros((batch, T, T, H), a.dtype)
    for i in range(T):
        decay[:, i, i] = 1
        decay[:, i, :i] = decay[:, i - 1, :i] * a[:, i, None]
    M = decay * np.einsum("bihn,bjhn->bijh", C, B)
    y = np.einsum("bijh,bjhp->bihp", M, delta[..., None] * x) + p["D"][:, None] * x
    gated = (y.reshape(z.shape) * z / (1 + np.exp(-z))).reshape(batch, T, G, inner // G)
    normed = gated / np.sqrt(np.mean(gated * gated, -1, keepdims=True) + eps)
    return (normed.reshape(z.shape) * p["norm"]) @ p["out_proj"].T


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_layer_is_the_matrix_transformation_of_the_paper(groups: int) -> None:
    """Outputs, and derivatives along a direction of all parameters and inputs: those of the matrix form come from an
    imaginary step of 1e-30, which rounds only as a product does. Both sides are sums of at most T (N + P) products a
    layer, with K and I more in the projections; a backward pass has some four times the roundings."""
    layer = Mamba2(6, d_state=N, d_head=3, groups=groups, norm_eps=1e-3)
    rng = np.random.default_rng(groups)
    params = {name: rng.standard_normal(one.shape) * 0.5 for name, one in layer.init(rng).items()}
    steps = CHUNK + 9
    u = rng.standard_normal((B, steps, 6))
    terms = steps * (N + layer.width) + layer.convolved + layer.inner
    y, saved = layer.forward(params, u)
    expected = dual_form(params, u, groups, N, layer.norm_eps)
    np.testing.assert_allclose(y, expected, rtol=0, atol=terms * EPS * np.abs(expected).max())
    dy = rng.standard_normal(y.shape)
    du, grads, _ = layer.backward(params, saved, dy)
    for name in (*params, "u"):
        along = rng.standard_normal(u.shape if name == "u" else params[name].shape)
        moved = {key: one + 1e-30j * along if key == name else one for key, one in (params | {"u": u}).items()}
        slope = np.sum(dy * dual_form(moved, moved["u"], groups, N, layer.norm_eps).imag) / 1e-30
        products = (du if name == "u" else grads[name]) * along
        np.testing.assert_allclose(products.sum(), slope, rtol=0, atol=4 * terms * EPS * np.abs(products).sum())


# --------------------------------------------------------------------------------------------------------- layer


def test_parameter_count_is_the_released_models() -> None:
    """mamba2-130m has 128,989,632: 24 layers of width 768, each with a norm's scale, an embedding of 50,288 tokens that
    is the head too, and the last norm's scale."""
    count = sum(value.size for value in Mamba2(768).init(np.random.default_rng(0)).values())
    assert 24 * (count + 768) + 50_288 * 768 + 768 == 128_989_632


def test_initial_step_sizes_and_rates_are_the_published_ones() -> None:
    """Delta at d = 0 log-uniform on [dt_min, dt_max], A uniform on [-16, -1]. float32 holds softplus's inverse to 1e-5
    of dt. 256 draws come within a hundredth of the ends of both ranges, but for a chance of e^{-2.6} at each."""
    layer = Mamba2(128, d_head=1, dt_min=0.002, dt_max=0.05)
    params = layer.init(np.random.default_rng(0))
    dt = softplus(params["dt_bias"])
    assert 0.002 * (1 - 1e-4) <= dt.min() < 0.0022
    assert 0.045 < dt.max() <= 0.05 * (1 + 1e-4)
    A = layer.registers(params, np.zeros((1, 1, layer.d_model)))["A"]
    assert -16.001 <= A.min() < -15
    assert -2 < A.max() <= -0.999
    assert np.all(Mamba2(64, dt_min=1e-6, dt_max=1e-6).init(np.random.default_rng(0))["dt_bias"] < np.log(2e-4))


def test_heads_are_of_the_released_width_where_it_fits() -> None:
    for width, expected in ((768, (64, 24)), (32, (64, 1)), (24, (16, 3)), (5, (2, 5))):
        layer = Mamba2(width)
        assert (layer.width, layer.heads) == expected


def test_eigenvalues_with_angles_are_those_of_the_state_that_turns() -> None:
    """Their sizes are the decays, and their angles theta, the conjugates' in the second half of the lanes."""
    layer = Mamba2(4, d_state=4, d_head=4, groups=1, d_conv=0, rope_base=7.0)
    rng = np.random.default_rng(0)
    params, x = astype(layer.init(rng), np.float64), rng.standard_normal((1, 9, 4))
    found = layer.eigenvalues(params, x)
    assert found.shape == (1, 9, 2, 4)
    np.testing.assert_array_equal(found[..., :2], found[..., 2:].conj())
    still = Mamba2(4, d_state=4, d_head=4, groups=1, d_conv=0)
    decays = still.eigenvalues({name: params[name] for name in still.shapes}, x)
    # |e^{i theta}| is 1 to 2 roundings of each part, and so is the product's size
    np.testing.assert_allclose(abs(found), np.repeat(decays[..., None], 4, -1), rtol=8 * np.finfo(float).eps)
    theta = layer.registers(params, x)["theta"]
    np.testing.assert_allclose(np.angle(found[:, :, 0, :2]), theta[:, :, 0], rtol=0, atol=8 * np.finfo(float).eps)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_state": 0}, "d_state=0, expected a positive integer"),
        ({"d_conv": -1}, "d_conv=-1, expected an integer from 0"),
        ({"d_head": 0}, "d_head=0, expected a positive integer"),
        ({"d_head": "all"}, "d_head='all', expected a positive integer or 'auto'"),
        ({"d_head": 3}, r"d_head=3, expected a divisor of expand \* d_model=8"),
        ({"d_head": 4, "groups": 4}, "groups=4, expected a divisor of the number of heads, 2"),
        ({"dt_min": 0.0}, "dt_min=0.0, dt_max=0.1, expected 0 < dt_min <= dt_max"),
        ({"A_max": 0.5}, "A_min=1.0, A_max=0.5, expected 0 < A_min <= A_max"),
        ({"norm_eps": 0.0}, "norm_eps=0.0, expected a positive number"),
        ({"rope_bias": True}, "rope_bias=True, expected False without rope_base"),
        ({"rope_rank": 3}, "rope_rank=3, expected 16 without rope_base"),
        ({"rope_base": 0.5}, "rope_base=0.5, expected a number from 1, or None"),
        ({"rope_base": 10.0, "d_state": 5}, "d_state=5, expected an even number with rope_base"),
        (
            {"rope_base": 10.0, "groups": 8, "d_head": 1},
            "groups=8, expected a divisor of d_model=4 with rope_base",
        ),
        ({"bias": 1}, "bias=1, expected True or False"),
    ],
)
def test_bad_settings_of_mamba2(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"Mamba2: {message}"):
        Mamba2(4, **settings)
