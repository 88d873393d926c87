"""The expressive power of each layer: trains every layer on seven tasks, and writes a table beside theory.

    python -m benchmarks.expressive [TASK ...] [--seeds 0] [--jobs N] [--sweeps DIR] [--table]

The recipe is `expressive`, with a variant for each layer, all with the same state size and budget. Stopped runs
continue, and finished runs are kept. Writes benchmarks/results/expressive.json, which keeps other tasks, and
expressive.md. --table writes expressive.md again from the numbers and trains nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from benchmarks.measure import RESULTS
from benchmarks.record import record
from benchmarks.training import circumstances_of, sweep
from rotrnn.training.results import Row, collect, find_runs

NAME = "expressive"
LONGER = "--set task.min_length=3 --set task.max_length=20 --set task.test_min_length=3 --set task.test_max_length=40"
TASKS = {
    "parity": (f"--set task.name=regular --set task.language=parity {LONGER} --set task.test_each=16", 20),
    "arithmetic": (f"--set task.name=regular --set task.language=arithmetic {LONGER} --set task.test_each=32", 20),
    "S3": ("--set task.group=S3", 16),
    "A5": ("--set task.group=A5", 16),
    "S5": ("--set task.group=S5", 16),
    "mqar": (
        "--set task.name=mqar --set task.vocab=64 --set task.length=32 --set task.test_length=32 --set task.test=500",
        None,
    ),
    "copy": (f"--set task.name=copy --set task.context=48 {LONGER} --set task.test_each=8", 20),
}
"""For each task the settings that `rotrnn sweep expressive` gets, and the longest length of training, of which the test
has twice as much."""
ASKED = {
    "parity": "strings right; guessing 50",
    "arithmetic": "values modulo 5 right; guessing 20",
    "S3": "products right at every step",
    "A5": "products right at every step",
    "S5": "products right at every step",
    "mqar": "values right of 4 keys of 32; no longer ones",
    "copy": "letters right of 26",
}
STATES = ("parity", "arithmetic", "S3", "A5", "S5")
"""The tasks that a finite automaton solves."""


class Kind(NamedTuple):
    """Groups of layers, and theory for two such layers at any length, in numbers of a fixed precision: the tasks of
    `STATES` that some choice of parameters solves, and the tasks that none solves; others are open."""

    said: str
    layers: tuple[str, ...]
    solved: Sequence[str] = ()
    failed: Sequence[str] = ()


KINDS = (
    Kind(
        "One transition for all tokens: tracks no state at any depth (1, 2).",
        ("lru", "rotrnn", "s5", "s4d", "s4", "liquid_s4", "linoss", "rope_memory"),
        failed=STATES,
    ),
    Kind(
        "Transitions whose eigenvalues are from 0 to 1: track no state at any depth (1, 2, 3).",
        ("mamba", "mamba2", "min_gru", "rg_lru", "mlstm", "delta_net", "kda", "gated_delta_net_2"),
        failed=STATES,
    ),
    Kind(
        "Diagonal with signs: groups that are made of groups of two elements (4).",
        ("mamba-negative", "min_gru-negative"),
        solved=("parity",),
        failed=("S3", "A5", "S5"),
    ),
    Kind(
        "Diagonal with angles: a layer for each abelian group of which a group is made, and no other group (4).",
        ("mamba3", "slinoss", "selective_rotrnn", "aussm"),
        solved=("parity", "S3"),
        failed=("A5", "S5"),
    ),
    Kind(
        "One-hot matrices: a finite automaton of as many states as there are lanes, here 64 (6).",
        ("pd_ssm",),
        solved=("parity", "S3", "A5"),
    ),
    Kind(
        "One reflection a token: parity, and by two layers the symmetries of a polygon, S3 among them (3, 5).",
        ("delta_net-negative", "kda-negative", "comba", "rwkv7"),
        solved=("parity", "S3"),
    ),
    Kind(
        "Two reflections a token: rotations in space, A5 among them (5).",
        ("delta_net-2",),
        solved=("parity", "S3", "A5"),
    ),
    Kind(
        "Four reflections a token: permutations of five things (5).",
        ("delta_net-4",),
        solved=("parity", "S3", "A5", "S5"),
    ),
    Kind(
        "Dense transitions by four reflections, as fixed points; those of fpmamba are iterated: open.",
        ("fixed_point", "bedouin", "fpmamba"),
    ),
    Kind("Not linear in the state: finite automata (1).", ("rnn", "gru", "lstm", "slstm"), solved=STATES),
    Kind(
        "Every step is kept: no A5 and S5 at a fixed depth, unless TC0 is NC1 (1).",
        ("attention", "wrope_memory"),
        failed=("A5", "S5"),
    ),
)
SOURCES = (
    "Merrill et al. 2024, The Illusion of State in State-Space Models",
    "Sarrof et al. 2024, The Expressive Capacity of State Space Models; Khavari et al. 2025, Parity Requires Unified "
    "Input Dependence and Negative Eigenvalues in SSMs",
    "Grazzi et al. 2024, Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues",
    "Krohn and Rhodes 1965: a cascade of groups is a group made of them. A product of diagonal matrices commutes, so a "
    "layer is one abelian group",
    "Siems et al. 2025, DeltaProduct: Improving State-Tracking in Linear RNNs via Householder Products",
    "Terzic et al. 2025, Structured Sparse Transition Matrices to Enable State Tracking in State-Space Models",
)


class Recorded(TypedDict):
    """The numbers of a task: how its runs were made, and a row for each layer."""

    circumstances: str
    rows: list[Row]


def trained(task: str, seeds: str, folder: Path, jobs: int) -> Recorded:
    """Trains every layer on a task. Rows have the accuracies of their seeds in lengths as in training, and in longer
    ones."""
    settings, longest = TASKS[task]
    sweep(f"{NAME} {settings} --seeds {seeds}", folder, jobs)
    runs = find_runs([folder])
    rows = [one.row() for one in collect(runs)]
    return {"circumstances": circumstances_of(runs, rows), "rows": [numbers(one, longest) for one in rows]}


def numbers(row: Row, longest: int | None) -> Row:
    """The numbers of a row for the table."""
    kept = ("configuration", "done", "failed", "unfinished", "seeds", "parameters", "steps", "commits")
    found = {key: row[key] for key in kept} | {"seconds": (row["seconds"] or {}).get("each")}
    if not row["done"]:
        return found
    best = row["best"]
    if longest is None:
        return found | {"as_trained": best["accuracy"]["each"]}
    curve = best["curve"]
    name = row["metric"]
    of_all = list(zip(curve["length"], curve["n"], (one["each"] for one in curve[name]), strict=True))
    short, long = ([one for one in of_all if (one[0] <= longest) == side] for side in (True, False))
    if name == "sequence_accuracy":  # over the first n steps of one sequence: take the longest
        short, long = short[-1:], long[-1:]
    return found | {"as_trained": _mean(short), "longer": _mean(long)}


def _mean(of_lengths: Iterable[tuple[int, int, list[float]]]) -> list[float]:
    """The means over lengths, by their numbers of sequences, of each seed."""
    rows = list(of_lengths)
    total = sum(n for _, n, _ in rows)
    return [
        sum(n * value for (_, n, _), value in zip(rows, of_seed, strict=True)) / total
        for of_seed in zip(*(each for _, _, each in rows), strict=True)
    ]


def page(recorded: dict[str, Recorded]) -> str:
    """The Markdown of the recorded results."""
    found = {task: {row["configuration"].split(",")[0]: row for row in of["rows"]} for task, of in recorded.items()}
    some = next(iter(recorded.values()))["rows"]
    text = [
        "# What each layer can express\n",
        "    python -m benchmarks.expressive\n",
        f"Two blocks of width 64 with 512 numbers of state a sequence, {some[0]['steps']:,} steps of 64 sequences, one "
        "learning rate, nothing tuned (recipe `expressive`). Test accuracies in %, seed by seed, of the parameters "
        "that were best on validation: in lengths as in training / in longer ones, up to twice as long.\n",
        "**yes**: some choice of parameters is known to solve it at any length; *no*: none does; neither: open, or not "
        "a matter of states. Where theory says yes and numbers say no, it was not learned in this budget.\n",
        "".join(
            f"- {task}: {said}. {recorded[task]['circumstances'] if task in recorded else 'Not run.'}\n"
            for task, said in ASKED.items()
        ),
    ]
    for kind in KINDS:
        text.append(f"**{kind.said}**\n")
        text.append(
            f"| layer | parameters | {' | '.join(TASKS)} |\n|{' --- |' * (2 + len(TASKS))}\n"
            + "".join(_line(kind, layer, found) for layer in kind.layers)
        )
    text.append("".join(f"{i}. {source}.\n" for i, source in enumerate(SOURCES, 1)))
    return "\n".join(text)


def _line(kind: Kind, layer: str, found: dict[str, dict[str, Row]]) -> str:
    """A row of a table."""
    rows = [found.get(task, {}).get(layer) for task in TASKS]
    size = next((f"{row['parameters']:,}" for row in rows if row), "")
    cells = [
        _cell(row, "**yes** " * (task in kind.solved) + "*no* " * (task in kind.failed))
        for task, row in zip(TASKS, rows, strict=True)
    ]
    return f"| {layer} | {size} | {' | '.join(cells)} |\n"


def _cell(row: Row | None, known: str) -> str:
    """Accuracies in percent, and theory."""
    if row is None or not row["done"]:
        return f"{known}{'failed' if row and row['failed'] else 'not run'}"
    sides = (" ".join(f"{100 * value:.0f}" for value in row[side]) for side in ("as_trained", "longer") if side in row)
    return known + " / ".join(sides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all, if none is given")
    parser.add_argument("--seeds", default="0..2", help="seeds that are trained now (0..2)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
    parser.add_argument("--sweeps", type=Path, default=Path("sweeps"), help="folder of the sweeps (sweeps)")
    parser.add_argument("--table", action="store_true", help="write the table again, of the recorded numbers")
    args = parser.parse_args()
    if unknown := set(args.tasks) - set(TASKS):
        parser.error(f"TASK is {unknown.pop()}, expected some of {', '.join(TASKS)}")
    path = RESULTS / f"{NAME}.json"
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for task in () if args.table else args.tasks or TASKS:
        recorded[task] = trained(task, args.seeds, args.sweeps / NAME / task, args.jobs)
        recorded = record(path, {task: recorded[task] for task in TASKS if task in recorded})
    (RESULTS / f"{NAME}.md").write_text(page(recorded), encoding="utf-8")


if __name__ == "__main__":
    main()
