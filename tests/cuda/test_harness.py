"""What the harness finds (faults.cu has a kernel for each fault), and what its operations compute."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_harness import ROOT, built

pytestmark = pytest.mark.whole

SEEDS = range(6)  # 0: threads in order


def has_thread_sanitizer(compiler: str) -> bool:
    """Whether there is such a compiler with the sanitizer, which Debian has in another package than clang."""
    if not shutil.which(compiler):
        return False
    command = [compiler, "-fsanitize=thread", "-x", "c++", "-", "-o", os.devnull]
    source = b"#include <sanitizer/tsan_interface.h>\nint main() { return 0; }\n"
    return subprocess.run(command, input=source, capture_output=True).returncode == 0


COMPILERS = {
    "": "g++",
    "address": "g++ -g -fsanitize=address,undefined",
    "thread": f"{'clang++' if has_thread_sanitizer('clang++') else 'g++'} -g -fsanitize=thread",
}
REPORTED = 66  # exit code of a sanitizer's report
WRONG = "wrong values"
ENDED = "has ended"
COPIES = "ends before its asynchronous copies have come"
MEET = "two different warp operations meet"

# The fault; what a plain run finds: an error under every seed, wrong values under some, or nothing; what the address
# and undefined-behaviour sanitizers find, and what the thread sanitizer finds
FAULTS = [
    ("missing_barrier", WRONG, "", "data race"),
    ("write_after_read", WRONG, "", "data race"),
    ("missing_barrier_after_shuffles", WRONG, "", "data race"),
    ("threads_that_leave", "", "", "data race"),
    ("missing_syncwarp", WRONG, "", "data race"),
    ("race_between_blocks", WRONG, "", "data race"),
    ("written_twice", "", "", "data race"),
    ("barrier_in_a_branch", "a barrier in a branch", "", ""),
    ("barrier_not_reached", "waits for ever at a barrier", "", ""),
    ("lane_gone", ENDED, "", ""),
    ("different_operations", MEET, "", ""),
    ("different_sizes", MEET, "", ""),
    ("source_outside_the_mask", "reads a lane that is not in its mask", "", ""),
    ("lane_outside_its_mask", "mask", "", ""),
    ("copy_not_waited_for", WRONG, "", "data race"),
    ("one_group_too_many", WRONG, "", "data race"),
    ("copy_without_barrier", WRONG, "", "data race"),
    ("copy_never_waited_for", COPIES, "", ""),
    ("copy_not_committed", COPIES, "", ""),
    ("shared_memory_not_written", WRONG, "", ""),
    ("workspace_not_written", WRONG, "", ""),
    ("beyond_shared_memory", "", "heap-buffer-overflow", ""),
    ("too_much_shared_memory", "more than 99 KiB of shared memory", "", ""),
    ("misaligned", None, "misaligned address", None),  # as the processor takes it
]
X = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)


@functools.cache
def program(sanitizer: str) -> Path:
    return built("faults", HARNESS=f"build/faults/{sanitizer or 'plain'}", CXX=COMPILERS[sanitizer])


def run(name: str, version: str, x: Any, sanitizer: str = "", seed: int = 1) -> tuple[Any, str]:
    """Returns the numbers that a kernel writes, None if it fails, and what it says."""
    options = f"exitcode={REPORTED}:halt_on_error=1:detect_leaks=0"
    env = os.environ | dict.fromkeys(("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"), options)
    env |= {"ROT_HOST_SEED": str(seed), "LD_PRELOAD": ""}
    given = np.ascontiguousarray(x, np.float32).tobytes()
    done = subprocess.run([program(sanitizer), name, version], input=given, capture_output=True, env=env)
    said = done.stderr.decode()
    assert done.returncode in (0, 3, REPORTED) or (done.returncode < 0 and not sanitizer), said
    return (None if done.returncode else np.frombuffer(done.stdout, np.float32)), said


def found(name: str, sanitizer: str = "", seed: int = 1) -> str:
    """Returns what is found in the wrong version of a kernel: a message, WRONG, or "" for nothing."""
    got, said = run(name, "wrong", X, sanitizer, seed)
    if got is None:
        return said
    return "" if np.array_equal(got.reshape(X.shape), X[:, ::-1]) else WRONG


@pytest.mark.parametrize("name", [fault[0] for fault in FAULTS])
@pytest.mark.parametrize("sanitizer", COMPILERS)
def test_the_right_version_has_no_fault(name: str, sanitizer: str) -> None:
    for seed in [1, 2] if sanitizer else SEEDS:
        got, said = run(name, "right", X, sanitizer, seed)
        assert got is not None, said
        np.testing.assert_array_equal(got.reshape(X.shape), X[:, ::-1])


@pytest.mark.parametrize(("name", "plain"), [fault[:2] for fault in FAULTS if fault[1] is not None])
def test_what_a_plain_run_finds(name: str, plain: str) -> None:
    results = [found(name, seed=seed) for seed in SEEDS]
    if plain == WRONG:
        assert WRONG in results[1:]
    elif plain:
        assert all(plain in result for result in results), results
    else:
        assert set(results) == {""}


@pytest.mark.parametrize(("name", "plain", "expected"), [fault[:3] for fault in FAULTS])
def test_what_the_address_sanitizer_finds(name: str, plain: str | None, expected: str) -> None:
    result = found(name, "address")
    assert (expected in result) if expected else ("Sanitizer" not in result.replace("WARNING: A", "")), result


@pytest.mark.parametrize(
    ("name", "plain", "expected"), [(*fault[:2], fault[3]) for fault in FAULTS if fault[3] is not None]
)
def test_what_the_thread_sanitizer_finds(name: str, plain: str, expected: str) -> None:
    for seed in (1, 2):
        result = found(name, "thread", seed)
        if expected:
            assert expected in result
            assert "faults.cu:" in result  # at the line
        else:
            assert "ThreadSanitizer" not in result
            assert plain in result


def test_votes_and_sums_of_warps_and_blocks() -> None:
    x = np.random.default_rng(1).integers(-8, 9, 64)
    got = run("votes", "right", x)[0].reshape(64, 9)
    vote, lane = x > 0, np.arange(32)
    for t in range(64):
        warp = slice(t // 32 * 32, t // 32 * 32 + 32)
        ballot = int(np.sum(vote[warp].astype(np.uint64) << lane.astype(np.uint64)))
        even = t % 2 == 0
        expected = [vote.sum(), 1, 0, ballot >> 8 & 0xFFFF, even, even, x[warp].sum(), x.sum(), 2 * x.sum()]
        np.testing.assert_array_equal(got[t], np.array(expected, np.float32))


def test_shuffles_are_those_of_ptx() -> None:
    """The pseudocode of shfl.sync, with the c that CUDA's functions give: segment mask 32 - width, clamp 0 or 31."""
    x = np.arange(32) + 1
    got = run("shuffles", "right", x)[0].reshape(4, 6, 32, 32)
    lane = np.arange(32)
    for log in range(6):
        segment = 32 - (1 << log)
        least = lane & segment
        most = least | (31 & ~segment)
        for by in range(32):
            up, down, xor = lane - by, lane + by, lane ^ by
            sources = [
                np.where(up >= least, up, lane),
                np.where(down <= most, down, lane),
                np.where(xor <= most, xor, lane),
                least | (by & ~segment),
            ]
            for kind in range(4):
                np.testing.assert_array_equal(got[kind, log, by], x[sources[kind]], f"kind {kind}, {1 << log}, {by}")


def tf32(x: Any) -> Any:
    """Ten bits after the point, ties away from zero, by arithmetic in double precision."""
    scale = np.exp2(np.floor(np.log2(np.abs(x, dtype=np.float64))) - 10)
    return (np.sign(x) * np.floor(np.abs(x) / scale + 0.5) * scale).astype(np.float32)


def bf16(x: Any) -> Any:
    """Seven bits after the point, ties to even."""
    scale = np.exp2(np.floor(np.log2(np.abs(x, dtype=np.float64))) - 7)
    return (np.rint(x / scale) * scale).astype(np.float32)


def test_rounding_to_tf32_and_bfloat16() -> None:
    rng = np.random.default_rng(2)
    ties = 1 + (np.arange(64) * 2.0**-8 + 2.0**-8)  # of bfloat16
    x = np.concatenate([rng.standard_normal(64), ties, -ties, 1 + (np.arange(64) + 0.5) * 2.0**-10, [3e38] * 64])
    x = (x * np.repeat(np.exp2([0, 40, -90, 3, 0]), 64)).astype(np.float32)
    got = run("rounded", "right", x)[0].reshape(-1, 3)
    swapped = x.reshape(-1, 2)[:, ::-1].reshape(-1)
    for column, expected in enumerate((tf32(x), bf16(x), bf16(swapped))):
        np.testing.assert_array_equal(got[:, column], expected)


def test_rounding_of_what_is_not_finite() -> None:
    x = np.resize(np.array([np.inf, -np.inf, np.nan, 0, -0.0, 3.4028235e38], np.float32), 96)
    got = run("rounded", "right", x)[0].reshape(-1, 3)
    expected = np.where(x > 3e38, np.float32(np.inf), x)
    np.testing.assert_array_equal(got[:, 0], expected)
    np.testing.assert_array_equal(got[:, 1], expected)
    np.testing.assert_array_equal(np.signbit(got[3:5, 0]), [False, True])


BOUND = re.compile(r"GLOBAL2?\((\w+)(?:,[^{;]*?)?\)\s+(\w+)\(")


def launches(text: str) -> list[list[str]]:
    """The arguments of each launch(...) of a source."""
    found = []
    for start in re.finditer(r"\blaunch\(", text):
        depth, arguments = 0, [""]
        for letter in text[start.end() :]:
            depth += (letter in "(<[{") - (letter in ")>]}")
            if depth < 0:
                break
            if letter == "," and not depth:
                arguments.append("")
            else:
                arguments[-1] += letter
        found.append([one.strip() for one in arguments])
    return found


def test_launches_have_the_threads_that_their_kernel_declares() -> None:
    """__launch_bounds__ binds on a GPU alone, where a launch with more threads fails. A name stands for the number."""
    texts = {
        path.name: re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
        for path in (ROOT / "cuda").glob("*.[ch]*")
    }
    bounds = {name: {kernel: bound for bound, kernel in BOUND.findall(text)} for name, text in texts.items()}
    in_headers = {key: one for name, of in bounds.items() if name.endswith(".h") for key, one in of.items()}
    count = 0
    for name, text in texts.items():
        known = {**in_headers, **bounds[name]}
        for kernel, _, threads, *_ in launches(text):
            if kernel.startswith("void (*kernel)"):  # launch itself
                continue
            named = dict(re.findall(r"const auto (\w+) = ([^;]*);", text))
            kernels = [one for one in re.findall(r"\w+", named.get(kernel, kernel)) if one in known]
            assert kernels, f"{name}: launch({kernel}, ...)"
            assert {known[one] for one in kernels} == {threads}, f"{name}: launch({kernel}, ...)"
            count += 1
    assert count > 70


def test_places_of_blocks_have_64_bits() -> None:
    """CUDA's numbers of blocks have 32: times a constant they overflow in a grid of 2^30 blocks, which no test runs."""
    for path in sorted((ROOT / "cuda").glob("*.[ch]*")):
        found = re.findall(r"(?<!\(int64_t\))\b(?:blockIdx|gridDim)\.\w \* [A-Z].*", path.read_text(encoding="utf-8"))
        assert not found, f"{path.name}: {found}"


def test_the_runtime_itself(tmp_path: Path) -> None:
    """cuda/runtime.cu: the harness has another file in its place. Each handle of cuBLAS holds memory of the GPU, so a
    thread that ends leaves its handle to others. A failure has its own reason, also after a call that failed."""
    program = tmp_path / "handles"
    folders = [
        f"-I{ROOT / one}" for one in ("tests/cuda/stand_in", "cuda", "csrc/include", "csrc/runtime", "csrc/kernels")
    ]
    options = ["-std=c++20", "-O1", "-pthread", "-rdynamic", "-DROT_CUDA=1", "-DROT_DTYPE=f32", "-DROT_ISA=cuda"]
    compiler = os.environ.get("CXX", "g++").split()
    subprocess.run([*compiler, *options, *folders, ROOT / "tests/cuda/handles.cpp", "-o", program, "-ldl"], check=True)
    ran = subprocess.run([program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        "one after the other: 1",
        "four at once: 4",
        "-1: cudaGetDevice: the stand-in's",
        "0: cudaFuncGetAttributes: the stand-in's",
        "0, 1",
    ]
    assert ran.stderr == "cuBLAS: the current GPU's number is too large\n"
