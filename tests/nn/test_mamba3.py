"""Properties of Mamba-3 and its scan that the table of cases does not test: known rules, rotation, pieces, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rotrnn._cpu import SSD_CHUNK as CHUNK
from rotrnn.nn.layers.mamba3 import Mamba3
from rotrnn.ops.ssd import ssd_scan, ssd_scan_backward
from rotrnn.ops.trapezoid import trapezoid_scan, trapezoid_scan_backward
from rotrnn.ops.turn import turn

EPS = np.finfo(np.float64).eps
B, T, H, P, N = 2, CHUNK + 9, 2, 3, 4


def arguments(lam: float | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    n = rng.standard_normal
    shares = rng.uniform(0, 1, (B, T, H)) if lam is None else np.full((B, T, H), float(lam))
    args = {"x": n((B, T, H, P)), "delta": rng.uniform(0, 0.4, (B, T, H)), "lam": shares}
    args["log_a"] = -0.5 * args["delta"]
    return {**args, "B": n((B, T, H, N)), "C": n((B, T, H, N)), "skip": n(H)}


def rounding_of(args: dict[str, Any]) -> float:
    """That of 2 T + N sums of the terms' sizes."""
    sizes = {name: abs(one) for name, one in args.items()} | {"log_a": args["log_a"]}
    return float((2 * T + N) * EPS * trapezoid_scan(**sizes).y.max())


def test_a_share_of_one_is_the_rule_of_mamba2() -> None:
    args = arguments(lam=1)
    given = args["x"], args["delta"], np.full(H, -0.5), args["B"], args["C"], args["skip"]
    np.testing.assert_allclose(trapezoid_scan(**args).y, ssd_scan(*given), rtol=0, atol=rounding_of(args))


def test_logarithms_of_transitions_take_the_place_of_rates() -> None:
    """delta A as an array: the same bits, and the sum over steps of its gradient is that of A, to B T roundings."""
    args = arguments()
    given, A = (args["x"], args["delta"]), np.full(H, -0.5)
    more, dy = (args["B"], args["C"], args["skip"]), np.cos(args["x"])
    np.testing.assert_array_equal(ssd_scan(*given, None, *more, log_a=args["log_a"]), ssd_scan(*given, A, *more))
    grads = ssd_scan_backward(dy, *given, None, *more, log_a=args["log_a"])
    theirs = ssd_scan_backward(dy, *given, A, *more)
    terms = args["delta"] * grads.dlog_a
    bound = 2 * B * T * EPS * np.abs(terms).sum()
    np.testing.assert_allclose(terms.sum((0, 1)), theirs.dA, rtol=0, atol=bound)
    np.testing.assert_array_equal(grads.dx, theirs.dx)


def test_turned_directions_rotate_the_state() -> None:
    """h_t = a_t h_{t-1} R(theta_t) + x_t B_t^T with B and C as they are, one step after the other."""
    args, rng = arguments(lam=1), np.random.default_rng(1)
    theta = rng.uniform(-1, 1, (B, T, H, N // 2))
    keys, queries = args["B"][:, :, None], args["C"][:, :, None]
    turned = turn(theta, keys, queries)
    assert turned.w is not None
    y = trapezoid_scan(**args | {"B": turned.y[:, :, 0], "C": turned.w[:, :, 0]}).y
    h = np.zeros(
        (B, H, P, N // 2), complex
    )  # a row (h_0, h_1) of a pair times R(theta) is h_0 + i h_1 turned by -theta
    for t in range(T):
        a = np.exp(args["log_a"][:, t])[..., None, None] * np.exp(-1j * theta[:, t])[:, :, None]
        into, out = (one[..., ::2] + 1j * one[..., 1::2] for one in (args["B"][:, t], args["C"][:, t]))
        h = a * h + (args["delta"][:, t, :, None] * args["x"][:, t])[..., None] * into[:, :, None]
        read = (h * out.conj()[:, :, None]).real.sum(-1)
        expected = read + args["skip"][:, None] * args["x"][:, t]
        np.testing.assert_allclose(y[:, t], expected, rtol=0, atol=16 * (T + N) * EPS * np.abs(y).max())


def test_eigenvalues_are_those_of_the_rotating_state() -> None:
    layer = Mamba3(4, d_state=7, d_head=4)
    x = np.random.default_rng(0).standard_normal((2, 5, 4))
    found = layer.eigenvalues(layer.init(np.random.default_rng(0)), x)
    assert found.shape == (2, 5, layer.heads, 7)
    assert (abs(found) < 1).all()
    assert (found[..., 2:].imag == 0).all()  # half the lanes, rounded down to pairs: one pair of them turns
    np.testing.assert_array_equal(found[..., 0], found[..., 1].conj())


def test_one_rank_with_a_gain_of_one_is_the_form_without_ranks() -> None:
    args = arguments()
    ranked = args | {name: args[name][:, :, None] for name in "BC"} | {"gain": np.ones((H, 1, P))}
    y = trapezoid_scan(**args).y
    np.testing.assert_allclose(trapezoid_scan(**ranked).y[:, :, 0], y, rtol=0, atol=rounding_of(args))


def of_ranks(args: dict[str, Any], R: int) -> dict[str, Any]:
    rng = np.random.default_rng(R)
    more = {"B": (B, T, R, H, N), "C": (B, T, R, H, N), "gain": (H, R, P)}
    return args | {name: rng.standard_normal(shape) for name, shape in more.items()}


@pytest.mark.parametrize("R", [0, 1, 3, 4, 24])  # 3 and 24 do not divide a chunk, and 24 is more than a band
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_large_next_step_changes_no_bit_of_the_outputs_before_it(R: int, dtype: Any) -> None:
    """Nor what a step of padding has, of the last step that is valid."""
    args: dict[str, Any] = of_ranks(arguments(), R) if R else arguments()
    args = {name: one.astype(dtype) for name, one in args.items()}
    for last, lengths in ((T - 2, None), (T // 2, None), (CHUNK - 1, None), (3, None), (3, [4, T])):
        large = {name: args[name].copy() for name in ("delta", "lam")}
        large["delta"][0, last + 1] *= 1e5
        large["lam"][0, last + 1] = -3
        y, other = (trapezoid_scan(**args | more, lengths=lengths).y for more in ({}, large))
        np.testing.assert_array_equal(other[0, : last + 1], y[0, : last + 1])
        assert lengths or (other[0, last + 1] != y[0, last + 1]).any()


def test_gradients_do_not_read_steps_that_an_output_has_not_read() -> None:
    """Of the outputs up to a step alone: no bit of these depends on the step size of the next one, whose own gradients
    are zero."""
    args, dy = arguments(), np.zeros((B, T, H, P))
    dy[:, :5] = 1
    large = args | {"delta": args["delta"].copy()}
    large["delta"][:, 5] *= 1e5
    found, other = (trapezoid_scan_backward(dy, **one, carries=trapezoid_scan(**one).carries) for one in (args, large))
    for name in ("dx", "ddelta", "dlam", "dlog_a", "dB", "dC"):
        mine, theirs = getattr(found, name), getattr(other, name)
        np.testing.assert_array_equal(mine[:, :5], theirs[:, :5])
        assert not mine[:, 5:].any()


def test_ranks_do_not_drift_in_float32() -> None:
    """20,000 tokens: an error is below the roundings of a chunk of CHUNK steps, of N products, and of the carries that
    have not decayed, times the sum of the sizes of all terms."""
    rng, steps, R, rate = np.random.default_rng(0), 20_000, 2, 0.01
    delta, shares = rng.uniform(0.1, 0.2, (2, 1, steps, 1))
    args = {"x": rng.standard_normal((1, steps, 1, P)), "delta": delta[None, 0], "lam": shares[None, 0]}
    args |= {"log_a": np.full((1, steps, 1), -rate), "skip": np.ones(1), "gain": rng.standard_normal((1, R, P))}
    args |= {name: rng.standard_normal((1, steps, R, 1, N)) for name in "BC"}
    given: Any = {name: one.astype(np.float32).reshape(one.shape) for name, one in args.items()}
    exact: Any = {name: one.astype(np.float64) for name, one in given.items()}
    sizes = {name: abs(one) for name, one in exact.items()}
    sizes["log_a"] = exact["log_a"]
    terms = CHUNK + N + 1 / rate * R / CHUNK + 10
    error = abs(trapezoid_scan(**given).y - trapezoid_scan(**exact).y)
    assert (error <= terms * 2.0**-24 * trapezoid_scan(**sizes).y).all()


def test_eigenvalues_of_ranks_are_in_pairs_of_halves() -> None:
    layer = Mamba3(4, d_state=6, d_head=4, rank=2, fraction=1.0)
    x = np.random.default_rng(0).standard_normal((2, 5, 4))
    found = layer.eigenvalues(layer.init(np.random.default_rng(0)), x)
    np.testing.assert_array_equal(found[..., :3], found[..., 3:].conj())
    assert (found.imag != 0).all()


def test_initial_gains_of_ranks() -> None:
    """Those of the released code: 1 / R, 1, 1 / R."""
    params = Mamba3(4, d_state=4, d_head=4, rank=4).init(np.random.default_rng(0))
    assert [(params[name].shape, *np.unique(params[name])) for name in ("U_x", "U_z", "U_o")] == [
        ((2, 4, 4), 0.25),
        ((2, 4, 4), 1),
        ((2, 4, 4), 0.25),
    ]
    assert params["B_bias"].shape == (2, 4, 4)


def test_errors() -> None:
    args = arguments()
    with pytest.raises(ValueError, match=r"trapezoid_scan: B0 is None and x0 is not, expected both or neither"):
        trapezoid_scan(**args, x0=np.zeros((B, H, P)))
    with pytest.raises(ValueError, match=r"trapezoid_scan: lam has shape \(2, 1, 2\), expected \(B=2, T=73, H=2\)"):
        trapezoid_scan(**args | {"lam": args["lam"][:, :1]})
    with pytest.raises(ValueError, match=r"trapezoid_scan_backward: carries has shape \(2, 1, 2, 3, 4\), expected"):
        trapezoid_scan_backward(args["x"], **args, carries=np.zeros((B, 1, H, P, N)))
    with pytest.raises(ValueError, match=r"trapezoid_scan: B has shape \(2, 73, 2, 4\), expected \(B, T, R, G, N\)"):
        trapezoid_scan(**args, gain=np.ones((H, 1, P)))
    with pytest.raises(ValueError, match=r"trapezoid_scan: gain has R=65 ranks, expected at most 64"):
        trapezoid_scan(**of_ranks(args, 65))
    with pytest.raises(TypeError, match=r"trapezoid_scan_backward: carries is None, expected an array of float32 or"):
        trapezoid_scan_backward(args["x"], **args, carries=None)
    given = args["x"], args["delta"], None, args["B"], args["C"]
    with pytest.raises(ValueError, match=r"ssd_scan: of A and log_a both are None, expected one of them"):
        ssd_scan(*given)
    with pytest.raises(ValueError, match=r"ssd_scan: negative is True with log_a, expected A"):
        ssd_scan(*given, log_a=args["log_a"], negative=True)
    for settings, message in (
        ({"fraction": 0.7}, r"Mamba3: fraction=0\.7, expected 0\.5 or 1"),
        ({"d_state": 3}, r"Mamba3: d_state=3, expected at least 4"),
        ({"rate": "relu"}, r"Mamba3: rate='relu', expected one of softplus, rational"),
        ({"d_head": 3}, r"Mamba3: d_head=3, expected a divisor of expand \* d_model=8"),
        ({"rank": 0}, r"Mamba3: rank=0, expected a positive integer"),
        ({"rank": 65}, r"Mamba3: rank=65, expected at most 64"),
        ({"groups": 3}, r"Mamba3: groups=3, expected a divisor of the number of heads, 1"),
        ({"dt_min": 0.0}, r"Mamba3: dt_min=0\.0, dt_max=0\.1, expected 0 < dt_min <= dt_max, finite"),
        ({"A_floor": -1.0}, r"Mamba3: A_floor=-1\.0, expected a positive number"),
    ):
        with pytest.raises(ValueError, match=message):
            Mamba3(4, **{"d_state": 4, **settings})  # type: ignore[arg-type]
