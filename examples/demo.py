"""Trains RotRNN on sequential digits and on short ListOps, plots both runs, and fails if a task was not learnt.

python examples/demo.py [FOLDER]

The runs are FOLDER/digits-rotrnn and FOLDER/listops-rotrnn-small. They replace the runs of an earlier demo.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rotrnn.plots import plot
from rotrnn.tasks.task import majority_baseline
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe

# minimum test accuracy; None for 10 percentage points above the baseline
RUNS = {"digits-rotrnn": 0.95, "listops-rotrnn-small": None}


def remove_runs(folders: list[Path]) -> None:
    """Removes the runs of an earlier demo. If one of the folders is not a run, nothing is removed."""
    there = [folder for folder in folders if folder.exists()]
    for folder in there:
        if not (folder / "recipe.toml").is_file():
            sys.exit(f"{folder} exists and is not a run (it has no recipe.toml): move it, or use another folder")
    for folder in there:
        shutil.rmtree(folder)


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    remove_runs([folder / name for name in RUNS])
    lines, failed = [], False
    for name, least in RUNS.items():
        print(f"\n--- {name}")
        recipe = load_recipe(name)
        task = recipe.task.load()
        baseline = majority_baseline(task, task.test)
        least = baseline + 0.1 if least is None else least  # 0.1 is six standard deviations of 1000 answers
        accuracy = train(recipe, folder / name)["test"]["best"]["accuracy"]
        failed |= accuracy < least
        verdict = "FAILED" if accuracy < least else "ok"
        lines.append(
            f"{name:20s} test accuracy {accuracy:.1%}, expected at least {least:.1%} (always predicting the most "
            f"frequent class gives {baseline:.1%}): {verdict}"
        )
        lines += [f"    {path}" for path in plot(folder / name)]
    print("\n" + "\n".join(lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
