"""The fuzzer of file formats in its short form, whether it notices what it looks for, and what it has found."""

from __future__ import annotations

import gzip
import io
import os
import re
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from patience import PATIENCE
from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from tests.fuzz import files
from tests.fuzz.files import CHANGES, Find, changed, folder_of, judge, limited, shrunk
from tests.fuzz.formats import FORMATS, Format

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_few_hundred_files_of_every_format():
    """The seed is fixed: what fails here fails again."""
    command = [sys.executable, "-m", "tests.fuzz.files", "--count", "200", "--seed", "17"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count(" 0 finds") == len(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_every_real_file_loads(name):
    form = FORMATS[name]
    with folder_of(form) as (target, contents):
        for content in contents:
            target.write_bytes(content)
            form.load(target)


def _write(folder):
    (folder / "file").write_bytes(b"abcdefgh" * 8)
    return folder / "file", [b"abcdefgh" * 8]


def _refuse(path):
    raise ValueError(f"{path}: is damaged")


def _without_name(path):
    raise ValueError("is damaged")


def _as_value_error(path):
    try:
        bytearray(2**40)
    except MemoryError as error:
        raise ValueError(f"{path}: is damaged") from error


def _spin(path):
    while True:
        pass


def _if_z(path):
    if b"z" in path.read_bytes():
        raise KeyError("z")


@pytest.mark.parametrize(
    ("load", "kind"),
    [
        (lambda path: None, None),
        (_refuse, None),
        (_without_name, "unnamed"),
        (lambda path: {}["key"], "KeyError"),
        (lambda path: bytearray(2**40), "MemoryError"),
        (_as_value_error, "memory"),
        (lambda path: sys.exit(), "SystemExit"),
        (_spin, "slow"),
        (lambda path: time.sleep(60), "slow"),
    ],
)
def test_the_fuzzer_notices(load, kind, monkeypatch):
    monkeypatch.setattr(files, "SLOW", 0.2)
    monkeypatch.setattr(files, "WAITS", 20)
    form = Format("planted", _write, load)
    with folder_of(form) as (target, contents), limited():
        find = judge(form, target, contents[0])
    assert (find is None) == (kind is None)
    assert find is None or find.kind.startswith(kind)


def test_a_find_is_made_small(monkeypatch):
    monkeypatch.setattr(files, "SHRINKING", PATIENCE)
    form = Format("planted", _write, _if_z)
    content = b"a" * 500 + b"z" + b"b" * 300
    with folder_of(form) as (target, _), limited():
        find = judge(form, target, content)
        assert isinstance(find, Find)
        assert shrunk(form, target, content, find) == b"z"


def test_a_crash_is_found_and_the_rest_goes_on(monkeypatch, tmp_path):
    """A process that is killed by a file leaves the files after it to another."""
    tried = tmp_path / "tried"

    def load(path):
        with open(tried, "ab") as file:
            file.write(b".")
            file.flush()
        if path.read_bytes()[:1] == b"?":
            os.kill(os.getpid(), signal.SIGKILL)

    form = Format("planted", lambda folder: (folder / "file", [b"abc"]), load)
    monkeypatch.setitem(FORMATS, "planted", form)
    monkeypatch.setattr(files, "changed", lambda form, contents, seed, i: b"?" if i == 5 else b"a")
    monkeypatch.setattr(files, "FOUND", tmp_path / "found")
    said = []
    assert files.fuzz(["planted"], 10, 0, 1, said.append) == 1
    assert "planted: crash: " in said[0]
    assert (tmp_path / "found" / "planted-0-5").read_bytes() == b"?"
    assert len(tried.read_bytes()) == 10 + 2  # each process first loads the real file


def test_changes_depend_on_the_seed_alone():
    form = FORMATS["recipe"]
    with folder_of(form) as (_, contents):
        one, again, other = ([changed(form, contents, seed, i) for i in range(50)] for seed in (1, 1, 2))
    assert one == again != other
    assert len(CHANGES) > 10


# ---- what was found ----


def _npy(header: bytes, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    size = len(header).to_bytes(2 if version == b"\1\0" else 4, "little")
    return b"\x93NUMPY" + version + size + header + data


def _idx_bomb() -> bytes:
    return gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 1, 28, 28) + bytes(2**26), 9)


def _png(size: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", 16, 16, 8, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", size) + b"IDATx\xae"


def _pax(count: int, size: int) -> bytes:
    """An archive that begins with `count` extended headers that say that they have `size` bytes."""
    out = io.BytesIO()
    for _ in range(count):
        member = tarfile.TarInfo("x")
        member.type, member.size = tarfile.XHDTYPE, size
        out.write(member.tobuf(tarfile.USTAR_FORMAT))
        out.write(b"12 a=bcdefg\n".ljust(512, b"\0"))
    return gzip.compress(out.getvalue() + bytes(1024), 9)


def _npz(how: int = zipfile.ZIP_STORED, /, **members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return out.getvalue()


def _said_to_have(content: bytes, size: int, packed: bool = False) -> bytes:
    """A file .npz of one array that is said to have so many bytes, or to be packed into so many."""
    at = content.index(b"PK\1\2") + (20 if packed else 24)
    return content[:at] + size.to_bytes(4, "little") + content[at + 4 :]


def _array(array: object) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


ENORMOUS = _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 2), }\n", bytes(16))
NO_SHAPE = _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (9\n")
WIDE_WAV = b"RIFF\x24\0\0\0WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 100, 200, 2, 2**15) + b"data\0\0\0\0"

FOUND = [
    # 8 bytes: 4.1 GB of memo, and 17 s
    ("idx-gz", _idx_bomb(), "has more than 784 bytes of data, expected 784 for 1 records"),
    ("idx", struct.pack(">HBBIII", 0, 8, 3, 2**20, 28, 28), "has 0 bytes of data, expected 822083584"),
    ("png", _png(0x7F000000), "is not a complete image"),
    ("prepared-npy", _npy(b"desc", version=b"\3\0")[:8] + b"\xff\xff\xff\x5f", "its header has more than 65536 bytes"),
    (
        "prepared-npy",
        _npy(b"{'descr': '<i8', 'fortran_order': False, 'shape': (9"),
        "is not a .npy file, or is damaged",
    ),
    (
        "prepared-npy",
        _npy(b"{'descr':'<U0', 'fortran_order': False, 'shape': (1, 0), }".ljust(118) + b"\n"),
        "at least one byte",
    ),
    ("prepared-npy", _npy(b"{'descr': '|V0', 'fortran_order': False, 'shape': (9,), }\n"), "at least one byte"),
    (
        "pathfinder-npy",
        _npy(b"{'descr': '<U1', 'fortran_order': False, 'shape': (1, 1), }".ljust(117) + b"\n", b"\xff\xff\xff\xff"),
        "is not an array of strings",
    ),
    (
        "pathfinder-npy",
        _npy(b"{'descr': '>U2', 'fortran_order': True, 'shape': (1, 1), }".ljust(117) + b"\n", b"\0\0\0a\0\x11\0\0"),
        "is not an array of strings",
    ),
    (
        "pathfinder-npy",
        _npy(b"{'descr': '<U0', 'fortran_order': False, 'shape': (99999999999, 11), }\n"),
        "is not a .npy file with items of at least one byte",
    ),
    (
        "prepared-manifest",
        b'{"format": 2, "settings": {"files": "x"}, "files": {"../x.npy": 1}}',
        "is not prepared data",
    ),
    ("prepared-manifest", b'{"format": 2, "settings": {"files": "x"}, "files": {}}', "ids.npy: is not listed in"),
    (
        "prepared-manifest",
        b'{"format":2,"settings":{"files":"x"},"files":["ids.npy"]}',
        "is not prepared data of rotrnn",
    ),
    ("prepared-manifest", b"[" * 3000, "is not prepared data of rotrnn"),
    ("tar-gz", _pax(1, 2**33 - 1), "an extended header of 8589934591 bytes, expected at most 8192"),
    ("tar-gz", _pax(1, 2**13 + 1), "an extended header of 8193 bytes, expected at most 8192"),
    ("tar-gz", _pax(3000, 12), "not unpacked: "),
    ("download-hash", b"", "does not begin with a SHA-256"),
    ("recipe", b"a = " + b"[" * 2000 + b"]" * 2000, "not valid TOML: nested more than 32 deep"),
    ("recipe", b"[task]\n" + b"a." * 2000 + b"a = 1", "line 2 has 2000 dots, expected at most 256"),
    ("recipe", b"a = " + b"9" * 5000, "not valid TOML: Exceeds the limit"),
    ("recipe", b"#" * 2**19, "has more than 262144 bytes, expected a recipe"),
    ("recipe", b'base = "none.toml"', "base is 'none.toml', which cannot be read: .*none.toml"),
    (
        "recipe",
        b'[task]\nname = "digits"\n[model]\nlayer = "lru"\nd_model = 4\nn_layers = 1000000000',
        "model.n_layers: got 1000000000, expected at most 10,000",
    ),
    ("sweep", b"[sweep.grid]\n" + b"".join(b'"layer.a%d" = [1, 2]\n' % i for i in range(60)), "expected at most 4096"),
    ("run-log", b'{"step": 1, "elapsed": [1]}\n', "log.jsonl, line 1: is damaged"),
    ("run-log", b'{"step": 1, "a": ' + b"[" * 3000 + b"\n", "log.jsonl, line 1: is damaged"),
    ("run-log", b'{"step": 1, "loss": 1' + b"0" * 400 + b"}\n", "log.jsonl, line 1: is damaged"),
    ("run-result", b"{" + b'"a":{' * 500 + b"}" * 501, "result.json: is damaged, expected JSON"),
    ("run-iterations", b'[{"point": "max_iterations=4", "accuracy": {}}]', "is not accuracy at max_iterations=N"),
    ("run-iterations", b'{"point": 1}', "expected a list, the output of rotrnn eval"),
    ("arrays-npz", _npz(x=ENORMOUS, y=ENORMOUS), "is not a file .npz, or is damaged"),
    ("arrays-npz", _npz(x=NO_SHAPE), "is not a file .npz, or is damaged"),
    ("arrays-npz", _npz(x=b"text", y=b""), "is not a file .npz, or is damaged"),
    (
        "arrays-npz",
        _npz(zipfile.ZIP_BZIP2, x=_array(np.zeros(99))),
        "x.npy is packed by zip's method 12, expected 0 or 8",
    ),
    (
        "arrays-npz",
        _npz(zipfile.ZIP_LZMA, x=_array(np.zeros(99))),
        "x.npy is packed by zip's method 14, expected 0 or 8",
    ),
    (
        "arrays-npz",
        _said_to_have(_npz(x=_array(np.zeros(9))), 2**31),
        "would take 2147483648 bytes of memory, expected",
    ),
    (
        "arrays-npz",
        _said_to_have(_npz(x=_array(np.zeros(9))), 2**31, packed=True),
        "x.npy is said to have 2147483648 of its [0-9]+ bytes",
    ),
    ("arrays-npz", _npz(**{f"a{i}": b"" for i in range(10_001)}), "has 10001 arrays, expected at most 10000"),
    ("arrays-npz", _npz(x=_array(np.full((9, 2), 1e308)), y=_array(np.arange(9))), "has the number 1e.308, expected"),
    (
        "table-csv",
        b"id,u,label\n" + b"a" * 100_000 + b",1,2\n" + b"b,1,2\n" * 1000,
        "would take 400400000 bytes of memory, expected at most 268435456 for 106016 bytes of file",
    ),
    ("table-csv", b"id,u,label\n", "own.csv: has no sequence"),
    ("flax-npz-lru", _npz(x=ENORMOUS), "is not a file .npz, or is damaged"),
    ("folder-wav", WIDE_WAV, "has 32768 bits a sample, expected 8, 16, 24 or 32"),
    (
        "folder-bmp",
        b"BM" + struct.pack("<IIIIiiHHIIIIII", 54, 0, 54, 40, 2000, 2000, 1, 24, 0, 0, 0, 0, 0, 0),
        "has 2000 x 2000 pixels, expected at most 1,048,576, each a step",
    ),
    ("folder-gif", b"GIF87a" + b"\0" * 7 + b"," + b"\xff\xff\xff\x7f" * 2, "is not an image, or is damaged"),
]


@pytest.mark.parametrize(("name", "content", "message"), FOUND, ids=[f"{i}-{row[0]}" for i, row in enumerate(FOUND)])
def test_what_was_found_is_refused_with_its_name(name, content, message):
    """Each within the time and the memory that the fuzzer allows."""
    form = FORMATS[name]
    with folder_of(form) as (target, _), limited():
        assert judge(form, target, content) is None
        with pytest.raises(form.errors, match=message):
            form.load(target)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"step": -1}, "is at step -1 and best_step"),
        ({"step": 10**30}, "expected best_step <= step <= 4, the steps of the recipe"),
        ({"step": "4"}, "is not the state of a run, expected step, best_step, best_score, arithmetic"),
        ({"waited": None}, "waited is None, expected an integer"),
        ({"arithmetic": []}, "is not the state of a run"),
        ({"unlogged": [{"step": 1, "loss": "x"}]}, "is not the state of a run"),
        ({"unlogged": 3}, "is not the state of a run"),
        ({"recipe": None}, "was written with another recipe"),
    ],
)
def test_a_checkpoint_with_other_facts(facts, message):
    form = FORMATS["checkpoint"]
    with folder_of(form) as (target, _):
        arrays, there = read_checkpoint(target)
        write_checkpoint(target, arrays, {**there, **facts})
        with pytest.raises(ValueError, match=f"{re.escape(str(target))}: .*{message}"):
            form.load(target)


def test_a_checkpoint_whose_names_lead_into_an_array():
    form = FORMATS["checkpoint"]
    with folder_of(form) as (target, _):
        arrays, facts = read_checkpoint(target)
        write_checkpoint(target, {**arrays, "params.head.bias.more": np.zeros(2)}, facts)
        with pytest.raises(
            ValueError, match=f"{re.escape(str(target))}: params.head.bias.more: is inside another array"
        ):
            form.load(target)
