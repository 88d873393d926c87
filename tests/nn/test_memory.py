"""Rotational memories: the angles of the slides, and the agreement of reading by age and rotation at each step."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rotrnn.nn.layer import Recurrent, astype
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.layers.memory import RopeMemory, WropeMemory
from rotrnn.nn.layers.rnn import RNN
from rotrnn.nn.layers.selective_rotrnn import SelectiveRotRNN
from rotrnn.nn.layers.stored_history import StoredHistory
from rotrnn.ops.linear_layer import System, linear_layer
from rotrnn.ops.memory import history_read, history_read_backward, wrope_angle

EPS = np.finfo(np.float64).eps


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
def test_angles_of_the_slides(length: int) -> None:
    n = np.arange(50 * length)
    for form in ("warped", "blend"):
        angle = wrope_angle(n, length, form)
        assert angle[0] == 0
        assert np.all(np.diff(angle) > 0)
        assert np.all(angle < 2 * np.pi)
        assert angle[length] == pytest.approx(np.pi, abs=4 * EPS)
        assert wrope_angle(10**9, length, form) == pytest.approx(2 * np.pi, abs=7 * length / 10**9)
    np.testing.assert_allclose(wrope_angle(n, length), 2 * np.pi * n / (n + length), rtol=4 * EPS)
    assert wrope_angle(length, length, "uniform") == 2 * np.pi
    # the blend is continuous, with its slope; as printed it jumps by almost pi
    near = length * np.array([1 - 1e-6, 1, 1 + 1e-6])
    left, right = np.diff(wrope_angle(near, length, "blend"))
    assert left == pytest.approx(np.pi * 1e-6, rel=1e-5)
    assert right == pytest.approx(np.pi * 1e-6, rel=1e-5)
    printed = wrope_angle([length - 1, length], length, "blend_printed")
    assert printed[0] == pytest.approx(np.pi * (length - 1) / length)
    assert printed[1] == pytest.approx(np.pi + np.pi * length / (length + 1))


@settings(max_examples=30)
@given(st.data())
def test_uniform_ages_of_a_stored_history_are_the_recurrence(data: st.DataObject) -> None:
    """Read by age, or aged by one rotation a step: the same memory, of a window or of all, at once or streamed."""
    T, D, N, length = (data.draw(st.integers(1, most)) for most in (30, 3, 4, 40))
    window = data.draw(st.none() | st.integers(1, 35))
    rope, stored = RopeMemory(D, N, length=length, window=window), WropeMemory(D, N, length, window, "uniform")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    params = astype(rope.init(rng), np.float64)
    x = rng.standard_normal((2, T, D))
    expected = rope.forward(params, x)[0]
    tolerance = 100 * (T + 2) ** 1.5 * EPS * max(1, np.abs(expected).max())
    np.testing.assert_allclose(stored.forward(params, x)[0], expected, rtol=0, atol=tolerance)
    state: Any = None
    for t in range(T):
        y, state = stored.step(params, state, x[:, t])
        np.testing.assert_allclose(y, expected[:, t], rtol=0, atol=tolerance)


def test_an_impulse_shows_its_age() -> None:
    """One input: what is read later has its modulus still, and the angle of its age, until it leaves the window."""
    for form in ("warped", "blend", "blend_printed", "uniform"):
        layer = WropeMemory(1, 1, 5, 12, form)
        params = {name: np.zeros(shape) for name, shape in layer.shapes.items()}
        params["B_re"][:] = params["C_re"][:] = 1
        x = np.zeros((1, 20, 1))
        x[0, 0] = 1
        y = layer.forward(params, x)[0][0, :, 0]
        expected = np.where(np.arange(20) < 12, np.cos(wrope_angle(np.arange(20), 5, form)), 0)
        np.testing.assert_allclose(y, expected, rtol=0, atol=50 * EPS)


def test_rope_memory_neither_decays_nor_drifts() -> None:
    layer = RopeMemory(1, 1, length=6)
    params = {name: np.zeros(shape) for name, shape in layer.shapes.items()}
    params["B_re"][:] = params["C_re"][:] = 1
    x = np.zeros((1, 600, 1))
    x[0, 0] = 1
    y = layer.forward(params, x)[0][0, :, 0]
    # e^{2 pi i / 6} is off by an eps, and each step rounds
    np.testing.assert_allclose(y, np.cos(2 * np.pi * np.arange(600) / 6), rtol=0, atol=600 * 4 * EPS)


@pytest.mark.parametrize("length", [8, 50, 30_000])
@pytest.mark.parametrize("impulse", [True, False])
def test_rope_memory_in_float32_errs_no_more_after_many_steps(length: int, impulse: bool) -> None:
    """A stream of chunks and single steps, against the sum with angles reduced exactly: k modulo L.

    Between tiles states are kept in double. So an input B u of D products errs when it is computed and when it is added
    in a tile of 96 steps, and again where the state is read in another tile: (D + 2 * 96 * 6) u of its size, at any
    age. A recurrence in float32 is off by thousands of u here, more with each step.
    """
    D, N, T = 2, 3, 100_000
    layer, rng = RopeMemory(D, N, length=length), np.random.default_rng(0)
    params = layer.init(rng)
    x = rng.standard_normal((1, T, D)).astype(np.float32)
    if impulse:
        x[:, 1:] = 0
    ready, state, y = layer.prepare(params), None, np.empty_like(x)
    cuts = [0, 1, 96, 97, 1000, 50_000, 50_200, T]
    for first, end in itertools.pairwise(cuts):
        if end - first < 500:
            for t in range(first, end):
                y[:, t], state = layer.step(params, state, x[:, t], ready)
        else:
            y[:, first:end], saved = layer.forward(params, x[:, first:end], state=state)
            state = saved.state
    exact = {name: value.astype(np.float64) for name, value in params.items()}
    v = x[0].astype(np.float64) @ (exact["B_re"] + 1j * exact["B_im"]).T
    turn = np.exp(2j * np.pi * (np.arange(T) % length) / length)[:, None]
    h = turn * np.cumsum(turn.conj() * v, 0)
    bound = (D + 2 * 96 * 6) * 2.0**-24 * np.cumsum(np.abs(v), 0)
    assert state.dtype == np.complex128
    assert np.all(np.abs(state[0] - h[-1]) <= bound[-1])
    expected = (h @ (exact["C_re"] + 1j * exact["C_im"]).T).real + exact["D"] * x[0]
    through = bound @ np.abs(exact["C_re"] + 1j * exact["C_im"]).T
    # the product with C and the skip round as well, and y is rounded
    through += (2 * N + 4) * 2.0**-24 * (np.abs(h) @ np.abs(exact["C_re"] + 1j * exact["C_im"]).T + np.abs(expected))
    through += 2.0**-22 * np.abs(exact["D"] * x[0])
    assert np.all(np.abs(y[0] - expected) <= through)
    if impulse:  # the sharp form: not even rounding of the sum
        assert np.abs(y[0] - expected)[1:].max() <= 2 * through[0].max()


def test_tiles_of_exact_transitions_move_what_they_carry() -> None:
    """With an exact transition far from the rounded one, each of the two shows where it is used: between tiles, and in
    the steps of a tile. Both directions, ragged."""
    rng, lengths = np.random.default_rng(4), np.array([200, 0, 97])
    B, T, D, N, K = 3, 200, 2, 3, 2
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    a = np.exp(1j * rng.uniform(0, 7, N)).astype(np.complex64)
    exact = np.exp(1j * rng.uniform(0, 7, N))
    system = System(draw(2 * N, D), a, draw(K, D, 2 * N), draw(D))
    u, h0 = draw(B, T, D), rng.standard_normal((K, B, N)) + 1j
    y, hT, _ = linear_layer(system, u, h0, lengths=lengths, exact=exact)
    v = (u.astype(np.float64) @ system.w_in.astype(np.float64).T).view(np.complex128)
    for k, b in itertools.product(range(K), range(B)):
        tiles = [np.arange(i, min(i + 96, lengths[b])) for i in range(0, lengths[b], 96)]
        carry = h0[k, b]
        for steps in tiles[:: 1 - 2 * k]:
            forced = np.zeros(N, complex)
            for t in steps[:: 1 - 2 * k]:
                forced = a * forced + v[b, t]
            carry = exact ** len(steps) * carry + forced
        # 96 steps of 6 u each, on sums of up to 200 inputs and h0 of about sqrt(D) and 1
        np.testing.assert_allclose(hT[k, b], carry, rtol=0, atol=96 * 6 * 2.0**-24 * (2 + np.abs(v[b]).sum(0).max()))
    np.testing.assert_array_equal(hT[:, 1], h0[:, 1])
    assert y.dtype == np.float32


def test_wrope_memory_steps_in_any_order_of_lengths() -> None:
    """The weights that a stream keeps are those of its ages, however many there are."""
    layer, rng = WropeMemory(2, 3, 5), np.random.default_rng(0)
    params = astype(layer.init(rng), np.float64)
    x, ready = rng.standard_normal((2, 70, 2)), layer.prepare(params)
    expected = layer.forward(params, x)[0]
    for T in (70, 3, 40):
        state: Any = None
        for t in range(T):
            y, state = layer.step(params, state, x[:, t], ready)
            np.testing.assert_allclose(y, expected[:, t], rtol=0, atol=1e4 * EPS * max(1, np.abs(expected).max()))
        assert state.shape == (2, T, 3)


@pytest.mark.parametrize(
    "layer",
    [
        WropeMemory(2, 3, 5),
        SelectiveRotRNN(2, 4, gamma="input"),
        StoredHistory(2, RNN(2, 4), 5, read="ages"),
        StoredHistory(2, RNN(2, 4), 5, read="content"),
    ],
    ids=repr,
)
def test_a_state_of_double_precision_makes_results_of_it(layer: Recurrent) -> None:
    """As if all were in double precision but for the rounding of a product of the input or of what is stored."""
    rng = np.random.default_rng(0)
    params, x = layer.init(rng), rng.standard_normal((2, 6, 2), dtype=np.float32)
    wide = astype(params, np.float64)
    state: Any = layer.forward(wide, x[:, :3].astype(np.float64))[1].state
    y, saved = layer.forward(params, x[:, 3:], state=state)
    expected, known = layer.forward(wide, x[:, 3:].astype(np.float64), state=state)
    dx, dparams, _ = layer.backward(params, saved, np.ones_like(y))
    dx_known, dparams_known, _ = layer.backward(wide, known, np.ones_like(expected))
    for got, right in ((y, expected), (dx, dx_known), *((dparams[name], dparams_known[name]) for name in params)):
        np.testing.assert_allclose(got, right, rtol=0, atol=1e-5 * max(1, np.abs(right).max()))


def test_a_full_memory_of_white_inputs_has_unit_norm() -> None:
    """E|h|^2 = 1 in each plane: sum_{k<M} E|B u|^2 = M D 2 / (2 D M)."""
    for layer in (RopeMemory(8, 4000, length=50), RopeMemory(8, 4000, length=99, window=50)):
        params = layer.init(np.random.default_rng(0))
        power = 50 * np.sum(params["B_re"].astype(float) ** 2 + params["B_im"].astype(float) ** 2, 1)
        assert abs(power.mean() - 1) < 4 * power.std() / np.sqrt(len(power))


def test_a_history_does_not_depend_on_its_batch() -> None:
    rng = np.random.default_rng(0)
    weights, h = np.exp(1j * rng.uniform(0, 7, 5)), rng.standard_normal((2, 9, 3)) + 0j
    together = history_read(weights, h, lengths=[4, 9])
    np.testing.assert_array_equal(together[0, :4], history_read(weights, h[:1, :4])[0])


@pytest.mark.parametrize("M", [1, 2, 100, 171, 400, 511, 3000])
@pytest.mark.parametrize("T", [1, 511, 512, 513, 1700])
def test_pieces_of_a_history_add_up(T: int, M: int) -> None:
    rng = np.random.default_rng(2)
    weights, h = np.exp(1j * rng.uniform(0, 7, M)), rng.standard_normal((1, T, 1)) + 1j
    expected = np.convolve(h[0, :, 0], weights)[:T]
    m = history_read(weights, h)[0, :, 0]
    np.testing.assert_allclose(m, expected, rtol=0, atol=64 * EPS * np.linalg.norm(h) * np.sqrt(M))


@pytest.mark.parametrize("angle", [0.0, 0.1234567])
def test_a_history_in_float32_errs_relative_to_its_largest_sum(angle: float) -> None:
    """By up to 6e-7 of it as docs/guarantees.md has it. Beside the largest state, 1, that can be any factor more."""
    M, T = 1000, 15_000
    h = np.exp(2j * np.pi * angle * np.arange(T)).astype(np.complex64)
    for weights in (np.ones(M, np.complex64), np.exp(1j * wrope_angle(np.arange(M), 100)).astype(np.complex64)):
        expected = history_read(weights.astype(complex), h[None, :, None].astype(complex))[0, :, 0]
        error = np.abs(history_read(weights, h[None, :, None])[0, :, 0] - expected).max()
        assert error <= 6e-7 * np.abs(expected).max()
        assert angle or error > 1e-5


def test_what_is_not_finite_stays_near_its_window() -> None:
    h = np.ones((1, 4000, 1), np.complex64)
    h[0, 2000] = np.nan
    finite = np.isfinite(history_read(np.ones(5, np.complex64), h)[0, :, 0])
    assert finite[:1400].all()
    assert finite[2600:].all()
    assert not finite[2000:2005].any()


def test_the_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "rotational_memory.py"))
    example["draw"](2000).savefig(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").stat().st_size > 10_000
    last = {label: error[-100:].mean() for label, error in example["errors"](2000, 20).items()}
    assert last["one copy, no resets"] > 2 * last["two copies with resets"] > 0


SHORT = WropeMemory(1, 2, 4, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wrope_angle([1, -1], 4), "wrope_angle: n has an age that is negative or not finite"),
        (lambda: wrope_angle(np.nan, 4), "negative or not finite"),
        (lambda: wrope_angle(1, 0), "wrope_angle: length=0, expected a positive integer"),
        (lambda: wrope_angle(1, True), "length=True, expected"),
        (lambda: wrope_angle(1, 4, "wraped"), "form='wraped', expected one of uniform, warped, blend, blend_printed"),
        (lambda: history_read(np.ones(3) + 0j, np.ones((1, 2)) + 0j), r"history_read: h has shape \(1, 2\)"),
        (
            lambda: history_read(np.ones(3) + 0j, np.ones((1, 2, 3)) + 0j, np.ones((2, 2, 3)) + 0j),
            r"past has shape \(2, 2, 3\), expected \(B=1",
        ),
        (lambda: history_read_backward(np.ones((1, 2)) + 0j, np.ones(3) + 0j), "history_read_backward: dm has shape"),
        (lambda: RopeMemory(3, 2, length=0), "RopeMemory: length=0, expected a positive integer"),
        (lambda: WropeMemory(3, 2, 4.0), "WropeMemory: length=4.0, expected an integer"),
        (lambda: WropeMemory(3, 2, 4, 0), "WropeMemory: window=0, expected a positive integer"),
        (lambda: WropeMemory(3, 2, 4, form="round"), "WropeMemory: form='round', expected one of uniform"),
        (
            lambda: WropeMemory(1, 2, 4, 3).forward(
                WropeMemory(1, 2, 4, 3).init(np.random.default_rng(0)),
                np.ones((1, 2, 1)),
                state=np.ones((1, 3, 2)) + 0j,
            ),
            r"WropeMemory.forward: state has shape \(1, 3, 2\), expected \(B=1, 2, 2\)",
        ),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "layer", [LRU(4, 6, window=5), RopeMemory(4, 6, length=7, window=5)], ids=lambda one: type(one).__name__
)
def test_a_part_of_a_windows_gradient_may_be_none(layer: Recurrent) -> None:
    rng = np.random.default_rng(0)
    params = astype(layer.init(rng), np.float64)
    y, saved = layer.forward(params, rng.standard_normal((2, 9, 4)))
    delay, sums = (rng.standard_normal(one.shape) + 0j for one in saved.state[:2])
    zero = tuple(np.zeros_like(one) for one in (delay, sums))
    for some, whole in (((delay, None), (delay, zero[1])), ((None, sums), (zero[0], sums)), ((None, None), zero)):
        found = layer.backward(params, saved, np.ones_like(y), (*some, None))
        wanted = layer.backward(params, saved, np.ones_like(y), (*whole, None))
        np.testing.assert_array_equal(found[0], wanted[0])
        for name, gradient in found[1].items():
            np.testing.assert_array_equal(gradient, wanted[1][name])
