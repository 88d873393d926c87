"""Ours beside peers: scans and whole training steps of one block, each peer in its own process.

    python -m benchmarks.peers [--task lru] [--json] [--quick]

All get the same numbers (problem.py), and a peer's time counts only if its answer, gradients included, equals ours
within the error bound of its precision. It takes turns with ours, and time is the least of a step, steady state:
compilation stands beside it. A peer that is not installed, runs out of memory or answers otherwise is a row that says
so.
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

from benchmarks.measure import ROOT, arguments, in_turn, row, show
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
        Peer("JAX lax.scan in chunks, products hoisted", "jax", "jax_rotrnn", "chunked"),
        Peer("JAX as published (appendix C)", "jax", "jax_rotrnn", "published"),
        Peer("PyTorch loop, products hoisted", "torch", "torch_loop", "training"),
        Peer("PyTorch loop in chunks, products hoisted", "torch", "torch_loop", "chunked"),
    ),
    "rotrnn bf16": (
        Peer("rotrnn", "rotrnn", "ours", "training"),
        Peer("JAX lax.scan, products hoisted and cast", "jax", "jax_rotrnn", "loop"),
        Peer("JAX lax.scan in chunks, products hoisted and cast", "jax", "jax_rotrnn", "chunked"),
        Peer("PyTorch loop in chunks, products hoisted, autocast", "torch", "torch_loop", "chunked"),
    ),
}
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "MemoryError", "bad_alloc", "out of memory", "allocate")


class Failed(Exception):
    """A peer gave no answer; says why."""


class Process:
    """A peer at work in a process of its own, past its first step (run.py)."""

    def __init__(self, peer: Peer, task: str, size: Size, window: float, answer: Path) -> None:
        if importlib.util.find_spec(peer.package) is None:
            raise Failed(f"{peer.package} is not installed: pip install 'rotrnn[peers]'")
        command = [sys.executable, "-m", "benchmarks.peers.run", peer.module, peer.function, task]
        self.answer, self._complaints = answer, answer.with_suffix(".txt")
        with self._complaints.open("w") as complaints:
            self._child = subprocess.Popen(
                [*command, *map(str, size), str(window), str(answer)],
                cwd=ROOT,
                env={**os.environ, "OMP_WAIT_POLICY": "passive"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
        self._read()

    def _read(self) -> str:
        assert self._child.stdout is not None
        text = self._child.stdout.readline()
        if text:
            return text
        self._child.wait()
        said = self._complaints.read_text(encoding="utf-8").strip()
        if any(known in said for known in OUT_OF_MEMORY):
            raise Failed("out of memory (12 GiB)")
        raise Failed(f"failed: {said.splitlines()[-1] if said else f'ended with status {self._child.returncode}'}")

    def turn(self) -> float:
        """The least time of a step in a turn taken now."""
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return float(self._read())

    def end(self) -> dict[str, Any]:
        """Further numbers: peak memory, compile time, roundings."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        known: dict[str, Any] = json.loads(self._read())
        self._child.wait()
        return known


def compare(found: Path, wanted: Path, bound: float) -> float:
    """How far an answer is from the one wanted, |g - g'| / |g'| of the worst array; Failed if that is too far."""
    with np.load(found) as theirs, np.load(wanted) as ours:
        if theirs.keys() != ours.keys():
            raise Failed(f"answers {sorted(theirs)}, expected {sorted(ours)}")
        apart = [float(np.linalg.norm(theirs[name] - ours[name]) / np.linalg.norm(ours[name])) for name in ours]
    worst = max(apart) if np.isfinite(apart).all() else float("inf")
    if worst > bound:
        raise Failed(f"its answer differs by {worst:.1e}, more than {bound:.1e}: its time does not count")
    return worst


def contest(task: str, size: Size, window: float) -> Iterator[dict[str, Any]]:
    """A row of each peer, with the time we took in turn with it, and at last ours."""
    first, *others = TASKS[task]
    letters = "BTN" if task.startswith("scan") else "BTDN"
    kind = {"task": task, **{letter: getattr(size, letter) for letter in letters}}
    with tempfile.TemporaryDirectory() as folder:
        ours = Process(first, task, size, window, Path(folder, "ours.npz"))
        best = ours.turn()
        for peer in others:
            name = {"name": f"{task}: {peer.label}", "peer": peer.label, **kind}
            try:
                theirs = Process(peer, task, size, window, Path(folder, "theirs.npz"))
                seconds, our_seconds = in_turn([theirs.turn, ours.turn], window=window)
                known = theirs.end()
                bound = error_bound(size, known["roundings"], task)
                difference = compare(theirs.answer, ours.answer, bound)
            except Failed as why:
                yield {**name, "error": str(why)}
                continue
            best = min(best, our_seconds)
            yield {
                **row(name["name"], seconds, our_seconds, limit="rotrnn", **known, difference=difference),
                "error_bound": bound,
                **name,
            }
        yield {**row(f"{task}: {first.label}", best, **ours.end()), "peer": first.label, **kind}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--task", choices=TASKS, help="this task alone")
    args = parser.parse_args()
    for task in [args.task] if args.task else TASKS:
        for one in contest(task, *((QUICK, 0.2) if args.quick else (FULL, 15.0))):
            show([one], args.json)


if __name__ == "__main__":
    main()
