"""What is rounded in the precisions "tf32" and "bf16" by the CUDA kernels, in the harness."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_block_on_harness import SEEDS, Changed, Shape, block, cast, flat, layer, numbers, over

import rotrnn
import rounded
from cuda_harness import on_harness
from rotrnn._cpu import CELL
from rotrnn.devices.device import is_array
from rotrnn.ops.block import (
    BlockSaved,
    ChannelNorm,
    Gating,
    Later,
    RowNorm,
    keepable,
    residual_block,
    residual_block_backward,
)
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.linear_layer import linear_layer, linear_layer_backward
from rotrnn.ops.pointwise import dropout
from rotrnn.ops.slstm import slstm, slstm_backward
from strict import StrictArray, kernels_of, poisoned, to_device, to_host

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
    """Runs a block, or a linear layer if the form is "none", forward and backward, where its arrays are: results by
    name."""
    if form == "none":
        y, hT, saved = linear_layer(n["system"], n["x"], n["h0"], lengths=shape.lengths)
        grads = linear_layer_backward(n["dy"], n["system"], saved, n["dhT"])
        results = {"x": grads.du, "h0": grads.dh0, **grads.system._asdict()}
    else:
        part = ChannelNorm(*n["norm"]) if norm == "channel" else RowNorm(*n["norm"][1:])
        weights = n["gate"] if form == "full" else n["gate"][:2]
        gating = Gating(form, *weights, site=2, **DROPOUT)
        how = {"lengths": shape.lengths, "moments": True, "keep": keepable(n["x"]) * keep}
        r = residual_block(n["x"], part, n["system"], gating, n["h0"], **how)
        assert r.moments is not None
        y, hT, saved = r.y, r.hT, r.saved
        g = residual_block_backward(n["dy"], part, n["system"], gating, saved, n["dhT"], Later(*n["later"]))
        results = {
            **{"x": g.dx, "h0": g.dh0, "norm_sum": g.norm_sum, "norm_product": g.norm_product},
            **{"mean": r.moments[0], "var": r.moments[1], **g.system._asdict()},
            **{name: one for name, one in g.gating._asdict().items() if is_array(one)},
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
    return rounded.Block(*(wide[name] for name in ("x", "h0", "system", "norm", "gate")), lengths, kind, form, masks)


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


SHAPE = Shape(2, 20, 8, 3, 2, (20, 9))
KINDS = [("channel", "full"), ("channel", "half1"), ("row", "half2"), ("row", "full"), ("channel", "none")]


@pytest.mark.parametrize(("norm", "form"), KINDS)
def test_the_reference_without_rounding(norm: str, form: str) -> None:
    n = numbers(SHAPE)
    with in_precision("bf16"):  # float64 is not rounded
        got = run(over(n, to_device), SHAPE, norm, form)
    assert got.pop("saved").carries.dtype == np.complex128
    assert rounded.apart(got, expected(n, SHAPE, norm, form, rounded.Rounding())) < 1e-12


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize(("norm", "form"), KINDS)
def test_blocks(norm: str, form: str, precision: str, seed: int) -> None:
    """The CUDA kernels and the CPU's: one and both directions, ragged, with dropout and `later`, an odd D, and with the
    layer's output kept or not."""
    distances: dict[str, list[float]] = {"GPU": [], "CPU": []}
    for draw in range(3):
        shape = SHAPE._replace(D=8 if draw else 7, K=1 + draw % 2)
        n = cast(numbers(shape, draw), np.float32)
        with in_precision(precision, seed):
            got = run(over(n, to_device), shape, norm, form, keep=draw % 2 == 0)
        with rotrnn.precision(precision):
            here = run(n, shape, norm, form, keep=draw % 2 == 0)
        assert got.pop("saved").carries.dtype == (np.uint16 if precision == "bf16" else np.complex64)
        assert here.pop("saved").carries.dtype == np.complex64
        assert {one.dtype for one in got.values()} <= {np.dtype(np.float32), np.dtype(np.complex64)}
        for name, one in (("GPU", got), ("CPU", here)):
            r = rounded.Rounding(precision, results=name == "GPU")
            distances[name].append(rounded.apart(one, expected(n, shape, norm, form, r)))
    for one in distances.values():
        rounded.assert_near(one, precision)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", [SHAPE, Shape(1, 70, 8, 3)], ids=["short", "long"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_the_channel_norm_comes_before_rounding(precision: str, shape: Shape, seed: int) -> None:
    """An input whose mean is 256 deviations: if x itself were rounded, gradients would be off by some hundred units."""
    n = cast(numbers(shape, scale=256.0), np.float32)
    with in_precision(precision, seed):
        got = run(over(n, to_device), shape, "channel", "full")
    del got["saved"]
    assert (
        rounded.apart(got, expected(n, shape, "channel", "full", rounded.Rounding(precision, results=True)))
        < 4 * rounded.UNIT[precision]
    )


@pytest.mark.parametrize("missing", rounded.BLOCK_ROUNDINGS + rounded.RESULT_ROUNDINGS)
def test_a_missing_rounding_is_seen(missing: str) -> None:
    n = cast(numbers(SHAPE), np.float32)
    for norm, form in KINDS[:4]:
        if (missing, form) == ("dvalue", "full"):
            continue  # the gradient of a value that is a product is among "gates"
        whole, less = (expected(n, SHAPE, norm, form, rounded.Rounding("bf16", one, True)) for one in ("", missing))
        assert rounded.apart(less, whole) > 20 * rounded.SUMS


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize(("norm", "form"), KINDS[:-1])
def test_kept_arrays_are_read_and_change_nothing(norm: str, form: str, precision: str) -> None:
    n = over(cast(numbers(SHAPE), np.float32), to_device)
    part = ChannelNorm(*n["norm"]) if norm == "channel" else RowNorm(*n["norm"][1:])
    gating = Gating(form, *(n["gate"] if form == "full" else n["gate"][:2]), site=2, **DROPOUT)

    def gradients(saved: BlockSaved) -> list[Any]:
        grads = residual_block_backward(n["dy"], part, n["system"], gating, saved, n["dhT"])
        return flat([grads.dx, grads.system, list(grads.gating), grads.dh0, grads[4:]])

    with in_precision(precision):
        names = keepable(n["x"])
        assert names == ("layer", "gated", "normed")[: 2 + (precision == "bf16")]
        args = n["x"], part, n["system"], gating, n["h0"]
        bare = residual_block(*args, lengths=SHAPE.lengths)
        want = gradients(bare.saved)
        for keep in itertools.chain.from_iterable(itertools.combinations(names, k) for k in range(1, 4)):
            r = residual_block(*args, lengths=SHAPE.lengths, keep=keep)
            np.testing.assert_array_equal(to_host(r.y), to_host(bare.y))
            for one, other in zip(gradients(r.saved), want, strict=True):
                np.testing.assert_array_equal(one, other)
            for name in keep:
                wrong = to_host(getattr(r.saved, name)) * 0
                assert any(
                    (one != other).any()
                    for one, other in zip(gradients(r.saved._replace(**{name: to_device(wrong)})), want, strict=True)
                )


def test_states_and_layer_are_kept_in_half_the_memory() -> None:
    """The states before each step of a direction and then the last ones, as the recurrence in float32 has them."""
    shape = SHAPE._replace(D=7)
    n = cast(numbers(shape), np.float32)
    there = over(n, to_device)
    with in_precision("float32"):
        whole = run(there, shape, "row", "none")
    with in_precision("bf16"):
        half, kept = run(there, shape, "row", "none"), run(there, shape, "channel", "full", keep=True)["saved"]
        without = run(there, shape, "channel", "full")["saved"]
    assert kept.carries.nbytes == half["saved"].carries.nbytes
    assert without.layer is None
    assert kept.layer.dtype == np.uint16
    assert kept.layer.shape == n["x"].shape
    B, T, L = shape.B, shape.T, 2 * shape.N
    states = to_host(half["saved"].carries)
    assert states.shape == (2, B * (T + 1), L)
    assert 2 * half["saved"].carries.nbytes == whole["saved"].carries.nbytes * (T + 1) // T
    last = rounded.widened(states[:, B * T :]).reshape(2, B, L)
    np.testing.assert_array_equal(last, rounded.to_bf16(half["hT"].view(np.float32)))
    first = rounded.widened(states[0, : B * T]).reshape(B, T, L)[:, 0]
    np.testing.assert_array_equal(first, rounded.to_bf16(n["h0"][0].view(np.float32)))


@pytest.mark.parametrize(("norm", "form"), KINDS)
def test_padding_is_not_used(norm: str, form: str) -> None:
    shape = Shape(3, 9, 8, 2, 2, (9, 0, 4))
    n = cast(numbers(shape), np.float32)
    spoilt = over(n, np.copy)
    for b, steps in enumerate(shape.lengths or ()):
        for one in (spoilt["x"], spoilt["dy"], spoilt["later"][0]):
            one[b, steps:] = np.nan
    with in_precision("bf16"):
        clean, dirty = (run(over(one, to_device), shape, norm, form) for one in (n, spoilt))
    for name in clean.keys() - {"saved"}:
        np.testing.assert_array_equal(dirty[name], clean[name], err_msg=name)
    for b, steps in enumerate(shape.lengths or ()):
        assert not dirty["y"][b, steps:].any()
        assert not dirty["dx"][b, steps:].any()


def test_arrays_that_are_only_aligned_to_their_numbers() -> None:
    def moved(one: Any) -> Any:
        if not isinstance(one, StrictArray) or one.dtype not in (np.float32, np.uint16):
            return one
        room = np.zeros(one.size + 1, one.dtype)
        there = StrictArray(room[1:].reshape(one.shape))
        there[...] = one
        return there

    def call(kernel: Any, arguments: dict[str, Any]) -> None:
        there = {name: moved(one) for name, one in arguments.items()}
        kernel(**there)
        for name, one in arguments.items():
            if there[name] is not one:
                one[...] = there[name]

    n = over(cast(numbers(SHAPE), np.float32), to_device)
    with in_precision("bf16") as module:
        want = run(n, SHAPE, "channel", "full", keep=True)
        changed = SimpleNamespace(kernels=Changed(module.kernels, call), precision=module.precision)
        with kernels_of(changed):
            got = run(n, SHAPE, "channel", "full", keep=True)
    del want["saved"], got["saved"]
    assert rounded.apart(got, want) < 4 * rounded.UNIT["bf16"]  # sums have another order


@pytest.mark.parametrize("shape", [Shape(2, 0, 8, 3), Shape(0, 3, 8, 3)], ids=["no steps", "no sequences"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_empty_batches(precision: str, shape: Shape) -> None:
    """The results are those of the CPU, exactly: zeros, the states at the start, and their gradients."""
    n = cast(numbers(shape), np.float32)
    here = layer(n, shape) + block(n, shape, keep=True, moments=False)
    there = over(n, to_device)
    with in_precision(precision):
        got = layer(there, shape) + block(there, shape, keep=True, moments=False)
    for one, want in zip(got, here, strict=True):
        np.testing.assert_array_equal(one, want)


def test_exact_transitions() -> None:
    """States of magnitude one in double precision: they are rounded where they are kept alone."""
    shape = Shape(2, 7, 4, 3)
    n = cast(numbers(shape), np.float32)
    turn = np.exp(1j * np.linspace(0.1, 3, 3))
    n["system"] = n["system"]._replace(a=turn.astype(np.complex64))
    b = block_of(n, shape, "none", "none")
    b = b._replace(system=b.system._replace(a=turn))
    want = rounded.block_forward(b, rounded.Rounding("bf16", results=True))
    with in_precision("bf16"):
        there = over(n, to_device)
        y, hT, _ = linear_layer(there["system"], there["x"], there["h0"], exact=turn)
    assert hT.dtype == np.complex128
    assert rounded.apart({"y": to_host(y), "hT": to_host(hT)}, {"y": want.y, "hT": want.hT}) < rounded.SUMS


def test_what_is_refused() -> None:
    """States of other sizes or dtypes, and states in bfloat16 where the kernel keeps others."""
    n = over(cast(numbers(SHAPE), np.float32), to_device)
    with in_precision("bf16"):
        _, _, saved = linear_layer(n["system"], n["x"], n["h0"], lengths=SHAPE.lengths)
        with pytest.raises(ValueError, match=r"linear_layer_backward: saved.carries has shape \(2, 41, 6\)"):
            linear_layer_backward(n["dy"], n["system"], saved._replace(carries=saved.carries[:, 1:].copy()))
        got = linear_layer_backward(n["dy"], n["system"], saved)
    with on_harness():  # what was saved decides
        again = linear_layer_backward(n["dy"], n["system"], saved)
    np.testing.assert_array_equal(to_host(again.du), to_host(got.du))
    host = over(n, to_host)
    here = saved._replace(u=host["x"], h0=host["h0"], carries=to_host(saved.carries))
    with pytest.raises(NotImplementedError, match="block_backward: there is no kernel for these arguments"):
        linear_layer_backward(host["dy"], host["system"], here)


# ---- other products ----


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_products(precision: str) -> None:
    """Products of rounded operands are exact, so that only sums differ."""
    rng, r = np.random.default_rng(0), rounded.Rounding(precision)
    x, w, dy = (rng.standard_normal(size).astype(np.float32) for size in ((9, 5), (7, 5), (9, 7)))
    ox, ow, ody = (r.operand("x", one) for one in (x, w, dy))
    with in_precision(precision):
        y, grads = dense(to_device(x), to_device(w)), dense_backward(*map(to_device, (dy, x, w)))
        got = {"y": to_host(y), "dx": to_host(grads.dx), "dw": to_host(grads.dw), "dbias": to_host(grads.dbias)}
    want = {"y": ox @ ow.T, "dx": ody @ ow, "dw": ody.T @ ox, "dbias": dy.sum(0, dtype=float)}
    assert rounded.apart(got, want) < 10 * 2.0**-24


# ---- recurrences and attention ----


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_recurrences(cell: str, precision: str) -> None:
    B, T, N, lengths, distances = 3, 6, 35, (6, 0, 4), []
    G = 4 if cell == "lstm" else 1
    for draw in range(3):
        rng = np.random.default_rng(draw)
        w = 0.9 * np.linalg.qr(rng.standard_normal((G * N, N)))[0]
        sizes = [(B, T, G * N), (B, N), (B, N), (B, T, N), (B, N), (B, N)]
        w, x, h0, c0, dh, dhT, dcT = (one.astype(np.float32) for one in (w, *map(rng.standard_normal, sizes)))
        n = rounded.Recurrence(w, x, h0, c0, lengths, bool(draw % 2), cell)
        wide = n._replace(**{name: getattr(n, name).astype(float) for name in ("w", "x", "h0", "c0")})
        forward = rounded.rnn_forward(wide, rounded.Rounding(precision))
        given = {"w": w, "lengths": np.array(lengths, np.int64), "c0": c0 if G == 4 else None}
        how = {"B": B, "T": T, "N": N, "cell": CELL[cell], "reverse": n.reverse}
        missing = {} if G == 4 else dict.fromkeys(("c", "cT", "gates"))
        got = kernel("rnn_forward", precision, forward, {**given, "x": x, "h0": h0, "bias": None, **how, **missing})
        results = [(got, forward)]
        saved = {name: got[name].astype(float) for name in ("h", "c", "gates") if name in got}
        backward = rounded.rnn_backward(
            wide, rounded.Rounding(precision), saved, *(one.astype(float) for one in (dh, dhT, dcT))
        )
        given |= {"dh": dh, "dhT": dhT, "dcT": dcT if G == 4 else None}
        given |= {name: got.get(name) for name in ("h", "c", "gates")}
        missing = {} if G == 4 else {"dc0": None}
        back = kernel("rnn_backward", precision, backward, {**given, **how, **missing})
        results.append((back, backward))
        distances.append(max(rounded.apart(*pair) for pair in results))
    rounded.assert_near(distances, precision)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_the_scalar_memory(precision: str) -> None:
    """Beside the CPU, which rounds the same operands. Without any rounding, every draw is far."""
    distances, far = [], []
    for draw in range(3):
        rng = np.random.default_rng(draw)
        sizes = (2, 28, 7), (3, 5, 4, 2, 7), (3, 5, 2, 7)
        arrays = [rng.standard_normal(size).astype(np.float32) for size in sizes]
        with in_precision(precision):
            got = scalar_memory(*map(to_device, arrays))
        with rotrnn.precision(precision):
            want = scalar_memory(*arrays)
        distances.append(rounded.apart(got, want))
        far.append(rounded.apart(got, scalar_memory(*arrays)))
    rounded.assert_near(distances, precision)
    assert min(far) > 20 * rounded.SUMS, far


def scalar_memory(w: Any, x: Any, dh: Any) -> dict[str, Any]:
    """Runs an sLSTM's memory forward and backward, where its arrays are: results by name."""
    result = slstm(w, x, lengths=(5, 3, 0))
    grads = slstm_backward(dh, w, result, lengths=(5, 3, 0))
    return {name: to_host(one) for part in (result, grads) for name, one in part._asdict().items()}


def kernel(name: str, precision: str, like: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Returns the outputs of a kernel in the harness, whose names and shapes `like` has."""
    outputs = {key: poisoned(one.shape, np.float32) for key, one in like.items()}
    with in_precision(precision) as module:
        getattr(module.kernels, name)(**outputs, **{key: to_device(one) for key, one in inputs.items()})
    return {key: to_host(one) for key, one in outputs.items()}


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_attention(precision: str) -> None:
    distances = []
    for draw in range(3):
        rng = np.random.default_rng(draw)
        dy, q, k, v = (rng.standard_normal((2, 20, 6)).astype(np.float32) for _ in range(4))
        wide, r = [one.astype(float) for one in (q, k, v)], rounded.Rounding(precision)
        y, norm = rounded.attention_forward(*wide, r)
        sizes = {"B": 2, "T": 20, "S": 20, "D": 6, "H": 1, "window": 0, "lengths": None, "past": None}
        inputs = {"q": q, "k": k, "v": v, **sizes}
        got = kernel("attention_forward", precision, {"y": y, "norm": norm}, inputs)
        saved = (one.astype(float) for one in got.values())
        grads = rounded.attention_backward(dy.astype(float), *wide, *saved, r)
        back = kernel("attention_backward", precision, grads, {**inputs, "dy": dy, **got})
        distances.append(max(rounded.apart(got, {"y": y, "norm": norm}), rounded.apart(back, grads)))
    rounded.assert_near(distances, precision)


@pytest.mark.parametrize("missing", ["q", "k", "v", "p", "dy", "ds"])
def test_a_missing_rounding_of_attention_is_seen(missing: str) -> None:
    rng = np.random.default_rng(0)
    dy, q, k, v = (rng.standard_normal((2, 20, 6)) for _ in range(4))
    results = []
    for r in (rounded.Rounding("bf16"), rounded.Rounding("bf16", missing)):
        y, norm = rounded.attention_forward(q, k, v, r)
        results.append({"y": y, **rounded.attention_backward(dy, q, k, v, y, norm, r)})
    assert rounded.apart(results[1], results[0]) > 20 * rounded.SUMS


@pytest.mark.parametrize("missing", ["w", "h", "dz"])
def test_a_missing_rounding_of_a_recurrence_is_seen(missing: str) -> None:
    rng = np.random.default_rng(0)
    w, x, state, dh = (rng.standard_normal(size) for size in ((12, 3), (2, 5, 12), (2, 3), (2, 5, 3)))
    n, results = rounded.Recurrence(w, x, state, state, (5, 3), False, "lstm"), []
    for r in (rounded.Rounding("bf16"), rounded.Rounding("bf16", missing)):
        saved = rounded.rnn_forward(n, r)
        results.append({**saved, **rounded.rnn_backward(n, r, saved, dh, state, state)})
    assert rounded.apart(results[1], results[0]) > 20 * rounded.SUMS
