"""Calls in which the fuzzers found a fault that is mended: a good call runs, a bad one says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rotrnn
from fuzz.mutations import Tensor, unaligned


class Found(NamedTuple):
    """A call, and a part of its error's message; None if it is a good call."""

    name: str
    call: Callable[[], object]
    message: str | None


def zeros(*shape: int) -> Any:
    return np.zeros(shape)


def windowed(position: int, dtype: Any = np.int64, a: Any = None, delay: Any = None) -> object:
    state = (zeros(1, 4, 4) if delay is None else delay, zeros(1, 2, 4), np.array([position], dtype))
    return rotrnn.tiir_scan(zeros(4) if a is None else a, zeros(1, 9, 4), state, window=3)


def written_over_an_input(how: str) -> object:
    room = zeros(1, 4, 4)
    if how == "delay":
        return windowed(0, a=room[0, 0], delay=room)
    return rotrnn.dplr_mix(zeros(2, 4), zeros(2), zeros(1, 4, 4), origin=Tensor(room), out=room)


def unaligned_zeros(*shape: int) -> Any:
    return unaligned(np.random.default_rng(0), np.zeros(shape, np.int64))


def backwards() -> None:
    """RotRNN's weights do not depend on the layout of its parameters."""
    layer = rotrnn.RotRNN(33, 32, heads=2)
    params = layer.init(np.random.default_rng(0))
    flipped = params | {"B": np.flip(np.ascontiguousarray(np.flip(params["B"])))}
    assert layer.prepare(flipped)[0].w_in.tobytes() == layer.prepare(params)[0].w_in.tobytes()


FOUND = [
    Found("tiir_scan, last position", lambda: windowed(2**63 - 1), "tiir_scan: state.position[0] is"),
    Found("tiir_scan, uint64", lambda: windowed(2**64 - 3, np.uint64), "tiir_scan: state.position[0] is"),
    Found("tiir_scan, a in the delay line", lambda: written_over_an_input("delay"), "overlaps a"),
    Found("dplr_mix, a foreign array over out", lambda: written_over_an_input("out"), "overlaps"),
    Found(
        "attention, last position",
        lambda: rotrnn.attention(*[zeros(1, 2, 4)] * 3, heads=2, past=np.array([2**63 - 1])),
        "past",
    ),
    Found("embedding, unaligned ids", lambda: rotrnn.embedding(unaligned_zeros(1, 2), zeros(3, 2)), None),
    Found("cross_entropy, unaligned labels", lambda: rotrnn.cross_entropy(zeros(2, 3), unaligned_zeros(2)), None),
    Found("RotRNN, parameters backwards", backwards, None),
]
