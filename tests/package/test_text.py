"""Words of messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rotrnn
from rotrnn._support.text import an

A = "GRU KDA Mamba Griffin RotRNN RopeMemory LinOSS LiquidS4 MinGRU SelectiveRotRNN ModelSettings Scale NoneType str"
A += " float function frozenset list set slice range memmap UInt8 Unit UEA Hawk label"
AN = "LRU RNN S4 S4D S5 LSTM SLSTM MLSTM MlstmResult SlstmResult SsdScanGrads RGLRU RWKV7 FPMamba Attention AdamW int"
AN += " ndarray object Elman IMDB OSError HTTPError xLSTM X Unlisted input"


@pytest.mark.parametrize(("article", "names"), [("a", A), ("an", AN)])
def test_articles_are_by_sound(article: str, names: str) -> None:
    assert [an(name) for name in names.split()] == [f"{article} {name}" for name in names.split()]


def test_no_message_has_an_article_before_a_name_that_is_not_known() -> None:
    found = [
        f"{path.name}: {line.strip()}"
        for path in Path(rotrnn.__file__).parent.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"\b[aA]n? \{", line) and 'f"' in line
    ]
    assert not found
