"""Sweeps as array jobs of Slurm: each task of the array trains one run, as `rotrnn train --resume` would by hand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rotrnn._support.files import write_text
from rotrnn._support.progress import say as say_line
from rotrnn._support.text import plural
from rotrnn.training import sweep
from rotrnn.training.recipe import Recipe
from rotrnn.training.run import Run

SCRIPT = "sweep.sbatch"
OURS = ("array", "chdir", "parsable")
"""Options of sbatch that a sweep sets and that cannot be replaced."""
OTHERS = ("help", "test-only", "usage", "version", "wait", "wrap")
"""Options with which sbatch does not submit the script, or waits for the end of its job."""

TEMPLATE = """\
#!/bin/sh
# Written by rotrnn sweep --launcher slurm. Each task of the array trains one of the runs listed below. A run that was
# cut off or moved to another machine resumes from its last checkpoint.
#SBATCH --job-name={name}
#SBATCH --array={array}
#SBATCH --output=slurm-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@60
{options}\
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-${{SLURM_CPUS_ON_NODE:-1}}}}"
set -- {runs}
shift "$SLURM_ARRAY_TASK_ID"
exec {command} train --resume "$1" --trust --device {device}
"""


def check_options(options: Sequence[str]) -> None:
    """Raises ValueError unless each is an option of sbatch in its long form without dashes, such as time=2:00:00."""
    for option in options:
        if not re.fullmatch(r"[a-z][a-z0-9-]*(=[^\n]+)?", option):
            raise ValueError(f"--slurm-option {option!r}: expected an option of sbatch without dashes, as time=2:00:00")
        key = option.partition("=")[0]
        for one in (*OURS, *OTHERS):
            if one.startswith(key):  # sbatch takes the beginnings of its options, too
                what = f"sets --{one} itself" if one in OURS else f"cannot submit with --{one}"
                raise ValueError(f"--slurm-option {option}: the sweep {what}, expected another option")


def launch(
    runs: dict[str, Recipe],
    folder: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    retry: bool = False,
    say: Any = say_line,
    device: str = "cpu",
    options: Sequence[str] = (),
) -> list[Run]:
    """Creates the folders of `runs` and submits one array job for the unfinished ones, if any. Returns these.

    The job script, `sweep.sbatch` in the folder, can be submitted by hand, too, from there.

    Parameters
    ----------
    runs, folder, retry, say, device
        As in `run_sweep`.
    jobs : int, optional
        Maximum number of runs at a time; None leaves it to Slurm.
    options : sequence of str
        Further options of sbatch in their long form, without dashes: "time=2:00:00". They replace the sweep's own.

    Raises
    ------
    ValueError
        As in `run_sweep`; an option is malformed, or one of `OURS` or `OTHERS`; sbatch is missing, or fails, with what
        it says, or does not print the number of a job.
    """
    check_options(options)
    with sweep.prepared(runs, folder, retry, say) as (_, todo):
        if not todo:
            return todo
        top = Path(folder)
        text = script(top.absolute().name, [run.folder.name for run in todo], jobs, device, options)
        write_text(top / SCRIPT, text)
        job = _submit(top)
    say(f"submitted {plural(len(todo), 'run')} as job {job}; when they have ended: rotrnn results {top}")
    return todo


def script(name: str, runs: Sequence[str], jobs: int | None, device: str, options: Sequence[str]) -> str:
    """Returns the script of an array job for these runs, to be submitted from the folder of their sweep."""
    return TEMPLATE.format(
        name=re.sub(r"[^A-Za-z0-9.,=+_-]+", "_", name),
        array=f"0-{len(runs) - 1}" + ("" if jobs is None else f"%{jobs}"),
        options="".join(map(_line, options)),
        runs=" ".join(map(shlex.quote, runs)),
        command=shlex.join(sweep.COMMAND),
        device=device,
    )


def _line(option: str) -> str:
    """Returns the line of a script with an option. sbatch reads quotes as a shell does."""
    key, sign, value = option.partition("=")
    return f"#SBATCH --{key}{sign}{value and shlex.quote(value)}\n"


def _submit(folder: Path) -> str:
    """Submits the script in a folder. Returns the number of the job."""
    where = f"--launcher slurm: {folder / SCRIPT} is written, but"
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", SCRIPT], cwd=folder, capture_output=True, encoding="utf-8", errors="replace"
        )
    except FileNotFoundError as error:
        raise ValueError(f"{where} there is no sbatch on the PATH, expected Slurm's") from error
    if done.returncode:
        said = done.stderr.strip() or "no message"
        raise ValueError(f"{where} sbatch failed with exit code {done.returncode}: {said}")
    if not (job := re.fullmatch(r"(\d+)(;\S+)?", done.stdout.strip())):
        said = f"{done.stdout.strip()!r:.80}" if done.stdout.strip() else "nothing"
        raise ValueError(f"{where} sbatch printed {said}, expected the number of a job, as --parsable asks for")
    return job[1]
