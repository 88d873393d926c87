"""What a kernel indexes by is checked by the module itself, whatever the op in Python forgot to check.

Every kernel that the table of cases reaches is called once more as an op called it, with one thing wrong at a time; and
on arrays between pages that cannot be accessed, where a wrong extent in csrc/kernels.list ends the process.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import CASES
from rotrnn import _cpu
from rotrnn.devices.device import HOST

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
pytestmark = pytest.mark.skipif(not CSRC.is_dir(), reason="the list is in the source tree, not in a wheel")
KERNELS: dict[str, Any] = {}
if CSRC.is_dir():
    read = runpy.run_path(str(CSRC / "generate.py"))["read"]
    KERNELS = {kernel.name: kernel for kernel in read((CSRC / "kernels.list").read_text(encoding="utf-8")).kernels}
DATA = {name for name, kernel in KERNELS.items() if kernel.kind == "once"}
UNLISTED = {
    *("tiir", "adamw", "adamw_groups", "norm", "place_parts", "copy", "philox", "mask_padding", "dropout", "relax"),
    *("running_moments", "sgd"),
}
"""Kernels that no row of the table of cases calls."""


class Recorder:
    """The CPU's kernels, which keep a copy of the first calls of each, with and without its optional arrays."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, frozenset[str]], dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> None:
            there = frozenset(key for key, value in arguments.items() if value is not None)
            if (name, there) not in self.calls:
                plain = {key: np.array(one) if isinstance(one, np.ndarray) else one for key, one in arguments.items()}
                self.calls[name, there] = plain
            getattr(_cpu.kernels, name)(**arguments)

        return call


@pytest.fixture(scope="module")
def calls() -> dict[tuple[str, frozenset[str]], dict[str, Any]]:
    """Arguments of valid calls, at least one of each kernel of the table of cases."""
    recorder, before = Recorder(), HOST.kernels
    object.__setattr__(HOST, "kernels", recorder)
    try:
        for case in CASES:
            args = case.make(np.random.default_rng(0))
            outputs = case.forward(args)
            case.backward(args, outputs, tuple(np.ones_like(one) for one in outputs))
    finally:
        object.__setattr__(HOST, "kernels", before)
    return recorder.calls


def refused(name: str, arguments: dict[str, Any], wrong: dict[str, Any]) -> None:
    """The call is refused, by an error that names the kernel and the argument."""
    argument = "|".join(wrong)
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: .*\b({argument})\b"):
        getattr(_cpu.kernels, name)(**{**arguments, **wrong})


def test_the_cases_reach_every_kernel(calls: Any) -> None:
    missing = set(KERNELS) - DATA - {name for name, _ in calls}
    assert missing <= UNLISTED, missing


def test_an_array_of_another_size_is_refused(calls: Any) -> None:
    for (name, _), arguments in calls.items():
        getattr(_cpu.kernels, name)(**arguments)
        for key, value in arguments.items():
            if isinstance(value, np.ndarray) and value.size:
                refused(name, arguments, {key: value.ravel()[:-1].copy()})
                refused(name, arguments, {key: np.append(value.ravel(), value.ravel()[:1])})


def test_numbers_out_of_range_are_refused(calls: Any) -> None:
    """Of arrays by which a kernel indexes: below, above, and so large that a sum would wrap."""
    found = 0
    for (name, _), arguments in calls.items():
        for one in KERNELS[name].every():
            value = arguments[one.name]
            if not one.range or not isinstance(value, np.ndarray) or not value.size:
                continue
            found += 1
            for wrong in (int(one.range[0]) - 1, 2**62, 2**63 - 1, -(2**63)):
                for at in (0, -1):
                    changed = value.copy()
                    changed.ravel()[at] = wrong
                    refused(name, arguments, {one.name: changed})
    assert found > 30


@pytest.mark.parametrize("name", KERNELS)
def test_integers_that_a_kernel_indexes_by_have_a_range(name: str) -> None:
    """The test above takes ranges from the list, so it would not miss one: all integers have one but keys of random
    numbers, numbers of examples, and a count by which cross_entropy divides."""
    free = {"philox": {"counter", "key"}, "cross_entropy": {"count"}}.get(name, {"stream", "index"})
    read = [one for one in KERNELS[name].every() if one.kind == "read" and one.dtype == "int64"]
    assert [one.name for one in read if not one.range and one.name not in free] == []


def test_flags_choices_and_sizes_out_of_range_are_refused(calls: Any) -> None:
    for (name, _), arguments in calls.items():
        kernel = KERNELS[name]
        sizes = " ".join(" ".join(one.shape or ()) for one in kernel.every())
        for one in kernel.every():
            if one.kind != "int":
                continue
            if one.range:
                refused(name, arguments, {one.name: int(one.range[1]) + 1})
            if one.range or re.search(rf"\b{one.name}\b", sizes):
                for wrong in (-1, 2**62, 2**64, -(2**80)):
                    refused(name, arguments, {one.name: wrong})


def test_zero_is_an_integer_or_refused(calls: Any) -> None:
    """Kernels divide by some of their integers, which ended the process."""
    errors = []
    for (name, _), arguments in calls.items():
        for one in KERNELS[name].every():
            if one.kind == "int":
                try:
                    getattr(_cpu.kernels, name)(**{**arguments, one.name: 0})
                except (TypeError, ValueError) as error:
                    errors.append((name, str(error)))
    assert [message for name, message in errors if not message.startswith(f"{name}: ")] == []


def test_written_arrays_that_overlap_another_are_refused(calls: Any) -> None:
    found = 0
    for (name, _), arguments in calls.items():
        written = [one.name for one in KERNELS[name].every() if one.kind == "write"]
        for one in written:
            for other, value in arguments.items():
                mine = arguments[one]
                if other == one or not isinstance(mine, np.ndarray) or not isinstance(value, np.ndarray):
                    continue
                if mine.dtype == value.dtype and mine.size == value.size > 0:
                    found += 1
                    with pytest.raises(ValueError, match=rf"^{name}: ({one}|{other}) overlaps ({one}|{other})"):
                        getattr(_cpu.kernels, name)(**{**arguments, one: value.reshape(mine.shape)})
    assert found > 100


@pytest.mark.parametrize(
    ("name", "integers"),
    [
        ("mixer_prepare", {"M": 1, "R": 2**17, "D": 2**47, "form": 0}),  # R (D + 1) is 2^64 + 2^17, R D is 2^64
        ("mixer_prepare", {"M": 1, "R": 2**47, "D": 2**47, "form": _cpu.MIXER["kronecker"]}),
        ("scan_forward", {"B": 2**32, "T": 2**32, "N": 1, "reverse": 0, "varying": 1}),
        ("selective_solve", {"B": 1, "T": 1, "E": 2**32, "S": 0, "R": 2**32, "columns": 2**32}),
        ("selective_solve", {"B": 1, "T": 1, "E": 1, "S": 2, "R": 2**63 - 1, "columns": 2**62}),
        ("selective_solve", {"B": 1, "T": 1, "E": 1, "S": 2**62, "R": 1, "columns": 2**62}),
    ],
)
def test_sizes_do_not_wrap(name: str, integers: dict[str, int]) -> None:
    """Each array has as many numbers as 64 bits say that it must have."""
    given: dict[str, Any] = {}
    for one in KERNELS[name].every():
        if one.kind == "int":
            given[one.name] = integers.get(one.name, 0)
        elif one.kind == "float":
            given[one.name] = 1.0
        elif one.optional:
            given[one.name] = None
        else:
            given[one.name] = np.zeros(2**17 if one.kind == "write" and name == "mixer_prepare" else 0)
    with pytest.raises(ValueError, match=f"^{name}: "):
        getattr(_cpu.kernels, name)(**given)


def test_a_mixture_is_no_mixer_of_a_kernel_of_one() -> None:
    """Its value once passed for any R that divides D, with the sizes of vectors and the loops of triangles."""
    R, D = 4, 8
    given: dict[str, Any] = {"u": np.ones((1, R * D)), "M": 1, "R": R, "D": D}
    _cpu.kernels.mixer_prepare(w=np.zeros((1, R * (D + 1))), **given, form=_cpu.MIXER["householder"], normalised=False)
    with pytest.raises(ValueError, match=r"^mixer_prepare: expected mixer_fits\(form, R, D\)"):
        _cpu.kernels.mixer_prepare(w=np.zeros((1, R * (D + 1))), **given, form=_cpu.MIXER["mixture"], normalised=False)
    for kernel in ("mix_forward", "mix_backward", "depth_pass", "depth_solve"):
        assert "mixer_fits(form, R, D)" in " ".join(KERNELS[kernel].every_condition())


@pytest.mark.parametrize(("count", "T"), [(2**62, 1), (2**63 - 1, 1), (1, 2**16)])
def test_numbers_that_a_network_does_not_have_bits_for_are_refused(count: int, T: int) -> None:
    """A find of the fuzzer: a shift by 64."""
    row, elements = np.zeros(1, np.int64), np.zeros((1, T), np.int64)
    with pytest.raises(ValueError, match=r"^word_sample: "):
        _cpu.kernels.word_sample(elements=elements, row=row, n=1, T=T, order=2, count=count, seed=0)
    _cpu.kernels.word_sample(elements=elements[:, :1].copy(), row=row, n=1, T=1, order=2, count=2**62 - 1, seed=0)


@pytest.mark.parametrize(("B", "T"), [(2**40, 1), (1, 2**25), (2**20, 2**20)])
def test_rows_without_numbers_are_counted(B: int, T: int) -> None:
    """A find of the fuzzer: gains of a mixer without channels were summed over 2^40 empty rows."""
    given: dict[str, Any] = dict.fromkeys(("dx", "du", "dy", "u", "x"), np.zeros(0))
    given |= {"dorigin": None, "origin": None, "lengths": None, "alpha": np.ones(3), "R": 3, "D": 0}
    given |= {"form": _cpu.MIXER["householder"], "u_varying": 0, "alpha_varying": 0, "normalised": 0}
    with pytest.raises(ValueError, match=r"^mix_backward: x has shape \(0,\), but \(B, T, D\) has too many rows"):
        _cpu.kernels.mix_backward(dalpha=np.ones(3), B=B, T=T, **given)
    _cpu.kernels.mix_backward(dalpha=(dalpha := np.ones(3)), B=2, T=2**20, **given)
    np.testing.assert_array_equal(dalpha, 0)


def test_an_argument_that_is_given_twice_is_named() -> None:
    class Other(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    arguments = {"y": np.zeros(1), "x": np.zeros(1), "lengths": None, "B": 1, "D": 1}
    with pytest.raises(TypeError, match="mean_pool_forward: B is given twice"):
        _cpu.kernels.mean_pool_forward(**arguments, **{Other("B"): 1})  # type: ignore[arg-type]


def run_guarded(code: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", **more}
    return subprocess.run([sys.executable, *code], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="memory is protected by mprotect")
@pytest.mark.skipif(not _cpu.KEEPS_MEMORY, reason="a sanitizer has guards of its own")
@pytest.mark.parametrize(
    "simd", [*(pytest.param(one, marks=pytest.mark.whole) for one in _cpu.SIMD_AVAILABLE[:-1]), _cpu.SIMD_AVAILABLE[-1]]
)
def test_no_kernel_leaves_the_extents_of_the_list(simd: str) -> None:
    done = run_guarded([str(ROOT / "tests" / "guard.py")], ROTRNN_SIMD=simd)
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr[-2000:])
    assert set(done.stdout.splitlines()[-1].split()[1:]) >= set(KERNELS) - DATA - UNLISTED


def test_the_fuzzer_of_these_checks_reads_every_row_of_the_list() -> None:
    """`make fuzz-c` runs it."""
    from fuzz import door  # reads the list, which a wheel does not have

    assert {door.call_of(bytes([i]))[0].name for i in range(len(door.KERNELS))} == set(KERNELS)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator is preloaded, and is glibc's")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="the sanitizer has its own allocator")
def test_whichever_allocation_fails_there_is_a_memory_error_and_all_is_as_before(tmp_path: Path) -> None:
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", tmp_path / "failing.so", ROOT / "tests/failing.c", "-ldl"], check=True
    )
    env = os.environ | {
        "LD_PRELOAD": "./failing.so",  # its names end at spaces
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "1",
    }
    script = str(ROOT / "tests" / "allocations.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
