"""What is rounded in the precisions "tf32" and "bf16" by the CUDA kernels, in the harness."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_block_on_harness import SEEDS, Changed, Shape, cast, numbers, over

import rounded
from cuda_harness import load, on_harness
from rotrnn.ops.block import ChannelNorm, Gating, Later, RowNorm, residual_block, residual_block_backward
from rotrnn.ops.linear_layer import linear_layer, linear_layer_backward
from rotrnn.ops.pointwise import dropout
from strict import StrictArray, kernels_of, to_device, to_host

DROPOUT: dict[str, Any] = {"rate": 0.3, "seed": 3, "step": 5}


@contextlib.contextmanager
def in_precision(name: str, seed: int = 1) -> Iterator[Any]:
    """Within the block, the strict device has the CUDA kernels, in a precision."""
    with on_harness(seed) as module:
        before = module.use_precision(name)
        try:
            yield module
        finally:
            module.use_precision(before)


def run(n: dict[str, Any], shape: Shape, norm: str, form: str, *, keep: bool = False) -> dict[str, Any]:
    """Runs a block, or a linear layer if the form is "none", forward and backward in the harness: results by name."""
    n = over(n, to_device)
    if form == "none":
        y, hT, saved = linear_layer(n["system"], n["x"], n["h0"], lengths=shape.lengths)
        grads = linear_layer_backward(n["dy"], n["system"], saved, n["dhT"])
        results = {"x": grads.du, "h0": grads.dh0, **grads.system._asdict()}
    else:
        part = ChannelNorm(*n["norm"]) if norm == "channel" else RowNorm(*n["norm"][1:])
        weights = n["gate"] if form == "full" else n["gate"][:2]
        gating = Gating(form, *weights, site=2, **DROPOUT)
        r = residual_block(n["x"], part, n["system"], gating, n["h0"], lengths=shape.lengths, moments=True, keep=keep)
        assert r.moments is not None
        y, hT, saved = r.y, r.hT, r.saved
        g = residual_block_backward(n["dy"], part, n["system"], gating, saved, n["dhT"], Later(*n["later"]))
        results = {
            **{"x": g.dx, "h0": g.dh0, "norm_sum": g.norm_sum, "norm_product": g.norm_product},
            **{"mean": r.moments[0], "var": r.moments[1], **g.system._asdict()},
            **{name: one for name, one in g.gating._asdict().items() if isinstance(one, StrictArray)},
        }
    results = {f"d{name}" if name not in ("mean", "var") else name: to_host(one) for name, one in results.items()}
    return {"y": to_host(y), "hT": to_host(hT), **results, "saved": saved}


def block_of(n: dict[str, Any], shape: Shape, norm: str, form: str) -> rounded.Block:
    """The block of `run` in double precision."""
    wide = cast(n, np.float64)
    lengths = shape.lengths or (shape.T,) * shape.B
    ones = np.ones((shape.B, shape.T, shape.D))
    masks = (1.0, 1.0) if form == "none" else tuple(dropout(ones, site=site, **DROPOUT) for site in (2, 3))
    kind = "none" if form == "none" else norm
    return rounded.Block(
        wide["x"], wide["h0"], wide["system"], wide["norm"], wide["gate"], lengths, kind, form, masks
    )


def expected(n: dict[str, Any], shape: Shape, norm: str, form: str, r: rounded.Rounding) -> dict[str, Any]:
    """What `run` is to return."""
    b, wide = block_of(n, shape, norm, form), cast(n, np.float64)
    f = rounded.block_forward(b, r)
    grads = rounded.block_backward(b, r, f, wide["dy"], wide["dhT"], None if form == "none" else wide["later"])
    results = {"y": f.y, "hT": f.hT, **{f"d{name}": grad for name, grad in grads.items()}}
    if form != "none":
        rows = f.y[rounded.valid_rows(b)[:, :, 0]]
        results |= {"mean": rows.mean(0), "var": rows.var(0)}
    return results


def apart(one: Any, other: Any) -> float:
    """Distance of two arrays, relative to the second one's norm."""
    return float(np.linalg.norm((one - other).ravel()) / max(np.linalg.norm(other.ravel()), 1e-30))


SHAPE = Shape(2, 40, 8, 6, 2, (40, 17))
KINDS = [("channel", "full"), ("channel", "half1"), ("row", "half2"), ("row", "full"), ("channel", "none")]


@pytest.mark.parametrize(("norm", "form"), KINDS)
def test_the_reference_without_rounding(norm: str, form: str) -> None:
    n = numbers(SHAPE)
    want = expected(n, SHAPE, norm, form, rounded.Rounding())
    with in_precision("bf16"):  # float64 is not rounded
        got = run(n, SHAPE, norm, form)
    assert got.pop("saved").carries.dtype == np.complex128
    assert got.keys() == want.keys()
    for name, one in want.items():
        assert apart(got[name], one) < 1e-12, name


def tolerance(precision: str) -> float:
    """Where the errors of float32, about 2^-22 of a number, cross a tie between two neighbours, 2 units apart, a rounding
    goes to the other one. Of numbers of one size 2^-22 / (2 units) do, in bf16 2^-15, in tf32 2^-12; of smaller
    ones more, as 2^-22 is of the largest: say 2^-10 of all. Each is wrong by 2 units, at random; so a result is, in
    the Euclidean norm, by sqrt(2^-10) 2 units, and by a few such errors where roundings follow each other.
    """
    return 2 * 2.0**-5 * 2 * rounded.UNIT[precision]


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize(("norm", "form"), KINDS)
@pytest.mark.parametrize("keep", [False, True])
def test_blocks(norm: str, form: str, precision: str, keep: bool) -> None:
    n = cast(numbers(SHAPE), np.float32)
    want = expected(n, SHAPE, norm, form, rounded.Rounding(precision))
    with in_precision(precision):
        got = run(n, SHAPE, norm, form, keep=keep)
    del got["saved"]
    assert got.keys() == want.keys()
    print(norm, form, precision, max((apart(got[name], one)/tolerance(precision), name) for name, one in want.items()))
    for name, one in want.items():
        assert got[name].dtype == np.result_type(np.float32, one.dtype if one.dtype.kind == "c" else np.float32) or one.dtype.kind == "c"
        assert apart(got[name], one) < tolerance(precision), name


@pytest.mark.parametrize("missing", rounded.BF16_ROUNDINGS)
def test_a_missing_rounding_is_seen(missing: str) -> None:
    n = cast(numbers(SHAPE), np.float32)
    whole, less = (expected(n, SHAPE, "channel", "full", rounded.Rounding("bf16", one)) for one in ("", missing))
    print(missing, max(apart(less[name], one) for name, one in whole.items()) / tolerance("bf16"))
    assert max(apart(less[name], one) for name, one in whole.items()) > 2 * tolerance("bf16")
