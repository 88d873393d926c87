"""Trains the model of the program that completes text: two blocks of LRU over the characters of this project's pages.

    python examples/c/complete.py [--steps 2500] [--out examples/c/complete.safetensors]

The text is README.md, CONTRIBUTING.md, CHANGELOG.md and docs/, some 90 kB; one page is held out. From so little the
model learns to spell, the words of the pages and the shape of their sentences and tables, not their meaning.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rotrnn

Tokens = npt.NDArray[np.int64]

ROOT = Path(__file__).parents[2]
HELD_OUT = "guarantees.md"
CHARACTERS = 128

SETTINGS = rotrnn.ModelSettings(layer="lru", d_model=56, n_layers=2, norm="layer", final_norm=True, dropout=0.1)
LAYER: dict[str, Any] = {"d_state": 44, "r_min": 0.3, "r_max": 0.99}
BATCH, WINDOW = 16, 256


def tokens_of(text: str) -> Tokens:
    """The characters as numbers; those outside ASCII are question marks."""
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)


def pages() -> tuple[Tokens, Tokens]:
    """The text to train on, and the page that is held out."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    learnt = "\n".join(path.read_text(encoding="utf-8") for path in paths if path.name != HELD_OUT)
    return tokens_of(learnt), tokens_of((ROOT / "docs" / HELD_OUT).read_text(encoding="utf-8"))


def bits(model: Any, params: rotrnn.nn.Params, text: Tokens) -> float:
    """Bits per character of a text, read from its start."""
    logits, _ = model.forward(params, text[None])
    return float(model.loss(logits, model.targets(text[None])).mean / np.log(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".safetensors"))
    args = parser.parse_args()

    text, held_out = pages()
    model = rotrnn.build_model(SETTINGS, LAYER, head="language", vocab=CHARACTERS, n_classes=CHARACTERS)
    params = model.init(np.random.default_rng(0))
    optimiser = rotrnn.AdamW(lr=8e-3, recurrent_factor=0.5, weight_decay=0.05, clip=1.0)
    moments, group_of = optimiser.init(params), optimiser.grouping(model.is_recurrent)

    rng = np.random.default_rng(1)
    for step in range(args.steps):
        first = rng.integers(len(text) - WINDOW, size=BATCH)
        window = text[first[:, None] + np.arange(WINDOW)]
        logits, saved = model.forward(params, window, rotrnn.Context(train=True, step=step))
        loss = model.loss(logits, model.targets(window))
        optimiser.update(params, model.backward(params, saved, loss.dlogits), moments, group_of, step, args.steps)
        if (step + 1) % 250 == 0:
            print(f"step {step + 1}: {loss.mean / np.log(2):.2f} bits per character", flush=True)

    learnt, other = (bits(model, params, one) for one in (text, held_out))
    print(f"the text: {learnt:.2f} bits per character, held out: {other:.2f}")
    model.save(args.out, params)


if __name__ == "__main__":
    main()
