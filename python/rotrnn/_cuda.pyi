"""The CUDA kernels (cuda/), with the arguments of csrc/kernels.list. Used by rotrnn.devices alone."""

from collections.abc import Callable
from typing import Any

from rotrnn._cpu import Kernels
from rotrnn.devices.device import Device

kernels: Kernels

def connect(device: Device, allocate: Callable[[int], Any], stream: Callable[[], int], blas: str, /) -> None: ...
def use_counter(counter: Any, /) -> None: ...
def precision() -> str: ...
def use_precision(name: str, /) -> str: ...
