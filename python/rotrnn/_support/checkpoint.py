"""Checkpoints: one safetensors file of arrays and facts, there whole or not at all, whose bytes are checked on reading.

The same content gives the same bytes. The file's metadata have one key, "rotrnn": a SHA-256 over everything, a space,
and the facts (step, recipe, ...) as JSON.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from rotrnn._support.files import atomic_file
from rotrnn.ops.boundary import Array

KEY = "rotrnn"
FORMAT = 2

Facts = dict[str, Any]
"""What JSON can hold: numbers, texts, lists and dicts of them, none of it dependent on time or machine."""


def write_checkpoint(path: str | os.PathLike[str], arrays: Mapping[str, Array], facts: Facts) -> None:
    """Writes a checkpoint in the place of the one before, which stays if anything fails.

    Raises
    ------
    ValueError
        An array holds numbers that are not finite. Nothing is written.
    OSError
        The file could not be written, because the disk is full for instance; the error names it.
    """
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: not written, because {name} is not finite everywhere")
    ordered = {name: np.asarray(arrays[name], order="C") for name in sorted(arrays)}
    text = json.dumps({**facts, "format": FORMAT}, sort_keys=True)
    try:
        with atomic_file(path) as file:
            file.write(save(ordered, {KEY: f"{_digest(ordered, text)} {text}"}))
    except OSError as error:
        kept = "what was there before is untouched" if Path(path).exists() else "nothing was there before"
        raise OSError(error.errno, f"checkpoint not written ({error.strerror}); {kept}", str(path)) from error


def read_checkpoint(
    path: str | os.PathLike[str], like: Mapping[str, Array] | None = None
) -> tuple[dict[str, Array], Facts]:
    """The arrays and facts of a checkpoint, checked.

    Parameters
    ----------
    like : dict of arrays, optional
        What is expected: the same names, shapes and dtypes.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        The file is cut short or no safetensors file, was changed after it was written, lacks an array or has one too
        many, or one is of another shape or dtype or not finite; the error names the file and what is wrong.
    """
    arrays, metadata = _read(path)
    if KEY not in metadata:
        raise ValueError(f"{path}: no checkpoint of rotrnn, its metadata have no '{KEY}'")
    digest, _, text = metadata[KEY].partition(" ")
    if digest != _digest(arrays, text):
        raise ValueError(f"{path}: its contents do not match its checksum; it was damaged or changed")
    facts = json.loads(text)
    if facts.pop("format", None) != FORMAT:
        raise ValueError(f"{path}: has another format than {FORMAT}, the one this version of rotrnn reads")
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} is not finite everywhere")
    if like is not None:
        check_like(path, arrays, like)
    return arrays, facts


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    if not Path(path).is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such checkpoint", str(path))
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: cut short, or no safetensors file ({error})") from error


def check_like(path: str | os.PathLike[str], arrays: Mapping[str, Array], like: Mapping[str, Array]) -> None:
    """Raises ValueError where names, shapes or dtypes are not those of `like`."""
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
    """SHA-256 over the facts, and over name, dtype, shape and bytes of each array in the order of names."""
    digest = hashlib.sha256(facts.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\0{name} {array.dtype.str} {array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
