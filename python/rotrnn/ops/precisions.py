"""How products of float32 matrices round their operands, on every device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rotrnn import _cpu

PRECISIONS = ("float32", "tf32", "bf16")
"""The names that `precision` takes."""


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Within the block, products of float32 matrices in calls of this thread round their operands.

    Parameters
    ----------
    name : str
        "float32" does not round. "tf32" rounds the operands of products to 10 bits after the point, ties away from
        zero. "bf16" rounds them to bfloat16, 7 bits, ties to even, and with them all activations between the products
        of a block: backward sees what forward stored. Products of rounded numbers are exact.
        Sums, scans and their states, norms, parameters, and the outputs of blocks stay float32.

    Raises
    ------
    ValueError
        For another name.

    Notes
    -----
    float64 is not rounded. Backward has to run in the precision of its forward. Other threads keep theirs. On the CPU,
    products follow it in `dense`, blocks and linear layers, the RNN, the LSTM and attention.
    """
    if name not in PRECISIONS:
        raise ValueError(f"precision: name is {name!r:.80}, expected one of {', '.join(PRECISIONS)}")
    modules = _modules()
    before = [module.use_precision(name) for module in modules]
    try:
        yield
    finally:
        for module, one in zip(modules, before, strict=True):
            module.use_precision(one)


def _modules() -> list[Any]:
    """Returns the modules of kernels that there are; each keeps the precision of every thread."""
    try:
        from rotrnn import _cuda
    except ImportError:
        return [_cpu]
    return [_cpu, _cuda]
