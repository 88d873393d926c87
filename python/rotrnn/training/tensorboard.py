"""A run's log as TensorBoard shows it, written along where the package tensorboard is installed."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from rotrnn.training.run import Run

PER_EVALUATION = 20
"""Steps that are shown between two evaluations; a point takes about as long as a small step."""


class Board:
    """Shows records as they come. It is made anew from the log at each start, so a resumed run has no point twice.

    What goes wrong in it is no training's end: a warning tells, and the rest is left out.
    """

    def __init__(self, run: Run, records: Iterable[dict[str, Any]], eval_every: int) -> None:
        self.folder = run.folder / "tensorboard"
        self.every = max(1, eval_every // PER_EVALUATION)
        self.writer: Any = None
        try:
            from tensorboard.summary import Writer
        except ImportError:
            return
        with self.forgiving():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.writer = Writer(str(self.folder))
        self.add(records)

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Shows the records of evaluations, and some of the steps'."""
        if self.writer is None:
            return
        with self.forgiving():
            for record in records:
                if "loss" not in record or record["step"] % self.every == 0:
                    for tag, value in scalars(record):
                        self.writer.add_scalar(tag, value, record["step"])
                if "loss" not in record:
                    self.writer.flush()

    def close(self) -> None:
        """Ends the file."""
        if self.writer is not None:
            with self.forgiving():
                self.writer.close()

    @contextlib.contextmanager
    def forgiving(self) -> Iterator[None]:
        """Warns of an error, after which nothing more is shown."""
        try:
            yield
        except Exception as error:
            self.writer = None
            warnings.warn(f"{self.folder}: cannot be written, and is left out from here on: {error}", stacklevel=2)


def scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a record by the names that TensorBoard groups them under."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from ((f"{key}/{name}", one) for name, one in value.items())
        elif isinstance(value, list):
            yield from ((f"{key}/{i}", one) for i, one in enumerate(value))
        elif key.startswith("val_"):
            yield f"validation/{key.removeprefix('val_')}", value
        elif key not in ("step", "elapsed"):
            yield f"training/{key}", value
