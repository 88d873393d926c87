"""Bedouin: a dense version of Mamba, the fixed point in depth of its selective scan ("Fixed-Point RNNs", section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.fixed_points.convolution import initial_conv
from rotrnn.nn.fixed_points.iteration import SOLVERS
from rotrnn.nn.fixed_points.maps import Map, Maps, mixer_maps
from rotrnn.nn.fixed_points.matrix_fixed_point import FEEDBACK, MatrixFixedPoint
from rotrnn.nn.fixed_points.mixer import GAINS, VECTORS
from rotrnn.nn.instructions import Affine, Dense, Skip, Softplus, Split, SwiGLU
from rotrnn.nn.layer import Params, astype
from rotrnn.nn.program import Builder, Program

RATE = 8.0
"""The constant c of Griffin's transition: lambda = exp(-c softplus(omega) delta)."""
LAMBDA_RING, DELTA = (0.9, 0.999), 0.1
"""Initial values of lambda and delta; the paper does not give them. The iteration of a single token has the matrix
C.B delta (I - Q), whose norm is up to 2 delta, so with this delta it contracts from the first training step on. With
delta = sigmoid(0) = 1/2 some outputs are a thousand times too large."""
MOST_EQUATIONS = 128
"""Largest system of a token that "auto" solves directly: about a million multiplications."""


@dataclass(frozen=True)
class Bedouin(MatrixFixedPoint):
    """A dense linear RNN with a matrix state: the fixed point over depth l of ("Fixed-Point RNNs", section 5)

        x~^l_t = Q^l_t (x_t - y^{l-1}_t) + y^{l-1}_t
        h^l_t = lam_t * h^l_{t-1} + (delta_t * x~^l_t) B^l_t^T,     y^l_t = h^l_t C^l_t
        lam_t = exp(-8 softplus(omega) delta_t),     delta_t = sigmoid(W_delta x_t + b_delta)
        B^l_t = W_B x_t + V_B y^{l-1}_{t-1}, C likewise, L2-normalised; u and alpha of Q likewise, alpha = sigmoid(.)
        out = W_out (G_t * SiLU(y_t + D * x_t)),     G_t = z_t + V_gate y_{t-1},     [x, z] = W_in in

    Here E = expand d_model is the number of channels, and S = d_state the number of states per channel. The paper's
    W_G^x is the half of W_in for z, as in Mamba. The state is (h (B, E, S), y_{t-1} (B, E)), and begins with the last
    inputs of a convolution, if there is one. `forward` iterates on whole sequences, and `step` on one token at a time
    (sequential inference in the paper); `inference_gap` measures their difference.

    The iteration runs up to a tolerance, and y is one more application F of the step to the last iterate. The gradient
    "one_step" (Theorem 3.3) is the gradient of this application with the iterate held constant. "implicit" is the exact
    gradient, found by iterating the adjoint.

    Parameters
    ----------
    d_state, expand : int
        S, the number of real lanes per channel; and the ratio E / d_model.
    mixer, rank : str, int
        Name of Q_t in `rotrnn.nn.fixed_points.mixer.MIXERS`, and its number of vectors r (1, 2 and 4 in the paper).
    feedback : sequence of str
        Parts that depend on the previous output: any of "lambda" (through delta), "mixer", "B", "C" (Table 1), "gate".
    normalise : bool
        Normalise B and C to unit length.
    d_conv : int
        Taps of a short causal convolution, with which ``x = SiLU(conv(W_in in))``, as in Mamba and in the authors'
        code; 0 for none, as in the paper.
    symmetric : bool
        The parts of the mixer are functions of ``x_t + y_{t-1}``: V_p = W_p. Needs "mixer" in `feedback`.
    negative : bool
        ``lam_t = 2 exp(-8 softplus(omega) delta_t) - 1``, from -1 to 1 (Grazzi et al. 2024). The system of a token,
        given its past, does not contain lam_t, so the iteration converges as well as before.
    feedback_norm : bool
        Maps and gate depend on ``y_{t-1} / sqrt(mean(y_{t-1}^2) + 1e-5)`` in place of y_{t-1}. Not in the paper: there,
        outputs that grow along a sequence drown the part ``W x_t`` of each map, and words longer than those of training
        are lost (docs/results.md).
    mixer_silu : bool
        The vectors u of the mixer pass through SiLU before they are normalised, as in the authors' code.
    unit_eps : float
        u, B and C are divided by ``max(length, unit_eps)``, as in the authors' code, where it is 1e-5. With 0, vectors
        of any length have length 1, and a zero vector stays zero.
    spectral : bool
        Spectral normalisation of a "kronecker" mixer (`rotrnn.nn.fixed_points.mixer.Kronecker`), which the authors'
        code has only for the vector state.
    gradient : "one_step" or "implicit"
    solver : "iteration", "direct" or "auto"
        "direct" finds y exactly, in one pass over time: when the past of a token is known, so are u, alpha, B, C and
        delta, and y_t solves a linear system (`rotrnn.ops.selective.selective_solve`), on the CPU. It has r equations
        for the mixers "householder", "dplr" and "low_rank", blocks of r for "monarch", and E for others, about E^3 / 3
        multiplications a token. The gradient "implicit" is found in the same way. Settings of the iteration then have
        no effect; but from a residual of `tol` on, the system of a token counts as singular, and the sequence as one
        without a fixed point. "auto" is "direct" for systems of up to 128 equations. Elsewhere it iterates token by
        token with Anderson acceleration, the gradient "implicit" too, to `tol`. `damping` and `stop` then have no
        effect, and `tile` must be None. Whole sequences, chunks and streams take the same path: their outputs are the
        same up to rounding, at any `tol`, and up to `tol` of a token where a rounding changes its number of iterations.
    tile : int, optional
        For solver "iteration": number of time steps that are iterated together, each tile to the tolerance, after the
        fixed point of earlier tiles: the number of iterations then does not grow with the sequence. The gradient
        "implicit" goes by tiles as well, from the last to the first. By default the whole sequence.
    tol, max_iterations, train_iterations, gamma_scale, damping, stop
        As in `rotrnn.nn.fixed_points.iteration.Iteration` (Fig. 1: train_iterations 2, 4, 8, 16 and
        "rounded_gamma").
    site : int
        Makes the random draws of `train_iterations` different between a model's layers.

    Parameters (dict of float32): W_in (2E, D), W_out (D, E), omega (E, S), W_delta (E, E), b_delta (E,), W_B, W_C
    (S, E), W_p for each part p of the mixer, e.g. u (r, E, E) and alpha (r, E), and D (E,); V_delta, V_B, V_C, V_p,
    V_gate (E, E) for `feedback`, without V_p of the mixer's parts if it is symmetric; M (E, E) for the orthogonal
    mixer, which is constant; conv_w (E, d_conv) and conv_bias (E,) of the convolution.

    Initial values: W_delta = 0 (section 4.5), b_delta for delta = 0.1, omega for lam uniform on [0.9, 0.999], D = 1,
    M ~ N(0, 1/32E), the convolution uniform on +-1/sqrt(d_conv), and N(0, 1/columns) for the rest.
    """

    about: ClassVar[str] = "dense version of Mamba: a matrix-state RNN, the fixed point in depth of a selective scan"
    paper: ClassVar[str] = "Movahedi, Sarnthein, Cirone, Orvieto: Fixed-Point RNNs (2025), section 5"
    recurrent: ClassVar[frozenset[str]] = frozenset(
        {"omega", "W_delta", "b_delta", "V_delta", "W_B", "V_B", "M"}
        | {f"{kind}_{part}" for part in (*VECTORS, *GAINS) for kind in "WV"}
    )
    normed: ClassVar[bool] = False
    feedbacks: ClassVar[tuple[str, ...]] = ("lambda", *FEEDBACK)
    lanes: ClassVar[str] = "expand d_model (d_state + 1)"
    solvers: ClassVar[tuple[str, ...]] = SOLVERS

    feedback_norm: bool = False

    @property
    def direct(self) -> bool:
        equations = self.rank if self.mixer in ("householder", "dplr", "low_rank", "monarch") else self.width
        return self.solver == "direct" or (self.solver == "auto" and equations <= MOST_EQUATIONS)

    @property
    def maps(self) -> Maps:
        direction = Map((self.d_state,), "unit" if self.normalise else "linear")
        parts = mixer_maps(self.mixer_maps, self.mixer_silu)
        return {"delta": Map((self.width,), "sigmoid"), **parts, "B": direction, "C": direction}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, E, S = self.d_model, self.width, self.d_state
        shapes: dict[str, tuple[int, ...]] = {"W_in": (2 * E, D), "W_out": (D, E), "omega": (E, S), "b_delta": (E,)}
        shapes |= {f"W_{name}": (*one.shape, E) for name, one in self.maps.items()}
        shapes |= {f"V_{name}": (*one.shape, E) for name, one in self.maps.items() if name in self.driven}
        shapes = {name: shape for name, shape in shapes.items() if name not in self._shared}
        shapes |= {"V_gate": (E, E)} if "gate" in self.driven else {}
        shapes |= {} if self._mixer.varying else self._mixer.parts
        return {**shapes, **self.conv_shapes, "D": (E,)}

    @property
    def _shared(self) -> dict[str, str]:
        """Returns the weights of the previous output that equal the weights of x, with a symmetric mixer."""
        return {f"V_{name}": f"W_{name}" for name in self.mixer_maps} if self.symmetric else {}

    def init(self, rng: np.random.Generator) -> Params:
        lam = rng.uniform(*LAMBDA_RING, (self.width, self.d_state))
        decay = (1 + lam) / 2 if self.negative else lam
        fixed = {
            "omega": np.log(np.expm1(-np.log(decay) / (RATE * DELTA))),
            "W_delta": np.zeros((self.width, self.width)),
            "b_delta": np.full(self.width, np.log(DELTA / (1 - DELTA))),
            "D": np.ones(self.width),
            **initial_conv(rng, self.width, self.d_conv),
        }
        params = {}
        for name, shape in self.shapes.items():
            size = (32 * self.width) ** -0.5 if name == "M" else shape[-1] ** -0.5
            params[name] = fixed[name] if name in fixed else size * rng.standard_normal(shape)
        return astype(params, np.float32)

    def program(self) -> Program:
        """The state is, with a convolution, (its last inputs (B, d_conv - 1, E), h (B, E, S), y_{t-1} (B, E))."""
        p = Builder(self)
        w_x, w_z = p(Split((self.width, self.width), axis=-2), "W_in")
        v, z = p(Dense(), p.x, w_x), p(Dense(), p.x, w_z)
        x = self._convolution(p, v)
        A = p(Affine(-RATE), p(Softplus(), "omega"))
        weights = {name: name for name in self.shapes} | self._shared
        y, gate = self._solution(p, x, z, A, weights, w_x=None if self.d_conv else w_x)
        return p.returns(p(Dense(), p(SwiGLU(), gate, p(Skip(), x, "D", None, y)), "W_out"))
