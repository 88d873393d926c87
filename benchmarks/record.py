"""The form of numbers and pictures in benchmarks/results: small, with differences that can be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rotrnn._support.json import from_json, to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIGITS = 7
"""A page rounds to four at most; with fewer here, numbers between two of its steps would be rounded twice."""
COLOURS = 64


def record(path: Path, value: Any) -> Any:
    """Writes a value as JSON. Returns it as it is read again, with seven significant digits."""
    text = text_of(value)
    path.write_text(text, encoding="utf-8")
    return from_json(text)


def text_of(value: Any) -> str:
    """JSON with a line for each entry of an object and for each object of a list, whatever that contains."""
    return f"{_lines(_rounded(value))}\n"


def picture(figure: Figure, path: Path) -> None:
    """Saves a figure as `reduced` PNG."""
    from rotrnn.plots.style import DPI

    figure.savefig(path, dpi=DPI)
    reduced(path)


def reduced(path: Path) -> Path:
    """Writes a PNG again with a palette of 64 colours, a third of its size. Returns the path."""
    from PIL import Image

    with Image.open(path) as image:
        pixels = image.convert("RGB")
    pixels.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def _lines(value: Any) -> str:
    if isinstance(value, dict) and value:
        entries = ",\n".join(f"{to_json(str(key))}:{_lines(one)}" for key, one in value.items())
        return f"{{\n{entries}\n}}"
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return "[\n" + ",\n".join(map(_compact, value)) + "\n]"
    return _compact(value)


def _compact(value: Any) -> str:
    return to_json(value, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
