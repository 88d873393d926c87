"""One peer on one problem, in this process alone: its answer in a file, its times, and its peak memory.

    python -m benchmarks.peers.run MODULE FUNCTION TASK B T D N WINDOW ANSWER.npz

After the first step it prints a line, and for every line it then reads it takes a turn and prints the least seconds of
a step. At the end of its input it prints what else is known, as JSON.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys

import numpy as np

from benchmarks.measure import memory, turn
from benchmarks.peers.problem import Size, problem

ADDRESS_SPACE = 12 << 30
"""Bytes; a peer that wants more runs out of memory here instead of taking the machine down."""


def main() -> None:
    module, function, task, *size, window, path = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    peer = importlib.import_module(f"benchmarks.peers.{module}")
    trial = getattr(peer, function)(problem(task, Size(*map(int, size))))
    np.savez(path, **trial.answer(trial.step()))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(turn(trial.step, float(window)), flush=True)
    _, peak = memory()
    more = {} if trial.compile_seconds is None else {"compile_seconds": trial.compile_seconds}
    print(json.dumps({"peak_bytes": peak, "roundings": trial.roundings, **more}))


if __name__ == "__main__":
    main()
