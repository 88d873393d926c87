"""Linear recurrent sequence models: a C core, explicit backward functions, and NumPy arrays.

Ops come in pairs, ``y = op(...)`` and ``op_backward(dy, ...)``; layers are frozen dataclasses of settings with
``init``, ``forward``, ``backward`` and ``step``, their parameters plain dicts of arrays (`rotrnn.nn.layer`).
"""

import os
from importlib.metadata import version

from rotrnn import _cpu
from rotrnn._support.platform import after_fork_in_child
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.classifier import SequenceClassifier
from rotrnn.models.retrieval import Retrieval
from rotrnn.models.stream import Stream
from rotrnn.models.tagger import BitTagger, LanguageModel, Tagger
from rotrnn.nn import *  # noqa: F403  (the layers' own __all__)
from rotrnn.nn import __all__ as _layers
from rotrnn.nn.fixed_points.iteration import ConvergenceError, NotConverged
from rotrnn.ops import *  # noqa: F403  (the ops' own __all__)
from rotrnn.ops import __all__ as _ops

__version__ = version("rotrnn")

if _simd := os.environ.get("ROTRNN_SIMD"):
    if _simd not in _cpu.SIMD_AVAILABLE:
        raise ImportError(f"ROTRNN_SIMD is {_simd!r}, expected one of {', '.join(_cpu.SIMD_AVAILABLE)}")
    _cpu.use_simd(_simd)

# OpenMP's threads do not survive a fork, and a child that waits for them hangs: it goes on with one
after_fork_in_child(lambda: _cpu.use_threads(1))


def release_memory() -> int:
    """Gives memory that is kept for coming arrays back to the system; returns how many bytes that was.

    Ops keep the memory of large arrays that are gone, never more than was once in use at a time (csrc/module/pool.c).
    """
    return _cpu.release_memory()


__all__ = [
    "BitTagger",
    "ConvergenceError",
    "LanguageModel",
    "ModelSettings",
    "NotConverged",
    "Retrieval",
    "SequenceClassifier",
    "Stream",
    "Tagger",
    "build_model",
    "release_memory",
    *_layers,
    *_ops,
]
