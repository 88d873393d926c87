"""minGRU: a gated recurrent unit whose gates do not depend on the state, so that it is a linear scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.layer import (
    EVALUATION,
    Array,
    Context,
    Params,
    Recurrent,
    State,
    StateArray,
    StateForm,
    astype,
    mask_steps,
)
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.pointwise import mask_padding, sigmoid, sigmoid_backward
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward


class MinGRUSaved(NamedTuple):
    """Saved for backward: input with zeroed padding, gates z, candidates and states (B, T, N), state before and after
    x, lengths."""

    x: Array
    z: Array
    candidate: Array
    h: Array
    start: Array | None
    state: Array
    lengths: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class MinGRU(Recurrent):
    """``h_t = (1 - z_t) h_{t-1} + z_t c_t``, ``z_t = s(W_z u_t + b_z)``, ``c_t = W_c u_t + b_c``, ``y_t = W_out h_t``.

    minGRU (Feng, Tung, Ahmed, Bengio, Hajimirsadeghi 2024, "Were RNNs All We Needed?", section 3.1, with the linear
    projection back to the model's width of its blocks), with the sigmoid s. The transition ``1 - z_t`` lies in (0, 1).

    Parameters
    ----------
    d_state : int
        N, the number of real lanes of h.
    negative : bool
        The transition is ``1 - 2 z_t``, from -1 to 1 (Grazzi et al. 2024, "Unlocking State-Tracking in Linear RNNs
        Through Negative Eigenvalues").

    Parameters (dict of float32): W_z, W_c (N, D), b_z, b_c (N,), W_out (D, N). Its state is h (B, N), of N = `d_state`
    real lanes.

    Initial values: W_z, W_c ~ N(0, 1/D), W_out ~ N(0, 1/N), biases zero.
    """

    about: ClassVar[str] = "gated recurrent unit with gates of the input only: a scan with input-dependent decay"
    paper: ClassVar[str] = 'Feng et al. 2024, "Were RNNs All We Needed?"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"W_z", "b_z"})
    lanes: ClassVar[str] = "d_state"

    d_state: int
    negative: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.d_state
        return {"W_z": (N, D), "b_z": (N,), "W_c": (N, D), "b_c": (N,), "W_out": (D, N)}

    @property
    def state_form(self) -> StateForm:
        return StateArray("h", (self.d_state,))

    @property
    def hidden(self) -> StateArray:
        return StateArray("h", (self.d_state,))

    def init(self, rng: np.random.Generator) -> Params:
        params = {}
        for name, shape in self.shapes.items():
            params[name] = rng.standard_normal(shape) / np.sqrt(shape[1]) if len(shape) == 2 else np.zeros(shape)
        return astype(params, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, MinGRUSaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` (B, N) continues an earlier call."""
        return self._run(params, mask_padding(x, ctx.lengths), ctx.lengths, state)

    def _run(
        self, params: Params, x: Array, lengths: npt.NDArray[np.int64] | None, state: State
    ) -> tuple[Array, MinGRUSaved]:
        z = sigmoid(dense(x, params["W_z"], params["b_z"]))
        candidate = dense(x, params["W_c"], params["b_c"])
        h, after = diagonal_scan(self._transition(z), z * candidate, state, lengths=lengths, return_state=True)
        return dense(h, params["W_out"]), MinGRUSaved(x, z, candidate, h, state, after, lengths)

    def backward(
        self, params: Params, saved: MinGRUSaved, dy: Array, dstate: State = None, dh: Array | None = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, gradient of forward's `state`, or of a zero state if it was None). `dh` (B, T, N), if
        given by another module, is a further gradient of `hidden_states`.

        With g the gradient of the scan's input: ``dc = z g``, ``dz = c g - da`` (``c g - 2 da`` if `negative`), each
        through its affine map.
        """
        x, z, candidate, h, start, _, lengths = saved
        read, dW_out, _ = dense_backward(mask_padding(dy, lengths), h, params["W_out"])
        dh = read if dh is None else read + dh
        scan = diagonal_scan_backward(dh, self._transition(z), h, start, dhT=dstate, lengths=lengths)
        dgate = sigmoid_backward(candidate * scan.dx - (2 * scan.da if self.negative else scan.da), z)
        dx, dW_z, db_z = dense_backward(dgate, x, params["W_z"])
        dx_candidate, dW_c, db_c = dense_backward(z * scan.dx, x, params["W_c"])
        dparams = {"W_z": dW_z, "b_z": db_z, "W_c": dW_c, "b_c": db_c, "W_out": dW_out}
        return dx + dx_candidate, dparams, scan.dh0

    def step(self, params: Params, state: State, x_t: Array, prepared: None = None) -> tuple[Array, State]:
        y, saved = self._run(params, x_t[:, None], None, state)
        return y[:, 0], saved.state

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions (B, T, N), real, along sequences: each state's factor per step. Zero beyond the
        lengths. Arguments are those of `forward`."""
        _, saved = self.forward(params, x, ctx, state)
        return mask_steps(self._transition(saved.z), ctx.lengths)

    def _transition(self, z: Array) -> Array:
        return 1 - 2 * z if self.negative else 1 - z

    def hidden_states(self, saved: MinGRUSaved) -> Array:
        return saved.h
