"""The parameters of the short convolution in front of a recurrence, ``u = SiLU(conv(v))``: conv_w (channels, d_conv)
and conv_bias (channels,), with `of` "conv_w_of" and "conv_bias_of"."""

from __future__ import annotations

import numpy as np

from rotrnn.nn.layer import Params


def conv_names(of: str = "") -> tuple[str, str]:
    """Returns the names of the parameters."""
    suffix = f"_{of}" if of else ""
    return f"conv_w{suffix}", f"conv_bias{suffix}"


def conv_shapes(channels: int, d_conv: int, of: str = "") -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of the parameters; none for d_conv = 0, which stands for no convolution."""
    return dict(zip(conv_names(of), ((channels, d_conv), (channels,)), strict=True)) if d_conv else {}


def initial_conv(rng: np.random.Generator, channels: int, d_conv: int, of: str = "") -> Params:
    """Returns initial parameters, uniform on +-1/sqrt(d_conv) as in Mamba's released code."""
    shapes = conv_shapes(channels, d_conv, of)
    return {name: rng.uniform(-1, 1, shape) / np.sqrt(d_conv) for name, shape in shapes.items()}
