"""Estimates the time of published runs on this machine: Long Range Arena, or the RECIPEs given.

    python -m benchmarks.full_size [RECIPE ...] [--cores [RUN ...]]

Each recipe runs at its full width, depth and length, on random data of the published format and sizes (Pathfinder and
ListOps: generated): a hundred steps on one sequence, and three on the whole batch. The last two give the times; the
hundred show that updates pass without the error that a layer or an optimiser raises for values that are not finite.
Rewrites these rows of benchmarks/results/full_size.json and .md, and keeps the others.

--cores measures the runs whose data are generated instead: the seconds of one core for a step of a whole batch, in
float32 and, where the processor has such products, in bfloat16. Processor time hardly depends on other work.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, origin, rows_of_child
from benchmarks.record import record
from rotrnn import _cpu
from rotrnn.nn.layer import flatten, is_parameter
from rotrnn.training.estimate import estimate, trial
from rotrnn.training.recipe import Recipe, load_recipe, recipe_names
from rotrnn.training.results import duration
from rotrnn.training.sweep import plan

RUNS = ("rotrnn", "lru", "s5", "s4d", "rnn")
RECIPES = [name for name in recipe_names() if name.split("-")[-1] in RUNS and not name.startswith("digits-")]
TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
ARENA = [name for name in RECIPES if name.split("-")[0] in TASKS and not name.endswith("-rnn")]
TABLE_4 = {
    "scifar": (2.0, 15.9),
    "listops": (1.1, 2.1),
    "text": (0.5, 14.7),
    "retrieval": (0.5, 5.7),
    "pathfinder": (2.1, 15.5),
    "pathx": (0.14, 2.4),
}
"""Training steps per second of a tanh RNN and of LRU on one A100, LRU paper, Table 4."""
STEPS, WHOLE = 100, 3
TITLE = "Estimated times of the published runs on two cores of a CPU"
WHERE = f"""\
Written by `python -m benchmarks.full_size`: a hundred steps of one full-size sequence and {WHOLE} steps of a whole
batch passed without an error, on stand-in data. Times are for a whole batch. full_size.json has commit and versions.
"""
PARTS = {"pathx-s4d": 8}
"""Sequences at a time where a whole batch does not fit into 24 GiB; a step is reckoned to take as many of these."""
EXAMPLES = 64
"""Of each split of the random data."""
GENERATED = {
    **{f"listops-{layer}": f"listops-{layer}" for layer in ("rotrnn", "lru", "s5")},
    **{f"word-problem {one}": f"A5 or S5, {one}" for one in ("lstm", "transformer", "mamba", "bedouin-1", "bedouin-4")},
    "word-problem-delta delta-4": "A5 or S5, DeltaProduct r = 4",
    **{f"copy {one}": f"copying, {one}" for one in ("lstm", "transformer", "mamba", "bedouin-1")},
    **{f"brackets {one}": f"brackets, {one}" for one in ("lstm", "transformer", "mamba", "bedouin-4")},
}
"""Runs whose data are generated: recipe, and variant of its sweep -> what the table calls it."""
RECORDED = {"listops-rotrnn": "listops-2048", "listops-lru": "listops-2048-lru"}
"""Runs of which a recorded training has a part, in bfloat16: benchmarks/results/training."""
CORES = f"""\
Prices with a load above 2, in the last column, are too high: they were measured beside other work.

Runs whose data are generated, by `python -m benchmarks.full_size --cores`: processor time of a step of a whole
batch, the mean of {WHOLE} steps behind the first, in a process of one thread. Hours are these times the published
steps, without evaluations; two cores train two seeds in that time. The load is the number of processes that wanted
the two cores; in one comparison the times were too high by half. Layers that iterate take
longer later in training. "bf16" is measured where the processor has products of bfloat16. "Recorded bf16" is the
time of trainings in benchmarks/results/training, of LRU with half the states.
"""


def measure(name: str) -> dict[str, Any]:
    """The row of a recipe."""
    recipe = load_recipe(name)
    single = estimate(load_recipe(name, ["training.batch=1"]), STEPS, stand_in=EXAMPLES)
    size = PARTS.get(name, recipe.training.batch)
    part = estimate(load_recipe(name, [f"training.batch={size}"]), WHOLE, stand_in=EXAMPLES)
    times = recipe.training.batch / size
    whole = dataclasses.replace(part, batch=recipe.training.batch, seconds_per_step=times * part.seconds_per_step)
    return {
        "recipe": name,
        "parameters": whole.parameters,
        "batch": whole.batch,
        "sequences_at_a_time": size,
        "steps": whole.steps,
        "steps_of_one_sequence": single.steps_run,
        "seconds_per_step_of_one_sequence": single.seconds_per_step,
        "seconds_per_step": whole.seconds_per_step,
        "seconds_per_evaluated_example": whole.seconds_per_example,
        "seconds": whole.seconds,
        "peak_memory": whole.peak_memory,
        "threads": _cpu.threads(),
        "published": recipe.source.accuracy,
        **origin(),
        "command": f"python -m benchmarks.full_size {name}",
    }


def generated(name: str) -> Recipe:
    """The recipe of a run in `GENERATED`."""
    recipe, _, variant = name.partition(" ")
    if not variant:
        return load_recipe(recipe)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*another .* drops")
        runs = plan(recipe, variants=[variant], seeds=[0])
    return next(iter(runs.values()))


def core_seconds(recipe: Recipe) -> float:
    """Processor time of a training step of a whole batch, the mean of `WHOLE` steps behind the first."""
    with trial(recipe, stand_in=EXAMPLES) as (trainer, state):
        trainer.stepper.advance(state)
        begun = time.process_time()
        for _ in range(WHOLE):
            trainer.stepper.advance(state)
        trainer.stepper.settle(state)
        return (time.process_time() - begun) / WHOLE


def measure_cores(name: str) -> dict[str, Any]:
    """The row of a run whose data are generated."""
    recipe = generated(name)
    halved = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, precision="bf16"))
    params = recipe.build(recipe.task.shape).init(np.random.default_rng(0))
    return {
        "run": name,
        "parameters": sum(array.size for one, array in flatten(params) if is_parameter(one)),
        "batch": recipe.training.batch,
        "steps": recipe.training.steps,
        "float32": core_seconds(recipe),
        "bf16": core_seconds(halved) if _cpu.bf16_by() != "float32" else None,
        "load": os.getloadavg()[0],
        **origin(),
        "command": f"python -m benchmarks.full_size --cores '{name}'",
    }


def table_of_cores(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| run | parameters | batch | steps | float32, s a step | core-hours | bf16, s a step | core-hours "
        "| recorded bf16, s a step | core-hours | on | load |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|",
    ]
    for one in rows:
        times = [one["float32"], one["bf16"], recorded_seconds(one["run"])]
        cells = [f"{s:.2f} | {s * one['steps'] / 3600:,.1f}" if s is not None else " | " for s in times]
        where = f"{one['machine']['cpu']}, {one['machine']['simd']} | {one['load']:.0f}"
        size = f"{one['parameters']:,} | {one['batch']} | {one['steps']:,}"
        lines.append(f"| {GENERATED[one['run']]} | {size} | {' | '.join(cells)} | {where} |")
    return "\n".join(lines) + "\n"


def recorded_seconds(name: str) -> float | None:
    """Seconds of one core for a step of a recorded training."""
    if name not in RECORDED:
        return None
    found = json.loads((RESULTS / "training" / f"{RECORDED[name]}.json").read_text(encoding="utf-8"))
    (row,) = found["rows"]
    threads = int(found["circumstances"].partition("threads: ")[2].partition(",")[0])
    return threads / float(row["steps_per_second"]["mean"])


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| recipe | parameters | batch | s a step | s a step of one sequence | steps | in all | peak memory | on |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for one in rows:
        lines.append(
            f"| {one['recipe']} | {one['parameters']:,} | {_batch(one)} | {one['seconds_per_step']:.2f} "
            f"| {one['seconds_per_step_of_one_sequence']:.3f} | {one['steps']:,} | {duration(one['seconds'])} "
            f"| {one['peak_memory'] / 2**20:,.0f} MiB | {one['machine']['cpu']} |"
        )
    return "\n".join(lines) + "\n"


def speedups(rows: dict[str, dict[str, Any]]) -> str:
    """Markdown: how much faster than a tanh RNN LRU trains, here and in its paper; empty if there are no such rows."""
    head = "| task | tanh RNN, s a step | LRU, s a step | times faster | on an A100 (LRU paper, Table 4) |"
    lines = ["", head, "|---|--:|--:|--:|--:|"]
    for task, (slow, fast) in TABLE_4.items():
        if (rnn := rows.get(f"{task}-rnn")) and (lru := rows.get(f"{task}-lru")):
            here = [one["seconds_per_step"] for one in (rnn, lru)]
            lines.append(f"| {task} | {here[0]:.2f} | {here[1]:.2f} | {here[0] / here[1]:.1f} | {fast / slow:.1f} |")
    return "\n".join(lines) + "\n" if len(lines) > 3 else ""


def _batch(one: dict[str, Any]) -> str:
    part = one.get("sequences_at_a_time", one["batch"])
    return str(one["batch"]) if part == one["batch"] else f"{one['batch']}, by {part}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"of {', '.join(RECIPES)}")
    parser.add_argument("--cores", nargs="*", metavar="RUN", help=f"of {', '.join(GENERATED)}")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cores is not None:
        if unknown := set(args.cores) - set(GENERATED):
            parser.error(f"RUN is {unknown.pop()}, expected some of {', '.join(GENERATED)}")
        if args.child:
            print(json.dumps(measure_cores(*args.cores)), flush=True)
            return
        of_cores(args.cores or list(GENERATED))
        return
    if unknown := set(args.recipes) - set(RECIPES):
        parser.error(f"RECIPE is {unknown.pop()}, expected some of {', '.join(RECIPES)}")
    if args.child:
        print(json.dumps(measure(*args.recipes)), flush=True)
        return
    path = RESULTS / "full_size.json"
    rows = {one["recipe"]: one for one in recorded(path)}
    for name in args.recipes or ARENA:
        (rows[name],) = rows_of_child("benchmarks.full_size", name, "--child")  # memory is counted by process
        record(path, [rows[one] for one in RECIPES if one in rows])
        write_up()
        print(table([rows[name]]).splitlines()[-1], file=sys.stderr, flush=True)


def of_cores(names: list[str]) -> None:
    """Measures runs whose data are generated, and writes the page again."""
    path = RESULTS / "full_size_cores.json"
    rows = {one["run"]: one for one in recorded(path)}
    for name in names:
        (rows[name],) = rows_of_child("benchmarks.full_size", "--child", "--cores", name, OMP_NUM_THREADS="1")
        record(path, [rows[one] for one in GENERATED if one in rows])
        write_up()
        print(table_of_cores([rows[name]]).splitlines()[-1], file=sys.stderr, flush=True)


def recorded(path: Path) -> list[dict[str, Any]]:
    """The rows that were measured; none if there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def write_up() -> None:
    """Writes the page from what is recorded."""
    rows, cores = recorded(RESULTS / "full_size.json"), recorded(RESULTS / "full_size_cores.json")
    text = f"# {TITLE}\n\n{WHERE}\n{table(rows)}{speedups({one['recipe']: one for one in rows})}"
    if cores:
        text += f"\n{CORES}\n{table_of_cores(cores)}"
    (RESULTS / "full_size.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
