"""The selective scan, that of Mamba-2, the bank, dense recurrences and the memories of xLSTM as CUDA kernels, at sizes
that the table of cases does not reach.

Each kernel is called with the same arguments as the CPU's. All padding is NaN, and so is memory that nobody wrote.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_cases_on_harness import SEEDS

from cuda_harness import on_harness
from rotrnn._cpu import CELL, DPLR_TILE, SSD_CHUNK
from rotrnn.devices.device import HOST
from strict import poisoned, to_device, to_host

Arrays = dict[str, Any]


def run(name: str, shapes: dict[str, tuple[int, ...]], inputs: Arrays, seed: int | None = None) -> Arrays:
    """Returns the outputs of a kernel: the CPU's, or the CUDA kernel's in the harness."""
    dtype = next(one.dtype for one in inputs.values() if isinstance(one, np.ndarray) and one.dtype.kind == "f")
    outputs = {key: poisoned(shape, dtype) for key, shape in shapes.items()}
    if seed is None:
        getattr(HOST.kernels, name)(**{key: to_host(one) for key, one in outputs.items()}, **inputs)
    else:
        with on_harness(seed) as module:
            getattr(module.kernels, name)(**outputs, **{key: to_device(one) for key, one in inputs.items()})
    return {key: to_host(one) for key, one in outputs.items()}


def compare(name: str, shapes: dict[str, tuple[int, ...]], inputs: Arrays, terms: int, seed: int) -> Arrays:
    """Runs a kernel on both; numbers that neither wrote are NaN in both. Returns the CPU's outputs.

    Tolerance: twice a rounding error for each of `terms` rounded operations, of numbers as large as the largest.
    """
    expected, got = run(name, shapes, inputs), run(name, shapes, inputs, seed)
    for key, value in expected.items():
        scale = max(1.0, float(np.nanmax(np.abs(value), initial=0.0)))
        atol = 2 * terms * float(np.finfo(value.dtype).eps) * scale
        np.testing.assert_allclose(got[key], value, rtol=0, atol=atol, equal_nan=True, err_msg=f"{name}: {key}")
    again = run(name, shapes, inputs, seed + 1)
    for key, value in got.items():
        assert value.tobytes() == again[key].tobytes(), f"{name}: {key} depends on the order of threads"
    return expected


def padded(x: Any, lengths: Any) -> Any:
    """x (B, T, ...) with NaN in the padding."""
    x = np.ascontiguousarray(x)
    for b, steps in enumerate([] if lengths is None else lengths):
        x[b, steps:] = np.nan
    return x


def some(rng: np.random.Generator, *shape: int, lengths: Any = None, dtype: Any = np.float64) -> Any:
    return padded(rng.standard_normal(shape).astype(dtype), lengths)


def lengths_of(given: Any) -> Any:
    return None if given is None else np.array(given, np.int64)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("B", "T", "D", "S", "lengths", "reverse", "negative", "dtype"),
    [
        (1, 3, 2, 9, None, False, False, np.float64),  # two launches in double precision
        (2, 65, 33, 17, (65, 32), True, False, np.float32),  # two launches, two groups of channels
        (3, 64, 5, 16, (64, 0, 1), False, False, np.float32),
        (2, 40, 70, 3, (33, 40), True, False, np.float64),
        (1, 5, 32, 9, (0,), False, False, np.float64),
        (2, 65, 33, 9, (65, 32), True, True, np.float64),
        (2, 40, 5, 3, None, False, True, np.float32),
    ],
)
@pytest.mark.parametrize("optional", [True, False])
def test_selective_scan(
    B: int, T: int, D: int, S: int, lengths: Any, reverse: bool, negative: bool, dtype: Any, optional: bool, seed: int
) -> None:
    rng = np.random.default_rng(B * T + D)
    tiles, steps = -(-T // 32), lengths_of(lengths)
    sizes = {"batch": B, "T": T, "D": D, "S": S, "reverse": reverse, "negative": negative, "lengths": steps}
    inputs = {
        "x": some(rng, B, T, D, lengths=lengths, dtype=dtype),
        "delta": padded(rng.uniform(-0.01, 0.4, (B, T, D)).astype(dtype), lengths),
        "A": rng.uniform(-4.5 if negative else -2, 0.05, (D, S)).astype(dtype),
        "B": some(rng, B, T, S, lengths=lengths, dtype=dtype),
        "C": some(rng, B, T, S, lengths=lengths, dtype=dtype),
        "skip": some(rng, D, dtype=dtype) if optional else None,
        **sizes,
    }
    h0 = some(rng, B, D, S, dtype=dtype) if optional else None
    shapes = {"y": (B, T, D), "hT": (B, D, S), "carries": (B, tiles, S, D)}
    terms = 8 * T + S + 20
    saved = compare("selective_forward", shapes, {**inputs, "h0": h0}, terms, seed)
    if not optional:  # what backward asks for
        only = {"y": None, "hT": None, "h0": h0, **inputs}
        compare("selective_forward", {"carries": shapes["carries"]}, only, terms, seed)
    shapes = {
        "dx": (B, T, D), "ddelta": (B, T, D), "dA": (D, S), "dB": (B, T, S), "dC": (B, T, S), "dh0": (B, D, S),
        **({"dskip": (D,)} if optional else {}),
    }  # fmt: skip
    more = {
        "dy": some(rng, B, T, D, lengths=lengths, dtype=dtype),
        "dhT": some(rng, B, D, S, dtype=dtype) if optional else None,
        "carries": saved["carries"],
        **({} if optional else {"dskip": None}),
    }
    compare("selective_backward", shapes, {**inputs, **more}, (8 + B) * T + S + 2 * D + 20, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("B", "T", "H", "P", "G", "N", "lengths", "reverse", "kind", "dtype"),
    [
        (2, 66, 2, 3, 1, 5, (66, 64), True, "rates", np.float32),
        (2, 130, 4, 2, 2, 3, (0, 130), False, "rates", np.float64),
        (1, 9, 2, 17, 2, 16, None, False, "rates", np.float32),  # more numbers in a state than threads
        (2, 66, 2, 3, 1, 5, (66, 40), True, "negative", np.float64),
        (2, 66, 4, 3, 2, 5, (66, 40), True, 1, np.float64),  # logarithms, and a part of delta for later tokens
        (2, 130, 2, 2, 2, 3, (0, 130), False, 3, np.float32),  # tokens of three steps, the last one of fewer
    ],
)
@pytest.mark.parametrize("optional", [True, False])
def test_ssd_scan(
    B: int, T: int, H: int, P: int, G: int, N: int, lengths: Any, reverse: bool, kind: str | int, dtype: Any,
    optional: bool, seed: int,
) -> None:  # fmt: skip
    rng, negative, logs = np.random.default_rng(B * T + H), kind == "negative", isinstance(kind, int)
    ranks = kind if isinstance(kind, int) else 1
    chunk, steps = SSD_CHUNK // ranks * ranks, lengths_of(lengths)
    chunks, sizes = -(-T // chunk), {"batch": B, "T": T, "H": H, "P": P, "G": G, "N": N, "chunk": chunk, "ranks": ranks}
    sizes |= {"reverse": reverse, "negative": negative, "lengths": steps}
    inputs = {
        "x": some(rng, B, T, H, P, lengths=lengths, dtype=dtype),
        "delta": padded(rng.uniform(-0.01, 0.4, (B, T, H)).astype(dtype), lengths),
        "A": None if logs else rng.uniform(-4.5 if negative else -2, 0.05, H).astype(dtype),
        "log_a": padded(rng.uniform(-0.8, 0.02, (B, T, H)).astype(dtype), lengths) if logs else None,
        "later": padded(rng.uniform(-0.1, 0.4, (B, T, H)).astype(dtype), lengths) if logs else None,
        "B": some(rng, B, T, G, N, lengths=lengths, dtype=dtype),
        "C": some(rng, B, T, G, N, lengths=lengths, dtype=dtype),
        "skip": some(rng, H, dtype=dtype) if optional else None,
        **sizes,
    }
    h0 = some(rng, B, H, P, N, dtype=dtype) if optional else None
    shapes = {"y": (B, T, H, P), "hT": (B, H, P, N), "carries": (B, chunks, H, P, N)}
    terms = 8 * T + N + 20
    saved = compare("ssd_forward", shapes, {**inputs, "h0": h0}, terms, seed)
    if not optional:  # what backward asks for
        only = {"y": None, "hT": None, "h0": h0, **inputs}
        compare("ssd_forward", {"carries": shapes["carries"]}, only, terms, seed)
    shapes = {
        "dx": (B, T, H, P), "ddelta": (B, T, H), "dB": (B, T, G, N), "dC": (B, T, G, N), "dh0": (B, H, P, N),
        **({"dskip": (H,)} if optional else {}),
        **(dict.fromkeys(("dlog_a", "dlater"), (B, T, H)) if logs else {"dA": (H,)}),
    }  # fmt: skip
    more = {
        "dy": some(rng, B, T, H, P, lengths=lengths, dtype=dtype),
        "dhT": some(rng, B, H, P, N, dtype=dtype) if optional else None,
        "carries": saved["carries"],
        **({} if optional else {"dskip": None}),
        **({"dA": None} if logs else {"dlog_a": None, "dlater": None}),
    }
    compare("ssd_backward", shapes, {**inputs, **more}, (8 + B) * T + N * P + 2 * H * P + 20, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("B", "T", "D", "N", "tile", "lengths", "reverse", "dtype"),
    [
        (1, 3, 2, 9, 64, None, False, np.float64),  # two launches in double precision
        (2, 130, 33, 33, 64, (130, 63), True, np.float32),  # two launches forward, three backward
        (3, 64, 5, 4, 64, (64, 0, 1), False, np.float32),
        (2, 23, 40, 3, 5, (23, 20), True, np.float64),  # another tile
        (1, 5, 32, 2, 64, (0,), False, np.float64),
        (1, 4, 3, 1, 1, None, False, np.float64),
    ],
)
@pytest.mark.parametrize("optional", [True, False])
def test_bank(
    B: int, T: int, D: int, N: int, tile: int, lengths: Any, reverse: bool, dtype: Any, optional: bool, seed: int
) -> None:
    rng = np.random.default_rng(B * T + D)
    size, angle = rng.uniform(0.8, 1, (D, N)), rng.uniform(-3, 3, (D, N))  # 1: nothing decays
    size[:, :1] = 1
    inputs = {
        "a": np.stack([size * np.cos(angle), size * np.sin(angle)], -1).astype(dtype),
        "c": some(rng, D, N, 2, dtype=dtype),
        "skip": some(rng, D, dtype=dtype),
        "u": some(rng, B, T, D, lengths=lengths, dtype=dtype),
        "lengths": lengths_of(lengths),
        **{"B": B, "T": T, "D": D, "N": N, "tile": tile, "reverse": reverse},
    }
    h0 = some(rng, B, D, N, 2, dtype=dtype) if optional else None
    shapes = {"y": (B, T, D), "hT": (B, D, N, 2), "carries": (B, -(-T // tile), N, 2, D)}
    saved = compare("bank_forward", shapes, {**inputs, "h0": h0}, 4 * T + 2 * N + 10, seed)
    shapes = {"du": (B, T, D), "da": (D, N, 2), "dc": (D, N, 2), "dskip": (D,), "dh0": (B, D, N, 2)}
    more = {
        "dy": some(rng, B, T, D, lengths=lengths, dtype=dtype),
        "dhT": some(rng, B, D, N, 2, dtype=dtype) if optional else None,
        "carries": saved["carries"],
    }
    compare("bank_backward", shapes, {**inputs, **more}, (8 + B) * T + 2 * N + 10, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("B", "T", "D", "N", "lengths", "reverse", "dtype"),
    [
        (2, 66, 3, 5, (66, 33), True, np.float32),
        (3, 33, 2, 33, (33, 0, 32), False, np.float64),  # more states than lanes
        (1, 3, 1, 90, None, False, np.float64),  # rooms in global memory, backward
        (1, 5, 2, 2, (0,), False, np.float64),
    ],
)
@pytest.mark.parametrize("optional", [True, False])
def test_dplr_bank(
    B: int, T: int, D: int, N: int, lengths: Any, reverse: bool, dtype: Any, optional: bool, seed: int
) -> None:
    rng = np.random.default_rng(B * T + D)
    shapes: dict[str, tuple[int, ...]]
    inputs = {
        "a": 0.5 * rng.uniform(-1, 1, (D, N, 2)).astype(dtype),
        **{name: (rng.uniform(-0.5, 0.5, (D, N, 2)) / np.sqrt(N)).astype(dtype) for name in ("p", "q")},
        **{name: some(rng, D, N, 2, dtype=dtype) for name in ("gain", "c")},
        "skip": some(rng, D, dtype=dtype),
        "u": some(rng, B, T, D, lengths=lengths, dtype=dtype),
        "lengths": lengths_of(lengths),
        **{"B": B, "T": T, "D": D, "N": N, "reverse": reverse},
    }
    h0 = some(rng, B, D, N, 2, dtype=dtype) if optional else None
    shapes = {"y": (B, T, D), "hT": (B, D, N, 2), "carries": (B, -(-T // DPLR_TILE), N, 2, D)}
    saved = compare("dplr_bank_forward", shapes, {**inputs, "h0": h0}, 8 * T + 4 * N + 10, seed)
    shapes = {"du": (B, T, D), "dskip": (D,), "dh0": (B, D, N, 2)}
    shapes |= dict.fromkeys(("da", "dp", "dq", "dgain", "dc"), (D, N, 2))
    more = {
        "dy": some(rng, B, T, D, lengths=lengths, dtype=dtype),
        "dhT": some(rng, B, D, N, 2, dtype=dtype) if optional else None,
        "carries": saved["carries"],
    }
    compare("dplr_bank_backward", shapes, {**inputs, **more}, (16 + B) * T + 4 * N + 10, seed)


@pytest.mark.parametrize("tile", [0, 65])
def test_a_tile_that_the_bank_does_not_have(tile: int) -> None:
    x = np.zeros((1, 1, 1, 2))
    sizes = {"B": 1, "T": 0, "D": 1, "N": 1, "tile": tile, "reverse": False, "lengths": None}
    inputs = {"a": x[0], "c": x[0], "skip": x[0, 0, 0, :1], "u": np.zeros((1, 0, 1)), "h0": None, **sizes}
    shapes = {"y": (1, 0, 1), "hT": (1, 1, 1, 2), "carries": (1, 0, 1, 2, 1)}
    for seed in (None, 1):
        with pytest.raises((ValueError, IndexError)):
            run("bank_forward", shapes, inputs, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", CELL)
@pytest.mark.parametrize(
    ("B", "T", "N", "lengths", "reverse", "dtype"),
    [
        (1, 1, 1, None, False, np.float64),
        (9, 5, 6, None, True, np.float32),
        (18, 7, 5, (7, 0, 3, *[2] * 6, *[0] * 7, 7, 6), False, np.float64),  # the second warp's have no steps
        (10, 6, 35, (6, *[5] * 8, 1), True, np.float32),  # more terms than lanes
        (2, 2, 66, None, False, np.float64),  # and twice as many
        (3, 0, 4, None, False, np.float64),
        (0, 3, 4, None, False, np.float64),
        (3, 2, 0, None, False, np.float64),
    ],
)
@pytest.mark.parametrize("optional", [True, False])
def test_dense_recurrences(
    cell: str, B: int, T: int, N: int, lengths: Any, reverse: bool, dtype: Any, optional: bool, seed: int
) -> None:
    rng = np.random.default_rng(B * T + N)
    G, lstm, gates = {"lstm": (4, True, ("gates",)), "gru": (3, False, ("gates",))}.get(cell, (1, False, ()))
    w = (0.9 * np.linalg.qr(rng.standard_normal((G * N, N)))[0]).astype(dtype)
    sizes = {"B": B, "T": T, "N": N, "cell": CELL[cell], "reverse": reverse, "lengths": lengths_of(lengths)}

    def state() -> Any:
        return some(rng, B, N, dtype=dtype) if optional else None

    c0, bias = state() if lstm else None, some(rng, G * N, dtype=dtype) if cell == "gru" else None
    inputs = {"w": w, "x": some(rng, B, T, G * N, lengths=lengths, dtype=dtype), "h0": state(), "c0": c0, **sizes}
    inputs["bias"] = bias
    cells = {"c": (B, T, N), "cT": (B, N), "gates": (B, T, 4 * N)}
    there = (*(cells if lstm else gates), "h")
    shapes = {"h": (B, T, N), "hT": (B, N), **{key: cells[key] for key in there if key in cells}}
    terms = (G * N + 20) * (T + 1)
    saved = compare("rnn_forward", shapes, {**{key: None for key in cells if key not in there}, **inputs}, terms, seed)
    shapes = {"dx": (B, T, G * N), "dh0": (B, N), **({"dc0": (B, N)} if lstm else {})}
    c0 = inputs["h0"] if cell == "gru" else c0
    for key in ("h", *(("c",) if lstm else ()), *gates):
        saved[key] = padded(saved[key], lengths)  # backward does not read it either
    more = {
        "dh": some(rng, B, T, N, lengths=lengths, dtype=dtype),
        "dhT": state(),
        "dcT": state() if lstm else None,
        **{key: saved.get(key) if key in there else None for key in ("h", "c", "gates")},
        **({} if lstm else {"dc0": None}),
    }
    compare("rnn_backward", shapes, {"w": w, "c0": c0, **sizes, **more}, terms, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("B", "T", "H", "P", "lengths", "exponential", "dtype"),
    [
        (1, 1, 1, 1, None, False, np.float64),
        (9, 5, 2, 6, None, True, np.float32),
        (18, 7, 3, 5, (7, 0, 3, *[2] * 6, *[0] * 7, 7, 6), False, np.float64),  # the second warp's have no steps
        (10, 6, 2, 35, (6, *[5] * 8, 1), True, np.float32),  # more terms than lanes
        (2, 2, 1, 33, None, False, np.float64),  # and backward four times as many
        (3, 0, 2, 4, None, False, np.float64),
        (0, 3, 2, 4, None, False, np.float64),
        (3, 2, 0, 4, None, False, np.float64),
        (3, 2, 2, 0, None, False, np.float64),
    ],
)
@pytest.mark.parametrize("optional", [True, False])
def test_the_scalar_memory(
    B: int, T: int, H: int, P: int, lengths: Any, exponential: bool, dtype: Any, optional: bool, seed: int
) -> None:
    rng = np.random.default_rng(B * T + P)
    sizes = {"B": B, "T": T, "H": H, "P": P, "exponential": exponential, "lengths": lengths_of(lengths)}
    x = rng.standard_normal((B, T, 4, H, P)) / 2
    w = (rng.standard_normal((H, 4 * P, P)) / (2 * max(P, 1)) ** 0.5).astype(dtype)

    def state() -> Any:
        return some(rng, B, H, P, dtype=dtype) if optional else None

    first = {"c0": state(), "n0": rng.uniform(0.5, 2, (B, H, P)).astype(dtype) if optional else None, "m0": state()}
    inputs = {"w": w, "x": padded(x.astype(dtype), lengths), "h0": state(), **first, **sizes}
    steps = dict.fromkeys("hcnm", (B, T, H, P))
    shapes = {**steps, "gates": (B, T, 4, H, P), **dict.fromkeys(("hT", "cT", "nT", "mT"), (B, H, P))}
    terms = (4 * P + 40) * (T + 1)
    saved = compare("slstm_forward", shapes, inputs, terms, seed)
    more = {
        "dh": some(rng, B, T, H, P, lengths=lengths, dtype=dtype),
        **{name: state() for name in ("dhT", "dcT", "dnT", "dmT")},
        **{name: padded(saved[name], lengths) for name in ("c", "n", "m", "gates")},  # backward does not read it either
    }
    shapes = {"dx": (B, T, 4, H, P), **dict.fromkeys(("dh0", "dc0", "dn0", "dm0"), (B, H, P))}
    compare("slstm_backward", shapes, {"w": w, **first, **sizes, **more}, terms, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("B", "T", "H", "P", "N", "lengths", "dtype"),
    [
        (1, 3, 2, 64, 2, None, np.float64),  # the row of n is alone in its tile
        (2, 130, 1, 70, 66, (130, 63), np.float32),  # two tiles each way, and chunks without steps
        (2, 64, 3, 5, 17, (64, 0), np.float64),  # states are more than a tile's terms
        (1, 129, 2, 3, 2, None, np.float64),
        (1, 5, 2, 3, 2, (0,), np.float64),
    ],
)
@pytest.mark.parametrize("optional", [True, False])
def test_the_matrix_memory(
    B: int, T: int, H: int, P: int, N: int, lengths: Any, dtype: Any, optional: bool, seed: int
) -> None:
    """Heads take turns: denominators are 1, or far from it, so that none is 1 by rounding (tests/cases/mlstm.py)."""
    rng = np.random.default_rng(B * T + P)
    chunks, small = -(-T // SSD_CHUNK), (np.arange(H) % 2 == 0)
    sizes = {"batch": B, "T": T, "H": H, "P": P, "N": N, "lengths": lengths_of(lengths)}

    def gates(*shape: int) -> Any:
        return rng.uniform(-1, 1, shape) + np.where(small, -9.0 - np.log(N), 4.0)

    inputs = {
        "q": padded(rng.uniform(0.5, 1.5, (B, T, H, N)).astype(dtype), lengths),
        "k": padded(rng.uniform(0.5, 1.5, (B, T, H, N)).astype(dtype), lengths),
        "v": some(rng, B, T, H, P, lengths=lengths, dtype=dtype),
        "log_i": padded(gates(B, T, H).astype(dtype), lengths),
        "log_f": padded(rng.uniform(-0.7, 0.05, (B, T, H)).astype(dtype), lengths),
        **sizes,
    }
    first = {
        "c0": some(rng, B, H, P, N, dtype=dtype) if optional else None,
        "n0": rng.uniform(0.5, 1.5, (B, H, N)).astype(dtype) if optional else None,
        "m0": gates(B, H).astype(dtype) if optional else None,
    }
    state = {"c": (B, H, P, N), "n": (B, H, N), "m": (B, H)}
    kept = {"carries": (B, chunks, H, P + 1, N), "levels": (B, chunks, H)}
    shapes = {"y": (B, T, H, P), "den": (B, T, H), **{f"{name}T": one for name, one in state.items()}, **kept}
    terms = 16 * T + N * P + 2 * P + 40
    saved = compare("mlstm_forward", shapes, {**inputs, **first}, terms, seed)
    more = {
        "dy": some(rng, B, T, H, P, lengths=lengths, dtype=dtype),
        **{f"d{name}T": some(rng, *one, dtype=dtype) if optional else None for name, one in state.items()},
        **{name: padded(saved[name], lengths) for name in ("y", "den")},
        **{name: saved[name] for name in kept},
    }
    shapes = {f"d{name}": inputs[name].shape for name in ("q", "k", "v", "log_i", "log_f")}
    shapes |= {f"d{name}0": one for name, one in state.items()}
    compare("mlstm_backward", shapes, {**inputs, **more}, terms, seed)
