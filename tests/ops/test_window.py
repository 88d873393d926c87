"""Windowed scans: known answers, errors that do not grow, chunks, any shape, and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases.table import normal
from cases.window import window_loop
from rotrnn import LRU, Context, RopeMemory, RotRNN, _cpu
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward, rotation_scan
from rotrnn.ops.window import WindowState, latest, latest_backward, power_of, tiir_scan

EPS = np.finfo(np.float64).eps
U = float(np.finfo(np.float32).eps) / 2
X = np.ones((2, 3, 4))


def test_known_answers() -> None:
    ones = np.ones((1, 7, 1))
    np.testing.assert_array_equal(diagonal_scan([1.0], ones, window=3)[0, :, 0], [1, 2, 3, 3, 3, 3, 3])
    np.testing.assert_array_equal(diagonal_scan([2.0], ones, window=3)[0, :, 0], [1, 3, 7, 7, 7, 7, 7])
    np.testing.assert_array_equal(diagonal_scan([2.0], ones, window=3, reverse=True)[0, ::-1, 0], [1, 3, 7, 7, 7, 7, 7])
    np.testing.assert_array_equal(diagonal_scan([1j], ones, window=4)[0, :, 0], [1, 1 + 1j, 1j, 0, 0, 0, 0])
    np.testing.assert_array_equal(diagonal_scan([5.0], ones, window=1), ones)
    # inputs 4 and 2 before the first step, aged to just before it: the older one leaves first
    h, hT = diagonal_scan([2.0], ones[:, :2], [[[4.0], [2.0]]], window=3, return_state=True)
    np.testing.assert_array_equal(h[0, :, 0], [13, 11])
    np.testing.assert_array_equal(hT[0, :, 0], [2, 1])
    quarter = rotation_scan(np.array([np.pi / 2]), None, np.array([[[1.0, 0], [0, 0], [0, 0]]]), window=2)
    np.testing.assert_allclose(quarter[0], [[1, 0], [0, 1], [0, 0]], rtol=0, atol=EPS)
    h, state = tiir_scan([2.0], ones, window=3)
    np.testing.assert_array_equal(h[0, :, 0], [1, 3, 7, 7, 7, 7, 7])
    np.testing.assert_array_equal(state.position, [7])


def fading_input(T: int, N: int) -> tuple[Any, Any]:
    """(a of modulus 1, x) in single precision; x loses a factor 1000 at nine tenths of the time."""
    rng = np.random.default_rng(0)
    a = np.exp(1j * rng.uniform(-np.pi, np.pi, N)).astype(np.complex64)
    a[0] = 1
    x = normal(rng, (1, T, N), True)
    x[:, T * 9 // 10 :] *= 1e-3
    assert np.all(np.abs(a.astype(np.complex128)) <= 1 + U)
    return a, x.astype(np.complex64)


def window_sum(a: Any, x: Any, L: int) -> Any:
    """sum_{k<L} a^k x_{t-k}, term by term, in double precision."""
    a, x = a.astype(np.result_type(a, np.float64)), x.astype(np.result_type(x, np.float64))
    total, power = np.zeros_like(x), np.ones_like(a)
    for k in range(min(L, x.shape[1])):
        total[:, k:] += power * x[:, : x.shape[1] - k]
        power = power * a
    return total


@pytest.mark.slow
def test_float32_at_unit_modulus_errs_no_more_after_a_million_steps() -> None:
    """u the unit roundoff, |a| <= 1 + u, so that factors of at most 2L steps stay below 1.01.

    A rounded complex product errs by at most sqrt(8) u of itself, a sum by u. The blocks: an input of age k < L passes
    k products of ages and one of its own, and at most L + 2 sums, so ``|error| <= (3 L + L + 2) u sum |x|``. TIIR, with
    S the sum of |x| over L + 1 inputs, bounds all it adds up: a step errs by ``sqrt(8) u |h|`` and ``sqrt(8) u S`` for
    its products, u S for the power's rounding, and 2 u S for its sums, at most 9 u S; with resets 2 L steps at most.
    Both bounds are local, so they fall with the input. One copy for ever keeps the errors of when it was large.
    """
    T, L = 1_000_000, 16
    a, x = fading_input(T, 2)
    exact = window_sum(a, x, L)
    size = np.abs(x.astype(np.complex128))
    seen = window_sum(np.ones(2), size, L)
    assert np.all(np.abs(diagonal_scan(a, x, window=L) - exact) <= 5 * (L + 2) * U * seen)
    bound = 1.01 * 10 * U * window_sum(np.ones(2), window_sum(np.ones(2), size, L + 1), 2 * L)
    with_resets, without = (np.abs(tiir_scan(a, x, window=L, resets=resets)[0] - exact) for resets in (True, False))
    assert np.all(with_resets <= bound)
    assert np.all(bound[0, -1] < 0.01 * np.abs(exact[0, -L:]).max())  # the bound is not vacuous
    assert np.all(without[0, -1] > 10 * bound[0, -1])
    early, late = (np.sqrt(np.mean(without[0, t : t + 10_000] ** 2)) for t in (1000, T * 9 // 10 - 10_000))
    assert late > 5 * early  # and they grew while it was large


@pytest.mark.parametrize("modulus", [0.5, 0.999])
def test_decaying_transitions_over_long_times(modulus: float) -> None:
    """The same bounds in double precision, plus the reference's own error, that of the blocks; a long window too."""
    rng = np.random.default_rng(1)
    a, x = modulus * np.exp(1j * rng.uniform(-np.pi, np.pi, 2)), normal(rng, (1, 20_000, 2), True)
    for L in (3, 1000):
        exact, seen = window_sum(a, x, L), window_sum(np.ones(2), np.abs(x), L + 1)
        of_blocks = 5 * (L + 2) * EPS / 2 * seen
        assert np.all(np.abs(diagonal_scan(a, x, window=L) - exact) <= 2 * of_blocks)
        bound = 1.01 * 10 * EPS / 2 * window_sum(np.ones(2), seen, 2 * L)
        assert np.all(np.abs(tiir_scan(a, x, window=L)[0] - exact) <= bound + of_blocks)


def test_nan_leaves_with_its_window() -> None:
    x = np.ones((1, 40, 1))
    x[0, 10] = np.nan
    lost = np.isnan(diagonal_scan([1.0], x, window=7)[0, :, 0])
    np.testing.assert_array_equal(lost, (np.arange(40) >= 10) & (np.arange(40) < 17))
    assert np.isfinite(tiir_scan([1.0], x, window=7)[0][0, 10 + 14 :]).all()
    assert np.isnan(tiir_scan([1.0], x, window=7, resets=False)[0][0, 10:]).all()


def test_the_adjoint_of_the_blocks_is_that_of_the_recurrence() -> None:
    """<tiir(x), w> = <x, adjoint w>: two ways through one linear map."""
    rng = np.random.default_rng(2)
    a = np.exp(1j * rng.uniform(0, 7, 3))
    x, w = normal(rng, (2, 2, 50, 3), True)
    h, _ = tiir_scan(a, x, window=8)
    dx = diagonal_scan_backward(w, a, None, x=x, window=8).dx
    size = np.sum(np.abs(h * w))
    assert abs(np.sum((h.conj() * w).real) - np.sum((x.conj() * dx).real)) <= 100 * 50 * EPS * size


@pytest.mark.parametrize("resets", [False, True])
def test_tiir_continues_from_its_state(resets: bool) -> None:
    """Single steps and one call give the same bits; a state can be continued once more; threads make no difference."""
    rng = np.random.default_rng(3)
    a, x = np.exp(1j * rng.uniform(0, 7, 3)), normal(rng, (2, 23, 3), True)
    h, final = tiir_scan(a, x, window=5, resets=resets)
    state, power = None, power_of(a, 5)
    for t in range(23):
        before = None if state is None else WindowState(*state)
        h_t, state = tiir_scan(a, x[:, t : t + 1], state, window=5, power=power, resets=resets)
        again, state = tiir_scan(a, x[:, t : t + 1], before, window=5, resets=resets)
        np.testing.assert_array_equal(h_t[:, 0], h[:, t])
        np.testing.assert_array_equal(again, h_t)
    for got, expected in zip(state, final, strict=True):
        np.testing.assert_array_equal(got, expected)
    wide = normal(rng, (3, 40, 2100), True)
    before, results = _cpu.threads(), []
    for threads in (1, 2):
        _cpu.use_threads(threads)
        results.append(tiir_scan(np.ones(2100), wide, window=5, resets=resets)[0].tobytes())
    _cpu.use_threads(before)
    assert results[0] == results[1]


def test_power_is_rounded_once() -> None:
    for dtype in (np.float32, np.complex64):
        a = np.exp(1j * np.linspace(0, 3, 7)).astype(np.complex64)
        a = a if dtype == np.complex64 else a.real
        power = power_of(a, 1000)
        assert power.dtype == dtype
        exact = a.astype(np.result_type(a, np.float64)) ** 1000
        np.testing.assert_allclose(power, exact, rtol=0, atol=2 * U * np.abs(exact).max())


@settings(max_examples=60)
@given(st.data())
def test_any_shape_and_chunk(data: st.DataObject) -> None:
    """Against a list of inputs; a sequence in two chunks, the gradient of the whole chained through their state."""
    B, T, N = (data.draw(st.integers(0, most)) for most in (2, 40, 5))
    L, split = data.draw(st.integers(1, 50)), data.draw(st.integers(0, T))
    varying, reverse = data.draw(st.booleans()), data.draw(st.booleans())
    lengths = data.draw(st.none() | st.lists(st.integers(0, T), min_size=B, max_size=B))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a = np.exp(1j * rng.uniform(0, 7, (B, T, N) if varying else (N,)))
    x, dh = normal(rng, (2, B, T, N), True)
    h0, dhT = normal(rng, (2, B, L - 1, N), True)
    h, hT = diagonal_scan(a, x, h0, window=L, reverse=reverse, lengths=lengths, return_state=True)
    expected, expected_T = window_loop(a, x, h0, L, reverse, lengths)
    tolerance = 50 * EPS * (min(L, T) + 2) ** 2
    np.testing.assert_allclose(h, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(hT, expected_T, rtol=0, atol=tolerance)
    if lengths is not None or reverse:
        return
    parts = [(a[:, one] if varying else a, x[:, one], dh[:, one]) for one in (slice(split), slice(split, T))]
    (a0, x0, d0), (a1, x1, d1) = parts
    first, state = diagonal_scan(a0, x0, h0, window=L, return_state=True)
    second, last = diagonal_scan(a1, x1, state, window=L, return_state=True)
    np.testing.assert_allclose(np.concatenate([first, second], 1), h, rtol=0, atol=tolerance)
    np.testing.assert_allclose(last, hT, rtol=0, atol=tolerance)
    whole = diagonal_scan_backward(dh, a, None, h0, x=x, dhT=dhT, window=L)
    later = diagonal_scan_backward(d1, a1, None, state, x=x1, dhT=dhT, window=L)
    early = diagonal_scan_backward(d0, a0, None, h0, x=x0, dhT=later.dh0, window=L)
    np.testing.assert_allclose(np.concatenate([early.dx, later.dx], 1), whole.dx, rtol=0, atol=4 * tolerance)
    np.testing.assert_allclose(early.dh0, whole.dh0, rtol=0, atol=4 * tolerance)
    da = np.concatenate([early.da, later.da], 1) if varying else early.da + later.da
    np.testing.assert_allclose(da, whole.da, rtol=0, atol=40 * (B * T + 1) * tolerance)


def test_a_window_beyond_all_inputs_is_none() -> None:
    rng = np.random.default_rng(4)
    a, x = rng.uniform(0.5, 1, 3), rng.standard_normal((2, 9, 3))
    for window in (9, 10, 2**70):
        np.testing.assert_allclose(diagonal_scan(a, x, window=window), diagonal_scan(a, x), rtol=1e-14, atol=0)


def test_a_windowed_layer_is_the_layer_until_the_window_is_full() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 12, 4))
    for wide, narrow in (
        (LRU(4, 6), LRU(4, 6, window=7)),
        # "bounded" has one gain, while that of "input" counts the window (tests/nn/test_spectrum.py)
        (RotRNN(4, 6, heads=2, normalise="bounded"), RotRNN(4, 6, heads=2, normalise="bounded", window=7)),
        (RopeMemory(4, 6, length=9), RopeMemory(4, 6, length=9, window=7)),
    ):
        params = wide.init(np.random.default_rng(6))
        whole, cut = wide.forward(params, x)[0], narrow.forward(params, x)[0]
        np.testing.assert_allclose(cut[:, :7], whole[:, :7], rtol=0, atol=1e-5)  # parameters are folded in float32
        moved = x.copy()
        moved[:, :5] += 1
        after = narrow.forward(params, moved)[0]
        np.testing.assert_array_equal(after[:, 4 + 7 :], cut[:, 4 + 7 :])  # nothing older than the window is left
        assert np.all(np.abs(after[:, 4 + 6] - cut[:, 4 + 6]).max(-1) > 0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *(
            (
                lambda window=window: diagonal_scan(np.ones(4), X, window=window),
                ValueError,
                f"scan: window={window}, exp",
            )
            for window in (0, -3, True, 2.0)
        ),
        (
            lambda: rotation_scan(np.ones(2), None, X, window=0),
            ValueError,
            "rotation_scan: window=0, expected",
        ),
        (
            lambda: diagonal_scan(np.ones(4), X, X[:, 0], window=3),
            ValueError,
            r"h0 has shape \(2, 4\), expected \(B, L-1, N\)",
        ),
        (
            lambda: diagonal_scan(np.ones(4), X, X, window=3),
            ValueError,
            r"h0 has shape \(2, 3, 4\), expected \(B=2, L-1=2, N=4\), with L-1 from window=3",
        ),
        (
            lambda: diagonal_scan_backward(X, np.ones(4), X, window=3),
            ValueError,
            r"diagonal_scan_backward: x is None, expected \(B, T, N\) with window=3",
        ),
        (lambda: diagonal_scan_backward(X, np.ones(4), None), ValueError, r"h is None, expected \(B, T, N\)"),
        (lambda: diagonal_scan(np.ones(4), X, window=2**60, return_state=True), ValueError, "too large to address"),
        (lambda: tiir_scan(np.ones(4), X, window=None), ValueError, "tiir_scan: window=None, expected"),
        (lambda: tiir_scan(np.ones(3), X, window=2), ValueError, r"a has shape \(3,\), expected \(N=4,\)"),
        (
            lambda: tiir_scan(np.ones(4), X, tiir_scan(np.ones(4), X, window=3)[1], window=2),
            ValueError,
            r"state.delay has shape \(2, 4, 4\), expected \(B=2, rows=3, N=4\), with rows from window=2",
        ),
        (
            lambda: tiir_scan(np.ones(4), X, WindowState(X, X[:, :2], np.array([-1, 0])), window=2),
            ValueError,
            r"state.position\[0\] is -1",
        ),
        (
            lambda: tiir_scan(np.ones(4), X, WindowState(X, X[:, :2], np.ones(2)), window=2),
            TypeError,
            "state.position has dtype float64",
        ),
        (lambda: LRU(3, 4, window=0), ValueError, "LRU: window=0, expected a positive integer"),
        (lambda: LRU(3, 4, window=True), ValueError, "LRU: window=True, expected an integer or None"),
        (lambda: RotRNN(3, 4, heads=1, window=1.5), ValueError, "RotRNN: window=1.5, expected an integer or None"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_layers_window_says_what_is_wrong_with_its_state() -> None:
    layer = LRU(5, 3, window=4)
    params = layer.init(np.random.default_rng(0))
    x = np.ones((2, 6, 5), np.float32)
    y, saved = layer.forward(params, x)
    delay, sums, position = saved.state
    for state, error, says in (
        (delay, TypeError, r"state is an ndarray, expected a tuple of 3: \(delay, sums, position\)"),
        ((delay, sums), TypeError, r"state is a tuple of 2, expected a tuple of 3: \(delay, sums, position\)"),
        ((delay[:1], sums, position), ValueError, r"state.delay has shape \(1, 5, 3\), expected \(B=2, 5, 3\)"),
        ((delay[:, 1:], sums, position), ValueError, r"state.delay has shape \(2, 4, 3\), expected \(B=2, 5, 3\)"),
        ((delay, sums, -1 - position), ValueError, r"state.position\[0\] is -7"),
    ):
        with pytest.raises(error, match=f"LRU.forward: {says}"):
            layer.forward(params, x, Context(), state)
        with pytest.raises(error, match=f"(LRU.step|linear_step): {says}"):
            layer.step(params, state, x[:, 0])
    with pytest.raises(ValueError, match=r"LRU.backward: dstate.delay has shape \(1, 5, 3\), expected \(B=2"):
        layer.backward(params, saved, y, (delay[:1], sums[:1], position[:1]))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("T", [0, 2, 6])
def test_latest_inputs_of_ragged_sequences(T: int, reverse: bool) -> None:
    """The last rows of what was there before, followed by the valid inputs in scan order; and the adjoint of that."""
    rng = np.random.default_rng(T)
    rows = 4
    before, x = rng.standard_normal((3, rows, 2)), rng.standard_normal((3, T, 2))
    d, dx = rng.standard_normal((3, rows, 2)), np.zeros_like(x)
    for lengths in (None, np.array([T, 0, T // 2])):
        expected = []
        for b, steps in enumerate([T] * 3 if lengths is None else lengths):
            seen = x[b, :steps][::-1] if reverse else x[b, :steps]
            expected.append(np.concatenate([before[b], seen])[-rows:])
        got = latest(before, x, rows, lengths, reverse)
        np.testing.assert_array_equal(got, expected)
        zeros = latest(0 * before, x, rows, lengths, reverse)
        np.testing.assert_array_equal(latest(None, x, rows, lengths, reverse), zeros)
        dx[:] = 0
        dbefore = latest_backward(d, dx, lengths, reverse)
        both = (d * got).ravel(), (dbefore * before).ravel(), (dx * x).ravel()
        n, size = sum(map(len, both)), sum(np.abs(one).sum() for one in both)
        assert abs(both[0].sum() - both[1].sum() - both[2].sum()) <= n * EPS * size  # a rounding a product and a sum
