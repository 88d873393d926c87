"""The public names, listed: a change of this list is a change of what docs/stability.md promises."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import rotrnn

MODULES = "models nn ops plots tasks training"

MODELS = "BitTagger LanguageModel ModelSettings Retrieval SequenceClassifier Stream Tagger build_model"
TRAINING = "AdamW ConvergenceError NotConverged learning_rate load_recipe release_memory train"

NN = """
Activation Attention BatchNorm Bedouin Bidirectional Context Dense Dropout Embedding FPMamba FeedForward
FeedForwardBlock FixedPointRNN GELU Gate LAYERS LRU LSTM LastPool LayerNorm Mamba MeanPool RNN Recurrent ResidualBlock
ResidualStack RopeMemory RotRNN S4D S5 SelectiveRotRNN WropeMemory astype flatten unflatten
"""

OPS = """
attention attention_backward bank_step batch_norm batch_norm_backward batch_norm_inference
batch_norm_inference_backward batch_norm_statistics binary_cross_entropy causal_conv causal_conv_backward cross_entropy
dense dense_backward diagonal_bank diagonal_bank_backward diagonal_scan diagonal_scan_backward dplr_mix
dplr_mix_backward dropout dropout_backward embedding embedding_backward exp exp_backward gelu gelu_backward glu
glu_backward history_read history_read_backward householder_mix householder_mix_backward kronecker_mix
kronecker_mix_backward last_pool last_pool_backward layer_norm layer_norm_backward linear_layer linear_layer_backward
low_rank_mix low_rank_mix_backward lstm lstm_backward mask_padding mean_pool mean_pool_backward orthogonal
orthogonal_backward residual_block residual_block_backward rnn rnn_backward rotary rotary_backward rotation_scan
rotation_scan_backward selective_scan selective_scan_backward sigmoid sigmoid_backward silu silu_backward softplus
softplus_backward tanh tanh_backward tiir_scan wrope_angle
"""

TYPES = """
AttentionGrads BankGrads BlockGrads BlockResult CausalConvGrads ChannelNorm DenseGrads DiagonalScanGrads EmbeddingGrads
Gating GluGrads HistoryReadGrads LinearLayerGrads LstmGrads LstmResult MixGrads NormGrads RnnGrads RotationScanGrads
RowNorm SelectiveScanGrads System WindowState
"""


@pytest.mark.parametrize(
    ("module", "expected"),
    [("rotrnn", [MODELS, TRAINING, NN, OPS]), ("rotrnn.nn", [NN]), ("rotrnn.ops", [OPS, TYPES])],
)
def test_public_names_are_these(module: str, expected: list[str]) -> None:
    names = sorted(" ".join(expected).split())
    there = importlib.import_module(module)
    assert sorted(there.__all__) == names
    assert all(hasattr(there, name) for name in names)
    assert sorted(dir(there)) == sorted([*names, *(f"{MODULES} __version__".split() if module == "rotrnn" else ())])


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
