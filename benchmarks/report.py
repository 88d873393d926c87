"""Writes up a recorded run of all benchmarks: tables in docs/benchmarks.md, two tables in the README, a bar chart.

    python -m benchmarks.report

Reads benchmarks/results/bench.json, which `python -m benchmarks` records before it does the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import RESULTS, ROOT, label, markdown
from benchmarks.record import picture
from rotrnn.plots.style import BLUE, ORANGE, Sheet, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]

BEGIN, END = "<!-- written by python -m benchmarks -->", "<!-- end of what python -m benchmarks wrote -->"
TASKS = {
    "scan": "scan, forward",
    "scan gradient": "scan, forward and backward",
    "lru": "training step of one block, LRU",
    "rotrnn": "training step of one block, RotRNN",
    "rotrnn bf16": "training step of one block, RotRNN, bf16",
}


CHART = "bench.png"


def write(results: dict[str, Any], docs: Path, readme: Path, folder: Path) -> None:
    """Tables into the page `docs`, two tables into `readme`, the chart into `folder` if matplotlib is installed."""
    refresh(docs, tables(results))
    refresh(readme, headline(results))
    try:
        picture(chart(results["rows"]), folder / CHART)
    except ImportError as missing:
        print(f"no chart: {missing}", file=sys.stderr)


def tables(results: dict[str, Any]) -> str:
    """Markdown: beside this machine's limits, long sequences, layers, ops, iterations, beside peers, and the chart."""
    rows: list[Row] = results["rows"]
    versions = results["versions"]
    rates = "; ".join(f"{one['name']} {rate(one)}" for one in of(rows, "machine"))
    seen = ", ".join(f"{name} {number}" for name, number in versions.items() if number)
    later = "".join(f"; {subject}: {commit}" for subject, commit in results.get("later", {}).items())
    parts = [f"{where(results)}, float32: {rates} ({seen}), commit {results['commit']}{later}."]
    for title, text in (
        ("Beside the limits of the machine", limits_table(rows)),
        ("Long sequences", length_table(of(rows, "length"))),
        ("Layers and streams", layers_table(of(rows, "layers"), of(rows, "stream"))),
        ("Ops", ops_table(of(rows, "ops"))),
        ("Fixed-point iterations", iteration_table(of(rows, "iteration"))),
        ("Beside other libraries", peers_table(of(rows, "peers"))),
        ("Chart", f"![Time beside limits, and peers beside rotrnn](../benchmarks/results/{CHART})"),
    ):
        if text:
            parts += [f"## {title}", text]
    return "\n\n".join(parts)


def where(results: dict[str, Any]) -> str:
    machine = results["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['simd']}"


def headline(results: dict[str, Any]) -> str:
    """Markdown for the README: two rows beside what limits them, and three beside the fastest of other libraries."""
    rows: list[Row] = results["rows"]
    peers = of(rows, "peers")
    ours = {one["task"]: one for one in peers if one["peer"] == "rotrnn"}
    beside = {label(one): one for one in reversed(main_rows(rows))}  # the first of several sizes
    scan, step = beside["scan complex forward"], beside["training step, fused"]

    def cells(name: str, one: Row, other: str, ratio: str) -> tuple[str, ...]:
        return name, size(one), duration(one["seconds"]), other, ratio

    limits = [
        cells("scan, forward", scan, "plain copy of the same bytes", f"{1 / scan['ratio']:.2f}"),
        cells("training step of six blocks", step, "its matrix products alone", f"{1 / step['ratio']:.2f}"),
    ]
    fastest = []
    for task in ("scan gradient", "lru", "rotrnn"):
        timed = [one for one in peers if one["task"] == task and "ratio" in one]
        if timed:
            peer = min(timed, key=lambda one: one["ratio"])
            fastest.append(cells(TASKS[task], ours[task], peer["peer"], f"{peer['ratio']:.1f}"))
    tables = [
        markdown(["", "size", "rotrnn", other, "its time / rotrnn's"], lines)
        for other, lines in (("lower limit", limits), ("fastest other library", fastest))
        if lines
    ]
    later = "".join(f", peers {commit}" for subject, commit in results.get("later", {}).items() if subject == "peers")
    return "\n\n".join([*tables, f"({where(results)}, float32; commit {results['commit']}{later}.)"])


def of(rows: Iterable[Row], *subjects: str) -> list[Row]:
    return [one for one in rows if one["subject"] in subjects]


def rate(one: Row) -> str:
    return next(f"{one[unit]:.0f} {unit}" for unit in ("GB/s", "GFLOP/s") if unit in one)


def duration(seconds: float) -> str:
    return (
        f"{seconds:.2f} s"
        if seconds >= 1
        else f"{1e3 * seconds:.2f} ms"
        if seconds < 0.1
        else f"{1e3 * seconds:.0f} ms"
    )


def size(one: Row) -> str:
    return ", ".join(f"{letter} {one[letter]}" for letter in "BTDN" if letter in one)


def identity(one: Row) -> tuple[Any, ...]:
    """What identifies a row, without the instruction set."""
    return (one["name"], one.get("path"), size(one))


def main_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows beside limits that ran with the machine's own instruction set."""
    found = of(rows, "scan", "layer", "block", "train_step")
    return [one for one in found if one["simd"] == found[0]["simd"]]


def limits_table(rows: Sequence[Row]) -> str:
    own = main_rows(rows)
    other = {identity(one): one for one in of(rows, "layer", "block", "train_step") if one not in own}
    avx2 = bool(other) and "avx2" in {one["simd"] for one in other.values()}
    again = ["on AVX2 alone"] if avx2 else []
    head = ["", "size", "time", "limit", "time / limit", *again, "activations", "peak memory"]

    def cells(one: Row) -> list[str]:
        second = other.get(identity(one))
        return [
            label(one),
            size(one),
            duration(one["seconds"]),
            f"{one['limit']}, {duration(one['limit_seconds'])}",
            f"{one['ratio']:.3g}",
            *([f"{second['ratio']:.3g}" if second else ""] if avx2 else []),
            f"{one['activations']:.1f} (B, T, D)" if "activations" in one else "",
            memory(one) if "peak_bytes" in one else "",
        ]

    return markdown(head, map(cells, own))


def memory(one: Row) -> str:
    return f"{one['peak_bytes'] / 2**30:.2f} GiB"


def length_table(rows: Sequence[Row]) -> str:
    """One line per length, one column per subject and number of threads."""
    columns = list(dict.fromkeys((one["name"], one["threads"]) for one in rows))
    cells = {(one["T"], one["name"], one["threads"]): f"{one['ns/token']:.0f} ({one['ratio']:.2f})" for one in rows}
    head = ["T, with B 1", *(f"{name}, {n} thread{'s' * (n > 1)}: ns per token (ratio)" for name, n in columns)]
    lengths = sorted({one["T"] for one in rows})
    return markdown(head, [[f"{T:,}", *(cells.get((T, *column), "") for column in columns)] for T in lengths])


def layers_table(rows: Sequence[Row], streams: Sequence[Row]) -> str:
    """One line per layer: a forward and backward, and a token of a stream."""
    sizes = {size(one) for one in rows}
    D = next((one["D"] for one in streams), "")
    head = [
        f"layer, {', '.join(sizes)}",
        "forward and backward",
        f"time / {rows[0]['limit'] if rows else ''}",
        f"a token of a stream of two blocks, D {D}, B 1",
        "in chunks of 64",
        "state",
    ]
    streamed = {one["layer"]: one for one in streams}

    def cells(one: Row) -> list[str]:
        stream = streamed[one["layer"]]
        times = [f"{1e6 * stream[key]:.0f} us" for key in ("seconds", "chunk_seconds")]
        beside = [duration(one["seconds"]), f"{one['ratio']:.2f}"]
        return [one["layer"], *beside, *times, f"{stream['state_bytes'] / 1024:.0f} KiB"]

    return markdown(head, map(cells, rows))


def ops_table(rows: Sequence[Row]) -> str:
    """One line per op and direction; empty if the recorded run has none."""
    if not rows:
        return ""
    head = ["", "time", "GB/s", "time / plain copy"]
    body = [(one["name"], duration(one["seconds"]), f"{one['GB/s']:.1f}", f"{one['ratio']:.3g}") for one in rows]
    return markdown(head, body)


def iteration_table(rows: Sequence[Row]) -> str:
    """One line per iteration of a fixed point, beside the ops it consists of."""
    head = ["", "size", "time", "limit", "time / limit"]

    def cells(one: Row) -> list[str]:
        beside = f"{one['limit']}, {duration(one['limit_seconds'])}"
        return [one["name"], size(one), duration(one["seconds"]), beside, f"{one['ratio']:.2f}"]

    return markdown(head, map(cells, rows))


def peers_table(rows: Sequence[Row]) -> str:
    """Task by task, ours first."""
    order = list(TASKS)
    rows = sorted(rows, key=lambda one: (order.index(one["task"]), one["peer"] != "rotrnn"))

    def cells(one: Row) -> list[str]:
        first = [TASKS[one["task"]], one["peer"], size(one)]
        if "error" in one:
            return [*first, one["error"], "", "", ""]
        return [
            *first,
            duration(one["seconds"]),
            f"{one['ratio']:.1f}" if "ratio" in one else "1",
            memory(one),
            duration(one["compile_seconds"]) if "compile_seconds" in one else "none",
        ]

    return markdown(["", "by", "size", "time", "time / ours", "peak memory", "compile time"], map(cells, rows))


def refresh(page: Path, text: str) -> None:
    """Puts the text between the page's two markers."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page}: expected the markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


@styled
def chart(rows: Sequence[Row]) -> Figure:
    """Bars: time over limit on the left, peers' time over ours on the right."""
    beside = [
        (label(one) + (f", D {one['D']}" if "activations" in one else ""), one["ratio"])
        for one in main_rows(rows)
        if "activations" in one or one["subject"] != "train_step"
    ]
    peers = [(f"{TASKS[one['task']]}\n{one['peer']}", one["ratio"]) for one in of(rows, "peers") if "ratio" in one]
    sheet = Sheet(None, 10.5, 0.9 + 0.28 * max(len(beside), len(peers)), 2)
    left, right = sheet.panels
    left.set(title="Beside this machine's limits", xlabel="time / limit (copy, or products alone)")
    right.set(title="Other libraries", xlabel="time / rotrnn's time", xscale="log")
    for axes, bars, colour in ((left, beside, BLUE), (right, peers, ORANGE)):
        places = range(len(bars))
        axes.barh(places, [ratio for _, ratio in bars], color=colour)
        axes.set_yticks(places, [name for name, _ in bars])
        axes.axvline(1, color="black", linewidth=0.8)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.tick_params(labelsize=7)
        for place, (_, ratio) in zip(places, bars, strict=True):
            beyond = max(ratio, 1.0 if ratio > 0.8 else 0.0)  # not across the line at 1
            axes.text(beyond, place, f" {ratio:.3g}", va="center", fontsize=7)
        axes.margins(x=0.12, y=0.01)
    return sheet.figure


if __name__ == "__main__":
    recorded = json.loads((RESULTS / "bench.json").read_text(encoding="utf-8"))
    write(recorded, ROOT / "docs" / "benchmarks.md", ROOT / "README.md", RESULTS)
