"""Plots the rotational memory: angle against age, an exact window and a fading memory, and rounding errors.

python examples/rotational_memory.py [FILE.png] [STEPS]

The figure is written to FILE.png (default: rotational-memory.png). Errors are measured over STEPS steps (default: a
million).
"""

from __future__ import annotations

import argparse
import itertools

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rotrnn.ops import diagonal_scan, tiir_scan, wrope_angle
from rotrnn.plots.style import BLUE, DPI, GREEN, GREY, ORANGE, STYLE

LENGTH = 100
ANGLES = {
    "uniform": ("RoPE", GREY, "-"),
    "warped": ("WRoPE", BLUE, "-"),
    "blend": ("blend", GREEN, "-"),
    "blend_printed": ("blend as printed", ORANGE, (0, (4, 2))),
}


def draw_angles(axes: Axes) -> None:
    """Plots the angle against the age. RoPE's angle makes one turn per L steps and repeats, so only one turn is
    shown."""
    n = np.arange(5 * LENGTH)
    for form, (label, colour, line) in ANGLES.items():
        turns = wrope_angle(n, LENGTH, form) / np.pi
        turns = np.where(turns < 2, turns, np.nan) if form == "uniform" else turns
        axes.plot(n / LENGTH, turns, color=colour, linestyle=line, label=label)
    axes.set(title="The angle tells the age", xlabel="age / L", ylabel="angle", ylim=(0, 2.08), xlim=(0, 5))
    axes.set_yticks([0, 0.5, 1, 1.5, 2], ["0", "π/2", "π", "3π/2", "2π"])
    axes.legend(loc="lower right")


def draw_memories(axes: Axes) -> None:
    """Plots the remainder of one input in a memory that rotates by 2 pi / L per step: with an exact window, and
    fading."""
    steps = int(2.5 * LENGTH)
    impulse = np.zeros((1, steps, 1), np.complex64)
    impulse[0, 0] = 1
    turn = np.exp(2j * np.pi / LENGTH)
    window = diagonal_scan(np.array([turn], np.complex64), impulse, window=LENGTH)[0, :, 0]
    fading = diagonal_scan(np.array([np.exp(-1 / LENGTH) * turn], np.complex64), impulse)[0, :, 0]
    age = np.arange(steps) / LENGTH
    for h, label, colour in ((fading, "fading, |a| = e$^{-1/L}$", ORANGE), (window, "exact window of L steps", BLUE)):
        axes.plot(age, h.real, color=colour, label=label)
        axes.plot(age, np.abs(h), color=colour, linewidth=0.9, linestyle=(0, (1, 1.5)))
    axes.annotate("modulus (dotted)", (0.62, 1.03), color=GREY, fontsize=8, ha="center")
    axes.set(title="What is left of one input", xlabel="age / L", ylabel="real part", xlim=(0, 2.5), ylim=(-1.1, 1.15))
    axes.legend(loc="lower right")


def errors(steps: int, L: int) -> dict[str, np.ndarray]:
    """Returns the error of several methods to sum the last L inputs, with eigenvalues of modulus one, in single
    precision, compared with double precision."""
    rng = np.random.default_rng(0)
    a = np.exp(1j * rng.uniform(-np.pi, np.pi, 8)).astype(np.complex64)
    x = rng.standard_normal((1, steps, 16), dtype=np.float32).view(np.complex64)
    exact = diagonal_scan(a.astype(np.complex128), x.astype(np.complex128), window=L)
    ways = {
        "one copy, no resets": tiir_scan(a, x, window=L, resets=False)[0],
        "two copies with resets": tiir_scan(a, x, window=L)[0],
        "blocks, no subtraction": diagonal_scan(a, x, window=L),
    }
    return {label: np.sqrt(np.mean(np.abs(h - exact)[0] ** 2, -1)) for label, h in ways.items()}


def draw_errors(axes: Axes, steps: int) -> None:
    """Plots the root mean square error over intervals of increasing length."""
    edges = np.unique(np.geomspace(LENGTH, steps, 25).astype(int))
    for (label, error), colour in zip(errors(steps, LENGTH).items(), (ORANGE, BLUE, GREEN), strict=True):
        mean = [np.sqrt(np.mean(error[low:high] ** 2)) for low, high in itertools.pairwise(edges)]
        axes.loglog(np.sqrt(edges[:-1] * edges[1:]), mean, color=colour, label=label)
    axes.set(title="Rounding errors of the window, float32", xlabel="step", ylabel="error, root mean square")
    axes.legend(loc="upper left")


def draw(steps: int) -> Figure:
    """Draws the three plots side by side."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 3.0))
        angles, memories, rounding = figure.subplots(1, 3)
        draw_angles(angles)
        draw_memories(memories)
        draw_errors(rounding, steps)
        return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", default="rotational-memory.png", metavar="FILE.png")
    parser.add_argument("steps", nargs="?", type=int, default=1_000_000, metavar="STEPS")
    args = parser.parse_args()
    draw(args.steps).savefig(args.path, dpi=DPI)
    print(args.path)


if __name__ == "__main__":
    main()
