"""The log of a run while it is written, and what its records hold besides numbers of the model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from rotrnn._support.json import to_json
from rotrnn.training.run import Run
from rotrnn.training.tensorboard import Board

T = TypeVar("T")


@dataclass(frozen=True)
class Log:
    """The file log.jsonl, one JSON object a line, and what TensorBoard shows of it."""

    file: BinaryIO
    board: Board

    def add(self, records: list[dict[str, Any]]) -> None:
        """Appends the records of a step; a killed process does not lose them. OSError if they cannot be written."""
        text = "".join(to_json(record) + "\n" for record in records).encode()
        while text:
            text = text[self.file.write(text) :]
        self.board.add(records)

    def sync(self) -> None:
        """Returns once all records are on disk."""
        os.fsync(self.file.fileno())


@contextmanager
def opened(run: Run, records: list[dict[str, Any]], eval_every: int) -> Iterator[Log]:
    """The log of a run, which holds `records` already; closed at the end of the block."""
    with (
        open(run.log, "ab", buffering=0) as file,  # a buffer would fail on closing
        closing(Board(run, records, eval_every)) as board,
    ):
        yield Log(file, board)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What `work` returns, and the seconds it took."""
    began = time.monotonic()
    return work(), round(time.monotonic() - began, 6)
