"""Precision on the CPU: which products round their operands, and how, on every instruction set."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotrnn
import rounded
from rotrnn import _cpu
from rotrnn._cpu import CELL
from rotrnn.devices.device import HOST
from rotrnn.devices.precisions import PRECISIONS
from rotrnn.ops.block import ChannelNorm, Gating, Later, RowNorm, residual_block, residual_block_backward
from rotrnn.ops.linear_layer import System, linear_layer, linear_layer_backward
from rotrnn.ops.pointwise import dropout

ROUND = {"float32": lambda x: np.asarray(x, np.float64), "tf32": rounded.to_tf32, "bf16": rounded.to_bf16}
PLAIN, *BF16 = _cpu.BF16_BY_AVAILABLE
WAYS = [(simd, PLAIN) for simd in _cpu.SIMD_AVAILABLE] + [("avx512", by) for by in BF16]
"""Instruction sets, and by what products of bfloat16 are computed."""

ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way[0] if way[1] == PLAIN else way[1])
rounding = pytest.mark.parametrize("precision", ["tf32", "bf16"])

Arrays = dict[str, Any]


@contextlib.contextmanager
def computing(precision: str, way: tuple[str, str]) -> Iterator[None]:
    simd, by = _cpu.use_simd(way[0]), _cpu.use_bf16_by(way[1])
    try:
        with rotrnn.precision(precision):
            yield
    finally:
        _cpu.use_simd(simd)
        _cpu.use_bf16_by(by)


def normal(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def in_use() -> str:
    name = _cpu.use_precision("float32")
    _cpu.use_precision(name)
    return name


# ---- names and threads ----


def test_a_name_is_checked_at_once_and_a_block_can_be_entered_again() -> None:
    with pytest.raises(ValueError, match=r"precision: name is 'half', expected one of float32, tf32, bf16"):
        rotrnn.precision("half")
    one = rotrnn.precision("bf16")
    with one, rotrnn.precision("tf32"), one:
        assert in_use() == "bf16"
    assert in_use() == "float32"


def test_backward_in_another_precision_is_refused() -> None:
    layer = rotrnn.LRU(d_model=4, d_state=3)
    params, x = layer.init(np.random.default_rng(0)), normal(np.random.default_rng(1), 2, 5, 4)
    with rotrnn.precision("bf16"):
        y, saved = layer.forward(params, x)
    message = r"LRU\.backward: saved is of a forward in precision bf16, expected float32, as set here"
    with pytest.raises(ValueError, match=message):
        layer.backward(params, saved, y)
    with rotrnn.precision("bf16"):
        layer.backward(params, saved, y)


def test_precision_holds_within_its_block() -> None:
    with rotrnn.precision("tf32"):
        with rotrnn.precision("bf16"):
            assert in_use() == "bf16"
        with pytest.raises(KeyError), rotrnn.precision("bf16"):
            raise KeyError
        assert in_use() == "tf32"
    assert in_use() == "float32"


def test_other_names_are_refused() -> None:
    with (
        pytest.raises(ValueError, match="precision: name is 'half', expected one of float32, tf32, bf16"),
        rotrnn.precision("half"),
    ):
        pass
    names: tuple[Any, ...] = (np.array(["bf16", "tf32"]), np.array("bf16"), ["bf16"], None)
    for name in names:
        with pytest.raises(ValueError, match=r"^precision: name is .*, expected one of float32, tf32, bf16$"):
            rotrnn.precision(name)
    with pytest.raises(RuntimeError, match=r"^precision.__exit__: 'bf16' was not entered, expected a with statement$"):
        rotrnn.precision("bf16").__exit__(None, None, None)
    with pytest.raises(ValueError, match="use_precision: got 'half', expected one of float32, tf32, bf16"):
        _cpu.use_precision("half")
    with pytest.raises(TypeError):
        _cpu.use_precision(1)  # type: ignore[arg-type]


def test_each_thread_has_its_own() -> None:
    """Products in several threads at once, each large enough for helpers of its own: the bits of one thread alone."""
    rng = np.random.default_rng(0)
    x, w = normal(rng, 500, 64), normal(rng, 64, 64)
    together, seen, alone = threading.Barrier(len(PRECISIONS)), {}, {}
    for name in PRECISIONS:
        with rotrnn.precision(name):
            alone[name] = rotrnn.ops.dense(x, w).tobytes()
    assert len(set(alone.values())) == len(PRECISIONS)

    def work(name: str) -> None:
        assert in_use() == "float32"
        with rotrnn.precision(name):
            together.wait(10)
            seen[name] = {rotrnn.ops.dense(x, w).tobytes() for _ in range(20)}
            together.wait(10)

    threads = [threading.Thread(target=work, args=(name,)) for name in PRECISIONS]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert seen == {name: {alone[name]} for name in PRECISIONS}


def test_a_block_that_two_threads_are_in() -> None:
    """Each left it with the precision that the other had before."""
    shared, inside, left, seen = rotrnn.precision("tf32"), threading.Event(), threading.Event(), []

    def work() -> None:
        with rotrnn.precision("bf16"):
            with shared:
                inside.set()
                left.wait(10)
            seen.append(in_use())

    thread = threading.Thread(target=work)
    with shared:
        thread.start()
        inside.wait(10)
    seen.append(in_use())
    left.set()
    thread.join()
    assert seen == ["float32", "bf16"]


# ---- instruction sets ----


def test_products_of_bf16_are_by_what_the_processor_has() -> None:
    """As Linux lists it: a system that has the tiles of AMX also gives them."""
    lists = Path("/proc/cpuinfo")
    flags = set(lists.read_text(encoding="utf-8").split()) if lists.exists() else set()
    if not flags & {"avx2", "asimd"}:
        pytest.skip("needs Linux")
    has = {"avx512_bf16": {"avx512f", "avx512_bf16"}, "avx512_amx": {"avx512_bf16", "amx_tile", "amx_bf16"}}
    assert PLAIN == "float32"
    built = "avx512" in _cpu.SIMD_AVAILABLE  # a build by ROTRNN_ISA may have less than the processor
    assert "avx512_bf16" in BF16 or not (built and has["avx512_bf16"] <= flags)
    assert all(has[name] <= flags for name in BF16)
    assert _cpu.bf16_by() == _cpu.BF16_BY_AVAILABLE[-1] or os.environ.get("ROTRNN_SIMD")


def test_what_products_of_bf16_are_by_is_named() -> None:
    with pytest.raises(ValueError, match=r"use_bf16_by: got 'mmx', expected one of \('float32',"):
        _cpu.use_bf16_by("mmx")
    before = _cpu.simd(), _cpu.bf16_by()
    for simd, by in WAYS:
        with computing("bf16", (simd, by)):
            assert (_cpu.simd(), _cpu.bf16_by()) == (simd, by)
        with computing("bf16", ("base" if "base" in _cpu.SIMD_AVAILABLE else simd, by)):
            assert _cpu.bf16_by() == (by if _cpu.simd() == "avx512" else PLAIN)
    assert (_cpu.simd(), _cpu.bf16_by()) == before


# ---- products ----


@ways
@rounding
def test_operands_are_rounded_to_nearest(precision: str, way: tuple[str, str]) -> None:
    """Products with one: ties, both signs, the largest numbers, infinity and NaN; on either side."""
    bits = np.random.default_rng(0).integers(1 << 23, 0x7F000000, 4001).astype(np.uint32)
    halves = bits & 0xFFFF8000 | 0x8000, bits & 0xFFFFF000 | 0x1000
    special = np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F801000, 0x7F7FFFFF], np.uint32)
    x = np.concatenate([bits, bits | 0x80000000, *halves, special]).view(np.float32)
    one = np.ones((1, 1), np.float32)
    want = x.copy()  # infinities and NaN stay
    want[np.isfinite(x)] = ROUND[precision](x[np.isfinite(x)])
    with computing(precision, way):
        for got in (rotrnn.ops.dense(x[:, None], one)[:, 0], rotrnn.ops.dense(one, x[:, None])[0]):
            np.testing.assert_array_equal(got, want)


SIZES = [(1, 7, 5), (5, 1, 3), (3, 2, 70), (130, 300, 70), (24, 128, 64), (300, 257, 17), (4, 0, 3), (0, 3, 2)]


@ways
@rounding
@pytest.mark.parametrize(("M", "K", "N"), SIZES)
def test_products(M: int, K: int, N: int, precision: str, way: tuple[str, str]) -> None:
    """Products of rounded numbers have at most 22 bits, and are exact in float32. A sum of n terms, in any order, is
    then within (n - 1) 2^-24 of the sum of magnitudes, to first order; numbers below 2^-126 may be lost in each."""
    rng, r = np.random.default_rng(M + K), ROUND[precision]
    x, w, dy = normal(rng, M, K), normal(rng, N, K), normal(rng, M, N)
    bias = normal(rng, N)
    with computing(precision, way):
        y = rotrnn.ops.dense(x, w, bias)
        grads = rotrnn.ops.dense_backward(dy, x, w)
        stacked = np.empty((2, M, K), np.float32)
        _cpu.kernels.matmul_stack(y=stacked, x=np.stack([dy, -dy]), w=np.stack([w, w]), G=2, M=M, d_in=N, d_out=K)
    products = [(y, r(x), r(w).T, bias), (grads.dx, r(dy), r(w), 0), (grads.dw, r(dy).T, r(x), 0)]
    products += [(stacked[0], r(dy), r(w), 0), (-stacked[1], r(dy), r(w), 0)]
    for got, left, right, more in products:
        terms = left.shape[1] + 1
        bound = 1.01 * terms * 2.0**-24 * (np.abs(left) @ np.abs(right) + np.abs(more)) + terms * 2.0**-126
        assert (np.abs(got - (left @ right + more)) <= bound).all()
    sums = 1.01 * M * 2.0**-24 * np.abs(dy).sum(0)  # of dy as it is
    assert (np.abs(grads.dbias - dy.sum(0, np.float64)) <= sums).all()


@ways
@rounding
def test_products_of_the_previous_step(precision: str, way: tuple[str, str]) -> None:
    """base_t + v y_{t-1}; the bound as of `test_products`."""
    rng, r = np.random.default_rng(0), ROUND[precision]
    base, y, v = normal(rng, 2, 70, 9), normal(rng, 2, 70, 5), normal(rng, 9, 5)
    got, functions = np.empty_like(base), np.array([_cpu.LAGGED["linear"]])
    sizes = {"ranges": 1, "B": 2, "T": 70, "columns": 9, "E": 5, "eps": 0.0}
    with computing(precision, way):
        none = {"first": None, "lengths": None}
        _cpu.kernels.lagged_product(
            out=got, base=base, y=y, v=v, widths=np.array([9]), functions=functions, **none, **sizes
        )
    before = r(y[:, :-1])
    bound = 1.01 * 6 * 2.0**-24 * (np.abs(before) @ np.abs(r(v)).T + np.abs(base[:, 1:])) + 6 * 2.0**-126
    assert (np.abs(got[:, 1:] - (base[:, 1:] + before @ r(v).T)) <= bound).all()
    np.testing.assert_array_equal(got[:, 0], base[:, 0])


@ways
@rounding
def test_products_and_their_adjoints(precision: str, way: tuple[str, str]) -> None:
    """<dy, x w^T> = <dy w, x> = <dy^T x, w> for rounded numbers. Each inner product is within 2^-24 times the terms of
    its longest sum of that of magnitudes."""
    rng, r = np.random.default_rng(0), ROUND[precision]
    x, w, dy = normal(rng, 90, 70), normal(rng, 50, 70), normal(rng, 90, 50)
    with computing(precision, way):
        y, (dx, dw, _) = rotrnn.ops.dense(x, w), rotrnn.ops.dense_backward(dy, x, w)
    inner = [float((a * b).sum()) for a, b in ((r(dy), y), (dx, r(x)), (dw, r(w)))]
    magnitude = float(np.einsum("mo,mi,oi->", *(np.abs(r(one)) for one in (dy, x, w)), optimize=True))
    assert max(inner) - min(inner) <= 2 * 1.01 * 90 * 2.0**-24 * magnitude


@rounding
def test_float64_is_not_rounded(precision: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((20, 30)), rng.standard_normal((10, 30))
    plain = rotrnn.ops.dense(x, w)
    with rotrnn.precision(precision):
        np.testing.assert_array_equal(rotrnn.ops.dense(x, w), plain)


# ---- blocks ----


def numbers(B: int, T: int, D: int, N: int, K: int, seed: int) -> Arrays:
    """The arrays of a block in float32, of size about one."""
    rng = np.random.default_rng(seed)

    def states() -> Any:
        return (normal(rng, K, B, N) + 1j * normal(rng, K, B, N)).astype(np.complex64)

    a = (rng.uniform(0.8, 1, N) * np.exp(1j * rng.uniform(-np.pi, np.pi, N))).astype(np.complex64)
    w_in, w_out = normal(rng, 2 * N, D) / np.float32(D**0.5), normal(rng, K, D, 2 * N) / np.float32((2 * N) ** 0.5)
    return {
        "x": normal(rng, B, T, D) + 1,
        "h0": states(),
        "system": System(w_in, a, w_out, normal(rng, D)),
        "norm": (1 + normal(rng, D) / 10, normal(rng, D), normal(rng, D)),
        "gate": [normal(rng, *size) / np.float32(D**0.5) for size in ((D, D), (D,), (D, D), (D,))],
        "dy": normal(rng, B, T, D),
        "dhT": states(),
        "later": (normal(rng, B, T, D), *(normal(rng, D) for _ in range(3))),
    }


DROPOUT: dict[str, Any] = {"rate": 0.3, "seed": 3, "step": 5}


def block(n: Arrays, lengths: Any, norm: str, form: str, keep: bool = False) -> Arrays:
    """A block, or a linear layer if the form is "none", forward and backward: results by name."""
    if form == "none":
        y, hT, saved = linear_layer(n["system"], n["x"], n["h0"], lengths=lengths)
        layer = linear_layer_backward(n["dy"], n["system"], saved, n["dhT"])
        grads = {"x": layer.du, "h0": layer.dh0, **layer.system._asdict()}
    else:
        part = ChannelNorm(*n["norm"]) if norm == "channel" else RowNorm(*n["norm"][1:])
        gating = Gating(form, *n["gate"][: 4 if form == "full" else 2], site=2, **DROPOUT)
        y, hT, _, kept = residual_block(
            n["x"], part, n["system"], gating, n["h0"], lengths=lengths, keep=("layer",) * keep
        )
        g = residual_block_backward(n["dy"], part, n["system"], gating, kept, n["dhT"], Later(*n["later"]))
        grads = {"x": g.dx, "h0": g.dh0, "norm_sum": g.norm_sum, "norm_product": g.norm_product, **g.system._asdict()}
        grads |= {name: one for name, one in g.gating._asdict().items() if isinstance(one, np.ndarray)}
    return {"y": y, "hT": hT, **{f"d{name}": one for name, one in grads.items()}}


def wide(value: Any) -> Any:
    """Nested arrays in double precision."""
    if isinstance(value, list | tuple):
        parts = [wide(one) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)


def expected(n: Arrays, lengths: Any, norm: str, form: str, precision: str) -> Arrays:
    """What `block` is to return."""
    n = {name: wide(one) for name, one in n.items()}
    masks = tuple(dropout(np.ones(n["x"].shape), site=site, **DROPOUT) for site in (2, 3))
    kind = "none" if form == "none" else norm
    parts = n["x"], n["h0"], n["system"], n["norm"], n["gate"]
    b = rounded.Block(*parts, lengths, kind, form, masks)
    r = rounded.Rounding(precision)
    kept = rounded.block_forward(b, r)
    grads = rounded.block_backward(b, r, kept, n["dy"], n["dhT"], None if form == "none" else n["later"])
    return {"y": kept.y, "hT": kept.hT, **{f"d{name}": one for name, one in grads.items()}}


KINDS = [("channel", "full"), ("channel", "half1"), ("row", "half2"), ("row", "full"), ("channel", "none")]


@ways
@rounding
@pytest.mark.parametrize(("norm", "form"), KINDS)
def test_blocks(norm: str, form: str, precision: str, way: tuple[str, str]) -> None:
    """One and both directions, ragged, with dropout and `later`, and with the layer's output kept or computed again."""
    distances = []
    for draw in range(3):
        n = numbers(2, 20, 8 if draw else 7, 3, 1 + draw % 2, draw)
        with computing(precision, way):
            got = block(n, (20, 9), norm, form, keep=draw % 2 == 0)
        distances.append(rounded.apart(got, expected(n, (20, 9), norm, form, precision)))
    rounded.assert_near(distances, precision)


@ways
@pytest.mark.parametrize("lengths", [(230,), (100,) * 17], ids=["few", "many"])
def test_blocks_of_several_tiles(lengths: tuple[int, ...], way: tuple[str, str]) -> None:
    """Roundings are the same wherever tiles end. Here some go to another neighbour, but these are few: what is left of
    the distance to results without rounding is less than an eighth."""
    n = numbers(len(lengths), max(lengths), 8, 4, 2, 0)
    want, plain = (expected(n, lengths, "row", "full", name) for name in ("bf16", "float32"))
    with computing("bf16", way):
        got = block(n, lengths, "row", "full")
    for name in want.keys() - {"hT"}:
        here, there = (np.linalg.norm(one[name] - want[name]) for one in (got, plain))
        assert here < there / 8, name


@pytest.mark.parametrize("form", ["full", "none"])
def test_tiles_of_other_sizes_round_the_same(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiles of two steps, every other state that da takes is one between tiles."""
    distances = []
    for draw in range(3):
        n, found = numbers(2, 40, 8, 3, 1 + draw % 2, draw), []
        for tile in (2, 96):
            monkeypatch.setitem(vars(HOST), "tile", tile)
            with rotrnn.precision("bf16"):
                found.append(block(n, (40, 30), "row", form))
        distances.append(rounded.apart(*found))
    rounded.assert_near(distances, "bf16")


def test_blocks_of_any_number_of_threads() -> None:
    n, found, before = numbers(3, 300, 24, 16, 2, 0), [], _cpu.threads()
    try:
        for threads in (1, 2, 7):
            _cpu.use_threads(threads)
            with rotrnn.precision("bf16"):
                found.append([one.tobytes() for one in block(n, (300, 0, 151), "channel", "full").values()])
    finally:
        _cpu.use_threads(before)
    assert found[0] == found[1] == found[2]


@ways
def test_padding_is_not_used(way: tuple[str, str]) -> None:
    n, lengths = numbers(3, 9, 8, 2, 2, 0), (9, 0, 4)
    with computing("bf16", way):
        clean = block(n, lengths, "row", "full")
        for b, steps in enumerate(lengths):
            for one in (n["x"], n["dy"], n["later"][0]):
                one[b, steps:] = np.nan
        dirty = block(n, lengths, "row", "full")
    for name, one in clean.items():
        np.testing.assert_array_equal(dirty[name], one, err_msg=name)


# ---- recurrences and attention ----


@ways
@rounding
@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_recurrences(cell: str, precision: str, way: tuple[str, str]) -> None:
    B, T, N, lengths, distances = 3, 6, 35, (6, 0, 4), []
    G = 4 if cell == "lstm" else 1
    for draw in range(3):
        rng = np.random.default_rng(draw)
        w = (0.9 * np.linalg.qr(rng.standard_normal((G * N, N)))[0]).astype(np.float32)
        sizes = [(B, T, G * N), (B, N), (B, N), (B, T, N), (B, N), (B, N)]
        x, h0, c0, dh, dhT, dcT = (normal(rng, *size) for size in sizes)
        n = rounded.Recurrence(*map(wide, (w, x, h0, c0)), lengths, bool(draw % 2), cell)
        r = rounded.Rounding(precision)
        want = rounded.rnn_forward(n, r)
        of_lstm = ("c0", "dcT", "c", "gates", "cT", "dc0")
        given = {"w": w, "lengths": np.array(lengths, np.int64), "c0": c0, "B": B, "T": T, "N": N, "cell": CELL[cell]}
        given["reverse"] = n.reverse

        def call(name: str, like: Arrays, inputs: Arrays, none: tuple[str, ...] = of_lstm if G == 1 else ()) -> Arrays:
            outputs = {key: np.empty(one.shape, np.float32) for key, one in like.items()}
            arguments = {**outputs, **inputs}
            getattr(_cpu.kernels, name)(
                **arguments | {key: None for key in none if key in arguments or key in MISSING[name]}
            )
            return outputs

        with computing(precision, way):
            got = call("rnn_forward", want, {**given, "x": x, "h0": h0, "bias": None})
            saved = {name: got.get(name) for name in ("h", "c", "gates")}
            reference = {name: None if one is None else wide(one) for name, one in saved.items()}
            back = rounded.rnn_backward(n, r, reference, *map(wide, (dh, dhT, dcT)))
            found = call("rnn_backward", back, {**given, **saved, "dh": dh, "dhT": dhT, "dcT": dcT})
        distances.append(max(rounded.apart(got, want), rounded.apart(found, back)))
    rounded.assert_near(distances, precision)


MISSING = {"rnn_forward": ("c", "cT", "gates"), "rnn_backward": ("dc0",)}
"""Outputs of an LSTM alone."""


@ways
@rounding
def test_attention(precision: str, way: tuple[str, str]) -> None:
    distances = []
    for draw in range(3):
        rng = np.random.default_rng(draw)
        dy, q, k, v = (normal(rng, 2, 20, 6) for _ in range(4))
        r = rounded.Rounding(precision)
        y, norm = rounded.attention_forward(*map(wide, (q, k, v)), r)
        with computing(precision, way):
            got, got_norm = rotrnn.ops.attention(q, k, v, heads=1)
            grads = rotrnn.ops.attention_backward(dy, q, k, v, got, got_norm, heads=1)
        back = rounded.attention_backward(*map(wide, (dy, q, k, v, got, got_norm)), r)
        found = {"y": got, "norm": got_norm, **grads._asdict()}
        distances.append(rounded.apart(found, {"y": y, "norm": norm, **back}))
    rounded.assert_near(distances, precision)


@ways
def test_attention_of_several_tiles(way: tuple[str, str]) -> None:
    """In two heads, beyond a tile's keys and queries. Probabilities are rounded relative to the largest of their tile,
    so roundings differ from the reference's; half of the distance to results without rounding is left at most, and all
    of it would be without."""
    rng = np.random.default_rng(0)
    dy, q, k, v = (normal(rng, 2, 130, 12) for _ in range(4))
    found = {}
    for precision in ("float32", "bf16"):
        with computing(precision, way):
            y, norm = rotrnn.ops.attention(q, k, v, heads=2)
            found[precision] = {"y": y, **rotrnn.ops.attention_backward(dy, q, k, v, y, norm, heads=2)._asdict()}
    for name, got in found["bf16"].items():
        heads = []
        for h in (slice(0, 6), slice(6, 12)):
            parts, r = [wide(one[:, :, h]) for one in (q, k, v)], rounded.Rounding("bf16")
            y, norm = rounded.attention_forward(*parts, r)
            back = rounded.attention_backward(wide(dy[:, :, h]), *parts, y, norm, r)
            heads.append({"y": y, **back}[name])
        want = np.concatenate(heads, -1)
        assert np.linalg.norm(got - want) < np.linalg.norm(found["float32"][name] - want) / 2, name
