"""The lists of slow tests name tests that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import SLOW, WHOLE


@pytest.mark.parametrize("entry", sorted(SLOW | WHOLE))
def test_what_is_listed_is_there(entry: str) -> None:
    file, _, test = entry.partition("::")
    text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    name, parameter, _ = test.partition("[")
    assert (f"\ndef {name}(" if test else "\ndef test_") in text
    assert not parameter or "parametrize" in text
