"""A Mamba of a published size beside transformers on the CPU, both in float32: reading a prompt, writing tokens.

    python -m benchmarks.generate [--json] [--quick]

Random parameters, as transformers makes them, in the size of mamba-130m; ours are imported from the folder that it
saves, and both read the same prompt and write the same tokens, which is checked. Theirs runs as it is and compiled by
torch.compile (which takes a minute), in its inference mode, with its cache, on as many threads as ours (the packages
mamba_ssm and causal_conv1d, which it would take, are for GPUs). Calls run in turns in one process; times are minima; a
ratio is our time beside theirs. Needs the extra "peers". Writes benchmarks/results/generate.json; `--quick` runs a
small model and does not write.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, arguments, origin, row, seconds_in_turn, show, version
from rotrnn import _cpu, from_pretrained

PUBLISHED = {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24}
SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}
PROMPT, CHECKED = 128, 8
"""Tokens of the prompt, and tokens that are compared."""


def models(settings: dict[str, int]) -> tuple[Any, Any, Any]:
    """A model of transformers, and the same as ours with its parameters."""
    import torch
    from transformers import MambaConfig, MambaForCausalLM

    torch.set_num_threads(_cpu.threads())
    torch.manual_seed(0)
    theirs = MambaForCausalLM(MambaConfig(**settings)).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, *from_pretrained(folder)


def peers(theirs: Any) -> Iterator[tuple[str, Any]]:
    import torch

    yield "transformers", theirs
    yield "transformers, compiled", torch.compile(theirs)


def reader(model: Any, ids: Any) -> Callable[[], Any]:
    """Reads a prompt with transformers; returns its logits (B, T, V)."""
    import torch

    @torch.inference_mode()
    def read() -> Any:
        return model(ids, use_cache=False).logits

    return read


def writer(model: Any, ids: Any) -> Callable[[], Any]:
    """Reads the prompt, and then writes one token of each sequence in each call, the most probable one."""
    import torch

    with torch.inference_mode():
        read = model(ids, use_cache=True)
    state = {"cache": read.cache_params, "token": read.logits[:, -1:].argmax(-1)}

    @torch.inference_mode()
    def write() -> Any:
        written = state["token"]
        out = model(written, cache_params=state["cache"], use_cache=True)
        state["cache"], state["token"] = out.cache_params, out.logits[:, -1:].argmax(-1)
        return written.numpy()[:, 0]

    return write


def our_writer(model: Any, params: Any, ids: Any) -> Callable[[], Any]:
    """The same of our stream."""
    stream = model.stream(params, len(ids), "c")
    state = {"token": stream.push(ids)[:, -1].argmax(1)}

    def write() -> Any:
        written = state["token"]
        state["token"] = stream.push(written).argmax(1)
        return written

    return write


def beside(
    name: str, ours: Callable[[], Any], others: dict[str, Callable[[], Any]], window: float, **sizes: int
) -> Any:
    """A row for each of the others: our time beside its."""
    seconds = seconds_in_turn([ours, *others.values()], window=window)
    for peer, time in zip(others, seconds[1:], strict=True):
        yield row(f"{name}, beside {peer}", seconds[0], time, limit=peer, **sizes)


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    import torch

    settings, window = (SMALL, 0.1) if quick else (PUBLISHED, 30.0)
    theirs, model, params = models(settings)
    for B in (1, 8):
        ids = np.random.default_rng(0).integers(0, settings["vocab_size"], (B, PROMPT))
        given = torch.tensor(ids)
        sizes = {"B": B, "T": PROMPT, "D": settings["hidden_size"], "n_layers": settings["num_hidden_layers"]}
        if B == 1:
            read = {name: reader(one, given) for name, one in peers(theirs)}
            yield from beside("prompt", lambda ids=ids: model.forward(params, ids)[0], read, window, **sizes)
        write, ours = {name: writer(one, given) for name, one in peers(theirs)}, our_writer(model, params, ids)
        for _ in range(CHECKED):
            token = ours()
            assert all(np.array_equal(token, other()) for other in write.values()), "the tokens differ"
        yield from beside("token", ours, write, window, **sizes)


def main() -> None:
    parser = arguments(__doc__)
    args = parser.parse_args()
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    found = list(rows(args.quick))
    show(found, args.json)
    if not args.quick:
        about = origin()
        about["versions"]["transformers"] = version("transformers")
        text = json.dumps({"rows": found, "origin": about | {"command": "python -m benchmarks.generate"}}, indent=1)
        (RESULTS / "generate.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
