"""The claims of the LRU paper in figures 2, 3, 6, 8 and 9 and appendix E, as numbers and pictures; `python
examples/theory.py` draws them (docs/theory.md).

tests/package/test_theory.py proves the same statements with the functions of this file. Figures 4 and 7, and the losses
of figure 8, are in lru_figures.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lru_figures import Settings, adam, learn_power, power_loss, settings
from rotrnn import LRU, RNN, Converted, to_lru
from rotrnn.nn.layer import Array, astype
from rotrnn.ops import diagonal_scan
from rotrnn.plots.style import BLUE, GREEN, GREY, ORANGE, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CIRCLE = np.exp(1j * np.linspace(0, 2 * np.pi, 361))

# --------------------------------------------------------------------- figures 2 and 3: where eigenvalues are at first


@styled
def draw_spectra() -> Figure:
    """Draws eigenvalues of Glorot matrices (figure 2), and of diagonal ones by lemma 3.2 (figure 3)."""
    figure, grid = new_figure(8.4, 5.6, 2, 3)
    rng = np.random.default_rng(0)
    for axes, N in zip(grid[0], (32, 128, 512), strict=True):
        rnn = RNN(1, N)
        dots(axes, rnn.eigenvalues(rnn.init(rng)), f"Glorot, N = {N}")
    for axes, (low, high) in zip(grid[1], ((0.0, 1.0), (0.5, 1.0), (0.9, 0.999)), strict=True):
        lru = LRU(1, 512, r_min=low, r_max=high)
        dots(axes, lru.eigenvalues(lru.init(rng)), f"Ring from {low:g} to {high:g}")
    return figure


def dots(axes: Axes, values: Array, title: str) -> None:
    axes.plot(CIRCLE.real, CIRCLE.imag, color="black", linewidth=0.8)
    axes.plot(values.real, values.imag, ".", markersize=3, color=BLUE)
    axes.set(title=title, aspect="equal", xlim=(-1.25, 1.25), ylim=(-1.25, 1.25))


# --------------------------------------------------------- figure 6 and proposition E.1: what a ReLU does to a spectrum

CARRIER = 3.0
"""The signal is ``u(t) = exp(-t^2 / 2) cos(3 t)``, which is below 1e-25 beyond |t| = 11."""


def signal(t: Array) -> Array:
    return np.exp(-(t**2) / 2) * np.cos(CARRIER * t)


def spectrum(omega: Array) -> Array:
    """Returns ``F u (omega)``, the integral of ``u(t) e^{-i omega t}``."""
    bumps = sum(np.exp(-((omega - sign * CARRIER) ** 2) / 2) for sign in (1, -1))
    return np.sqrt(np.pi / 2) * np.asarray(bumps)


def regions() -> tuple[Array, float]:
    """Returns the middles p_i and the half width L of the regions where u > 0, up to |t| = 11."""
    return 2 * np.pi / CARRIER * np.arange(-5, 6), np.pi / (2 * CARRIER)


def rectified_spectrum(omega: Array) -> Array:
    """Returns ``F ReLU(u)`` by Gauss-Legendre quadrature of 24 nodes over each region where u > 0."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    middles, half = regions()
    t = (middles[:, None] + half * nodes).ravel()
    values = np.tile(half * weights, len(middles)) * signal(t)
    found: Array = np.exp(-1j * np.multiply.outer(omega, t)) @ values
    return found


def kernel(omega: Array) -> Array:
    """Returns the transform of the regions' indicator, ``sum_i 2 L e^{-i omega p_i} sin(omega L) / (omega L)``."""
    middles, half = regions()
    shifts = np.exp(-1j * np.multiply.outer(omega, middles)).sum(-1)
    transform: Array = 2 * half * shifts * np.sinc(omega * half / np.pi)
    return transform


def convolved_spectrum(omega: Array) -> Array:
    """Returns ``(F u * kernel)(omega)``, the right side of the proposition as printed, by the trapezoidal rule.

    With steps of 1/4 its error comes from repeating u with a period of 8 pi, beyond all digits.
    """
    nu = np.arange(-14, 14.125, 0.25)
    found: Array = kernel(np.subtract.outer(omega, nu)) @ (0.25 * spectrum(nu))
    return found


def stationary_wave(cycles: int, length: int) -> Array:
    """Returns the last of three periods (length,) of an LRU's output for a cosine of so many cycles in a period."""
    layer = LRU(1, 16, r_min=0.3, r_max=0.9)
    params = astype(layer.init(np.random.default_rng(0)), np.float64)
    x = np.cos(2 * np.pi * cycles * np.arange(3 * length) / length)[None, :, None]
    y: Array = layer.forward(params, x)[0][0, -length:, 0]
    return y


@styled
def draw_relu() -> Figure:
    """Draws the spectrum of a signal before and after the ReLU, and of the output of a linear RNN and then a ReLU."""
    figure, ((time, continuous, discrete),) = new_figure(11.2, 3.0, 1, 3)
    t, omega = np.linspace(-4, 4, 800), np.linspace(-20, 20, 801)
    time.plot(t, signal(t), color=GREY, label="u")
    time.plot(t, np.maximum(signal(t), 0), color=BLUE, label="ReLU(u)")
    time.set(title="Signal", xlabel="t")
    continuous.plot(omega, np.abs(spectrum(omega)), color=GREY, label="F u")
    continuous.plot(omega, np.abs(rectified_spectrum(omega)), color=BLUE, label="F ReLU(u)")
    by_kernel = np.abs(convolved_spectrum(omega[::16]))
    continuous.plot(omega[::16], by_kernel / (2 * np.pi), "o", color=ORANGE, markersize=3, label="Prop. E.1 / 2π")
    continuous.set(title="Spectrum", xlabel="ω")
    wave = stationary_wave(8, 256)
    for y, colour, label in ((np.maximum(wave, 0), BLUE, "after a ReLU"), (wave, GREY, "LRU of a cosine")):
        power = np.abs(np.fft.rfft(y))[:80]
        discrete.semilogy(np.arange(80), np.maximum(power, 1e-16), ".", color=colour, markersize=4, label=label)
    discrete.set(title="Cycles in 256 steps", xlabel="cycles", ylabel="|DFT|")
    for axes in (time, continuous, discrete):
        axes.legend(fontsize=7)
    return figure


# ---------------------------------------------------------------- appendix E.1.2: a nonlinear system as a linear RNN

A_SLOW, A_FAST, PUSH = 0.95, 0.7, 0.5
"""The nonlinear system x1' = 0.95 x1, x2' = 0.7 x2 + 0.5 x1^2."""


def nonlinear_states(x0: Array, T: int) -> Array:
    """Returns the states (T, 2) of the nonlinear system from x0 on."""
    states = [np.asarray(x0, np.float64)]
    for _ in range(T - 1):
        x1, x2 = states[-1]
        states.append(np.array([A_SLOW * x1, A_FAST * x2 + PUSH * x1**2]))
    return np.stack(states)


def lift(x0: Array) -> Array:
    """Returns the observables (x1, x2, x1^2), which the Koopman operator maps among themselves."""
    return np.array([x0[0], x0[1], x0[0] ** 2])


def lifted_lru() -> Converted:
    """Returns an LRU that, given lift(x0) once, outputs the three observables of the nonlinear system for ever."""
    rnn, identity = RNN(3, 3), np.eye(3)
    A = np.array([[A_SLOW, 0, 0], [0, A_FAST, PUSH], [0, 0, A_SLOW**2]])
    return to_lru(rnn, {"A": A, "B": identity, "C": identity, "D": np.zeros(3)})


def linear_states(x0: Array, T: int) -> Array:
    """Returns the states (T, 2) of that system by the LRU."""
    lru, params, _ = lifted_lru()
    x = np.zeros((1, T, 3))
    x[0, 0] = lift(x0)
    y: Array = lru.forward(params, x)[0][0, :, :2]
    return y


def logistic_states(steps: int, nodes: int = 1024) -> tuple[Array, Array]:
    """Returns angles a (nodes,) and the states (steps + 1, nodes) of the logistic map ``x' = 4 x (1 - x)`` from ``x_0 =
    sin^2(a / 2)``.

    Under the map's invariant density, a is uniform. So a mean over these nodes is one over the density, exact for
    polynomials of x_0 up to a degree of 2 * nodes - 1; and ``x_k = (1 - cos(2^k a)) / 2``.
    """
    a = np.pi * (np.arange(nodes) + 0.5) / nodes
    states = [np.sin(a / 2) ** 2]
    for _ in range(steps):
        states.append(4 * states[-1] * (1 - states[-1]))
    return a, np.stack(states)


def explained_by_polynomials(degree: int, steps: int) -> float:
    """Returns R^2 of the best polynomial of x_0 of so high a degree as a forecast of the logistic map so many steps
    ahead.

    Polynomials of x_0 are polynomials of cos a: the forecast is exact if ``2^steps <= degree``, and else no better than
    the mean.
    """
    a, states = logistic_states(steps)
    x, features = states[-1], np.cos(np.multiply.outer(a, np.arange(degree + 1)))
    left = x - features @ np.linalg.lstsq(features, x, rcond=None)[0]
    return 1 - float(left @ left / ((x - x.mean()) @ (x - x.mean())))


@styled
def draw_koopman() -> Figure:
    """Draws a nonlinear system that an LRU of three states is, and one that no linear RNN is."""
    figure, ((exact, never),) = new_figure(8.4, 3.2, 1, 2)
    for x0, colour in (((1.0, -0.5), BLUE), ((-1.2, 0.8), ORANGE), ((0.6, 1.0), GREEN)):
        start = np.array(x0)
        exact.plot(*nonlinear_states(start, 60).T, color=colour, linewidth=1)
        exact.plot(*linear_states(start, 60).T, ".", color=colour, markersize=4)
    exact.set(title="Line: nonlinear system; dots: LRU", xlabel="x$_1$", ylabel="x$_2$")
    steps = np.arange(9)
    for degree, colour in ((4, GREEN), (16, BLUE), (64, ORANGE)):
        values = [explained_by_polynomials(degree, int(k)) for k in steps]
        never.plot(steps, values, "o-", markersize=3, color=colour, label=f"degree {degree}")
    never.set(title="Logistic map: x$_k$ by polynomials of x$_0$", xlabel="k", ylabel="R²")
    never.legend(fontsize=7, loc="lower left")
    return figure


# ----------------------------------------------------------------------------------- figure 8: learning lambda^100


def adam_path(form: str, start: tuple[float, float], target: complex, power: int, rate: float, steps: int) -> Array:
    """Returns the pairs of parameters (steps, 2) of Adam on ``|lambda^power - target|^2 / 2``; `form` and its pair are
    "real_imag", (re, im), or "exp", (nu, theta)."""
    params = {name: np.array([value]) for name, value in zip(("first", "second"), start, strict=True)}
    path = adam(params, power_loss(form, target, power), rate, steps)
    return np.array([[one["first"][0], one["second"][0]] for _, one in path])


def steps_to(losses: list[float], share: float) -> float:
    """Returns after how many steps the loss stays below a share of its first value; infinity if it does not."""
    above = np.flatnonzero(np.array(losses) >= share * losses[0])
    return float("inf") if above[-1] == len(losses) - 1 else float(above[-1] + 1)


def landscape(axes: Axes, of: Settings, form: str, phase: float) -> None:
    """Draws the loss around a solution (star) in one pair of parameters, and Adam's path from the square to the
    diamond."""
    power, near = of["power"], np.linspace(-0.1, 0.1, 240)
    solution, (losses, path) = complex(-of["nu"], phase), learn_power(of, form, phase)
    if form == "real_imag":
        middle, places = np.exp(solution), np.array(path)
        value = middle + near + 1j * near[:, None]
    else:
        middle, places = solution, np.unwrap(np.angle(path)) * 1j + np.log(np.abs(path))
        value = np.exp(middle + near + 1j * near[:, None])
    loss = np.abs(value**power - np.exp(solution * power)) ** 2 / 2
    axes.contourf(middle.real + near, middle.imag + near, np.log10(np.minimum(loss, 2)), 20, cmap="Greys")
    axes.plot(places.real, places.imag, color=ORANGE if form == "real_imag" else BLUE, linewidth=1.6)
    for place, marker in ((places[0], "s"), (middle, "*"), (places[-1], "D")):
        axes.plot(place.real, place.imag, marker, color=GREEN, markersize=9 if marker == "*" else 5, clip_on=False)
    names = ("Re λ", "Im λ") if form == "real_imag" else (r"log |λ| = $-\nu$", "θ")
    axes.set(title=f"Phase {phase / np.pi:g} π: last loss {losses[-1]:.0e}")
    axes.set(aspect="equal", xlabel=names[0], ylabel=names[1])
    axes.grid(False)


@styled
def draw_powers() -> Figure:
    """Draws the landscapes of figure 8 with Adam's paths, and the steps it needs against the solution's phase."""
    figure, grid = new_figure(11.2, 6.8, 2, 3)
    of = settings("figure8")
    for axes, phase in zip(grid[0], (0.0, 0.25, 0.5), strict=True):
        landscape(axes, of, "real_imag", phase * np.pi)
    landscape(grid[1][0], of, "exp", np.pi / 4)
    phases = np.linspace(0, np.pi / 2, 25)
    for axes, start in zip(grid[1][1:], (of["start"], of["start"] / 3), strict=True):
        for form, colour, label in (("real_imag", ORANGE, "Re, Im"), ("exp", BLUE, r"exp($-\nu + i\theta$)")):
            runs = [learn_power(of | {"start": start}, form, float(phase))[0] for phase in phases]
            needed = [steps_to(losses, 1e-3) for losses in runs]
            axes.plot(phases / np.pi, needed, "o-", markersize=3, color=colour, label=label)
        axes.set(title=f"Start {start * of['power']:g} rad off in λ$^{{100}}$", ylim=(0, of["steps"]))
        axes.set(xlabel="phase of the solution / π", ylabel="steps to 1/1000 of the loss")
        axes.legend(fontsize=7)
    return figure


# ------------------------------------------------------------------------- figure 9 and proposition 3.3: the gain


def predicted_gain(r_min: float, r_max: float) -> float:
    """Returns the limit of E|x_k|^2 / E|B u|^2 for eigenvalues uniform on the ring (proposition 3.3)."""
    return float(np.log((1 - r_min**2) / (1 - r_max**2)) / (r_max**2 - r_min**2))


def simulated_gain(rng: np.random.Generator, r_max: float, noise: bool, N: int = 500, L: int = 3000) -> float:
    """Returns |x_L|^2 / E|B u|^2 of an LRU without normalisation, with eigenvalues from 0 to r_max, for white noise or
    a constant input of 64 channels."""
    layer = LRU(64, N, r_min=0.0, r_max=r_max, gamma=False)
    params = astype(layer.init(rng), np.float64)
    u = rng.standard_normal((L if noise else 1, 64))
    Bu = u @ (params["B_re"] + 1j * params["B_im"]).T
    inputs = np.broadcast_to(Bu, (1, L, N)).copy()
    _, last = diagonal_scan(layer.eigenvalues(params), inputs, return_state=True)
    return float(np.sum(np.abs(last) ** 2)) / N


@styled
def draw_gain(runs: int = 10) -> Figure:
    """Draws ten runs at each ring, with medians, quartiles, 5 to 95 % and means (triangles), beside the
    prediction."""
    figure, (row,) = new_figure(8.4, 3.2, 1, 2)
    rng, edges = np.random.default_rng(0), (0.8, 0.9, 0.97, 0.99, 0.997)
    for axes, noise, label in zip(row, (True, False), ("White noise", "Constant input"), strict=True):
        found = [[simulated_gain(rng, edge, noise) for _ in range(runs)] for edge in edges]
        drawn = {"medianprops": {"color": ORANGE}, "meanprops": {"markeredgecolor": GREEN, "markerfacecolor": GREEN}}
        axes.boxplot(found, whis=(5, 95), positions=range(len(edges)), widths=0.5, showmeans=True, **drawn)
        axes.plot([predicted_gain(0.0, edge) for edge in edges], "o-", color=BLUE, markersize=3, label="Prop. 3.3")
        axes.set_xticks(range(len(edges)), [f"{edge:g}" for edge in edges])
        axes.set(title=f"{label}: {runs} draws", xlabel="r$_{max}$", ylabel="E|x|² / E|Bu|²", ylim=(0, None))
        axes.legend(fontsize=7)
    return figure


PICTURES = {
    "lru-spectra": draw_spectra,
    "lru-relu": draw_relu,
    "lru-koopman": draw_koopman,
    "lru-powers": draw_powers,
    "lru-gain": draw_gain,
}
