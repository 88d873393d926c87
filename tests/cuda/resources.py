"""Registers, shared memory, spills and inner loops of every CUDA kernel, by the compiler: `make resources`.

    python tests/cuda/resources.py             # writes benchmarks/results/cuda_resources.md
    python tests/cuda/resources.py --check     # writes nothing: `make lint-cuda`

Every cuda/*.cu is compiled for each of its dtypes and for two GPUs, again only if it has changed (build/resources has
what the compiler said, and the loops); no GPU is needed, but nvdisasm (CUDA's, or PyPI: nvidia-cuda-nvdisasm). Exit
code 1 if a kernel

- spills registers or has local memory, a stack's for example, which are memory of the GPU in the place of registers,
  unless `EXPLAINED` has a reason, and it is no more than there;
- has a walk through time whose inner loop takes more instructions a step than `WALKS` says, or diverges (BSSY): a
  condition in each step.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.chdir(ROOT)
import setup  # noqa: E402

MADE, TABLE = Path("build/resources"), Path("benchmarks/results/cuda_resources.md")
CODES = ("sm_80", "sm_90")
INCLUDE = ["csrc/include", "csrc/runtime", "csrc/kernels", "csrc/module", "cuda", str(MADE)]
LOOP = "inner loop:"
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")
HEAD = """# Resources of the CUDA kernels

Written by `make resources` from what nvcc's `-Xptxas -v` says ({compiler}): registers of a thread on each GPU, fixed
shared memory (what a launch asks for besides is not here), local memory and spills in bytes. A processor has 65536
registers: blocks of 256 threads with 128 registers are two at a time. Compiled, not run.

| file | kernel | dtype | {codes} | shared | local | spills |
| --- | --- | --- | {rules} | --- | --- | --- |
"""


WALKS: dict[tuple[str, str], tuple[int, dict[str, float]]] = {
    ("scan.cu", "ends_forward<false>"): (1, {"f32": 6.4, "c64": 14.7}),
    ("scan.cu", "ends_forward<true>"): (2, {"f32": 11.3, "c64": 20.8}),
    ("scan.cu", "run_forward<false>"): (1, {"f32": 8.3, "c64": 14.2}),
    ("scan.cu", "run_forward<true>"): (2, {"f32": 12.6, "c64": 19.7}),
    ("scan.cu", "ends_backward<false>"): (1, {"f32": 6.7, "c64": 15.8}),
    ("scan.cu", "ends_backward<true>"): (2, {"f32": 10.9, "c64": 20.9}),
    ("scan.cu", "run_backward<false>"): (2, {"f32": 24.4, "c64": 37.4}),
    ("scan.cu", "run_backward<true>"): (3, {"f32": 30.3, "c64": 46.9}),
    ("block.cu", "ends_of_states<cplx>"): (1, {"f32": 12.4}),
    ("block.cu", "ends_of_states<cplx, plane_bf16>"): (1, {"f32": 13.7}),
    ("block.cu", "ends_of_states<exact, cplx>"): (1, {"f32": 13.9}),
    ("block.cu", "ends_of_states<exact, plane_bf16>"): (1, {"f32": 15.4}),
    ("block.cu", "run_states<cplx>"): (1, {"f32": 16.4}),
    ("block.cu", "run_states<cplx, plane_bf16>"): (1, {"f32": 18.7}),
    ("block.cu", "run_states<exact, cplx>"): (1, {"f32": 19.4}),
    ("block.cu", "run_states<exact, plane_bf16>"): (1, {"f32": 22.3}),
    ("block.cu", "ends_of_adjoint<cplx>"): (1, {"f32": 12.3}),
    ("block.cu", "ends_of_adjoint<plane_bf16>"): (1, {"f32": 14.0}),
    ("block.cu", "run_adjoint<false, cplx>"): (2, {"f32": 30.7}),
    ("block.cu", "run_adjoint<false, plane_bf16>"): (2, {"f32": 33.5}),
    ("block.cu", "run_adjoint<true, cplx>"): (3, {"f32": 36.8}),
    ("block.cu", "run_adjoint<true, plane_bf16>"): (3, {"f32": 39.8}),
}
"""Of kernels that walk through time: loads of a step, and the most instructions a step of the largest inner loop, for
the dtypes that are trained in. In the others a loop may not diverge either."""

FOUR_BLOCKS = "bound to 128 registers (GLOBAL2), so that a processor has four blocks"
CALLS = "saved across calls of functions that the compiler does not inline, such as divisions"
ROOM = "the compiler's choice: a few bytes make room for more blocks on a processor"
EXPLAINED: dict[tuple[str, str], tuple[int, str]] = {
    ("delta.cu", "each_kernel<body_delta_backward::{lambda#2}>"): (120, f"{ROOM}; in float64 alone"),
    ("diagonal.cu", "each_kernel<body_polar_forward>"): (40, "the library's sine and cosine of large angles, exactly"),
    ("dplr_bank.cu", "each_kernel<body_dplr_bank_backward>"): (112, "a table of pointers that is indexed, once a call"),
    ("fixed_point.cu", "solve_rows"): (64, "the weights of the iterates, an array that is indexed"),
    ("mixer.cu", "gain_rows_backward"): (820, FOUR_BLOCKS),
    ("rnn.cu", "step_backward"): (16, f"{ROOM}; in float32 alone"),
    ("sampled.cu", "each_warp_kernel<body_sampled_bank_backward>"): (528, "the states of a tile, in backward"),
    ("selective.cu", "run_forward"): (16, f"{CALLS}; in float64 alone"),
    ("ssd.cu", "run_forward"): (156, CALLS),
    ("ssd.cu", "run_backward"): (340, f"{CALLS}; in float64 alone"),
    ("turn.cu", "each_kernel<copy_others>"): (64, ROOM),
}
"""Bytes of local memory and spills together that a kernel may have, and why."""

LEAST_LOADS = 8
"""Loads of global memory of a loop that reads ahead."""


LOCAL = """Local memory and spills that have a reason:

"""
LOOPS = """The inner loops of walks through time, on the last GPU: instructions, loads of global memory, and
instructions a step beside the most that they may be.

| file | kernel | dtype | instructions | loads | a step | at most |
| --- | --- | --- | --: | --: | --: | --: |
"""


class Loop(NamedTuple):
    """A loop without loops in it: instructions; those that read and write global memory, and local memory; and
    divergent branches."""

    instructions: int
    loads: int
    stores: int
    local: int
    diverging: int


NO_LOOP = Loop(0, 0, 0, 0, 0)


def faults_of(one: Loop, loads: int, most: float) -> Iterator[str]:
    """What is wrong with the inner loop of a walk, of so many loads a step and at most so many instructions."""
    if one.loads < LEAST_LOADS:
        yield f"its inner loop has {one.loads} loads, expected at least {LEAST_LOADS}, which are in flight at once"
    elif one.instructions * loads > most * one.loads:
        yield f"{one.instructions * loads / one.loads:.1f} instructions a step, expected at most {most}"
    if one.diverging:
        yield f"{one.diverging} divergent branches in its inner loop, expected none"
    if one.local:
        yield f"{one.local} accesses of local memory in its inner loop, expected none"


class Used(NamedTuple):
    registers: int
    shared: int
    local: int
    spills: int


def find_nvdisasm(nvcc: str) -> str:
    """nvdisasm beside nvcc, on PATH or among Python's packages."""
    package = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin")
    found = shutil.which("nvdisasm", path=os.pathsep.join([str(Path(nvcc).parent), os.environ["PATH"], str(package)]))
    return found or sys.exit("there is no nvdisasm here: pip install nvidia-cuda-nvdisasm")


def said(nvcc: str, nvdisasm: str, job: setup.Job) -> str:
    """Compiles a file. Returns what the compiler says of its kernels, and a line for each of their inner loops."""
    gpus = [f"-gencode=arch=compute_{code[3:]},code={code}" for code in CODES]
    macros = [f"-D{name}={value}" for name, value in job.macros]
    folders = [f"-I{folder}" for folder in INCLUDE]
    path = MADE / f"{Path(job.source).name}.{job.variant}.txt"
    command = [nvcc, *setup.NVCC_FLAGS, *gpus, *macros, *folders, "-Xptxas", "-v", "-c", job.source, "-o", os.devnull]
    command += ["-MD", "-MF", str(path.with_suffix(".d"))]
    if setup.up_to_date(path) and path.read_text(encoding="utf-8").startswith(f"{command}\n"):
        return path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, "--keep", "--keep-dir", folder], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{job.source} {job.variant} does not compile\n{done.stderr}")
        (cubin,) = Path(folder).glob(f"*.compute_{CODES[-1][3:]}.cubin")
        code = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    loops = "".join(f"{LOOP} {name} {' '.join(map(str, one))}\n" for name, of in loops_of(code).items() for one in of)
    path.write_text(f"{command}\n{loops}{done.stderr}", encoding="utf-8")
    return path.read_text(encoding="utf-8")


TARGET = re.compile(r"`\((\.L_\w+)\)")
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)")


def loops_of(text: str) -> dict[str, list[Loop]]:
    """Returns the innermost loops of each kernel, from what nvdisasm says of a cubin."""
    return {part.partition(":")[0]: innermost(part.splitlines()[1:]) for part in re.split(r"(?m)^\.text\.", text)[1:]}


def innermost(lines: list[str]) -> list[Loop]:
    """A loop is what a branch to a label before it repeats."""
    code: list[str] = []
    labels: dict[str, int] = {}
    found: list[tuple[int, int]] = []
    for line in lines:
        if line.startswith(".L_"):
            labels[line.partition(":")[0]] = len(code)
        elif one := INSTRUCTION.match(line):
            target = TARGET.search(one[2])
            if one[1].startswith("BRA") and target and target[1] in labels:
                found.append((labels[target[1]], len(code) + 1))
            code.append(one[1])
    inner = [(a, b) for a, b in found if not any(a <= c and d <= b for c, d in found if (c, d) != (a, b))]
    return [loop(code[a:b]) for a, b in inner if b - a > 1]


def loop(code: list[str]) -> Loop:
    def count(*names: str) -> int:
        return sum(one.partition(".")[0] in names for one in code)

    return Loop(len(code), count("LDG"), count("STG"), count("LDL", "STL"), count("BSSY"))


def read_loops(text: str) -> dict[str, list[Loop]]:
    """Returns the loops of each kernel that `said` wrote."""
    found: dict[str, list[Loop]] = {}
    for line in text.splitlines():
        if line.startswith(f"{LOOP} "):
            name, *numbers = line.removeprefix(LOOP).split()
            found.setdefault(name, []).append(Loop(*map(int, numbers)))
    return found


def used_by(text: str) -> dict[tuple[str, str], Used]:
    """Returns what each kernel uses, by its symbol and the GPU."""
    found: dict[tuple[str, str], Used] = {}
    for part in re.split(r"(?=ptxas info\s*: Compiling entry function)", text)[1:]:
        entry, memory, used = ENTRY.search(part), MEMORY.search(part), USED.search(part)
        assert entry, part
        assert memory, part
        assert used, part
        local, stores, loads = map(int, memory.groups())
        found[entry[1], entry[2]] = Used(int(used[1]), int(used[2] or 0), local, stores + loads)
    return found


def readable(symbols: list[str]) -> dict[str, str]:
    """Returns kernels' names with their template's arguments, a lambda by the function that it is in."""
    done = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True)

    def short(name: str) -> str:
        name = re.sub(r"_INTERNAL_\w+::|\(anonymous namespace\)::|^void ", "", name)
        while (fewer := re.sub(r"\([^()]*\)", "", name)) != name:
            name = fewer
        name = re.sub(r"::\{lambda#1\}", "", name)
        kernel, _, rest = name.partition("<")
        arguments = dict.fromkeys(rest.removesuffix(">").split(", "))  # a function with two lambdas is named once
        return f"{kernel}<{', '.join(arguments)}>" if rest else kernel

    return dict(zip(symbols, map(short, done.stdout.splitlines()), strict=True))


def main() -> None:
    nvcc = setup.find_nvcc()
    setup.runpy.run_path("csrc/generate.py")["generate"](MADE)
    jobs = [job for job in setup.cuda_jobs(MADE / "list.c") if job.source.endswith(".cu") and job.variant]
    nvdisasm = find_nvdisasm(nvcc)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = list(pool.map(lambda job: said(nvcc, nvdisasm, job), jobs))
    results = [used_by(text) for text in texts]
    names = readable(sorted({symbol for result in results for symbol, _ in result}))
    rows: list[list[str]] = []
    walks: list[list[str]] = []
    faults: list[str] = []
    for job, result, text in zip(jobs, results, texts, strict=True):
        file, dtype, loops = Path(job.source).name, job.variant.partition("_")[0], read_loops(text)
        for symbol in dict.fromkeys(symbol for symbol, _ in result):
            used = [result[symbol, code] for code in CODES]
            local, spills = max(one.local for one in used), max(one.spills for one in used)
            registers = [str(one.registers) for one in used]
            kernel = names[symbol].replace("|", "\\|")
            where = f"{file} {kernel} {dtype}"
            rows.append([file, kernel, dtype, *registers, str(used[-1].shared), str(local), str(spills)])
            most, _ = EXPLAINED.get((file, kernel), (0, ""))
            if local + spills > most:
                faults.append(f"{where}: {local} bytes of local memory, {spills} of spills, expected {most} in all")
            if walk := WALKS.get((file, kernel)):
                count, limits = walk
                limit = limits.get(dtype, math.inf)
                one = max(loops.get(symbol, []), default=NO_LOOP, key=lambda loop: (loop.loads > 0, loop.instructions))
                faults += [f"{where}: {fault}" for fault in faults_of(one, count, limit)]
                cells = [one.instructions, one.loads, f"{one.instructions * count / max(one.loads, 1):.1f}"]
                walks.append([file, kernel, dtype, *map(str, cells), str(limit) if dtype in limits else ""])
    compiler = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-2]
    head = HEAD.format(compiler=compiler, codes=" | ".join(CODES), rules=" | ".join("---" for _ in CODES))
    reasons = "".join(f"- {file}, {kernel}: {why}\n" for (file, kernel), (_, why) in EXPLAINED.items())
    tables = ["".join(f"| {' | '.join(row)} |\n" for row in sorted(part)) for part in (rows, walks)]
    if sys.argv[1:] != ["--check"]:
        TABLE.write_text(f"{head}{tables[0]}\n{LOCAL}{reasons}\n{LOOPS}{tables[1]}", encoding="utf-8")
    print(f"{len(rows)} kernels, {len(faults)} faults")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
