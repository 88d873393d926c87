"""Recurrent layers with a dense matrix: the simple recurrent network and the LSTM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.layer import EVALUATION, Array, Context, Params, Recurrent, State, StateArray, StateForm, astype
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.pointwise import mask_padding
from rotrnn.ops.rnn import ACTIVATIONS, LstmResult, lstm, lstm_backward, rnn, rnn_backward


class RNNSaved(NamedTuple):
    """Saved for backward: input with zeroed padding, states (B, T, N) of each direction, state before and after x,
    lengths.

    `state` is None for a bidirectional layer.
    """

    x: Array
    h: tuple[Array, ...]
    start: Array | None
    state: Array | None
    lengths: npt.NDArray[np.int64] | None


def glorot(rng: np.random.Generator, n: int) -> Array:
    """Entries N(0, 1/n) (Glorot and Bengio 2010); the eigenvalues fill the unit disc (LRU, theorem 3.1)."""
    return np.asarray(rng.standard_normal((n, n)) / np.sqrt(n))


def orthogonal(rng: np.random.Generator, n: int) -> Array:
    """A uniformly distributed orthogonal matrix; all eigenvalues are on the unit circle.

    A product of reflections, of one dimension more each time, that map the first unit vector to the direction of a
    Gaussian vector (Stewart 1980; Mezzadri 2007, section 6). Unlike a QR routine's, its bits do not depend on threads.
    """
    Q = np.eye(n)
    for k in reversed(range(n)):
        v = rng.standard_normal(n - k)
        sign, norm = np.copysign(1, v[0]), np.sqrt((v * v).sum())
        v[0] += sign * norm
        inner = Q[k:, k:]
        inner -= np.outer(v / (norm * abs(v[0])), np.einsum("i,ij->j", v, inner))  # |v|^2 / 2 = norm |v[0]|
        inner *= -sign
    return Q


def identity(rng: np.random.Generator, n: int) -> Array:
    """The identity matrix."""
    return np.eye(n)


INITIALISATIONS = {"glorot": glorot, "orthogonal": orthogonal, "identity": identity}
"""Initial values of A: as for the dense models of the LRU paper; as in Helfrich et al. 2018; as in Le et al. 2015 (with
ReLU)."""


@dataclass(frozen=True)
class RNN(Recurrent):
    """``h_t = f(A h_{t-1} + B u_t)``, ``y_t = C h_t + D * u_t``: the dense models of the LRU paper (table 1).

    `activation` is f: "identity" (the linear RNN), "tanh" or "relu". `initialisation` is that of A, one of
    INITIALISATIONS.

    Parameters (dict of float32): A (N, N), B (N, D), C (D, N), D (D,). A bidirectional layer also has C_reverse (D, N);
    the directions share the other parameters. The state is h (B, N), with N = `d_state` real lanes.

    Other initial values: B ~ N(0, 1/D), C ~ N(0, 1/N), D ~ N(0, 1), as in LRU.
    """

    about: ClassVar[str] = "recurrent network with a dense transition: linear, tanh or ReLU"
    paper: ClassVar[str] = 'Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences", table 1'
    recurrent: ClassVar[frozenset[str]] = frozenset({"A", "B"})
    lanes: ClassVar[str] = "d_state"

    d_state: int
    activation: str = "identity"
    initialisation: str = "glorot"
    bidirectional: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state")
        self.check_choice("activation", ACTIVATIONS)
        self.check_choice("initialisation", INITIALISATIONS)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.d_state
        return {"A": (N, N), "B": (N, D), **dict.fromkeys(self._readouts, (D, N)), "D": (D,)}

    @property
    def state_form(self) -> StateForm:
        return StateArray("h", (self.d_state,))

    @property
    def hidden(self) -> StateArray:
        return StateArray("h", (self.d_state,))

    @property
    def _readouts(self) -> tuple[str, ...]:
        return ("C", "C_reverse") if self.bidirectional else ("C",)

    def init(self, rng: np.random.Generator) -> Params:
        D, N = self.d_model, self.d_state
        params = {
            "A": INITIALISATIONS[self.initialisation](rng, N),
            "B": rng.standard_normal((N, D)) / np.sqrt(D),
            **{name: rng.standard_normal((D, N)) / np.sqrt(N) for name in self._readouts},
            "D": rng.standard_normal(D),
        }
        return astype(params, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, RNNSaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` (B, N) continues an earlier call (one direction
        only)."""
        return self._run(params, x, ctx, state)

    def _run(self, params: Params, x: Array, ctx: Context, state: State) -> tuple[Array, RNNSaved]:
        x = mask_padding(x, ctx.lengths)
        z = dense(x, params["B"])
        y = params["D"] * x
        h: list[Array] = []
        for reverse, name in enumerate(self._readouts):
            one, hT = rnn(params["A"], z, state, activation=self.activation, reverse=bool(reverse), lengths=ctx.lengths)
            y += dense(one, params[name])
            h.append(one)
        return y, RNNSaved(x, tuple(h), state, None if self.bidirectional else hT, ctx.lengths)

    def backward(
        self, params: Params, saved: RNNSaved, dy: Array, dstate: State = None, dh: Array | None = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, gradient of forward's `state`, or of a zero state if it was None). `dh` (B, T, N), if
        given by another module, is a further gradient of `hidden_states`."""
        dy = mask_padding(dy, saved.lengths)
        dD = (dy * saved.x).sum((0, 1), dtype=np.float64).astype(dy.dtype)
        readouts, grads = {}, []
        for reverse, (name, h) in enumerate(zip(self._readouts, saved.h, strict=True)):
            read, readouts[name], _ = dense_backward(dy, h, params[name])
            if dh is not None and not reverse:
                read += dh
            grads.append(
                rnn_backward(
                    *(read, params["A"], h, saved.start), dhT=dstate,
                    activation=self.activation, reverse=bool(reverse), lengths=saved.lengths,
                )
            )  # fmt: skip
        dA, dz, dh0 = grads[0]
        for other in grads[1:]:
            dA += other.dA
            dz += other.dx
        dx, dB, _ = dense_backward(dz, saved.x, params["B"])
        dx += params["D"] * dy
        return dx, {"A": dA, "B": dB, **readouts, "D": dD}, None if self.bidirectional else dh0

    def prepare(self, params: Params) -> Params:
        """Returns the checked parameters."""
        return params

    def step(self, params: Params, state: State, x_t: Array, prepared: Params | None = None) -> tuple[Array, State]:
        y, saved = self._run(params if prepared is None else prepared, x_t[:, None], EVALUATION, state)
        return y[:, 0], saved.state

    def hidden_states(self, saved: RNNSaved) -> Array:
        return saved.h[0]

    def eigenvalues(self, params: Params) -> Array:
        """Returns the eigenvalues of A, (N,) complex."""
        self.check_params(params)
        return np.linalg.eigvals(params["A"].astype(np.float64)).astype(np.complex128)


class LSTMSaved(NamedTuple):
    """Saved for backward: input with zeroed padding, the op's result, state before and after x, lengths."""

    x: Array
    result: LstmResult
    start: tuple[Array, Array] | None
    state: tuple[Array, Array]
    lengths: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class LSTM(Recurrent):
    """Long short-term memory with `d_state` cells, ``y_t = C h_t`` (for the equations see `rotrnn.ops.lstm`).

    Without `projection`, y is h, and `d_state` must equal `d_model`.

    Parameters (dict of float32), in PyTorch's names and order of gates, i, f, g, o: weight_ih (4N, D), weight_hh
    (4N, N), bias (4N,), which is PyTorch's bias_ih + bias_hh; and C (D, N) with `projection`. Its state is (h, c), both
    (B, N): 2N real lanes.

    Initial values: weights uniform on +-1/sqrt(N), as in PyTorch; the bias of the forget gate is `forget_bias`
    (Jozefowicz et al. 2015 recommend 1), other biases are zero; C ~ N(0, 1/N).
    """

    about: ClassVar[str] = "long short-term memory"
    paper: ClassVar[str] = 'Hochreiter and Schmidhuber 1997, "Long Short-Term Memory"; Gers et al. 2000'
    recurrent: ClassVar[frozenset[str]] = frozenset()
    lanes: ClassVar[str] = "2 d_state"

    d_state: int
    projection: bool = True
    forget_bias: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state")
        if not self.projection and self.d_state != self.d_model:
            raise ValueError(
                f"LSTM: d_state={self.d_state}, expected d_model={self.d_model}, or projection=True between the two"
            )
        if not np.isfinite(self.forget_bias):
            raise ValueError(f"LSTM: forget_bias={self.forget_bias}, expected a finite number")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.d_state
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (4 * N, D), "weight_hh": (4 * N, N), "bias": (4 * N,)}
        return {**shapes, "C": (D, N)} if self.projection else shapes

    @property
    def state_form(self) -> StateForm:
        return StateArray("h", (self.d_state,)), StateArray("c", (self.d_state,))

    @property
    def hidden(self) -> StateArray:
        return StateArray("h", (self.d_state,))

    def init(self, rng: np.random.Generator) -> Params:
        D, N = self.d_model, self.d_state
        bias = np.zeros((4, N))
        bias[1] = self.forget_bias
        params = {
            "weight_ih": rng.uniform(-(N**-0.5), N**-0.5, (4 * N, D)),
            "weight_hh": rng.uniform(-(N**-0.5), N**-0.5, (4 * N, N)),
            "bias": bias.ravel(),
        }
        if self.projection:
            params["C"] = rng.standard_normal((D, N)) / np.sqrt(N)
        return astype(params, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, LSTMSaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` (h, c), both (B, N), continues an earlier call."""
        return self._run(params, x, ctx, state)

    def _run(self, params: Params, x: Array, ctx: Context, state: State) -> tuple[Array, LSTMSaved]:
        h0, c0 = (None, None) if state is None else state
        x = mask_padding(x, ctx.lengths)
        z = dense(x, params["weight_ih"], params["bias"])
        result = lstm(params["weight_hh"], z, h0, c0, lengths=ctx.lengths)
        y = dense(result.h, params["C"]) if self.projection else result.h.copy()
        return y, LSTMSaved(x, result, state, (result.hT, result.cT), ctx.lengths)

    def backward(
        self, params: Params, saved: LSTMSaved, dy: Array, dstate: State = None, dh: Array | None = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, gradient of forward's `state`, or of a zero state if it was None). `dh` (B, T, N), if
        given by another module, is a further gradient of `hidden_states`."""
        h0, c0 = (None, None) if saved.start is None else saved.start
        dhT, dcT = (None, None) if dstate is None else dstate
        h, c, gates, _, _ = saved.result
        read = dy = mask_padding(dy, saved.lengths)
        readout = {}
        if self.projection:
            read, readout["C"], _ = dense_backward(dy, h, params["C"])
        if dh is not None:
            read = read + dh
        grads = lstm_backward(read, params["weight_hh"], h, c, gates, h0, c0, dhT=dhT, dcT=dcT, lengths=saved.lengths)
        dx, dweight_ih, dbias = dense_backward(grads.dx, saved.x, params["weight_ih"])
        dparams = {"weight_ih": dweight_ih, "weight_hh": grads.dw, "bias": dbias, **readout}
        return dx, dparams, (grads.dh0, grads.dc0)

    def prepare(self, params: Params) -> Params:
        """Returns the checked parameters."""
        return params

    def step(self, params: Params, state: State, x_t: Array, prepared: Params | None = None) -> tuple[Array, State]:
        y, saved = self._run(params if prepared is None else prepared, x_t[:, None], EVALUATION, state)
        return y[:, 0], saved.state

    @property
    def state_size(self) -> int:
        return self.d_state  # the state is h_t and c_t

    def hidden_states(self, saved: LSTMSaved) -> Array:
        return saved.result.h
