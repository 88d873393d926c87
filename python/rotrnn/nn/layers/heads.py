"""Common parts of layers with heads of channels and positive step sizes."""

from __future__ import annotations

import math

import numpy as np

from rotrnn.nn.layer import Array
from rotrnn.nn.program import Programmed

WIDTH = 64
"""Channels of a head in the released models."""


class Heads(Programmed):
    """The sizes of a layer with I = `expand` * `d_model` channels in heads of `d_head` each."""

    expand: int
    d_head: int | str

    def check_heads(self) -> None:
        """Checks `expand` and `d_head`."""
        self.check_sizes("expand", "d_head")
        self.check_divisor("d_head", self.inner, f"expand * d_model={self.inner}", self.width)

    @property
    def inner(self) -> int:
        """I, the number of channels of the scan."""
        return self.expand * self.d_model

    @property
    def width(self) -> int:
        """P, the number of channels of a head."""
        return math.gcd(self.inner, WIDTH) if isinstance(self.d_head, str) else self.d_head

    @property
    def heads(self) -> int:
        """H, the number of heads."""
        return self.inner // self.width


class ValueHeads(Programmed):
    """The sizes of a layer of H = `heads` heads whose values have together `expand` * `d_model` numbers."""

    heads: int
    expand: int

    @property
    def inner(self) -> int:
        """The number of value channels, of a step."""
        return self.expand * self.d_model

    @property
    def width(self) -> int:
        """The size of a head's value."""
        return self.inner // self.heads


def initial_steps(rng: np.random.Generator, low: float, high: float, shape: tuple[int, ...], least: float = 0) -> Array:
    """Returns b with softplus(b) log-uniform on [low, high], but at least `least`: initial step sizes."""
    dt = np.maximum(np.exp(rng.uniform(np.log(low), np.log(high), shape)), least)
    return dt + np.log(-np.expm1(-dt))
