"""What the engine's kernels (cuda/engine.h) move, multiply and issue, beside the kernels that they replace.

    python tests/cuda/count_engine.py     # each recipe of the LRU paper's Table 4; with nvcc and cuobjdump also issues

Of one layer's products and scans, forward and backward, in nanoseconds for a row (a step of a sequence) on an H100. The
lean form (cuda/block.cu) is a kernel after another: each takes what binds it, flops at the library's rate or bytes. An
engine's kernel takes what binds it most of

  bytes   of memory
  L2      of the matrices, which each block reads again for each tile
  mma     at 0.6 of the library's rate, as mma.sync reaches of what wgmma does
  issue   of all instructions of the compiled kernel, one a clock for each of a processor's four schedulers
  shared  of loads from shared memory, 128 bytes a clock, and of shuffles, one a clock

The sums of the engine's adjoint are counted. The gradients of both matrices are the library's products in both forms:
they are in the ratio of a layer, not in that of what is replaced. Rows of padding are skipped by the engine, and by
scans of the lean form, but counted in both.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from h100 import BANDWIDTH, CLOCK, L2_BANDWIDTH, MMA_SHARE, PROCESSORS, RATES, STEPS, Sizes, sizes  # noqa: E402

TRAFFIC = ROOT / "benchmarks/results/cuda_traffic.json"
PRECISIONS = ("tf32", "bf16")
TILE, SLICE, WARP_ROWS, CHANNELS, BLOCKS = 128, 32, 32, 128, 256  # as engine.h has them
SIZE = {"tf32": 4.0, "bf16": 2.0}  # bytes of an operand that is kept

SOURCE = """#include "engine.h"
template <class Kind> static void passes() {
    typedef typename Kind::stored S;
    const engine_call<S, S> e = {};
    const quad<Kind> *const none = NULL;
    launch(run_engine<Kind, 128, ENGINE_ENDS, S>, 1, ENGINE_THREADS, 0, e, none, none);
    launch(run_engine<Kind, 128, ENGINE_STATES, S>, 1, ENGINE_THREADS, 0, e, none, none);
    launch(run_engine<Kind, 128, ENGINE_ADJOINT, S>, 1, ENGINE_THREADS, 0, e, none, none);
}
void all() { passes<engine_tf32>(), passes<engine_bf16>(); }
"""
PASSES = ("ends", "states", "adjoint")
FUNCTION = re.compile(r"run_engineI11engine_(\w{4})Li128EL11engine_pass(\d)E")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,5})\*/\s+(?:@!?U?P\w+\s+)?(.*?);")


class Issues(NamedTuple):
    """Instructions of a warp: of a slice of 32 lanes, and of a tile besides."""

    slice: Counter[str]
    tile: Counter[str]


def counted(body: list[tuple[int, str]], low: int, high: int) -> Counter[str]:
    names = [line.split()[0].split(".") for at, line in body if low <= at <= high]
    return Counter(".".join(part for part in name if part in (name[0], "128", "64")) for name in names)


def issues(text: str, steps: int) -> Issues:
    """Reads a kernel's assembly: the loops of tiles, of slices in it (two barriers), and of x and of the first product
    in these, whose bodies have two of `steps` steps twice; loops over warps are counted once."""
    body = [(int(at, 16), line) for at, line in INSTRUCTION.findall(text)]
    jumps = [(int(line.split()[-1], 16), at) for at, line in body if re.match(r"BRA\S* (\S+, )*0x", line)]
    loops = sorted({loop for loop in jumps if loop[0] < loop[1]}, key=lambda loop: loop[1] - loop[0])
    inside = {loop: counted(body, *loop) for loop in loops}
    slice_ = next(loop for loop in loops if inside[loop]["BAR"] == 2)
    tile = next(loop for loop in loops if loop[0] < slice_[0] and loop[1] >= slice_[1] and loop != slice_)
    product = next(loop for loop in loops if inside[loop]["HMMA"])
    rows = next(loop for loop in loops if tile[0] < loop[0] and loop[1] < slice_[0] and inside[loop]["STS"])
    one = Counter(inside[slice_])
    for name, count in inside[product].items():
        one[name] += count * (steps // 4 - 1)
    rest = Counter(inside[tile])
    rest.subtract(inside[slice_])
    for name, count in inside[rows].items():
        rest[name] += count * 7
    return Issues(one, rest)


def compiled() -> dict[tuple[str, str], Issues]:
    """Issues by precision and pass, or nothing without the tools."""
    tools = [shutil.which(name) for name in ("nvcc", "cuobjdump")]
    if None in tools:
        return {}
    nvcc, dump = tools
    with tempfile.TemporaryDirectory() as folder:
        runpy.run_path(str(ROOT / "csrc/generate.py"))["generate"](Path(folder))
        path, made = Path(folder, "count.cu"), Path(folder, "count.o")
        path.write_text(SOURCE)
        places = [f"-I{one}" for one in (ROOT / "csrc/include", ROOT / "csrc/kernels", ROOT / "cuda", folder)]
        flags = ["-std=c++17", "-O3", "--extended-lambda", "-gencode=arch=compute_90,code=sm_90"]
        macros = ["-DROT_CUDA", "-DROT_DTYPE=f32", "-DROT_ISA=cuda"]
        subprocess.run([nvcc, *flags, *macros, *places, "-c", str(path), "-o", str(made)], check=True)
        text = subprocess.run([dump, "--dump-sass", str(made)], check=True, capture_output=True, text=True).stdout
    found = {}
    for part in text.split("Function : ")[1:]:
        name = FUNCTION.search(part)
        if name:
            steps = CHANNELS // (8 if name[1] == "tf32" else 16)
            found[name[1], PASSES[int(name[2])]] = issues(part, steps)
    return found


class Bound(NamedTuple):
    """Nanoseconds of a row, by what takes them."""

    bytes: float
    L2: float = 0.0
    mma: float = 0.0
    issue: float = 0.0
    shared: float = 0.0


def lean(r: Sizes, precision: str) -> float:
    """The kernels that the engine replaces: arrays of 4 bytes, or of 2 if they are an operand of a product."""
    d, l = 4.0 * r.D, 8.0 * r.N  # noqa: E741
    x, h = SIZE[precision] * r.D, SIZE[precision] * 2 * r.N
    product = 4.0 * r.D * r.N / RATES[precision]
    moved = [(product, x + l)]  # v
    moved += [(0, l + h), (product, h + d)] * r.K  # states, out
    moved += [(product, x + l)] * r.K  # dh
    moved += [(0, l + 2 * h)] if r.K == 1 else [(0, 2 * l + h), (0, 2 * l + 2 * h)]  # g, of two directions first in 4
    moved += [(product, h + d)]  # r
    return 1e9 * sum(max(flops, size / BANDWIDTH) for flops, size in moved)


def gradients(r: Sizes, precision: str) -> float:
    """Those of W_out, of each direction, and W_in"""
    flops, size = 4.0 * r.D * r.N / RATES[precision], SIZE[precision] * (r.D + 2 * r.N)
    return 1e9 * (r.K + 1) * max(flops, size / BANDWIDTH)


def engine(r: Sizes, precision: str, found: dict[tuple[str, str], Issues]) -> dict[str, Bound]:
    """The engine's kernels, of all directions. All segments but the last of a sequence have a first pass."""
    d, l = 4.0 * r.D, 8.0 * r.N  # noqa: E741
    x, h, matrix = SIZE[precision] * r.D, SIZE[precision] * 2 * r.N, SIZE[precision] * CHANNELS * 2 * r.N / TILE
    segments = min(-(-r.T // TILE), -(-BLOCKS // r.B))
    first = 2 * (segments - 1) / segments  # forward and backward
    product = 4.0 * CHANNELS * r.N / (MMA_SHARE * RATES[precision])
    sums = 2 * l * segments * 4 / r.T
    K, other = r.K, 2 * l * (r.K - 1)  # g of the first direction is written and read; only the second one makes r
    moved = {  # how often the kernel runs, bytes, bytes of matrices, flops
        "ends": (first * K, first * K * x, first * K * matrix, first * K * product),
        "states": (K, K * (x + h + d), K * 2 * matrix, K * 2 * product),
        "adjoint": (K, K * (x + h + 2 * sums) + other + h + d, (K + 1) * matrix, (K + 1) * product),
    }
    bounds = {}
    for name, (times, size, again, flops) in moved.items():
        issue = shared = 0.0
        if (precision, name) in found:
            one = found[precision, name]
            slices = -(-2 * r.N // SLICE)
            count = Counter({key: one.tile[key] + slices * one.slice[key] for key in {*one.tile, *one.slice}})
            clocks = WARP_ROWS * PROCESSORS * CLOCK  # of a warp's rows
            issue = times * sum(count.values()) / 4 / clocks
            loads = {"LDS.128": 4, "LDS.64": 2, "LDS": 1, "SHFL": 1, "STS": 1, "STS.64": 2}
            shared = times * sum(weight * count[key] for key, weight in loads.items()) / clocks
        bounds[name] = Bound(*(1e9 * part for part in (size / BANDWIDTH, again / L2_BANDWIDTH, flops, issue, shared)))
    return bounds


def block(name: str, precision: str) -> float:
    """A whole block in the lean form, as it was counted in the harness (tests/traffic_table.py)."""
    for row in json.loads(TRAFFIC.read_text())["rows"]:
        if (row["recipe"], row["precision"], row["lengths"]) == (name, precision, "whole"):
            of_blocks = [one for one in row["counted"] if one["entry"] in ("block_forward", "block_backward")]
            return 1e6 * sum(float(one["ms"]) for one in of_blocks) / row["blocks"] / row["rows"]
    raise ValueError(f"{TRAFFIC}: has no row of {name} in {precision}; run make traffic")


def main() -> None:
    found = compiled()
    for (precision, name), one in found.items():
        here, tile = sum(one.slice.values()), sum(one.tile.values())
        print(
            f"{precision} {name:8} a slice: {here} instructions, {one.slice['HMMA']} mma; a tile: {tile} instructions"
        )
    if not found:
        print("without nvcc and cuobjdump: no count of instructions")
    print(f"\n{'ns a row':12}{'':6}{'lean':>7}{'engine':>8}{'ratio':>7}{'layer':>7}{'block':>7}   what binds")
    for name in STEPS:
        r = sizes(name)
        if r.D > CHANNELS:
            continue
        for precision in PRECISIONS:
            bounds = engine(r, precision, found)
            before, after = lean(r, precision), sum(map(max, bounds.values()))
            same, whole = gradients(r, precision), block(name, precision)
            layer = (before + same) / (after + same)
            ratios = f"{before / after:7.2f}{layer:7.2f}{whole / (whole - before + after):7.2f}"
            print(f"{name:12}{precision:6}{before:7.2f}{after:8.2f}{ratios}", end="   ")
            for key, bound in bounds.items():
                print(f"{key}: " + " ".join(f"{what} {time:.2f}" for what, time in bound._asdict().items()), end="; ")
            print()


if __name__ == "__main__":
    main()
