"""Ops whose arrays are declared in csrc/kernels.list alone (`rotrnn.ops.declared`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rotrnn.devices.recording import RecordedLengths
from rotrnn.ops import boundary
from rotrnn.ops.boundary import Boundary, asked
from rotrnn.ops.conv import CONV, causal_conv, causal_conv_backward
from rotrnn.ops.declared import COMPLEX, REAL, Declared, Form
from rotrnn.ops.delta import delta_rule

X, W = np.ones((2, 3, 4)), np.ones((4, 3))


def test_forms_are_those_of_the_list() -> None:
    assert CONV.forms["w"] == Form(("D K",), REAL, False, False)
    assert CONV.forms["state"] == Form(("B K-1 D",), REAL, True, False)
    assert CONV.forms["dhT"] == CONV.forms["state"]
    scan = Declared("scan_forward", "scan_backward")
    assert scan.forms["a"] == Form(("N", "B T N"), REAL + COMPLEX, False, False)
    bank = Declared("bank_forward", "bank_backward", tile=64)
    assert bank.forms["h0"] == Form(("B D N",), COMPLEX, True, True)
    assert bank.forms["carries"] == Form(("B tiles N 2 D",), REAL, False, False)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: causal_conv(X, W, state=X), ValueError, r"state has shape \(2, 3, 4\), expected \(B=2, K-1=2, D=4\)"),
        (lambda: causal_conv(X, None), TypeError, "causal_conv: w is None, expected an array of float32 or float64"),  # type: ignore[arg-type]
        (lambda: causal_conv(X, W.astype(int)), TypeError, "causal_conv: w has dtype int64, expected float32 or float"),
        (lambda: causal_conv(X[0], W), ValueError, r"causal_conv: x has shape \(3, 4\), expected \(B, T, D\)"),
        (lambda: causal_conv(X, W[:, :0]), ValueError, "causal_conv: w has shape .4, 0., expected .* K of at least 1"),
        (lambda: causal_conv_backward(X[:1], X, W), ValueError, "causal_conv_backward: x has shape .*, with B from dy"),
        (lambda: causal_conv(X, W, lengths=[4, 0]), ValueError, r"causal_conv: lengths\[0\] is 4, expected .* to T=3"),
        (lambda: delta_rule(X[:, :, None], *[np.ones((2, 3, 0, 1, 4))] * 2, np.ones((2, 3, 0, 1))), ValueError,
         "delta_rule: k has R=0 steps"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_is_refused_each_time(call: Callable[[], Any], error: Any, message: str) -> None:
    """Also where calls with such shapes were seen before."""
    causal_conv(X, W)
    for _ in range(2):
        with pytest.raises(error, match=message):
            call()


def test_dtypes_are_promoted_for_each_call() -> None:
    single = X.astype(np.float32)
    assert [causal_conv(x, w).dtype for x in (X, single) for w in (W, W.astype(np.float32))] == [
        *[np.float64] * 3,
        "f4",
    ]
    swapped, strided = X.astype(">f8"), np.repeat(X, 2, -1)[..., ::2]
    for x in (swapped, strided, X.tolist()):
        np.testing.assert_array_equal(causal_conv(x, W), causal_conv(X, W))


def test_what_is_known_of_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary, "MOST_PLANS", 3)
    CONV.plans.clear()
    for T in range(9):
        assert causal_conv(np.ones((1, T, 4)), W).shape == (1, T, 4)
        assert len(CONV.plans) <= 3


def test_sizes_bound_before_are_part_of_what_is_known() -> None:
    for K in (3, 5):
        args = Boundary("op")
        args.bind("K", K, "a setting")
        if K == 3:
            args.take(CONV, x=X, w=W)
        else:
            with pytest.raises(ValueError, match=r"op: w has shape \(4, 3\), expected \(D=4, K=5\)"):
                args.take(CONV, x=X, w=W)


def test_results_that_were_asked_for() -> None:
    assert asked(X, None) is X
    assert asked(X, None, W) == (X, W)
    y, final = causal_conv(X, W, return_state=True)
    np.testing.assert_array_equal(final, X[:, 1:])
    grads = causal_conv_backward(y, X, W, dhT=final)
    assert [one.shape for one in grads] == [(2, 3, 4), (4, 3), (4,), (2, 2, 4)]


def test_the_old_name_of_a_final_states_gradient() -> None:
    final = np.ones((2, 2, 4))
    with pytest.warns(DeprecationWarning, match="causal_conv_backward: dfinal is now called dhT"):
        old = causal_conv_backward(X, X, W, dfinal=final)
    for one, other in zip(old, causal_conv_backward(X, X, W, dhT=final), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_callers_out_fits_an_array_that_was_taken() -> None:
    """Also where lengths are recorded, which nobody may look at."""
    args = Boundary("op")
    args.take(CONV, x=X, w=W)
    args.given["lengths"] = RecordedLengths(np.array([3, 2]), 3)
    out = np.empty_like(X)
    assert args.into(out, "x", X) is out
    for bad, message in ((out[:1], "out has shape .1, 3, 4., expected .2, 3, 4."), (X, "out overlaps an input")):
        with pytest.raises(ValueError, match=f"op: {message}"):
            args.into(bad, "x")
