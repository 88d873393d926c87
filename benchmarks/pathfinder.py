"""Time of one Pathfinder image at each resolution, on one core, beside the original generator; and sheets of them.

    python -m benchmarks.pathfinder [--json] [--quick] [--sheets]

Settings are the published ones of the hard level. The time is the mean over the same images every time, the least of
the runs, in seconds of the processor's: one thread computes and waits for nothing, so this is the time on an idle core.
Beside it stands the time of the original algorithm for an image, interpreted, on one core of another machine. Writes
benchmarks/results/pathfinder.json, and the sheet pathfinder-32.png that docs/tasks.md shows; `--quick` does not.
`--sheets` only draws sheets of Pathfinder and of Path-X, as pathfinder-32.png and path-x.png in the working directory.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measure import RESULTS, arguments, origin, row
from benchmarks.record import picture, record
from rotrnn import _cpu
from rotrnn.plots import pathfinder_sheet
from rotrnn.tasks import Pathfinder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORIGINAL = {32: 0.28, 128: 5.1}  # seconds an image
IMAGES = {32: 2000, 64: 400, 128: 200, 256: 200}
SET = 200_000
SHEETS = {32: "pathfinder-32.png", 128: "path-x.png"}


def rows(images: dict[int, int], runs: int) -> list[dict[str, Any]]:
    """One row a resolution: seconds an image, and hours for all that are published."""
    found = []
    for resolution, count in images.items():
        task = Pathfinder(resolution=resolution)
        task.images(np.arange(8))  # draws the paddles of every margin
        seconds = min(processor_seconds(task, count) for _ in range(runs))
        more = {"resolution": resolution, "images": count, "images/s": count / seconds}
        more |= {"hours for 200,000": SET * seconds / count / 3600}
        if resolution in ORIGINAL:
            more |= {"original_seconds": ORIGINAL[resolution], "speedup": ORIGINAL[resolution] * count / seconds}
        found.append(row(f"pathfinder {resolution}", seconds / count, **more))
    return found


def processor_seconds(task: Pathfinder, count: int) -> float:
    """For that many images."""
    before = time.process_time()
    task.images(np.arange(count))
    return time.process_time() - before


def line(one: dict[str, Any]) -> str:
    text = f"{one['name']:18s}{1e3 * one['seconds']:9.3f} ms an image {one['images/s']:9.1f}/s"
    text += f"  {one['hours for 200,000']:6.2f} h for 200,000"
    return text + (f"  {one['speedup']:6.0f} times the original" if "speedup" in one else "")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sheets", action="store_true", help="only draw the sheets, here")
    args = parser.parse_args()
    if args.sheets:
        for resolution in SHEETS:
            picture(sheet(resolution), Path(SHEETS[resolution]))
        return
    came_from = origin()
    threads = _cpu.threads()
    _cpu.use_threads(1)
    found = rows(dict.fromkeys(IMAGES, 4), 1) if args.quick else rows(IMAGES, 5)
    _cpu.use_threads(threads)
    for one in found:
        print(json.dumps(one) if args.json else line(one), flush=True)
    if args.quick:
        return
    record(RESULTS / "pathfinder.json", {"rows": found, **came_from})
    picture(sheet(32), RESULTS / SHEETS[32])


def sheet(resolution: int) -> Figure:
    """A sheet of 24 images."""
    images = Pathfinder(resolution=resolution).images(np.arange(24))
    return pathfinder_sheet(images.pixels, images.labels)


if __name__ == "__main__":
    main()
