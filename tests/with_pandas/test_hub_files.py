"""IMDB and CIFAR-10 in the form of the Hugging Face Hub: the arrays of the published files, and malformed files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from rotrnn.tasks import CIFAR, IMDB
from rotrnn.tasks.cifar import TRAIN, write_binary
from rotrnn.tasks.hub import PLACE, split_file

pytestmark = pytest.mark.filterwarnings("ignore:.*not the whole published data set")

REVIEWS = {
    "train": [("bad <br /> film", 0), ("awful é", 0), ("fine", 1), ("", 1)],
    "test": [("good", 1), ("poor \U0001f600", 0)],
}


def write(folder: Path, split: str, **columns: Any) -> Path:
    path = folder / PLACE / split_file(split)
    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def png(pixels: Any, mode: str = "RGB") -> dict[str, Any]:
    """An image (32, 32, 3) as the Hub has it."""
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": None}


def rows(split: Any) -> list[tuple[list[Any], int]]:
    batch = split.batch(np.arange(len(split)))
    lengths = [None] * len(split) if batch.lengths is None else batch.lengths
    return sorted((x[:n].tolist(), int(y)) for x, n, y in zip(batch.inputs, lengths, batch.labels, strict=True))


@pytest.mark.parametrize("tokens", ["bytes", "characters"])
def test_reviews_are_those_of_the_published_files(tokens: str, tmp_path: Path) -> None:
    published, hub = tmp_path / "published", tmp_path / "hub"
    hub.mkdir()
    for split, reviews in REVIEWS.items():
        write(hub, split, text=[text for text, _ in reviews], label=[label for _, label in reviews])
        for i, (text, label) in enumerate(reviews):
            path = published / "aclImdb" / split / ("neg", "pos")[label] / f"{i}_{(2, 9)[label]}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
    settings: dict[str, Any] = {"tokens": tokens, "max_length": 12, "min_frequency": 1}
    one, other = (IMDB(data_dir=str(place), **settings).load() for place in (hub, published))
    assert one.vocab == other.vocab
    for split in REVIEWS:
        assert rows(getattr(one, split)) == rows(getattr(other, split))


@pytest.mark.parametrize("colour", [True, False])
def test_images_are_those_of_the_published_files(colour: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    published, hub = tmp_path / "published", tmp_path / "hub"
    published.mkdir()
    hub.mkdir()
    for split, count in (("train", 10), ("test", 3)):
        images, labels = rng.integers(0, 256, (count, 32, 32, 3), np.uint8), rng.integers(0, 10, count, np.uint8)
        write(hub, split, img=[png(image) for image in images], label=labels.astype(np.int64))
        planes = images.transpose(0, 3, 1, 2).reshape(count, 3, 1024)
        names = TRAIN if split == "train" else ("test_batch",)
        for name, index in zip(names, np.array_split(np.arange(count), len(names)), strict=True):
            write_binary(published / f"{name}.bin", planes[index], labels[index])
    one, other = (CIFAR(data_dir=str(place), colour=colour).load() for place in (hub, published))
    for split in ("train", "val", "test"):
        batches = [
            task_split.batch(np.arange(len(task_split))) for task_split in (getattr(one, split), getattr(other, split))
        ]
        np.testing.assert_array_equal(batches[0].inputs, batches[1].inputs)
        np.testing.assert_array_equal(batches[0].labels, batches[1].labels)


GREY, SMALL = png(np.zeros((32, 32, 3), np.uint8), "L"), png(np.zeros((8, 32, 3), np.uint8))
GOOD = png(np.zeros((32, 32, 3), np.uint8))
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (IMDB, {"text": ["a"]}, "has no column 'label', expected text and label, found text"),
    (IMDB, {"text": ["a", "b"], "label": [0, -1]}, "row 1: has a str with label -1, expected a text with label 0 or 1"),
    (IMDB, {"text": ["a", None], "label": [0, 1]}, "row 1: has a NoneType with label 1, expected a text with"),
    (IMDB, {"text": ["a" * 2**20] * 2**9, "label": [0] * 2**9}, r"would take \d+ bytes of memory, expected at most"),
    (CIFAR, {"img": [GOOD, GREY], "label": [0, 1]}, "row 1: has 32 x 32 pixels, L, expected 32 x 32 pixels, RGB"),
    (CIFAR, {"img": [SMALL], "label": [0]}, "row 0: has 32 x 8 pixels, RGB, expected 32 x 32 pixels, RGB"),
    (CIFAR, {"img": [{"bytes": b"%!PS", "path": None}], "label": [0]}, "row 0: is not a PNG image, or is damaged"),
    (CIFAR, {"img": [GOOD], "label": [10]}, "record 0: the label is 10, expected an integer from 0 to 9"),
    (CIFAR, {"img": [b"x"], "label": [0]}, "has no column 'img.bytes', expected img.bytes and label, found img, label"),
]


@pytest.mark.parametrize(("task", "columns", "message"), WRONG)
def test_malformed_files(task: Any, columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    for split in ("train", "test"):
        path = write(tmp_path, split, **columns)
    with pytest.raises(ValueError, match=rf"{split_file('train')}[:,] {message}"):
        task(data_dir=str(tmp_path)).load()
    for one in (path, path.with_name(split_file("train"))):
        one.write_bytes(one.read_bytes()[:-9])
    with pytest.raises(ValueError, match="is not a Parquet file, or is damaged"):
        task(data_dir=str(tmp_path)).load()
