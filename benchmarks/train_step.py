"""Time and memory of a whole training step beside its matrix products alone.

    python -m benchmarks.train_step [--path fused] [--large] [--json] [--quick]
    python -m benchmarks.train_step --beside-peak [--large] [--json] [--quick]

One step is forward, backward and AdamW of the classifier of recipe listops-rotrnn (D 128, N 256, 6 layers) on B 32
sequences of T 2048 random tokens; `--large` is D 512, N 384, B 50, T 1024. Its limit is the twelve products of each
block, four forward and eight backward, run by NumPy on whole matrices. Activations are the process's peak memory during
a step minus its memory after a step of one token, in tensors of (B, T, D); so each path has its own process. Overhead
is that step of one token, which is all calls and no arithmetic.

With `--beside-peak` the limit is the same products at the peak of float32 multiply-adds (benchmarks.peak), measured in
turn with the step, also for steps in bf16. Each precision has a row for each amount of memory (`rotrnn.Context`), and
then rows that account for its time: forward and backward, the products at the rate of the tile's products from cache,
what blocks keep and pass on at the rate of a copy, the rest of these two, which is pointwise; and what is outside the
blocks, above all the optimiser. The unfused path is beside them. It is written to benchmarks/results/train_step.md, or
train_step_large.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import rotrnn
from benchmarks.measure import (
    RESULTS,
    arguments,
    block_products,
    markdown,
    memory,
    origin,
    plain_copy,
    products,
    row,
    seconds_in_turn,
    show,
)
from benchmarks.model import LARGE, LISTOPS, PATHS, QUICK, Size, classifier, training_step
from benchmarks.peak import multiply_adds
from rotrnn.nn.layer import Context
from rotrnn.nn.saved import flatten_saved
from rotrnn.ops.block import KEEPABLE
from rotrnn.ops.dense import dense


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--path", choices=PATHS, default=next(iter(PATHS)))
    parser.add_argument("--large", action="store_true", help="D 512, N 384: minutes")
    parser.add_argument("--beside-peak", action="store_true", help="with what limits it, for each memory and precision")
    args = parser.parse_args()
    size = QUICK if args.quick else LARGE if args.large else LISTOPS
    window = 0.1 if args.quick else 60.0 if args.large else 20.0
    if not args.beside_peak:
        return show(beside_products(size, window, args.path), args.json)
    came_from, rows = origin(), beside_peak(size, window)
    show(rows, args.json)
    if not args.quick:
        (RESULTS / f"train_step{'_large' * args.large}.md").write_text(page(rows, came_from), encoding="utf-8")
    return None


def page(rows: Sequence[dict[str, Any]], came_from: dict[str, Any]) -> str:
    """Rows of `beside_peak` in Markdown: the steps, then the parts of each."""
    size, machine = rows[0], came_from["machine"]
    flops = round(size["GFLOP/s"] * size["seconds"])
    steps, parts = [], []
    for one in rows:
        time = f"{1e3 * one['seconds']:,.0f} ms"
        if "limit" in one:
            name = one["name"].removeprefix("training step in ")
            steps.append((name, time, f"{one['ratio']:.2f}"))
        else:
            parts.append((name, one["name"].strip(), time))
    command = f"python -m benchmarks.train_step --beside-peak{' --large' * (size['D'] == LARGE.D)}"
    shape = f"B {size['B']}, T {size['T']}, D {size['D']}, {size['N']} real lanes, {size['n_layers']} layers"
    where = f"{machine['cpu']}, {size['threads']} threads, {machine['simd']}, commit {came_from['commit']}"
    return f"""# A training step beside the processor's peak, D {size["D"]}

`{command}`: forward, backward and AdamW of a RotRNN classifier ({shape}).
The limit is the twelve products of each block, {flops:,} GFLOP, at the peak of float32 multiply-adds measured in the
same run, whatever the precision of the row. {where}.
The parts of a step are measured one by one, so they do not add up exactly.

{markdown(("step", "time", "time / limit"), steps)}

Where the time goes:

{markdown(("step", "part", "time"), parts)}
"""


def beside_products(size: Size, window: float, path: str) -> list[dict[str, Any]]:
    """Rows of the step beside its products by NumPy."""
    ctx = PATHS[path]
    (overhead_s,) = seconds_in_turn([training_step(size._replace(B=1, T=1), ctx)], window=window / 20)
    step = training_step(size, ctx)
    held, _ = memory()
    step()
    step()
    _, peak = memory()
    multiply, flops = products(size.B * size.T, block_products(size.D, size.N), backward=True)

    def limit() -> None:
        for _ in range(size.n_layers):
            multiply()

    step_s, products_s = seconds_in_turn([step, limit], window=window)
    kind = {"path": path, **size._asdict()}
    return [
        row(
            "training step",
            step_s,
            products_s,
            limit="products alone",
            **{"GFLOP/s": 1e-9 * size.n_layers * flops / step_s},
            peak_bytes=peak,
            activations=(peak - held) / (4 * size.B * size.T * size.D),
            **kind,
        ),
        row("training step of one token", overhead_s, step_s, limit="whole step", **{**kind, "B": 1, "T": 1}),
    ]


MEMORY = {"all": 1 << 40, "least": 0}
"""Bytes that blocks may keep."""


def beside_peak(size: Size, window: float) -> list[dict[str, Any]]:
    """Rows of the step in each precision and memory beside its products at the peak of float32, and their accounts."""
    run, peak_flops = multiply_adds()
    _, flops = products(1, block_products(size.D, size.N), backward=True)
    flops *= size.B * size.T * size.n_layers
    rows = []
    for precision in ("float32", "bf16"):
        with rotrnn.precision(precision):
            contexts = {f"memory {name}": replace(PATHS["fused"], memory=most) for name, most in MEMORY.items()}
            contexts["unfused"] = PATHS["unfused"]
            steps = [training_step(size, ctx) for ctx in contexts.values()]
            *seconds, peak_s = seconds_in_turn([*steps, run], window=window)
            kind: dict[str, Any] = {"limit": "products at the peak of float32", **size._asdict()}
            for (name, ctx), step_s in zip(contexts.items(), seconds, strict=True):
                rate = {"GFLOP/s": 1e-9 * flops / step_s}
                named = f"training step in {precision}, {name}"
                rows.append(row(named, step_s, flops * peak_s / peak_flops, **rate, **kind))
                if ctx.fused:
                    rows += [row(f"  {what}", part) for what, part in account(size, ctx, flops, step_s, window).items()]
    return rows


def account(size: Size, ctx: Context, flops: float, step_s: float, window: float) -> dict[str, float]:
    """Where the seconds of a step go."""
    rng = np.random.default_rng(0)
    stack = classifier(size).stack
    params = stack.init(rng)
    x, dy = rng.standard_normal((2, size.B, size.T, size.D), dtype=np.float32)
    saved = [stack.forward(params, x, ctx)[1]]

    def forward() -> None:
        saved[0] = stack.forward(params, x, ctx)[1]

    (tile_s, copy_s, forward_s, backward_s) = seconds_in_turn(
        [*rates(size), forward, lambda: stack.backward(params, saved[0], dy)], window=window
    )
    kept = sum(one.nbytes for name, one in flatten_saved(saved[0])[0].items() if name.split(".")[-1] in KEEPABLE)
    passed = 3 * size.n_layers * x.nbytes  # x read twice, y written and read; dy read, dx written: three copies
    tiles_s = tile_s * flops / rate_flops(size)
    traffic_s = copy_s * (kept + passed) / x.nbytes
    return {
        "forward of the blocks": forward_s,
        "backward of the blocks": backward_s,
        "of both: twelve products, from cache": tiles_s,
        "of both: what is kept and passed on, at the rate of a copy": traffic_s,
        "of both: pointwise, and products made again": forward_s + backward_s - tiles_s - traffic_s,
        "outside: embedding, head, loss, AdamW": step_s - forward_s - backward_s,
    }


ROWS = 4096


def rate_flops(size: Size) -> float:
    """Floating-point operations of the first function of `rates`."""
    return 2.0 * ROWS * sum(d_in * d_out for d_in, d_out in block_products(size.D, size.N))


def rates(size: Size) -> list[Callable[[], object]]:
    """The products of a block with ROWS rows by the kernels' tile, and a copy of an array (B, T, D)."""
    rng = np.random.default_rng(0)
    pairs = [
        (rng.standard_normal((ROWS, d_in), np.float32), rng.standard_normal((d_out, d_in), np.float32))
        for d_in, d_out in block_products(size.D, size.N)
    ]
    x, y = np.ones((2, size.B * size.T * size.D), np.float32)
    return [lambda: [dense(*pair) for pair in pairs], plain_copy(y, x)]


if __name__ == "__main__":
    main()
