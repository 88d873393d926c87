"""A page of the results of benchmarks/gpu.sh, for one folder or several side by side.

    python -m benchmarks.gpu_report PAGE.md [FOLDER ...] [--check]

A run has its folder's name. Its rows go into PAGE.json, with a sum for each function of the table of cases, and a
remark from its file remark.txt. Without folders PAGE.md is written again from PAGE.json alone. With --check failures in
the last folder are printed, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.gpu import Row
from benchmarks.measure import markdown
from benchmarks.record import record

Runs = dict[str, list[Row]]

HEAD = """# On a GPU

Written by `python -m benchmarks.gpu_report` from the rows of `benchmarks/gpu.sh`. Times are the least means of rounds
of 20 ms, as CUDA graphs, and ratios are of such minima; steps per second are medians of wall times, and `of_ceiling` is
beside the ceilings of docs/gpu.md, for an H100. Errors of the table of cases are the largest over the tolerance; each
row of float64 runs twice, and is bad if the bits differ. Errors of gradients are relative, of the one furthest off.

"""


def collected(folder: Path) -> list[Row]:
    """The rows of a folder's files."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [json.loads(line) for line in lines]
    return [*(one for one in rows if one["subject"] != "table"), *summed(of(rows, "table"))]


def remark(folder: Path) -> str:
    path = folder / "remark.txt"
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def summed(rows: Sequence[Row]) -> list[Row]:
    """The table of cases by function: rows, those that are bad, and the largest errors over the tolerance."""
    functions: dict[str, Row] = {}
    for one in rows:
        name = str(one["name"]).split()[0]
        empty: Row = {"subject": "table", "name": name, "rows": 0, "bad": [], "f32": 0.0, "f64": 0.0}
        total = functions.setdefault(name, empty)
        total["rows"] += 1
        total[one["kind"]] = max(total[one["kind"]], one.get("ratio", 0.0))
        if bad(one):
            why = one.get("error") or ("other bits" if one.get("same") is False else f"{one['ratio']:.2g} x tolerance")
            total["bad"].append(f"{one['name']} {one['kind']}: {why[:60]}")
    return sorted(functions.values(), key=lambda one: str(one["name"]).lower())


def bad(row: Row) -> bool:
    """Whether a row of the table of cases failed."""
    return "error" in row or not row["ratio"] <= 1 or row.get("same") is False


def of(rows: Iterable[Row], subject: str) -> list[Row]:
    return [one for one in rows if one["subject"] == subject]


# ---- tables ----


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    return markdown(head, body, "--:") + "\n"


def side_by_side(runs: Runs, subject: str, keys: Sequence[str], columns: dict[str, str], shown: str) -> str:
    """A line for each row of a subject that has numbers, by its `keys`: the columns of each run, and the ratio of what
    is `shown`, of the last run to the first."""
    lines: dict[tuple[str, ...], dict[str, Row]] = {}
    for run, rows in runs.items():
        for one in of(rows, subject):
            if shown in one:
                lines.setdefault(tuple(str(one.get(key, "")) for key in keys), {})[run] = one
    here = [run for run in runs if any(run in found for found in lines.values())]
    several = len(here) > 1
    head = [*keys, *(f"{name}, {run}" if several else name for run in here for name in columns)]
    body = []
    for line, found in lines.items():
        cells = [cell(found.get(run, {}).get(key), form) for run in here for key, form in columns.items()]
        if several:
            both = [found[run][shown] for run in (here[0], here[-1]) if run in found]
            cells.append(f"{both[1] / both[0]:.2f}" if len(both) == 2 else "")
        body.append([*line, *cells])
    return table([*head, *([f"{shown}, {here[-1]} / {here[0]}"] if several else [])], body) if body else ""


def cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def timed(rows: Iterable[Row]) -> list[Row]:
    """Rows with times in the units that pages have."""
    units = {"us": 1e6, "ms": 1e3}
    return [{**{unit: k * one["seconds"] for unit, k in units.items() if "seconds" in one}, **one} for one in rows]


def table_of_cases(runs: Runs) -> str:
    """How many rows each run had and which are bad, and the errors of the last run."""
    ran = {run: found for run, rows in runs.items() if (found := of(rows, "table"))}
    text, each = "", []
    for run, found in ran.items():
        faults = [fault for one in found for fault in one["bad"]]
        text += f"- {run}: {sum(one['rows'] for one in found):,} rows, {len(faults)} bad\n"
        text += "".join(f"  - {fault}\n" for fault in faults[:40])
        each = [[one["name"], str(one["rows"]), f"{one['f64']:.3f}", f"{one['f32']:.3f}"] for one in found]
    return f"{text}\n{table(['op or layer', 'rows', 'float64', 'float32'], each)}" if each else ""


def gradients(runs: Runs) -> str:
    """Errors beside float64, or, in runs that have none of the CPU, beside the CPU in the same precision."""
    head = ["recipe", "precision", "shape", "run", "loss", "GPU", "of", "CPU", "right"]
    body = []
    for run, rows in runs.items():
        for one in of(rows, "grads"):
            if "loss" not in one:
                continue
            cpu = f"{one['cpu_error']:.1e}" if "cpu_error" in one else "beside it"
            cells = [one["name"], one["precision"], str(one["shape"]), run, f"{one['loss']:.5f}"]
            body.append([*cells, f"{one['error']:.1e}", one["worst"], cpu, "no" if one["bad"] else "yes"])
    return table(head, body) if body else ""


def without_numbers(runs: Runs) -> str:
    """A line for each part that failed, or for which no time was left."""
    lines = [
        f"- {run}, {one['subject']} {one['name']}: {one['error']}\n"
        for run, rows in runs.items()
        for one in rows
        if isinstance(one.get("error"), str)
    ]
    return "".join(lines)


def sections(runs: Runs) -> Iterator[tuple[str, str]]:
    """Titles, and the text below them."""
    yield "The table of cases", table_of_cases(runs)
    yield "Gradients of recipes, two sequences at full width and length", gradients(runs)
    units, kind = {"us": ".4g", "GB/s": ".0f", "TFLOP/s": ".0f"}, ["name", "precision"]
    yield "Copies, launches, products of matrices", side_by_side(runs, "limits", kind, units, "seconds")
    units = {"us": ".4g", "GB/s": ".0f", "ratio": ".2f"}
    yield "The complex scan, beside memcpy", side_by_side(runs, "scan", ["name", "B", "T", "N"], units, "seconds")
    units = {"forward_us": ".4g", "backward_us": ".4g"}
    yield "Variants of a lane's walk", side_by_side(runs, "walk", ["name", "B", "T", "N"], units, "forward_us")
    units = {"forward_ms": ".3g", "backward_ms": ".3g"}
    yield "Blocks", side_by_side(runs, "block", [*kind, "ragged", "without"], units, "backward_ms")
    units = {"steps/s": ".3g", "of_ceiling": ".0%"}
    yield "Training steps", side_by_side(runs, "steps", [*kind, "shape"], units, "steps/s")
    units = {"share": ".0%", "us": ".0f", "launches": ".0f"}
    yield "Kernels of a recorded step", side_by_side(runs, "profile", [*kind, "kernel"], units, "share")
    yield "Layers, forward and backward", side_by_side(runs, "layers", [*kind, "by"], {"ms": ".3g"}, "seconds")
    for peer in ("torch", "jax", "triton", "lstm"):
        yield f"Beside {peer}", side_by_side(runs, peer, [*kind, "by", "T"], {"ms": ".3g"}, "seconds")
    yield "What failed, or was not reached", without_numbers(runs)


def faults(rows: Sequence[Row]) -> list[str]:
    """Failures of a run: rows of the table, gradients, and parts. Skipped parts do not count, but something must have
    run."""
    ran = [one for one in rows if not one.get("skipped")]
    found = [fault for one in of(ran, "table") for fault in one["bad"]]
    found += [f"gradients {one['name']} {one['precision']}" for one in of(ran, "grads") if one.get("bad")]
    found += [f"{one['subject']} {one['name']}: {one['error']}" for one in ran if isinstance(one.get("error"), str)]
    return found or ([] if ran else ["nothing ran"])


def page(recorded: dict[str, Row]) -> str:
    """The Markdown of the recorded results: where each run was, and its rows."""
    runs = {run: timed(one["rows"]) for run, one in recorded.items()}
    text = [HEAD]
    for run, one in recorded.items():
        where: Row = next((row for row in of(runs[run], "limits") if row["name"] == "origin"), {})
        versions = ", ".join(f"{name} {number}" for name, number in where.get("versions", {}).items() if number)
        commit = f"commit {where['commit']}" if where.get("commit") else ""
        said = [where.get("gpu"), one.get("remark"), commit, versions]
        text.append(f"- {run}: {'; '.join(part for part in said if part)}\n")
    text += [f"\n## {title}\n\n{made}" for title, made in sections(runs) if made]
    return "".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--check", action="store_true", help="exit code 1 if rows of the last folder are bad")
    args = parser.parse_args()
    path = args.page.with_suffix(".json")
    if args.folders:
        recorded = {one.resolve().name: {"remark": remark(one), "rows": collected(one)} for one in args.folders}
        record(path, recorded)
    recorded = json.loads(path.read_text(encoding="utf-8"))
    args.page.write_text(page(recorded), encoding="utf-8")
    if args.check and (found := faults(list(recorded.values())[-1]["rows"])):
        sys.exit("".join(f"bad: {one}\n" for one in found[:40]) + f"{len(found)} bad")


if __name__ == "__main__":
    main()
