"""Ours beside peers: scans and whole training steps of one block, each peer in a process of its own.

    python -m benchmarks.peers [--task lru] [--json] [--quick]

All get the same numbers (problem.py), and a peer's time counts only if its answer, gradients included, is ours within
the error bound of float32. Time is the least of the repeats, steady state: compilation stands beside it. A peer that is
not installed, runs out of memory or answers otherwise is a row that says so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import ROOT, arguments, show
from benchmarks.peers.problem import Size, error_bound


class Peer(NamedTuple):
    """What it is called, the package it needs, and where it is: module and function of benchmarks.peers."""

    label: str
    package: str
    module: str
    function: str


FULL, QUICK = Size(32, 2048, 128, 256), Size(2, 64, 16, 32)
TASKS = {
    "scan": (
        Peer("rotrnn", "rotrnn", "ours", "scan"),
        Peer("SciPy lfilter", "scipy", "scipy_lfilter", "scan"),
        Peer("torchlpc", "torchlpc", "torch_lpc", "scan"),
        Peer("JAX lax.scan", "jax", "jax_scan", "loop"),
        Peer("JAX associative_scan", "jax", "jax_scan", "associative"),
        Peer("PyTorch loop", "torch", "torch_loop", "scan"),
    ),
    "scan gradient": (
        Peer("rotrnn", "rotrnn", "ours", "scan_gradient"),
        Peer("torchlpc", "torchlpc", "torch_lpc", "scan_gradient"),
        Peer("JAX lax.scan", "jax", "jax_scan", "loop_gradient"),
        Peer("JAX associative_scan", "jax", "jax_scan", "associative_gradient"),
        Peer("PyTorch loop", "torch", "torch_loop", "scan_gradient"),
    ),
    "lru": (
        Peer("rotrnn", "rotrnn", "ours", "training"),
        Peer("JAX lax.scan, products hoisted", "jax", "jax_lru", "loop"),
        Peer("JAX associative_scan, products hoisted", "jax", "jax_lru", "parallel"),
        Peer("JAX as published (appendix A)", "jax", "jax_lru", "published"),
        Peer("PyTorch loop, products hoisted", "torch", "torch_loop", "training"),
    ),
    "rotrnn": (
        Peer("rotrnn", "rotrnn", "ours", "training"),
        Peer("JAX lax.scan, products hoisted", "jax", "jax_rotrnn", "loop"),
        Peer("JAX associative_scan, products hoisted", "jax", "jax_rotrnn", "parallel"),
        Peer("JAX as published (appendix C)", "jax", "jax_rotrnn", "published"),
        Peer("PyTorch loop, products hoisted", "torch", "torch_loop", "training"),
    ),
}
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "MemoryError", "bad_alloc", "out of memory", "allocate")


def run(peer: Peer, task: str, size: Size, quick: bool, answer: Path) -> dict[str, Any]:
    """The peer's row, with "error" if there is no time."""
    name = {"name": f"{task}: {peer.label}", "task": task, "peer": peer.label, **size._asdict()}
    if importlib.util.find_spec(peer.package) is None:
        return {**name, "error": f"{peer.package} is not installed: pip install 'rotrnn[peers]'"}
    window, limit = ("0.1", 300) if quick else ("10", 900)
    command = [sys.executable, "-m", "benchmarks.peers.run", peer.module, peer.function, task, *map(str, size)]
    env = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    try:
        done = subprocess.run(
            [*command, window, str(answer)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {**name, "error": f"not done after {limit} s"}
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"ended with status {done.returncode}"]
        full = any(text in done.stderr for text in OUT_OF_MEMORY)
        return {**name, "error": "out of memory (12 GiB)" if full else f"failed: {said[0]}"}
    return {**json.loads(done.stdout.splitlines()[-1]), **name}


def compare(one: dict[str, Any], ours: dict[str, Any], size: Size, found: Path, wanted: Path) -> dict[str, Any]:
    """The row of a peer with how far its answer is from ours, and its time over ours; an error if that is too far."""
    with np.load(found) as theirs, np.load(wanted) as mine:
        if theirs.keys() != mine.keys():
            return {**one, "error": f"answers {sorted(theirs)}, expected {sorted(mine)}"}
        apart = [float(np.linalg.norm(theirs[key] - mine[key]) / np.linalg.norm(mine[key])) for key in mine]
    bound = error_bound(size, one["roundings"])
    worst = max(apart) if np.isfinite(apart).all() else float("inf")
    if worst > bound:
        return {**one, "error": f"its answer differs by {worst:.1e}, more than {bound:.1e}: not timed"}
    return {**one, "difference": worst, "error_bound": bound, "times_ours": one["seconds"] / ours["seconds"]}


def contest(task: str, size: Size, quick: bool) -> Iterator[dict[str, Any]]:
    """A row of each peer, ours first."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, found = Path(folder, "ours.npz"), Path(folder, "theirs.npz")
        first, *others = TASKS[task]
        ours = run(first, task, size, quick, wanted)
        if "error" in ours:
            raise RuntimeError(ours["error"])
        yield ours
        for peer in others:
            one = run(peer, task, size, quick, found)
            yield one if "error" in one else compare(one, ours, size, found, wanted)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--task", choices=TASKS, help="this task alone")
    args = parser.parse_args()
    for task in [args.task] if args.task else TASKS:
        for one in contest(task, QUICK if args.quick else FULL, args.quick):
            show([one], args.json)


if __name__ == "__main__":
    main()
