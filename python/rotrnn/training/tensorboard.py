"""Writes a run's log for TensorBoard, if the package tensorboard is installed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from rotrnn._support.warn import warn
from rotrnn.training.run import Run

PER_EVALUATION = 20
"""Number of steps written between two evaluations, because writing a step takes up to a millisecond."""


class Board:
    """Writes log records to a TensorBoard file. The file is rewritten from the log at each start, so a resumed run has
    no duplicate points. Points from before have the times that they would have if the run had never paused.

    An error while writing does not end the training: there is a warning, and nothing more is written. (The package's
    own writer uses a thread, whose errors cannot be caught.)
    """

    def __init__(self, run: Run, records: Sequence[dict[str, Any]], eval_every: int) -> None:
        self.folder = run.board
        self.every = max(1, eval_every // PER_EVALUATION)
        self.file: BinaryIO | None = None
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            return
        except Exception as error:  # a package that does not fit its protobuf or NumPy may raise anything
            warn(f"tensorboard cannot be imported, so {self.folder} is not written: {error}")
            return
        self.event, self.summary = Event, Summary
        with self.warn_on_error():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            self.file = open(self.folder / f"events.out.tfevents.{time.time():.0f}", "xb")  # noqa: SIM115
            self.writer = RecordWriter(self.file)
            self.writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        spent = list(seconds_until(records))
        begin = time.time() - max(spent, default=0.0)
        self._write(zip(records, [begin + one for one in spent], strict=True))

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Writes the records of evaluations, and of some steps."""
        self._write((record, time.time()) for record in records)

    def _write(self, records: Iterable[tuple[dict[str, Any], float]]) -> None:
        """Writes records with their times of day."""
        if self.file is None:
            return
        with self.warn_on_error():
            for record, at in records:
                evaluated = "loss" not in record
                if evaluated or record["step"] % self.every == 0:
                    values = [self.summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
                    event = self.event(wall_time=at, step=record["step"], summary=self.summary(value=values))
                    self.writer.write(event.SerializeToString())
                if evaluated:
                    self.file.flush()

    def close(self) -> None:
        """Closes the file."""
        if self.file is not None:
            with self.warn_on_error():
                self.file.close()

    @contextmanager
    def warn_on_error(self) -> Iterator[None]:
        """Turns an OSError into a warning, after which nothing more is written."""
        try:
            yield
        except OSError as error:
            self.file = None
            warn(f"{self.folder}: cannot be written, and is not updated from now on: {error}")


def seconds_until(records: Iterable[dict[str, Any]]) -> Iterator[float]:
    """Yields the seconds of training until each record, with evaluations and without pauses."""
    spent = 0.0
    for record in records:
        spent = record.get("elapsed", spent + record.get("seconds", 0.0))
        yield spent


def scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the numbers of a record with their TensorBoard tags: "training/..." for a step, "validation/..." for an
    evaluation."""
    part = "training" if "loss" in record else "validation"
    for key, value in record.items():
        if isinstance(value, dict):
            yield from ((f"{key}/{name}", one) for name, one in value.items())
        elif isinstance(value, list):
            yield from ((f"{key}/{i}", one) for i, one in enumerate(value))
        elif key.startswith("val_"):
            yield f"validation/{key.removeprefix('val_')}", value
        elif key not in ("step", "elapsed"):
            yield f"{part}/{key}", value
