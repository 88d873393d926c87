"""Published data sets in the form of the Hugging Face Hub: a Parquet file for each split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rotrnn._support.extras import needed
from rotrnn._support.files import check_bytes

PLACE = "plain_text"
"""Folder of the files in a data set's repository."""

ROWS = 1000
"""Rows that are read at once."""


def split_file(split: str) -> str:
    """Returns the name of a split's file."""
    return f"{split}-00000-of-00001.parquet"


def read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Yields the cells of each row as Python's objects. A column "img.bytes" is the field "bytes" of the column "img".

    Raises
    ------
    ImportError
        pyarrow is not installed.
    ValueError
        The file is not Parquet, or is damaged, lacks a column, or holds far more than its size allows.
    """
    with needed(f"{path}: Parquet files need pyarrow", "'rotrnn[parquet]'"):
        import pyarrow
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            leaves = {file.schema.column(i).path: file.schema.column(i) for i in range(len(file.schema))}
        if missing := [name for name in columns if name not in leaves]:
            expected, found = " and ".join(columns), ", ".join(leaves)
            raise ValueError(f"{path}: has no column {missing[0]!r}, expected {expected}, found {found:.200}")
        # repeated texts stay one text in memory
        texts = [name for name in columns if leaves[name].physical_type == "BYTE_ARRAY"]
        taken = 0
        with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_size=ROWS, columns=list(columns)):
                for row in zip(*(_leaf(batch, name) for name in columns), strict=True):
                    cells = tuple(cell.as_py() for cell in row)
                    taken += sum(len(cell) for cell in cells if isinstance(cell, str | bytes))
                    check_bytes(path, taken)
                    yield cells
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: is not a Parquet file, or is damaged ({error})") from error


def _leaf(batch: Any, name: str) -> Any:
    """Returns the array of a column, or of a field of a column."""
    column, *fields = name.split(".")
    array = batch.column(column)
    for field in fields:
        array = array.field(field)
    return array
