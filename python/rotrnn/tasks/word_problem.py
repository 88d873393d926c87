"""Word problems of finite groups: track the product of a sequence of elements."""

from __future__ import annotations

import itertools
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import GROUP, MOST_COUNTED
from rotrnn._support.files import atomic_file, open_file, whole_set
from rotrnn._support.settings import MOST_COUNT, settle
from rotrnn.devices.device import HOST
from rotrnn.tasks.generated import carry_of, check_ranges, trimmed
from rotrnn.tasks.prepared import Forms, Store
from rotrnn.tasks.released import prepare
from rotrnn.tasks.task import WHOLE, Batch, Carry, Index, Shape, Split, Task, shuffled

SPECIALS = ("PAD", "BOS", "UNK", "EOS", "SEP", "CLS", "MASK")
"""Special tokens; their ids follow the elements."""

IDENTITY = 0  # element of every group
LARGEST = 2**31 - 1  # largest order of a group
FACTOR = re.compile(r"([ZSA])([1-9][0-9]{0,9})")


KINDS = {"Z": GROUP["cyclic"], "S": GROUP["symmetric"], "A": GROUP["alternating"]}

# ---- groups ----


class Factor(NamedTuple):
    """Z_n, S_n or A_n: `kind` is GROUP["cyclic"], "symmetric" or "alternating"."""

    kind: int
    n: int
    order: int


@dataclass(frozen=True)
class Group:
    """A finite group, the direct product of `factors`. Its elements are numbered from 0; 0 is the identity."""

    name: str
    factors: tuple[Factor, ...]

    @property
    def order(self) -> int:
        return math.prod(factor.order for factor in self.factors)

    @property
    def pad(self) -> int:
        return self.order

    @property
    def bos(self) -> int:
        return self.order + 1

    def states(self, elements: Index) -> Index:
        """Returns the products (n, T) of the first 1, 2, ..., T elements (n, T) of each row.

        ValueError if an element is not from 0 to `order` - 1.
        """
        elements = np.ascontiguousarray(elements, np.int64)
        low, high = elements.min(initial=0), elements.max(initial=0)
        if low < 0 or high >= self.order:
            found = low if low < 0 else high
            raise ValueError(f"states: elements has {found}, expected 0 to {self.order - 1} for {self.name}")
        states = np.empty_like(elements)
        n, T = elements.shape
        factors = np.array(self.factors)
        HOST.kernels.word_states(states=states, elements=elements, factors=factors, n=n, T=T, F=len(factors))
        return states


def group(name: str) -> Group:
    """Returns the group of that name: S5, A5, Z60, or a direct product such as A4xZ5 (A4_x_Z5).

    Elements of S_n are the permutations of n items in lexicographic order. Elements of A_n are the even ones in the
    same order. In a product a b, b is applied first: (a b)[i] = a[b[i]]. Z_n is addition modulo n. Elements of a direct
    product are pairs, with the first component varying slowest.

    Raises
    ------
    ValueError
        The name has another form, or the group has 2**31 elements or more (as S13 and A13 do).
    """
    factors, names = [], []
    for called in name.replace("_x_", "x").split("x"):
        match = FACTOR.fullmatch(called)
        if match is None:
            raise ValueError(
                f"group is '{name}', expected S, A or Z and a number, such as S5, or a product, such as A4xZ5"
            )
        kind, n = match[1], int(match[2])
        permutations = math.factorial(min(n, 13))
        order = {"Z": n, "S": permutations, "A": (permutations + 1) // 2}[kind]
        factors.append(Factor(KINDS[kind], n, order))
        names.append(f"{kind}{n}")
    found = Group("_x_".join(names), tuple(factors))
    if found.order > LARGEST:
        raise ValueError(f"group is '{name}', expected one of at most {LARGEST} elements")
    return found


# ---- sequences of one length ----


class Sequences(Protocol):
    """Sequences of `length` elements each, as in one released file."""

    @property
    def length(self) -> int: ...

    def __len__(self) -> int: ...

    def at(self, rows: Index) -> Index:
        """Returns the elements (n, length) int64 of these rows."""


@dataclass(frozen=True)
class GeneratedSequences:
    """`count` distinct random sequences, generated from (seed, length, row) when they are needed.

    If there are fewer than 2**62 sequences of that length (A5: up to length 10), row i is sequence p(i), where p is a
    random permutation of all sequences. So all `count` sequences are distinct, and every sequence occurs if `count` is
    their total number. Otherwise elements are uniform, and the probability that any two of a million rows are equal is
    at most 2e-7.
    """

    order: int
    length: int
    count: int
    seed: int

    def __len__(self) -> int:
        return self.count

    def at(self, rows: Index) -> Index:
        elements = np.empty((len(rows), self.length), np.int64)
        every = self.order**self.length
        HOST.kernels.word_sample(
            elements=elements,
            row=np.ascontiguousarray(rows, np.int64),
            n=len(rows),
            T=self.length,
            order=self.order,
            count=every if every < MOST_COUNTED else 0,
            seed=self.seed,
        )
        return elements


@dataclass(frozen=True)
class StoredSequences:
    """Sequences (n, length) read from a file."""

    elements: npt.NDArray[np.integer[Any]]

    @property
    def length(self) -> int:
        return int(self.elements.shape[1])

    def __len__(self) -> int:
        return len(self.elements)

    def at(self, rows: Index) -> Index:
        return self.elements[rows].astype(np.int64)


# ---- files in the released format ----

HEADER = b"seed,input,target\n"
RULE = "P is list(permutations(range(n))) of S_n, its even ones of A_n; product = tuple(product[i] for i in P[e])"


def write_csv(path: str | os.PathLike[str], group: Group, sequences: Sequences, seed: int) -> None:
    """Writes a file in the released format.

    The header is ``seed,input,target``. Each row holds the seed, the elements separated by spaces, and the products of
    the first 1, 2, ... elements.
    """
    with atomic_file(path) as file:
        file.write(HEADER)
        for first in range(0, len(sequences), 4096):
            elements = sequences.at(np.arange(first, min(first + 4096, len(sequences))))
            for row in zip(elements.tolist(), group.states(elements).tolist(), strict=True):
                inputs, targets = (" ".join(map(str, one)) for one in row)
                file.write(f"{seed},{inputs},{targets}\n".encode())


def read_csv(path: str | os.PathLike[str], group: Group, length: int) -> npt.NDArray[np.integer[Any]]:
    """Reads the elements (n, length) of a file in the released format.

    Rows end in LF or CR LF, and the last row may lack a line end. Every row is parsed strictly, and its targets are
    compared with the products, so that a row that was cut is found. A malformed row or a wrong target raises a
    ValueError that names the file and the line.
    """
    number = rb" ".join([rb"(?:0|[1-9]\d{0,9})"] * length)
    row = re.compile(rb"-?\d{1,19},%b,%b(?:\r?\n)?" % (number, number))
    dtype = np.min_scalar_type(group.order)
    read: list[npt.NDArray[np.integer[Any]]] = []
    with open_file(path) as file:
        header = file.readline()
        if header.replace(b"\r\n", b"\n") != HEADER:
            raise ValueError(f"{path}, line 1: the header is {header!r:.60}, expected {HEADER!r}")
        line = 2
        while lines := list(itertools.islice(file, 4096)):
            for offset, text in enumerate(lines):
                if not row.fullmatch(text):
                    raise ValueError(
                        f"{path}, line {line + offset}: the row is {text!r:.60}, "
                        f"expected seed,input,target of {length} elements each"
                    )
            ids = b" ".join(text.split(b",", 1)[1] for text in lines).replace(b",", b" ")
            numbers = np.fromstring(ids, np.int64, sep=" ").reshape(len(lines), -1)
            elements, targets = np.ascontiguousarray(numbers[:, :length]), numbers[:, length:]
            for offset in np.flatnonzero((elements >= group.order).any(1))[:1]:
                raise ValueError(
                    f"{path}, line {line + offset}: input has element {elements[offset].max()}, "
                    f"expected 0 to {group.order - 1} for {group.name}"
                )
            wrong = group.states(elements) != targets
            for offset in np.flatnonzero(wrong.any(1))[:1]:
                at = int(wrong[offset].argmax())
                raise ValueError(
                    f"{path}, line {line + offset}: target {at + 1} is {targets[offset, at]}, "
                    f"expected {group.states(elements)[offset, at]}, the product of the first {at + 1} inputs ({RULE})"
                )
            read.append(elements.astype(dtype))
            line += len(lines)
    return np.concatenate(read) if read else np.empty((0, length), dtype)


# ---- the task ----


@dataclass(frozen=True)
class WordProblemSplit(Split):
    """Rows of several lengths: of each part ``(sequences, rows)`` the given rows, or all if `rows` is None. Every row
    begins with BOS, except continued rows."""

    group: Group
    parts: tuple[tuple[Sequences, Index | None], ...]
    count_padding: bool = True
    carry: Carry = WHOLE

    def __len__(self) -> int:
        return sum(self._sizes())

    def labels_and_lengths(self, index: Index) -> tuple[Index, Index]:
        """Returns labels and lengths. Only labels that are elements count: BOS, which is trivial, and PAD become -1."""
        batch = self.batch(index)
        lengths = (batch.inputs != self.group.pad).sum(1)
        return np.where(batch.labels < self.group.order, batch.labels, -1), lengths

    def _sizes(self) -> list[int]:
        return [len(sequences if rows is None else rows) for sequences, rows in self.parts]

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the rows at `index`, padded to the longest of them; ids are int64 for every `dtype`."""
        elements, sizes = self._elements(np.asarray(index))
        ended = np.arange(elements.shape[1]) >= sizes[:, None]
        begin = np.full((len(elements), 1), self.group.bos)
        inputs = np.concatenate([begin, np.where(ended, self.group.pad, elements)], 1)
        padding = self.group.pad if self.count_padding else -1
        labels = np.concatenate([begin, np.where(ended, padding, self.group.states(elements))], 1)
        return Batch(inputs, labels, None if self.count_padding or len(self.parts) == 1 else sizes + 1)

    def continued(self, index: Index, before: Index, dtype: npt.DTypeLike = np.float32) -> tuple[Batch, Index]:
        """As `Split.continued`: a continuation needs the product so far. Only new sequences begin with
        BOS, and padding never counts."""
        elements, sizes = self._elements(np.asarray(index))
        new = before < 0
        states = self.group.states(np.concatenate([np.where(new, IDENTITY, before)[:, None], elements], 1))
        inputs = np.concatenate([np.full((len(elements), 1), self.group.bos), elements], 1)
        labels = np.concatenate([inputs[:, :1], states[:, 1:]], 1)
        for array in (inputs, labels):
            array[~new, :-1] = array[~new, 1:]
        sizes = sizes + new
        ended = np.arange(inputs.shape[1]) >= sizes[:, None]
        inputs[ended], labels[ended] = self.group.pad, -1
        return trimmed(inputs, labels, sizes), states[:, -1]

    def _elements(self, index: Index) -> tuple[Index, Index]:
        """Returns the elements of the rows, padded with the identity, and their numbers."""
        ends = np.cumsum(self._sizes())
        which = np.searchsorted(ends, index, side="right")
        sizes = np.array([sequences.length for sequences, _ in self.parts])[which]
        elements = np.full((len(index), int(sizes.max(initial=0))), IDENTITY, np.int64)
        for part in np.unique(which).tolist():
            sequences, rows = self.parts[part]
            of_part = np.flatnonzero(which == part)
            place = index[of_part] - (ends[part - 1] if part else 0)
            elements[of_part, : sequences.length] = sequences.at(place if rows is None else rows[place])
        return elements, sizes


@dataclass(frozen=True)
class WordProblem:
    """Word problems (Merrill, Petty, Sabharwal: "The illusion of state in state-space models", 2024): the label of each
    element is the product of all elements up to it.

    Ids are the elements (see `group`), then PAD, BOS and five more that never occur. Inputs and labels begin
    with BOS. A sequence counts as right only if every label is right, BOS included, as published. The model is trained
    at one length and tested at a larger one, where accuracy is also reported for each shorter length.

    Parameters
    ----------
    group : str
        S5, A5, Z60, A4xZ5, ..., with fewer than 2**31 elements.
    length : int
        Number of elements of a sequence in training and validation.
    samples : int
        Number of sequences of that length (and of each shorter one, see `shorter`), or all if there are fewer.
    val_fraction : float
        Share of these sequences that is used for validation.
    shorter : str
        Additional shorter sequences for training: "none"; "two", of length 2 (`strict_len` of the first publication);
        or "all", of length 2 to `length` - 1, padded in a batch (the default of the Fixed-Point RNNs' code).
    count_padding : bool
        Where sequences are padded, count PAD as a label, as published; if False, mask it.
    carry : float
        Chance that a row of a training batch continues its sequence in the next batch, where the state of the model is
        carried on (`Split.continued`); 0: every batch has whole sequences.
    carry_after : int
        Number of steps of training with whole sequences before that.
    carry_rise : int
        Number of steps after those in which the mean number of batches of a sequence rises from 1 to 1 / (1 - carry).
    test_length, test : int
        Length and number of the test sequences.
    seed : int
        Seed of all sequences and of the validation split.
    data_dir : str
        Folder with released files such as ``A5=16.csv``, with the header ``seed,input,target``. If it is set, nothing
        is generated: the sequences are the first rows of these files, `samples` and `test` of those of `length` and
        `test_length`, and at most `samples` of a shorter one.
    cache_dir : str
        Folder for the arrays prepared from these files, which later calls map into memory. The default is the folder
        .rotrnn in `data_dir`.
    """

    group: str = "A5"
    length: int = 16
    samples: int = 1_600_000
    val_fraction: float = 0.2
    shorter: str = "none"
    count_padding: bool = True
    carry: float = 0.0
    carry_after: int = 0
    carry_rise: int = 0
    test_length: int = 50
    test: int = 10_000
    seed: int = 0
    data_dir: str = ""
    cache_dir: str = ""

    causal: ClassVar[bool] = True
    split_settings: ClassVar[tuple[str, ...]] = ("length", "samples", "val_fraction", "seed")

    def __post_init__(self) -> None:
        settle(self)
        try:
            group(self.group)
        except ValueError as error:
            raise ValueError(f"WordProblem: {error}") from None
        limits = (
            ("length", 1, 10_000),
            ("samples", 2, MOST_COUNT),
            ("test_length", self.length + 1, 10_000),
            ("test", 1, MOST_COUNT),
            ("seed", 0, 2**63 - 1),
        )
        check_ranges("WordProblem", self, limits)
        if self.shorter not in ("none", "two", "all"):
            raise ValueError(f"WordProblem: shorter is '{self.shorter}', expected 'none', 'two' or 'all'")
        carry_of(self)  # refuses what it cannot be
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"WordProblem: val_fraction is {self.val_fraction}, expected a number between 0 and 1")

    @property
    def shape(self) -> Shape:
        """Elements and special tokens are both the tokens and the classes."""
        ids = group(self.group).order + len(SPECIALS)
        return Shape(ids, ids, None, "tagger")

    def load(self) -> Task:
        """Returns the task, generated or read from `data_dir`."""
        return self._task(self._sequences())

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes ``GROUP=LENGTH.csv`` in the released format for each length.

        ValueError if the sequences are read from files.
        """
        if self.data_dir:
            raise ValueError(
                f"WordProblem: data_dir is {self.data_dir!r}, expected none: its sequences are already files"
            )
        sequences = self._sequences()
        with whole_set(folder) as place:
            for one in sequences.values():
                write_csv(self._file(place, one.length), group(self.group), one, self.seed)
        return self._task(sequences)

    def data_files(self) -> list[Path]:
        """Returns the files of `data_dir` that are read."""
        return [self._file(self.data_dir, length) for length in self._counts()] if self.data_dir else []

    def _counts(self) -> dict[int, int]:
        """Returns how many sequences are wanted of each length."""
        shorter = {"none": range(0), "two": range(2, min(3, self.length)), "all": range(2, self.length)}[self.shorter]
        return dict.fromkeys((*shorter, self.length), self.samples) | {self.test_length: self.test}

    def _sequences(self) -> dict[int, Sequences]:
        """Returns all sequences by their length."""
        G = group(self.group)
        sequences: dict[int, Sequences] = {}
        counts = {length: min(wanted, G.order**length) for length, wanted in self._counts().items()}
        for length, count in counts.items():
            if not self.data_dir:
                sequences[length] = GeneratedSequences(G.order, length, count, self.seed)
                continue
            path = self._file(self.data_dir, length)
            if not path.is_file():
                raise FileNotFoundError(f"WordProblem: no data in {self.data_dir}; expected a file {path.name}")
            sequences[length] = self._read(path, length, count)
            if len(sequences[length]) < count and length in (self.length, self.test_length):
                settings = ((self.length, "samples"), (self.test_length, "test"))
                needs = ", ".join(f"{self._file('', one)} needs {counts[one]} ({key})" for one, key in settings)
                what = f"has {len(sequences[length])} rows, expected at least {count}"
                raise ValueError(f"{path}: {what}: {needs}; set these lower, or add rows")
        return sequences

    def _read(self, path: Path, length: int, most: int) -> StoredSequences:
        """Returns the first `most` rows of a file."""

        def make(store: Store) -> None:
            elements = read_csv(path, group(self.group), length)
            store.array("elements", elements.shape, elements.dtype)[:] = elements

        forms: Forms = {"elements": ("u", "rows", length)}
        arrays = prepare("WordProblem", self.data_dir, self.cache_dir, path.stem, [path], make, forms)
        return StoredSequences(arrays["elements"][:most])

    def _file(self, folder: str | os.PathLike[str], length: int) -> Path:
        return Path(folder, f"{group(self.group).name}={length}.csv")

    def _task(self, sequences: dict[int, Sequences]) -> Task:
        G = group(self.group)
        whole = sequences[self.length]
        order = shuffled(len(whole), self.seed, 0)
        val = round(self.val_fraction * len(whole))
        if not 0 < val < len(whole):
            raise ValueError(
                f"WordProblem: val_fraction is {self.val_fraction}, {val} of {len(whole)} sequences; "
                "expected at least one for training and one for validation"
            )
        short = tuple((one, None) for one in sequences.values() if one.length < self.length)
        return Task(
            "word_problem",
            WordProblemSplit(G, (*short, (whole, order[val:])), self.count_padding, carry_of(self)),
            WordProblemSplit(G, ((whole, order[:val]),)),
            WordProblemSplit(G, ((sequences[self.test_length], None),)),
            **self.shape._asdict(),
            metric="sequence_accuracy",
            curve="prefix",
            bos=True,
        )
