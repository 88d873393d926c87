"""docs/mistakes.md: each example raises the error that is printed below it, or, as `py`, none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"


def test_every_mistake_gives_the_message_that_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    parts = re.findall(r"```(python|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [kind for kind, _ in parts] == ["python", *["python", "text"] * (len(parts) // 2)]
    exec(parts[0][1], names)
    for (_, mistake), (_, message) in zip(parts[1::2], parts[2::2], strict=True):
        with pytest.raises((TypeError, ValueError)) as raised:
            exec(mistake, names)
        assert f"{raised.type.__name__}: {raised.value}\n" == message, mistake
    for mistake in re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(mistake, names)
    assert len(PAGE.read_text(encoding="utf-8").split("\n## ")) > 10
