"""Every kind of bad input in one table: each raises a Python exception that says what is wrong, and loses no data.

The tests of each part hold its errors in detail; this table is the overview that none of the kinds may drop out of.
"""

from __future__ import annotations

import inspect
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rotrnn import LRU, Context, RotRNN, ops
from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.nn.blocks.norm import BatchNorm
from rotrnn.ops import cross_entropy, diagonal_scan, householder_mix, orthogonal
from rotrnn.ops.block import residual_block
from rotrnn.ops.fixed_point import depth_pass, prepare_mixer, relax
from rotrnn.ops.linear_layer import System
from rotrnn.ops.mixer import GRAM, HOUSEHOLDER, KRONECKER, MATRIX
from rotrnn.ops.window import power_of
from rotrnn.training.parallel import ALONE
from rotrnn.training.recipe import load_recipe

X = np.ones((2, 3, 4))
KEYS = X[:, :, None, None]
BIG = np.array([0, 2**64 - 3], np.uint64)
BANK = np.ones((4, 2), complex), np.ones((4, 2), complex), np.ones(4)
SYSTEM = System(np.ones((4, 4)), np.ones(2, complex), np.ones((1, 4, 4)), np.ones(4))
MIXER_OF_THREE = prepare_mixer(HOUSEHOLDER, 1, np.ones((1, 3)), np.ones(1), 3)
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
    ("shapes that disagree", lambda _: ops.delta_rule(X[:, :, None], KEYS, KEYS, decay=KEYS[:, :, 0, :, :1]),
     ValueError, r"expected \(B=2, T=3, H=1, K=4\), with K from q; or \(B=2, T=3, H=1\)$"),
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
    ("token out of range", lambda _: classify(np.full((2, 3), 7)), ValueError,
     r"SequenceClassifier.forward: inputs\[0, 0\] is 7, expected an integer from 0 to 6"),
    ("read-only output", lambda _: diagonal_scan(np.ones(4), X, out=frozen()), ValueError, "out is read-only"),
    ("masked array", lambda _: diagonal_scan(np.ones(4), np.ma.masked_array(X, mask=X > 0)), TypeError,
     "diagonal_scan: x is a masked array, expected an array without a mask"),
    ("masked array", lambda _: diagonal_scan(np.ones(4), X, lengths=np.ma.masked_array([1, 2], [True, False])),
     TypeError, "diagonal_scan: lengths is a masked array"),
    ("masked array", lambda _: diagonal_scan(np.ones(4), X, out=np.ma.masked_array(np.ones_like(X))), TypeError,
     "diagonal_scan: out is a MaskedArray, expected an array"),
    ("no array", lambda _: diagonal_scan(np.ones(4), [[[1.0], [1.0, 2.0]]]), ValueError,
     "diagonal_scan: x is a list that is no array: "),
    ("gradient None", lambda _: ops.householder_mix_backward(None, X[0], np.ones(3), X), TypeError,  # type: ignore[arg-type]
     "householder_mix_backward: dy is None, expected an array of float32 or float64"),
    ("saved of another op", lambda _: ops.linear_layer_backward(X, SYSTEM, None), TypeError,  # type: ignore[arg-type]
     "linear_layer_backward: saved is a NoneType, expected a LinearLayerSaved or a LinearLayerStates"),
    ("saved of another op", lambda _: ops.diagonal_bank_backward(X, *BANK, ops.linear_layer(SYSTEM, X)[2]),
     TypeError, "diagonal_bank_backward: saved is a LinearLayerSaved, expected a BankSaved"),  # type: ignore[arg-type]
    ("eps", lambda _: ops.rms_norm(X, np.ones(4), eps="x"), ValueError, "rms_norm: eps is 'x', expected a non"),  # type: ignore[arg-type]
    ("eps", lambda _: ops.layer_norm(X, np.ones(4), np.ones(4), eps=-1), ValueError, "layer_norm: eps is -1, exp"),
    ("seed", lambda _: ops.dropout(X, 0.1, seed=1.5, step=0, site=0), ValueError, "dropout: seed is 1.5, expected"),  # type: ignore[arg-type]
    ("empty table", lambda _: ops.embedding([[0]], np.ones((0, 4))), ValueError,
     r"embedding: ids\[0, 0\] is 0, expected none, because there is no class or row"),
    ("power", lambda _: power_of(np.ones(3), -1), ValueError, "power_of: L is -1, expected an integer from 0"),
    ("position", lambda _: ops.tiir_scan(np.ones(4), X, (np.ones((2, 3, 4)), np.ones((2, 2, 4)), BIG), window=2),
     ValueError, rf"tiir_scan: state.position\[1\] is {2**64 - 3}, expected an integer from 0 to 9007199254740992"),
    ("position", lambda _: ops.attention(X, X, X, heads=1, past=BIG.astype(np.int64)), ValueError,
     r"attention: past\[1\] is -3, expected an integer from 0 to 9007199254740992"),
    ("window", lambda _: ops.linear_layer(SYSTEM, X, window=2**70), ValueError, "linear_layer: .* too large"),
    ("mixer", lambda _: prepare_mixer(9, 1, np.ones((1, 4)), np.ones(1), 4), ValueError, "prepare_mixer: form is 9"),
    ("mixer", lambda _: prepare_mixer(KRONECKER, 0, np.ones(9), np.ones(4), 4), ValueError, "prepare_mixer: rows is 0"),
    ("mixer", lambda _: prepare_mixer(HOUSEHOLDER, 2, np.ones((1, 4)), np.ones(1), 4), ValueError,
     r"prepare_mixer: u has shape \(1, 4\), expected \(R=2, D=4\)"),
    ("mixer", lambda _: prepare_mixer(KRONECKER, 2, np.ones(5), np.ones(4), 4), ValueError,
     r"prepare_mixer: u has shape \(5,\), expected \(N=6,\), with N from two triangles of 2 and 2 rows"),
    ("mixer", lambda _: prepare_mixer(MATRIX, 2, np.ones(16), np.ones(0), 4), ValueError,
     "prepare_mixer: rank is 2, expected 4"),
    ("mixer", lambda _: prepare_mixer(GRAM, 5, np.ones(10), np.ones(1), 4), ValueError,
     "prepare_mixer: rank is 5, expected 4"),
    ("mixer", lambda _: depth_pass(X.copy(), X, np.ones(4), None, None, np.ones(2)), TypeError,  # type: ignore[arg-type]
     "depth_pass: mixer is a NoneType, expected a PreparedMixer"),
    ("mixer", lambda _: depth_pass(X.copy(), X, np.ones(4), MIXER_OF_THREE, None, np.ones(2)), ValueError,
     r"depth_pass: mixer.w has shape \(4,\), expected \(5,\) or \(2, 3, 5\) for N=4 from y"),
    ("mixer", lambda _: depth_pass(X.copy(), X, np.ones(4), MIXER_OF_THREE._replace(w=np.ones((2, 9, 5))), None,
                                   np.ones(2)), ValueError, r"depth_pass: mixer.w has shape \(2, 9, 5\), expected"),
    ("one C of a second direction", lambda _: ops.diagonal_weights(np.ones(2), *[np.ones((2, 3))] * 2,
                                                                   *[np.ones((3, 2))] * 3), ValueError,
     "diagonal_weights: C_im_reverse is None, expected an array, or neither"),
    ("complex gain", lambda _: ops.diagonal_weights(1j * np.ones((1, 2)), *[np.ones((2, 3))] * 2,
                                                    *[np.ones((3, 2))] * 2), ValueError,
     r"diagonal_weights: gain has shape \(1, 2\), expected \(N,\)"),
    ("complex gain of another size", lambda _: ops.diagonal_weights_backward(
        np.ones((4, 3)), np.ones((1, 3, 4)), 1j * np.ones(3), *[np.ones((2, 3))] * 2), ValueError,
     r"diagonal_weights_backward: gain has shape \(3,\), expected \(N=2,\)"),
    ("three directions", lambda _: ops.diagonal_weights_backward(
        np.ones((4, 3)), np.ones((3, 3, 4)), np.ones(2), *[np.ones((2, 3))] * 2), ValueError,
     r"diagonal_weights_backward: dw_out has shape \(3, 3, 4\), expected \(K, D, 2N\), K of 1 or 2"),
    ("truncated checkpoint", truncated, ValueError, "last.safetensors: is truncated"),
    ("tampered checkpoint", tampered, ValueError, "last.safetensors: .* damaged or changed"),
    ("disk full", disk_full, OSError, "not written"),
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


def calls_with_flags() -> dict[tuple[str, str], Callable[[Any], Any]]:
    """Returns a call of every op for each of its flags."""
    a, angles, steps = np.ones(4), np.ones(2), np.ones((2, 3, 1))
    select = X, X, np.ones((4, 1)), steps, steps
    heads, ones = np.ones((2, 3, 1, 4)), np.ones((2, 3, 1))
    scalars = heads, ones, np.ones(1), heads, heads
    polar = 1j * a, 1j * a, np.ones((2, 4))
    delta = np.ones((2, 3, 1, 2)), np.ones((2, 3, 1, 1, 2)), np.ones((2, 3, 1, 1, 2)), np.ones((2, 3, 1, 1))
    kept = ops.diagonal_bank(*BANK, X)[2]
    dplr = ops.DplrSystem(*[BANK[0] / 4] * 5, BANK[2])
    fed = ops.dplr_bank(dplr, X)[2]
    key: dict[str, int] = {"seed": 0, "step": 0, "site": 0}
    block: Any = X, *(None,) * 3
    turning, lanes = np.ones((2, 3, 2, 1)), np.ones((2, 3, 1, 2, 4))
    return {
        ("causal_conv", "return_state"): lambda flag: ops.causal_conv(X, np.ones((4, 2)), return_state=flag),
        ("delta_rule", "return_carries"): lambda flag: ops.delta_rule(*delta, return_carries=flag),
        ("delta_rule", "return_state"): lambda flag: ops.delta_rule(*delta, return_state=flag),
        ("delta_rule", "reverse"): lambda flag: ops.delta_rule(*delta, reverse=flag),
        ("delta_rule_backward", "reverse"): lambda flag: ops.delta_rule_backward(delta[0], *delta, reverse=flag),
        ("depth_pass", "adjoint"): lambda flag: depth_pass(X.copy(), X, a, MIXER, None, np.ones(2), adjoint=flag),
        ("depth_pass", "scaled"): lambda flag: depth_pass(X.copy(), X, a, MIXER, None, np.ones(2), scaled=flag),
        ("diagonal_bank", "reverse"): lambda flag: ops.diagonal_bank(*BANK, X, reverse=flag),
        ("diagonal_bank_backward", "reverse"): lambda flag: ops.diagonal_bank_backward(X, *BANK, kept, reverse=flag),
        ("diagonal_scan", "return_state"): lambda flag: diagonal_scan(a, X, return_state=flag),
        ("diagonal_scan", "reverse"): lambda flag: diagonal_scan(a, X, reverse=flag),
        ("diagonal_scan_backward", "reverse"): lambda flag: ops.diagonal_scan_backward(X, a, X, reverse=flag),
        ("dplr_bank", "reverse"): lambda flag: ops.dplr_bank(dplr, X, reverse=flag),
        ("dplr_bank_backward", "reverse"): lambda flag: ops.dplr_bank_backward(X, dplr, fed, reverse=flag),
        ("dropout", "over_time"): lambda flag: ops.dropout(X, 0.1, **key, over_time=flag),
        ("dropout_backward", "over_time"): lambda flag: ops.dropout_backward(X, 0.1, **key, over_time=flag),
        ("linear_layer", "fused"): lambda flag: ops.linear_layer(SYSTEM, X, fused=flag),
        ("polar_transition", "nu_log"): lambda flag: ops.polar_transition(a, a, nu_log=flag),
        ("polar_transition", "theta_log"): lambda flag: ops.polar_transition(a, a, theta_log=flag),
        ("polar_transition_backward", "nu_log"): lambda flag: ops.polar_transition_backward(*polar, nu_log=flag),
        ("polar_transition_backward", "theta_log"): lambda flag: ops.polar_transition_backward(*polar, theta_log=flag),
        ("relax", "each_step"): lambda flag: relax(X.copy(), X, np.ones(2), each_step=flag),
        ("residual_block", "moments"): lambda flag: residual_block(*block, moments=flag),
        ("rnn", "reverse"): lambda flag: ops.rnn(np.eye(4), X, reverse=flag),
        ("rnn_backward", "reverse"): lambda flag: ops.rnn_backward(X, np.eye(4), X, reverse=flag),
        ("rotation_scan", "return_state"): lambda flag: ops.rotation_scan(angles, None, X, return_state=flag),
        ("rotation_scan", "reverse"): lambda flag: ops.rotation_scan(angles, None, X, reverse=flag),
        ("rotation_scan_backward", "reverse"): lambda flag: ops.rotation_scan_backward(
            X, angles, None, X, reverse=flag
        ),
        ("oscillator_scan", "return_state"): lambda flag: ops.oscillator_scan(
            np.ones((2, 2, 4)), np.ones((2, 4)), X, return_state=flag
        ),
        ("sampled_scan", "return_state"): lambda flag: ops.sampled_scan(
            1j * np.ones(4), np.ones(4), np.ones(X.shape[:2]), 1j * X, return_state=flag
        ),
        ("selective_scan", "return_carries"): lambda flag: ops.selective_scan(*select, return_carries=flag),
        ("selective_scan", "return_state"): lambda flag: ops.selective_scan(*select, return_state=flag),
        ("selective_scan", "reverse"): lambda flag: ops.selective_scan(*select, reverse=flag),
        ("selective_scan", "negative"): lambda flag: ops.selective_scan(*select, negative=flag),
        ("selective_scan_backward", "reverse"): lambda flag: ops.selective_scan_backward(X, *select, reverse=flag),
        ("selective_scan_backward", "negative"): lambda flag: ops.selective_scan_backward(X, *select, negative=flag),
        ("split_end", "reverse"): lambda flag: ops.split_end(X, a, split=ALONE, reverse=flag),
        ("split_start", "reverse"): lambda flag: ops.split_start(a, X, split=ALONE, reverse=flag),
        ("ssd_scan", "return_carries"): lambda flag: ops.ssd_scan(*scalars, return_carries=flag),
        ("ssd_scan", "return_state"): lambda flag: ops.ssd_scan(*scalars, return_state=flag),
        ("ssd_scan", "reverse"): lambda flag: ops.ssd_scan(*scalars, reverse=flag),
        ("ssd_scan", "negative"): lambda flag: ops.ssd_scan(*scalars, negative=flag),
        ("ssd_scan_backward", "negative"): lambda flag: ops.ssd_scan_backward(heads, *scalars, negative=flag),
        ("ssd_scan_backward", "reverse"): lambda flag: ops.ssd_scan_backward(heads, *scalars, reverse=flag),
        ("turn", "reverse"): lambda flag: ops.turn(turning, lanes, reverse=flag),
        ("turn_backward", "reverse"): lambda flag: ops.turn_backward(
            lanes, turning, ops.turn(turning, lanes), reverse=flag
        ),
        ("tiir_scan", "resets"): lambda flag: ops.tiir_scan(a, X, window=2, resets=flag),
    }


MIXER = prepare_mixer(HOUSEHOLDER, 1, np.ones((1, 4)), np.full(1, 0.1), 4)


@pytest.mark.parametrize(("op", "name"), calls_with_flags())
def test_flags_are_true_or_false(op: str, name: str) -> None:
    call = calls_with_flags()[op, name]
    for bad in ("yes", 1, None, np.ones(2)):
        with pytest.raises(ValueError, match=rf"^{op}: {name} is .*, expected True or False$"):
            call(bad)
    if op != "residual_block":  # its other arguments are tested elsewhere
        for flag in (True, False, np.True_):
            call(flag)


def test_every_flag_is_among_these() -> None:
    calls = {name: getattr(ops, name) for name in ops.__all__ if name[0].islower()}
    calls |= {one.__name__: one for one in (depth_pass, relax)}
    flags = {
        (name, one.name)
        for name, op in calls.items()
        for one in inspect.signature(op).parameters.values()
        if one.annotation == "bool"
    }
    assert flags == set(calls_with_flags())
