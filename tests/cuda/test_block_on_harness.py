"""block_forward and block_backward of cuda/block.cu where the table of cases does not reach."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from cuda_harness import on_harness
from rotrnn.ops.block import (
    ChannelNorm,
    Gating,
    Later,
    RowNorm,
    keepable,
    residual_block,
    residual_block_backward,
)
from rotrnn.ops.linear_layer import System, linear_layer, linear_layer_backward
from strict import StrictArray, kernels_of, to_device, to_host

SEEDS = [int(seed) for seed in os.environ.get("HARNESS_SEEDS", "1").split()]


class Shape(NamedTuple):
    B: int
    T: int
    D: int
    N: int
    K: int = 1
    lengths: tuple[int, ...] | None = None


def numbers(shape: Shape, seed: int = 0, scale: float = 1.0) -> dict[str, Any]:
    """Returns the arrays of a block in double precision, of size about one; x has a mean of `scale`."""
    B, T, D, N, K, _ = shape
    rng = np.random.default_rng(seed)
    a = rng.uniform(0.8, 1, N) * np.exp(1j * rng.uniform(-np.pi, np.pi, N))
    normal = rng.standard_normal
    return {
        "x": normal((B, T, D)) + scale,
        "h0": normal((K, B, N)) + 1j * normal((K, B, N)),
        "system": System(normal((2 * N, D)) / np.sqrt(D), a, normal((K, D, 2 * N)) / np.sqrt(2 * N), normal(D)),
        "norm": (scale + 0.1 * normal(D), normal(D), normal(D)),
        "gate": [normal(size) / np.sqrt(D) for size in ((D, D), D, (D, D), D)],
        "dy": normal((B, T, D)),
        "dhT": normal((K, B, N)) + 1j * normal((K, B, N)),
        "later": (normal((B, T, D)), normal(D), normal(D), normal(D)),
    }


def cast(value: Any, dtype: Any) -> Any:
    """Returns nested arrays in a real dtype, or the complex one of its precision."""
    if isinstance(value, dict):
        return {key: cast(one, dtype) for key, one in value.items()}
    if isinstance(value, list | tuple):
        parts = [cast(one, dtype) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value.astype(np.result_type(dtype, np.complex64) if value.dtype.kind == "c" else dtype)


def over(value: Any, function: Any) -> Any:
    """Returns nested arrays with `function` of each."""
    if isinstance(value, dict):
        return {key: over(one, function) for key, one in value.items()}
    if isinstance(value, list | tuple):
        parts = [over(one, function) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return function(value)


def flat(value: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(value, list | tuple):
        return [one for part in value for one in flat(part)]
    return [to_host(value)] if isinstance(value, np.ndarray | StrictArray) else []


def block(
    n: dict[str, Any], shape: Shape, *, norm: str = "channel", form: str = "full", rate: float = 0.0,
    over_time: bool = False, keep: bool = False, later: bool = True, moments: bool = True,
) -> list[np.ndarray[Any, Any]]:  # fmt: skip
    """Runs a residual block forward and backward; everything that it returns."""
    center, scale, bias = n["norm"]
    part = ChannelNorm(center, scale, bias) if norm == "channel" else RowNorm(scale, bias)
    weights = n["gate"] if form == "full" else n["gate"][:2]
    places = 3 * np.arange(shape.B)[::-1]
    gating = Gating(form, *weights, rate=rate, over_time=over_time, seed=3, step=5, site=2, places=places)
    how = {"lengths": shape.lengths, "moments": moments, "keep": keepable(n["x"]) * keep}
    r = residual_block(n["x"], part, n["system"], gating, n["h0"], **how)
    after = Later(*n["later"]) if later else None
    grads = residual_block_backward(n["dy"], part, n["system"], gating, r.saved, n["dhT"], after)
    return flat([r.y, r.hT, r.moments, grads.dx, grads.system, list(grads.gating), grads.dh0, grads[4:]])


def layer(n: dict[str, Any], shape: Shape, exact: Any = None) -> list[np.ndarray[Any, Any]]:
    y, hT, saved = linear_layer(n["system"], n["x"], n["h0"], lengths=shape.lengths, exact=exact)
    return flat([y, hT, *linear_layer_backward(n["dy"], n["system"], saved, n["dhT"])])


def compare(run: Any, n: dict[str, Any], shape: Shape, seed: int, terms: int) -> None:
    """Holds the harness's results, in the dtype of the numbers, against the CPU's in double precision."""
    eps = np.finfo(n["x"].dtype).eps
    expected = run(cast(n, np.float64))
    with on_harness(seed):
        got = run(over(n, to_device))
    assert len(got) == len(expected)
    for one, want in zip(got, expected, strict=True):
        assert one.shape == want.shape
        bound = 8 * terms * eps * max(1.0, float(np.max(np.abs(want), initial=0.0)))
        np.testing.assert_allclose(one, want, rtol=0, atol=bound)


SHAPES = [
    Shape(3, 5, 8, 3, 1),  # four channels a thread
    Shape(2, 9, 12, 3, 2, (4, 9)),
    Shape(5, 70, 260, 2, 1, (70, 0, 1, 69, 33)),  # several blocks of rows
    Shape(1, 3, 1100, 1, 2),  # and of channels
    Shape(1, 3, 257, 1, 1),
    Shape(9, 1, 3, 2, 2, (1, 0, 1, 1, 1, 0, 0, 1, 1)),  # single steps
    Shape(1, 150, 4, 2, 2, (149,)),  # few planes: time is divided
    Shape(2, 300, 4, 2, 2, (128, 1)),  # and some segments have no steps
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_block_of_every_cut(shape: Shape, seed: int) -> None:
    compare(lambda n: block(n, shape, keep=shape.B % 2 == 0), numbers(shape), shape, seed, terms=6 * shape.T + 60)


@pytest.mark.parametrize("norm", ["channel", "row"])
@pytest.mark.parametrize("shape", [Shape(2, 0, 8, 3, 2), Shape(0, 3, 8, 3, 2)], ids=["no steps", "no sequences"])
def test_empty_batches(shape: Shape, norm: str) -> None:
    n = numbers(shape)
    compare(lambda n: block(n, shape, norm=norm, keep=True, moments=False), n, shape, 1, terms=1)
    compare(lambda n: layer(n, shape), n, shape, 1, terms=1)


@pytest.mark.parametrize("D", [8, 7])
@pytest.mark.parametrize("form", ["full", "half1", "half2"])
@pytest.mark.parametrize("norm", ["channel", "row"])
def test_a_block_of_every_kind(norm: str, form: str, D: int) -> None:
    """Each with its dropout, over time or not, ragged, with and without the layer's output kept."""
    shape = Shape(3, 6, D, 2, 1 + (D == 8), (6, 0, 4))
    for keep in (False, True):
        how: dict[str, Any] = {"norm": norm, "form": form, "rate": 0.3, "over_time": keep, "keep": keep, "later": keep}
        compare(lambda n, how=how: block(n, shape, **how), numbers(shape), shape, 1, terms=200)


@pytest.mark.parametrize("shape", [Shape(2, 40, 8, 6, 2, (40, 17)), Shape(1, 200, 4, 3)], ids=str)
def test_float32(shape: Shape) -> None:
    """Also with a mean of ten deviations, whose product with W_in is subtracted as a constant."""
    n = cast(numbers(shape, scale=10.0), np.float32)
    compare(lambda n: block(n, shape), n, shape, 1, terms=6 * shape.T)
    compare(lambda n: layer(n, shape), n, shape, 1, terms=6 * shape.T)


@pytest.mark.parametrize("T", [7, 200])
def test_exact_transitions(T: int) -> None:
    """States of magnitude one that turn for ever, from a state in double precision."""
    shape = Shape(2, T, 4, 3)
    n = cast(numbers(shape), np.float32)
    turn = np.exp(1j * np.linspace(0.1, 3, 3))
    n["system"] = n["system"]._replace(a=turn.astype(np.complex64))
    n["h0"] = n["h0"].astype(np.complex128)
    wide = cast(n, np.float64)
    wide["system"] = wide["system"]._replace(a=turn)
    y, hT, _ = linear_layer(wide["system"], wide["x"], wide["h0"])
    with on_harness():
        there = over(n, to_device)
        got, last, _ = linear_layer(there["system"], there["x"], there["h0"], exact=turn)
    assert last.dtype == np.complex128
    # inputs of a state are rounded at random, and its turns not at all
    np.testing.assert_allclose(to_host(last), hT, atol=4 * np.sqrt(T) * np.finfo(np.float32).eps * np.abs(hT).max())
    np.testing.assert_allclose(to_host(got), y, atol=40 * np.sqrt(T) * np.finfo(np.float32).eps * np.abs(y).max())


@pytest.mark.parametrize("norm", ["channel", "row"])
def test_padding_is_not_used(norm: str) -> None:
    """It may be NaN in x, dy and `later`, and it is zero in what is written."""
    shape = Shape(3, 9, 8, 2, 2, (9, 0, 4))
    n = numbers(shape)
    spoilt = over(n, np.copy)
    for b, steps in enumerate(shape.lengths or ()):
        for one in (spoilt["x"], spoilt["dy"], spoilt["later"][0]):
            one[b, steps:] = np.nan
    how: dict[str, Any] = {"norm": norm, "rate": 0.2, "form": "half2"}
    with on_harness():
        clean, dirty = (block(over(one, to_device), shape, **how) for one in (n, spoilt))
    for got, want in zip(dirty, clean, strict=True):
        np.testing.assert_array_equal(got, want)
    for b, steps in enumerate(shape.lengths or ()):
        assert not dirty[0][b, steps:].any()


def test_sequences_do_not_touch_each_other() -> None:
    """A sequence has the same bits alone, and beside one of huge numbers: no product sums over sequences."""
    shape = Shape(2, 6, 8, 3)
    n = numbers(shape)
    alone = {**n, "x": n["x"][:1], "h0": n["h0"][:, :1], "dy": n["dy"][:1], "dhT": n["dhT"][:, :1]}
    n["x"][1] *= 1e30
    n["h0"][:, 1] = 1e30
    with on_harness():
        first, both = (layer(over(one, to_device), shape) for one in (alone, n))
    for one, two in zip((first[0], first[1][0], first[6]), (both[0], both[1][0], both[6]), strict=True):
        np.testing.assert_array_equal(one[0], two[0])


def test_states_are_those_before_each_step() -> None:
    shape = Shape(2, 5, 4, 3, 2, (5, 3))
    n = over(numbers(shape), to_device)
    with on_harness():
        _, hT, saved = linear_layer(n["system"], n["x"], n["h0"], lengths=shape.lengths)
        carries, last, h0 = to_host(saved.carries), to_host(hT), to_host(n["h0"])
        _, before, _ = linear_layer(n["system"], n["x"][:, :2], n["h0"])
    assert carries.shape == (2, 2, 5, 3)
    np.testing.assert_array_equal(carries[0, :, 0], h0[0])
    np.testing.assert_array_equal(carries[0, :, 2], to_host(before)[0])
    for b, steps in enumerate((5, 3)):
        np.testing.assert_array_equal(carries[1, b, steps - 1], h0[1, b])
    assert np.isfinite(last).all()


class Changed:
    """Kernels whose arguments `change` may change: change(kernel, arguments) calls the kernel."""

    def __init__(self, kernels: Any, change: Any) -> None:
        self.kernels, self.change = kernels, change

    def __getattr__(self, name: str) -> Any:
        return lambda **arguments: self.change(getattr(self.kernels, name), arguments)


MISSING = ("d_norm_sum", "d_norm_product", "dw_value", "db_value", "dw_gate", "db_gate", "mean", "var")


@pytest.mark.parametrize("form", ["full", "half1"])
def test_missing_outputs(form: str) -> None:
    """What is not asked for is not written, and the rest has the same bits."""

    def without(kernel: Any, arguments: dict[str, Any]) -> None:
        kernel(**{name: None if name in MISSING else one for name, one in arguments.items()})

    shape = Shape(2, 7, 8, 3, 1, (7, 4))
    n = over(numbers(shape), to_device)
    with on_harness() as module:
        full = block(n, shape, form=form)
        with kernels_of(SimpleNamespace(kernels=Changed(module.kernels, without))):
            part = block(n, shape, form=form)
    missing = 0
    for got, want in zip(part, full, strict=True):
        if np.isnan(got).all():
            missing += 1
        else:
            np.testing.assert_array_equal(got, want)
    assert missing == (8 if form == "full" else 6)


def test_arrays_in_the_middle_of_a_plane() -> None:
    """A kernel may rely on the alignment of single numbers alone."""

    def moved(one: Any) -> Any:
        if not isinstance(one, StrictArray) or one.dtype != np.float64:
            return one
        room = np.full(one.size + 2, np.nan)
        first = 1 - room.ctypes.data // 8 % 2
        there = StrictArray(room[first:][: one.size].reshape(one.shape))
        assert there.data.ptr % 16 == 8
        there[...] = one
        return there

    def run(kernel: Any, arguments: dict[str, Any]) -> None:
        there = {name: moved(one) for name, one in arguments.items()}
        kernel(**there)
        for name, one in arguments.items():
            if there[name] is not one:
                one[...] = there[name]

    shape = Shape(2, 7, 8, 3, 2, (7, 4))
    n = over(numbers(shape), to_device)
    with on_harness() as module:
        expected = block(n, shape)
        with kernels_of(SimpleNamespace(kernels=Changed(module.kernels, run))):
            got = block(n, shape)
    for one, two in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-11, atol=1e-11)  # sums have another order


def test_other_tiles_are_refused() -> None:
    """Kernels that save every state have no states before longer tiles."""

    def longer(kernel: Any, arguments: dict[str, Any]) -> None:
        kernel(**{**arguments, "tile": 4, "carries": arguments["carries"][:, :, :1].copy()})

    n = over(numbers(Shape(1, 4, 2, 1)), to_device)
    with (
        on_harness() as module,
        kernels_of(SimpleNamespace(kernels=Changed(module.kernels, longer))),
        pytest.raises(NotImplementedError, match="there is no kernel for these arguments"),
    ):
        layer(n, Shape(1, 4, 2, 1))
