"""Builds a model from its settings, the [model] and [layer] sections of a recipe."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, NotRequired, TypedDict, Unpack, overload

from rotrnn._cpu import MOST_NUMBERS
from rotrnn._support.settings import current, settle
from rotrnn._support.text import alike, an
from rotrnn.models.autoencoder import AutoEncoder
from rotrnn.models.classifier import MultiLabelClassifier, SequenceClassifier
from rotrnn.models.model import SequenceModel
from rotrnn.models.regressor import Regressor, StepRegressor, check_objective
from rotrnn.models.retrieval import Retrieval
from rotrnn.models.tagger import BitTagger, LanguageModel, Tagger
from rotrnn.nn.blocks.block import Block, FeedForwardBlock, ResidualBlock, ResidualStack
from rotrnn.nn.blocks.dense import Dense, Embedding, TiedDense
from rotrnn.nn.blocks.feed_forward import FeedForward
from rotrnn.nn.blocks.gate import FORMS, Activation, Dropout, Gate
from rotrnn.nn.blocks.norm import NORMS, BatchNorm, LayerNorm, RMSNorm
from rotrnn.nn.blocks.pool import POOLS
from rotrnn.nn.layer import Module, Params, Recurrent, flatten
from rotrnn.nn.layers.attention import Attention
from rotrnn.nn.layers.bidirectional import Bidirectional, has_directions
from rotrnn.nn.layers.griffin import Griffin
from rotrnn.nn.layers.stored_history import StoredHistory
from rotrnn.nn.registry import LAYERS
from rotrnn.ops.boundary import Boundary

BLOCKS = {
    "gated": "norm, layer, GELU, dropout, GLU, dropout: LRU, RotRNN, S5",
    "plain": "norm, layer, dropout: Mamba, whose layer includes a gate",
    "transformer": "norm, layer, dropout, then a second norm and a feed-forward net",
    "griffin": "as transformer, with the layer in the two branches of Griffin and a gated feed-forward net",
}


MOST_WIDTH = 2**22
"""Largest `d_model`: a square matrix of this width, in float32, is half of what a program can address."""
MOST_LAYERS = 10_000
"""Largest `n_layers`: well above the depth of any published model."""


@dataclass(frozen=True)
class ModelSettings:
    """The [model] section: a stack of `n_layers` blocks of width `d_model` around recurrent layers `layer`.

    ``block="griffin", norm="rms", attention_every=3, attention_kv_heads=1`` are the blocks of Griffin with `layer` as
    their recurrence, without attention the blocks of Hawk; the paper's layer is "rg_lru" (De et al. 2024;
    `rotrnn.nn.Griffin`, `rotrnn.nn.FeedForward` with `gated` and ``expand=3``, `rotrnn.Attention` with ``rotary="half",
    bias="out"``). RecurrentGemma (Botev et al. 2024) also has ``final_norm=True, norm_eps=1e-6, tied=True,
    scale_embedding=True, logit_cap=30``.

    Parameters
    ----------
    layer : str
        Name of the layer (a key of `rotrnn.LAYERS`). Its own settings are the section [layer].
    d_model, n_layers : int
        Number of channels, and of blocks.
    norm : str
        "batch", "layer" or "rms".
    glu : str
        End of a gated block: a gated linear unit in the form "full", "half1" or "half2" (`rotrnn.nn.Gate`), or "gelu"
        for the activation alone.
    dropout : float
        Share of numbers set to 0 in training.
    dropout_over_time : bool
        Whether all steps of a sequence have the same mask of dropout.
    pool : str
        Input of the head of a classifier or a regressor of whole sequences: "mean" for the mean over the steps, or
        "last" for the last step.
    block : str
        "gated", "plain", "transformer" or "griffin" (`rotrnn.models.build.BLOCKS`).
    prenorm : bool
        Whether the norm comes before the layer; otherwise it follows the residual sum.
    final_norm : bool
        Whether a norm follows the last block.
    norm_momentum : float
        Momentum of batch norm: the share that its running averages keep in each step.
    norm_eps : float, optional
        Added to the variance in norms; the default is 1e-5.
    tied : bool
        The matrix of the head is the table of the embedding (`rotrnn.nn.TiedDense`). For the heads "tagger" and
        "language", whose classes are then the token ids.
    scale_embedding : bool
        Vectors of tokens are multiplied by sqrt(d_model), rounded to bfloat16: 50.5 for 2560 (RecurrentGemma).
    logit_cap : float, optional
        The logits l are ``logit_cap tanh(l / logit_cap)`` (RecurrentGemma: 30). For the heads "tagger" and "language".
    objective : str, optional
        Loss of a regression: "mse" (the default), "mae" or "quantile".
    quantiles : tuple of float, optional
        For "quantile": increasing numbers between 0 and 1 (`rotrnn.Regressor`).
    attention_every : int, optional
        The layer of every n-th block is causal attention (`rotrnn.Attention`). The default is no attention.
    attention_window : int, optional
        Number of last steps that attention reads; the default is all.
    attention_heads : int, optional
        Number of heads of attention; the default is one.
    attention_kv_heads : int, optional
        Number of heads of keys and values, which attention's heads share; the default is as many as heads.
    """

    layer: str
    d_model: int
    n_layers: int
    norm: str = "batch"
    glu: str = "full"
    dropout: float = 0.0
    dropout_over_time: bool = False
    pool: str = "mean"
    block: str = "gated"
    prenorm: bool = True
    final_norm: bool = False
    norm_momentum: float = 0.9
    norm_eps: float | None = None
    tied: bool = False
    scale_embedding: bool = False
    logit_cap: float | None = None
    objective: str | None = None
    quantiles: tuple[float, ...] | None = None
    attention_every: int | None = None
    attention_window: int | None = None
    attention_heads: int | None = None
    attention_kv_heads: int | None = None

    def __post_init__(self) -> None:
        settle(self)
        for key, value, known in (
            ("layer", self.layer, LAYERS),
            ("norm", self.norm, NORMS),
            ("glu", self.glu, (*FORMS, "gelu")),
            ("pool", self.pool, POOLS),
            ("block", self.block, BLOCKS),
        ):
            if value not in known:
                raise ValueError(f"model.{key}: got '{value}', expected one of {', '.join(known)}{alike(value, known)}")
        for key, size, most in (("d_model", self.d_model, MOST_WIDTH), ("n_layers", self.n_layers, MOST_LAYERS)):
            if size < 1:
                raise ValueError(f"model.{key}: got {size}, expected a positive integer")
            if size > most:
                raise ValueError(f"model.{key}: got {size}, expected at most {most:,}")
        for key, share in (("dropout", self.dropout), ("norm_momentum", self.norm_momentum)):
            if not 0 <= share < 1:
                raise ValueError(f"model.{key}: got {share}, expected a number in [0, 1)")
        if self.norm_eps is not None and not self.norm_eps > 0:
            raise ValueError(f"model.norm_eps: got {self.norm_eps}, expected a positive number")
        if self.objective is not None or self.quantiles is not None:
            check_objective("model", **self.regression)
        if self.block in ("transformer", "griffin") and not self.prenorm:
            raise ValueError(f"model.prenorm: got false, expected true with block '{self.block}'")
        for key, least in (("every", 2), ("window", 1), ("heads", 1), ("kv_heads", 1)):
            size = getattr(self, f"attention_{key}")
            if size is not None and size < least:
                raise ValueError(f"model.attention_{key}: got {size}, expected an integer from {least}")
            if size is not None and self.attention_every is None:
                raise ValueError(f"model.attention_{key}: got {size}, expected none without attention_every")

    @property
    def regression(self) -> dict[str, Any]:
        """The settings of the heads of a regression."""
        return {"objective": self.objective or "mse", "quantiles": self.quantiles or ()}

    def make_norm(self) -> BatchNorm | LayerNorm | RMSNorm:
        """Returns the norm of a block."""
        kind = NORMS[self.norm]
        own = {"momentum": self.norm_momentum} if kind is BatchNorm else {}
        return kind(self.d_model, **own, **({} if self.norm_eps is None else {"eps": self.norm_eps}))

    def attends(self, place: int) -> bool:
        """Returns whether the layer of block number `place` is attention."""
        return self.attention_every is not None and (place + 1) % self.attention_every == 0

    def make_block(self, layer: Recurrent, place: int) -> Block:
        """Returns block number `place` of the stack, whose layer is `layer` unless it `attends`. Its dropouts use the
        sites 2 `place` and 2 `place` + 1."""
        D, site = self.d_model, 2 * place
        if self.attends(place):
            heads, groups = self.attention_heads or 1, self.attention_kv_heads
            own: dict[str, Any] = {"rotary": "half", "bias": "out"} if self.block == "griffin" else {}
            layer = Attention(D, heads=heads, window=self.attention_window, kv_heads=groups, **own)
        elif self.block == "griffin":
            layer = Griffin(D, layer)
        dropout = Dropout(self.dropout, self.dropout_over_time, site)
        if self.block == "gated":
            gate = Gate(D, self.glu, self.dropout, self.dropout_over_time, site) if self.glu in FORMS else None
            return ResidualBlock(self.make_norm(), layer, gate or Activation(dropout), self.prenorm)
        plain = ResidualBlock(self.make_norm(), layer, dropout, self.prenorm)
        if self.block == "plain":
            return plain
        gated = self.block == "griffin"
        feed_forward = FeedForward(D, 3 if gated else 4, self.dropout, self.dropout_over_time, site + 1, gated)
        return FeedForwardBlock(plain, self.make_norm(), feed_forward)


def make_layer(name: str, d_model: int, settings: dict[str, Any]) -> Recurrent:
    """Returns the layer of that name. If the settings have a dict `history`, it is in a `StoredHistory` with these
    settings. If the layer itself has no setting `bidirectional`, ``bidirectional=True`` wraps it in `Bidirectional`."""
    kind = LAYERS[name]
    own = dict(settings)
    history = own.pop("history", None)
    if not isinstance(history, dict | None):
        raise ValueError(f"{kind.__name__}: history={history!r}, expected a dict of settings of StoredHistory")
    wrap = False if has_directions(kind) else own.pop("bidirectional", False)
    if not isinstance(wrap, bool):
        raise ValueError(f"{kind.__name__}: bidirectional={wrap!r}, expected True or False")
    layer = _with_settings(kind, own, d_model=d_model)
    if history is not None:
        layer = _with_settings(StoredHistory, history, d_model=d_model, layer=layer)
    return Bidirectional(d_model, layer) if wrap else layer


def _with_settings(kind: type[Recurrent], own: dict[str, Any], **given: Any) -> Recurrent:
    """Returns the layer of a class with its own settings and the `given` settings, which cannot be set."""
    known = {one.name: one for one in fields(kind) if one.init and one.name not in given}
    own = current(kind, own)
    for name in own:
        if name not in known:
            raise ValueError(
                f"{kind.__name__}: unknown setting {name!r}, expected one of {', '.join(known)}{alike(name, known)}"
            )
    for name, one in known.items():
        if name not in own and one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{kind.__name__}: setting {name!r} ({one.type}) is missing")
    return kind(**given, **own)


_Layer = Recurrent | dict[str, Any]


class _Sizes(TypedDict):
    """The sizes passed to `build_model`."""

    n_classes: int
    vocab: NotRequired[int | None]
    n_features: NotRequired[int | None]


@overload
def build_model(
    settings: ModelSettings, layer: _Layer, *, head: Literal["classifier"] = "classifier", **sizes: Unpack[_Sizes]
) -> SequenceClassifier: ...
@overload
def build_model(
    settings: ModelSettings, layer: _Layer, *, head: Literal["tagger"], **sizes: Unpack[_Sizes]
) -> Tagger: ...
@overload
def build_model(
    settings: ModelSettings, layer: _Layer, *, head: Literal["bits"], **sizes: Unpack[_Sizes]
) -> BitTagger: ...
@overload
def build_model(
    settings: ModelSettings, layer: _Layer, *, head: Literal["language"], **sizes: Unpack[_Sizes]
) -> LanguageModel: ...
@overload
def build_model(
    settings: ModelSettings, layer: _Layer, *, head: Literal["retrieval"], **sizes: Unpack[_Sizes]
) -> Retrieval: ...
@overload
def build_model(
    settings: ModelSettings, layer: _Layer, *, head: Literal["multilabel"], **sizes: Unpack[_Sizes]
) -> MultiLabelClassifier: ...
@overload
def build_model(
    settings: ModelSettings, layer: _Layer, *, head: Literal["regressor"], **sizes: Unpack[_Sizes]
) -> Regressor: ...
@overload
def build_model(
    settings: ModelSettings, layer: _Layer, *, head: Literal["step_regressor"], **sizes: Unpack[_Sizes]
) -> StepRegressor: ...
@overload
def build_model(settings: ModelSettings, layer: _Layer, *, head: str, **sizes: Unpack[_Sizes]) -> SequenceModel: ...
def build_model(
    settings: ModelSettings,
    layer: _Layer,
    *,
    head: str = "classifier",
    n_classes: int,
    vocab: int | None = None,
    n_features: int | None = None,
) -> SequenceModel:
    """Returns a model for sequences of `vocab` token ids, or of `n_features` per step.

    `layer` is the recurrent layer of every block, or its settings as in the [layer] section. `head` is one of `HEADS`.
    For the heads "bits" and "multilabel", `n_classes` is the number of bits per step or sequence; for the heads
    "regressor" and "step_regressor", the number of targets.

    Raises
    ------
    TypeError
        `settings` or `layer` is of another type.
    ValueError
        A setting is unknown, missing or out of range, settings contradict each other, or the parameters are more than
        can be addressed.
    """
    if not isinstance(settings, ModelSettings):
        raise TypeError(f"build_model: settings is {an(type(settings).__name__)}, expected a ModelSettings")
    if not isinstance(layer, Recurrent | dict):
        raise TypeError(
            f"build_model: layer is {an(type(layer).__name__)}, expected a layer, or a dict of its settings"
        )
    if not isinstance(head, str) or head not in HEADS:
        raise ValueError(f"build_model: head is {head!r:.80}, expected one of {', '.join(HEADS)}")
    if (vocab is None) == (n_features is None):
        raise ValueError(f"build_model: vocab is {vocab} and n_features {n_features}, expected one of the two")
    args = Boundary("build_model")
    for name, size in (("n_classes", n_classes), ("vocab", vocab), ("n_features", n_features)):
        if size is not None:
            args.integer(name, size, 1)
    if head == "language" and n_classes != vocab:
        raise ValueError(f"build_model: n_classes is {n_classes}, expected vocab={vocab} with head 'language'")
    if head not in REGRESSIONS and (settings.objective is not None or settings.quantiles is not None):
        expected = f"expected none with head '{head}'"
        raise ValueError(f"build_model: the settings have an objective or quantiles, {expected}")
    if settings.scale_embedding and vocab is None:
        raise ValueError("build_model: the settings have scale_embedding, expected a model that reads token ids")
    if settings.logit_cap is not None and head not in TYING:
        cap = f"logit_cap={settings.logit_cap}"
        raise ValueError(f"build_model: the settings have {cap}, expected none with head '{head}'")
    if settings.tied and head not in TYING:
        raise ValueError(f"build_model: the settings are tied, expected tied=False with head '{head}'")
    if settings.tied and n_classes != vocab:
        what = f"n_classes is {n_classes} and vocab {vocab}"
        expected = "a model that reads token ids" if vocab is None else "as many classes as token ids"
        raise ValueError(f"build_model: {what}, expected {expected} with tied=True")
    D = settings.d_model
    one = layer if isinstance(layer, Recurrent) else make_layer(settings.layer, D, layer)
    if one.d_model != D:
        raise ValueError(f"build_model: layer has d_model={one.d_model}, expected {D} as in the settings")
    scale = bfloat16(math.sqrt(D)) if settings.scale_embedding else 1.0
    encoder = Dense(n_features, D) if n_features is not None else Embedding(vocab or 0, D, scale)

    def of(n_layers: int) -> SequenceModel:
        stack = ResidualStack(tuple(settings.make_block(_at(one, i), i) for i in range(n_layers)))
        return _model(head, settings, encoder, stack, n_classes)

    n, every = settings.n_layers, settings.attention_every
    smallest, attending = of(1), n // every if every else 0
    numbers = _numbers(smallest) + (n - 1 - attending) * _numbers(smallest.stack)
    if every and attending:
        numbers += attending * _numbers(settings.make_block(one, every - 1))
    if 4 * numbers > MOST_NUMBERS:
        what = f"d_model={D}, n_layers={settings.n_layers}, vocab={vocab}, n_classes={n_classes} and {one}"
        raise ValueError(f"build_model: {what} have {numbers:.2g} parameters, expected at most {MOST_NUMBERS // 4:.2g}")
    return of(n)


def sizes_of(params: Params, settings: ModelSettings) -> _Sizes:
    """Returns the sizes that `build_model` made a model of, from its parameters. ValueError if they have no such
    arrays."""
    shapes = {name: array.shape for name, array in flatten(params)}
    table, w, bias = (shapes.get(name, ()) for name in ("encoder.table", "encoder.w", "head.bias"))
    if len(bias) != 1 or (len(table), len(w)) not in ((2, 0), (0, 2)):
        got = ", ".join(name for name in shapes if name.startswith(("encoder.", "head."))) or "neither"
        raise ValueError(f"has the arrays {got:.80}, expected head.bias, and encoder.table or encoder.w")
    of_each = len(settings.regression["quantiles"]) or 1
    return {"n_classes": bias[0] // of_each, "vocab": table[0] if table else None, "n_features": w[1] if w else None}


def _numbers(module: Any) -> int:
    """Returns the number of elements of a module's parameters."""
    if not isinstance(module, Module):
        return 0
    return sum(map(math.prod, module.shapes.values())) + sum(map(_numbers, module.modules.values()))


def _at(layer: Recurrent, place: int) -> Recurrent:
    """Returns the layer for block number `place`: a layer that draws random numbers gets its own stream (`site`)."""
    if isinstance(layer, Bidirectional | StoredHistory):
        return replace(layer, layer=_at(layer.layer, place))
    return replace(layer, **{"site": place}) if any(one.name == "site" for one in fields(layer)) else layer


def bfloat16(value: float) -> float:
    """Returns a number rounded to 8 bits of mantissa, to even."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)


def _model(
    head: str, settings: ModelSettings, encoder: Dense | Embedding, stack: ResidualStack, n: int
) -> SequenceModel:
    """Returns the model with this head, for n classes, bits or targets."""
    D, pool, regression = settings.d_model, POOLS[settings.pool](), settings.regression
    norm = settings.make_norm() if settings.final_norm else None
    plain, logits = Dense(D, n), (TiedDense if settings.tied else Dense)(D, n)
    numbers = Dense(D, n * (len(regression["quantiles"]) or 1))
    match head:
        case "classifier":
            return SequenceClassifier(encoder, stack, pool, plain, norm=norm)
        case "multilabel":
            return MultiLabelClassifier(encoder, stack, pool, plain, norm=norm)
        case "retrieval":
            return Retrieval(encoder, stack, pool, Dense(4 * D, D), plain, norm=norm)
        case "regressor":
            return Regressor(encoder, stack, pool, numbers, **regression, norm=norm)
        case "step_regressor":
            return StepRegressor(encoder, stack, numbers, **regression, norm=norm)
        case "tagger":
            return Tagger(encoder, stack, logits, logit_cap=settings.logit_cap, norm=norm)
        case "language":
            return LanguageModel(encoder, stack, logits, logit_cap=settings.logit_cap, norm=norm)
        case "bits":
            return BitTagger(encoder, stack, plain, norm=norm)
        case _:
            norms = [settings.make_norm() for _ in range(3)]
            return AutoEncoder(encoder, stack, plain, norms[0], Dense(D, D), norms[1], Dense(D, D), norms[2], norm=norm)


REGRESSIONS = ("regressor", "step_regressor")
"""Heads whose labels are numbers."""
HEADS = ("classifier", "tagger", "bits", "language", "retrieval", "multilabel", *REGRESSIONS, "autoencoder")
"""Names of the heads of models."""
TYING = ("tagger", "language")
"""Heads whose classes can be the token ids."""
