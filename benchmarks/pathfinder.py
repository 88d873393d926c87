"""Time of one Pathfinder image at each resolution, on one core, beside the original generator; and sheets of them.

    python -m benchmarks.pathfinder [--json] [--quick]

Settings are the published ones of the hard level. The time is the mean over the same images every time, the least of
the runs. The limit is what the original algorithm took an image, interpreted, on one core of another machine (300 and
24 images measured). Writes benchmarks/results/pathfinder.json, and samples as pathfinder-32.png and path-x.png;
`--quick` leaves them alone.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, arguments, origin, row, seconds_in_turn
from rotrnn import _cpu
from rotrnn.tasks import Pathfinder

ORIGINAL = {32: 0.28, 128: 5.1}  # seconds an image
IMAGES = {32: 2000, 64: 400, 128: 200, 256: 200}
SET = 200_000
SHEETS = {32: "pathfinder-32.png", 128: "path-x.png"}


def rows(images: dict[int, int], window: float) -> list[dict[str, Any]]:
    """One row a resolution: seconds an image, and hours for all that are published."""
    found = []
    for resolution, count in images.items():
        draw = partial(Pathfinder(resolution=resolution).images, np.arange(count))
        (seconds,) = seconds_in_turn([draw], window=window)
        more = {"resolution": resolution, "images": count, "images/s": count / seconds}
        more |= {"hours for 200,000": SET * seconds / count / 3600}
        if resolution in ORIGINAL:
            more |= {"original_seconds": ORIGINAL[resolution], "speedup": ORIGINAL[resolution] * count / seconds}
        found.append(row(f"pathfinder {resolution}", seconds / count, **more))
    return found


def line(one: dict[str, Any]) -> str:
    text = f"{one['name']:18s}{1e3 * one['seconds']:9.3f} ms an image {one['images/s']:9.1f}/s"
    text += f"  {one['hours for 200,000']:6.2f} h for 200,000"
    return text + (f"  {one['speedup']:6.0f} times the original" if "speedup" in one else "")


def main() -> None:
    args = arguments(__doc__).parse_args()
    came_from = {**origin(), "command": "python -m benchmarks.pathfinder"}
    threads = _cpu.threads()
    _cpu.use_threads(1)
    found = rows(dict.fromkeys(IMAGES, 4), 0.05) if args.quick else rows(IMAGES, 10.0)
    _cpu.use_threads(threads)
    for one in found:
        print(json.dumps(one) if args.json else line(one), flush=True)
    if args.quick:
        return
    (RESULTS / "pathfinder.json").write_text(json.dumps({"rows": found, **came_from}, indent=1) + "\n")
    from rotrnn.plots import pathfinder_sheet

    for resolution, name in SHEETS.items():
        images = Pathfinder(resolution=resolution).images(np.arange(24))
        pathfinder_sheet(images.pixels, images.labels).savefig(RESULTS / name, dpi=120)


if __name__ == "__main__":
    main()
