"""Registers, shared memory and spills of every CUDA kernel, as the compiler tells them: `make resources`.

    python tests/cuda/resources.py     # writes benchmarks/results/cuda_resources.md

Every cuda/*.cu is compiled for each of its dtypes and for two GPUs, again only if it has changed (build/resources has
what the compiler said); no GPU is needed. Exit code 1 if a kernel spills registers or has local memory, a stack's for
example: both are memory of the GPU in the place of registers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.chdir(ROOT)
import setup  # noqa: E402

MADE, TABLE = Path("build/resources"), Path("benchmarks/results/cuda_resources.md")
CODES = ("sm_80", "sm_90")
INCLUDE = ["csrc/include", "csrc/kernels", "csrc/module", "cuda", str(MADE)]
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


class Used(NamedTuple):
    registers: int
    shared: int
    local: int
    spills: int


def said(nvcc: str, job: setup.Job) -> str:
    """Compiles a file. Returns what the compiler says of its kernels."""
    gpus = [f"-gencode=arch=compute_{code[3:]},code={code}" for code in CODES]
    macros = [f"-D{name}={value}" for name, value in job.macros]
    folders = [f"-I{folder}" for folder in INCLUDE]
    path = MADE / f"{Path(job.source).name}.{job.variant}.txt"
    command = [nvcc, *setup.NVCC_FLAGS, *gpus, *macros, *folders, "-Xptxas", "-v", "-c", job.source, "-o", os.devnull]
    command += ["-MD", "-MF", str(path.with_suffix(".d"))]
    if setup.up_to_date(path) and path.read_text().startswith(f"{command}\n"):
        return path.read_text()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{job.source} {job.variant} does not compile\n{done.stderr}")
    path.write_text(f"{command}\n{done.stderr}")
    return done.stderr


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
    if not nvcc:
        print("there is no nvcc here, so the resources of the CUDA kernels are not known")
        return
    setup.runpy.run_path("csrc/generate.py")["generate"](MADE)
    jobs = [job for job in setup.cuda_jobs(MADE / "list.c") if job.source.endswith(".cu") and job.variant]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = [used_by(text) for text in pool.map(lambda job: said(nvcc, job), jobs)]
    names = readable(sorted({symbol for result in results for symbol, _ in result}))
    rows, faults = [], []
    for job, result in zip(jobs, results, strict=True):
        file, dtype = Path(job.source).name, job.variant.partition("_")[0]
        for symbol in dict.fromkeys(symbol for symbol, _ in result):
            used = [result[symbol, code] for code in CODES]
            local, spills = max(one.local for one in used), max(one.spills for one in used)
            registers = [str(one.registers) for one in used]
            kernel = names[symbol].replace("|", "\\|")
            rows.append([file, kernel, dtype, *registers, str(used[-1].shared), str(local), str(spills)])
            if local or spills:
                faults.append(f"{file} {kernel} {dtype}: {local} bytes of local memory, {spills} of spills")
    compiler = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-2]
    head = HEAD.format(compiler=compiler, codes=" | ".join(CODES), rules=" | ".join("---" for _ in CODES))
    TABLE.write_text(head + "".join(f"| {' | '.join(row)} |\n" for row in sorted(rows)))
    print(f"{TABLE}: {len(rows)} kernels, {len(faults)} with spills or local memory")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
