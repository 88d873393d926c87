"""Delta rules and the scan of Mamba-2 beside chunked forms of other libraries for the CPU, in PyTorch.

    python -m benchmarks.chunks [--json] [--quick]

Each is a forward, or a forward and backward, in float32, timed in turn with its limit: the functions of fla-core
(fla/ops/*/naive.py), and `torch_chunk_gated_delta_rule` of transformers. Outputs and gradients are compared with fla's
in float64 by tests/hub/test_fla.py. Runs in build/hub, which `make test-hub` installs. Without --quick, writes
benchmarks/results/chunks.json and the table of docs/layers/delta_net.md.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.measure import RESULTS, ROOT, arguments, markdown, origin, row, seconds_in_turn, show, version
from benchmarks.record import record
from benchmarks.report import duration, refresh
from rotrnn import _cpu, ops

Size = tuple[int, int, int, int]
"""B, T, H, and K = V."""
CHUNK = 64


def plain(part: str, name: str) -> Callable[..., Any]:
    """Returns a function of fla/ops/PART/naive.py without importing fla, which asks for Triton."""
    path = str(importlib.metadata.distribution("fla-core").locate_file(f"fla/ops/{part}/naive.py"))
    spec = importlib.util.spec_from_file_location(f"fla_{part.replace('/', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., Any] = getattr(module, name)
    return found


def in_transformers() -> Callable[..., Any]:
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it recommends kernels for a GPU
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    return lambda q, k, v, g, beta, **how: torch_chunk_gated_delta_rule(q, k, v, g=g, beta=beta, **how)


def drawn(size: Size) -> dict[str, np.ndarray]:
    B, T, H, _ = size
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, *size), dtype=np.float32)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta = rng.uniform(0, 1, (B, T, H)).astype(np.float32)
    g = -rng.uniform(0, 0.1, (B, T, H)).astype(np.float32)
    gk = -rng.uniform(0, 0.1, size).astype(np.float32)
    return {"q": q, "k": k, "v": v, "beta": beta, "g": g, "gk": gk}


def ours(kind: str, a: dict[str, np.ndarray], backward: bool) -> Callable[[], object]:
    """The op of a kind, and with `backward` its adjoint from the carries that it returns."""
    q, dy = a["q"] * np.float32(a["q"].shape[-1] ** -0.5), np.ones_like(a["v"])
    if kind == "ssd":
        op, adjoint = partial(ops.ssd_scan, log_a=a["g"]), partial(ops.ssd_scan_backward, log_a=a["g"])
        given = a["v"], np.ones_like(a["g"]), None, a["k"], q
    else:
        op, adjoint = ops.delta_rule, ops.delta_rule_backward
        given = q, *(a[name][:, :, None] for name in ("k", "v", "beta")), np.exp(a["gk" if kind == "kda" else "g"])

    def with_backward() -> object:
        _, carries = op(*given, return_carries=True)
        return adjoint(dy, *given, carries=carries)

    return with_backward if backward else partial(op, *given)


def theirs(function: Callable[..., Any], names: str, a: dict[str, np.ndarray], backward: bool) -> Callable[[], object]:
    tensors = [torch.tensor(a[name], requires_grad=backward) for name in names.split()]

    def run() -> object:
        y = function(*tensors, chunk_size=CHUNK)[0]
        return torch.autograd.grad(y.sum(), tensors) if backward else y

    return run


def rows(size: Size, window: float) -> Iterator[dict[str, Any]]:
    a = drawn(size)
    peers = (
        ("gated delta rule", "gated", "fla", plain("gated_delta_rule", "naive_chunk_gated_delta_rule"), "q k v g beta"),
        ("gated delta rule", "gated", "transformers", in_transformers(), "q k v g beta"),
        ("Kimi Delta Attention", "kda", "fla", plain("kda", "naive_chunk_kda"), "q k v gk beta"),
        ("scan of Mamba-2", "ssd", "fla", plain("simple_gla", "naive_chunk_simple_gla"), "q k v g"),
    )
    for title, kind, limit, function, names in peers:
        for backward in (False, True):
            runs = ours(kind, a, backward), theirs(function, names, a, backward)
            name = f"{title}, {'forward and backward' if backward else 'forward'}, beside {limit}"
            yield row(name, *seconds_in_turn(runs, window=window), limit=limit, **dict(zip("BTHK", size, strict=True)))


def table(results: dict[str, Any]) -> str:
    """Markdown: a line per row."""
    found: list[dict[str, Any]] = results["rows"]
    first, machine = found[0], results["machine"]
    size = ", ".join(f"{letter} {first[letter]}" for letter in "BTH")
    where = f"{machine['cpu']}, {first['threads']} threads, {machine['simd']}, {size}, K = V = {first['K']}, float32"
    versions = f"fla-core {version('fla-core')}, transformers {version('transformers')}, PyTorch {torch.__version__}"
    body = [[r["name"], duration(r["seconds"]), duration(r["limit_seconds"]), f"{r['ratio']:.3g}"] for r in found]
    head = ["op", "time", "theirs", "ratio"]
    return f"{where}, {versions}, commit {results['commit']}.\n\n{markdown(head, body)}"


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(_cpu.threads())
    size, window = ((1, 64, 2, 16), 0.05) if args.quick else ((4, 1024, 8, 64), 4.0)
    came_from = origin()  # before the results make the tree dirty
    found = list(rows(size, window))
    show(found, args.json)
    if not args.quick:
        results = {"rows": found, **came_from}
        refresh(ROOT / "docs" / "layers" / "delta_net.md", table(record(RESULTS / "chunks.json", results)))


if __name__ == "__main__":
    main()
