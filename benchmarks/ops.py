"""Time of every op's forward and backward, beside a plain copy of the same number of bytes.

    python -m benchmarks.ops [NAME ...] [--json] [--quick]

The ops are rows of the tests' own table, in float32 (TIMED of tests/cases/timed.py); NAME picks those whose name
contains it. The copy moves what the op must read and write once: arguments and outputs, and gradients in backward. For
ops that multiply matrices or make several passes it is a reference, not a bound. Backward is the backward of the
table's row: for norms and tanh it includes the forward pass.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks.bits import cotangents_of, narrow
from benchmarks.measure import ROOT, arguments, plain_copy, row, seconds_in_turn, show


def timed_cases() -> list[Any]:
    """The rows of the tests' table that are timed."""
    sys.path.insert(0, str(ROOT / "tests"))
    from cases.timed import TIMED

    return TIMED


def bytes_of(arrays: Iterable[Any]) -> int:
    return sum(np.asarray(array).nbytes for array in arrays)


def rows(case: Any, window: float) -> list[dict[str, Any]]:
    """Forward and backward of one row of the table."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    args = {name: narrow(x) for name, x in case.make(rng).items()}
    outputs = case.forward(args)
    cotangents = cotangents_of(rng, outputs)
    once = bytes_of([*args.values(), *outputs])
    found = []
    for name, run, moved in (
        ("forward", lambda: case.forward(args), once),
        ("backward", lambda: case.backward(args, outputs, cotangents), 2 * once),
    ):
        x = np.ones(max(moved // 8, 1), np.float32)  # a copy reads and writes
        seconds, limit = seconds_in_turn([run, plain_copy(np.empty_like(x), x)], window=window)
        found.append(
            row(f"{case.name}, {name}", seconds, limit, limit="plain copy", **{"GB/s": 1e-9 * moved / seconds})
        )
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of names of rows; all if none is given")
    args = parser.parse_args()
    cases = [one for one in timed_cases() if not args.names or any(name in one.name for name in args.names)]
    if not cases:
        parser.error(
            f"NAME is {', '.join(args.names)}, expected a part of one of {[one.name for one in timed_cases()]}"
        )
    for case in cases:
        show(rows(case, 0.02 if args.quick else 1.0), args.json)


if __name__ == "__main__":
    main()
