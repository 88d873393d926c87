"""Several Python threads call kernels at once, as the module's slot Py_mod_gil says they may: each gets its own bits.

While a kernel runs the GIL is released, so with it too kernels and the pool's memory are used at the same time.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotrnn
from patience import PATIENCE
from rotrnn import _cpu
from small_models import sizes_of

THREADS, ROUNDS = 6, 12
MAPS = Path("/proc/self/maps")
ROOT = Path(__file__).parents[2]
CC = shlex.split(os.environ.get("CC", "cc"))


def scan(seed: int) -> list[Any]:
    """Forward and backward of arrays that are large enough for the pool, and some that are not."""
    rng = np.random.default_rng(seed)
    a, x = rng.uniform(0.1, 0.9, 64), rng.standard_normal((2, 1000 + 100 * seed, 64))
    h = rotrnn.ops.diagonal_scan(a, x)
    grads = rotrnn.ops.diagonal_scan_backward(np.ones_like(h), a, h)
    return [h, grads.dx, grads.da]


def layer(seed: int) -> list[Any]:
    """A layer's step forward and back, which takes workspaces and draws nothing."""
    rng = np.random.default_rng(seed)
    rotation = rotrnn.RotRNN(d_model=16, d_state=16, heads=2)
    params = rotation.init(rng)
    x = rng.standard_normal((2, 200 + seed, 16)).astype(np.float32)
    y, saved = rotation.forward(params, x)[:2]
    dx, grads = rotation.backward(params, saved, np.ones_like(y))[:2]
    return [y, dx, *(grads[name] for name in sorted(grads))]


def all_at_once(work: Callable[[int], list[Any]], count: int = ROUNDS) -> list[list[list[Any]]]:
    """What each thread made of every seed, round after round, all having started together."""
    start = threading.Barrier(THREADS)

    def rounds(seed: int) -> list[list[Any]]:
        _cpu.use_threads(2)  # OpenMP's number belongs to the thread
        start.wait()
        return [work(seed) for _ in range(count)]

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(rounds, range(THREADS)))


@pytest.mark.parametrize("work", [scan, layer])
def test_threads_get_the_bits_of_a_single_one(work: Callable[[int], list[Any]]) -> None:
    expected = [work(seed) for seed in range(THREADS)]
    for seed, found in enumerate(all_at_once(work)):
        for one in found:
            for got, wanted in zip(one, expected[seed], strict=True):
                np.testing.assert_array_equal(got, wanted)


WRITTEN_TO = """
import threading, numpy as np, rotrnn

B, T, V, L = 4, 4096, 16, 3
ids = np.zeros((B, T), np.int64)
labels, lengths, past, places = (np.zeros(n, np.int64) for n in (B * T, B, B, B))
table, dy, logits = np.ones((V, 32), np.float32), np.ones((B, T, 32), np.float32), np.ones((B * T, V), np.float32)
a, x = np.ones(2, np.float32), np.ones((B, T, 2), np.float32)
delay, sums = np.ones((B, L + 1, 2), np.float32), np.ones((B, 2, 2), np.float32)
calls = (
    lambda: rotrnn.ops.embedding(ids, table),
    lambda: rotrnn.ops.embedding_backward(dy, ids, V),
    lambda: rotrnn.ops.cross_entropy(logits, labels),
    lambda: rotrnn.ops.diagonal_scan(a, x, lengths=lengths),
    lambda: rotrnn.ops.attention(x[:, :4], x, x, heads=1, past=past),
    lambda: rotrnn.ops.tiir_scan(a, x, (delay, sums, places), window=L),
    lambda: rotrnn.ops.dropout(x, 0.5, seed=0, step=0, site=0, places=places),
)
done = threading.Event()

def write():
    while not done.is_set():
        for array in (ids, labels, lengths, past, places):
            array[...] = 2**40  # far outside of every array
            array[...] = 0

other = threading.Thread(target=write)
other.start()
ran = 0
try:
    for call in 60 * calls:
        try:
            call()
            ran += 1
        except ValueError as error:
            assert "expected" in str(error), error
finally:
    done.set()
    other.join()
assert ran
"""


def test_integers_may_be_written_to_while_a_kernel_indexes_by_them() -> None:
    """A call works on its checked copy: it gives a result or an error, and never reads outside of an array.

    In a process of its own, which a fault would end by a signal.
    """
    ended = subprocess.run([sys.executable, "-c", WRITTEN_TO], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("head", ["classifier", "tagger", "retrieval"])
def test_tokens_may_be_written_to_between_forward_and_backward(head: str) -> None:
    """What a forward saves has a copy of them."""
    settings = rotrnn.ModelSettings("lru", d_model=4, n_layers=1)
    model = rotrnn.build_model(settings, {"d_state": 3}, head=head, n_classes=3, vocab=5)
    params = model.init(np.random.default_rng(0))
    tokens = np.ones((2, 2, 6) if head == "retrieval" else (2, 6), np.int64)
    y, saved = model.forward(params, tokens)
    expected = model.backward(params, saved, y)["encoder"]["table"]
    assert expected[1].any()
    tokens[...] = 2**40
    np.testing.assert_array_equal(model.backward(params, saved, y)["encoder"]["table"], expected)


@pytest.mark.parametrize("name", rotrnn.LAYERS)
def test_every_layer_on_shared_arrays(name: str) -> None:
    """Threads share the input, the parameters and what steps prepare, which a layer may extend; each has its state."""
    layer = rotrnn.LAYERS[name](d_model=4, **sizes_of(name))
    rng = np.random.default_rng(0)
    params, x = layer.init(rng), rng.standard_normal((2, 12, 4)).astype(np.float32)
    ready = layer.prepare(params)

    def work(_: int) -> list[Any]:
        y, saved = layer.forward(params, x)[:2]
        dx = layer.backward(params, saved, np.ones_like(y))[0]
        state, outputs = None, []
        for t in range(12):
            one, state = layer.step(params, state, x[:, t], ready)
            outputs.append(one)
        return [y, dx, *outputs]

    expected = work(0)
    for found in all_at_once(work, 2):
        for one in found:
            for got, wanted in zip(one, expected, strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_the_instruction_set_may_change_while_others_compute() -> None:
    """Every call runs on one of the sets from its start to its end: each array has the bits of one of them."""
    x, w = np.random.default_rng(0).standard_normal((2, 64, 65)).astype(np.float32)
    before = _cpu.simd()
    expected = []
    for level in _cpu.SIMD_AVAILABLE:
        _cpu.use_simd(level)
        expected.append(rotrnn.ops.dense(x, w).tobytes())
    done = threading.Event()

    def switch() -> None:
        while not done.is_set():
            for level in _cpu.SIMD_AVAILABLE:
                _cpu.use_simd(level)

    other = threading.Thread(target=switch)
    other.start()
    try:
        found = {rotrnn.ops.dense(x, w).tobytes() for _ in range(200)}
    finally:
        done.set()
        other.join()
        _cpu.use_simd(before)
    assert found <= set(expected)


def test_memory_is_released_while_others_take_it() -> None:
    expected = scan(0)
    done = threading.Event()

    def release() -> None:
        while not done.is_set():
            rotrnn.release_memory()

    other = threading.Thread(target=release)
    other.start()
    try:
        found = [scan(0) for _ in range(ROUNDS)]
    finally:
        done.set()
        other.join()
    for one in found:
        for got, wanted in zip(one, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


# ---- what other code in the process does to the module ----


def run(code: str, **environment: str) -> str:
    """What a process of its own prints."""
    env = os.environ | environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_after_a_second_import() -> None:
    """The module's fork handlers are registered once: registered twice, they would take the pool's lock twice."""
    code = """
import importlib, os, sys
import numpy as np
for _ in range(3):
    for name in [one for one in sys.modules if one.startswith("rotrnn")]:
        del sys.modules[name]
    import rotrnn
    a, x = np.full(4, 0.5), np.ones((2, 50_000, 4))
    h = rotrnn.ops.diagonal_scan(a, x)
child = os.fork()
if not child:
    os._exit(not np.array_equal(rotrnn.ops.diagonal_scan(a, x), h))
print(os.waitpid(child, 0)[1])
"""
    assert run(code) == "0\n"


@pytest.mark.skipif(
    not (ROOT / "csrc").exists() or not hasattr(os, "fork") or not shutil.which(CC[0]),
    reason="needs the sources, a compiler and fork",
)
def test_a_child_may_allocate_though_another_thread_held_the_pool(tmp_path: Path) -> None:
    """The child has no thread that could give back the lock."""
    folders = [f"-I{ROOT / 'csrc' / name}" for name in ("include", "runtime", "kernels")]
    subprocess.run([*CC, "-pthread", *folders, ROOT / "tests" / "c" / "forks.c", "-o", tmp_path / "forks"], check=True)
    assert subprocess.run([tmp_path / "forks"], timeout=PATIENCE).returncode == 0


@pytest.mark.skipif(not shutil.which("gcc") or platform.machine() != "x86_64", reason="sets the mode of an x86 by gcc")
def test_a_library_that_flushes_denormal_numbers_changes_no_bit(tmp_path: Path) -> None:
    """-ffast-math sets this mode for the thread that loads a library, and threads inherit it."""
    source = tmp_path / "flush.c"
    source.write_text(
        "void flush(void) { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); }\n"
        "unsigned mode(void) { return __builtin_ia32_stmxcsr() & 0x8040; }\n",
        encoding="utf-8",
    )
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", tmp_path / "flush.so"], check=True)
    code = f"""
import ctypes
import numpy as np
import rotrnn
a, x = np.full(64, 0.9), np.full((4, 5000, 64), 1e-310)
w = np.full((64, 64), 1e-3)
def results():
    return [rotrnn.ops.diagonal_scan(a, x), rotrnn.ops.dense(x, w), rotrnn.ops.diagonal_scan_backward(x, a, x).da]
expected = results()
assert expected[0][0, -1, 0] > 0 and expected[1].any()
library = ctypes.CDLL({str(tmp_path / "flush.so")!r})
library.flush()
found = results()
assert library.mode() == 0x8040  # the caller's own mode is as it was
for one, other in zip(found, expected):
    assert one.tobytes() == other.tobytes()
print("same")
"""
    assert run(code, OMP_NUM_THREADS="2") == "same\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bits of an x86")
def test_the_mode_of_code_around_kernels() -> None:
    """That of the calling thread, for callers in threads of libraries that flush subnormal numbers."""
    flush, other, small = 0x8040, 0x3F, np.full(1, 1e-310)
    before = _cpu.use_float_mode(None)
    try:
        usual = _cpu.use_float_mode(flush | other)
        flushed = small * 0.5
        assert _cpu.use_float_mode(None) & ~other == usual & ~other | flush
        assert not flushed.any()
        assert (small * 0.5).all()
    finally:
        _cpu.use_float_mode(before)
    with pytest.raises(TypeError):
        _cpu.use_float_mode("flush")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        _cpu.use_float_mode(-1)


def test_threads_that_begin_in_a_stream_do_not_keep_its_mode() -> None:
    """Streams count subnormal numbers as zero; kernels do not, on whichever thread."""
    code = """
import numpy as np
import rotrnn
settings = rotrnn.ModelSettings("lru", 128, 1)
model = rotrnn.build_model(settings, {"d_state": 128}, head="tagger", n_classes=2, n_features=2)
stream = model.stream(model.init(np.random.default_rng(0)), 96)
stream.push(np.ones((96, 4, 2), np.float32))
y = rotrnn.ops.dense(np.full((4, 5000, 64), 1e-310), np.full((64, 64), 1e-3))
print(stream.engine, bool((y > 0).all()))
"""
    assert run(code, OMP_NUM_THREADS="2") == "c True\n"


def test_initial_values_do_not_depend_on_the_threads_of_blas() -> None:
    """S5's eigenvectors and RNN's orthogonal matrix, at sizes where LAPACK's last bits did."""
    code = f"""
import hashlib, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import numpy as np
from cases import LAYER_ROWS
from rotrnn.nn.registry import LAYERS
layers = [row.layer for row in LAYER_ROWS]
layers += [LAYERS["s5"](64, 512, blocks=1), LAYERS["s4d"](8, 512), LAYERS["rnn"](8, 256, initialisation="orthogonal")]
for layer in layers:
    params = layer.init(np.random.default_rng(0))
    print(layer, hashlib.sha256(b"".join(params[name].tobytes() for name in sorted(params))).hexdigest())
"""
    one, two = (run(code, OPENBLAS_NUM_THREADS=n, OMP_NUM_THREADS=n, MKL_NUM_THREADS=n) for n in ("1", "2"))
    assert one == two


@pytest.mark.skipif(
    not (MAPS.exists() and "libgomp" in MAPS.read_text(encoding="utf-8")),
    reason="another OpenMP than GNU's, or a system that hides it",
)
@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "3000"), ({"OMP_WAIT_POLICY": "passive"}, "0"), ({"GOMP_SPINCOUNT": "77"}, "77")],
    ids=["by default", "policy", "count"],
)
def test_waiting_threads_spin_briefly_unless_told_otherwise(given: dict[str, str], spins: str) -> None:
    """OpenMP itself tells, on the standard error stream; the process's environment is as it was."""
    code = "import os; before = dict(os.environ); import rotrnn; print(before == dict(os.environ))"
    env = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    env |= {"OMP_DISPLAY_ENV": "verbose", **given}
    child = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert child.stdout == "True\n"
    assert f"GOMP_SPINCOUNT = '{spins}'" in child.stderr
