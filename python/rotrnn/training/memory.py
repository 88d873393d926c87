"""The memory that the blocks of a model may take to keep arrays for backward (`training.memory`)."""

from __future__ import annotations

from rotrnn._support.platform import available_memory
from rotrnn.devices.device import HOST, Device
from rotrnn.training.parallel import ALONE, World

SHARE = 4
""" "auto" takes the available memory divided by this number, since other runs may begin beside this one."""


def budget(setting: str | int, device: Device = HOST, among: World = ALONE, before: int | None = None) -> int | None:
    """Returns `Context.memory` of the setting, the same in all processes.

    "least" is 0. A number of bytes is itself. "auto" is a share of the memory available now, less on several processes,
    which may be on one machine; or what the run took by "auto" `before`, when it is resumed, if there is as much. On a
    GPU, and where the system does not report the available memory, "auto" is None, the context's default.

    Raises
    ------
    ValueError
        On the CPU a number of bytes is larger than the memory that is available in one of the processes.
    """
    available = available_memory() if device is HOST else None
    own: int | None = 0 if setting == "least" else None
    if isinstance(setting, int):
        own = setting
        if available is not None and setting > available:
            raise ValueError(
                f"training.memory is {setting}, expected at most {available}, the bytes of memory that are available"
            )
    if setting == "auto" and available is not None:
        kept = before is not None and before * among.size <= available
        own = before if kept else available // (SHARE * among.size)
    return min((one for one in among.tell(own) if one is not None), default=None)
