"""Time per token of streaming inference: a model of each layer, fed token by token and in chunks.

    python -m benchmarks.stream [--json] [--quick]

A tagger of two blocks of width 128, batch 1, float32, evaluation mode, by the stream's engine in C, or in Python for
the layers that it does not have. The limit is the same tokens in one forward call, per token, so the ratio is the cost
of streaming; a token by the engine in Python is beside it. Memory is the size of the state, after that many tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.layers import CHUNK, tagger
from benchmarks.measure import arguments, row, seconds_in_turn, show
from rotrnn.nn.layer import flatten_state
from rotrnn.nn.registry import LAYERS


def rows(D: int, T: int, window: float) -> list[dict[str, Any]]:
    """One row per layer: seconds per token, streamed, beside the same in one call."""
    found = []
    tokens = np.random.default_rng(0).integers(0, 32, (1, T))
    for name in LAYERS:
        model, params = tagger(name, D)
        stream, python = model.stream(params), model.stream(params, engine="python")

        def in_python(stream: Any = python) -> None:
            for t in range(CHUNK):
                stream.push(tokens[:, t])

        def one_by_one(stream: Any = stream) -> None:
            for t in range(CHUNK):
                stream.push(tokens[:, t])

        def chunked(stream: Any = stream) -> None:
            stream.push(tokens[:, :CHUNK])

        def at_once(model: Any = model, params: Any = params) -> None:
            model.forward(params, tokens)

        for _ in range(2):  # so that windowed states have seen a whole window
            stream.push(tokens)
            python.push(tokens)
        timed = seconds_in_turn([one_by_one, in_python, chunked, at_once], window=window)
        single, slow, chunk, whole = timed
        state = sum(leaf.nbytes for _, leaf in flatten_state(stream.state))
        more = {
            "limit": "one call, per token",
            "layer": name,
            "engine": stream.engine,
            "python_seconds": slow / CHUNK,
            "chunk_seconds": chunk / CHUNK,
            "state_bytes": state,
            "D": D,
            "T": T,
        }
        found.append(row(f"stream {name}", single / CHUNK, whole / T, **more))
    return found


def line(one: dict[str, Any]) -> str:
    keys = ("seconds", "python_seconds", "chunk_seconds", "limit_seconds")
    alone, python, chunk, whole = (1e6 * one[key] for key in keys)
    times = f"{alone:8.1f} us/token ({one['engine']}; python {python:.1f}), in chunks of {CHUNK} {chunk:8.2f}"
    times += f", in one call {whole:8.2f}"
    return f"{one['name']:28s}{times}; state {one['state_bytes'] / 1024:8.1f} KiB"


def main() -> None:
    args = arguments(__doc__).parse_args()
    found = rows(*((16, 128, 0.05) if args.quick else (128, 1024, 2.0)))
    if args.json:
        show(found, True)
    else:
        print("\n".join(map(line, found)))


if __name__ == "__main__":
    main()
