"""Public forward/backward pairs over the C kernels: NumPy arrays in, NumPy arrays out."""

from rotrnn.ops.dense import DenseGrads, dense, dense_backward
from rotrnn.ops.linear_layer import LinearLayerGrads, System, linear_layer, linear_layer_backward
from rotrnn.ops.mixer import HouseholderMixGrads, householder_mix, householder_mix_backward
from rotrnn.ops.orthogonal import orthogonal, orthogonal_backward
from rotrnn.ops.scan import (
    DiagonalScanGrads,
    RotationScanGrads,
    diagonal_scan,
    diagonal_scan_backward,
    rotation_scan,
    rotation_scan_backward,
)

__all__ = [
    "DenseGrads",
    "DiagonalScanGrads",
    "HouseholderMixGrads",
    "LinearLayerGrads",
    "RotationScanGrads",
    "System",
    "dense",
    "dense_backward",
    "diagonal_scan",
    "diagonal_scan_backward",
    "householder_mix",
    "householder_mix_backward",
    "linear_layer",
    "linear_layer_backward",
    "orthogonal",
    "orthogonal_backward",
    "rotation_scan",
    "rotation_scan_backward",
]
