"""The count of what a launch moves (host_traffic.h), and that a block moves little more than the least."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import Any

import numpy as np
import pytest

from rotrnn.ops.dense import dense
from rotrnn.ops.scan import diagonal_scan
from rotrnn.training.recipe import load_recipe
from strict import to_device
from traffic import Launch, counted, counter, step
from traffic_table import count, extended, lean, of_blocks, total, written_up

N = 1024  # numbers of each planted kernel's arrays

# Kernel of planted.cu; numbers read, written, and of all loads and stores; flops
PLANTED = [
    ("plain", N, N, 2 * N, 0),
    ("repeated", N, N, 3 * N, 0),  # shared memory and shuffles are no traffic
    ("strided", N // 4, N // 4, N // 2, 0),
    ("copied", 2 * N, N, 3 * N, 0),  # asynchronous copies are, and y is read, too
]


@pytest.mark.parametrize("which", range(len(PLANTED)), ids=[one[0] for one in PLANTED])
def test_what_planted_kernels_move(which: int) -> None:
    one, (name, *moved, flops) = counter(), PLANTED[which]
    x, y = np.zeros(N, np.float32), np.zeros(N, np.float32)
    one.launches = []
    with one.counting("planted"):
        assert not one.library.planted(which, *(ctypes.c_void_p(z.ctypes.data) for z in (y, x)), ctypes.c_int64(N))
    assert one.launches == [Launch("planted", name, *(4 * numbers for numbers in moved), flops)]


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return to_device(np.random.default_rng(0).standard_normal(shape).astype(dtype))


def test_what_ops_move() -> None:
    """A scan reads x and the transitions and writes h; a product its operands and its result; a bias is added after."""
    B, T, D, out = 2, 40, 8, 12
    a, x, w, bias = normal(D, dtype=np.complex64), normal(B, T, D, dtype=np.complex64), normal(out, D), normal(out)
    (scan,) = counted(lambda: diagonal_scan(a, x))
    assert (scan.entry, scan.read, scan.written) == ("scan_forward", 8 * (B * T * D + D), 8 * B * T * D)
    y = normal(B, T, D)
    product, add = (one for one in counted(lambda: dense(y, w, bias)) if one.entry == "matmul")
    rows = B * T
    sizes = (4 * (rows * D + out * D), 4 * rows * out)
    assert product == ("matmul", "runtime_multiply", *sizes, sum(sizes), 2 * rows * D * out)
    assert (add.read, add.written, add.flops) == (4 * (rows * out + out), 4 * rows * out, 0)


def test_padding_is_not_read() -> None:
    """Half of the steps: half of what a scan reads, and all that it writes, which is zeros there."""
    x, a = normal(2, 40, 8), normal(8)
    for half, read in ((False, 2 * 40 * 8), (True, (40 + 3) * 8)):
        lengths = np.array([40, 3]) if half else np.array([40, 40])
        (scan,) = counted(lambda lengths=lengths: diagonal_scan(a, x, lengths=lengths))
        assert scan.written == 4 * 2 * 40 * 8
        assert 4 * (read + 8) <= scan.read <= 4 * (read + 8) + 8 * 2  # and the lengths


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_block_moves_little_more_than_the_least(precision: str) -> None:
    """13 arrays (rows, D) and 4 (rows, 2N) forward, 25 and 7 backward. In bf16 a number has 2 bytes, but for 3 and 6 of
    the arrays of D: the residual stream and its gradient."""
    B, T, D, N = 4, 64, 16, 32
    sizes = [f"training.batch={B}", f"model.d_model={D}", f"layer.d_state={N}", "model.n_layers=2"]
    counter().use_precision(precision)
    launches = step(load_recipe("listops-lru", sizes), T)
    counter().use_precision("float32")
    d, l = 4 * B * T * D, 4 * B * T * 2 * N  # noqa: E741
    least = {"block_forward": 13 * d + 4 * l, "block_backward": 25 * d + 7 * l}
    if precision == "bf16":
        least = {"block_forward": 3 * d + (10 * d + 4 * l) / 2, "block_backward": 6 * d + (19 * d + 7 * l) / 2}
    for entry, bytes_moved in least.items():
        moved = sum(one.moved for one in launches if one.entry == entry) / 2
        assert 0.9 * bytes_moved < moved < 1.3 * bytes_moved


def test_launches_of_a_step() -> None:
    """Of ListOps, six blocks: CuPy's own, on arrays of parameters; and the gradients of 88, sixteen at once."""
    sizes = ["model.d_model=16", "layer.d_state=16", "training.batch=4"]
    launches = step(load_recipe("listops-lru", sizes), 8, np.full(4, 0.5))
    by_entry = Counter(one.entry for one in launches)
    assert by_entry["CuPy"] <= 31
    assert by_entry["place_parts"] == 6
    assert len(launches) <= 339


SMALL = ["model.d_model=16", "model.n_layers=2", "layer.d_state=32", "training.batch=32"]


def test_a_step_of_any_length_is_known_from_two() -> None:
    recipe, share = load_recipe("listops-lru", SMALL), np.full(32, 0.5)
    few, more, most = (step(recipe, T, share) for T in (4, 8, 16))
    for one, two in zip(extended(few, more, 16, (4, 8)), most, strict=True):
        assert one[:2] == two[:2]
        # but for partial sums, which are a few for each block of rows, and the number of blocks is rounded up
        assert abs(one.moved - two.moved) <= 4 * 8 * recipe.model.d_model
        assert one.flops == two.flops


def test_the_table_of_recipes() -> None:
    """Whole and ragged: the padding costs products alone. The least is (13 + 25) d + (4 + 7) l, and l is 4 d here."""
    rows = [count("listops", "float32", ragged, SMALL) for ragged in (False, True)]
    whole, ragged = (total(of_blocks(row), "read", "written") for row in rows)
    least, d = total(lean(rows[0]), "read", "written"), 4 * rows[0]["rows"] * 16
    assert least == 38 * d + 11 * 4 * d == 2 * total(lean(rows[0], 2), "read", "written")
    assert whole < rows[0]["blocks"] * 1.3 * least
    assert 0.4 < rows[1]["valid"] < 0.6
    assert ragged < 0.9 * whole
    assert written_up(rows).count("| listops | ") == 3
