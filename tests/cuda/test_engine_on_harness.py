"""Engine 1 as one kernel (cuda/engine.h), which layers of enough steps take in "tf32" and "bf16".

Where all numbers are small integers and transitions turn by right angles, neither precision rounds anything and sums
are exact in every order: results must be the CPU's to the bit. Other numbers are held against NumPy with the operands
of products rounded.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from test_block_on_harness import Shape, cast, numbers
from test_precision_on_harness import apart, expected, in_precision
from test_precision_on_harness import run as run_block

import rounded
from rotrnn.ops.linear_layer import System, linear_layer, linear_layer_backward
from strict import to_device, to_host

SEEDS = [int(seed) for seed in os.environ.get("HARNESS_SEEDS", "1").split()]
PRECISIONS = ["tf32", "bf16"]


SHAPES = [
    Shape(1, 64, 8, 4),
    Shape(2, 130, 24, 20, 2, (130, 70)),  # two tiles, the last of two steps; two slices, the last of four planes
    Shape(3, 257, 100, 17, 2, (257, 0, 129)),  # tiles of 128 channels; a sequence without steps
    Shape(3, 70, 65, 1, 1, (1, 33, 32)),
    Shape(1, 400, 7, 5),
]
MANY = Shape(130, 300, 8, 3, 2, (300, 255, 256, 257, 128) + (0,) * 124 + (1,))  # segments of two tiles


def integers(shape: Shape, seed: int = 0) -> list[Any]:
    """System, input, first state and gradients of a layer: operands are below 2^8, as bfloat16 has them, sums 2^24."""
    B, T, D, N, K, _ = shape
    rng = np.random.default_rng(seed)

    def draw(*size: int, share: float = 1.0) -> Any:
        return (rng.integers(-1, 2, size) * (rng.random(size) < share)).astype(np.float32)

    def states() -> Any:
        return (draw(K, B, N) + 1j * draw(K, B, N)).astype(np.complex64)

    turn = np.array([1, -1, 1j, -1j], np.complex64)[rng.integers(0, 4, N)]
    system = System(draw(2 * N, D, share=min(1, 2 / D)), turn, draw(K, D, 2 * N, share=1 / N), draw(D))
    return [system, draw(B, T, D, share=0.15), states(), draw(B, T, D, share=0.15), states()]


def on_device(value: Any) -> Any:
    return System(*map(to_device, value)) if isinstance(value, System) else to_device(value)


def run(given: list[Any], shape: Shape) -> list[Any]:
    """y, hT and all gradients of a layer"""
    system, x, h0, dy, dhT = given
    y, hT, saved = linear_layer(system, x, h0, lengths=shape.lengths)
    grads = linear_layer_backward(dy, system, saved, dhT)
    return [to_host(one) for one in (y, hT, *grads.system, grads.du, grads.dh0)]


def engine(given: list[Any], shape: Shape, precision: str, seed: int = 1) -> list[Any]:
    with in_precision(precision, seed):
        return run(list(map(on_device, given)), shape)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [*SHAPES, MANY], ids=lambda shape: str(shape[:5]))
def test_integers_are_exact(shape: Shape, precision: str, seed: int) -> None:
    """Padding is NaN: it is never read, and zero in what is written."""
    given = integers(shape)
    expected = run(given, shape)
    for b, steps in enumerate(shape.lengths or ()):
        given[1][b, steps:] = given[3][b, steps:] = np.nan
    for got, want in zip(engine(given, shape, precision, seed), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def reference(given: list[Any], precision: str | None) -> tuple[Any, Any, Any]:
    """y, du and the sum of |W_out| |h| of a layer in one direction, in double precision, with operands rounded"""
    system, x, h0, dy, dhT = given

    def keep(z: Any) -> Any:
        rule = {"tf32": rounded.to_tf32, "bf16": rounded.to_bf16}.get(precision or "", np.asarray)
        return np.asarray(rule(z.astype(np.float32)), np.float64)

    a, T = system.a.astype(np.complex128), x.shape[1]
    w_in, w_out = keep(system.w_in), keep(system.w_out[0])
    v = (keep(x) @ w_in.T).view(np.complex128)
    dh = (keep(dy) @ w_out).view(np.complex128)
    h, g = np.empty_like(v), np.empty_like(v)
    state, after = h0[0].astype(np.complex128), dhT[0].astype(np.complex128)
    for t in range(T):
        h[:, t] = state = a * state + v[:, t]
    for t in reversed(range(T)):
        g[:, t] = dh[:, t] + after
        after = np.conj(a) * g[:, t]
    y = keep(h.view(np.float64)) @ w_out.T + system.skip * x.astype(np.float64)
    du = keep(g.view(np.float64)) @ w_in + system.skip * dy.astype(np.float64)
    return y, du, np.abs(h.view(np.float64)) @ np.abs(w_out).T


def normal(shape: Shape, seed: int = 0) -> list[Any]:
    B, T, D, N, K, _ = shape
    rng = np.random.default_rng(seed)

    def draw(*shape: int, size: float = 1) -> Any:
        return (size * rng.standard_normal(shape)).astype(np.float32)

    def states() -> Any:
        return (draw(K, B, N) + 1j * draw(K, B, N)).astype(np.complex64)

    a = rng.uniform(0.5, 0.999, N) * np.exp(1j * rng.uniform(-np.pi, np.pi, N))
    system = System(
        draw(2 * N, D, size=D**-0.5), a.astype(np.complex64), draw(K, D, 2 * N, size=(2 * N) ** -0.5), draw(D)
    )
    return [system, draw(B, T, D), states(), draw(B, T, D), states()]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [Shape(1, 200, 40, 20), Shape(1, 140, 128, 16)], ids=str)
def test_operands_are_rounded_and_nothing_else(shape: Shape, precision: str) -> None:
    """A state has an error of 2^-24 of its size a step that it remembers, here some ten: as many flip a rounding of
    2^-11 or 2^-8 as are within that of a tie, less than one in a hundred, and the others agree. So the error is a small
    part of what rounding does: sqrt(12 / 100) of its size at most. A flip is one spacing of a number, 2^-10 or 2^-7.
    """
    given = normal(shape)
    got = engine(given, shape, precision)
    y, du, size = reference(given, precision)
    exact_y, exact_du, _ = reference(given, None)
    for one, want, exact in ((got[0], y, exact_y), (got[6], du, exact_du)):
        assert np.sqrt(np.mean((one - want) ** 2)) < 0.35 * np.sqrt(np.mean((exact - want) ** 2))
    spacing = 2.0**-10 if precision == "tf32" else 2.0**-7
    assert np.all(np.abs(got[0] - y) < spacing * size + 1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_order_of_threads_changes_no_bit(precision: str) -> None:
    shape = Shape(2, 300, 20, 18, 2, (300, 131))
    given = normal(shape)
    for one, two in zip(*(engine(given, shape, precision, seed) for seed in (2, 3)), strict=True):
        np.testing.assert_array_equal(one, two)


def test_transitions_whose_powers_are_infinite_keep_zero() -> None:
    """And the lanes beside them, and transitions of zero, are right."""
    shape = Shape(1, 150, 8, 3)
    given = integers(shape)
    given[0].a[:] = [1e30, 0, 1j]
    given[0].w_in[:2] = 0
    given[0].w_out[:, :, :2] = 0
    given[2][..., 0] = given[4][..., 0] = 0
    for got, want in zip(engine(given, shape, "tf32"), run(given, shape), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("norm", "form"), [("channel", "full"), ("row", "half1"), ("channel", "none")])
def test_blocks(norm: str, form: str, precision: str) -> None:
    """Both directions, ragged, with all that is around the layer. A rounding that goes to the other neighbour is two
    units of a number, and some of a result (`test_precision_on_harness.assert_near`)."""
    shape = Shape(2, 140, 8, 3, 2, (140, 67))
    n = cast(numbers(shape), np.float32)
    with in_precision(precision):
        got = run_block(n, shape, norm, form, keep=True)
    del got["saved"]
    assert apart(got, expected(n, shape, norm, form, rounded.Rounding(precision))) < 4 * rounded.UNIT[precision]
