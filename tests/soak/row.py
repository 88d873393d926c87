"""What a check reports, and what checks measure in this process."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 2**20


@dataclass
class Row:
    """One row of the table: what was checked, with its seed; figures by column; and what failed, in words."""

    check: str
    case: str
    seed: int
    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def expect(self, holds: bool, failure: str) -> None:
        if not holds:
            self.failures.append(failure)


def resident() -> int:
    """Returns the memory of this process that is in use, in bytes (Linux)."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
