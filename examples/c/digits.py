"""Trains the model of the page that recognises digits: the model of the recipe digits-lru, on handwritten digits of 8 x
8 pixels, one pixel per step.

    python examples/c/digits.py [--steps 1500] [--out examples/c/digits.safetensors]

Drawings in a page differ from scans of paper, so the training images are sheared, scaled
and moved a little, each time otherwise. The model reads pixels as they are, numbers from 0 to 16: the recipe's scale,
to zero mean and unit variance, is folded into its first map.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rotrnn

Array = npt.NDArray[Any]

SIDE, LEVELS = 8, 16.0
BATCH = 64


def moved(images: Array, rng: np.random.Generator) -> Array:
    """Images (B, 8, 8), each under a random affine map near the identity; outside there is paper, the value 0.

    The value at a place between four pixels is on the bilinear surface through them.
    """
    B = len(images)
    maps = np.eye(2) + 0.1 * rng.standard_normal((B, 2, 2))
    centre = np.stack(np.mgrid[:SIDE, :SIDE], -1) - (SIDE - 1) / 2  # (8, 8, 2)
    places = np.einsum("bij,rcj->brci", maps, centre) + 0.3 * rng.standard_normal((B, 1, 1, 2)) + (SIDE - 1) / 2
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    places = np.clip(places + 2, 0, SIDE + 2.99)
    row, column = places.astype(int).transpose(3, 0, 1, 2)
    down, right = (places % 1).transpose(3, 0, 1, 2)
    b = np.arange(B)[:, None, None]
    upper = (1 - right) * padded[b, row, column] + right * padded[b, row, column + 1]
    lower = (1 - right) * padded[b, row + 1, column] + right * padded[b, row + 1, column + 1]
    return (1 - down) * upper + down * lower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".safetensors"))
    args = parser.parse_args()

    recipe = rotrnn.load_recipe("digits-lru")
    task = recipe.task.load()
    pixels, labels, _ = task.train.batch(np.arange(len(task.train)))
    low, high = pixels.min(), pixels.max()  # the pixels 0 and 16, which are in every part of the data
    images = (pixels - low).reshape(-1, SIDE, SIDE)  # paper is 0

    model = recipe.build(task)
    params = model.init(np.random.default_rng(0))
    optimiser = recipe.optimiser
    moments, group_of = optimiser.init(params), optimiser.grouping(model.is_recurrent)
    rng = np.random.default_rng(1)
    for step in range(args.steps):
        rows = rng.integers(len(images), size=BATCH)
        x = (low + moved(images[rows], rng)).reshape(BATCH, -1, 1).astype(np.float32)
        logits, saved = model.forward(params, x, rotrnn.Context(train=True, step=step))
        loss = model.loss(logits, labels[rows])
        optimiser.update(params, model.backward(params, saved, loss.dlogits), moments, group_of, step, args.steps)
        if (step + 1) % 250 == 0:
            print(f"step {step + 1}: loss {loss.mean:.3f}", flush=True)

    test, answers, _ = task.test.batch(np.arange(len(task.test)))
    right = np.mean(model.answers(model.forward(params, test)[0]) == answers)
    print(f"test images: {right:.1%} right")
    encoder = params["encoder"]
    encoder["bias"] += low * encoder["w"][:, 0]
    encoder["w"] *= (high - low) / LEVELS
    model.save(args.out, params)


if __name__ == "__main__":
    main()
