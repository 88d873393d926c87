"""The common parts of delta-rule layers: queries, keys and values behind a convolution, and initial values."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import Conv, Dense, Reshape, RMSNorm, SiLU, Split
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, astype, mask_steps, spectrum
from rotrnn.nn.layers.heads import ValueHeads, initial_steps
from rotrnn.nn.layers.selective_rope import UNIT_EPS
from rotrnn.nn.program import Builder, Register


@dataclass(frozen=True)
class DeltaHeads(ValueHeads):
    """The base of `rotrnn.KDA` and others. A subclass defines the shapes, the program, and the transition of a step."""

    lanes: ClassVar[str] = "expand d_model d_state + (d_conv - 1) (2 heads d_state + expand d_model)"
    recurrent: ClassVar[frozenset[str]] = frozenset({"A_log", "dt_bias"})  # without weight decay in the released code
    slowest: ClassVar[float] = 1.0
    """The least initial exp(A_log); the largest is 16."""

    heads: int = 1
    d_state: int = 16
    expand: int = 1
    d_conv: int = 4
    dt_min: float = 0.001
    dt_max: float = 0.1
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("heads", "d_state", "expand")
        self.check_sizes("d_conv", least=0)
        self.check_divisor("heads", self.inner, f"expand * d_model = {self.inner}")
        self.check_range("dt_min", "dt_max")
        self.check_positive("norm_eps")

    @property
    def groups(self) -> int:
        """The number of heads of queries and keys."""
        return self.heads

    @property
    def inputs_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters of `inputs`."""
        channels = 2 * self.groups * self.d_state + self.inner
        shapes: dict[str, tuple[int, ...]] = {"qkv_proj": (channels, self.d_model)}
        return shapes | ({"conv_w": (channels, self.d_conv)} if self.d_conv else {})

    def init(self, rng: np.random.Generator) -> Params:
        params: Params = {}
        for name, shape in self.shapes.items():
            if name == "dt_bias":
                params[name] = initial_steps(rng, self.dt_min, self.dt_max, shape)
            elif name == "A_log":
                params[name] = np.log(16 - (16 - self.slowest) * rng.random(shape))  # never log(0)
            elif name in ("norm", "feedback", "correction"):
                params[name] = np.ones(shape)
            else:
                fan_in = self.width if name == "gate_bias" else shape[1]
                params[name] = rng.uniform(-1, 1, shape) / np.sqrt(fan_in)
        return astype(params, np.float32)

    def inputs(self, p: Builder) -> tuple[Register, Register, Register]:
        """Writes q and k (1, `groups`, K) and v (H V,), the convolved projections through SiLU."""
        keys, shape = self.groups * self.d_state, (1, self.groups, self.d_state)
        q, k, v = p(Split((keys, keys, self.inner)), p(SiLU(), p(Conv(), p(Dense(), p.x, "qkv_proj"), "conv_w")))
        return p(Reshape(shape), q), p(Reshape(shape), k), v

    def unit(self, p: Builder, x: Register) -> Register:
        """Writes ``x / sqrt(|x|^2 + 1e-6)``, along the keys."""
        return p(RMSNorm(UNIT_EPS / self.d_state, 1 / math.sqrt(self.d_state)), x)

    @abstractmethod
    def transition(self, found: dict[str, Array], identity: Array, k: Array) -> Array:
        """Returns A_t (B, T, H, K, K) from the program's registers, with k (B, T, H, K, 1)."""

    def transitions(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the A_t (B, T, H, K, K) of ``h_t = A_t h_{t-1} + ...`` along sequences, one for each head. Zero
        beyond the lengths. Arguments and errors as in `forward`."""
        found = self.registers(params, x, ctx, state)
        k = found["k"][:, :, 0]
        identity = np.eye(self.d_state, dtype=k.dtype, like=k)
        return mask_steps(self.transition(found, identity, k[..., None]), ctx.lengths)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the eigenvalues of A_t (B, T, H, K), complex128, along sequences. Arguments as in `transitions`."""
        return spectrum(f"{type(self).__name__}.eigenvalues", self.transitions(params, x, ctx, state))
