"""Time of a token through the C library beside the time to read the model's numbers once, in the same run: two blocks
of width 128, one sequence, float32, with matrices as float32 and as bfloat16; and LRU of other widths.

    python -m benchmarks.stream_in_c [layer ...]

Without names of layers all run, and the table is written to benchmarks/results/stream_in_c.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, ROOT, origin
from rotrnn import ModelSettings, build_model

SETTINGS: dict[str, dict[str, Any]] = {
    "lru": {"d_state": 128},
    "s5": {"d_state": 128},
    "rotrnn": {"d_state": 128, "heads": 4},
    "rope_memory": {"d_state": 64, "length": 1000},
    "s4d": {"d_state": 64},
    "s4": {"d_state": 64},
    "liquid_s4": {"d_state": 64},
    "min_gru": {"d_state": 128},
    "lstm": {"d_state": 128},
    "mamba": {},
    "mamba2": {},
    "delta_net": {"heads": 4},
    "mlstm": {"heads": 4, "d_state": 32},
    "slstm": {"d_state": 128, "heads": 4},
    "fixed_point": {"d_state": 128},
    "bedouin": {},
    "fpmamba": {},
}


WIDTHS = (64, 256, 512)
"""Of LRU, beside 128."""

HEAD = """# A token through the C library

`python -m benchmarks.stream_in_c`: two blocks of width 128 or as given, one sequence, float32, one thread,
beside the time to read the model's numbers once; and with matrices in bfloat16. {cpu}, commit {commit}, load {load}.

| layer | instructions | numbers | a token, us | reading them, us | ratio | a token in bf16, us | bf16 / float32 |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def rows(layers: list[str]) -> Iterator[str]:
    """Builds the library and the program; yields a line of the table for each layer."""
    subprocess.run(["make", "-s", "-f", "csrc/lib/Makefile", "lib"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        program, path = Path(folder, "stream_in_c"), Path(folder, "model.safetensors")
        source, archive = ROOT / "benchmarks" / "stream_in_c.c", ROOT / "build" / "lib" / "librotrnn.a"
        options = ["-O3", "-march=native", f"-I{ROOT / 'include'}", "-lm", "-o", str(program)]
        subprocess.run(["cc", str(source), str(archive), *options], check=True)
        plain = ("mamba", "mamba2", "delta_net", "bedouin", "fpmamba")  # gated by themselves
        for layer, width in [(layer, 128) for layer in layers] + [("lru", width) for width in WIDTHS]:
            block = "plain" if layer in plain else "gated"
            own = SETTINGS[layer] | ({"d_state": width} if width != 128 else {})
            model = build_model(ModelSettings(layer, width, 2, block=block), own, n_features=1, n_classes=10)
            model.save(path, model.init(np.random.default_rng(0)))
            done = subprocess.run([str(program), str(path)], capture_output=True, text=True, check=True)
            isa, numbers = done.stdout.split()[:2]
            token, read, half = (float(one) / 1e3 for one in done.stdout.split()[2:])
            times = f"{token:.2f} | {read:.2f} | {token / read:.2f} | {half:.2f} | {half / token:.2f}"
            name = layer if width == 128 else f"{layer}, width {width}"
            yield f"| {name} | {isa} | {int(numbers):,} | {times} |\n"


def main(layers: list[str]) -> None:
    came_from = origin()  # before the results change what git says of the tree
    cpu, load = came_from["machine"]["cpu"], f"{os.getloadavg()[0]:.0f}"
    report = HEAD.format(cpu=cpu, commit=came_from["commit"][:8], load=load)
    print(report, end="")
    for one in rows(layers or list(SETTINGS)):
        print(one, end="", flush=True)
        report += one
    if not layers:
        (RESULTS / "stream_in_c.md").write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
