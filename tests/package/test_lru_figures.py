"""The example that draws figures of the LRU paper: gradients of its losses, and a figure with its settings."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from rotrnn.nn.layer import Params

pytestmark = pytest.mark.whole

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "lru_figures.py"))


@pytest.mark.parametrize("form", ["real_imag", "exp"])
def test_the_loss_of_a_power_and_its_gradient(form: str) -> None:
    """Central differences: with third derivatives of about power^3 the error is about 1e6 h^2 = 1e-6."""
    target = np.exp(complex(-0.5, 7.0))
    loss = EXAMPLE["power_loss"](form, target, 100)
    first, second = (0.6, 0.79) if form == "real_imag" else (0.005, 0.93)

    def at(a: float, b: float) -> tuple[float, Params]:
        found: tuple[float, Params] = loss({"first": np.array([a]), "second": np.array([b])})
        return found

    value, grads = at(first, second)
    power = complex(first, second) ** 100 if form == "real_imag" else np.exp(100 * complex(-first, second))
    assert value == pytest.approx(abs(power - target) ** 2 / 2, rel=1e-12)
    h = 1e-6
    assert grads["first"][0] == pytest.approx((at(first + h, second)[0] - at(first - h, second)[0]) / (2 * h), abs=1e-5)
    assert grads["second"][0] == pytest.approx(
        (at(first, second + h)[0] - at(first, second - h)[0]) / (2 * h), abs=1e-5
    )


def test_the_convolution_is_one() -> None:
    """Compares the outputs with a double sum."""
    of = {**EXAMPLE["settings"]("figure7"), "length": 30, "sequences": 2}
    u, y = EXAMPLE["convolution"](of)
    for b in range(2):
        for t in (0, 1, 29):
            kernel = [0.1 * np.exp(-0.015 * k) * np.cos(0.04 * k) ** 2 for k in range(t + 1)]
            assert y[b, t, 0] == pytest.approx(sum(kernel[k] * u[b, t - k, 0] for k in range(t + 1)), rel=1e-12)


def test_linear_learns_faster_and_it_draws(tmp_path: Path) -> None:
    of = {**EXAMPLE["settings"]("figure7", small=True), "states": 40}
    linear, tanh = (EXAMPLE["learn_convolution"](of, activation, 1e-3)[-1] for activation in ("identity", "tanh"))
    assert linear < tanh
    impulse = EXAMPLE["impulse_response"](EXAMPLE["settings"]("figure4"), 0.1)
    np.testing.assert_allclose(abs(impulse[-1]), np.exp(-5e-5 * 15_999), rtol=1e-9)
    pytest.importorskip("matplotlib")
    EXAMPLE["draw"](small=True).savefig(tmp_path / "figures.png")
    assert (tmp_path / "figures.png").stat().st_size > 10_000
