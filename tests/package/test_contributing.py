"""CONTRIBUTING.md to the letter: in a copy of the tree, an op of real and complex lanes in files of its own, and over
it a layer without `d_state`; then the tests that the text names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="an installed wheel has no source tree to add to")

LIST = """
kernel gain_forward lane
  write y[B,T,N]
  read x[B,T,N] a[N] lengths?:int64[B]{0..T}
  int B T N

kernel gain_backward lane
  write dx[B,T,N] da[N]
  read dy[B,T,N] x[B,T,N] a[N] lengths?:int64[B]{0..T}
  int B T N
"""
KERNELS = """/* A gain for each lane, y_t = a x_t; padding is written as zero. */
#include "kernels.h"
#include "lanes.h"

KERNEL(gain_forward) {
    for (int64_t b = 0; b < B; b++) {
        const int64_t steps = steps_of(lengths, b, T), first = b * T * N;
        for (int64_t i = 0; i < steps * N; i++) y[first + i] = lane_mul(a[i % N], x[first + i]);
        zero_padding(y, b, steps, T, N);
    }
    return ROT_OK;
}

/* dx_t = conj(a) dy_t, da = sum conj(x_t) dy_t over b and t; both are overwritten. */
KERNEL(gain_backward) {
    zero_row(da, N);
    for (int64_t b = 0; b < B; b++) {
        const int64_t steps = steps_of(lengths, b, T), first = b * T * N;
        zero_rows(dx + first, T, N, N);
        for (int64_t i = 0; i < steps * N; i++) {
            dx[first + i] = lane_fma_conj(a[i % N], dy[first + i], dx[first + i]);
            da[i % N] = lane_fma_conj(x[first + i], dy[first + i], da[i % N]);
        }
    }
    return ROT_OK;
}
"""
CUDA = """/* A gain for each lane, on a GPU (csrc/kernels/gain.c). */
#include "device.h"

KERNEL(gain_forward) {
    each(B * T * N, [=] __device__(int64_t i) {
        const bool valid = i / N % T < steps_of(lengths, i / (T * N), T);
        y[i] = valid ? lane_mul(read_lane(a + i % N), read_lane(x + i)) : no_lane();
    });
    return runtime_status();
}

KERNEL(gain_backward) {
    each(B * T * N, [=] __device__(int64_t i) {
        const bool valid = i / N % T < steps_of(lengths, i / (T * N), T);
        dx[i] = valid ? lane_fma_conj(read_lane(a + i % N), read_lane(dy + i), no_lane()) : no_lane();
    });
    each(N, [=] __device__(int64_t n) {
        lane sum = no_lane();
        for (int64_t b = 0; b < B; b++)
            for (int64_t i = b * T * N + n, end = i + steps_of(lengths, b, T) * N; i < end; i += N)
                sum = lane_fma_conj(read_lane(x + i), read_lane(dy + i), sum);
        da[n] = sum;
    });
    return runtime_status();
}
"""
OP = '''"""A gain for each lane."""

from __future__ import annotations

from typing import NamedTuple

import numpy.typing as npt

from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import Declared

__all__ = ["GainGrads", "gain", "gain_backward"]

GAIN = Declared("gain_forward", "gain_backward")


class GainGrads(NamedTuple):
    """Gradients of `gain`."""

    dx: Array
    da: Array


def gain(x: npt.ArrayLike, a: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """Returns ``y_t = a x_t`` (B, T, N) for x (B, T, N) and a (N,), real or complex; zero beyond the lengths."""
    args = Boundary("gain")
    args.take(GAIN, x=x, a=a, lengths=lengths)
    y: Array = args.run("gain_forward")["y"]
    return y


def gain_backward(
    dy: npt.ArrayLike, x: npt.ArrayLike, a: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None
) -> GainGrads:
    """Returns the gradients of `gain` for dy (B, T, N), that of a summed over B and T."""
    args = Boundary("gain_backward")
    args.take(GAIN, dy=dy, x=x, a=a, lengths=lengths)
    return GainGrads(**args.run("gain_backward"))
'''
LAYER = '''"""A leaky integrator of each channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.nn.layer import EVALUATION, Array, Context, Params, Recurrent, State, StateArray, StateForm
from rotrnn.ops.gain import gain, gain_backward
from rotrnn.ops.pointwise import mask_padding, sigmoid, sigmoid_backward
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward


class LeakySaved(NamedTuple):
    """Saved for backward: transition (D,), states (B, T, D), state before and after x, lengths."""

    a: Array
    h: Array
    start: Array | None
    state: Array
    lengths: Any


@dataclass(frozen=True)
class Leaky(Recurrent):
    """``h_t = s(p) h_{t-1} + x_t``, ``y_t = c h_t``, with a rate and a gain for each channel.

    Parameters (dict of float32): p, c (D,). Its state is h (B, D). Initial values: p ~ N(0, 1), c ones.
    """

    about: ClassVar[str] = "a leaky integrator of each channel"
    paper: ClassVar[str] = "none: the example of CONTRIBUTING.md"
    recurrent: ClassVar[frozenset[str]] = frozenset({"p"})
    lanes: ClassVar[str] = "d_model"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"p": (self.d_model,), "c": (self.d_model,)}

    @property
    def state_form(self) -> StateForm:
        return StateArray("h", (self.d_model,))

    def init(self, rng: np.random.Generator) -> Params:
        return {"p": rng.standard_normal(self.d_model, np.float32), "c": np.ones(self.d_model, np.float32)}

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, LeakySaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` (B, D) continues an earlier call."""
        a = sigmoid(params["p"])
        x = mask_padding(x, ctx.lengths)
        h, after = diagonal_scan(a, x, state, lengths=ctx.lengths, return_state=True)
        return gain(h, params["c"], lengths=ctx.lengths), LeakySaved(a, h, state, after, ctx.lengths)

    def backward(
        self, params: Params, saved: LeakySaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, gradient of forward's `state`)."""
        a, h, start, _, lengths = saved
        read = gain_backward(dy, h, params["c"], lengths=lengths)
        scan = diagonal_scan_backward(read.dx, a, h, start, dhT=dstate, lengths=lengths)
        return scan.dx, {"p": sigmoid_backward(scan.da, a), "c": read.da}, scan.dh0

    def step(self, params: Params, state: State, x_t: Array, prepared: None = None) -> tuple[Array, State]:
        y, saved = self.forward(params, x_t[:, None], state=state)
        return y[:, 0], saved.state
'''
ROWS = '''"""Rows of the gain, and of the layer that has one."""

from __future__ import annotations

import math
from typing import Any

from cases.layer_row import LayerRow
from cases.table import Arrays, Case, normal, scan_loop
from rotrnn.nn.layers.leaky import Leaky
from rotrnn.ops.gain import gain, gain_backward


def gain_loop(x: Any, a: Any, lengths: Any) -> Any:
    y = 0 * x
    for b in range(len(x)):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            y[b, t] = a * x[b, t]
    return y


def gain_case(B: int, T: int, N: int, complex_lanes: bool, lengths: Any = None) -> Case:
    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        return dict(zip(("x", "a"), gain_backward(doutputs[0], **args, lengths=lengths), strict=True))

    return Case(
        f"gain {'complex' if complex_lanes else 'real'}{' ragged' * (lengths is not None)} {B}x{T}x{N}",
        lambda rng: {"x": normal(rng, (B, T, N), complex_lanes), "a": normal(rng, (N,), complex_lanes)},
        lambda args: (gain(**args, lengths=lengths),),
        backward,
        lambda args: (gain_loop(**args, lengths=lengths),),
        terms=B * T + 4,  # the gradient of a sums over b and t
        linear=(("x",), ("a",)),
        ragged={} if lengths is None else {"x": lengths, "out0": lengths},
        lengths=lengths,
    )


OPS = [
    gain_case(B, T, N, complex_lanes, lengths)
    for complex_lanes in (False, True)
    for B, T, N, lengths in ((2, 7, 5, None), (3, 7, 5, (7, 0, 2)), (1, 0, 3, None), (2, 1, 33, None))
]


def leaky_reference(layer: Leaky, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    h, hT = scan_loop(1 / (1 + math.e ** -params["p"]), x, state, lengths=lengths)
    return h * params["c"], hT


LAYERS = [
    LayerRow("", Leaky(4), B, T, lengths, leaky_reference, terms=8 * (T + 6), linear=(("x", "state"), ("c",)))
    for B, T, lengths in ((2, 8, None), (3, 7, (7, 0, 4)), (1, 0, None))
]
'''
RECIPE = """# A leaky integrator on sequential digits.

base = "digits-lru"

[model]
layer = "leaky"

[layer]
"""
PAGE = """# Leaky

A leaky integrator of each channel.

$$h_t = \\sigma(p) \\odot h_{t-1} + x_t, \\qquad y_t = c \\odot h_t$$
"""

NEW = {
    "csrc/kernels/NAME.c": ("gain", KERNELS),
    "cuda/NAME.cu": ("gain", CUDA),
    "python/rotrnn/ops/NAME.py": ("gain", OP),
    "tests/cases/NAME.py": ("gain", ROWS),
    "python/rotrnn/nn/layers/NAME.py": ("leaky", LAYER),
    "python/rotrnn/recipes/digits-NAME.toml": ("leaky", RECIPE),
    "docs/layers/NAME.md": ("leaky", PAGE),
}
"""Files that are added, as the text calls them."""
CHANGED = [
    ("csrc/kernels.list", "", LIST),
    (
        "python/rotrnn/ops/__init__.py",
        "from typing import TYPE_CHECKING\n\n",
        "from rotrnn.ops.gain import *  # noqa: F403\n",
    ),
    ("tests/cases/__init__.py", "from cases import (\n", "    gain,\n"),
    ("tests/cases/__init__.py", "ANYWHERE: list[LayerRow] = [\n", "    *gain.LAYERS,\n"),
    ("tests/cases/__init__.py", "ON_DEVICES: list[Case] = [\n", "    *gain.OPS,\n"),
    ("python/rotrnn/nn/registry.py", "\n\n", "from rotrnn.nn.layers.leaky import Leaky as Leaky\n"),
    ("python/rotrnn/nn/registry.py", '"baselines": {\n', '        "leaky": Leaky,\n'),
    ("docs/layers.md", "| **baselines** | |\n", "| [`leaky`](layers/leaky.md) | a leaky integrator |\n"),
    ("README.md", "| `rnn`, ", "`leaky`, "),
    ("docs/README.md", "errors in the paper's print: ", "[Leaky](layers/leaky.md), "),
    ("tests/package/test_public_names.py", 'NN = """\n', "Leaky\n"),
]
"""What is put into files: behind a text, or at the end."""
NAMED = [
    *("ops/test_cases.py", "nn", "models/test_model_files.py", "training/test_recipe.py", "training/test_carry.py"),
    *("training/test_causal.py", "training/test_estimators.py", "lib/test_lib.py", "package"),
]
"""Tests that take the name of an op or a layer."""
LISTS = ["test_kernel_list.py", "test_checks.py", "test_public_names.py", "test_readme.py", "test_site.py"]


def test_the_text_names_every_file() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = [*NEW, *(path for path, *_ in CHANGED)]
    assert not [path for path in paths if path.replace("tests/cases/NAME.py", "`tests/cases/`") not in text]


@pytest.mark.whole
def test_an_op_and_a_layer_are_added(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(
        ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "*.so", "__pycache__")
    )
    for path, (name, text) in NEW.items():
        file = tree / path.replace("NAME", name)
        assert not file.exists()
        file.write_text(text, encoding="utf-8")
    for path, behind, text in CHANGED:
        before, found, after = (tree / path).read_text(encoding="utf-8").partition(behind) if behind else ("", "", "")
        assert found == behind
        (tree / path).write_text(
            (before + found + text + after) if behind else (tree / path).read_text(encoding="utf-8") + text,
            encoding="utf-8",
        )

    compiler = tmp_path / "cc"  # without optimisation, which would take minutes
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "gcc")} "$@" -O0\n', encoding="utf-8")
    compiler.chmod(0o755)
    environment = {**os.environ, "CC": str(compiler), "LDSHARED": f"{compiler} -shared", "ROTRNN_ISA": "base"}
    environment |= {"ROTRNN_CUDA": "", "PYTHONPATH": str(tree / "python")}
    for command in (
        ["setup.py", "-q", "build_ext", "--inplace", f"--build-temp={tmp_path / 'temp'}"],
        ["-m", "pytest", "-q", "-m", "not whole", *(f"tests/package/{name}" for name in LISTS)],
        ["-m", "pytest", "-q", "-m", "not whole", "-k", "gain or leaky", *(f"tests/{name}" for name in NAMED)],
    ):
        run = subprocess.run([sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, f"{command}: {run.stdout[-3000:]}{run.stderr[-3000:]}"
