"""Estimates the time of published runs on this machine: Long Range Arena, or the RECIPEs given.

    python -m benchmarks.full_size [RECIPE ...]

Each recipe runs at its full width, depth and length, on random data of the published format and sizes (Pathfinder and
ListOps: generated): a hundred steps on one sequence, and three on the whole batch. The last two give the times; the
hundred show that updates pass without the error that a layer or an optimiser raises for values that are not finite.
Rewrites these rows of benchmarks/results/full_size.json and .md, and keeps the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from benchmarks.measure import RESULTS, origin, rows_of_child
from benchmarks.record import record
from rotrnn import _cpu
from rotrnn.training.estimate import estimate
from rotrnn.training.recipe import load_recipe, recipe_names
from rotrnn.training.results import duration

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
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.recipes) - set(RECIPES):
        parser.error(f"RECIPE is {unknown.pop()}, expected some of {', '.join(RECIPES)}")
    if args.child:
        print(json.dumps(measure(*args.recipes)), flush=True)
        return
    path = RESULTS / "full_size.json"
    rows = {one["recipe"]: one for one in json.loads(path.read_text(encoding="utf-8"))} if path.exists() else {}
    for name in args.recipes or ARENA:
        (rows[name],) = rows_of_child("benchmarks.full_size", name, "--child")  # memory is counted by process
        kept = record(path, [rows[one] for one in RECIPES if one in rows])
        path.with_suffix(".md").write_text(f"# {TITLE}\n\n{WHERE}\n{table(kept)}{speedups(rows)}", encoding="utf-8")
        print(table([rows[name]]).splitlines()[-1], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
