"""The examples in C: accuracy of their models, the time of an audio block, the size and the start of the programs.

    python -m benchmarks.examples_in_c [--quick]

Builds them and writes benchmarks/results/examples_in_c.md; `--quick` tries it on a second of sound, and prints only.
"""

from __future__ import annotations

import argparse
import runpy
import shutil
import subprocess
import tempfile
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rotrnn
from benchmarks.measure import RESULTS, ROOT, in_turn, markdown, origin
from rotrnn.tasks import Digits

SOURCES, PROGRAMS = ROOT / "examples" / "c", ROOT / "build" / "examples"
NAMES = ("complete", "effect", "digits")


def text() -> str:
    names = runpy.run_path(str(SOURCES / "complete.py"))
    model, params = rotrnn.load(SOURCES / "complete.safetensors")
    learnt, held_out = (names["bits"](model, params, one) for one in names["pages"]())
    return f"{learnt:.2f} bits per character on these pages as they are now, {held_out:.2f} on the page held out."


def digits() -> str:
    model, params = rotrnn.load(SOURCES / "digits.safetensors")
    with tempfile.TemporaryDirectory() as folder:
        Digits().write(folder)
        rows = np.loadtxt(Path(folder, "digits_test.csv"), delimiter=",", skiprows=1)
    logits, _ = model.forward(params, rows[:, :-1, None].astype(np.float32))
    return f"{np.mean(model.answers(logits) == rows[:, -1]):.1%} of the {len(rows)} test images."


def effect(seconds: int) -> tuple[str, str]:
    """The error on sounds that were not learnt from, half a second each, and the table of the program."""
    names = runpy.run_path(str(SOURCES / "effect.py"))
    rate = names["RATE"]
    samples = np.round(32767 * names["sounds"](np.random.default_rng(2), 2 * seconds, rate // 2)).astype("<i2")
    x = samples / 2**15
    wanted = names["ladder"](x.reshape(1, -1)).reshape(x.shape)  # the sounds follow one another
    linear = names["error_db"](names["best_linear"](x, wanted), wanted)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.wav"), Path(folder, "out.wav")
        with wave.open(str(source), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
        command = [PROGRAMS / "effect", SOURCES / "effect.safetensors", source, target]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        y = np.frombuffer(target.read_bytes()[44:], "<f4")
    error = names["error_db"](y, wanted.ravel())
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    head = ["samples", "they last, us", "median, us", "worst, us", "took longer than they last"]
    facts = f"{error:.1f} dB on {seconds} s of other sounds at {rate} Hz (the best linear filter: {linear:.1f} dB)"
    return f"{facts}, in these blocks:", markdown(head, rows)


def startup(window: float) -> list[float]:
    """Seconds from the start of a program to its end, with its model read and nothing else to do; the least of many.
    The last one is `true`."""
    idle = [[PROGRAMS / "complete", SOURCES / "complete.safetensors", "0", ""], ["true"]]

    def timed(command: list[Any]) -> float:
        before = time.perf_counter()
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - before

    return in_turn([lambda command=command: timed(command) for command in idle], window=window)


def sizes() -> str:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            stripped = Path(folder, name)
            subprocess.run(["strip", "-o", stripped, PROGRAMS / name], check=True)
            model = SOURCES / f"{name}.safetensors"
            rows.append([f"`{name}`", f"{stripped.stat().st_size:,}", f"{model.stat().st_size:,}"])
    page = PROGRAMS / "digits.wasm"
    if page.exists():
        rows.append(["`digits.wasm`", f"{page.stat().st_size:,}", "the model of `digits`"])
    return markdown(["program, stripped", "bytes", "its model, bytes"], rows)


def lines(quick: bool) -> Iterator[str]:
    error, blocks = effect(1 if quick else 20)
    program, nothing = startup(0.5 if quick else 5)
    yield "# The examples in C\n"
    came_from = origin()
    yield f"`python -m benchmarks.examples_in_c`, commit {came_from['commit']}, {came_from['machine']['cpu']}.\n"
    yield f"- Text: {text()}"
    yield f"- Digits: {digits()}"
    yield f"- Start and end of `complete`, its model read: {1e3 * program:.2f} ms; of `true`: {1e3 * nothing:.2f} ms."
    yield f"- Effect: {error}\n"
    yield f"{blocks}\n"
    yield sizes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a second of sound, to try it; writes nothing")
    args = parser.parse_args()
    targets = ["programs", *["page"] * all(map(shutil.which, ("clang", "wasm-ld", "llvm-ar")))]
    subprocess.run(["make", "-s", "-f", "examples/c/Makefile", *targets], cwd=ROOT, check=True)
    report = "\n".join(lines(args.quick))
    print(report)
    if not args.quick:
        (RESULTS / "examples_in_c.md").write_text(report.rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
