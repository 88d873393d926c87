"""Runs the trainings that two cores can do, with three seeds each, and writes up the results.

    python -m benchmarks.training [NAME ...] [--jobs N] [--sweeps DIR] [--pages]

The sweeps are in DIR (sweeps/): stopped runs continue, finished ones are kept. Writes into
benchmarks/results/training/ NAME.json with all numbers (of each seed, at each length, and of each validation too),
the pictures that docs/results.md shows, of these numbers (benchmarks/curves.py) or of all runs together
(DIR/NAME/pictures has all), and the page NAME.md with commands and tables, made of the numbers alone: --pages writes
it again and trains nothing. Failed runs are counted and listed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import curves
from benchmarks.measure import RESULTS, ROOT
from benchmarks.record import picture, record, reduced
from rotrnn.plots import compare
from rotrnn.tasks.task import Task, majority_baseline
from rotrnn.training.evaluation import scaled
from rotrnn.training.recipe import recipe_names
from rotrnn.training.results import CHECKPOINTS, Row, collect, duration, find_runs, render
from rotrnn.training.run import Run

FOLDER = RESULTS / "training"
PRECISIONS = "--seeds 0..2 --grid training.precision=float32,bf16"
NORMALISE = "--seeds 0..2 --grid layer.normalise=input,spectrum,bounded"
FASHION_ROWS = (
    "--variant rotrnn --set task.rows=true --grid task.permuted=false "
    "--set task.data_dir=/usr/share/datasets/fashion-mnist"
)
IN_BF16 = ("rotrnn", "lru", "s5", "s4d", "mamba", "selective_rotrnn", "attention")
ROTATIONS = (
    "mamba3",
    "rg_lru",
    "linoss",
    "kda",
    "gated_delta_net_2",
    "comba",
    "rwkv7",
    "griffin",
    "pd_ssm",
    "aussm",
    "slinoss",
)
ALONE = ("digits-rings", "digits-gru", *(f"digits-{name}" for name in ROTATIONS))
DIGITS = tuple(name for name in recipe_names() if name.startswith("digits-") and name not in ALONE)
NEIGHBOURS = ("s4", "liquid_s4", "mamba2", "delta_net", "mlstm", "slstm", "min_gru")
LATER = tuple(f"digits-{name}" for name in NEIGHBOURS)
"""Recipes of `DIGITS` for what the papers compare with, on pages of their own."""
BRACKETS = ("bedouin-4", "lstm", "transformer", "mamba")
COPYING = ("bedouin-1", "bedouin-4", "lstm", "transformer", "mamba")
DELTA_2 = "--variant delta-2-plain --variant delta-2-length-32 --variant delta-2-carried"
DELTA_4 = DELTA_2.replace("delta-2", "delta-4")
LSTM = "--variant lstm-plain --variant lstm-carried"
LENGTH_80 = "--variant delta-4-length-80 --variant lstm-length-80"
LONG = (
    "--seeds 0 --steps 20000 --set training.precision=bf16 --set training.eval_every=2000 "
    "--set training.checkpoint_every=250"
)
S5_ALONE = "word-problem-small --grid task.group=S5 --set training.batch=64"
FPMAMBA = "word-problem-carry-small --steps 5000 --set task.test=500 --set layer.tile=32"
BEDOUIN = "word-problem-carry-bedouin-small --variant plain --variant carried"
BEDOUIN_PLAIN = "word-problem-carry-bedouin-small --variant plain"
BEDOUIN_24000 = f"{BEDOUIN_PLAIN} --steps 24000"
BEDOUIN_EXACT = f"{BEDOUIN_PLAIN} --set training.skip=10 --set layer.gradient=implicit"
SHORTER = "--set task.shorter=all --set task.count_padding=false"
VECTOR = (
    "word-problem-fixed_point-small --grid task.group=A5 --variant fixed_point-4 --set layer.solver=direct "
    "--set layer.gradient=implicit --set optimiser.lr=2e-3 --set task.test_length=200 --steps 12000"
)
CARRIED = "--set task.carry=0.8 --set task.carry_after=6000 --set task.carry_rise=4000"
MORE = "--seeds 3..4 --variant bedouin-1 --variant bedouin-2 --variant bedouin-4 --variant lstm"
TRAININGS: dict[str, tuple[str, ...]] = {
    "digits": tuple(f"{name} --seeds 0..2" for name in DIGITS if name not in LATER),
    "digits-neighbours": tuple(f"{name} --seeds 0..2" for name in LATER),
    "digits-rings": ("digits-rings",),
    "digits-gru": ("digits-gru --seeds 0..2",),
    "digits-rotations": tuple(f"digits-{name} --seeds 0..2" for name in ROTATIONS),
    "digits-normalise": (f"digits-rotrnn {NORMALISE}",),
    "fashion-rows-normalise": (f"fashion-mnist-small {FASHION_ROWS} {NORMALISE}",),
    "listops-normalise": (f"listops-rotrnn-small {NORMALISE}",),
    "listops": ("listops-rotrnn-small --seeds 0..2", "listops-lru-small --seeds 0..2"),
    "listops-2048": (f"listops-rotrnn {LONG}",),
    "listops-2048-lru": (f"listops-lru {LONG} --set layer.d_state=128",),
    "listops-norms": ("listops-norms-small",),
    "listops-ladder": ("listops-ladder-small",),
    "listops-s4d-ablations": ("listops-s4d-ablations-small",),
    "listops-8000": tuple(f"listops-{name}-small --seeds 0..2 --steps 8000" for name in ("rotrnn", "lru")),
    "listops-packed": (
        "listops-lru-small --seeds 0..2 --grid training.packed=false,true --set model.layer=mamba "
        "--set layer.d_state=16 --set optimiser.lr=3e-3 --set task.max_length=400 --set task.max_depth=6",
    ),
    "pathfinder": ("pathfinder-rotrnn-small --seeds 0..2", "pathfinder-lru-small --seeds 0..2"),
    "bf16": (
        *(f"digits-{name} {PRECISIONS}" for name in IN_BF16),
        f"listops-rotrnn-small {PRECISIONS}",
        f"pathfinder-rotrnn-small {PRECISIONS} --steps 1500",
    ),
    "A5": ("word-problem-small --grid task.group=A5",),
    "A5-more": (f"word-problem-small --grid task.group=A5 {MORE}",),
    "A5-lengths-2-to-16-more": (f"word-problem-small --grid task.group=A5 {SHORTER} {MORE}",),
    "A5-lengths-2-to-16": (
        f"word-problem-small --grid task.group=A5 {SHORTER} "
        "--variant bedouin-4 --variant lstm --variant bedouin-2 --variant bedouin-1",
    ),
    "A5-carry-fpmamba": (
        f"{FPMAMBA} --variant carried --set task.carry_after=4000 --set task.carry_rise=500",
        f"{FPMAMBA} --variant plain",
    ),
    "A5-carry-fpmamba-more": (
        f"{FPMAMBA} --variant carried --set task.carry_after=4000 --set task.carry_rise=500 --seeds 3..4",
        f"{FPMAMBA} --variant plain --seeds 3..4",
    ),
    "A5-carry-fpmamba-early": (f"{FPMAMBA} --variant carried".replace("--steps 5000 ", ""),),
    "A5-carry-fpmamba-length-32": (f"{FPMAMBA.replace('5000', '2500')} --variant length-32",),
    "A5-carry-mamba": (
        "word-problem-carry-small --variant plain --variant carried --set model.layer=mamba --set layer.expand=2 "
        "--set model.n_layers=2 --set layer.d_state=8 --set optimiser.lr=3e-3 "
        '--set \'optimiser.no_decay=["recurrent","norm*","*bias"]\'',
    ),
    "A5-carry-delta": (
        f"word-problem-carry-delta-small --grid task.group=A5 {DELTA_4}",
        f"word-problem-carry-delta-small --grid task.group=A5 --seeds 0..4 {DELTA_2} {LSTM} --variant lstm-length-32",
    ),
    "S5-carry-delta": (
        f"word-problem-carry-s5-small {DELTA_2} {DELTA_4} {LSTM}",
        "word-problem-carry-s5-small --variant delta-4-length-32 --seeds 3..4",
    ),
    "A5-carry-control": (
        "word-problem-carry-delta-small --grid task.group=A5 --variant delta-4-plain --variant delta-4-carried "
        f"{LENGTH_80}",
    ),
    "S5-carry-control": (f"word-problem-carry-s5-small {LENGTH_80}",),
    "A5-delta": (
        "word-problem-delta-small --grid task.group=A5",
        "word-problem-delta-small --grid task.group=A5 --seeds 3..4 --variant delta-2 --variant delta-4-gated",
    ),
    "A5-fixed_point": (
        "word-problem-fixed_point-small --grid task.group=A5 --steps 5000 --set layer.solver=iteration "
        "--set layer.gradient=one_step --set optimiser.lr=5e-3",
    ),
    "A5-fixed_point-direct": (f"{VECTOR} --seeds 0..4",),
    "A5-carry-fixed_point": (f"{VECTOR} {CARRIED} --seeds 0..4",),
    "A5-limits": ("word-problem-iterations-small",),
    "A5-depth": ("word-problem-depth-small --steps 2000",),
    "A5-depth-8000": (
        "word-problem-depth-small --variant mamba --grid model.n_layers=2,4,8 --steps 8000",
        "word-problem-depth-small --variant lstm --grid model.n_layers=1 --steps 8000",
        "word-problem-delta-small --grid task.group=A5 --variant delta-4 --steps 8000",
    ),
    "parity": ("parity-small",),
    "A5-carry-bedouin": ("word-problem-carry-bedouin-small",),
    "A5-carry-bedouin-more": (f"{BEDOUIN} --seeds 3..4",),
    "A5-carry-bedouin-ranks": (f"{BEDOUIN} --grid layer.rank=1,2 --seeds 0..1",),
    "A5-bedouin-24000": (f"{BEDOUIN_24000} --seeds 0..4",),
    "A5-bedouin-24000-skip": (f"{BEDOUIN_24000} --seeds 2..4 --set training.skip=10",),
    "A5-bedouin-24000-rate": (f"{BEDOUIN_24000} --seeds 0 --set optimiser.lr=2e-3",),
    "A5-bedouin-48000": (f"{BEDOUIN_PLAIN} --steps 48000 --seeds 1,3 --set training.skip=10",),
    "A5-bedouin-exact": (f"{BEDOUIN_EXACT} --seeds 0..3",),
    "A5-bedouin-exact-decay": (f"{BEDOUIN_EXACT} --seeds 0..3 --set optimiser.weight_decay=0.1",),
    "A5-bedouin-exact-24000": (f"{BEDOUIN_EXACT} --steps 24000 --seeds 2,3 --set optimiser.weight_decay=0.03",),
    "A5-bedouin": ("word-problem-bedouin-small",),
    "A5-bedouin-later-seeds": ("word-problem-bedouin-small --variant normed --seeds 5..9",),
    "A5-24000-controls": (
        "word-problem-carry-delta-small --grid task.group=A5 --variant lstm-plain --steps 24000 --seeds 0..1",
        "word-problem-carry-delta-small --grid task.group=A5 --variant delta-4-plain --steps 24000 --seeds 0..1",
    ),
    "A5-12000-controls": (
        "word-problem-carry-delta-small --grid task.group=A5 --variant lstm-plain --steps 12000 --seeds 0..4",
        "word-problem-carry-delta-small --grid task.group=A5 --variant delta-4-plain --steps 12000 --seeds 0..4",
    ),
    "A5-12000-lstm": (
        "word-problem-carry-delta-small --grid task.group=A5 --variant lstm-plain --steps 12000 --seeds 0..4"
        " --set optimiser.lr=1e-2 --set layer.d_state=64",
    ),
    "A5-12000-fpmamba": (
        "word-problem-carry-small --variant plain --steps 12000 --set task.test=500 --set layer.tile=32 --seeds 0..2",
    ),
    "S5-carry-bedouin": (f"{BEDOUIN} --set task.group=S5 {SHORTER}",),
    "S5": (f"word-problem-small --grid task.group=S5 {SHORTER}",),
    "S5-more": (f"word-problem-small --grid task.group=S5 {SHORTER} {MORE}",),
    "S5-length-16-alone": (
        f"{S5_ALONE} --variant bedouin-1 --variant bedouin-2",
        f"{S5_ALONE} --variant lstm --seeds 0,1",
        f"{S5_ALONE} --variant bedouin-4 --seeds 0",
    ),
    "copy": (f"copy-small {' '.join(f'--variant {one}' for one in COPYING)}",),
    "copy-conv": (
        "copy-conv-small --steps 10000 --variant bedouin-conv",
        "copy-conv-small --steps 10000 --variant bedouin-1 --seeds 0",
    ),
    "copy-conv-more": ("copy-conv-small --steps 10000 --variant bedouin-1 --seeds 1..2",),
    "copy-ablations": ("copy-ablations-small",),
    "copy-depth": ("copy-depth-small --seeds 0",),
    "copy-fixed_point": ("copy-fixed_point-small",),
    "brackets": (f"brackets-small {' '.join(f'--variant {one}' for one in BRACKETS)}",),
    "brackets-budget": ("brackets-small --variant lstm --grid training.steps=4000,16000,64000",),
    "brackets-bedouin": ("brackets-small --variant bedouin-4 --seeds 0 --steps 16000",),
}
"""What is trained under each name: arguments of `rotrnn sweep`."""
KEYS = ("commit", "processor", "simd", "threads")
"""What a page tells of where its runs were made."""


def sweep(arguments: str, folder: Path, jobs: int) -> Path:
    """Trains the unfinished runs of a sweep. Returns its folder."""
    command = [sys.executable, "-m", "rotrnn", "sweep", *shlex.split(arguments), "--jobs", str(jobs)]
    subprocess.run([*command, "--out", str(folder)], check=False)  # a run that fails is in the table
    return folder


def report(name: str, commands: Sequence[str], folders: Sequence[Path], drawn: Path) -> str:
    """The page of a training. Writes its numbers and pictures; all of these into the folder `drawn`."""
    runs = find_runs(folders)
    rows = [one.row() for one in collect(runs)]
    FOLDER.mkdir(exist_ok=True)
    from_record = {f"{one}.png": draw for one, draw in curves.PICTURES.items() if one.rpartition("-")[0] == name}
    recorded = {
        "commands": commands,
        "circumstances": circumstances_of(runs, rows),
        "majority": _majority(runs),
        "remarks": [],
        "pictures": [*from_record, *(path.name for path in _pictures(name, folders, drawn))],
        "rows": [numbers(row) for row in rows],
        "validation": {"/".join(run.folder.parts[-2:]): _validation(run) for run in runs},
    }
    kept = record(FOLDER / f"{name}.json", recorded)
    for path, draw in from_record.items():
        picture(draw(), FOLDER / path)
    return page(name, kept)


def numbers(row: Row) -> Row:
    """A row whose curves have the numbers of each run alone, without means and deviations."""
    return {key: _of_each(value) if key in CHECKPOINTS else value for key, value in row.items()}


def _of_each(found: Row) -> Row:
    curve = found.get("curve", {})
    each = {name: [one["each"] if isinstance(one, dict) else one for one in values] for name, values in curve.items()}
    return found | ({"curve": each} if curve else {})


def page(name: str, recorded: dict[str, Any]) -> str:
    """The Markdown of what is recorded: commands, where and how long it ran, remarks, table, pictures."""
    said = [f"# {name}\n", "".join(f"    {command}\n" for command in recorded["commands"])]
    said.append(f"{recorded['circumstances']}\n{recorded['majority']}")
    said += [f"{remark}\n" for remark in recorded["remarks"]]
    pictures = "".join(f"![{one.removesuffix('.png')}]({one})\n" for one in recorded["pictures"])
    return "\n".join([*said, render(recorded["rows"], ".md"), pictures])


def _pictures(name: str, folders: Sequence[Path], drawn: Path) -> list[Path]:
    """Draws the runs; returns copies of the pictures that docs/results.md shows, named after the training."""
    shown = {FOLDER / f"{name}-{path.name}": path for path in compare(folders, drawn)}
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    told = [path for path in shown if f"/training/{path.name})" in text and path.stem not in curves.PICTURES]
    return [reduced(Path(shutil.copyfile(shown[path], path))) for path in told]


def _validation(run: Run) -> dict[str, list[Any]]:
    """The steps at which a run was evaluated, also one that has not ended, and what was found."""
    records = [one for one in run.records() if "val_loss" in one]
    names = [name for name in records[0] if name == "step" or name.startswith("val_")] if records else []
    return {name: [one[name] for one in records] for name in names}


def circumstances_of(runs: Sequence[Run], rows: Sequence[Row]) -> str:
    """How many runs, their time, processor, threads and commits, as a sentence."""
    begun = [path for run in runs if (path := run.folder / "sessions.json").exists()]
    sessions = [one for path in begun for one in json.loads(path.read_text(encoding="utf-8"))]
    done = sum(row["done"] for row in rows)
    count = f"{len(runs)} runs" if done == len(runs) else f"{done} of {len(runs)} runs are done"
    told = {key: " or ".join(sorted({str(one[key]) for one in sessions})) for key in KEYS}
    seconds = sum(row["seconds"]["mean"] * row["done"] for row in rows if row["seconds"])
    return (
        f"{count}, {duration(seconds)} of training in all, on {told['processor']} "
        f"({told['simd']}), threads: {told['threads']}, commit {told['commit']}."
    )


def _majority(runs: Sequence[Run]) -> str:
    """Accuracy of answers that are always the most frequent one, for tasks whose tables tell accuracies of labels."""
    tasks = [settings.load() for settings in dict.fromkeys(run.load_recipe().task for run in runs)]
    shares = [_share(task) for task in tasks if task.metric == "accuracy"]
    return f"Labels that are the most frequent one of training: {', '.join(shares)}.\n" if shares else ""


def _share(task: Task) -> str:
    text = f"{task.name} {100 * majority_baseline(task, task.test):.1f} %"
    if task.scaled_above is None or task.chance is None:
        return text
    longer = majority_baseline(task, task.test, task.scaled_above)
    share = f"{100 * longer:.1f} % of those longer than {task.scaled_above}"
    return f"{text}, {share}, scaled {100 * scaled(longer, task.chance):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TRAININGS)}; all, if none is given")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
    parser.add_argument("--sweeps", type=Path, default=Path("sweeps"), help="folder of the sweeps (sweeps)")
    parser.add_argument("--pages", action="store_true", help="write the pages again, of the recorded numbers")
    args = parser.parse_args()
    recorded = sorted(path.stem for path in FOLDER.glob("*.json"))
    known = recorded if args.pages else list(TRAININGS)
    if unknown := set(args.names) - set(known):
        parser.error(f"NAME is {unknown.pop()}, expected some of {', '.join(known)}")
    if args.pages:
        for name in args.names or recorded:
            text = page(name, json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
            (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")
        return
    for name in args.names or TRAININGS:
        folders = [sweep(one, args.sweeps / name / one.split()[0], args.jobs) for one in TRAININGS[name]]
        commands = [f"rotrnn sweep {one}" for one in TRAININGS[name]]
        text = report(name, commands, list(dict.fromkeys(folders)), args.sweeps / name / "pictures")
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
