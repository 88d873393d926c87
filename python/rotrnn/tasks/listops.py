"""Long Range Arena's ListOps task: generator, released files and tokenisation."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import EXPECTED
from rotrnn._support.files import atomic_file, open_file, whole_set
from rotrnn._support.settings import MOST_COUNT, settle
from rotrnn.devices.device import HOST
from rotrnn.tasks.generated import check_ranges
from rotrnn.tasks.prepared import Forms, Store, check_offsets
from rotrnn.tasks.released import LRA, Source, find, found, lra, prepare
from rotrnn.tasks.task import Batch, Exhausted, Index, Shape, Split, Task
from rotrnn.tasks.vocabulary import EOS, PAD, ids_of

Tokens = npt.NDArray[np.uint8]

TOKENS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
"""The tokens of an expression, in the order of their ids in csrc/data/listops.c."""

HEADER = b"Source\tTarget\r\n"
PATIENCE = 2**22  # `generate` stops after so many rejected or repeated candidates in a row, which takes seconds
DEPTHS = 128  # most nested operators that the C code has room for


# ---- expressions ----


class Expressions(NamedTuple):
    """Expressions in prefix order, concatenated: expression i is ``tokens[offsets[i]:offsets[i + 1]]``.

    `tokens` uint8 are indices into `TOKENS`, `offsets` (n + 1,) int64, `values` (n,) uint8 from 0 to 9.
    """

    tokens: Tokens
    offsets: Index
    values: npt.NDArray[np.uint8]

    def part(self, first: int, last: int) -> Expressions:
        """Returns expressions first .. last-1."""
        return Expressions(self.tokens, self.offsets[first : last + 1], self.values[first:last])

    def rows(self) -> Iterator[Tokens]:
        """Yields the tokens of each expression."""
        for start, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.tokens[start:end]


def _joined(rows: Collection[bytes], values: Iterable[int]) -> Expressions:
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return Expressions(np.frombuffer(b"".join(rows), np.uint8), offsets, np.fromiter(values, np.uint8, len(rows)))


def generate(
    count: int, *, seed: int, max_depth: int = 10, max_args: int = 10, min_length: int = 500, max_length: int = 2000
) -> Expressions:
    """Draws distinct random expressions with the rules of Long Range Arena (Tay et al. 2021, section 2.2.1).

    A node at depth d < `max_depth` (the root has d = 1) is an operator with probability 1/4, else a digit. At
    `max_depth` it is always a digit. An operator is MIN, MAX, MED or SM and has 2 to `max_args` arguments. Operators,
    numbers of arguments and digits are uniform. An expression is kept if ``min_length < tokens < max_length`` and it is
    not a repetition. Tokens are digits, operators and ``]``.

    Candidate i draws from its own Philox stream (`seed`, i), and candidates are examined in the order of i. So the
    result is the same for any number of threads, and a smaller `count` gives the first expressions of a larger one.

    Raises
    ------
    Exhausted
        2**22 candidates in a row gave no new expression: the settings do not allow `count` distinct expressions.
    """
    size = max(1, min(8192, 2**24 // max_length))
    tokens, lengths, values = np.empty((size, max_length), np.uint8), np.empty(size, np.int64), np.empty(size, np.uint8)
    found: dict[bytes, int] = {}
    first = newest = 0
    while len(found) < count:
        if first - newest > PATIENCE:
            raise Exhausted(
                f"ListOps: found only {len(found)} of {count} distinct expressions of more than {min_length} and fewer "
                f"than {max_length} tokens, depth {max_depth} and {max_args} arguments at most: {PATIENCE} candidates "
                "in a row were too short, too long or repetitions"
            )
        HOST.kernels.listops_sample(
            tokens=tokens,
            lengths=lengths,
            values=values,
            n=size,
            seed=seed,
            first=first,
            max_depth=max_depth,
            max_args=max_args,
            min_length=min_length,
            max_length=max_length,
        )
        before = len(found)
        for i in np.flatnonzero(lengths):
            found.setdefault(tokens[i, : lengths[i]].tobytes(), int(values[i]))
        first += size
        newest = first if len(found) > before else newest
    while len(found) > count:
        found.popitem()
    return _joined(found, found.values())


def render(tokens: Tokens) -> str:
    """Returns the text of one expression (n,), parenthesised and left-binarised: ``( ( ( [MAX 3 ) 4 ) ] )``."""
    return _render(np.ascontiguousarray(tokens, np.uint8)).decode()


def _render(tokens: Tokens) -> bytes:
    text, start = np.empty(8 * len(tokens), np.uint8), np.empty(1, np.int64)
    try:
        HOST.kernels.listops_render(text=text, start=start, tokens=tokens, n=len(tokens))
    except IndexError:
        raise ValueError(f"render: the tokens are not one expression with at most {DEPTHS} nested operators") from None
    return text[start[0] : -1].tobytes()


_EXPECTED = {
    EXPECTED["argument"]: "a digit or '('",
    EXPECTED["operator"]: "'(' or an operator",
    EXPECTED["more_parentheses"]: "'(', because an operator takes at least one argument",
    EXPECTED["less_depth"]: f"at most {DEPTHS} nested operators",
    EXPECTED["argument_end"]: "')' after an argument",
    EXPECTED["bracket"]: "']' after the last argument",
    EXPECTED["node_end"]: "')' after ']'",
    EXPECTED["the_end"]: "nothing more",
}


def _short(text: bytes) -> str:
    return repr((text if len(text) <= 40 else text[:40] + b"...").decode(errors="backslashreplace"))


def parse(text: str) -> tuple[Tokens, int]:
    """Parses the text of one expression into its tokens and value; the inverse of `render`. ValueError if the text is
    malformed."""
    return _parse(text.encode())


def _parse(text: bytes) -> tuple[Tokens, int]:
    tokens, result = np.empty(len(text), np.uint8), np.empty(4, np.int64)
    HOST.kernels.listops_parse(tokens=tokens, result=result, text=np.frombuffer(text, np.uint8), size=len(text))
    length, value, expected, at = (int(number) for number in result)
    if expected:
        symbol = text.count(b" ", 0, at) + 1
        if at > len(text):
            raise ValueError(f"the expression ends after symbol {symbol}, expected {_EXPECTED[expected]}")
        found = text[at:].split(b" ", 1)[0]
        raise ValueError(f"symbol {symbol} is {_short(found)}, expected {_EXPECTED[expected]}")
    return tokens[:length], value


# ---- the released files ----


def write_expressions(path: str | os.PathLike[str], expressions: Expressions) -> None:
    """Writes a file in the released format: the header ``Source<TAB>Target``, then one expression per row. Rows end in
    CR LF."""
    with atomic_file(path) as file:
        file.write(HEADER)
        for tokens, value in zip(expressions.rows(), expressions.values, strict=True):
            file.write(b"%b\t%d\r\n" % (_render(tokens), value))


def read_expressions(path: str | os.PathLike[str]) -> Expressions:
    """Reads a file in the released format; rows may also end in LF, as on other systems, and the last one in nothing.

    Every row is parsed strictly and evaluated, so a row that was cut is found. A malformed row raises a ValueError that
    names the file and the line.
    """
    rows: list[bytes] = []
    values: list[int] = []
    with open_file(path) as file:
        header = _line(file.readline())
        if header != _line(HEADER):
            raise ValueError(f"{path}, line 1: the header is {_short(header)}, expected {_short(_line(HEADER))}")
        for line in file:
            try:
                tokens, value = _parse_row(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {len(rows) + 2}: {error}") from None
            rows.append(tokens.tobytes())
            values.append(value)
    return _joined(rows, values)


def _line(line: bytes) -> bytes:
    """A line without its end."""
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _parse_row(line: bytes) -> tuple[Tokens, int]:
    source, *targets = _line(line).split(b"\t")
    if len(targets) != 1:
        raise ValueError(f"the row has {len(targets) + 1} column(s), expected 2, Source and Target")
    tokens, value = _parse(source)
    if targets[0] != b"%d" % value:
        raise ValueError(f"Target is {_short(targets[0])}, expected {value}, the value of Source")
    return tokens, value


# ---- the task ----


@dataclass(frozen=True)
class ListOpsSplit(Split):
    """Expressions as sequences of vocabulary ids: the first `max_tokens` tokens, then ``<eos>``."""

    expressions: Expressions
    ids: npt.NDArray[np.int64]  # by token
    max_tokens: int

    def __len__(self) -> int:
        return len(self.expressions.values)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the expressions at `index`; ids are int64 for every `dtype`."""
        tokens, offsets, values = self.expressions
        starts = offsets[index]
        sizes = np.minimum(offsets[np.asarray(index) + 1] - starts, self.max_tokens)
        inputs = np.full((len(sizes), sizes.max(initial=0) + 1), PAD, np.int64)
        for row, start, size in zip(inputs, starts.tolist(), sizes.tolist(), strict=True):
            row[:size] = self.ids[tokens[start : start + size]]
            row[size] = EOS
        return Batch(inputs, values[index].astype(np.int64), sizes + 1)


@dataclass(frozen=True)
class ListOps:
    """Long Range Arena's ListOps: predict the value, 0 to 9, of nested MIN, MAX, MED and SM (sum modulo 10) of digits.

    Sequences have 500 to 2000 tokens and an ``<eos>``. Ids are ``<pad>`` 0, ``<unk>`` 1, ``<eos>`` 2, then the tokens
    by decreasing frequency in the training split (ties in the order of their text, with X for the bracket), as in S4
    and S5.

    Parameters
    ----------
    train, val, test : int
        Number of expressions in each split.
    max_depth, max_args, min_length, max_length, seed : int
        Settings of `generate`. The splits are consecutive parts of one set, so no two of them share an expression.
    max_tokens : int
        Longer sequences are truncated to this many tokens before ``<eos>`` is appended.
    data_dir : str
        Folder with the released files basic_train.tsv, basic_val.tsv and basic_test.tsv, or a folder above it. If it is
        set, nothing is generated: the splits are the first `train`, `val` and `test` rows of these files.
    download : bool
        Download these files into `data_dir` if they are missing, from the archive of the whole Long Range Arena, 8 GB.
    cache_dir : str
        Folder for the arrays prepared from `data_dir`, which later calls map into memory. The default is the folder
        .rotrnn in `data_dir`.
    """

    train: int = 96_000
    val: int = 2_000
    test: int = 2_000
    max_depth: int = 10
    max_args: int = 10
    min_length: int = 500
    max_length: int = 2000
    seed: int = 0
    max_tokens: int = 2047
    data_dir: str = ""
    download: bool = False
    cache_dir: str = ""

    split_settings: ClassVar[tuple[str, ...]] = ("train", "val", "max_depth", "max_args", "min_length", "max_length")

    def __post_init__(self) -> None:
        settle(self)
        check_ranges("ListOps", self, [(name, 1, MOST_COUNT) for name in ("train", "val", "test")])
        limits = (
            ("max_depth", 1, DEPTHS),
            ("max_args", 2, MOST_COUNT),
            ("min_length", 0, MOST_COUNT),
            ("max_length", self.min_length + 2, 1_000_000),
            ("seed", 0, 2**63 - 1),
            ("max_tokens", 1, MOST_COUNT),
        )
        check_ranges("ListOps", self, limits)

    @property
    def shape(self) -> Shape:
        """Ten classes, and the ids of all tokens. A training split in which some tokens do not occur has fewer ids."""
        return Shape(10, EOS + 1 + len(TOKENS), None)

    def load(self) -> Task:
        """Returns the task, generated or read from `data_dir`."""
        return self._task(self._splits())

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes basic_train.tsv, basic_val.tsv and basic_test.tsv in the released format.

        ValueError if the expressions are read from files.
        """
        if self.data_dir or self.download:
            raise ValueError(
                f"ListOps: data_dir is {self.data_dir!r}, expected none: its expressions are already files"
            )
        splits = self._splits()
        with whole_set(folder) as place:
            for name, expressions in splits.items():
                write_expressions(_file(place, name), expressions)
        return self._task(splits)

    def data_files(self) -> list[Path]:
        """Returns the files of `data_dir` that are read; none if they are missing."""
        folder = found(RELEASE, self.data_dir) if self.data_dir else None
        return [_file(folder, name) for name in ("train", "val", "test")] if folder else []

    def _splits(self) -> dict[str, Expressions]:
        counts = {"train": self.train, "val": self.val, "test": self.test}
        if self.data_dir or self.download:
            folder = find("ListOps", RELEASE, self.data_dir, self.download)
            return {name: self._read(_file(folder, name), count) for name, count in counts.items()}
        every = generate(
            sum(counts.values()),
            seed=self.seed,
            max_depth=self.max_depth,
            max_args=self.max_args,
            min_length=self.min_length,
            max_length=self.max_length,
        )
        ends = np.cumsum(list(counts.values())).tolist()
        return {name: every.part(end - counts[name], end) for name, end in zip(counts, ends, strict=True)}

    def _read(self, path: Path, count: int) -> Expressions:
        """Returns the first `count` expressions of a file."""

        def make(store: Store) -> None:
            for name, array in read_expressions(path)._asdict().items():
                store.array(name, array.shape, array.dtype)[:] = array

        forms: Forms = {"tokens": ("u1", "tokens"), "offsets": ("i8", "offsets"), "values": ("u1", "values")}
        arrays = prepare("ListOps", self.data_dir, self.cache_dir, f"listops-{path.stem}", [path], make, forms)
        every = Expressions(*(arrays[name] for name in Expressions._fields))
        check_offsets(every.offsets, len(every.values), len(every.tokens))
        if len(every.values) < count:
            raise ValueError(f"{path}: has {len(every.values)} expressions, expected at least {count}")
        return every.part(0, count)

    def _task(self, splits: dict[str, Expressions]) -> Task:
        symbols = _vocabulary(splits["train"], self.max_tokens)
        ids = ids_of(symbols, len(TOKENS))
        train, val, test = (ListOpsSplit(splits[name], ids, self.max_tokens) for name in ("train", "val", "test"))
        vocab = EOS + 1 + len(symbols)
        return Task("listops", train, val, test, n_classes=10, vocab=vocab, n_features=None, symbols=symbols)


def _file(folder: str | os.PathLike[str], name: str) -> Path:
    return Path(folder, f"basic_{name}.tsv")


ARCHIVED = lra("listops-1000", "basic_train.tsv")
FILES = Source({f"{LRA}/listops-1000/{_file('', name)}": None for name in ("test", "val", "train")})
RELEASE = ARCHIVED._replace(
    sources=(FILES, *ARCHIVED.sources)
)  # three files, rather than 8 GB with all of the benchmark


def _vocabulary(train: Expressions, max_tokens: int) -> Index:
    """Returns the tokens that occur in the training split, in the order of their ids."""
    counts = np.zeros(len(TOKENS), np.int64)
    for row in train.rows():
        counts += np.bincount(row[:max_tokens], minlength=len(TOKENS))
    present = [token for token in range(len(TOKENS)) if counts[token]]
    return np.array(sorted(present, key=lambda token: (-counts[token], TOKENS[token].replace("]", "X"))), np.int64)
