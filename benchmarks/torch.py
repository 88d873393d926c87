"""Layers in PyTorch: what the module adds to a layer's own time, and layers beside PyTorch's LSTM and selective scan.

    python -m benchmarks.torch [--json] [--quick] [--only LAYER]

Each is a forward and backward of x (8, 1024, 128) in float32, timed in turn with its limit. The first rows are the
module of every layer, whose limit is the layer itself, called with the same arrays. Then come the module of `LSTM`,
whose limit is `torch.nn.LSTM`, and the module of `Mamba`, whose limit is a plain transcription of Mamba's mixer with
its reference scan, a loop over time. Outputs and gradients of these two pairs are compared in float64 at a small size.
The bound on their difference, relative to the largest number of each, is a rounding for each step of the sequence and
each product of a sum.

Without --quick and --only, writes benchmarks/results/torch.json and the table of docs/pytorch.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import rotrnn.torch
from benchmarks.layers import settings_of, sizes
from benchmarks.measure import RESULTS, ROOT, arguments, markdown, origin, row, seconds_in_turn, show
from benchmarks.record import record
from benchmarks.report import duration, refresh
from rotrnn import _cpu
from rotrnn.models.build import make_layer
from rotrnn.nn.layer import Context
from rotrnn.nn.registry import LAYERS

Size = tuple[int, int, int]
Params = dict[str, torch.Tensor]
Function = Callable[[torch.Tensor], torch.Tensor]


def module_of(name: str, D: int, **more: Any) -> rotrnn.torch.Module:
    torch.manual_seed(0)
    return rotrnn.torch.Module(make_layer(name, D, settings_of(name, D) | more))


def input_of(size: Size, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return x.requires_grad_()


def both(function: Function, params: list[torch.Tensor], x: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
    """A forward and a backward: y, and the gradients of x and of the parameters."""
    y = function(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *params], dy)]


def own(net: rotrnn.torch.Module, x: torch.Tensor) -> Callable[[], object]:
    """The same by the layer itself, on the memory of the same tensors."""
    layer, params, array, ctx = net.core, net.params(), x.detach().numpy(), Context(train=True)
    dy = np.ones_like(array)

    def run() -> object:
        y, saved = layer.forward(params, array, ctx)
        return y, layer.backward(params, saved, dy)

    return run


# ---- peers ----


def lstm(params: Params) -> tuple[Function, list[torch.Tensor]]:
    """PyTorch's LSTM with these parameters, and its own in their order; its second bias is zero."""
    (width, D), dtype = params["weight_ih"].shape, params["bias"].dtype
    net = torch.nn.LSTM(D, width // 4, batch_first=True).to(dtype)
    with torch.no_grad():
        for name, value in {**params, "bias_ih": params["bias"], "bias_hh": torch.zeros(width)}.items():
            if name != "bias":
                getattr(net, f"{name}_l0").copy_(value)
    return lambda x: net(x)[0], [net.weight_ih_l0, net.weight_hh_l0, net.bias_ih_l0]


def mamba(params: Params) -> tuple[Function, list[torch.Tensor]]:
    """Mamba's mixer (Gu and Dao 2023, Section 3.4) in PyTorch's functions, with the equations of `rotrnn.Mamba`."""
    p = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
    inner, S = p["A_log"].shape
    taps, R = p["conv_w"].shape[1], p["dt_proj"].shape[1]

    def forward(x: torch.Tensor) -> torch.Tensor:
        value, gate = (x @ p["in_proj"].T).split(inner, 2)
        padded = F.pad(value.transpose(1, 2), (taps - 1, 0))
        u = F.silu(F.conv1d(padded, p["conv_w"][:, None], p["conv_bias"], groups=inner)).transpose(1, 2)
        d, B, C = (u @ p["x_proj"].T).split([R, S, S], 2)
        delta = F.softplus(d @ p["dt_proj"].T + p["dt_bias"])
        decay = torch.exp(delta[..., None] * -torch.exp(p["A_log"]))
        new = (delta * u)[..., None] * B[:, :, None]
        h, outputs = torch.zeros_like(new[:, 0]), []
        # an index per step would add up T gradients as large as decay
        for decay_t, new_t, C_t in zip(decay.unbind(1), new.unbind(1), C.unbind(1), strict=True):
            h = decay_t * h + new_t
            outputs.append((h * C_t[:, None]).sum(2))
        scanned = torch.stack(outputs, 1) + p["D"] * u
        return (scanned * F.silu(gate)) @ p["out_proj"].T

    return forward, list(p.values())


PEERS: dict[str, tuple[str, Callable[[Params], tuple[Function, list[torch.Tensor]]], dict[str, Any]]] = {
    "lstm": ("torch.nn.LSTM", lstm, {"projection": False}),
    "mamba": ("selective scan in PyTorch", mamba, {}),
}
"""By the name of our layer: the peer, the function that makes it of our parameters, and settings."""


def difference(name: str, size: Size) -> dict[str, float]:
    """The largest difference of an output or gradient from the peer's, relative to the largest number of it."""
    _, peer, more = PEERS[name]
    net, x = module_of(name, size[2], **more).double(), input_of(size, torch.float64)
    dy = torch.ones_like(x)
    ours = both(net, list(net.parameters()), x, dy)
    theirs = both(*peer(dict(net.named_parameters())), x, dy)
    most = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs, strict=True))
    bound = float(np.finfo(np.float64).eps) * size[1] * 4 * size[2]
    if most > bound:
        raise SystemExit(f"{name}: differs from its peer by {most:.1e}, expected at most {bound:.1e}")
    return {"difference": most, "error_bound": bound}


# ---- rows ----


def rows(names: list[str], size: Size, window: float) -> Iterator[dict[str, Any]]:
    x = input_of(size)
    dy = torch.ones_like(x)
    for name in names:
        net = module_of(name, size[2]).train()
        module = partial(both, net, list(net.parameters()), x, dy)
        seconds, limit = seconds_in_turn([module, own(net, x)], window=window)
        yield row(f"{name}, module", seconds, limit, limit="the layer itself", layer=name, **sizes(size))
    for name in [one for one in PEERS if one in names]:
        title, peer, more = PEERS[name]
        net = module_of(name, size[2], **more)
        ours = partial(both, net, list(net.parameters()), x, dy)
        theirs = partial(both, *peer(dict(net.named_parameters())), x, dy)
        seconds, limit = seconds_in_turn([ours, theirs], window=window)
        exact = difference(name, (2, min(size[1], 64), min(size[2], 16)))
        yield row(f"{name} beside {title}", seconds, limit, limit=title, layer=name, **sizes(size), **exact)


def table(results: dict[str, Any]) -> str:
    """Markdown: a line per row."""
    found: list[dict[str, Any]] = results["rows"]
    machine, first = results["machine"], found[0]
    size = ", ".join(f"{letter} {first[letter]}" for letter in "BTD")
    where = f"{machine['cpu']}, {first['threads']} threads, {machine['simd']}, {size}, float32"
    body = [
        [
            one["name"],
            duration(one["seconds"]),
            f"{one['limit']}, {duration(one['limit_seconds'])}",
            f"{one['ratio']:.3g}",
        ]
        for one in found
    ]
    head = ["forward and backward", "time", "beside", "ratio"]
    return f"{where}, PyTorch {results['versions']['torch']}, commit {results['commit']}.\n\n{markdown(head, body)}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=LAYERS, metavar="LAYER", help=f"of {', '.join(LAYERS)}")
    args = parser.parse_args()
    torch.set_num_threads(_cpu.threads())
    size, window = ((2, 16, 16), 0.05) if args.quick else ((8, 1024, 128), 4.0)
    came_from = origin()  # before the results change what git says of the tree
    found = []
    for one in rows([args.only] if args.only else list(LAYERS), size, window):
        found.append(one)
        show([one], args.json)
    if not args.quick and not args.only:
        results = {"rows": found, **came_from}
        refresh(ROOT / "docs" / "pytorch.md", table(record(RESULTS / "torch.json", results)))


if __name__ == "__main__":
    main()
