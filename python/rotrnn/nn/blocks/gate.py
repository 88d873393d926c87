"""GELU, dropout, and the gated linear unit at the end of a block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.blocks.dense import Dense, DenseSaved
from rotrnn.nn.layer import EVALUATION, TRUSTED, Array, Context, Module, Params, trusted
from rotrnn.nn.listing import Listing
from rotrnn.nn.packing import Segments
from rotrnn.ops.block import GATE_KINDS, Gating
from rotrnn.ops.pointwise import dropout, dropout_backward, gelu, gelu_backward, glu, glu_backward

Counts = npt.NDArray[np.int64]


def _check_rate(module: Module, name: str) -> None:
    rate = getattr(module, name)
    if not 0 <= rate < 1:
        raise ValueError(f"{type(module).__name__}: {name}={rate!r}, expected a number in [0, 1)")


class GeluSaved(NamedTuple):
    """Input and lengths."""

    x: Array
    lengths: Counts | None


@dataclass(frozen=True)
class GELU(Module):
    """GELU in its tanh form. No params."""

    input_forms: ClassVar[tuple[str, ...]] = ("B T D", "B D")
    output_forms: ClassVar[tuple[str, ...]] = input_forms

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, GeluSaved]:
        return gelu(x, lengths=ctx.lengths), GeluSaved(x, ctx.lengths)

    def backward(self, params: Params, saved: GeluSaved, dy: Array) -> tuple[Array, Params]:
        return gelu_backward(dy, saved.x, lengths=saved.lengths), {}


def key_of(seed: int, step: int) -> npt.NDArray[np.int64]:
    """Returns (seed, step) as an array, to be saved: they are values that change in every training step."""
    return np.array([seed, step], np.int64)


class Mask(NamedTuple):
    """Key (seed, step) of an applied mask, places as in `Context`, lengths, and segments of a packed row."""

    key: npt.NDArray[np.int64]
    places: Counts | None
    lengths: Counts | None
    segments: Segments | None = None


@dataclass(frozen=True)
class Dropout(Module):
    """Sets elements to zero with probability `rate` in training, and scales the others by 1 / (1 - rate). No params.

    With `over_time` all steps of a sequence have the same mask. `site` makes the masks of a model's layers different.
    If there is no mask to apply, x itself is returned, with its padding unchanged.
    """

    rate: float
    over_time: bool = False
    site: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rate(self, "rate")
        self.check_sizes("site", least=0)

    @property
    def draws(self) -> bool:
        return self.rate > 0

    def emit(self, to: Listing, params: Params, x: int) -> int:
        return x

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, Mask | None]:
        if not (ctx.train and self.rate):
            return x, None
        if ctx.split is not None and not self.over_time:  # every piece would have the mask of the first
            raise ValueError(
                f"Dropout: rate={self.rate} with over_time=False, expected rate=0 or over_time=True, because sequences "
                "are split over processes"
            )
        mask = Mask(key_of(ctx.seed, ctx.step), ctx.places, ctx.lengths, ctx.segments)
        return self._with(dropout, x, ctx.seed, ctx.step, mask), mask

    def backward(self, params: Params, saved: Mask | None, dy: Array) -> tuple[Array, Params]:
        if saved is None:
            return dy, {}
        seed, step = saved.key.tolist()
        return self._with(dropout_backward, dy, seed, step, saved), {}

    def _with(self, function: Callable[..., Array], x: Array, seed: int, step: int, mask: Mask) -> Array:
        """Applies `dropout` or its adjoint. The sequences of a packed row have the same masks as in a batch."""
        applied = functools.partial(function, over_time=self.over_time, seed=seed, step=step, site=self.site)
        if mask.segments is None:
            return applied(x, self.rate, lengths=mask.lengths, places=mask.places)
        batches = ((mask.segments.batch(group, x), group) for group in mask.segments.groups)
        return mask.segments.packed(
            [applied(one, self.rate, lengths=group.lengths, places=group.places.rows) for one, group in batches]
        )


class ActivationSaved(NamedTuple):
    """The saved arrays of each part."""

    gelu: GeluSaved
    dropout: Mask | None


# the parts of a gate, created once because creating a module checks its settings
_GELU, _dropout, _dense = GELU(), functools.cache(Dropout), functools.cache(Dense)


@dataclass(frozen=True)
class Activation(Module):
    """GELU, then dropout: the end of a block without a gate (S5's "gelu"). No params."""

    dropout: Dropout

    @property
    def draws(self) -> bool:
        return self.dropout.draws

    def emit(self, to: Listing, params: Params, x: int) -> int:
        return to("GELU", x)

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, ActivationSaved]:
        z, gelu_saved = _GELU.forward({}, x, ctx)
        y, dropout_saved = self.dropout.forward({}, z, ctx)
        return y, ActivationSaved(gelu_saved, dropout_saved)

    def backward(self, params: Params, saved: ActivationSaved, dy: Array) -> tuple[Array, Params]:
        gelu_saved, dropout_saved = saved
        dz, _ = trusted(self.dropout.backward)({}, dropout_saved, dy)
        return trusted(_GELU.backward)({}, gelu_saved, dz)


FORMS = tuple(GATE_KINDS)


class GateSaved(NamedTuple):
    """The saved arrays of each part, and the two factors of the GLU."""

    gelu: GeluSaved
    dense: tuple[DenseSaved, DenseSaved | None]
    value: Array
    gate: Array
    masks: tuple[Mask | None, Mask | None]


@dataclass(frozen=True)
class Gate(Module):
    """The end of a block: GELU, dropout, GLU, dropout. With ``z = dropout(GELU(x))`` and the sigmoid s:

    - "full": ``dropout((W_v z + b_v) * s(W_g z + b_g))`` (LRU, fig. 1);
    - "half1": ``dropout(z * s(W_g z + b_g))``, the "half GLU" of LRU's Path-X;
    - "half2": ``dropout(x * s(W_g z + b_g))`` (S5).

    Its two dropouts have the sites `site` and `site` + 1. Use site 2i for block i of a stack; otherwise blocks share
    their masks. Params: "gate", and in the full form "value", each as in `Dense`.
    """

    d_model: int
    form: str = "full"
    dropout: float = 0.0
    over_time: bool = False
    site: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_model")
        self.check_sizes("site", least=0)
        _check_rate(self, "dropout")
        self.check_choice("form", FORMS)

    @property
    def modules(self) -> dict[str, Dense]:
        return dict.fromkeys(("value", "gate") if self.form == "full" else ("gate",), self._linear)

    @property
    def draws(self) -> bool:
        return self.dropout > 0

    @property
    def _linear(self) -> Dense:
        return _dense(self.d_model, self.d_model)

    def _dropout(self, place: int) -> Dropout:
        return _dropout(self.dropout, self.over_time, self.site + place)

    def emit(self, to: Listing, params: Params, x: int) -> int:
        z = to("GELU", x)
        gate = self._linear.emit(to, params["gate"], z)
        value = self._linear.emit(to, params["value"], z) if self.form == "full" else x if self.form == "half2" else z
        return to("GLU", value, gate)

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, GateSaved]:
        z, gelu_saved = _GELU.forward({}, x, ctx)
        z, first = self._dropout(0).forward({}, z, ctx)
        # the products need no lengths: z is zero at padding, and glu does not read padding
        gate, gate_saved = self._linear.forward(params["gate"], z, TRUSTED)
        value, value_saved = x if self.form == "half2" else z, None
        if self.form == "full":
            value, value_saved = self._linear.forward(params["value"], z, TRUSTED)
        y, second = self._dropout(1).forward({}, glu(value, gate, lengths=ctx.lengths), ctx)
        return y, GateSaved(gelu_saved, (gate_saved, value_saved), value, gate, (first, second))

    def backward(self, params: Params, saved: GateSaved, dy: Array) -> tuple[Array, Params]:
        dy, _ = trusted(self._dropout(1).backward)({}, saved.masks[1], dy)
        dvalue, dgate = glu_backward(dy, saved.value, saved.gate, lengths=saved.gelu.lengths)
        gate_saved, value_saved = saved.dense
        dz, dgate_params = trusted(self._linear.backward)(params["gate"], gate_saved, dgate)
        dparams = {"gate": dgate_params}
        if value_saved is not None:
            dz_value, dvalue_params = trusted(self._linear.backward)(params["value"], value_saved, dvalue)
            dparams = {"value": dvalue_params, **dparams}
            dz += dz_value
        elif self.form == "half1":
            dz += dvalue
        dz, _ = trusted(self._dropout(0).backward)({}, saved.masks[0], dz)
        dx, _ = trusted(_GELU.backward)({}, saved.gelu, dz)
        if self.form == "half2":
            dx += dvalue
        return dx, dparams

    def gating(self, params: Params, ctx: Context) -> Gating:
        """Returns this gate as an argument of `rotrnn.ops.residual_block`."""
        rate = self.dropout if ctx.train else 0.0
        value = params.get("value", {"w": None, "bias": None})
        weights = params["gate"]["w"], params["gate"]["bias"], value["w"], value["bias"]
        if not rate:
            return Gating(self.form, *weights)
        return Gating(self.form, *weights, rate, self.over_time, ctx.seed, ctx.step, self.site, places=ctx.places)

    @staticmethod
    def parameters(gating: Gating) -> Params:
        """Returns the params, or their gradients, in a `Gating`."""
        params: Params = {"gate": {"w": gating.w_gate, "bias": gating.b_gate}}
        if gating.w_value is not None:
            params = {"value": {"w": gating.w_value, "bias": gating.b_value}, **params}
        return params
