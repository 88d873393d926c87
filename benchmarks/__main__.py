"""All benchmarks: this machine's rates; scan, layer, block, training step and long sequences beside them; every layer
beside the plain one, ops beside a copy, iterations beside their parts, streams; then peers.

    python -m benchmarks [--large] [--only SUBJECT] [--json] [--quick]

Every subject runs in a separate process, with all cores (OMP_NUM_THREADS for fewer). Layer, block and training step
run again with AVX2 alone, kernels and NumPy both, where the machine has more. Writes benchmarks/results/bench.json and
bench.png, the tables of docs/benchmarks.md and the README's two tables; `--quick` runs everything at small sizes, in
a minute, and does not write them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, ROOT, arguments, line, origin, rows_of_child
from benchmarks.model import PATHS
from benchmarks.record import record
from benchmarks.report import write
from rotrnn import _cpu

AVX2 = {"ROTRNN_SIMD": "avx2", "OPENBLAS_CORETYPE": "Haswell"}


def runs(large: bool) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Subject, arguments and environment of each process."""
    yield "machine", [], {}
    yield "scan", [], {}
    for environment in ({}, AVX2) if _cpu.simd() == "avx512" else ({},):
        yield "layer", [], environment
        yield "block", [], environment
        for path in PATHS:
            yield "train_step", ["--path", path], environment
            if large and not environment:
                yield "train_step", ["--path", path, "--large"], environment
    for threads in range(1, _cpu.threads() + 1):
        yield "length", [], {"OMP_NUM_THREADS": str(threads)}
    yield "layers", [], {}
    yield "ops", [], {}
    yield "iteration", [], {}
    yield "stream", [], {}
    yield "peers", [], {}


def among(recorded: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The recorded results with the rows of some subjects replaced in place."""
    subjects = list(dict.fromkeys(row["subject"] for row in new["rows"]))
    again = {subject: [row for row in new["rows"] if row["subject"] == subject] for subject in subjects}
    later = recorded.get("later", {}) | dict.fromkeys(subjects, new["commit"])
    rows: list[Any] = []
    for row in recorded["rows"]:
        rows += again.pop(row["subject"], []) if row["subject"] in subjects else [row]
    return recorded | {"rows": rows + [row for rest in again.values() for row in rest], "later": later}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--large", action="store_true", help="also the training step of D 512, N 384: minutes more")
    parser.add_argument("--only", action="append", metavar="SUBJECT", help="such as layers, stream or peers")
    args = parser.parse_args()
    subjects = dict.fromkeys(subject for subject, *_ in runs(large=True))
    if unknown := set(args.only or ()) - set(subjects):
        parser.error(f"--only {', '.join(sorted(unknown))}, expected some of {', '.join(subjects)}")
    came_from = origin()  # before the results make the tree dirty
    rows = []
    for subject, extra, environment in runs(args.large):
        if args.only and subject not in args.only:
            continue
        for one in rows_of_child(f"benchmarks.{subject}", "--json", *extra, *["--quick"] * args.quick, **environment):
            rows.append({"subject": subject, **one})
            print(json.dumps(rows[-1]) if args.json else f"{subject:11s}{line(one)}", flush=True)
    results = {"rows": rows, **came_from}
    if args.only:
        results = among(json.loads((RESULTS / "bench.json").read_text(encoding="utf-8")), results)
    with tempfile.TemporaryDirectory() as scratch:
        folder, pages = RESULTS, [ROOT / "docs" / "benchmarks.md", ROOT / "README.md"]
        if args.quick:
            folder, pages = Path(scratch), [Path(shutil.copy(page, scratch)) for page in pages]
        write(record(folder / "bench.json", results), *pages, folder)


if __name__ == "__main__":
    main()
