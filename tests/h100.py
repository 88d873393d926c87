"""What counts assume of a GPU (an H100), and the sizes of the LRU's recipes for Long Range Arena."""

from __future__ import annotations

from typing import Any, NamedTuple

from rotrnn.training.recipe import load_recipe

BANDWIDTH = 3.0e12
"""Bytes a second that a copy reads and writes."""

L2_BANDWIDTH = 5.5e12
"""Bytes a second from the second cache."""

RATES = {"float32": 60e12, "tf32": 400e12, "bf16": 790e12}
"""Flops a second of a library's products, by their precision."""

MMA_SHARE = 0.6
"""What mma.sync reaches of these rates."""

PROCESSORS, CLOCK = 132, 1.755e9

STEPS = {"scifar": 1024, "listops": 2048, "text": 4096, "retrieval": 4000, "pathfinder": 1024, "pathx": 16384}
"""Length of sequences, by recipe."""

RAGGED = ("listops", "text", "retrieval")


class Sizes(NamedTuple):
    """Sequences, steps, channels, planes, directions, the GLU's matrices."""

    B: int
    T: int
    D: int
    N: int
    K: int
    G: int


def sizes(name: str) -> Sizes:
    """The sizes of a block of a recipe; a pair of sequences counts as two."""
    recipe = load_recipe(f"{name}-lru")
    layer: Any = recipe.layer
    pair = 2 if recipe.task.shape.head == "retrieval" else 1
    gates = 2 if recipe.model.glu == "full" else 1
    batch = recipe.training.batch * pair
    return Sizes(batch, STEPS[name], recipe.model.d_model, layer.d_state, 1 + layer.bidirectional, gates)
