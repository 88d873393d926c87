"""Draws every picture of docs/theory.md: the papers' claims, as printed and where they hold.

python examples/theory.py [--out FOLDER] [NAME ...]

Each picture is written to FOLDER/NAME.png (default: theory); NAMEs choose some of them. All take less than a minute.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import theory_of_fixed_points
import theory_of_lru
import theory_of_rotrnn
from rotrnn.plots.style import DPI

PICTURES = theory_of_fixed_points.PICTURES | theory_of_lru.PICTURES | theory_of_rotrnn.PICTURES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("theory"), metavar="FOLDER")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    args = parser.parse_args()
    if unknown := set(args.names) - set(PICTURES):
        parser.error(f"no picture {', '.join(sorted(unknown))}, expected some of {', '.join(PICTURES)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or PICTURES:
        path = args.out / f"{name}.png"
        PICTURES[name]().savefig(path, dpi=DPI)
        print(path, flush=True)


if __name__ == "__main__":
    main()
