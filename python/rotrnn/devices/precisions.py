"""How products of float32 matrices round their operands, on every device."""

from __future__ import annotations

import functools
import threading
from typing import Any

from rotrnn import _cpu

PRECISIONS = ("float32", "tf32", "bf16")
"""The names that `precision` takes."""


class precision(threading.local):  # each thread leaves a block that it entered itself
    """Within the block, products of float32 matrices in calls of this thread round their operands.

    Parameters
    ----------
    name : str
        "float32" does not round. "tf32" rounds the operands of products to 10 bits after the point, ties away from
        zero. "bf16" rounds them to bfloat16, 7 bits, ties to even, and with them all activations between the products
        of a block: backward sees what forward stored. Products of rounded numbers are exact.
        Sums, the recurrences of scans, norms, parameters, and the outputs of blocks stay float32.
        In "bf16" a GPU also rounds the results of a block's products, once their sums are complete, except for the
        gradients of weights.

    Raises
    ------
    ValueError
        For another name.

    Notes
    -----
    float64 is not rounded. Backward has to run in the precision of its forward; layers and models check it. Other
    threads keep theirs; tasks of asyncio and generators in one thread share it, so do not await or yield within the
    block. On the CPU, products follow it in `dense`, blocks and linear layers, the RNN, the LSTM, the sLSTM and
    attention. Numbers within 2^-9 of float32's largest become infinite in bf16. Saved models and states of streams do
    not record the precision.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or name not in PRECISIONS:
            raise ValueError(f"precision: name is {name!r:.80}, expected one of {', '.join(PRECISIONS)}")
        self.name = name
        self._before: list[list[tuple[Any, str]]] = []

    def __enter__(self) -> None:
        self._before.append([(module, module.use_precision(self.name)) for module in _modules()])

    def __exit__(self, *_: object) -> None:
        if not self._before:
            raise RuntimeError(f"precision.__exit__: {self.name!r} was not entered, expected a with statement")
        for module, name in self._before.pop():
            module.use_precision(name)


@functools.cache  # a failed import takes longer than a small layer
def _modules() -> list[Any]:
    """Returns the available modules of kernels; each keeps the precision of every thread."""
    try:
        from rotrnn import _cuda
    except ImportError:
        return [_cpu]
    return [_cpu, _cuda]
