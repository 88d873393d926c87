"""The C kernels. Arguments stand in the order of csrc/entries.c; shapes are checked by rotrnn.ops, not here."""

from typing import Any

import numpy as np
import numpy.typing as npt

_R = npt.NDArray[Any]
_RO = npt.NDArray[Any] | None
_I = npt.NDArray[np.int64]
_IO = npt.NDArray[np.int64] | None

SIMD_AVAILABLE: tuple[str, ...]
OPENMP: int
COMPILER: str

def use_simd(name: str, /) -> str: ...
def threads() -> int: ...
def scan_forward(
    h: _R, hT: _RO, a: _R, x: _R, h0: _RO, lengths: _IO, B: int, T: int, N: int, varying: int, reverse: int, /
) -> None: ...
def scan_backward(
    dx: _R, da: _R, dh0: _RO, dh: _R, dhT: _RO, a: _R, h: _R, h0: _RO, lengths: _IO,
    B: int, T: int, N: int, varying: int, reverse: int, /,
) -> None: ...
def matmul(y: _R, x: _R, w: _R, bias: _RO, M: int, K: int, N: int, transposed: int, /) -> None: ...
def matmul_weight_grad(dw: _R, dbias: _RO, x: _R, dy: _R, M: int, K: int, N: int, /) -> None: ...
def philox(out: _I, counter: _I, key: _I, n: int, /) -> None: ...
