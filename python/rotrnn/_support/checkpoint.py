"""Checkpoints: one safetensors file of arrays and facts, written atomically and verified by a checksum when read.

Equal content gives equal bytes. The file's metadata have one key, "rotrnn". Its value is a SHA-256 over everything, a
space, and the facts (step, recipe, ...) as JSON.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from rotrnn._support.files import Unsynced, atomic_file
from rotrnn._support.json import from_json, to_json

KEY = "rotrnn"
FORMAT = 2

Array = npt.NDArray[Any]
Facts = dict[str, Any]
"""JSON values: numbers, strings, lists and dicts of them. None of them may depend on the time or the machine."""


def write_checkpoint(path: str | os.PathLike[str], arrays: Mapping[str, Array], facts: Facts) -> None:
    """Writes a checkpoint and replaces the previous one, which is kept if anything fails.

    Raises
    ------
    ValueError
        An array has values that are not finite. Nothing is written.
    OSError
        The file could not be written, for example because the disk is full; the error names it.
    """
    content = packed(path, arrays, facts)
    try:
        with atomic_file(path) as file:
            file.write(content)
    except Unsynced:
        raise
    except OSError as error:
        kept = "the file that was there is unchanged" if Path(path).exists() else "no file was there before"
        raise OSError(error.errno, f"not written ({error.strerror}); {kept}", str(path)) from error


def packed(name: str | os.PathLike[str], arrays: Mapping[str, Array], facts: Facts) -> bytes:
    """Returns the content of a checkpoint; errors call it `name`. ValueError as in `write_checkpoint`."""
    for key, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: not written, because {key} has values that are not finite")
    little = {key: arrays[key].dtype.newbyteorder("<") for key in sorted(arrays)}  # as the file is read
    ordered = {key: np.asarray(arrays[key], dtype, order="C") for key, dtype in little.items()}
    text = to_json({**facts, "format": FORMAT}, sort_keys=True)
    return save(ordered, {KEY: f"{_digest(ordered, text)} {text}"})


def unpacked(name: str | os.PathLike[str], content: bytes) -> tuple[dict[str, Array], Facts]:
    """Returns the arrays and facts from the result of `packed`; errors call it `name`. ValueError as in
    `read_checkpoint`."""
    try:
        arrays = load(content)
        size = int.from_bytes(content[:8], "little")
        metadata = from_json(content[8 : 8 + size]).get("__metadata__", {})
    except SafetensorError as error:
        raise ValueError(f"{name}: is truncated, or is not a safetensors file ({error})") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: has an array of a shape or dtype that NumPy does not have ({error})") from error
    return _verified(name, arrays, metadata)


def read_checkpoint(
    path: str | os.PathLike[str], like: Mapping[str, Array] | None = None
) -> tuple[dict[str, Array], Facts]:
    """Reads and verifies the arrays and facts of a checkpoint.

    Parameters
    ----------
    like : dict of arrays, optional
        The arrays must have the same names, shapes and dtypes as these.

    Raises
    ------
    FileNotFoundError, IsADirectoryError
        There is no such file, or it is a folder.
    ValueError
        The file is truncated or not a safetensors file, was changed after it was written, lacks an array or has an
        unexpected one, or an array has another shape or dtype or values that are not finite. The error names the file
        and the problem.
    """
    arrays, facts = _verified(path, *_read(path))
    if like is not None:
        check_like(path, arrays, like)
    return arrays, facts


def _verified(path: str | os.PathLike[str], arrays: dict[str, Array], metadata: Any) -> tuple[dict[str, Array], Facts]:
    """Returns arrays and facts whose checksum fits."""
    if KEY not in metadata:
        raise ValueError(f"{path}: is not a checkpoint of rotrnn: its metadata have no '{KEY}'")
    digest, _, text = metadata[KEY].partition(" ")
    if digest != _digest(arrays, text):
        raise ValueError(f"{path}: its content does not match its checksum; the file was damaged or changed")
    try:
        facts = from_json(text)
    except ValueError as error:
        raise ValueError(f"{path}: its facts are not JSON ({error})") from None
    if not isinstance(facts, dict) or facts.pop("format", None) != FORMAT:
        raise ValueError(f"{path}: does not have format {FORMAT}, the one that this version of rotrnn reads")
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} has values that are not finite")
    return arrays, facts


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, expected a checkpoint", str(path))
    if not Path(path).exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such file", str(path))
    if not Path(path).is_file():
        raise OSError(errno.EINVAL, "is a pipe or a device, expected a checkpoint", str(path))
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: is truncated, or is not a safetensors file ({error})") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: has an array of a shape or dtype that NumPy does not have ({error})") from error


def check_like(path: str | os.PathLike[str], arrays: Mapping[str, Array], like: Mapping[str, Array]) -> None:
    """Raises ValueError if names, shapes or dtypes differ from `like`."""
    for name, expected in like.items():
        if name not in arrays:
            raise ValueError(f"{path}: lacks {name}")
        got = arrays[name]
        if got.shape != expected.shape or got.dtype != expected.dtype:
            raise ValueError(
                f"{path}: {name} has shape {got.shape} and dtype {got.dtype}, "
                f"expected {expected.shape} and {expected.dtype}"
            )
    surplus = sorted(arrays.keys() - like.keys())
    if surplus:
        raise ValueError(f"{path}: has {surplus[0]}, which is not expected")


def _digest(arrays: Mapping[str, Array], facts: str) -> str:
    """Returns a SHA-256 of the facts, and of name, dtype, shape and bytes of each array, sorted by name."""
    digest = hashlib.sha256(facts.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\0{name} {array.dtype.str} {array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
