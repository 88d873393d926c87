"""The log of a run while it is written, and the contents of its records besides numbers of the model."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

import numpy as np

from rotrnn._support.json import to_json
from rotrnn._support.platform import regular
from rotrnn._support.warn import warn
from rotrnn.nn.layer import REVERSE
from rotrnn.training.run import Run
from rotrnn.training.tensorboard import Board

T = TypeVar("T")


Records = Callable[[dict[str, Any]], object]
"""A caller's function for each record of `rotrnn.train`."""


class Hook:
    """Hands records to a caller's function, once in a run: not those up to the step `after`, which an earlier start
    wrote to the log.

    An error of the function does not end the training: there is a warning, and it is not called again.
    """

    def __init__(self, function: Records | None, records: Iterable[dict[str, Any]], after: int) -> None:
        self.function, self.after = function, after
        self.add(records)

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Calls the function with each record that is new."""
        for record in records:
            if self.function is not None and record["step"] > self.after:
                try:
                    self.function(deepcopy(record))  # which it may change
                except Exception as error:
                    self.function = None
                    of_function = error.__traceback__ and error.__traceback__.tb_next  # without the line above
                    lines = "".join(traceback.format_exception(error.with_traceback(of_function))).rstrip()
                    warn(f"train: log raised an error; it is not called from now on\n{lines}")


@dataclass(frozen=True)
class Log:
    """The file log.jsonl, one JSON object a line, its copy for TensorBoard, and a caller's function."""

    file: BinaryIO
    board: Board
    hook: Hook

    def add(self, records: list[dict[str, Any]]) -> None:
        """Appends the records of a step; a killed process does not lose them. OSError if they cannot be written."""
        text = "".join(to_json(record) + "\n" for record in records).encode()
        while text:
            text = text[self.file.write(text) :]
        self.board.add(records)
        self.hook.add(records)

    def sync(self) -> None:
        """Returns once all records are on disk."""
        os.fsync(self.file.fileno())


@contextmanager
def opened(
    run: Run, records: list[dict[str, Any]], eval_every: int, function: Records | None = None, after: int = -1
) -> Iterator[Log]:
    """The log of a run, which holds `records` already; closed at the end of the block. `function` gets each record
    behind the step `after`."""
    with (
        open(run.log, "ab", buffering=0, opener=regular) as file,  # a buffer would fail on closing
        closing(Board(run, records, eval_every)) as board,
    ):
        yield Log(file, board, Hook(function, records, after))


LARGEST = ("max_iterations", "residual")
"""Numbers that layers report of the worst sequence; others are means."""


def add_report(total: dict[str, float], report: dict[str, float], share: float = 1.0) -> None:
    """Adds what layers report of a part of a batch, which has a `share` of the labels, to that of the whole batch:
    means over labels, also of the parts' medians, and the largest of `LARGEST` (NaN if one is NaN)."""
    for name, value in report.items():
        if name.rpartition(".")[2].removesuffix(REVERSE) in LARGEST:
            total[name] = float(np.maximum(total.get(name, value), value))
        else:
            total[name] = total.get(name, 0.0) + share * value


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of `work`, and the seconds it took."""
    began = time.monotonic()
    return work(), round(time.monotonic() - began, 6)
