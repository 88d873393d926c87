"""Whether the CUDA kernels are right on a GPU, in a given time; one JSON object a line, as it comes.

    python -m benchmarks.gpu_checks table SECONDS [WORKERS]     the table of cases, beside the CPU
    python -m benchmarks.gpu_checks grads SECONDS [--quick]     gradients of recipes, beside float64

Once a kernel has left its memory, CUDA fails in every later call of its process. So rows of the table run in processes
that are replaced when one hangs, dies, or its GPU has failed. RUN is what runs a module in place of this Python.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shlex
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import rotrnn
from benchmarks.gpu import QUICK, RECIPES, Row, Rows, box, told
from benchmarks.gpu_report import bad
from rotrnn.devices import cuda
from rotrnn.devices.device import HOST, Device, to_host
from rotrnn.devices.precisions import PRECISIONS
from rotrnn.nn.layer import Context, Params, flatten, moved, unflatten
from rotrnn.training.estimate import trial
from rotrnn.training.recipe import load_recipe

if TYPE_CHECKING:
    from cases.table import Arrays, Case

KINDS = ("f32", "f64")
ROW_SECONDS = float(os.environ.get("ROW_SECONDS", "30"))
"""Seconds after which a row counts as hanging."""

START_SECONDS = 90
FACTOR = 4
"""How many times as large an error against float64 gradients on a GPU may have as gradients on the CPU in the same
precision, the largest of each: both round the same operands, and add in another order."""


# ---- a row of the table of cases ----


def narrow(x: Any) -> Any:
    return x.astype(np.complex64 if np.iscomplexobj(x) else np.float32)


def on_gpu(case: Case, args: Arrays, cotangents: Sequence[Any]) -> list[Any]:
    """Outputs and gradients of a case on the GPU, as arrays of the host."""
    device = cuda.device()
    there = {name: device.asarray(value) for name, value in args.items()}
    outputs = case.forward(there)
    grads = case.backward(there, outputs, tuple(map(device.asarray, cotangents)))
    found = [*outputs, *grads.values()]
    assert all(type(one) is device.array_type for one in found)
    return [to_host(one) for one in found]


def apart(found: list[Any], expected: list[Any], tolerance: float) -> float:
    """The largest error over the tolerance of an array, infinite where shapes or NaNs differ."""
    worst = 0.0
    for got, want in zip(found, expected, strict=True):
        if got.shape != want.shape or not np.array_equal(np.isnan(got), np.isnan(want)):
            return float("inf")
        scale = max(1.0, float(np.max(np.abs(want), initial=0.0)))
        errors = np.where(np.isnan(want) | (got == want), 0.0, np.abs(got - want))
        worst = max(worst, float(np.max(errors, initial=0.0) / (tolerance * scale)))
    return worst


def check_row(case: Case, kind: str) -> Row:
    """Runs a row of the table on the GPU. `ratio` is its error over the tolerance: in float64 beside the CPU, twice,
    and `same` says whether the bits are; in float32 beside float64 on the CPU, of the same rounded arguments."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    args = wide = case.make(rng)
    one: Row = {"name": case.name, "kind": kind}
    if kind == "f32":
        args = {name: narrow(value) for name, value in args.items()}
        wide = {name: value.astype(np.result_type(value, np.float64)) for name, value in args.items()}
    outputs = case.forward(wide)
    draws = [rng.standard_normal(out.shape) for out in outputs]
    draws = draws if kind == "f64" else [narrow(one) for one in draws]
    cotangents = tuple(draw.astype(out.dtype) for draw, out in zip(draws, outputs, strict=True))
    expected = [*outputs, *case.backward(wide, outputs, cotangents).values()]
    if kind == "f64":
        found = on_gpu(case, args, cotangents)
        again = on_gpu(case, args, cotangents)
        one["same"] = all(a.tobytes() == b.tobytes() for a, b in zip(found, again, strict=True))
        return one | {"ratio": apart(found, expected, 8 * case.terms * np.finfo(np.float64).eps)}
    there = tuple(draw if i in case.double else narrow(draw) for i, draw in enumerate(cotangents))
    return one | {"ratio": apart(on_gpu(case, args, there), expected, 4 * case.terms * np.finfo(np.float32).eps)}


# ---- the table, in processes ----


def firsts_first(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """A row of each function, and the others."""
    firsts = {case.name.split()[0]: case for case in reversed(cases)}
    names = {case.name for case in firsts.values()}
    return [case for case in cases if case.name in names], [case for case in cases if case.name not in names]


def serve() -> None:
    """Runs the rows whose names and kinds come by standard input, until the GPU has failed."""
    from cases import ON_DEVICES

    reply = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    wait = waiting(cuda.device())
    print(json.dumps({"ready": True}), file=reply)
    by_name = {case.name: case for case in ON_DEVICES}
    for line in sys.stdin:
        name, kind = json.loads(line)
        began = time.perf_counter()
        try:
            one = check_row(by_name[name], kind)
        except Exception as error:
            one = {"name": name, "kind": kind, "error": f"{type(error).__name__}: {error}"[:400]}
        try:
            wait()
        except Exception as error:
            one |= {"error": one.get("error", str(error)[:400]), "failed": True}
        print(json.dumps(one | {"seconds": round(time.perf_counter() - began, 3)}), file=reply)
        if "failed" in one:
            os._exit(3)


def waiting(device: Device) -> Any:
    """Waits for the GPU, and reports whether it has failed."""
    one = device.asarray(np.zeros(1))
    return lambda: to_host(one)


class Worker:
    """A process that runs rows, one at a time."""

    def __init__(self) -> None:
        command = [*shlex.split(os.environ.get("RUN", sys.executable)), "-m", "benchmarks.gpu_checks", "serve"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        for line in self.process.stdout or ():
            self.lines.put(line)
        self.lines.put(None)

    def answer(self, seconds: float) -> Row:
        """Its next line, or its error."""
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            return {"error": f"hangs after {seconds:.0f} s", "failed": True}
        if line is None:
            return {"error": f"the process died: exit code {self.process.wait()}", "failed": True}
        answer: Row = json.loads(line)
        return answer

    def ask(self, name: str, kind: str) -> Row:
        assert self.process.stdin is not None
        try:
            print(json.dumps([name, kind]), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return {"error": "the process died", "failed": True}
        return self.answer(ROW_SECONDS)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def table(seconds: float, workers: int) -> Rows:
    """Every row of the table in both kinds, by several processes; a row of each function first."""
    from cases import ON_DEVICES

    first, others = firsts_first(ON_DEVICES)
    left: queue.Queue[tuple[str, str]] = queue.Queue()
    for case in (*first, *others):
        for kind in KINDS:
            left.put((case.name, kind))
    total, deadline = left.qsize(), time.monotonic() + seconds
    done: queue.Queue[Row | None] = queue.Queue()

    def work() -> None:
        worker = None
        while time.monotonic() < deadline:
            try:
                name, kind = left.get_nowait()
            except queue.Empty:
                break
            if worker is None:
                worker = Worker()
                ready = worker.answer(START_SECONDS)
                if "error" in ready:
                    done.put({"name": name, "kind": kind, **ready})
                    break
            found = {"name": name, "kind": kind, **worker.ask(name, kind)}
            done.put(found)
            if "failed" in found:
                worker.end()
                worker = None
        if worker is not None:
            worker.end()
        done.put(None)

    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    ran = faults = 0
    ended = 0
    while ended < workers:
        row = done.get()
        if row is None:
            ended += 1
            continue
        ran, faults = ran + 1, faults + bad(row)
        yield row
    print(f"table: {ran} of {total} rows, {faults} bad", file=sys.stderr)


# ---- gradients of recipes ----


def gradients(model: Any, params: Params, batch: tuple[Any, Any, Any], device: Device, seed: int) -> tuple[float, Any]:
    """Loss and gradients of a batch, on a device."""
    inputs, labels, lengths = batch
    ctx = Context(lengths, train=True, seed=seed, step=0, places=np.arange(len(labels)))
    logits, saved = model.forward(params, device.asarray(inputs), ctx)
    found = model.loss(logits, device.asarray(labels), lengths)
    grads = flatten(model.backward(params, saved, found.dlogits))
    return float(found.mean), {name: to_host(one) for name, one in grads}


def errors(found: Any, exact: Any) -> tuple[str, float]:
    """The gradient that is furthest from float64, and how far, relative to its norm."""
    sizes = {name: np.linalg.norm(one) + 1e-12 for name, one in exact.items()}
    each = {name: float(np.linalg.norm(found[name] - one) / sizes[name]) for name, one in exact.items()}
    worst = max(each, key=lambda name: np.nan_to_num(each[name], nan=np.inf))
    return worst, each[worst]


def widened(x: Any) -> Any:
    return x.astype(np.float64) if x.dtype == np.float32 else x


def grads(name: str, quick: bool, rows: int = 2) -> Rows:
    """Loss and gradients of a recipe at full width and length, for a few sequences, in each precision,
    on the GPU and on the CPU, beside float64."""
    recipe = load_recipe(name, QUICK if quick else [])
    with trial(recipe, 64, "cpu") as (trainer, state):
        one = trainer.loader.parts(0)[0].batch
        inputs, labels = np.asarray(one.inputs)[:rows], np.asarray(one.labels)[:rows]
        batch = inputs, labels, None if one.lengths is None else np.asarray(one.lengths)[:rows]
        model, seed = trainer.model, trainer.training.seed
        wide = unflatten({key: widened(value) for key, value in flatten(state.params)})
        loss, exact = gradients(model, wide, (widened(inputs), *batch[1:]), HOST, seed)
        there = moved(state.params, cuda.device())
        for precision in PRECISIONS:
            with rotrnn.precision(precision):
                own_loss, own = gradients(model, there, batch, cuda.device(), seed)
                cpu_loss, cpu = gradients(model, state.params, batch, HOST, seed)
            worst, error = errors(own, exact)
            cpu_worst, cpu_error = errors(cpu, exact)
            yield {
                **{"name": name, "precision": precision, "shape": list(inputs.shape), "loss": loss},
                **{"gpu_loss": own_loss, "cpu_loss": cpu_loss, "worst": worst, "error": error},
                **{"cpu_worst": cpu_worst, "cpu_error": cpu_error, "bad": not error <= FACTOR * cpu_error},
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=("table", "grads", "serve"))
    parser.add_argument("seconds", nargs="?", type=float, default=100.0)
    parser.add_argument("workers", nargs="?", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="small models, to try this itself")
    args = parser.parse_args()
    if args.subject == "serve":
        serve()
    elif args.subject == "table":
        told("table", table(args.seconds, args.workers))
    else:
        names = RECIPES[:1] if args.quick else RECIPES
        box(args.seconds, [("grads", name, lambda name=name: grads(name, args.quick)) for name in names])


if __name__ == "__main__":
    main()
