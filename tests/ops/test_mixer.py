"""Properties of `householder_mix` that the table of cases does not test."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases.mixers import gram
from cases.ops import householder_loop, householder_product
from rotrnn.nn.fixed_points.mixer import MIXERS, VECTORS
from rotrnn.ops.mixer import GRAM, householder_mix, householder_mix_backward, mixer_gains, rotation_mix

EPS = np.finfo(np.float64).eps


def applied(u: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Returns Q as applied by the op: its columns are the images of unit vectors."""
    D = u.shape[-1]
    return householder_mix(u, alpha, np.eye(D)[None])[0].T


def test_product_is_in_the_written_order() -> None:
    rng = np.random.default_rng(0)
    u, alpha = rng.standard_normal((3, 6)), rng.uniform(0, 1, 3)
    first, second, third = (applied(u[i : i + 1], alpha[i : i + 1]) for i in range(3))
    np.testing.assert_allclose(applied(u, alpha), first @ second @ third, rtol=0, atol=100 * EPS)
    np.testing.assert_allclose(applied(u, alpha), householder_product(u, alpha), rtol=0, atol=100 * EPS)


def test_gain_one_is_orthogonal_and_reverses_one_direction_each() -> None:
    u = np.random.default_rng(1).standard_normal((5, 40))
    Q = applied(u, np.ones(5))
    np.testing.assert_allclose(Q.T @ Q, np.eye(40), rtol=0, atol=100 * EPS)
    assert np.linalg.det(Q) == pytest.approx(-1, abs=1e-12)  # five reflections


def test_gain_one_half_projects() -> None:
    u = np.random.default_rng(2).standard_normal((1, 9))
    Q = applied(u, np.array([0.5]))
    np.testing.assert_allclose(Q @ Q, Q, rtol=0, atol=100 * EPS)
    np.testing.assert_allclose(Q @ u[0], 0, rtol=0, atol=100 * EPS)


def test_gain_zero_and_no_reflections_are_the_identity() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 4))
    np.testing.assert_array_equal(householder_mix(rng.standard_normal((2, 4)), np.zeros(2), x), x)
    np.testing.assert_array_equal(householder_mix(np.ones((0, 4)), np.ones(0), x), x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_length_of_u_does_not_matter(dtype: type) -> None:
    """Powers of two scale u exactly, over the whole range of the dtype; its gradient scales the other way."""
    rng = np.random.default_rng(4)
    u = rng.standard_normal((2, 7)).astype(dtype)
    alpha, x, dy = rng.uniform(0, 1, 2).astype(dtype), *rng.standard_normal((2, 3, 5, 7)).astype(dtype)
    y, grads = householder_mix(u, alpha, x), householder_mix_backward(dy, u, alpha, x)
    info = np.finfo(dtype)
    for power in (info.minexp // 2, -5, 9, info.maxexp // 2, info.maxexp - 5):
        big = np.ldexp(u, power)
        np.testing.assert_allclose(householder_mix(big, alpha, x), y, rtol=0, atol=50 * info.eps)
        again = householder_mix_backward(dy, big, alpha, x)
        np.testing.assert_allclose(again.dx, grads.dx, rtol=0, atol=50 * info.eps)
        np.testing.assert_allclose(again.dalpha, grads.dalpha, rtol=0, atol=500 * info.eps)
        if abs(power) < info.maxexp - 10:  # 1 / |u| itself is a normal number
            np.testing.assert_allclose(np.ldexp(again.du, power), grads.du, rtol=0, atol=500 * info.eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(
    ("name", "rank", "spectral"),
    [
        *(("householder", 2, False), ("dplr", 2, False), ("low_rank", 2, False), ("kronecker", 1, False)),
        *(("kronecker", 1, True), ("monarch", 4, False), ("dense", 1, False), ("mixture", 2, False)),
    ],
)
def test_size_of_vectors_does_not_matter(dtype: type, varies: bool, name: str, rank: int, spectral: bool) -> None:
    """Powers of two scale vectors exactly, and their gradients the other way, also where squares overflow or vanish."""
    rng, info, D = np.random.default_rng(4), np.finfo(dtype), 8
    mixer = MIXERS[name](D, rank, spectral=spectral)
    lead = (2, 3) if varies else ()
    parts = {part: rng.standard_normal((*lead, *shape)).astype(dtype) for part, shape in mixer.parts.items()}
    x, dy = rng.standard_normal((2, 2, 3, D)).astype(dtype)

    def run(power: int) -> list[np.ndarray]:
        sized = {part: np.ldexp(v, power) if part in VECTORS else v for part, v in parts.items()}
        operands = mixer.operands(sized)
        grads = mixer.mix_backward(operands, dy, x, np.zeros_like(x), None)
        dparts = mixer.operands_backward(sized, operands, grads.operands)
        found = [np.ldexp(d, power) if part in VECTORS else d for part, d in dparts.items()]
        return [mixer.mix(operands, x, np.zeros_like(x), None), grads.dx, *found]

    expected = run(0)
    for power in (info.minexp + 24, info.minexp // 2, -5, 9, info.maxexp // 2, info.maxexp - 10):
        for one, own in zip(run(power), expected, strict=True):
            np.testing.assert_allclose(one, own, rtol=0, atol=500 * info.eps * max(1, np.abs(own).max()))


def test_a_zero_vector_reflects_nothing() -> None:
    rng = np.random.default_rng(5)
    u = rng.standard_normal((3, 4))
    u[1] = 0
    alpha, x = rng.uniform(0, 1, 3), rng.standard_normal((1, 6, 4))
    np.testing.assert_array_equal(householder_mix(u, alpha, x), householder_mix(u[::2], alpha[::2], x))
    grads = householder_mix_backward(x, u, alpha, x)
    assert not grads.du[1].any()
    assert grads.dalpha[1] == 0


def test_numbers_that_are_not_finite_propagate() -> None:
    x = np.ones((1, 2, 3))
    assert np.isnan(householder_mix(np.array([[np.nan, 1, 1]]), np.ones(1), x)).all()
    assert np.isnan(householder_mix(np.array([[np.inf, 1, 1]]), np.ones(1), x)).any()
    assert np.isnan(householder_mix(np.ones((1, 3)), np.array([np.nan]), x)).all()


def test_gradient_of_u_is_across_u() -> None:
    rng = np.random.default_rng(6)
    u, alpha, x, dy = rng.standard_normal((3, 8)), rng.uniform(0, 1, 3), *rng.standard_normal((2, 4, 5, 8))
    du = householder_mix_backward(dy, u, alpha, x).du
    # each of the 20 tokens adds a vector across u up to rounding
    np.testing.assert_allclose(np.sum(du * u, -1), 0, rtol=0, atol=20 * 8 * EPS * np.abs(du).max() * np.abs(u).max())


def test_out() -> None:
    rng = np.random.default_rng(7)
    u, alpha, x = rng.standard_normal((2, 3)), rng.uniform(0, 1, 2), rng.standard_normal((2, 4, 3))
    out = np.full_like(x, np.nan)
    assert householder_mix(u, alpha, x, out=out) is out
    np.testing.assert_array_equal(out, householder_mix(u, alpha, x))


@settings(max_examples=40)
@given(st.data())
def test_any_shape(data: st.DataObject) -> None:
    B, T, R, D = (data.draw(st.integers(0, most)) for most in (3, 40, 4, 70))
    lengths = data.draw(st.none() | st.lists(st.integers(0, T), min_size=B, max_size=B))
    lengths = None if lengths is None else np.array(lengths, np.int64)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    u = rng.standard_normal((B, T, R, D) if data.draw(st.booleans()) else (R, D))
    alpha = rng.uniform(0, 1, (B, T, R) if data.draw(st.booleans()) else (R,))
    x, dy = rng.standard_normal((2, B, T, D))
    y = householder_mix(u, alpha, x, lengths=lengths)
    np.testing.assert_allclose(y, householder_loop(u, alpha, x, lengths)[0], rtol=0, atol=200 * (R + 1) * EPS)
    # Q is linear in x, so <y, dy> = <x, dx> to rounding of D (R + 1) terms a token
    dx = householder_mix_backward(dy, u, alpha, x, lengths=lengths).dx
    assert abs(np.sum(y * dy) - np.sum(x * dx)) <= 1e-11 * (1 + np.sum(np.abs(y * dy)))


X = np.ones((2, 3, 4))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"u": np.ones((1, 5))}, ValueError, r"householder_mix: u has shape \(1, 5\), expected \(R, D=4\)"),
        ({"u": np.ones((2, 4))}, ValueError, r"alpha has shape \(1,\), expected \(R=2,\)"),
        ({"u": np.ones(4)}, ValueError, r"u has shape \(4,\), expected \(R, D\) or \(B, T, R, D\)"),
        ({"alpha": np.ones((2, 1))}, ValueError, r"alpha has shape \(2, 1\)"),
        ({"x": np.ones((2, 4))}, ValueError, r"x has shape \(2, 4\), expected \(B, T, D\)"),
        ({"x": X.astype(int)}, TypeError, "x has dtype int64"),
        ({"x": X.astype(np.float16)}, TypeError, "x has dtype float16"),
        ({"lengths": [3, 4]}, ValueError, r"lengths\[1\] is 4"),
        ({"lengths": [-1, 3]}, ValueError, r"lengths\[0\] is -1"),
        ({"out": np.ones((2, 3, 5))}, ValueError, "out has shape"),
        ({"out": X}, ValueError, "out overlaps an input"),
    ],
)
def test_bad_input(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    good = {"u": np.ones((1, 4)), "alpha": np.ones(1), "x": X}
    with pytest.raises(error, match=message):
        householder_mix(**{**good, **arguments})


@pytest.mark.parametrize("D", [2, 6, 8, 10, 24, 66])
def test_rotations_are_orthogonal_and_few_factors_connect_all_channels(D: int) -> None:
    """The first m factors reach 2^m channels from each, up to all D. A factor rounds each number some 4 times."""
    rng, levels = np.random.default_rng(0), (D - 1).bit_length()
    for R in range(levels + 1):
        Q = rotation_mix(rng.uniform(-20, 20, (R, D // 2)), np.eye(D)[None])[0].T
        assert np.linalg.norm(Q.T @ Q - np.eye(D), 2) <= 8 * D * (R + 1) * EPS
        assert (np.count_nonzero(Q, 0) == min(2**R, D)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rotations_by_large_angles(dtype: type) -> None:
    """Up to 1e16, and next to odd multiples of pi. A cosine and a sine are right to some units in the last place
    of 1."""
    half_turns = np.pi * (2 * 10.0 ** np.arange(15) + 1)
    for size in [*10.0 ** np.arange(17), *half_turns, *np.nextafter(half_turns, 0)]:
        for u in (dtype(size), -dtype(size)):
            turned = rotation_mix(np.full((1, 1), u), np.array([[[1, 0]]], dtype))[0, 0]
            expected = np.cos(np.float64(u)), np.sin(np.float64(u))
            np.testing.assert_allclose(turned, expected, rtol=0, atol=4 * np.finfo(dtype).eps)


def test_bad_input_of_a_rotation() -> None:
    for u, D, message in (
        (np.ones((1, 2)), 3, "rotation_mix: D=3, expected an even number of channels for a rotation"),
        (np.ones((1, 3)), 4, r"rotation_mix: u has shape \(1, 3\), expected \(R, H=2\)"),
        (np.ones(2), 4, r"rotation_mix: u has shape \(2,\), expected \(R, H\) or \(B, T, R, H\)"),
    ):
        with pytest.raises(ValueError, match=message):
            rotation_mix(u, np.ones((2, 3, D)))


def test_the_authors_dense_mixer_is_nearest_with_epsilon_zero() -> None:
    """Their code adds 1e-5 to the length in each step of the power iteration as well, which takes back what it adds to
    the eigenvalue but for a square of it."""
    eps, D = 1e-5, 5
    u = np.random.default_rng(0).standard_normal(D * (D + 1) // 2)
    G, x = gram(u, D), np.full(D, D**-0.5)
    for _ in range(31):
        x = G @ x / (np.linalg.norm(G @ x) + eps)
    code = 1 / (np.linalg.norm(G @ x) + eps)
    code *= 4 ** np.floor(np.log2(np.abs(u).max()))  # the gain of u divided by its power of two
    none, same = (abs(mixer_gains(GRAM, u, np.ones(1), 1, D, eps=one, steps=32)[0] / code - 1) for one in (0.0, eps))
    assert none < eps**2
    assert same > 1e4 * none
