"""One peer on one problem, in this process alone: its time, its peak memory, and its answer in a file.

    python -m benchmarks.peers.run MODULE FUNCTION TASK B T D N WINDOW ANSWER.npz

Prints one row as JSON.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
from pathlib import Path

import numpy as np

from benchmarks.measure import memory, row, seconds_in_turn
from benchmarks.peers.problem import Size, problem

ADDRESS_SPACE = 12 << 30
"""Bytes; a peer that wants more runs out of memory here instead of taking the machine down."""


def main() -> None:
    module, function, task, *size, window, path = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    peer = importlib.import_module(f"benchmarks.peers.{module}")
    trial = getattr(peer, function)(problem(task, Size(*map(int, size))))
    np.savez(Path(path), **trial.answer(trial.step()))
    (seconds,) = seconds_in_turn([trial.step], window=float(window))
    _, peak = memory()
    more = {} if trial.compile_seconds is None else {"compile_seconds": trial.compile_seconds}
    print(json.dumps(row(task, seconds, peak_bytes=peak, roundings=trial.roundings, **more)))


if __name__ == "__main__":
    main()
