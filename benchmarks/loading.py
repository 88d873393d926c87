"""Time to make a batch, beside the training step that uses it: the time that training would wait without a loader
thread.

    python -m benchmarks.loading [--json] [--quick]

Each task reads files of its published format and full length, of random data or of its generator, and `batch` gathers
random examples from the prepared arrays; Pathfinder also as it is without files, drawn anew for each batch. The step is
forward, backward and AdamW of RotRNN at the size of its paper's run (Table 3; MNIST, which is not there, as Image). A
thread makes each batch while the previous step runs: with a ratio below 1 training does not wait, but the thread takes
that share of the cores. If texts differ in length, the time is for the shortest batch. Writes
benchmarks/results/loading.json; `--quick` runs everything at small sizes.
"""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, arguments, origin, row, seconds_in_turn, show
from benchmarks.model import Size
from benchmarks.record import record
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.nn.layer import Context
from rotrnn.tasks import TASKS, Batch, Released, Task
from rotrnn.training.optimiser import AdamW

SIZES = {  # published T; a row shows the T of its step
    "listops": Size(32, 2048, 128, 256, 6),
    "imdb": Size(32, 4096, 256, 192, 6),
    "aan": Size(32, 4000, 128, 256, 6),
    "cifar": Size(50, 1024, 512, 384, 6),
    "mnist": Size(50, 784, 512, 384, 6),
    "speech_commands": Size(16, 16_000, 96, 128, 6),
    "pathfinder": Size(64, 1024, 192, 256, 6),
    "pathfinder, drawn": Size(64, 1024, 192, 256, 6),
}
HEADS = 32


def load(name: str, folder: str, examples: int) -> Task:
    """A task with this many examples of full length."""
    kind = TASKS[name.removesuffix(", drawn")]
    if issubclass(kind, Released):
        kind().stand_in(folder, examples)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings that these are not the published data
            return kind(data_dir=folder).load()
    settings = kind(train=examples, val=1, test=1)
    if name.endswith(", drawn"):
        return settings.load()
    settings.write(folder)
    return dataclasses.replace(settings, data_dir=folder).load()


def training_step(task: Task, size: Size, batch: Batch) -> Callable[[], None]:
    """A function that runs one training step on a batch."""
    settings = ModelSettings(layer="rotrnn", d_model=size.D, n_layers=size.n_layers)
    layer = {"d_state": size.N, "heads": HEADS}
    kind = {"head": task.head, "n_classes": task.n_classes, "vocab": task.vocab, "n_features": task.n_features}
    model = build_model(settings, layer, **kind)
    params = model.init(np.random.default_rng(0))
    optimiser = AdamW()
    moments, group_of = optimiser.init(params), optimiser.grouping(model.is_recurrent)

    def run() -> None:
        logits, saved = model.forward(params, batch.inputs, Context(batch.lengths, train=True))
        found = model.loss(logits, batch.labels, batch.lengths)
        grads = model.backward(params, saved, found.dlogits)
        optimiser.update(params, grads, moments, group_of, 0, 100)

    return run


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """One row a task: seconds of a batch beside seconds of a step."""
    for name, size in SIZES.items():
        if quick:
            size = size._replace(B=2, D=8, N=2 * HEADS, n_layers=1)
        with tempfile.TemporaryDirectory() as folder:
            task = load(name, folder, 4 if quick else 4 * size.B)
            split, rng = task.train, np.random.default_rng(0)

            def batch(split: Any = split, rng: Any = rng, B: int = size.B) -> Batch:
                return split.batch(rng.integers(0, len(split), B))

            first = batch()
            step = training_step(task, size, first)
            size = size._replace(T=int(first.inputs.shape[1 if task.head != "retrieval" else 2]))
            batch_s, step_s = seconds_in_turn([batch, step], window=0.1 if quick else 20.0)
        more = {"limit": "training step of RotRNN", "task": name, **size._asdict()}
        yield row(f"batch of {name}", batch_s, step_s, **more)


def main() -> None:
    args = arguments(__doc__).parse_args()
    came_from = origin()
    found = []
    for one in rows(args.quick):
        show([one], args.json)
        found.append(one)
    if not args.quick:
        record(RESULTS / "loading.json", {"rows": found, **came_from})


if __name__ == "__main__":
    main()
