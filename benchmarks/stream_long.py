"""A million tokens through a stream of each layer: growth of memory, and the error of float32 against float64.

    python -m benchmarks.stream_long [--json] [--quick]

A tagger of two blocks of width 16 on random features, in chunks of 1000 tokens; the same parameters in float64 read the
same tokens. The error is the distance of the logits of the chunk's last 100 tokens, relative to their norm. Memory
is the growth of the process's resident memory since the first 10,000 tokens. Attention and wrope_memory have a window.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, arguments
from benchmarks.record import record
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.stream import Stream
from rotrnn.nn.layer import astype
from rotrnn.nn.registry import LAYERS

D, F, CHUNK, LAST = 16, 4, 1000, 100
MARKS = (10**4, 10**5, 10**6)
OWN: dict[str, dict[str, Any]] = {
    **{name: {"d_state": 16} for name in LAYERS},
    "rotrnn": {"d_state": 16, "heads": 2},
    "selective_rotrnn": {"d_state": 16, "heads": 2},
    "rg_lru": {"heads": 2},
    "rwkv7": {"heads": 2},
    "rnn": {"d_state": 16, "activation": "tanh"},
    "attention": {"heads": 2, "window": 64},
    "rope_memory": {"d_state": 16, "length": 1000},
    "wrope_memory": {"d_state": 16, "length": 1000, "window": 64},
    "lru, window": {"d_state": 16, "window": 64},
}


def resident() -> int:
    """Bytes of this process that are in memory (Linux)."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(case: str, tokens: int) -> dict[str, Any]:
    """The row of a layer."""
    rng = np.random.default_rng(0)
    settings = ModelSettings(case.partition(",")[0], D, 2, norm="layer")
    model = build_model(settings, OWN[case], head="tagger", n_classes=3, n_features=F)
    params = model.init(rng)
    narrow, wide = Stream(model, params), Stream(model, astype(params, np.float64))
    errors, first = {}, 0
    for done in range(CHUNK, tokens + 1, CHUNK):
        x = rng.standard_normal((1, CHUNK, F)).astype(np.float32)
        got, exact = narrow.push(x)[0, -LAST:], wide.push(x)[0, -LAST:]
        if done == min(MARKS[0], tokens):
            first = resident()
        if done in MARKS or done == tokens:
            errors[str(done)] = float(np.linalg.norm(got - exact) / np.linalg.norm(exact))
    grown = resident() - first
    state = narrow.state.nbytes if narrow.engine == "c" else None
    return {"name": f"stream_long {case}", "engine": narrow.engine, "tokens": tokens, "state_bytes": state,
            "grown_bytes": grown, "errors": errors}  # fmt: skip


def line(one: dict[str, Any]) -> str:
    errors = ", ".join(f"{error:.1e} at {int(mark):,}" for mark, error in one["errors"].items())
    return f"{one['name']:32s}{one['engine']:7s}memory +{one['grown_bytes'] / 2**20:.2f} MiB; error {errors}"


def main() -> None:
    args = arguments(__doc__).parse_args()
    found = [run(case, 3000 if args.quick else MARKS[-1]) for case in OWN]
    for one in found:
        print(json.dumps(one) if args.json else line(one))
    if not args.quick:
        record(RESULTS / "stream_long.json", found)


if __name__ == "__main__":
    main()
