"""Times on a GPU, which benchmarks/gpu.sh records part by part; `report` writes them up.

    python -m benchmarks.gpu machine | products | scan | layers | steps RECIPE PRECISION  [--quick]
    python -m benchmarks.gpu torch | jax | triton | lstm  [--quick]
    python -m benchmarks.gpu report FOLDER

Each subject prints one JSON object a line; `report` reads them in FOLDER/parts. Times are those of the GPU at work:
calls are queued until they take 20 ms, and the least mean of several such rounds counts. Ours are recorded as CUDA
graphs, so that Python does not count; `steps` has the wall time of whole training steps beside that of their graphs.
Peers have a process each.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rotrnn
from benchmarks.layers import settings_of
from benchmarks.measure import block_products, origin, version
from rotrnn import cuda
from rotrnn.models.build import ModelSettings, build_model, make_layer
from rotrnn.nn.layer import Context, moved
from rotrnn.nn.registry import LAYERS
from rotrnn.ops.dense import dense
from rotrnn.ops.precisions import PRECISIONS
from rotrnn.ops.recording import NotRecordable
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward
from rotrnn.training.estimate import trial
from rotrnn.training.log import timed
from rotrnn.training.recipe import load_recipe
from rotrnn.training.results import duration
from rotrnn.training.run import Run

Row = dict[str, Any]

TABLE_4 = {"scifar": 15.9, "listops": 2.1, "text": 14.7, "retrieval": 5.7, "pathfinder": 15.5, "pathx": 2.4}
"""Steps per second of the LRU's paper, on an A100 (Orvieto et al. 2023, Table 4)."""

CEILINGS = {
    "scifar": (21, 80, 160),
    "listops": (107, 182, 363),
    "text": (29, 68, 137),
    "retrieval": (14, 23, 47),
    "pathfinder": (51, 104, 208),
    "pathx": (10, 16, 32),
}
"""Steps per second in float32, TF32 and bfloat16 if each kernel, op by op, took the longer of its flops at 60, 400 or
790 TFLOP/s and its bytes at 3 TB/s: an H100."""

PEERS = ("jax", "torch", "triton")
"""Packages that subjects need, which may be missing."""

MOST_DRAWN = 1 << 27
"""Numbers that are drawn for an array."""

EXAMPLES = 256
"""Of each split of the stand-in data, on which steps are timed."""


def seconds(call: Callable[[], Any], wait: Callable[[], Any], window: float) -> float:
    """The least mean time of calls in rounds of some 20 ms."""
    call()
    wait()
    _, once = timed(lambda: (call(), wait()))
    calls = max(1, min(1000, int(0.02 / once)))
    least, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < window or least == float("inf"):
        _, taken = timed(lambda: ([call() for _ in range(calls)], wait()))
        least = min(least, taken / calls)
    return least


def wait() -> None:
    """Waits for the GPU."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()


def graph_seconds(graph: cuda.Recorded, window: float) -> float:
    return seconds(graph.launch, graph.stream.synchronize, window)


def recorded_seconds(work: Callable[[], Any], window: float) -> float:
    """The time of work on the GPU, as a graph."""
    return graph_seconds(cuda.Recorded(work, cuda.device().asarray(np.zeros(1, np.int64))), window)


def on_gpu(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Normal numbers, float32 or complex64; a large array repeats those of its first index, to save time."""
    drawn = shape if np.prod(shape) <= MOST_DRAWN else shape[1:]
    numbers = rng.standard_normal((*drawn, np.dtype(dtype).itemsize // 4), dtype=np.float32)
    made = cuda.device().empty(shape, np.dtype(dtype))
    made[...] = cuda.device().asarray(numbers.view(dtype)[..., 0])
    return made


def copied(y: Any, x: Any) -> Any:
    y[...] = x
    return y


# ---- subjects ----


def machine(quick: bool) -> Iterator[Row]:
    """The GPU, versions, and what limits everything else: the bandwidth of a copy and the cost of a launch."""
    found = origin() | {"command": "benchmarks/gpu.sh machine"}
    found["versions"] |= {name: version(name) for name in ("cupy-cuda13x", "triton", "nvidia-cublas")}
    if nvcc := shutil.which("nvcc"):
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
        found["versions"]["nvcc"] = said.split("release ")[-1].split(",")[0]
    yield {"name": "origin", "gpu": cuda.describe(), **found}
    device, window = cuda.device(), 0.05 if quick else 2.0
    for mebibytes in (1,) if quick else (64, 1024):
        x, y = (device.empty((mebibytes << 18,), np.dtype(np.float32)) for _ in range(2))
        x[...] = 1.0
        for name, work in {
            "copy": functools.partial(copied, y, x),
            "copy by our kernel": lambda x=x, y=y: device.kernels.copy(y=y, x=x, n=x.size) or y,
        }.items():
            found_s = recorded_seconds(work, window)
            yield {"name": f"{name}, {mebibytes} MiB", "seconds": found_s, "GB/s": 2e-9 * x.nbytes / found_s}
    small = device.asarray(np.zeros((2, 256), np.float32))
    nodes = 10 if quick else 500
    work_s = recorded_seconds(
        lambda: [device.kernels.copy(y=small[1], x=small[0], n=256) for _ in range(nodes)] and small, window
    )
    yield {"name": f"a launch, of {nodes} in a graph", "seconds": work_s / nodes}


def shapes(quick: bool) -> list[tuple[int, int, int]]:
    """Rows, outputs and inputs of the products that are timed: a square one, and one of a layer."""
    return [(64, 32, 32)] if quick else [(8192, 8192, 8192), (65536, 512, 128)]


def product_row(by: str, precision: str, shape: tuple[int, int, int], found: float) -> Row:
    M, n, k = shape
    name = f"product ({M}, {k}) x ({k}, {n})"
    return {"name": name, "by": by, "precision": precision, "seconds": found, "TFLOP/s": 2e-12 * M * n * k / found}


def products(quick: bool) -> Iterator[Row]:
    """Products of float32 matrices in the three precisions."""
    rng = np.random.default_rng(0)
    for shape in shapes(quick):
        M, n, k = shape
        x, w = on_gpu(rng, M, k), on_gpu(rng, n, k)
        for precision in PRECISIONS:
            with rotrnn.precision(precision):
                found = recorded_seconds(lambda x=x, w=w: dense(x, w), 0.05 if quick else 1.0)
            yield product_row("rotrnn", precision, shape, found)


def torch(quick: bool) -> Iterator[Row]:
    """The same by PyTorch; its bfloat16 matrices are stored as such."""
    import torch

    for shape in shapes(quick):
        M, n, k = shape
        for precision in PRECISIONS:
            torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            x, w = (torch.randn(size, k, device="cuda", dtype=dtype) for size in (M, n))
            found = seconds(lambda x=x, w=w: x @ w.T, torch.cuda.synchronize, 1.0)
            yield product_row("PyTorch", precision, shape, found)


def sizes(quick: bool) -> list[tuple[int, int, int]]:
    """B, T and N complex lanes of the scans."""
    return [(2, 64, 32)] if quick else [(32, 2048 << k, 256) for k in range(5)]


def moduli(N: int) -> Any:
    """Transitions that remember up to a thousand steps."""
    rng = np.random.default_rng(1)
    return (rng.uniform(0.9, 0.999, N) * np.exp(1j * rng.uniform(0, np.pi, N))).astype(np.complex64)


def scan(quick: bool) -> Iterator[Row]:
    """The complex scan beside a copy of the same arrays: forward reads x and writes h; backward reads dh and h, writes
    dx, and is beside 3/2 copies."""
    device, window, rng = cuda.device(), 0.05 if quick else 1.0, np.random.default_rng(0)
    for B, T, N in sizes(quick):
        a = device.asarray(moduli(N))
        x, dh = (on_gpu(rng, B, T, N, dtype=np.complex64) for _ in range(2))
        h, dx = (device.empty((B, T, N), np.dtype(np.complex64)) for _ in range(2))
        copy_s = recorded_seconds(functools.partial(copied, dx, x), window)
        works = {
            "forward": (2, functools.partial(diagonal_scan, a, x, out=h)),
            "backward": (3, lambda dh=dh, a=a, h=h, dx=dx: diagonal_scan_backward(dh, a, h, out=dx).dx),
        }
        for way, (passes, work) in works.items():
            found, limit = recorded_seconds(work, window), copy_s * passes / 2
            rate = 1e-9 * passes * x.nbytes / found
            yield {"name": f"scan {way}", "by": "rotrnn", "seconds": found, "limit_seconds": limit, "GB/s": rate,
                   "ratio": found / limit, "B": B, "T": T, "N": N}  # fmt: skip


def scan_rows(by: str, quick: bool, make: Callable[[Any, Any, Any], Row]) -> Iterator[Row]:
    """Rows of a peer whose `make(a, x, dh)` times it; first its states of a small problem are compared with ours."""
    for B, T, N in sizes(quick):
        rng = np.random.default_rng(0)
        x, dh = (np.repeat(rng.standard_normal((1, T, 2 * N), np.float32), B, 0).view(np.complex64) for _ in range(2))
        try:
            yield {"name": "scan", "by": by, "B": B, "T": T, "N": N, **make(moduli(N), x, dh)}
        except Exception as error:  # out of memory, say
            yield {"name": "scan", "by": by, "B": B, "T": T, "N": N, "error": f"{type(error).__name__}: {error}"[:300]}


def check(found: Any, a: Any, x: Any) -> None:
    """Raises ValueError if states are not those of our scan on the CPU."""
    expected = diagonal_scan(a, x)
    difference = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    if not difference < 1e-4:
        raise ValueError(f"its states differ by {difference:.1e}: its time does not count")


def jax(quick: bool) -> Iterator[Row]:
    """The scan as the papers' code has it, by JAX's associative_scan; the gradient runs forward again."""
    import jax
    from jax import numpy as jnp

    from benchmarks.peers.jax_scan import associative_scan, compiled

    def both(a: Any, x: Any, dh: Any) -> Any:
        h, adjoint = jax.vjp(associative_scan, a, x)
        return h, *adjoint(dh)

    def make(a: Any, x: Any, dh: Any) -> Row:
        check(np.asarray(associative_scan(jnp.asarray(a), jnp.asarray(x[:1, :500]))), a, x[:1, :500])
        there = [jnp.asarray(one) for one in (a, x, dh)]
        times: Row = {}
        for key, function, args in (("seconds", associative_scan, there[:2]), ("gradient_seconds", both, there)):
            run, compiling = compiled(function, *args)
            kept: list[Any] = []

            def call(run: Any = run, args: Any = args, kept: Any = kept) -> None:
                kept[:] = [run(*args)]

            times[key] = seconds(call, lambda kept=kept: jax.block_until_ready(kept[0]), 1.0)
            times[f"compile_{key}"] = compiling
        return times

    yield from scan_rows("JAX associative_scan", quick, make)


def triton(quick: bool) -> Iterator[Row]:
    """The scan by a Triton kernel; its gradient is that of x alone."""
    import torch

    from benchmarks.peers.triton_scan import scan

    def make(a: Any, x: Any, dh: Any) -> Row:
        ga, gx, gdh = (torch.from_numpy(one).cuda() for one in (a, x, dh))
        check(scan(ga, gx[:1, :500].contiguous()).cpu().numpy(), a, x[:1, :500])
        conjugate = ga.conj().resolve_conj()
        return {
            "seconds": seconds(lambda: scan(ga, gx), torch.cuda.synchronize, 1.0),
            "gradient_seconds": seconds(
                lambda: (scan(ga, gx), scan(conjugate, gdh, reverse=True)), torch.cuda.synchronize, 1.0
            ),
        }

    yield from scan_rows("Triton associative_scan", quick, make)


def layers(quick: bool) -> Iterator[Row]:
    """Forward and backward of every layer, and of the LRU's block in the three precisions."""
    B, T, D, window = (2, 8, 8, 0.02) if quick else (32, 2048, 128, 0.5)
    rng, ctx = np.random.default_rng(0), Context(train=True)
    x, dy = on_gpu(rng, B, T, D), on_gpu(rng, B, T, D)
    size = {"B": B, "T": T, "D": D}

    def row_of(name: str, layer: Any, precision: str) -> Row:
        params = moved(layer.init(np.random.default_rng(0)), cuda.device())

        def work() -> Any:
            return layer.backward(params, layer.forward(params, x, ctx)[1], dy)[0]

        one: Row = {"name": name, "by": "rotrnn", "precision": precision, **size}
        try:
            with rotrnn.precision(precision):
                try:
                    return {**one, "seconds": recorded_seconds(work, window), "graph": True}
                except NotRecordable:
                    return {**one, "seconds": seconds(work, wait, window), "graph": False}
        except Exception as error:  # the others are timed all the same
            return {**one, "error": f"{type(error).__name__}: {error}"[:300]}

    N = 8 if quick else 256
    settings = ModelSettings(layer="lru", d_model=D, n_layers=1)
    block = build_model(settings, {"d_state": N}, n_classes=10, vocab=18).stack.blocks[0]
    flops = sum(3 * 2.0 * B * T * d_in * d_out for d_in, d_out in block_products(D, 2 * N))
    for precision in PRECISIONS:
        yield row_of(f"block of LRU, N {N}", block, precision) | {"flops": flops}
    for name in LAYERS:
        yield row_of(name, make_layer(name, D, settings_of(name, D)), "float32")


def lstm(quick: bool) -> Iterator[Row]:
    """PyTorch's LSTM, which is cuDNN's: D channels, and 2 D states."""
    import torch

    B, T, D = (2, 8, 8) if quick else (32, 2048, 128)
    x = torch.randn(B, T, D, device="cuda", requires_grad=True)
    for precision, allowed in (("float32", False), ("tf32", True)):
        torch.backends.cudnn.allow_tf32 = allowed
        layer = torch.nn.LSTM(D, 2 * D, batch_first=True).cuda()
        dy = torch.randn(B, T, 2 * D, device="cuda")

        def both(layer: Any = layer, dy: Any = dy) -> None:
            layer(x)[0].backward(dy)

        found = seconds(both, torch.cuda.synchronize, 1.0)
        yield {"name": "LSTM", "by": "PyTorch", "precision": precision, "seconds": found, "B": B, "T": T, "D": D}


def steps(name: str, precision: str, quick: bool) -> Iterator[Row]:
    """Training steps of an LRU recipe on stand-in data: the wall time of a step, and its graph's alone."""
    import cupy

    changes = [f"training.precision={precision}"]
    if quick:
        changes += ["task.name=listops", "task.max_length=24", "task.min_length=5", "task.max_depth=3",
                    "model.d_model=8", "model.n_layers=1", "layer.d_state=4", "training.batch=4"]  # fmt: skip
    with trial(load_recipe(f"{name}-lru", changes), 8 if quick else EXAMPLES, "cuda") as (trainer, state):
        times = [timed(lambda: trainer.stepper.advance(state))[1] for _ in range(4 if quick else 40)]
        trainer.stepper.settle(state)
        graphs = trainer.stepper.recorder.steps if trainer.stepper.recorder else {}
        longest = max(graphs, key=lambda key: np.prod(key[0]), default=None)
        free, total = cupy.cuda.runtime.memGetInfo()
        one: Row = {"name": name, "precision": precision, "graphs": len(graphs), "gpu_bytes": total - free}
        one["seconds"] = statistics.median(times[len(times) // 2 :])
        one["steps/s"] = 1 / one["seconds"]
        one["slowest_of_the_later_half"] = max(times[len(times) // 2 :])
        if longest is not None:
            one["graph_seconds"] = graph_seconds(graphs[longest].graph, 0.02 if quick else 1.0)
            one["shape"] = list(longest[0])
        yield one


# ---- written up ----


def rows_of(folder: Path, subject: str) -> list[Row]:
    """The rows of all parts of a subject: the files SUBJECT.jsonl and SUBJECT-....jsonl in `parts`."""
    paths = [path for path in sorted((folder / "parts").glob("*.jsonl")) if path.stem.split("-")[0] == subject]
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [one for one in rows if "missing" not in one]


def checks(folder: Path) -> list[str]:
    """What tests and compute-sanitizer said at last, a line for each part."""
    found = []
    for path in sorted((folder / "parts").glob("*.txt")):
        lines = path.read_text().splitlines()
        said = [line.strip("= ") for line in lines if any(word in line for word in (" passed", " failed", "SUMMARY:"))]
        found.append(f"- {path.stem}: {'; '.join(said)}")
    return found


def table(head: list[str], body: Iterable[Iterable[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *body))


def ms(one: Row | None, key: str = "seconds") -> str:
    return "" if one is None else f"{1e3 * one[key]:.3g} ms" if key in one else one.get("error", "")[:60]


def bandwidth(one: Row) -> str:
    return f", {one['GB/s']:.0f} GB/s" if "GB/s" in one else ""


def over(one: Row | None, ours: float | None, key: str) -> str:
    """A peer's time over ours."""
    if one is None or ours is None or key not in one:
        return "" if one is None else one.get("error", "")[:60]
    return f"{one[key] / ours:.1f}"


def scan_table(folder: Path) -> str:
    ours = {(one["T"], one["name"]): one for one in rows_of(folder, "scan")}
    peers = {(one["by"], one["T"]): one for by in ("jax", "triton") for one in rows_of(folder, by)}
    names = list(dict.fromkeys(by for by, _ in peers))
    head = ["T", "forward", "/ copy", "backward", "/ 1.5 copies"]
    head += [f"{by}, {what} / ours" for by in names for what in ("forward", "with gradient")]
    body = []
    for T in sorted({T for T, _ in (*ours, *((T, "") for _, T in peers))}):
        forward, backward = ours.get((T, "scan forward")), ours.get((T, "scan backward"))
        one = forward["seconds"] if forward else None
        two = one + backward["seconds"] if one and backward else None
        cells = [f"{T:,}", ms(forward), f"{forward['ratio']:.2f}" if forward else ""]
        cells += [ms(backward), f"{backward['ratio']:.2f}" if backward else ""]
        for by in names:
            peer = peers.get((by, T))
            cells += [over(peer, one, "seconds"), over(peer, two, "gradient_seconds")]
        body.append(cells)
    return table(head, body)


def products_table(folder: Path) -> str:
    rows = [*rows_of(folder, "products"), *rows_of(folder, "torch")]
    head = ["", "by", "precision", "time", "TFLOP/s"]
    return table(head, [[r["name"], r["by"], r["precision"], ms(r), f"{r['TFLOP/s']:.1f}"] for r in rows])


def layers_table(folder: Path) -> str:
    """Every layer beside LRU, and blocks beside their products' flops at the fastest rate of a product."""
    rows = [*rows_of(folder, "layers"), *rows_of(folder, "lstm")]
    rates: dict[str, float] = {}
    for one in (*rows_of(folder, "products"), *rows_of(folder, "torch")):
        rates[one["precision"]] = max(rates.get(one["precision"], 0.0), 1e12 * one["TFLOP/s"])
    lru = next((one.get("seconds") for one in rows if one["name"] == "lru"), None)
    body = []
    for one in rows:
        limit = one["flops"] / rates[one["precision"]] if "flops" in one and one["precision"] in rates else None
        beside = f"{one['seconds'] / limit:.1f}" if limit and "seconds" in one else ""
        how = {True: "graph", False: "op by op"}.get(one.get("graph"), "")
        body.append([one["name"], one["by"], one["precision"], ms(one), over(one, lru, "seconds"), beside, how])
    return table(["forward and backward", "by", "precision", "time", "/ LRU", "/ its products alone", ""], body)


def steps_table(folder: Path) -> str:
    head = ["recipe", "precision", "steps/s", "/ Table 4", "ceiling", "of it", "step", "its graph", "memory", "shape"]
    body = []
    for one in rows_of(folder, "steps"):
        name, rate = one["name"], one["steps/s"]
        ceiling = CEILINGS[name][PRECISIONS.index(one["precision"])]
        beside = [f"{rate:.1f}", f"{rate / TABLE_4[name]:.1f}", str(ceiling), f"{rate / ceiling:.0%}"]
        memory, shape = f"{one['gpu_bytes'] / 2**30:.1f} GiB", str(one.get("shape", "op by op"))
        body.append([name, one["precision"], *beside, ms(one), ms(one, "graph_seconds"), memory, shape])
    return table(head, body)


def training_table(folder: Path) -> str:
    """The runs in `runs`, as far as they are."""
    head = ["run", "step", "of", "best on validation", "at step", "test, best", "time"]
    body = []
    for path in sorted((folder / "runs").glob("*/recipe.toml")):
        run = Run(path.parent)
        records, result = run.records(), run.read_json(run.result, {})
        seen = [one for one in records if "val_accuracy" in one]
        best = max(seen, key=lambda one: one["val_accuracy"], default=None)
        step = str(records[-1]["step"]) if records else "0"
        scores = [f"{best['val_accuracy']:.4f}", str(best["step"])] if best else ["", ""]
        test = f"{result['test']['best']['accuracy']:.4f}" if result else ""
        took = duration(sum(one["seconds"] for one in records))
        body.append([path.parent.name, step, str(run.load_recipe().training.steps), *scores, test, took])
    return table(head, body)


def report(folder: Path) -> None:
    """Writes gpu.json, gpu.md and gpu.png from the parts in a folder."""
    subjects = ("machine", "products", "torch", "scan", "jax", "triton", "layers", "lstm", "steps")
    rows = [{"subject": subject, **one} for subject in subjects for one in rows_of(folder, subject)]
    (folder / "gpu.json").write_text(json.dumps(rows, indent=1) + "\n")
    where, *rates = rows_of(folder, "machine") or [{}]
    seen = ", ".join(f"{name} {number}" for name, number in where.get("versions", {}).items() if number)
    text = ["# On a GPU", f"{where.get('gpu')}; commit {where.get('commit')}; {seen}.",
            "Written by `python -m benchmarks.gpu report`; benchmarks/gpu.sh makes the parts."]  # fmt: skip
    text += [f"- {one['name']}: {ms(one)}{bandwidth(one)}" for one in rates]
    for title, made in (
        ("Products of matrices", products_table),
        ("The complex scan, B 32, N 256", scan_table),
        ("Layers and blocks, B 32, T 2048, D 128", layers_table),
        ("Training steps of the LRU's recipes", steps_table),
        ("Training by recipe", training_table),
    ):
        text += [f"\n## {title}\n", made(folder)]
    text += ["\n## The table of cases, and compute-sanitizer\n", *checks(folder)]
    (folder / "gpu.md").write_text("\n".join(text) + "\n")
    try:
        chart(folder)
    except ImportError as missing:
        print(f"no chart: {missing}, pip install 'rotrnn[plot]'", file=sys.stderr)


def chart(folder: Path) -> None:
    """Scans over their copies by length, and steps of the recipes over Table 4's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    ours = rows_of(folder, "scan")
    copies = {one["T"]: one["limit_seconds"] for one in ours if one["name"] == "scan forward"}
    lines = {name: [one for one in ours if one["name"] == name] for name in ("scan forward", "scan backward")}
    lines |= {by: [one for one in rows_of(folder, by) if "seconds" in one] for by in ("jax", "triton")}
    for name, line in lines.items():
        beside = [one for one in line if one["T"] in copies]
        ratios = [one.get("ratio", one["seconds"] / copies[one["T"]]) for one in beside]
        left.plot([one["T"] for one in beside], ratios, "o-", label=name)
    left.axhline(1, color="black", linewidth=0.8)
    left.set(xlabel="T", ylabel="time / copy of the same bytes")
    if copies:
        left.set(xscale="log", yscale="log")
    left.legend(fontsize=8)
    rows = rows_of(folder, "steps")
    for k, precision in enumerate(PRECISIONS):
        mine = [one for one in rows if one["precision"] == precision]
        places = [list(TABLE_4).index(one["name"]) + 0.27 * (k - 1) for one in mine]
        right.bar(places, [one["steps/s"] / TABLE_4[one["name"]] for one in mine], 0.25, label=precision)
    right.set_xticks(range(len(TABLE_4)), list(TABLE_4), fontsize=8)
    right.set_ylabel("steps/s over the LRU paper's (A100)")
    right.axhline(1, color="black", linewidth=0.8)
    right.legend(fontsize=8)
    figure.savefig(folder / "gpu.png", dpi=110)


SUBJECTS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "machine": machine,
    "products": products,
    "torch": torch,
    "scan": scan,
    "jax": jax,
    "triton": triton,
    "layers": layers,
    "lstm": lstm,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=[*SUBJECTS, "steps", "report"])
    parser.add_argument("names", nargs="*", metavar="RECIPE PRECISION | FOLDER")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the benchmark itself")
    args = parser.parse_args()
    if args.subject == "report":
        report(Path(*args.names))
        return
    rows = steps(*args.names, args.quick) if args.subject == "steps" else SUBJECTS[args.subject](args.quick)
    try:
        for one in rows:
            print(json.dumps(one), flush=True)
    except ModuleNotFoundError as error:
        if error.name not in PEERS:
            raise
        print(json.dumps({"name": args.subject, "missing": error.name}))


if __name__ == "__main__":
    main()
