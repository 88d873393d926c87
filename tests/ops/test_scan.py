"""Properties of scans and products that the table of cases does not test: promotion, `out`, any shape, and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases.ops import rotation_loop
from cases.table import normal, scan_loop
from patience import PATIENCE
from rotrnn import _cpu
from rotrnn.ops.dense import dense, dense_backward, matmul
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward, rotation_scan, rotation_scan_backward

EPS = np.finfo(np.float64).eps
X = np.ones((2, 3, 4))
Z = X.astype(np.complex128)


def test_known_answers() -> None:
    np.testing.assert_array_equal(diagonal_scan([2.0], [[[1.0], [1.0], [1.0]]])[0, :, 0], [1, 3, 7])
    np.testing.assert_array_equal(diagonal_scan([2.0], [[[1.0], [1.0], [1.0]]], reverse=True)[0, :, 0], [7, 3, 1])
    np.testing.assert_array_equal(diagonal_scan([1j], [[[1.0], [0.0], [0.0]]])[0, :, 0], [1, 1j, -1])
    quarter = rotation_scan(np.array([np.pi / 2]), None, np.array([[[1.0, 0.0], [0.0, 0.0]]]))
    np.testing.assert_allclose(quarter[0], [[1, 0], [0, 1]], rtol=0, atol=EPS)  # counter-clockwise


@pytest.mark.parametrize(
    ("a", "x", "expected"),
    [
        (np.float32, np.float32, np.float32),
        (np.float32, np.float64, np.float64),
        (np.complex64, np.float32, np.complex64),
        (np.float64, np.complex64, np.complex128),
    ],
)
def test_promotion_is_numpys(a: Any, x: Any, expected: Any) -> None:
    h, hT = diagonal_scan(np.ones(4, a), X.astype(x), return_state=True)
    assert h.dtype == hT.dtype == expected
    np.testing.assert_array_equal(h, np.cumsum(X, 1))


def test_no_steps_pass_the_state_through() -> None:
    h0, dhT = np.random.default_rng(0).standard_normal((2, 2, 4))
    h, hT = diagonal_scan(np.ones(4), X[:, :0], h0, return_state=True)
    assert h.shape == (2, 0, 4)
    np.testing.assert_array_equal(hT, h0)
    grads = diagonal_scan_backward(h, np.ones(4), h, h0, dhT=dhT)
    np.testing.assert_array_equal(grads.dh0, dhT)
    h, hT = diagonal_scan(np.ones(4), X, h0, lengths=[0, 3], return_state=True)
    np.testing.assert_array_equal(hT[0], h0[0])


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.complex128])
def test_the_final_states_gradient_enters_as_it_is(dtype: Any) -> None:
    """No product touches dhT before the first step back, or at all without one: infinities stay."""
    dhT = np.array([[np.inf, -np.inf, -0.0, 3], [-0.0, 1, np.inf, -np.inf]], dtype)
    if np.iscomplexobj(dhT):
        dhT.imag = dhT.real[::-1, ::-1]
    x, a = np.zeros((2, 1, 4), dtype), np.ones(4, dtype)
    grads = diagonal_scan_backward(x[:, :0], a, x[:, :0], dhT=dhT)
    assert grads.dh0.tobytes() == dhT.tobytes()
    for reverse in (False, True):
        grads = diagonal_scan_backward(x, a, x, dhT=dhT, reverse=reverse)
        np.testing.assert_array_equal(grads.dx[:, 0], dhT)
        grads = diagonal_scan_backward(x, a, x, dhT=dhT, reverse=reverse, lengths=[1, 0])
        assert grads.dh0[1].tobytes() == dhT[1].tobytes()


def test_out_receives_the_result_without_a_copy() -> None:
    out = np.full_like(X, np.nan)
    assert diagonal_scan(np.ones(4), X, out=out) is out
    np.testing.assert_array_equal(out, np.cumsum(X, 1))
    dx = np.empty_like(X)
    assert diagonal_scan_backward(X, np.ones(4), out, out=dx).dx is dx


def test_nan_and_infinity_go_where_the_recurrence_takes_them() -> None:
    x = X.copy()
    x[0, 1, 2] = np.nan
    h = diagonal_scan(np.full(4, 0.5), x)
    assert np.isnan(h[0, 1:, 2]).all()
    assert np.isfinite(np.delete(h[0], 2, axis=1)).all()
    assert np.isfinite(h[1]).all()


LONG = 2**17 + 3


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_long_sequences_of_whole_numbers_are_exact(dtype: Any, reverse: bool) -> None:
    """Transitions that round nothing: sums stay below 2^24, so a segment of time off by one step or sign shows."""
    a = np.array([1, -1, 0] + [1j, -1j] * np.iscomplexobj(dtype(0)), dtype)
    rng = np.random.default_rng(0)
    x, dh = rng.integers(-9, 10, (2, 1, LONG, len(a))).astype(dtype)
    h0, dhT = rng.integers(-9, 10, (2, 1, len(a))).astype(dtype)

    def expected(a: Any, x: Any, first: Any) -> Any:
        """sum_{s <= t} a^(t-s) x_s + a^(t+1) first, by a^t sum a^-s x_s for the four units; a = 0 gives x."""
        t = np.arange(LONG)[:, None]
        phase = np.round(2 * np.angle(a) / np.pi).astype(int)
        powers = np.array([1, 1j, -1, -1j])
        sums = powers[phase * t % 4] * (np.cumsum(powers[-phase * t % 4] * x, 0) + powers[phase] * first)
        return np.where(a == 0, x, sums)

    h, hT = diagonal_scan(a, x, h0, reverse=reverse, return_state=True)
    time = slice(None, None, -1) if reverse else slice(None)
    np.testing.assert_array_equal(h[0, time], expected(a, x[0, time], h0[0]))
    np.testing.assert_array_equal(hT, h[:, 0 if reverse else -1])
    grads = diagonal_scan_backward(dh, a, h, h0, dhT=dhT, reverse=reverse)
    back = dh[0, time][::-1].copy()
    back[0] += dhT[0]
    g = expected(a.conj(), back, np.zeros_like(h0[0]))
    np.testing.assert_array_equal(grads.dx[0, time][::-1], g)
    np.testing.assert_array_equal(grads.dh0[0], a.conj() * g[-1])


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_long_sequences_on_the_unit_circle(reverse: bool) -> None:
    """|a| = 1: nothing decays, so every rounding of a step stays, at most 2 eps of the state it is made on (a complex
    product and a sum); passing a segment's state on adds those of a^K, at most as many as its steps. The states of the
    segments from zero are differences of states: at most twice the largest."""
    rng = np.random.default_rng(0)
    a = np.exp(1j * rng.uniform(-np.pi, np.pi, 3))
    x, dh = normal(rng, (2, 1, LONG, 3), True)
    h, hT = diagonal_scan(a, x, return_state=True, reverse=reverse)
    wide, wide_T = scan_loop(a.astype(np.clongdouble), x, None, reverse)
    np.testing.assert_allclose(h, wide, rtol=0, atol=8 * LONG * EPS * np.max(np.abs(wide)))
    np.testing.assert_allclose(hT, wide_T, rtol=0, atol=8 * LONG * EPS * np.max(np.abs(wide)))
    g, _ = scan_loop(a.conj().astype(np.clongdouble), dh, None, not reverse)
    grads = diagonal_scan_backward(dh, a, h, reverse=reverse)
    np.testing.assert_allclose(grads.dx, g, rtol=0, atol=8 * LONG * EPS * np.max(np.abs(g)))
    before = np.zeros_like(h)
    if reverse:
        before[:, :-1] = h[:, 1:]
    else:
        before[:, 1:] = h[:, :-1]
    da = np.sum(g * before.conj(), (0, 1))
    size = np.sum(np.abs(g) * np.max(np.abs(before)) + np.max(np.abs(g)) * np.abs(before), (0, 1))
    assert np.all(np.abs(grads.da - da) <= 8 * LONG * EPS * size)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_states_pass_between_segments_as_the_steps_take_them(dtype: Any, reverse: bool) -> None:
    """a^K overflows where the state is still zero, and vanishes where it is infinite."""
    x = np.zeros((1, 40_000, 2), dtype)
    a = np.array([1e30, 1e-30], dtype)
    time = slice(None, None, -1) if reverse else slice(None)
    steps = x[:, time]
    steps[0, -1, 0] = 3
    assert np.array_equal(diagonal_scan(a, x, reverse=reverse), x)
    assert np.array_equal(diagonal_scan_backward(x, a, x, reverse=not reverse).dx, x)
    steps[0, 0, 1] = np.inf
    h = diagonal_scan(a.real, x.real, reverse=reverse)
    assert np.all(np.isposinf(h[..., 1]))
    dx = diagonal_scan_backward(x.real, a.real, h, reverse=not reverse).dx
    assert np.all(np.isposinf(dx[..., 1]))
    assert not np.any(np.isfinite(diagonal_scan(a, x, reverse=reverse)[..., 1]))


@settings(max_examples=60)
@given(st.data())
def test_any_shape_of_diagonal_scan(data: st.DataObject) -> None:
    B, T, N = (data.draw(st.integers(0, most)) for most in (3, 40, 300))
    lengths = data.draw(st.none() | st.lists(st.integers(0, T), min_size=B, max_size=B))
    lengths = None if lengths is None else np.array(lengths, np.int64)
    reverse, varying = data.draw(st.booleans()), data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a = np.exp(1j * rng.uniform(0, 7, (B, T, N) if varying else (N,)))
    x, dh = rng.standard_normal((2, B, T, N)) + 1j * rng.standard_normal((2, B, T, N))
    h0, dhT = rng.standard_normal((2, B, N)) + 1j * rng.standard_normal((2, B, N))
    how: dict[str, Any] = {"reverse": reverse, "lengths": lengths}
    h, hT = diagonal_scan(a, x, h0, return_state=True, **how)
    expected, expected_T = scan_loop(a, x, h0, reverse, lengths)
    # |a| = 1: each of T steps adds one rounding of a sum of at most T + 1 normal numbers
    tolerance = 10 * EPS * (T + 1) ** 1.5
    np.testing.assert_allclose(h, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(hT, expected_T, rtol=0, atol=tolerance)
    grads = diagonal_scan_backward(dh, a, h, h0, dhT=dhT, **how)
    left = np.sum((dh.conj() * h).real) + np.sum((dhT.conj() * hT).real)
    right = np.sum((grads.dx.conj() * x).real) + np.sum((grads.dh0.conj() * h0).real)
    size = np.sum(np.abs(dh * h)) + np.sum(np.abs(dhT * hT))
    assert abs(left - right) <= 1e-11 * (1 + size)


@settings(max_examples=40)
@given(st.data())
def test_any_shape_of_rotation_scan(data: st.DataObject) -> None:
    B, T, H, W = (data.draw(st.integers(low, most)) for low, most in ((0, 2), (0, 20), (1, 3), (1, 9)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    theta = rng.uniform(0, 7, (B, T, H, W // 2) if data.draw(st.booleans()) else (H, W // 2))
    gamma = rng.uniform(0.9, 1, (B, T, H) if data.draw(st.booleans()) else (H,))
    x, h0 = rng.standard_normal((B, T, H * W)), rng.standard_normal((B, H * W))
    h, hT = rotation_scan(theta, gamma, x, h0, return_state=True)
    expected, expected_T = rotation_loop(theta, gamma, x, h0)
    np.testing.assert_allclose(h, expected, rtol=0, atol=10 * EPS * (T + 1) ** 1.5)
    np.testing.assert_allclose(hT, expected_T, rtol=0, atol=10 * EPS * (T + 1) ** 1.5)


def test_rotation_scan_of_one_head_takes_plain_angles() -> None:
    rng = np.random.default_rng(1)
    theta, x, dh = rng.uniform(0, 7, 2), *rng.standard_normal((2, 2, 5, 4))
    alone, stacked = rotation_scan(theta, 0.9, x), rotation_scan(theta[None], np.array([0.9]), x)
    np.testing.assert_array_equal(alone, stacked)
    a = rotation_scan_backward(dh, theta, 0.9, x)
    b = rotation_scan_backward(dh, theta[None], np.array([0.9]), x)
    np.testing.assert_array_equal(a.dtheta, b.dtheta[0])
    np.testing.assert_array_equal(a.dgamma, b.dgamma[0])
    assert a.dgamma.shape == ()
    assert rotation_scan_backward(dh, theta, None, x).dgamma is None
    varying = np.broadcast_to(theta, (2, 5, 2))
    np.testing.assert_array_equal(rotation_scan(varying, np.full((2, 5), 0.9), x), alone)


def read_only() -> Any:
    out = np.empty_like(X)
    out.flags.writeable = False
    return out


HUGE = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (2**30, 2**30, 1), (0, 0, 0))  # 2^62 bytes, it says


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: diagonal_scan(np.ones(4), X[0]), ValueError, r"diagonal_scan: x has shape \(3, 4\), expected \(B, T"),
        (lambda: diagonal_scan(np.ones(5), X), ValueError, r"a has shape \(5,\), expected \(N=4,\), with N from x"),
        (lambda: diagonal_scan(X[:, :2], X), ValueError, r"a has shape \(2, 2, 4\), expected \(B=2, T=3, N=4\)"),
        (
            lambda: diagonal_scan(np.ones((3, 4)), X),
            ValueError,
            r"a has shape \(3, 4\), expected \(N,\) or \(B, T, N\)",
        ),
        (lambda: diagonal_scan(np.ones(4), X, np.ones((3, 4))), ValueError, r"h0 has shape \(3, 4\), expected \(B=2,"),
        (lambda: diagonal_scan(np.ones(4), X.astype(int)), TypeError, "x has dtype int64, expected float32 or float64"),
        (lambda: diagonal_scan(np.ones(4, np.float16), X), TypeError, "a has dtype float16"),
        (lambda: diagonal_scan(np.ones(4), X.astype(np.longdouble)), TypeError, "x has dtype float128"),
        (lambda: diagonal_scan(np.ones(4), X.astype(object)), TypeError, "x has dtype object"),
        (lambda: diagonal_scan(np.ones(4), {"x": X}), TypeError, "x is a dict, expected an array of float"),
        (lambda: diagonal_scan(np.ones(4), X, lengths=[3, -1]), ValueError, r"lengths\[1\] is -1, expected .* to T=3"),
        (lambda: diagonal_scan(np.ones(4), X, lengths=[4, 0]), ValueError, r"lengths\[0\] is 4"),
        (lambda: diagonal_scan(np.ones(4), X, lengths=[3]), ValueError, r"lengths has shape \(1,\), expected \(B=2,\)"),
        (lambda: diagonal_scan(np.ones(4), X, lengths=[1.0, 2.0]), TypeError, "lengths has dtype float64"),
        (lambda: diagonal_scan(np.ones(4), X, out=read_only()), ValueError, "out is read-only"),
        (lambda: diagonal_scan(np.ones(4), X, out=X), ValueError, "out overlaps an input"),
        (lambda: diagonal_scan(np.ones(4), X, out=np.empty((2, 3, 5))), ValueError, r"out has shape \(2, 3, 5\)"),
        (lambda: diagonal_scan(np.ones(4), X, out=np.empty((2, 3, 4), "f")), TypeError, "out has dtype float32"),
        (
            lambda: diagonal_scan(np.ones(4), X, out=np.empty((2, 3, 8))[..., ::2]),
            ValueError,
            "out is not C-contiguous",
        ),
        (lambda: diagonal_scan(np.ones(4), X, out=X.tolist()), TypeError, "out is a list, expected an array"),
        (lambda: diagonal_scan(np.ones(1) * 1j, HUGE), ValueError, "diagonal_scan: x has shape .* is too large"),
        (lambda: diagonal_scan_backward(X, np.ones(4), X[:, 1:]), ValueError, r"diagonal_scan_backward: h has shape"),
        (lambda: diagonal_scan_backward(X, np.ones(4), X, dhT=np.ones(4)), ValueError, r"dhT has shape \(4,\)"),
        (lambda: rotation_scan(np.ones(2), None, Z), TypeError, "rotation_scan: x has dtype complex128"),
        (lambda: rotation_scan(np.ones(3), None, X), ValueError, "last axis has N=4 lanes, expected 6 or 7"),
        (
            lambda: rotation_scan(np.ones((2, 1)), np.ones(3), X),
            ValueError,
            r"gamma has shape \(3,\), expected \(H=2,\)",
        ),
        (lambda: rotation_scan_backward(X, np.ones(3), None, X), ValueError, "rotation_scan_backward: the last axis"),
        (lambda: dense(X, np.ones((2, 5))), ValueError, r"dense: w has shape \(2, 5\), expected \(O, D=4\)"),
        (lambda: dense(np.float64(1), np.ones((2, 5))), ValueError, r"dense: x has shape \(\)"),
        (lambda: dense(X, np.ones((2, 4)), np.ones(3)), ValueError, r"bias has shape \(3,\), expected \(O=2,\)"),
        (lambda: dense_backward(X, X, np.ones((4, 5))), ValueError, r"dense_backward: w has shape \(4, 5\)"),
        (
            lambda: dense(np.ones((0, 2**50)), np.ones((0, 2**50))),
            ValueError,
            r"dense: x has shape .* is too large",
        ),
        (lambda: diagonal_scan(np.ones(3), np.ones((0, 2**50, 3))), ValueError, "is too large to address"),
        (lambda: matmul(X, X), ValueError, r"matmul: y has shape \(2, 3, 4\), expected \(H=2, K=4, N\)"),
        (lambda: matmul(X, np.ones((4, 4))), ValueError, "expected two matrices or two stacks"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_the_extension_checks_what_it_is_given() -> None:
    """Names, dtype, layout, writeability and size of its arguments."""
    given = {"h": np.empty((2, 3, 4)), "hT": None, "a": np.ones(4), "x": np.ones((2, 3, 4)), "h0": None}
    given |= {"lengths": None, "B": 2, "T": 3, "N": 4, "varying": 0, "reverse": 0}
    scan = _cpu.kernels.scan_forward

    def without(name: str) -> dict[str, Any]:
        return {key: value for key, value in given.items() if key != name}

    scan(**given)
    for name in given:
        with pytest.raises(TypeError, match=f"^scan_forward: {name} is missing$"):
            scan(**without(name))
    with pytest.raises(TypeError, match="scan_forward: takes its arguments by keyword alone"):
        scan(given["h"])
    with pytest.raises(TypeError, match="scan_forward: has no argument z"):
        scan(**without("x"), z=given["x"])
    with pytest.raises(TypeError, match="scan_forward: a must be a float64 array, got dtype\\('float32'\\)"):
        scan(**{**given, "a": np.ones(4, "f")})
    with pytest.raises(TypeError, match="scan_forward: lengths must be a int64 array or None, got <class 'list'>"):
        scan(**{**given, "lengths": [1, 2]})
    with pytest.raises(ValueError, match="scan_forward: h is read-only, but is written"):
        scan(**{**given, "h": read_only()})
    with pytest.raises(ValueError, match="scan_forward: x must be C-contiguous and aligned"):
        scan(**{**given, "x": np.ones((4, 3, 2)).T})
    with pytest.raises(ValueError, match=r"x has shape \(2, 3, 5\), expected as many numbers as \(B, T, N\), with"):
        scan(**{**given, "x": np.ones((2, 3, 5))})
    extents = r"a has shape \(4,\), .* \(varying \? B : 1, varying \? T : 1, N\), with .*, varying=1"
    with pytest.raises(ValueError, match=extents):
        scan(**{**given, "varying": 1})
    with pytest.raises(ValueError, match="scan_forward: h has shape"):
        scan(**{**given, "B": 2**40, "T": 2**40})  # a product that overflows is no size
    with pytest.raises(ValueError, match="scan_forward: B is -2, expected an integer from 0 to"):
        scan(**{**given, "B": -2, "T": -3})
    with pytest.raises(TypeError, match="matmul: there is no complex128 kernel"):
        _cpu.kernels.matmul(y=Z, x=Z, w=Z, bias=None, M=1, d_in=1, d_out=1, transposed=0)
    with pytest.raises(ValueError, match="use_simd: got 'sse9', expected one of"):
        _cpu.use_simd("sse9")
    with pytest.raises(ValueError, match="use_threads: got 0"):
        _cpu.use_threads(0)


def test_lengths_are_read_before_out_is_written() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 4))
    memory = np.zeros(40, np.int64)
    memory[:2] = 5, 2
    expected = diagonal_scan(np.ones(4), x, lengths=[5, 2])
    np.testing.assert_array_equal(
        diagonal_scan(np.ones(4), x, lengths=memory[:2], out=memory.view(np.float64).reshape(2, 5, 4)), expected
    )


def test_an_infinite_gradient_passes_through_no_steps() -> None:
    dhT = np.array([[np.inf + 1j]])
    none = np.empty((1, 0, 1), complex)
    np.testing.assert_array_equal(diagonal_scan_backward(none, np.ones(1) * 1j, none, dhT=dhT).dh0, dhT)


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=PATIENCE)


def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    code = """
import os
import numpy as np
import rotrnn
x, a = np.ones((64, 300, 8)), np.ones(8)
h = rotrnn.ops.diagonal_scan(a, x)
child = os.fork()
if not child:
    os._exit(int(not np.array_equal(rotrnn.ops.diagonal_scan(a, x), h)))
assert os.waitpid(child, 0)[1] == 0
"""
    result = run_python(code, OMP_NUM_THREADS="4")
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_the_environment_picks_the_instruction_set() -> None:
    plain, *bf16 = _cpu.BF16_BY_AVAILABLE
    wanted = [(simd, simd, plain) for simd in _cpu.SIMD_AVAILABLE] + [(by, "avx512", by) for by in bf16]
    for name, simd, by in wanted:
        code = "import rotrnn; print(rotrnn._cpu.simd(), rotrnn._cpu.bf16_by())"
        assert run_python(code, ROTRNN_SIMD=name).stdout.split() == [simd, by]
    assert "ROTRNN_SIMD is 'sse9', expected one of base" in run_python("import rotrnn", ROTRNN_SIMD="sse9").stderr


def test_a_function_outlives_its_module() -> None:
    """In a process of its own: what remains of a collected module must not be read."""
    code = """
import gc, sys
import numpy as np
from rotrnn import _cpu
copy = _cpu.kernels.copy
for name in [name for name in sys.modules if name.startswith("rotrnn")]:
    del sys.modules[name]
del _cpu
gc.collect()
y = np.zeros(3)
copy(y=y, x=np.ones(3), n=3)
assert y.sum() == 3
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
