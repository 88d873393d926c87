"""Models with an output per step: taggers (a class per token), bit taggers and language models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn._cpu import MOST_STEPS
from rotrnn.models.files import loadable
from rotrnn.models.model import IGNORED, Loss, ModelSaved, SequenceModel
from rotrnn.models.stream import Stream
from rotrnn.nn.blocks.dense import Dense, TiedDense
from rotrnn.nn.layer import TRUSTED, Array, Context, Gather, Params, State, trusted
from rotrnn.nn.packing import check_segments
from rotrnn.ops.boundary import INTEGERS, Boundary, rename
from rotrnn.ops.pointwise import binary_cross_entropy, check_indices, cross_entropy, loss_weights, tanh, tanh_backward


@loadable
@dataclass(frozen=True)
class Tagger(SequenceModel):
    """Logits (B, T, C), one class per token. Params of the head: "head", a `Dense`, or a `TiedDense`.

    With `logit_cap`, a logit l is ``logit_cap tanh(l / logit_cap)``, below the cap (RecurrentGemma, Botev et al. 2024:
    30).
    """

    head: Dense
    logit_cap: float | None = field(default=None, kw_only=True)

    labels_form: ClassVar[str] = "B T"
    logits_form: ClassVar[str] = "B T C"
    entropy: ClassVar[Callable[..., tuple[float, Array]]] = staticmethod(cross_entropy)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logit_cap is not None and not 0 < self.logit_cap < math.inf:
            raise ValueError(f"{type(self).__name__}: logit_cap={self.logit_cap}, expected a positive number or None")

    @property
    def heads(self) -> dict[str, Dense]:
        return {"head": self.head}

    output_forms: ClassVar[tuple[str, ...]] = ("B T C",)
    ties: ClassVar[bool] = True

    @property
    def tied(self) -> bool:
        """Whether the matrix of the head is the table of the embedding."""
        return isinstance(self.head, TiedDense)

    def head_params(self, params: Params) -> Params:
        """Returns the parameters of the head, with its matrix if it is tied."""
        own: Params = params["head"]
        return {**own, "w": params["encoder"]["table"]} if self.tied else own

    def init(self, rng: np.random.Generator) -> Params:
        """As `SequenceModel.init`; the table of a tied head is N(0, 1/D), like the matrix of a `Dense`, so the logits
        of a normed x have variance 1."""
        params = super().init(rng)
        if self.tied:
            params["encoder"]["table"] *= np.float32(math.sqrt(self.head.d_out / self.head.d_in))
        return params

    def head_forward(self, params: Params, x: Array, ctx: Context) -> tuple[Array, Any]:
        logits, saved = self.head.forward(self.head_params(params), x, ctx)
        if self.logit_cap is None:
            return logits, saved
        share = tanh(logits / self.logit_cap)
        return self.logit_cap * share, (saved, share)

    def head_backward(
        self, params: Params, saved: Any, dlogits: Array, gather: Gather | None = None
    ) -> tuple[Array, Params]:
        if self.logit_cap is not None:
            saved, share = saved
            dlogits = tanh_backward(dlogits, share)
        dx, dhead = trusted(self.head.backward)(self.head_params(params), saved, dlogits)
        return dx, {"head": dhead}

    def backward_all(
        self, params: Params, saved: ModelSaved, dlogits: Array, dstate: State = None, gather: Gather | None = None
    ) -> tuple[Array | None, Params, State]:
        """Like `SequenceModel.backward_all`; the gradient of a tied matrix is the sum over its two uses."""
        dinputs, dparams, dstate0 = trusted(super().backward_all)(params, saved, dlogits, dstate, gather)
        if self.tied:
            dparams["encoder"]["table"] += dparams["head"].pop("w")
        return dinputs, dparams, dstate0

    def read(self, params: Params, state: State, x: Array, lengths: Array | None) -> tuple[Array, State]:
        """Returns logits (B, T, C) of the tokens of x only."""
        return self.head_forward(params, x, TRUSTED.checked(lengths))[0], None

    def loss(self, logits: Array, labels: Array, lengths: Array | None = None, weights: Array | None = None) -> Loss:
        """Returns the `Loss` of logits (B, T, C) for labels (B, T), by `weights` (B,) of sequences if given.

        Labels `IGNORED` (-1) do not count, nor do labels from step `lengths[b]` on in sequence b. Without `lengths`
        every step counts, also if `forward` was given lengths.
        """
        args = Boundary(f"{type(self).__name__}.loss")
        labels, counted = self._counted(args, labels, lengths)
        logits = args.array("logits", logits, self.logits_form)
        of_sequences = loss_weights(args, "weights", weights, labels.shape[:1], logits)
        of_steps = None if of_sequences is None else of_sequences[:, None].repeat(labels.shape[1], 1)
        try:
            given = np.where(counted, labels, IGNORED)
            mean, dlogits = self.entropy(logits, given, ignored=IGNORED, sample_weights=of_steps, **self.weighted)
        except ValueError as error:
            rename(error, f"{self.entropy.__name__}:", f"{args.op}:")
            raise
        return Loss(mean, dlogits, counted, counted & (self.answers(logits) == labels))

    def count(self, labels: Array, lengths: Array | None = None) -> int:
        args = Boundary(f"{type(self).__name__}.count")
        return int(np.count_nonzero(self._counted(args, labels, lengths)[1]))

    def _counted(self, args: Boundary, labels: Array, lengths: Array | None) -> tuple[Array, Array]:
        """Returns the checked labels, and a mask of those that count."""
        labels = args.integers("labels", labels, self.labels_form)
        steps = args.lengths(lengths)
        counted: Array = labels != IGNORED
        if steps is not None:
            there = steps.on(args.device)  # type: ignore[attr-defined]
            valid = args.device.asarray(np.arange(labels.shape[1])) < there[:, None]
            counted &= valid.reshape(*valid.shape, *[1] * (labels.ndim - 2))
        return labels, counted


@loadable
@dataclass(frozen=True)
class BitTagger(Tagger):
    """A `Tagger` with K independent bits per token: logits (B, T, K), labels (B, T, K) with values 0, 1 and `IGNORED`.

    A logit is the log-odds of a one. The loss is `binary_cross_entropy`, the mean over the bits that count.
    """

    labels_form: ClassVar[str] = "B T K"
    logits_form: ClassVar[str] = "B T K"
    entropy: ClassVar[Callable[..., tuple[float, Array]]] = staticmethod(binary_cross_entropy)
    of_classes: ClassVar[bool] = False


@loadable
@dataclass(frozen=True)
class LanguageModel(Tagger):
    """A `Tagger` that predicts the next token; its classes are the tokens. Its layers must run forward in time:
    ValueError if one is bidirectional."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for i, block in enumerate(self.stack.blocks):
            if getattr(block.layer, "bidirectional", False):
                raise ValueError(
                    f"LanguageModel: block {i} has a bidirectional layer, expected a layer that runs forward"
                )

    @staticmethod
    def targets(
        tokens: Array, lengths: Array | None = None, cu_seqlens: Array | None = None, reset: Array | None = None
    ) -> Array:
        """Returns the labels for tokens (B, T): at each position the next token, at the last position `IGNORED`.

        With `lengths` (B,) the last position of sequence b is ``lengths[b] - 1``, and later labels are `IGNORED`.
        With `cu_seqlens` (S + 1,), as in `Context`, a packed row (1, T) has the last positions of S sequences, and with
        `reset` (B, T) a row ends a sequence before each reset.
        """
        args = Boundary("LanguageModel.targets")
        tokens = args.array("tokens", tokens, "B T", kinds=INTEGERS)
        steps = args.lengths(lengths)
        labels = np.full(tokens.shape, IGNORED, np.int64)
        labels[:, :-1] = tokens[:, 1:]
        if cu_seqlens is not None or reset is not None:
            segments = check_segments(args, cu_seqlens, reset, lengths)
            labels.reshape(-1)[(segments.starts + segments.lengths - 1)[segments.lengths > 0]] = IGNORED
        if steps is not None:
            labels[np.arange(tokens.shape[1]) >= steps[:, None] - 1] = IGNORED
        return labels

    def sample(
        self,
        params: Params,
        prompt: Array,
        steps: int,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        stop: int | list[int] | tuple[int, ...] | Array | None = None,
        lengths: Array | None = None,
    ) -> Array:
        """Samples tokens (B, steps) int64 that continue prompts (B, T), T >= 1, one after the other.

        Parameters
        ----------
        seed : int
            Seed of the draws: the same seed gives the same tokens.
        temperature : float
            Divides the logits; 0 always takes the most probable token.
        top_k : int, optional
            Draw only from the `top_k` most probable tokens.
        top_p : float, optional
            Draw only from the fewest tokens whose probabilities, at this temperature and among the `top_k`, add up to
            at least `top_p` (Holtzman et al. 2020, section 3.1).
        min_p : float, optional
            Draw only from the tokens whose probability, at this temperature, is at least `min_p` times the largest
            (Nguyen et al. 2025).
        repetition_penalty : float
            Applied first: divides positive logits of tokens that are already in the prompt or the continuation, and
            multiplies negative logits (Keskar et al. 2019, section 4.1, as in transformers). 1 changes nothing.
        stop : int, or sequence of int, optional
            Tokens that end a sequence: the end token is repeated up to the length of the longest sequence, where
            drawing ends.
        lengths : (B,) integers in [1, T], optional
            Number of tokens of each prompt.
        """
        given = (seed, temperature, top_k, top_p, min_p, repetition_penalty, stop, lengths)
        drawn = self._written(Boundary("LanguageModel.sample"), params, prompt, steps, *given)
        tokens, count = np.empty((np.shape(prompt)[0], steps), np.int64), 0
        for count, one in enumerate(drawn, 1):
            tokens[:, count - 1] = one
        return tokens[:, :count]

    def generate(
        self,
        params: Params,
        prompt: Array,
        steps: int,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        stop: int | list[int] | tuple[int, ...] | Array | None = None,
        lengths: Array | None = None,
    ) -> Iterator[Array]:
        """Returns an iterator over the tokens of `sample`: at each step the tokens of all sequences, (B,) int64.

        Memory does not grow with `steps`, as in a `Stream`.
        """
        given = (seed, temperature, top_k, top_p, min_p, repetition_penalty, stop, lengths)
        return self._written(Boundary("LanguageModel.generate"), params, prompt, steps, *given)

    def _written(
        self, args: Boundary, params: Params, prompt: Array, steps: int, seed: int, temperature: float,
        top_k: int | None, top_p: float | None, min_p: float | None, repetition_penalty: float,
        stop: int | list[int] | tuple[int, ...] | Array | None, lengths: Array | None,
    ) -> Iterator[Array]:  # fmt: skip
        """Checks the arguments of `sample` and `generate`; returns the iterator."""
        prompt = args.integers("prompt", prompt, "B T")
        if not prompt.size:
            raise ValueError(f"{args.op}: prompt has shape {prompt.shape}, expected (B, T) with B >= 1 and T >= 1")
        counts = args.lengths(lengths)
        if counts is not None and not counts.all():
            raise ValueError(f"{args.op}: lengths has a 0, expected prompts of at least one token")
        steps = args.integer("steps", steps, 0, MOST_STEPS)
        how = Choice(
            args.number("temperature", temperature),
            None if top_k is None else args.integer("top_k", top_k, 1),
            None if top_p is None else args.number("top_p", top_p),
            None if min_p is None else args.number("min_p", min_p),
        )
        for name, share in (("top_p", how.top_p), ("min_p", how.min_p)):
            if share is not None and not 0 < share <= 1:
                raise ValueError(f"{args.op}: {name} is {share!r}, expected a number above 0, at most 1")
        penalty = args.number("repetition_penalty", repetition_penalty, positive=True)
        V = self.head.d_out
        ends = np.array([], np.int64)
        if isinstance(stop, list | tuple | np.ndarray):
            ends = args.integers("stop", stop if np.size(stop) else ends, "n")
            check_indices(args, "stop", ends, V)
        elif stop is not None:
            ends = np.array([args.integer("stop", stop, 0, V - 1)])
        rng = np.random.default_rng(args.integer("seed", seed))
        stream = self.stream(params, len(prompt))
        padding = None if counts is None else np.arange(prompt.shape[1]) >= counts[:, None]
        check_indices(args, "prompt", prompt, V, padding)
        seen = None
        if penalty != 1:
            seen = np.zeros((len(prompt), V), bool)
            rows, places = np.nonzero(np.ones(prompt.shape, bool) if padding is None else ~padding)
            seen[rows, prompt[rows, places]] = True
        return _drawn(stream, prompt, counts, steps, rng, how, ends, penalty, seen)


class Choice(NamedTuple):
    """How a token is drawn; see `LanguageModel.sample`."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


def _drawn(
    stream: Stream, prompt: Array, lengths: Array | None, steps: int, rng: np.random.Generator, how: Choice,
    ends: Array, penalty: float, seen: Array | None,
) -> Iterator[Array]:  # fmt: skip
    """Yields the tokens that follow a prompt; `seen` (B, V) are those that have a penalty."""
    logits = stream.push(prompt, lengths, last=True)
    stopped, tokens = np.zeros(len(prompt), bool), np.zeros(len(prompt), np.int64)
    for i in range(steps):
        if seen is not None:
            logits = np.where(seen, np.where(logits < 0, logits * penalty, logits / penalty), logits)
        tokens = np.where(stopped, tokens, draw(rng, logits, how))
        stopped |= np.isin(tokens, ends)
        yield tokens
        if stopped.all():
            return
        if i + 1 < steps:
            logits = stream.push(tokens)
            if seen is not None:
                seen[np.arange(len(tokens)), tokens] = True


def draw(rng: np.random.Generator, logits: Array, how: Choice) -> Array:
    """Draws a class for each row of logits (B, C) from softmax(logits / temperature), with the Gumbel trick."""
    temperature, top_k, top_p, min_p = how
    if top_k is not None and top_k < logits.shape[1]:
        least = np.partition(logits, -top_k, axis=1)[:, -top_k, None]
        logits = np.where(logits >= least, logits, -np.inf)
    if top_p is not None and top_p < 1 and temperature:
        logits = np.where(logits >= _nucleus(logits, temperature, top_p), logits, -np.inf)
    if min_p is not None:
        logits = np.where(logits >= logits.max(1, keepdims=True) + temperature * math.log(min_p), logits, -np.inf)
    noise = rng.gumbel(size=logits.shape)  # drawn at temperature 0 too, so that `rng` advances equally
    return (logits + temperature * noise).argmax(1)


def _nucleus(logits: Array, temperature: float, top_p: float) -> Array:
    """Returns the smallest logit (B, 1) of the fewest most probable classes whose probabilities add up to at least
    `top_p`."""
    falling = -np.sort(-logits, 1)
    weights = np.exp((falling - falling[:, :1]) / temperature, dtype=np.float64)
    before = np.cumsum(weights, 1) - weights
    count = (before < top_p * weights.sum(1, keepdims=True)).sum(1)
    return falling[np.arange(len(logits)), count - 1, None]
