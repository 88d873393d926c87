"""Hashes of the results of kernels and training runs, to tell whether a change of the code changed any bit.

    python -m benchmarks.bits OUT.json            # record
    python -m benchmarks.bits --against OUT.json  # compare; ends with status 1 where something differs

Every row of the tests' table of cases runs forward and backward in float64 and float32 on each instruction set of this
processor, and short training runs on the best. Hashes are valid for one machine, compiler and NumPy: compare them where
they were recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks.record import record
from rotrnn import _cpu
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe

RUNS = {
    **{
        f"digits-{layer}": ["training.steps=20", "training.eval_every=10"]
        for layer in (
            *("rotrnn", "lru", "s5", "s4d", "s4", "liquid_s4", "rnn", "lstm", "attention", "mamba", "mamba2"),
            *("selective_rotrnn", "fixed_point", "bedouin", "fpmamba", "rope_memory", "wrope_memory"),
        )
    },
    **{
        f"{name}-small": ["training.steps=6", "training.eval_every=6"]
        for name in ("listops-rotrnn", "listops-s4d", "word-problem", "copy", "brackets")
    },
    **{
        f"{name}-small": ["training.steps=4", "training.eval_every=4"]
        for name in ("delayed-copy-minimal-lru", "pathfinder-lru")
    },
}
"""Recipes, and the settings that make them short."""


def digest(arrays: Iterable[Any]) -> str:
    """A hash of shapes, dtypes and bytes."""
    total = hashlib.sha256()
    for array in map(np.asarray, arrays):
        total.update(f"{array.shape}{array.dtype}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def narrow(x: Any) -> Any:
    return x.astype(np.complex64 if np.iscomplexobj(x) else np.float32)


def cotangents_of(rng: np.random.Generator, outputs: Iterable[Any]) -> tuple[Any, ...]:
    """Gradients of outputs, of their dtypes."""

    def one(out: Any) -> Any:
        x = np.asarray(rng.standard_normal(out.shape))
        return (x * (1 + 1j) if np.iscomplexobj(out) else x).astype(out.dtype)

    return tuple(map(one, outputs))


def case_hashes() -> Iterator[tuple[str, str]]:
    """Every case on every instruction set and in both precisions."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from cases import CASES, LARGE

    before = _cpu.simd()
    for case in [*CASES, *LARGE]:
        for simd in _cpu.SIMD_AVAILABLE:
            _cpu.use_simd(simd)
            for name, cast in (("float64", lambda x: x), ("float32", narrow)):
                rng = np.random.default_rng(zlib.crc32(case.name.encode()))
                args = {key: cast(value) for key, value in case.make(rng).items()}
                outputs = case.forward(args)
                cotangents = cotangents_of(rng, outputs)
                grads = case.backward(args, outputs, cotangents)
                yield f"{case.name} {name} {simd}", digest([*outputs, *grads.values()])
    _cpu.use_simd(before)


def run_hashes() -> Iterator[tuple[str, str]]:
    """Parameters, moments and buffers at the end of short training runs."""
    for name, settings in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            train(load_recipe(name, settings), Path(folder), progress=False)
            arrays = load_file(str(Path(folder, "last.safetensors")))
            yield f"run {name}", digest(arrays[key] for key in sorted(arrays))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", help="where to write the hashes")
    parser.add_argument("--against", help="hashes to compare with")
    parser.add_argument("--no-runs", action="store_true", help="cases alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    hashes = dict(case_hashes())
    if not args.no_runs:
        hashes |= run_hashes()
    if args.out:
        record(Path(args.out), hashes)
    if not args.against:
        return 0
    known = json.loads(Path(args.against).read_text(encoding="utf-8"))
    if args.no_runs:
        known = {name: value for name, value in known.items() if not name.startswith("run ")}
    other = [name for name in known if name in hashes and hashes[name] != known[name]]
    gone, new = known.keys() - hashes.keys(), hashes.keys() - known.keys()
    print(
        f"{len(known.keys() & hashes.keys()) - len(other)} equal, {len(other)} differ, {len(gone)} gone, {len(new)} new"
    )
    for kind, names in (("differs", other), ("gone", sorted(gone))):
        for name in names:
            print(f"{kind}: {name}")
    return int(bool(other or gone))


if __name__ == "__main__":
    sys.exit(main())
