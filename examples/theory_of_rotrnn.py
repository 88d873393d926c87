"""RotRNN's normalisations: eqs. 6 to 11 for expected norms c other than 1, as printed and as they must be; and inputs
that are not white. `python examples/theory.py` draws them (docs/theory.md).

tests/package/test_theory.py proves the same statements with the functions of this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import rotrnn
from rotrnn import Context, RotRNN
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
    """Returns the ratios of the printed constants to ours: the factors of the transition and of the input matrix. NaN
    where eq. 11 is the root of a negative number, for ``c gamma^2 > 1``."""
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
    W^T``, from E|x_1|^2 = `start`, c by default."""
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


# ---- inputs that are not white ----

HERE = Path(__file__).parent
CHANNELS, SEQUENCES, STEPS = 8, 16, 1500
Input = Callable[[np.random.Generator], Array]


def filtered(*poles: float) -> Input:
    """White noise through ``1 / (1 - p_1 z^-1 - p_2 z^-2 ...)``, of variance 1 over all steps."""

    def draw(rng: np.random.Generator) -> Array:
        x = rng.standard_normal((SEQUENCES, STEPS + 200, CHANNELS))
        for t in range(len(poles), x.shape[1]):
            x[:, t] += sum(p * x[:, t - 1 - i] for i, p in enumerate(poles))
        x = x[:, 200:]
        return x / np.sqrt(np.mean(x**2))

    return draw


def constant(rng: np.random.Generator) -> Array:
    return np.repeat(rng.standard_normal((SEQUENCES, 1, CHANNELS)), STEPS, 1)


def sinusoids(rng: np.random.Generator) -> Array:
    """One frequency for each channel, up to 0.3, with a phase for each sequence."""
    phases = rng.uniform(0, 2 * np.pi, (SEQUENCES, 1, CHANNELS))
    return np.sqrt(2) * np.cos(rng.uniform(0, 0.3, CHANNELS) * np.arange(STEPS)[:, None] + phases)


def speech(rng: np.random.Generator) -> Array:
    """A resonance of noise, such as a formant, with a loudness that varies like syllables."""
    x = filtered(2 * 0.97 * math.cos(0.2), -(0.97**2))(rng)
    loudness = 1 + np.sin(0.02 * np.arange(STEPS)[:, None] + rng.uniform(0, 2 * np.pi, (SEQUENCES, 1, 1)))
    return x * loudness


def embedded(rng: np.random.Generator) -> Array:
    """Text through the embedding of the trained model examples/c/complete.safetensors: the first channels."""
    _, params = rotrnn.load(HERE / "c" / "complete.safetensors")
    text = np.frombuffer((HERE.parent / "docs" / "guarantees.md").read_bytes(), np.uint8)
    text = text[text < 128]
    first = rng.integers(len(text) - 512, size=SEQUENCES)
    x = params["encoder"]["table"][text[first[:, None] + np.arange(512)], :CHANNELS]
    return x.astype(np.float64)


INPUTS: dict[str, Input] = {
    **{"white": filtered(), "AR(1) 0.9": filtered(0.9), "AR(1) -0.9": filtered(-0.9), "AR(1) 0.99": filtered(0.99)},
    **{"constant": constant, "sinusoids": sinusoids, "speech-like": speech, "embedded text": embedded},
}


def coloured(normalise: str) -> tuple[RotRNN, Params]:
    """Returns a layer of four heads of small angles and slow decay, in float64."""
    layer = RotRNN(CHANNELS, 32, heads=4, gamma_init=(0.95, 0.99), theta_max=0.3, normalise=normalise)
    return layer, astype(layer.init(np.random.default_rng(2)), np.float64)


def squared_norms(layer: RotRNN, params: Params, x: Array) -> Array:
    """Returns |x_t|^2 (B, T, heads) of each head's state."""
    _, saved = layer.forward(params, x, Context(fused=False))
    h = layer.hidden_states(saved)
    assert h is not None
    return np.asarray(np.abs(h.reshape(*h.shape[:2], layer.heads, -1)) ** 2).sum(-1)


def mean_norms(normalise: str, name: str) -> Array:
    """Returns the mean |x_t|^2 of each head for new inputs of a kind, after 1 / (1 - gamma) steps. "spectrum" was
    measured from other inputs of the kind."""
    layer, params = coloured(normalise)
    rng = np.random.default_rng(3)
    layer.forward(params, INPUTS[name](rng), Context(train=True))
    return np.asarray(squared_norms(layer, params, INPUTS[name](rng))[:, 100:].mean((0, 1)))


@styled
def draw_coloured() -> Figure:
    """Draws the mean |x_t|^2 of four heads for each kind of input and normalisation; the promise is 1."""
    figure, ((axes,),) = new_figure(11.2, 3.4, 1, 1)
    for shift, normalise, colour in ((-0.25, "input", BLUE), (0, "spectrum", ORANGE), (0.25, "bounded", GREEN)):
        for i, name in enumerate(INPUTS):
            heads = mean_norms(normalise, name)
            places = np.full(len(heads), i + shift)
            axes.plot(places, heads, "o", color=colour, label=f'"{normalise}"' if i == 0 else None)
    axes.axhline(1, color="0.6", linewidth=0.8)
    axes.set(yscale="log", ylabel="mean |x$_t$|², each head", xticks=range(len(INPUTS)), xticklabels=list(INPUTS))
    axes.legend()
    return figure


PICTURES = {"rotrnn-norms": draw_norms, "rotrnn-coloured": draw_coloured}
