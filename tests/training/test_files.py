"""Files are written atomically, and links, pipes and devices in a folder of somebody else do no harm."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rotrnn
from rotrnn._support.files import atomic_file, clean, half_moved, locked, read_file, whole_set


def test_replaces_only_at_the_end(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"old")
    with atomic_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["data"]


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"old")

    def interrupted():
        with atomic_file(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["data"]


FULL_DISK = """
import resource, sys
from rotrnn._support.files import atomic_file
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with atomic_file(sys.argv[1]) as file:
    file.write(bytes(2000))
"""


def test_a_full_disk_leaves_what_was_there(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"old")
    run = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True)
    assert f"File too large: '{path}'" in run.stderr
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize("read_only", [False, True])
def test_an_error_names_the_file_that_was_asked_for(tmp_path, monkeypatch, read_only):
    """Not a temporary one, also where that cannot be removed."""

    def refuse(path, **_):
        raise OSError(30, "Read-only file system", str(path))

    if read_only:
        monkeypatch.setattr(Path, "unlink", refuse)
    path = tmp_path / "missing" / "data"
    with pytest.raises(FileNotFoundError) as caught, atomic_file(path):
        pass
    assert caught.value.filename == str(path)


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}


def write_set(folder: Path, text: str) -> None:
    with whole_set(folder) as place:
        (place / "below").mkdir()
        for name in ("a", "b", "below/c"):
            with atomic_file(place / name) as file:
                file.write(text.encode())


FILES, MOVES = 3, 3


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("at", range(FILES + 1 + MOVES))
def test_a_set_of_files_that_a_stop_interrupts_is_written_again(tmp_path, monkeypatch, at, old, killed):
    """The stop is at each renaming: of each file, of the whole set, and of each part that is moved. A process that is
    killed does not clean up."""
    folder = tmp_path / "data"
    before = {"a": "old", "b": "old", "below/c": "old", "other": "mine"} if old else {}
    if old:
        write_set(folder, "old")
        (folder / "other").write_text("mine", encoding="utf-8")
    renamed: list[object] = []
    replace = os.replace

    def stopped(*paths):
        if len(renamed) == at:
            raise KeyboardInterrupt
        renamed.append(paths)
        replace(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopped)
        if killed:
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            write_set(folder, "new")
    assert half_moved(folder) == (at > FILES)
    if at <= FILES:
        assert {name: text for name, text in contents(folder).items() if ".unfinished" not in name} == before
    if at <= FILES and not killed:
        assert folder.exists() == old
    write_set(folder, "newer")
    assert contents(folder) == {**before, "a": "newer", "b": "newer", "below/c": "newer"}
    assert not (folder / ".unfinished").exists()


def test_links_beside_a_set_of_files_are_not_followed(tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("new", "done", "kept"):
        (tmp_path / "mine" / name).mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".unfinished").symlink_to(tmp_path / "mine")
    write_set(tmp_path / "data", "text")
    assert sorted(os.listdir(tmp_path / "mine")) == ["done", "kept", "new"]
    assert set(contents(tmp_path / "data")) == {"a", "b", "below/c"}


def test_two_processes_do_not_write_a_set_of_files_at_once(tmp_path):
    with whole_set(tmp_path), pytest.raises(ValueError, match="unfinished: another process is writing files here"):
        write_set(tmp_path, "text")


def test_a_lock_that_is_a_link_leaves_what_it_leads_to(tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"content")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(precious)
    with pytest.raises(OSError, match=r"is a link, expected a file: .*\.lock"), locked(tmp_path / "run"):
        pass
    assert precious.read_bytes() == b"content"


def test_a_lock_with_content_keeps_it(tmp_path):
    (tmp_path / "precious").write_bytes(b"content")
    os.link(tmp_path / "precious", tmp_path / ".lock")
    with locked(tmp_path):
        pass
    assert (tmp_path / "precious").read_bytes() == b"content"


def test_a_temporary_name_that_is_a_link_is_not_written_through(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    (tmp_path / "precious").write_bytes(b"content")
    (tmp_path / ".data.00000000.tmp").symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError), atomic_file(tmp_path / "data") as file:
        file.write(b"new")
    assert (tmp_path / "precious").read_bytes() == b"content"


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "precious").write_bytes(b"content")
    (tmp_path / "data").symlink_to(tmp_path / "precious")
    with atomic_file(tmp_path / "data") as file:
        file.write(b"new")
    assert (tmp_path / "precious").read_bytes() == b"content"
    assert not (tmp_path / "data").is_symlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name")
def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        with pytest.raises(OSError, match="is a pipe or a device, expected a file"):
            read_file(tmp_path / name)


def test_every_file_is_opened_so():
    """Each call of `open` in the package refuses links and pipes, but for /proc, recipes (one that a user names may be
    a pipe), the package's own table of figures, and the text of a command."""
    package = Path(rotrnn.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        for line in path.read_text("utf-8").splitlines():
            safe = "opener=regular" in line or '"xb"' in line
            if re.search(r"(?<![\w.])open\(|\.(read|write)_(bytes|text)\(|gzip\.open", line) and not safe:
                found.add(f"{path.relative_to(package).as_posix()}: {line.strip()}")
    names = {one.partition(":")[0] for one in found}
    assert names <= {"_support/platform.py", "plots/figures.py", "tasks/cifar.py", "training/recipe.py"}, sorted(found)


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / ".recipe.toml.0123abcd.tmp").write_bytes(b"half")
    (tmp_path / ".data.tmp").mkdir()
    (tmp_path / "mine.tmp").touch()
    clean(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".data.tmp", "mine.tmp"]


def test_no_text_has_the_encoding_of_the_locale():
    """As ``python -X warn_default_encoding`` would find, in the package and in what builds it."""
    package = Path(rotrnn.__file__).parent
    build = [path for one in ("setup.py", "csrc/generate.py") if (path := package.parents[1] / one).exists()]
    for path in [*package.rglob("*.py"), *build]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            keys = {one.arg for one in node.keywords}
            where = f"{path.name}, line {node.lineno}"
            if name in ("run", "Popen", "check_output"):
                assert not keys & {"text", "universal_newlines"}, where
            if name in ("read_text", "write_text"):
                assert "encoding" in keys or len(node.args) > (name == "write_text"), where
            if name == "open" and isinstance(node.func, ast.Name):
                mode = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) else "r"
                assert "b" in str(mode) or "encoding" in keys, where
