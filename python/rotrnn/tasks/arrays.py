"""Your own arrays as a task: a file .npz with sequences and labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import atomic_file, check_file, read_npz
from rotrnn._support.text import an
from rotrnn.ops.boundary import on_host
from rotrnn.ops.sampled import INTERVALS
from rotrnn.tasks.columns import Numbers
from rotrnn.tasks.own import (
    FLOAT32_MOST,
    OwnData,
    Sequences,
    check_intervals_of,
    check_sequences,
    intervals_of,
    joined,
    labels_of,
)
from rotrnn.tasks.task import Index


@dataclass(frozen=True)
class Arrays(OwnData):
    """Sequences and labels from a file .npz, as `save_arrays` writes it; see `rotrnn.tasks.own.OwnData`.

    The file has the arrays "x", (n, T, F), or (n, T) with one feature per step, and "y", the labels of each sequence
    (n,) or (n, K), or, with `per_step`, of each step, (n, T) or (n, T, K). For sequences of different lengths, "x" is
    (sum of lengths, F), "lengths" (n,) integers, and labels of steps are (sum of lengths,) or (sum of lengths, K).
    "weights" (n,), if there, are positive weights of the sequences: in the loss, the scores and the scales a sequence
    of weight 2 counts as two. `per_step` has none. "dt", if there, are intervals from the step before to each step, in
    the form of x without features, for samples at uneven times and layers in continuous time (`rotrnn.Context`).
    """

    files: ClassVar[str] = "a file .npz with arrays x and y"

    def read(self) -> Sequences:
        """Returns the sequences of the file."""
        arrays = read_npz(self.path)
        for name in ("x", "y"):
            if name not in arrays:
                raise ValueError(f"{self.path}: has no array {name}, expected {self.files}")
        return _sequences(self.path, self.kind, arrays, self.per_step)


def save_arrays(
    path: str | os.PathLike[str],
    x: npt.NDArray[Any] | Sequence[npt.ArrayLike],
    y: npt.NDArray[Any] | Sequence[Any],
    *,
    per_step: bool = False,
    weights: npt.ArrayLike | None = None,
    dt: npt.NDArray[Any] | Sequence[npt.ArrayLike] | None = None,
) -> None:
    """Writes sequences and labels as the file .npz that the task "arrays" reads.

    Parameters
    ----------
    x : (n, T) or (n, T, F) numbers, or a list of n arrays (T_i,) or (T_i, F)
        Sequences of one length, or of different ones.
    y : array or list
        Labels of each sequence, (n,) or (n, K); with `per_step` labels of each step, (n, T) or (n, T, K), or a list of
        arrays (T_i,) or (T_i, K).
    weights : (n,) positive numbers, optional
        Weights of the sequences; to leave one out, do not write it. Not with `per_step`.
    dt : (n, T) numbers of at least 0, or a list of n arrays (T_i,) or frames of one column, optional
        Intervals from the step before to each step, in units of the layers' own step sizes.

    Raises
    ------
    TypeError, ValueError
        The task would refuse them, whatever its `kind`; nothing is written.
    """
    call = "save_arrays"
    check_file(call, path)
    x, y = _given("x", x), _given("y", y)
    if isinstance(x, np.ndarray) and not (x.dtype.kind == "O" and x.ndim == 1):
        arrays, lengths = {"x": x, "y": on_host(call, "y", y)}, None
    else:
        values, lengths = joined(list(x), call, "x")
        arrays = {"x": values, "y": _of_steps(y, lengths) if per_step else on_host(call, "y", y), "lengths": lengths}
    if weights is not None:
        arrays["weights"] = on_host(call, "weights", weights)
    kind = "regression" if arrays["y"].dtype.kind in "biuf" else "classification"  # the one that takes the most
    data = _sequences(call, kind, arrays, per_step)
    check_sequences(call, data)
    if (intervals := intervals_of(call, dt, data.lengths)) is not None:
        arrays["dt"] = intervals.reshape(arrays["x"].shape[:2]) if lengths is None else intervals
    with atomic_file(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes allow_pickle for any of them


def _sequences(where: str, kind: str, arrays: Mapping[str, Numbers], per_step: bool) -> Sequences:
    """Returns the sequences that the arrays of a file are. ValueError, which begins with `where`, if they have another
    form or dtype, a label is missing, x is not finite, or a weight is not positive."""
    x, y, lengths, weights = arrays["x"], arrays["y"], arrays.get("lengths"), arrays.get("weights")
    dt, steps = arrays.get("dt"), x.shape[: 2 if lengths is None else 1]
    if x.dtype.kind not in "iufb":
        raise ValueError(f"{where}: x has dtype {x.dtype}, expected numbers")
    if lengths is None:
        if x.ndim not in (2, 3):
            raise ValueError(f"{where}: x has shape {x.shape}, expected (n, T) or (n, T, F)")
        n, T, *features = x.shape
        x, lengths = x.reshape(n * T, *(features or [1])), np.full(n, T)
        if per_step:
            if y.shape[:2] != (n, T):
                expected = f"(n={n}, T={T}, ...), a label for each step"
                raise ValueError(f"{where}: y has shape {y.shape}, expected {expected}")
            y = y.reshape(n * T, *y.shape[2:])
    elif x.ndim != 2 or lengths.ndim != 1 or lengths.dtype.kind not in "iu" or sum(lengths.tolist()) != len(x):
        # Python's sum, since NumPy's wraps around
        sums = f"sum {sum(lengths.tolist())}" if lengths.dtype.kind in "iu" else f"dtype {lengths.dtype}"
        what = f"x of shape {x.shape} and lengths of shape {lengths.shape} with {sums}"
        raise ValueError(f"{where}: has {what}, expected (steps, F) and (n,) integers whose sum is steps")
    rows, each = (len(x), "step") if per_step else (len(lengths), "sequence")
    if y.shape[:1] != (rows,):
        got = f"{len(y)} rows" if y.ndim else "shape ()"
        raise ValueError(f"{where}: y has {got}, expected {rows}, one for each {each}")
    if (wrong := np.argwhere(~np.isfinite(x))).size:
        step, feature = wrong[0]
        row = int(np.searchsorted(np.cumsum(lengths), step, side="right"))
        place = f"sequence {row}, step {step - lengths[:row].sum()}, feature {feature}"
        raise ValueError(f"{where}: x, {place}: got {x[step, feature]}, expected a finite number")
    labels, classes = labels_of(kind, y, f"{where}: y")
    if weights is not None:
        if per_step:
            raise ValueError(f"{where}: has weights, expected none with per_step")
        if weights.shape != (rows,) or weights.dtype.kind not in "iuf":
            got = f"weights has shape {weights.shape} and dtype {weights.dtype}"
            raise ValueError(f"{where}: {got}, expected numbers ({rows},), one for each sequence")
        weights = weights.astype(np.float64)
        if (bad := np.flatnonzero(~((weights > 0) & (weights <= FLOAT32_MOST)))).size:
            expected = f"a positive number, of at most {FLOAT32_MOST:.2g}"
            raise ValueError(f"{where}: weights, sequence {bad[0]}: got {weights[bad[0]]}, expected {expected}")
    if dt is not None:
        if dt.shape != steps or dt.dtype.kind not in INTERVALS:
            got = f"dt has shape {dt.shape} and dtype {dt.dtype}"
            raise ValueError(f"{where}: {got}, expected numbers {steps}, one for each step")
        dt = dt.ravel().astype(np.float64)
        check_intervals_of(where, dt, lengths)
    return Sequences(x, lengths.astype(np.int64), labels, per_step, classes, weights, dt=dt)


def _given(name: str, value: Any) -> Any:
    """Returns x or y as an array, or as the list that it is. TypeError or ValueError if it is neither."""
    if hasattr(value, "__array__"):
        array = on_host("save_arrays", name, value)
        if array.ndim:
            return array
        raise ValueError(f"save_arrays: {name} has shape (), expected a row for each sequence")
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"save_arrays: {name} is {an(type(value).__name__)}, expected an array or a list")
    return value


def _of_steps(y: npt.NDArray[Any] | Sequence[Any], lengths: Index) -> Numbers:
    """Returns labels of steps, one sequence after the other. TypeError or ValueError if their number differs from the
    steps."""
    if len(y) != len(lengths):
        raise ValueError(f"save_arrays: y has {len(y)} rows, expected {len(lengths)}, one for each sequence")
    parts = [on_host("save_arrays", f"y[{i}]", one) for i, one in enumerate(y)]
    for i, (one, length) in enumerate(zip(parts, lengths, strict=True)):
        if one.shape[:1] != (length,):
            got = f"{len(one)} labels" if one.ndim else f"shape {one.shape}"
            raise ValueError(f"save_arrays: y[{i}] has {got}, expected {length}, one for each step")
        if one.shape[1:] != parts[0].shape[1:]:
            expected = f"{(int(length), *parts[0].shape[1:])} as y[0]"
            raise ValueError(f"save_arrays: y[{i}] has shape {one.shape}, expected {expected}")
    return np.concatenate(parts)
