"""Times on a GPU, one JSON object a line, as it comes; benchmarks/gpu.sh calls this, and gpu_report.py writes it up.

    python -m benchmarks.gpu SUBJECT... [--seconds 100] [--recipes listops-lru,...] [--precisions tf32,bf16] [--quick]
    python -m benchmarks.gpu plan RECIPE SECONDS FILE     what precision and how many steps a training has time for

Subjects: limits, scan, steps, profile, layers, and of peers torch, jax, triton, lstm, each in its own process. Times
are times of the GPU: calls are queued until they take 20 ms, and the least mean of several such rounds counts. Our
calls are recorded as CUDA graphs, so that Python does not count; `steps` also has the wall time of whole training
steps.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rotrnn
from benchmarks.layers import settings_of
from benchmarks.measure import block_products, origin, version
from rotrnn.devices import cuda
from rotrnn.devices.precisions import PRECISIONS
from rotrnn.devices.recording import NotRecordable
from rotrnn.models.build import ModelSettings, build_model, make_layer
from rotrnn.nn.layer import Context, moved
from rotrnn.nn.registry import LAYERS
from rotrnn.ops.dense import dense
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward
from rotrnn.training.estimate import trial
from rotrnn.training.log import timed
from rotrnn.training.recipe import load_recipe

Row = dict[str, Any]
Rows = Iterator[Row]
Part = tuple[str, str, Callable[[], Rows]]
"""A subject, the name of a part of it, and the generator of its rows."""

CEILINGS = {
    "listops-lru": (107, 182, 363),
    "pathfinder-lru": (51, 104, 208),
    "scifar-lru": (21, 80, 160),
    "text-lru": (29, 68, 137),
    "pathx-lru": (10, 16, 32),
    "retrieval-lru": (14, 23, 47),
}
"""Steps per second in float32, TF32 and bfloat16 if each kernel, op by op, took the longer of its flops at 60, 400 or
790 TFLOP/s and its bytes at 3 TB/s: an H100."""

RECIPES = ("listops-lru", "listops-rotrnn", *list(CEILINGS)[1:])

QUICK = ["task.name=listops", "task.train=64", "task.val=8", "task.test=8", "task.max_length=24", "task.min_length=5",
         "task.max_depth=3", "model.d_model=8", "model.n_layers=1", "layer.d_state=4", "training.batch=4"]  # fmt: skip
"""Settings that make a recipe small, to try the benchmark itself."""

PEERS = ("jax", "torch", "triton")
"""Packages that subjects need, which may be missing."""

MOST_DRAWN = 1 << 27
"""Numbers that are drawn for an array."""

LEAST_SECONDS = 5
"""Seconds: with less time left no part is begun."""


# ---- rows, in a given time ----


def told(subject: str, rows: Rows) -> None:
    """Prints rows as they come."""
    for one in rows:
        print(json.dumps({"subject": subject, **one}), flush=True)


def box(seconds: float, parts: Sequence[Part]) -> None:
    """Prints the rows of parts as long as there is time; one that fails has a row with its error."""
    began = time.monotonic()
    for subject, name, rows in parts:
        if time.monotonic() - began > seconds - LEAST_SECONDS:
            told(subject, iter([{"name": name, "error": "no time was left", "skipped": True}]))
            continue
        try:
            told(subject, rows())
        except ModuleNotFoundError as error:
            if error.name not in PEERS:
                raise
            told(subject, iter([{"name": name, "error": f"{error.name} is not installed", "skipped": True}]))
        except Exception as error:  # the others are run all the same
            told(subject, iter([{"name": name, "error": f"{type(error).__name__}: {error}"[:300]}]))
        free()


def free() -> None:
    """Returns unused memory to the GPU."""
    gc.collect()
    with contextlib.suppress(ImportError):
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()


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
    """Normal numbers, float32 or complex64; a large array repeats the numbers of its first index, to save time."""
    drawn = shape if np.prod(shape) <= MOST_DRAWN else shape[1:]
    numbers = rng.standard_normal((*drawn, np.dtype(dtype).itemsize // 4), dtype=np.float32)
    made = cuda.device().empty(shape, np.dtype(dtype))
    made[...] = cuda.device().asarray(numbers.view(dtype)[..., 0])
    return made


def copied(y: Any, x: Any) -> Any:
    """y = x by CUDA's memory copy, the ceiling for moving bytes: CuPy's own `y[...] = x` is slower."""
    y.data.copy_from_device_async(x.data, x.nbytes, cuda_stream())
    return y


def cuda_stream() -> Any:
    import cupy

    return cupy.cuda.get_current_stream()


# ---- subjects ----


def limits(quick: bool) -> Rows:
    """The GPU and versions, and the limits of everything else: copies, launches, products of matrices."""
    found = origin() | {"command": "benchmarks/gpu.sh"}
    found["versions"] |= {name: version(name) for name in ("cupy-cuda13x", "triton", "nvidia-cublas")}
    for tool, arguments in (("nvcc", ["--version"]), ("nvidia-smi", ["--query-gpu=driver_version", "--format=csv"])):
        if path := shutil.which(tool):
            said = subprocess.run([path, *arguments], capture_output=True, text=True).stdout
            found["versions"][tool] = said.split("release ")[-1].split(",")[0].split()[-1]
    yield {"name": "origin", "gpu": cuda.describe(), **found}
    device, window = cuda.device(), 0.02 if quick else 0.2
    for mebibytes in (1 / 64,) if quick else (128, 1024):
        x, y = (device.empty((int(mebibytes * 2**18),), np.dtype(np.float32)) for _ in range(2))
        x[...] = 1.0
        for name, work in {
            "memcpy": functools.partial(copied, y, x),
            "copy by our kernel": lambda x=x, y=y: device.kernels.copy(y=y, x=x, n=x.size) or y,
        }.items():
            found_s = recorded_seconds(work, window)
            yield {"name": f"{name}, {mebibytes} MiB", "seconds": found_s, "GB/s": 2e-9 * x.nbytes / found_s}
    small, nodes = device.asarray(np.zeros((2, 256), np.float32)), 10 if quick else 500
    for name, launch in {
        "a launch": lambda: device.kernels.copy(y=small[1], x=small[0], n=256),
        "a launch of CuPy": lambda: np.add(small[0], small[1]),
    }.items():
        work_s = recorded_seconds(lambda launch=launch: [launch() for _ in range(nodes)] and small, window)
        yield {"name": f"{name}, of {nodes} in a graph", "seconds": work_s / nodes}
    rng = np.random.default_rng(0)
    for shape in shapes(quick):
        M, n, k = shape
        a, w = on_gpu(rng, M, k), on_gpu(rng, n, k)
        for precision in PRECISIONS:
            with rotrnn.precision(precision):
                found_s = recorded_seconds(lambda a=a, w=w: dense(a, w), window)
            yield product_row("rotrnn", precision, shape, found_s)


def shapes(quick: bool) -> list[tuple[int, int, int]]:
    """Rows, outputs and inputs of the products that are timed: a square one, and two of a layer."""
    return [(64, 32, 32)] if quick else [(8192, 8192, 8192), (65536, 512, 128), (65536, 128, 512)]


def product_row(by: str, precision: str, shape: tuple[int, int, int], found: float) -> Row:
    M, n, k = shape
    name = f"product ({M}, {k}) x ({k}, {n})"
    return {"name": name, "by": by, "precision": precision, "seconds": found, "TFLOP/s": 2e-12 * M * n * k / found}


def torch(quick: bool) -> Rows:
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
    """B, T and N complex lanes of the scans of ListOps, Text, Pathfinder and Path-X, and of one with more lanes."""
    if quick:
        return [(2, 64, 32)]
    return [(32, 2048, 256), (32, 4096, 192), (64, 1024, 256), (32, 16384, 256), (128, 4096, 256)]


def moduli(N: int) -> Any:
    """Transitions that remember up to a thousand steps."""
    rng = np.random.default_rng(1)
    return (rng.uniform(0.9, 0.999, N) * np.exp(1j * rng.uniform(0, np.pi, N))).astype(np.complex64)


def scan(B: int, T: int, N: int, quick: bool) -> Rows:
    """The complex scan beside a copy of the same arrays: forward reads x and writes h; backward reads dh and h, writes
    dx, and is beside 3/2 copies."""
    device, window, rng = cuda.device(), 0.02 if quick else 0.15, np.random.default_rng(0)
    a = device.asarray(moduli(N))
    x, dh = (on_gpu(rng, B, T, N, dtype=np.complex64) for _ in range(2))
    h, dx = (device.empty((B, T, N), np.dtype(np.complex64)) for _ in range(2))
    copy_s = recorded_seconds(functools.partial(copied, dx, x), window)
    works = {
        "forward": (2, functools.partial(diagonal_scan, a, x, out=h)),
        "backward": (3, lambda: diagonal_scan_backward(dh, a, h, out=dx).dx),
    }
    for way, (passes, work) in works.items():
        found, limit = recorded_seconds(work, window), copy_s * passes / 2
        rate = 1e-9 * passes * x.nbytes / found
        yield {"name": f"scan {way}", "by": "rotrnn", "seconds": found, "limit_seconds": limit, "GB/s": rate,
               "ratio": found / limit, "B": B, "T": T, "N": N}  # fmt: skip


def scan_rows(by: str, quick: bool, make: Callable[[Any, Any, Any], Row]) -> Rows:
    """Rows of a peer whose `make(a, x, dh)` times it; first its states of a small problem are compared with ours."""
    for B, T, N in sizes(quick):
        rng = np.random.default_rng(0)
        x, dh = (np.repeat(rng.standard_normal((1, T, 2 * N), np.float32), B, 0).view(np.complex64) for _ in range(2))
        try:
            yield {"name": "scan", "by": by, "B": B, "T": T, "N": N, **make(moduli(N), x, dh)}
        except Exception as error:  # out of memory, say
            yield {"name": "scan", "by": by, "B": B, "T": T, "N": N, "error": f"{type(error).__name__}: {error}"[:300]}


def check(found: Any, a: Any, x: Any) -> None:
    """Raises ValueError if states differ from our scan on the CPU."""
    expected = diagonal_scan(a, x)
    difference = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    if not difference < 1e-4:
        raise ValueError(f"its states differ by {difference:.1e}: its time does not count")


def jax(quick: bool) -> Rows:
    """The scan as in the papers' code, by JAX's associative_scan; the gradient runs forward again."""
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


def triton(quick: bool) -> Rows:
    """The scan by a Triton kernel, which has a gradient for x alone."""
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


def layers(quick: bool) -> Rows:
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


def lstm(quick: bool) -> Rows:
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


def advanced(trainer: Any, state: Any, count: int) -> tuple[list[Row], list[float]]:
    """Takes steps. Returns their records and how long each call took."""
    records, times = [], []
    for _ in range(count):
        more, took = timed(lambda: trainer.stepper.advance(state))
        records += more
        times.append(took)
    return [*records, *trainer.stepper.settle(state)], times


def longest(trainer: Any) -> tuple[Any, Any]:
    """The recorded step of the most numbers, and its shape; None where no step was recorded."""
    recorded = trainer.stepper.recorder.steps if trainer.stepper.recorder else {}
    key = max(recorded, key=lambda key: np.prod(key[0]), default=None)
    return (None, None) if key is None else (recorded[key].graph, list(key[0]))


def steps(name: str, precision: str, quick: bool) -> Rows:
    """Training steps of a recipe on stand-in data: the wall time of a step, its graph's alone, and the losses of the
    first two steps, by graphs and operation by operation."""
    import cupy

    recipe = load_recipe(name, [*(QUICK if quick else []), f"training.precision={precision}"])
    with trial(recipe, 8 if quick else 2 * recipe.training.batch, "cuda") as (trainer, state):
        recorded, own = trainer.stepper, trainer.stepper.recorder.work.vectors.params
        before = own.copy(), {key: value.copy() for key, value in state.moments.items()}
        trainer.stepper = dataclasses.replace(recorded, recorder=None)
        plain, _ = advanced(trainer, state, 2)
        state.step, trainer.stepper, own[...] = 0, recorded, before[0]
        for key, value in before[1].items():
            state.moments[key][...] = value
        records, times = advanced(trainer, state, 4 if quick else 24)
        wall = statistics.median(times[len(times) // 2 :])
        free_bytes, total = cupy.cuda.runtime.memGetInfo()
        one: Row = {"name": name, "precision": precision, "graphs": len(recorded.recorder.steps), "seconds": wall}
        one |= {"steps/s": 1 / wall, "gpu_bytes": total - free_bytes}
        if name in CEILINGS and not quick:
            one["of_ceiling"] = 1 / wall / CEILINGS[name][PRECISIONS.index(precision)]
        graph, shape = longest(trainer)
        if graph is not None:
            one |= {"graph_seconds": graph_seconds(graph, 0.02 if quick else 0.2), "shape": shape}
        one |= {"losses": [record["loss"] for record in records[:2]], "plain": [record["loss"] for record in plain]}
        yield one


def profile(name: str, precision: str, quick: bool) -> Rows:
    """The kernels that take most of a recorded step, by CUPTI through PyTorch's profiler."""
    import torch

    recipe, launches = load_recipe(name, [*(QUICK if quick else []), f"training.precision={precision}"]), 3
    with trial(recipe, 8 if quick else 2 * recipe.training.batch, "cuda") as (trainer, state):
        advanced(trainer, state, 3)
        graph, _ = longest(trainer)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            for _ in range(launches):
                graph.launch()
            graph.stream.synchronize()
    total: dict[str, tuple[float, int]] = {}
    for event in seen.events():
        kernel = event.name.removeprefix("void ").split("(")[0].replace("<", " ").split()
        key = kernel[0] if kernel else event.name[:40]
        taken, count = total.get(key, (0.0, 0))
        total[key] = taken + 1e-6 * event.device_time, count + 1
    every = sum(taken for taken, _ in total.values())
    for key, (taken, count) in sorted(total.items(), key=lambda item: -item[1][0])[:12]:
        yield {"name": name, "precision": precision, "kernel": key, "share": taken / every,
               "seconds": taken / launches, "launches": count / launches}  # fmt: skip


SUBJECTS: dict[str, Callable[[bool], Rows]] = {
    "limits": limits,
    "layers": layers,
    "torch": torch,
    "jax": jax,
    "triton": triton,
    "lstm": lstm,
}
OF_RECIPES: dict[str, Callable[[str, str, bool], Rows]] = {"steps": steps, "profile": profile}


def parts_of(subject: str, recipes: Sequence[str], precisions: Sequence[str], quick: bool) -> list[Part]:
    """The parts of a subject, each of which may fail without the others."""
    if subject == "scan":
        return [(subject, str(size), functools.partial(scan, *size, quick)) for size in sizes(quick)]
    if subject in OF_RECIPES:
        return [
            (subject, f"{name} {precision}", functools.partial(OF_RECIPES[subject], name, precision, quick))
            for precision in precisions
            for name in recipes
        ]
    return [(subject, subject, functools.partial(SUBJECTS[subject], quick))]


def plan(name: str, seconds: float, path: Path) -> str:
    """The precision and the number of steps of a training by a recipe that ends within some seconds, by the steps per
    second in a file of rows: TF32 if the whole recipe does, or else the faster one, with its steps cut."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rates = {one["precision"]: one["steps/s"] for one in rows if one["name"] == name and "steps/s" in one}
    whole, share, start = load_recipe(name).training.steps, 0.87, 25  # of the time for steps; to load and to compile
    can = {precision: int(share * rate * (seconds - start)) for precision, rate in rates.items()}
    if not can:
        raise SystemExit(f"{path} has no steps of {name}")
    best = "tf32" if can.get("tf32", 0) >= whole else max(can, key=lambda precision: can[precision])
    return f"{best} {max(1, min(whole, can[best]))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="+", metavar="SUBJECT | plan RECIPE SECONDS FILE")
    parser.add_argument("--seconds", type=float, default=100.0, help="in which no part is begun in the last (100)")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="of steps and profile")
    parser.add_argument("--precisions", default="tf32,bf16", help="of steps and profile")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the benchmark itself")
    args = parser.parse_args()
    if args.subjects[0] == "plan":
        _, name, seconds_left, path = args.subjects
        print(plan(name, float(seconds_left), Path(path)))
        return
    known = {"scan", *OF_RECIPES, *SUBJECTS}
    if unknown := set(args.subjects) - known:
        parser.error(f"SUBJECT is {unknown.pop()}, expected some of {', '.join(sorted(known))}")
    split = args.recipes.split(","), args.precisions.split(",")
    box(args.seconds, [one for subject in args.subjects for one in parts_of(subject, *split, args.quick)])


if __name__ == "__main__":
    main()
