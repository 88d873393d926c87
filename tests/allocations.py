"""Calls of the extension module in which one allocation fails, each in turn: MemoryError, and all is as it was before.

    PYTHONMALLOC=malloc OMP_NUM_THREADS=1 LD_PRELOAD=failing.so python tests/allocations.py

Of every kernel, as the table of cases and small tasks call it, of the module's functions, and of a stream. Prints what
is not so: another error, a setting or a state that has changed, and blocks that are not given back.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from cases import CASES
from rotrnn import ModelSettings, _cpu, build_model, tasks
from rotrnn._support.json import to_json
from rotrnn.devices.device import HOST
from rotrnn.models.listing import listed
from rotrnn.nn.layer import astype

ALLOCATOR = ctypes.PyDLL(None)
fail_at, blocks_in_use = ALLOCATOR.fail_at, ALLOCATOR.blocks_in_use
fail_at.argtypes, blocks_in_use.restype = [ctypes.c_long], ctypes.c_long
SMALL: tuple[Any, ...] = (
    tasks.ListOps(train=4, val=4, test=4, max_length=24, min_length=5, max_depth=3),
    tasks.WordProblem(samples=8, test=4),
    tasks.Copy(val_each=1, test_each=1),
    tasks.DelayedCopy(train=4, val=4, test=4),
    tasks.Brackets(train=4, val=4, test=4),
    tasks.Regular(val_each=1, test_each=1),
    tasks.Pathfinder(train=4, val=4, test=4),
)
"""Tasks whose data are generated in C."""


def attempt(call: Callable[[], Any], n: int) -> tuple[bool, bool, str]:
    """Makes a call whose n-th allocation fails: whether it returned, whether it was reached, the error."""
    done, error = False, ""
    _cpu.release_memory()  # so that workspaces are allocated, too
    try:
        fail_at(n)
        call()
        done = True
        return True, bool(fail_at(-1)), ""
    except BaseException as caught:
        fail_at(-1)
        error = f"{type(caught).__name__}: {caught}"
    return done, True, error


def lost(call: Callable[[], Any], n: int, times: int = 100) -> bool:
    """Whether each of many such calls leaves a block behind, after as many in which caches may grow."""
    before = 0
    for _ in range(2):
        gc.collect()
        before = blocks_in_use()
        for _ in range(times):
            attempt(call, n)
    gc.collect()
    return bool(blocks_in_use() - before >= times)


def check(title: str, call: Callable[[], Any], state: Callable[[], Any] = lambda: None) -> None:
    """Makes the calls; `state` is what a call that fails must not change."""
    for _ in range(3):  # what is allocated once
        call()
    n, more = 0, True
    while more:
        in_use = array("q", [0] * 4)
        for i in range(len(in_use)):
            before = state()
            done, more, error = attempt(call, n)
            if not done and not error.startswith("MemoryError"):
                print(f"{title}, allocation {n}: {error}")
            if not done and state() != before:
                print(f"{title}, allocation {n}: is {state()!r:.80}, expected {before!r:.80} as before")
            in_use[i] = blocks_in_use()
        if in_use[1] < in_use[2] < in_use[3] and lost(call, n):
            print(f"{title}, allocation {n}: blocks are not given back")
        n += 1


UNLISTED = {"tiir", "adamw", "sgd", "adamw_groups", "norm", "place_parts", "copy", "philox", "relax", "running_moments"}
"""Kernels that neither calls."""


class Kernels:
    """The CPU's kernels, of which the first call of each is checked, with and without its optional arrays."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, frozenset[str]]] = set()

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(_cpu.kernels, name)

        def call(**arguments: Any) -> None:
            key = name, frozenset(key for key, value in arguments.items() if value is not None)
            if key not in self.seen:
                self.seen.add(key)
                copies = {key: np.array(one) if isinstance(one, np.ndarray) else one for key, one in arguments.items()}
                check(name, lambda: kernel(**copies))
            kernel(**arguments)

        return call


def check_kernels() -> set[str]:
    """Returns the names of the kernels that were checked."""
    kernels, before = Kernels(), HOST.kernels
    object.__setattr__(HOST, "kernels", kernels)
    try:
        for case in CASES:
            args = case.make(np.random.default_rng(0))
            outputs = case.forward(args)
            case.backward(args, outputs, tuple(np.ones_like(one) for one in outputs))
        for task in SMALL:
            loaded = task.load()
            for split in (loaded.train, loaded.val, loaded.test):
                split.batch(np.arange(2))
        tasks.listops.parse(tasks.listops.render(tasks.listops.parse("( ( ( [MAX 3 ) 4 ) ] )")[0]))
    finally:
        object.__setattr__(HOST, "kernels", before)
    return {name for name, _ in kernels.seen}


def float_mode() -> int:
    mode = _cpu.use_float_mode(0)
    _cpu.use_float_mode(mode)
    return mode & 0xE040


def check_functions() -> None:
    """What sets something sets nothing if it cannot return what was set before."""
    check("empty", lambda: _cpu.empty((3, 4), "f8"), np._core.multiarray.get_handler_name)
    for use, now, values in (
        (_cpu.use_simd, _cpu.simd, _cpu.SIMD_AVAILABLE),
        (_cpu.use_bf16_by, _cpu.bf16_by, _cpu.BF16_BY_AVAILABLE),
        (_cpu.use_precision, _cpu.precision, ("float32", "bf16")),
        (_cpu.use_threads, _cpu.threads, (1, 2)),
        (_cpu.use_float_mode, float_mode, (0x8040, 0xE040)),
    ):
        kept, turns = now(), itertools.cycle(values)
        check(use.__name__, lambda use=use, turns=turns: use(next(turns)), now)
        use(kept)


def check_streams() -> None:
    """A push that fails leaves the stream where it was."""
    for layer, n, size in (
        ("lru", 7, 4),
        ("lru", 300, 64),
        ("min_gru", 7, 4),
    ):  # also one long enough for its own thread
        model = build_model(ModelSettings(layer, size, 2), {"d_state": 3}, head="tagger", n_classes=3, vocab=5)
        params = astype(model.init(np.random.default_rng(0)), np.float32)
        listing = listed(model, params)
        facts, arrays = to_json({"program": listing.described()}), listing.arrays
        check(f"Stream of {layer}", lambda facts=facts, arrays=arrays: _cpu.Stream(facts, arrays, 2, False))
        stream = _cpu.Stream(facts, arrays, 2, False)
        tokens, y = np.ones((2, n), np.int64), np.empty((2, n, 3), np.float32)

        def push(stream: Any = stream, tokens: Any = tokens, n: int = n, y: Any = y) -> None:
            stream.push(tokens, n, None, False, y)

        def state(stream: Any = stream) -> bytes:
            return stream.state(None)

        check("Stream.push", push, state)
        kept = state()
        for call in (
            state,
            lambda stream=stream, kept=kept: stream.restore(kept, None),
            stream.steps,
            stream.unsettled,
        ):
            check("Stream, a call", call, state)


def main() -> None:
    check_functions()
    check_streams()
    missing = {name for name in dir(_cpu.kernels) if not name.startswith("_")} - check_kernels() - UNLISTED
    if missing:
        print(f"kernels that were not called: {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main()
