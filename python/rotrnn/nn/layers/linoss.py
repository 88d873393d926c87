"""LinOSS: forced harmonic oscillators, with and without damping."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import Affine, Dense, Oscillators, OscillatorScan, Reshape, Skip, Split, Sum
from rotrnn.nn.layer import Array, Params, StateForm, astype, spectrum
from rotrnn.nn.program import Builder, Program, Programmed
from rotrnn.ops.boundary import Boundary

METHODS = ("im", "imex", "damped")


@dataclass(frozen=True)
class LinOSS(Programmed):
    """``y = Re(C x) + D * u``, where the lanes of x are positions of oscillators: ``x'' = -a x - g x' + B u``.

    A step of length s turns (z, x), velocity and position, into ``M (z, x) + s M_1 (B u_t)``, where M_1 is M's first
    column, and M is (Rusch and Rus 2024, "Oscillatory State-Space Models", eqs. 3 to 6; Boyer, Rusch, Rus 2025,
    "Learning to Dissipate Energy in Oscillatory State-Space Models"; tk-rusch/linoss):

    - "im", implicit: ``q [[1, -s a], [s, 1]]``, ``q = 1 / (1 + s^2 a)``; its eigenvalues have modulus ``sqrt(q)``;
    - "imex", implicit-explicit: ``[[1, -s a], [s, 1 - s^2 a]]``; modulus 1, if ``s^2 a <= 4``;
    - "damped" (D-LinOSS): ``[[1, -s a], [s, S - s^2 a]] / S``, ``S = 1 + s g``; modulus ``1 / sqrt(S)``.

    ``s = step_scale sigmoid(dt)``, ``a = max(A, 0)``, ``g = max(G, 0)``. "damped" also limits a to where eigenvalues
    are complex, ``(sqrt(S) - 1)^2 <= s^2 a <= (sqrt(S) + 1)^2``. With `step_scale` 2 a trained model can be applied to
    data sampled at half the rate. With `rotrnn.Context.dt`, for samples at uneven times, step t of "im" has ``s_t = s
    dt_t`` in place of s: ``z^2 + a x^2`` never grows without input (in float32, s_t up to 1e18, whose square is
    finite; that is forward's bound: the gradient of dt, which falls as 1 / dt_t^2, is off by 1e-6 at dt_t = 1e5, where
    it has no digits left, and by 20 at 1e17). The other methods raise NotImplementedError: a product of their steps of
    different lengths can grow exponentially, though each step alone is stable.

    The real recurrence is computed directly, never diagonalised (`rotrnn.ops.oscillator_scan`): at the ends of that
    range, and at a = 0, M has only one eigenvector. With "imex" and ``s^2 a > 4``, which nothing prevents, states grow
    exponentially.

    Parameters
    ----------
    d_state : int
        N, the number of complex oscillators: 4 N real numbers.
    method : str
        "im", "imex" or "damped".
    step_scale : float
        Factor of all steps.

    Parameters (dict of float32): A, dt (N,), with "damped" G (N,), B_re, B_im (N, D), C_re, C_im (D, N), D (D,). Its
    state is (h_re, h_im), each (B, 2, N), the real and the imaginary parts of (z, x).

    Initial values, as in that code: A, dt ~ U[0, 1], B ~ U(-1, 1) / sqrt(D), C ~ U(-1, 1) / sqrt(N), both parts, D ~
    N(0, 1). With "damped", dt ~ N(0, 1/4), and A and G are such that eigenvalues are uniform in area on the ring from
    0.9 to 1, with angles uniform from 0 to pi.
    """

    about: ClassVar[str] = "forced harmonic oscillators: a real 2 x 2 recurrence for each, undamped or damped"
    paper: ClassVar[str] = 'Rusch and Rus 2024, "Oscillatory State-Space Models"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"A", "dt", "G"})
    lanes: ClassVar[str] = "4 d_state"

    d_state: int
    method: str = "imex"
    step_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state")
        self.check_choice("method", METHODS)
        self.check_positive("step_scale")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.d_state
        own: dict[str, tuple[int, ...]] = dict.fromkeys(("A", "dt", *"G"[: self.method == "damped"]), (N,))
        return own | {"B_re": (N, D), "B_im": (N, D), "C_re": (D, N), "C_im": (D, N), "D": (D,)}

    def init(self, rng: np.random.Generator) -> Params:
        params = {name: rng.uniform(-1, 1, shape) / np.sqrt(shape[-1]) for name, shape in self.shapes.items()}
        N = self.d_state
        params["A"], params["dt"], params["D"] = rng.random(N), rng.random(N), rng.standard_normal(self.d_model)
        if self.method == "damped":
            params["dt"] = rng.standard_normal(N) / 2
            s, det, angle = 1 / (1 + np.exp(-params["dt"])), rng.uniform(0.9**2, 1, N), rng.uniform(0, np.pi, N)
            params["G"] = (1 / det - 1) / s
            params["A"] = (1 - 2 * np.sqrt(det) * np.cos(angle) + det) / (det * s**2)
        return astype(params, np.float32)

    def program(self) -> Program:
        p, N = Builder(self), self.d_state
        m, f = p(Oscillators(self.method, self.step_scale), "A", "dt", "G" if self.method == "damped" else None)
        y = p(Skip(), p.x, "D")
        for part, C in (("re", "C_re"), ("im", p(Affine(-1), "C_im"))):
            h = p(OscillatorScan(), m, f, p(Dense(), p.x, f"B_{part}"))
            _, x = p(Split((N, N)), p(Reshape((2 * N,)), h))
            y = p(Sum(), y, p(Dense(), x, C))
        return p.returns(y)

    @property
    def state_form(self) -> StateForm:
        re, im = self._program.states
        return replace(re, name="h_re"), replace(im, name="h_im")

    def check_dt(self, args: Boundary) -> None:
        if self.method != "im":
            raise NotImplementedError(
                f"{args.op}: got dt, which LinOSS does not support with method={self.method!r}, expected method='im': "
                "products of other steps of different lengths grow"
            )

    def eigenvalues(self, params: Params) -> Array:
        """Returns the eigenvalues of M (N, 2), complex128. ValueError if a parameter is missing, has another shape, or
        is not finite."""
        self.check_params(params)
        program, values = self.begun(astype(params, np.float64))
        m = values[program.fixed_outputs[0]]
        return spectrum("LinOSS.eigenvalues", m.transpose(2, 0, 1))
