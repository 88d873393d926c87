"""Downloads from a local server: resumed, checked against a hash, unpacked completely or not at all."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from rotrnn.tasks import AAN, CIFAR, IMDB, MNIST, TASKS, ListOps, Pathfinder, SpeechCommands
from rotrnn.tasks.download import CHUNK, fetch, unpack
from rotrnn.tasks.listops import RELEASE as LISTOPS
from rotrnn.tasks.pathfinder_files import level_release
from rotrnn.tasks.released import Release, Released, Source, find

DATA = np.random.default_rng(0).bytes(3_000_000)  # several chunks of a download
SHA256 = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


class Server:
    """What is served, how (each may be changed between requests), and what was requested."""

    def __init__(self):
        self.files = {"/data.bin": DATA}
        self.etag = '"one"'
        self.cut = None  # bytes of a body after which the connection is closed
        self.seen = []  # path, Range, status of each request


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body, asked = state.files.get(self.path), self.headers.get("Range")
            if body is None:
                state.seen.append((self.path, asked, 404))
                return self.send_error(404)
            first, status = 0, 200
            if asked and state.etag and self.headers.get("If-Range") == state.etag:
                first = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
                status = 206 if first < len(body) else 416
            state.seen.append((self.path, asked, status))
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
            if state.etag:
                self.send_header("ETag", state.etag)
            self.send_header("Content-Length", str(len(body) - first))
            self.end_headers()
            self.wfile.write(body[first:][: state.cut])
            self.close_connection = True

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_port}"
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def names(folder):
    return sorted(os.listdir(folder))


# ---- fetch ----


def test_fetches_once(server, tmp_path):
    for _ in range(2):
        path = fetch(f"{server.url}/data.bin", SHA256, tmp_path / "new")
        assert path == tmp_path / "new" / "data.bin"
        assert path.read_bytes() == DATA
    assert server.seen == [("/data.bin", None, 200)]
    assert names(tmp_path / "new") == ["data.bin"]


def test_every_release_but_long_range_arena_is_pinned_by_sha256():
    """Nobody publishes one of Long Range Arena's archive: that of the first download is kept, as below."""
    kinds = {kind for kind in TASKS.values() if issubclass(kind, Released)}
    releases = [LISTOPS, level_release(32, 14), *(kind.release for kind in kinds)]
    pins = {url: pin for release in releases for source in release.sources for url, pin in source.urls.items()}
    unknown = {url for url, pin in pins.items() if not re.fullmatch("sha256:[0-9a-f]{64}", pin or "")}
    lra = "https://storage.googleapis.com/long-range-arena/lra_release"
    assert unknown == {f"{lra}.gz", *(f"{lra}/listops-1000/basic_{name}.tsv" for name in ("train", "val", "test"))}


def test_another_hash_leaves_nothing(server, tmp_path):
    wrong = "sha256:" + "0" * 64
    with pytest.raises(ValueError, match=rf"{server.url}/data\.bin: .*data\.bin.*does not match.*{'0' * 64}"):
        fetch(f"{server.url}/data.bin", wrong, tmp_path)
    assert names(tmp_path) == []


def test_a_damaged_file_is_fetched_again(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(DATA[:100])
    assert fetch(f"{server.url}/data.bin", SHA256, tmp_path).read_bytes() == DATA


def test_a_cut_connection_is_resumed(server, tmp_path):
    """Two cuts, then the rest: every byte is sent once."""
    server.cut = 20 * CHUNK
    for have in (20 * CHUNK, 40 * CHUNK):
        with pytest.raises(OSError, match=rf"data\.bin: the connection broke after {have} bytes .* resumes from"):
            fetch(f"{server.url}/data.bin", SHA256, tmp_path)
        assert names(tmp_path) == [".data.bin.part", ".data.bin.part.tag"]
    assert fetch(f"{server.url}/data.bin", SHA256, tmp_path).read_bytes() == DATA
    assert [asked for _, asked, _ in server.seen] == [None, f"bytes={20 * CHUNK}-", f"bytes={40 * CHUNK}-"]
    assert [status for _, _, status in server.seen] == [200, 206, 206]
    assert names(tmp_path) == ["data.bin"]


def cut_once(server, tmp_path, have=16 * CHUNK):
    server.cut = have
    with pytest.raises(OSError, match="the connection broke"):
        fetch(f"{server.url}/data.bin", SHA256, tmp_path)
    server.cut = None


def test_a_new_version_is_not_joined_to_the_old(server, tmp_path):
    server.files["/data.bin"] = b"x" * len(DATA)
    cut_once(server, tmp_path)
    server.files["/data.bin"], server.etag = DATA, '"two"'
    assert fetch(f"{server.url}/data.bin", SHA256, tmp_path).read_bytes() == DATA
    assert server.seen[-1] == ("/data.bin", f"bytes={16 * CHUNK}-", 200)


def test_without_a_tag_it_starts_anew(server, tmp_path):
    server.etag = None
    cut_once(server, tmp_path)
    assert fetch(f"{server.url}/data.bin", SHA256, tmp_path).read_bytes() == DATA
    assert server.seen[-1] == ("/data.bin", None, 200)


def test_a_part_that_is_whole_already(server, tmp_path):
    """Killed between the last byte and the rename: the server has no such range and sends the file again."""
    cut_once(server, tmp_path)
    (tmp_path / ".data.bin.part").write_bytes(DATA)
    assert fetch(f"{server.url}/data.bin", SHA256, tmp_path).read_bytes() == DATA
    assert [status for _, _, status in server.seen] == [200, 416, 200]


def test_a_file_that_is_not_there(server, tmp_path):
    with pytest.raises(OSError, match=rf"{server.url}/other\.bin: 404"):
        fetch(f"{server.url}/other.bin", None, tmp_path)
    with pytest.raises(OSError, match=r"^http://127.0.0.1:9/data.bin: .*refused"):
        fetch("http://127.0.0.1:9/data.bin", None, tmp_path)  # no server listens there
    assert names(tmp_path) == []


def test_where_files_from_elsewhere_belong(server, monkeypatch, tmp_path):
    """The address may be dead, as Long Range Arena's is at times."""
    monkeypatch.setattr("rotrnn.tasks.listops.RELEASE", moved(LISTOPS, server))
    message = (
        rf"^ListOps: {server.url}/basic_test.tsv: 404 .*; {server.url}/lra_release.gz: 404 .*Files that you have from "
        rf"elsewhere are read from {re.escape(str(tmp_path))}/data/listops-1000, expected a folder with basic_train.tsv"
    )
    with pytest.raises(OSError, match=message):
        ListOps(data_dir=str(tmp_path / "data"), download=True).load()


def test_an_unpublished_hash_is_reported_stored_and_checked_later(server, tmp_path):
    with pytest.warns(UserWarning, match=rf"data\.bin: no hash is published for it; the download has {SHA256}"):
        path = fetch(f"{server.url}/data.bin", None, tmp_path)
    assert (tmp_path / "data.bin.sha256").read_text(encoding="utf-8") == f"{SHA256.removeprefix('sha256:')}  data.bin\n"
    path.unlink()
    server.files["/data.bin"] = b"another"
    with pytest.raises(ValueError, match="does not match"):
        fetch(f"{server.url}/data.bin", None, tmp_path)
    server.files["/data.bin"] = DATA
    assert fetch(f"{server.url}/data.bin", None, tmp_path).read_bytes() == DATA


def test_missing_pooch_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'rotrnn\[data\]'"):
        fetch("http://127.0.0.1:9/data.bin", None, tmp_path)


# ---- unpack ----


def tar_gz(files, **links):
    """The bytes of an archive with files (name -> content) and symbolic links (name -> target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return out.getvalue()


FILES = {"./top/in/a.txt": b"a" * 100_000, "./top/in/deep/b.txt": b"b", "./top/out.txt": b"no"}


def test_unpacks_a_folder(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(tar_gz(FILES))
    unpack(tmp_path / "a.tar.gz", "top/in", tmp_path / "new")
    assert (tmp_path / "new/a.txt").read_bytes() == b"a" * 100_000
    assert (tmp_path / "new/deep/b.txt").read_bytes() == b"b"
    assert names(tmp_path) == ["a.tar.gz", "new"]
    assert names(tmp_path / "new") == ["a.txt", "deep"]
    unpack(tmp_path / "a.tar.gz", ".", tmp_path / "all")
    assert names(tmp_path / "all" / "top") == ["in", "out.txt"]


def test_a_cut_archive_leaves_nothing(tmp_path):
    """Truncated at every kind of position: in the gzip stream, at its end, and where members end (an uncompressed
    prefix that was compressed again: complete for gzip, but without the end of the tar)."""
    whole = tar_gz(FILES)
    for size in (0, 1, 10, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        (tmp_path / "a.tar.gz").write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}/a\.tar\.gz: not unpacked: "):
            unpack(tmp_path / "a.tar.gz", "top/in", tmp_path / "new")
        assert names(tmp_path) == ["a.tar.gz"]
    plain = gzip.decompress(whole)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(plain[:50_000]))
    with pytest.raises(ValueError, match="not unpacked"):
        unpack(tmp_path / "a.tar.gz", "top/in", tmp_path / "new")
    assert names(tmp_path) == ["a.tar.gz"]


def test_a_damaged_archive_leaves_nothing(tmp_path):
    damaged = bytearray(tar_gz(FILES))
    damaged[-6] ^= 1  # of the check sum
    (tmp_path / "a.tar.gz").write_bytes(damaged)
    with pytest.raises(ValueError, match="not unpacked: CRC check failed"):
        unpack(tmp_path / "a.tar.gz", "top/in", tmp_path / "new")
    assert names(tmp_path) == ["a.tar.gz"]


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({"top/in/../../../evil.txt": b"x"}, {}),
        ({"../evil.txt": b"x"}, {}),
        ({}, {"top/in/link": "../../../.."}),
        ({}, {"top/in/link": "/etc/passwd"}),
    ],
)
def test_names_that_lead_outside_are_refused(tmp_path, files, links):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/a.tar.gz").write_bytes(tar_gz({**FILES, **files}, **links))
    with pytest.raises(ValueError, match=r"a\.tar\.gz: not unpacked: .*outside|a\.tar\.gz: .*absolute"):
        unpack(tmp_path / "inside/a.tar.gz", "top/in", tmp_path / "inside/new")
    assert names(tmp_path) == ["inside"]
    assert names(tmp_path / "inside") == ["a.tar.gz"]


def test_absolute_names_stay_inside(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(tar_gz({"top/in/a.txt": b"a", "/top/in/b.txt": b"b"}))
    unpack(tmp_path / "a.tar.gz", "top/in", tmp_path / "new")
    assert set(names(tmp_path / "new")) >= {"a.txt"}
    assert not Path("/top").exists()


def test_no_such_folder(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(tar_gz(FILES))
    with pytest.raises(ValueError, match="it has no folder top/on"):
        unpack(tmp_path / "a.tar.gz", "top/on", tmp_path / "new")


@pytest.mark.slow
def test_an_incomplete_folder_of_a_killed_process_is_not_used(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(tar_gz(FILES))
    script = (
        "import os, signal, sys, tarfile; from rotrnn.tasks.download import unpack\n"
        "extract = tarfile.TarFile.extract\n"
        "def killed(tar, *args, **more):\n"
        "    extract(tar, *args, **more)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "tarfile.TarFile.extract = killed\n"
        "unpack(sys.argv[1] + '/a.tar.gz', 'top/in', sys.argv[1] + '/new')"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == -9
    assert "new" not in names(tmp_path)
    unpack(tmp_path / "a.tar.gz", "top/in", tmp_path / "new")
    assert names(tmp_path) == ["a.tar.gz", "new"]


# ---- tasks ----


@contextmanager
def published(server, monkeypatch, kind, files):
    """Puts these files (name -> content) on the server, and sets `kind`'s release to them, with the correct hashes."""
    urls = {f"{server.url}/{name}": f"sha256:{hashlib.sha256(content).hexdigest()}" for name, content in files.items()}
    server.files = {f"/{name}": content for name, content in files.items()}
    source = kind.release.sources[0]._replace(urls=urls)
    monkeypatch.setattr(kind, "release", kind.release._replace(sources=(source,)))
    yield


def moved(release, server):
    """The same release on this server."""
    return release._replace(
        sources=tuple(
            source._replace(urls={f"{server.url}/{url.rpartition('/')[2]}": pin for url, pin in source.urls.items()})
            for source in release.sources
        )
    )


def archive_of(folder, inner, tmp_path):
    with tarfile.open(tmp_path / "made.tar.gz", "w:gz") as tar:
        tar.add(folder, inner)
    return (tmp_path / "made.tar.gz").read_bytes()


@pytest.mark.filterwarnings("ignore:.*not the whole published data set")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(IMDB, {"max_length": 50}), (AAN, {"max_length": 50}), (CIFAR, {}), (SpeechCommands, {})],
)
def test_a_task_downloads_its_archive_once(server, monkeypatch, tmp_path, kind, settings):
    kind(**settings).stand_in(tmp_path / "made", 4)
    made = tmp_path / "made" / (kind.release.home or kind.release.places[0])
    archive = archive_of(made, kind.release.sources[0].inner, tmp_path)
    with published(server, monkeypatch, kind, {"archive.tar.gz": archive}):
        with pytest.raises(FileNotFoundError, match=f"{kind.__name__}: no data in .*or download = true"):
            kind(data_dir=str(tmp_path / "data"), **settings).load()
        assert server.seen == []
        for _ in range(2):
            task = kind(data_dir=str(tmp_path / "data"), download=True, **settings).load()
        assert len(server.seen) == 1
    ours = kind(data_dir=str(tmp_path / "made"), **settings).load()
    every = np.arange(len(ours.train))
    assert len(task.train) == len(every) >= 4
    np.testing.assert_array_equal(task.train.batch(every).inputs, ours.train.batch(every).inputs)


@pytest.mark.filterwarnings("ignore:.*not the whole published data set")
def test_mnist_downloads_four_files_whatever_happens_in_between(server, monkeypatch, tmp_path):
    MNIST().stand_in(tmp_path / "made", 20)
    order = [url.rpartition("/")[2] for url in MNIST.release.sources[0].urls]
    files = {name: (tmp_path / "made" / name).read_bytes() for name in order}
    with published(server, monkeypatch, MNIST, files):
        mnist = MNIST(data_dir=str(tmp_path / "data"), download=True)
        for name, content in files.items():
            server.files[f"/{name}"] = content[:-1]
            with pytest.raises(ValueError, match=f"{name}.*does not match"):
                mnist.load()
            server.files[f"/{name}"] = content
        task = mnist.load()
    assert len(task.train) + len(task.val) == len(task.test) == 20


def test_listops_out_of_the_archive_of_all(server, monkeypatch, tmp_path):
    small = {"train": 20, "val": 5, "test": 5, "min_length": 3, "max_length": 30}
    ours = ListOps(**small).write(tmp_path / "made")
    server.files["/lra_release.gz"] = archive_of(tmp_path / "made", LISTOPS.sources[-1].inner, tmp_path)
    monkeypatch.setattr("rotrnn.tasks.listops.RELEASE", moved(LISTOPS, server))
    with pytest.warns(UserWarning, match="no hash is published"):
        task = ListOps(data_dir=str(tmp_path / "data"), download=True, **small).load()
    every = np.arange(20)
    np.testing.assert_array_equal(task.train.batch(every).inputs, ours.train.batch(every).inputs)
    above = ListOps(data_dir=str(tmp_path / "data"), **small).load()
    np.testing.assert_array_equal(above.test.batch(every[:5]).inputs, ours.test.batch(every[:5]).inputs)
    with pytest.raises(ValueError, match="ListOps: data_dir is ''"):
        ListOps(download=True, **small).load()


def test_listops_by_its_files(server, monkeypatch, tmp_path):
    """Three small files come before the archive. Where one is missing, all is read from the archive."""
    small = {"train": 20, "val": 5, "test": 5, "min_length": 3, "max_length": 30}
    ours = ListOps(**small).write(tmp_path / "made")
    files = {f"/{path.name}": path.read_bytes() for path in (tmp_path / "made").iterdir()}
    monkeypatch.setattr("rotrnn.tasks.listops.RELEASE", moved(LISTOPS, server))
    every = np.arange(20)
    server.files = dict(files)
    with pytest.warns(UserWarning, match="no hash is published"):
        task = ListOps(data_dir=str(tmp_path / "data"), download=True, **small).load()
    np.testing.assert_array_equal(task.train.batch(every).inputs, ours.train.batch(every).inputs)
    assert [path for path, _, _ in server.seen] == [f"/basic_{name}.tsv" for name in ("test", "val", "train")]
    archive = archive_of(tmp_path / "made", LISTOPS.sources[-1].inner, tmp_path)
    server.files = {**files, "/lra_release.gz": archive}
    (tmp_path / "other/listops-1000").mkdir(parents=True)
    (tmp_path / "other/listops-1000/.basic_val.tsv.part").write_bytes(b"of an earlier attempt")
    del server.files["/basic_train.tsv"]
    with pytest.warns(UserWarning, match="no hash is published"):
        task = ListOps(data_dir=str(tmp_path / "other"), download=True, **small).load()
    np.testing.assert_array_equal(task.train.batch(every).inputs, ours.train.batch(every).inputs)
    assert not [name for name in names(tmp_path / "other/listops-1000") if re.search(r"sha256|\.part", name)]


def test_a_mirror_is_asked_where_a_server_has_other_content(server, monkeypatch, tmp_path):
    """A hash decides. A connection that breaks ends the attempt, so that the next one resumes."""
    good, bad = f"{server.url}/good/data.bin", f"{server.url}/bad/data.bin"
    release = Release((Source({bad: SHA256}), Source({good: SHA256})), ("data.bin",), (".",))
    server.files = {"/bad/data.bin": b"<html>", "/good/data.bin": DATA}
    assert find("T", release, str(tmp_path), True) == tmp_path
    assert (tmp_path / "data.bin").read_bytes() == DATA
    (tmp_path / "data.bin").unlink()
    server.files["/good/data.bin"] = DATA[:-1]
    with pytest.raises(ValueError, match=rf"^T: {bad}: .*does not match.*; {good}: .*does not match.* from elsewhere"):
        find("T", release, str(tmp_path), True)
    server.files["/bad/data.bin"], server.cut, server.seen = DATA, 20 * CHUNK, []
    with pytest.raises(OSError, match="the connection broke"):
        find("T", release, str(tmp_path), True)
    server.cut = None
    assert find("T", release, str(tmp_path), True) == tmp_path
    assert [(path, status) for path, _, status in server.seen] == [("/bad/data.bin", 200), ("/bad/data.bin", 206)]


def test_pathfinder_out_of_the_archive_of_all(server, monkeypatch, tmp_path):
    small = {"train": 8, "val": 1, "test": 1}
    Pathfinder(**small).write(tmp_path / "made")
    release = level_release(32, 14)
    server.files["/lra_release.gz"] = archive_of(tmp_path / "made", release.sources[0].inner, tmp_path)
    here = moved(release, server)
    monkeypatch.setattr("rotrnn.tasks.pathfinder.level_release", lambda *_: here)
    with pytest.warns(UserWarning, match="no hash is published"):
        task = Pathfinder(data_dir=str(tmp_path / "data"), download=True, **small).load()
    ours = Pathfinder(data_dir=str(tmp_path / "made"), **small).load()
    every = np.arange(8)
    np.testing.assert_array_equal(task.train.batch(every).inputs, ours.train.batch(every).inputs)


def test_a_second_process_waits_for_the_download(server, tmp_path):
    """Two threads stand for two processes: only one request is made."""
    archive = tar_gz({"in/mark": b"here"})
    server.files["/a.tar.gz"] = archive
    pins = {f"{server.url}/a.tar.gz": f"sha256:{hashlib.sha256(archive).hexdigest()}"}
    release = Release((Source(pins, "in"),), ("mark",), ("x",))
    found = []
    threads = [threading.Thread(target=lambda: found.append(find("T", release, str(tmp_path), True))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "x"] * 4
    assert len(server.seen) == 1
    shutil.rmtree(tmp_path / "x")
    find("T", release, str(tmp_path), True)  # out of the archive that is still there
    assert len(server.seen) == 1
