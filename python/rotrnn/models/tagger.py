"""Models with an output per step: taggers (a class per token), bit taggers and language models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rotrnn._cpu import MOST_STEPS
from rotrnn.models.model import IGNORED, Loss, SequenceModel
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.layer import TRUSTED, Array, Context, Gather, Params, State, trusted
from rotrnn.ops.boundary import INTEGERS, Boundary, rename
from rotrnn.ops.pointwise import binary_cross_entropy, check_indices, cross_entropy


@dataclass(frozen=True)
class Tagger(SequenceModel):
    """Logits (B, T, C), one class per token. Params of the head: "head", a `Dense`."""

    head: Dense

    labels_form: ClassVar[str] = "B T"
    logits_form: ClassVar[str] = "B T C"
    entropy = staticmethod(cross_entropy)

    @property
    def heads(self) -> dict[str, Dense]:
        return {"head": self.head}

    output_forms: ClassVar[tuple[str, ...]] = ("B T C",)

    def head_forward(self, params: Params, x: Array, ctx: Context) -> tuple[Array, Any]:
        return self.head.forward(params["head"], x, ctx)

    def head_backward(
        self, params: Params, saved: Any, dlogits: Array, gather: Gather | None = None
    ) -> tuple[Array, Params]:
        dx, dhead = trusted(self.head.backward)(params["head"], saved, dlogits)
        return dx, {"head": dhead}

    def read(self, params: Params, state: State, x: Array, lengths: Array | None) -> tuple[Array, State]:
        """Returns logits (B, T, C) of the tokens of x only."""
        return self.head.forward(params["head"], x, TRUSTED.checked(lengths))[0], None

    def loss(self, logits: Array, labels: Array, lengths: Array | None = None) -> Loss:
        """Returns the `Loss` of logits (B, T, C) for labels (B, T). Padding and labels `IGNORED` (-1) do not count."""
        args = Boundary(f"{type(self).__name__}.loss")
        labels, counted = self._counted(args, labels, lengths)
        logits = args.array("logits", logits, self.logits_form)
        try:
            given = np.where(counted, labels, IGNORED)
            mean, dlogits = self.entropy(logits, given, ignored=IGNORED, weights=self.class_weights)
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


@dataclass(frozen=True)
class BitTagger(Tagger):
    """A `Tagger` with K independent bits per token: logits (B, T, K), labels (B, T, K) with values 0, 1 and `IGNORED`.

    A logit is the log-odds of a one. The loss is `binary_cross_entropy`, the mean over the bits that count.
    """

    labels_form: ClassVar[str] = "B T K"
    logits_form: ClassVar[str] = "B T K"
    entropy = staticmethod(binary_cross_entropy)

    def answers(self, logits: Array) -> Array:
        """Returns 1 where it is more probable than 0, and `IGNORED` where the logit is NaN."""
        return np.where(np.isnan(logits), IGNORED, logits > 0)


@dataclass(frozen=True)
class LanguageModel(Tagger):
    """A `Tagger` that predicts the next token; its classes are the tokens. Its layers must run forward in time."""

    @staticmethod
    def targets(tokens: Array, lengths: Array | None = None) -> Array:
        """Returns the labels for tokens (B, T): at each position the next token, at the last position `IGNORED`."""
        args = Boundary("LanguageModel.targets")
        tokens = args.array("tokens", tokens, "B T", kinds=INTEGERS)
        steps = args.lengths(lengths)
        labels = np.full(tokens.shape, IGNORED, np.int64)
        labels[:, :-1] = tokens[:, 1:]
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
        """
        args = Boundary("LanguageModel.sample")
        prompt = args.integers("prompt", prompt, "B T")
        if not prompt.size:
            raise ValueError(f"{args.op}: prompt has shape {prompt.shape}, expected (B, T) with B >= 1 and T >= 1")
        steps, temperature = args.integer("steps", steps, 0, MOST_STEPS), args.number("temperature", temperature)
        top_k = None if top_k is None else args.integer("top_k", top_k, 1)
        rng = np.random.default_rng(args.integer("seed", seed))
        stream = self.stream(params, len(prompt))
        check_indices(args, "prompt", prompt, self.head.d_out)
        logits = stream.push(prompt)[:, -1]
        tokens = np.empty((len(prompt), steps), np.int64)
        for i in range(steps):
            tokens[:, i] = draw(rng, logits, temperature, top_k)
            if i + 1 < steps:
                logits = stream.push(tokens[:, i])
        return tokens


def draw(rng: np.random.Generator, logits: Array, temperature: float, top_k: int | None) -> Array:
    """Draws a class for each row of logits (B, C) from softmax(logits / temperature), with the Gumbel trick."""
    if top_k is not None and top_k < logits.shape[1]:
        least = np.partition(logits, -top_k, axis=1)[:, -top_k, None]
        logits = np.where(logits >= least, logits, -np.inf)
    noise = rng.gumbel(size=logits.shape)  # drawn at temperature 0 too, so that `rng` advances equally
    drawn: Array = (logits + temperature * noise).argmax(1)
    return drawn
