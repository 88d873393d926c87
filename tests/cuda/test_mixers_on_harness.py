"""Mixers, fixed points in depth, lagged maps and rotations on the CUDA kernels, beyond the table of cases: several
tokens of a warp, rooms in global memory, several blocks, float32, extreme numbers, NaN in padding."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from cuda_harness import on_harness
from rotrnn._cpu import MIXER
from rotrnn.nn.fixed_points.mixer import MIXERS
from rotrnn.ops.fixed_point import PreparedMixer, depth_pass, depth_solve, prepare_mixer, relax
from rotrnn.ops.lagged import Columns, lagged_maps, lagged_maps_backward, lagged_products
from rotrnn.ops.mixer import (
    dplr_mix,
    dplr_mix_backward,
    householder_mix,
    householder_mix_backward,
    kronecker_mix,
    kronecker_mix_backward,
    low_rank_mix,
    low_rank_mix_backward,
)
from rotrnn.ops.orthogonal import orthogonal, orthogonal_backward
from strict import StrictArray, to_device, to_host

SEEDS = [int(seed) for seed in os.environ.get("HARNESS_SEEDS", "1").split()]
FORMS = {
    "householder": (householder_mix, householder_mix_backward),
    "dplr": (dplr_mix, dplr_mix_backward),
    "low_rank": (low_rank_mix, low_rank_mix_backward),
    "kronecker": (kronecker_mix, kronecker_mix_backward),
}

pytestmark = pytest.mark.parametrize("seed", SEEDS)


def arrays_of(results: Any) -> list[Any]:
    """The arrays of a result, or of nested tuples and lists of them."""
    if isinstance(results, tuple | list):
        return [array for one in results for array in arrays_of(one)]
    return [] if results is None else [results]


def compare(function: Any, seed: int, terms: int, *args: Any) -> list[Any]:
    """Calls function(*args) on the CPU and on the harness, and returns the CPU's arrays. Both sum `terms` rounded
    products, in different orders."""
    expected = arrays_of(function(*args))
    with on_harness(seed):
        got = arrays_of(function(*map(to_device, args)))
    for one, other in zip(got, expected, strict=True):
        assert isinstance(one, StrictArray)
        assert one.dtype == other.dtype
        largest = np.max(np.abs(other), initial=0, where=np.isfinite(other))
        tolerance = 8 * terms * np.finfo(other.dtype).eps * max(1.0, float(largest))
        np.testing.assert_allclose(to_host(one), other, rtol=0, atol=tolerance)
    return expected


def mixer_arrays(
    rng: np.random.Generator, form: str, tokens: tuple[int, ...], R: int, D: int, dtype: Any = np.float64
) -> tuple[Any, Any]:
    """u and alpha, for each of `tokens` if there are any."""
    u_shape, alpha_shape = (R, D), (R,)
    if form == "kronecker":
        b = D // R
        u_shape, alpha_shape = ((R * (R + 1) + b * (b + 1)) // 2,), (R + b,)
    u = rng.standard_normal((*tokens, *u_shape)).astype(dtype)
    return u, rng.uniform(-0.2, 1.2, (*tokens, *alpha_shape)).astype(dtype)


def poison(lengths: Any, *arrays: Any) -> None:
    """NaN in the padding of arrays (B, T, ...)."""
    for array in arrays:
        for b, steps in enumerate(lengths):
            array[b, steps:] = np.nan


def mix(form: str, R: int, lengths: Any, *args: Any) -> Any:
    """Forward and backward."""
    forward, backward = FORMS[form]
    dy, u, alpha, x, origin = args
    rows = {"rows": R} if form == "kronecker" else {}
    y = forward(u, alpha, x, origin=origin, lengths=lengths, **rows)
    return y, tuple(backward(dy, u, alpha, x, origin=origin, lengths=lengths, **rows))


@pytest.mark.parametrize(
    ("form", "B", "T", "R", "D", "varying", "dtype"),
    [
        ("dplr", 3, 700, 1, 3, False, "float64"),  # warps take two tokens, of which one is of another sequence
        ("householder", 1, 2060, 1, 2, False, "float64"),
        ("householder", 2, 3, 3, 700, True, "float64"),  # rooms in global memory
        ("kronecker", 2, 3, 1, 40, True, "float64"),
        ("kronecker", 2, 3, 40, 40, False, "float64"),
        *((form, 2, 9, 2, 70, True, "float32") for form in FORMS),
        ("householder", 2, 9, 0, 5, True, "float64"),
        ("low_rank", 2, 9, 0, 5, False, "float64"),
        ("dplr", 2, 9, 2, 0, True, "float64"),
    ],
)
def test_mixers(form: str, B: int, T: int, R: int, D: int, varying: bool, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(1)
    u, alpha = mixer_arrays(rng, form, (B, T) if varying else (), R, D, dtype)
    x, origin, dy = (rng.standard_normal((B, T, D)).astype(dtype) for _ in range(3))
    lengths = (T, T // 2, T)[:B]
    poison(lengths, x, origin, dy, *((u, alpha) if varying else ()))
    compare(lambda *args: mix(form, R, lengths, *args), seed, 16 * (D + 4) * (R + 1) + B * T, dy, u, alpha, x, origin)


def test_vectors_of_any_magnitude(seed: int) -> None:
    """Directions whose squared norm overflows, or is zero in rounding, and the zero vector."""
    rng = np.random.default_rng(2)
    u, alpha = mixer_arrays(rng, "dplr", (1, 5), 2, 33)
    u *= np.array([1e-200, 1e200, 1e-310, 0, 1e308])[:, None, None] / 8
    x = rng.standard_normal((1, 5, 33))
    compare(dplr_mix, seed, 200, u, alpha, x)


@pytest.mark.parametrize("power", [-100, 100])
@pytest.mark.parametrize(("name", "rank"), [("kronecker", 1), ("monarch", 3), ("dense", 1)])
def test_triangles_of_any_magnitude(name: str, rank: int, power: int, seed: int) -> None:
    """Their squares are beyond float32 (tests/ops/test_mixer.py)."""
    rng, mixer, size = np.random.default_rng(3), MIXERS[name](6, rank), np.float32(2) ** power
    lead = {"u": size, "alpha": np.float32(1)}
    parts = [lead[part] * rng.standard_normal((2, 3, *shape), dtype=np.float32) for part, shape in mixer.parts.items()]
    x, dy, origin = rng.standard_normal((3, 2, 3, 6), dtype=np.float32)

    def run(x: Any, dy: Any, origin: Any, *parts: Any) -> Any:
        given = dict(zip(mixer.parts, parts, strict=True))
        operands = mixer.operands(given)
        grads = mixer.mix_backward(operands, dy, x, origin, None)
        dparts = mixer.operands_backward(given, operands, grads.operands)
        return mixer.mix(operands, x, origin, None), grads.dx, *(d * lead[part] for part, d in dparts.items())

    compare(run, seed, 16 * 6 * 33, x, dy, origin, *parts)


@pytest.mark.parametrize("each_step", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_relax(each_step: bool, dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(3)
    y, f = (rng.standard_normal((5, 300, 37)).astype(dtype) for _ in range(2))
    s = rng.uniform(0, 1, 5).astype(dtype)
    lengths = (300, 0, 17, 200, 1)
    y[3, 100, 36] = np.nan  # a residual that is NaN
    f[4] = 0  # and one that is large
    poison(lengths, f)

    def run(y: Any, f: Any, s: Any) -> Any:
        y = y.copy()
        return relax(y, f, s, lengths=lengths, each_step=each_step), y

    residual, _ = compare(run, seed, 4, y, f, s)
    assert np.isnan(residual[3])
    assert residual[1] == 0


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize(
    ("form", "R", "varying", "scaled", "dtype"),
    [
        ("householder", 2, True, True, np.float64),
        ("dplr", 1, False, False, np.float64),
        ("low_rank", 2, True, False, np.float32),
        ("kronecker", 7, True, True, np.float64),
        ("kronecker", 1, False, True, np.float64),  # rooms in global memory
    ],
)
def test_depth_pass(form: str, R: int, varying: bool, scaled: bool, dtype: Any, adjoint: bool, seed: int) -> None:
    """70 channels: three warps, the last with lanes to spare; more steps than are read ahead."""
    rng = np.random.default_rng(4)
    B, T, D = 3, 19, 70
    u, alpha = mixer_arrays(rng, form, (B, T) if varying else (), R, D, dtype)
    y, x = (rng.standard_normal((B, T, D)).astype(dtype) for _ in range(2))
    lam = rng.uniform(-1, 1, (B, T, D) if varying else (D,)).astype(dtype)
    h0, s = rng.standard_normal((B, D)).astype(dtype), rng.uniform(0, 1, B).astype(dtype)
    lengths = (T, 0, 11)
    poison(lengths, y, x, *((lam,) if varying else ()))

    def run(u: Any, alpha: Any, y: Any, x: Any, lam: Any, h0: Any, s: Any) -> Any:
        mixer, y = prepare_mixer(MIXER[form], R, u, alpha, D), y.copy()
        assert isinstance(mixer, PreparedMixer)
        return depth_pass(y, x, lam, mixer, h0, s, scaled=scaled, adjoint=adjoint, lengths=lengths), y

    compare(run, seed, 16 * (D + 4) * (R + 1) + T, u, alpha, y, x, lam, h0, s)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("form", "R", "varying", "scaled", "tile"),
    [
        ("householder", 3, True, True, None),
        ("householder", 2, False, False, None),
        ("dplr", 2, True, True, None),
        ("low_rank", 3, True, True, None),
        ("householder", 2, True, True, 1),
        ("kronecker", 5, True, True, 4),
        ("low_rank", 2, False, True, 30),
        ("householder", 2, True, True, -1),
        ("dplr", 3, True, True, -4),
    ],
)
def test_depth_solve(
    form: str, R: int, varying: bool, scaled: bool, tile: int | None, dtype: Any, adjoint: bool, seed: int
) -> None:
    """70 channels. Gains keep |I - Q| (1 - lam) below 0.6, so systems have a condition of (1 + 0.6) / (1 - 0.6) = 4.
    Steps of 0.8 leave 0.2 of an error at least, and 0.2^8 is above rounding: no residual is zero, and both count the
    same. Negative tiles are accelerated, for 3 iterations, before differences of residuals are as small as rounding."""
    rng = np.random.default_rng(4)
    B, T, D = 3, 19, 70
    u, alpha = mixer_arrays(rng, form, (B, T) if varying else (), R, D, dtype)
    alpha = np.abs(alpha) % 0.05 if form == "kronecker" else 0.3 / R * np.abs(alpha) / (1 + np.abs(alpha))
    y, x = (rng.standard_normal((B, T, D)).astype(dtype) for _ in range(2))
    lam = rng.uniform(0.5, 1, (B, T, D) if varying else (D,)).astype(dtype)
    h0 = rng.standard_normal((B, D)).astype(dtype)
    lengths = (T, 0, 11)
    poison(lengths, y, x, *((lam,) if varying else ()))

    def run(u: Any, alpha: Any, y: Any, x: Any, lam: Any, h0: Any) -> Any:
        mixer, y = prepare_mixer(MIXER[form], R, u, alpha, D), y.copy()
        rules: dict[str, Any] = {"tile": tile, "tol": 1e-30, "limit": 8, "first": 0.8, "shrink": 0.9, "patience": 5}
        if tile is not None and tile < 0:
            rules |= {"tile": -tile, "limit": 3, "accelerate": True}
        found = depth_solve(y, x, lam, mixer, h0, **rules, scaled=scaled, adjoint=adjoint, lengths=lengths)
        counts = (one.astype(dtype) for one in (found.iterations, found.applied))
        return y, *(() if adjoint else (found.h,)), *counts

    compare(run, seed, 4 * 16 * (D + 4) * (R + 1) * 8 + T, u, alpha.astype(dtype), y, x, lam, h0)


COLUMNS = (Columns(40, "unit"), Columns(0, "linear"), Columns(3, "silu"), Columns(33, "linear"), Columns(2, "softplus"))


@pytest.mark.parametrize(("B", "T", "E"), [(3, 20, 5), (2, 1, 3), (2, 3, 0), (0, 3, 2), (2, 0, 2)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_lagged_products(B: int, T: int, E: int, dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(5)
    K = sum(width for width, _ in COLUMNS)
    base, y = rng.standard_normal((B, T, K)).astype(dtype), rng.standard_normal((B, T, E)).astype(dtype)
    v, first = rng.standard_normal((K, E)).astype(dtype), rng.standard_normal((B, K)).astype(dtype)
    lengths = (T, T // 2, 0)[:B]
    poison(lengths, base, y)
    compare(lambda *args: lagged_products(*args, COLUMNS, lengths=lengths), seed, 32 + 4 * (K + E), base, y, v, first)


@pytest.mark.parametrize(("B", "T", "width"), [(3, 700, 1), (2, 2, 1700)])
def test_lagged_maps(B: int, T: int, width: int, seed: int) -> None:
    """Several steps of a warp; rooms in global memory."""
    rng = np.random.default_rng(6)
    columns = (Columns(width, "unit"), Columns(1, "sigmoid"))
    base, late = rng.standard_normal((2, B, T, width + 1))
    first, douts = rng.standard_normal((B, width + 1)), [rng.standard_normal((B, T, n)) for n, _ in columns]
    lengths = (T, 0, T // 3)[:B]
    poison(lengths, base, late, *douts)

    def run(base: Any, late: Any, first: Any, *douts: Any) -> Any:
        grads = lagged_maps_backward(list(douts), base, late, first, columns, lengths=lengths)
        return lagged_maps(base, late, first, columns, lengths=lengths), tuple(grads)

    compare(run, seed, 32 + width, base, late, first, *douts)


@pytest.mark.parametrize(
    ("n", "sizes", "dtype"),
    [
        (33, (0.1, 1e3), np.float64),  # the second is squared more often than there are launches
        (32, (0.1, 100), np.float64),
        (40, (1, 3), np.float32),
        (5, (1, 1e5), np.float64),
    ],
)
def test_rotations(n: int, sizes: tuple[float, float], dtype: Any, seed: int) -> None:
    """Matrices of a stack that are squared back by different numbers. An error of one rounding in an angle grows with
    it, up to |M - M^T|_2 < 4 n size."""
    rng = np.random.default_rng(7)
    M = (rng.standard_normal((2, n, n)) * np.array(sizes)[:, None, None]).astype(dtype)
    dP = rng.standard_normal((2, n, n)).astype(dtype)
    terms = int(n * (20 + 4 * max(sizes) * n)) if dtype == np.float64 else 1  # float32 is only rounded at the end

    def run(M: Any, dP: Any) -> Any:
        return orthogonal(M), orthogonal_backward(dP, M)

    P, _ = compare(run, seed, terms, M, dP)
    np.testing.assert_allclose(
        P @ np.swapaxes(P, 1, 2), np.broadcast_to(np.eye(n), P.shape), atol=n * np.finfo(dtype).eps
    )


@pytest.mark.parametrize("number", [np.nan, np.inf, 1.1e6])
@pytest.mark.parametrize("n", [3, 40])
def test_a_number_out_of_range_makes_a_rotation_nan(number: float, n: int, seed: int) -> None:
    rng = np.random.default_rng(8)
    M = rng.standard_normal((2, n, n))
    expected = orthogonal(M[0])
    M[1, 1, 2] = number
    with on_harness(seed):
        P = to_host(orthogonal(to_device(M)))
        dM = to_host(orthogonal_backward(to_device(M), to_device(M)))
    np.testing.assert_allclose(P[0], expected, atol=100 * n * np.finfo(np.float64).eps)
    assert np.isnan(P[1]).all()
    assert np.isnan(dM[1]).all()
