"""Your own arrays as a task: a file .npz with sequences and labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import atomic_file, check_file, read_npz
from rotrnn.tasks.own import Numbers, OwnData, Sequences, joined, labels_of
from rotrnn.tasks.task import Index


@dataclass(frozen=True)
class Arrays(OwnData):
    """Sequences and labels from a file .npz, as `save_arrays` writes it; see `rotrnn.tasks.own.OwnData`.

    The file has the arrays "x", (n, T, F), or (n, T) with one feature per step, and "y", the labels of each sequence
    (n,) or (n, K), or, with `per_step`, of each step, (n, T) or (n, T, K). For sequences of different lengths, "x" is
    (sum of lengths, F), "lengths" (n,) integers, and labels of steps are (sum of lengths,) or (sum of lengths, K).
    """

    files: ClassVar[str] = "a file .npz with arrays x and y"

    def read(self) -> Sequences:
        """Returns the sequences of the file."""
        arrays = read_npz(self.path)
        for name in ("x", "y"):
            if name not in arrays:
                raise ValueError(f"{self.path}: has no array {name}, expected {self.files}")
        x, y, lengths = arrays["x"], arrays["y"], arrays.get("lengths")
        if x.dtype.kind not in "iufb":
            raise ValueError(f"{self.path}: x has dtype {x.dtype}, expected numbers")
        if lengths is None:
            if x.ndim not in (2, 3):
                raise ValueError(f"{self.path}: x has shape {x.shape}, expected (n, T) or (n, T, F)")
            n, T, *features = x.shape
            x, lengths = x.reshape(n * T, *(features or [1])), np.full(n, T)
            if self.per_step:
                if y.shape[:2] != (n, T):
                    expected = f"(n={n}, T={T}, ...), a label for each step"
                    raise ValueError(f"{self.path}: y has shape {y.shape}, expected {expected}")
                y = y.reshape(n * T, *y.shape[2:])
        elif x.ndim != 2 or lengths.ndim != 1 or lengths.dtype.kind not in "iu" or lengths.sum() != len(x):
            what = f"x of shape {x.shape} and lengths of shape {lengths.shape} with sum {lengths.sum()}"
            raise ValueError(f"{self.path}: has {what}, expected (steps, F) and (n,) integers whose sum is steps")
        if (wrong := np.argwhere(~np.isfinite(x))).size:
            step, feature = wrong[0]
            row = int(np.searchsorted(np.cumsum(lengths), step, side="right"))
            place = f"sequence {row}, step {step - lengths[:row].sum()}, feature {feature}"
            raise ValueError(f"{self.path}: x, {place}: got {x[step, feature]}, expected a finite number")
        rows = len(x) if self.per_step else len(lengths)
        if len(y) != rows:
            raise ValueError(f"{self.path}: y has {len(y)} rows, expected {rows}, one for each label")
        labels, classes = labels_of(self.kind, y, f"{self.path}: y")
        return Sequences(x, lengths.astype(np.int64), labels, self.per_step, classes)


def save_arrays(
    path: str | os.PathLike[str],
    x: npt.NDArray[Any] | Sequence[npt.ArrayLike],
    y: npt.NDArray[Any] | Sequence[Any],
    *,
    per_step: bool = False,
) -> None:
    """Writes sequences and labels as the file .npz that the task "arrays" reads.

    Parameters
    ----------
    x : (n, T) or (n, T, F) numbers, or a list of n arrays (T_i,) or (T_i, F)
        Sequences of one length, or of different ones.
    y : array or list
        Labels of each sequence, (n,) or (n, K); with `per_step` those of each step, (n, T) or (n, T, K), or a list of
        arrays (T_i,) or (T_i, K).

    Raises
    ------
    ValueError
        A sequence has another form than the first one, or there is not one label for each sequence or step.
    """
    check_file("save_arrays", path)
    if len(x) != len(y):
        raise ValueError(f"save_arrays: y has {len(y)} rows, expected {len(x)}, one for each sequence")
    if isinstance(x, np.ndarray):
        arrays = {"x": x, "y": np.asarray(y)}
    else:
        values, lengths = joined(x, "save_arrays: x")
        arrays = {"x": values, "y": np.asarray(y) if not per_step else _of_steps(y, lengths), "lengths": lengths}
    with atomic_file(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes allow_pickle for any of them


def _of_steps(y: npt.NDArray[Any] | Sequence[Any], lengths: Index) -> Numbers:
    """Returns labels of steps, one sequence after the other."""
    parts = [np.asarray(one) for one in y]
    for i, (one, length) in enumerate(zip(parts, lengths, strict=True)):
        if len(one) != length:
            raise ValueError(f"save_arrays: y[{i}] has {len(one)} labels, expected {length}, one for each step")
    return np.concatenate(parts)
