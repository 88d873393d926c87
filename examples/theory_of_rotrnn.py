"""RotRNN's normalisations (eqs. 6 to 11) for expected norms c other than 1, as printed and as they must be; `python
examples/theory.py` draws them (docs/theory.md).

tests/package/test_theory.py proves the same statements with the functions of this file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rotrnn import RotRNN
from rotrnn.nn.layer import Array, Params, astype
from rotrnn.plots.style import BLUE, GREEN, ORANGE, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def layer_of(normalise: str, c: float, gamma: float, width: int = 6) -> tuple[RotRNN, Params]:
    """Returns a layer of one head with that decay, in float64."""
    layer = RotRNN(5, width, normalise=normalise, c=c)
    params = astype(layer.init(np.random.default_rng(0)), np.float64)
    return layer, params | {"gamma_log": np.log(-np.log([gamma]))}


def trace_of(params: Params) -> float:
    return float(np.sum(params["B"] ** 2))


def as_printed(normalise: str, c: float, gamma: float) -> tuple[float, float]:
    """Returns what the printed constants are of ours: the factors of the transition and of the input matrix. NaN where
    eq. 11 is the root of a negative number, for ``c gamma^2 > 1``."""
    if normalise == "alpha":
        # printed: alpha^2 = 1 / (c gamma^2 + tr B^T B); ours has the numerator c
        return 1 / math.sqrt(c), 1 / math.sqrt(c)
    # printed: xi^2 = (1 - c gamma^2) / tr B^T B; ours: c (1 - gamma^2) / tr B^T B
    square = (1 - c * gamma**2) / (c * (1 - gamma**2))
    return 1.0, math.sqrt(square) if square >= 0 else math.nan


def expected_norms(
    normalise: str, c: float, gamma: float, printed: bool, steps: int, start: float | None = None
) -> Array:
    """Returns E|x_t|^2 (steps,) for white input by the exact recursion of the covariance, ``S_t = A S_{t-1} A^T + W
    W^T``, from any E|x_1|^2: that of `start`, c by default."""
    layer, params = layer_of(normalise, c, gamma)
    system = layer.fold(params).weights
    of_A, of_W = as_printed(normalise, c, gamma) if printed else (1.0, 1.0)
    A, W, width = np.zeros((layer.d_state, layer.d_state)), of_W * system.w_in, layer.d_state
    for i, a in enumerate(of_A * system.a):
        A[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[a.real, -a.imag], [a.imag, a.real]]
    S = (c if start is None else start) / width * np.eye(width)
    norms = []
    for _ in range(steps):
        norms.append(np.trace(S))
        S = A @ S @ A.T + W @ W.T
    return np.array(norms)


def printed_limit(normalise: str, c: float, gamma: float) -> float:
    """Returns where E|x_t|^2 goes with the printed constants."""
    if normalise == "alpha":
        trace = trace_of(layer_of(normalise, c, gamma)[1])
        return trace / (trace + (c - 1) * gamma**2)
    return (1 - c * gamma**2) / (1 - gamma**2)


@styled
def draw_norms(gamma: float = 0.9, steps: int = 40) -> Figure:
    """Draws expected norms for c = 0.5, 1 and 1.2: corrected constants, and printed ones (dashed)."""
    figure, (row,) = new_figure(11.2, 3.2, 1, 3)
    t = np.arange(1, steps + 1)
    for axes, normalise, title in zip(row, ("alpha", "input"), ("Eq. 6 and lemma 3", "Eqs. 11 and 12"), strict=False):
        for c, colour in ((0.5, GREEN), (1.0, BLUE), (1.2, ORANGE)):
            axes.plot(t, expected_norms(normalise, c, gamma, False, steps), color=colour, label=f"c = {c:g}")
            axes.plot(t, expected_norms(normalise, c, gamma, True, steps), color=colour, linestyle="--")
        axes.set(title=f"{title}; dashed: as printed", xlabel="t", ylabel="E|x$_t$|²", ylim=(0, None))
        axes.legend(fontsize=7)
    for decay, colour in ((0.5, GREEN), (0.9, BLUE), (0.97, ORANGE)):
        reached = expected_norms("input", 1.0, decay, False, steps, 0.0)
        row[2].plot(t, reached, color=colour, label=rf"$\gamma$ = {decay:g}")
    row[2].set(title="From a zero state, c = 1", xlabel="t", ylabel="E|x$_t$|²", ylim=(0, None))
    row[2].legend(fontsize=7)
    return figure


PICTURES = {"rotrnn-norms": draw_norms}
