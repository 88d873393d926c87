"""The C library against the Python stream: every part, chunks, batches, states, and files that are not right."""

from __future__ import annotations

import copy
import ctypes
import errno
import functools
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import librotrnn
from librotrnn import Array, LibraryError, Model, its_instructions
from rotrnn import ModelSettings, NotConverged, build_model
from rotrnn._cpu import SIMD_AVAILABLE
from rotrnn._support.text import an
from rotrnn.models.build import HEADS
from rotrnn.models.files import contents
from rotrnn.nn.layer import astype, flatten, unflatten
from rotrnn.nn.registry import LAYERS
from small_models import sizes_of
from tests.lib.model_files import content_of, fuzz

pytestmark = pytest.mark.skipif(
    not (librotrnn.ROOT / "csrc").exists() or not shutil.which("make"), reason="needs the sources, and make"
)
D, STEPS, BATCH = 12, 23, 3


class Case(NamedTuple):
    """A model: a layer with its settings, and settings of the model; the input is tokens, or features."""

    layer: str
    settings: dict[str, Any]
    model: Mapping[str, Any] = MappingProxyType({})
    head: str = "tagger"
    tokens: bool = False
    noise: float = 0.1  # how far parameters are from their initial values


LINEAR = {"d_state": 10}
TIGHT = {"tol": 4e-6, "max_iterations": 300}
"""For layers that iterate: about the least tolerance in float32, 32 of its epsilons. In double both streams do the same
iterations, unless a residual is at the tolerance to rounding."""
FORMED: dict[str, dict[str, Any]] = {
    "kronecker": {},
    "monarch": {"rank": 2, "unit_eps": 1e-5},
    "orthogonal": {},
    "dense": {"unit_eps": 1e-5},
    "mixture": {"rank": 3},
    "rotation": {"rank": 3},
}
"""Mixers whose direct solver eliminates matrices."""
CASES = {
    "lru": Case("lru", LINEAR),
    "lru, real and imaginary": Case("lru", {**LINEAR, "form": "real_imag", "gamma": False}),
    "lru, exp": Case("lru", {**LINEAR, "form": "exp"}),
    "lru, stable exp": Case("lru", {**LINEAR, "form": "stable_exp"}),
    "s5": Case("s5", LINEAR),
    "s5, bilinear": Case("s5", {**LINEAR, "discretisation": "bilinear", "conjugate": False, "clip_eigs": True}),
    "s5, first order": Case("s5", {**LINEAR, "discretisation": "first_order", "step_scale": 2.0}),
    "rotrnn": Case("rotrnn", {"d_state": 16, "heads": 2}),
    "rotrnn, alpha": Case("rotrnn", {"d_state": 15, "heads": 3, "normalise": "alpha", "c": 0.5}),
    "rotrnn, bounded": Case("rotrnn", {"d_state": 6, "normalise": "bounded"}),
    "rotrnn, spectrum": Case("rotrnn", {"d_state": 15, "heads": 3, "normalise": "spectrum"}),
    "rotrnn, heads of one": Case("rotrnn", {"d_state": 3, "heads": 3}),
    "rope_memory": Case("rope_memory", {**LINEAR, "length": 50}),
    "lru, window": Case("lru", {**LINEAR, "window": 5}),
    "s5, window of one": Case("s5", {**LINEAR, "window": 1}),
    "rotrnn, window": Case("rotrnn", {"d_state": 15, "heads": 3, "window": 50}),
    "rope_memory, window": Case("rope_memory", {**LINEAR, "length": 7, "window": 7}),
    "selective_rotrnn": Case("selective_rotrnn", {"d_state": 16, "heads": 2, "selectivity": 1.0}),
    "selective_rotrnn, decays": Case("selective_rotrnn", {"d_state": 15, "heads": 3, "gamma": "input"}),
    "selective_rotrnn, bounded": Case("selective_rotrnn", {"d_state": 6, "gamma": "input", "normalise": "bounded"}),
    **{
        f"history of {an(layer)}, {own}": Case(layer, {**settings, "history": {"length": 9, **history}})
        for layer, settings, own, history in (
            ("lru", LINEAR, "content", {"heads": 5, "window": 6}),
            ("lru", {**LINEAR, "window": 5}, "sum", {"read": "sum", "window": 30}),
            ("rotrnn", {"d_state": 15, "heads": 3}, "ages", {"read": "ages", "heads": 3, "window": 12}),
            ("rope_memory", {**LINEAR, "length": 50}, "blend", {"read": "ages", "form": "blend", "window": 20}),
            ("selective_rotrnn", {"d_state": 8, "heads": 2}, "content", {"heads": 2, "form": "blend_printed"}),
            ("lstm", LINEAR, "reversed", {"form": "reversed", "window": 7}),
            ("slstm", {"d_state": 12, "heads": 3}, "reversed sum", {"read": "sum", "form": "reversed"}),
            ("min_gru", LINEAR, "ages", {"read": "ages", "form": "none"}),
            ("fixed_point", {**LINEAR, **TIGHT}, "content", {"form": "uniform", "window": 1}),
            ("mamba", {"d_state": 5}, "content", {"heads": 3, "window": 9}),
        )
    },
    "attention": Case("attention", {"heads": 2}, {"block": "transformer"}),
    "attention, as Griffin's": Case(
        "attention", {"heads": 3, "kv_heads": 1, "rotary": "half", "bias": "out", "window": 6}
    ),
    "attention, window": Case("attention", {"heads": 3, "rotary": False, "bias": True, "window": 6}),
    "attention, shared keys": Case("attention", {"heads": 6, "kv_heads": 2, "bias": True, "window": 7}),
    "attention, selective rope": Case(
        "attention", {"heads": 3, "rotary": False, "rope_base": 9.0, "rope_rank": 2, "rope_bias": True}
    ),
    "attention, window and base": Case("attention", {"heads": 1, "base": 50.0, "window": 40}),
    "wrope_memory": Case("wrope_memory", {**LINEAR, "length": 9}),
    "wrope_memory, blend": Case("wrope_memory", {**LINEAR, "length": 9, "form": "blend"}),
    "wrope_memory, printed": Case("wrope_memory", {**LINEAR, "length": 5, "form": "blend_printed"}),
    "wrope_memory, window": Case("wrope_memory", {**LINEAR, "length": 9, "form": "uniform", "window": 4}),
    "s4d, window": Case("s4d", {"d_state": 4, "window": 6}),
    "s4d, window of one": Case("s4d", {"d_state": 4, "window": 1}),
    "s4d": Case("s4d", {"d_state": 4}),
    "s4d, untied": Case("s4d", {"d_state": 3, "tied": False, "conjugate": False, "discretisation": "bilinear"}),
    "s4": Case("s4", {"d_state": 6}),
    "liquid_s4": Case("liquid_s4", {"d_state": 4, "degree": 3, "dt_max": 0.5}),
    "liquid_s4, kb": Case("liquid_s4", {"d_state": 4, "degree": 3, "kernel": "kb", "dt_max": 0.5}),
    "rnn": Case("rnn", LINEAR),
    "rnn, tanh": Case("rnn", {**LINEAR, "activation": "tanh"}),
    "rnn, relu": Case("rnn", {**LINEAR, "activation": "relu"}),
    "lstm": Case("lstm", LINEAR),
    "lstm, no projection": Case("lstm", {"d_state": D, "projection": False}),
    "gru": Case("gru", LINEAR),
    "gru, no projection": Case("gru", {"d_state": D, "projection": False}),
    **{f"linoss, {one}": Case("linoss", {**LINEAR, "method": one}) for one in ("im", "imex", "damped")},
    "linoss, half rate": Case("linoss", {**LINEAR, "step_scale": 2.0}),
    "aussm": Case("aussm", {"d_state": 5}, {"block": "plain"}),
    "slinoss": Case("slinoss", {"d_state": 5, "d_head": 4}, {"block": "plain"}),
    "slinoss, other bounds": Case("slinoss", {"d_state": 3, "d_conv": 0, "r_min": 0.1, "theta_max": 3.1}),
    "pd_ssm": Case("pd_ssm", {"d_state": 19, "dictionary": 3}),
    "rg_lru": Case("rg_lru", {"heads": 1}),
    "rg_lru, heads": Case("rg_lru", {"heads": 2}, {"block": "griffin"}),
    "min_gru": Case("min_gru", LINEAR),
    "min_gru, negative": Case("min_gru", {**LINEAR, "negative": True}),
    "mamba": Case("mamba", {"d_state": 5}, {"block": "plain"}),
    "mamba, norms": Case("mamba", {"d_state": 3, "dt_max": 1.0, "norm_eps": 1e-2}),
    "mamba, negative": Case("mamba", {"d_state": 3, "dt_max": 1.0, "negative": True}),
    "mamba, other forms": Case("mamba", {"d_state": 5, "d_conv": 1, "dt_rank": 3, "bias": True, "conv_bias": False}),
    "mamba, no convolution": Case("mamba", {"d_state": 5, "d_conv": 0}),
    "mamba2": Case("mamba2", {"d_state": 5}, {"block": "plain"}),
    "mamba2, negative": Case("mamba2", {"d_state": 4, "d_head": 4, "negative": True}),
    "mamba2, other forms": Case("mamba2", {"d_state": 3, "d_conv": 1, "d_head": 6, "groups": 2, "bias": True}),
    "mamba3": Case("mamba3", {"d_state": 5}, {"block": "plain"}),
    "mamba2, selective rope": Case(
        "mamba2", {"d_state": 6, "d_head": 4, "groups": 3, "rope_base": 50.0, "rope_rank": 5, "rope_bias": True}
    ),
    "mamba3, ranks": Case(
        "mamba3", {"d_state": 5, "d_head": 4, "groups": 3, "rank": 3, "norm": True}, {"block": "plain"}
    ),
    "mamba3, many ranks": Case("mamba3", {"d_state": 4, "d_head": 4, "rank": 17}),
    "mamba3, other forms": Case(
        "mamba3", {"d_state": 6, "d_head": 4, "groups": 3, "fraction": 1.0, "rate": "rational", "norm": True}
    ),
    "mamba2, no convolution": Case("mamba2", {"d_state": 5, "d_conv": 0, "d_head": 1, "norm_eps": 0.1}),
    "delta_net": Case("delta_net", {"d_state": 5}, {"block": "plain"}),
    "comba": Case("comba", {"d_state": 4, "heads": 3}),
    "rwkv7": Case("rwkv7", {"heads": 3, "rank": 4, "gate_rank": 2}),
    "kda": Case("kda", {"d_state": 5, "heads": 2, "negative": True}),
    "kda, fewer keys": Case("kda", {"d_state": 3, "heads": 4, "key_heads": 2, "lower_bound": -5.0}),
    "gated_delta_net_2": Case("gated_delta_net_2", {"d_state": 4, "heads": 3, "expand": 2}),
    "gated_delta_net_2, fewer keys": Case("gated_delta_net_2", {"d_state": 3, "heads": 4, "key_heads": 2}),
    "delta_net, gated": Case("delta_net", {"d_state": 5, "heads": 2, "gate": True, "output_gate": True}),
    "delta_net, steps": Case(
        "delta_net", {"d_state": 3, "heads": 3, "expand": 2, "steps": 2, "negative": True, "gate": True, "d_conv": 1}
    ),
    "delta_net, selective rope": Case(
        "delta_net", {"d_state": 6, "heads": 2, "rope_base": 50.0, "rope_rank": 5, "rope_bias": True, "gate": True}
    ),
    "delta_net, no convolution": Case("delta_net", {"d_state": 5, "d_conv": 0, "steps": 3}),
    "mlstm": Case("mlstm", {"d_state": 5}, {"block": "plain"}),
    "mlstm, heads": Case("mlstm", {"d_state": 3, "heads": 4, "expand": 2}),
    "mlstm, biased": Case("mlstm", {"d_state": 5, "heads": 2, "bias": True, "forget": "exp", "norm_eps": 0.1}),
    "slstm": Case("slstm", LINEAR, {"block": "plain"}),
    "slstm, heads": Case("slstm", {"d_state": 12, "heads": 3}),
    "slstm, exponential": Case("slstm", {"d_state": 70, "heads": 2, "forget": "exp", "norm_eps": 0.1}),
    "fixed_point": Case("fixed_point", {**LINEAR, **TIGHT}),
    "fixed_point, negative": Case(
        "fixed_point",
        {**LINEAR, **TIGHT, "d_conv": 4, "negative": True, "lambda_init": (-0.9, 0.9), "contractive": True},
    ),
    "fixed_point, constant": Case("fixed_point", {**LINEAR, **TIGHT, "selective": (), "rank": 3, "mixer": "dplr"}),
    "fixed_point, matrix": Case("fixed_point", {**LINEAR, **TIGHT, "mixer": "orthogonal", "contractive": True}),
    "fixed_point, low rank": Case("fixed_point", {**LINEAR, **TIGHT, "mixer": "low_rank", "damping": "none"}),
    "fixed_point, kronecker": Case(
        "fixed_point", {**LINEAR, **TIGHT, "mixer": "kronecker", "selective": ("mixer",), "accelerated": False}
    ),
    "fixed_point, constant kronecker": Case(
        "fixed_point", {**LINEAR, **TIGHT, "mixer": "kronecker", "selective": ("lambda", "B"), "contractive": True}
    ),
    "fixed_point, spectral": Case(
        "fixed_point",
        {**LINEAR, **TIGHT, "mixer": "kronecker", "spectral": True, "unit_eps": 1e-5, "lambda_init": (0.9, 0.95)},
    ),
    "fixed_point, constant spectral": Case(
        "fixed_point", {**LINEAR, **TIGHT, "mixer": "kronecker", "spectral": True, "selective": ("lambda", "B")}
    ),
    "fixed_point, monarch": Case(
        "fixed_point", {**LINEAR, **TIGHT, "mixer": "monarch", "rank": 5, "unit_eps": 0.1, "contractive": True}
    ),
    "fixed_point, constant monarch": Case(
        "fixed_point", {**LINEAR, **TIGHT, "mixer": "monarch", "rank": 2, "selective": ("lambda",), "contractive": True}
    ),
    "fixed_point, rotation": Case(
        "fixed_point", {**LINEAR, **TIGHT, "mixer": "rotation", "rank": 2, "contractive": True, "mixer_silu": True}
    ),
    "fixed_point, constant rotation": Case(
        "fixed_point", {**LINEAR, **TIGHT, "mixer": "rotation", "rank": 3, "selective": ()}
    ),
    "fixed_point, dense": Case("fixed_point", {**LINEAR, **TIGHT, "mixer": "dense", "unit_eps": 1e-5}),
    "fixed_point, constant dense": Case("fixed_point", {**LINEAR, **TIGHT, "mixer": "dense", "selective": ()}),
    "fixed_point, epsilon": Case("fixed_point", {**LINEAR, **TIGHT, "rank": 2, "unit_eps": 3.0}),
    "fixed_point, each step": Case(  # in Python, sequences end together
        "fixed_point",
        {**LINEAR, **TIGHT, "tol": 1e-11, "stop": "step_quantile", "damping": "none", "contractive": True},
    ),
    "fixed_point, anderson": Case(
        "fixed_point", {**LINEAR, **TIGHT, "tol": 1e-11, "rank": 3, "damping": "anderson", "contractive": True}
    ),
    "fixed_point, feedback": Case("fixed_point", {**LINEAR, **TIGHT, "feedback": ("mixer", "output"), "rank": 2}),
    "fixed_point, gated output": Case(
        "fixed_point", {**LINEAR, **TIGHT, "feedback": ("output",), "d_conv": 3, "selective": ()}
    ),
    "fixed_point, separate convolutions": Case(
        "fixed_point", {**LINEAR, **TIGHT, "d_conv": 3, "separate_convs": True, "contractive": True}
    ),
    "fixed_point, some separate convolutions": Case(
        "fixed_point",
        {
            **{**LINEAR, **TIGHT, "d_conv": 1, "separate_convs": True, "selective": ("B",)},
            **{"mixer": "orthogonal", "contractive": True, "feedback": ("output",)},
        },
    ),
    "fixed_point, silu": Case("fixed_point", {**LINEAR, **TIGHT, "mixer_silu": True, "rank": 2}),
    "fixed_point, mixture": Case(
        "fixed_point", {**LINEAR, **TIGHT, "mixer": "mixture", "rank": 5, "spectral": True, "unit_eps": 1e-5}
    ),
    "fixed_point, constant mixture": Case(
        "fixed_point", {**LINEAR, **TIGHT, "mixer": "mixture", "rank": 2, "spectral": True, "selective": ("B",)}
    ),
    "fixed_point, direct": Case("fixed_point", {**LINEAR, "solver": "direct", "rank": 3, "unit_eps": 0.5}),
    "fixed_point, direct dplr": Case(
        "fixed_point",
        {
            **{**LINEAR, "solver": "direct", "mixer": "dplr", "rank": 2, "scaled": False, "selective": ()},
            "lambda_init": (0.01, 0.02),  # which Q^-1 multiplies
        },
        noise=0.02,
    ),
    "fixed_point, direct low rank": Case(
        "fixed_point", {**LINEAR, "solver": "direct", "mixer": "low_rank", "feedback": ("output",), "negative": True}
    ),
    **{
        f"fixed_point, direct {mixer}": Case("fixed_point", {**LINEAR, "solver": "direct", "mixer": mixer, **own})
        for mixer, own in FORMED.items()
    },
    **{
        f"fixed_point, direct constant {mixer}": Case(
            "fixed_point", {**LINEAR, "solver": "direct", "mixer": mixer, "selective": (), **own}
        )
        for mixer, own in FORMED.items()
    },
    **{
        f"fixed_point, direct unscaled {mixer}": Case(
            "fixed_point", {**LINEAR, "solver": "direct", "mixer": mixer, "scaled": False, "lambda_init": (0.1, 0.2)}
        )
        for mixer in ("orthogonal", "rotation")
    },
    "fixed_point, symmetric": Case(
        "fixed_point",
        {
            **{"d_state": D, **TIGHT, "feedback": ("mixer", "output"), "symmetric": True, "mixer_silu": True},
            **{"d_conv": 2, "separate_convs": True, "contractive": True},
        },
    ),
    "fixed_point, symmetric dense": Case(
        "fixed_point", {"d_state": D, **TIGHT, "feedback": ("mixer",), "symmetric": True, "mixer": "dense"}
    ),
    "bedouin": Case("bedouin", {"d_state": 4, **TIGHT, "rank": 2}, {"block": "plain"}),
    "bedouin, epsilon": Case("bedouin", {"d_state": 3, **TIGHT, "unit_eps": 2.0}),
    "bedouin, feedback norm": Case("bedouin", {"d_state": 3, **TIGHT, "feedback_norm": True, "rank": 2}),
    "bedouin, direct feedback norm": Case("bedouin", {"d_state": 3, "solver": "direct", "feedback_norm": True}),
    "bedouin, monarch": Case("bedouin", {"d_state": 3, **TIGHT, "mixer": "monarch", "rank": 3, "symmetric": True}),
    "bedouin, dense": Case("bedouin", {"d_state": 3, **TIGHT, "mixer": "dense", "unit_eps": 1e-5, "expand": 1}),
    "bedouin, rotation": Case("bedouin", {"d_state": 3, **TIGHT, "mixer": "rotation", "rank": 2, "symmetric": True}),
    "bedouin, mixture": Case(
        "bedouin",
        {"d_state": 3, **TIGHT, "mixer": "mixture", "rank": 3, "mixer_silu": True, "feedback": ("mixer", "C")},
    ),
    "bedouin, direct": Case("bedouin", {"d_state": 4, "solver": "direct", "rank": 2}, {"block": "plain"}),
    "bedouin, direct dplr": Case(
        "bedouin",
        {
            "d_state": 3,
            "solver": "direct",
            "mixer": "dplr",
            "rank": 3,
            "symmetric": True,
            "d_conv": 3,
            "negative": True,
        },
    ),
    "bedouin, direct low rank": Case(
        "bedouin",
        {"d_state": 3, "solver": "direct", "mixer": "low_rank", "feedback": ("B",), "normalise": False},
        noise=0.05,  # with more, I - gain Q is nearly singular at some step
    ),
    **{
        f"bedouin, direct {mixer}": Case(
            "bedouin", {"d_state": 3, "solver": "direct", "mixer": mixer, "feedback": ("lambda", "mixer", "C"), **own}
        )
        for mixer, own in FORMED.items()
    },
    "bedouin, anderson": Case(
        "bedouin",
        {
            "d_state": 3,
            **TIGHT,
            "tol": 1e-11,
            "tile": 1,
            "damping": "anderson",
            "mixer": "kronecker",
            "mixer_silu": True,
        },
    ),
    "bedouin, symmetric": Case("bedouin", {"d_state": 3, **TIGHT, "symmetric": True, "d_conv": 4, "negative": True}),
    "bedouin, silu": Case("bedouin", {"d_state": 3, **TIGHT, "mixer_silu": True}),
    "bedouin, all driven": Case("bedouin", {"d_state": 3, **TIGHT, "feedback": ("lambda", "mixer", "B", "C", "gate")}),
    "bedouin, none driven": Case("bedouin", {"d_state": 3, **TIGHT, "feedback": (), "expand": 1}),
    "bedouin, matrix": Case("bedouin", {"d_state": 3, **TIGHT, "mixer": "orthogonal", "feedback": ("C",)}),
    "fpmamba": Case("fpmamba", {"d_state": 4, **TIGHT, "stop": "sequence"}, {"block": "plain"}),
    "fpmamba, mixture": Case(
        "fpmamba",
        {
            **{"d_state": 3, **TIGHT, "max_iterations": 2000, "stop": "sequence", "feedback": ("mixer", "C")},
            **{"mixer": "mixture", "rank": 2, "spectral": True},
        },
        noise=0.02,  # so that all steps converge
    ),
    "fpmamba, kronecker": Case(
        "fpmamba",
        {"d_state": 3, **TIGHT, "stop": "sequence", "mixer": "kronecker", "feedback": ("B", "gate")},
        noise=0.02,  # so that all steps converge
    ),
    "fpmamba, monarch": Case(
        "fpmamba",
        {
            **{"d_state": 3, **TIGHT, "max_iterations": 2000, "stop": "sequence", "unit_eps": 1e-5, "feedback": ("B",)},
            **{"mixer": "monarch", "rank": 2},
        },
        noise=0.02,
    ),
    "fpmamba, symmetric": Case(
        "fpmamba", {"d_state": 3, **TIGHT, "stop": "sequence", "symmetric": True, "d_conv": 3, "negative": True}
    ),
    "fpmamba, gate in the loop": Case(
        "fpmamba",
        {
            **{"d_state": 3, **TIGHT, "stop": "sequence", "gate_in_loop": True, "mixer_silu": False, "norm_eps": 0.3},
            "feedback": ("mixer", "B"),
        },
    ),
    "fpmamba, heads": Case(
        "fpmamba",
        {"d_state": 3, **TIGHT, "stop": "sequence", "d_head": 2, "norm_eps": 0.3, "mixer": "dplr", "rank": 2},
    ),
    "fpmamba, heads with a convolution": Case(
        "fpmamba",
        {
            **{"d_state": 3, **TIGHT, "stop": "sequence", "d_head": 4, "norm_eps": 0.3, "d_conv": 3},
            **{"gate_in_loop": True, "feedback": ("mixer", "C"), "negative": True},
        },
    ),
    "fpmamba, heads, none driven": Case(
        "fpmamba", {"d_state": 3, **TIGHT, "stop": "sequence", "d_head": 1, "norm_eps": 0.3, "feedback": ()}
    ),
    "fpmamba, none driven": Case("fpmamba", {"d_state": 3, **TIGHT, "stop": "sequence", "feedback": ()}),
    "griffin": Case(
        "rotrnn",
        {"d_state": 16, "heads": 2},
        {
            **{"block": "griffin", "norm": "rms", "n_layers": 3},
            **{"attention_every": 3, "attention_window": 6, "attention_heads": 3},
        },
    ),
    "griffin of an LSTM": Case("lstm", LINEAR, {"block": "griffin", "norm": "layer"}),
    "griffin of a fixed point": Case("fixed_point", {**LINEAR, **TIGHT}, {"block": "griffin", "norm": "layer"}),
    "half1": Case("lru", LINEAR, {"glu": "half1"}),
    "half2": Case("lru", LINEAR, {"glu": "half2", "norm": "layer"}),
    "gelu": Case("lru", LINEAR, {"glu": "gelu", "dropout": 0.1}),
    "norm after the sum": Case("lru", LINEAR, {"prenorm": False, "final_norm": True}),
    "layer norm": Case("lru", LINEAR, {"norm": "layer", "norm_eps": 0.3, "final_norm": True, "prenorm": False}),
    "rms norm": Case("lru", LINEAR, {"norm": "rms", "norm_eps": 0.3, "final_norm": True, "prenorm": False}),
    "transformer": Case("lru", LINEAR, {"block": "transformer", "norm": "layer"}),
    "tokens, mean": Case("lru", LINEAR, head="classifier", tokens=True),
    "last": Case("lru", LINEAR, {"pool": "last"}, head="classifier"),
    "bits": Case("lru", LINEAR, head="bits", tokens=True),
    "language": Case("min_gru", LINEAR, head="language", tokens=True),
    "language, as RecurrentGemma": Case(
        "rg_lru", {"heads": 2}, {"tied": True, "scale_embedding": True, "logit_cap": 2.0}, head="language", tokens=True
    ),
    "language, tied": Case("min_gru", LINEAR, {"tied": True}, head="language", tokens=True),
}
each_case = pytest.mark.parametrize("name", CASES)
VOCABULARY, CLASSES = 7, 5


@functools.cache
def built(name: str) -> tuple[Any, Any, Array]:
    """The model of a case, its parameters in float64, each one moved from its initial value, and an input."""
    case, rng = CASES[name], np.random.default_rng(list(name.encode()))
    settings = ModelSettings(**{"layer": case.layer, "d_model": D, "n_layers": 2, **case.model})
    reads = {"vocab": VOCABULARY} if case.tokens else {"n_features": 4}
    classes = VOCABULARY if case.head == "language" else CLASSES
    model = build_model(settings, case.settings, head=case.head, n_classes=classes, **reads)
    params = {key: value + case.noise * rng.standard_normal(value.shape) for key, value in flatten(model.init(rng))}
    params = {key: np.abs(value) if key.endswith("running_var") else value for key, value in params.items()}
    x = rng.integers(0, VOCABULARY, (BATCH, STEPS)) if case.tokens else rng.standard_normal((BATCH, STEPS, 4))
    return model, astype(astype(unflatten(params), np.float32), np.float64), x


def saved(folder: Path, model: Any, params: Any) -> bytes:
    path = folder / "model.safetensors"
    model.save(path, params)
    return path.read_bytes()


def stepped(stream: Any, x: Array) -> Array:
    """The logits of a Python stream that reads x one step at a time, (B, T, C)."""
    return np.stack([stream.push(x[:, t]) for t in range(x.shape[1])], 1)


def one_by_one(stream: librotrnn.Stream, x: Array) -> Array:
    """The same of a stream of the library."""
    return np.stack([stream.push(x[:, t : t + 1]).reshape(len(x), -1) for t in range(x.shape[1])], 1)


@each_case
@pytest.mark.filterwarnings("error::rotrnn.NotConverged")  # what has not converged is no function of its input
def test_equals_the_python_stream_in_double(name: str, tmp_path: Path) -> None:
    """Two orders of the same sums. Each number passes through fewer than 2^13 roundings of 2^-53 each, on a path whose
    gain is below 2^8 for these small models, relative to the largest logit."""
    model, params, x = built(name)
    expected = stepped(model.stream(params, BATCH, "python"), x)
    got = one_by_one(Model(saved(tmp_path, model, params)).stream(BATCH), x)
    assert np.abs(got - expected).max() <= 2.0**-32 * np.abs(expected).max()


@each_case
@pytest.mark.filterwarnings("error::rotrnn.NotConverged")
def test_float32_errs_no_more_than_python(name: str, tmp_path: Path) -> None:
    """Against float64 both err by as many roundings, in another order; the library computes what does not depend on
    time in double. The largest error of some hundred numbers then differs by a small factor. 2^-22 of the largest logit
    is a few roundings, for the cases where Python happens to be exact. The factor is small only where roundings are not
    amplified, as the test in double supposes, too; 2^9 of them, of 2^-24 each, would be the case's own fault."""
    model, params, x = built(name)
    single = astype(params, np.float32)
    expected = stepped(model.stream(params, BATCH, "python"), x if x.dtype.kind == "i" else x.astype(np.float32))
    error = np.abs(
        stepped(model.stream(single, BATCH, "python"), x.astype(np.float32) if x.dtype.kind == "f" else x) - expected
    )
    assert error.max() <= 2.0**-15 * np.abs(expected).max()
    got = one_by_one(Model(saved(tmp_path, model, single)).stream(BATCH), x)
    assert got.dtype == np.float32
    assert np.abs(got - expected).max() <= 4 * error.max() + 2.0**-22 * np.abs(expected).max()


@each_case
def test_chunks_batches_and_single_steps_have_the_same_bits(name: str, tmp_path: Path) -> None:
    model, params, x = built(name)
    loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
    steps = one_by_one(loaded.stream(BATCH), x)
    alone = loaded.stream()
    assert np.array_equal(one_by_one(alone, x[1:2])[0], steps[1])
    for cuts in ([0, STEPS], [0, 1, 1, 6, 19, STEPS]):
        stream = loaded.stream(BATCH)
        for first, last in itertools.pairwise(cuts):
            got = stream.push(x[:, first:last])
            expected = steps[:, first:last] if got.ndim == 3 else steps[:, last - 1]
            assert np.array_equal(got, expected), (first, last)
        assert stream.lib.stream_steps(stream.handle) == STEPS


@pytest.mark.parametrize("name", ["lru", "mamba", "lstm"])
def test_matrices_in_bfloat16_are_those_of_the_python_stream(name: str, tmp_path: Path) -> None:
    """tests/models/test_engines.py says what they are. A state goes from one kind of stream to the other."""
    model, params, x = built(name)
    single = astype(params, np.float32)
    content = saved(tmp_path, model, single)
    half, exact = Model(content, half=True), Model(content)
    stream = half.stream(BATCH)
    with its_instructions(half):
        expected = stepped(model.stream(single, BATCH, weights="bf16"), x)
    assert np.array_equal(one_by_one(stream, x), expected)
    handle, error = ctypes.c_void_p(), librotrnn.Error()
    path = str(tmp_path / "model.safetensors").encode()
    assert half.lib.model_open_bf16(ctypes.byref(handle), path, error) == librotrnn.OK
    half.lib.model_free(handle)
    other = exact.stream(BATCH)
    other.load(stream.save())
    assert other.lib.stream_steps(other.handle) == STEPS
    with pytest.raises(LibraryError, match="the numbers of the model are double, expected float for matrices in bf"):
        Model(saved(tmp_path, model, params), half=True)


def test_windows_forget_to_the_bit(tmp_path: Path) -> None:
    """The states do not decay, so without the resets of `tiir_scan` a large input would leave an error for ever.
    Two blocks with windows of 7 forget after four of them."""
    model, params, _ = built("rope_memory, window")
    loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
    x = np.random.default_rng(0).standard_normal((1, 40, 4))
    large = x.copy()
    large[:, 2] = 1e7
    expected, got = loaded.stream().push(x), loaded.stream().push(large)
    assert not np.array_equal(got[:, 2:9], expected[:, 2:9])
    assert np.array_equal(got[:, 2 + 4 * 7 :], expected[:, 2 + 4 * 7 :])


@each_case
def test_sequences_of_different_lengths_have_the_bits_of_each_alone(name: str, tmp_path: Path) -> None:
    """Two chunks with lengths, some of them zero; padding is not read, and its logits are zero."""
    model, params, x = built(name)
    loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
    stream, alone = loaded.stream(BATCH), [loaded.stream() for _ in range(BATCH)]
    bad = np.array(-5 if x.dtype.kind == "i" else np.nan, x.dtype)
    for first, last, lengths in ((0, 9, [4, 0, 9]), (9, STEPS, [0, 14, 3])):
        chunk = x[:, first:last].copy()
        for b, length in enumerate(lengths):
            chunk[b, length:] = bad
        got = stream.push(chunk, np.array(lengths))
        for b, length in enumerate(lengths):
            expected = alone[b].push(x[b : b + 1, first : first + length])[0]
            assert np.array_equal(got[b, :length] if got.ndim == 3 else got[b], expected)
            assert got.ndim == 2 or not got[b, length:].any()
    steps = [stream.lib.sequence_steps(stream.handle, b) for b in range(-1, BATCH + 1)]
    assert steps == [0, 4, 14, 12, 0]
    assert stream.lib.stream_steps(stream.handle) == 14
    twin = loaded.stream(BATCH)
    twin.load(stream.save())
    assert np.array_equal(twin.push(x), stream.push(x))


def test_lengths_out_of_range_are_refused(tmp_path: Path) -> None:
    stream = small(tmp_path)[1].stream(2)
    before = stream.save()
    for lengths in ([2, 4], [-1, 2]):
        with pytest.raises(LibraryError) as caught:
            stream.push(np.zeros((2, 3), np.int32), np.array(lengths))
        assert caught.value.status == librotrnn.ARGUMENT
    lib, out = stream.lib, np.zeros((2, CLASSES), np.float32)
    assert lib.push_ragged(stream.handle, None, 0, np.array([1, 0]).ctypes.data, out.ctypes.data) == librotrnn.ARGUMENT
    assert lib.push_ragged(stream.handle, None, 0, None, out.ctypes.data) == librotrnn.ARGUMENT
    assert lib.push_ragged(stream.handle, None, 0, np.zeros(2, np.int64).ctypes.data, out.ctypes.data) == librotrnn.OK
    assert stream.save() == before


@pytest.mark.parametrize("damping", ["adaptive", "none", "anderson"])
def test_steps_without_a_fixed_point_are_counted(damping: str, tmp_path: Path) -> None:
    """One iteration does not suffice, a hundred do."""
    for iterations, unsettled in ((1, STEPS), (100, 0)):
        own = {"d_state": 4, "max_iterations": iterations, "tol": 0.01, "damping": damping}
        model = build_model(ModelSettings("fixed_point", D, 1), own, n_classes=3, n_features=4)
        params = model.init(np.random.default_rng(0))
        stream = Model(saved(tmp_path, model, params)).stream(2)
        stream.push(built("lru")[2][:2])
        assert [stream.lib.sequence_unsettled(stream.handle, b) for b in range(3)] == [unsettled, unsettled, 0]


@pytest.mark.parametrize("off", [0, 1e-7])
def test_direct_steps_without_a_solution_are_counted(off: float, tmp_path: Path) -> None:
    """Unscaled, with a gain of 1/2, Q is a projection: I - Q = w w^T, and Q y = .. has no solution; a little off, the
    solution is finite and wrong."""
    own = {"d_state": 4, "solver": "direct", "scaled": False}
    model = build_model(ModelSettings("fixed_point", D, 1), own, n_classes=3, n_features=4)
    params, x = model.init(np.random.default_rng(0)), built("lru")[2][:2]
    stream = Model(saved(tmp_path, model, params)).stream(2)
    stream.push(x)
    assert [stream.lib.sequence_unsettled(stream.handle, b) for b in range(2)] == [0, 0]
    [gains] = [value for key, value in flatten(params) if key.endswith("W_alpha")]
    gains[:] = off
    stream = Model(saved(tmp_path, model, params)).stream(2)
    stream.push(x)
    assert all(stream.lib.sequence_unsettled(stream.handle, b) for b in range(2))
    with pytest.warns(NotConverged):
        model.forward(params, x.astype(np.float32))


@pytest.mark.parametrize("mixer", ["dense", "mixture", "householder"])
def test_widths_whose_sizes_could_overflow_are_refused(mixer: str, tmp_path: Path) -> None:
    made = Made(tmp_path, "fixed_point")
    facts = made.facts()
    line = next(one for one in facts["program"]["lines"] if one["op"] == "FixedPoint")
    line |= {"in": [5, 5, *[None] * 5], "mixer": mixer, "rank": 2}
    wide = [{"op": "Concat", "in": [i] * (12 if i < 4 else 5)} for i in range(5)]  # more than 2^20 channels
    facts["program"]["lines"] = [*wide, line]
    error = refusal(made.content(facts))
    assert error.status == librotrnn.UNSUPPORTED
    assert "channels" in error.text


def test_chunks_longer_than_the_scratch_memory(tmp_path: Path) -> None:
    """Scratch memory holds some 96 rows."""
    model, params, _ = built("mamba")
    x = np.random.default_rng(0).standard_normal((2, 311, 4))
    loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
    assert np.array_equal(loaded.stream(2).push(x), one_by_one(loaded.stream(2), x))
    many = np.repeat(x[:, :7], 100, 0)  # more sequences than rows
    assert np.array_equal(loaded.stream(200).push(many)[::100], loaded.stream(2).push(x[:, :7]))


@each_case
def test_states_continue_where_they_were_saved_and_reset_starts_again(name: str, tmp_path: Path) -> None:
    model, params, x = built(name)
    loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
    stream, other = loaded.stream(BATCH), loaded.stream(BATCH)
    stream.push(x[:, :9])
    state = stream.save()
    other.push(x[:, 5:])
    other.load(state)
    assert other.save() == state
    end = stream.push(x[:, 9:])
    assert np.array_equal(other.push(x[:, 9:]), end)
    assert stream.lib.stream_reset(stream.handle) == librotrnn.OK
    stream.push(x[:, :9])
    assert stream.save() == state


@each_case
def test_one_sequence_starts_again_while_the_others_go_on(name: str, tmp_path: Path) -> None:
    model, params, x = built(name)
    loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
    stream, other, fresh = (loaded.stream(BATCH) for _ in range(3))
    for one in (stream, other):
        one.push(x[:, :9])
    assert stream.lib.sequence_reset(stream.handle, 1) == librotrnn.OK
    got, expected, new = (one.push(x[:, 9:]) for one in (stream, other, fresh))
    expected[1] = new[1]
    assert np.array_equal(got, expected)
    steps = [stream.lib.sequence_steps(stream.handle, b) for b in range(BATCH)]
    assert steps == [x.shape[1] - 9 * (b == 1) for b in range(BATCH)]


@each_case
def test_one_sequence_moves_to_another_place_and_stream(name: str, tmp_path: Path) -> None:
    """Its bytes are those of a stream of it alone, and it goes on with the same bits in each; the others stay."""
    model, params, x = built(name)
    loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
    stream, moved, other, alone = loaded.stream(BATCH), loaded.stream(BATCH), loaded.stream(BATCH), loaded.stream(1)
    alone.push(x[1:2, :9])
    for one in (stream, moved):
        one.push(x[:, :9])
    other.push(x[:, :4])
    state = stream.save(1)
    assert state == alone.save()
    before = [other.save(b) for b in range(BATCH)]
    moved.load(state, 2)
    other.load(state, 0)
    assert [other.save(b) for b in range(BATCH)] == [state, *before[1:]]
    after, single = x[:, 9:].copy(), loaded.stream(1)
    after[2] = after[0] = x[1, 9:]
    single.load(state)
    end = single.push(x[1:2, 9:])[0]
    assert np.array_equal(moved.push(after)[2], end)
    assert np.array_equal(other.push(after)[0], end)
    assert np.array_equal(stream.push(x[:, 9:])[1], end)


def test_states_of_a_sequence_that_are_refused(tmp_path: Path) -> None:
    """With a sentence, and the stream is unchanged."""
    _, model = small(tmp_path)
    stream, alone = model.stream(BATCH), model.stream(1)
    stream.push(np.ones((BATCH, 3), np.int32))
    whole, state, kept = stream.save(), stream.save(0), [stream.save(b) for b in range(BATCH)]
    for wrong, status, text in (
        (whole, librotrnn.MISMATCH, f"of batch {BATCH} and capacity 0, expected 1 and 0"),
        (state[:-1], librotrnn.DAMAGED, "bytes, expected"),
        (state[:50], librotrnn.DAMAGED, "50 bytes are too few for a state"),
        (state[:-1] + bytes([state[-1] ^ 1]), librotrnn.DAMAGED, "does not match its checksum"),
        (
            b"rotrnnS3" + state[8:],
            librotrnn.DAMAGED,
            "not a state that rotrnn_state_save or rotrnn_sequence_save wrote",
        ),
    ):
        with pytest.raises(LibraryError, match=text) as caught:
            stream.load(wrong, 1)
        assert caught.value.status == status
    with pytest.raises(LibraryError, match=f"rotrnn_sequence_load: sequence is {BATCH}, expected 0 to {BATCH - 1}"):
        stream.load(state, BATCH)
    assert [stream.save(b) for b in range(BATCH)] == kept
    alone.load(state)
    lib, size, room = stream.lib, len(state), ctypes.create_string_buffer(len(state))
    assert lib.sequence_size(None) == 0
    for arguments in ((None, 0, room, size), (stream.handle, -1, room, size), (stream.handle, BATCH, room, size)):
        assert lib.sequence_save(*arguments) == librotrnn.ARGUMENT
    for arguments in ((stream.handle, 0, None, size), (stream.handle, 0, room, size - 1)):
        assert lib.sequence_save(*arguments) == librotrnn.ARGUMENT
    for given in ((None, 0, room, size, None), (stream.handle, 0, None, size, None)):
        assert lib.sequence_load(*given) == librotrnn.ARGUMENT


def small(folder: Path, precision: Any = np.float32) -> tuple[bytes, Model]:
    """The file of a small model that reads tokens, and the model."""
    model, params, _ = built("tokens, mean")
    content = saved(folder, model, astype(params, precision))
    return content, Model(content)


def refusal(content: bytes) -> LibraryError:
    with pytest.raises(LibraryError) as caught:
        Model(content)
    assert 10 < len(caught.value.text) < 248
    return caught.value


def test_every_changed_region_of_a_file_is_refused(tmp_path: Path) -> None:
    """Bytes of the header and of the arrays; those of the header also where JSON or offsets still make sense."""
    content, _ = small(tmp_path)
    rng = np.random.default_rng(0)
    (header,) = struct.unpack("<Q", content[:8])
    places = [*range(8), *range(8, 8 + header, 3), *rng.integers(8 + header, len(content), 60).tolist()]
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        if bytes(changed[:8]) == content[:8] and _same_meaning(content[8 : 8 + header], changed[8 : 8 + header]):
            continue
        assert refusal(bytes(changed)).status in (librotrnn.DAMAGED, librotrnn.UNSUPPORTED)


def _same_meaning(header: bytes, changed: bytes) -> bool:
    """Whether a changed header still says the same, as where the case of an escape's digits or a space changed."""
    if header == changed:
        return False
    try:
        return bool(json.loads(header) == json.loads(changed))
    except ValueError:
        return False


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.9, 0.9999])
def test_a_file_that_is_cut_off(share: float, tmp_path: Path) -> None:
    content, _ = small(tmp_path)
    assert refusal(content[: int(share * len(content))]).status == librotrnn.DAMAGED


@pytest.mark.parametrize(
    "header",
    [
        b"{}", b"[]", b"", b"null", b"[" * 100_000, b'{"a":' * 1000, b'{"a"', b'{"a":1e999}', b'{"a":-}', b'"\\ud800"',
        b'{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        b'{"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}',
        b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}',
        b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}',
        b'{"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}',
        b'{"w":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}',
        b'{"w":1,"__metadata__":2}',
        b'{"__metadata__":{"rotrnn":"0"}}',
        b'{"__metadata__":{"rotrnn":"' + b"0" * 64 + b' {}"}}',
    ],
)  # fmt: skip
def test_headers_that_are_no_model(header: bytes) -> None:
    refusal(struct.pack("<Q", len(header)) + header + bytes(8))
    refusal(struct.pack("<Q", 2**63) + header)


class Made:
    """A file that is made from the content of a case's, with the right checksum."""

    def __init__(self, folder: Path, case: str = "tokens, mean") -> None:
        model, params, _ = built(case)
        self.folder = folder
        self.arrays, self._facts = contents(model, astype(params, np.float32))

    def content(self, facts: dict[str, Any]) -> bytes:
        return content_of(self.arrays, facts)

    def facts(self) -> dict[str, Any]:
        return copy.deepcopy(self._facts)


def test_whole_files_of_models_that_the_library_does_not_have(tmp_path: Path) -> None:
    """The checksum is right, and the sentence names the line."""
    made = Made(tmp_path)
    Model(made.content(made.facts()))
    [*systems] = [i for i, line in enumerate(made.facts()["program"]["lines"]) if line["op"] == "System"]

    def refused(change: Any, status: int, *words: str) -> None:
        facts = made.facts()
        change(facts["program"])
        error = refusal(made.content(facts))
        assert error.status == status, error
        assert all(word in error.text for word in words), error

    def system(program: Any) -> Any:
        return program["lines"][systems[1]]

    line = f"line {systems[1]}"
    refused(lambda p: system(p).update(op="Warp"), librotrnn.UNSUPPORTED, line, "Warp")
    refused(lambda p: system(p)["in"].extend(["head.w", "head.w"]), librotrnn.UNSUPPORTED, line, "directions")
    refused(lambda p: system(p)["in"].extend(["head.w"] * 9), librotrnn.DAMAGED, line)
    split = {"op": "Split", "in": [0], "sizes": [1] * 65, "axis": -1}
    refused(
        lambda p: system(p).update(split),
        librotrnn.UNSUPPORTED,
        line,
        "Split",
        "too many numbers in sizes, expected at most 64",
    )
    refused(lambda p: system(p).update(speed=1), librotrnn.UNSUPPORTED, line, "speed")
    too_long = "has window 268435457, expected at most 268435456"
    refused(lambda p: system(p).update(window=2**28 + 1), librotrnn.UNSUPPORTED, line, too_long)
    refused(lambda p: system(p).update(window=-(2**28) - 1), librotrnn.DAMAGED, line, "window")
    refused(lambda p: system(p).update(window=True), librotrnn.DAMAGED, line, "window")
    refused(lambda p: system(p).update(exact=[1.0]), librotrnn.DAMAGED, line)
    refused(lambda p: system(p).pop("weight"), librotrnn.DAMAGED, line, "weight")
    refused(lambda p: system(p)["in"].__setitem__(1, "gone"), librotrnn.DAMAGED, "gone")
    refused(lambda p: system(p)["in"].__setitem__(2, "head.w"), librotrnn.DAMAGED, line)
    refused(lambda p: p.update(pool="max"), librotrnn.DAMAGED, "pool")
    refused(lambda p: p.update(tokens=1), librotrnn.DAMAGED, "tokens")
    refused(lambda p: p.update(tokens=False), librotrnn.DAMAGED, "encoder")
    refused(lambda p: p.update(encoder=["encoder.table"]), librotrnn.DAMAGED, "encoder")
    refused(lambda p: p.update(head=["encoder.table", "head.bias"]), librotrnn.DAMAGED, "head")
    refused(lambda p: p.update(head=["head.w", "encoder.table"]), librotrnn.DAMAGED, "head")
    refused(lambda p: p.update(head=None), librotrnn.DAMAGED, "head")
    refused(lambda p: p.update(y=1.5), librotrnn.DAMAGED, "output")
    refused(lambda p: p.pop("lines"), librotrnn.DAMAGED, "lines")
    for facts in (
        *({"model": 1, "model_format": 1}, {"model_format": 1}, {**made.facts(), "model_format": 2}),
        *({**made.facts(), "program": 3}, {**made.facts(), "program": {}}, {**made.facts(), "program": ""}),
    ):
        refusal(made.content(facts))


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("fixed_point, matrix", {"mixer": "householder"}),
        ("fixed_point, constant", {"mixer": "orthogonal"}),
        ("fixed_point, direct low rank", {"scaled": False}),
        ("fixed_point, direct dense", {"scaled": False}),
        ("fixed_point, feedback", {"direct": True}),
        ("fixed_point", {"unit_eps": -1.0}),
        ("fixed_point", {"maps": ["delta", "C", "B", "u"]}),
        ("fixed_point", {"maps": ["delta", "C", "B", "u", "u"]}),
        ("fixed_point", {"maps": ["delta", "u", "alpha", "B"]}),
        ("bedouin, mixture", {"rank": 1}),
        ("bedouin", {"rank": 2**20}),
        ("fpmamba", {"direct": True}),
        ("fpmamba, mixture", {"rank": 3}),
    ],
)
def test_settings_of_a_fixed_point_that_contradict_each_other(
    case: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    made = Made(tmp_path, case)
    facts = made.facts()
    lines = facts["program"]["lines"]
    place = next(i for i, line in enumerate(lines) if line["op"].endswith("FixedPoint"))
    lines[place].update(settings)
    error = refusal(made.content(facts))
    assert error.status == librotrnn.DAMAGED
    assert f"line {place} of the program" in error.text


def test_lines_as_former_versions_wrote_them(tmp_path: Path) -> None:
    """A delta rule of five inputs, and a decay without the setting `rate`, are what they were."""
    made = Made(tmp_path, "delta_net, gated")
    facts = made.facts()
    for line in facts["program"]["lines"]:
        if line["op"] == "DeltaRule":
            assert line["in"][5:] == [None, None]
            del line["in"][5:]
        if line["op"] == "Decay":
            del line["rate"]
    _, _, x = built("delta_net, gated")
    new, old = (Model(made.content(one)).stream(BATCH).push(x) for one in (made.facts(), facts))
    np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    ("case", "inputs", "settings"),
    [
        ("fixed_point", 7, {"width": 5, "negative": False, "maps": ["delta", "u", "alpha", "B", "C"]}),
        ("bedouin", 10, {"gated": False, "plain": False}),
        ("fpmamba", 10, {"gated": True, "plain": True}),
    ],
)
def test_fixed_points_of_an_earlier_version_are_refused(
    case: str, inputs: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Lines whose fixed point computed its own gates from other inputs."""
    made = Made(tmp_path, case)
    facts = made.facts()
    line = next(one for one in facts["program"]["lines"] if one["op"].endswith("FixedPoint"))
    line.update(settings)
    line["in"] = [0] * inputs
    error = refusal(made.content(facts))
    assert error.status == librotrnn.UNSUPPORTED
    assert f"{line['op']}, is of an earlier version: load the model in Python and save it again" in error.text


@pytest.mark.parametrize(("place", "other"), [(3, "out of steps"), (4, "an array"), (5, "q"), (6, "q")])
def test_arrays_of_a_delta_rule_that_do_not_fit(place: int, other: str, tmp_path: Path) -> None:
    """beta, decay, and the keys that are read and erased: each as another register, or as a weight."""
    made = Made(tmp_path, "delta_net, gated")
    facts = made.facts()
    line = next(one for one in facts["program"]["lines"] if one["op"] == "DeltaRule")
    line["in"][place] = {"q": line["in"][0], "an array": "head.bias", "out of steps": line["in"][2]}[other]
    error = refusal(made.content(facts))
    assert error.status == librotrnn.DAMAGED
    assert "DeltaRule" in error.text


def test_a_model_of_two_dtypes(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.arrays["head.bias"] = made.arrays["head.bias"].astype(np.float64)
    assert refusal(made.content(made.facts())).status == librotrnn.UNSUPPORTED


def test_states_that_do_not_belong(tmp_path: Path) -> None:
    content, model = small(tmp_path)
    stream = model.stream(2)
    stream.push(np.array([[1, 2], [3, 4]]))
    state = stream.save()
    rng = np.random.default_rng(0)
    for place in [*range(0, 112), *rng.integers(112, len(state), 40).tolist()]:
        changed = bytearray(state)
        changed[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(LibraryError):
            stream.load(bytes(changed))
    for cut in (0, 7, 111, 112, len(state) - 1):
        with pytest.raises(LibraryError) as caught:
            stream.load(state[:cut])
        assert caught.value.status == librotrnn.DAMAGED
    for other in (model.stream(3), Model(saved(tmp_path, *built("lru")[:2])).stream(2)):
        with pytest.raises(LibraryError) as caught:
            other.load(state)
        assert caught.value.status == librotrnn.MISMATCH
    stream.load(state)
    twin = Model(content).stream(2)
    twin.load(state)
    assert np.array_equal(twin.push(np.array([[5], [6]])), stream.push(np.array([[5], [6]])))


def opened(path: Path) -> tuple[int, str]:
    """The status of opening a file, and its sentence."""
    handle, error = ctypes.c_void_p(), librotrnn.Error()
    status = librotrnn.library().model_open(ctypes.byref(handle), bytes(path), ctypes.byref(error))
    assert status == error.status
    assert bool(handle) == (status == librotrnn.OK)
    librotrnn.library().model_free(handle)
    return status, error.text.decode()


@pytest.mark.skipif(not Path("/dev/urandom").exists(), reason="as Unix has devices")
@pytest.mark.parametrize("name", ["/dev/zero", "/dev/urandom", "pipe"])
def test_pipes_and_devices_are_refused_at_once(name: str, tmp_path: Path) -> None:
    """Some have no end, and to this pipe nobody will ever write."""
    os.mkfifo(tmp_path / "pipe")
    status, text = opened(tmp_path / name)
    assert status == librotrnn.NO_FILE
    assert text.endswith(f"{name}: is a pipe or a device, expected a file")


def moved(content: bytes, gap: int, shift: int) -> bytes:
    """A model's file with `gap` bytes in front of the last array, whose place moves by `gap` + `shift` bytes."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    last = max((one for one in header if one != "__metadata__"), key=lambda one: header[one]["data_offsets"])
    begin, stop = header[last]["data_offsets"]
    header[last]["data_offsets"] = [begin + gap + shift, stop + gap + shift]
    text = json.dumps(header).encode()
    data = content[end:]
    return struct.pack("<Q", len(text)) + text + data[:begin] + bytes(gap) + data[begin:]


def test_errors_of_files_begin_with_their_paths(tmp_path: Path) -> None:
    content, _ = small(tmp_path)
    for name, made, status, words in (
        ("empty", b"", librotrnn.DAMAGED, "0 bytes are too few"),
        ("short", content[:7], librotrnn.DAMAGED, "7 bytes are too few"),
        ("cut", content[:-1], librotrnn.DAMAGED, f"has {len(content) - 1} bytes, its header asks for {len(content)}"),
        ("longer", content + b"\0", librotrnn.DAMAGED, "1 bytes follow the last array, expected none"),
        ("gap", moved(content, 8, 0), librotrnn.DAMAGED, "does not begin where the array before it ends"),
        ("shared", moved(content, 0, -8), librotrnn.DAMAGED, "does not begin where the array before it ends"),
        ("text", b"A page of text, and no model.", librotrnn.DAMAGED, "not a safetensors file"),
        ("limit", struct.pack("<Q", 10**8) + b"{", librotrnn.DAMAGED, "cut off"),
        ("beyond", struct.pack("<Q", 10**8 + 1) + b"{", librotrnn.DAMAGED, "100000001 bytes"),
    ):
        (tmp_path / name).write_bytes(made)
        got, text = opened(tmp_path / name)
        assert got == status
        assert str(tmp_path / name).endswith(text[: text.index(": ")].removeprefix("..."))
        assert words in text
    assert opened(tmp_path / "none")[1].endswith(f"none: {os.strerror(errno.ENOENT)}")
    assert opened(tmp_path)[0] == librotrnn.NO_FILE
    assert opened(tmp_path / "model.safetensors") == (librotrnn.OK, "")


def test_a_long_path_is_shortened(tmp_path: Path) -> None:
    """Its end is kept, and the whole sentence."""
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    folder.mkdir(parents=True)
    (folder / "c").write_bytes(b"")
    assert opened(folder / "c")[1] == f"...{'b' * 94}/c: 0 bytes are too few for a model's file"


def test_a_path_is_shown_as_it_was_given(tmp_path: Path) -> None:
    """But for characters such as line breaks; a long one is not cut amid a letter of UTF-8, in any locale."""

    def shown_of(name: str) -> str:
        path = tmp_path / os.fsdecode(name.encode())
        path.write_bytes(b"")
        return opened(path)[1].partition(": ")[0]

    assert shown_of("Über\n").endswith("/Über?")
    for letters in ("ä" * 60, "a" + "ä" * 60, "語" * 60):
        shown = shown_of(letters)
        assert letters.endswith(shown.removeprefix("..."))
        assert 93 < len(shown.encode()) < 100


def test_arguments_are_named_in_errors(tmp_path: Path) -> None:
    _, model = small(tmp_path)
    keeping = Model(saved(tmp_path, *built("attention")[:2]))
    lib, handle, error = model.lib, ctypes.c_void_p(), librotrnn.Error()
    for call, arguments, text in (
        (lib.model_open, (None, b"x"), "rotrnn_model_open: model is NULL"),
        (lib.model_open, (handle, None), "rotrnn_model_open: path is NULL"),
        (lib.model_read, (None, b"abc", 3), "rotrnn_model_read: model is NULL"),
        (lib.model_read, (handle, None, 3), "rotrnn_model_read: bytes is NULL"),
        (lib.model_read, (handle, b"abc", 2**64 - 1), f"rotrnn_model_read: size is {2**64 - 1}, but no object has"),
        (lib.model_open_bf16, (handle, None), "rotrnn_model_open_bf16: path is NULL"),
        (lib.model_read_bf16, (None, b"abc", 3), "rotrnn_model_read_bf16: model is NULL"),
        (lib.stream_new, (None, model.handle, 1, 0), "rotrnn_stream_new: stream is NULL"),
        (lib.stream_new, (handle, None, 1, 0), "rotrnn_stream_new: model is NULL"),
        (lib.stream_new, (handle, model.handle, 0, 0), "rotrnn_stream_new: batch is 0, expected 1 sequence or more"),
        (lib.stream_new, (handle, model.handle, 1, -1), "rotrnn_stream_new: capacity is -1, expected 0 steps or more"),
        (lib.stream_new, (handle, keeping.handle, 1, 0), "rotrnn_stream_new: capacity is 0, expected 1 step or more"),
        (lib.state_load, (None, b"x", 1), "rotrnn_state_load: stream is NULL"),
    ):
        assert call(*arguments, error) == librotrnn.ARGUMENT
        assert error.text.decode().startswith(text)
        assert not handle


def test_arguments_that_are_wrong(tmp_path: Path) -> None:
    _, model = small(tmp_path)
    lib, stream, error = model.lib, model.stream(), librotrnn.Error()
    handle, out = ctypes.c_void_p(), np.zeros(8)
    for call, arguments in (
        (lib.model_open, (None, b"x", error)),
        (lib.model_open, (handle, None, error)),
        (lib.model_read, (handle, None, 8, error)),
        (lib.stream_new, (handle, None, 1, 0, error)),
        (lib.stream_new, (handle, model.handle, 0, 0, error)),
        (lib.stream_new, (handle, model.handle, 1, -1, error)),
        (lib.state_load, (None, b"x", 1, error)),
        (lib.state_load, (stream.handle, None, 1, error)),
    ):
        assert call(*arguments) == librotrnn.ARGUMENT
        assert error.status == librotrnn.ARGUMENT
        assert error.text
        assert call(*arguments[:-1], None) == librotrnn.ARGUMENT
    tokens = np.array([1, VOCABULARY, -1], np.int32)
    at, result = tokens.ctypes.data, out.ctypes.data
    for arguments in (
        (None, at, 1, result),
        (stream.handle, None, 1, result),
        (stream.handle, at, -1, result),
        (stream.handle, at, 1, None),
        (stream.handle, at, 2, result),
        (stream.handle, at + 8, 1, result),
    ):
        assert lib.push_tokens(*arguments) == librotrnn.ARGUMENT
    for other in (lib.push_features, lib.push_features_double, lib.push_tokens_double):
        assert other(stream.handle, at, 1, result) == librotrnn.ARGUMENT
    assert lib.stream_steps(stream.handle) == 0
    assert not out.any()
    assert lib.push_tokens(stream.handle, None, 0, result) == librotrnn.OK
    assert lib.state_save(stream.handle, result, 3) == librotrnn.ARGUMENT
    for call in (lib.model_free, lib.stream_free, lib.model_facts, lib.model_isa, lib.stream_steps, lib.state_size):
        call(None)
    assert lib.stream_reset(None) == librotrnn.ARGUMENT
    assert lib.sequence_reset(None, 0) == librotrnn.ARGUMENT
    assert [lib.sequence_reset(stream.handle, b) for b in (-1, 1, 2**62)] == [librotrnn.ARGUMENT] * 3
    assert lib.model_open(ctypes.byref(handle), bytes(tmp_path / "none"), ctypes.byref(error)) == librotrnn.NO_FILE
    assert b"none" in error.text
    assert lib.model_open(ctypes.byref(handle), bytes(tmp_path), ctypes.byref(error)) == librotrnn.NO_FILE
    assert [lib.error_text(status) for status in (-1, 8, 10**6)] == [b"an unknown status"] * 3
    assert len({lib.error_text(status) for status in range(8)}) == 8


REFUSED = {
    "lru, both directions": ("lru", {"d_state": 4, "bidirectional": True}),
    "min_gru, both directions": ("min_gru", {"d_state": 4, "bidirectional": True}),
}
"""What Python has and the library does not, besides layers that have no case."""


RUN = {case.layer for case in CASES.values()}


def test_a_model_that_reads_intervals_is_refused(tmp_path: Path) -> None:
    own = sizes_of("linoss") | {"method": "im"}
    model = build_model(ModelSettings("linoss", D, 1), own, n_classes=3, n_features=2)
    model.save(tmp_path / "m", model.init(np.random.default_rng(0)), timed=True)
    error = refusal((tmp_path / "m").read_bytes())
    assert error.status == librotrnn.UNSUPPORTED
    assert "the model reads intervals dt, which the library does not have" in error.text


@pytest.mark.parametrize("name", [*REFUSED, *(layer for layer in LAYERS if layer not in RUN)])
def test_layers_that_are_refused(name: str, tmp_path: Path) -> None:
    layer, own = REFUSED.get(name) or (name, sizes_of(name))
    model = build_model(ModelSettings(layer, D, 1), own, n_classes=3, n_features=2)
    error = refusal(saved(tmp_path, model, model.init(np.random.default_rng(0))))
    assert error.status == librotrnn.UNSUPPORTED
    assert re.search(rf"line \d+ is a |the model has {an(type(model.stack.blocks[0].layer).__name__)}", error.text), (
        error
    )


@pytest.mark.parametrize(
    ("layer", "own", "words"),
    [
        ("lru", {"d_state": 3, "window": 10**9}, "line 1, a System, has window 1000000000, expected at most 268435456"),
        (
            "wrope_memory",
            {"d_state": 3, "length": 10**9},
            "a History, has length 1000000000, expected at most 268435456",
        ),
        ("s4d", {"d_state": 2, "window": 10**7}, f"a Bank, has window 10000000, expected at most {2**26 // D}"),
    ],
)
def test_models_beyond_a_limit_are_refused(layer: str, own: dict[str, Any], words: str, tmp_path: Path) -> None:
    """The file is neither damaged nor larger than memory."""
    model = build_model(ModelSettings(layer, D, 1), own, n_classes=3, n_features=2)
    params = model.init(np.random.default_rng(0))
    error = refusal(saved(tmp_path, model, params))
    assert error.status == librotrnn.UNSUPPORTED
    assert words in error.text
    if layer == "lru":
        with pytest.warns(UserWarning, match=f"^Stream: engine is 'python', since {words}"):
            assert model.stream(params).engine == "python"


def test_a_step_of_a_fixed_point_has_memory_for_itself_alone(tmp_path: Path) -> None:
    """Not for each row of a chunk, which was more than a file of this size may ask for."""
    own = {"d_state": 1536, "solver": "direct", "mixer": "kronecker", "selective": ()}
    model = build_model(ModelSettings("fixed_point", 4, 1), own, n_classes=3, n_features=2)
    Model(saved(tmp_path, model, model.init(np.random.default_rng(0))))


@pytest.mark.parametrize("name", ["attention", "wrope_memory", "history of a min_gru, ages"])
def test_streams_that_keep_all_steps_have_a_capacity(name: str, tmp_path: Path) -> None:
    model, params, x = built(name)
    loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
    assert loaded.facts.needs_capacity
    with pytest.raises(LibraryError) as caught:
        loaded.stream(BATCH, 0)
    assert caught.value.status == librotrnn.ARGUMENT
    stream = loaded.stream(BATCH, 9)
    expected = loaded.stream(BATCH).push(x[:, :9])
    got = [stream.push(x[:, :6])]
    for n in (4, STEPS):
        state = stream.save()
        with pytest.raises(LibraryError) as caught:
            stream.push(x[:, :n])
        assert caught.value.status == librotrnn.FULL
        assert stream.save() == state
    got.append(stream.push(x[:, 6:9]))
    assert np.array_equal(np.concatenate(got, 1), expected)
    with pytest.raises(LibraryError) as caught:
        loaded.stream(BATCH, 10).load(stream.save())
    assert caught.value.status == librotrnn.MISMATCH


@pytest.mark.parametrize("name", ["attention", "wrope_memory", "history of a min_gru, ages"])
def test_a_reset_stream_has_the_bytes_of_a_new_one(name: str, tmp_path: Path) -> None:
    """A reset clears the rows of the steps that were read; whatever came before, the others are zero."""
    model, params, x = built(name)
    loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
    stream, other = loaded.stream(BATCH, 20), loaded.stream(BATCH, 20)
    fresh = stream.save()
    stream.push(x[:, :9], np.arange(BATCH))
    other.push(x[:, :13])
    stream.load(other.save(1), 0)
    with pytest.raises(LibraryError, match="fewer steps"):
        stream.push(x)
    assert stream.lib.sequence_reset(stream.handle, 0) == librotrnn.OK
    assert stream.save(0) == loaded.stream(1, 20).save()
    stream.load(other.save())
    stream.push(x[:, :2])
    assert stream.lib.stream_reset(stream.handle) == librotrnn.OK
    assert stream.save() == fresh


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="as Linux tells how much memory is in use")
def test_a_reset_touches_no_memory_of_steps_that_were_not_read(tmp_path: Path) -> None:
    model, params, x = built("attention")
    stream = Model(saved(tmp_path, model, astype(params, np.float32))).stream(1, 10**6)
    assert stream.lib.state_size(stream.handle) > 2**27

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    stream.push(x[:1, :3])
    before = resident()
    assert stream.lib.stream_reset(stream.handle) == librotrnn.OK
    assert stream.lib.sequence_reset(stream.handle, 0) == librotrnn.OK
    assert resident() - before < 2**24


@each_case
def test_a_nan_stays_in_its_sequence(name: str, tmp_path: Path) -> None:
    model, params, x = built(name)
    if x.ndim == 2:
        pytest.skip("tokens are no NaN")
    loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
    expected, x = loaded.stream(BATCH).push(x), x.copy()
    x[1, 4] = np.nan
    got = loaded.stream(BATCH).push(x)
    assert np.isnan(got[1]).any()
    assert np.array_equal(got[::2], expected[::2])


def test_a_classifier_before_its_first_step(tmp_path: Path) -> None:
    for name in ("tokens, mean", "last"):
        model, params, x = built(name)
        loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
        assert np.array_equal(loaded.stream(BATCH).push(x[:, :0]), np.tile(params["head"]["bias"], (BATCH, 1)))


def test_states_move_between_capacities_that_mean_nothing(tmp_path: Path) -> None:
    """Files of earlier versions have the capacity."""
    _, model = small(tmp_path)
    stream, other = model.stream(BATCH, 10**6), model.stream(BATCH, 0)
    stream.push(np.ones((BATCH, 3), np.int32))
    state = stream.save()
    other.load(state)
    assert other.save() == state
    model.stream(1, 5).load(stream.save(0))
    older = state[40:72] + struct.pack("<3q", BATCH, 10**6, len(state) - 96) + state[96:]
    other.load(state[:8] + hashlib.sha256(older).digest() + older)
    assert other.save() == state


def test_a_state_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the example of docs/c.md, not back; and what Python's `save` wrote is no model. The library may have another
    instruction set than the module: both err by 2^9 roundings of 2^-24 at most, as in the test of float32 above."""
    monkeypatch.chdir(tmp_path)
    page = (librotrnn.ROOT / "docs" / "c.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {}
    exec(example, names)
    stream = Model((tmp_path / "model.safetensors").read_bytes()).stream(names["stream"].batch)
    stream.load((tmp_path / "state").read_bytes())
    for read in (lambda: names["stream"].load("state"), lambda: names["stream"].set_sequence(0, stream.save(0))):
        with pytest.raises(ValueError, match="is not a safetensors file"):
            read()
    x = np.ones((stream.batch, 5, stream.model.facts.inputs), np.float32)
    fresh, got, expected = stream.model.stream(stream.batch).push(x), stream.push(x), names["stream"].push(x)
    bound = 2 * 2.0**-15 * np.abs(expected).max()
    assert np.abs(got - expected).max() <= bound
    assert np.abs(fresh - expected).max() > 8 * bound  # without the state
    names["stream"].save(tmp_path / "stream.safetensors")
    status, text = opened(tmp_path / "stream.safetensors")
    assert status == librotrnn.DAMAGED
    assert text.endswith("not a model: expected a file that a model's save wrote")


@pytest.mark.parametrize("head", HEADS)
def test_the_page_says_which_heads_run(head: str, tmp_path: Path) -> None:
    page = (librotrnn.ROOT / "docs" / "c.md").read_text(encoding="utf-8")
    run, refused = (re.search(rf"\| {row} \|(.*)", page)[1] for row in ("heads", "refused at load"))  # type: ignore[index]
    model = build_model(ModelSettings("lru", 8, 1), LINEAR, head=head, n_classes=3, vocab=3)
    model.save(tmp_path / "m", model.init(np.random.default_rng(0)))
    status, _ = opened(tmp_path / "m")
    runs, is_refused = (bool(re.search(rf"\b{head}\b", text)) for text in (run, refused))
    assert (runs, is_refused) == (status == librotrnn.OK, status == librotrnn.UNSUPPORTED)


@pytest.mark.parametrize(
    "left_out",
    [
        {"LIB_S4": "s4", "LIB_HISTORIES": "wrope_memory"},
        {"LIB_MATRIX_STATES": "mamba2", "LIB_FIXED_POINTS": "bedouin"},
        {"LIB_XLSTM": "mlstm", "LIB_HISTORIES": "selective_rotrnn"},
    ],
    ids=lambda left_out: "-".join(left_out),
)
def test_layers_can_be_left_out(left_out: dict[str, str], tmp_path: Path) -> None:
    folder = f"{librotrnn.FOLDER}-without-{'-'.join(left_out.values())}"
    lib = librotrnn.library(folder, LIB_ISA=SIMD_AVAILABLE[0], **dict.fromkeys(left_out, "0"))
    for name in ("lru", *left_out.values()):
        model, params, x = built(name)
        content = saved(tmp_path, model, params)
        if name == "lru":
            Model(content, lib).stream(BATCH).push(x)
            continue
        (option,) = (option for option, layer in left_out.items() if layer == name)
        with pytest.raises(LibraryError, match=rf"which this build leaves out \({option}=0\)$") as caught:
            Model(content, lib)
        assert caught.value.status == librotrnn.UNSUPPORTED


def test_threads_share_a_model(tmp_path: Path) -> None:
    model, params, x = built("mamba")
    loaded = Model(saved(tmp_path, model, astype(params, np.float32)))
    expected = loaded.stream(BATCH).push(x)
    with ThreadPoolExecutor(4) as pool:
        streams = [loaded.stream(BATCH) for _ in range(16)]
        for got in pool.map(lambda stream: one_by_one(stream, x), streams):
            assert np.array_equal(got, expected)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["base", "avx2"])
def test_other_instruction_sets(isa: str, tmp_path: Path) -> None:
    """Each is in a library of its own; results are those of the fastest set to rounding. The bound is that of the
    comparison with Python."""
    if isa not in SIMD_AVAILABLE or "-fsanitize" in os.environ.get("LIB_CFLAGS", ""):
        pytest.skip("for processors that have it; one build with sanitizers is enough")
    lib = librotrnn.library(f"{librotrnn.FOLDER}-{isa}", LIB_ISA=isa)
    for name in CASES:
        model, params, x = built(name)
        content = saved(tmp_path, model, params)
        loaded = Model(content, lib)
        assert lib.model_isa(loaded.handle).decode() == isa
        stream = loaded.stream(BATCH)
        got, expected = one_by_one(stream, x), one_by_one(Model(content).stream(BATCH), x)
        assert np.abs(got - expected).max() <= 2.0**-32 * np.abs(expected).max(), name
        single = Model(saved(tmp_path, model, astype(params, np.float32)), lib)
        steps = one_by_one(single.stream(BATCH), x)
        chunk = single.stream(BATCH).push(x)
        assert np.array_equal(chunk, steps if chunk.ndim == 3 else steps[:, -1]), name


def test_a_few_hundred_changed_files() -> None:
    models = fuzz(800, 0)
    assert 5 < models < 400


def test_facts(tmp_path: Path) -> None:
    content, model = small(tmp_path, np.float64)
    facts = model.facts
    assert (facts.reads_tokens, facts.is_double, facts.gives_each, facts.needs_capacity) == (1, 1, 0, 0)
    assert (facts.inputs, facts.outputs) == (VOCABULARY, CLASSES)
    assert facts.parameters == sum(value.size for _, value in flatten(built("tokens, mean")[1]))
    assert model.lib.model_isa(model.handle).decode() in ("base", "neon", "avx2", "avx512")
    header = (librotrnn.ROOT / "include" / "rotrnn.h").read_text(encoding="utf-8")
    assert f'"{model.lib.version().decode()}"' in header
    path = tmp_path / "again.safetensors"
    path.write_bytes(content)
    handle, error = ctypes.c_void_p(), librotrnn.Error()
    assert model.lib.model_open(ctypes.byref(handle), bytes(path), ctypes.byref(error)) == librotrnn.OK
    model.lib.model_free(handle)


def compiled(folder: Path, source: Path, *options: str) -> Path:
    """A program with the static library."""
    program, archive = folder / source.stem, librotrnn.make("lib") / "librotrnn.a"
    cc = shlex.split(os.environ.get("CC", "cc"))
    flags = shlex.split(os.environ.get("LIB_CFLAGS", "-O1"))
    include = f"-I{librotrnn.ROOT / 'include'}"
    run([*cc, *flags, include, str(source), str(archive), *options, "-lm", "-o", str(program)])
    return program


def run(command: list[str], **more: Any) -> str:
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"} | more.pop("env", {})
    done = subprocess.run(command, capture_output=True, text=True, env=env, **more)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the linker's --wrap, and seccomp")
@pytest.mark.skipif("-fsanitize" in os.environ.get("LIB_CFLAGS", ""), reason="the sanitizer has its own allocator")
def test_a_push_neither_allocates_nor_calls_the_system(tmp_path: Path) -> None:
    wraps = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "posix_memalign")]
    program = compiled(tmp_path, Path(__file__).with_name("pushes.c"), *wraps)
    for name in CASES:
        model, params, _ = built(name)
        saved(tmp_path, model, astype(params, np.float32))
        assert run([str(program), str(tmp_path / "model.safetensors"), "120"]) == "ok\n", name


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs feenableexcept of glibc")
def test_the_callers_mode_of_arithmetic_changes_no_bit(tmp_path: Path) -> None:
    """Rounding in another direction, and signals for infinities and NaN, which the exponential of -infinity in
    attention would raise."""
    program = compiled(tmp_path, Path(__file__).with_name("modes.c"))
    for name in ("lru", "attention", "s4d, window", "pd_ssm"):
        model, params, _ = built(name)
        saved(tmp_path, model, astype(params, np.float32))
        assert run([str(program), str(tmp_path / "model.safetensors")]) == "", name


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the linker's --wrap")
@pytest.mark.skipif("-fsanitize" in os.environ.get("LIB_CFLAGS", ""), reason="the sanitizer has its own allocator")
def test_whichever_allocation_fails_there_is_no_memory_and_none_is_lost(tmp_path: Path) -> None:
    wraps = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "posix_memalign", "free")]
    program = compiled(tmp_path, Path(__file__).with_name("oom.c"), *wraps)
    paths = []
    for name in CASES:
        model, params, _ = built(name)
        (tmp_path / name).mkdir()
        saved(tmp_path / name, model, astype(params, np.float32))
        paths.append(tmp_path / name / "model.safetensors")
    assert run([str(program), *map(str, paths)]) == ""


def test_the_example_of_the_docs_with_what_is_installed(tmp_path: Path) -> None:
    """By pkg-config, if it is there; the output is that of the Python stream."""
    librotrnn.make("install-lib", PREFIX=str(tmp_path / "usr"))
    lib = tmp_path / "usr" / "lib"
    page = (librotrnn.ROOT / "docs" / "c.md").read_text(encoding="utf-8")
    found = re.search(r"```c\n(.*?)```", page, re.S)
    assert found is not None
    (tmp_path / "example.c").write_text(found[1], encoding="utf-8")
    flags = [f"-I{tmp_path / 'usr' / 'include'}", f"-L{lib}", "-lrotrnn"]
    if shutil.which("pkg-config"):
        env = {"PKG_CONFIG_PATH": str(lib / "pkgconfig")}
        flags = shlex.split(run(["pkg-config", "--cflags", "--libs", "rotrnn"], env=env))
    cc = shlex.split(os.environ.get("CC", "cc"))
    flags += shlex.split(os.environ.get("LIB_CFLAGS", ""))
    warnings = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    run([*cc, *warnings, str(tmp_path / "example.c"), *flags, "-o", str(tmp_path / "example")])
    model, params, x = built("lru")
    saved(tmp_path, model, astype(params, np.float32))
    numbers = "\n".join(f"{value:.9g}" for value in x[0].astype(np.float32).ravel())
    command = [str(tmp_path / "example"), str(tmp_path / "model.safetensors")]
    text = run(command, input=numbers, env={"LD_LIBRARY_PATH": str(lib)})
    got = np.array([[float(word) for word in line.split()] for line in text.splitlines()])
    expected = Model(saved(tmp_path, model, astype(params, np.float32))).stream().push(x[:1])[0]
    assert np.array_equal(got.astype(np.float32), expected)
    model = build_model(ModelSettings("lru", 8, 1), LINEAR, head="tagger", n_classes=3, vocab=3)
    model.save(tmp_path / "tokens", model.init(np.random.default_rng(0)))
    of_tokens = "expected a model that reads features, got one that reads tokens"
    env = {**os.environ, "LD_LIBRARY_PATH": str(lib)}
    for name, message in (("tokens", of_tokens), ("none", "none: ")):
        command[1] = str(tmp_path / name)
        found = subprocess.run(command, input=numbers, capture_output=True, text=True, env=env)
        assert (found.returncode, found.stdout) == (1, "")
        assert message in found.stderr


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cmake"), reason="needs CMake")
@pytest.mark.skipif("-fsanitize" in os.environ.get("LIB_CFLAGS", ""), reason="the programs have no sanitizer")
def test_cmake_finds_the_package(tmp_path: Path) -> None:
    librotrnn.make("install-lib", PREFIX=str(tmp_path / "usr"))
    (tmp_path / "main.c").write_text(
        "#include <rotrnn.h>\nint main(void) { return !rotrnn_version()[0]; }\n", encoding="utf-8"
    )
    major, minor, _ = librotrnn.library().version().decode().split(".")
    other = f"{major}.{int(minor) - 1}" if int(minor) else f"{int(major) - 1}.9"
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(t C)\n"
        f"foreach(other {other} {other}.7 {major}.{minor}.1000 {major}.{int(minor) + 1})\n"
        "  find_package(rotrnn ${other} QUIET)\n"
        '  if(rotrnn_FOUND)\n    message(FATAL_ERROR "found for ${other}")\n  endif()\nendforeach()\n'
        f"find_package(rotrnn REQUIRED)\nfind_package(rotrnn {major}.{minor} REQUIRED)\n"
        "add_executable(one main.c)\ntarget_link_libraries(one rotrnn::rotrnn)\n"
        "add_executable(two main.c)\ntarget_link_libraries(two rotrnn::static)\n",
        encoding="utf-8",
    )
    build = tmp_path / "build"
    run(["cmake", "-S", str(tmp_path), "-B", str(build), f"-DCMAKE_PREFIX_PATH={tmp_path / 'usr'}"])
    run(["cmake", "--build", str(build)])
    for name in ("one", "two"):
        run([str(build / name)])


def test_the_shared_library_shows_only_its_header(tmp_path: Path) -> None:
    nm = shutil.which("nm")
    if nm is None or not sys.platform.startswith("linux"):
        pytest.skip("needs nm of binutils")
    shown = {
        line.split()[-1]
        for line in run([nm, "-D", "--defined-only", str(librotrnn.make("lib") / "librotrnn.so")]).splitlines()
    }
    header = (librotrnn.ROOT / "include" / "rotrnn.h").read_text(encoding="utf-8")
    assert shown == set(re.findall(r"ROTRNN_API [^;]*?\b(rotrnn_\w+)\(", header))


def test_names_of_the_archive_leave_other_names_to_programs(tmp_path: Path) -> None:
    """A name that is missing belongs in csrc/lib/names.h. The program's functions have the library's own names without
    the prefix, and are never called."""
    content, _ = small(tmp_path)
    names = (librotrnn.ROOT / "csrc" / "lib" / "names.h").read_text(encoding="utf-8")
    functions = re.findall(r"#define (\w+)\s+rot_\1\n", names)
    assert {"build", "choose", "failed"} <= {*functions}
    archive = librotrnn.make("lib") / "librotrnn.a"
    if (nm := shutil.which("nm")) and sys.platform.startswith("linux"):
        shown = run([nm, "-g", "--defined-only", str(archive)]).split("\n")
        words = [line.split()[-1] for line in shown if len(line.split()) == 3]
        assert [word for word in words if not re.match(r"rotrnn_|rot_|__", word)] == []  # __: of a sanitizer
    own = "".join(f"int {name}(void);\nint {name}(void) {{ abort(); }}\n" for name in functions)
    (tmp_path / "own.c").write_text(
        f"#include <rotrnn.h>\n#include <stdlib.h>\n{own}int main(int count, char **words) {{\n"
        "    rotrnn_model *model;\n    rotrnn_stream *stream;\n    float y[8];\n"
        "    if (rotrnn_model_open(&model, words[count - 1], NULL)) return 1;\n"
        "    if (rotrnn_stream_new(&stream, model, 1, 0, NULL)) return 2;\n"
        "    if (rotrnn_push_tokens(stream, (int32_t[]){1, 2}, 2, y)) return 3;\n"
        "    rotrnn_stream_free(stream);\n    rotrnn_model_free(model);\n    return 0;\n}\n",
        encoding="utf-8",
    )
    (tmp_path / "m").write_bytes(content)
    run([str(compiled(tmp_path, tmp_path / "own.c")), str(tmp_path / "m")])


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-gcc") and shutil.which("qemu-aarch64")),
    reason="needs gcc for aarch64, and qemu",
)
@pytest.mark.skipif("-fsanitize" in os.environ.get("LIB_CFLAGS", ""), reason="one build with sanitizers is enough")
def test_a_model_that_was_saved_here_on_aarch64(tmp_path: Path) -> None:
    """The same sums in the same order, but for fused multiplications and libm: to some roundings of the largest."""
    cc = "aarch64-linux-gnu-gcc"
    folder = librotrnn.make("lib", folder="build/lib-aarch64", CC=cc)
    page = (librotrnn.ROOT / "docs" / "c.md").read_text(encoding="utf-8")
    found = re.search(r"```c\n(.*?)```", page, re.S)
    assert found is not None
    (tmp_path / "example.c").write_text(found[1], encoding="utf-8")
    program, include = tmp_path / "example", f"-I{librotrnn.ROOT / 'include'}"
    archive = str(folder / "librotrnn.a")
    run([cc, "-static", include, str(tmp_path / "example.c"), archive, "-lm", "-o", str(program)])
    for name in ("lru", "rotrnn, window", "mamba", "attention", "lstm", "fixed_point", "bedouin"):
        model, params, x = built(name)
        content = saved(tmp_path, model, astype(params, np.float32))
        numbers = "\n".join(f"{value:.9g}" for value in x[0].astype(np.float32).ravel())
        text = run(["qemu-aarch64", str(program), str(tmp_path / "model.safetensors")], input=numbers)
        got = np.array([[float(word) for word in line.split()] for line in text.splitlines()])
        expected = Model(content).stream().push(x[:1])[0]
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() <= 2.0**-18 * np.abs(expected).max(), name
