"""Tables of results: runs are read from their folders, and those that differ only in their seed are grouped."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import os
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rotrnn._support.json import to_json
from rotrnn._support.text import an, plain
from rotrnn._support.warn import warn
from rotrnn.training.evaluation import COUNTS
from rotrnn.training.modules import ADVICE, Untrusted
from rotrnn.training.recipe import NAMING, SMALL, Recipe
from rotrnn.training.run import Run, place_of

Row = dict[str, Any]
CHECKPOINTS = ("best", "last")
FILES_OF_RUN = ("recipe.toml", "result.json", "last.safetensors")
"""Files by which a folder is taken for a run."""
NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)")


@dataclass(frozen=True)
class Outcome:
    """The content of a run's folder."""

    run: Run
    recipe: Recipe
    status: str
    result: dict[str, Any]
    error: str
    """Why the run failed, or an empty string."""

    @classmethod
    def read(cls, run: Run) -> Outcome:
        """Reads a run's folder. ValueError if it holds no run, or a file in it is damaged."""
        return cls.of(run, run.load_recipe())

    @classmethod
    def of(cls, run: Run, recipe: Recipe) -> Outcome:
        """Reads a run's folder, except for its recipe. ValueError if a file in it is damaged."""
        failed = run.read_json(run.failed, {})
        one = cls(run, recipe, run.status(), run.read_json(run.result, {}), failed.get("error", ""))
        try:
            _ = one.costs, one.commits, one.data
            render([Configuration("", [one]).row()])
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            what = f"{run.folder}: {run.result.name} or {run.log.name} is damaged"
            raise ValueError(f"{what}, expected the format of training ({type(error).__name__}: {error})") from error
        return one

    @cached_property
    def costs(self) -> dict[str, float]:
        """The cost of a finished run: "steps_per_second" without evaluations, "seconds" with them, "peak_memory"
        (bytes); and of layers that iterate "residual", the largest of a batch, its mean over the last hundredth of
        training."""
        records = self.run.records()
        seconds = [record["seconds"] for record in records if "loss" in record and "seconds" in record]
        costs = {"peak_memory": max((record.get("peak_memory", 0) for record in records), default=0)}
        total = sum(record.get("seconds", 0.0) for record in records)
        if sum(seconds) > 0 and math.isfinite(total):
            costs["steps_per_second"] = len(seconds) / sum(seconds)
            costs["seconds"] = total
        layers = [record["layers"] for record in records if "loss" in record and "layers" in record]
        found = [[value for key, value in one.items() if key.endswith(".residual")] for one in layers]
        if found and all(found):
            costs["residual"] = statistics.fmean(map(max, found[-max(1, len(found) // 100) :]))
        return costs

    @cached_property
    def commits(self) -> list[str]:
        """The commits of the source trees that trained the run, one for each start. An installed package has none."""
        return [start["commit"] for start in self.run.starts() if start.get("commit")]

    @cached_property
    def data(self) -> list[str]:
        """The data files of the run, as a line of sha256sum has one; of a run without one, none."""
        known, path = self.run.trained_on(), place_of(self.recipe.task)
        return [f"{known}  {path}"] if known and path else []


Folders = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One folder, or several."""


def find_runs(paths: Folders, name: str = "find_runs: paths") -> list[Run]:
    """Returns the runs in these folders or below them, numbers in the names of folders in the order of their values.
    Folders that lost their recipe, and a folder without any run, are returned as runs that cannot be read. TypeError,
    with `name`, for what is no path."""
    folders = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    for path in folders:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"{name} has {an(type(path).__name__)}, expected the path of a folder, or several")
    found: dict[Path, Run] = {}
    for path in map(Path, folders):
        below = {file.parent for name in FILES_OF_RUN for file in path.rglob(name)} - {path}
        here = [path] if Run(path).recipe.exists() else sorted(below, key=_by_value) or [path]
        found |= {folder.resolve(): Run(folder) for folder in here}
    return list(found.values())


def _by_value(path: Path) -> list[list[str | float]]:
    """A key for sorting that puts ``steps=4000`` before ``steps=16000``."""
    return [[float(one) if i % 2 else one for i, one in enumerate(NUMBER.split(part))] for part in path.parts]


def read_runs(runs: Iterable[Run]) -> tuple[list[Outcome], list[str]]:
    """Reads the folders of runs. Returns the outcomes, and an error message for each run that cannot be read.

    ValueError if no run can be read.
    """
    outcomes: list[Outcome] = []
    errors: list[str] = []
    for run in runs:
        try:
            outcomes.append(Outcome.read(run))
        except Untrusted as error:
            advised = any(ADVICE in one for one in errors)  # what can be done is said once
            errors.append(str(error).partition(ADVICE)[0] if advised else str(error))
        except (OSError, ValueError) as error:
            errors.append(str(error))
    if not outcomes:
        raise ValueError("; ".join(errors) or "there are no runs")
    return outcomes, errors


@dataclass(frozen=True)
class Configuration:
    """A group of runs that form one row of a table."""

    name: str
    outcomes: list[Outcome]

    def count(self, status: str) -> int:
        """Returns how many runs are "done", "failed" or "unfinished"."""
        return sum(one.status == status for one in self.outcomes)

    @property
    def done(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.status == "done"]

    def row(self) -> Row:
        """Returns the numbers of a table's row: means, sample standard deviations if there are several runs, and the
        numbers of each run in the order of "seeds"; None if there are none.

        Results on the test split are ``{"best": {"accuracy": {"mean": ..., "sd": ..., "each": [...]}, ...}, "last":
        ...}``. The values of a "curve" have the same form, a list with one entry for each length. "test_length" is the
        length of the test sequences, or the range of their lengths, if the task has a curve. "residual" is the largest
        of a batch of training, at its end, if the layer iterates to a fixed point.
        """
        results = [one.result for one in self.done]
        costs = [one.costs for one in self.done]
        sources = [one.recipe.source for one in self.outcomes]
        selected_on, steps = ([one.get(name) for one in results] for name in ("selected_on", "steps"))
        summaries = {name: _summary([result["test"][name] for result in results]) for name in CHECKPOINTS}
        return {
            "recipe": _common([one.recipe for one in sources]),
            "configuration": self.name,
            **{status: self.count(status) for status in ("done", "failed", "unfinished")},
            "seeds": sorted(one.recipe.training.seed for one in self.done),
            "metric": _common([one.get("metric") for one in results]),
            "selected_on": next((one for one in MARKS if one in selected_on), _common(selected_on)),
            "test_length": _lengths(summaries["best"]),
            **summaries,
            "published": _common([one.accuracy for one in sources]) or None,
            "small": any(one.small or one.recipe.endswith(SMALL) for one in sources),  # older runs do not have `small`
            "parameters": _common([one.get("parameters") for one in results]),
            "width": _common([one.recipe.model.d_model for one in self.outcomes]),
            "blocks": _common([one.recipe.model.n_layers for one in self.outcomes]),
            "residual": _spread([one["residual"] for one in costs if "residual" in one]),
            "tol": _common([getattr(one.recipe.layer, "tol", None) for one in self.outcomes]),
            "steps": steps if len(set(steps)) > 1 else _common(steps),
            "steps_per_second": _spread([one["steps_per_second"] for one in costs if "steps_per_second" in one]),
            "seconds": _spread([one["seconds"] for one in costs if "seconds" in one]),
            "peak_memory": max((one["peak_memory"] for one in costs), default=None),
            "commits": sorted({commit for one in self.done for commit in one.commits}),
            "data": sorted({file for one in self.done for file in one.data}),
            "errors": {one.run.folder.name: one.error for one in self.outcomes if one.status == "failed"},
        }


def _common(values: Sequence[Any]) -> Any:
    """Returns the common value, None if the values differ."""
    return values[0] if values and all(one == values[0] for one in values) else None


def _spread(values: Sequence[float]) -> dict[str, Any] | None:
    """Returns the values ("each"), their mean and their sample standard deviation ("sd", of two or more); NaN if a
    value is not finite."""
    if not values:
        return None
    finite = all(map(math.isfinite, values))
    mean = statistics.fmean(values) if finite else math.nan
    sd = statistics.stdev(values) if finite and len(values) > 1 else math.nan  # stdev of a NaN raises AttributeError
    return {"mean": mean} | ({"sd": sd} if len(values) > 1 else {}) | {"each": list(values)}


def _summary(found: Sequence[dict[str, Any]]) -> Row:
    """Returns `_spread` of each score that all evaluations have, and of their curves at each length, and the numbers
    of sequences if they have them in common."""
    if not found:
        return {}
    names = [name for name in found[0] if all(name in one for one in found)]
    summary: Row = {name: _spread([one[name] for one in found]) for name in names if name not in COUNTS}
    summary |= {name: _common([one[name] for one in found]) for name in names if name in COUNTS and name != "curve"}
    if "curve" in names:
        curves = [one["curve"] for one in found]
        lengths = sorted({length for curve in curves for length in curve["length"]})
        at = [{length: i for i, length in enumerate(curve["length"])} for curve in curves]

        def values(name: str, length: int) -> list[Any]:
            return [curve[name][i[length]] for curve, i in zip(curves, at, strict=True) if length in i]

        summary["curve"] = {"length": lengths, "n": [_common(values("n", length)) for length in lengths]} | {
            name: [_spread(values(name, length)) for length in lengths] for name in ("accuracy", "sequence_accuracy")
        }
    return summary


def _lengths(summary: Row) -> str | None:
    """Returns the length of the test sequences, "50", or the range of their lengths, "5 to 100"; None without a curve.

    In a curve of prefixes every length has all sequences, and the scores belong to the largest length; in a curve of
    lengths each length has its own sequences.
    """
    if not summary.get("curve", {}).get("length"):
        return None
    lengths, counts = summary["curve"]["length"], summary["curve"]["n"]
    return str(lengths[-1]) if counts[-1] == summary["n"] else f"{lengths[0]} to {lengths[-1]}"


def collect(runs: Iterable[Run | Outcome], by: Sequence[str] = ()) -> list[Configuration]:
    """Groups runs, or their outcomes, into configurations.

    Runs whose recipes differ only in training.seed form one configuration. With `by`, runs that agree in the listed
    settings "section.key", in the task's name and in the metric form one; a warning says so where such runs share a
    seed. Of several runs with the same recipe and seed
    only the first counts, and a finished run precedes an unfinished one.

    ValueError if a run cannot be read, or its recipe does not have a setting in `by`.
    """
    groups: dict[Any, list[Outcome]] = {}
    metrics: dict[Any, str | None] = {}
    outcomes: dict[str, Outcome] = {}
    read = [one if isinstance(one, Outcome) else Outcome.read(one) for one in runs]
    for one in sorted(read, key=lambda one: one.status != "done"):
        first = outcomes.setdefault(one.recipe.digest(), one)
        if one is not first:
            why = ""
            if one.status == "done" and to_json(one.result["test"]) != to_json(first.result["test"]):
                why = (
                    "; its result is different, so it used other data, another kind of machine or another number of "
                    "processes"
                )
            twin = f"it has the recipe and seed of {first.run.folder}{why}"
            warn(f"{one.run.folder}: skipped, because {twin}")
    for one in outcomes.values():
        if by:
            settings = ",".join(f"{place.rpartition('.')[2]}={_setting(one, place)}" for place in by)
            of = (settings, _setting(one, TASK))
            metric = metrics.setdefault(of, one.result.get("metric"))  # finished runs, which have a metric, come first
            key: Any = (*of, one.result.get("metric", metric))
        else:
            training = dataclasses.replace(one.recipe.training, seed=0)
            key = dataclasses.replace(one.recipe, training=training).digest()
        groups.setdefault(key, []).append(one)
    names = _names_by(by, list(groups)) if by else _names([outcomes[0].recipe for outcomes in groups.values()])
    for name, group in zip(names, groups.values(), strict=True):
        if len({one.recipe.training.seed for one in group}) < len(group):
            differing = ", ".join(distinguishing([_flat(one.recipe) for one in group]))
            warn(f"{name}: some of its runs have the same seed, and differ in {differing}")
    return [
        Configuration(name, sorted(outcomes, key=lambda one: one.recipe.training.seed))
        for name, outcomes in zip(names, groups.values(), strict=True)
    ]


def _setting(one: Outcome, place: str) -> Any:
    value: Any = one.recipe.tables()
    for key in place.split("."):
        if not isinstance(value, dict) or key not in value:
            if place in (unset := _unset(one.recipe)):
                return unset[place]
            raise ValueError(f"collect: by {place}: {one.run.folder} has no such setting")
        value = value[key]
    return value


def _names_by(by: Sequence[str], groups: Sequence[tuple[str, str, str | None]]) -> list[str]:
    """Returns names from settings, preceded by the task if there are several, and followed by the metric if the names
    would not differ otherwise."""
    several = TASK not in by and len({task for _, task, _ in groups}) > 1
    names = [f"task={task},{settings}" if several else settings for settings, task, _ in groups]
    if len(set(names)) < len(names):
        names = [f"{name},metric={metric}" for name, (_, _, metric) in zip(names, groups, strict=True)]
    return names


def _names(recipes: Sequence[Recipe]) -> list[str]:
    """Returns distinct names for the recipes: their names in a sweep, or the settings in which they differ."""
    sources = [recipe.source for recipe in recipes]
    same = len({source.recipe for source in sources}) == 1
    names = [
        source.configuration if same and source.configuration else f"{source.recipe} {source.configuration}".strip()
        for source in sources
    ]
    if len(set(names)) == len(names) and all(names):
        return names
    flat = [_flat(recipe) for recipe in recipes]
    places = distinguishing(flat) or list(NAMING)
    return [",".join(f"{NAMING.get(place, place)}={one[place]}" for place in places if place in one) for one in flat]


TASK = "task.name"
SHORT = 12
"""Number of characters of an abbreviated commit hash."""
ORDER = ("task", "layer", "model", "optimiser", "training")


def _short(commit: str) -> str:
    """A commit's first digits, and whether there were changes besides."""
    digits, dash, state = commit.partition("-")
    return digits[:SHORT] + dash + state


def distinguishing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the keys that distinguish settings: task and layer if they differ, then as few other keys as possible,
    with the sections in the order `ORDER`."""
    places = dict.fromkeys(place for one in settings for place in one)
    rest = sorted((one for one in places if one not in NAMING), key=lambda place: ORDER.index(place.partition(".")[0]))

    def kinds(keys: Sequence[str]) -> int:
        return len({tuple(repr(one.get(place)) for place in keys) for one in settings})

    found: list[str] = []
    for place in (*NAMING, *rest):
        if kinds([*found, place]) > kinds(found):
            found.append(place)
    return found


def _flat(recipe: Recipe) -> dict[str, Any]:
    tables = {name: table for name, table in recipe.tables().items() if name != "source"}
    flat = {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
    del flat["training.seed"]
    return flat | _unset(recipe)


def _unset(recipe: Recipe) -> dict[str, str]:
    """Returns the settings "section.key" that are None, which a recipe's tables leave out."""
    parts = {name: getattr(recipe, name) for name in ORDER}
    keys = [(name, one.name) for name, part in parts.items() for one in dataclasses.fields(part)]
    return {f"{name}.{key}": "unset" for name, key in keys if getattr(parts[name], key) is None}


# ---- readable tables ----

MARKS = {"training": "‡", "test": "†"}
"""The mark of a row whose parameters were selected on another split than validation, the worst first."""
APART = 0.15
"""Scores of runs with a larger standard deviation are not told by their mean, if there are no more than `SEVERAL`."""
SEVERAL = 5
CELL = 20
"""Maximum number of characters of a published figure in a cell; longer ones become notes below the table."""


def columns(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Returns a table of strings: for each row a dict, column -> cell. Accuracies are percentages; † marks parameters
    that were selected on the test split. Width and number of blocks are columns where they differ."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows if row["metric"]))
    several = len(metrics) > 1
    title = metrics[0].replace("_", " ") if len(metrics) == 1 else "score"
    scaled = any("scaled_accuracy" in row["best"] for row in rows)
    differing = [name for name in ("width", "blocks") if len({row[name] for row in rows}) > 1]
    table = []
    for row in rows:
        mark = f" {MARKS[row['selected_on']]}" if row["selected_on"] in MARKS else ""
        cells = {"configuration": row["configuration"], "runs": _runs(row)}
        cells |= {name: str(row[name] or "") for name in differing}
        if any(row["test_length"] for row in rows):
            cells["test length"] = row["test_length"] or ""
        if several:
            cells["metric"] = (row["metric"] or "").replace("_", " ")
        for name in CHECKPOINTS:
            found = row[name].get(row["metric"]) if row["metric"] else None
            cells[f"{title} %, {name}"] = _percent(found) + (mark if found and name == "best" else "")
            if scaled:
                found = row[name].get("scaled_accuracy")
                cells[f"scaled %, {name}"] = _percent(found) + (mark if found and name == "best" else "")
        cells["published"] = _published(rows, row)
        cells["parameters"] = f"{row['parameters']:,}" if row["parameters"] is not None else ""
        rate = row["steps_per_second"]["mean"] if row["steps_per_second"] else None
        cells["steps/s"] = "" if rate is None else f"{rate:.1f}" if rate >= 10 else f"{rate:.3g}"
        cells["peak memory"] = f"{row['peak_memory'] / 2**20:,.0f} MiB" if row["peak_memory"] else ""
        cells["time"] = duration(row["seconds"]["mean"]) if row["seconds"] else ""
        table.append(cells)
    return table


def notes(rows: Sequence[Row], unreadable: Sequence[str] = ()) -> list[str]:
    """Returns the notes below a table; `unreadable` are the error messages of runs that could not be read."""
    lines = [
        "best: the parameters with the best score on the validation split; last: those after the last step. "
        "Mean ± sample standard deviation over the runs that are done."
    ]
    found = [(row[name], row[name].get(row["metric"]) or {}) for row in rows for name in CHECKPOINTS if row[name]]
    if any(_apart(score) for _, score in found):
        lines[0] += f" Run by run, in the order of seeds, where that is above {100 * APART:.0f} % or above the mean."
    shares = (part for row in rows if row["metric"] != "skill" for part in (row["best"], row["last"]))
    if sizes := sorted({part["n"] for part in shares if part.get("n", 0) > 0}):
        lines.append("; ".join(map(_error_of_shares, sizes)) + ".")
    if any(row["selected_on"] == "training" for row in rows):
        lines.append(f"{MARKS['training']} test is the training data: there is no validation or test split.")
    if any(row["selected_on"] == "test" for row in rows):
        lines.append(MARKS["test"] + " the best parameters were selected on the test split: it is for validation, too.")
    for above in sorted({row["best"]["scaled_above"] for row in rows if row["best"].get("scaled_above") is not None}):
        lines.append(
            "scaled: (accuracy - chance) / (1 - chance), "
            f"of the test sequences longer than {above}, the longest in training, alone."
        )
    lines += [
        f"{row['configuration']}: fixed points not reached: at the end of training the largest residual of a batch is "
        f"{row['residual']['mean']:.2g}, the tolerance {row['tol']:g}."
        for row in rows
        if row["residual"] and row["tol"] and not all(one <= row["tol"] for one in row["residual"]["each"])
    ]
    lines += [f"published, ({i}): {text}" for i, text in enumerate(_remarks(rows), 1)]
    if any(row["small"] and row["published"] for row in rows):
        lines.append("small variant: the published figures are those of the full recipe.")
    if len(commits := sorted({commit for row in rows for commit in row["commits"]})) > 1:
        lines.append(f"trained with several commits of rotrnn: {', '.join(map(_short, commits))}.")
    contents: dict[str, set[str]] = {}
    for known, _, path in (file.partition("  ") for row in rows for file in row.get("data", ())):
        contents.setdefault(path, set()).add(known[:16])
    for path, several in sorted(contents.items()):
        if len(several) > 1:
            lines.append(f"trained on several contents of {path}: SHA-256 {', '.join(sorted(several))}.")
    for row in rows:
        lines += [f"failed: {row['configuration']} ({run}): {error}" for run, error in row["errors"].items()]
    lines += [f"unreadable run {i} of {len(unreadable)}, skipped: {error}" for i, error in enumerate(unreadable, 1)]
    return lines


def _error_of_shares(n: int) -> str:
    return (
        f"{n:,} test sequences: a share p of them has the standard error sqrt(p (1 - p) / {n}), "
        f"at most {50 / math.sqrt(n):.2g} %"
    )


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Returns the published figures that are too long for a cell."""
    return list(dict.fromkeys(row["published"] for row in rows if len(row["published"] or "") > CELL))


def _published(rows: Sequence[Row], row: Row) -> str:
    text = row["published"] or ""
    return text if len(text) <= CELL else f"({_remarks(rows).index(text) + 1})"


def curve_rows(rows: Sequence[Row]) -> list[Row]:
    """Returns accuracies against length, a row for each configuration, checkpoint and length; empty if no run has a
    curve."""
    table = []
    for row in rows:
        for name in CHECKPOINTS:
            curve = row[name].get("curve", {"length": []})
            for i, length in enumerate(curve["length"]):
                found = {metric: curve[metric][i] for metric in ("accuracy", "sequence_accuracy")}
                table.append({"configuration": row["configuration"], "parameters": name, "length": length, **found})
    return table


def curve_columns(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Returns a table of strings: for each length the accuracies in percent of each configuration's best parameters."""
    cells: dict[int, dict[str, str]] = {}
    names = [row["configuration"] for row in rows]
    for one in curve_rows(rows):
        if one["parameters"] == "best":
            line = cells.setdefault(one["length"], {"length": str(one["length"])} | _blank(names))
            line[f"{one['configuration']}: accuracy %"] = _percent(one["accuracy"])
            line[f"{one['configuration']}: sequences %"] = _percent(one["sequence_accuracy"])
    return [cells[length] for length in sorted(cells)]


def _blank(names: Sequence[str]) -> dict[str, str]:
    return {f"{name}: {what} %": "" for name in names for what in ("accuracy", "sequences")}


def _runs(row: Row) -> str:
    others = [f"{row[status]} {status}" for status in ("failed", "unfinished") if row[status]]
    return ", ".join([str(row["done"]), *others])


def _apart(found: dict[str, Any]) -> bool:
    """Returns whether the scores of runs, if they are known, are too far apart to be told by their mean."""
    return "each" in found and found.get("sd", 0.0) > min(APART, abs(found["mean"]))


def _percent(found: dict[str, Any] | None) -> str:
    """Formats a score: mean ± sample standard deviation; run by run if some runs have learned and others have not."""
    if found is None:
        return ""
    if _apart(found) and len(found["each"]) <= SEVERAL:
        return ", ".join(f"{100 * one:.1f}" for one in found["each"])
    return f"{100 * found['mean']:.2f}" + (f" ± {100 * found['sd']:.2f}" if "sd" in found else "")


def duration(seconds: float) -> str:
    """Formats seconds with at most two units: "2 h 5 min"."""
    whole = round(seconds)
    for unit, size, part, per in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // per} {part}"
    return f"{seconds:.3g} s"


def markdown(table: Sequence[dict[str, str]]) -> str:
    """Formats a table of strings as Markdown with aligned columns."""
    head = list(table[0])
    rows = [head, *([line[name] for name in head] for line in table)]
    lines = [[plain(cell).replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text) + "\n"


def render(rows: Sequence[Row], kind: str = ".md", *, curve: bool = False, unreadable: Sequence[str] = ()) -> str:
    """Formats the table of `rows`, or their accuracies against length, as ".md", ".csv" (plain numbers) or ".json"
    (everything).

    The ".md" table is followed by its `notes`.
    """
    if kind == ".json":
        return to_json(rows, indent=2) + "\n"
    if curve and not curve_rows(rows):
        raise ValueError("render: curve: no finished run has a curve; its task does not define one")
    if kind == ".csv":
        return _csv([_flatten(row) for row in (curve_rows(rows) if curve else rows)])
    if kind != ".md":
        raise ValueError(f"render: kind is {kind!r}, expected .md, .csv or .json")
    below = "".join(f"\n{plain(note)}\n" for note in notes(rows, unreadable))
    return markdown(curve_columns(rows) if curve else columns(rows)) + below


def _flatten(row: Row, prefix: str = "") -> Row:
    """Flattens a row to one level of columns such as "best.accuracy.mean"; curves and errors are left out."""
    flat: Row = {}
    for key, value in row.items():
        if isinstance(value, dict) and key not in ("curve", "errors"):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif key not in ("curve", "errors"):
            flat[prefix + key] = " ".join(map(str, value)) if isinstance(value, list) else value
    return flat


def _csv(rows: Sequence[Row]) -> str:
    file = io.StringIO()
    head = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(file, head, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return file.getvalue()


def _cell(value: Any) -> Any:
    """Returns a value for a cell of a spreadsheet, which would compute a text that begins as a formula does."""
    if not isinstance(value, str):
        return value
    return f"'{plain(value)}" if value.startswith(("=", "+", "-", "@")) else plain(value)


def check_out(name: str, path: str | os.PathLike[str]) -> None:
    """Raises ValueError if a result cannot be written to `path`: the folder is missing, or `path` is a file of a
    run. `name` is the argument."""
    path = Path(path)
    if not path.parent.is_dir() or path.is_dir():
        raise ValueError(f"{name} {path}: expected a file in an existing folder")
    own = Run(path.parent).own()
    if path in own and own[0].exists():
        raise ValueError(f"{name} {path}: is a file of the run in that folder, expected another name")
