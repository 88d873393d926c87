"""Windowed scans on the CUDA kernels, in the harness: what the table of cases does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases.table import normal
from cases.window import window_case
from cuda_harness import on_harness
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward
from rotrnn.ops.window import WindowState, tiir_scan
from strict import to_device, to_host


def assert_close(got: Any, expected: Any, terms: int) -> None:
    got = to_host(got)
    assert got.dtype == expected.dtype
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    eps = float(np.finfo(expected.dtype).eps)
    np.testing.assert_allclose(got, expected, rtol=0, atol=8 * terms * eps * scale)


def everything(a: Any, x: Any, h0: Any, dh: Any, dhT: Any, **how: Any) -> tuple[Any, ...]:
    """Outputs and gradients of a windowed scan."""
    h, hT = diagonal_scan(a, x, h0, **how, return_state=True)
    return h, hT, *diagonal_scan_backward(dh, a, None, h0, x=x, dhT=dhT, **how)


@pytest.mark.parametrize("single", [False, True], ids=["double", "single"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("lanes", ["real", "complex"])
@pytest.mark.parametrize(
    ("T", "N", "window", "lengths"),
    [
        (100, 70, 5, (100, 0, 71)),  # several runs of blocks, and blocks of threads; padding in the middle of a run
        (150, 2, 40, (150, 39, 41)),  # blocks longer than a run of short ones
        (20, 3, 45, (20, 7, 1)),  # a window longer than the sequence, with a past
    ],
)
def test_padding_is_not_read(
    T: int, N: int, window: int, lengths: tuple[int, ...], lanes: str, varying: bool, reverse: bool, single: bool
) -> None:
    B = len(lengths)
    case = window_case(B, T, N, window, lanes=lanes, varying=varying, reverse=reverse, lengths=lengths)
    rng = np.random.default_rng(5)
    args = case.make(rng)
    args |= {f"d{name}": normal(rng, args[like].shape, lanes == "complex") for name, like in (("h", "x"), ("hT", "h0"))}
    if single:
        args = {name: value.astype({"d": "f", "D": "F"}[value.dtype.char]) for name, value in args.items()}
    for name in ("x", "dh", *(["a"] if varying else [])):
        for b, steps in enumerate(lengths):
            args[name][b, steps:] = np.nan
    how: dict[str, Any] = {"window": window, "reverse": reverse, "lengths": np.array(lengths)}
    expected = everything(**args, **how)
    with on_harness():
        got = everything(**{name: to_device(value) for name, value in args.items()}, **how)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other, case.terms)


def test_an_infinite_input_lasts_a_window() -> None:
    x = np.ones((1, 40, 1))
    x[0, 11] = np.inf
    with on_harness():
        h = to_host(diagonal_scan(to_device(np.ones(1)), to_device(x), window=7))
    assert np.isinf(h[0, 11:18]).all()
    assert (h[0, 18:] == 7).all()


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("lanes", ["real", "complex"])
@pytest.mark.parametrize("window", [1, 3, 8])
def test_a_stream_goes_on_from_any_position(window: int, lanes: str, resets: bool) -> None:
    B, T, N = 3, 29, 5
    rng = np.random.default_rng(6)
    shapes = (N,), (B, T, N), (B, window + 1, N), (B, 2, N)
    a, x, delay, sums = (normal(rng, shape, lanes == "complex") for shape in shapes)
    a /= np.abs(a)
    position = np.array([0, window + 4, 2**53 - T])

    def run(put: Any) -> tuple[Any, ...]:
        state = WindowState(put(delay.copy()), put(sums.copy()), position)
        h, state = tiir_scan(put(a), put(x), state, window=window, resets=resets)
        return h, state.delay, state.sums

    expected = run(lambda array: array)
    with on_harness():
        got = run(to_device)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other, 3 * T)
