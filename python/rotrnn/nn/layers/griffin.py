"""The recurrent block of Griffin over any recurrent layer: a convolution before it, and a gate beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import GELU, Conv, Dense, Inner, Product
from rotrnn.nn.layer import Array, Context, Params, Recurrent, State, astype, split_state
from rotrnn.nn.layers.around import Around
from rotrnn.nn.program import Builder, Program


@dataclass(frozen=True)
class Griffin(Around):
    """``y_t = W_out (GELU(W_gate u_t + b_gate) * layer(conv(W_value u + b_value))_t) + b_out``.

    This is the recurrent block of Griffin and Hawk (De et al. 2024, "Griffin: Mixing Gated Linear Recurrences with
    Local Attention for Efficient Language Models", section 2.3) over any recurrent layer; the paper's layer is the
    RG-LRU (`rotrnn.RGLRU`). ``conv(v)_t = b_conv + sum_k w_conv[:, k] * v_{t-d_conv+1+k}`` is causal and depthwise,
    without an activation, * is the product of channels, and GELU has its tanh form. Biases are as in the authors' code
    (google-deepmind/recurrentgemma). Both branches have the width E of `layer`: in the paper about 4 D / 3.

    ``ModelSettings(block="griffin")`` adds norms, residuals and a gated feed-forward net, and `attention_every` the
    local attention of Griffin; without attention the blocks are Hawk's.

    Parameters
    ----------
    layer : Recurrent
        The recurrence, of width E, which runs forward in time.
    d_conv : int
        Number of taps of the convolution, 4 in the paper.

    Parameters (dict of float32): the parameters of `layer`, and griffin_gate_w, griffin_value_w (E, D),
    griffin_gate_bias, griffin_value_bias (E,), griffin_conv_w (E, d_conv), griffin_conv_bias (E,), griffin_out_w (D,
    E), griffin_out_bias (D,): 3 D E + (d_conv + 3) E + D numbers besides the layer's. The state is the last inputs of
    the convolution (B, d_conv - 1, E), oldest first, and the state of the layer.

    Initial values, as in the authors' code: the layer's own; the three maps ~ N(0, 1 / number of inputs), taps ~ N(0,
    0.01 / d_conv), biases zero. That code gives W_out the variance ``2 / (L E)`` in a model of L blocks. A layer does
    not know L and takes L = 2.
    """

    about: ClassVar[str] = "the recurrent block of Griffin: a layer behind a short convolution, multiplied by a gate"
    paper: ClassVar[str] = 'De et al. 2024, "Griffin: Mixing Gated Linear Recurrences with Local Attention"'

    prefix: ClassVar[str] = "griffin_"

    layer: Recurrent
    d_conv: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_conv")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, E = self.d_model, self.layer.d_model
        own: dict[str, tuple[int, ...]] = {
            **{"gate_w": (E, D), "gate_bias": (E,), "value_w": (E, D), "value_bias": (E,)},
            **{"conv_w": (E, self.d_conv), "conv_bias": (E,), "out_w": (D, E), "out_bias": (D,)},
        }
        return self.layer.shapes | {self.prefix + name: shape for name, shape in own.items()}

    @property
    def estimated(self) -> frozenset[str]:  # type: ignore[override]
        """Estimated gradients of the layer; if its input is among them, also the arguments from which this input is
        computed, such as the convolution's last inputs."""
        if "x" not in self.layer.estimated:
            return self.layer.estimated
        own = (f"{self.prefix}{name}" for name in ("value_w", "value_bias", "conv_w", "conv_bias"))
        return self.layer.estimated.union(own, ["state.0"])

    def init(self, rng: np.random.Generator) -> Params:
        params = self.layer.init(rng)
        own: Params = {}
        for name, shape in self.shapes.items():
            if name.startswith(self.prefix):
                own[name] = rng.standard_normal(shape) / np.sqrt(shape[1]) if len(shape) == 2 else np.zeros(shape)
        taps = rng.standard_normal((self.layer.d_model, self.d_conv))
        own[self.prefix + "conv_w"] = 0.1 * taps / np.sqrt(self.d_conv)
        return params | astype(own, np.float32)

    def program(self) -> Program:
        p, own = Builder(self), self.prefix
        gate, value = (p(Dense(), p.x, f"{own}{name}_w", f"{own}{name}_bias") for name in ("gate", "value"))
        u = p(Conv(), value, own + "conv_w", own + "conv_bias")
        r = p(Inner(self.layer), u, *self.layer.shapes)
        return p.returns(p(Dense(), p(Product(), p(GELU(), gate), r), own + "out_w", own + "out_bias"), u=u)

    def _entering(self, params: Params, x: Array, ctx: Context, state: State) -> tuple[Array, Context, State]:
        inner = None if state is None else state[1:]
        return self.registers(params, x, ctx, state)["u"], ctx, split_state(self.layer, inner, 0)[0]
