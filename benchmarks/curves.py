"""Pictures of recorded trainings, from the numbers in benchmarks/results/training alone: a line for each seed.

`python -m benchmarks.pictures NAME` draws them; pictures of what the records do not have, such as norms over training,
are drawn by `python -m benchmarks.training NAME`, which trains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measure import RESULTS
from rotrnn.plots.accuracy import merged
from rotrnn.plots.style import GREY, Series, Sheet, counted, draw_groups, looks, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Panels = Mapping[str, Mapping[str, tuple[str, str]]]
"""Title of a panel -> label of a line -> the training, and the configuration in its record."""
TRAINED = {
    "plain": "trained to 16",
    "length-32": "trained to 32",
    "carried": "trained to 16, carried on",
    "length-80": "trained to 80",
}
DEPTHS = (1, 2, 4, 6, 8)


def recorded(name: str) -> dict[str, Any]:
    """The record of a training."""
    return json.loads((RESULTS / "training" / f"{name}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def curves(name: str, configuration: str, accuracy: str) -> list[Series]:
    """The accuracies against length of a configuration, one for each seed; none if it is not in the record."""
    rows = [one for one in recorded(name)["rows"] if one["configuration"] == configuration]
    curve, found = rows[0]["best"]["curve"] if rows else {}, []
    for seed in range(len(rows[0]["seeds"]) if rows else 0):
        each = {key: [one[seed] for one in curve[key]] for key in ("accuracy", "sequence_accuracy")}
        one = merged({"length": curve["length"], "n": curve["n"], **each})
        found.append((np.array(one["length"]), np.array(one[accuracy])))
    return found


@styled
def by_length(
    panels: Panels, lines: Mapping[str, float], accuracy: str = "sequence_accuracy", guess: float | None = None
) -> Figure:
    """Draws accuracies against length in panels with the same axes and one legend; `lines` are lengths to mark."""
    sheet = Sheet(None, 2.5 * len(panels) + 1.6, 2.9, len(panels), sharex=True, sharey=True)
    for axes, (title, groups) in zip(sheet.panels, panels.items(), strict=True):
        draw_groups(axes, {label: curves(*of, accuracy) for label, of in groups.items()}, factor=100.0)
        for (text, length), style in zip(lines.items(), ("--", ":", "-."), strict=False):
            axes.axvline(length, color=GREY, linestyle=style, linewidth=1.2, label=text)
        if guess is not None:
            axes.axhline(100 * guess, color=GREY, linewidth=0.9, label=f"most frequent label ({100 * guess:.1f} %)")
        axes.set(title=title, xlabel="length", ylim=(-2, 102))
    sheet.panels[0].set_ylabel("whole sequences right, %" if accuracy == "sequence_accuracy" else "labels right, %")
    sheet.side_legend()
    return sheet.figure


def half_right(name: str, configuration: str) -> list[float]:
    """For each seed the largest length at which half of the sequences are right; 0 if there is none."""
    found = curves(name, configuration, "sequence_accuracy")
    return [float(max(at[right >= 0.5], default=0.0)) for at, right in found]


@styled
def by_depth() -> Figure:
    """Draws the longest length with half of the sequences right against the number of blocks, a dot for each seed."""
    budgets = {"2,000 steps, three seeds": "A5-depth", "8,000 steps, one seed": "A5-depth-8000"}
    layers = {"LSTM": "lstm", "Mamba": "mamba", "Transformer": "transformer"}
    sheet = Sheet(None, 2.9 * len(budgets) + 1.6, 2.9, len(budgets), sharex=True, sharey=True)
    for axes, (title, name) in zip(sheet.panels, budgets.items(), strict=True):
        for i, ((label, layer), look) in enumerate(zip(layers.items(), looks(len(layers)), strict=True)):
            rows = [one for one in recorded(name)["rows"] if one["configuration"].startswith(layer)]
            points = [(row["blocks"], half) for row in rows for half in half_right(name, row["configuration"])]
            depth, half = np.array(points).reshape(-1, 2).T
            axes.scatter(depth + 0.15 * (i - 1), half, s=18, alpha=0.75, linewidths=0, color=look["color"], label=label)
        axes.axhline(16, color=GREY, linestyle="--", linewidth=1.2, label="length in training (16)")
        axes.axhline(50, color=GREY, linestyle=":", linewidth=1.2, label="longest test (50)")
        axes.set(title=title, xlabel="blocks")
        axes.set_xticks(DEPTHS)
    sheet.panels[0].set_ylabel("half right up to length")
    sheet.side_legend()
    return sheet.figure


@styled
def by_step(groups: Mapping[str, str], guess: float) -> Figure:
    """Draws validation accuracies over training; `groups`: label -> training."""
    sheet = Sheet(None, 5.2, 2.9)
    (axes,) = sheet.panels
    series: dict[str, list[Series]] = {}
    for label, name in groups.items():
        runs = recorded(name)["validation"].values()
        series[label] = [(np.array(one["step"]), np.array(one["val_accuracy"])) for one in runs]
    draw_groups(axes, counted(series), factor=100.0)
    axes.axhline(100 * guess, color=GREY, linewidth=0.9, label=f"most frequent label ({100 * guess:.1f} %)")
    axes.set(title="Accuracy on validation", xlabel="training step", ylabel="%", ylim=(0, None))
    axes.set_xlim(left=0)
    sheet.side_legend()
    return sheet.figure


def of_delta(name: str, end: str) -> Panels:
    """A panel for each layer of the trainings with a state that is carried on."""
    layers = {"DeltaProduct, r = 4": "delta-4", "DeltaProduct, r = 2": "delta-2", "LSTM": "lstm"}
    return {title: of_layer(name, layer, end) for title, layer in layers.items()}


def of_layer(name: str, layer: str, end: str) -> dict[str, tuple[str, str]]:
    """The lines of a panel."""
    return {label: (name, f"{layer}-{way}{end}") for way, label in TRAINED.items()}


LIMITS = {**{f"{n}": f"{n} iterations at most" for n in (2, 4, 8, 16)}, "rounded_gamma": "drawn, 4 in the mean"}
PICTURES = {
    "A5-carry-delta-length": lambda: by_length(
        {
            **of_delta("A5-carry-delta", ",group=A5"),
            "r = 4, the control": of_layer("A5-carry-control", "delta-4", ",group=A5"),
        },
        {"length 16": 16, "length 32": 32, "carried on, in the mean (80)": 80},
    ),
    "S5-carry-delta-length": lambda: by_length(
        of_delta("S5-carry-delta", ""), {"length 16": 16, "length 32": 32, "carried on, in the mean (45)": 45}
    ),
    "A5-carry-fixed_point-length": lambda: by_length(
        {
            "vector state, r = 4": {
                TRAINED["plain"]: ("A5-fixed_point-direct", "fixed_point-4,group=A5"),
                TRAINED["carried"]: ("A5-carry-fixed_point", "fixed_point-4,group=A5"),
            }
        },
        {"length 16": 16, "carried on, in the mean (80)": 80},
    ),
    "A5-limits-length": lambda: by_length(
        {"Bedouin, r = 4": {text: ("A5-limits", f"train_iterations={limit}") for limit, text in LIMITS.items()}},
        {"length in training (16)": 16},
    ),
    "A5-depth-half": by_depth,
    "brackets-budget-length": lambda: by_length(
        {"LSTM": {f"{n:,} steps": ("brackets-budget", f"lstm,steps={n}") for n in (4000, 16000, 64000)}},
        {"longest in training (39)": 39},
        "accuracy",
        0.296,
    ),
    "listops-2048-validation": partial(
        by_step,
        {
            "RotRNN, 20,000 steps": "listops-2048",
            "LRU, 20,000 steps": "listops-2048-lru",
            "RotRNN, 52,000 steps, on a GPU": "listops-2048-gpu",
        },
        0.168,
    ),
}
"""Name -> what draws it, written to training/NAME.png."""
