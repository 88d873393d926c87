"""The recurrent block of Griffin over any recurrent layer: a convolution before it, and a gate beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.fixed_points.convolution import conv_state, initial_conv
from rotrnn.nn.layer import (
    EVALUATION,
    Array,
    Context,
    Params,
    Recurrent,
    State,
    StateForm,
    astype,
    form_leaves,
    split_state,
    state_leaves,
    trusted,
)
from rotrnn.nn.layers.around import Around
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.conv import causal_conv, causal_conv_backward
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.pointwise import gelu, gelu_backward, mask_padding

OWN = "griffin_"
"""What the names of its own parameters begin with, beside those of the layer."""


class GriffinSaved(NamedTuple):
    """Saved for backward: input with zeroed padding; of the gate's branch the map a (B, T, E); of the other the map v,
    the last inputs of the convolution before and after x, what the layer saved and its output r; lengths."""

    x: Array
    a: Array
    v: Array
    before: Array | None
    after: Array
    layer: Any
    r: Array
    lengths: npt.NDArray[np.int64] | None

    @property
    def state(self) -> State:
        """The state after x."""
        return *state_leaves(self.layer.state), self.after


@dataclass(frozen=True)
class Griffin(Around):
    """``y_t = W_out (GELU(W_gate u_t + b_gate) * layer(conv(W_value u + b_value))_t) + b_out``.

    This is the recurrent block of Griffin and Hawk (De et al. 2024, "Griffin: Mixing Gated Linear Recurrences with
    Local Attention for Efficient Language Models", section 2.3), in which any recurrent layer of the package takes the
    place of the RG-LRU: ``conv(v)_t = b_conv + sum_k w_conv[:, k] * v_{t-d_conv+1+k}`` is causal and depthwise, without
    an activation, * is the product of channels, and GELU has its tanh form. Biases are those of the authors' code
    (google-deepmind/recurrentgemma). Both branches have the width E of `layer`: in the paper about 4 D / 3.

    ``ModelSettings(block="griffin")`` adds norms, residuals and a gated feed-forward net, and `attention_every` the
    local attention of Griffin; without attention the blocks are those of Hawk. The RG-LRU itself is not in the package.

    Parameters
    ----------
    layer : Recurrent
        The recurrence, of width E, which runs forward in time.
    d_conv : int
        Number of taps of the convolution.

    Parameters (dict of float32): those of `layer`, and griffin_gate_w, griffin_value_w (E, D), griffin_gate_bias,
    griffin_value_bias (E,), griffin_conv_w (E, d_conv), griffin_conv_bias (E,), griffin_out_w (D, E), griffin_out_bias
    (D,): 3 D E + (d_conv + 3) E + D numbers beside those of the layer. The state is that of the layer, and the last
    inputs of the convolution (B, d_conv - 1, E), oldest first.

    Initial values: those of the layer; the three maps ~ N(0, 1 / number of inputs), their biases zero; taps and their
    bias uniform on +-1/sqrt(d_conv), as Mamba's.
    """

    about: ClassVar[str] = "the recurrent block of Griffin: a layer behind a short convolution, multiplied by a gate"
    paper: ClassVar[str] = 'De et al. 2024, "Griffin: Mixing Gated Linear Recurrences with Local Attention"'

    layer: Recurrent
    d_conv: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_conv")
        kind = type(self.layer).__name__
        if getattr(self.layer, "bidirectional", False):
            expected = "expected False: its convolution has one direction"
            raise ValueError(f"Griffin: {kind} has bidirectional=True, {expected}")
        if self.layer.state_form is None:
            raise ValueError(f"Griffin: layer={self.layer!r}, expected a layer that declares its state (state_form)")
        if taken := [name for name in self.layer.shapes if name.startswith(OWN)]:
            raise ValueError(f"Griffin: {kind} has a parameter {taken[0]}, expected no name that begins with {OWN}")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, E = self.d_model, self.layer.d_model
        own: dict[str, tuple[int, ...]] = {
            **{"gate_w": (E, D), "gate_bias": (E,), "value_w": (E, D), "value_bias": (E,)},
            **{"conv_w": (E, self.d_conv), "conv_bias": (E,), "out_w": (D, E), "out_bias": (D,)},
        }
        return self.layer.shapes | {OWN + name: shape for name, shape in own.items()}

    @property
    def state_form(self) -> StateForm:
        return *form_leaves(self.layer.state_form), *conv_state(self.layer.d_model, self.d_conv)

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        super().check_state(args, name, state)
        self.layer.check_state(args, name, split_state(self.layer, state, 1)[0])

    def init(self, rng: np.random.Generator) -> Params:
        params = self.layer.init(rng)
        own: Params = {}
        for name, shape in self.shapes.items():
            if name.startswith(OWN):
                own[name] = rng.standard_normal(shape) / np.sqrt(shape[1]) if len(shape) == 2 else np.zeros(shape)
        taps = initial_conv(rng, self.layer.d_model, self.d_conv)
        own |= {OWN + name: value for name, value in taps.items()}
        return params | astype(own, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, GriffinSaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` continues an earlier call."""
        inner, before = split_state(self.layer, state, 1)
        x = mask_padding(x, ctx.lengths)
        a, v, u, after = self._branches(params, x, before, ctx.lengths)
        r, saved = self.layer.forward(self._inner(params), u, ctx, inner)
        y = mask_padding(self._joined(params, a, r, ctx.lengths), ctx.lengths)
        return y, GriffinSaved(x, a, v, before, after, saved, r, ctx.lengths)

    def backward(
        self, params: Params, saved: GriffinSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, gradient of forward's `state`, or of the state before the first step if it was None).

        With ``g = GELU(a)`` and ``p = g * r``: ``dp = dy W_out``, ``dr = dp * g``, ``da = GELU'(a) dp * r``; dr goes
        back through the layer and the convolution to dv, and ``dx = da W_gate + dv W_value``.
        """
        x, lengths = saved.x, saved.lengths
        own = {name: params[OWN + name] for name in ("gate_w", "value_w", "conv_w", "out_w")}
        dinner, dafter = split_state(self.layer, dstate, 1)
        gate = gelu(saved.a, lengths=lengths)
        dproduct, dout_w, dout_bias = dense_backward(mask_padding(dy, lengths), gate * saved.r, own["out_w"])
        da = gelu_backward(dproduct * saved.r, saved.a, lengths=lengths)
        du, dparams, dinner = trusted(self.layer.backward)(self._inner(params), saved.layer, dproduct * gate, dinner)
        conv = causal_conv_backward(du, saved.v, own["conv_w"], saved.before, dfinal=dafter, lengths=lengths)
        dx, dgate_w, dgate_bias = dense_backward(da, x, own["gate_w"])
        dx_value, dvalue_w, dvalue_bias = dense_backward(conv.dx, x, own["value_w"])
        grads = {
            **{"gate_w": dgate_w, "gate_bias": dgate_bias, "value_w": dvalue_w, "value_bias": dvalue_bias},
            **{"conv_w": conv.dw, "conv_bias": conv.dbias, "out_w": dout_w, "out_bias": dout_bias},
        }
        dparams = dparams | {OWN + name: value for name, value in grads.items()}
        return dx + dx_value, dparams, (*state_leaves(dinner), conv.dstate)

    def prepare(self, params: Params) -> tuple[Params, Any]:
        """Returns the checked parameters, and what the layer prepares."""
        return params, trusted(self.layer.prepare)(self._inner(params))

    def step(
        self, params: Params, state: State, x_t: Array, prepared: tuple[Params, Any] | None = None
    ) -> tuple[Array, State]:
        params, inner_prepared = (params, None) if prepared is None else prepared
        inner, before = split_state(self.layer, state, 1)
        a, _, u, after = self._branches(params, x_t[:, None], before, None)
        r, inner = trusted(self.layer.step)(self._inner(params), inner, u[:, 0], inner_prepared)
        y = self._joined(params, a, r[:, None], None)
        return y[:, 0], (*state_leaves(inner), after)

    def _entering(self, params: Params, x: Array, ctx: Context, state: State) -> tuple[Array, Context, State]:
        inner, before = split_state(self.layer, state, 1)
        return self._branches(params, mask_padding(x, ctx.lengths), before, ctx.lengths)[2], ctx, inner

    def _branches(
        self, params: Params, x: Array, before: Array | None, lengths: npt.NDArray[np.int64] | None
    ) -> tuple[Array, Array, Array, Array]:
        """Returns the two maps a and v (B, T, E), the convolution u of v, and its last inputs."""
        a, v = (dense(x, params[f"{OWN}{name}_w"], params[f"{OWN}{name}_bias"]) for name in ("gate", "value"))
        taps = params[OWN + "conv_w"], params[OWN + "conv_bias"]
        u, after = causal_conv(v, *taps, before, lengths=lengths, return_state=True)
        return a, v, u, after

    @staticmethod
    def _joined(params: Params, a: Array, r: Array, lengths: npt.NDArray[np.int64] | None) -> Array:
        return dense(gelu(a, lengths=lengths) * r, params[OWN + "out_w"], params[OWN + "out_bias"])
