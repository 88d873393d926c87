"""Counts for the products of cuda/products.cu: what their inner loops execute, and what they cost beside the library's.

    python tests/cuda/count_products.py     # writes benchmarks/results/cuda_products.md

It needs nvcc and cuobjdump (PyPI: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm), and no GPU.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.chdir(ROOT)
import setup  # noqa: E402
from cuda_harness import built  # noqa: E402
from h100 import CLOCK, MMA_SHARE, PROCESSORS, RATES, sizes  # noqa: E402

MADE, TABLE = Path("build/resources"), Path("benchmarks/results/cuda_products.md")
INCLUDE = ["csrc/include", "csrc/kernels", "cuda", str(MADE)]
PRECISIONS = ("float32", "tf32", "bf16")
VALID = {"listops": 0.51, "text": 0.3, "retrieval": 0.5}  # rows that are no padding; of Retrieval it is assumed

LIBRARY = {"TF32": RATES["tf32"], "BF16": RATES["bf16"]}
ISSUED = 4  # instructions of a processor in a clock; one of them may be a read of 128 bytes of shared memory
REGISTERS, SHARED = 65536, 227 << 10  # of a processor
FLOPS = {"TF32": 2 * 16 * 8 * 8, "BF16": 2 * 16 * 8 * 16}  # of mma
THREADS = 256
KERNEL = re.compile(r"(multiply_\w+)<(as_\w+), ([\w ]+?)(?:, (\w+))?>")
HEAD = """# Products that leave out padding

Written by `python tests/cuda/count_products.py`; nothing here was run on a GPU. The first table is what a warp executes
in the inner loop of each kernel for sm_90 ({compiler}), and the clocks that a
processor needs for it: of its tensor cores (mma.sync at 60 % of what the library's products reach: 400 TFLOP/s in TF32,
790 in bfloat16), of its shared memory (a read of 128 bytes a clock), and to issue all instructions (4 a clock). The
longest gives the TFLOP/s. Form y is x w^T, dx is dy w, dw is dy^T x. Blocks: how many of {threads} threads a processor
has at a time.

| form | operands | stored as | registers | KiB | blocks | mma | reads | all | tensor | shared | issue | TFLOP/s |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
COUNTS = """
Microseconds of each product of a layer with ragged batches, all rows: the longer of its bytes (at 3.0 TB/s) and its
flops (at 60, 400 and 790 TFLOP/s of the library's float32, TF32 and bfloat16, and for ours at the least of the table
above). Ours costs its valid rows. `rows_product_pays` decides what is taken: half of the rows are valid to it, and it
wants 1.3 times the library's speed.

| recipe | product | precision | library | ours, all rows | valid | ours | ratio | taken |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


class Loop(NamedTuple):
    """Instructions of an inner loop, and registers of its kernel."""

    kernel: str
    mma: int
    kind: str
    reads: int
    all: int
    registers: int
    shared: int


def tool(name: str) -> str:
    nvcc = setup.find_nvcc()
    places = [os.environ.get("PATH", ""), *([str(Path(nvcc).resolve().parent)] if nvcc else [])]
    found = nvcc if name == "nvcc" else shutil.which(name, path=os.pathsep.join(places))
    if not found:
        sys.exit(f"count_products.py needs {name}, which is not in PATH")
    return found


def inner_loop(text: str) -> list[str]:
    """Returns the instructions of the shortest loop that has mma in it."""
    lines = [(int(at, 16), one) for at, one in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", text)]
    loops = []
    for at, one in lines:
        back = re.search(r"BRA.*?0x([0-9a-f]+)", one)
        if back and int(back[1], 16) < at:
            body = [inside for place, inside in lines if int(back[1], 16) <= place <= at]
            if any("HMMA" in inside for inside in body):
                loops.append(body)
    return min(loops, key=len)


def loops() -> list[Loop]:
    MADE.mkdir(parents=True, exist_ok=True)
    setup.runpy.run_path("csrc/generate.py")["generate"](MADE)
    job, cubin = setup.cuda_job("cuda/products.cu", "f32"), MADE / "products.cubin"
    macros = [f"-D{name}={value}" for name, value in job.macros]
    folders = [f"-I{folder}" for folder in INCLUDE]
    subprocess.run(
        [tool("nvcc"), *setup.NVCC_FLAGS, *macros, *folders, "-arch=sm_90", "-cubin", job.source, "-o", str(cubin)],
        check=True,
    )

    def dump(what: str) -> str:
        done = subprocess.run([tool("cuobjdump"), what, str(cubin)], capture_output=True, text=True, check=True)
        return subprocess.run(["c++filt"], input=done.stdout, capture_output=True, text=True, check=True).stdout

    registers = {}
    for name, used in re.findall(r"Function ([^\n]*):\n\s*REG:(\d+)", dump("--dump-resource-usage")):
        if kernel := KERNEL.search(name):
            registers[kernel[0]] = int(used)
    found = []
    for part in dump("--dump-sass").split("Function : ")[1:]:
        kernel = KERNEL.search(part.partition("\n")[0])
        if not kernel:
            continue
        body = inner_loop(part)
        mma = [one for one in body if "HMMA" in one]
        reads = sum("LDS" in one for one in body)
        kind = "TF32" if ".TF32" in mma[0] else "BF16"
        found.append(Loop(kernel[0], len(mma), kind, reads, len(body), registers[kernel[0]], shared_bytes(kernel[0])))
    return sorted(found)


def shared_bytes(kernel: str) -> int:
    """Returns the bytes of two stages: 128 rows of 128 bytes and 16 more, or turned, as many in rows of 128 numbers."""
    across = {"y": 0, "dx": 1, "dw": 2}[form_of(kernel)]
    size = 4 if "float" in kernel else 2
    turned = 128 // size * (128 * size + (32 if size == 4 else 16))
    return 2 * ((2 - across) * 128 * (128 + 16) + across * turned)


def form_of(kernel: str) -> str:
    return "dw" if "columns" in kernel else "y" if kernel.endswith("true>") else "dx"


def row_of_loop(one: Loop) -> str:
    _, precision, stored, _ = KERNEL.search(one.kernel).groups()  # type: ignore[union-attr]
    flops = FLOPS[one.kind] * one.mma
    tensor = flops / (LIBRARY[one.kind] * MMA_SHARE / PROCESSORS / CLOCK)
    issue = one.all / ISSUED
    rate = flops / max(tensor, one.reads, issue) * PROCESSORS * CLOCK / (3 if precision == "as_tf32x3" else 1)
    blocks = min(REGISTERS // (one.registers * THREADS), SHARED // (one.shared + 1024))
    cells = [
        form_of(one.kernel), precision, "float" if stored == "float" else "bfloat16", one.registers, one.shared >> 10,
        blocks, one.mma, one.reads, one.all, f"{tensor:.0f}", one.reads, f"{issue:.0f}", f"{rate / 1e12:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |\n"


def counts() -> str:
    library, rows = ctypes.CDLL(str(built("products"))), ""
    library.product_pays.restype = ctypes.c_bool
    for name, valid in VALID.items():
        r = sizes(name)
        for product, d_in, d_out in (
            ("W_in x", r.D, 2 * r.N),
            ("W_out h", 2 * r.N, r.D),
            ("W_value z, W_gate z", r.D, r.G * r.D),
        ):
            for kind, precision in [*enumerate(PRECISIONS), (2, "bf16, stored so")]:
                halves, seconds = "stored" in precision, (ctypes.c_double * 2)()
                steps, size = ctypes.c_int64(r.T), (ctypes.c_int64(d_in), ctypes.c_int64(d_out))
                lengths = (ctypes.c_int64 * r.B)()
                library.count(seconds, kind, ctypes.c_bool(halves), steps, *size)
                taken = library.product_pays(
                    kind, ctypes.c_bool(halves), ctypes.c_int64(r.B), steps, ctypes.byref(lengths), *size
                )
                theirs, ours = (1e6 * r.B * r.T * one for one in seconds)
                cells = [
                    name, product, precision, f"{theirs:.0f}", f"{ours:.0f}", valid, f"{valid * ours:.0f}",
                    f"{theirs / (valid * ours):.2f}", "yes" if taken else "no",
                ]  # fmt: skip
                rows += f"| {' | '.join(map(str, cells))} |\n"
    return rows


def main() -> None:
    compiler = (
        subprocess.run([tool("nvcc"), "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-2]
    )
    text = HEAD.format(compiler=compiler, threads=THREADS) + "".join(map(row_of_loop, loops()))
    TABLE.write_text(text + COUNTS + counts())
    print(TABLE)


if __name__ == "__main__":
    main()
