"""Linear recurrent sequence models: a C core, explicit backward functions, and NumPy arrays.

Ops are in `rotrnn.ops`, in pairs ``y = op(...)`` and ``op_backward(dy, ...)``; layers are frozen dataclasses of
settings with ``init``, ``forward``, ``backward`` and ``step``, their parameters plain dicts of arrays
(`rotrnn.nn.layer`).
"""

import os as _os
from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from rotrnn._support import command as _command  # noqa: F401  (first: from here on Ctrl-C is told in a line)
from rotrnn._support.platform import after_fork_in_child as _after_fork_in_child
from rotrnn._support.platform import brief_spins as _brief_spins
from rotrnn._support.warn import warn as _warn

with _brief_spins():
    from rotrnn import _cpu
from rotrnn import cuda as cuda
from rotrnn import nn as nn
from rotrnn import ops as ops
from rotrnn.devices.precisions import precision as precision
from rotrnn.models.autoencoder import AutoEncoder as AutoEncoder
from rotrnn.models.build import ModelSettings as ModelSettings
from rotrnn.models.build import build_model as build_model
from rotrnn.models.classifier import MultiLabelClassifier as MultiLabelClassifier
from rotrnn.models.classifier import SequenceClassifier as SequenceClassifier
from rotrnn.models.regressor import Regressor as Regressor
from rotrnn.models.regressor import StepRegressor as StepRegressor
from rotrnn.models.retrieval import Retrieval as Retrieval
from rotrnn.models.stream import Stream as Stream
from rotrnn.models.tagger import BitTagger as BitTagger
from rotrnn.models.tagger import LanguageModel as LanguageModel
from rotrnn.models.tagger import Tagger as Tagger
from rotrnn.nn import *  # noqa: F403  (the layers' own __all__)
from rotrnn.nn.fixed_points.iteration import ConvergenceError as ConvergenceError
from rotrnn.nn.fixed_points.iteration import NotConverged as NotConverged
from rotrnn.training.optimiser import SGD as SGD
from rotrnn.training.optimiser import AdamW as AdamW
from rotrnn.training.schedule import learning_rate as learning_rate

if TYPE_CHECKING:
    from rotrnn import estimators as estimators
    from rotrnn import models as models
    from rotrnn import plots as plots
    from rotrnn import tasks as tasks
    from rotrnn import testing as testing
    from rotrnn import training as training
    from rotrnn.models.files import load as load
    from rotrnn.models.io.flax_checkpoints import import_lru as import_lru
    from rotrnn.models.io.flax_checkpoints import import_s5 as import_s5
    from rotrnn.models.io.pretrained import from_pretrained as from_pretrained
    from rotrnn.ops import *  # noqa: F403  (deprecated here: see __getattr__)
    from rotrnn.training.loop import train as train
    from rotrnn.training.recipe import load_recipe as load_recipe

__version__: str = _import_module("importlib.metadata").version("rotrnn")

if _simd := _os.environ.get("ROTRNN_SIMD"):
    _plain, *_bf16 = _cpu.BF16_BY_AVAILABLE
    if _simd not in (*_cpu.SIMD_AVAILABLE, *_bf16):
        raise ImportError(f"ROTRNN_SIMD is {_simd!r}, expected one of {', '.join((*_cpu.SIMD_AVAILABLE, *_bf16))}")
    _cpu.use_simd("avx512" if _simd in _bf16 else _simd)
    _cpu.use_bf16_by(_simd if _simd in _bf16 else _plain)

# OpenMP's threads do not survive a fork, and a child that waits for them hangs: it goes on with one
_after_fork_in_child(lambda: _cpu.use_threads(1))


def release_memory() -> int:
    """Returns memory kept for later arrays to the system; returns its number of bytes.

    Ops keep the memory of freed large arrays, at most the largest amount once in use (csrc/runtime/pool.c).
    """
    return _cpu.release_memory()


_MODULES = ("estimators", "models", "nn", "ops", "plots", "tasks", "testing", "training")
_LATE = {
    "from_pretrained": "rotrnn.models.io.pretrained",
    "import_lru": "rotrnn.models.io.flax_checkpoints",
    "import_s5": "rotrnn.models.io.flax_checkpoints",
    "load": "rotrnn.models.files",
    "load_recipe": "rotrnn.training.recipe",
    "train": "rotrnn.training.loop",
}
"""Imported when first asked for: tasks, checkpoints and progress bars are not needed by a layer."""

if not TYPE_CHECKING:  # type checkers read the imports above: of a computed list and of __getattr__ they know nothing
    __all__ = [
        "SGD",
        "AdamW",
        "AutoEncoder",
        "BitTagger",
        "ConvergenceError",
        "LanguageModel",
        "ModelSettings",
        "MultiLabelClassifier",
        "NotConverged",
        "Regressor",
        "Retrieval",
        "SequenceClassifier",
        "StepRegressor",
        "Stream",
        "Tagger",
        "build_model",
        "from_pretrained",
        "import_lru",
        "import_s5",
        "learning_rate",
        "load",
        "load_recipe",
        "precision",
        "release_memory",
        "train",
        *nn.__all__,
    ]

    def __getattr__(name: str) -> _Any:
        if name in _MODULES:
            return _import_module(f"rotrnn.{name}")
        if name in _LATE:
            return getattr(_import_module(_LATE[name]), name)
        if name in ops.__all__:
            message = f"rotrnn.{name} is now rotrnn.ops.{name}; the name without ops goes after version 0.2"
            _warn(message, DeprecationWarning)
            return getattr(ops, name)
        raise AttributeError(f"module 'rotrnn' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*__all__, *_MODULES, "__version__"]
