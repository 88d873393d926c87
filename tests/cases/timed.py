"""Rows at the sizes of a model, timed by `python -m benchmarks.ops`: one per op, or one per code path of an op."""

from __future__ import annotations

from cases.bank import bank_case
from cases.blocks import linear_layer_case
from cases.conv import conv_case
from cases.delta import delta_case
from cases.dplr import dplr_case
from cases.linoss import oscillator_case
from cases.mamba3 import trapezoid_case
from cases.memory import history_case
from cases.mixers import mixer_case
from cases.mlstm import mlstm_case
from cases.ops import (
    batch_norm_case,
    cross_entropy_case,
    dense_case,
    diagonal_case,
    dropout_case,
    embedding_case,
    gelu_formula,
    householder_case,
    layer_norm_case,
    pool_case,
    rotation_case,
    sigmoid_formula,
    unary_case,
)
from cases.orthogonal import orthogonal_case
from cases.pd_ssm import permuted_case
from cases.rnn import attention_case, lstm_case, rnn_case, rotary_case
from cases.sampled import sampled_bank_case, sampled_case
from cases.selective import selective_case
from cases.slstm import slstm_case
from cases.ssd import ssd_case
from cases.table import Case, pointwise_case
from cases.turn import turn_case
from cases.window import window_case
from rotrnn.ops import pointwise

SHAPE = B, T, D = 8, 1024, 128

TIMED: list[Case] = [
    diagonal_case(B, T, 2 * D),
    diagonal_case(B, T, D, lanes="complex"),
    diagonal_case(B, T, D, lanes="complex", varying=True),
    rotation_case(B, T, 4, D // 2),
    window_case(B, T, D, 100, lanes="complex"),
    bank_case(B, T, D, 32),
    dplr_case(B, T, D, 32),
    selective_case(B, T, D, 16),
    ssd_case(B, T, 2, D // 2, D),
    trapezoid_case(B, T, 2, D // 2, D, groups=2),
    turn_case(B, T, 2, D // 4, D, others=1),
    delta_case(B, T, 1, 4, D // 4, D // 4),
    delta_case(B, T, 1, 4, D // 4, D // 4, decay="keys"),
    delta_case(B, T, 1, 4, D // 4, D // 4, beta=False, decay="keys", read=True, erase=True),
    mlstm_case(B, T, 2, D // 2, D // 2),
    slstm_case(B, T, 2, D // 2),
    rnn_case(B, T, D, "tanh"),
    lstm_case(B, T, D),
    attention_case(B, T, D, 4),
    rotary_case(B, T, D, 4),
    conv_case(B, T, D, 4),
    oscillator_case(B, T, D),
    sampled_case(B, T, D),
    sampled_bank_case(B, T, D, 32),
    permuted_case(B, T, 32, 6),
    history_case(B, T, D, 64, 64),
    linear_layer_case(B, T, D, D, 1),
    dense_case(SHAPE, D),
    householder_case(B, T, 4, D),
    *(mixer_case(form, B, T, 4, D) for form in ("dplr", "low_rank", "kronecker")),
    orthogonal_case((4, D, D)),
    unary_case("tanh", pointwise.tanh, pointwise.tanh_backward, None, SHAPE),
    pointwise_case("gelu", {"x": SHAPE}, pointwise.gelu, lambda dy, x: (pointwise.gelu_backward(dy, x),), gelu_formula),
    pointwise_case(
        "glu",
        {"value": SHAPE, "gate": SHAPE},
        pointwise.glu,
        pointwise.glu_backward,
        lambda value, gate: value * sigmoid_formula(gate),
    ),
    dropout_case(SHAPE, over_time=False),
    batch_norm_case(SHAPE),
    layer_norm_case(SHAPE),
    embedding_case(B, T, 256, D),
    pool_case("mean_pool", SHAPE),
    cross_entropy_case(B * T, 256, 1),
]
