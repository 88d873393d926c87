"""A memory over any recurrent layer: its hidden states are stored, and re-encoded by their age when they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import Dense, History, Inner, Sum
from rotrnn.nn.layer import Array, Context, Params, Recurrent, State, split_state
from rotrnn.nn.layers.around import Around
from rotrnn.nn.program import Builder, Program
from rotrnn.ops.memory import FORMS

READS = ("sum", "ages", "content")
ENCODINGS = (*FORMS, "reversed", "none")


@dataclass(frozen=True)
class StoredHistory(Around):
    """``y_t = layer(u)_t + C m_t``: the memory m_t reads the hidden states h of `layer` up to t, each turned by age.

    The states are stored, as ``h_a(n, m) = e^{i Delta_{n-m}} h(m)`` of the slide "WRoPE memory" (J. O. Smith,
    "Rotational memory") asks for: ``m_t = sum_{k<M} p_tk e^{i Delta_k} h_{t-k}``, over the last M states with
    ``window=M``, else over all. `form` says how the angles Delta_k grow, with L = `length`:

    - "uniform", "warped", "blend", "blend_printed": as in `rotrnn.ops.wrope_angle`;
    - "reversed": ``Delta = 2 pi n / (n + L)`` for the state of step n, counted from the beginning of the sequence. This
      is the form of WRoPE that a state can be given once and for all, and keeps. It tells early steps from each other
      and not late ones, so the slides process a sequence in reverse, which is what "warped" does at every step;
    - "none": no angle.

    `read` says what the weights p are:

    - "sum": 1;
    - "ages": learned, for each of `heads` groups of planes, ``p_tk = history_w[min(k, A - 1)]``, where A is `length`,
      or `window` if that is less: states of A steps and more share the weight of A - 1 steps;
    - "content": ``softmax_k(Re(<q_t, e^{i Delta_k} h_{t-k}>) / sqrt(2n))`` for each of `heads` groups of n planes, with
      queries ``q_t = W_q u_t`` (`rotrnn.ops.history_attention`). A query finds a state by its content and by its age.

    The stored vectors are the states h of the layers that have a single vector of them (`Recurrent.hidden`: RNN, LSTM,
    GRU, SLSTM, MinGRU, RGLRU, SelectiveRotRNN, FixedPointRNN, and LRU, RotRNN, S5 and RopeMemory, with windows too), of
    LSTM and SLSTM h without the cells c. Of all other layers they are the outputs y. Pairs of real lanes (2i, 2i+1) are
    planes.

    Parameters
    ----------
    d_model : int
        D, as of `layer`.
    layer : Recurrent
        The recurrence, which runs forward in time.
    length : int
        L of the angles, and with "ages" the number of weights.
    read, form : str
        See above.
    window : int, optional
        M; by default all states are kept.
    heads : int
        Groups of planes with weights of their own, a divisor of the number of planes.

    Parameters (dict of float32): the layer's, and for P planes history_C (D, 2P), which acts on (re, im) of each plane;
    with "ages" history_w (heads, A), with "content" history_q (2P, D), W_q as real lanes. The state is the layer's
    state, and the stored states (B, M-1, P), or (B, t, P) after t steps without a window, oldest first, and the numbers
    (B,) of steps so far. Without a window a step reads all that came before.

    Initial values: the layer's; history_C ~ N(0, 1/2P), for "sum" N(0, 1/(2P M)) with M the window or else the
    length; history_w ~ N(0, 1/A), history_q ~ N(0, 1/D).
    """

    about: ClassVar[str] = "the hidden states of a layer, stored, and read by age or content with angles by their age"
    paper: ClassVar[str] = 'Smith, "Rotational memory" (slides), WRoPE memory'

    prefix: ClassVar[str] = "history_"

    layer: Recurrent
    length: int
    read: str = "content"
    form: str = "warped"
    window: int | None = None
    heads: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.layer, StoredHistory):
            raise ValueError("StoredHistory: layer is a StoredHistory, a stored history cannot hold another")
        super().__post_init__()
        self.check_sizes("length", "heads", "window")
        self.check_choice("read", READS)
        self.check_choice("form", ENCODINGS)
        if self.d_model != self.layer.d_model:
            raise ValueError(f"StoredHistory: d_model={self.d_model}, expected {self.layer.d_model} as of its layer")
        if self.layer.hidden.kind == "real" and self.layer.hidden.shape[0] % 2:  # type: ignore[operator]
            width = self.layer.hidden.shape[0]
            raise ValueError(f"StoredHistory: layer has states of {width} real lanes, expected an even number")
        self.check_divisor("heads", self.planes, f"the {self.planes} planes")

    @property
    def planes(self) -> int:
        """P, the number of planes of a stored state."""
        width = self.layer.hidden.shape[0] or 0
        return width if self.layer.hidden.kind == "complex" else width // 2

    @property
    def ages(self) -> int:
        """A, the number of learned weights of a head."""
        return self.length if self.window is None else min(self.length, self.window)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, lanes = self.d_model, 2 * self.planes
        own: dict[str, tuple[int, ...]] = {"history_C": (D, lanes)}
        if self.read == "ages":
            own["history_w"] = (self.heads, self.ages)
        if self.read == "content":
            own["history_q"] = (lanes, D)
        return self.layer.shapes | own

    def init(self, rng: np.random.Generator) -> Params:
        params = self.layer.init(rng)
        terms = self.window or self.length if self.read == "sum" else 1
        inverse = {"history_C": 2 * self.planes * terms, "history_w": self.ages, "history_q": self.d_model}
        for name, shape in self.shapes.items():
            if name in inverse:
                params[name] = (rng.standard_normal(shape) / np.sqrt(inverse[name])).astype(np.float32)
        return params

    def program(self) -> Program:
        p = Builder(self)
        y, h = p(Inner(self.layer, hidden=True), p.x, *self.layer.shapes)
        q = p(Dense(), p.x, "history_q") if self.read == "content" else None
        m = p(History(self.length, self.form, self.window, self.heads), h, "history_w", q)
        return p.returns(p(Sum(), y, p(Dense(), m, "history_C")))

    def _entering(self, params: Params, x: Array, ctx: Context, state: State) -> tuple[Array, Context, State]:
        return x, ctx, split_state(self.layer, state, 2)[0]
