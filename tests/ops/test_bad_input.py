"""Every kind of bad input in one table: each raises a Python exception that says what is wrong, and loses no data.

The tests of each part hold its errors in detail; this table is the overview that none of the kinds may drop out of.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rotrnn import LRU, Context, RotRNN, cross_entropy, diagonal_scan, householder_mix, orthogonal
from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.nn.blocks.norm import BatchNorm
from rotrnn.training.recipe import load_recipe

X = np.ones((2, 3, 4))
MODEL = build_model(ModelSettings("lru", 4, 1), {"d_state": 2}, n_classes=3, vocab=7)


def frozen() -> Any:
    out = np.empty_like(X)
    out.flags.writeable = False
    return out


def lru_with(name: str, value: float) -> None:
    layer = LRU(4, 2)
    params = layer.init(np.random.default_rng(0))
    params[name].flat[0] = value
    layer.forward(params, X)


def classify(tokens: Any, lengths: Any = None, train: bool = False) -> None:
    MODEL.forward(MODEL.init(np.random.default_rng(0)), tokens, Context(lengths=lengths, train=train))


def written(folder: Path) -> Path:
    path = folder / "last.safetensors"
    write_checkpoint(path, {"params.w": np.arange(6.0)}, {"step": 1})
    return path


def truncated(folder: Path) -> None:
    path = written(folder)
    path.write_bytes(path.read_bytes()[:-5])
    read_checkpoint(path)


def tampered(folder: Path) -> None:
    path = written(folder)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    read_checkpoint(path)


def disk_full(folder: Path) -> None:
    path = written(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        write_checkpoint(path, {"params.w": np.arange(600.0)}, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        arrays, facts = read_checkpoint(path)  # the one before is whole
        assert facts["step"] == 1
        assert arrays["params.w"].shape == (6,)
        assert [one.name for one in folder.iterdir()] == [path.name]


TABLE: list[tuple[str, Callable[[Path], Any], type[Exception], str]] = [
    ("wrong rank", lambda _: diagonal_scan(np.ones(4), X[0]), ValueError, "diagonal_scan: x has shape"),
    ("wrong rank", lambda _: householder_mix(np.ones(4), np.ones(1), X), ValueError, "householder_mix: u has shape"),
    ("wrong rank", lambda _: orthogonal(np.ones(3)), ValueError, "orthogonal: M has shape"),
    ("wrong rank", lambda _: LRU(4, 2).step(LRU(4, 2).init(np.random.default_rng(0)), None, X), ValueError,
     r"LRU\.step: x_t has shape"),
    ("shapes that disagree", lambda _: diagonal_scan(np.ones(5), X), ValueError, "a has shape .* with N from x"),
    ("shapes that disagree", lambda _: RotRNN(3, 4).forward(RotRNN(4, 4).init(np.random.default_rng(0)), X), ValueError,
     r"RotRNN: parameter B has shape \(1, 4, 4\), expected \(1, 4, 3\)"),
    ("integer input", lambda _: diagonal_scan(np.ones(4), X.astype(int)), TypeError, "x has dtype int64"),
    ("float16 input", lambda _: diagonal_scan(np.ones(4), X.astype(np.float16)), TypeError, "x has dtype float16"),
    ("NaN in parameters", lambda _: lru_with("nu_log", np.nan), ValueError, r"LRU: parameter nu_log is nan at \(0,\)"),
    ("NaN in parameters", lambda _: lru_with("C_re", np.inf), ValueError, r"LRU: parameter C_re is inf at \(0, 0\)"),
    ("NaN in parameters", lambda _: orthogonal(np.full((2, 2), np.nan)), ValueError, "orthogonal: M has .* nan"),
    ("negative lengths", lambda _: diagonal_scan(np.ones(4), X, lengths=[-1, 2]), ValueError, r"lengths\[0\] is -1"),
    ("negative lengths", lambda _: classify(np.ones((2, 3), int), np.array([2, -5])), ValueError,
     r"lengths\[1\] is -5"),
    ("empty batch", lambda _: classify(np.ones((0, 3), int), train=True), ValueError, "batch_norm"),
    ("empty batch", lambda _: cross_entropy(np.ones((0, 3)), np.ones(0, int)), ValueError, "cross_entropy"),
    ("empty batch", lambda _: BatchNorm(4).forward(BatchNorm(4).init(np.random.default_rng(0)), X,
                                                   Context(np.array([0, 0]), train=True)), ValueError, "batch_norm"),
    ("token out of range", lambda _: classify(np.full((2, 3), 7)), (ValueError, IndexError), "embedding"),
    ("read-only output", lambda _: diagonal_scan(np.ones(4), X, out=frozen()), ValueError, "out is read-only"),
    ("truncated checkpoint", truncated, ValueError, "last.safetensors: is truncated"),
    ("tampered checkpoint", tampered, ValueError, "last.safetensors: .* damaged or changed"),
    ("disk full", disk_full, OSError, "checkpoint not written"),
    ("recipe: wrong type", lambda _: load_recipe("digits-lru", ['training.steps="many"']), ValueError,
     "training.steps is 'many', expected an integer"),
    ("recipe: mistyped key", lambda _: load_recipe("digits-lru", ["training.stesp=5"]), ValueError,
     "unknown key training.stesp; did you mean steps"),
    ("recipe: out of range", lambda _: load_recipe("digits-lru", ["training.steps=-5"]), ValueError, "steps is -5"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_bad_input_gives_a_clear_error(
    call: Callable[[Path], Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        call(tmp_path)
