"""Causal multi-head attention as a layer whose state is a key-value cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import empty
from rotrnn.nn.instructions import Dense, Reshape, Turn
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
    state_leaves,
    trusted,
)
from rotrnn.nn.layers.selective_rope import PAIRS, check_rope, initial_rope, rope_angles, rope_shapes
from rotrnn.nn.listing import Listing
from rotrnn.nn.program import Builder, Program, Programmed, ProgramSaved
from rotrnn.ops.attention import attention, attention_backward, rotary, rotary_backward
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.pointwise import mask_padding

Counts = npt.NDArray[np.int64]


class AttentionSaved(NamedTuple):
    """Saved for backward: input with zeroed padding; queries, keys and values (cached and new ones, K wide), and the
    results of the op; the numbers (B,) of earlier positions, of cached keys and of valid steps; lengths, and the
    layer's window; and the saved arrays of `TurnedKeys`."""

    x: Array
    q: Array
    keys: Array
    values: Array
    mixed: Array
    norm: Array
    place: Counts
    past: Counts
    steps: Counts
    lengths: Counts | None
    window: int | None
    turned: ProgramSaved | None

    @property
    def state(self) -> tuple[Any, ...]:
        """The state after x. Without a window, its number of rows is the number of steps of the longest sequence."""
        count, angles = self.past + self.steps, () if self.turned is None else state_leaves(self.turned.state)
        kept = (_last(rows, count, self.window) for rows in (self.keys, self.values))
        return *kept, self.place + self.steps, *angles


@dataclass(frozen=True)
class TurnedKeys(Programmed):
    """The queries, y, and the keys, the vectors h, of attention with Selective RoPE: both turned by angles of the input
    that add up, separately for each head. Its parameters are the corresponding ones of `Attention`."""

    heads: int
    bias: bool
    rope_base: float
    rope_rank: int
    rope_bias: bool

    @property
    def d_state(self) -> int:
        """The width of a head."""
        return self.d_model // self.heads

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D = self.d_model
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("w_q", "w_k"), (D, D))
        return shapes | (dict.fromkeys(("b_q", "b_k"), (D,)) if self.bias else {}) | rope_shapes(self, self.heads)

    def init(self, rng: np.random.Generator) -> Params:
        return astype({name: _initial(rng, name, shape) for name, shape in self.shapes.items()}, np.float32)

    def program(self) -> Program:
        """The state is the last 3 inputs of the convolution of angles (B, 3, D/2), and c (B, 2, heads, D/(2 heads)),
        the angles and their rounding errors."""
        p, D, heads = Builder(self), self.d_model, (self.heads, self.d_state)
        q, k = (p(Reshape(heads), p(Dense(), p.x, f"w_{map}", f"b_{map}")) for map in "qk")
        q, k = p(Turn(PAIRS), rope_angles(p, self, self.heads), q, k)
        return p.returns(p(Reshape((D,)), q), h=k)


@dataclass(frozen=True)
class Attention(Recurrent):
    """Causal multi-head self-attention, ``y = W_out attention(W_q u, W_k u, W_v u)`` (`rotrnn.ops.attention`).

    Queries have `heads` heads, keys and values `kv_heads`: a divisor of `heads`, by default as many. Head h of the
    queries reads head ``h kv_heads // heads`` of keys and values, so successive heads share one. With
    ``kv_heads=1``, it is multi-query attention (Shazeer 2019), with a number between, grouped-query attention (Ainslie
    et al. 2023): the state is smaller by that factor, ``K = d_model kv_heads / heads``.

    With `rotary`, queries and keys have rotary position embeddings (`rotrnn.ops.rotary`); without, positions enter only
    through the causal mask. With ``rotary="half"`` the first half of each head's channels turns, as in Griffin (De et
    al. 2024; google-deepmind/recurrentgemma). With `window`, a step attends to this number of steps, including itself.
    `bias` adds a bias to each of the four maps, ``bias="out"`` only to the last map, as in Griffin.

    With `rope_base`, a number from 1, there is Selective RoPE in place of positions (2025, arXiv 2511.17388; `rotary`
    is False): q and k turn, in pairs of lanes i and i + P/2 of a head of width P, by angles that add up over time,
    ``c_t = c_{t-1} + theta_t``, ``theta_t = (conv(W_2 W_1 u) + e^b) rope_base^{-2i/P}`` with W_2 W_1 of rank
    `rope_rank`, a convolution of 4 taps, e^b only with `rope_bias`, and u the input with each head's P channels at unit
    length. A score depends on the sum of the angles of the tokens between both. `kv_heads` is then not set.

    Parameters (dict of float32): w_q, w_out (D, D), w_k, w_v (K, D), each ~ N(0, 1/D); with `bias` b_q, b_out (D,),
    b_k, b_v (K,), zero; with `rope_base` rope_down (rank, D), rope_up (D/2, rank), rope_conv (D/2, 4), uniform on
    +-1/sqrt(fan-in), with `rope_bias` rope_bias (D/2,), zero.

    Its state is (keys (B, S, K), values (B, S, K), places (B,) int64), where places is the number of steps so far. For
    sequence b, the first places[b] rows are used, and the others are zero. With `window` there are ``S = window - 1``
    rows, of the last steps: with its own key, a step reads `window`. Without it the state grows by one row per step,
    and so does the time of a step. With `rope_base` keys are stored turned, and the state also has the last 3 inputs of
    the convolution of angles (B, 3, D/2), and c (B, 2, heads, P/2), the angles and their rounding errors.
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
        self.check_sizes("heads", *(name for name in ("window", "kv_heads") if getattr(self, name) is not None))
        if self.d_model % self.heads:
            raise ValueError(f"Attention: heads={self.heads}, expected a divisor of d_model={self.d_model}")
        if self.heads % self.groups:
            raise ValueError(f"Attention: kv_heads={self.kv_heads}, expected a divisor of heads={self.heads}")
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
        if not 0 < self.base < np.inf:
            raise ValueError(f"Attention: base={self.base}, expected a positive number")
        check_rope(self, "heads")
        if self.rope_base is not None and self.rotary:
            raise ValueError(f"Attention: rotary={self.rotary!r}, expected False with rope_base")
        if self.rope_base is not None and self.groups != self.heads:
            raise ValueError(f"Attention: kv_heads={self.kv_heads}, expected None with rope_base")

    @property
    def d_state(self) -> int:
        """The width of a head."""
        return self.d_model // self.heads

    @cached_property
    def turned(self) -> TurnedKeys | None:
        """The layer that computes queries and keys with `rope_base`."""
        if self.rope_base is None:
            return None
        return TurnedKeys(self.d_model, self.heads, self.bias is True, self.rope_base, self.rope_rank, self.rope_bias)

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

    @property
    def state_form(self) -> StateForm:
        rows = None if self.window is None else self.window - 1
        kept = StateArray("keys", (rows, self.kept)), StateArray("values", (rows, self.kept))
        angles = () if self.turned is None else state_leaves(self.turned.state_form)
        return *kept, StateArray("places", (), "integer"), *angles

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        super().check_state(args, name, state)
        if state is None or name.startswith("d") or any(one is None for one in state):
            return
        keys, values, places = state[:3]
        rows = keys.shape[1]
        if values.shape[1] != rows:
            raise ValueError(
                f"{args.op}: {name} has {rows} keys and {values.shape[1]} values, expected as many of each"
            )
        if any(not 0 <= kept <= rows for kept in _kept(places, self.window).tolist()):
            raise ValueError(
                f"{args.op}: {name}.places is {places}, expected the number of steps so far, of which {name}.keys has "
                f"{rows}"
            )

    def init(self, rng: np.random.Generator) -> Params:
        return astype({name: _initial(rng, name, shape) for name, shape in self.shapes.items()}, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, AttentionSaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` continues an earlier call."""
        return self._run(params, x, ctx, state)

    def emit(self, to: Listing, params: Params, x: int) -> int:
        if self.turned is not None:
            found = self.turned.emitted(to, self._of_turned(params), x)
            q, k = found["y"], to("Reshape", found["h"], shape=(self.d_model,))
            v = to("Dense", x, params["w_v"], params.get("b_v"))
        else:
            q, k, v = (to("Dense", x, params[f"w_{map}"], params.get(f"b_{map}")) for map in "qkv")
        if self.rotary:
            rotated: dict[str, Any] = {"rotated": self.d_model // self.heads // 2} if self.rotary == "half" else {}
            q, k = (
                to("Rotary", one, heads=heads, base=self.base, **rotated, shapes=((heads * self.d_state,),))
                for one, heads in ((q, self.heads), (k, self.groups))
            )
        shapes = (self.d_model,), (self.kept,), (self.kept,)
        mixed = to("Attention", q, k, v, heads=self.heads, window=self.window, shapes=shapes)
        y: int = to("Dense", mixed, params["w_out"], params.get("b_out"))
        return y

    def _run(self, params: Params, x: Array, ctx: Context, state: State) -> tuple[Array, AttentionSaved]:
        x = mask_padding(x, ctx.lengths)
        B, T, _ = x.shape
        steps = np.full(B, T) if ctx.lengths is None else ctx.lengths
        turned, angles = None, None if state is None else state[3:]
        if self.turned is not None:
            q, turned = trusted(self.turned.forward)(self._of_turned(params), x, ctx, angles)
            k: Any = self.turned.hidden_states(turned)
            v = dense(x, params["w_v"], params.get("b_v"))
        else:
            q, k, v = (dense(x, params[f"w_{map}"], params.get(f"b_{map}")) for map in "qkv")
        if state is None:
            state = *np.zeros((2, B, 0, self.kept), x.dtype, like=x), np.zeros(B, np.int64)
        kept_keys, kept_values, place = state[:3]
        past = _kept(place, self.window)
        if self.rotary:
            q, k = self._turned(rotary, q, self.heads, place), self._turned(rotary, k, self.groups, place)
        keys, values = _append(kept_keys, k, past, ctx.lengths), _append(kept_values, v, past, ctx.lengths)
        each_k, each_v = self._spread(keys), self._spread(values)
        mixed, norm = attention(q, each_k, each_v, heads=self.heads, lengths=ctx.lengths, past=past, window=self.window)
        y = mask_padding(dense(mixed, params["w_out"], params.get("b_out")), ctx.lengths)
        return y, AttentionSaved(x, q, keys, values, mixed, norm, place, past, steps, ctx.lengths, self.window, turned)

    def backward(
        self, params: Params, saved: AttentionSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, gradient of forward's `state`, or of the zero state if it was None)."""
        lengths, past, steps = saved.lengths, saved.past, saved.steps
        dy = mask_padding(dy, lengths)
        dmixed, dw_out, db_out = dense_backward(dy, saved.mixed, params["w_out"])
        grads = attention_backward(
            dmixed, saved.q, self._spread(saved.keys), self._spread(saved.values), saved.mixed, saved.norm,
            heads=self.heads, lengths=lengths, past=past, window=self.window,
        )  # fmt: skip
        dkeys, dvalues = self._spread_backward(grads.dk), self._spread_backward(grads.dv)
        if dstate is not None:
            rows = saved.state[0].shape
            for drows, dlast, name in ((dkeys, dstate[0], "keys"), (dvalues, dstate[1], "values")):
                if dlast is None:
                    continue
                if dlast.shape != rows:
                    raise ValueError(f"Attention.backward: dstate.{name} has shape {dlast.shape}, expected {rows}")
                self._last_backward(drows, dlast, past + steps)
        S = saved.keys.shape[1] - saved.x.shape[1]
        kept = S if self.window is None else self.window - 1
        dkept_keys, dk = _append_backward(dkeys, S, kept, past, steps)
        dkept_values, dv = _append_backward(dvalues, S, kept, past, steps)
        dq = grads.dq
        if self.rotary:
            dq = self._turned(rotary_backward, dq, self.heads, saved.place)
            dk = self._turned(rotary_backward, dk, self.groups, saved.place)
        dx, dparams, maps = (
            np.zeros_like(saved.x),
            {"w_out": dw_out, "b_out": db_out},
            [("q", dq), ("k", dk), ("v", dv)],
        )
        dangles: Any = ()
        if self.turned is not None and saved.turned is not None:
            given = self._of_turned(params), saved.turned, dq, None if dstate is None else dstate[3:], dk
            dx, own, dangles = trusted(self.turned.backward)(*given)
            dparams, maps = dparams | own, maps[2:]
        for map, done in maps:
            part, dparams[f"w_{map}"], dparams[f"b_{map}"] = dense_backward(done, saved.x, params[f"w_{map}"])
            dx += part
        dstate0 = dkept_keys, dkept_values, np.zeros(saved.place.shape), *dangles
        return dx, {name: dparams[name] for name in self.shapes}, dstate0

    def _of_turned(self, params: Params) -> Params:
        return {} if self.turned is None else {name: params[name] for name in self.turned.shapes}

    def _turned(self, turn: Callable[..., Array], x: Array, heads: int, place: Counts) -> Array:
        """Returns x (B, T, heads * width) turned by its positions, or only the first half of each head."""
        if self.rotary != "half":
            return turn(x, heads=heads, past=place, base=self.base)
        halves = x.reshape(*x.shape[:2], heads, 2, self.d_model // self.heads // 2).copy()
        first = halves[:, :, :, 0].reshape(*x.shape[:2], x.shape[-1] // 2)
        halves[:, :, :, 0] = turn(first, heads=heads, past=place, base=self.base).reshape(halves[:, :, :, 0].shape)
        return halves.reshape(x.shape)

    def _spread(self, rows: Array) -> Array:
        """Returns (B, S, D) of keys or values (B, S, K): each head repeated for the heads of queries that read it."""
        if self.groups == self.heads:
            return rows
        B, S, K = rows.shape
        each = empty((B, S, self.groups, self.heads // self.groups, K // self.groups), rows.dtype, like=rows)
        each[...] = rows.reshape(B, S, self.groups, 1, K // self.groups)
        return each.reshape(B, S, self.d_model)

    def _spread_backward(self, deach: Array) -> Array:
        """Adjoint of `_spread`."""
        if self.groups == self.heads:
            return deach
        B, S, D = deach.shape
        drows: Array = deach.reshape(B, S, self.groups, self.heads // self.groups, D // self.heads).sum(3)
        return drows.reshape(B, S, self.kept)

    def _last_backward(self, drows: Array, dlast: Array, count: Counts) -> None:
        """Adds the adjoint of `_last` to drows."""
        for b, (kept, end) in enumerate(zip(_kept(count, self.window), count, strict=True)):
            drows[b, end - kept : end] += dlast[b, :kept]

    def prepare(self, params: Params) -> Params:
        """Returns the checked parameters."""
        return params

    def step(self, params: Params, state: State, x_t: Array, prepared: Params | None = None) -> tuple[Array, State]:
        y, saved = self._run(params if prepared is None else prepared, x_t[:, None], EVALUATION, state)
        return y[:, 0], saved.state


def _initial(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Returns the initial value of a parameter."""
    if name.startswith("rope_"):
        return initial_rope(rng, name, shape)
    value: Array = rng.standard_normal(shape) / np.sqrt(shape[1]) if len(shape) == 2 else np.zeros(shape)
    return value


def _kept(places: Counts, window: int | None) -> Counts:
    """Returns the number of steps that a state keeps after `places` steps."""
    return places if window is None else np.minimum(places, window - 1)


def _last(rows: Array, count: Counts, window: int | None) -> Array:
    """Returns the last rows among the first count[b] rows of each sequence b, which a state keeps."""
    B, S, D = rows.shape
    if window is None:
        most = int(count.max(initial=0))
        return rows if most == S else rows[:, :most].copy()
    last = np.zeros((B, window - 1, D), rows.dtype, like=rows)
    for b, (kept, end) in enumerate(zip(_kept(count, window), count, strict=True)):
        last[b, :kept] = rows[b, end - kept : end]
    return last


def _append(kept: Array, new: Array, past: Counts, lengths: Counts | None) -> Array:
    """Returns (B, S + T, D): for each sequence b, past[b] rows of kept (B, S, D), then the valid rows of new (B, T, D),
    then zeros."""
    (B, S, D), T = kept.shape, new.shape[1]
    if S == 0:
        return mask_padding(new, lengths)
    steps = np.full(B, T) if lengths is None else lengths
    rows = empty((B, S + T, D), np.result_type(kept, new), like=new)
    for b, (before, count) in enumerate(zip(past, steps, strict=True)):
        rows[b, :before] = kept[b, :before]
        rows[b, before : before + count] = new[b, :count]
        rows[b, before + count :] = 0
    return rows


def _append_backward(drows: Array, S: int, kept: int, past: Counts, steps: Counts) -> tuple[Array, Array]:
    """Adjoint of `_append`: returns the gradients of kept, with `kept` rows even if it had none, and of new."""
    B, rows, D = drows.shape
    dkept = np.zeros((B, kept, D), drows.dtype, like=drows)
    if S == 0:
        return dkept, drows  # it is zero where there is no key
    dnew = np.zeros((B, rows - S, D), drows.dtype, like=drows)
    for b, (before, count) in enumerate(zip(past, steps, strict=True)):
        dkept[b, :before] = drows[b, :before]
        dnew[b, :count] = drows[b, before : before + count]
    return dkept, dnew
