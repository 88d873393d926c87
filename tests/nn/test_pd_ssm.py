"""PD-SSM beside what is known of it: automata that it tracks exactly, its straight-through gradient, long sequences."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

import rotrnn
from cases.pd_ssm import complex_of, one_hot_columns, parts_of
from rotrnn import PDSSM
from rotrnn.nn.layer import astype
from rotrnn.ops import permuted_scan, permuted_scan_backward
from rotrnn.testing import central_differences, gradcheck

EPS = np.finfo(np.float64).eps


def even(permutation: tuple[int, ...]) -> bool:
    return sum(a > b for i, a in enumerate(permutation) for b in permutation[i:]) % 2 == 0


@pytest.mark.parametrize(("points", "alternating", "letters"), [(3, False, 6), (5, True, 2)])
def test_a_group_is_tracked_exactly(points: int, alternating: bool, letters: int) -> None:
    """S3 by all of its elements and A5 by two that generate it: one lane for each element of the group, a matrix for
    each letter, and D = 1 as far as float32 goes. The state begins at the identity's lane, and after each of 1,000
    random letters it is 1 in the lane of their product and 0 in others. Lanes only move, so nothing is rounded."""
    elements = [one for one in permutations(range(points)) if even(one) or not alternating]
    place = {one: i for i, one in enumerate(elements)}
    chosen = elements if letters == len(elements) else [(1, 2, 3, 4, 0), (1, 2, 0, 3, 4)]
    N, K = len(elements), len(chosen)
    layer = PDSSM(K, N, K)
    M = np.zeros((K, N, N), np.float32)
    for k, letter in enumerate(chosen):
        for j, one in enumerate(elements):
            M[k, place[tuple(letter[i] for i in one)], j] = 1
    params = {name: np.zeros(shape, np.float32) for name, shape in layer.shapes.items()}
    params |= {"S": 50 * np.eye(K, dtype=np.float32), "M": M, "b_size": np.full(N, 50, np.float32)}
    params |= {"b_phase": np.full(N, -120, np.float32)}
    h0 = np.eye(1, 2 * N, dtype=np.float32).reshape(1, 2, N) * 0
    h0[0, 0, place[tuple(range(points))]] = 1
    drawn = np.random.default_rng(0).integers(0, K, 1000)
    _, saved = layer.forward(params, np.eye(K, dtype=np.float32)[drawn][None], state=h0)
    h = layer.hidden_states(saved)[0].reshape(1000, 2, N)
    product, expected = tuple(range(points)), []
    for k in drawn:
        product = tuple(chosen[k][i] for i in product)
        expected.append(np.eye(N)[place[product]])
    assert len({*map(bytes, np.array(expected))}) == N  # every element was reached
    np.testing.assert_array_equal(h[:, 0], expected)
    assert np.abs(h[:, 1]).max() <= 1e-30


def straight_through(w: Any, m: Any, d: Any, x: Any, h0: Any, dh: Any, dhT: Any) -> tuple[Any, ...]:
    """The definition with whole matrices, one sequence: h, and (dw, dm, dd, dx, dh0)."""
    h, before, Ps, states = complex_of(h0), [], [], []
    for t in range(len(w)):
        before.append(h)
        Ps.append(one_hot_columns(np.tensordot(w[t], m, 1)))
        h = Ps[t] @ (complex_of(d[t]) * h) + complex_of(x[t])
        states.append(h)
    g = complex_of(dhT)
    dw, dm, dd, dx = np.zeros(w.shape), np.zeros(m.shape), np.zeros(d.shape), np.zeros(x.shape)
    for t in reversed(range(len(w))):
        g = g + complex_of(dh[t])
        lanes = complex_of(d[t])
        dP = (g[:, None] * np.conj(lanes * before[t])).real
        S = np.exp(np.tensordot(w[t], m, 1))
        S /= S.sum(0)
        dM = S * (dP - (S * dP).sum(0))
        dw[t], dx[t] = np.tensordot(m, dM, 2), parts_of(g)
        dm += w[t][:, None, None] * dM
        dd[t] = parts_of((Ps[t].T @ g) * np.conj(before[t]))
        g = np.conj(lanes) * (Ps[t].T @ g)
    return parts_of(np.array(states)), (dw, dm, dd, dx, parts_of(g))


def drawn(B: int, T: int, N: int, K: int) -> dict[str, Any]:
    rng = np.random.default_rng(N)
    shapes = {"w": (B, T, K), "m": (K, N, N), "d": (B, T, 2, N), "x": (B, T, 2, N), "h0": (B, 2, N)}
    return {name: rng.standard_normal(shape) * (0.7 if name == "d" else 1) for name, shape in shapes.items()}


@pytest.mark.parametrize(("T", "N", "K"), [(7, 5, 3), (4, 17, 1), (3, 33, 6)])
def test_the_straight_through_gradient_is_that_of_its_definition(T: int, N: int, K: int) -> None:
    """Sums of at most T N K products of three factors each, whose sizes the largest gradient bounds."""
    args = drawn(2, T, N, K)
    rng = np.random.default_rng(0)
    dh, dhT = rng.standard_normal(args["x"].shape), rng.standard_normal(args["h0"].shape)
    found = permuted_scan(**args)
    w, m, d, x, h0 = args.values()
    grads = permuted_scan_backward(dh, w, m, d, found, h0, dhT=dhT)
    own = [straight_through(w[b], m, d[b], x[b], h0[b], dh[b], dhT[b]) for b in range(2)]
    np.testing.assert_allclose(found.h, [one[0] for one in own], rtol=0, atol=16 * T * EPS * np.abs(found.h).max())
    for name, got in grads._asdict().items():
        parts = [dict(zip(("dw", "dm", "dd", "dx", "dh0"), one[1], strict=True))[name] for one in own]
        expected = sum(parts) if name == "dm" else np.array(parts)
        np.testing.assert_allclose(
            got, expected, rtol=0, atol=4 * T * N * K * EPS * np.abs(expected).max(), err_msg=name
        )


def test_the_straight_through_gradient_is_the_slope_of_its_surrogate() -> None:
    """With P + S - S', S the softmax of the columns of M and S' the same held, in place of P."""
    args = drawn(1, 6, 4, 3)
    w0, m0 = args["w"], args["m"]

    def soft(w: Any, m: Any, t: int) -> Any:
        S = np.exp(np.tensordot(w[0, t], m, 1))
        return S / S.sum(0)

    def forward(given: Any) -> tuple[Any, ...]:
        w, m, d, x, h0 = given.values()
        h, states = complex_of(h0[0]), []
        for t in range(6):
            P = one_hot_columns(np.tensordot(w0[0, t], m0, 1)) + soft(w, m, t) - soft(w0, m0, t)
            h = P @ (complex_of(d[0, t]) * h) + complex_of(x[0, t])
            states.append(parts_of(h))
        return np.array([states]), parts_of(h)[None]

    def backward(given: Any, outputs: Any, doutputs: Any) -> Any:
        w, m, d, _, h0 = given.values()
        grads = permuted_scan_backward(doutputs[0], w, m, d, permuted_scan(**given), h0, dhT=doutputs[1])
        return {name: getattr(grads, f"d{name}") for name in given}

    errors = central_differences(forward, backward, args, np.random.default_rng(0))
    assert errors.keys() == args.keys()


def test_the_first_of_equal_rows_is_chosen() -> None:
    """As NumPy's argmax; so M = 0 sends every lane to the first, which adds them up."""
    ones = np.ones((1, 2, 2, 3))
    found = permuted_scan(
        np.ones((1, 2, 1)), np.zeros((1, 3, 3)), np.array([1.0, 0])[:, None] * ones, 0 * ones, ones[:, 0]
    )
    assert not found.p.any()
    np.testing.assert_array_equal(found.h[0, :, 0], [[3, 0, 0], [3, 0, 0]])


@pytest.mark.parametrize("name", ["w", "m"])
@pytest.mark.parametrize("N", [3, 21])  # in one strip of columns and in the second one
def test_a_choice_out_of_nan_is_nan(name: str, N: int) -> None:
    """All lanes of its step, and those that it sends on; nothing before it is."""
    rng = np.random.default_rng(0)
    args = {"w": rng.standard_normal((1, 4, 2)), "m": rng.standard_normal((2, N, N))}
    args |= {one: rng.standard_normal((1, 4, 2, N)) for one in "dx"}
    args[name][(0, 2, 1) if name == "w" else (1, N - 1, N - 1)] = np.nan
    found, first = permuted_scan(**args), 2 if name == "w" else 0
    assert np.isnan(found.h[:, first]).all()
    assert not np.isnan(found.h[:, :first]).any()
    assert np.isnan(found.hT).any()


def test_float32_over_20000_steps() -> None:
    """Of lanes that permute and turn with |d| = 1. d in float32 is off by 2^-23 (its two parts, rounded), a product and
    a sum by 2^-23 more: errors add up to less than 2^-22 T of the largest state of any step."""
    T, N = 20_000, 7
    rng = np.random.default_rng(0)
    w, m = rng.integers(0, 2, (1, T, 2)).astype(np.float32), np.stack([np.roll(np.eye(N), k, 0) for k in (1, 3)])
    d = parts_of(np.exp(1j * rng.uniform(-np.pi, np.pi, (1, T, N))))
    x = rng.standard_normal((1, T, 2, N))
    narrow = permuted_scan(w, *(one.astype(np.float32) for one in (m, d, x)))
    wide = permuted_scan(w, *(one.astype(np.float64) for one in (m, d, x)))
    np.testing.assert_array_equal(narrow.p, wide.p)
    assert np.abs(narrow.h - wide.h).max() <= T * 2.0**-22 * np.abs(wide.h).max()


def test_initial_values_are_those_published() -> None:
    """Variances of normal numbers: n of them are off by sqrt(2 / n), five times that here."""
    layer = PDSSM(50, 40)
    params = layer.init(np.random.default_rng(0))
    for name, variance in (
        ("S", 1),
        ("M", 1 / 40),
        ("B", 1 / 100),
        ("C", 1 / 40),
        ("W_size", 1 / 50),
        ("b_phase", 1 / 40),
    ):
        one = params[name].astype(np.float64)
        assert abs((one**2).mean() / variance - 1) <= 5 * np.sqrt(2 / one.size), name


X = np.zeros((2, 3, 2, 4))
W, M = np.zeros((2, 3, 5)), np.zeros((5, 4, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PDSSM(4, 0), "PDSSM: d_state=0, expected a positive integer"),
        (lambda: PDSSM(4, 3, 0), "PDSSM: dictionary=0, expected a positive integer"),
        (
            lambda: permuted_scan(W, M[:, 1:], X, X),
            r"permuted_scan: m has shape \(5, 3, 4\), expected \(K=5, N=3, N=3\)",
        ),
        (
            lambda: permuted_scan(W, M, X[:, :, :1], X),
            r"permuted_scan: d has shape \(2, 3, 1, 4\), expected \(B=2, T=3, 2,",
        ),
        (lambda: permuted_scan(W, M, X, X[..., 1:]), r"permuted_scan: x has shape \(2, 3, 2, 3\), expected"),
        (
            lambda: permuted_scan_backward(X, W, M, X, permuted_scan(W, M, X, X)._replace(p=np.full((2, 3, 4), 4))),
            r"permuted_scan_backward: .*p.* is 4, expected 0 to 3",
        ),
    ],
)
def test_bad_input_is_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_what_forward_returned_is_expected() -> None:
    with pytest.raises(TypeError, match="permuted_scan_backward: found is an ndarray, expected a PermutedScan"):
        permuted_scan_backward(X, W, M, X, X)  # type: ignore[arg-type]


def test_a_state_without_input_does_not_grow() -> None:
    """Columns of |P D| add up to less than 1, so the sum of |h| over lanes falls, also where lanes come together."""
    layer = PDSSM(3, 8)
    params = astype(layer.init(np.random.default_rng(0)), np.float64)
    params["B"][:] = 0
    x, h0 = np.random.default_rng(1).standard_normal((1, 30, 3)), np.ones((1, 2, 8))
    h = layer.hidden_states(layer.forward(params, x, state=h0)[1]).reshape(30, 2, 8)
    sizes = np.abs(complex_of(np.concatenate([h0, h]))).sum(-1)
    assert (np.diff(sizes) < 0).all()


@pytest.mark.parametrize(
    ("around", "estimated"),
    [
        (lambda: rotrnn.Bidirectional(4, PDSSM(4, 3)), {"S", "M", "x", "S_reverse", "M_reverse"}),
        (
            lambda: rotrnn.Griffin(4, PDSSM(4, 3)),
            {"S", "M", "x", "state.0", "griffin_value_w", "griffin_value_bias", "griffin_conv_w", "griffin_conv_bias"},
        ),
        (lambda: rotrnn.StoredHistory(4, PDSSM(4, 3), 4), {"S", "M", "x"}),
    ],
)
def test_layers_around_it_say_what_is_estimated(around: Any, estimated: set[str]) -> None:
    """All other gradients are the slopes."""
    layer = around()
    errors = gradcheck(layer)
    assert layer.estimated == estimated
    assert {one for one in errors if not one.startswith("state")} == layer.shapes.keys() - estimated
