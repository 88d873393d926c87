"""Steps of training on one and on two processes, beside one process of two threads.

    python -m benchmarks.parallel [--json] [--quick]

Each is `rotrnn train`, on real data or short ListOps, in turns; a time is the minimum over the steps in the log.
Processes that wait for each other lose the most on a machine that is busy with other work, so the load average is
recorded too. Results, and the speed-up over one process of one thread, are written to benchmarks/results/parallel.json.
Needs the extra "mpi".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, arguments, in_turn, line, origin
from benchmarks.record import record
from rotrnn import _cpu
from rotrnn.training.run import Run

WAYS = {"1 process of 1 thread": (1, 1), "2 processes of 1 thread": (2, 1), "1 process of 2 threads": (1, 2)}
PROBLEMS = {
    "digits-lru": ["digits-lru"],
    "listops-lru, B 16, D 128, 4 blocks": [
        *("listops-lru", "training.batch=16", "model.n_layers=4"),
        *("task.train=64", "task.val=1", "task.test=1", "task.min_length=500", "task.max_length=600"),
    ],
}


def train(recipe: str, *settings: str, processes: int, threads: int, steps: int) -> float:
    """The minimum time of a step of a run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rotrnn", "train", recipe, "--out", folder, "--steps", str(steps)]
        for setting in settings:
            command += ["--set", setting]
        if processes > 1:
            command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(processes), *command]
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
        subprocess.run(command, env=env, check=True, capture_output=True)
        return min(record["seconds"] for record in Run(Path(folder)).records() if "loss" in record)


def rows(window: float, steps: dict[str, int]) -> list[dict[str, Any]]:
    """One row for each problem and way."""
    found = []
    for name, settings in PROBLEMS.items():
        turns = [
            partial(train, *settings, processes=processes, threads=threads, steps=steps[name])
            for processes, threads in WAYS.values()
        ]
        times = in_turn(turns, window=window)
        for (way, (processes, threads)), seconds in zip(WAYS.items(), times, strict=True):
            more = {"processes": processes, "threads": threads, "simd": _cpu.simd(), "speed": times[0] / seconds}
            found.append({"name": name, "path": way, "seconds": seconds, "steps/s": 1 / seconds, **more})
    return found


def main() -> None:
    args = arguments(__doc__).parse_args()
    steps = dict(zip(PROBLEMS, (5, 2) if args.quick else (100, 8), strict=True))
    found = rows(0.1 if args.quick else 120.0, steps)
    for one in found:
        print(json.dumps(one) if args.json else f"{line(one)}  {one['speed']:.2f} times as fast")
    if not args.quick:
        run = {**origin(), "load": os.getloadavg(), "results": found}
        record(RESULTS / "parallel.json", run)


if __name__ == "__main__":
    main()
