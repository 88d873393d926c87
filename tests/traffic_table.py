"""What a training step of the LRU's recipes for Long Range Arena moves and computes on a GPU: `make traffic`.

    PYTHONPATH=tests:. python tests/traffic_table.py [RECIPE ...] [--precision bf16]

rewrites these rows of benchmarks/results/cuda_traffic.json, and cuda_traffic.md. A whole step is counted in the harness
(traffic.py) at the recipe's sizes but for the sequences' length, which is a few steps: what each launch moves and
computes is a constant and a number of times the steps, and so is known for sequences of full length.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, markdown, origin
from benchmarks.record import record
from h100 import BANDWIDTH, RAGGED, RATES, STEPS
from rotrnn.training.recipe import Recipe, load_recipe
from traffic import Launch, Numbers, counter, step

COUNTED = {"whole": ((2, 4), (4, 8)), "listops": ((4, 8),)}
"""Lengths of the sequences that are counted: the first pair whose launches are the same."""

HEAD = """# What a training step moves and computes on a GPU

Written by `make traffic` (commits: the last table): every load and store of a kernel is counted in the harness, at full
width, depth and batch, and extended to full length (tests/traffic_table.py). The bytes of a launch are the
distinct bytes of the GPU's memory that it reads, plus those that it writes, as with a perfect cache; a product moves
its operands and its result. The least time is the sum over launches of flops at 60, 400 or 790 TFLOP/s (float32, TF32,
bfloat16) or bytes at 3.0 TB/s, whichever takes longer: an H100. These are limits: results/gpu/h200.md has timings on a
card.

"Lean" is the least of this form of a block: library products, scans, and one kernel for all pointwise operations
between two products, with values and gates kept. In bf16 the residual stream and its gradient have 4 bytes a number,
and all other activations 2; the last columns are for 2 bytes everywhere. Ratios are counted / lean.
"""


# ---- counting ----


def rows_of(recipe: Recipe, T: int) -> int:
    """Steps of all sequences of a batch."""
    return recipe.training.batch * T * (2 if recipe.task.shape.head == "retrieval" else 1)


def extended(few: list[Launch], more: list[Launch], T: int, lengths: tuple[int, int]) -> list[Launch]:
    """Returns the launches of sequences of T steps, from those of sequences of two other lengths."""
    if [one[:2] for one in few] != [one[:2] for one in more]:
        raise ValueError("the launches depend on the length")
    first, second = lengths

    def at(x: int, y: int) -> int:
        return x + (y - x) * (T - first) // (second - first)

    return [Launch(*one[:2], *map(at, one[2:], two[2:])) for one, two in zip(few, more, strict=True)]


@functools.cache
def listops_lengths() -> Numbers:
    """Returns lengths of ListOps' expressions, in order, as shares of the greatest."""
    task = load_recipe("listops-lru", ["task.train=1024", "task.val=1", "task.test=1"]).task
    _, lengths = task.load().train.labels_and_lengths(np.arange(1024))
    shares: Numbers = np.sort(lengths) / STEPS["listops"]
    return shares


def shares(count: int) -> Numbers:
    """Returns so many of them, evenly."""
    lengths = listops_lengths()
    return lengths[(np.arange(count) + 0.5).astype(int) * len(lengths) // count]


def summed(launches: list[Launch], precision: str) -> list[dict[str, Any]]:
    """Returns the launches of each kernel of an entry, added up, with their least time."""
    kernels: dict[tuple[str, str], dict[str, Any]] = {}
    for one in launches:
        row = kernels.setdefault(one[:2], {"entry": one.entry, "kernel": one.kernel, "launches": 0, "ms": 0.0})
        row["launches"] += 1
        row["ms"] += 1e3 * max(one.flops / RATES[precision], one.moved / BANDWIDTH)
        for name, value in zip(Launch._fields[2:], one[2:], strict=True):
            row[name] = row.get(name, 0) + value
    for row in kernels.values():
        row["ms"] = round(row["ms"], 6)
    return sorted(kernels.values(), key=lambda row: -row["read"] - row["written"])


def count(name: str, precision: str, ragged: bool, settings: Sequence[str] = ()) -> dict[str, Any]:
    """The row of a recipe in a precision, ragged as ListOps is or whole."""
    recipe, T = load_recipe(f"{name}-lru", settings), STEPS[name]
    sequences, lengths = rows_of(recipe, 1), "listops" if ragged else "whole"
    share = (shares(sequences) if ragged else np.ones(sequences)) if name in RAGGED else None
    counter().use_precision(precision)
    for counted in COUNTED[lengths]:
        few, more = (step(recipe, steps, share) for steps in counted)
        if [one[:2] for one in few] == [one[:2] for one in more]:
            break
    counter().use_precision("float32")
    return {
        "recipe": name,
        "precision": precision,
        "lengths": lengths,
        "blocks": recipe.model.n_layers,
        "rows": rows_of(recipe, T),
        "valid": 1.0 if share is None else float(np.mean(np.rint(share * counted[1])) / counted[1]),
        "settings": list(settings),
        "counted": summed(extended(few, more, T, counted), precision),
        "commit": origin()["commit"],
    }


def lean(row: dict[str, Any], narrow: int | None = None) -> list[dict[str, Any]]:
    """The least of a block of the row's recipe: each kernel moves arrays of D and of L = 2N numbers a step. A number
    has 4 bytes, or in bf16 2 unless it is of the residual stream or its gradient; with `narrow` every number has so
    many."""
    recipe, precision, M = load_recipe(f"{row['recipe']}-lru", row["settings"]), row["precision"], row["rows"]
    layer: Any = recipe.layer
    D, L, K = recipe.model.d_model, 2 * layer.d_state, 1 + layer.bidirectional
    G, half = (2, 0) if recipe.model.glu == "full" else (1, 1)
    wide = narrow or 4
    narrow = narrow or (2 if precision == "bf16" else 4)

    def kernel(name: str, stream: int, d: int, l: int = 0, pairs: int = 0) -> Launch:  # noqa: E741
        """Arrays of D numbers, of the residual stream and others; arrays of L numbers; multiplications a step."""
        moved = M * (wide * D * stream + narrow * (D * d + L * l))
        return Launch("lean", name, moved, 0, moved, 2 * M * pairs)

    launches = [
        kernel("v = W_in x", 0, 1, 1, D * L),
        *[kernel("h", 0, 0, 2)] * K,
        *[kernel("out = W_out h", 0, 1 + k, 1, D * L) for k in range(K)],
        kernel("layer, z", 1, 3),
        kernel("value, gate = W z", 0, G + 1, pairs=G * D * D),
        kernel("y", 2, G + half),
        kernel("dvalue, dgate", 2, 2 * G + half),
        kernel("dz", 0, G + 1, pairs=G * D * D),
        kernel("dW", 0, G + 1, pairs=G * D * D),
        kernel("dlayer", 1, 3),
        *[kernel("dW_out", 0, 1, 1, D * L)] * K,
        *[kernel("dh", 0, 1, 1, D * L)] * K,
        kernel("g", 0, 0, 3),
        *[kernel("g, both directions", 0, 0, 4)] * (K - 1),
        kernel("dW_in", 0, 1, 1, D * L),
        kernel("r", 0, 1, 1, D * L),
        kernel("dx", 3, 2),
    ]
    return summed(launches, precision)


# ---- tables ----


def of_blocks(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in row["counted"] if one["entry"] in ("block_forward", "block_backward")]


def total(kernels: list[dict[str, Any]], *names: str) -> float:
    return float(sum(one[name] for one in kernels for name in names))


def ceiling(milliseconds: float) -> str:
    """Steps a second"""
    return f"{1e3 / milliseconds:.3g}"


def table(head: str, rows: list[list[str]]) -> str:
    return markdown(head.split(" | "), rows, "--:") + "\n"


def of_each_block(row: dict[str, Any]) -> list[str]:
    """Cells: bytes and flops of a block and the blocks' ceiling, beside lean; in bf16 lean, all with two bytes."""
    ours, least, blocks = of_blocks(row), lean(row), row["blocks"]
    cells = []
    for names, digits in ((("read", "written"), 2), (("flops",), 0)):
        here, fewest = total(ours, *names) / blocks / 1e9, total(least, *names) / 1e9
        cells += [f"{here:.{digits}f}", f"{fewest:.{digits}f}", f"{here / fewest:.2f}"]
    here, fewest = total(ours, "ms"), blocks * total(least, "ms")
    cells += [ceiling(here), ceiling(fewest), f"{here / fewest:.2f}"]
    if row["precision"] != "bf16":
        return cells
    fewest = blocks * total(lean(row, 2), "ms")
    return [*cells, ceiling(fewest), f"{here / fewest:.2f}"]


def of_step(row: dict[str, Any]) -> list[str]:
    """Cells: bytes of the whole step and of its parts, launches, those of CuPy, the step's ceiling."""
    parts = {
        "blocks": of_blocks(row),
        "update": [one for one in row["counted"] if one["entry"] == "adamw_groups"],
        "CuPy": [one for one in row["counted"] if one["entry"] == "CuPy"],
    }
    moved = {name: total(part, "read", "written") / 1e9 for name, part in parts.items()}
    whole = total(row["counted"], "read", "written") / 1e9
    cells = [whole, moved["blocks"], whole - sum(moved.values()), moved["update"], moved["CuPy"]]
    launches = [f"{total(part, 'launches'):.0f}" for part in (row["counted"], parts["CuPy"])]
    return [*(f"{cell:.2f}" for cell in cells), *launches, ceiling(total(row["counted"], "ms"))]


def kernels_of_block(row: dict[str, Any], recipe: Recipe) -> list[list[str]]:
    """Rows: each kernel of a block, in arrays of D numbers a row."""
    d = 4.0 * row["rows"] * recipe.model.d_model * row["blocks"]
    rows = []
    for one in of_blocks(row):
        if one["read"] + one["written"] < 0.005 * d:
            continue
        cells = [one["read"] / d, one["written"] / d, one["requested"] / d]
        flops = f"{one['flops'] / row['blocks'] / 1e9:.1f}" if one["flops"] else ""
        launches = f"{one['launches'] / row['blocks']:.3g}"
        rows.append([f"{one['entry']}: {one['kernel']}", launches, *(f"{cell:.2f}" for cell in cells), flops])
    return rows


def written_up(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    text, whole = [HEAD], [row for row in rows if row["lengths"] == "whole"]
    for precision in RATES:
        text.append(f"## A block, {precision}\n")
        head = "recipe | GB | lean | ratio | GFLOP | lean | ratio | steps/s of the blocks | lean | ratio of times"
        head += " | all of 2 bytes | ratio" * (precision == "bf16")
        text.append(
            table(head, [[row["recipe"], *of_each_block(row)] for row in whole if row["precision"] == precision])
        )
    text.append("## A step: encoder, blocks, pool, head, loss, their gradients, and the update\n")
    text.append("Each of CuPy's own operations counts as a kernel that reads its operands and writes its result.\n")
    head = "recipe | precision | GB | blocks | other kernels | update | CuPy | launches | of CuPy | steps/s"
    text.append(table(head, [[row["recipe"], row["precision"], *of_step(row)] for row in whole]))
    text.append("## Ragged batches, with the lengths of ListOps\n")
    head = "recipe | precision | valid steps | GB of a block | of whole ones | steps/s of the blocks | of whole ones"
    text.append(table(head, list(beside_whole(rows))))
    for row in whole:
        if row["recipe"] in ("listops", "pathx") and row["precision"] == "float32":
            text.append(f"## The kernels of a block of {row['recipe']}, float32, in arrays of D numbers a step\n")
            head = "kernel | launches | read | written | all loads and stores | GFLOP"
            text.append(table(head, kernels_of_block(row, load_recipe(f"{row['recipe']}-lru"))))
    text.append("## Where the rows were counted\n")
    text.append(table("commit | rows", [[commit, ", ".join(names)] for commit, names in commits(rows).items()]))
    return "\n".join(text)


def commits(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Rows by the commit of the sources that they were counted from."""
    found: dict[str, list[str]] = {}
    for row in rows:
        name = f"{row['recipe']} {row['precision']}" + " (ragged)" * (row["lengths"] != "whole")
        found.setdefault(str(row["commit"]), []).append(name)
    return found


def beside_whole(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Rows: the blocks of ragged batches beside those of whole ones."""
    whole = {(row["recipe"], row["precision"]): row for row in rows if row["lengths"] == "whole"}
    for row in rows:
        if row["lengths"] == "whole":
            continue
        both = [row, whole[row["recipe"], row["precision"]]]
        moved = [f"{total(of_blocks(one), 'read', 'written') / one['blocks'] / 1e9:.2f}" for one in both]
        speeds = [ceiling(total(of_blocks(one), "ms")) for one in both]
        yield [row["recipe"], row["precision"], f"{100 * row['valid']:.0f} %", *moved, *speeds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"of {', '.join(STEPS)}; all if none is given")
    parser.add_argument("--precision", action="append", choices=RATES, help="one of these; all if none is given")
    given = parser.parse_args()
    names, precisions = given.recipes or list(STEPS), given.precision or list(RATES)
    if unknown := set(names) - set(STEPS):
        parser.error(f"RECIPE is {unknown.pop()}, expected some of {', '.join(STEPS)}")
    path = RESULTS / "cuda_traffic.json"
    rows = {key_of(row): row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]} if path.exists() else {}
    where = origin() | {"command": "make traffic"}
    for name, precision, ragged in itertools.product(names, precisions, (False, True)):
        if ragged and name not in RAGGED:
            continue
        begin = time.perf_counter()
        row = count(name, precision, ragged)
        rows[key_of(row)] = row
        ordered = sorted(rows.values(), key=key_of)
        record(path, {"origin": where, "rows": ordered})
        path.with_suffix(".md").write_text(written_up(ordered), encoding="utf-8")
        taken = time.perf_counter() - begin
        print(f"{name}, {precision}, {row['lengths']}: {taken:.0f} s", file=sys.stderr, flush=True)


def key_of(row: dict[str, Any]) -> tuple[int, int, bool]:
    """A row's place in the tables."""
    return list(STEPS).index(row["recipe"]), list(RATES).index(row["precision"]), row["lengths"] != "whole"


if __name__ == "__main__":
    main()
