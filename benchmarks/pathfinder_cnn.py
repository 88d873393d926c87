"""A convolutional network on Pathfinder's images: can their labels be learnt at all?

    python -m benchmarks.pathfinder_cnn [--epochs 3] [--bfloat16] [--resolution 32] [--data-dir DIR] [--quick]
    python -m benchmarks.pathfinder_cnn --draw

A ResNet-18 that sees images as images, in PyTorch (`pip install -e ".[peers]"`), should exceed 80 % of the test split.
If it stays at chance, the data are more likely wrong than a recurrent model: this is how errors in an early release of
128 x 128 pixels were found. --data-dir takes released images. The test split is evaluated once, after the last step;
the exit status is 1 if the accuracy does not exceed 80 %. Writes benchmarks/results/pathfinder_cnn.json, except with
--quick or --data-dir; --draw draws the recorded run as pathfinder_cnn.png in the working directory.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, arguments, origin
from benchmarks.record import record
from rotrnn import _cpu
from rotrnn.tasks import Pathfinder
from rotrnn.tasks.task import majority_baseline

BATCH, EXPECTED = 128, 0.8
RECORD = RESULTS / "pathfinder_cnn.json"
QUICK = {"train": 4 * BATCH, "val": BATCH, "test": BATCH}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="over 160,000 images (default %(default)s)")
    parser.add_argument("--bfloat16", action="store_true", help="convolutions in bfloat16, on processors that have it")
    parser.add_argument("--resolution", type=int, default=32, metavar="PIXELS", help="a side (default %(default)s)")
    parser.add_argument("--data-dir", default="", metavar="DIR", help="released images; else they are generated")
    parser.add_argument("--draw", action="store_true", help="only draw the recorded run, here")
    args = parser.parse_args()
    if args.draw:
        draw(json.loads(RECORD.read_text(encoding="utf-8")), Path("pathfinder_cnn.png"))
        return
    if args.epochs < 1:
        parser.error(f"--epochs is {args.epochs}, expected at least 1")
    if importlib.util.find_spec("torch") is None:
        parser.error("torch is not installed: pip install -e '.[peers]'")
    try:
        task = Pathfinder(resolution=args.resolution, data_dir=args.data_dir, **(QUICK if args.quick else {})).load()
    except (ValueError, OSError) as error:
        parser.error(str(error))
    came_from = origin()
    import torch

    from benchmarks.peers.torch_resnet import WIDTHS, Trial

    torch.set_num_threads(_cpu.threads())
    widths = (8, 16) if args.quick else WIDTHS
    trial = Trial(task, widths, batch=BATCH, epochs=args.epochs, bfloat16=args.bfloat16)
    curve = []
    for point in trial.train():
        curve.append(point._asdict())
        print(
            f"step {point.step:5d}/{trial.steps}  loss {point.loss:.4f}  val {100 * point.val_accuracy:5.1f} %  "
            f"{point.seconds:6.0f} s",
            file=sys.stderr,
            flush=True,
        )
    found = {
        "resolution": args.resolution,
        "parameters": trial.parameters,
        "batch": BATCH,
        "images": args.epochs * len(task.train),
        "seconds": curve[-1]["seconds"],
        "test_images": len(task.test),
        "majority": majority_baseline(task, task.test),
        "test_accuracy": trial.accuracy(task.test, len(task.test)),
    }
    text = f"{found['parameters']:,} parameters, {found['images']:,} images: test {100 * found['test_accuracy']:.2f} %"
    print(json.dumps(found) if args.json else text)
    if not (args.quick or args.data_dir):
        command = " ".join(["python", "-m", "benchmarks.pathfinder_cnn", *sys.argv[1:]])
        result = {**found, "curve": curve, "threads": _cpu.threads(), **came_from, "command": command}
        record(RECORD, result)
    if not args.quick and found["test_accuracy"] <= EXPECTED:
        sys.exit(f"test accuracy is {found['test_accuracy']:.4f}, expected more than {EXPECTED}")


def draw(result: dict[str, Any], path: Path) -> None:
    """The picture of a recorded run."""
    from rotrnn.plots import learning_curves

    steps, loss, accuracy = (
        np.array([one[key] for one in result["curve"]]) for key in ("step", "loss", "val_accuracy")
    )
    learning_curves(
        {"loss": (steps, loss)},
        {"accuracy": (steps, accuracy)},
        result["majority"],
        (steps[-1], result["test_accuracy"]),
    ).savefig(path, dpi=120)


if __name__ == "__main__":
    main()
