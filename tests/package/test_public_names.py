"""The public names, listed: a change of this list is a change of what docs/stability.md promises."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import rotrnn

MODULES = "estimators models nn ops plots tasks testing training"

MODELS = """
AutoEncoder BitTagger LanguageModel ModelSettings MultiLabelClassifier Regressor Retrieval SequenceClassifier
StepRegressor Stream Tagger build_model
"""
TRAINING = "AdamW SGD ConvergenceError NotConverged learning_rate load_recipe precision release_memory train"
FILES = "from_pretrained import_lru import_s5 load"

NN = """
AUSSM Activation Attention BatchNorm Bedouin Bidirectional Comba Context Converted DeltaNet Dense Dropout Embedding
FPMamba FeedForward FeedForwardBlock FixedPointRNN GELU GRU Gate GatedDeltaNet2 Griffin KDA LAYERS LRU LSTM LastPool
LayerNorm LinOSS LiquidS4 MLSTM Mamba Mamba2 Mamba3 MeanPool MinGRU PDSSM RGLRU RMSNorm RNN RWKV7 Recurrent
ResidualBlock ResidualStack RopeMemory RotRNN S4 S4D S5 SLSTM SLinOSS SelectiveRotRNN StateArray StoredHistory TiedDense
WropeMemory astype flatten orthogonal_inverse pack real_jordan summary to_lru to_rnn to_rotrnn unflatten
"""

OPS = importlib.import_module("rotrnn.ops").__all__
"""Listed where they are defined, in the ``__all__`` of each module; types of results begin with a capital letter."""
FUNCTIONS = [name for name in OPS if name[0].islower()]


def test_ops_are_documented_and_listed_once() -> None:
    files = [importlib.import_module(f"rotrnn.ops.{one.name}") for one in pkgutil.iter_modules(rotrnn.ops.__path__)]
    assert sorted(name for one in files for name in getattr(one, "__all__", ())) == sorted(OPS)
    for name in OPS:
        assert getattr(rotrnn.ops, name).__doc__, name
    for name in FUNCTIONS:
        if name.endswith("_backward"):
            assert name.removesuffix("_backward") in FUNCTIONS, name


@pytest.mark.parametrize(
    ("module", "expected"),
    [("rotrnn", [MODELS, TRAINING, FILES, NN]), ("rotrnn.nn", [NN]), ("rotrnn.ops", OPS)],
)
def test_public_names_are_these(module: str, expected: list[str]) -> None:
    names = sorted(" ".join(expected).split())
    there = importlib.import_module(module)
    assert sorted(there.__all__) == names
    assert all(hasattr(there, name) for name in names)
    assert sorted(dir(there)) == sorted([*names, *(f"{MODULES} __version__".split() if module == "rotrnn" else ())])


@pytest.mark.parametrize("name", OPS)
def test_an_op_under_its_old_name_is_the_same_and_warns(name: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=rf"^rotrnn\.{name} is now rotrnn\.ops\.{name}; .* after version 0\.2"
    ) as at:
        assert getattr(rotrnn, name) is getattr(rotrnn.ops, name)
    assert [one.filename for one in at] == [__file__]
    with pytest.raises(DeprecationWarning, match=r"is now rotrnn\.ops"):  # as everywhere in the tests (pyproject.toml)
        getattr(rotrnn, name)


def test_modules_and_training_are_imported_when_asked_for() -> None:
    code = (
        "import sys, rotrnn; assert 'rotrnn.training.loop' not in sys.modules, 'loop'\n"
        "assert rotrnn.train is rotrnn.training.loop.train\n"
        "assert rotrnn.load_recipe is rotrnn.training.recipe.load_recipe\n"
        "assert 'digits' in rotrnn.tasks.TASKS"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'rotrnn' has no attribute 'os'"):
        _ = rotrnn.os
