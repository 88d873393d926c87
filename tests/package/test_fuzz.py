"""The fuzzer of calls (tests/fuzz): it finds planted faults, its calls are reproducible, and a short run finds none."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotrnn
from fuzz import calls
from fuzz.calls import Trial, judged, shrunk, trial
from fuzz.found import FOUND, Found
from fuzz.good_calls import Call, recorded, recording, scenarios
from fuzz.mutations import Mutation
from fuzz.tree import leaves
from rotrnn import ops
from rotrnn.nn.layer import Recurrent
from rotrnn.nn.registry import LAYERS

TESTS = Path(__file__).parents[1]
KEPT = []


def in_place(x: Any) -> Any:
    x *= 2
    return x.sum()


def unclear(x: Any) -> Any:
    raise ValueError("bad input")


def unlisted(x: Any) -> Any:
    return {}["x"]


def by_layout(x: Any) -> Any:
    return float(x.flags.c_contiguous)


def by_chance(x: Any) -> Any:
    KEPT.append(x)
    return np.full(3, len(KEPT))


def view(x: Any) -> Any:
    return x[1:]


PLANTED: list[tuple[Callable[[Any], Any], str]] = [
    (in_place, "changed its input"),
    (unclear, "unclear error"),
    (unlisted, "unclear error"),
    (by_layout, "layout matters"),
    (by_chance, "layout matters"),
    (view, "result shares memory"),
]


@pytest.mark.parametrize(("function", "kind"), PLANTED, ids=[one.__name__ for one, _ in PLANTED])
def test_planted_faults_are_found(function: Callable[[Any], Any], kind: str) -> None:
    call = Call(function.__name__, function, {"x": np.ones((4, 3))})
    assert kind in [fault.kind for fault in judged(Trial(call, (Mutation(("x",), "fortran", 0),)))]


def test_a_fault_is_shrunk_to_the_mutation_that_it_needs() -> None:
    call = Call("by_layout", by_layout, {"x": np.ones((4, 3))})
    needed = Mutation(("x",), "fortran", 0)
    many = Trial(call, (Mutation((), "single", 0), needed, Mutation(("x",), "read-only", 1)))
    assert shrunk(many, lambda fewer: any(one.kind == "layout matters" for one in judged(fewer))).mutations == (needed,)


def test_a_call_depends_on_its_seed_and_index_alone() -> None:
    def bits(index: int) -> list[Any]:
        one = trial(3, index)
        try:
            found = [leaf for _, leaf in leaves(one.arguments()) if type(leaf) is np.ndarray]
            return [str(one), *((leaf.shape, leaf.flat[:1000].tobytes()) for leaf in found)]  # views may be huge
        except (TypeError, ValueError) as error:  # a dataclass refuses its setting
            return [str(one), str(error)]

    first = [bits(index) for index in range(20)]
    assert [bits(index) for index in reversed(range(20))] == first[::-1]
    assert len({line[0] for line in first}) == 20


def test_a_crash_is_attributed_to_its_call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker dies at call 3; the next one goes on with call 4."""
    code = (
        "import os, sys, fuzz.calls as calls\n"
        "number = iter(range(int(sys.argv[sys.argv.index('--first') + 1]), 9))\n"
        "calls.judged = lambda one: os.abort() if next(number) == 3 else []\n"
        "sys.exit(calls.main())"
    )
    monkeypatch.setattr(calls, "_command", lambda options: [sys.executable, "-c", code, "--seed", "0"])
    monkeypatch.setattr(calls, "_crash_of", lambda options, index: f"call {index}")
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    report = calls.Report(0)
    calls._supervise(argparse.Namespace(seed=0, only="", count=6, processes=1), 0, report)
    assert len(report.found) == 1
    assert "seed 0 index 3: crash: exit -6" in capsys.readouterr().out


def test_everything_public_is_called() -> None:
    expected = {name for name in ops.__all__ if name[0].islower()}
    for name, kind in LAYERS.items():
        assert issubclass(kind, Recurrent), name
        expected |= {f"{kind.__name__}.{method}" for method in ("init", "forward", "backward", "prepare", "step")}
    heads = (rotrnn.SequenceClassifier, rotrnn.Retrieval, rotrnn.Tagger, rotrnn.BitTagger, rotrnn.LanguageModel)
    expected |= {f"{head.__name__}.{method}" for head in heads for method in ("forward", "backward", "loss")}
    expected |= {"Stream.push", "AdamW.update", "LanguageModel.sample", "build_model", "learning_rate"}
    for family, several in scenarios().items():
        for place in range(len(several) - 1, -1, -1):
            found = recorded(family, place)
            expected -= found.keys()
            if not any(name.startswith(family) for name in expected):
                break
    assert not expected


def test_methods_in_the_same_wrapper_are_recorded_by_their_own_names() -> None:
    """Forward and eigenvalues(params, x, ctx, state) run the same code, that of their wrapper."""
    layer, x = rotrnn.DeltaNet(4, 2), np.ones((1, 3, 4), np.float32)
    params = layer.init(np.random.default_rng(0))
    with recording() as found:
        layer.eigenvalues(params, x)
        layer.forward(params, x)
    assert [call.name for call in found] == ["DeltaNet.eigenvalues", "DeltaNet.forward"]


@pytest.mark.slow
def test_the_first_calls_have_no_fault() -> None:
    """In a process of its own, whose memory is limited."""
    command = [sys.executable, "-m", "fuzz.calls", "--count", "300", "--processes", "1"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("row", FOUND, ids=[row.name for row in FOUND])
def test_what_was_found_stays_mended(row: Found) -> None:
    if row.message is None:
        row.call()
    else:
        with pytest.raises((TypeError, ValueError, IndexError), match=re.escape(row.message)):
            row.call()
