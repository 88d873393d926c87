"""Files that hosts and package indexes read: held to their schemas, to each other, and to what is in the repository."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "setup.py").exists(), reason="the tests of an installed wheel have no such files"
)
ADDRESS = "https://example.org/owner/rotrnn"


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def checked(schema: str, *files: Path) -> subprocess.CompletedProcess[str]:
    """The schemas are those that check-jsonschema brings along, so that nothing is downloaded."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("schema", "pattern", "count"),
    [
        ("citation-file-format", "CITATION.cff", 1),
        ("github-workflows", ".github/workflows/*.yml", 2),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml", 2),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml", 1),
    ],
)
def test_a_file_is_as_its_schema_says(schema: str, pattern: str, count: int, tmp_path: Path) -> None:
    files = sorted(ROOT.glob(pattern))
    assert len(files) == count
    found = checked(schema, *files)
    assert found.returncode == 0, found.stdout
    (tmp_path / "wrong.yml").write_text("no: such thing\n", encoding="utf-8")
    assert checked(schema, tmp_path / "wrong.yml").returncode == 1


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {project()['version']}\n" in text
    assert f"\nlicense: {project()['license']}\n" in text


def test_actions_are_pinned_by_commit() -> None:
    """A tag may lead to other code tomorrow."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for action in re.findall(r"uses: *(\S+)", path.read_text("utf-8")):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), (path.name, action)


def test_the_workflows_run_what_there_is() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert (ROOT / ".ci" / "run").exists()
    for folder in re.findall(r"--ignore (\S+)", text):
        assert (ROOT / folder).is_dir()
    (extras,) = re.findall(r"'\.\[(.*?)\]'", text)
    assert set(extras.split(",")) <= set(project()["optional-dependencies"])


def test_a_package_page_has_addresses_in_place_of_relative_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("ROTRNN_REPOSITORY", ADDRESS)
    names = runpy.run_path(str(ROOT / "setup.py"))
    about = names["about"]()
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", about["long_description"])
    assert all(re.match(r"https?://|#", target) for _, target in links)
    version = project()["version"]
    for picture, target in links:
        if target.startswith(ADDRESS):
            kind, tag, path = target.removeprefix(f"{ADDRESS}/").split("/", 2)
            assert (kind, tag) == ("raw" if picture else "blob", f"v{version}")
            assert (ROOT / path.partition("#")[0]).exists()
    assert any(picture for picture, _ in links)
    assert about["project_urls"]["Source"] == ADDRESS
    monkeypatch.delenv("ROTRNN_REPOSITORY")
    about = names["about"]()
    assert about["project_urls"] == {}
    assert about["long_description"] == (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_that_are_addresses_stay() -> None:
    page = runpy.run_path(str(ROOT / "setup.py"))["package_page"]
    assert page("[a](https://a.org/x) [b](#b) ![c](c.png) [d](d.md#e)", "R", "1") == (
        "[a](https://a.org/x) [b](#b) ![c](R/raw/v1/c.png) [d](R/blob/v1/d.md#e)"
    )
