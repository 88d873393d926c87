"""The list of planted faults (tests/planted) fits the sources: each can be planted, and its tests are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted.__main__ import ROOT, Fault, faults

pytestmark = pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not in a wheel")


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Fault, tmp_path: Path) -> None:
    copy = tmp_path / fault.file
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text((ROOT / fault.file).read_text(encoding="utf-8"), encoding="utf-8")
    fault.plant(tmp_path)
    assert copy.read_text(encoding="utf-8") != (ROOT / fault.file).read_text(encoding="utf-8")
    assert all((ROOT / path).exists() for path in fault.tests)
