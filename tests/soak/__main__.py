"""Runs checks that take minutes to hours, and ends with a table and an exit code: `make soak`.

    python -m tests.soak                                        # all, about an hour on two idle cores
    python -m tests.soak --tokens 20000 --steps 300 --kills 3 --seconds 5
    python -m tests.soak --only stream --layers rope_memory wrope_memory --out benchmarks/results/soak

Every layer in a tiny model: a long stream in float32 beside float64, by chunks of 1000 tokens whose first 8 are single
pushes, with its error, state, memory and time of a token; and long training. Runs and sweeps that get every signal at
random moments, on disks that fill, by clocks that jump, and several at once in one folder: they end on the bytes of an
uninterrupted run. What fails is printed with its seed; --seed repeats it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.record import record

sys.path.insert(0, str(Path(__file__).parents[1]))  # for toy.py

from rotrnn._support.provenance import session
from tests.soak import faults, layers
from tests.soak.row import Row

FAULTS = {
    "runs": faults.kills_of_runs,
    "sweeps": faults.kills_of_sweeps,
    "limits": faults.full_disks,
    "disks": faults.really_full_disks,
    "clocks": faults.clocks,
    "folder": faults.two_at_once,
}
CHECKS = ("stream", "training", *FAULTS)


def rows(args: argparse.Namespace) -> Iterator[Row]:
    chosen = [case for case in layers.cases() if not args.layers or case.split(",")[0] in args.layers]
    for check, one, count in (("stream", layers.stream, args.tokens), ("training", layers.training, args.steps)):
        for case in chosen if check in args.only else ():
            yield one(case, args.seed, count, args.seconds)
    with tempfile.TemporaryDirectory() as folder:
        for check, several in FAULTS.items():
            if check in args.only:
                yield from several(args.seed, Path(folder, check), args.kills)


def text_of(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"


def markdown(done: list[Row]) -> str:
    """Returns a table for each check."""
    lines = []
    for check in dict.fromkeys(row.check for row in done):
        these = [row for row in done if row.check == check]
        columns = list(dict.fromkeys(name for row in these for name in row.figures))
        lines += [f"\n{check}:\n", "| " + " | ".join(["case", *columns, "seed", "result"]) + " |"]
        lines.append("| --- " * (len(columns) + 3) + "|")
        for row in these:
            figures = [text_of(row.figures.get(name, "")) for name in columns]
            result = "; ".join(row.failures).replace("\n", " ")[:200] or "as expected"
            lines.append("| " + " | ".join([row.case, *figures, str(row.seed), result]) + " |")
    return "\n".join(lines).lstrip("\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=10**6, help="of each stream; default 10^6")
    parser.add_argument("--steps", type=int, default=10**4, help="of each training; default 10^4")
    parser.add_argument("--kills", type=int, default=100, help="kills, and others of each kind; default 100")
    parser.add_argument("--seconds", type=float, default=120, help="most seconds of each layer's check; default 120")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=CHECKS)
    parser.add_argument("--layers", nargs="+", choices=layers.LAYERS)
    parser.add_argument("--seed", type=int, default=None, help="default: from the clock")
    parser.add_argument("--out", type=Path, help="also writes OUT.md and OUT.json")
    args = parser.parse_args()
    args.seed = int(time.time()) if args.seed is None else args.seed
    done = []
    for row in rows(args):
        done.append(row)
        said = "; ".join(row.failures) or ", ".join(f"{name} {text_of(value)}" for name, value in row.figures.items())
        print(f"{row.check}, {row.case}, seed {row.seed}: {'FAILED: ' if row.failures else ''}{said}", flush=True)
    print("\n" + markdown(done))
    if args.out:
        args.out.with_suffix(".md").write_text(markdown(done), encoding="utf-8")
        machine = {key: value for key, value in session().items() if key != "command"}  # it has paths
        facts = {"session": machine, "seed": args.seed, "rows": [vars(row) for row in done]}
        record(args.out.with_suffix(".json"), facts)
    failed = [row for row in done if row.failures]
    for row in failed:
        print(f"FAILED: {row.check}, {row.case}, seed {row.seed}: {'; '.join(row.failures)}", file=sys.stderr)
    print(f"{len(done)} checks, {len(failed)} failed; seed {args.seed}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
