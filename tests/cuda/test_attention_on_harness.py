"""Attention on the CUDA kernels, in the harness: what the table of cases does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuda_harness import on_harness
from rotrnn.ops.attention import attention, attention_backward
from strict import to_device, to_host


def everything(dy: Any, q: Any, k: Any, v: Any, **how: Any) -> tuple[Any, ...]:
    y, norm = attention(q, k, v, **how)
    return y, norm, *attention_backward(dy, q, k, v, y=y, norm=norm, **how)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("T", "S", "D", "heads", "lengths", "past", "window"),
    [
        (140, 200, 6, 2, (140, 65, 0), (60, 0, 200), None),  # several tiles of queries and keys; NaN in padding
        (140, 200, 3, 1, (139, 64, 1), (61, 136, 7), 70),
        (70, 70, 150, 1, None, None, None),  # a head of three panels
        (3, 9, 132, 2, (3, 1), (6, 2), 5),  # heads of two panels
    ],
)
def test_attention_and_its_adjoint(
    T: int, S: int, D: int, heads: int, lengths: Any, past: Any, window: Any, dtype: type
) -> None:
    B = len(lengths or (1,))
    rng = np.random.default_rng(7)
    dy, q, k, v = (rng.standard_normal((B, size, D)).astype(dtype) for size in (T, T, S, S))
    for b, steps in enumerate(lengths or ()):
        dy[b, steps:], q[b, steps:] = np.nan, np.nan
        k[b, steps + past[b] :], v[b, steps + past[b] :] = np.nan, np.nan
    how: Any = {"heads": heads, "lengths": lengths, "past": past, "window": window}
    expected = everything(dy, q, k, v, **how)
    with on_harness():
        got = everything(*map(to_device, (dy, q, k, v)), **how)
    for one, other in zip(got, expected, strict=True):
        scale = max(1.0, float(np.max(np.abs(other))))
        tolerance = 8 * (D // heads + min(S, window or S) + T) * float(np.finfo(dtype).eps) * scale
        np.testing.assert_allclose(to_host(one), other, rtol=0, atol=tolerance)


def test_heads_without_channels_have_norms() -> None:
    q, k = np.empty((1, 3, 0)), np.empty((1, 3, 0))
    with on_harness():
        _, norm = attention(*map(to_device, (q, k, k)), heads=2)
    np.testing.assert_allclose(to_host(norm)[0], np.log([[1, 2, 3]] * 2), rtol=1e-15)
