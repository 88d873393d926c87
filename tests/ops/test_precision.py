"""Precision: which products round their operands, and how."""

from __future__ import annotations

import threading

import pytest

import rotrnn
from rotrnn import _cpu
from rotrnn.ops.precisions import PRECISIONS


def in_use() -> str:
    name = _cpu.use_precision("float32")
    _cpu.use_precision(name)
    return name


def test_precision_holds_within_its_block() -> None:
    with rotrnn.precision("tf32"):
        with rotrnn.precision("bf16"):
            assert in_use() == "bf16"
        with pytest.raises(KeyError), rotrnn.precision("bf16"):
            raise KeyError
        assert in_use() == "tf32"
    assert in_use() == "float32"


def test_other_names_are_refused() -> None:
    with (
        pytest.raises(ValueError, match="precision: name is 'half', expected one of float32, tf32, bf16"),
        rotrnn.precision("half"),
    ):
        pass
    with pytest.raises(ValueError, match="use_precision: got 'half', expected one of float32, tf32, bf16"):
        _cpu.use_precision("half")
    with pytest.raises(TypeError):
        _cpu.use_precision(1)  # type: ignore[arg-type]


def test_each_thread_has_its_own() -> None:
    together = threading.Barrier(len(PRECISIONS))
    seen = dict.fromkeys(PRECISIONS, "")

    def work(name: str) -> None:
        assert in_use() == "float32"
        with rotrnn.precision(name):
            together.wait(10)
            seen[name] = in_use()
            together.wait(10)

    threads = [threading.Thread(target=work, args=(name,)) for name in PRECISIONS]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert seen == {name: name for name in PRECISIONS}
