"""What layers, parameters, models and saved arrays look like at Python's prompt."""

from __future__ import annotations

import doctest
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import rotrnn
from rotrnn import ModelSettings, build_model, summary
from rotrnn.nn.layer import BUFFERS, flatten
from rotrnn.nn.module import Module, spelled_out
from rotrnn.nn.registry import LAYERS
from rotrnn.nn.saved import flatten_saved
from small_models import sizes_of

RNG = np.random.default_rng(0)


def model_of(layer: str, **more: Any) -> Any:
    settings = ModelSettings(layer=layer, d_model=16, n_layers=3, **more)
    return build_model(settings, sizes_of(layer, d_state=16), n_classes=10, n_features=2)


def total(text: str) -> int:
    """The numbers of the first row, which are those of the whole."""
    return int(text.splitlines()[1].split()[-1].replace(",", ""))


def test_a_layer_shows_what_was_set() -> None:
    assert repr(rotrnn.LRU(d_model=8, d_state=16)) == "LRU(d_model=8, d_state=16)"
    given = rotrnn.RotRNN(8, 16, heads=4, gamma_init=(0.9, 0.999))
    assert repr(given) == "RotRNN(d_model=8, d_state=16, heads=4, gamma_init=(0.9, 0.999))"
    assert eval(repr(given), {"RotRNN": rotrnn.RotRNN}) == given
    for value in (True, 1.0):  # equal to the default value, but not the same
        assert "form=" not in repr(rotrnn.LRU(8, 16, gamma=bool(value)))


def test_a_layer_of_ones_own_may_have_its_own_text() -> None:
    @dataclass(frozen=True)
    class Own(Module):
        size: int = 3

        def __repr__(self) -> str:
            return "mine"

    @dataclass(frozen=True)
    class Plain(Module):
        size: int = 3
        other: int = 4

    assert repr(Own()) == spelled_out(Own()) == "mine"
    assert repr(Plain(3, 5)).endswith("Plain(other=5)")


@pytest.mark.parametrize("name", LAYERS)
def test_equal_blocks_are_shown_once(name: str) -> None:
    """Also of layers that number their random draws, which tells blocks apart."""
    model = model_of(name)
    assert "3 x ResidualBlock" in repr(model)
    assert repr(model).count(f"{LAYERS[name].__name__}(") == 1
    assert "  0 to 2" in model.summary()


def test_a_stream_knows_its_model_by_the_settings_that_dataclasses_write() -> None:
    """Files of states are known by a hash of this text; it may not change with what the prompt shows."""
    lru = (
        "LRU(d_model=8, d_state=16, bidirectional=False, window=None, r_min=0.0, r_max=1.0, "
        "max_phase=6.283185307179586, form='log_phase', gamma=True)"
    )
    assert spelled_out(rotrnn.LRU(8, 16)) == lru
    block = rotrnn.ResidualBlock(rotrnn.LayerNorm(8), rotrnn.LRU(8, 16), rotrnn.GELU())
    one = f"ResidualBlock(norm=LayerNorm(d_model=8, eps=1e-05), layer={lru}, gate=GELU(), prenorm=True)"
    assert spelled_out(rotrnn.ResidualStack((block,))) == f"ResidualStack(blocks=({one},))"
    assert spelled_out(rotrnn.ResidualStack((block, block))) == f"ResidualStack(blocks=({one}, {one}))"


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_a_models_table_counts_its_parameters(name: str, norm: str) -> None:
    model = model_of(name, norm=norm)
    trained = sum(array.size for path, array in flatten(model.init(RNG)) if path.rpartition(".")[2] not in BUFFERS)
    assert total(model.summary()) == trained
    assert all(line.isprintable() for line in model.summary().splitlines())


def test_rows_of_a_table_add_up() -> None:
    model = model_of("lru")
    rows = model.summary().splitlines()
    top = [row for row in rows[2:] if row.startswith("  ") and row[2] != " "]
    assert [row.split()[0] for row in top] == ["encoder", "blocks", "head"]
    assert sum(int(row.split()[-1].replace(",", "")) for row in top) == total(model.summary())
    (blocks,) = (row for row in rows if row.startswith("    0 to 2"))
    (stack,) = (row for row in top if row.split()[0] == "blocks")
    assert blocks.split()[-3:-1] == ["3", "x"]
    assert 3 * int(blocks.split()[-1].replace(",", "")) == int(stack.split()[-1].replace(",", ""))


def test_a_tree_of_arrays_has_a_row_for_each() -> None:
    model = model_of("lru", norm="layer")
    params = model.init(RNG)
    text = summary(params)
    assert repr(text) == str(text)
    assert total(text) == total(model.summary())
    params["blocks"]["1"]["layer"]["nu_log"] = np.zeros(7)  # another shape: no longer like its neighbours
    rows = [row.split()[0] for row in summary(params).splitlines() if row.startswith("    ") and row[4] != " "]
    assert rows == ["w", "bias", "0", "1", "2", "w", "bias"]


def test_what_forward_saved_is_a_line() -> None:
    model = model_of("fixed_point", norm="layer")
    params = model.init(RNG)
    _, saved = model.forward(params, RNG.standard_normal((2, 100, 2), dtype=np.float32))
    arrays, _ = flatten_saved(saved)
    distinct = {id(array): array for array in arrays.values()}
    size = sum(array.nbytes for array in distinct.values())
    assert repr(saved) == f"<ModelSaved of SequenceClassifier: {len(distinct)} arrays, {size:,} bytes>"
    assert total(summary(saved)) == sum(array.size for array in arrays.values())


def test_what_has_no_arrays_is_refused() -> None:
    for tree in ({}, 3, "text", None, {"a": {"b": None}}, [1, 2]):
        with pytest.raises(
            TypeError, match=r"summary: tree is an? \w+, expected a module, or arrays in dicts or tuples"
        ):
            summary(tree)


def test_examples_of_the_docstring() -> None:

    from rotrnn.nn import summary as _  # noqa: F401  (the function hides the module of its name)

    module = sys.modules["rotrnn.nn.summary"]  # the function hides it
    done = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert done.attempted == 3
    assert done.failed == 0
