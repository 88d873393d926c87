"""A server of many sequences: tokens a second of one stream of 1, 64 and 1024 of them, and the time to swap one out and
another in, in Python and in C.

    python -m benchmarks.sessions

A swap is `get_sequence` and `set_sequence`, or `rotrnn_sequence_save` and `rotrnn_sequence_load`. The table is written
to benchmarks/results/sessions.md.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, ROOT, origin
from rotrnn import ModelSettings, build_model

BATCHES = (1, 64, 1024)
TURNS, TOKENS = 5, 2048
LAYERS: dict[str, dict[str, Any]] = {"lru": {"d_state": 128}, "mamba": {}}

HEAD = """# Many sequences in one stream

`python -m benchmarks.sessions`: language models of two blocks of width 128 on 256 tokens, float32, one thread; each
push reads a token of each sequence. A swap takes the state of a sequence out, as bytes with a checksum, and puts it
back. The fastest of five turns. {cpu}, commit {commit}; a load of {load} on {cores} cores at the start, so that these
are lower limits of the speed.

| layer | sequences | bytes of one | tokens a second, C | Python | a swap, us, C | Python |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def in_python(model: Any, params: Any, batch: int) -> tuple[float, float]:
    """Returns tokens a second, and the microseconds of a swap."""
    stream, tokens = model.stream(params, batch), np.zeros(batch, np.int64)
    assert stream.engine == "c"
    push, swap = float("inf"), float("inf")
    for _ in range(TURNS):
        start = time.perf_counter()
        for _ in range(TOKENS // batch):
            stream.push(tokens)
        push = min(push, (time.perf_counter() - start) / (TOKENS // batch))
        start = time.perf_counter()
        for t in range(TOKENS // 8):
            stream.set_sequence(t % batch, stream.get_sequence(t % batch))
        swap = min(swap, (time.perf_counter() - start) / (TOKENS // 8))
    return batch / push, 1e6 * swap


def main() -> None:
    came_from, load = origin(), Path("/proc/loadavg").read_text(encoding="utf-8").split()[0]
    machine = came_from["machine"]
    report = HEAD.format(cpu=machine["cpu"], cores=machine["cores"], commit=came_from["commit"][:8], load=load)
    subprocess.run(["make", "-s", "-f", "csrc/lib/Makefile", "lib"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        program, path = Path(folder, "sessions"), Path(folder, "model.safetensors")
        source, archive = ROOT / "benchmarks" / "sessions.c", ROOT / "build" / "lib" / "librotrnn.a"
        subprocess.run(
            ["cc", "-O3", str(source), str(archive), f"-I{ROOT / 'include'}", "-lm", "-o", str(program)], check=True
        )
        for layer, own in LAYERS.items():
            settings = ModelSettings(layer, 128, 2, block="plain" if layer == "mamba" else "gated")
            model = build_model(settings, own, head="language", vocab=256, n_classes=256)
            params = model.init(np.random.default_rng(0))
            model.save(path, params)
            command = [str(program), str(path), *map(str, BATCHES)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            for line in done.stdout.splitlines():
                batch, size, tokens, swap = line.split()
                ours, ours_swap = in_python(model, params, int(batch))
                report += f"| {layer} | {batch} | {int(size):,} | {float(tokens):,.0f} | {ours:,.0f} "
                report += f"| {float(swap):.1f} | {ours_swap:.0f} |\n"
    print(report, end="")
    (RESULTS / "sessions.md").write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main()
