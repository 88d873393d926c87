"""Files are written atomically."""

import os
import subprocess
import sys

import pytest

from rotrnn._support.files import atomic_file


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


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    path = tmp_path / "missing" / "data"
    with pytest.raises(FileNotFoundError) as caught, atomic_file(path):
        pass
    assert caught.value.filename == str(path)
