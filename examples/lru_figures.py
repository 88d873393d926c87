"""Draws figures 4, 7 and 8 of the LRU paper: the reasons for small initial phases, linear recurrences and eigenvalues
in polar form.

python examples/lru_figures.py [FILE.png] [--small]

The settings are in lru_figures.toml next to this file, which also says which of them the paper does not print. The
figure is written to FILE.png (default: lru-figures.png); --small takes seconds.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rotrnn import RNN
from rotrnn.nn.layer import Array, Params
from rotrnn.ops import diagonal_scan
from rotrnn.plots.style import BLUE, COLOURS, DPI, ORANGE, STYLE
from rotrnn.training.optimiser import AdamW

Settings = dict[str, Any]
Step = Callable[[Params], tuple[float, Params]]


def settings(figure: str, small: bool = False) -> Settings:
    """Returns the section of a figure, with the changes of its small variant if requested."""
    table: Settings = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())[figure]
    return {**table, **(table.pop("small", {}) if small else {})}


def adam(params: Params, loss: Step, rate: float, steps: int) -> list[tuple[float, Params]]:
    """Returns loss and parameters before each of `steps` updates with Adam at a constant learning rate."""
    optimiser = AdamW(lr=rate, weight_decay=0, warmup=0, schedule="constant")
    moments, path = optimiser.init(params), []
    for step in range(steps):
        value, grads = loss(params)
        path.append((value, {name: array.copy() for name, array in params.items()}))
        optimiser.update(params, grads, moments, lambda name: "global", step, steps)
    return path


def impulse_response(of: Settings, max_phase: float) -> Array:
    """Returns the states (length, states) after an impulse at the first step."""
    phase = np.random.default_rng(of["seed"]).uniform(0, max_phase, of["states"])
    u = np.zeros((1, of["length"], of["states"]), np.complex128)
    u[:, 0] = 1
    states: Array = diagonal_scan(np.exp(-of["nu"] + 1j * phase), u)[0]
    return states


def convolution(of: Settings) -> tuple[Array, Array]:
    """Returns inputs and outputs (sequences, length, 1) of a convolution with 1/10 exp(-0.015 k) cos(0.04 k)^2."""
    k = np.arange(of["length"])
    a, b = np.random.default_rng(of["seed"]).uniform(*of["inputs"], (2, of["sequences"], 1))
    u = np.sin(0.05 * a * k) * np.cos(0.05 * b * k) ** 2
    kernel = 0.1 * np.exp(-0.015 * k) * np.cos(0.04 * k) ** 2
    y = np.stack([np.convolve(one, kernel)[: of["length"]] for one in u])
    return u[:, :, None], y[:, :, None]


def learn_convolution(of: Settings, activation: str, rate: float) -> list[float]:
    """Returns the mean squared error at each step. Matrices have Glorot initialisation, and there is no skip
    connection."""
    u, target = convolution(of)
    N = of["states"]
    rnn = RNN(d_model=1, d_state=N, activation=activation)
    rng = np.random.default_rng(of["seed"])
    spread = {"A": 1 / N, "B": 2 / (N + 1), "C": 2 / (N + 1), "D": 0}
    params = {name: np.sqrt(spread[name]) * rng.standard_normal(shape) for name, shape in rnn.shapes.items()}

    def loss(params: Params) -> tuple[float, Params]:
        y, saved = rnn.forward(params, u)
        _, grads, _ = rnn.backward(params, saved, 2 * (y - target) / y.size)
        return float(np.mean((y - target) ** 2)), {**grads, "D": np.zeros(1)}

    return [value for value, _ in adam(params, loss, rate, of["steps"])]


def power_loss(form: str, target: complex, power: int) -> Step:
    """Returns the loss |lambda^power - target|^2 / 2 with lambda = re + i im or exp(-nu + i theta); each parameter is
    one number."""

    def loss(params: Params) -> tuple[float, Params]:
        first, second = (float(value[0]) for value in params.values())
        value = complex(first, second) if form == "real_imag" else np.exp(complex(-first, second))
        error = value**power - target
        dvalue = error * np.conj(power * value ** (power - 1))
        d = (
            dvalue if form == "real_imag" else dvalue * np.conj(value)
        )  # gradient with respect to log(lambda) = -nu + i theta
        grads = (d.real if form == "real_imag" else -d.real), d.imag
        return abs(error) ** 2 / 2, {name: np.array([grad]) for name, grad in zip(params, grads, strict=True)}

    return loss


def learn_power(of: Settings, form: str, phase: float) -> tuple[list[float], list[complex]]:
    """Returns losses and eigenvalues at each step, starting from the solution's modulus and a slightly different
    phase."""
    nu, start = of["nu"], phase + of["start"]
    target = np.exp(of["power"] * complex(-nu, phase))
    places = (np.exp(-nu) * np.cos(start), np.exp(-nu) * np.sin(start)) if form == "real_imag" else (nu, start)
    params = {name: np.array([place]) for name, place in zip(("first", "second"), places, strict=True)}
    path = adam(params, power_loss(form, target, of["power"]), of["rate"], of["steps"])
    pairs = [(float(one["first"][0]), float(one["second"][0])) for _, one in path]
    values = [complex(*pair) if form == "real_imag" else np.exp(complex(-pair[0], pair[1])) for pair in pairs]
    return [value for value, _ in path], values


def draw_impulse(rows: list[Axes], of: Settings) -> None:
    for axes, (label, max_phase) in zip(rows, of["max_phase"].items(), strict=True):
        shown = min(of["length"], round(of["radians"] / max_phase))  # more turns than that are a solid area
        axes.plot(impulse_response(of, max_phase).real[:shown], linewidth=0.9)
        axes.set(title=f"Impulse response, phases up to {label}", xlabel="step", ylabel="state, real part")


def draw_convolution(axes: Axes, of: Settings) -> None:
    for activation, colour in (("identity", BLUE), ("tanh", ORANGE)):
        for rate, line in zip(of["rates"], ("-", "--", ":"), strict=False):
            label = f"{'linear' if activation == 'identity' else activation}, {rate:g}"
            axes.semilogy(learn_convolution(of, activation, rate), color=colour, linestyle=line, label=label)
    axes.set(title="Learning a convolution", xlabel="step", ylabel="mean squared error")
    axes.legend(fontsize=6, loc="upper right")


def draw_powers(axes: Axes, of: Settings) -> None:
    for phase, line in zip(of["phases"], ("-", "--", ":"), strict=False):
        for form, colour in (("real_imag", ORANGE), ("exp", BLUE)):
            losses, _ = learn_power(of, form, phase)
            axes.semilogy(losses, color=colour, linestyle=line, label=f"{form}, phase {phase / np.pi:.3g} π")
    axes.set(title=f"Learning an eigenvalue's power of {of['power']}", xlabel="step", ylabel="loss")
    axes.legend(fontsize=6, loc="lower left")


def draw(small: bool = False) -> Figure:
    """Draws the three figures."""
    with mpl.rc_context({**STYLE, "axes.prop_cycle": mpl.cycler(color=COLOURS)}):
        figure = Figure(figsize=(10.5, 5.2))
        grid = figure.subplots(2, 2)
        draw_impulse(list(grid[0]), settings("figure4"))
        draw_convolution(grid[1, 0], settings("figure7", small))
        draw_powers(grid[1, 1], settings("figure8", small))
        return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", default="lru-figures.png", metavar="FILE.png")
    parser.add_argument("--small", action="store_true", help="fewer steps: seconds instead of minutes")
    args = parser.parse_args()
    draw(args.small).savefig(args.path, dpi=DPI)
    print(args.path)


if __name__ == "__main__":
    main()
