"""Causal multi-head attention as a layer whose state is a key-value cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import CausalAttention, Dense, Reshape, Turn
from rotrnn.nn.layer import Array, Params, astype
from rotrnn.nn.layers.selective_rope import PAIRS, check_rope, initial_rope, rope_angles, rope_shapes
from rotrnn.nn.program import Builder, Program, Programmed


@dataclass(frozen=True)
class Attention(Programmed):
    """Causal multi-head self-attention, ``y = W_out attention(W_q u, W_k u, W_v u)`` (`rotrnn.ops.attention`).

    Queries have `heads` heads, keys and values `kv_heads`: a divisor of `heads`, by default as many. Head h of the
    queries reads head ``h kv_heads // heads`` of keys and values, so successive heads share one. With
    ``kv_heads=1``, it is multi-query attention (Shazeer 2019), with a number between, grouped-query attention (Ainslie
    et al. 2023): the state is smaller by that factor, ``K = d_model kv_heads / heads``.

    With `rotary`, queries and keys have rotary position embeddings (`rotrnn.ops.rotary`); without, positions enter only
    through the causal mask. With ``rotary="half"`` the first half of each head's channels turns, as in Griffin (De et
    al. 2024; google-deepmind/recurrentgemma). With `window`, a step attends to this number of steps, including itself
    (the same paper's local attention). `bias` adds a bias to each of the four maps, ``bias="out"`` only to the last
    map, as in Griffin.

    With `rope_base`, a number from 1, there is Selective RoPE in place of positions (2025, arXiv 2511.17388; `rotary`
    is False): q and k turn, in pairs of lanes i and i + P/2 of a head of width P, by angles that add up over time,
    ``c_t = c_{t-1} + theta_t``, ``theta_t = (conv(W_2 W_1 u) + e^b) rope_base^{-2i/P}`` with W_2 W_1 of rank
    `rope_rank`, a convolution of 4 taps, e^b only with `rope_bias`, and u the input with each head's P channels
    divided by sqrt(|u|^2 + 1e-6). A score depends on the sum of the angles of the tokens between both. `kv_heads` is
    then not set.

    Parameters (dict of float32): w_q, w_out (D, D), w_k, w_v (K, D), each ~ N(0, 1/D); with `bias` b_q, b_out (D,),
    b_k, b_v (K,), zero; with `rope_base` rope_down (rank, D), rope_up (D/2, rank), rope_conv (D/2, 4), uniform on
    +-1/sqrt(fan-in), with `rope_bias` rope_bias (D/2,), zero.

    Its state is (keys (B, S, K), values (B, S, K), places (B,) int64), where places is the number of steps so far. For
    sequence b, the first places[b] rows are used, and the others are zero. With `window` there are ``S = window - 1``
    rows, of the last steps: with its own key, a step reads `window`. Without it the state grows by one row per step,
    and so does the time of a step. With `rope_base` keys are stored turned, and the state begins with the last 3 inputs
    of the convolution of angles (B, 3, D/2), and c (B, 2, heads, P/2), the angles and their rounding errors.
    """

    about: ClassVar[str] = "causal multi-head attention, with rotary positions"
    paper: ClassVar[str] = 'Vaswani et al. 2017, "Attention Is All You Need"; Su et al. 2021, "RoFormer"'
    recurrent: ClassVar[frozenset[str]] = frozenset()
    lanes: ClassVar[str] = "2 d_model t"

    heads: int = 1
    rotary: bool | str = True
    base: float = 10_000.0
    window: int | None = None
    bias: bool | str = False
    kv_heads: int | None = None
    rope_base: float | None = None
    rope_rank: int = 16
    rope_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("heads", "window", "kv_heads")
        self.check_divisor("heads", self.d_model, f"d_model={self.d_model}")
        self.check_divisor("kv_heads", self.heads, f"heads={self.heads}", self.groups)
        for name, choice in (("rotary", "half"), ("bias", "out")):
            value = getattr(self, name)
            if isinstance(value, str) and value != choice:
                raise ValueError(f"Attention: {name}={value!r}, expected True, False or {choice!r}")
        width = self.d_model // self.heads
        if self.rotary == "half" and width % 4:
            expected = "a multiple of 4 for rotary='half'"
            raise ValueError(f"Attention: heads={self.heads} of width {width}, expected {expected}")
        if (self.rotary or self.rope_base is not None) and width % 2:
            name = "rotary=True" if self.rotary else "rope_base"
            raise ValueError(f"Attention: heads={self.heads} of width {width}, expected an even one for {name}")
        self.check_positive("base")
        check_rope(self, "heads")
        if self.rope_base is not None and self.rotary:
            raise ValueError(f"Attention: rotary={self.rotary!r}, expected False with rope_base")
        if self.rope_base is not None and self.groups != self.heads:
            raise ValueError(f"Attention: kv_heads={self.kv_heads}, expected None with rope_base")

    @property
    def d_state(self) -> int:
        """The width of a head."""
        return self.d_model // self.heads

    @property
    def groups(self) -> int:
        """The number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def kept(self) -> int:
        """K, the width of keys and values."""
        return self.d_model // self.heads * self.groups

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, K = self.d_model, self.kept
        widths = {"q": D, "k": K, "v": K, "out": D}
        weights: dict[str, tuple[int, ...]] = {f"w_{map}": (width, D) for map, width in widths.items()}
        biases = {f"b_{map}": (width,) for map, width in widths.items() if self.bias in (True, map)}
        return weights | biases | rope_shapes(self, self.heads)

    def init(self, rng: np.random.Generator) -> Params:
        return astype({name: _initial(rng, name, shape) for name, shape in self.shapes.items()}, np.float32)

    def program(self) -> Program:
        p, D, heads = Builder(self), self.d_model, (self.heads, self.d_state)
        v, q, k = (p(Dense(), p.x, f"w_{map}", f"b_{map}") for map in "vqk")
        if self.rope_base is not None:
            vectors = (p(Reshape(heads), one) for one in (q, k))
            turned = p(Turn(PAIRS), rope_angles(p, self, self.heads), *vectors)
            q, k = (p(Reshape((D,)), one) for one in turned)
        turning = self.d_state if self.rotary is True else self.d_state // 2 if self.rotary else 0
        mixed = p(CausalAttention(self.heads, self.window, turning, self.base), q, k, v)
        return p.returns(p(Dense(), mixed, "w_out", "b_out"))


def _initial(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Returns the initial value of a parameter."""
    if name.startswith("rope_"):
        return initial_rope(rng, name, shape)
    return rng.standard_normal(shape) / np.sqrt(shape[1]) if len(shape) == 2 else np.zeros(shape)
