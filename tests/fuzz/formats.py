"""Every format of file that rotrnn reads: small real files of it, and the function that loads them.

A `Format` makes a folder with real files, one of which is the target that the fuzzer changes, and loads it with the
function by which the public loader reads it. Contents that are compressed or protected by a checksum are also changed
inside, and then packed or sealed anew, so that changes reach what lies behind.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import struct
import tarfile
import tempfile
import warnings
import wave
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

import toy
from rotrnn._support.checkpoint import KEY, _digest, write_checkpoint
from rotrnn.estimators import Forecaster
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.files import load as load_model
from rotrnn.models.io.flax_checkpoints import import_lru, import_s5
from rotrnn.models.io.huggingface import INDEX, WEIGHTS
from rotrnn.models.io.pretrained import read_folder
from rotrnn.plots.runs import GRIDS, evaluated
from rotrnn.tasks import AAN, IMDB, UEA, ListOps, Pathfinder, SpeechCommands, WordProblem
from rotrnn.tasks.aan import read_pairs
from rotrnn.tasks.arrays import Arrays, save_arrays
from rotrnn.tasks.catbabi import read_stories
from rotrnn.tasks.cifar import read_binary, write_binary
from rotrnn.tasks.columns import Column
from rotrnn.tasks.download import fetch, unpack
from rotrnn.tasks.folder import Folder
from rotrnn.tasks.imdb import _rows
from rotrnn.tasks.listops import read_expressions
from rotrnn.tasks.mnist import read_idx, write_idx
from rotrnn.tasks.pathfinder_files import Sample, _samples
from rotrnn.tasks.prepared import Store, check_forms, check_offsets, prepared
from rotrnn.tasks.rules import Rules, read_rules
from rotrnn.tasks.series import Series
from rotrnn.tasks.speech_commands import _clips, _divided, read_wav, write_wav
from rotrnn.tasks.table import Table
from rotrnn.tasks.text import Bytes, Characters, TextSplit
from rotrnn.tasks.word_problem import group, read_csv
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe
from rotrnn.training.results import Outcome
from rotrnn.training.run import Run, unflatten_params
from rotrnn.training.state import initial_state
from rotrnn.training.sweep import plan

Content = bytes


def _same(content: Content) -> Content:
    return content


@dataclass(frozen=True)
class Format:
    """A format of file.

    Parameters
    ----------
    make : function
        Writes a folder of real files. Returns the path of the target, and contents that it may have.
    load : function
        Loads the folder; its argument is the path of the target.
    open, close : function
        From the content of a file to what is inside of a compression or a checksum, and back; None if there is none.
    words : tuple of bytes
        Words of the format that the fuzzer inserts.
    errors : tuple of types
        The errors that `load` may raise.
    """

    name: str
    make: Callable[[Path], tuple[Path, list[Content]]]
    load: Callable[[Path], Any]
    open: Callable[[Content], Content] | None = None
    close: Callable[[Content], Content] = _same
    words: tuple[bytes, ...] = ()
    errors: tuple[type[Exception], ...] = field(default=(ValueError, OSError))


FORMATS: dict[str, Format] = {}


def _format(name: str, **more: Any) -> Callable[[Any], Any]:
    """Registers a function that writes the files of a format."""

    def register(make: Any) -> Any:
        FORMATS[name] = Format(name, make, **more)
        return make

    return register


rng = np.random.default_rng(0)
PIXELS = rng.integers(0, 256, (2, 3072), np.uint8)

# ---- CIFAR ----


@_format("cifar-binary", load=read_binary)
def _(folder: Path) -> Any:
    path = folder / "data_batch_1.bin"
    write_binary(path, PIXELS, np.array([3, 9], np.uint8))
    return path, [path.read_bytes()]


# ---- MNIST ----


@_format("idx", load=lambda path: read_idx(path, (28, 28)), words=(b"\x00\x00\x08\x03",))
def _(folder: Path) -> Any:
    path = folder / "train-images-idx3-ubyte"
    write_idx(path, PIXELS[:1, :784].reshape(1, 28, 28))
    return path, [path.read_bytes()]


@_format(
    "idx-gz", load=lambda path: read_idx(path, (28, 28)), open=gzip.decompress, close=lambda one: gzip.compress(one, 1)
)
def _(folder: Path) -> Any:
    path = folder / "train-images-idx3-ubyte.gz"
    write_idx(path, np.zeros((1, 28, 28), np.uint8))
    return path, [path.read_bytes()]


FORMS = {"ids": ("u", "ids"), "offsets": ("i8", "offsets"), "labels": ("u1", "labels")}


def _make(store: Store) -> None:
    store.array("ids", (6,), np.uint8)[:] = 1
    store.array("offsets", (4,), np.int64)[:] = 0, 2, 4, 6
    store.array("labels", (3,), np.uint8)[:] = 1


def _refuse(store: Store) -> None:
    raise ValueError(f"{store.folder}: would be prepared again")


def _load_prepared(path: Path) -> None:
    """What every loader does with prepared arrays, those of texts here."""
    arrays = prepared(path.parents[1], path.parent.name, {"files": "x"}, _refuse)
    check_forms(path.parent, arrays, FORMS)
    check_offsets(arrays["offsets"], len(arrays["labels"]), len(arrays["ids"]))
    batch = TextSplit(arrays["ids"], arrays["offsets"], arrays["labels"]).batch(np.arange(len(arrays["labels"])))
    assert batch.inputs.shape == (len(arrays["labels"]), max(batch.lengths))


@_format("prepared-manifest", load=_load_prepared, words=(b'"../../x.npy"', b"null", b"[]", b"{}", b"-1"))
def _(folder: Path) -> Any:
    prepared(folder, "arrays", {"files": "x"}, _make)
    path = folder / "arrays" / "manifest.json"
    return path, [path.read_bytes()]


def _sized(path: Path) -> None:
    """Writes the size of the file into the manifest, so that more than its size is examined."""
    manifest = json.loads((path.parent / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"][path.name] = path.stat().st_size
    (path.parent / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    _load_prepared(path)


@_format("prepared-npy", load=_sized, words=(b"'|O'", b"'<U0'", b"(99999999999,)", b"(" * 300, b"True", b"'|u1'"))
def _(folder: Path) -> Any:
    prepared(folder, "arrays", {"files": "x"}, _make)
    path = folder / "arrays" / "offsets.npy"
    return path, [path.read_bytes()]


# ---- Speech Commands ----


@_format("wav", load=read_wav, words=(b"RIFF", b"WAVE", b"fmt ", b"data", b"LIST", b"\xff\xff\xff\x7f"))
def _(folder: Path) -> Any:
    path = folder / "clip.wav"
    write_wav(path, np.arange(-50, 50, dtype=np.int16))
    plain = path.read_bytes()
    listed = (
        plain[:4]
        + struct.pack("<I", len(plain) + 4)
        + plain[8:36]
        + b"LIST"
        + struct.pack("<I", 4)
        + b"INFO"
        + plain[36:]
    )
    return path, [plain, listed]


def _load_list(path: Path) -> None:
    _divided(_clips(path.parent), {"val": path, "test": path.parent / "testing_list.txt"})


@_format("speech-list", load=_load_list)
def _(folder: Path) -> Any:
    SpeechCommands().stand_in(folder, 2)
    path = folder / "speech_commands_v0.02" / "validation_list.txt"
    return path, [path.read_bytes()]


# ---- texts ----


def _load_review(path: Path) -> None:
    for _, (text,) in _rows({"neg": [path], "pos": []}):
        for how in (Characters(60), Bytes(60)):
            how.units(text)


@_format("imdb", load=_load_review)
def _(folder: Path) -> Any:
    IMDB(max_length=60).stand_in(folder, 2)
    path = folder / "aclImdb" / "train" / "neg" / "0_1.txt"
    return path, [path.read_bytes(), "Ein Film über Öl 🎬<br />\n".encode()]


@_format("aan", load=lambda path: list(read_pairs(path, 3)), words=(b"\t", b"\n", b"\r\n"))
def _(folder: Path) -> Any:
    AAN(max_length=30).stand_in(folder, 3)
    path = folder / "tsv_data" / "new_aan_pairs.train.tsv"
    return path, [path.read_bytes()]


SHORT = {"train": 4, "val": 1, "test": 1, "min_length": 3, "max_length": 30}


@_format("listops", load=read_expressions, words=(b"( ", b" )", b"[MAX", b"]", b"( " * 200, b"\t", b"\r\n"))
def _(folder: Path) -> Any:
    ListOps(**SHORT).write(folder)
    path = folder / "basic_train.tsv"
    return path, [path.read_bytes(), (folder / "basic_val.tsv").read_bytes()]


@_format("word-problem", load=lambda path: read_csv(path, group("A5"), 3), words=(b",", b" ", b"\n", b"60"))
def _(folder: Path) -> Any:
    WordProblem(length=3, samples=4, test_length=4, test=2).write(folder)
    path = folder / "A5=3.csv"
    return path, [path.read_bytes()]


# ---- Pathfinder ----


def _level(folder: Path) -> Path:
    Pathfinder(resolution=16, contour_length=3, train=2, val=1, test=1).write(folder)
    return folder


def _load_metadata(path: Path) -> None:
    for sample in _samples(path.parents[1], [path], 3):
        assert sample.path.parent.parent == path.parents[1] / "imgs"


def _load_image(path: Path) -> None:
    pixels = Sample(path, 1, "metadata").read(Image, 16)
    assert pixels.shape == (16, 16)


@_format("pathfinder-metadata", load=_load_metadata, words=(b"imgs/0", b" ", b"\n", b".."))
def _(folder: Path) -> Any:
    path = _level(folder) / "metadata" / "0.npy"
    return path, [path.read_bytes()]


@_format(
    "pathfinder-npy",
    load=_load_metadata,
    words=(b"'|O'", b"'<U0'", b"'|S0'", b"(99999999999, 11)", b"((" * 100, b"'<U99999999'"),
)
def _(folder: Path) -> Any:
    path = _level(folder) / "metadata" / "0.npy"
    rows = [line.split(" ") for line in path.read_text(encoding="utf-8").splitlines()]
    contents = []
    for dtype in ("U", "S"):
        out = io.BytesIO()
        np.save(out, np.array(rows, dtype))
        contents.append(out.getvalue())
    path.write_bytes(contents[0])
    return path, contents


@_format(
    "pathfinder-json",
    load=lambda path: _load_metadata(path.parent / "metadata" / "0.npy"),
    words=(b"null", b'"images"', b"[]", b"NaN"),
)
def _(folder: Path) -> Any:
    path = _level(folder) / "pathfinder.json"
    return path, [path.read_bytes()]


def _checked_png(content: Content) -> Content:
    """Writes the checksum of each chunk anew."""
    out, at = bytearray(content), 8
    while at + 12 <= len(out):
        (size,) = struct.unpack_from(">I", out, at)
        if at + 12 + size > len(out):
            break
        struct.pack_into(">I", out, at + 8 + size, zlib.crc32(out[at + 4 : at + 8 + size]))
        at += 12 + size
    return bytes(out)


@_format(
    "png",
    load=_load_image,
    open=_same,
    close=_checked_png,
    words=(b"IDAT", b"IHDR", b"PLTE", b"tRNS", b"acTL", b"zTXt", b"iCCP", b"IEND", b"\x7f\xff\xff\xff"),
)
def _(folder: Path) -> Any:
    path = _level(folder) / "imgs" / "0" / "sample_0.png"
    plain = path.read_bytes()
    info = PngInfo()
    info.add_text("Title", "x" * 40, zip=True)
    info.add_itxt("Author", "y" * 40, zip=True)
    with Image.open(path) as image:
        out = io.BytesIO()
        image.save(out, "PNG", pnginfo=info, dpi=(1, 1), icc_profile=b"p" * 200)
    return path, [plain, out.getvalue()]


# ---- archives ----


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in (("top/in/a.txt", b"a"), ("top/in/" + "long" * 40, b"b"), ("top/c\xfc", b"c" * 600)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("top/in/link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../x"
        tar.addfile(link)
    return out.getvalue()[:8192]


def _packed_tar(content: Content) -> Content:
    """Writes the checksum of every header anew, and packs the archive."""
    out = bytearray(content)
    for at in range(0, len(out) - 511, 512):
        if out[at + 257 : at + 262] == b"ustar":
            out[at + 148 : at + 156] = b" " * 8
            out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + 512])
    return gzip.compress(bytes(out), 1, mtime=0)


def _unpack(path: Path) -> None:
    with patch("rotrnn.tasks.download.sync_all"):  # it waits for every disk of the machine
        unpack(path, "top/in", path.parent / "new")
    shutil.rmtree(path.parent / "new")


@_format(
    "tar-gz",
    load=_unpack,
    open=gzip.decompress,
    close=_packed_tar,
    words=(
        b"../",
        b"/",
        b"\x80" + b"\xff" * 11,
        b"77777777777\0",
        b"99999999999 GNU.sparse.size=1\n",
        b"x",
        b"L",
        b"S",
    ),
)
def _(folder: Path) -> Any:
    path = folder / "a.tar.gz"
    path.write_bytes(_packed_tar(_tar()))
    return path, [path.read_bytes()]


def _fetch(path: Path) -> None:
    url = "http://127.0.0.1:9/a.bin"
    try:
        fetch(url, None, path.parent)
    except OSError as error:  # another hash: the file is downloaded again
        if url not in str(error):
            raise


@_format("download-hash", load=_fetch)
def _(folder: Path) -> Any:
    (folder / "a.bin").write_bytes(b"content")
    path = folder / "a.bin.sha256"
    path.write_text(f"{hashlib.sha256(b'content').hexdigest()}  a.bin\n", encoding="utf-8")
    return path, [path.read_bytes()]


# ---- checkpoints and states ----


def _sealed(content: Content) -> Content:
    """Writes the checksum of a checkpoint anew, if it is a safetensors file with facts."""
    path = Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp", f"rotrnn-sealed-{os.getpid()}")
    path.write_bytes(content)
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            text = (file.metadata() or {})[KEY].partition(" ")[2]
        return save(arrays, {KEY: f"{_digest(arrays, text)} {text}"})
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError):
        return content
    finally:
        path.unlink()


WORDS = (b"NaN", b"null", b"1e999", b"[]", b"{}", b'""', b"-1", b"9" * 30, b"[" * 40, b"true")
SAFE = (
    *WORDS,
    b'"F64"',
    b'"I64"',
    b'"BF16"',
    b'"C64"',
    b'"BOOL"',
    b'"shape":[0,4611686018427387904]',
    b'\\"step\\":-1',
)


@functools.cache
def _run_files() -> dict[str, bytes]:
    """The files of a short run. (The fuzzer trains it once, before its processes begin.)"""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe, folder = Path(name, "toy.toml"), Path(name, "run")
        recipe.write_text(
            toy.RECIPE.replace("steps = 40", "steps = 4").replace("eval_every = 7", "eval_every = 2"), encoding="utf-8"
        )
        train(load_recipe(recipe), folder, progress=False)
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _trained(folder: Path) -> Run:
    run = Run(folder / "run")
    run.folder.mkdir()
    for name, content in _run_files().items():
        (run.folder / name).write_bytes(content)
    return run


def prepare() -> None:
    """Does what takes long, once, before other processes are forked."""
    _run_files()


_STATES: dict[str, Any] = {}


def _resume(path: Path) -> None:
    """What a resumed run and `rotrnn eval` read."""
    run = Run(path.parent)
    if str(path) not in _STATES:
        recipe = run.load_recipe()
        initial = initial_state(recipe.build(recipe.task.load()), recipe)
        _STATES[str(path)] = recipe, initial.arrays(), run.log.read_bytes()
    recipe, like, log = _STATES[str(path)]
    arrays, _ = run.read(path.stem, recipe)
    unflatten_params(path, arrays)
    _, facts = run.read_last(recipe, like)
    run.cut_log(facts["step"], facts.get("unlogged", ()))
    run.log.write_bytes(log)


@_format("checkpoint", load=_resume, open=_same, close=_sealed, words=SAFE)
def _(folder: Path) -> Any:
    run = _trained(folder)
    path = run.checkpoint("last")
    with_unlogged = run.folder / "other"
    recipe = run.load_recipe()
    arrays, facts = run.read("last", recipe)
    write_checkpoint(with_unlogged, arrays, {**facts, "unlogged": [{"step": 4, "loss": float("nan")}]})
    content = with_unlogged.read_bytes()
    with_unlogged.unlink()
    return path, [path.read_bytes(), content]


def _model(layer: str, **own: Any) -> Any:
    return build_model(ModelSettings(layer, 4, 2), own, head="classifier", n_classes=3, vocab=5)


STREAMS = {
    "lru": {"d_state": 4, "window": 3},
    "attention": {"heads": 2},
    "mamba": {"d_state": 3},
    "wrope_memory": {"d_state": 3, "length": 8},
}


def _stream(layer: str) -> Any:
    """Returns the one stream of a layer: a load that fails must not change it."""
    if layer not in _STATES:
        model = _model(layer, **STREAMS[layer])
        _STATES[layer] = model.stream(model.init(np.random.default_rng(0)), 2)
    return _STATES[layer]


def _continue(path: Path) -> None:
    stream = _stream(path.stem)
    stream.load(path)
    stream.push(np.array([1, 2]))
    stream.push(np.array([[1, 2], [3, 4]]))


def _register_stream(layer: str) -> None:
    @_format(f"stream-{layer.replace('_', '-')}", load=_continue, open=_same, close=_sealed, words=SAFE)
    def _(folder: Path) -> Any:
        path = folder / f"{layer}.safetensors"
        contents = []
        stream = _stream(layer)
        stream.reset()
        for length in (0, 1, 5):
            if length:
                stream.push(np.ones((2, length), np.int64))
            stream.save(path)
            contents.append(path.read_bytes())
        return path, contents


for _layer in STREAMS:
    _register_stream(_layer)


@_format("model", load=load_model, open=_same, close=_sealed, words=SAFE)
def _(folder: Path) -> Any:
    path, contents = folder / "model.safetensors", []
    for layer, own in {**STREAMS, "bedouin": {"d_state": 2}, "min_gru": {"d_state": 2, "bidirectional": True}}.items():
        model = _model(layer, **own)
        model.save(path, model.init(np.random.default_rng(0)))
        contents.append(path.read_bytes())
    return path, contents


@_format("forecaster", load=Forecaster.load, open=_same, close=_sealed, words=SAFE)
def _(folder: Path) -> Any:
    path, contents = folder / "forecaster.safetensors", []
    for linear in (True, False):
        Forecaster(linear=linear, width=2, depth=1, epochs=1).fit(np.sin(np.arange(50.0))).save(path)
        contents.append(path.read_bytes())
    y = {"a": np.sin(np.arange(50.0)), "b": np.cos(np.arange(40.0))}
    Forecaster(width=2, depth=1, epochs=1).fit(y, {name: one**2 for name, one in y.items()}).save(path)
    return path, [*contents, path.read_bytes()]


# ---- models of others ----


def tiny_mamba(folder: Path) -> None:
    """A folder as transformers writes it for MambaForCausalLM."""
    sizes = {"vocab_size": 5, "hidden_size": 4, "num_hidden_layers": 2, "state_size": 3, "time_step_rank": 2}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "mamba", **sizes, "layer_norm_epsilon": 1e-5}), encoding="utf-8"
    )
    shapes = {"in_proj.weight": (16, 4), "conv1d.weight": (8, 1, 4), "conv1d.bias": (8,), "x_proj.weight": (8, 8)}
    shapes |= {"dt_proj.weight": (8, 2), "dt_proj.bias": (8,), "A_log": (8, 3), "D": (8,), "out_proj.weight": (4, 8)}
    names = {f"layers.{i}.mixer.{name}": shape for i in range(2) for name, shape in shapes.items()}
    names |= {"embeddings.weight": (5, 4), "norm_f.weight": (4,), "layers.0.norm.weight": (4,)}
    names["layers.1.norm.weight"] = (4,)
    arrays = {f"backbone.{name}": np.full(shape, 0.5, np.float32) for name, shape in names.items()}
    (folder / WEIGHTS).write_bytes(save(arrays))


def tiny_mamba2(folder: Path) -> None:
    sizes = {"vocab_size": 5, "hidden_size": 4, "num_hidden_layers": 1, "state_size": 3, "num_heads": 2, "head_dim": 4}
    sizes |= {"n_groups": 1, "conv_kernel": 2, "tie_word_embeddings": True}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "mamba2", **sizes, "time_step_limit": [0, None]}), encoding="utf-8"
    )
    shapes = {"in_proj.weight": (24, 4), "conv1d.weight": (14, 1, 2), "conv1d.bias": (14,), "dt_bias": (2,)}
    shapes |= {"A_log": (2,), "D": (2,), "norm.weight": (8,), "out_proj.weight": (4, 8)}
    names = {f"layers.0.mixer.{name}": shape for name, shape in shapes.items()}
    names |= {"embeddings.weight": (5, 4), "norm_f.weight": (4,), "layers.0.norm.weight": (4,)}
    arrays = {f"backbone.{name}": np.full(shape, 0.5, np.float32) for name, shape in names.items()}
    (folder / WEIGHTS).write_bytes(save(arrays))


def _own_folder(folder: Path) -> None:
    model = _model("lru", d_state=2)
    model.save_pretrained(folder, model.init(np.random.default_rng(0)))


def _indexed(folder: Path) -> None:
    """The arrays in a file with another name, and an index."""
    tiny_mamba(folder)
    (folder / WEIGHTS).rename(folder / "part.safetensors")
    with safe_open(folder / "part.safetensors", framework="numpy") as file:
        names = dict.fromkeys(file.keys(), "part.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}), encoding="utf-8")


def _read_and_run(path: Path) -> None:
    model, params = read_folder(path.parent)
    model.forward(params, np.array([[1, 2, 3]]))


CONFIGS = (*WORDS, b'"auto"', b"4294967296", b"1073741824", b'"mamba2"', b'"rotrnn"', b'"silu"', b'{"__float__":"NaN"}')


def _register_folder(name: str, make: Callable[[Path], None], file: str, words: tuple[bytes, ...]) -> None:
    @_format(f"folder-{name}", load=_read_and_run, words=words)
    def _(folder: Path) -> Any:
        make(folder)
        return folder / file, [(folder / file).read_bytes()]


_register_folder("config", _own_folder, "config.json", CONFIGS)
_register_folder("mamba-config", tiny_mamba, "config.json", CONFIGS)
_register_folder("mamba2-config", tiny_mamba2, "config.json", CONFIGS)
_register_folder("mamba-weights", tiny_mamba, WEIGHTS, (*SAFE, b'"F16"', b'"F8_E4M3"'))
_register_folder("mamba-index", _indexed, INDEX, (*WORDS, b'"../part.safetensors"', b'"config.json"', b'"."'))


def _npz(arrays: dict[str, Any]) -> Content:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def _members(content: Content) -> Content:
    """What is in a .npz file: for each array a line with name and size, then the .npy files."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    head = "".join(f"{name} {len(part)}\n" for name, part in parts.items())
    return head.encode() + b"\n" + b"".join(parts.values())


def _of_members(content: Content) -> Content:
    """A .npz file of what `_members` returned and the fuzzer changed."""
    head, _, rest = content.partition(b"\n\n")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two of the same name
        for line in head.decode("latin-1").split("\n"):
            name, _, size = line.rpartition(" ")
            length = min(int(size), len(rest)) if size.isascii() and size.isdigit() and len(size) < 9 else 0
            file.writestr(re.sub(r"[^ -~]", "?", name)[:200] or "x", rest[:length])
            rest = rest[length:]
    return out.getvalue()


NPZ: Any = {"open": _members, "close": _of_members}
NPY = (b"'|O'", b"'<U0'", b"'<f4'", b"'<c8'", b"'<i8'", b"(99999999999,)", b"()", b"(0, 4)", b"'|V0'", b".npy 0\n")
TREE = {
    "params/encoder/encoder/kernel": (3, 4),
    "params/encoder/encoder/bias": (4,),
    "params/decoder/kernel": (4, 2),
    "params/decoder/bias": (2,),
    **{f"params/encoder/layers_0/out{i}/kernel": (4, 4) for i in (1, 2)},
    **{f"params/encoder/layers_0/out{i}/bias": (4,) for i in (1, 2)},
}
"""What minimal-LRU's and S5's checkpoints share."""
LRU_TREE = {f"seq/{name}": (2,) for name in ("theta_log", "nu_log", "gamma_log")}
LRU_TREE |= {"seq/B_re": (2, 4), "seq/B_im": (2, 4), "seq/C_re": (4, 2), "seq/C_im": (4, 2), "seq/D": (4,)}
S5_TREE = {"seq/Lambda_re": (2,), "seq/Lambda_im": (2,), "seq/log_step": (2, 1), "seq/B": (2, 4, 2)}
S5_TREE |= {"seq/C": (4, 2, 2), "seq/D": (4,)}


def _checkpoint(own: dict[str, tuple[int, ...]], norm: str) -> dict[str, Any]:
    own = {**own, f"{norm}/scale": (4,), f"{norm}/bias": (4,)}
    shapes = {**TREE, **{f"params/encoder/layers_0/{name}": shape for name, shape in own.items()}}
    return {name: np.full(shape, -0.5, np.float32) for name, shape in shapes.items()}


def _import_and_run(path: Path) -> None:
    model, params = (
        import_lru(path, prenorm=True) if path.stem == "lru" else import_s5(path, prenorm=True, activation="full_glu")
    )
    with np.errstate(all="ignore"):
        model.forward(params, np.ones((1, 3, model.encoder.d_in), np.float32))


FLAX = {"lru": _checkpoint(LRU_TREE, "normalization"), "s5": _checkpoint(S5_TREE, "norm")}


def _register_checkpoint(name: str) -> None:
    @_format(f"flax-npz-{name}", load=_import_and_run, words=NPY, errors=(ValueError, OSError, ImportError), **NPZ)
    def _(folder: Path) -> Any:
        path = folder / f"{name}.npz"
        path.write_bytes(_npz(FLAX[name]))
        return path, [path.read_bytes()]


for _name in FLAX:
    _register_checkpoint(_name)

if importlib.util.find_spec("flax"):

    @_format(
        "flax-msgpack", load=_import_and_run, words=(b"\xc7", b"\xdf\xff\xff\xff\xff", b"\x93", b"\x81", b"float32")
    )
    def _(folder: Path) -> Any:
        from flax.serialization import msgpack_serialize
        from flax.traverse_util import unflatten_dict

        path = folder / "lru"
        path.write_bytes(msgpack_serialize(unflatten_dict(FLAX["lru"], "/")))
        return path, [path.read_bytes()]


# ---- data of one's own ----

PARTS: Any = {"val_fraction": 0.2, "test_fraction": 0.2}


def _drawn(task: Any, most: int = 3) -> None:
    """What a training draws of a task: numbers that are finite, unless a target does not count."""
    for split in (task.train, task.val, task.test):
        batch = split.batch(np.arange(min(most, len(split))), np.float64)
        assert np.isfinite(batch.inputs).all()
        assert not np.isinf(batch.labels).any()


CELLS = (
    b",",
    b'"',
    b"\r\n",
    b"nan",
    b"1e308",
    b"-1e308",
    b"inf",
    b"1_0",
    b"\xef\xbb\xbf",
    b"\0",
    b";",
    "٣".encode(),
    b"0x1",
)


@_format(
    "table-csv",
    load=lambda path: _drawn(Table(str(path), sequence="id", kind="regression", **PARTS).load()),
    words=CELLS,
)
def _(folder: Path) -> Any:
    path = folder / "own.csv"
    rows = [f"{i // 2},{i}.5,{-i},{i // 2 % 3}" for i in range(20)]
    path.write_text("\n".join(["id,u,v,label", *rows]) + "\n", encoding="utf-8")
    return path, [path.read_bytes()]


@_format("rules", load=read_rules, words=(b"null", b"[]", b"{}", b"-1", b"NaN", b"1e999", b'"time"', b'"year"'))
def _(folder: Path) -> Any:
    columns = (Column("u", values=("a",)), Column("at", "time", cycles=("day",)), Column("m", "category", ("a", "b")))
    path = folder / "rules.json"
    path.write_text(Rules((0.5,), (1.0,), classes=("a", "b"), columns=columns).text(), encoding="utf-8")
    return path, [path.read_bytes()]


@_format("uea-ts", load=lambda path: _drawn(UEA(str(path)).load()), words=(b":", b",", b"@", b"true", b"\n", b"1e9"))
def _(folder: Path) -> Any:
    path = folder / "own.ts"
    head = ["@timeStamps false", "@dimensions 2", "@seriesLength 2", "@classLabel true a b", "@data"]
    path.write_text("\n".join([*head, *(f"{i},1:2,{i}.5:{'ab'[i % 2]}" for i in range(9))]) + "\n", encoding="utf-8")
    return path, [path.read_bytes()]


@_format("babi", load=read_stories, words=(b"\t", b"?", b".", b"1 ", b"\n"))
def _(folder: Path) -> Any:
    path = folder / "qa1_train.txt"
    path.write_text("1 Mary went home.\n2 Where is Mary? \thome\t1\n1 A b.\n", encoding="utf-8")
    return path, [path.read_bytes()]


@_format("series-csv", load=lambda path: _drawn(Series(str(path), horizon=2, period=3).load()), words=CELLS)
def _(folder: Path) -> Any:
    path = folder / "own.tsv"
    path.write_text("\n".join(["u\tv", *(f"{i}.25\t{i % 5}" for i in range(40))]) + "\n", encoding="utf-8")
    return path, [path.read_bytes()]


@_format("arrays-npz", load=lambda path: _drawn(Arrays(str(path), **PARTS).load()), words=NPY, **NPZ)
def _(folder: Path) -> Any:
    path, contents = folder / "own.npz", []
    for x in (np.ones((10, 3, 2)), [np.ones((2 + i % 3, 2)) for i in range(10)]):
        save_arrays(path, x, np.arange(10) % 3)
        contents.append(path.read_bytes())
    return path, contents


@_format("series-npz", load=lambda path: _drawn(Series(str(path), horizon=2).load()), words=NPY, **NPZ)
def _(folder: Path) -> Any:
    path, contents = folder / "own.npz", []
    y, x = np.arange(40.0) % 7, np.arange(80.0).reshape(40, 2) ** 2 % 5
    for more in ({}, {"covariates": x}, {"lengths": np.array([25, 15]), "names": np.array(["a", "b"])}):
        np.savez(path, y=y, **more)
        contents.append(path.read_bytes())
    return path, contents


if importlib.util.find_spec("pyarrow"):

    @_format("table-parquet", load=lambda path: _drawn(Table(str(path), **PARTS).load()), words=(b"PAR1", *CELLS))
    def _(folder: Path) -> Any:
        import pyarrow
        import pyarrow.parquet

        path, contents = folder / "own.parquet", []
        table = pyarrow.table({"u": np.arange(9.0), "v": np.arange(9), "label": [str(i % 2) for i in range(9)]})
        for how in ("none", "snappy"):
            pyarrow.parquet.write_table(table, path, compression=how)
            contents.append(path.read_bytes())
        return path, contents


def _in_folders(folder: Path, kind: str, content: Content) -> Path:
    for name in ("a", "b"):
        (folder / name).mkdir()
        for i in range(5):
            (folder / name / f"{i}.{kind}").write_bytes(content)
    return folder / "a" / f"0.{kind}"


def _load_folder(path: Path) -> None:
    _drawn(Folder(str(path.parents[1]), **PARTS).load(), 1)  # others are padded to the longest


@_format(
    "folder-wav",
    load=_load_folder,
    words=(b"RIFF", b"WAVE", b"fmt ", b"data", b"\xff\xff\xff\x7f", b"\x03\0", b"\xfe\xff"),
)
def _(folder: Path) -> Any:
    contents = []
    for bits in (8, 16, 24, 32):
        out = io.BytesIO()
        with wave.open(out, "wb") as file:
            file.setparams((2, bits // 8, 100, 0, "NONE", ""))
            file.writeframes(bytes(range(240)))
        contents.append(out.getvalue())
    return _in_folders(folder, "wav", contents[1]), contents


def _register_images(kind: str, **more: Any) -> None:
    @_format(f"folder-{kind}", load=_load_folder, **more)
    def _(folder: Path) -> Any:
        contents = []
        for mode in ("RGB", "L"):
            out = io.BytesIO()
            Image.new(mode, (4, 3), 100).save(out, kind.upper())
            contents.append(out.getvalue())
        return _in_folders(folder, kind, contents[0]), contents


_register_images(
    "png", open=_same, close=_checked_png, words=(b"IDAT", b"IHDR", b"PLTE", b"tRNS", b"acTL", b"\x7f\xff\xff\xff")
)
for _name in ("jpeg", "gif", "bmp", "tiff"):
    _register_images(_name, words=(b"\xff\xff\xff\x7f", b"\xff\xd9", b"\x2c", b"\x3b", b"II*\0", b"\xff\xff"))

# ---- recipes and run folders ----

TOML = (
    *(b"[", b"]", b"=", b"{", b"}", b'"', b"'''", b"[[", b"\n", b"nan", b"inf", b"0x" + b"f" * 400, b"9" * 5000),
    *(
        b"[" * 3000,
        b"a = " + b"[" * 300 + b"]" * 300,
        b"a." * 1000,
        b"{a=" * 300,
        b"[model]\n",
        b"n_layers = 1000000000\n",
    ),
    *(
        b'base = "recipe.toml"\n',
        b'base = "none.toml"\n',
        b"[small]\n",
        b'"model.d_model" = 3\n',
        b"[sweep]\n",
        b"true",
    ),
)


@_format("recipe", load=load_recipe, words=TOML)
def _(folder: Path) -> Any:
    path = folder / "recipe.toml"
    (folder / "other.toml").write_text(toy.RECIPE, encoding="utf-8")
    based = 'base = "other.toml"\n[training]\nsteps = 9\n[small]\n"training.steps" = 2\n[source]\nnote = "x"\n'
    path.write_text(toy.RECIPE, encoding="utf-8")
    digits = '[task]\nname = "digits"\nseed = 3\n[model]\nlayer = "fixed_point"\nd_model = 8\nn_layers = 2\n'
    digits += 'dropout = 0.1\n[layer]\nd_state = 4\nmixer = "householder"\n[optimiser]\nlr = 1e-3\n'
    digits += "[training]\nbatch = 4\nsteps = 9\n"
    return path, [toy.RECIPE.encode(), based.encode(), digits.encode()]


SWEEP = """base = "other.toml"
[sweep]
seeds = [0, 1]
[sweep.grid]
"layer.d_state" = [4, 8]
[sweep.variants.small]
"model.d_model" = 2
[sweep.variants.rnn]
"model.layer" = "rnn"
"layer.d_state" = 3
[sweep.published]
small = "97.1"
"""


@_format("sweep", load=plan, words=TOML)
def _(folder: Path) -> Any:
    path = folder / "sweep.toml"
    (folder / "other.toml").write_text(toy.RECIPE, encoding="utf-8")
    path.write_text(SWEEP, encoding="utf-8")
    return path, [SWEEP.encode()]


def _outcome(path: Path) -> None:
    """What tables and plots read of a run."""
    run = Run(path.parent)
    if path == run.recipe:
        Outcome.read(run)
        return
    recipe = _STATES.get(str(run.folder)) or _STATES.setdefault(str(run.folder), run.load_recipe())
    Outcome.of(run, recipe)
    run.records()
    evaluated(run, "accuracy", GRIDS["caps"])


def _register_run(name: str, file: str, **more: Any) -> None:
    @_format(f"run-{name}", load=_outcome, **more)
    def _(folder: Path) -> Any:
        run = _trained(folder)
        point = {"point": "max_iterations=4", "loss": 1.0, "accuracy": 0.5, "n": 3}
        (run.folder / "iterations.json").write_text(
            json.dumps([point, {**point, "point": "max_iterations=8"}]), encoding="utf-8"
        )
        path = run.folder / file
        if name == "failed":
            run.fail("it broke", "output")
        content = path.read_bytes()
        old = re.sub(rb"0\.\d+", b"NaN", content, count=1)
        return path, [content, old] if name in ("log", "result") else [content]


_register_run("recipe", "recipe.toml", words=TOML)
for _name, _file in (
    ("log", "log.jsonl"),
    ("result", "result.json"),
    ("sessions", "sessions.json"),
    ("failed", "failed.json"),
    ("iterations", "iterations.json"),
):
    _register_run(_name, _file, words=(*WORDS, b"[" * 2000, b"\n", b'"step":', b"Infinity"))
