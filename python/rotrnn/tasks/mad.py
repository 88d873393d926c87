"""The six synthetic tasks of MAD, mechanistic architecture design."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from rotrnn._support.settings import MOST_COUNT, settle
from rotrnn.tasks.generated import GeneratedSplit, WrittenByRow, below, check_ranges, words_of
from rotrnn.tasks.task import Batch, Index, Shape, Task, shuffled

MAP_SEED = 12345
"""Of the map that "memorization" learns."""
MOTIF = 3
"""The most tokens of a key, and of a value, in "fuzzy_recall"."""


class Kind(NamedTuple):
    """Published sizes and the least ones."""

    vocab: int
    length: int
    least_vocab: int
    least_length: int


KINDS = {
    "recall": Kind(16, 128, 2, 4),
    "noisy_recall": Kind(32, 128, 4, 4),
    "fuzzy_recall": Kind(16, 128, 2 * MOTIF + 1, 8 * MOTIF),
    "selective_copy": Kind(16, 256, 3, 4),
    "memorization": Kind(256, 32, 3, 2),
    "compression": Kind(16, 32, 2, 2),
}


@dataclass(frozen=True)
class MADSplit(GeneratedSplit):
    settings: MAD

    def make(self, index: Index, streams: Index) -> Batch:
        s = self.settings
        make = {"selective_copy": self._copy, "memorization": self._map, "fuzzy_recall": self._fuzzy}
        make |= {"compression": self._compression}
        inputs, labels = make.get(s.kind, self._recall)(streams)
        return Batch(inputs, labels, None)

    def _shifted(self, tokens: Index, answers: Index) -> tuple[Index, Index]:
        """A token is the label of the one before it: every token in training, answers in evaluation."""
        return tokens[:, :-1].copy(), (tokens if self.name == "train" else answers)[:, 1:].copy()

    def _recall(self, streams: Index) -> tuple[Index, Index]:
        s, n, pairs = self.settings, len(streams), self.settings.sizes[1] // 2
        ids, noise = s.ids
        keys, values = ids // 2, ids - ids // 2
        counts = [pairs - 1, keys, keys, 1, pairs - 1, 2 * (pairs - 1)]
        words = np.split(words_of(streams, sum(counts), s.seed), np.cumsum(counts)[:-1], 1)
        key, known = below(words[0], keys), keys + below(words[1], values)
        if noise:
            kept = np.minimum(below(words[3], pairs), pairs - 2)  # never noise; the last pair is not, either
            noisy = (words[4] < s.noise * 2**32) & (np.arange(pairs - 1) != kept)
        else:
            noisy = np.zeros(key.shape, bool)
        shown = ((key[..., None] == np.arange(keys)) & ~noisy[..., None]).any(1)
        last = np.where(shown, words[2], -1).argmax(1)[:, None]
        key = np.concatenate([key, last], 1)
        noisy = np.concatenate([noisy, np.zeros((n, 1), bool)], 1)
        value = np.take_along_axis(known, key, 1)
        before = (key[:, :, None] == key[:, None, :]) & ~noisy[:, None, :] & np.tri(pairs, k=-1, dtype=bool)
        answers = np.where(before.any(2) & ~noisy, value, -1)
        tokens = np.stack([key, value], 2)
        if noise:
            drawn = ids + below(words[5], noise).reshape(n, pairs - 1, 2)
            tokens[:, :-1] = np.where(noisy[:, :-1, None], drawn, tokens[:, :-1])
        labels = np.stack([np.full_like(answers, -1), answers], 2)
        return self._shifted(tokens.reshape(n, 2 * pairs), labels.reshape(n, 2 * pairs))

    def _fuzzy(self, streams: Index) -> tuple[Index, Index]:
        s, L = self.settings, self.settings.sizes[1]
        rows = [self._fuzzy_row(iter(row.tolist()), L) for row in words_of(streams, 12 * L, s.seed)]
        tokens, answers = (np.array([row[i] for row in rows], np.int64).reshape(len(rows), L + 1) for i in (0, 1))
        return self._shifted(tokens, answers)

    def _fuzzy_row(self, words: Iterator[int], L: int) -> tuple[list[int], list[int]]:
        """Returns L + 1 tokens and the answers among them, with padding in front."""
        ids, _ = self.settings.ids
        keys, values = range(ids // 2), range(ids // 2, ids)

        def draw(size: int) -> int:
            return next(words) * size >> 32

        def motif(among: range, size: int) -> tuple[int, ...]:
            """Different tokens in any order."""
            left = list(among)
            return tuple(left.pop(draw(len(left))) for _ in range(size))

        def key() -> tuple[int, ...]:
            return motif(keys, 1 + draw(MOTIF) if self.name == "train" else MOTIF)

        def value() -> tuple[int, ...]:
            return motif(values, 1 + draw(MOTIF))

        probe, answer = key(), value()
        size = len(probe) + len(answer)
        place, known, shown = draw(L - 2 * size), {probe: answer}, set[tuple[int, ...]]()
        tokens: list[int] = []
        labels: list[int] = []
        while len(tokens) < L - size - 2 * MOTIF:
            k = probe if len(tokens) >= place and probe not in shown else key()
            v = known.setdefault(k, ()) or value()
            known[k] = v
            tokens += [*k, *v]
            labels += [-1] * len(k) + (list(v) if k in shown else [-1] * len(v))
            shown.add(k)
        tokens += [*probe, *answer]
        labels += [-1] * len(probe) + list(answer)
        padding = L + 1 - len(tokens)
        return [ids] * padding + tokens, [-1] * padding + labels

    def _copy(self, streams: Index) -> tuple[Index, Index]:
        s, n, (V, L), k = self.settings, len(streams), self.settings.sizes, self.settings.tokens
        blanks = L - 2 * k - 1
        words = words_of(streams, k + blanks, s.seed)
        copied = below(words[:, :k], V - 2)
        before = (below(words[:, k:], k)[..., None] <= np.arange(k)).sum(1)  # blanks up to each token
        inputs = np.full((n, L), V - 2)
        inputs[np.arange(n)[:, None], np.arange(k) + before] = copied
        inputs[:, L - k - 1] = V - 1
        labels = np.full((n, L), -1)
        labels[:, L - k :] = copied
        return inputs, labels

    def _compression(self, streams: Index) -> tuple[Index, Index]:
        s, (V, L) = self.settings, self.settings.sizes
        drawn = below(words_of(streams, L - 1, s.seed), V - 1)
        tokens = np.concatenate([drawn, np.full((len(drawn), 1), V - 1)], 1)
        return tokens, tokens.copy()

    def _map(self, streams: Index) -> tuple[Index, Index]:
        s, (V, L) = self.settings, self.settings.sizes
        keys = (V - 1) // 2
        values = keys + shuffled(V - 1 - keys, MAP_SEED, 0)
        key = below(words_of(streams, L // 2, s.seed), keys)
        inputs = np.stack([key, np.full_like(key, V - 1)], 2)
        labels = np.stack([np.full_like(key, -1), values[key]], 2)
        return inputs.reshape(len(key), L), labels.reshape(len(key), L)


@dataclass(frozen=True)
class MAD(WrittenByRow):
    """Synthetic tasks that predict which architectures do well on language (Poli et al. 2024, "Mechanistic Design and
    Scaling of Hybrid Architectures"), with the distributions of the released code (athms/mad-lab).

    - "recall": pairs of a key and its value, random, with one value for a key in a sequence. The answer is the value of
      a key that has come before. Training learns every token; the test counts answers alone, here and in the next two
    - "noisy_recall": a share `noise` of the pairs, but never one of them, are two random tokens from a vocabulary of
      their own
    - "fuzzy_recall": keys and values are 1 to 3 different tokens; keys of the test have 3; padding stands in front. As
      in the released code, a key may be asked for that has not come before: in some 2 % of the test's sequences
    - "selective_copy": `tokens` tokens between blanks, then a sign and as many blanks, whose labels are the tokens
    - "memorization": keys, each before a sign whose label is the key's value in a map that never changes
    - "compression": random tokens and a sign, which are all labels, too, answered from the state after the sign alone
      (the head "autoencoder", `rotrnn.AutoEncoder`)

    The published value of `vocab` and `length` is the default: 16, 32, 16, 16, 256 and 16 ids, 128, 128, 128, 256, 32
    and 32 tokens. Inputs of the recalls have one token less, except of "fuzzy_recall".

    Parameters
    ----------
    kind : str
        One of the names above.
    vocab, length : int, optional
        Number of ids and of tokens; by default as published.
    noise : float
        Share of noise in "noisy_recall".
    tokens : int
        Number of tokens to copy.
    train, val, test : int
        Number of sequences. As published, training goes over its sequences again and again.
    seed : int
        Seed of the sequences.
    """

    kind: str = "recall"
    vocab: int | None = None
    length: int | None = None
    noise: float = 0.2
    tokens: int = 16
    train: int = 12_800
    val: int = 1280
    test: int = 1280
    seed: int = 0

    causal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self)
        if self.kind not in KINDS:
            raise ValueError(f"MAD: kind is '{self.kind}', expected one of {', '.join(KINDS)}")
        check_ranges("MAD", self, [(name, 1, MOST_COUNT) for name in ("train", "val", "test")])
        check_ranges("MAD", self, [("seed", 0, 2**63 - 1), ("tokens", 1, 2**16)])
        kind, sizes = KINDS[self.kind], dict(zip(("vocab", "length"), self.sizes, strict=True))
        least = {"vocab": kind.least_vocab, "length": kind.least_length}
        if self.kind == "selective_copy":
            least["length"] = 2 * self.tokens + 1
        for name, low in least.items():
            if not low <= sizes[name] <= 2**20:
                raise ValueError(f"MAD: {name} is {sizes[name]}, expected an integer from {low} to {2**20}")
        if sizes["length"] % 2:
            raise ValueError(f"MAD: length is {sizes['length']}, expected an even number")
        if not 0 <= self.noise < 1:
            raise ValueError(f"MAD: noise is {self.noise}, expected a share from 0, below 1")

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of ids and of tokens."""
        kind = KINDS[self.kind]
        vocab = kind.vocab if self.vocab is None else self.vocab
        return vocab, kind.length if self.length is None else self.length

    @property
    def ids(self) -> tuple[int, int]:
        """Number of ids of keys and values, and of noise."""
        V = self.sizes[0] - (self.kind == "fuzzy_recall")  # the last one is padding
        noise = V // 2 if self.kind == "noisy_recall" else 0
        return V - noise, noise

    @property
    def shape(self) -> Shape:
        """Classes are the ids."""
        return Shape(self.sizes[0], self.sizes[0], None, "autoencoder" if self.kind == "compression" else "tagger")

    def load(self) -> Task:
        """Returns the task. Nothing is stored: sequences are generated when a batch is drawn."""
        train, val, test = (MADSplit(name, getattr(self, name), self) for name in ("train", "val", "test"))
        return Task("mad", train, val, test, **self.shape._asdict())
