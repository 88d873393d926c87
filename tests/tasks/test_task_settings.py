"""Settings of every task are held to their types when they are made in Python."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from rotrnn._support.settings import PYTHON, describe, hints_of
from rotrnn.tasks import TASKS, Digits, Shape
from rotrnn.tasks.own import load_by, shape_of
from rotrnn.training.recipe import read_recipe

OURS: dict[str, Any] = {name: kind for name, kind in TASKS.items() if kind.__module__.startswith("rotrnn.tasks.")}
WRONG: dict[Any, list[Any]] = {
    int: ["a", 1.5, True, None, [1]],
    float: ["a", False, None, float("nan"), float("inf")],
    bool: [1, "true", None],
    str: [1, None, ["a"]],
}
"""For each plain type, values that it does not take."""


@pytest.mark.parametrize("name", OURS)
def test_every_setting_refuses_values_of_another_type(name: str) -> None:
    """A setting of several types refuses what each of them does."""
    kind, hints = OURS[name], hints_of(OURS[name])
    assert hints
    for key, hint in hints.items():
        plain = [one for one in WRONG if one is hint or one in getattr(hint, "__args__", ())]
        refused = [value for value in WRONG[plain[0]] if all(value in WRONG[one] for one in plain)]
        refused = [value for value in refused if not (value is None and type(None) in getattr(hint, "__args__", ()))]
        if getattr(hint, "__origin__", None) is tuple:  # of texts
            refused = [value for value in refused if value != ["a"]]
        assert refused
        for value in refused:
            message = f"{kind.__name__}: {key}={value!r}, expected {describe(hint, PYTHON)}"
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                kind(**{key: value})


@pytest.mark.parametrize("name", OURS)
def test_settings_that_mean_the_same_are_equal(name: str) -> None:
    """NumPy's numbers become Python's, so that a recipe can be written with them."""
    kind = OURS[name]
    given = kind()
    plain = {one.name: getattr(given, one.name) for one in fields(kind)}
    scalars = {key: np.asarray(value)[()] for key, value in plain.items() if type(value) in (bool, int, float)}
    assert scalars
    made = kind(**scalars)
    assert made == given
    assert all(type(getattr(made, key)) is type(plain[key]) for key in scalars)


def test_one_text_is_a_list_of_one() -> None:
    assert TASKS["table"](target="label", features="x") == TASKS["table"](target=("label",), features=("x",))


@dataclass(frozen=True)
class Bare:
    """A task of one's own without `shape`."""

    made: Any = None

    def load(self) -> Any:
        return Digits().load() if self.made is None else self.made


def made(kind: Any, *settings: Any) -> Any:
    return kind(*settings)


def test_the_shape_of_a_task_that_declares_none_is_of_its_data() -> None:
    """`rotrnn groups` raised AttributeError."""
    assert shape_of(made(Bare)) == shape_of(Digits()) == Digits().shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_by(made(Bare, ()), None), "Bare.load: returned a tuple, expected a rotrnn.tasks.Task"),
        (lambda: shape_of(made(Bare, 1.5)), "Bare.load: returned a float, expected a rotrnn.tasks.Task"),
        (
            lambda: load_by(made(Shape, 2, 3, None), None),
            "Shape: has no method load, expected one that returns a rotrnn.tasks.",
        ),
        (lambda: shape_of(made(Called)), "Called: shape is a method, expected a rotrnn.tasks.Shape, by a property"),
        (lambda: shape_of(made(Named)), "Named: shape is a tuple, expected a rotrnn.tasks.Shape, by a property"),
    ],
)
def test_a_task_of_ones_own_with_other_results_is_named(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}"):
        call()


class Called(Bare):
    def shape(self) -> Any: ...


class Named(Bare):
    shape = (10, None, 1)


@pytest.mark.parametrize("kind", [Bare(), lambda: Bare(), Shape])
def test_a_registered_task_that_is_no_dataclass_is_named(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "mine", kind)
    with pytest.raises(ValueError, match=r"TASKS\['mine'\] is .*, expected a frozen dataclass$"):
        read_recipe({"task": {"name": "mine"}, "model": {}, "layer": {}})
