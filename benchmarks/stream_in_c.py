"""Time of a token through the C library beside that of reading the model's numbers once, in the same run: two blocks of
width 128, one sequence, float32.

    python -m benchmarks.stream_in_c [layer ...]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rotrnn import ModelSettings, build_model

ROOT = Path(__file__).parents[1]
SETTINGS: dict[str, dict[str, Any]] = {
    "lru": {"d_state": 128},
    "s5": {"d_state": 128},
    "rotrnn": {"d_state": 128, "heads": 4},
    "rope_memory": {"d_state": 64, "length": 1000},
    "s4d": {"d_state": 64},
    "min_gru": {"d_state": 128},
    "lstm": {"d_state": 128},
    "mamba": {},
    "fixed_point": {"d_state": 128},
    "bedouin": {},
    "fpmamba": {},
}


def main(layers: list[str]) -> None:
    """Builds the library and the program, and prints a line for each layer."""
    subprocess.run(["make", "-s", "-f", "csrc/lib/Makefile", "lib"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        program, path = Path(folder, "stream_in_c"), Path(folder, "model.safetensors")
        source, archive = ROOT / "benchmarks" / "stream_in_c.c", ROOT / "build" / "lib" / "librotrnn.a"
        options = ["-O3", "-march=native", f"-I{ROOT / 'include'}", "-lm", "-o", str(program)]
        subprocess.run(["cc", str(source), str(archive), *options], check=True)
        plain = ("mamba", "bedouin", "fpmamba")  # gated by themselves
        print("layer         set      numbers   a token   reading them   ratio")
        for layer in layers or SETTINGS:
            block = "plain" if layer in plain else "gated"
            model = build_model(ModelSettings(layer, 128, 2, block=block), SETTINGS[layer], n_features=1, n_classes=10)
            model.save(path, model.init(np.random.default_rng(0)))
            done = subprocess.run([str(program), str(path)], capture_output=True, text=True, check=True)
            isa, numbers, token, read = done.stdout.split()
            times = f"{float(token) / 1e3:6.2f} us {float(read) / 1e3:11.2f} us {float(token) / float(read):7.2f}"
            print(f"{layer:12}  {isa:6} {int(numbers):9,}  {times}")


if __name__ == "__main__":
    main(sys.argv[1:])
